"""Indexes of calls, which one kind of events fills and others look up: launching calls
(:class:`LaunchIndex`), and NCCL calls (:class:`NcclCallIndex`), with the numbers that NCCL's
operations have in the catalogue.

Launching calls: which API call, on which thread, started the operation of a correlation id. These
ids are unique within a process only. The index is a list of pieces on disk, each sorted by process
and correlation id; a look-up reads only the stretches that can hold its ids, so memory does not
grow with the report.

NCCL calls: which of them, on which thread, a kernel does the work of. A kernel's launch lies inside
the NCCL range of its call, on the same thread. Between ncclGroupStart and ncclGroupEnd calls only
queue up, and the launch lies inside ncclGroupEnd; in the advanced trace calls and launch lie inside
an "API Group". Either way the ranges of a thread fall into *groups* that follow each other: an
outermost range by itself, or all from a ncclGroupStart to its ncclGroupEnd.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

import numpy as np
import polars as pl
from msgspec import Struct, field

from nsys2prv._util.columns import (
    ABSENT,
    FrameWriter,
    StoredFrame,
    factorize,
    factorize_together,
    group_rows,
    is_sorted,
    narrow_integers,
    read_frame,
)
from nsys2prv.events.catalogue import map_labels
from nsys2prv.nsight.info import PROCESS_MASK
from nsys2prv.nsight.source import NULL

#: What calls of one kind have in common: thread (globalTid), name (id of the function's name),
#: result (return value).
CALL_KIND = np.dtype([("thread", "<i8"), ("name", "<i8"), ("result", "<i8")])
_KEY, _BEGIN, _DURATION, _CODE = range(4)
_VALUES = map_labels("nccl_operation")
#: Of several operations: of one kernel, and of calls between GroupStart and GroupEnd.
SEVERAL_OPERATIONS = _VALUES["several operations in a group"]
ALL_REDUCE, SEND, RECEIVE, SEND_RECEIVE, GROUP_START, GROUP_END = (
    _VALUES[name] for name in ("allreduce", "send", "recv", "sendrecv", "groupstart", "groupend")
)
#: Operations that move data up to this one.
LAST_OPERATION = _VALUES["waitsignal"]
#: The first and the last operation that makes communicators.
FIRST_MAKING, LAST_MAKING = _VALUES["comminitrank"], _VALUES["commgrow"]
#: Operations in which all wait for all, all for the root, the root for all.
ALL_WAIT = tuple(_VALUES[name] for name in ("allreduce", "allgather", "reducescatter", "alltoall"))
WAIT_FOR_ROOT = _VALUES["broadcast"], _VALUES["scatter"]
ROOT_WAITS = _VALUES["reduce"], _VALUES["gather"]
#: Operations whose bytes are one rank's share.
SHARE_OPERATIONS = tuple(
    _VALUES[name] for name in ("allgather", "reducescatter", "alltoall", "gather", "scatter")
)
#: Operations and other functions in lower case -> value of nccl_operation in the catalogue.
OPERATIONS = {name: value for name, value in _VALUES.items() if value != SEVERAL_OPERATIONS} | {
    "bcast": _VALUES["broadcast"]
}
#: What the operations of a group have in common, or ABSENT.
_COMMON = ("reduction", "root", "peer", "group", "data_type")
#: What the index takes of the payloads of ranges.
PAYLOAD_COLUMNS = ("communicator", "bytes", "ranks", "rank", "sequence", *_COMMON)
#: What several kernels that do the work of one group share.
_SUMS = ("fused", "messages", "bytes", "reduce_bytes", "share_bytes", "message_bytes")
_PROCESS = pl.col("thread") & PROCESS_MASK
#: True for ranges, in order, that begin after all earlier ones of their thread have ended.
_OUTER = (pl.col("begin") >= pl.col("end").cum_max().shift(1)).fill_null(True).over("thread")


class Launches(Struct):
    """Calls of one read: columns of equal length, times in local ns."""

    #: Correlation ids.
    correlation: np.ndarray
    #: When the calls begin (local ns).
    begin: np.ndarray
    #: When they end (local ns).
    end: np.ndarray
    #: Index of each call into `kinds`.
    code: np.ndarray
    #: Distinct threads, names and results (CALL_KIND).
    kinds: np.ndarray


class Segment(Struct, frozen=True):
    """Calls of one process in one piece, ascending by correlation id from `low` to `high`, as
    columns one after the other in a file.
    """

    #: File that holds the columns.
    path: Path
    #: globalPid.
    process: int
    #: Number of calls.
    rows: int
    #: Place of the first column in the file, bytes.
    at: int
    #: dtypes of the columns, which are: correlation id less `low`, begin, duration, code.
    types: tuple[str, ...]
    #: How many records of CALL_KIND follow.
    kinds: int
    #: Least correlation id.
    low: int
    #: Greatest correlation id.
    high: int

    def read_column(self, number: int, first: int, last: int) -> np.ndarray:
        """Return rows `first` to `last` (not included) of a column."""
        before = sum(np.dtype(kind).itemsize for kind in self.types[:number]) * self.rows
        dtype = np.dtype(self.types[number])
        return np.fromfile(
            self.path, dtype, last - first, offset=self.at + before + first * dtype.itemsize
        )

    def read_ids(self) -> np.ndarray:
        """Return the correlation ids of the calls, ascending."""
        return self.read_column(_KEY, 0, self.rows).astype(np.int64) + self.low

    def read_begins(self) -> np.ndarray:
        """Return when the calls begin (local ns)."""
        return self.read_column(_BEGIN, 0, self.rows)

    def read_codes(self) -> np.ndarray:
        """Return the index of each call into what :meth:`read_call_kinds` returns."""
        return self.read_column(_CODE, 0, self.rows)

    def read_call_kinds(self) -> np.ndarray:
        """Return the distinct threads, names and results of the calls (CALL_KIND)."""
        before = sum(np.dtype(kind).itemsize for kind in self.types) * self.rows
        return np.fromfile(self.path, CALL_KIND, self.kinds, offset=self.at + before)


class FoundLaunches(Struct):
    """For each row asked for: whether a call was found (`hit`), and the call: begin, end (local ns)
    and code, its index into `kinds`.

    Where none was, all are 0, and the first of `kinds` is nothing but zeros.
    """

    #: Whether a call was found.
    hit: np.ndarray
    #: When the calls begin (local ns).
    begin: np.ndarray
    #: When they end (local ns).
    end: np.ndarray
    #: Index of each call into `kinds`.
    code: np.ndarray
    #: Distinct threads, names and results (CALL_KIND); the first is all zeros.
    kinds: np.ndarray

    @property
    def thread(self) -> np.ndarray:
        """The globalTid of each call, 0 where none was found."""
        return self.kinds["thread"][self.code]

    @property
    def name(self) -> np.ndarray:
        """The id of the name of each call's function, 0 where none was found."""
        return self.kinds["name"][self.code]

    @property
    def result(self) -> np.ndarray:
        """The value that each call returned, 0 where none was found."""
        return self.kinds["result"][self.code]

    def or_null(self, column: str) -> np.ndarray:
        """Return begin, end, thread, name or result of the calls, NULL where none was found."""
        return np.where(self.hit, getattr(self, column), NULL)

    def take(self, rows: slice | np.ndarray) -> FoundLaunches:
        """Return the results for these rows."""
        return FoundLaunches(
            self.hit[rows], self.begin[rows], self.end[rows], self.code[rows], self.kinds
        )


class LaunchIndex(Struct):
    """The launching calls of one report by process and correlation id."""

    #: Indexed calls.
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
        begin, end, code = np.zeros((3, rows), np.int64)
        launches = FoundLaunches(np.zeros(rows, bool), begin, end, code, np.zeros(1, CALL_KIND))
        stops = [rows] if len(distinct) == 1 else np.cumsum(np.bincount(codes)).tolist()
        of_process: defaultdict[int, list[Segment]] = defaultdict(list)
        for segment in self.segments:
            of_process[segment.process].append(segment)
        kinds, known = [launches.kinds], len(launches.kinds)
        for process, first, last in zip(distinct.tolist(), [0, *stops], stops, strict=False):
            for segment in of_process[process]:
                kinds.append(_find_in_segment(segment, wanted, first, last, launches, known))
                known += len(kinds[-1])
        launches.kinds = np.concatenate(kinds)
        return launches if isinstance(order, slice) else launches.take(np.argsort(order))


def _find_in_segment(
    segment: Segment,
    wanted: np.ndarray,
    first: int,
    last: int,
    launches: FoundLaunches,
    known: int,
) -> np.ndarray:
    """Look up the ids `first` to `last` (not included) of those wanted, which ascend, in one
    segment; of calls in several segments the earliest stays. Returns the kinds of the calls found;
    known: how many come before them.
    """
    start = first + int(np.searchsorted(wanted[first:last], segment.low, "left"))
    stop = first + int(np.searchsorted(wanted[first:last], segment.high, "right"))
    if start == stop:
        return launches.kinds[:0]
    keys = segment.read_column(_KEY, 0, segment.rows)
    sought = (wanted[start:stop] - segment.low).astype(keys.dtype)
    place = np.searchsorted(keys, sought)
    same = keys[place] == sought
    rows: slice | np.ndarray = slice(start, stop)
    if not same.all():
        rows = start + np.flatnonzero(same)
        place = place[same]
    if not len(place):
        return launches.kinds[:0]
    low, high = int(place[0]), int(place[-1]) + 1
    place -= low
    begin = segment.read_column(_BEGIN, low, high)[place]
    if launches.hit[rows].any():
        earlier = ~launches.hit[rows] | (begin < launches.begin[rows])
        rows, place, begin = np.arange(len(wanted))[rows][earlier], place[earlier], begin[earlier]
    used, codes = factorize(segment.read_column(_CODE, low, high)[place])
    launches.hit[rows] = True
    launches.begin[rows] = begin
    launches.end[rows] = begin + segment.read_column(_DURATION, low, high)[place].astype(np.int64)
    launches.code[rows] = codes + known
    return segment.read_call_kinds()[used]


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
        # NULL stays what it is.
        processes, of_kind = factorize(launches.kinds["thread"] & PROCESS_MASK)
        is_usable = (launches.begin != NULL) & (launches.end != NULL)
        is_usable &= (launches.correlation != 0) & (launches.correlation != NULL)
        usable = np.flatnonzero(is_usable)
        for number, places in group_rows(of_kind[launches.code[usable]]):
            rows = usable[places]
            self._write_segment(launches, int(processes[number]), _keep_earliest(launches, rows))

    def _write_segment(self, launches: Launches, process: int, rows: slice | np.ndarray) -> None:
        ids, begin = launches.correlation[rows], launches.begin[rows]
        used, codes = factorize(launches.code[rows])
        own_kinds = launches.kinds[used]
        # Where differences do not fit 64 bits they wrap round, and back when they are added again.
        columns = (
            narrow_integers(ids - ids[0]),
            begin,
            narrow_integers(launches.end[rows] - begin),
            narrow_integers(codes),
        )
        if self._file is None:
            self._file = self.path.open("wb")
        at = self._file.tell()
        for column in (*columns, own_kinds):
            self._file.write(np.ascontiguousarray(column).view(np.uint8))
        types = tuple(column.dtype.str for column in columns)
        first, last, kinds = int(ids[0]), int(ids[-1]), len(own_kinds)
        self.segments.append(Segment(self.path, process, len(ids), at, types, kinds, first, last))

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._file is not None:
            self._file.close()


def _keep_earliest(launches: Launches, rows: np.ndarray) -> slice | np.ndarray:
    """Return, of these rows, those with the earliest call of each id, ascending by id."""
    ids = launches.correlation[rows]
    if (ids[1:] > ids[:-1]).all():
        return slice(None) if len(rows) == len(launches.correlation) else rows
    order = np.lexsort((launches.begin[rows], ids))
    ids = ids[order]
    return rows[order[np.append(True, ids[1:] != ids[:-1])]]


def save_nccl_calls(calls: Sequence[pl.DataFrame], frames: FrameWriter) -> list[StoredFrame]:
    """Store the NCCL calls that one task found, if there are any."""
    return [frames.append(pl.concat(calls))] if calls else []


class NcclCallIndex:
    """The NCCL calls of one report, by thread and by group. Read when first asked."""

    def __init__(self, stored: Sequence[StoredFrame] = ()) -> None:
        self._stored = tuple(stored)

    def __bool__(self) -> bool:
        return bool(self._stored)

    @cached_property
    def _ranges(self) -> pl.DataFrame:
        """Return all calls in order, with their group."""
        none = dict.fromkeys(("thread", "begin", "end", "operation", *PAYLOAD_COLUMNS), pl.Int64)
        stored = map(read_frame, self._stored)
        ranges = pl.concat([pl.DataFrame(schema=none), *stored]).sort(
            "thread", "begin", "end", descending=[False, False, True], maintain_order=True
        )
        operation = pl.col("operation")
        step = pl.when("outer").then(
            (operation == GROUP_START).cast(pl.Int64) - (operation == GROUP_END).cast(pl.Int64)
        )
        level = step.fill_null(0).cum_sum()
        # A capture may begin inside a group: its end then counts for nothing.
        level = level - pl.min_horizontal(level.cum_min(), 0)
        before = level.shift(1).fill_null(0).over("thread")
        return ranges.with_columns(outer=_OUTER).with_columns(
            call_group=(pl.col("outer") & (before == 0)).cast(pl.Int64).cum_sum() - 1
        )

    @cached_property
    def operations(self) -> pl.DataFrame:
        """Return the operations that move data, each with its group and its place in it; calls
        within calls left out. shared: of how many ranks the process is, 0 unknown.
        """
        operation = pl.col("operation")
        # What the calls that made communicators state.
        making = self._ranges.filter(
            operation.is_between(FIRST_MAKING, LAST_MAKING),
            pl.col("communicator") != 0,
            pl.col("ranks") > 0,
        )
        made = making.group_by("communicator", process=_PROCESS).agg(
            made_ranks=pl.col("ranks").max(),
            made_rank=pl.col("rank").min(),
            shared=pl.col("rank").n_unique().cast(pl.Int64),
        )
        moving = self._ranges.filter(operation.is_between(1, LAST_OPERATION)).filter(_OUTER)
        row = pl.int_range(pl.len(), dtype=pl.Int64)
        begins = pl.col("call_group") != pl.col("call_group").shift(1)
        moving = moving.with_columns(
            process=_PROCESS, place=row - pl.when(begins).then(row).otherwise(0).cum_max()
        )
        moving = moving.join(
            made, on=["process", "communicator"], how="left", maintain_order="left"
        )
        ranks, rank, shared = pl.col("ranks"), pl.col("rank"), pl.col("shared")
        only_rank = pl.when(shared == 1).then("made_rank").otherwise(ABSENT)
        return moving.with_columns(
            ranks=pl.when(ranks > 0).then(ranks).otherwise(pl.col("made_ranks").fill_null(ABSENT)),
            rank=pl.when(rank >= 0).then(rank).otherwise(only_rank),
            shared=shared.fill_null(0),
        )

    @cached_property
    def groups(self) -> pl.DataFrame:
        """Return the groups of calls that move data, in order of thread and begin: when, `shared` as of
        operations, what their operations have in common (or ABSENT), are (fused, messages) and
        move in all (bytes and other sums).
        """
        operation, size = pl.col("operation"), pl.col("bytes")
        pairs = operation.is_in([SEND, RECEIVE])

        def common(name: str, otherwise: int = ABSENT) -> pl.Expr:
            column = pl.col(name)
            return pl.when(column.min() == column.max()).then(column.first()).otherwise(otherwise)

        operations = self.operations.with_columns(
            pl.col("call_group").set_sorted(),
            fused=pl.lit(1, pl.Int64),
            messages=pairs.cast(pl.Int64),
            collective=pl.when(~pairs).then(pl.int_range(pl.len())),
            reduce_bytes=pl.when(operation == ALL_REDUCE).then(size).otherwise(0),
            share_bytes=pl.when(operation.is_in(SHARE_OPERATIONS)).then(size).otherwise(0),
            message_bytes=pl.when(pairs).then(size).otherwise(0),
        )
        groups = operations.group_by("call_group", maintain_order=True).agg(
            pl.col("thread", "communicator").first(),
            pl.col("shared", "ranks").max(),
            pl.col(_SUMS).sum(),
            pl.col("collective").min(),
            common("operation", SEVERAL_OPERATIONS),
            *map(common, ("rank", *_COMMON)),
            several=pl.col("communicator").min() != pl.col("communicator").max(),
            known=size.min() >= 0,
        )
        first = groups["collective"]
        several, is_known = pl.col("several"), pl.col("known") & ~pl.col("several")
        ranges = self._ranges.with_columns(pl.col("call_group").set_sorted())
        times = ranges.group_by("call_group", maintain_order=True).agg(
            pl.col("begin").first(), pl.col("end").max()
        )
        return groups.with_columns(
            operations["operation"].gather(first).fill_null(0).alias("first_operation"),
            operations["sequence"].gather(first).fill_null(ABSENT),
            pl.when(several).then(ABSENT).otherwise(pl.col("ranks", "rank")).name.keep(),
            communicator=pl.when(several).then(0).otherwise("communicator"),
            bytes=pl.when(is_known).then("bytes").otherwise(ABSENT),
            known=is_known.cast(pl.Int64),
        ).join(times, on="call_group", how="left", maintain_order="left")

    def match_kernels(
        self, threads: np.ndarray, times: np.ndarray, devices: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Return what the groups say in which kernels were launched, by thread (globalTid) and time
        (local ns) of the launching call: columns of :attr:`groups`, and parts: of how many kernels
        that do the group's work each is one. ABSENT, the communicator 0, where there is no group.

        A process with several GPUs makes the calls of all of them in one group, of equal shares:
        each device has its part of the sums. Of several communicators in one group nothing tells
        which kernel belongs to which: communicator and bytes stay unknown.
        """
        groups = {column.name: column.to_numpy() for column in self.groups.iter_columns()}
        place = _find_last_begun(groups["thread"], groups["begin"], threads, times)
        fused, shared = groups["fused"], groups["shared"]
        parts = np.where(shared > 0, shared, _count_devices(place, devices, len(fused)))
        parts = np.where((parts > 1) & (fused % np.maximum(parts, 1) == 0), parts, 1)
        # One more group stands for none.
        place[(place >= 0) & (times > np.append(groups["end"], 0)[place])] = -1
        divided = (parts > 1).any()
        for name in _SUMS if divided else ():
            groups[name] = groups[name] // parts
        groups["parts"] = parts
        return {
            name: np.append(column, 0 if name == "communicator" else ABSENT)[place]
            for name, column in groups.items()
        }


def _find_last_begun(
    group_threads: np.ndarray, begins: np.ndarray, threads: np.ndarray, times: np.ndarray
) -> np.ndarray:
    """Return the last group that had begun on a thread at a time, -1 for none."""
    place = np.full(len(threads), -1)
    distinct, codes = factorize(threads)
    for code, thread in enumerate(distinct):
        first, last = (np.searchsorted(group_threads, thread, side) for side in ("left", "right"))
        if first < last:
            rows = np.flatnonzero(codes == code)
            positions = np.searchsorted(begins[first:last], times[rows], "right") - 1
            place[rows] = np.where(positions >= 0, first + positions, -1)
    return place


def _count_devices(place: np.ndarray, devices: np.ndarray, groups: int) -> np.ndarray:
    """Return, for each group, the number of devices for whose kernels it is the last begun."""
    tied = place >= 0
    (group, _), _ = factorize_together(place[tied], devices[tied])
    return np.bincount(group, minlength=groups)
