"""What the local times and indices of the runs of a job mean in the trace."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from msgspec import Struct

from nsys2prv._util.columns import OPEN
from nsys2prv._util.native import core
from nsys2prv.clock.maps import ClockMap
from nsys2prv.events.catalogue import CALLERS
from nsys2prv.table.runs import DOMAINS, OBJECTS, Shape, find_role

#: A clock that is slowed down leaves something of ranges that are longer than this (ns).
SHORT = 4


def to_begin_times(begin: np.ndarray, end: np.ndarray, clock: ClockMap) -> np.ndarray:
    """Return trace times (ns) at which ranges begin, by their local times.

    A clock that is slowed down may leave nothing of a range of 1 ns, which would then end before it
    begins: it begins 1 ns earlier.
    """
    times = to_trace_times(begin, clock, OPEN)
    if clock.slack:
        rows = np.flatnonzero(end <= begin + SHORT)
        own = times[rows]
        times[rows] -= (clock.to_global(end[rows]) <= own) & (own > 0)
    return times


def to_trace_times(times: np.ndarray, clock: ClockMap, opened: int) -> np.ndarray:
    """Return trace times (ns) of local ones; `opened` for those that are OPEN, as the ends of
    ranges that last to the end of the trace are.
    """
    if core is not None:
        mapped, drift = np.empty(len(times), np.int64), float(clock.drift)
        core.map_times(times, OPEN, opened, int(clock.offset), drift, int(clock.pivot), mapped)
        return mapped
    lasting = times == OPEN
    return np.where(lasting, opened, clock.to_global(np.where(lasting, 0, times)))


class IdTable(Struct):
    """Local indices of every task -> global numbers: `table[start[task] + local]`."""

    #: Where the indices of each task begin, and how many it has.
    start: np.ndarray
    length: np.ndarray
    #: Global numbers of all tasks.
    table: np.ndarray

    @classmethod
    def from_columns(cls, columns: Sequence[np.ndarray]) -> IdTable:
        """Make the table of the global numbers of each task. An array that several tasks share is in it
        once.
        """
        shared = {id(column): column for column in columns}
        length = np.array([len(column) for column in shared.values()], np.int64)
        places = dict(zip(shared, range(len(shared)), strict=True))
        rows = np.array([places[id(column)] for column in columns], np.int64)
        table = np.concatenate([np.zeros(0, np.int64), *shared.values()])
        return cls((np.cumsum(length) - length)[rows], length[rows], table)

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return len(self.start)

    def get_table(self, task: int) -> np.ndarray:
        """Return the table from local indices of a task to global numbers."""
        return self.table[self.start[task] :][: self.length[task]]


class GlobalIds(Struct):
    """Maps from local to global numbers, for all runs of a job."""

    #: Map of each report to trace time; the last is the identity, for runs in trace time.
    clocks: Sequence[ClockMap]
    #: Length of the trace, ns.
    duration: int
    #: Per task: thread index in the tree of each local object.
    objects: IdTable
    #: Per task: index of each local NVTX domain.
    domains: IdTable
    #: Name set -> per task: event value of each local name.
    names: Mapping[str, IdTable]
    #: Per task: which of the distinct `callers` are those of each local call stack.
    stacks: IdTable
    #: Callers by level, from 1 on: event values, ABSENT behind the last one.
    callers: np.ndarray

    def find_table(self, shape: Shape, column: str) -> IdTable | None:
        """Return the table from local to global numbers of a column, None if it holds plain numbers
        or times.
        """
        role = find_role(shape.stream, shape.name, column)
        tables = {OBJECTS: self.objects, DOMAINS: self.domains, CALLERS: self.stacks}
        return tables.get(role) or self.names.get(role)

    def save(self, path: Path) -> None:
        """Save it for :func:`load_global_ids`."""
        with path.open("wb") as file:
            pickle.dump(self, file, protocol=pickle.HIGHEST_PROTOCOL)


@lru_cache(1)
def load_global_ids(path: Path) -> GlobalIds:
    """Return the global numbers saved to a file of this conversion."""
    with path.open("rb") as file:
        return pickle.load(file)
