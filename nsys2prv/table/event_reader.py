"""Read the events of a prepared job as columns on one timeline, and the rows of its trace: each
thread with task, rank, node, device and stream.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import TypeVar
from weakref import WeakValueDictionary

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.budget import MANY_RECORDS
from nsys2prv._util.columns import factorize_together, fill_nulls, is_sorted, take_rows
from nsys2prv._util.intervals import find_outermost
from nsys2prv._util.stored_columns import StoredFrame, load_object, read_frame, save_object
from nsys2prv.events.catalogue import CALLERS, Metric, load_catalogue
from nsys2prv.export.source import mask_usable
from nsys2prv.table import windows
from nsys2prv.table.runs import COUNTER, LINE, RANGE, Columns, Run, SpillReader, read_run
from nsys2prv.table.slices import (
    GlobalIds,
    RangeSlice,
    Slice,
    read_slice,
    to_begin_times,
    to_trace_times,
)

T = TypeVar("T")
#: Kinds of rows: threads of processes that count, GPU streams, samples and queues, and threads of
#: helpers, which belong to no unit.
HOST, STREAM, SAMPLED, HELPER = "host", "stream", "samples", "helper"
#: The unit of rows that are in none.
NO_UNIT = -1
#: Stands for the value of a time in which nothing was sampled; values are not negative.
UNKNOWN = -1.0
#: Small units are joined up to this many rows and units: a query for a unit costs about as much as
#: 5,000 rows, and each thread queries all rows of its unit.
JOINED_ROWS, JOINED_UNITS = 20_000, 64
#: Units with more rows keep little in memory if they are the only one.
LARGE_ROWS = 500_000
#: Pattern of the labels of all metrics.
ANY = re.compile("")
#: Layouts of NVTX ranges.
RANGES = ("nvtx_pushpop", "nvtx_startend")
#: Stream -> the columns with the place and times of work.
SIDES_OF_WORK = {RANGE: ("row", "begin", "end"), LINE: ("receiver", "receive", "until")}
#: Columns of damaged work, and a job without any.
NO_DAMAGE = pl.DataFrame(schema=dict.fromkeys(("thread", "begin", "end"), pl.Int64))
#: Columns of lines, and the stored columns from which they are made.
LINE_COLUMNS = {
    "sent": "time",
    "sender": "sender",
    "begin": "receive",
    "thread": "receiver",
    "end": "until",
    "bytes": "size",
}
#: Further ones of messages of MPI.
SIDES_OF_MESSAGES = {"posted": "posted", "released": "released"}
#: Types of the columns that all ranges and lines have, threads apart; fields are as threads.
TIMES = dict.fromkeys(("begin", "end", "sent", "bytes", "posted", "released"), np.int64)
#: Layouts of work that has the number of its node of a graph; columns of facts of captures, and of replayed
#: work.
OF_NODES = ("cuda_kernel", "nccl_kernel", "memory_operation")
CAPTURE_COLUMNS, CAPTURED = ("captor", "time_captured", "node"), ("captor", "captured")
REPLAY_COLUMNS = dict.fromkeys(("thread", "begin", *CAPTURED), pl.Int64)
#: Columns of stacks.
STACK_COLUMNS = {
    "begin": pl.Int64,
    "end": pl.Int64,
    "thread": pl.Int32,
    "layout": pl.Int8,
    "text": pl.UInt32,
}


class RowTable(Struct, frozen=True, dict=True):
    """The rows of a job (threads, streams), its devices, and the units (rows that analyses read at
    a time).
    """

    #: A row for each thread of the trace, in their order: `thread` (from 0), `row` (its label), `name`
    #: (that without its address), `gpu` (number of its GPU on its machine, null for none), `kind` (host, stream, samples, helper), `process` (from 1, as Paraver numbers tasks), `task` (from 1: the process, or
    #: its GPU that is a rank of NCCL beside others of it, which `is_gpu` says), `who` (name of the task), `rank` (null where unknown, and of
    #: such GPUs, which have a `nccl_rank`; of the process `process_rank`), `node`, `clocks` (a number of the hosts
    #: whose times can be compared with each other), `device` (index into devices, null for none), `stream`.
    threads: pl.DataFrame
    #: A row for each physical GPU: `device` (from 0), `node`, `gpu` (its number in row names),
    #: `label`, `task` (the first with work).
    devices: pl.DataFrame
    #: Unit of each thread (from 0), NO_UNIT for threads of helpers. Threads are in one unit if they
    #: share a report or a GPU, or if these units were joined.
    units: np.ndarray
    #: For each thread: the thread whose additional row it is, or itself.
    main_rows: np.ndarray
    #: GPUs that are tasks, and that no thread drives alone -> the task of the threads that drive several.
    hosts: Mapping[int, int] = {}
    #: Where units were joined, the unit of each thread before.
    units_apart: np.ndarray | None = None

    @property
    def unit_numbers(self) -> list[int]:
        """Return the numbers of all units, sorted."""
        return np.unique(self.units[self.units != NO_UNIT]).tolist()

    def get_column(self, name: str) -> np.ndarray:
        """Return a column of `threads` as int64, with -1 for null. Callers must not change it."""
        columns = self.__dict__.setdefault("columns", {})
        if name not in columns:
            columns[name] = fill_nulls(self.threads[name], -1).to_numpy()
        return columns[name]

    def find(self, name: str, threads: pl.Series) -> pl.Series:
        """Return for each of these rows its value in a column of `threads` (int64, named like the
        column), with -1 for null.
        """
        return pl.Series(name, self.get_column(name)[threads.to_numpy()], dtype=pl.Int64)


class Samples(Struct, frozen=True):
    """Sampled values of one device in one layout: times, and the values of each metric."""

    #: Row of the trace, from 0.
    thread: int
    #: Layout of the counters.
    layout: str
    #: Labels, one for each column of `values`.
    metrics: tuple[str, ...]
    #: Ascending (ns).
    time: np.ndarray
    #: (times, metrics): NaN if a sample lacks the metric, UNKNOWN if it states that nothing was
    #: sampled.
    values: np.ndarray


class CutEdges(Struct, frozen=True):
    """Facts about the trace before and after the part that a cut kept, as far as they concern this
    part. Times in trace ns.
    """

    #: Begin of the part; the end is that of the trace.
    begin: int
    #: True if the job continues before the part, and after it.
    before: bool
    behind: bool
    #: Thread -> until when work runs in the part that the thread launched before it.
    carried: Mapping[int, int]
    #: Thread -> when it first launches, within the part, work that starts after the part.
    pending: Mapping[int, int]


class StackFile(Struct, frozen=True):
    """File with the stacks of calls and samples of one reading task, from `set_stacks_aside` in
    :mod:`nsys2prv.events.stacks`.
    """

    #: Of each call and sample.
    rows: StoredFrame
    #: Texts of the stacks.
    texts: StoredFrame
    #: Index of the report, and number of the task.
    report: int
    task: int


class CaptureFile(Struct, frozen=True):
    """File that says which call captured each node of CUDA graphs, from
    :mod:`nsys2prv.events.captures`.
    """

    #: Of each node.
    rows: StoredFrame
    #: Index of the report.
    report: int
    #: Thread of the trace by globalTid.
    threads: Mapping[int, int]


class EventReader(Struct, dict=True, weakref=True):
    """Reads the events of a prepared job as columns, for one unit or all units.

    Its fields are the fields of a prepared job (:mod:`nsys2prv.conversion.job`) with the same
    names.
    """

    #: Runs of records of the job.
    runs: list[Run]
    #: Meaning of their times and indices in the trace.
    ids: GlobalIds
    #: Rows, devices and units.
    rows: RowTable
    #: Whole stacks of calls and samples.
    stacks: tuple[StackFile, ...] = ()
    #: Of a part of a job; None of a whole one.
    edges: CutEdges | None = None
    #: Work with damaged times, which is excluded: `thread`, `begin`, `end` (ns).
    damaged: pl.DataFrame = NO_DAMAGE
    #: Where nodes of graphs were captured.
    captures: tuple[CaptureFile, ...] = ()
    #: Of a part of a job with such: the NVTX ranges of the whole one.
    whole: EventReader | None = None

    def remember(self, key: str, compute: Callable[[], T]) -> T:
        """Return `compute()`, which is called only once for each key. The result must depend only
        on the events.
        """
        remembered = self.__dict__.setdefault("remembered", {})
        if key not in remembered:
            remembered[key] = compute()
        return remembered[key]

    def join_small_units(self) -> EventReader:
        """Return a reader of the same events in which small units are joined, so that fewer queries
        are needed; this reader if there are not several small units.
        """
        sizes = np.zeros(self.rows.units.max(initial=NO_UNIT) + 1, np.int64)
        for run in self.runs:
            units = [unit for unit in self._list_units(run) if unit != NO_UNIT]
            sizes[units] += run.rows // max(len(units), 1)
        joined, number, size, count = np.zeros_like(sizes), -1, 0, JOINED_UNITS
        for unit, own in enumerate(sizes.tolist()):
            size, count = size + own, count + 1
            if size > JOINED_ROWS or count > JOINED_UNITS:
                number, size, count = number + 1, own, 1
            joined[unit] = number
        if number + 1 == len(sizes):
            return self
        units = np.where(self.rows.units == NO_UNIT, NO_UNIT, joined[self.rows.units])
        return replace(self, rows=replace(self.rows, units=units, units_apart=self.rows.units))

    @cached_property
    def has_one_large_unit(self) -> bool:
        """True if the job is one unit with so many events that its columns may use most of the
        memory.
        """
        return len(self.rows.unit_numbers) == 1 and self.records > LARGE_ROWS

    @property
    def must_save_memory(self) -> bool:
        """True if the job is one unit with so many events that memory is more important than time."""
        return self.has_one_large_unit and self.records > MANY_RECORDS

    @cached_property
    def records(self) -> int:
        """Number of records of the job."""
        return sum(run.rows for run in self.runs)

    @property
    def duration(self) -> int:
        """Length of the trace (ns)."""
        return self.ids.duration

    @property
    def begin(self) -> int:
        """Start of the job's part of the trace (ns)."""
        return self.edges.begin if self.edges else 0

    @cached_property
    def layouts(self) -> frozenset[str]:
        """Layouts (kinds of records) and kinds of lines that have events on threads of a unit."""
        names: set[str] = set()
        for run in self.runs:
            if run.shape.name not in names and self._is_in_a_unit(run):
                names.add(run.shape.name)
        return frozenset(names)

    def _is_in_a_unit(self, run: Run) -> bool:
        """Return True if a run has records on the thread of a unit."""
        units = self._list_units(run)
        if NO_UNIT not in units or run.index is None:
            return units != [NO_UNIT]
        counts = self.rows.units[self.ids.objects.get_table(run.task)] != NO_UNIT
        return len(units) > 1 and bool(counts[read_run(run, "row")["row"]].any())

    def read_begins(
        self,
        layout: str,
        fields: Sequence[str] = (),
        unit: int | None = None,
        keep: Callable[[Columns], np.ndarray] | None = None,
        dtype: type[np.signedinteger] = np.int64,
    ) -> pl.DataFrame:
        """Return the events of a layout as a frame, sorted by start: `begin`, `end` (trace time,
        ns), `thread`, and the requested fields.

        A field contains a number, or the value of a value set or name; ABSENT if an event does not
        have it, or if it is unknown. `domain` is an index into the job's domain codes. unit: number
        of the unit, None for all. keep: function that selects events by their columns. dtype: of
        `thread` and the fields, which must fit. Raise KeyError for an unknown layout or field.
        """
        known = load_catalogue().layouts[layout]
        if unknown := {*fields} - {"domain"} - {field.name for field in known.fields}:
            raise KeyError(f"layout {layout} has no field {', '.join(sorted(unknown))}")

        def make(_: str, columns: Columns) -> Columns:
            return columns if keep is None else take_rows(columns, keep(columns))

        schema = _make_schema(("begin", "end", "thread", *fields), dtype)
        return make_frame(self.read_joined({layout: fields}, unit, schema, make))

    def has_callers(self, layout: str, unit: int) -> bool:
        """Return True if events of a layout in a unit have call stacks."""
        return self.has_column(layout, CALLERS, unit)

    def has_column(self, layout: str, column: str, unit: int) -> bool:
        """Return True if events of a layout in a unit may have a stored column (such as a field)
        with this name.
        """
        runs = self._index.get((RANGE, layout, unit), ())
        return any(column in run.columns for run in runs)

    def read_named_calls(self, layouts: Iterable[str], names: re.Pattern[str]) -> pl.DataFrame:
        """Return the calls whose names match a pattern, layout by layout: the columns of
        :meth:`read_begins` with `call`, and `layout`.
        """
        schema = dict.fromkeys(("begin", "end", "thread", "call"), pl.Int64)
        frames = [pl.DataFrame(schema=schema | {"layout": pl.String})]
        for layout in filter(self.layouts.__contains__, layouts):
            values = load_catalogue().name_sets[layout].find_values(names)
            if values:
                keep = partial(_mask_calls, values=values)
                calls = self.read_begins(layout, ("call",), keep=keep)
                frames.append(calls.with_columns(layout=pl.lit(layout)))
        return pl.concat(frames)

    def read_outermost_calls(self, layouts: Iterable[str], unit: int | None = None) -> pl.DataFrame:
        """Return the calls in these layouts that are not nested in another one, sorted by thread
        and start: `begin`, `end` (ns), `thread`, `call`. unit: number of the unit, None for all.
        """
        fields = {name: ("call",) for name in layouts if name in self.layouts}
        schema = _make_schema(("begin", "end", "thread", "call"), np.int32)
        columns = self.read_joined(fields, unit, schema, lambda _, columns: columns)
        columns, _, first = find_outermost(columns)
        calls = make_frame(take_rows(columns, first))
        return calls.sort("thread", maintain_order=True)

    def read_joined(
        self,
        fields: Mapping[str, Sequence[str]],
        unit: int | None,
        schema: Mapping[str, type[np.integer]],
        make: Callable[[str, Columns], Columns],
    ) -> dict[str, np.ndarray]:
        """Read events of several layouts into the same columns, sorted by the first column. Return
        name -> column.

        fields: layout -> fields to read. unit: number of the unit, None for all. schema: columns of
        the result. make: function that returns these columns for a layout and some of its events,
        as :meth:`read_begins` gives them.
        """
        count = sum(run.rows for name in fields for run in self._index.get((RANGE, name, unit), ()))
        pieces = (
            make(layout, self._make_begins(ranges, own))
            for layout, own in fields.items()
            for ranges in self._read(RANGE, layout, unit, own)
        )
        return self._join_pieces(pieces, count, schema, unit)

    def read_windows(
        self, layout: str, fields: Sequence[str], unit: int, dtype: type[np.signedinteger]
    ) -> Iterator[tuple[int, pl.DataFrame]]:
        """Yield the events of a layout for one window of the trace at a time: (time in ns before
        which all these events begin, frame as from :meth:`read_begins`).
        """
        runs = self._index.get((RANGE, layout, unit), [])
        bounds = [*windows.choose_window_bounds(runs, self.ids.clocks), None]
        schema = _make_schema(("begin", "end", "thread", *fields), dtype)
        with windows.WindowReader(runs, self.ids) as reader:
            for first, last in pairwise(bounds):
                ranges = reader.read(first, last, _list_stored(layout, fields)).ranges
                for one in ranges:
                    self._drop_damaged(one)
                pieces = (self._make_begins(one, fields) for one in ranges)
                columns = self._join_pieces(pieces, sum(map(len, ranges)), schema, unit)
                yield self.duration + 1 if last is None else last, make_frame(columns)

    def find_last_ends(self, layout: str, unit: int) -> np.ndarray:
        """Return the end of the last event of a layout on each thread of a unit (ns); -1 for threads
        without any, and for those of no unit or of another one.
        """
        last = np.full(len(self.rows.units), -1)
        for ranges in self._read(RANGE, layout, unit):
            np.maximum.at(last, ranges.column("row"), ranges.until)
        return np.where(self.rows.units == unit, last, -1)

    def find_hull(self) -> tuple[int, int]:
        """Return (start of the first event, end of the last event) in ns over all units; without
        events, the start and end of the trace.
        """
        first, last = self.duration, self.begin
        counted = [key for key in self._index if key[0] == RANGE and key[2] not in (None, NO_UNIT)]
        for _, layout, unit in counted:
            for ranges in self._read(RANGE, layout, unit):
                is_counted = self.rows.units[ranges.column("row")] == unit
                first = int(ranges.begin.min(initial=first, where=is_counted))
                last = int(ranges.until.max(initial=last, where=is_counted))
        return (first, last) if first <= last else (self.begin, self.duration)

    def _make_begins(self, ranges: RangeSlice, fields: Sequence[str]) -> dict[str, np.ndarray]:
        """Return the columns of :meth:`read_begins` for some ranges."""
        columns = {"begin": ranges.begin, "end": ranges.until, "thread": ranges.column("row")}
        for name in fields:
            columns[name] = ranges.column(name) if name == "domain" else ranges.find_field(name)
        return columns

    def read_stacks(self, unit: int) -> tuple[pl.DataFrame, pl.Series]:
        """Return the call stacks of a unit's calls and samples as a frame, and their texts.

        Columns: `begin`, `end` (trace time, ns), `thread`, `layout` (index into `STACK_LAYOUTS`),
        `text` (index into the texts). Texts have the outermost function first.
        """
        frames, texts = [pl.DataFrame(schema=STACK_COLUMNS)], [pl.Series("text", [], pl.String)]
        for file in self.stacks:
            threads, clock = self.ids.objects.get_table(file.task), self.ids.clocks[file.report]
            own = np.flatnonzero((self.rows.units[threads] == unit) & (threads >= 0))
            if not len(own):
                continue
            rows = read_frame(file.rows).filter(pl.col("object_thread").is_in(own))
            first, last = (rows[name].to_numpy() for name in ("time_begin", "time_end"))
            usable = mask_usable(first) & mask_usable(last)
            rows, first, last = rows.filter(usable), first[usable], last[usable]
            rows = rows.with_columns(
                begin=to_begin_times(first, last, clock),
                end=to_trace_times(last, clock, self.duration),
                thread=threads[rows["object_thread"].to_numpy()],
            )
            # A cut leaves the stacks of the whole job here.
            begin, end = pl.col("begin").clip(self.begin), pl.col("end").clip(None, self.duration)
            rows = rows.filter(pl.col("end") > self.begin, pl.col("begin") < self.duration)
            known = read_frame(file.texts).unique("stack", maintain_order=True)
            numbers = known.select("stack").with_row_index("text", sum(map(len, texts)))
            texts.append(known["text"])
            rows = rows.with_columns(begin, end).join(numbers, on="stack", maintain_order="left")
            frames.append(rows.select(STACK_COLUMNS.keys()).cast(STACK_COLUMNS))
        return pl.concat(frames), pl.concat(texts)

    def read_replays(self, unit: int) -> pl.DataFrame:
        """Return the GPU work of a unit that replays CUDA graphs whose capture is known.

        Columns: `thread` and `begin` of the work, the capturing thread (`captor`), and the capture
        time (`captured`, ns), which may be before the start of a cut trace.
        """
        task, replays = self.rows.get_column("task"), [pl.DataFrame(schema=REPLAY_COLUMNS)]
        frames = [pl.DataFrame(schema=dict.fromkeys(("task", "node", *CAPTURED), pl.Int64))]
        for file in self.captures:
            captor, time, node = read_frame(file.rows).select(*CAPTURE_COLUMNS).get_columns()
            thread = captor.replace_strict(file.threads, default=-1, return_dtype=pl.Int64)
            times = self.ids.clocks[file.report].to_global(time.to_numpy())
            columns = {"task": task[thread], "node": node, "captor": thread, "captured": times}
            own = (self.rows.units[thread] == unit) & (thread >= 0).to_numpy()
            frames.append(pl.DataFrame(columns).filter(own))
        captures = pl.concat(frames).unique(("task", "node"))
        for layout in filter(self.layouts.__contains__, OF_NODES if captures.height else ()):
            work = self.read_begins(layout, ("graph_node",), unit)
            work = work.filter(pl.col("graph_node") > 0)
            work = work.with_columns(task=pl.Series(task[work["thread"]], dtype=pl.Int64))
            work = work.join(captures, left_on=("task", "graph_node"), right_on=("task", "node"))
            replays.append(work.select(*REPLAY_COLUMNS))
        return pl.concat(replays)

    def count_nodes(self, unit: int) -> int:
        """Return the number of GPU operations in a unit that belong to nodes of CUDA graphs."""
        count = 0
        for layout in OF_NODES:
            bit = 1 << [field.name for field in load_catalogue().layouts[layout].fields].index(
                "graph_node"
            )
            runs = self._index.get((RANGE, layout, unit), ())
            if any((run.index.always | run.index.some) & bit for run in runs):
                work = self.read_begins(layout, ("graph_node",), unit)
                count += int((work["graph_node"] > 0).sum())
        return count

    def read_lines(
        self,
        kinds: Sequence[str],
        unit: int | None = None,
        names: Iterable[str] = LINE_COLUMNS,
        dtype: type[np.signedinteger] = np.int64,
    ) -> pl.DataFrame:
        """Return communication lines of some kinds as a frame, sorted by the first requested
        column.

        Columns: `sent` (send time, ns), `sender` (thread), `begin`, `thread`, `end` (of the event
        to which the line leads), `bytes`; for MPI messages also SIDES_OF_MESSAGES. unit: number of
        the unit, None for all. names: of the columns. dtype: of threads.
        """

        def make_columns(lines: Slice) -> dict[str, np.ndarray]:
            columns = {}
            for name in {*names, "thread"}:
                if name == "begin":
                    columns[name] = lines.find_begins("receive", "until")
                else:
                    columns[name] = lines.column((LINE_COLUMNS | SIDES_OF_MESSAGES)[name])
                if name == "end":
                    columns[name] = np.minimum(columns[name], self.duration)
            return columns

        count = sum(run.rows for kind in kinds for run in self._index.get((LINE, kind, unit), ()))
        pieces = (make_columns(one) for kind in kinds for one in self._read(LINE, kind, unit))
        return make_frame(self._join_pieces(pieces, count, _make_schema(names, dtype), unit))

    def find_connected(self, kind: str, unit: int | None = None) -> set[tuple[int, int]]:
        """Return the pairs of threads (sender, receiver) between which there are lines of a kind.
        unit: number of the unit, None for all.
        """
        connected = set()
        for lines in self._read(LINE, kind, unit):
            pairs, _ = factorize_together(lines.column("sender"), lines.column("receiver"))
            connected |= set(zip(*(column.tolist() for column in pairs), strict=True))
        return connected

    def read_samples(
        self, layout: str, unit: int | None = None, names: re.Pattern[str] = ANY
    ) -> Iterator[Samples]:
        """Yield the samples of a layout, device by device. unit: number of the unit, None for all.
        names: pattern that the labels of the wanted metrics match.
        """
        by_device: dict[int, list[Slice]] = {}
        for samples in self._read(COUNTER, layout, unit):
            by_device.setdefault(self._find_thread(samples.run), []).append(samples)
        for thread, pieces in sorted(by_device.items()):
            if unit is not None and self.rows.units[thread] != unit:
                continue
            known = dict.fromkeys(one for piece in pieces for one in piece.run.shape.metrics)
            metrics = [one for one in known if names.match(one.name)]
            frames = (_read_numbers(one, metrics) for one in pieces)
            numbers = pl.concat(frames, how="diagonal")
            numbers = numbers.sort("time", maintain_order=True)
            if not is_sorted(numbers["time"].to_numpy(), strictly=True):
                # Of two values with the same time, the larger is kept.
                numbers = numbers.group_by("time", maintain_order=True).max()
            time = numbers.drop_in_place("time").to_numpy()
            labels = tuple(metric.name for metric in metrics)
            yield Samples(thread, layout, labels, time, numbers.to_numpy())

    def _join_pieces(
        self,
        pieces: Iterable[Columns],
        count: int,
        schema: Mapping[str, type[np.integer]],
        unit: int | None,
    ) -> dict[str, np.ndarray]:
        """Join pieces, which may arrive one by one, into columns of these types, sorted by the
        first one. count: maximum number of rows.
        """
        columns, filled = {name: np.empty(count, dtype) for name, dtype in schema.items()}, 0
        for piece in pieces:
            if unit is not None and not (own := self.rows.units[piece["thread"]] == unit).all():
                piece = take_rows(piece, own)
            since, filled = filled, filled + len(piece["thread"])
            for name, column in columns.items():
                column[since:filled] = piece[name]
        times, order = columns[next(iter(schema))][:filled], slice(filled)
        if not is_sorted(times):
            order = np.argsort(times, kind="stable")
        del times
        # A column at a time: with all of them the memory would be twice as much.
        return {name: columns.pop(name)[order] for name in schema}

    def _read(
        self, stream: str, name: str, unit: int | None, fields: Sequence[str] = ()
    ) -> Iterator[Slice]:
        """Yield the rows of each run. fields: wanted fields of ranges."""
        names = _list_stored(name, fields) if stream == RANGE else None
        with SpillReader() as reader:
            for run in self._index.get((stream, name, unit), ()):
                found = read_slice(run, self.ids, reader, names)
                self._drop_damaged(found)
                yield found

    def _drop_damaged(self, rows: Slice) -> None:
        """Drop damaged work, results computed from it, and lines that lead to it."""
        stream = rows.run.shape.stream
        if not self.damaged.height or stream not in SIDES_OF_WORK:
            return
        thread, begin, end = SIDES_OF_WORK[stream]
        ends = np.minimum(rows.column(end), self.duration)
        damaged = self._find_damaged(rows.find_begins(begin, end), ends, rows.column(thread))
        if len(damaged):
            kept = np.ones(len(rows), bool)
            kept[damaged] = False
            rows.keep(kept)

    def _find_damaged(self, begin: np.ndarray, end: np.ndarray, thread: np.ndarray) -> np.ndarray:
        """Return the indices of damaged work among ranges, and of results computed from it."""
        rows = np.flatnonzero(np.isin(end, self.damaged["end"].to_numpy()))
        near = pl.DataFrame(
            {
                "row": rows,
                "thread": thread[rows].astype(np.int64),
                "at": begin[rows],
                "end": end[rows],
            }
        )
        # A cut may have clipped it; many ranges end at the end of the trace.
        is_same = (pl.col("at") == pl.col("begin").clip(self.begin)) | (
            (pl.col("at") > pl.col("begin")) & (pl.col("end") < self.duration)
        )
        found = near.join(self.damaged, on=("thread", "end")).filter(is_same)
        return found["row"].to_numpy()

    def _find_thread(self, run: Run) -> int:
        """Return the thread of a run whose records are all on one thread."""
        return int(self.ids.objects.get_table(run.task)[run.object])

    def _list_units(self, run: Run) -> list[int]:
        """Return the units that the threads of a run belong to."""
        if run.object >= 0:
            return [int(self.rows.units[self._find_thread(run)])]
        return self._units_of_tasks[run.task]

    @cached_property
    def _units_of_tasks(self) -> list[list[int]]:
        """The units of each task's threads."""
        objects = self.ids.objects
        tables = map(objects.get_table, range(objects.tasks))
        return [np.unique(self.rows.units[threads]).tolist() for threads in tables]

    @cached_property
    def _index(self) -> dict[tuple[str, str, int | None], list[Run]]:
        """Map from (stream, name, unit) to runs; unit None means any unit."""
        index: dict[tuple[str, str, int | None], list[Run]] = {}
        for run in self.runs:
            for unit in (None, *self._list_units(run)):
                index.setdefault((run.shape.stream, run.shape.name, unit), []).append(run)
        return index


def _mask_calls(columns: Columns, values: Sequence[int]) -> np.ndarray:
    return np.isin(columns["call"], values)


def _make_schema(
    names: Iterable[str], dtype: type[np.signedinteger]
) -> dict[str, type[np.signedinteger]]:
    """Return column -> type. Threads and fields have the type `dtype`."""
    return {name: TIMES.get(name, dtype) for name in names}


def _list_stored(layout: str, fields: Sequence[str]) -> list[str]:
    """Return the columns in which fields are stored."""
    known = load_catalogue().layouts[layout].by_name
    return [CALLERS if name in known and known[name].level else name for name in fields]


def make_frame(columns: dict[str, np.ndarray]) -> pl.DataFrame:
    """Convert columns to a frame. The dictionary is emptied column by column to save memory."""
    return pl.DataFrame([pl.Series(name, columns.pop(name)) for name in [*columns]])


def _read_numbers(samples: Slice, metrics: Sequence[Metric]) -> pl.DataFrame:
    """Return times and numbers of samples of these metrics as in :class:`Samples`; columns are named
    by the index of the metric.
    """
    places = {one: str(place) for place, one in enumerate(metrics)}
    shape = samples.run.shape
    frame = samples.make_frame([places.get(one, "") for one in shape.metrics])
    columns = {"time": frame["time"].to_numpy()}
    for one in filter(places.__contains__, shape.metrics):
        name, precision = places[one], one.precision
        # Not by polars, which rounds a single number otherwise than several.
        numbers = frame[name].cast(pl.Float64).to_numpy() / 10.0**precision
        columns[name] = np.full(len(numbers), UNKNOWN) if samples.run.filler else numbers
    return pl.DataFrame(columns, nan_to_null=True)


#: Readers of this process that its own workers share, by the paths of files that are not written.
_SHARED: WeakValueDictionary[Path, EventReader] = WeakValueDictionary()


def save_event_reader(reader: EventReader, path: Path, shares_memory: bool) -> None:
    """Save a reader so that workers can load it with :func:`load_event_reader` while it exists.
    Workers that share the memory of this process need no file.
    """
    if shares_memory:
        _SHARED[path] = reader
    else:
        save_object(reader, path)


@lru_cache(maxsize=2)
def load_event_reader(path: Path) -> EventReader:
    """Load the reader that :func:`save_event_reader` saved. The last two are cached."""
    shared = _SHARED.get(path)
    return load_object(path) if shared is None else shared
