"""Define runs: rows of one shape as columns in spill files (:mod:`stored_columns`), sorted by time.
Shapes are ranges, lines, samples, and states of rows. A time window of the trace is a slice of
every run.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from io import FileIO
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import uuid4

import numpy as np
from msgspec import Struct
from msgspec.structs import astuple

from nsys2prv._util.budget import REMEMBERED_SHAPES, find_limit
from nsys2prv._util.columns import ABSENT, OPEN, Bounds, find_bounds, join_pieces
from nsys2prv._util.files import Closable, overwrite
from nsys2prv._util.stored_columns import (
    NO_BITS,
    FrameWriter,
    Packed,
    StoredColumn,
    read_bytes,
    read_valid,
    read_values,
)
from nsys2prv.events.catalogue import CALLERS, Field, Layout, Metric, NameSet, load_catalogue
from nsys2prv.table.range_index import GREATEST_NARROW, RangeIndex, write_ranges

#: Contents of a run: ranges (kernels, calls, points in time, states that last), lines, samples, or
#: states of rows.
RANGE, LINE, COUNTER, STATE = "range", "line", "counter", "state"
#: First and last time of a report's events (local ns).
Span = tuple[int, int]
#: Replace the report of runs that are in trace time, and the task of runs whose indices are numbers
#: of the trace.
TRACE, RESOLVED = -1, -1
#: Contents of a column other than values of name sets: times (ns, OPEN for none), indices of
#: objects and domains, plain numbers. No name set has these names.
TIMES, OBJECTS, DOMAINS, NUMBERS = "times", "objects", "domains", ""
#: Stream -> contents of each of its columns; rows ascend by the first one. Ranges also have the
#: fields of their layout, and samples a column per metric, named by its place in the shape. Code
#: that moves rows in time, such as clocks and cuts, moves all columns of TIMES.
COLUMNS = {
    RANGE: {
        "begin": TIMES,
        "end": TIMES,
        "order": TIMES,
        "row": OBJECTS,
        "domain": DOMAINS,
        CALLERS: CALLERS,
        "origin": NUMBERS,
    },
    LINE: {
        "time": TIMES,
        "sender": OBJECTS,
        "receive": TIMES,
        "receiver": OBJECTS,
        "until": TIMES,
        "size": NUMBERS,
        "tag": NUMBERS,
        "posted": TIMES,
        "released": TIMES,
    },
    COUNTER: {"time": TIMES, "row": OBJECTS},
    STATE: {"time": TIMES, "end": TIMES, "row": OBJECTS, "state": NUMBERS},
}
#: After each block of this many rows, a run's time is kept in memory, to plan windows and to find a
#: slice without reading much more than the slice.
BLOCK_ROWS = 256
#: Earlier than any time.
NEVER = int(np.iinfo(np.int64).min)
#: Objects of rows that are of two, or of none.
NO_OBJECTS = np.array([-1])
#: Events keep all fields.
NO_MASKS: Mapping[str, int] = MappingProxyType({})
#: Number of spill files open at a time: at most half of what the system allows (ulimit -n).
OPEN_FILES = min(256, (find_limit("RLIMIT_NOFILE") or 512) // 2)

#: Columns of runs with at most this many rows are read together.
FEW_ROWS = 2048
#: Which process this thread is of, and the name of its spill file.
_OWN = threading.local()

#: Columns by their names.
Columns = Mapping[str, np.ndarray]
#: Rows from one on to before another.
RowSpan = tuple[int, int]


@lru_cache(REMEMBERED_SHAPES)
def find_present_fields(layout: str, field_mask: int) -> dict[str, Field]:
    """Return the fields of a layout whose bits are set in `field_mask`, as name -> field."""
    fields = load_catalogue().layouts[layout].fields
    return {field.name: field for bit, field in enumerate(fields) if field_mask >> bit & 1}


@cache
def find_role(stream: str, kind: str, column: str) -> str:
    """Return the kind of numbers in a column: TIMES, OBJECTS, DOMAINS, CALLERS, NUMBERS, or the
    name of a name set. stream, kind, column: as in :class:`Shape`. Raise KeyError for an unknown
    column.
    """
    if column in COLUMNS[stream]:
        return COLUMNS[stream][column]
    if stream == COUNTER and column.isdecimal():
        return NUMBERS
    fields = load_catalogue().layouts[kind].fields if stream == RANGE else ()
    values = {field.name: field.values for field in fields}[column]
    return values.name if isinstance(values, NameSet) else NUMBERS


class Shape(Struct, frozen=True):
    """Type of the records in a run: ranges of a layout, lines of a kind, samples of a layout's
    metrics, or states.
    """

    #: RANGE, LINE, COUNTER or STATE.
    stream: str
    #: Name of the layout or of the kind of lines.
    name: str
    #: Metrics of samples, in the order of their columns; none in other runs.
    metrics: tuple[Metric, ...] = ()

    def __reduce__(self) -> tuple:
        # One object for all that are equal in a process.
        return get_shape, astuple(self)


@lru_cache(REMEMBERED_SHAPES)
def get_shape(*fields: Any) -> Shape:
    """Return the shape with these fields. Equal shapes are one object, so that they can be compared
    quickly.
    """
    return Shape(*fields)


class Run(Packed, frozen=True, eq=False):
    """Records of one type, stored in a file as columns, sorted by time (local ns of `report`). A
    run is equal only to itself.
    """

    #: Meaning of the rows.
    shape: Shape
    #: Spill file.
    path: Path
    #: Where their columns are, by name.
    columns: Mapping[str, StoredColumn]
    #: Number of rows.
    rows: int
    #: Index of the report, TRACE for runs in trace time.
    report: int
    #: Number of the task that defines the local objects, domains and names in the rows; in a job,
    #: the place of this task among all.
    task: int
    #: Time of the first row.
    first_time: int
    #: Time of the last row.
    last_time: int
    #: Greatest time in the run that is not OPEN, ends and receives included.
    greatest_time: int
    #: Time of every BLOCK_ROWS-th row.
    samples: np.ndarray
    #: Object of all rows, -1 for several.
    object: int = -1
    #: Number of sampled numbers, in a run of samples.
    values: int = 0
    #: True if these are zeros that mark that nothing was sampled (:mod:`nsys2prv.table.samples`).
    filler: bool = False
    #: For ranges: facts about their ends and fields.
    index: RangeIndex | None = None

    @property
    def count(self) -> int:
        """Return the number of rows; for samples, the number of sampled values."""
        return self.values if self.shape.stream == COUNTER else self.rows

    def find_blocks(self, first: int, last: int | None) -> np.ndarray:
        """Return a mask of the blocks that contain rows with first <= time < last (local ns; None:
        no upper limit).
        """
        found = np.zeros(len(self.samples), bool)
        if first <= self.last_time:
            start = max(int(self.samples.searchsorted(first)) - 1, 0)
            found[start : None if last is None else int(self.samples.searchsorted(last))] = True
        return found

    def find_spans(self, blocks: np.ndarray) -> list[RowSpan]:
        """Return the rows of some blocks as (first, end) pairs. blocks: a mask."""
        edges = np.flatnonzero(np.diff(blocks, prepend=False, append=False)) * BLOCK_ROWS
        return [(start, min(stop, self.rows)) for start, stop in edges.reshape(-1, 2).tolist()]


def find_spill_file(folder: Path) -> Path:
    """Return the file for records in a folder to which only this thread of this process appends.
    Creating a file per task would take longer than storing the records of a small task.
    """
    if getattr(_OWN, "process", None) != os.getpid():
        _OWN.process, _OWN.name = os.getpid(), f"runs-{uuid4().hex}.bin"
    return folder / _OWN.name


class SpillWriter(FrameWriter):
    """Appends records (runs) and frames to one file. field_masks: layout -> bits of the fields to
    keep; kind of lines -> 0 to keep none. Without an entry, everything is kept.
    """

    def __init__(
        self, path: Path, report: int, task: int, field_masks: Mapping[str, int] = NO_MASKS
    ) -> None:
        super().__init__(path)
        self.report, self.task, self.field_masks = report, task, field_masks

    def append(self, shape: Shape, columns: Columns) -> Run:
        """Store lines, samples or states, sorted by time; missing values are ABSENT. Return the
        run.
        """
        stored, values = {}, 0
        for name, column in columns.items():
            role, valid = find_role(shape.stream, shape.name, name), None
            if name.isdecimal():
                known = column != ABSENT
                values += np.count_nonzero(known)
                valid = None if known.all() else known
            is_wide = role == TIMES or (role == NUMBERS and column.max(initial=0) > GREATEST_NARROW)
            kind = np.int64 if is_wide else np.uint32
            stored[name] = self.write_column(np.ascontiguousarray(column, kind), valid)
        times = [columns[name] for name in ("time", "receive", "end") if name in columns]
        greatest = max(int(column.max()) for column in times)
        of_rows = find_bounds(columns.get("row", NO_OBJECTS))
        return self._make_run(shape, stored, times[0], greatest, of_rows, values=int(values))

    def append_ranges(
        self, layout: Layout, columns: Columns, closings: np.ndarray | None = None
    ) -> Run:
        """Store ranges of a layout, sorted by (begin, -end), as :func:`write_ranges` does. Return
        the run.
        """
        begin, end = columns["begin"], columns["end"]
        mask = self.field_masks.get(layout.name, -1)
        stored, index, bounds = write_ranges(self, layout, columns, mask, BLOCK_ROWS, closings)
        greatest = bounds["end"][1]
        if greatest == OPEN:
            greatest = int(end[end != OPEN].max(initial=NEVER))
        if index.closings.size:
            closed = index.closings[0][index.closings[0] != OPEN]
            greatest = max(greatest, int(closed.max(initial=NEVER)))
        greatest = max(greatest, int(begin[-1]) + 1)
        shape = get_shape(RANGE, layout.name)
        return self._make_run(shape, stored, begin, greatest, bounds["row"], index=index)

    def _make_run(
        self,
        shape: Shape,
        stored: Mapping[str, StoredColumn],
        times: np.ndarray,
        greatest: int,
        of_rows: Bounds,
        values: int = 0,
        index: RangeIndex | None = None,
    ) -> Run:
        place = shape, self.path, stored, len(times), self.report, self.task
        bounds = int(times[0]), int(times[-1]), greatest, times[::BLOCK_ROWS].copy()
        only = of_rows[0] if of_rows[0] == of_rows[1] else -1
        return Run(*place, *bounds, only, values, index=index)


class SpillReader(Closable):
    """Reads rows of runs from their files, and keeps a limited number of files open."""

    def __init__(self) -> None:
        self._files: dict[Path, FileIO] = {}

    def read(
        self, run: Run, spans: Sequence[RowSpan] | None = None, names: Sequence[str] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Read columns of some rows of a run as stored. Return name -> values, and name -> mask of
        the rows with a value, for columns in which values are missing. spans: (first, end) of the
        rows, None for all. names: of the columns, None for all.
        """
        file = self._open_file(run.path)
        whole = [(0, run.rows)]
        spans = whole if spans is None else spans
        if run.rows <= FEW_ROWS and spans == whole:
            return _read_at_once(file, run, names)
        stored = [
            (name, one) for name, one in run.columns.items() if names is None or name in names
        ]
        values = {
            name: join_pieces([read_values(file, column, *span) for span in spans])
            for name, column in stored
        }
        valid = {
            name: join_pieces([read_valid(file, column, *span) for span in spans])
            for name, column in stored
            if column.valid != NO_BITS
        }
        return values, valid

    def read_local(self, run: Run, spans: Sequence[RowSpan] | None = None) -> dict[str, np.ndarray]:
        """Return all columns of some rows as int64 for writers, with ABSENT for missing values.
        spans: as for :meth:`read`.
        """
        values, valid = self.read(run, spans)
        columns = {name: column.astype(np.int64) for name, column in values.items()}
        for name, mask in valid.items():
            columns[name][~mask] = ABSENT
        return columns

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _open_file(self, path: Path) -> FileIO:
        file = self._files.pop(path, None)
        if file is None:
            if len(self._files) >= OPEN_FILES:
                self._files.pop(next(iter(self._files))).close()
            try:
                file = path.open("rb", buffering=0)
            except OSError as error:
                if error.errno != errno.EMFILE:
                    raise
                # Several threads, or a system that allows few.
                self.close()
                file = path.open("rb", buffering=0)
        self._files[path] = file
        return file


def _read_at_once(
    file: FileIO, run: Run, names: Sequence[str] | None
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return :meth:`SpillReader.read` of all rows of a small run by one call."""
    stored = [(name, one) for name, one in run.columns.items() if names is None or name in names]
    if not stored:
        return {}, {}
    first, last = stored[0][1].values, stored[-1][1]
    bits = (run.rows + 7) // 8
    size = last.values + run.rows * np.dtype(last.dtype).itemsize - first
    data = read_bytes(file, first, size if last.valid == NO_BITS else size + bits)
    values, valid = {}, {}
    for name, column in stored:
        place = column.values - first
        found = np.frombuffer(data, column.dtype, run.rows, place)
        # The compiled core takes aligned numbers only.
        values[name] = found.copy() if place % found.itemsize else found
        if column.valid != NO_BITS:
            packed = np.frombuffer(data, np.uint8, bits, column.valid - first)
            valid[name] = np.unpackbits(packed, count=run.rows, bitorder="little").view(bool)
    return values, valid


def read_run(run: Run, *names: str) -> dict[str, np.ndarray]:
    """Return columns of a run as stored, by name; all columns if none is named."""
    with SpillReader() as reader:
        return reader.read(run, names=names or None)[0]


def rewrite_column(run: Run, name: str, values: np.ndarray) -> None:
    """Replace the values of a run's column in its file. name: of the column, in which every row
    must have a value.
    """
    column = run.columns[name]
    stored = np.ascontiguousarray(values, column.dtype)
    overwrite(run.path, column.values, stored.view(np.uint8).data)
