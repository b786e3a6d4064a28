"""Collect the event types, small values of them, communication tags and states of a trace, in one
pass over its bytes.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from isal import igzip, igzip_lib
from msgspec import Struct

from nsys2prv._util.errors import Nsys2prvError

#: Bytes read at a time, and the longest line that is taken for one.
BLOCK, LONGEST_LINE = 1 << 22, 1 << 26
MAGIC = b"#Paraver"
COLON, NEWLINE, ZERO, STATE, EVENT, LINE = b":\n0123"
#: Place of the first event type, of the tag and of the state among the fields of their records, and
#: the digits of the largest type.
FIRST_TYPE, TAG, STATE_VALUE, DIGITS = 6, 14, 7, 10
#: Digits of a 64-bit number.
LONGEST_NUMBER = 19
#: Values from here on are not told apart; the bits that hold one of them, and the most digits of
#: those below it.
LARGE, VALUE_BITS, VALUE_DIGITS = 100, 7, 2


class Contents(Struct, frozen=True):
    """Contents of a trace."""

    #: Event types.
    types: frozenset[int]
    #: Event types with a value that is not 0.
    filled: frozenset[int]
    #: Tags of communications.
    tags: frozenset[int]
    #: States of rows.
    states: frozenset[int] = frozenset()
    #: Type -> its values, LARGE for those from LARGE on; None if unknown.
    values: frozenset[tuple[int, int]] | None = None


def scan_contents(path: Path) -> Contents:
    """Return the contents of a .prv or .prv.gz. Raises Nsys2prvError, in one line, for anything
    else.
    """
    pairs: set[int] = set()
    tags: set[int] = set()
    states: set[int] = set()
    if path.exists() and not path.is_file():
        raise Nsys2prvError(f"{path}: is not a regular file; give the name of a trace")
    try:
        with opened(path) as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise Nsys2prvError(
                    f"{path}: not a Paraver trace: it does not begin with {MAGIC.decode()}"
                )
            file.readline(LONGEST_LINE)
            for block in whole_lines(file, path):
                for found, more in zip((pairs, tags, states), _of_block(block), strict=True):
                    found.update(more.tolist())
    except (EOFError, gzip.BadGzipFile, igzip_lib.IsalError) as error:
        raise Nsys2prvError(f"{path}: the compressed file is damaged: {error}") from None
    except OSError as error:
        raise Nsys2prvError(f"{path}: {error.strerror or error}") from None
    values = frozenset((pair >> VALUE_BITS, pair & ((1 << VALUE_BITS) - 1)) for pair in pairs)
    return Contents(
        frozenset(code for code, _ in values),
        frozenset(code for code, value in values if value),
        frozenset(tags),
        frozenset(states),
        values,
    )


def opened(path: Path) -> BinaryIO:
    return igzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def whole_lines(file: BinaryIO, path: Path) -> Iterator[np.ndarray]:
    """Yield whole lines, as bytes, of about BLOCK each."""
    rest = b""
    while more := file.read(BLOCK):
        cut = more.rfind(b"\n") + 1
        if cut:
            yield np.frombuffer(rest + more[:cut], np.uint8)
            rest = more[cut:]
        elif len(rest) > LONGEST_LINE:
            raise Nsys2prvError(
                f"{path}: not a Paraver trace: a line of more than {LONGEST_LINE >> 20} MiB"
            )
        else:
            rest += more
    if rest:
        yield np.frombuffer(rest + b"\n", np.uint8)


def _of_block(block: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return distinct event types above the VALUE_BITS of their values, tags and states of whole
    lines.
    """
    ends = np.flatnonzero((block == COLON) | (block == NEWLINE))
    last = np.flatnonzero(block[ends] == NEWLINE)
    first = np.concatenate(([0], last[:-1] + 1))
    kinds = block[np.concatenate(([0], ends[last[:-1]] + 1))]
    fields = last - first + 1
    comms = (kinds == LINE) & (fields > TAG)
    places = first[comms] + TAG
    tags = _distinct(block, ends[places - 1] + 1, ends[places], LONGEST_NUMBER)
    places = first[(kinds == STATE) & (fields > STATE_VALUE)] + STATE_VALUE
    states = _distinct(block, ends[places - 1] + 1, ends[places], DIGITS)
    events = (kinds == EVENT) & (fields > FIRST_TYPE + 1)
    pairs = (fields[events] - FIRST_TYPE) // 2
    before = np.cumsum(pairs) - pairs
    places = np.repeat(first[events] + FIRST_TYPE - 2 * before, pairs) + 2 * np.arange(pairs.sum())
    values = small_values(block, ends[places] + 1, ends[places + 1])
    return _distinct(block, ends[places - 1] + 1, ends[places], DIGITS, values), tags, states


def small_values(block: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return the number in each block[begin:end]; LARGE for one that is not below it."""
    first, second = (
        block.take(begins + place, mode="clip") - np.uint8(ZERO) for place in range(VALUE_DIGITS)
    )
    widths = ends - begins
    found = np.full(len(begins), LARGE, np.uint8)
    found[first == 0] = 0
    np.copyto(found, first, where=(widths == 1) & (first < 10))
    np.copyto(
        found,
        first * np.uint8(10) + second,
        where=(widths == VALUE_DIGITS) & (first < 10) & (second < 10),
    )
    return found


def _distinct(
    block: np.ndarray,
    begins: np.ndarray,
    ends: np.ndarray,
    digits: int,
    values: np.ndarray | None = None,
) -> np.ndarray:
    """Return distinct numbers in block[begin:end] (of up to `digits` digits), above VALUE_BITS of
    `values` where these are given.
    """
    widths = ends - begins
    found = [np.empty(0, np.int64)]
    for width in np.flatnonzero(np.bincount(widths[(widths > 0) & (widths <= digits)])):
        here = widths == width
        at = begins[here]
        numbers, sound = np.zeros(len(at), np.int64), np.ones(len(at), bool)
        for place in range(width):
            digit = block[at + place] - np.uint8(ZERO)
            numbers = numbers * 10 + digit
            sound &= digit < 10
        if values is not None:
            numbers = numbers << VALUE_BITS | values[here]
        found.append(np.unique(numbers[sound]))
    return np.unique(np.concatenate(found))
