"""Samples of counters as tables of numbers: instants joined, whatever parts of whatever tables their numbers came from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass
class SampleTable:
    """Instants with the same event types. object: of each. stored: value + 1 of each type (a column each), 0 where it has none."""

    codes: np.ndarray
    time: np.ndarray
    object: np.ndarray
    stored: np.ndarray

    def rows(self, chosen: np.ndarray) -> SampleTable:
        return SampleTable(self.codes, self.time[chosen], self.object[chosen], self.stored[chosen])


def joined(tables: Sequence[SampleTable]) -> list[SampleTable]:
    """The tables with the instants of equal time and object made one; of two numbers of one type the greater stays.

    A time that comes once stays where it is, so that what is in order costs no more than a look.
    """
    time = np.concatenate([table.time for table in tables])
    object_ = np.concatenate([table.object for table in tables])
    order = np.lexsort((object_, time))
    same = (np.diff(time[order]) == 0) & (np.diff(object_[order]) == 0)
    if not same.any():
        return list(tables)
    repeated = np.zeros(len(time), bool)
    repeated[order[1:][same]] = repeated[order[:-1][same]] = True
    codes = np.unique(np.concatenate([table.codes for table in tables]))
    kept, parts = [], []
    starts = np.cumsum([0] + [len(table.time) for table in tables])
    for table, first in zip(tables, starts, strict=False):
        mine = repeated[first:first + len(table.time)]
        kept.append(table.rows(~mine))
        wide = np.zeros((int(mine.sum()), len(codes)), np.int64)
        wide[:, np.searchsorted(codes, table.codes)] = table.stored[mine]
        parts.append(wide)
    rows = order[repeated[order]]
    stored = np.concatenate(parts)[(np.cumsum(repeated) - 1)[rows]]
    first_of = np.flatnonzero(np.append(True, (np.diff(time[rows]) != 0) | (np.diff(object_[rows]) != 0)))
    kept.append(SampleTable(codes, time[rows][first_of], object_[rows][first_of], np.maximum.reduceat(stored, first_of)))
    return [table for table in kept if len(table.time)]


def numbers(tables: Sequence[SampleTable]) -> Counter[int]:
    """How many numbers of each event type the tables hold."""
    found: Counter[int] = Counter()
    for table in tables:
        found.update(dict(zip(table.codes.tolist(), np.count_nonzero(table.stored, axis=0).tolist(), strict=True)))
    return found


def without_holes(table: SampleTable) -> Iterator[SampleTable]:
    """The table cut into tables whose every instant has all their types."""
    lacking = table.stored == 0
    if not lacking.any():
        yield table
        return
    bits = np.packbits(~lacking, axis=1)
    patterns, pattern_of = np.unique(bits, axis=0, return_inverse=True)
    pattern_of = pattern_of.reshape(-1)
    for number in range(len(patterns)):
        rows = np.flatnonzero(pattern_of == number)
        carried = ~lacking[rows[0]]
        if carried.any():
            yield SampleTable(table.codes[carried], table.time[rows], table.object[rows], table.stored[np.ix_(rows, carried)])
