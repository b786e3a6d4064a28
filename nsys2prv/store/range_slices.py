"""Some ranges of a layout, of one run: in trace time and in the trace's own numbers, or as they are
stored (:mod:`nsys2prv.store.range_index`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from nsys2prv._util.columns import ABSENT, OPEN
from nsys2prv.events.catalogue import CALLERS, Layout, load_catalogue
from nsys2prv.store.global_ids import GlobalIds, to_begin_times, to_trace_times
from nsys2prv.store.range_index import TIME_COLUMNS, find_spans, skips_zero
from nsys2prv.store.runs import Run, SpillReader
from nsys2prv.store.stored_columns import NO_BITS, read_valid, read_values

#: Indices of rows, a mask of them, or a slice.
Places = slice | np.ndarray
#: Columns by their names.
Columns = Mapping[str, np.ndarray]
EVERY = slice(None)
#: Combinations of so many fields are counted; those of more are sorted.
MOST_COUNTED_BITS = 16


class RangeSlice:
    """Ranges of one run, by (begin, -end). Times are those of the trace, ns."""

    def __init__(self, run: Run, ids: GlobalIds, values: Columns, valid: Columns) -> None:
        self.run, self.layout, self.index = run, load_catalogue().layouts[run.shape.name], run.index
        self._ids, self._values, self._valid = ids, values, valid
        self._clock = ids.clocks[run.report]
        #: When they begin, and when they end. A cut leaves the ends of the whole job here, and OPEN stays.
        self.begin = to_begin_times(values["begin"], values["end"], self._clock)
        self.end = to_trace_times(values["end"], self._clock, OPEN)
        #: When they end in this trace.
        self.until = np.minimum(self.end, ids.duration)
        #: The rows that begin in a window, and those that end there.
        self.at_begin: Places = EVERY
        self.at_end: Places = EVERY
        #: Of states, when rows cease to have one there (ns), and these rows.
        self.closings = np.zeros((2, 0), np.int64)

    def __len__(self) -> int:
        return len(self.begin)

    def keep(self, rows: Places) -> None:
        """Drop all other rows."""
        self.begin, self.end, self.until = self.begin[rows], self.end[rows], self.until[rows]
        self._values = {name: column[rows] for name, column in self._values.items()}
        self._valid = {name: column[rows] for name, column in self._valid.items()}

    def choose_window(self, first: int, last: int | None, ends: bool) -> None:
        """Keep the rows that begin at first <= time < last, or end there, if `ends`."""
        at_begin = self.begin >= first
        at_end = self.until >= first if ends else np.zeros(len(self), bool)
        if last is not None:
            at_begin &= self.begin < last
            at_end &= self.until < last
        rows = _find_places(at_begin | at_end if ends else at_begin)
        self.keep(rows)
        self.at_begin, self.at_end = _find_places(at_begin[rows]), _find_places(at_end[rows])
        if ends and self.layout.is_state:
            self.at_end, closings = slice(0), self.find_closings()
            closings[0] = np.minimum(closings[0], self._ids.duration)
            inside = (closings[0] >= first) & (True if last is None else closings[0] < last)
            self.closings = closings[:, inside]
        elif ends and "origin" in self._values:
            # Ends of one time go by the pieces that were put together.
            places = np.arange(len(self))[self.at_end]
            self.at_end = places[np.argsort(self._values["origin"][places], kind="stable")]

    def find(self, name: str, rows: Places = EVERY) -> tuple[np.ndarray, np.ndarray | None]:
        """Return a column of rows that have it, other than times, and the table that its values are
        indices of: together they say what :meth:`column` does, without a copy. None: the values stand
        for themselves.
        """
        lookup = self._ids.find_table(self.run.shape, name)
        values = self._values[name][rows]
        is_local = lookup is not None and self.run.task >= 0
        return values, lookup.get_table(self.run.task) if is_local else None

    def column(self, name: str, rows: Places = EVERY) -> np.ndarray:
        """Return a column of rows that have it, in the trace's numbers."""
        values, table = self.find(name, rows)
        return values if table is None else table[values]

    def find_field(self, name: str) -> np.ndarray:
        """Return a field of all rows, ABSENT (int64) where one has none or it is not known."""
        level = self.layout.by_name[name].level
        if (CALLERS if level else name) not in self._values:
            return np.full(len(self), ABSENT)
        if level:
            return self._ids.callers[self.column(CALLERS), level - 1]
        column = self.column(name).astype(np.int64)
        return np.where(self._valid[name], column, ABSENT) if name in self._valid else column

    def find_order(self) -> np.ndarray:
        """Return times by which begins of one time are ordered: the outer ones have later ones."""
        if "order" not in self._values:
            return self.end
        return to_trace_times(self._values["order"], self._clock, OPEN)

    def split(self, rows: Places = EVERY) -> Iterator[tuple[int, Places]]:
        """Yield the bits of the fields that are written of rows, ascending, and these rows."""
        index, bits = self.index, []
        places = np.arange(len(self))[rows]
        if not len(places):
            return
        if not index.some:
            yield index.always, rows
            return
        codes = np.zeros(len(places), np.int64)
        for bit, field in enumerate(self.layout.fields):
            if index.some >> bit & 1:
                if skips_zero(self.layout, bit, field):
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
            yield index.always | some, own

    def split_by_callers(self, rows: Places) -> Iterator[tuple[int, Places]]:
        """Yield the same, but of callers the bits of those alone that the rows have."""
        for mask, own in self.split(rows):
            if not mask & self.layout.callers_mask:
                yield mask, own
                continue
            places = np.arange(len(self))[own]
            callers = self._ids.callers
            counts = np.count_nonzero(callers != ABSENT, axis=1)[self.column(CALLERS, places)]
            for count in np.unique(counts).tolist():
                fields = enumerate(self.layout.fields)
                beyond = sum(1 << bit for bit, field in fields if field.level > count)
                yield mask & ~beyond, places[counts == count]

    def find_closings(self) -> np.ndarray:
        """Return when rows cease to have a state, OPEN for the end of the trace, and these rows."""
        times, objects = self.index.closings
        if self.run.task >= 0:
            objects = self._ids.objects.get_table(self.run.task)[objects]
        return np.stack([to_trace_times(times, self._clock, OPEN), objects])

    def make_joinable(self) -> dict[str, np.ndarray]:
        """Return all columns in trace time and in the trace's numbers, as they are stored."""
        columns = {"begin": self.begin, "end": self.end}
        for name in self._values:
            if name == "order":
                columns[name] = self.find_order()
            elif name in self.layout.by_name:
                columns[name] = self.find_field(name)
            elif name not in columns:
                columns[name] = self.column(name).astype(np.int64)
        return columns


def read_slice(
    run: Run,
    ids: GlobalIds,
    reader: SpillReader,
    names: Sequence[str] | None = None,
    window: tuple[int, int | None] | None = None,
    ends: bool = True,
) -> RangeSlice | None:
    """Return the ranges of a run that begin in a window of the trace (first <= time < last, ns; None:
    all of them), or end there, if `ends`; None where none do. names: of the columns besides times
    and rows, None for all.
    """
    spans: list[tuple[int, int]] = [(0, run.rows)]
    if window is not None:
        first, last = window
        clock = ids.clocks[run.report]
        # Where its clock has slack, some beside the window too.
        until = None if last is None else clock.to_local(last) + clock.slack
        spans = find_local_spans(run, clock.to_local(first) - clock.slack, until, ends)
        # The last states are in force for long.
        if not spans and ends and run.index.closings.size:
            spans = [(0, 0)]
        if not spans:
            return None
    found = RangeSlice(run, ids, *read_columns(run, reader, spans, names))
    if window is not None:
        found.choose_window(*window, ends)
    return found if len(found) or found.closings.size else None


def find_local_spans(
    run: Run, first: int, last: int | None, ends: bool = False
) -> list[tuple[int, int]]:
    """Return the spans of rows that hold those that begin at first <= time < last (local ns), or end
    there, if `ends`.
    """
    spans = find_spans(run.index, run.samples, run.last_time, first, last, ends)
    return [(start, min(stop, run.rows)) for start, stop in spans]


def read_columns(
    run: Run,
    reader: SpillReader,
    spans: Sequence[tuple[int, int]],
    names: Iterable[str] | None = None,
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return columns of rows as they are stored, and masks of the rows that have a value, of columns of
    which some lack one. names: as :func:`read_slice` has them.
    """
    file, stored = reader.open_file(run.path), run.index.columns
    if names is not None:
        wanted = {*TIME_COLUMNS, "row", *names}
        stored = {name: column for name, column in stored.items() if name in wanted}
    values = {
        name: _join([read_values(file, column, *span) for span in spans])
        for name, column in stored.items()
    }
    valid = {
        name: _join([read_valid(file, column, *span) for span in spans])
        for name, column in stored.items()
        if column.valid != NO_BITS
    }
    return values, valid


def read_local(
    run: Run, reader: SpillReader, spans: Sequence[tuple[int, int]] | None = None
) -> dict[str, np.ndarray]:
    """Return the columns of rows, as :meth:`SpillWriter.append_ranges` takes them. spans: None for all."""
    values, valid = read_columns(run, reader, [(0, run.rows)] if spans is None else spans)
    columns = {name: column.astype(np.int64) for name, column in values.items()}
    for name, mask in valid.items():
        columns[name][~mask] = ABSENT
    return columns


def find_masks(layout: Layout, columns: Columns) -> np.ndarray:
    """Return the bits of the fields that are written of each row; of columns as they are appended."""
    masks = np.zeros(len(columns["begin"]), np.int64)
    for bit, field in enumerate(layout.fields):
        if field.name in columns:
            least = 0 if skips_zero(layout, bit, field) else ABSENT
            has = (columns[field.name] > least) | (least != 0 and not field.optional)
            masks |= has.astype(np.int64) << bit
    return masks


def rewrite_column(run: Run, name: str, values: np.ndarray) -> None:
    """Put other values of a column, which all rows have, in the place of its own."""
    column = run.index.columns[name]
    with run.path.open("r+b") as file:
        file.seek(column.values)
        file.write(memoryview(values.astype(column.dtype, copy=False)))


def take_rows(columns: Columns, rows: Places) -> dict[str, np.ndarray]:
    """Return some rows of columns."""
    return {name: column[rows] for name, column in columns.items()}


def find_first_times(
    runs: Iterable[Run], global_ids: GlobalIds, layout: str, rows: int
) -> np.ndarray:
    """Return the time of the first begin of a layout on each row of the trace; OPEN where there is
    none.
    """
    first = np.full(rows, OPEN)
    with SpillReader() as reader:
        for run in runs:
            if run.index is not None and run.shape.name == layout:
                found = read_slice(run, global_ids, reader, ())
                np.minimum.at(first, found.column("row"), found.begin)
    return first


def _join(pieces: Sequence[np.ndarray]) -> np.ndarray:
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def _find_places(mask: np.ndarray) -> Places:
    """Return the places of a mask, as a slice where they follow one another."""
    if mask.all():
        return EVERY
    rows = np.flatnonzero(mask)
    if not len(rows) or rows[-1] - rows[0] + 1 == len(rows):
        return slice(int(rows[0]), int(rows[-1]) + 1) if len(rows) else slice(0)
    return rows
