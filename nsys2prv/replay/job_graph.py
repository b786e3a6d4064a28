"""Build the graph of a whole job: those of its units, joined by the meetings of ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv.replay.events import Calls, Operations, label_calls
from nsys2prv.replay.graph import (
    TRANSFERS,
    US,
    Edges,
    Graph,
    Kind,
    arrange_graph,
    join_edges,
    make_edges,
    split_size,
)
from nsys2prv.replay.meetings import (
    MEETING_CALL,
    Meetings,
    find_mpi_meetings,
    find_nccl_meetings,
)
from nsys2prv.replay.unit_graph import UnitGraph, build_unit_graph
from nsys2prv.store.event_reader import EventReader

#: A pause that something outside of the job ends (a request that arrives) is so long (ns), so many
#: times as long as usual at its place, ends within the last time (ns) of another rank's, and comes
#: so often on a rank.
LONG_PAUSE, TIMES_USUAL, TOGETHER, FEWEST_PAUSES = 1_000 * US, 8, 300 * US, 3
#: Share of the messages of one size from which the transfer alone is taken: the others also wait.
QUICK_SHARE = 0.3


class JobGraph(Struct, frozen=True, dict=True):
    """The graph of a job, and what its numbers stand for."""

    #: Nodes and edges.
    graph: Graph
    #: Nodes that nothing waits for and that only look whether something is done.
    idle_nodes: np.ndarray
    #: Channels of transfers: (processes, hosts), by the key of their edges.
    channels: list[tuple[tuple[int, ...], tuple[str, ...]]]
    #: Host of each process of the trace.
    hosts: list[str]
    #: Label of each call.
    calls: Mapping[int, str]
    #: For each edge of a copy: bytes, kinds of memory from and to (event values); by edge.
    copies: pl.DataFrame
    #: Number of NCCL kernels, and how many of them meet others.
    kernels: int
    met: int
    #: Row of the trace of each node, -1 of meetings (int32).
    rows: np.ndarray


def build_job_graph(reader: EventReader, labels: Mapping[str, pl.DataFrame]) -> JobGraph:
    """Return the graph of a job. labels: name set -> frame of value and label."""
    calls = label_calls(labels)
    units = np.unique(reader.rows.units).tolist()
    return join_units(reader, calls, [build_unit_graph(reader, unit, calls) for unit in units])


def join_units(
    reader: EventReader, labels: Mapping[int, str], units: Sequence[UnitGraph]
) -> JobGraph:
    """Join the graphs of all units by the meetings of ranks. labels: of calls."""
    offsets = np.cumsum([0, *(len(unit.times) for unit in units)]).tolist()
    edges = [_take_edges(unit, offset) for unit, offset in zip(units, offsets, strict=False)]
    kernels = _list_nccl_kernels(units, offsets)
    task_of = reader.rows.get_column("task") - 1
    tasks = reader.rows.threads.select("task", "node").unique("task").sort("task")
    hosts = tasks["node"].to_list()
    channels: dict[tuple[tuple[int, ...], tuple[str, ...]], int] = {((), ()): 0}

    def number_channel(members: np.ndarray) -> int:
        processes = tuple(members.tolist())
        names = tuple(sorted({hosts[process] for process in processes}))
        return channels.setdefault((processes, names), len(channels))

    times = [unit.times for unit in units]
    total = offsets[-1]
    nccl = find_nccl_meetings(reader, kernels)
    mpi = find_mpi_meetings(reader, _list_mpi_calls(units, offsets, task_of), labels)
    recorded = np.concatenate(times) if times else np.zeros(0, np.int64)
    parts, met = [], 0
    for kind, meetings in ((Kind.NCCL, nccl), (Kind.MPI, mpi)):
        more, moments = _make_meeting_edges(
            kind, meetings, total, recorded, task_of, number_channel
        )
        parts.append(more)
        times.append(moments)
        total += len(moments)
        _free_members(edges, kind, meetings, len(recorded))
        met += len(np.unique(meetings.begin)) if kind == Kind.NCCL else 0
    # The clock, which what comes from outside of the job waits for.
    times.append(np.zeros(1, np.int64))
    moments = np.concatenate(times)
    outside = _find_outside(edges, moments, total)
    for part in edges:
        part.key[part.kind == Kind.NCCL] = 0
    graph = arrange_graph(moments, join_edges([*edges, *parts, outside]))
    return JobGraph(
        graph,
        _list_idle_nodes(graph, units, offsets),
        list(channels),
        hosts,
        labels,
        _list_copies(graph, units, offsets),
        kernels.height,
        met,
        _list_rows(graph, units),
    )


def _list_rows(graph: Graph, units: Sequence[UnitGraph]) -> np.ndarray:
    """Return the row of each node."""
    rows = np.full(len(graph.time), -1, np.int32)
    columns = [
        column
        for unit in units
        for column in (*[unit.operations.stream] * 2, *[unit.calls.thread] * 2)
    ]
    if columns:
        known = np.concatenate(columns)
        rows[graph.number[: len(known)]] = known
    return rows


def _list_idle_nodes(
    graph: Graph, units: Sequence[UnitGraph], offsets: Sequence[int]
) -> np.ndarray:
    """Return the nodes of calls that only look whether something is done, by which a thread sets its
    own pace.
    """
    nodes = [np.zeros(0, np.int64)]
    for unit, offset in zip(units, offsets, strict=False):
        calls = np.flatnonzero(unit.polls)
        begins = offset + 2 * len(unit.operations.begin)
        nodes += [begins + calls, begins + len(unit.calls.begin) + calls]
    return graph.number[np.concatenate(nodes)]


def _take_edges(unit: UnitGraph, offset: int) -> Edges:
    """Take the edges of a unit, whose nodes are numbered from the offset on in the job."""
    edges, unit.edges = unit.edges, None
    edges.target += np.int32(offset)
    edges.source += np.int32(offset)
    return edges


def _list_nccl_kernels(units: Sequence[UnitGraph], offsets: Sequence[int]) -> pl.DataFrame:
    """Return thread, begin, end, node_begin, node_end, name, bytes of the NCCL kernels."""
    frames = []
    for unit, offset in zip(units, offsets, strict=False):
        work = unit.operations
        rows = np.flatnonzero(work.kind == Kind.NCCL)
        frame = _list_nodes(work, work.stream, rows, offset)
        frames.append(frame.with_columns(bytes=pl.Series(work.bytes[rows])))
    return pl.concat(frames)


def _list_mpi_calls(
    units: Sequence[UnitGraph], offsets: Sequence[int], task_of: np.ndarray
) -> pl.DataFrame:
    """Return thread, begin, end, node_begin, node_end, name and task of the calls of MPI."""
    frames = []
    for unit, offset in zip(units, offsets, strict=False):
        calls = unit.calls
        rows = np.flatnonzero(calls.is_mpi)
        frame = _list_nodes(calls, calls.thread, rows, offset + 2 * len(unit.operations.begin))
        frames.append(frame.with_columns(task=pl.Series(task_of[calls.thread[rows]])))
    return pl.concat(frames)


def _list_nodes(
    events: Operations | Calls, thread: np.ndarray, rows: np.ndarray, first: int
) -> pl.DataFrame:
    """Return thread, begin, end, node_begin, node_end and name of some operations or calls. first: the
    node at which the first of all begins.
    """
    return pl.DataFrame(
        {
            "thread": thread[rows].astype(np.int64),
            "begin": events.begin[rows],
            "end": events.end[rows],
            "node_begin": first + rows,
            "node_end": first + len(events.begin) + rows,
            "name": events.name[rows],
        }
    )


def _make_meeting_edges(
    kind: Kind,
    meetings: Meetings,
    first: int,
    times: np.ndarray,
    task_of: np.ndarray,
    number_channel: Callable[[np.ndarray], int],
) -> tuple[Edges, np.ndarray]:
    """Return the edges of meetings, and when these are. first: node of the first one."""
    count = int(meetings.meeting.max(initial=-1)) + 1
    moments = np.full(count, np.iinfo(np.int64).min)
    holds = meetings.holds
    np.maximum.at(moments, meetings.meeting[holds], times[meetings.begin[holds]])
    come = make_edges(Kind.MEET, first + meetings.meeting[holds], meetings.begin[holds], -1, 0, 0)
    channel = _number_channels(meetings, count, task_of, number_channel)
    goes_on = ~meetings.eager & (times[meetings.end] >= moments[meetings.meeting])
    rows = np.flatnonzero(goes_on)
    end, meeting = meetings.end[rows], meetings.meeting[rows]
    typical: np.ndarray | int = -1
    if kind == Kind.MPI:
        _, size, is_message = split_size(meetings.size[rows])
        lasts = times[end] - moments[meeting]
        typical = _find_quick_transfers(lasts, channel[meeting], size, is_message)
    go = make_edges(
        kind, end, first + meeting, task_of[meetings.row[rows]], channel[meeting], typical,
        meetings.size[rows],
    )  # fmt: skip
    return join_edges([come, go]), moments


def _number_channels(
    meetings: Meetings,
    count: int,
    task_of: np.ndarray,
    number_channel: Callable[[np.ndarray], int],
) -> np.ndarray:
    """Return the channel of each meeting: that of its processes."""
    if not count:
        return np.zeros(0, np.int64)
    processes = int(task_of.max()) + 1
    meeting, process = np.divmod(
        np.unique(meetings.meeting * processes + task_of[meetings.row]), processes
    )
    first = np.searchsorted(meeting, np.arange(count + 1))
    # A number for each set of processes: the sum of one at random for each.
    random = np.random.default_rng(1).integers(1 << 62, size=processes)
    _, example, group = np.unique(
        np.add.reduceat(random[process], first[:-1]), return_index=True, return_inverse=True
    )
    numbers = [number_channel(process[first[one] : first[one + 1]]) for one in example.tolist()]
    return np.array(numbers, np.int64)[group]


def _find_quick_transfers(
    lasts: np.ndarray, channel: np.ndarray, size: np.ndarray, is_message: np.ndarray
) -> np.ndarray:
    """Return what the messages of one size take on their channel (ns), -1 for collectives."""
    frame = pl.DataFrame({"lasts": lasts, "channel": channel, "size": size, "message": is_message})
    quick = pl.col("lasts").quantile(QUICK_SHARE, "lower").over("channel", "size", "message")
    typical = frame.select(pl.when("message").then(quick).otherwise(-1))
    return typical.to_series().cast(pl.Int64).to_numpy()


def _free_members(parts: Sequence[Edges], kind: Kind, meetings: Meetings, nodes: int) -> None:
    """Let NCCL kernels, and calls of MPI, that meet others last no time by themselves: their work is
    the transfer.
    """
    meets = np.zeros(nodes, bool)
    meets[meetings.end] = True
    for edges in parts:
        rows = np.flatnonzero(edges.kind == (Kind.NCCL if kind == Kind.NCCL else Kind.CALL))
        rows = rows[meets[edges.target[rows]]]
        edges.typical[rows] = MEETING_CALL if kind == Kind.MPI else 0
        if kind == Kind.NCCL:
            edges.kind[rows] = Kind.MEET


def _find_outside(parts: Sequence[Edges], times: np.ndarray, clock: int) -> Edges:
    """Let pauses that something outside of the job ends wait for the clock: they are much longer than
    usual at their place, and end together with those of other ranks. Returns the further edges.
    """
    frames = [
        pl.DataFrame(
            {
                "row": rows,
                "key": edges.key[rows],
                "process": edges.process[rows],
                "gap": times[edges.target[rows]] - times[edges.source[rows]],
                "at": times[edges.target[rows]],
                "target": edges.target[rows],
            }
        ).with_columns(part=pl.lit(number))
        for number, edges in enumerate(parts)
        for rows in (np.flatnonzero((edges.kind == Kind.GAP) & (edges.typical < 0)),)
    ]
    if not frames:
        return make_edges(Kind.OUTSIDE, *[np.zeros(0, np.int32)] * 3)
    frame = pl.concat(frames)
    usual = pl.col("gap").median().over("key")
    frame = frame.with_columns(usual=usual)
    is_long = (pl.col("gap") > LONG_PAUSE) & (pl.col("gap") > TIMES_USUAL * pl.col("usual"))
    pauses = frame.filter(is_long).sort("at")
    follows = (
        (pl.col("at").diff() < TOGETHER)
        & (pl.col("process").diff() != 0)
        & (pl.col("key").diff() == 0)
    ).fill_null(False)
    pauses = pauses.filter(follows | follows.shift(-1, fill_value=False))
    pauses = pauses.filter(pl.len().over("key", "process") >= FEWEST_PAUSES)
    for number, edges in enumerate(parts):
        own = pauses.filter(pl.col("part") == number)
        edges.typical[own["row"].to_numpy()] = own["usual"].cast(pl.Int64).to_numpy()
    target = pauses["target"].to_numpy()
    return make_edges(
        Kind.OUTSIDE,
        target,
        np.full(len(target), clock),
        pauses["process"].to_numpy(),
        0,
        pauses["at"].to_numpy(),
    )


def _list_copies(graph: Graph, units: Sequence[UnitGraph], offsets: Sequence[int]) -> pl.DataFrame:
    """Return edge, bytes, source, destination (kinds of memory) of each copy."""
    edges = np.flatnonzero(graph.edges.kind == Kind.COPY)
    by_node = dict.fromkeys(("bytes", "source", "destination"))
    frames = []
    for unit, offset in zip(units, offsets, strict=False):
        work = unit.operations
        rows = np.flatnonzero(work.kind == Kind.COPY)
        frames.append(
            pl.DataFrame(
                {
                    "node": graph.number[offset + len(work.begin) + rows].astype(np.int64),
                    **{name: getattr(work, name)[rows].astype(np.int64) for name in by_node},
                }
            )
        )
    ends = pl.DataFrame({"edge": edges, "node": graph.edges.target[edges].astype(np.int64)})
    return ends.join(pl.concat(frames), on="node", maintain_order="left").drop("node")


__all__ = ["TRANSFERS", "JobGraph", "build_job_graph", "join_units"]
