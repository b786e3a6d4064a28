"""Represent slices of runs: some rows of a run, in trace time and with the numbers of the trace.
:class:`GlobalIds` translates local times and indices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.columns import ABSENT, OPEN, take_rows
from nsys2prv._util.native import core
from nsys2prv._util.stored_columns import load_object
from nsys2prv.clock.maps import ClockMap
from nsys2prv.events.catalogue import CALLERS, Layout, load_catalogue
from nsys2prv.table.range_index import find_blocks_of_ends, mask_fitting, skips_zero
from nsys2prv.table.runs import (
    DOMAINS,
    OBJECTS,
    RANGE,
    TIMES,
    Columns,
    RowSpan,
    Run,
    Shape,
    SpillReader,
    find_role,
)

#: Indices of rows, a mask of them, or a slice.
Places = slice | np.ndarray
EVERY = slice(None)
#: Combinations of up to this many bits of fields are counted; others are sorted.
MOST_COUNTED_BITS = 16
#: A clock that is slowed down leaves something of ranges that are longer than this (ns).
SHORT = 4


def to_begin_times(begin: np.ndarray, end: np.ndarray, clock: ClockMap) -> np.ndarray:
    """Return the trace times (ns) at which ranges start. begin, end: local times.

    If a clock is slowed down, a range of 1 ns may become empty. It then starts 1 ns earlier.
    """
    times = to_trace_times(begin, clock, OPEN)
    if clock.slack:
        rows = np.flatnonzero(end <= begin + SHORT)
        own = times[rows]
        times[rows] -= (clock.to_global(end[rows]) <= own) & (own > 0)
    return times


def to_trace_times(times: np.ndarray, clock: ClockMap, opened: int) -> np.ndarray:
    """Translate local times to trace times (ns). OPEN times (of ranges that last to the end of the
    trace) become `opened`.
    """
    if core is not None:
        mapped, drift = np.empty(len(times), np.int64), float(clock.drift)
        core.map_times(times, OPEN, opened, int(clock.offset), drift, int(clock.pivot), mapped)
        return mapped
    lasting = times == OPEN
    return np.where(lasting, opened, clock.to_global(np.where(lasting, 0, times)))


class IdTable(Struct):
    """Table that translates the numbers (of names, objects) that each task used to numbers of the
    trace: `table[start[task] + local]`.
    """

    #: Where the indices of each task begin, and how many it has.
    start: np.ndarray
    length: np.ndarray
    #: Global numbers of all tasks.
    table: np.ndarray

    @classmethod
    def from_columns(cls, columns: Sequence[np.ndarray]) -> IdTable:
        """Make the table. columns: for each task, the trace's number for each local number. An
        array that several tasks share is stored once.
        """
        shared = {id(column): column for column in columns}
        length = np.array([len(column) for column in shared.values()], np.int64)
        places = dict(zip(shared, range(len(shared)), strict=True))
        rows = np.array([places[id(column)] for column in columns], np.int64)
        table = np.concatenate([np.zeros(0, np.int64), *shared.values()])
        return cls((np.cumsum(length) - length)[rows], length[rows], table)

    @property
    def tasks(self) -> int:
        """Number of tasks in the table."""
        return len(self.start)

    def get_table(self, task: int) -> np.ndarray:
        """Return the numbers of the trace for a task's local numbers, as an array indexed by these."""
        return self.table[self.start[task] :][: self.length[task]]


class GlobalIds(Struct):
    """Tables that translate local times and numbers of tasks to those of the trace, for all runs of
    a job.
    """

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
    #: Per task: index into the distinct `callers` for each local call stack.
    stacks: IdTable
    #: Callers by level, from 1: event values, ABSENT after the last one.
    callers: np.ndarray

    def find_table(self, shape: Shape, column: str) -> IdTable | None:
        """Return the table that translates the numbers in a column; None for plain numbers and
        times.
        """
        role = find_role(shape.stream, shape.name, column)
        tables = {OBJECTS: self.objects, DOMAINS: self.domains, CALLERS: self.stacks}
        return tables.get(role) or self.names.get(role)


@lru_cache(1)
def load_global_ids(path: Path) -> GlobalIds:
    """Load the tables that this conversion saved to a file."""
    return load_object(path)


class Slice:
    """Some rows of one run, sorted by time. Times are trace times (ns)."""

    def __init__(self, run: Run, ids: GlobalIds, values: Columns, valid: Columns) -> None:
        self.run, self._ids, self._values, self._valid = run, ids, values, valid
        self._clock = ids.clocks[run.report]
        self.times = self._find_times()

    def __len__(self) -> int:
        return len(self.times)

    def keep(self, rows: Places) -> None:
        """Keep only these rows of the slice: a slice, or indices."""
        self.times = self.times[rows]
        self._values = take_rows(self._values, rows)
        self._valid = take_rows(self._valid, rows)

    def choose_window(self, first: int, last: int | None, ends: bool) -> None:
        """Keep only the rows with first <= time < last (ns; None: no upper limit)."""
        inside = (self.times >= first) & (True if last is None else self.times < last)
        self.keep(find_places(inside))

    def find(self, name: str, rows: Places = EVERY) -> tuple[np.ndarray, np.ndarray | None]:
        """Return a column as stored, and the table of the trace's numbers into which its values are
        indices (None if they are not indices). Together they are :meth:`column`, without a copy.
        The run must have the column; not for times. rows: which rows.
        """
        lookup = self._ids.find_table(self.run.shape, name)
        values = self._values[name][rows]
        is_local = lookup is not None and self.run.task >= 0
        return values, lookup.get_table(self.run.task) if is_local else None

    def column(self, name: str, rows: Places = EVERY) -> np.ndarray:
        """Return a column in trace time (OPEN remains) or with the trace's numbers. The run must
        have it. rows: which rows.
        """
        if find_role(self.run.shape.stream, self.run.shape.name, name) == TIMES:
            return to_trace_times(self._values[name][rows], self._clock, OPEN)
        values, table = self.find(name, rows)
        return values if table is None else table[values]

    def find_begins(self, begin: str, end: str) -> np.ndarray:
        """Return the start times (trace ns) of ranges. begin, end: names of the columns with their
        local times.
        """
        return to_begin_times(self._values[begin], self._values[end], self._clock)

    def make_columns(self, is_local: bool = False) -> dict[str, np.ndarray]:
        """Return all columns for writers, as name -> values (int64, ABSENT if missing), in trace
        time. is_local: with the task's own numbers of objects, domains and names.
        """
        columns = {}
        for place, (name, values) in enumerate(self._values.items()):
            is_time = find_role(self.run.shape.stream, self.run.shape.name, name) == TIMES
            if not place:
                values = self.times
            elif is_time or not is_local:
                values = self.column(name)
            columns[name] = values.astype(np.int64)
            if name in self._valid:
                columns[name][~self._valid[name]] = ABSENT
        return columns

    def make_frame(self, metrics: Sequence[str]) -> pl.DataFrame:
        """Return samples as a frame: time, row, and a column per metric, with nulls. metrics: names
        of these columns, "" for metrics without one.
        """
        columns = [pl.Series("time", self.times), pl.Series("row", self.column("row"), pl.Int64)]
        for place, name in enumerate(metrics):
            if not name:
                continue
            numbers = pl.Series(name, self._values[str(place)].astype(np.int64))
            if (valid := self._valid.get(str(place))) is not None:
                numbers = numbers.zip_with(pl.Series(valid), pl.Series([None], dtype=pl.Int64))
            columns.append(numbers)
        return pl.DataFrame(columns)

    def _find_times(self) -> np.ndarray:
        return self.column("time")


class RangeSlice(Slice):
    """Some ranges of one run, sorted by (begin, -end)."""

    def __init__(self, run: Run, ids: GlobalIds, values: Columns, valid: Columns) -> None:
        super().__init__(run, ids, values, valid)
        self.layout, self.index = load_catalogue().layouts[run.shape.name], run.index
        #: When they end. A cut leaves the ends of the whole job here, and OPEN stays.
        self.end = self.column("end")
        #: When they end in this trace.
        self.until = np.minimum(self.end, ids.duration)
        #: The rows that start in a window, and the rows that end in it.
        self.at_begin: Places = EVERY
        self.at_end: Places = EVERY
        #: Of states, when rows cease to have one there (ns), and these rows.
        self.closings = np.zeros((2, 0), np.int64)

    @property
    def begin(self) -> np.ndarray:
        """Start times of the ranges (trace ns)."""
        return self.times

    def keep(self, rows: Places) -> None:
        """Keep only these ranges: a slice, or indices."""
        super().keep(rows)
        self.end, self.until = self.end[rows], self.until[rows]

    def choose_window(self, first: int, last: int | None, ends: bool) -> None:
        """Keep only the ranges with first <= begin < last (ns; None: no upper limit) or, with
        `ends`, also those that end there.
        """
        at_begin = self.begin >= first
        at_end = self.until >= first if ends else np.zeros(len(self), bool)
        if last is not None:
            at_begin &= self.begin < last
            at_end &= self.until < last
        rows = find_places(at_begin | at_end if ends else at_begin)
        self.keep(rows)
        self.at_begin, self.at_end = (find_places(at_begin[rows]), find_places(at_end[rows]))
        if ends and self.layout.is_state:
            self.at_end, closings = slice(0), self.find_closings()
            closings[0] = np.minimum(closings[0], self._ids.duration)
            inside = (closings[0] >= first) & (True if last is None else closings[0] < last)
            self.closings = closings[:, inside]
        elif ends and "origin" in self._values:
            # Ends of one time go by the pieces that were put together.
            places = np.arange(len(self))[self.at_end]
            self.at_end = places[np.argsort(self._values["origin"][places], kind="stable")]

    def find_field(self, name: str) -> np.ndarray:
        """Return a field (by name) of all rows as int64, ABSENT if missing or unknown."""
        level = self.layout.by_name[name].level
        if (CALLERS if level else name) not in self._values:
            return np.full(len(self), ABSENT)
        if level:
            return self._ids.callers[self.column(CALLERS), level - 1]
        column = self.column(name).astype(np.int64)
        return np.where(self._valid[name], column, ABSENT) if name in self._valid else column

    def count_callers(self) -> np.ndarray:
        """Return the number of callers of each row."""
        return np.count_nonzero(self._ids.callers != ABSENT, axis=1)[self.column(CALLERS)]

    def find_order(self) -> np.ndarray:
        """Return times that decide the order of ranges with the same start: outer ranges have later
        times.
        """
        return self.column("order") if "order" in self._values else self.end

    def split(self, rows: Places = EVERY) -> Iterator[AlikeRanges]:
        """Yield groups of ranges for which the same fields are written, sorted by the bits of these
        fields.
        """
        index, bits = self.index, []
        places = np.arange(len(self))[rows]
        if not len(places):
            return
        if not index.some:
            yield AlikeRanges(self, index.always, rows)
            return
        codes = np.zeros(len(places), np.int64)
        for bit, field in enumerate(self.layout.fields):
            if index.some >> bit & 1:
                if field.only_with:
                    has = mask_fitting(field, self._values)[rows]
                elif skips_zero(self.layout, bit, field):
                    has = self._values[field.name][rows] > 0
                else:
                    has = self._valid[field.name][rows]
                codes |= has.astype(np.int64) << len(bits)
                bits.append(1 << bit)
        few = len(bits) <= MOST_COUNTED_BITS
        distinct = (np.flatnonzero(np.bincount(codes)) if few else np.unique(codes)).tolist()
        for code in distinct:
            some = sum(one for place, one in enumerate(bits) if code >> place & 1)
            own = rows if len(distinct) == 1 else places[codes == code]
            yield AlikeRanges(self, index.always | some, own)

    def find_closings(self) -> np.ndarray:
        """Return two arrays: the times at which rows of the trace lose a state (OPEN for the end of
        the trace), and these rows.
        """
        times, objects = self.index.closings
        if self.run.task >= 0:
            objects = self._ids.objects.get_table(self.run.task)[objects]
        return np.stack([to_trace_times(times, self._clock, OPEN), objects])

    def _find_times(self) -> np.ndarray:
        return self.find_begins("begin", "end")


def join_columns(slices: Sequence[Slice]) -> dict[str, np.ndarray]:
    """Join the columns of slices of one shape, one slice after the other, as
    :meth:`Slice.make_columns` returns them. If only some slices have a column, the others get 0 for
    CALLERS, the ends for the order, and otherwise ABSENT.
    """
    ids, shape = slices[0]._ids, slices[0].run.shape
    lengths = [len(one) for one in slices]
    tasks = np.repeat([one.run.task for one in slices], lengths)
    columns = {}
    for name in dict.fromkeys(name for one in slices for name in one._values):
        if not columns:
            columns[name] = np.concatenate([one.times for one in slices])
            continue
        if find_role(shape.stream, shape.name, name) == TIMES:
            found = (one.column(name if name in one._values else "end") for one in slices)
            columns[name] = np.concatenate(list(found))
            continue
        none = np.zeros(max(lengths), np.uint32)
        pieces = [one._values.get(name, none[: len(one)]) for one in slices]
        column = columns[name] = np.concatenate(pieces).astype(np.int64)
        lookup = ids.find_table(shape, name)
        if lookup is not None and (local := tasks >= 0).any():
            places = (lookup.start[tasks] + column)[local]
            column[local] = lookup.table.take(places, mode="clip")
        lacking = [name not in one._values for one in slices]
        if any(lacking):
            column[np.repeat(lacking, lengths)] = 0 if name == CALLERS else ABSENT
        if any(name in one._valid for one in slices):
            every = np.ones(max(lengths), bool)
            valid = [one._valid.get(name, every[: len(one)]) for one in slices]
            column[~np.concatenate(valid)] = ABSENT
    return columns


class AlikeRanges(Struct, frozen=True):
    """Ranges of a slice for which the same fields are written."""

    ranges: RangeSlice
    #: Bits of these fields.
    mask: int
    #: Which of the slice.
    rows: Places

    @property
    def layout(self) -> Layout:
        """The layout of the ranges."""
        return self.ranges.layout

    @property
    def begin(self) -> np.ndarray:
        """Start times of the ranges (trace ns)."""
        return self.ranges.begin[self.rows]

    @property
    def until(self) -> np.ndarray:
        """End times of the ranges (trace ns), within this trace."""
        return self.ranges.until[self.rows]

    def find_order(self) -> np.ndarray:
        """Return the times that determine the order of equal starts, as
        :meth:`RangeSlice.find_order` does.
        """
        return self.ranges.find_order()[self.rows]

    def find(self, name: str) -> tuple[np.ndarray, np.ndarray | None]:
        """Return a column as stored, and the table of the trace's numbers into which its values are
        indices, or None (see :meth:`Slice.find`).
        """
        return self.ranges.find(name, self.rows)

    def column(self, name: str) -> np.ndarray:
        """Return a column or a field (by name) with the trace's numbers."""
        field = self.layout.by_name.get(name)
        if field is not None and field.level:
            return self.ranges.find_field(name)[self.rows]
        return self.ranges.column(name, self.rows)

    def split_by_callers(self) -> Iterator[AlikeRanges]:
        """Yield the ranges grouped by their number of callers. In each group, the bits of callers
        beyond this number are cleared.
        """
        if not self.mask & self.layout.callers_mask:
            yield self
            return
        places = np.arange(len(self.ranges))[self.rows]
        counts = self.ranges.count_callers()[places]
        for count in np.unique(counts).tolist():
            fields = enumerate(self.layout.fields)
            beyond = sum(1 << bit for bit, field in fields if field.level > count)
            yield AlikeRanges(self.ranges, self.mask & ~beyond, places[counts == count])


def read_slice(
    run: Run,
    ids: GlobalIds,
    reader: SpillReader,
    names: Sequence[str] | None = None,
    window: tuple[int, int | None] | None = None,
    ends: bool = True,
) -> Slice:
    """Read the rows of a run that start in a window or, with `ends`, end in it. names: columns of
    ranges in addition to times and rows, None for all. window: (first, last), for first <= time <
    last (ns); None for all.
    """
    spans = None
    if window is not None:
        first, last = window
        clock = ids.clocks[run.report]
        # If its clock has tolerance, some rows outside the window are included.
        until = None if last is None else clock.to_local(last) + clock.slack
        spans = _find_spans(run, clock.to_local(first) - clock.slack, until, ends)
    if names is not None:
        names = ("begin", "end", "order", "row", *names)
    make = RangeSlice if run.shape.stream == RANGE else Slice
    found = make(run, ids, *reader.read(run, spans, names))
    if window is not None:
        found.choose_window(*window, ends)
    return found


def _find_spans(run: Run, first: int, last: int | None, ends: bool) -> list[RowSpan]:
    """Return the spans of rows with first <= time < last (local ns)."""
    blocks = run.find_blocks(first, last)
    if run.index is not None and ends:
        blocks |= find_blocks_of_ends(run.index, first, last)
    return run.find_spans(blocks) or [(0, 0)]


def find_first_times(
    runs: Iterable[Run], global_ids: GlobalIds, layout: str, rows: int
) -> np.ndarray:
    """Return when the first event of a layout starts on each row of the trace (ns), or OPEN. rows:
    number of rows.
    """
    first = np.full(rows, OPEN)
    with SpillReader() as reader:
        for run in runs:
            if run.index is not None and run.shape.name == layout:
                found = read_slice(run, global_ids, reader, ())
                np.minimum.at(first, found.column("row"), found.times)
    return first


def list_closings(
    slices: Iterable[RangeSlice],
) -> Iterator[tuple[RangeSlice, np.ndarray, np.ndarray]]:
    """Yield when rows of the trace lose their states in a window: a slice of their layout, the
    times, and these rows. Every part of a table closes its objects, but each is yielded once.
    """
    by_layout: dict[str, list[RangeSlice]] = {}
    for ranges in slices:
        if ranges.closings.size:
            by_layout.setdefault(ranges.layout.name, []).append(ranges)
    for alike in by_layout.values():
        times, rows = np.concatenate([one.closings for one in alike], axis=1)
        rows, first = np.unique(rows, return_index=True)
        yield alike[0], times[first], rows


def find_places(mask: np.ndarray) -> Places:
    """Return the indices of the True values in a mask; as a slice if they are consecutive."""
    if mask.all():
        return EVERY
    rows = np.flatnonzero(mask)
    if not len(rows) or rows[-1] - rows[0] + 1 == len(rows):
        return slice(int(rows[0]), int(rows[-1]) + 1) if len(rows) else slice(0)
    return rows
