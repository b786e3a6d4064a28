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
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np
from msgspec import Struct, field
from msgspec.structs import asdict

from nsys2prv._util.columns import (
    ABSENT,
    Table,
    factorize,
    factorize_together,
    find_places,
    group_rows,
    mask_changes,
    number_rows,
)
from nsys2prv._util.stored_columns import FrameWriter, StoredFrame, read_columns
from nsys2prv.events.catalogue import map_labels
from nsys2prv.export.info import PROCESS_MASK
from nsys2prv.export.source import NULL

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
#: Fields that are kept where all operations of a group share them, else ABSENT.
_COMMON = ("reduction", "root", "peer", "group", "data_type")
#: Payload fields that the index keeps.
PAYLOAD_COLUMNS = ("communicator", "bytes", "ranks", "rank", "sequence", *_COMMON)
#: Sums that are divided among the kernels of a group.
_SUMS = ("fused", "messages", "bytes", "reduce_bytes", "share_bytes", "message_bytes")


class CallKinds(Table, frozen=True):
    """Fields that calls of one kind share."""

    #: globalTid.
    thread: np.ndarray
    #: Id of the function's name.
    name: np.ndarray
    #: Return value.
    result: np.ndarray


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
    #: Distinct threads, names and results.
    kinds: CallKinds

    @property
    def hit(self) -> np.ndarray:
        """Whether an index has found a call."""
        return self.code != 0

    def get(self, column: str) -> np.ndarray:
        """Return thread, name or result of each call."""
        return getattr(self.kinds, column)[self.code]

    def or_null(self, column: str) -> np.ndarray:
        """Return begin, end, thread, name or result of the calls, NULL where none was found."""
        is_common = column in CallKinds.__struct_fields__
        values = self.get(column) if is_common else getattr(self, column)
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
    return Launches(**read_columns(calls), kinds=CallKinds(**read_columns(kinds)))


class LaunchIndex(Struct):
    """The launching calls of one report by process and correlation id."""

    #: Indexed calls.
    segments: list[Segment] = field(default_factory=list)

    def find(self, processes: np.ndarray, correlations: np.ndarray) -> Launches:
        """Return the calls of these (globalPid, correlationId) pairs, of several the earliest. Id 0
        and NULL find nothing.
        """
        begin, end, code = np.zeros((3, len(correlations)), np.int64)
        kinds = [CallKinds(*np.zeros((3, 1), np.int64))]
        known = 1
        of_process: defaultdict[int, list[Segment]] = defaultdict(list)
        for segment in self.segments:
            of_process[segment.process].append(segment)
        for process, own in group_rows(processes):
            places = np.arange(len(correlations))[own]
            places = places[np.argsort(correlations[own], kind="stable")]
            ascending = correlations[places]
            for segment in of_process[process]:
                below = np.searchsorted(ascending, segment.low, "left")
                above = np.searchsorted(ascending, segment.high, "right")
                if below == above:
                    continue
                calls, rows = segment.read(), places[below:above]
                place = find_places(calls.ids, ascending[below:above])
                found = place >= 0
                found &= (code[rows] == 0) | (calls.begin[place] < begin[rows])
                place, into = place[found], rows[found]
                used, codes = factorize(calls.code[place])
                begin[into], end[into] = calls.begin[place], calls.end[place]
                code[into] = codes + known
                kinds.append(calls.kinds[used])
                known += len(used)
        return Launches(correlations, begin, end, code, CallKinds.concat(kinds))


def save_launches(launches: Launches, frames: FrameWriter) -> list[Segment]:
    """Store launches as a piece of the index, except calls without an id or without times. Of
    several calls with one id the earliest counts.
    """
    # NULL stays NULL.
    processes, of_kind = factorize(launches.kinds.thread & PROCESS_MASK)
    usable = (launches.begin != NULL) & (launches.end != NULL)
    usable &= (launches.ids != 0) & (launches.ids != NULL)
    if not usable.any():
        return []
    launches = launches if usable.all() else launches.take(usable)
    process = of_kind[launches.code]
    if len(processes) > 1 or not (np.diff(launches.ids) > 0).all():
        order = np.lexsort((launches.begin, launches.ids, process))
        order = order[mask_changes(process[order], launches.ids[order])]
        launches, process = launches.take(order), process[order]
    narrow = launches.code.astype(np.min_scalar_type(len(launches.kinds)))
    columns = {"ids": launches.ids, "begin": launches.begin, "end": launches.end, "code": narrow}
    stored = frames.append(columns), frames.append(asdict(launches.kinds))
    cuts = np.searchsorted(process, np.arange(len(processes) + 1)).tolist()
    return [
        Segment(number, int(launches.ids[first]), int(launches.ids[last - 1]), first, last, *stored)
        for number, (first, last) in zip(processes.tolist(), pairwise(cuts), strict=True)
        if first < last
    ]


class NcclCallIndex:
    """The NCCL calls of one report, by thread and by group. Read when first asked. Columns are
    arrays of int64, by name.
    """

    def __init__(self, stored: Sequence[StoredFrame] = ()) -> None:
        self._stored = tuple(stored)

    def __bool__(self) -> bool:
        return bool(self._stored)

    @cached_property
    def _ranges(self) -> dict[str, np.ndarray]:
        """Return all calls in order, with their group."""
        stored, none = list(map(read_columns, self._stored)), [np.zeros(0, np.int64)]
        ranges = {
            name: np.concatenate([*(columns[name] for columns in stored), *none])
            for name in ("thread", "begin", "end", "operation", *PAYLOAD_COLUMNS)
        }
        order = np.lexsort((-ranges["end"], ranges["begin"], ranges["thread"]))
        ranges = {name: column[order] for name, column in ranges.items()}
        outer, operation = _mask_outer(ranges), ranges["operation"]
        step = outer * ((operation == GROUP_START).astype(np.int64) - (operation == GROUP_END))
        before = np.zeros(len(step), np.int64)
        for own in _slice_threads(ranges["thread"]):
            level = np.cumsum(step[own])
            # A capture may begin inside a group: its end then counts for nothing.
            level -= np.minimum(np.minimum.accumulate(level), 0)
            before[own][1:] = level[:-1]
        return ranges | {"call_group": np.cumsum(outer & (before == 0)) - 1}

    @cached_property
    def operations(self) -> dict[str, np.ndarray]:
        """Return the operations that move data, each with its group and its place in it; calls
        within calls left out. shared: of how many ranks the process is, 0 unknown.
        """
        ranges = self._ranges
        operation = ranges["operation"]
        moving = _take(ranges, (operation >= 1) & (operation <= LAST_OPERATION))
        moving = _take(moving, _mask_outer(moving))
        row, begins = np.arange(len(moving["thread"])), mask_changes(moving["call_group"])
        moving["place"] = row - np.maximum.accumulate(np.where(begins, row, 0))
        # Ranks as stated by the calls that made communicators.
        is_making = (operation >= FIRST_MAKING) & (operation <= LAST_MAKING)
        is_making &= (ranges["communicator"] != 0) & (ranges["ranks"] > 0)
        making = _take(ranges, is_making)
        both = [np.append(making[name], moving[name]) for name in ("thread", "communicator")]
        _, code = number_rows(both[0] & PROCESS_MASK, both[1])
        made, code = np.split(code, [len(making["thread"])])
        groups = int(max(made.max(initial=-1), code.max(initial=-1))) + 1
        made_ranks, made_rank = np.full(groups, ABSENT), np.full(groups, np.iinfo(np.int64).max)
        np.maximum.at(made_ranks, made, making["ranks"])
        np.minimum.at(made_rank, made, making["rank"])
        (distinct, _), _ = factorize_together(made, making["rank"])
        shared = np.bincount(distinct, minlength=groups)
        made_rank = np.where(shared == 1, made_rank, ABSENT)
        ranks, rank = moving["ranks"], moving["rank"]
        moving["ranks"] = np.where(ranks > 0, ranks, made_ranks[code])
        moving["rank"] = np.where(rank >= 0, rank, made_rank[code])
        return moving | {"shared": shared[code]}

    @cached_property
    def groups(self) -> dict[str, np.ndarray]:
        """Return the groups of calls that move data, in order of thread and begin: their time, the
        fields that their operations share (or ABSENT), the numbers of fused operations and
        messages, and bytes in all.
        """
        calls, ranges = self.operations, self._ranges
        operation, size, rows = calls["operation"], calls["bytes"], len(calls["operation"])
        first = np.flatnonzero(mask_changes(calls["call_group"]))
        pairs = np.isin(operation, (SEND, RECEIVE))
        summed = {
            "fused": np.ones(rows, np.int64),
            "messages": pairs.astype(np.int64),
            "bytes": size,
            "reduce_bytes": np.where(operation == ALL_REDUCE, size, 0),
            "share_bytes": np.where(np.isin(operation, SHARE_OPERATIONS), size, 0),
            "message_bytes": np.where(pairs, size, 0),
        }

        def reduce(ufunc: np.ufunc, column: np.ndarray) -> np.ndarray:
            return ufunc.reduceat(column, first) if rows else column

        def find_common(name: str, otherwise: int) -> np.ndarray:
            column = calls[name]
            is_one = reduce(np.minimum, column) == reduce(np.maximum, column)
            return np.where(is_one, column[first], otherwise)

        groups = {name: calls[name][first] for name in ("call_group", "thread")}
        groups |= {name: reduce(np.maximum, calls[name]) for name in ("shared", "ranks")}
        groups |= {name: reduce(np.add, column) for name, column in summed.items()}
        groups["operation"] = find_common("operation", SEVERAL_OPERATIONS)
        groups |= {name: find_common(name, ABSENT) for name in ("rank", *_COMMON)}
        lowest, highest = (reduce(one, calls["communicator"]) for one in (np.minimum, np.maximum))
        several = lowest != highest
        groups["communicator"] = np.where(several, 0, lowest)
        for name in ("ranks", "rank"):
            groups[name] = np.where(several, ABSENT, groups[name])
        is_known = (reduce(np.minimum, size) >= 0) & ~several
        groups["bytes"] = np.where(is_known, groups["bytes"], ABSENT)
        groups["known"] = is_known.astype(np.int64)
        # Of the collective that comes first; the row behind all stands for none.
        collective = reduce(np.minimum, np.where(pairs, rows, np.arange(rows)))
        groups["first_operation"] = np.append(operation, 0)[collective]
        groups["sequence"] = np.append(calls["sequence"], ABSENT)[collective]
        if rows:
            begins = np.flatnonzero(mask_changes(ranges["call_group"]))
            groups["begin"] = ranges["begin"][begins][groups["call_group"]]
            groups["end"] = np.maximum.reduceat(ranges["end"], begins)[groups["call_group"]]
        # Without calls `size` is as empty as all other columns.
        return {"begin": size, "end": size} | groups

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
        groups = dict(self.groups)
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


def _take(columns: Mapping[str, np.ndarray], rows: np.ndarray) -> dict[str, np.ndarray]:
    return {name: column[rows] for name, column in columns.items()}


def _slice_threads(threads: np.ndarray) -> Iterator[slice]:
    """Yield the rows of each thread, which follow each other."""
    cuts = np.flatnonzero(mask_changes(threads)).tolist()
    return map(slice, cuts, [*cuts[1:], len(threads)])


def _mask_outer(ranges: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return a mask of the ranges, in order, that begin after all earlier ones of their thread have
    ended.
    """
    outer = np.ones(len(ranges["thread"]), bool)
    for own in _slice_threads(ranges["thread"]):
        latest = np.maximum.accumulate(ranges["end"][own])
        outer[own][1:] = ranges["begin"][own][1:] >= latest[:-1]
    return outer


def _find_last_begun(
    group_threads: np.ndarray, begins: np.ndarray, threads: np.ndarray, times: np.ndarray
) -> np.ndarray:
    """Return the last group that had begun on a thread at a time, -1 for none."""
    place = np.full(len(threads), -1)
    for thread, rows in group_rows(threads):
        first, last = (np.searchsorted(group_threads, thread, side) for side in ("left", "right"))
        if first < last:
            positions = np.searchsorted(begins[first:last], times[rows], "right") - 1
            place[rows] = np.where(positions >= 0, first + positions, -1)
    return place


def _count_devices(place: np.ndarray, devices: np.ndarray, groups: int) -> np.ndarray:
    """Return, for each group, the number of devices for whose kernels it is the last begun."""
    tied = place >= 0
    (group, _), _ = factorize_together(place[tied], devices[tied])
    return np.bincount(group, minlength=groups)
