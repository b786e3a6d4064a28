"""What crosses the network between hosts: NCCL's rings and MPI's messages, as flows over time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..cluster import Cluster, Ints
from ..mpi.timing import BANDWIDTH
from ..options import Options
from ..program import Kind, Program
from ..recorder import bus_bytes
from ..timeline import Block
from .devices import nic_of_gpu

Place = tuple[int, int]
"""Host and number of an interface."""


@dataclass(frozen=True)
class Flow:
    """Data that go from one interface to another: ``size`` bytes, evenly from ``begin`` to ``end`` (true ns), which
    have an entry for every run.
    """

    source: Place
    target: Place
    begin: Ints
    end: Ints
    size: float


def flows(program: Program, block: Block, epochs: Ints, cluster: Cluster, options: Options) -> list[Flow]:
    """All flows between hosts in runs of a program that begin at ``epochs``."""
    found = _rings(program, block, epochs, cluster, options) + _messages(program, block, epochs, cluster, options)
    return [flow for flow in found if flow.source[0] != flow.target[0]]


def _place(cluster: Cluster, options: Options, rank: int) -> Place:
    return cluster.ranks[rank].host_index, nic_of_gpu(options, cluster.ranks[rank].gpu)


def _rings(program: Program, block: Block, epochs: Ints, cluster: Cluster, options: Options) -> list[Flow]:
    """Every rank of a collective that passes anything on sends its bus bytes to the next, once all have begun."""
    found = []
    for index, op in enumerate(program.ops):
        if op.kind is not Kind.COLLECTIVE:
            continue
        assert op.payload is not None
        calls = [program.nccl_calls[number] for number in op.calls]
        for comm in cluster.communicators:
            if comm.group is not op.payload.group:
                continue
            ranks, size = list(comm.ranks), len(comm.ranks)
            ring = op.payload.function == "SendRecv"
            volume = sum(bus_bytes(call, size) for call in (calls[:1] if ring else calls))
            ready = block.gpu_begin[:, ranks, index].max(axis=1)
            for own, rank in enumerate(ranks):
                if not op.payload.passes_on(own, size):
                    continue
                following = ranks[(own + 1) % size]
                begin, end = (epochs + np.rint(edge).astype(np.int64) for edge in (ready, block.gpu_end[:, rank, index]))
                places = [_place(cluster, options, member) for member in (rank, following)]
                found.append(Flow(places[0], places[1], begin, np.maximum(end, begin + 1), volume))
    return found


def _messages(program: Program, block: Block, epochs: Ints, cluster: Cluster, options: Options) -> list[Flow]:
    found = []
    for number, message in enumerate(program.messages):
        for sender, receiver in enumerate(message.to):
            if receiver < 0 or message.receive < 0:
                continue
            end = epochs + np.rint(block.arrival[:, receiver, number]).astype(np.int64)
            begin = end - max(1, round(message.size / BANDWIDTH[1]))
            places = [_place(cluster, options, member) for member in (sender, receiver)]
            found.append(Flow(places[0], places[1], begin, end, float(message.size)))
    return found
