"""Lines of numbers between colons, as columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

COLON, NEWLINE, MINUS, ZERO = b":\n-0"
#: Digits of which numbers are made at once, and the most that are read.
WORD, DIGITS = 8, 24
LARGEST = 2**63 - 1
#: By number of digits: where they stand among eight bytes, and what of a byte is the digit. Then every other pair of digits.
_DIGITS = np.array([0x0F0F0F0F0F0F0F0F << 8 * (WORD - digits) & 2**64 - 1 for digits in range(WORD + 1)], np.uint64)
_PAIRS = np.uint64(0x000000FF000000FF)


@dataclass(frozen=True)
class Lines:
    """The lines of a block.

    kind: the first byte of each line; first: index of its first field; fields: their number; text: the bytes.
    numbers: of every field of all lines (i64; 0 where it is empty or no number), ends: the places behind them.
    broken: lines with a byte that belongs to no number; overflow, empty: fields.
    """

    text: np.ndarray
    kind: np.ndarray
    first: np.ndarray
    fields: np.ndarray
    numbers: np.ndarray
    ends: np.ndarray
    broken: np.ndarray
    overflow: np.ndarray
    empty: np.ndarray

    def line_of(self, fields: np.ndarray) -> np.ndarray:
        """The lines in which these fields stand."""
        return np.searchsorted(self.first, fields, "right") - 1

    def quoted(self, line: int) -> str:
        """The text of a line."""
        begin = self.ends[self.first[line] - 1] + 1 if line else 0
        return self.text[begin:self.ends[self.first[line] + self.fields[line] - 1]].tobytes().decode("utf-8", "replace")


def lines_of(block: bytes) -> Lines:
    """The fields of whole lines."""
    padded = np.frombuffer(b"".join((b"0" * DIGITS, block)), np.uint8)
    text = padded[DIGITS:]
    marks = np.flatnonzero(text - np.uint8(ZERO) > 9)
    found = text[marks]
    newline = found == NEWLINE
    odd = ~newline & (found != COLON)
    negative = broken = np.empty(0, np.int64)
    ends = marks
    if odd.any():
        ends, newline, places = marks[~odd], newline[~odd], marks[odd]
        opens = (places == 0) | (text[places - 1] == COLON) | (text[places - 1] == NEWLINE)
        sound = (text[places] == MINUS) & opens & (text[places + 1] - np.uint8(ZERO) <= 9)
        negative, broken = np.searchsorted(ends, places[sound]), places[~sound]
    last = np.flatnonzero(newline)
    first = np.concatenate(([0], last[:-1] + 1))
    begins = np.concatenate(([0], ends[:-1] + 1))
    starts = begins[first]
    begins[negative] += 1
    widths = ends - begins
    numbers, overflow = _numbers(padded, ends, widths)
    numbers[negative] *= -1
    return Lines(text, text[starts], first, last - first + 1, numbers, ends, np.unique(np.searchsorted(ends[last], broken)), overflow,
                 np.flatnonzero(widths == 0))


def _numbers(padded: np.ndarray, ends: np.ndarray, widths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The numbers that end at these places of the text, and which of them are too large (these are 0)."""
    # The eight bytes from every place of the text on, as numbers.
    words = np.ndarray(len(padded) - WORD + 1, "<u8", padded, 0, (1,))
    at = ends + (DIGITS - WORD)
    numbers = _eight_digits(words[at], widths)
    if len(widths) and int(widths.max()) <= WORD:
        return numbers.view(np.int64), np.empty(0, np.int64)
    long = np.flatnonzero(widths > WORD)
    numbers[long] += _eight_digits(words[at[long] - WORD], widths[long] - WORD) * np.uint64(10**8)
    longer = long[widths[long] > 2 * WORD]
    if not len(longer):
        return numbers.view(np.int64), longer
    high = _eight_digits(words[at[longer] - 2 * WORD], widths[longer] - 2 * WORD)
    sums = numbers[longer] + np.minimum(high, np.uint64(999)) * np.uint64(10**16)
    over = (high > 999) | (sums > LARGEST) | (widths[longer] > DIGITS)
    numbers[longer] = np.where(over, np.uint64(0), sums)
    return numbers.view(np.int64), longer[over]


def _eight_digits(words: np.ndarray, widths: np.ndarray) -> np.ndarray:
    """Numbers from the last `widths` of eight bytes of text, the first of which is the lowest byte. Neighbours are added in pairs: tens
    and ones, then hundreds, then ten thousands; the last two steps by one multiplication each, whose upper half is the sum."""
    words &= _DIGITS.take(widths, mode="clip")
    upper = words >> np.uint64(8)
    words *= np.uint64(10)
    words += upper
    upper = words >> np.uint64(16)
    upper &= _PAIRS
    upper *= np.uint64(1 + (10**4 << 32))
    words &= _PAIRS
    words *= np.uint64(10**2 + (10**6 << 32))
    words += upper
    words >>= np.uint64(32)
    return words
