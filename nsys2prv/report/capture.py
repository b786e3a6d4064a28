"""When a report's capture was, in the report's own time: rows far outside of it are damage, of which one would stretch a trace over years.

The report tells how long it captured, but not always on which clock its times are, so a few rows of every table are looked at. Where most
of them are not in the time that is recorded, or none is, the capture is where the rows lie together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nsys2prv.report.source import NULL, TIME_LIMIT, Source, usable

#: Why rows are left out, in the account of rows.
FAR = "rows far outside the capture"
#: Rows may lie outside of the recorded time by as much again, and at least by this (ns).
MARGIN = 10 * 1_000_000_000
#: A capture that is said to be longer (ns: 30 days) is damage too.
LONGEST = 30 * 86_400 * 1_000_000_000
#: Without a recorded time, rows lie together as long as gaps are not so many times longer than all before, nor longer than this (ns).
GAP_FACTOR, GAP = 100, 3_600 * 1_000_000_000
#: Of the rows looked at, at least one in so many may lie apart from the others; of more it is not known which are wrong.
FEW = 4
#: Columns with a row's time, of which the first that a table has tells where its rows lie; and those with other times.
TIMES = ("start", "timestamp", "rawTimestamp", "startedAt")
ENDS = ("end", "endedAt")
#: Tables that are not of the program's events.
OTHER_TABLES = ("ANALYSIS_DETAILS", "DIAGNOSTIC_EVENT", "PROFILER_OVERHEAD")
#: So many tables are looked at, the largest.
MOST_TABLES = 8


@dataclass(frozen=True)
class Capture:
    """The times (ns, local) that rows may have, both included."""

    first: int = -TIME_LIMIT
    last: int = TIME_LIMIT

    def has_far(self, times: np.ndarray) -> bool:
        """Whether any time may be far outside, by one look at all together."""
        return bool(len(times)) and (int(times.min()) < self.first or int(times.max()) > self.last)

    def far(self, times: np.ndarray) -> np.ndarray:
        """Which times are far outside; those that no trace can hold are not among them."""
        return ((times < self.first) | (times > self.last)) & usable(times)


def capture_of(database: Source, utc_ns: int | None) -> Capture:
    """When the capture of a report was. utc_ns: when it began in UTC, for reports whose times are in UTC."""
    times = _some_times(database)
    if not len(times):
        return Capture()
    duration = recorded_duration(database)
    for begin in (0, utc_ns) if duration is not None else ():
        if begin is None:
            continue
        margin = max(duration, MARGIN)
        capture = Capture(begin - margin, begin + duration + margin)
        if 2 * np.count_nonzero((times >= capture.first) & (times <= capture.last)) >= len(times):
            return capture
    return _together(times)


def recorded_duration(database: Source) -> int | None:
    """How long the report says that it captured (ns), if that can be."""
    rows = database.small("ANALYSIS_DETAILS", "duration", "startTime", "stopTime")
    known = [duration for duration in map(_duration, rows) if duration is not None]
    return max(known, default=None)


def _duration(row: tuple) -> int | None:
    duration, start, stop = row
    if not isinstance(duration, int) and isinstance(start, int) and isinstance(stop, int):
        duration = stop - start
    return duration if isinstance(duration, int) and 0 < duration <= LONGEST else None


def _some_times(database: Source) -> np.ndarray:
    """Times of a few rows of every table of events, ascending."""
    columns = dict(_time_columns(database))
    largest = sorted(columns, key=lambda name: -database.tables[name].extent.rows)[:MOST_TABLES]
    times = np.array(database.spread({name: columns[name] for name in largest}), np.int64)
    return np.sort(times[usable(times) & (times != NULL)])


def _time_columns(database: Source) -> Iterator[tuple[str, str]]:
    for name, table in database.tables.items():
        if table.extent.rows and name not in OTHER_TABLES and not name.startswith("TARGET_INFO"):
            column = next((column for column in TIMES if column in table), None)
            if column is not None:
                yield name, column


def _together(times: np.ndarray) -> Capture:
    """Where most of these times, ascending, lie together; no bounds where too few do."""
    low = high = len(times) // 2
    while True:
        gap = max(GAP, GAP_FACTOR * (int(times[high]) - int(times[low])))
        if low > 0 and int(times[low]) - int(times[low - 1]) <= gap:
            low -= 1
        elif high + 1 < len(times) and int(times[high + 1]) - int(times[high]) <= gap:
            high += 1
        else:
            break
    if (len(times) - (high + 1 - low)) * FEW > len(times):
        return Capture()
    return Capture(int(times[low]) - gap, int(times[high]) + gap)
