"""Divide the trace into time windows, and read the contents of each window in trace time and with
the trace's numbers. Writers of all formats use :class:`WindowReader`.

Each window reads from every run that it touches. A job of a thousand reports has about seventy
thousand runs with a few records each; reading all of them for every window would cost more than
their records. Small runs of one shape are therefore joined before a trace is written
(:func:`join_small_runs`), into runs in trace time with global numbers. The memory for this does not
grow with the job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
from msgspec import Struct

from nsys2prv._util.budget import (
    JOINED_RECORDS,
    RECORDS_PER_RUN,
    SMALL_RUN,
    VALUES_PER_RECORD,
    WINDOW_RECORDS,
)
from nsys2prv._util.columns import OPEN, take_rows
from nsys2prv._util.files import Closable
from nsys2prv._util.stored_columns import save_object
from nsys2prv.clock.maps import ClockMap
from nsys2prv.events.catalogue import load_catalogue
from nsys2prv.table.runs import (
    COUNTER,
    LINE,
    RANGE,
    RESOLVED,
    STATE,
    TRACE,
    Run,
    SpillReader,
    SpillWriter,
)
from nsys2prv.table.slices import (
    GlobalIds,
    RangeSlice,
    Slice,
    join_columns,
    load_global_ids,
    read_slice,
)

#: File with the meaning of times and indices in joined runs.
GLOBAL_IDS = "global_ids"


def choose_window_bounds(
    runs: Sequence[Run],
    clocks: Sequence[ClockMap] | Mapping[int, ClockMap],
    ends: bool = False,
    size: int = 0,
) -> list[int]:
    """Choose times that divide the trace into windows with about equal numbers of records. Return
    the start of each window (ns). ends: also count the ends of ranges. size: records per window, 0
    for WINDOW_RECORDS or more.
    """
    if not runs:
        return [0]
    # Records of many numbers weigh more.
    of_runs = [
        run.rows
        * max(1, len(run.shape.metrics) / VALUES_PER_RECORD)
        * (2 if ends and run.index is not None else 1)
        for run in runs
    ]
    size = size or max(WINDOW_RECORDS, len(runs) * RECORDS_PER_RUN)
    if sum(of_runs) <= size:
        return [0]
    times, weights = [], []
    for run, weight in zip(runs, of_runs, strict=True):
        samples = run.samples[run.samples != OPEN]
        times.append(clocks[run.report].to_global(samples))
        weights.append(np.full(len(samples), weight / len(run.samples)))
    time = np.concatenate(times)
    order = np.argsort(time, kind="stable")
    total = np.cumsum(np.concatenate(weights)[order])
    count = max(1, round(float(total[-1]) / size)) if len(total) else 1
    cuts = np.searchsorted(total, np.arange(1, count) * (total[-1] / count)) if count > 1 else []
    return [0, *sorted({int(time[order[cut]]) for cut in cuts} - {0})]


class Window(Struct, frozen=True):
    """The records of one window of the trace, as slices of runs, in the order of the runs."""

    #: Ranges that begin there, end there, or both.
    ranges: list[RangeSlice]
    #: Lines that are sent there.
    lines: list[Slice]
    samples: list[Slice]
    #: States of rows that begin there.
    states: list[Slice]


class WindowReader(Closable):
    """Reads a trace window by window, in trace time and with the trace's numbers. ends: also read
    ranges by their ends; otherwise a range belongs only to the window in which it starts.
    """

    def __init__(self, runs: Sequence[Run], global_ids: GlobalIds, ends: bool = False) -> None:
        self._runs, self._global_ids, self._reader = runs, global_ids, SpillReader()
        self._ends = ends
        self._first = np.array([self._to_trace_time(run, run.first_time) for run in runs], np.int64)
        self._last = np.array([self._to_trace_time(run, self._find_last(run)) for run in runs])

    def read(self, first: int, last: int | None, names: Sequence[str] | None = None) -> Window:
        """Return the records with first <= time < last (ns; None: to the end of the trace). names:
        columns, as for :func:`read_slice`.
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
            if len(one) or (isinstance(one, RangeSlice) and one.closings.size):
                found[run.shape.stream].append(one)
        return Window(*found.values())

    def close(self) -> None:
        """Close the files of the runs."""
        self._reader.close()

    def _find_last(self, run: Run) -> int:
        """Return the last time at which a run has anything to write."""
        if run.index is None or not self._ends:
            return run.last_time
        return OPEN if run.index.is_open else run.greatest_time

    def _to_trace_time(self, run: Run, time: int) -> int:
        if time == OPEN:
            return self._global_ids.duration
        return int(self._global_ids.clocks[run.report].to_global(np.int64(time)))


def join_small_runs(
    runs: list[Run],
    global_ids: GlobalIds,
    parent: Path,
    run_tasks: Callable[[Callable, Sequence], Iterable],
) -> list[Run]:
    """Join small runs of a job that have the same shape, because reading many runs takes time.
    Return all runs. parent: folder in which the folder of joined runs is created. run_tasks: runs a
    function on tasks.
    """
    groups = _group_small_runs(runs)
    several = [group for group in groups if len(group) > 1]
    if not several:
        return runs
    folder = Path(mkdtemp(prefix="joined-", dir=parent))
    save_object(global_ids, folder / GLOBAL_IDS)
    # Each task has about as many records as a run of joined ones.
    sizes = np.cumsum([sum(run.rows for run in group) for group in several])
    numbered = zip((sizes // JOINED_RECORDS).tolist(), several, strict=True)
    tasks = [
        (folder, number, [group for _, group in of_task])
        for number, of_task in groupby(numbered, key=itemgetter(0))
    ]
    joined = chain.from_iterable(run_tasks(join_task, tasks))
    return [group[0] if len(group) == 1 else next(joined) for group in groups]


def _group_small_runs(runs: Sequence[Run]) -> list[list[Run]]:
    """Return groups of runs. Each group becomes one run. Groups are in the order of their first
    runs.
    """
    groups: list[list[Run]] = []
    filling: dict[list[Run]] = {}
    filled: dict[int] = {}
    for run in runs:
        shape = run.shape
        if run.rows > SMALL_RUN:
            groups.append([run])
            continue
        if shape not in filling or filled[shape] + run.rows > JOINED_RECORDS:
            filling[shape], filled[shape] = [], 0
            groups.append(filling[shape])
        filling[shape].append(run)
        filled[shape] += run.rows
    return groups


def join_task(task: tuple[Path, int, list[list[Run]]]) -> list[Run]:
    """Join each group of runs of one shape into one run, in a new file. task: folder, number of the
    file, and the groups.
    """
    folder, number, groups = task
    global_ids = load_global_ids(folder / GLOBAL_IDS)
    with (
        SpillWriter(folder / f"runs-{number}.bin", TRACE, RESOLVED) as writer,
        SpillReader() as reader,
    ):
        return [_join_group(group, global_ids, reader, writer) for group in groups]


def _join_group(
    group: Sequence[Run], global_ids: GlobalIds, reader: SpillReader, writer: SpillWriter
) -> Run:
    """Join runs. Rows with the same time are in the order of the runs."""
    shape, closings = group[0].shape, None
    slices = [read_slice(run, global_ids, reader) for run in group]
    times = np.concatenate([one.times for one in slices])
    order = np.argsort(times, kind="stable")
    columns = take_rows(join_columns(slices), order)
    if shape.stream != RANGE:
        return writer.append(shape, columns)
    origin = np.repeat(np.arange(len(slices)), [len(one) for one in slices])
    layout = load_catalogue().layouts[shape.name]
    if layout.is_state:
        closings = np.concatenate([one.find_closings() for one in slices], axis=1)
    return writer.append_ranges(layout, {**columns, "origin": origin[order]}, closings=closings)
