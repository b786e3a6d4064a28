"""Find the critical path: the chain of work and waiting over all ranks that explains how long a
span of the job took, as consecutive pieces without gaps.

Also replay the span on an ideal network with instantaneous transfers between ranks. The
communication loss that remains is serialization.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import numpy as np
import polars as pl
from msgspec import Struct
from numpy.typing import ArrayLike

from nsys2prv._util.columns import take_rows
from nsys2prv.replay.events import CALL_NAMES, MPI_NAMES, SYNCHRONISES
from nsys2prv.replay.graph import TRANSFERS, Column, Kind, Times, split_rows
from nsys2prv.replay.job_graph import JobGraph
from nsys2prv.replay.meetings import MEETING_CALL
from nsys2prv.replay.thresholds import LEAST_MET, LEAST_MPI, MOST_UNEXPLAINED, SLACK
from nsys2prv.replay.whatif import Replay
from nsys2prv.table.runs import Columns


class Cause:
    """Reasons why a piece of time is on the critical path: the values of the value set
    `critical_path`.
    """

    COMPUTATION, NCCL, MEMORY, GRAPH, LATENCY, QUEUED = range(1, 7)
    CALL, RETURN, MPI, HOST, WAIT, OUTSIDE = range(7, 13)
    HANDOFF, FULL_QUEUE, UNEXPLAINED = range(13, 16)


_CAUSES = {
    Kind.KERNEL: Cause.COMPUTATION,
    Kind.COPY: Cause.MEMORY,
    Kind.GAP: Cause.HOST,
    Kind.CALL: Cause.CALL,
    Kind.NCCL: Cause.NCCL,
    Kind.MPI: Cause.MPI,
    Kind.LAUNCH: Cause.LATENCY,
    Kind.RETURN: Cause.RETURN,
    Kind.STREAM: Cause.QUEUED,
    Kind.EVENT: Cause.QUEUED,
    Kind.MEET: Cause.OUTSIDE,
    Kind.HANDOFF: Cause.HANDOFF,
    Kind.QUEUE: Cause.FULL_QUEUE,
    Kind.OTHER: Cause.QUEUED,
    Kind.OUTSIDE: Cause.OUTSIDE,
}


class PathPieces(Struct, frozen=True):
    """Pieces of the critical path, the last piece first, as columns of equal length."""

    #: ns of the trace.
    begin: np.ndarray
    end: np.ndarray
    #: Row of the trace (int64).
    row: np.ndarray
    #: Activity that took the time, of `Cause`.
    cause: np.ndarray
    #: Edge of the path, -1 before the first and after the last.
    edge: np.ndarray


def find_pieces(replay: Replay) -> PathPieces:
    """Divide the critical path of a replay's span into pieces, each on one row of the trace and
    with one cause.
    """
    path = replay.path
    if not len(path):
        return PathPieces(*np.zeros((5, 0), np.int64))
    graph, edges = replay.graph, replay.edges
    # Clocks may be apart a bit: what is waited for is over when what waits begins.
    ends = np.minimum.accumulate(graph.time[edges.target[path]])
    begins = np.append(ends[1:], min(ends[-1], int(graph.time[edges.source[path[-1]]])))
    # From the begin of a call to an operation that it launches: first the call.
    returned = replay.find_returns(path, begins, ends)
    waiting = [
        name for name, label in replay.job.calls.items() if CALL_NAMES[SYNCHRONISES].search(label)
    ]
    causes = np.array([_CAUSES[kind] for kind in Kind])
    found: list[list[np.ndarray]] = []
    outer: list[int] = []

    def keep(begin: ArrayLike, end: ArrayLike, *columns: ArrayLike) -> None:
        begin, end = np.maximum(begin, replay.begin), np.asarray(end)
        own = np.flatnonzero(end > begin)
        given = np.broadcast_arrays(begin, end, *columns)
        found.append([one[own].astype(np.int64) for one in given])

    for some in split_rows(len(path)):
        own, until = path[some], ends[some]
        source, target, kind, key = (
            column[own] for column in (edges.source, edges.target, edges.kind, edges.key)
        )
        called, rows = (replay.job.rows[moments] for moments in (source, target))
        rows = np.where(rows >= 0, rows, called)
        cause = causes[kind]
        is_pause = np.flatnonzero(kind == Kind.GAP)
        cause[is_pause[graph.binding[own[is_pause]] == 0]] = Cause.OUTSIDE
        is_call = kind == Kind.CALL
        cause[is_call & np.isin(key, waiting)] = Cause.WAIT
        cause[is_call & (key >= MPI_NAMES)] = Cause.MPI
        # The excess of a latency over the usual one comes first, as the actual reason for the wait.
        is_latency = (kind >= Kind.LAUNCH) & ~np.isin(kind, (Kind.MEET, Kind.OUTSIDE))
        beyond = graph.weight[own] - edges.typical[own]
        beyond = np.where(is_latency & (beyond > SLACK), beyond, 0)
        explained = np.clip(returned[some] + beyond, returned[some], until)
        keep(begins[some], returned[some], called, Cause.CALL, own)
        keep(returned[some], explained, rows, Cause.UNEXPLAINED, own)
        keep(explained, until, rows, cause, own)
        outer += [rows[0], rows[-1]]
    keep([replay.begin], begins[-1:], outer[-1], Cause.OUTSIDE, -1)
    keep(ends[:1], [replay.end], outer[0], Cause.OUTSIDE, -1)
    del begins, returned, ends
    pieces = [np.concatenate(column) for column in zip(*found, strict=True)]
    found.clear()
    order = np.argsort(-pieces[1], kind="stable")
    return PathPieces(*(column[order] for column in pieces))


def join_work(pieces: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """Add to each piece of the critical path the columns of the work on its row (`thread`) at its
    `end`; null without work.

    A collective is on the path not from its start, and, if it uses a shared link, not to its end.
    pieces: frame with `thread`, `begin`, `end`. work: `thread`, `begin`, `end` and further columns.
    """
    others = [name for name in work.columns if name not in ("thread", "begin", "end")]
    begun = work.rename({"begin": "begun", "end": "until"}).cast({"thread": pl.Int64}).sort("begun")
    pieces = pieces.cast({"thread": pl.Int64}).sort("end", maintain_order=True)
    options = {"left_on": "end", "right_on": "begun", "by": "thread"}
    found = pieces.join_asof(begun, **options, allow_exact_matches=False, check_sortedness=False)
    known = pl.when(pl.col("end") <= pl.col("until")).then(pl.col(others))
    return found.with_columns(known).drop("begun", "until")


#: Kinds of GPU work: while one runs on the rank that the path is on, time counts for the first of these.
_ON_GPUS = {Kind.KERNEL: Cause.COMPUTATION, Kind.NCCL: Cause.NCCL, Kind.COPY: Cause.MEMORY}


def divide_path(replay: Replay) -> Iterator[Columns]:
    """Divide the time of a replay's span: while the GPUs of the rank on the critical path work,
    among their activities; while they are idle, among the dependencies on the path.

    Yield `edge` (-1 if unknown), `cause` (of `Cause`), `process` and `time` (ns) of each piece as
    columns, some at a time. They add up to the span. Host activity during GPU work does not make a job
    longer, so two runs of a program differ only in activity that makes one of them longer.
    """
    pieces, graph = find_pieces(replay), replay.graph
    width = replay.end - replay.begin + 1

    def place(time: np.ndarray, process: np.ndarray) -> np.ndarray:
        """Return times of all processes as positions on one line."""
        return np.clip(time, replay.begin, replay.end) - replay.begin + (process + 1) * width

    process = graph.processes[pieces.row].astype(np.int64)
    begin, end = place(pieces.begin, process), place(pieces.end, process)
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], end[order]
    named = {"process": process, "edge": pieces.edge, "cause": pieces.cause}
    named = take_rows(named, order)
    del pieces, process, order
    layers = []
    for kind, cause in _ON_GPUS.items():
        edges = replay.select((kind,))
        of_work = replay.edges.process[edges].astype(np.int64)
        source, target = (
            place(graph.time[side[edges]], of_work)
            for side in (replay.edges.source, replay.edges.target)
        )
        near = np.append(begin, 1 << 62)[np.searchsorted(end, source, "right")] < target
        edges, source, target = (one[near] for one in (edges, source, target))
        order = np.argsort(source, kind="stable")
        edges, source, target = (one[order] for one in (edges, source, target))
        # The first to begin of several concurrent ones.
        source = np.maximum(source, np.append(0, np.maximum.accumulate(target)[:-1])[: len(edges)])
        layers.append((cause, edges, source, np.maximum(target, source)))
    # Most of these columns are sorted, so a sort that finds runs is ten times as fast.
    cuts = np.concatenate([begin, end, *(one for layer in layers for one in layer[2:])])
    cuts.sort(kind="stable")
    cuts = cuts[:-1][cuts[1:] > cuts[:-1]]
    at = np.searchsorted(begin, cuts, "right") - 1
    cuts, at = (one[(at >= 0) & (cuts < end[at])] for one in (cuts, at))
    lasts = np.minimum(np.append(cuts[1:], 1 << 62), end[at]) - cuts
    for some in split_rows(len(cuts)):
        moments, found = cuts[some], take_rows(named, at[some])
        edge, cause = found["edge"], found["cause"]
        is_left = ~np.isin(cause, (Cause.COMPUTATION, Cause.GRAPH))
        for of_layer, edges, source, target in layers:
            where = np.searchsorted(source, moments, "right") - 1
            inside = is_left & (where >= 0) & (moments < np.append(target, 0)[where])
            # The path's own piece of a kind keeps its name.
            new = inside & (cause != of_layer)
            edge[new], cause[new] = edges[where[new]], of_layer
            is_left &= ~inside
        yield {**found, "time": lasts[some]}


#: Calls that set things up, where little of the time is for data; and calls that only begin a transfer.
_SETS_UP = re.compile(r"MPI_(Init|Finalize|Comm_|Win_|File_)")
_BEGINS = re.compile(r"MPI_(I(?!nit)|Start)")


class IdealNetwork(Struct, frozen=True):
    """The result of a replay in which transfers take no time."""

    #: New duration of the span, as a share of the recorded one.
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
        """Row of the trace (a stream) for each of the kernels; -1 for meetings."""
        graph = self.graph.graph
        return Column(lambda edges: graph.row[graph.find_nodes(edges)])[self.kernels]

    def take(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return three arrays about the chosen kernels (a mask or indices): start and end (ns), and
        whether they compute.
        """
        edges, rows = self.graph.graph.edges, self.kernels[chosen]
        computes = edges.kind[rows] == Kind.KERNEL
        return self.times[edges.source[rows]], self.times[edges.target[rows]], computes


def replay_without_transfers(
    graph: JobGraph, begin: int, end: int, kinds: tuple[Kind, ...] = TRANSFERS
) -> IdealNetwork | str:
    """Replay a span (`begin` to `end`, ns of the trace) on an ideal network: transfers of these
    kinds take no time. Return the result, or the reason why there is none.
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
        return "no communication between ranks was matched"
    if Kind.NCCL in kinds and graph.met < LEAST_MET * graph.kernels:
        return f"too few NCCL kernels are matched with other ranks ({graph.met:,} of {graph.kernels:,})"
    unexplained = replay.measure_unexplained()
    if unexplained > MOST_UNEXPLAINED:
        return (
            f"for {unexplained:.0%} of the critical path, the reports do not show what it waits for"
        )
    # The own work of an MPI call is part of the transfer.
    in_mpi = rows.get(Kind.CALL, transfers[:0])
    in_mpi = in_mpi[edges.key[in_mpi] >= MPI_NAMES]
    calls = in_mpi[~np.isin(edges.key[in_mpi], setting_up)]
    known = (edges.typical[calls] <= MEETING_CALL) | np.isin(edges.key[calls], beginning)
    lasts = graph.graph.time[edges.target[calls]] - graph.graph.time[edges.source[calls]]
    if lasts[known].sum() < LEAST_MPI * lasts.sum():
        return f"for {1 - lasts[known].sum() / lasts.sum():.0%} of the time in MPI, the reports do not show which rank was waited for"
    gone = np.concatenate([transfers, calls[known]])
    source, target = edges.source[in_mpi], edges.target[in_mpi]
    span = max(replay.span, 1)
    times, last = replay.run([(gone, 0.0)])
    # Without transfers a call may be over before the span begins.
    lasts = np.maximum(times[target], begin) - np.maximum(times[source], begin)
    kernels = np.concatenate([rows[kind] for kind in on_device])
    ideal = last - begin
    of_row = np.bincount(graph.rows[target], lasts)
    shares = {int(row): of_row[row] / max(ideal, 1) for row in np.flatnonzero(of_row)}
    return IdealNetwork(ideal / span, shares, kernels, times, graph)
