"""Which event types, communication tags and states a trace holds: one pass over its bytes, in blocks."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from isal import igzip, igzip_lib

from nsys2prv.errors import Nsys2prvError

#: Bytes read at a time, and the longest line that is taken for one.
BLOCK, LONGEST_LINE = 1 << 22, 1 << 26
MAGIC = b"#Paraver"
COLON, NEWLINE, ZERO, STATE, EVENT, LINE = b":\n0123"
#: Place of the first event type, of the tag and of the state among the fields of their records, and the digits of the largest type.
FIRST_TYPE, TAG, STATE_VALUE, DIGITS = 6, 14, 7, 10
#: Digits of a 64-bit number.
LONGEST_NUMBER = 19


@dataclass(frozen=True)
class Contents:
    """types: event types of the trace; filled: those of them with a value that is not 0; tags: of its communications; states: of rows."""

    types: frozenset[int]
    filled: frozenset[int]
    tags: frozenset[int]
    states: frozenset[int] = frozenset()


def contents(path: Path) -> Contents:
    """What a .prv or .prv.gz holds. Raises Nsys2prvError, in one line, for what is no trace."""
    types: set[int] = set()
    filled: set[int] = set()
    tags: set[int] = set()
    states: set[int] = set()
    try:
        with _opened(path) as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise Nsys2prvError(f"{path}: not a Paraver trace: it does not begin with {MAGIC.decode()}")
            file.readline(LONGEST_LINE)
            for block in _blocks(file, path):
                for found, more in zip((types, filled, tags, states), _of_block(block), strict=True):
                    found.update(more.tolist())
    except (EOFError, gzip.BadGzipFile, igzip_lib.IsalError) as error:
        raise Nsys2prvError(f"{path}: the compressed file is damaged: {error}") from None
    except OSError as error:
        raise Nsys2prvError(f"{path}: {error.strerror or error}") from None
    return Contents(frozenset(types), frozenset(filled), frozenset(tags), frozenset(states))


def _opened(path: Path) -> BinaryIO:
    return igzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def _blocks(file: BinaryIO, path: Path) -> Iterator[np.ndarray]:
    """Whole lines, as bytes, of about BLOCK each."""
    rest = b""
    while more := file.read(BLOCK):
        cut = more.rfind(b"\n") + 1
        if cut:
            yield np.frombuffer(rest + more[:cut], np.uint8)
            rest = more[cut:]
        elif len(rest) > LONGEST_LINE:
            raise Nsys2prvError(f"{path}: not a Paraver trace: a line of more than {LONGEST_LINE >> 20} MiB")
        else:
            rest += more
    if rest:
        yield np.frombuffer(rest + b"\n", np.uint8)


def _of_block(block: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Distinct types, those with a value that is not 0, tags and states of whole lines."""
    ends = np.flatnonzero((block == COLON) | (block == NEWLINE))
    last = np.flatnonzero(block[ends] == NEWLINE)
    first = np.concatenate(([0], last[:-1] + 1))
    kinds = block[np.concatenate(([0], ends[last[:-1]] + 1))]
    fields = last - first + 1
    comms = (kinds == LINE) & (fields > TAG)
    places = first[comms] + TAG
    tags = _distinct(block, ends[places - 1] + 1, ends[places], LONGEST_NUMBER)[0]
    places = first[(kinds == STATE) & (fields > STATE_VALUE)] + STATE_VALUE
    states = _distinct(block, ends[places - 1] + 1, ends[places], DIGITS)[0]
    events = (kinds == EVENT) & (fields > FIRST_TYPE + 1)
    pairs = (fields[events] - FIRST_TYPE) // 2
    before = np.cumsum(pairs) - pairs
    places = np.repeat(first[events] + FIRST_TYPE - 2 * before, pairs) + 2 * np.arange(pairs.sum())
    begins, stops = ends[places - 1] + 1, ends[places]
    return *_distinct(block, begins, stops, DIGITS, block[stops + 1] != ZERO), tags, states


def _distinct(block: np.ndarray, begins: np.ndarray, ends: np.ndarray, digits: int,
              marked: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Distinct numbers in block[begin:end] (of up to `digits` digits), all of them and those that are marked."""
    widths = ends - begins
    found, chosen = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for width in np.flatnonzero(np.bincount(widths[(widths > 0) & (widths <= digits)])):
        here = widths == width
        at = begins[here]
        numbers, sound = np.zeros(len(at), np.int64), np.ones(len(at), bool)
        for place in range(width):
            digit = block[at + place] - np.uint8(ZERO)
            numbers = numbers * 10 + digit
            sound &= digit < 10
        found.append(np.unique(numbers[sound]))
        if marked is not None:
            chosen.append(np.unique(numbers[sound & marked[here]]))
    return np.unique(np.concatenate(found)), np.unique(np.concatenate(chosen))
