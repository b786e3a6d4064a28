"""Convert local event times to global ones, and place each report's local time 0 by what the
reports say of their clocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from msgspec import Struct
from msgspec.structs import replace


class Shifts(Struct, frozen=True, eq=False, dict=True):
    """Times moved by `shifts[k]` at `times[k]` (int64 ns, ascending without equals), by a line
    between, and constantly outside.

    Slopes are above -1, so that what is sorted stays sorted.
    """

    #: Ascending without equals (int64 ns).
    times: np.ndarray
    #: Added at these times (int64 ns).
    shifts: np.ndarray

    @cached_property
    def _moved(self) -> np.ndarray:
        return self.times + self.shifts

    @cached_property
    def _slopes(self) -> np.ndarray:
        return np.append(np.diff(self.shifts) / np.diff(self.times), 0.0)

    def to_global(self, time: np.ndarray) -> np.ndarray:
        """Return the times (int64 ns) moved."""
        at = np.maximum(np.searchsorted(self.times, time, "right") - 1, 0)
        into = np.maximum(time - self.times[at], 0)
        return time + self.shifts[at] + np.floor(into * self._slopes[at]).astype(np.int64)

    def to_local(self, time: int) -> int:
        """Return the local time that is moved to `time`, to within 3 ns."""
        at = int(np.searchsorted(self._moved, time, "right")) - 1
        if not 0 <= at < len(self.times) - 1:
            return time - int(self.shifts[max(at, 0)])
        (time_0, time_1), (moved_0, moved_1) = (
            column[at : at + 2].tolist() for column in (self.times, self._moved)
        )
        return time_0 + (time - moved_0) * (time_1 - time_0) // (moved_1 - moved_0)

    def delay(self, by: int) -> Shifts:
        """Return these shifts for times that are `by` ns later."""
        return Shifts(self.times + by, self.shifts)


def _apply_drift(
    local: np.ndarray,
    offset: np.ndarray | np.int64,
    drift: np.ndarray | float | None,
    pivot: np.ndarray | int,
) -> np.ndarray:
    """Return times by what is one for all of them, or each one's own."""
    moved = local + offset
    if drift is not None:
        moved += np.floor((local - pivot) * drift).astype(np.int64)
    return moved


class ClockMap(Struct, frozen=True):
    """global = local + offset + drift * (local - pivot), all in ns (drift as a plain ratio, 1e-6 =
    1 ppm); then moved by `shifts`.

    Monotone for |drift| < 1, so that what is sorted by local time is sorted by global time; what is
    1 ns apart may fall together.
    """

    #: ns at the pivot.
    offset: int = 0
    #: Plain ratio, 1e-6 = 1 ppm.
    drift: float = 0.0
    #: Local time of the offset (ns).
    pivot: int = 0
    #: Moves of what this makes of local times, None for none.
    shifts: Shifts | None = None

    def to_global(self, local: np.ndarray) -> np.ndarray:
        """Return global times (int64 ns) of local ones, which must lie well inside the range of
        int64.
        """
        moved = _apply_drift(local, np.int64(self.offset), self.drift or None, self.pivot)
        return moved if self.shifts is None else self.shifts.to_global(moved)

    def to_local(self, time: int) -> int:
        """Return the local time whose global time is `time`, to within `slack` ns."""
        if self.shifts is not None:
            time = self.shifts.to_local(time)
        if not self.drift:
            return time - self.offset
        return round((time - self.offset + self.drift * self.pivot) / (1 + self.drift))

    @property
    def slack(self) -> int:
        """Return what to add to `to_local` of the ends of a span to cover all of the span, ns."""
        return (2 if self.drift else 0) + (4 if self.shifts is not None else 0)

    def delay(self, by: int) -> ClockMap:
        """Return the same map with every global time `by` ns later."""
        return ClockMap(
            self.offset + by, self.drift, self.pivot, self.shifts and self.shifts.delay(by)
        )

    def move(self, shifts: Shifts | None) -> ClockMap:
        """Return this map, its global times then moved by these shifts alone."""
        return replace(self, shifts=shifts)


class RowClocks:
    """Apply a different :class:`ClockMap` to each row: row k has maps[which[k]]."""

    def __init__(self, maps: Sequence[ClockMap], which: np.ndarray) -> None:
        self.slack = max(clock.slack for clock in maps)
        drifting = any(clock.drift for clock in maps)
        self._offset = np.array([clock.offset for clock in maps], np.int64)[which]
        self._drift = np.array([clock.drift for clock in maps])[which] if drifting else None
        self._pivot = np.array([clock.pivot for clock in maps], np.int64)[which] if drifting else 0
        self._shifts = [
            (np.flatnonzero(which == number), clock.shifts)
            for number, clock in enumerate(maps)
            if clock.shifts is not None
        ]

    def to_global(self, local: np.ndarray) -> np.ndarray:
        """Return global times (int64 ns) of the rows' local ones."""
        moved = _apply_drift(local, self._offset, self._drift, self._pivot)
        for rows, shifts in self._shifts:
            moved[rows] = shifts.to_global(moved[rows])
        return moved


#: What times of several rows are given by.
Clock = ClockMap | RowClocks


#: Two reports whose UTC and monotonic clocks disagree by more than this do not come from one
#: machine.
SAME_MACHINE_NS = 1_000_000_000
#: The method of a report that says nothing of its clock.
UNPLACED = "none"


class ReportClock(Struct, frozen=True):
    """Times of a report's clock at its local time 0, None where unknown."""

    #: Name of the host.
    host: str
    #: UTC at local time 0, ns since 1970.
    utc_ns: int | None
    #: Host's monotonic clock at local time 0, ns.
    system_ns: int | None
    #: True if local times are UTC.
    absolute: bool = False


class Placement(Struct, frozen=True):
    """One report's map to UTC, its machine (equal numbers = one machine) and the method that placed
    it.
    """

    #: Equal numbers mean one machine.
    machine: int
    #: To UTC.
    map: ClockMap
    #: What placed the report.
    method: str


def place_reports(reports: list[ReportClock]) -> list[Placement]:
    """Return where each report is placed. One without any clock is UNPLACED, at 0: the caller knows
    where the others' events begin.
    """
    machines = _number_machines(reports)
    anchors: dict[int, ReportClock] = {}
    for report, machine in zip(reports, machines, strict=True):
        if _has_both_clocks(report):
            anchors.setdefault(machine, report)
    placements = []
    for report, machine in zip(reports, machines, strict=True):
        anchor = anchors.get(machine)
        offset, method = 0, UNPLACED
        if report.absolute:
            method = "UTC by the exporter"
        elif anchor is not None and _has_both_clocks(report):
            offset = anchor.utc_ns + report.system_ns - anchor.system_ns
            method = "host clock + UTC"
        elif report.utc_ns is not None:
            offset, method = report.utc_ns, "UTC"
        placements.append(Placement(machine, ClockMap(offset), method))
    return placements


def _has_both_clocks(report: ReportClock) -> bool:
    return report.utc_ns is not None and report.system_ns is not None and not report.absolute


def _number_machines(reports: list[ReportClock]) -> list[int]:
    """Number the machines: one name, and clocks that agree where both are known (containers share
    names).
    """
    clusters: list[tuple[str, int | None]] = []
    numbers = []
    for report in reports:
        boot = report.utc_ns - report.system_ns if _has_both_clocks(report) else None
        for number, (host, members) in enumerate(clusters):
            if host == report.host and (
                boot is None or members is None or abs(boot - members) <= SAME_MACHINE_NS
            ):
                if members is None:
                    clusters[number] = (host, boot)
                numbers.append(number)
                break
        else:
            clusters.append((report.host, boot))
            numbers.append(len(clusters) - 1)
    return numbers
