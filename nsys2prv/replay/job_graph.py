"""Build the graph of a whole job: those of its units, joined by the meetings of ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.memory import return_freed_memory
from nsys2prv.replay.events import label_calls
from nsys2prv.replay.graph import (
    AS_RECORDED,
    LONG,
    NO_KIND,
    TRANSFERS,
    US,
    Column,
    Durations,
    EdgeColumns,
    Graph,
    Kind,
    Times,
)
from nsys2prv.replay.meetings import (
    MEETING_CALL,
    Meetings,
    find_mpi_meetings,
    find_nccl_meetings,
)
from nsys2prv.replay.unit_graph import UnitGraph, build_unit_graph, finish_graph, make_place
from nsys2prv.store.event_reader import EventReader

#: A pause that something outside of the job ends (a request that arrives) is so long (ns), so many
#: times as long as usual at its place, ends within the last time (ns) of another rank's, and comes
#: so often on a rank.
LONG_PAUSE, TIMES_USUAL, TOGETHER, FEWEST_PAUSES = 1_000 * US, 3, 300 * US, 3
#: Edges that are looked at together, which bounds memory.
PART = 1 << 21
#: Clocks that are aligned differ by less (ns).
CLOCK_ERROR = 50 * US
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

    @property
    def rows(self) -> Column:
        """Row of the trace of each moment, -1 of meetings."""
        return Column(lambda moments: self.graph.row[moments >> 1])


class _Joining(Struct, frozen=True):
    """Edges that join units: columns as in :class:`~nsys2prv.replay.graph.EdgeColumns`, and the class
    of the size of transfers.
    """

    target: np.ndarray
    source: np.ndarray
    kind: np.ndarray
    key: np.ndarray
    typical: np.ndarray
    size: np.ndarray


def build_job_graph(reader: EventReader, labels: Mapping[str, pl.DataFrame]) -> JobGraph:
    """Return the graph of a job. labels: name set -> frame of value and label."""
    calls = label_calls(labels)
    units = np.unique(reader.rows.units).tolist()
    return join_units(reader, calls, [build_unit_graph(reader, unit, calls) for unit in units])


def join_units(
    reader: EventReader, labels: Mapping[int, str], units: Sequence[UnitGraph]
) -> JobGraph:
    """Join the graphs of all units by the meetings of ranks; takes over their columns. labels: of
    calls.
    """
    task_of = np.append(reader.rows.get_column("task") - 1, -1).astype(np.int32)
    tasks = reader.rows.threads.select("task", "node").unique("task").sort("task")
    hosts = tasks["node"].to_list()
    bounds = np.cumsum([0, *(len(unit.nodes.time) for unit in units)]).tolist()
    kernels, calls, copies = (
        pl.concat(
            [
                getattr(unit, name).with_columns(pl.col(columns) + factor * first)
                for unit, first in zip(units, bounds, strict=False)
            ]
        )
        for name, columns, factor in (
            ("kernels", ["node_begin", "node_end"], 2),
            ("mpi", ["node_begin", "node_end"], 2),
            ("copies", ["edge"], 1),
        )
    )
    kernel_count = kernels.height
    calls = calls.with_columns(task=pl.Series(task_of[calls["thread"].to_numpy()]))
    idle_nodes = np.concatenate(
        [unit.idle_nodes + first for unit, first in zip(units, bounds, strict=False)]
    )
    contradictions, cycles = {}, sum(unit.cycles for unit in units)
    for unit in units:
        for kind, number in unit.contradictions.items():
            contradictions[kind] = contradictions.get(kind, 0) + number
    time = _take(units, "nodes", "time")
    channels: dict[tuple[tuple[int, ...], tuple[str, ...]], int] = {((), ()): 0}

    def number_channel(members: np.ndarray) -> int:
        processes = tuple(members.tolist())
        names = tuple(sorted({hosts[process] for process in processes}))
        return channels.setdefault((processes, names), len(channels))

    parts, times, met = [], [time], 0
    for kind, meetings in (
        (Kind.NCCL, find_nccl_meetings(reader, kernels)),
        (Kind.MPI, find_mpi_meetings(reader, calls, labels)),
    ):
        first = sum(map(len, times))
        more, moments = _make_meeting_edges(kind, meetings, first, time, task_of, number_channel)
        parts += more
        times.append(moments)
        _free_members(units, bounds, kind, meetings)
        met += len(np.unique(meetings.begin)) if kind == Kind.NCCL else 0
    # The clock, which what comes from outside of the job waits for.
    parts.append(_find_outside(units, bounds, time, task_of, sum(map(len, times))))
    times.append(np.zeros(1, np.int64))
    joining = _sort_joining(parts)
    del kernels, calls, meetings, parts
    groups = pl.concat([unit.groups for unit in units])
    columns, weight, row, marks = _concatenate(units, bounds, joining, sum(map(len, times[1:])))
    count, joined = len(columns.target), len(columns.target) - len(joining.target)
    graph = finish_graph(
        np.concatenate(times), row, columns, weight, joined, joining.size, task_of, groups, marks,
        bounds, contradictions, cycles,
    )  # fmt: skip
    copies = copies.with_columns(pl.col("edge") + count)
    return_freed_memory()
    return JobGraph(graph, idle_nodes, list(channels), hosts, labels, copies, kernel_count, met)


def _concatenate(
    units: Sequence[UnitGraph], bounds: Sequence[int], joining: _Joining, meetings: int
) -> tuple[EdgeColumns, Durations, np.ndarray, np.ndarray]:
    """Return the edges of all units with those that join them, weights with those of nodes alone, the
    row of each node, and marks of edges. A column at a time, and those of the units go.
    """
    groups = 0
    for unit, first in zip(units, bounds, strict=False):
        columns = unit.columns
        columns.target[:] += np.int32(first)
        columns.source[:] += np.int32(2 * first)
        in_group = columns.typical < AS_RECORDED
        np.subtract(columns.typical, groups, out=columns.typical, where=in_group)
        groups += unit.groups.height
    none = np.zeros(meetings, np.int32)
    target, source, typical = (
        _take(units, "columns", name, getattr(joining, name))
        for name in ("target", "source", "typical")
    )
    of_nodes = _take(units, "nodes", "work", none.astype(np.uint8) + NO_KIND)
    kind = np.concatenate([_take(units, "columns", "kind", joining.kind), of_nodes])
    lasts, no_weight = [unit.nodes.lasts for unit in units], np.zeros(len(target), np.int32)
    weight = Durations(
        np.concatenate([no_weight, *(one.value for one in lasts), none]),
        np.concatenate(
            [len(target) + first + one.place for first, one in zip(bounds, lasts, strict=False)]
        ),
        np.concatenate([one.length for one in lasts]),
    )
    row, name = _take(units, "nodes", "row", none - 1), _take(units, "columns", "name", none)
    marks = np.concatenate([*(unit.marks for unit in units), joining.kind * 0])
    return EdgeColumns(target, source, kind, typical, name, joining.key), weight, row, marks


def _take(
    units: Sequence[UnitGraph], part: str, name: str, more: np.ndarray | None = None
) -> np.ndarray:
    """Take a column out of all units; return it as one, with `more` appended."""
    columns = [getattr(getattr(unit, part), name) for unit in units]
    for unit in units:
        setattr(getattr(unit, part), name, None)
    column = np.concatenate(columns if more is None else [*columns, more])
    del columns
    return_freed_memory()
    return column


def _sort_joining(parts: Sequence[_Joining]) -> _Joining:
    """Return the edges of all parts by their targets."""
    names = _Joining.__struct_fields__
    columns = [np.concatenate([getattr(part, name) for part in parts]) for name in names]
    order = np.argsort(columns[0], kind="stable")
    return _Joining(*(column[order] for column in columns))


def _make_joining(
    kind: Kind,
    target: np.ndarray,
    source: np.ndarray,
    key: np.ndarray | int = 0,
    typical: np.ndarray | int = AS_RECORDED,
    size: np.ndarray | int = 0,
) -> _Joining:
    """Return edges from moments to nodes; a number fills its column."""
    count = len(target)
    kinds = np.full(count, kind, np.uint8)
    filled = (np.full(count, value, np.int32) for value in (key, typical, size))
    return _Joining(target.astype(np.int32), source.astype(np.int32), kinds, *filled)


def _make_meeting_edges(
    kind: Kind,
    meetings: Meetings,
    first: int,
    times: np.ndarray,
    task_of: np.ndarray,
    number_channel: Callable[[np.ndarray], int],
) -> tuple[list[_Joining], np.ndarray]:
    """Return the edges of meetings, and the times of meetings. first: node of the first one."""
    count = int(meetings.meeting.max(initial=-1)) + 1
    moments = np.full(count, np.iinfo(np.int64).min)
    holds = meetings.holds
    np.maximum.at(moments, meetings.meeting[holds], times[meetings.begin[holds] >> 1])
    # Nobody leaves a collective before all have come, though clocks may differ by a little.
    waits, earliest = ~(meetings.eager | meetings.later), moments.copy()
    np.minimum.at(earliest, meetings.meeting[waits], times[meetings.end[waits] >> 1])
    moments = np.where(moments - earliest < CLOCK_ERROR, earliest, moments)
    come = _make_joining(Kind.MEET, first + meetings.meeting[holds], meetings.begin[holds], 0, 0)
    channel = _number_channels(meetings, count, task_of, number_channel)
    ends = meetings.end >> 1
    rows = np.flatnonzero(~meetings.eager & (times[ends] >= moments[meetings.meeting]))
    end, meeting = ends[rows], meetings.meeting[rows]
    typical: np.ndarray | int = AS_RECORDED
    if kind == Kind.MPI:
        lasts, size = times[end] - moments[meeting], meetings.size[rows]
        typical = _find_quick_transfers(lasts, channel[meeting], size, meetings.later[rows])
    go = _make_joining(
        kind, end, 2 * (first + meeting), channel[meeting], typical, meetings.size[rows]
    )
    return [come, go], moments


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
    lasts: np.ndarray, channel: np.ndarray, size: np.ndarray, later: np.ndarray
) -> np.ndarray:
    """Return how long transfers of one size usually take on their channel (ns), where members may
    end later than the transfer; AS_RECORDED elsewhere.
    """
    sizes = np.where(size < 0, (-1 - size) % 1000 - 1000, size)
    frame = pl.DataFrame({"lasts": lasts, "channel": channel, "size": sizes, "later": later})
    quick = pl.col("lasts").quantile(QUICK_SHARE, "lower").over("channel", "size", "later")
    typical = frame.select(pl.when("later").then(quick).otherwise(AS_RECORDED))
    return np.minimum(typical.to_series().cast(pl.Int64).to_numpy(), LONG - 1)


def _free_members(
    units: Sequence[UnitGraph], bounds: Sequence[int], kind: Kind, meetings: Meetings
) -> None:
    """Give NCCL kernels and calls of MPI that meet others no time of their own: their work is the
    transfer.
    """
    ends = np.unique(meetings.end >> 1)
    for unit, first, last in zip(units, bounds, bounds[1:], strict=False):
        own = ends[(ends >= first) & (ends < last)] - first
        # The work of an event is the first edge of its end.
        rows = np.searchsorted(unit.columns.target, own)
        unit.columns.typical[rows] = MEETING_CALL if kind == Kind.MPI else 0
        if kind == Kind.NCCL:
            unit.columns.kind[rows] = Kind.MEET


def _find_outside(
    units: Sequence[UnitGraph],
    bounds: Sequence[int],
    times: np.ndarray,
    task_of: np.ndarray,
    clock: int,
) -> _Joining:
    """Let pauses that something outside of the job ends wait for the clock: they are much longer than
    usual at their place, and end together with those of other ranks. Returns the further edges.
    """
    parts = [
        (number, first)
        for number, unit in enumerate(units)
        for first in range(0, max(len(unit.columns.target), 1), PART)
    ]

    def list_gaps(number: int, first: int) -> pl.DataFrame:
        unit, part = units[number], slice(first, first + PART)
        columns = unit.columns
        time = Times(times[bounds[number] : bounds[number + 1]], unit.nodes.lasts)
        is_gap = (columns.kind[part] == Kind.GAP) & (columns.typical[part] == AS_RECORDED)
        rows = first + np.flatnonzero(is_gap)
        gap = time.nodes[columns.target[rows]] - time[columns.source[rows]]
        before, after = (
            np.where(name < 0, -1 - name, name)
            for name in (
                columns.name[columns.source[rows] >> 1],
                columns.name[columns.target[rows]],
            )
        )
        gaps = pl.DataFrame({"row": rows, "key": make_place(before, after), "gap": gap})
        return gaps.with_columns(unit=pl.lit(number))

    is_long = pl.col("gap") > LONG_PAUSE
    pauses = pl.concat([list_gaps(*part).filter(is_long) for part in parts])
    keys = pauses.select("key").unique()
    usual = (
        pl.concat([list_gaps(*part).join(keys, on="key", how="semi") for part in parts])
        .group_by("key")
        .agg(usual=pl.col("gap").median())
    )
    pauses = pauses.join(usual, on="key").filter(pl.col("gap") > TIMES_USUAL * pl.col("usual"))
    node = [
        bounds[number] + int(units[number].columns.target[row])
        for number, row in pauses.select("unit", "row").rows()
    ]
    row = [
        int(units[number].nodes.row[target - bounds[number]])
        for number, target in zip(pauses["unit"].to_list(), node, strict=True)
    ]
    pauses = pauses.with_columns(
        target=pl.Series(node, dtype=pl.Int64),
        at=pl.Series(times[node], dtype=pl.Int64),
        process=pl.Series(task_of[row], dtype=pl.Int64),
    ).sort("at")
    follows = (
        (pl.col("at").diff() < TOGETHER)
        & (pl.col("process").diff() != 0)
        & (pl.col("key").diff() == 0)
    ).fill_null(False)
    pauses = pauses.filter(follows | follows.shift(-1, fill_value=False))
    pauses = pauses.filter(pl.len().over("key", "process") >= FEWEST_PAUSES)
    for number, row, usual_gap in pauses.select("unit", "row", "usual").rows():
        units[number].columns.typical[row] = min(int(usual_gap), LONG - 1)
    target = pauses["target"].to_numpy()
    return _make_joining(Kind.OUTSIDE, target, np.full(len(target), 2 * clock))


__all__ = ["TRANSFERS", "JobGraph", "build_job_graph", "join_units"]
