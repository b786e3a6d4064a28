"""Build the graph of a whole job: the graphs of its units, connected by meetings of ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import numpy as np
import polars as pl
from msgspec import Struct, field

from nsys2prv._util.budget import return_freed_memory
from nsys2prv._util.native import core
from nsys2prv.match import DEVICES
from nsys2prv.match.handoffs import list_joining_handoffs
from nsys2prv.replay.events import HANDOFF, WAITED, label_calls
from nsys2prv.replay.graph import (
    AS_RECORDED,
    LONG,
    NO_KIND,
    Column,
    Columns,
    Durations,
    Graph,
    Kind,
)
from nsys2prv.replay.meetings import (
    MEETING_CALL,
    Meetings,
    find_handoffs,
    find_mpi_meetings,
    find_nccl_meetings,
)
from nsys2prv.replay.thresholds import (
    CLOCK_ERROR,
    DIFFER,
    FEWEST_PAUSES,
    LONG_PAUSE,
    QUICK_SHARE,
    TIMES_USUAL,
    TOGETHER,
)
from nsys2prv.replay.unit_graph import (
    Events,
    UnitGraph,
    build_unit_graph,
    finish_graph,
    make_core_graph,
)
from nsys2prv.table.event_reader import NO_UNIT, EventReader

#: Processes that transfer, and their hosts.
Channel = tuple[tuple[int, ...], tuple[str, ...]]
#: Display names of the sides of hand-offs.
HANDOFF_LABELS = {HANDOFF: "the hand-off to other processes", WAITED: "the end of its wait"}
#: Columns of edges that join units: as in :data:`~nsys2prv.replay.graph.COLUMNS`, the channel, and the class
#: of the size of transfers.
JOINING = {
    "target": pl.Int32,
    "source": pl.Int32,
    "kind": pl.UInt8,
    "channel": pl.Int32,
    "typical": pl.Int32,
    "size": pl.Int32,
}
#: Columns of nodes behind those of the units: as in :data:`~nsys2prv.replay.graph.COLUMNS`.
JOINING_NODES = {
    "time": pl.Int64,
    "row": pl.Int32,
    "name": pl.Int32,
    "lasts": pl.Int32,
    "work": pl.UInt8,
}


class JobGraph(Struct, frozen=True, dict=True):
    """The dependency graph of a job, with what its numbers mean: names of calls, kernels, channels
    and hosts.
    """

    #: Nodes and edges.
    graph: Graph
    #: Nodes that nothing waits for and that only look whether something is done.
    idle_nodes: np.ndarray
    #: Channels of transfers: (processes, hosts), by the key of their edges.
    channels: list[Channel]
    #: Host of each process of the trace.
    hosts: list[str]
    #: Label of each call.
    calls: Mapping[int, str]
    #: For each edge of a copy: bytes, kinds of memory from and to (event values); by edge.
    copies: pl.DataFrame
    #: Number of NCCL kernels, and how many of them meet others.
    kernels: int
    met: int
    #: NCCL kernels: `device` (of `devices`), `begin`, `end` (ns).
    spans: pl.DataFrame
    #: Number of the device of each row of the trace, and last of none.
    devices: np.ndarray
    #: Row of each thread of a helper that ranks wait for, by a process of its own.
    helpers: Mapping[int, int] = {}
    #: If GPUs of a process are NCCL ranks: process of each GPU -> the process whose threads drive it. Other
    #: processes drive none.
    drivers: Mapping[int, int] = {}

    @property
    def rows(self) -> Column:
        """The trace's row (thread or stream) of each moment, looked up by moment; -1 for meetings
        of ranks.
        """
        return Column(lambda moments: self.graph.row[moments >> 1])


def build_job_graph(reader: EventReader, labels: Mapping[str, pl.DataFrame]) -> JobGraph:
    """Build the dependency graph of a job from its events. labels: name set -> frame of value and
    label.
    """
    calls = label_calls(labels)
    handoffs = list_joining_handoffs(reader)
    units = reader.rows.unit_numbers
    graphs = (build_unit_graph(reader, unit, calls, handoffs) for unit in units)
    return join_units(reader, calls, graphs)


def join_units(
    reader: EventReader, labels: Mapping[int, str], units: Iterable[UnitGraph]
) -> JobGraph:
    """Build the graph of a job from the graphs of its units, which are connected where ranks meet.
    The units may arrive one by one; their columns are reused. labels: name of calls (number) ->
    label.
    """
    task_of = np.append(reader.rows.get_column("task") - 1, -1).astype(np.int32)
    device_of = np.append(reader.rows.get_column("device"), 0)
    devices = task_of.astype(np.int64) * DEVICES + device_of
    columns, bounds = Columns(), [0]
    long: list[tuple[np.ndarray, np.ndarray]] = []
    events: list[tuple[Events, ...]] = []
    groups: list[pl.DataFrame] = []
    idle_nodes = []
    handoffs = list_joining_handoffs(reader)
    if helpers := _list_helpers(reader, handoffs):
        # Work of helpers while ranks wait for them.
        units = chain(units, [build_unit_graph(reader, NO_UNIT, labels, handoffs)])
    for unit in units:
        first = bounds[-1]
        _append_unit(columns, unit, first, sum(frame.height for frame in groups))
        bounds.append(len(columns.view("row")))
        long.append((first + unit.long[0], unit.long[1]))
        idle_nodes.append(unit.idle_nodes + first)
        for own in (unit.kernels, unit.mpi):
            own["node_begin"] += 2 * first
            own["node_end"] += 2 * first
        unit.copies["edge"] += first
        events.append((unit.kernels, unit.mpi, unit.copies))
        groups.append(unit.groups)
    return_freed_memory()
    kernels, calls, copies = map(_concatenate, zip(*events, strict=True))
    del events
    calls = calls.with_columns(task=pl.Series(task_of[calls["thread"].to_numpy()]))
    tasks = reader.rows.threads.select("task", "node").unique("task").sort("task")
    hosts = tasks["node"].to_list()
    for row, process in helpers.items():
        task_of[row] = process
        hosts.append(reader.rows.threads["node"][row])
    graphs, kernels = (kernels.filter(one) for one in (pl.col("is_graph"), ~pl.col("is_graph")))
    joiner = _Joiner(columns, task_of, hosts, long)
    nccl, inside = find_nccl_meetings(reader, kernels, graphs)
    joiner.add_meetings(Kind.NCCL, nccl)
    joiner.add_graphs(graphs, inside)
    is_handoff = pl.col("name") == HANDOFF
    joiner.add_meetings(Kind.MPI, find_mpi_meetings(reader, calls.filter(pl.col("name") > HANDOFF)))
    joiner.add_meetings(Kind.HANDOFF, find_handoffs(handoffs, calls.filter(is_handoff)))
    places, lengths = map(np.concatenate, zip(*long, strict=True))
    order = np.argsort(places)
    ordered = places[order], lengths[order]
    # Threads that call neither CUDA nor MPI have unknown waits, attributed to the outside.
    others = handoffs.filter(~pl.col("calls"))["releaser"].unique().implode()
    arrive = calls.filter(pl.col("name") == WAITED, pl.col("thread").is_in(others))
    returned = _find_returned(reader, calls, arrive)
    joiner.end_waits(returned)
    arrive = arrive.filter(~pl.col("node_begin").is_in(returned["target"].implode()))
    joiner.add_clock(ordered, arrive["node_begin"].to_numpy() >> 1)
    joining, nodes = (pl.concat(parts) for parts in (joiner.parts, joiner.nodes))
    joining = joining.sort("target", maintain_order=True)
    for name, values in (
        *((name, joining[name].to_numpy()) for name in ("target", "source", "kind", "typical")),
        ("marks", np.zeros(joining.height, np.uint8)),
        *((name, nodes[name].to_numpy()) for name in JOINING_NODES),
    ):
        columns.append(name, values)
    count = len(columns.view("target"))
    graph = finish_graph(
        columns, ordered, count - joining.height, joining["channel"].to_numpy(),
        joining["size"].to_numpy(), task_of, pl.concat(groups),
        bounds,
    )  # fmt: skip
    return_freed_memory()
    return JobGraph(
        graph,
        np.concatenate(idle_nodes),
        list(joiner.channels),
        hosts,
        {**labels, **HANDOFF_LABELS} if calls.filter(is_handoff).height else labels,
        copies.with_columns(pl.col("edge") + count),
        kernels.height,
        len(np.unique(nccl.begin)),
        kernels.select("begin", "end", device=pl.Series(devices[kernels["thread"].to_numpy()])),
        devices,
        {process: row for row, process in helpers.items()},
        _list_drivers(reader),
    )


def _find_returned(reader: EventReader, calls: pl.DataFrame, arrive: pl.DataFrame) -> pl.DataFrame:
    """Return waits of threads that control GPUs of their process, if they end just after a thread
    of each GPU starts to wait again.

    Columns: `target` (moment) and `source` (when each of the GPUs last did so). arrive: ends of
    waits with unknown reasons; rows of calls.
    """
    rows = reader.rows.threads.with_columns(pl.col("thread").cast(pl.Int64))
    rows = rows.select("thread", "process", gpu=pl.when("is_gpu").then("task"))
    waits = calls.filter(name=HANDOFF).join(rows.drop_nulls("gpu"), on="thread")
    own = arrive.select("thread", "begin", target="node_begin").join(rows.drop("gpu"), on="thread")
    own = own.join(waits.select("process", "gpu").unique(), on="process").sort("begin")
    waits = waits.select("gpu", "begin", source="node_begin", at="begin").sort("begin")
    found = own.join_asof(waits, on="begin", by="gpu", check_sortedness=False).drop_nulls("source")
    last = pl.col("at").max().over("target")
    return found.filter(pl.col("begin") - last < TOGETHER).select("target", "source")


def _list_drivers(reader: EventReader) -> dict[int, int]:
    """Return the field `drivers` of :class:`JobGraph`."""
    rows = reader.rows.threads
    if not rows["is_gpu"].any():
        return {}
    tasks = rows.filter(pl.col("stream").is_not_null())["task"].unique().to_list()
    return {task - 1: reader.rows.hosts.get(task, task) - 1 for task in tasks}


def _list_helpers(reader: EventReader, handoffs: pl.DataFrame) -> dict[int, int]:
    """Return row of a helper in hand-offs -> a separate process number, after the tasks."""
    rows = handoffs.select("thread", "releaser").unpivot()["value"].unique().sort().to_numpy()
    rows = rows[reader.rows.units[rows] == NO_UNIT]
    first = int(reader.rows.get_column("task").max(initial=0))
    return {row: first + number for number, row in enumerate(rows.tolist())}


def _concatenate(parts: Sequence[Events]) -> pl.DataFrame:
    """Return the events of all units."""
    return pl.DataFrame({name: np.concatenate([one[name] for one in parts]) for name in parts[0]})


def _append_unit(columns: Columns, unit: UnitGraph, first: int, groups: int) -> None:
    """Append the columns of a unit. first, groups: numbers of its first node and first group."""
    own = unit.columns
    target, source, typical = map(own.view, ("target", "source", "typical"))
    target += np.int32(first)
    source += np.int32(2 * first)
    np.subtract(typical, groups, out=typical, where=typical < AS_RECORDED)
    del target, source, typical
    while own:
        columns.append(*own.popitem())


def _make_joining(kind: Kind, **columns: np.ndarray | int) -> pl.DataFrame:
    """Return edges that connect units, with the columns JOINING. A number fills its column."""
    made = {"kind": int(kind), "channel": 0, "typical": AS_RECORDED, "size": 0, **columns}
    return pl.DataFrame(made).select(*JOINING).cast(JOINING)


class _Joiner(Struct):
    """Collects the edges that connect units: from meetings of ranks, and from the clock."""

    #: Of all units.
    columns: Columns
    #: Process of each row, and host of each process.
    task_of: np.ndarray
    hosts: Sequence[str]
    #: Nodes with LONG work, and its duration (ns).
    long: list[tuple[np.ndarray, np.ndarray]]
    #: Number of each channel of transfers.
    channels: dict[Channel, int] = field(default_factory=lambda: {((), ()): 0})
    #: Edges (JOINING), and nodes behind those of the units (JOINING_NODES): meetings, and work after
    #: them.
    parts: list[pl.DataFrame] = field(default_factory=list)
    nodes: list[pl.DataFrame] = field(default_factory=list)

    def add_nodes(self, time: np.ndarray, **work: np.ndarray | int) -> int:
        """Add nodes at these times (ns), by default meetings, and return the number of the first."""
        first = len(self.columns.view("time")) + sum(nodes.height for nodes in self.nodes)
        made = {"time": time, "row": -1, "name": 0, "lasts": 0, "work": NO_KIND, **work}
        self.nodes.append(pl.DataFrame(made).select(*JOINING_NODES).cast(JOINING_NODES))
        return first

    def set_own(self, ends: np.ndarray, typical: int, kind: Kind | None = None) -> np.ndarray:
        """Set the typical weight, and the kind, of the work of events; return these edges. The work
        is the first edge of the events' ends.
        """
        columns = self.columns
        own = np.searchsorted(columns.view("target"), ends.astype(np.int32))
        columns.view("typical")[own] = typical
        if kind is not None:
            columns.view("kind")[own] = kind
        return own

    def add_meetings(self, kind: Kind, meetings: Meetings) -> None:
        """Add the edges of meetings whose members have no other work than the transfer."""
        columns, count = self.columns, int(meetings.meeting.max(initial=-1)) + 1
        times = columns.view("time")
        moments = np.full(count, np.iinfo(np.int64).min)
        holds = meetings.holds
        until = times[meetings.begin[holds] >> 1] + meetings.needs[holds]
        np.maximum.at(moments, meetings.meeting[holds], until)
        # No member leaves a collective before all have arrived, though clocks may differ slightly.
        waits, earliest = ~(meetings.eager | meetings.later), moments.copy()
        np.minimum.at(earliest, meetings.meeting[waits], times[meetings.end[waits] >> 1])
        moments = np.where(moments - earliest < CLOCK_ERROR, earliest, moments)
        first = self.add_nodes(moments)
        come = {"target": first + meetings.meeting[holds], "source": meetings.begin[holds]}
        come["typical"] = meetings.needs[holds]
        ends = meetings.end >> 1
        rows = np.flatnonzero(~meetings.eager & (times[ends] >= moments[meetings.meeting]))
        end, meeting, size = ends[rows], meetings.meeting[rows], meetings.size[rows]
        channels = np.zeros(count, np.int64)
        if kind != Kind.HANDOFF:
            channels = self.number_channels(meetings.meeting, meetings.row, count)
        channel = channels[meeting]
        come["channel"] = channels[meetings.meeting[holds]] * (come["typical"] > 0)
        go = {"target": end, "source": 2 * (first + meeting), "channel": channel, "size": size}
        go["typical"] = meetings.lasts[rows]
        if kind == Kind.MPI:
            go["typical"] = _find_quick_transfers(
                end,
                times[end] - moments[meeting],
                times[end] - self.find_call_begins(end),
                channel,
                size,
                meetings.later[rows],
            )
        joining = _make_joining(Kind.MEET, **come)
        takes = pl.when(pl.col("typical") > 0).then(int(kind)).otherwise("kind").cast(pl.UInt8)
        self.parts += [joining.with_columns(kind=takes), _make_joining(kind, **go)]
        typical, own = MEETING_CALL * (kind == Kind.MPI), Kind.MEET if kind == Kind.NCCL else None
        self.set_own(np.unique(ends), typical, own)

    def find_call_begins(self, ends: np.ndarray) -> np.ndarray:
        """Return the starts (ns) of the calls that end at these nodes."""
        columns = self.columns
        first = columns.view("target").searchsorted(ends.astype(np.int32))
        return columns.view("time")[columns.view("source")[first] >> 1]

    def add_graphs(self, graphs: pl.DataFrame, inside: pl.DataFrame) -> None:
        """Let the work of graphs traced as a whole begin when all partners that they meet inside
        have begun; until then they wait. graphs: as in `kernels` of units. inside: `node_begin` and
        `meeting` of graphs with meetings.
        """
        columns = self.columns
        times, lasts, source = map(columns.view, ("time", "lasts", "source"))
        alone = graphs.join(inside, on="node_begin", how="anti")
        begin, end = (alone[name].to_numpy() >> 1 for name in ("node_begin", "node_end"))
        length = times[end] - times[begin]
        lasts[begin] = np.minimum(length, LONG)
        columns.view("work")[begin] = Kind.KERNEL
        source[self.set_own(end, 0, Kind.MEET)] = 2 * begin + 1
        self.long.append((begin[length >= LONG], length[length >= LONG]))
        members = graphs.join(inside.select("node_begin", "meeting"), on="node_begin")
        last = pl.col("begin").max().over("meeting")
        members = members.with_columns(last=last).sort("last", "meeting", maintain_order=True)
        thread, begin, end = (
            members[name].to_numpy() for name in ("thread", "node_begin", "node_end")
        )
        meeting = members["meeting"].rle_id().cast(pl.Int64).to_numpy()
        begin, end, count = begin >> 1, end >> 1, int(meeting.max(initial=-1)) + 1
        moments = np.full(count, np.iinfo(np.int64).min)
        np.maximum.at(moments, meeting, times[begin])
        length = times[end] - moments[meeting]
        work = {"name": columns.view("name")[begin], "lasts": np.minimum(length, LONG)}
        first = self.add_nodes(moments[meeting], row=thread, work=int(Kind.KERNEL), **work)
        number = first + np.arange(len(meeting))
        self.long.append((number[length >= LONG], length[length >= LONG]))
        self.set_own(end, 0, Kind.MEET)
        pairs = pl.DataFrame({"meeting": meeting, "target": number, "source": 2 * begin})
        pairs = pairs.select("meeting", "target").join(pairs.drop("target"), on="meeting")
        come = pairs.select("target", "source").to_dict(as_series=False)
        self.number_channels(meeting, thread, count)
        self.parts.append(_make_joining(Kind.MEET, typical=0, **come))
        self.parts.append(_make_joining(Kind.MEET, typical=0, target=end, source=2 * number + 1))

    def number_channels(self, meeting: np.ndarray, row: np.ndarray, count: int) -> np.ndarray:
        """Return the channel of each of `count` meetings, which depends on its processes. meeting,
        row: of each member.
        """
        if not count:
            return np.zeros(0, np.int64)
        processes = int(self.task_of.max()) + 1
        members = np.unique(meeting * processes + self.task_of[row])
        meeting, process = np.divmod(members, processes)
        first = np.searchsorted(meeting, np.arange(count + 1))
        # A number for each set of processes: the sum of one at random for each.
        random = np.random.default_rng(1).integers(1 << 62, size=processes)
        _, example, group = np.unique(
            np.add.reduceat(random[process], first[:-1]), return_index=True, return_inverse=True
        )
        numbers = []
        for one in example.tolist():
            own = tuple(process[first[one] : first[one + 1]].tolist())
            channel = own, tuple(sorted({self.hosts[member] for member in own}))
            numbers.append(self.channels.setdefault(channel, len(self.channels)))
        return np.array(numbers, np.int64)[group]

    def end_waits(self, returned: pl.DataFrame) -> None:
        """Let waits end when others have arrived. returned: `target` (moment) and `source` (its
        dependency).
        """
        ends = returned["target"].to_numpy() >> 1
        target, kind, typical = map(self.columns.view, ("target", "kind", "typical"))
        typical[np.isin(target, ends) & (kind == Kind.GAP)] = 0
        source = returned["source"].to_numpy()
        self.parts.append(_make_joining(Kind.MEET, typical=0, target=ends, source=source))

    def add_clock(self, long: tuple[np.ndarray, np.ndarray], arrive: np.ndarray) -> None:
        """Add the clock, on which events from outside the job depend. long: long work of nodes.
        arrive: nodes at the ends of waits for such events.
        """
        clock = self.add_nodes(np.zeros(1, np.int64))
        if len(arrive):
            target, kind, typical = map(self.columns.view, ("target", "kind", "typical"))
            typical[np.isin(target, arrive) & (kind == Kind.GAP)] = 0
            self.parts.append(_make_joining(Kind.OUTSIDE, target=arrive, source=2 * clock))
        lasts = Durations(self.columns.view("lasts"), *long)
        self.parts.append(_find_outside(self.columns, lasts, self.task_of, clock))


def _find_quick_transfers(
    end: np.ndarray,
    lasts: np.ndarray,
    call: np.ndarray,
    channel: np.ndarray,
    size: np.ndarray,
    later: np.ndarray,
) -> np.ndarray:
    """Return the usual time of transfers of one size on their channel (ns), if members may end
    later than the transfer; AS_RECORDED otherwise.

    If a call waits for several transfers, only the last one shows its own time, and only if the
    call began before it. Otherwise, the time is at most that of the call. call: duration of calls
    (ns).
    """
    sizes = np.where(size < 0, (-1 - size) % 1000 - 1000, size)
    columns = {"end": end, "lasts": lasts, "channel": channel, "size": sizes, "later": later}
    frame = pl.DataFrame(columns)
    is_awaited = pl.Series(lasts <= call)
    tells = is_awaited & (pl.col("lasts") == pl.col("lasts").min().over("end"))
    frame = frame.with_columns(clear=pl.when(tells).then("lasts"))
    known = pl.coalesce(
        pl.col("clear").quantile(QUICK_SHARE, "lower").over("channel", "size", "later"),
        pl.col("clear").quantile(QUICK_SHARE, "lower").over("size", "later"),
        pl.col("lasts").min().over("channel", "size", "later"),
    )
    quick = pl.min_horizontal("lasts", known)
    alone = pl.when(is_awaited).then(AS_RECORDED).otherwise(pl.Series(call))
    typical = frame.select(pl.when("later").then(quick).otherwise(alone))
    return np.minimum(typical.to_series().cast(pl.Int64).to_numpy(), LONG - 1)


def _find_outside(
    columns: Columns, lasts: Durations, task_of: np.ndarray, clock: int
) -> pl.DataFrame:
    """Let pauses that end for a reason outside the job depend on the clock, and return the
    additional edges.

    Such pauses are much longer than usual at their place, and end together with pauses of other
    ranks. lasts: durations of nodes.
    """
    time, row, target, typical = map(columns.view, ("time", "row", "target", "typical"))
    kinds = np.append(columns.view("kind"), columns.view("work"))
    graph = make_core_graph(columns, kinds, len(target), np.zeros(0, np.int32))

    def list_pauses(least: int, keys: np.ndarray | None) -> pl.DataFrame:
        given = graph, time, lasts.columns, typical, least, keys
        edges, gaps = map(np.frombuffer, core.list_pauses(*given), (np.int32, np.int64))
        found = np.empty(len(edges), np.int32)
        core.find_keys(graph, edges, found)
        return pl.DataFrame({"edge": edges, "gap": gaps, "key": found})

    pauses = list_pauses(LONG_PAUSE, None)
    keys = pauses["key"].unique().to_numpy()
    # Clocks may be apart a bit.
    every = list_pauses(np.iinfo(np.int64).min, keys)
    usual = every.group_by("key").agg(usual=pl.col("gap").median())
    pauses = pauses.join(usual, on="key").filter(pl.col("gap") > TIMES_USUAL * pl.col("usual"))
    ends = target[pauses["edge"].to_numpy()]
    pauses = pauses.with_columns(
        at=pl.Series(time[ends]), process=pl.Series(task_of[row[ends]], dtype=pl.Int64)
    ).sort("at")
    follows = (
        (pl.col("at").diff() < TOGETHER)
        & (pl.col("process").diff() != 0)
        & (pl.col("key").diff() == 0)
    ).fill_null(False)
    pauses = pauses.filter(follows | follows.shift(-1, fill_value=False))
    gap = pl.col("gap")
    differ = gap.quantile(0.8) - gap.quantile(0.2) >= DIFFER * gap.median()
    is_often = (pl.len() >= FEWEST_PAUSES).over("key", "process")
    pauses = pauses.filter(is_often & differ.over("key"))
    edges, usual = pauses["edge"].to_numpy(), pauses["usual"].to_numpy()
    typical[edges] = np.minimum(usual, LONG - 1).astype(np.int32)
    return _make_joining(Kind.OUTSIDE, target=target[edges], source=2 * clock)
