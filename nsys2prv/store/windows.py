"""Time windows of the trace: where they lie, and the records of each in trace time and in the
trace's own numbers.

Writers of any format read the trace through :class:`WindowReader`.

A window looks into every run that it touches. A job of a thousand reports has some seventy thousand
runs of a few records each; looking into all of them for every window would cost more than their
records. So small runs of one shape are joined to runs in trace time, of global numbers, before the
trace is written, in memory that does not grow with the job.
"""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property, lru_cache
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.columns import ABSENT, OPEN, factorize
from nsys2prv._util.files import Closable
from nsys2prv._util.native import core
from nsys2prv.clock.maps import ClockMap
from nsys2prv.events.catalogue import CALLERS, load_catalogue
from nsys2prv.store.runs import (
    BEGIN,
    DOMAINS,
    OBJECTS,
    RESOLVED,
    TIMES,
    TRACE,
    RecordFormat,
    Run,
    SpillReader,
    SpillWriter,
    concat_records,
    find_level,
    find_role,
    read_run,
    take_records,
)
from nsys2prv.store.work_result import GREATEST_NARROW

#: Records of one window: some tens of MB, whatever the trace.
WINDOW_RECORDS = 300_000
#: Records of one window for each run of the trace, where that is more: of very many runs a window
#: must be worth the look into each.
RECORDS_PER_RUN = 400
#: Sampled numbers that are as much work as one record of the other kinds.
VALUES_PER_RECORD = 6
#: Records of a small run at most: to join it costs less than a hundred windows that look into it.
SMALL_RUN = 32_768
#: Records of a run that small ones are joined to, at most.
JOINED_RECORDS = 200_000
#: A clock that is slowed down leaves something of ranges that are longer than this (ns).
SHORT = 4
#: File with what the times and indices of runs that are joined mean.
GLOBAL_IDS = "global_ids"


def to_begin_times(begin: np.ndarray, end: np.ndarray, clock: ClockMap) -> np.ndarray:
    """Return trace times (ns) at which ranges begin, by their local times.

    A clock that is slowed down may leave nothing of a range of 1 ns, which would then end before it
    begins: it begins 1 ns earlier.
    """
    times = to_trace_times(begin, clock, OPEN)
    if clock.slack:
        rows = np.flatnonzero(end <= begin + SHORT)
        own = times[rows]
        times[rows] -= (clock.select(rows).to_global(end[rows]) <= own) & (own > 0)
    return times


def to_trace_times(times: np.ndarray, clock: ClockMap, opened: int) -> np.ndarray:
    """Return trace times (ns) of local ones; `opened` for those that are OPEN, as the ends of
    ranges that last to the end of the trace are.
    """
    if core is not None and np.ndim(clock.offset) == 0:
        mapped, drift = np.empty(len(times), np.int64), float(clock.drift)
        core.map_times(times, OPEN, opened, int(clock.offset), drift, int(clock.pivot), mapped)
        return mapped
    lasting = times == OPEN
    return np.where(lasting, opened, clock.to_global(np.where(lasting, 0, times)))


def move_records(records: np.ndarray, shape: RecordFormat, clock: ClockMap) -> None:
    """Replace all times of records by those that a clock gives them; OPEN stays."""
    for name in shape.times:
        records[name] = to_trace_times(records[name], clock, OPEN)


def choose_window_bounds(runs: Sequence[Run], clocks: Sequence[ClockMap]) -> list[int]:
    """Return times that cut the trace into windows of about equally many records."""
    if not runs:
        return [0]
    times, weights = [], []
    for run in runs:
        samples = run.samples[run.samples != OPEN]
        times.append(clocks[run.report].to_global(samples))
        # Records of many numbers weigh more.
        weight = run.rows * max(1, len(run.shape.metrics) / VALUES_PER_RECORD)
        weights.append(np.full(len(samples), weight / len(run.samples)))
    time = np.concatenate(times)
    order = np.argsort(time, kind="stable")
    total = np.cumsum(np.concatenate(weights)[order])
    size = max(WINDOW_RECORDS, len(runs) * RECORDS_PER_RUN)
    count = max(1, round(float(total[-1]) / size)) if len(total) else 1
    cuts = np.searchsorted(total, np.arange(1, count) * (total[-1] / count)) if count > 1 else []
    return [0, *sorted({int(time[order[cut]]) for cut in cuts} - {0})]


class IdTable(Struct):
    """Local indices of every task -> global numbers: `table[start[task] + local]`. The last task,
    RESOLVED, has the identity.
    """

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
        known = np.concatenate([np.zeros(0, np.int64), *shared.values()])
        every = [*shared.values(), np.arange(known.max(initial=-1) + 1)]
        length = np.array([len(column) for column in every], np.int64)
        places = dict(zip(shared, range(len(shared)), strict=True))
        rows = [*(places[id(column)] for column in columns), len(shared)]
        return cls((np.cumsum(length) - length)[rows], length[rows], np.append(known, every[-1]))

    @property
    def tasks(self) -> int:
        """Number of tasks, but for RESOLVED."""
        return len(self.start) - 1

    def get_table(self, task: int) -> np.ndarray:
        """Return the table from local indices of a task to global numbers."""
        return self.table[self.start[task] :][: self.length[task]]

    def __call__(
        self, local: np.ndarray, tasks: np.ndarray, which: np.ndarray | None
    ) -> np.ndarray:
        """Return global numbers (int64) of local indices; row k is of task tasks[which[k]], all
        of the only one where `which` is None.
        """
        if which is None:
            return self.get_table(tasks[0])[local]
        starts = self.start[tasks]
        if core is None:
            return self.table[starts[which] + local]
        values = np.empty(len(local), np.int64)
        core.look_up(self.table, starts, which, local, values)
        return values


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

    def find_table(self, shape: RecordFormat, column: str) -> IdTable | None:
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


class WindowReader(Closable):
    """Reads the records of a trace window by window, in trace time and in the trace's own numbers.
    Writers of any format go through it.
    """

    def __init__(self, runs: Sequence[Run], global_ids: GlobalIds) -> None:
        self._runs, self._global_ids, self._reader = runs, global_ids, SpillReader()
        self._first = np.array([self._to_trace_time(run, run.first_time) for run in runs], np.int64)
        self._last = np.array([self._to_trace_time(run, run.last_time) for run in runs], np.int64)

    def read(self, first: int, last: int | None) -> dict[RecordFormat, WindowRecords]:
        """Return the records with first <= time < last (ns; None: to the end of the trace), by
        their shape. A range is where it begins, however long it lasts.
        """
        touched = self._last >= first
        if last is not None:
            touched &= self._first < last
        runs: dict[RecordFormat, list[tuple[Run, np.ndarray]]] = defaultdict(list)
        for index in np.flatnonzero(touched):
            run = self._runs[index]
            clock = self._global_ids.clocks[run.report]
            # Where its clock has slack, some beside the window too.
            until = None if last is None else clock.to_local(last) + clock.slack
            records = self._reader.read_between(run, clock.to_local(first) - clock.slack, until)
            if len(records):
                runs[run.shape].append((run, records))
        return {
            shape: pieces
            for shape in list(runs)
            if len(pieces := WindowRecords(shape, self._global_ids, runs.pop(shape), (first, last)))
        }

    def close(self) -> None:
        """Close the files of the runs."""
        self._reader.close()

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
        local = self._records["time"]
        self.times = (
            self.find_begins("time", "end")
            if shape.stream == BEGIN
            else to_trace_times(local, self._clock, global_ids.duration)
        )
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

    def split_by_callers(self) -> Iterator[tuple[RecordFormat, WindowRecords]]:
        """Yield the begins by how many callers they have, each with the format that tells it."""
        if CALLERS not in self._shape.dtype.names:
            yield self._shape, self
            return
        fields = load_catalogue().layouts[self._shape.name].fields
        counts = np.count_nonzero(self.callers != ABSENT, axis=1)[self.column(CALLERS)]
        for count in np.unique(counts).tolist():
            beyond = sum(1 << bit for bit, field in enumerate(fields) if field.level > count)
            part = copy(self)
            part.keep(counts == count)
            yield replace(self._shape, field_mask=self._shape.field_mask & ~beyond), part

    def __len__(self) -> int:
        return len(self._records)

    def find_begins(self, begin: str, end: str) -> np.ndarray:
        """Return the trace times (ns) at which ranges between these columns begin."""
        return to_begin_times(self._records[begin], self._records[end], self._clock)

    def column(self, name: str) -> np.ndarray:
        """Return a column of all of them, in trace time (OPEN stays) or in global numbers.

        name: one of `shape.dtype.names`, or of a caller, which is ABSENT where a row has fewer.
        Raises ValueError for a field that these records lack, or have as 0, and so do not store.
        """
        if level := self._shape.stream == BEGIN and find_level(self._shape.name, name):
            return self.callers[self.column(CALLERS), level - 1]
        column = self._records[name]
        if find_role(self._shape.stream, self._shape.name, name) == TIMES:
            return to_trace_times(column, self._clock, OPEN)
        lookup = self._global_ids.find_table(self._shape, name)
        return column if lookup is None else lookup(column, self._tasks, self._which)

    def find_order(self) -> np.ndarray:
        """Return times by which begins of one time are ordered: the outer ones have later ones."""
        return self.column("order" if self._shape.is_ordered else "end")

    @property
    def callers(self) -> np.ndarray:
        """Return the distinct callers of rows, which the column CALLERS numbers, by level; ABSENT
        behind the last one.
        """
        return self._global_ids.callers

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


def find_first_times(
    runs: Iterable[Run], global_ids: GlobalIds, layout: str, rows: int
) -> np.ndarray:
    """Return the time of the first begin of a layout on each row of the trace; OPEN where there is
    none.
    """
    first = np.full(rows, OPEN)
    for run in runs:
        if run.shape.stream == BEGIN and run.shape.name == layout:
            records = WindowRecords(run.shape, global_ids, [(run, read_run(run))])
            np.minimum.at(first, records.column("object"), records.times)
    return first


def join_small_runs(
    runs: list[Run],
    global_ids: GlobalIds,
    parent: Path,
    run_tasks: Callable[[Callable, Sequence], Iterable],
) -> list[Run]:
    """Return the runs of a job, of which small ones are joined. parent: of the folder with those.
    run_tasks: maps over tasks.
    """
    groups = _group_small_runs(runs)
    several = [group for group in groups if len(group) > 1]
    if not several:
        return runs
    folder = Path(mkdtemp(prefix="joined-", dir=parent))
    global_ids.save(folder / GLOBAL_IDS)
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
    """Return the runs in groups, each to become one run, in the order of the first ones."""
    groups: list[list[Run]] = []
    filling: dict[RecordFormat, list[Run]] = {}
    filled: dict[RecordFormat, int] = {}
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
    """Return a run for each group of runs of one shape, in a file of this number in the folder."""
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
    shape = group[0].shape
    own = [(run, reader.read_between(run, run.first_time, None)) for run in group]
    pieces = WindowRecords(shape, global_ids, own)
    order = np.argsort(pieces.times, kind="stable")
    columns = {name: pieces.column(name)[order] for name in shape.dtype.names[1:]}
    if shape.stream == BEGIN:
        fields = load_catalogue().layouts[shape.name].fields
        wide = sum(
            1 << bit
            for bit, field in enumerate(fields)
            if field.name in columns and int(columns[field.name].max()) > GREATEST_NARROW
        )
        shape = replace(shape, wide=shape.wide | wide)
    records = np.empty(len(order), shape.dtype)
    records["time"] = pieces.times[order]
    for name, column in columns.items():
        records[name] = column
    return writer.append(shape, records, int(pieces.times.max()))
