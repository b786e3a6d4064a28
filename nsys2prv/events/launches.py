"""The index of launching calls: which API call, on which thread, started the operation of a correlation id.

Correlation ids are unique within a process only. The index is a list of pieces on disk, each sorted by process and
correlation id; a look-up touches only the stretches that can hold its ids, so memory does not grow with the report.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np

from nsys2prv.columns import factorize
from nsys2prv.report.source import NULL

CALL = np.dtype([("begin", "<i8"), ("end", "<i8"), ("thread", "<i8"), ("name", "<i8"), ("result", "<i8")])


@dataclass
class Launches:
    """Calls of one read: columns of equal length (process = globalPid, thread = globalTid, times in local ns)."""

    process: np.ndarray
    correlation: np.ndarray
    calls: np.ndarray


@dataclass(frozen=True)
class Segment:
    """Calls of one process in one piece: rows of a file, ascending by correlation id from `low` to `high`."""

    path: Path
    process: int
    rows: int
    keys_at: int
    calls_at: int
    low: int
    high: int


@dataclass
class Found:
    """For each row asked for: whether a call was found (`hit`), and the call."""

    hit: np.ndarray
    calls: np.ndarray


@dataclass
class LaunchIndex:
    segments: list[Segment] = field(default_factory=list)

    def find(self, processes: np.ndarray, correlations: np.ndarray) -> Found:
        """The calls of these (globalPid, correlationId) pairs. Id 0 and NULL find nothing."""
        hit = np.zeros(len(correlations), bool)
        calls = np.zeros(len(correlations), CALL)
        known = (correlations != 0) & (correlations != NULL)
        distinct, codes = factorize(processes)
        for code, process in enumerate(distinct):
            rows = np.flatnonzero((codes == code) & known)
            for segment in self.segments if len(rows) else ():
                if segment.process == process:
                    _probe(segment, correlations, rows, hit, calls)
        return Found(hit, calls)


def _probe(segment: Segment, correlations: np.ndarray, rows: np.ndarray, hit: np.ndarray, calls: np.ndarray) -> None:
    """Look `rows` up in one segment; of calls in several segments the earliest stays."""
    wanted = correlations[rows]
    if int(wanted.max()) < segment.low or int(wanted.min()) > segment.high:
        return
    keys = np.memmap(segment.path, "<i8", "r", segment.keys_at, (segment.rows,))
    first, last = np.searchsorted(keys, (wanted.min(), wanted.max()), "left")
    stretch = np.array(keys[first:last + 1])
    found = np.minimum(np.searchsorted(stretch, wanted), len(stretch) - 1)
    same = stretch[found] == wanted
    table = np.memmap(segment.path, CALL, "r", segment.calls_at, (segment.rows,))
    rows, offered = rows[same], table[first + found[same]]
    earlier = ~hit[rows] | (offered["begin"] < calls["begin"][rows])
    calls[rows[earlier]] = offered[earlier]
    hit[rows] = True


class LaunchWriter:
    """Appends launches to one file, a segment per process and read. The file is made with the first of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.segments: list[Segment] = []
        self._file: BinaryIO | None = None

    def append(self, launches: Launches) -> None:
        """Store launches, except calls without an id or without times. Of several calls with one id the earliest counts."""
        calls = launches.calls
        known = (launches.correlation != 0) & (launches.correlation != NULL) & (calls["begin"] != NULL) & (calls["end"] != NULL)
        distinct, codes = factorize(launches.process)
        for code, process in enumerate(distinct):
            rows = np.flatnonzero((codes == code) & known)
            order = rows[np.lexsort((launches.calls["begin"][rows], launches.correlation[rows]))]
            if not len(order):
                continue
            if self._file is None:
                self._file = self.path.open("wb")
            keys = launches.correlation[order].astype("<i8")
            keys_at = self._file.tell()
            self._file.write(keys.tobytes())
            calls_at = self._file.tell()
            self._file.write(launches.calls[order].tobytes())
            self.segments.append(Segment(self.path, int(process), len(keys), keys_at, calls_at, int(keys[0]), int(keys[-1])))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
