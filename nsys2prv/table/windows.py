"""Time windows of the trace: where they lie, and what is in each, in trace time and in the trace's own
numbers.

Writers of any format read the trace through :class:`WindowReader`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from nsys2prv._util.columns import OPEN
from nsys2prv._util.files import Closable
from nsys2prv.clock.maps import ClockMap
from nsys2prv.table.global_ids import GlobalIds
from nsys2prv.table.runs import COUNTER, LINE, RANGE, STATE, Run, SpillReader
from nsys2prv.table.slices import RangeSlice, Slice, read_slice

#: Records of one window: some tens of MB, whatever the trace.
WINDOW_RECORDS = 300_000
#: Records of one window for each run of the trace, where that is more: of very many runs a window
#: must be worth the look into each.
RECORDS_PER_RUN = 400
#: Sampled numbers that are as much work as one record of the other kinds.
VALUES_PER_RECORD = 6


def choose_window_bounds(
    runs: Sequence[Run], clocks: Sequence[ClockMap], ends: bool = False
) -> list[int]:
    """Return times that cut the trace into windows of about equally many records. ends: the ends of
    ranges count, too.
    """
    if not runs:
        return [0]
    times, weights = [], []
    for run in runs:
        samples = run.samples[run.samples != OPEN]
        times.append(clocks[run.report].to_global(samples))
        # Records of many numbers weigh more.
        weight = run.rows * max(1, len(run.shape.metrics) / VALUES_PER_RECORD)
        if ends and run.index is not None:
            weight *= 2
        weights.append(np.full(len(samples), weight / len(run.samples)))
    time = np.concatenate(times)
    order = np.argsort(time, kind="stable")
    total = np.cumsum(np.concatenate(weights)[order])
    size = max(WINDOW_RECORDS, len(runs) * RECORDS_PER_RUN)
    count = max(1, round(float(total[-1]) / size)) if len(total) else 1
    cuts = np.searchsorted(total, np.arange(1, count) * (total[-1] / count)) if count > 1 else []
    return [0, *sorted({int(time[order[cut]]) for cut in cuts} - {0})]


class Window(Struct, frozen=True):
    """What is in a window of the trace, in the order of its runs."""

    #: Ranges that begin there, end there, or both.
    ranges: list[RangeSlice]
    #: Lines that are sent there.
    lines: list[Slice]
    samples: list[Slice]
    #: States of rows that begin there.
    states: list[Slice]


class WindowReader(Closable):
    """Reads a trace window by window, in trace time and in the trace's own numbers. Writers of any
    format go through it. ends: of ranges; without them a range is where it begins alone.
    """

    def __init__(self, runs: Sequence[Run], global_ids: GlobalIds, ends: bool = False) -> None:
        self._runs, self._global_ids, self._reader = runs, global_ids, SpillReader()
        self._ends = ends
        self._first = np.array([self._to_trace_time(run, run.first_time) for run in runs], np.int64)
        self._last = np.array([self._to_trace_time(run, self._find_last(run)) for run in runs])

    def read(self, first: int, last: int | None, names: Sequence[str] | None = None) -> Window:
        """Return what is at first <= time < last (ns; None: to the end of the trace). names: as
        :func:`read_slice` has them.
        """
        touched = self._last >= first
        if last is not None:
            touched &= self._first < last
        found: dict[str, list] = {stream: [] for stream in (RANGE, LINE, COUNTER, STATE)}
        for place in np.flatnonzero(touched):
            run = self._runs[place]
            of_run = None if run.index is None else names
            window = first, last
            one = read_slice(run, self._global_ids, self._reader, of_run, window, self._ends)
            found[run.shape.stream] += [] if one is None else [one]
        return Window(*found.values())

    def close(self) -> None:
        """Close the files of the runs."""
        self._reader.close()

    def _find_last(self, run: Run) -> int:
        """Return the last time of a run at which anything is written."""
        if run.index is None or not self._ends:
            return run.last_time
        return OPEN if run.index.is_open else run.greatest_time

    def _to_trace_time(self, run: Run, time: int) -> int:
        if time == OPEN:
            return self._global_ids.duration
        return int(self._global_ids.clocks[run.report].to_global(np.int64(time)))
