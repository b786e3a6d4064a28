"""Sorted runs, ascending by time, in spill files: ranges as columns (:mod:`range_index`); lines, samples
and states of rows as fixed-size binary records of one shape. A time window of the trace is a slice of
every run.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from functools import cache, cached_property, lru_cache
from io import FileIO
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import astuple

from nsys2prv._util.columns import OPEN, factorize
from nsys2prv._util.files import Closable
from nsys2prv._util.memory import find_limit
from nsys2prv._util.native import core
from nsys2prv.events.catalogue import CALLERS, Layout, Metric, NameSet, load_catalogue
from nsys2prv.store import range_index
from nsys2prv.store.range_index import TIME_COLUMNS, RangeIndex, write_ranges

#: What a run is of: ranges (kernels, calls, points in time, states that hold), lines, samples, or
#: states of rows.
RANGE, LINE, COUNTER, STATE = "range", "line", "counter", "state"
#: First and last time of a report's events (local ns).
Span = tuple[int, int]
#: Stands for the report of runs that are in trace time, and for the task of runs whose indices
#: are the trace's own numbers.
TRACE, RESOLVED = -1, -1
#: What a column may hold besides values of name sets: times (ns, OPEN for none), indices of
#: objects and of domains, plain numbers. No name set is called so.
TIMES, OBJECTS, DOMAINS, NUMBERS = "times", "objects", "domains", ""
#: Stream -> what each column of its records holds, fields of layouts apart. Whatever moves records
#: in time, as a clock or a cut does, moves all columns of TIMES.
COLUMNS = {
    RANGE: {
        **dict.fromkeys(TIME_COLUMNS, TIMES),
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
    },
    COUNTER: {"time": TIMES, "object": OBJECTS, "values": NUMBERS},
    STATE: {"time": TIMES, "end": TIMES, "object": OBJECTS, "state": NUMBERS},
}
#: Every so many records a run's time is kept in memory, to plan windows and to find a slice while
#: reading little beside it.
SAMPLE_EVERY = 256
#: Records put together at a time.
BLOCK_RECORDS = 8192
#: Earlier than any time.
NEVER = int(np.iinfo(np.int64).min)
#: Events keep all fields.
NO_MASKS: Mapping[str, int] = MappingProxyType({})
#: Formats of records that are kept for further runs.
MOST_FORMATS = 4096
#: Spill files open at a time: of those that the system allows (ulimit -n) at most half.
OPEN_FILES = min(256, (find_limit("RLIMIT_NOFILE") or 512) // 2)


def list_present_fields(layout: Layout, field_mask: int) -> list:
    """Return the layout's fields whose bit is set."""
    return [f for bit, f in enumerate(layout.fields) if field_mask >> bit & 1]


@cache
def find_role(stream: str, kind: str, column: str) -> str:
    """Return what a column holds: TIMES, OBJECTS, DOMAINS, CALLERS, NUMBERS or the name of a name set.
    Raises KeyError for a column that is not declared.
    """
    if column in COLUMNS[stream]:
        return COLUMNS[stream][column]
    fields = load_catalogue().layouts[kind].fields if stream == RANGE else ()
    values = {field.name: field.values for field in fields}[column]
    return values.name if isinstance(values, NameSet) else NUMBERS


class RecordFormat(Struct, frozen=True, dict=True):
    """What a run is of: ranges of a layout, lines of a kind, samples of a layout's metrics, or states."""

    #: RANGE, LINE, COUNTER or STATE.
    stream: str
    #: Name of the layout or of the kind of lines.
    name: str
    #: Of samples: bytes of each value, which is stored as value + 1, 0 where there is none.
    value_bytes: int = 0
    #: Metrics of samples, in the order of a record's values; none in other runs.
    metrics: tuple[Metric, ...] = ()

    def __reduce__(self) -> tuple:
        # One object for all that are equal in a process.
        return get_format, astuple(self)

    @cached_property
    def dtype(self) -> np.dtype:
        """Return the columns of a record."""
        return _make_dtype(self)

    @cached_property
    def times(self) -> tuple[str, ...]:
        """Return the columns that hold times."""
        names = self.dtype.names
        return tuple(one for one in names if find_role(self.stream, self.name, one) == TIMES)


@lru_cache(MOST_FORMATS)
def get_format(*fields: Any) -> RecordFormat:
    """Return the format, one object for all that are equal."""
    return RecordFormat(*fields)


@lru_cache(MOST_FORMATS)
def _make_dtype(shape: RecordFormat) -> np.dtype:
    """Return the columns of a record, one object for all formats that are equal."""
    roles = dict(COLUMNS[shape.stream])
    # Lines of a kind without a tag carry their own.
    if shape.stream == LINE and load_catalogue().lines[shape.name].tag is not None:
        del roles["tag"]
    columns: list[tuple] = [
        (name, "<i8" if role in (TIMES, NUMBERS) else "<u4") for name, role in roles.items()
    ]
    if shape.stream == COUNTER:
        columns[-1] = ("values", f"<u{shape.value_bytes}", (len(shape.metrics),))
    return np.dtype(columns)


class Run(Struct, frozen=True, eq=False):
    """Ranges in a spill file, or records at `offset` of it, ascending by time (local ns of `report`).
    Equal to itself alone.
    """

    #: What they are.
    shape: RecordFormat
    #: Spill file.
    path: Path
    #: Bytes from its begin, of records.
    offset: int
    #: Number of records.
    rows: int
    #: Index of the report, TRACE for runs in trace time.
    report: int
    #: Number of the task whose local objects, domains and names the records refer to; in a job, the
    #: place of that task among all.
    task: int
    #: Time of the first record.
    first_time: int
    #: Time of the last record.
    last_time: int
    #: Greatest time in the run that is not OPEN, ends and receives included.
    greatest_time: int
    #: Time of every SAMPLE_EVERY-th record.
    samples: np.ndarray
    #: Object of all records, -1 for several.
    object: int = -1
    #: Number of sampled numbers, in a run of samples.
    values: int = 0
    #: True if these are zeros that mark where nothing was sampled
    #: (:mod:`nsys2prv.store.samples`).
    filler: bool = False
    #: Of ranges: where their columns are, and what is known of them.
    index: RangeIndex | None = None

    def __reduce__(self) -> tuple:
        # Bytes take a fraction of the time that arrays take.
        *before, samples, object_, values, filler, index = astuple(self)
        return _restore_run, (*before, samples.tobytes(), object_, values, filler, index)

    @property
    def count(self) -> int:
        """Return the number of ranges, of records or of sampled numbers."""
        return self.values if self.shape.stream == COUNTER else self.rows


def _restore_run(*fields: Any) -> Run:
    *before, samples, object_, values, filler, index = fields
    return Run(*before, np.frombuffer(samples, np.int64), object_, values, filler, index)


def choose_chunks(runs: Sequence[Run], records: int) -> list[int]:
    """Return local times that cut the runs into chunks of about so many records."""
    samples = np.sort(np.concatenate([np.zeros(0, np.int64), *(run.samples for run in runs)]))
    step = max(1, len(samples) * records // max(1, sum(run.rows for run in runs)))
    return factorize(samples[step::step])[0].tolist()


class SpillWriter(Closable):
    """Appends runs to one spill file. field_masks: layout -> bits of the fields that events keep
    there; all of a layout that is not in it.
    """

    def __init__(
        self, path: Path, report: int, task: int, field_masks: Mapping[str, int] = NO_MASKS
    ) -> None:
        self.path, self.report, self.task = path, report, task
        self.field_masks = field_masks
        self._open_file = path.open("wb")
        #: Bytes written.
        self._size = 0

    def append(
        self,
        shape: RecordFormat,
        records: np.ndarray,
        greatest_time: int,
        object_: int = -1,
        values: int = 0,
    ) -> Run:
        """Store records, which must ascend by their field `time`. The other arguments are as in
        :class:`Run`.
        """
        place = shape, self.path, self._size, len(records), self.report, self.task
        self._size += self._open_file.write(memoryview(records).cast("B"))
        times = records["time"]
        bounds = int(times[0]), int(times[-1]), greatest_time
        return Run(*place, *bounds, times[::SAMPLE_EVERY].copy(), object_, values)

    def append_columns(
        self,
        shape: RecordFormat,
        columns: Mapping[str, np.ndarray],
        rows: slice | np.ndarray,
        greatest_time: int,
        object_: int = -1,
    ) -> Run:
        """Store the records that these rows of columns make (indices, or a slice for all of them),
        as :meth:`append` does.

        They are put together a block at a time, which stays in the processor's cache.
        """
        dtype, times = shape.dtype, columns["time"]
        every = isinstance(rows, slice)
        count = len(times) if every else len(rows)
        place = shape, self.path, self._size, count, self.report, self.task
        used = {name: np.ascontiguousarray(columns[name], np.int64) for name in dtype.names}
        block = np.empty(min(count, BLOCK_RECORDS), dtype)
        for first in range(0, count, BLOCK_RECORDS):
            records = block[: count - first]
            fill_records(records, used, None if every else rows, first)
            self._size += self._open_file.write(memoryview(records).cast("B"))
        samples = times[::SAMPLE_EVERY].copy() if every else times[rows[::SAMPLE_EVERY]]
        bounds = int(samples[0]), int(times[-1 if every else rows[-1]]), greatest_time
        return Run(*place, *bounds, samples, object_)

    def append_ranges(
        self,
        layout: Layout,
        columns: Mapping[str, np.ndarray],
        greatest_time: int = NEVER,
        closings: np.ndarray | None = None,
    ) -> Run:
        """Store ranges of a layout, by (begin, -end), as :func:`write_ranges` takes them. greatest_time:
        of a cut's, which end with it at the latest.
        """
        begin, end, row = (columns[name] for name in ("begin", "end", "row"))
        mask = self.field_masks.get(layout.name, -1)
        index = write_ranges(self._open_file, layout, columns, mask, closings)
        if greatest_time == NEVER:
            greatest_time = int(end.max())
            if greatest_time == OPEN:
                greatest_time = int(end[end != OPEN].max(initial=NEVER))
        if closings is not None:
            closed = closings[0][closings[0] != OPEN]
            greatest_time = max(greatest_time, int(closed.max(initial=NEVER)))
        place = get_format(RANGE, layout.name), self.path, self._size, len(begin)
        self._size = self._open_file.tell()
        first, last = int(begin[0]), int(begin[-1])
        bounds = first, last, max(greatest_time, last + 1)
        samples, only = begin[:: range_index.BLOCK_ROWS].copy(), find_only_object(row)
        return Run(*place, self.report, self.task, *bounds, samples, only, index=index)

    def close(self) -> None:
        """Close the file."""
        self._open_file.close()


def find_only_object(objects: np.ndarray) -> int:
    """Return the one object of some rows, -1 for several."""
    return int(objects[0]) if (objects == objects[0]).all() else -1


def fill_records(
    records: np.ndarray, columns: Mapping[str, np.ndarray], rows: np.ndarray | None, first: int
) -> None:
    """Fill records with the values (int64) of the rows at `rows[first:]`, or from row `first` on
    where `rows` is None.
    """
    dtype = records.dtype
    if core is None:
        source_rows = slice(first, first + len(records))
        for name in dtype.names:
            records[name] = columns[name][source_rows if rows is None else rows[source_rows]]
        return
    fields = tuple(
        (offset, field.itemsize, columns[name]) for name, (field, offset) in dtype.fields.items()
    )
    core.fill_records(records.view(np.uint8), dtype.itemsize, fields, rows, first)


def take_records(records: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return records at some places (indices, or a truth for each), as bytes: numpy would copy them
    field by field, many times as slowly.
    """
    places = np.flatnonzero(rows) if rows.dtype == bool else rows
    return np.take(records.view((np.void, records.itemsize)), places).view(records.dtype)


def concat_records(pieces: Sequence[np.ndarray]) -> np.ndarray:
    """Return records of one shape after each other, likewise."""
    if len(pieces) == 1:
        return pieces[0]
    dtype = pieces[0].dtype
    return np.concatenate([records.view((np.void, dtype.itemsize)) for records in pieces]).view(
        dtype
    )


def read_run(run: Run) -> np.ndarray:
    """Return all records of a run, read from its file."""
    with run.path.open("rb") as file:
        file.seek(run.offset)
        return np.fromfile(file, run.shape.dtype, run.rows)


def rewrite_run(run: Run, records: np.ndarray) -> None:
    """Put the changed records of a run in their place; their times must be the same."""
    with run.path.open("r+b") as file:
        file.seek(run.offset)
        file.write(memoryview(records).cast("B"))


class SpillReader(Closable):
    """Reads slices of runs from their files, with a bounded number of open files."""

    def __init__(self) -> None:
        self._files: dict[Path, FileIO] = {}

    def read_between(self, run: Run, first: int, last: int | None) -> np.ndarray:
        """Return the records with first <= time < last (None: without an upper limit)."""
        return self.find_places(run, first, last)[1]

    def find_places(self, run: Run, first: int, last: int | None) -> tuple[int, np.ndarray]:
        """Return the position in the run of the first record with first <= time < last, and all
        such records.
        """
        start, stop = _find_block_bounds(run, first, last)
        if start >= stop:
            return start, np.empty(0, run.shape.dtype)
        records = self._read(run, start, stop)
        times = records["time"]
        # What is sought lies in the first and in the last of the blocks: numpy copies what it
        # searches.
        before = int(times[: SAMPLE_EVERY + 1].searchsorted(first)) if first > run.first_time else 0
        if last is not None and last <= run.last_time:
            end = max(len(times) - SAMPLE_EVERY, 0)
            records = records[: end + int(times[end:].searchsorted(last))]
        return start + before, records[before:]

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _read(self, run: Run, start: int, stop: int) -> np.ndarray:
        """Return the records from one place in a run to another."""
        records = np.empty(stop - start, run.shape.dtype)
        file = self.open_file(run.path)
        file.seek(run.offset + start * records.itemsize)
        left = memoryview(records.view(np.uint8))
        while left:
            got = file.readinto(left)
            if not got:
                raise OSError(errno.EIO, "is cut short", str(run.path))
            left = left[got:]
        return records

    def open_file(self, path: Path) -> FileIO:
        """Return a file, open until others are needed."""
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


def _find_block_bounds(run: Run, first: int, last: int | None) -> tuple[int, int]:
    """Return the bounds of the records with first <= time < last, both at multiples of
    SAMPLE_EVERY or the run's end.
    """
    if first > run.last_time:
        return run.rows, run.rows
    start, stop = 0, run.rows
    if first > run.first_time:
        start = max(int(run.samples.searchsorted(first)) - 1, 0) * SAMPLE_EVERY
    if last is not None and last <= run.last_time:
        stop = min(int(run.samples.searchsorted(last)) * SAMPLE_EVERY, run.rows)
    return start, stop
