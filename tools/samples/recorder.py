"""The truth about NCCL collectives: when each really began and ended, what it cost whom, and how fast it was."""

from __future__ import annotations

from typing import Any

import numpy as np

from .cluster import Cluster, Communicator, Ints
from .job import collectives
from .nccl_fields import Numbers
from .options import Options
from .program import Op, Payload, Program
from .timeline import Block

ABOUT_BANDWIDTH = (
    "Of each collective and rank, in ns: 'late' = begin after the first rank's; 'wait' = from begin until the last has "
    "begun ('last'; of a SendRecv: the last of the rank and its two neighbours); 'transfer' = from then to its end. "
    "'bus_bytes' is what crosses the bus per rank by nccl-tests' factors (n ranks; AllReduce 2(n-1)/n of its bytes; "
    "AllGather and ReduceScatter n-1 times a rank's share; SendRecv, Broadcast and Reduce 1; a Group the sum of its "
    "members); 'bus_gb_per_s' = bus_bytes / transfer. 'pairs' of a SendRecv: 'ready' when both have begun, 'end' that of "
    "the receiver's kernel. 'root' is a rank in the communicator, that is an index into 'ranks'."
)


def bus_bytes(payload: Payload, size: int) -> float:
    """Bytes per rank that cross the bus in a call among ``size`` ranks."""
    factor = {"AllReduce": 2 * (size - 1) / size, "AllGather": size - 1, "ReduceScatter": size - 1}
    return payload.bytes * factor.get(payload.function, 1)


class Recorder:
    """Keeps true begin and end of the collectives of every n-th step, so that they stay below a limit."""

    def __init__(self, program: Program, cluster: Cluster, options: Options) -> None:
        self.calls: list[tuple[int, Communicator, dict[str, Any]]] = []  # operation; what is the same in every step
        self.program, self.cluster, self.options = program, cluster, options
        self.per_step: dict[int, int] = {}  # calls on each communicator
        self.numbers: dict[int, Numbers] = {}  # of ranks
        for index in collectives(program):
            op = program.ops[index]
            assert op.payload is not None
            for comm in cluster.communicators:
                if comm.group is not op.payload.group:
                    continue
                ordinal = self.per_step.get(comm.hash, 0)
                self.per_step[comm.hash] = ordinal + (len(op.calls) if op.payload.function == "Group" else 1)
                streams = [cluster.ranks[rank].stream(op.stream) for rank in comm.ranks]
                call = {"function": op.payload.function, "communicator": comm.hash, "ordinal": ordinal}
                self.calls.append((index, comm, {**call, "bytes": op.bytes, "ranks": list(comm.ranks), "streams": streams}))
        self.total = len(self.calls) * options.steps
        self.every = max(1, -(-self.total // max(1, options.truth_collectives)))
        self.found: list[dict[str, Any]] = []

    def record(self, block: Block, epochs: Ints, first: int) -> None:
        for run in range(len(epochs)):
            step = first + run
            if step % self.every:
                continue
            for index, comm, call in self.calls:
                begin, end = (
                    (epochs[run] + np.rint(times[run, call["ranks"], index]).astype(np.int64)).tolist()
                    for times in (block.gpu_begin, block.gpu_end)
                )
                ordinal = step * self.per_step[call["communicator"]] + call["ordinal"]
                entry = {"step": step, **call, "ordinal": ordinal, "begin": begin, "end": end}
                self.found.append({**entry, **self._more(self.program.ops[index], comm, step, begin, end)})

    def _numbers(self, rank: int) -> Numbers:
        if rank not in self.numbers:
            self.numbers[rank] = Numbers(self.program, self.cluster, rank)
        return self.numbers[rank]

    def _more(self, op: Op, comm: Communicator, step: int, begin: list[int], end: list[int]) -> dict[str, Any]:
        """What is told of a collective only if asked for."""
        assert op.payload is not None
        calls = [self.program.nccl_calls[number] for number in op.calls]
        more: dict[str, Any] = {}
        if op.payload.root >= 0:
            more["root"] = op.payload.root % len(comm.ranks)
        if op.payload.function == "Group":
            more["members"] = [{"function": call.function, "bytes": call.bytes} for call in calls]
        if self.options.nccl_trace == "advanced" and op.payload.function != "SendRecv":
            numbers = self._numbers(comm.ranks[0])
            more["api_ids"] = [numbers.api_id(number, step) for number in op.calls]
            more["sequence_numbers"] = [numbers.sequence(number, step) for number in op.calls]
        if self.options.bandwidth_truth:
            more |= _costs(op.payload, calls, begin, end)
        return more


def _costs(whole: Payload, calls: list[Payload], begin: list[int], end: list[int]) -> dict[str, Any]:
    """Wait, lateness, transfer and bandwidth of one collective, rank by rank in the communicator's order."""
    size = len(begin)
    ring = whole.function == "SendRecv"
    around = [[(rank + step) % size for step in (-1, 0, 1)] if ring else list(range(size)) for rank in range(size)]
    last = [max(begin[other] for other in others) for others in around]
    transfer = [done - ready for done, ready in zip(end, last, strict=True)]
    volume = float(whole.bytes) if ring else sum(bus_bytes(call, size) for call in calls)
    costs: dict[str, Any] = {
        "late": [own - min(begin) for own in begin],
        "wait": [ready - own for ready, own in zip(last, begin, strict=True)],
        "transfer": transfer,
        "bus_bytes": volume,
        "bus_gb_per_s": [round(volume / ns, 6) for ns in transfer],
    }
    if ring:
        costs["pairs"] = []
        for sender in range(size):
            receiver = (sender + whole.peer) % size
            ready = max(begin[sender], begin[receiver])
            rate = round(whole.bytes / (end[receiver] - ready), 6)
            costs["pairs"].append(
                {"from": sender, "to": receiver, "bytes": whole.bytes, "ready": ready, "end": end[receiver], "gb_per_s": rate}
            )
    return costs
