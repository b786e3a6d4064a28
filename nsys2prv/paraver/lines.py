"""Formatting integers into lines of text, in columns, and merging lines of different shapes by time.

A line of a shape has a fixed width in words of four bytes; every number stands right-aligned in words of its own, with NUL
bytes before its first digit. Lines of all shapes are scattered into one buffer at their sorted places, and at the end all NULs
are dropped at once. A word of four digits comes from a table, so a number costs a few table look-ups and no loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import polars as pl

WORD = 4
#: Lines formatted at a time: their words stay in the processor's cache.
BLOCK = 8192
#: Lines merged at a time, likewise.
WINDOW = 131_072


def _table(text: Sequence[str]) -> np.ndarray:
    return np.frombuffer("".join(text).encode("ascii"), np.uint32)


#: Four digits with leading zeros, with leading NULs, and the latter with nothing at all for 0.
_PADDED = _table([f"{number:04d}" for number in range(10_000)])
_BARE = _table([f"{number:d}".rjust(WORD, "\0") for number in range(10_000)])
_NOTHING = np.concatenate([np.zeros(1, np.uint32), _BARE[1:]])
_TEN_TO_4 = 10_000


@dataclass(frozen=True)
class Text:
    """The same text in every line."""

    text: bytes


@dataclass(frozen=True)
class Choice:
    """One of several texts by index; equal tables share their words."""

    texts: tuple[bytes, ...]


@dataclass(frozen=True)
class Number:
    """A number from 0 up to 10**(4 * words) - 1."""

    words: int


Piece = Text | Choice | Number


def words_of(largest: int) -> int:
    """Words for the digits of numbers up to `largest`."""
    return -(-len(str(max(int(largest), 0))) // WORD)


class LineShape:
    """A line as a sequence of pieces; the columns to format are those of its choices and numbers, in order."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._places: list[tuple[int, int, np.ndarray | None]] = []
        self._constants: list[tuple[int, np.ndarray]] = []
        width = 0
        pending = b""
        for piece in (*pieces, None):
            if isinstance(piece, Text):
                pending += piece.text
                continue
            if pending:
                self._constants.append((width, _words_of_text(pending)))
                width += len(self._constants[-1][1])
                pending = b""
            if isinstance(piece, Choice):
                table = _choice_table(piece.texts)
                self._places.append((width, len(table), table))
                width += len(table)
            elif isinstance(piece, Number):
                self._places.append((width, piece.words, None))
                width += piece.words
        self.width = width
        self._block = np.zeros((0, width), np.uint32)
        self._item = np.dtype((np.void, WORD * width))

    def format(self, columns: Sequence[np.ndarray], rows: np.ndarray, out: np.ndarray, at: np.ndarray) -> None:
        """Write the lines of these rows of the columns into the words `out`, row k at word at[k]."""
        places = np.ndarray(len(out) - self.width + 1, self._item, out, 0, (WORD,))
        self._make_room(min(len(rows), BLOCK))
        for start in range(0, len(rows), BLOCK):
            chosen = rows[start:start + BLOCK]
            block = self._block[:len(chosen)]
            for (column, words, table), values in zip(self._places, columns, strict=True):
                picked = values[chosen]
                if table is None:
                    _put_number(block, column, words, picked)
                else:
                    for word in range(words):
                        block[:, column + word] = table[word][picked]
            places[at[start:start + BLOCK]] = block.view(self._item).ravel()

    def _make_room(self, lines: int) -> None:
        """Of a trace's many shapes few fill a whole block: each has as many lines as it needed so far."""
        if lines <= len(self._block):
            return
        self._block = np.empty((min(BLOCK, 2 * lines), self.width), np.uint32)
        for start, text in self._constants:
            self._block[:, start:start + len(text)] = text


def _words_of_text(text: bytes) -> np.ndarray:
    words = -(-len(text) // WORD)
    return np.frombuffer(text.rjust(words * WORD, b"\0"), np.uint32)


@cache
def _choice_table(texts: tuple[bytes, ...]) -> np.ndarray:
    """Words of the texts, one row per word of the longest."""
    words = max(1, -(-max(map(len, texts)) // WORD))
    return np.frombuffer(b"".join(text.rjust(words * WORD, b"\0") for text in texts), np.uint32).reshape(-1, words).T.copy()


def _put_number(block: np.ndarray, column: int, words: int, values: np.ndarray) -> None:
    """Digits of `values` into `words` words of every row from `column` on."""
    if words == 1:
        block[:, column] = _BARE[values]
        return
    upper = values // _TEN_TO_4
    last = values - upper * _TEN_TO_4
    least = int(upper.min()) if len(upper) else 0
    if least > 0:
        block[:, column + words - 1] = _PADDED[last]
        _put_number(block, column, words - 1, upper)
        return
    small = upper == 0
    block[:, column + words - 1] = np.where(small, _BARE[last], _PADDED[last])
    if words == 2:
        block[:, column] = _NOTHING[upper]
    else:
        _put_number(block, column, words - 1, upper)
        block[small, column + words - 2] = 0


@dataclass
class Batch:
    """Lines of one shape: the time of each, and the columns of its shape. ties: order among lines of equal time that have one."""

    shape: LineShape
    times: np.ndarray
    columns: Sequence[np.ndarray]
    ties: np.ndarray | None = None


def merged(batches: Sequence[Batch]) -> Iterator[np.ndarray]:
    """The text of all lines by time, in pieces (uint8).

    Lines of equal time keep the order of the batches, then of their rows; those of batches with ties go by these among themselves.
    """
    batches = [batch for batch in batches if len(batch.times)]
    if not batches:
        return
    times = np.concatenate([batch.times for batch in batches])
    order = _order(times)
    starts = np.cumsum([0] + [len(batch.times) for batch in batches])
    owner = np.repeat(np.arange(len(batches), dtype=np.uint16), np.diff(starts))
    _break_ties(order, times, owner, batches)
    widths = np.array([batch.shape.width for batch in batches], np.int64)
    for first in range(0, len(order), WINDOW):
        lines = order[first:first + WINDOW]
        owners = owner[lines]
        ends = np.cumsum(widths[owners])
        at = ends - widths[owners]
        out = np.zeros(int(ends[-1]), np.uint32)
        for number in np.unique(owners):
            mine = np.flatnonzero(owners == number)
            batch = batches[number]
            batch.shape.format(batch.columns, lines[mine] - starts[number], out, at[mine])
        text = pl.Series(out.view(np.uint8))
        yield text.filter(text != 0).to_numpy()  # many times as fast as numpy's own indexing


def _order(times: np.ndarray) -> np.ndarray:
    """The stable order of the times: a plain sort of time and row packed into one number, where that fits."""
    bits = len(times).bit_length()
    low = int(times.min())
    if (int(times.max()) - low).bit_length() + bits > 62:
        return np.argsort(times, kind="stable")
    packed = (times - low) << bits
    packed |= np.arange(len(times))
    packed.sort()
    return packed & ((1 << bits) - 1)


def _break_ties(order: np.ndarray, times: np.ndarray, owner: np.ndarray, batches: Sequence[Batch]) -> None:
    """Reorder, among the lines that have ties, those of equal time; all other lines keep their places."""
    tied = np.array([batch.ties is not None for batch in batches])
    if not tied.any():
        return
    places = np.flatnonzero(tied[owner[order]])
    time = times[order[places]]
    equal = time[1:] == time[:-1]
    if not equal.any():
        return
    together = np.flatnonzero(np.append(equal, False) | np.append(False, equal))
    places, time = places[together], time[together]
    ties = np.concatenate([batch.ties if batch.ties is not None else np.zeros(len(batch.times), np.int64) for batch in batches])
    lines = order[places]
    order[places] = lines[np.lexsort((ties[lines], time))]
