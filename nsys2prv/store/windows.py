"""Time windows of the trace: where they lie, and what is in each, in trace time and in the trace's own
numbers.

Writers of any format read the trace through :class:`WindowReader`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from msgspec import Struct

from nsys2prv._util.columns import OPEN, factorize
from nsys2prv._util.files import Closable
from nsys2prv.clock.maps import ClockMap
from nsys2prv.store.global_ids import GlobalIds, to_begin_times, to_trace_times
from nsys2prv.store.range_slices import RangeSlice, read_slice
from nsys2prv.store.runs import (
    TIMES,
    RecordFormat,
    Run,
    SpillReader,
    concat_records,
    find_role,
    take_records,
)

#: Records of one window: some tens of MB, whatever the trace.
WINDOW_RECORDS = 300_000
#: Records of one window for each run of the trace, where that is more: of very many runs a window
#: must be worth the look into each.
RECORDS_PER_RUN = 400
#: Sampled numbers that are as much work as one record of the other kinds.
VALUES_PER_RECORD = 6


def move_records(records: np.ndarray, shape: RecordFormat, clock: ClockMap) -> None:
    """Replace all times of records by those that a clock gives them; OPEN stays."""
    for name in shape.times:
        records[name] = to_trace_times(records[name], clock, OPEN)


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
    """What is in a window of the trace."""

    #: Ranges that begin there, end there, or both; in the order of their runs.
    ranges: list[RangeSlice]
    #: Lines, samples and states of rows, by their shape; a line is where it is sent.
    records: dict[RecordFormat, WindowRecords]


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
        runs: dict[RecordFormat, list[tuple[Run, np.ndarray]]] = defaultdict(list)
        ranges = []
        for index in np.flatnonzero(touched):
            run = self._runs[index]
            if run.index is not None:
                found = read_slice(
                    run, self._global_ids, self._reader, names, (first, last), self._ends
                )
                ranges += [] if found is None else [found]
                continue
            clock = self._global_ids.clocks[run.report]
            # Where its clock has slack, some beside the window too.
            until = None if last is None else clock.to_local(last) + clock.slack
            records = self._reader.read_between(run, clock.to_local(first) - clock.slack, until)
            if len(records):
                runs[run.shape].append((run, records))
        pieces = {
            shape: WindowRecords(shape, self._global_ids, runs.pop(shape), (first, last))
            for shape in list(runs)
        }
        return Window(ranges, {shape: one for shape, one in pieces.items() if len(one)})

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


class WindowRecords:
    """Records of a shape, those of one run after those of the other, with their trace times.
    window: from its begin to before its end (None: the trace's), to which they are cut, for clocks
    have slack; None for no window.
    """

    def __init__(
        self,
        shape: RecordFormat,
        global_ids: GlobalIds,
        pieces: Sequence[tuple[Run, np.ndarray]],
        window: tuple[int, int | None] | None = None,
    ) -> None:
        self._shape, self._global_ids = shape, global_ids
        self._reports = np.array([run.report for run, _ in pieces])
        self._tasks = np.array([run.task for run, _ in pieces])
        self._records = concat_records([records for _, records in pieces])
        #: Number of the piece that each row is of; None where these do not differ in what their
        #: records mean.
        self._which: np.ndarray | None = None
        if (self._reports != self._reports[0]).any() or (self._tasks != self._tasks[0]).any():
            self._which = np.repeat(
                np.arange(len(pieces), dtype=np.int32), [len(records) for _, records in pieces]
            )
        #: Trace times (ns).
        self.times = to_trace_times(self._records["time"], self._clock, global_ids.duration)
        if window is None or not self._clock.slack:
            return
        first, last = window
        inside = (self.times >= first) & (True if last is None else self.times < last)
        if not inside.all():
            self.keep(inside)

    def keep(self, rows: np.ndarray) -> None:
        """Drop all other rows. rows: a mask."""
        self.times, self._records = self.times[rows], take_records(self._records, rows)
        if self._which is not None:
            self._which = self._which[rows]
        self.__dict__.pop("_clock", None)

    def __len__(self) -> int:
        return len(self._records)

    def find_begins(self, begin: str, end: str) -> np.ndarray:
        """Return the trace times (ns) at which ranges between these columns begin."""
        return to_begin_times(self._records[begin], self._records[end], self._clock)

    def column(self, name: str) -> np.ndarray:
        """Return a column of all of them, in trace time (OPEN stays) or in global numbers.

        name: one of `shape.dtype.names`.
        """
        column = self._records[name]
        if find_role(self._shape.stream, self._shape.name, name) == TIMES:
            return to_trace_times(column, self._clock, OPEN)
        lookup = self._global_ids.find_table(self._shape, name)
        return column if lookup is None else lookup(column, self._tasks, self._which)

    def read_stored_column(self, name: str) -> tuple[np.ndarray, np.ndarray | None]:
        """Return a column that holds no times, and the table that its values are indices of:
        together they say what :meth:`column` does, without a copy where all rows are of one task.
        None: the values stand for themselves.
        """
        lookup = self._global_ids.find_table(self._shape, name)
        if lookup is None or self._which is not None:
            return self.column(name), None
        return self._records[name], lookup.get_table(self._tasks[0])

    @cached_property
    def _clock(self) -> ClockMap:
        clocks = self._global_ids.clocks
        if self._which is None or (self._reports == self._reports[0]).all():
            return clocks[self._reports[0]]
        distinct, code = factorize(self._reports)
        return ClockMap.for_rows([clocks[report] for report in distinct], code[self._which])
