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
from functools import cached_property, lru_cache
from itertools import pairwise

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
    read_frame,
)
from nsys2prv.events.catalogue import map_labels
from nsys2prv.export.info import PROCESS_MASK
from nsys2prv.export.source import NULL

#: What calls of one kind have in common: thread (globalTid), name (id of the function's name),
#: result (return value).
KIND_COLUMNS = ("thread", "name", "result")
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
    """API calls, an element each; times in local ns. As the answers of an index: where no call was
    found all are 0, and the code 0 is of no call.
    """

    #: Correlation ids.
    ids: np.ndarray
    #: When the calls begin (local ns).
    begin: np.ndarray
    #: When they end (local ns).
    end: np.ndarray
    #: Index of each call into `kinds`.
    code: np.ndarray
    #: Distinct threads, names and results (KIND_COLUMNS).
    kinds: pl.DataFrame

    @property
    def hit(self) -> np.ndarray:
        """Whether an index has found a call."""
        return self.code != 0

    def get(self, column: str) -> np.ndarray:
        """Return thread, name or result of each call."""
        return self.kinds[column].to_numpy()[self.code]

    def or_null(self, column: str) -> np.ndarray:
        """Return begin, end, thread, name or result of the calls, NULL where none was found."""
        values = self.get(column) if column in KIND_COLUMNS else getattr(self, column)
        return np.where(self.hit, values, NULL)

    def take(self, rows: slice | np.ndarray) -> Launches:
        """Return some of the calls."""
        columns = (self.ids, self.begin, self.end, self.code)
        return Launches(*(column[rows] for column in columns), self.kinds)


class Segment(Struct, frozen=True):
    """Calls of one process in a stored piece, ascending by correlation id from `low` to `high`."""

    #: globalPid.
    process: int
    #: Least correlation id.
    low: int
    #: Greatest correlation id.
    high: int
    #: First row of the process in the piece.
    first: int
    #: Row behind its last one.
    last: int
    #: The piece: columns of `Launches`.
    calls: StoredFrame
    #: Its kinds of calls.
    kinds: StoredFrame

    def read(self) -> Launches:
        """Return the calls."""
        return _read_piece(self.calls, self.kinds).take(slice(self.first, self.last))


@lru_cache(maxsize=2)
def _read_piece(calls: StoredFrame, kinds: StoredFrame) -> Launches:
    """Return the calls of a stored piece, whose processes are asked for one after the other."""
    columns = [column.to_numpy() for column in read_frame(calls).iter_columns()]
    return Launches(*columns, read_frame(kinds))


class LaunchIndex(Struct):
    """The launching calls of one report by process and correlation id."""

    #: Indexed calls.
    segments: list[Segment] = field(default_factory=list)

    def find(self, processes: np.ndarray, correlations: np.ndarray) -> Launches:
        """Return the calls of these (globalPid, correlationId) pairs, of several the earliest. Id 0
        and NULL find nothing.
        """
        begin, end, code = np.zeros((3, len(correlations)), np.int64)
        kinds = [pl.DataFrame({name: [0] for name in KIND_COLUMNS})]
        known = 1
        of_process: defaultdict[int, list[Segment]] = defaultdict(list)
        for segment in self.segments:
            of_process[segment.process].append(segment)
        for process, own in group_rows(processes):
            wanted, rows = correlations[own], np.arange(len(correlations))[own]
            ascending = np.sort(wanted)
            for segment in of_process[process]:
                below = np.searchsorted(ascending, segment.low, "left")
                if below == np.searchsorted(ascending, segment.high, "right"):
                    continue
                calls = segment.read()
                place = np.minimum(np.searchsorted(calls.ids, wanted), len(calls.ids) - 1)
                found = calls.ids[place] == wanted
                found &= (code[own] == 0) | (calls.begin[place] < begin[own])
                place, into = place[found], rows[found]
                used, codes = factorize(calls.code[place])
                begin[into], end[into] = calls.begin[place], calls.end[place]
                code[into] = codes + known
                kinds.append(calls.kinds[used])
                known += len(used)
        return Launches(correlations, begin, end, code, pl.concat(kinds))


def save_launches(launches: Launches, frames: FrameWriter) -> list[Segment]:
    """Store launches as a piece of the index, except calls without an id or without times. Of
    several calls with one id the earliest counts.
    """
    # NULL stays NULL.
    processes, of_kind = factorize(launches.kinds["thread"].to_numpy() & PROCESS_MASK)
    usable = (launches.begin != NULL) & (launches.end != NULL)
    usable &= (launches.ids != 0) & (launches.ids != NULL)
    if not usable.any():
        return []
    launches = launches if usable.all() else launches.take(usable)
    process = of_kind[launches.code]
    if len(processes) > 1 or not (np.diff(launches.ids) > 0).all():
        order = np.lexsort((launches.begin, launches.ids, process))
        same = (np.diff(process[order]) == 0) & (np.diff(launches.ids[order]) == 0)
        order = order[np.append(True, ~same)]
        launches, process = launches.take(order), process[order]
    narrow = launches.code.astype(np.min_scalar_type(launches.kinds.height))
    columns = {"ids": launches.ids, "begin": launches.begin, "end": launches.end, "code": narrow}
    stored = frames.append(pl.DataFrame(columns)), frames.append(launches.kinds)
    cuts = np.searchsorted(process, np.arange(len(processes) + 1)).tolist()
    return [
        Segment(number, int(launches.ids[first]), int(launches.ids[last - 1]), first, last, *stored)
        for number, (first, last) in zip(processes.tolist(), pairwise(cuts), strict=True)
        if first < last
    ]


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
        """Return the groups of calls that move data, in order of thread and begin: their time, the
        fields that their operations share (or ABSENT), the numbers of fused operations and
        messages, and bytes in all.
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
        """Return the group in which each kernel was launched, by thread (globalTid) and time (local
        ns) of the launching call: columns of :attr:`groups`, and `parts`, the number of kernels
        among which the group's work is divided. ABSENT, the communicator 0, where there is no
        group.

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
