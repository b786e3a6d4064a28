"""Times of records: their order, their range, and the end of the trace."""

from __future__ import annotations

import numpy as np

from nsys2prv.check.findings import Findings
from nsys2prv.check.place import Place

LAST_EXACT = 2**53
#: Communications behind the end that are kept until the end is known.
MOST_LATE = 1_000_000


class Times:
    """Keeps the time reached so far. first, last: of all records; end: of the trace as Paraver sees it, which communications do not
    move."""

    def __init__(self, duration: float) -> None:
        self.duration = duration
        self.first: int | None = None
        self.last = 0
        self.end = duration
        self._reached = -2**63
        self._late = np.empty(0, np.int64), np.empty(0, np.int64)

    def order(self, place: Place, lines: np.ndarray, times: np.ndarray) -> None:
        """Times by which the file must be sorted, in the order of the file's records."""
        if not len(times):
            return
        reached = np.maximum.accumulate(np.concatenate(([self._reached], times)))
        place.report("time-order", lines[times < reached[:-1]])
        self._reached = int(reached[-1])
        first = int(times.min())
        self.first = first if self.first is None else min(self.first, first)

    def check(self, place: Place, lines: np.ndarray, columns: list[np.ndarray], *, moves_end: bool) -> np.ndarray:
        """All times of these records; returns which records Paraver can read. moves_end: not so for communications."""
        sound = np.ones(len(lines), bool)
        if not len(lines):
            return sound
        largest = columns[0] if len(columns) == 1 else np.maximum.reduce(columns)
        last = int(largest.max())
        if int(min(column.min() for column in columns)) < 0:
            sound = np.minimum.reduce(columns) >= 0
            place.report("negative-time", lines[~sound])
        if last > LAST_EXACT:
            place.report("time-inexact", lines[largest > LAST_EXACT])
        if last > self.duration:
            place.report("time-beyond-duration", lines[largest > self.duration])
            if not moves_end:
                self._keep_late(place, lines, largest)
        if moves_end and last > self.end:
            self.end = last
            times, places = self._late
            self._late = times[times > last], places[times > last]
        self.last = max(self.last, last)
        return sound

    def _keep_late(self, place: Place, lines: np.ndarray, largest: np.ndarray) -> None:
        """Keep communications behind the end as far as it is known."""
        late = np.flatnonzero(largest > self.end)[:MOST_LATE - len(self._late[0])]
        times, places = self._late
        self._late = np.append(times, largest[late]), np.append(places, place.base + lines[late])

    def close(self, name: str, findings: Findings) -> None:
        """Once all records are read: communications behind the end that states and events made."""
        times, places = self._late
        late = places[times > self.end]
        if len(late):
            findings.add("comm-beyond-end", name, int(late[0]), count=len(late))
