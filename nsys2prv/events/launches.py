"""The index of launching calls: which API call, on which thread, started the operation of a
correlation id.

Correlation ids are unique within a process only. The index is a list of pieces on disk, each sorted
by process and correlation id; a look-up reads only the stretches that can hold its ids, so memory
does not grow with the report.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import numpy as np
from msgspec import Struct, field

from nsys2prv._util.columns import factorize, is_sorted, narrow_integers
from nsys2prv.nsight.info import PROCESS_MASK
from nsys2prv.nsight.source import NULL

#: What calls of one kind have in common: thread (globalTid), name (id of the function's name),
#: result (return value).
CALL_KIND = np.dtype([("thread", "<i8"), ("name", "<i8"), ("result", "<i8")])


class Launches(Struct):
    """Calls of one read: columns of equal length (times in local ns; code: index into `kinds`, of
    CALL_KIND).
    """

    correlation: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    code: np.ndarray
    kinds: np.ndarray


class Segment(Struct, frozen=True):
    """Calls of one process in one piece, ascending by correlation id from `low` to `high`, as
    columns one after the other in a file.

    at: where they begin. types: of the columns, which are: correlation id less `low`, begin,
    duration, code. kinds: how many records of CALL_KIND follow.
    """

    path: Path
    process: int
    rows: int
    at: int
    types: tuple[str, ...]
    kinds: int
    low: int
    high: int

    def column(self, number: int, first: int, last: int) -> np.ndarray:
        """Return rows `first` to `last` (not included) of a column."""
        before = sum(np.dtype(kind).itemsize for kind in self.types[:number]) * self.rows
        dtype = np.dtype(self.types[number])
        return np.fromfile(
            self.path, dtype, last - first, offset=self.at + before + first * dtype.itemsize
        )

    def all_kinds(self) -> np.ndarray:
        before = sum(np.dtype(kind).itemsize for kind in self.types) * self.rows
        return np.fromfile(self.path, CALL_KIND, self.kinds, offset=self.at + before)


_KEY, _BEGIN, _DURATION, _CODE = range(4)


class FoundLaunches(Struct):
    """For each row asked for: whether a call was found (`hit`), and the call: begin, end (local ns)
    and code, its index into `kinds`.

    Where none was, all are 0, and the first of `kinds` is nothing but zeros.
    """

    hit: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    code: np.ndarray
    kinds: np.ndarray

    @property
    def thread(self) -> np.ndarray:
        return self.kinds["thread"][self.code]

    @property
    def name(self) -> np.ndarray:
        return self.kinds["name"][self.code]

    @property
    def result(self) -> np.ndarray:
        return self.kinds["result"][self.code]

    def placed(self, order: np.ndarray) -> FoundLaunches:
        """Return the results for rows asked for in this order, in the rows' own order."""
        columns = []
        for column in (self.hit, self.begin, self.end, self.code):
            columns.append(np.empty_like(column))
            columns[-1][order] = column
        return FoundLaunches(*columns, self.kinds)

    def of(self, rows: slice | np.ndarray) -> FoundLaunches:
        """Return the results for these rows."""
        return FoundLaunches(
            self.hit[rows], self.begin[rows], self.end[rows], self.code[rows], self.kinds
        )


class LaunchIndex(Struct):
    segments: list[Segment] = field(default_factory=list)

    def find(self, processes: np.ndarray, correlations: np.ndarray) -> FoundLaunches:
        """Return the calls of these (globalPid, correlationId) pairs. Id 0 and NULL find nothing."""
        distinct, codes = factorize(processes)
        order: slice | np.ndarray = slice(None)
        if len(distinct) > 1:
            order = np.lexsort((correlations, codes))
        elif not is_sorted(correlations):
            order = np.argsort(correlations, kind="stable")
        wanted, rows = correlations[order], len(correlations)
        found = FoundLaunches(
            np.zeros(rows, bool),
            *(np.zeros(rows, np.int64) for _ in range(3)),
            np.zeros(1, CALL_KIND),
        )
        stops = [rows] if len(distinct) == 1 else np.cumsum(np.bincount(codes)).tolist()
        for process, first, last in zip(distinct, [0, *stops], stops, strict=False):
            for segment in self.segments:
                if segment.process == process:
                    _probe(segment, wanted, first, last, found)
        return found if isinstance(order, slice) else found.placed(order)


def _probe(
    segment: Segment, wanted: np.ndarray, first: int, last: int, found: FoundLaunches
) -> None:
    """Look up the ids `first` to `last` (not included) of those wanted, which ascend, in one
    segment; of calls in several segments the earliest stays.
    """
    start = first + int(np.searchsorted(wanted[first:last], segment.low, "left"))
    stop = first + int(np.searchsorted(wanted[first:last], segment.high, "right"))
    if start == stop:
        return
    keys = segment.column(_KEY, 0, segment.rows)
    sought = (wanted[start:stop] - segment.low).astype(keys.dtype)
    place = np.searchsorted(keys, sought)
    same = keys[place] == sought
    rows: slice | np.ndarray = slice(start, stop)
    if not same.all():
        rows = start + np.flatnonzero(same)
        place = place[same]
    if not len(place):
        return
    low, high = int(place[0]), int(place[-1]) + 1
    place -= low
    begin = segment.column(_BEGIN, low, high)[place]
    if found.hit[rows].any():
        earlier = ~found.hit[rows] | (begin < found.begin[rows])
        rows, place, begin = np.arange(len(wanted))[rows][earlier], place[earlier], begin[earlier]
    used, codes = factorize(segment.column(_CODE, low, high)[place])
    found.hit[rows] = True
    found.begin[rows] = begin
    found.end[rows] = begin + segment.column(_DURATION, low, high)[place].astype(np.int64)
    found.code[rows] = codes + len(found.kinds)
    found.kinds = np.concatenate([found.kinds, segment.all_kinds()[used]])


class LaunchWriter:
    """Appends launches to one file, a segment per process and read. The file is made with the first
    of them.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.segments: list[Segment] = []
        self._file: BinaryIO | None = None

    def append(self, launches: Launches) -> None:
        """Store launches, except calls without an id or without times. Of several calls with one id
        the earliest counts.
        """
        processes, of_kind = factorize(
            np.where(
                launches.kinds["thread"] == NULL, NULL, launches.kinds["thread"] & PROCESS_MASK
            )
        )
        known = (
            (launches.correlation != 0)
            & (launches.correlation != NULL)
            & (launches.begin != NULL)
            & (launches.end != NULL)
        )
        for number, process in enumerate(processes):
            rows = np.flatnonzero(
                known if len(processes) == 1 else known & (of_kind == number)[launches.code]
            )
            if len(rows):
                self._segment(launches, int(process), _earliest(launches, rows))

    def _segment(self, launches: Launches, process: int, rows: slice | np.ndarray) -> None:
        ids, begin = launches.correlation[rows], launches.begin[rows]
        # Where differences do not fit 64 bits they wrap round, and back when they are added again.
        columns = (
            narrow_integers(ids - ids[0]),
            begin,
            narrow_integers(launches.end[rows] - begin),
            narrow_integers(launches.code[rows]),
        )
        if self._file is None:
            self._file = self.path.open("wb")
        at = self._file.tell()
        for column in (*columns, launches.kinds):
            self._file.write(np.ascontiguousarray(column).view(np.uint8))
        types = tuple(column.dtype.str for column in columns)
        self.segments.append(
            Segment(
                self.path,
                process,
                len(ids),
                at,
                types,
                len(launches.kinds),
                int(ids[0]),
                int(ids[-1]),
            )
        )

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _earliest(launches: Launches, rows: np.ndarray) -> slice | np.ndarray:
    """Return, of these rows, those with the earliest call of each id, ascending by id."""
    ids = launches.correlation[rows]
    if (ids[1:] > ids[:-1]).all():
        return slice(None) if len(rows) == len(launches.correlation) else rows
    order = np.lexsort((launches.begin[rows], ids))
    ids = ids[order]
    return rows[order[np.concatenate([[True], ids[1:] != ids[:-1]])]]
