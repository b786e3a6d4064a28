"""What the advanced NCCL trace says of ranges, and the numbers by which it ties them together.

NCCL counts the calls of each function on a communicator ("seqNumber"). nsys gives every call an "apiId" - the same on
all ranks for a collective, one of the rank's own for a send or receive - and every group an "apiGroupId" of its thread.
How nsys makes these ids is not documented; here they follow from the communicator, or the rank, and a count.
"""

from __future__ import annotations

import json
from typing import Any

from .cluster import Cluster, Communicator
from .program import Program, Stage, Trace

_PAIRWISE = ("Send", "Recv")
_ELEMENTS = {False: (2, "ncclBfloat16"), True: (4, "ncclFloat32")}


def category(comm: Communicator) -> int:
    """The NVTX category of a communicator's ranges."""
    return int(comm.group) + 1


def as_json(said: dict[str, Any]) -> str:
    return json.dumps(said, separators=(",", ":"))


class Numbers:
    """The numbers of a program's NCCL calls on one rank, run after run."""

    def __init__(self, program: Program, cluster: Cluster, rank: int) -> None:
        self.program, self.rank = program, rank
        calls = program.nccl_calls
        self.comms = [cluster.communicator(call.group, rank) for call in calls]
        self.functions = [call.function for call in calls]
        per_function = [(comm.hash, function) for comm, function in zip(self.comms, self.functions, strict=True)]
        self._sequence = [per_function[:number].count(key) for number, key in enumerate(per_function)]
        self._per_run = [per_function.count(key) for key in per_function]
        collective = [-1 if function in _PAIRWISE else comm.hash for comm, function in zip(self.comms, self.functions, strict=True)]
        self._ordinal = [collective[:number].count(key) for number, key in enumerate(collective)]
        self._ordinals = [collective.count(key) for key in collective]

    def sequence(self, call: int, run: int) -> int:
        """How many calls of this function the communicator has had before."""
        return run * self._per_run[call] + self._sequence[call]

    def api_id(self, call: int, run: int) -> int:
        count = run * self._ordinals[call] + self._ordinal[call]
        if self.functions[call] in _PAIRWISE:
            return (self.rank + 1) << 48 | count
        return self.comms[call].hash >> 20 << 20 & (1 << 62) - 1 | count

    def group_id(self, group: int, run: int) -> int:
        return 1 + run * self.program.nccl_groups + group


class Fields:
    """The JSON of ranges, by run."""

    def __init__(self, program: Program, cluster: Cluster, rank: int) -> None:
        self.program, self.rank = program, rank
        self.numbers = Numbers(program, cluster, rank)

    def of_call(self, number: int, run: int) -> dict[str, Any]:
        """What is said of one call wherever it appears."""
        call = self.program.nccl_calls[number]
        comm = self.numbers.comms[number]
        size, kind = _ELEMENTS[call.four_byte]
        own = comm.ranks.index(self.rank)
        said: dict[str, Any] = {"commHash": comm.hash, "commRank": own, "nRanks": len(comm.ranks)}
        said |= {"count": call.bytes // size, "dataType": kind, "apiId": self.numbers.api_id(number, run)}
        if call.function in _PAIRWISE:
            return said | {"peer": (own + call.peer) % len(comm.ranks)}
        if call.root >= 0:
            said["root"] = call.root % len(comm.ranks)
        return said | {"seqNumber": self.numbers.sequence(number, run)}

    def of_range(self, trace: Trace, run: int) -> str:
        group = {"apiGroupId": self.numbers.group_id(trace.group, run)}
        if trace.stage is Stage.API:
            said = self.of_call(trace.calls[0], run)
            return as_json(said | group | {"rank": said["commRank"]})
        comm = self.numbers.comms[trace.calls[0]]
        own = {"commHash": comm.hash, "commRank": comm.ranks.index(self.rank)}
        if trace.stage is Stage.GROUP:
            return as_json(group)
        return as_json(own | group | {"group": group["apiGroupId"]})
