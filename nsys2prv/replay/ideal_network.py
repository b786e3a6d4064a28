"""Replay a job on an ideal network, on which transfers between ranks take no time. The loss by
communication that is left is ranks waiting for each other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from nsys2prv.replay.events import MPI_NAMES
from nsys2prv.replay.graph import TRANSFERS, Kind, Times
from nsys2prv.replay.job_graph import JobGraph
from nsys2prv.replay.meetings import MEETING_CALL
from nsys2prv.replay.whatif import Replay

#: No figures are given where more of the critical path is not explained, or fewer of the kernels of
#: NCCL, or less of the time in MPI, are known to meet others.
MOST_UNEXPLAINED, LEAST_MET, LEAST_MPI = 0.05, 0.95, 0.9
#: Calls that set things up, where little of the time is for data; and calls that only begin a transfer.
_SETS_UP = re.compile(r"MPI_(Init|Finalize|Comm_|Win_|File_)")
_BEGINS = re.compile(r"MPI_(I(?!nit)|Start)")


class IdealNetwork(Struct, frozen=True):
    """A span of the job on an ideal network."""

    #: How long the span lasts then, as a share of how long it lasted.
    share: float
    #: Row of the trace -> share of the span that its thread would be in MPI.
    mpi: Mapping[int, float]
    #: Edges of kernels, those of NCCL among them, and the times of all moments then.
    kernels: np.ndarray
    times: Times
    #: The graph.
    graph: JobGraph

    @property
    def rows(self) -> np.ndarray:
        """Row of the trace of each kernel, -1 of meetings."""
        return self.graph.rows[self.graph.graph.edges.target[self.kernels]]

    def take(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return begin and end (ns) of some of the kernels, and whether they compute."""
        edges, rows = self.graph.graph.edges, self.kernels[chosen]
        computes = edges.kind[rows] == Kind.KERNEL
        return self.times[edges.source[rows]], self.times[edges.target[rows]], computes


def replay_without_transfers(
    graph: JobGraph, begin: int, end: int, kinds: tuple[Kind, ...] = TRANSFERS
) -> IdealNetwork | str:
    """Replay a span (ns of the trace) with transfers of these kinds taking no time; return the
    result, or why there is none.
    """
    replay, edges = Replay(graph, begin, end), graph.graph.edges
    setting_up, beginning = (
        [name for name, label in graph.calls.items() if names.match(label)]
        for names in (_SETS_UP, _BEGINS)
    )
    has_mpi = max(graph.calls, default=0) >= MPI_NAMES
    on_device = (Kind.KERNEL, Kind.NCCL, Kind.MEET)
    rows = graph.graph.select((*kinds, *on_device, *([Kind.CALL] if has_mpi else [])), begin, end)
    transfers = np.concatenate([rows[kind] for kind in kinds])
    is_set_up = np.isin(edges.size[transfers] // 1000, setting_up)
    transfers = transfers[~is_set_up | (edges.kind[transfers] != Kind.MPI)]
    if not len(transfers):
        return "no communication of ranks with each other was matched"
    if Kind.NCCL in kinds and graph.met < LEAST_MET * graph.kernels:
        return f"only {graph.met:,} of {graph.kernels:,} kernels of NCCL could be matched with those of other ranks"
    unexplained = replay.measure_unexplained(replay.path)
    if unexplained > MOST_UNEXPLAINED:
        return (
            f"nothing in the reports explains what {unexplained:.0%} of the critical path waits for"
        )
    # What a call of MPI does by itself is part of the transfer.
    in_mpi = rows.get(Kind.CALL, transfers[:0])
    in_mpi = in_mpi[edges.key[in_mpi] >= MPI_NAMES]
    calls = in_mpi[~np.isin(edges.key[in_mpi], setting_up)]
    known = (edges.typical[calls] <= MEETING_CALL) | np.isin(edges.key[calls], beginning)
    lasts = graph.graph.time[edges.target[calls]] - graph.graph.time[edges.source[calls]]
    if lasts[known].sum() < LEAST_MPI * lasts.sum():
        return f"of {1 - lasts[known].sum() / lasts.sum():.0%} of the time in MPI it is not known for whom ranks waited"
    gone = np.concatenate([transfers, calls[known]])
    source, target = edges.source[in_mpi], edges.target[in_mpi]
    weight = replay.apply([(gone, 0.0)])
    times, last = graph.graph.run(weight, replay.counts)
    lasts = times[target] - np.maximum(times[source], begin)
    kernels = np.concatenate([rows[kind] for kind in on_device])
    ideal = max(last, begin) - begin
    of_row = np.bincount(graph.rows[target], lasts)
    shares = {int(row): of_row[row] / max(ideal, 1) for row in np.flatnonzero(of_row)}
    return IdealNetwork(ideal / max(replay.span, 1), shares, kernels, times, graph)
