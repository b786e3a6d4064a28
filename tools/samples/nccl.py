"""NCCL: the truth about collectives, and rows of nsys's advanced trace: work on the GPU, the
proxy's operations, communicators.

Operations on the GPU have one range per channel, lasting as long as the kernel does their work;
they, and the proxy's operations, overlap, so they are start/end ranges, on the communicator's
progress thread. Categories are communicators; "CommInit" marks tell of their creation.

Of real reports only what NVIDIA's user guide says is known: the names of ranges and of some fields.
Inferred are the event types, the thread of GPU operations, the fields "nRanks", "peer", "root",
"channelId", "rank", and the ids' values.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from . import nvtx
from .cluster import Cluster, Communicator, Ints
from .cuda import count_blocks
from .data import as_json
from .nvtx import PAIRWISE, CallNumbers, find_category, make_row
from .options import Options
from .program import Domain, Kind, Op, Payload, Program
from .report import Bools, Report, Truth
from .timeline import Block, Floats

#: Distances from the pid; a communicator's progress thread has its kind's number added.
PROGRESS_THREAD, INIT_THREAD = (30, 29)
PROXY_CHANNELS = 2
CHANNEL_SPREAD_NS = 700.0


def list_communicators(report: Report) -> list[tuple[Communicator, int]]:
    """List those of the rank, each with its progress thread (distance from the pid)."""
    own = [comm for comm in report.cluster.communicators if report.rank.rank in comm.ranks]
    return [(comm, PROGRESS_THREAD + int(comm.group)) for comm in own]


def list_definitions(report: Report) -> list[dict[str, Any]]:
    """List NVTX rows: the communicators as categories, and the names of NCCL's threads."""
    rank, rows = report.rank.rank, []
    for comm, thread in list_communicators(report):
        text, number = f"Communicator {comm.hash:#x}", find_category(comm)
        name = f"NCCL Progress [{comm.ranks.index(rank)}/{len(comm.ranks)}]: {comm.hash:#x}"
        rows.append(make_row(report, nvtx.CATEGORY, 0, Domain.NCCL, category=number, text=text))
        rows.append(make_row(report, nvtx.THREAD, thread, text=name))
    return rows


def name_threads(report: Report) -> dict[int, str]:
    """Name NCCL's threads as the OS knows them, by their distance from the pid."""
    named = {thread: "NCCL Progress" for _, thread in list_communicators(report)}
    return {INIT_THREAD: "NCCL CommInit"} | named


class TraceRows:
    """Writes what the advanced trace has beside the calling threads' ranges, of one program."""

    def __init__(self, program: Program, report: Report) -> None:
        self.program, self.report = program, report
        self.numbers = CallNumbers(program, report.cluster, report.rank.rank)

    def write(self, block: Block, epochs: Ints, first_run: int) -> None:
        """Write the rows of runs that begin at ``epochs``; the first is run ``first_run``."""
        self._write_marks(block, epochs)
        for index in self.program.all_of(Kind.COLLECTIVE):
            begin, end = (
                times[:, self.report.rank.rank, index] for times in (block.gpu_begin, block.gpu_end)
            )
            lost = self.report.lost_rows("range", np.array([index]))
            insert = partial(self._insert, epochs, first_run, lost)
            self._write_operation(self.program.ops[index], begin, end, first_run, insert)
            if self.report.options.nccl_proxy:
                self._write_proxy(self.program.ops[index], begin, end, insert)

    def _write_marks(self, block: Block, epochs: Ints) -> None:
        """Write a mark for each communicator made."""
        report, rank, rows = self.report, self.report.rank, []
        for index in self.program.all_of(Kind.MEET):
            comm = report.cluster.communicator(self.program.ops[index].payload.group, rank.rank)
            at = report.local(epochs[:1], block.host_end[:1, rank.rank, index])
            mark = make_row(report, nvtx.MARK, INIT_THREAD, Domain.NCCL, text="CommInit")
            mark |= {"start": int(at[0]), "category": find_category(comm)}
            if report.includes_json:
                fields = {"commHash": comm.hash, "commRank": comm.ranks.index(rank.rank)}
                mark["jsonText"] = as_json({**fields, "nRanks": len(comm.ranks)})
            rows.append(mark)
        nvtx.write_points(report, rows, "NCCL/CommInit")

    def _write_operation(
        self, op: Op, begin: Floats, end: Floats, first_run: int, insert: Callable[..., None]
    ) -> None:
        """Write a range per call and channel. Several collectives share the channels one after the
        other; a send and a receive take half of the channels each.
        """
        calls = [self.program.nccl_calls[number] for number in op.calls]
        channels = range(count_blocks(op, self.report.options))
        seed = self.report.options.seed, 13, self.report.rank.rank, first_run, op.calls[0]
        rng = np.random.default_rng(seed)
        if calls[0].function in PAIRWISE:
            half = len(channels) // 2
            parts = [(0.0, 1.0, channels[:half] or channels), (0.0, 1.0, channels[half:])]
        else:
            sizes = np.cumsum([0.0, *(call.bytes for call in calls)])
            edges = (sizes / sizes[-1]).tolist()
            parts = [(low, high, channels) for low, high in pairwise(edges)]
        for number, (low, high, where) in zip(op.calls, parts, strict=True):
            late = rng.random((len(begin), len(where), 2)) * CHANNEL_SPREAD_NS
            late[:, 0] = 0.0  # one channel is there from first to last
            starts = (begin + low * (end - begin))[:, None] + late[..., 0]
            stops = (begin + high * (end - begin))[:, None] - late[..., 1]
            function = self.program.nccl_calls[number].function
            insert("GPU", function, number, where, starts, stops)

    def _write_proxy(self, op: Op, begin: Floats, end: Floats, insert: Callable[..., None]) -> None:
        """Write what the proxy sends to and receives from ranks on other hosts, along the ring."""
        rank, ranks = self.report.rank, self.report.cluster.ranks
        for number in op.calls:
            call, comm = self.program.nccl_calls[number], self.numbers.comms[number]
            own, size = comm.ranks.index(rank.rank), len(comm.ranks)
            for function, step in (("Send", 1), ("Recv", -1)):
                peer = (own + step) % size
                if (
                    (call.function in PAIRWISE and function != call.function)
                    or not call.passes_on(own if step == 1 else peer, size)
                    or ranks[comm.ranks[peer]].host_index == rank.host_index
                ):
                    continue
                starts = begin[:, None] + 1_500.0 + 400.0 * np.arange(PROXY_CHANNELS)
                stops = np.maximum(starts + 100.0, end[:, None] - 900.0 + 0.0 * starts)
                where = number, range(PROXY_CHANNELS)
                insert("proxy", f"ProxyOp{function}", *where, starts, stops, peer=peer)

    def _insert(
        self,
        epochs: Ints,
        first_run: int,
        lost: Bools | None,
        kind: str,
        text: str,
        number: int,
        channels: range,
        starts: Floats,
        stops: Floats,
        **more: int,
    ) -> None:
        """Write ranges of a call on channels, with the axes (run, channel)."""
        report, comm = self.report, self.numbers.comms[number]
        begin, end = report.local(epochs, starts), report.local(epochs, stops)
        thread = report.rank.global_tid(PROGRESS_THREAD + int(comm.group))
        columns: dict[str, Any] = {"eventType": nvtx.START_END, "domainId": int(Domain.NCCL)}
        columns["rangeId"] = report.range_id + np.arange(begin.size).reshape(begin.shape)
        columns |= {"globalTid": thread, "endGlobalTid": thread, "category": find_category(comm)}
        columns["textId"] = report.export.string(text)
        report.range_id += begin.size
        if report.includes_json:
            columns["jsonText"] = np.empty(begin.shape, dtype=object)
            for run in range(len(begin)):
                fields = self.numbers.call_fields(number, first_run + run) | more
                texts = [as_json(fields | {"channelId": channel}) for channel in channels]
                columns["jsonText"][run] = texts
        labels = [nvtx.make_label(Domain.NCCL, f"{kind} {text}")] * begin.shape[1]
        report.insert("NVTX_EVENTS", labels, columns, begin, end, lost=lost)


def count_bus_bytes(payload: Payload, size: int) -> float:
    """Return the bytes per rank that cross the bus in a call among ``size`` ranks."""
    factor = {"AllReduce": 2 * (size - 1) / size, "AllGather": size - 1, "ReduceScatter": size - 1}
    return payload.bytes * factor.get(payload.function, 1)


class CollectiveTruth:
    """Keeps true begin and end of the collectives of every n-th step, up to a limit."""

    def __init__(self, program: Program, cluster: Cluster, options: Options) -> None:
        self.program, self.cluster, self.options = program, cluster, options
        # Operation; what is the same in every step.
        self.calls: list[tuple[int, Communicator, dict[str, Any]]] = []
        self.per_step: dict[int, int] = {}  # calls on each communicator
        self.numbers: dict[int, CallNumbers] = {}  # by rank
        for index in program.all_of(Kind.COLLECTIVE):
            op = program.ops[index]
            for comm in cluster.all_of(op.payload.group):
                ordinal = self.per_step.get(comm.hash, 0)
                calls = len(op.calls) if op.payload.function == "Group" else 1
                self.per_step[comm.hash] = ordinal + calls
                call = {"function": op.payload.function, "communicator": comm.hash}
                call |= {"ordinal": ordinal, "bytes": op.bytes, "ranks": list(comm.ranks)}
                ranks = (cluster.ranks[rank] for rank in comm.ranks)
                call["streams"] = [rank.stream(op.stream) for rank in ranks]
                self.calls.append((index, comm, call))
        self.total = len(self.calls) * options.steps
        self.every = max(1, -(-self.total // max(1, options.truth_collectives)))
        self.found: list[dict[str, Any]] = []

    def record(self, block: Block, epochs: Ints, first: int) -> None:
        """Record runs that begin at ``epochs``; the first is step ``first``."""
        for run, epoch in enumerate(epochs.tolist()):
            for index, comm, call in self.calls if (first + run) % self.every == 0 else ():
                begin, end = (
                    (epoch + np.rint(times[run, call["ranks"], index]).astype(np.int64)).tolist()
                    for times in (block.gpu_begin, block.gpu_end)
                )
                ordinal = (first + run) * self.per_step[comm.hash] + call["ordinal"]
                told = {"step": first + run, **call, "ordinal": ordinal, "begin": begin, "end": end}
                more = self._more(self.program.ops[index], comm, first + run, begin, end)
                self.found.append(told | more)

    def _more(
        self, op: Op, comm: Communicator, step: int, begin: list[int], end: list[int]
    ) -> Truth:
        """Tell of a collective what is told only if asked for."""
        calls = [self.program.nccl_calls[number] for number in op.calls]
        more: Truth = {"root": op.payload.root % len(comm.ranks)} if op.payload.root >= 0 else {}
        if op.payload.function == "Group":
            more["members"] = [{"function": call.function, "bytes": call.bytes} for call in calls]
        if self.options.advanced and op.payload.function != "SendRecv":
            if comm.ranks[0] not in self.numbers:
                self.numbers[comm.ranks[0]] = CallNumbers(self.program, self.cluster, comm.ranks[0])
            numbers = self.numbers[comm.ranks[0]]
            more["api_ids"] = [numbers.api_id(number, step) for number in op.calls]
            more["sequence_numbers"] = [numbers.sequence(number, step) for number in op.calls]
        if self.options.bandwidth_truth:
            more |= _sum_costs(op.payload, calls, begin, end)
        return more


def _sum_costs(whole: Payload, calls: list[Payload], begin: list[int], end: list[int]) -> Truth:
    """Sum up wait, lateness, transfer and bandwidth of a collective, in the order of its ranks."""
    size, ring = len(begin), whole.function == "SendRecv"
    last = [
        max(begin[(rank + step) % size] for step in (-1, 0, 1)) if ring else max(begin)
        for rank in range(size)
    ]
    transfer = [done - ready for done, ready in zip(end, last, strict=True)]
    volume = float(whole.bytes) if ring else sum(count_bus_bytes(call, size) for call in calls)
    costs: Truth = {"late": [own - min(begin) for own in begin]}
    costs["wait"] = [ready - own for ready, own in zip(last, begin, strict=True)]
    costs |= {"transfer": transfer, "bus_bytes": volume}
    costs["bus_gb_per_s"] = [round(volume / ns, 6) for ns in transfer]
    if ring:
        costs["pairs"] = []
        for sender in range(size):
            receiver = (sender + whole.peer) % size
            ready = max(begin[sender], begin[receiver])
            pair = {"from": sender, "to": receiver, "bytes": whole.bytes, "ready": ready}
            rate = round(whole.bytes / (end[receiver] - ready), 6)
            costs["pairs"].append({**pair, "end": end[receiver], "gb_per_s": rate})
    return costs
