"""Conversion of local event times to global ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np


@dataclass(frozen=True, eq=False)
class Shifts:
    """Times moved by `shifts[k]` at `times[k]` (int64 ns, ascending without equals), by a line between, and constantly outside.

    Slopes are above -1, so that what is sorted stays sorted.
    """

    times: np.ndarray
    shifts: np.ndarray

    @cached_property
    def _moved(self) -> np.ndarray:
        return self.times + self.shifts

    @cached_property
    def _slopes(self) -> np.ndarray:
        return np.append(np.diff(self.shifts) / np.diff(self.times), 0.0)

    def to_global(self, time: np.ndarray) -> np.ndarray:
        """The times (int64 ns) moved."""
        at = np.maximum(np.searchsorted(self.times, time, "right") - 1, 0)
        into = np.maximum(time - self.times[at], 0)
        return time + self.shifts[at] + np.floor(into * self._slopes[at]).astype(np.int64)

    def to_local(self, time: int) -> int:
        """What is moved to `time`, to within 3 ns."""
        at = int(np.searchsorted(self._moved, time, "right")) - 1
        if not 0 <= at < len(self.times) - 1:
            return time - int(self.shifts[max(at, 0)])
        length, height = int(self.times[at + 1] - self.times[at]), int(self._moved[at + 1] - self._moved[at])
        return int(self.times[at]) + (time - int(self._moved[at])) * length // height

    def shifted(self, by: int) -> Shifts:
        """The same for times that are `by` ns later."""
        return Shifts(self.times + by, self.shifts)


def _moved(local: np.ndarray, offset: np.ndarray | np.int64, drift: np.ndarray | float | None, pivot: np.ndarray | int) -> np.ndarray:
    """Times by what is one for all of them, or each one's own."""
    moved = local + offset
    if drift is not None:
        moved += np.floor((local - pivot) * drift).astype(np.int64)
    return moved


@dataclass(frozen=True)
class ClockMap:
    """global = local + offset + drift * (local - pivot), all in ns (drift as a plain ratio, 1e-6 = 1 ppm); then moved by `shifts`.

    Monotone for |drift| < 1, so that what is sorted by local time is sorted by global time; what is 1 ns apart may fall together.
    """

    offset: int = 0
    drift: float = 0.0
    pivot: int = 0
    shifts: Shifts | None = None

    def to_global(self, local: np.ndarray) -> np.ndarray:
        """Global times (int64 ns) of local ones, which must lie well inside the range of int64."""
        moved = _moved(local, np.int64(self.offset), self.drift or None, self.pivot)
        return moved if self.shifts is None else self.shifts.to_global(moved)

    def to_local(self, time: int) -> int:
        """The local time whose global time is `time`, to within `slack` ns."""
        if self.shifts is not None:
            time = self.shifts.to_local(time)
        if not self.drift:
            return time - self.offset
        return round((time - self.offset + self.drift * self.pivot) / (1 + self.drift))

    @property
    def slack(self) -> int:
        """What is to be added to `to_local` of a span's ends to have all of the span."""
        return (2 if self.drift else 0) + (4 if self.shifts is not None else 0)

    def shifted(self, by: int) -> ClockMap:
        """The same map with every global time `by` ns later."""
        return ClockMap(self.offset + by, self.drift, self.pivot, self.shifts and self.shifts.shifted(by))

    def moved(self, shifts: Shifts | None) -> ClockMap:
        """This map, its global times then moved by these shifts alone."""
        return replace(self, shifts=shifts)


class RowClocks:
    """What :class:`ClockMap` does, for rows of which each has its own of several maps: row k has maps[which[k]]."""

    def __init__(self, maps: Sequence[ClockMap], which: np.ndarray) -> None:
        self.slack = max(clock.slack for clock in maps)
        drifting = any(clock.drift for clock in maps)
        self._offset = np.array([clock.offset for clock in maps], np.int64)[which]
        self._drift = np.array([clock.drift for clock in maps])[which] if drifting else None
        self._pivot = np.array([clock.pivot for clock in maps], np.int64)[which] if drifting else 0
        self._shifts = [(np.flatnonzero(which == number), clock.shifts) for number, clock in enumerate(maps) if clock.shifts is not None]

    def to_global(self, local: np.ndarray) -> np.ndarray:
        """Global times (int64 ns) of the rows' local ones."""
        moved = _moved(local, self._offset, self._drift, self._pivot)
        for rows, shifts in self._shifts:
            moved[rows] = shifts.to_global(moved[rows])
        return moved


#: What times of several rows are given by.
Clock = ClockMap | RowClocks
