"""The rows of nsys's advanced NCCL trace (2025.6 and later) in one report: NVTX ranges of the domain NCCL with JSON.

Ranges of API calls and of the runtime are push/pop ranges of the calling thread and are written with the other ranges
(:mod:`nvtx`), only their JSON is made here. Operations on the GPU have one range per channel, lasting as long as the
kernel does their work; they, and the proxy's operations, overlap, so they are start/end ranges, on the communicator's
progress thread. Categories are communicators; "CommInit" marks tell of their creation.

Of real reports only what NVIDIA's user guide says is known: the names of ranges and of some fields. Inferred are the
event types, the thread of GPU operations, the fields "nRanks", "peer", "root", "channelId", "rank", and the ids' values.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import nvtx
from .cluster import Communicator, Ints, Rank
from .missing import Bools, Part
from .nccl_fields import Fields, as_json, category
from .program import Domain, Kind, Op, Payload, Program
from .rows import Report, blocks
from .timeline import Block

_PROGRESS_THREAD, _INIT_THREAD = 30, 29
"""Distances of thread ids from the pid; a communicator's progress thread has its kind's number added."""

_PROXY_CHANNELS = 2
_CHANNEL_SPREAD_NS = 700.0


def communicators(report: Report) -> list[Communicator]:
    return [comm for comm in report.cluster.communicators if report.rank.rank in comm.ranks]


def progress_thread(comm: Communicator) -> int:
    """Distance of its thread id from the pid."""
    return _PROGRESS_THREAD + int(comm.group)


def definitions(report: Report) -> list[dict[str, Any]]:
    """NVTX rows: the communicators as categories, and the names of NCCL's threads."""
    rank = report.rank
    rows: list[dict[str, Any]] = []
    for comm in communicators(report):
        own = comm.ranks.index(rank.rank)
        name = f"NCCL Progress [{own}/{len(comm.ranks)}]: {comm.hash:#x}"
        thread = rank.global_tid(progress_thread(comm))
        domain = int(Domain.NCCL)
        rows.append({"eventType": nvtx.CATEGORY, "category": category(comm), "text": f"Communicator {comm.hash:#x}",
                     "globalTid": rank.global_tid(0), "domainId": domain})  # fmt: skip
        rows.append({"eventType": nvtx.THREAD, "text": name, "globalTid": thread, "domainId": 0})
    return rows


def thread_names(report: Report) -> dict[int, str]:
    """NCCL's threads as the OS knows them, by their distance from the pid."""
    return {_INIT_THREAD: "NCCL CommInit"} | {progress_thread(comm): "NCCL Progress" for comm in communicators(report)}


class TraceRows:
    """Writes what the advanced trace has beside the calling threads' ranges, for one program's runs."""

    def __init__(self, program: Program, report: Report) -> None:
        self.program, self.report = program, report
        self.fields = Fields(program, report.cluster, report.rank.rank)
        self.works = [index for index, op in enumerate(program.ops) if op.kind is Kind.COLLECTIVE]
        self.meets = [index for index, op in enumerate(program.ops) if op.kind is Kind.MEET]

    def write(self, block: Block, epochs: Ints, first_run: int) -> None:
        """Write the rows of runs that begin at ``epochs`` (true time, ns); the first is run ``first_run``."""
        rank = self.report.rank
        self._write_marks(block, epochs)
        for index in self.works:
            op = self.program.ops[index]
            begin, end = block.gpu_begin[:, rank.rank, index], block.gpu_end[:, rank.rank, index]
            lost = self.report.missing.of(Part.RANGE, np.array([index]))
            self._write_operation(op, begin, end, epochs, first_run, lost)
            if self.report.options.nccl_proxy:
                self._write_proxy(op, begin, end, epochs, first_run, lost)

    def _write_marks(self, block: Block, epochs: Ints) -> None:
        """A mark for each communicator made."""
        rank = self.report.rank
        rows = []
        for index in self.meets:
            payload = self.program.ops[index].payload
            assert payload is not None
            comm = self.report.cluster.communicator(payload.group, rank.rank)
            at = epochs[0] + np.rint(block.host_end[0, rank.rank, index]).astype(np.int64)
            said = {"commHash": comm.hash, "commRank": comm.ranks.index(rank.rank), "nRanks": len(comm.ranks)}
            row: dict[str, Any] = {"start": int(rank.local(at)), "eventType": nvtx.MARK, "text": "CommInit"}
            row |= {"globalTid": rank.global_tid(_INIT_THREAD), "domainId": int(Domain.NCCL), "category": category(comm)}
            if self.report.includes_json:
                row["jsonText"] = as_json(said)
            rows.append(row)
        nvtx.write_points(self.report, rows, "NCCL/CommInit")

    def _write_operation(self, op: Op, begin: Any, end: Any, epochs: Ints, first_run: int, lost: Bools | None) -> None:
        """A range per call and channel. Several collectives share the channels one after the other; a send and a
        receive take half of the channels each.
        """
        calls = [self.program.nccl_calls[number] for number in op.calls]
        channels = list(range(blocks(op, self.report.options)))
        rng = np.random.default_rng([self.report.options.seed, 13, self.report.rank.rank, first_run, op.calls[0]])
        if calls[0].function in ("Send", "Recv"):
            half = len(channels) // 2
            parts = [(0.0, 1.0, channels[:half] or channels), (0.0, 1.0, channels[half:])]
        else:
            edges = np.cumsum([0.0, *(call.bytes for call in calls)]) / sum(call.bytes for call in calls)
            parts = [(low, high, channels) for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)]
        for number, call, (low, high, where) in zip(op.calls, calls, parts, strict=True):
            late = rng.random((len(begin), len(where), 2)) * _CHANNEL_SPREAD_NS
            late[:, 0] = 0.0  # one channel is there from first to last
            starts = (begin + low * (end - begin))[:, None] + late[..., 0]
            stops = (begin + high * (end - begin))[:, None] - late[..., 1]
            said = [
                [as_json(self.fields.of_call(number, first_run + run) | {"channelId": channel}) for channel in where]
                for run in range(len(begin))
            ]
            self._insert(f"{call.function}", "GPU", call, starts, stops, epochs, said, lost)

    def _write_proxy(self, op: Op, begin: Any, end: Any, epochs: Ints, first_run: int, lost: Bools | None) -> None:
        """What the proxy sends to and receives from ranks on other hosts, along the communicator's ring."""
        rank, cluster = self.report.rank, self.report.cluster
        for number in op.calls:
            call = self.program.nccl_calls[number]
            comm = self.fields.numbers.comms[number]
            own = comm.ranks.index(rank.rank)
            for text, step in (("ProxyOpSend", 1), ("ProxyOpRecv", -1)):
                if call.function in ("Send", "Recv") and text[-4:] != call.function:
                    continue
                peer = (own + step) % len(comm.ranks)
                if not call.passes_on(own if step == 1 else peer, len(comm.ranks)):
                    continue
                if cluster.ranks[comm.ranks[peer]].host_index == rank.host_index:
                    continue
                channels = range(_PROXY_CHANNELS)
                starts = begin[:, None] + 1_500.0 + 400.0 * np.arange(_PROXY_CHANNELS)
                stops = np.maximum(starts + 100.0, end[:, None] - 900.0 + 0.0 * starts)
                said = [
                    [as_json(self.fields.of_call(number, first_run + run) | {"peer": peer, "channelId": channel}) for channel in channels]
                    for run in range(len(begin))
                ]
                self._insert(text, "proxy", call, starts, stops, epochs, said, lost)

    def _insert(
        self, text: str, kind: str, call: Payload, starts: Any, stops: Any, epochs: Ints, said: list[list[str]], lost: Bools | None
    ) -> None:
        report, rank = self.report, self.report.rank
        comm = report.cluster.communicator(call.group, rank.rank)
        begin, end = (_local(rank, epochs, times) for times in (starts, stops))
        thread = rank.global_tid(progress_thread(comm))
        columns: dict[str, Any] = {
            "eventType": nvtx.START_END,
            "rangeId": report.range_id + np.arange(begin.size).reshape(begin.shape),
            "category": category(comm),
            "globalTid": thread,
            "endGlobalTid": thread,
            "textId": report.export.string(text),
            "domainId": int(Domain.NCCL),
        }
        report.range_id += begin.size
        if report.includes_json:
            texts = np.empty(begin.shape, dtype=object)
            texts[:] = said
            columns["jsonText"] = texts
        report.insert("NVTX_EVENTS", [nvtx.label(Domain.NCCL, f"{kind} {text}")] * begin.shape[1], columns, begin, end, lost=lost)


def _local(rank: Rank, epochs: Ints, times: Any) -> Ints:
    return rank.local(epochs[:, None] + np.rint(times).astype(np.int64))
