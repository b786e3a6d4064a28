"""Build the graph of one unit: the dependencies between its calls and operations. Also assign
weights to the edges of graphs, from the typical weights of their kinds.

A place is the time between two calls. Several places between MPI calls may be one place of the
program, if ranks do the same work there, but then something different: for example, one sends and
another receives (:func:`group_places`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.budget import return_freed_memory
from nsys2prv._util.native import core
from nsys2prv.events.catalogue import load_catalogue
from nsys2prv.replay.events import (
    MPI_NAMES,
    POLLS,
    Calls,
    Operations,
    describe_calls,
    read_calls,
    read_markers,
    read_operations,
)
from nsys2prv.replay.graph import (
    FIRST_GROUP,
    LONG,
    Columns,
    Durations,
    Graph,
    Kind,
    Times,
    make_durations,
    plan_replay,
)
from nsys2prv.replay.thresholds import (
    CLEAR,
    FEWEST_CASES,
    FEWEST_NAMED,
    IN_PARTS,
    MOST_HICCUPS,
    PARTS,
    USUAL_STREAM_GAP,
)
from nsys2prv.table.event_reader import EventReader

#: Places between two calls are numbered below zero: by both names. As in native/replay.h.
PLACE = 1 << 15
#: Latencies whose typical weight depends on the call.
_NAMED = (Kind.LAUNCH, Kind.RETURN)
#: Columns that core.build_unit returns.
_COLUMNS = ("time", "row", "work", "lasts", "target", "source", "kind", "typical", "name")
#: By so many times processes may differ that pass a place equally often: the first and the last time they
#: come from, or go to, another one.
FEW_TIMES = 2
#: In the whole job they differ by this share of the times at most.
OF_TIMES = 0.1
#: A process that has this share of the most work of any at a place, or less, does its work elsewhere.
LITTLE = 0.05


#: Columns of events by name, int64 unless they are masks.
Events = dict[str, np.ndarray]


class UnitGraph(Struct):
    """The dependency graph of one unit (threads that share a report or GPU), and its events that
    connect it with other units.
    """

    #: Nodes, and edges between their moments.
    columns: Columns
    #: Nodes with LONG work, and its duration (ns).
    long: tuple[np.ndarray, np.ndarray]
    #: Groups of latencies (:func:`mark_clear`).
    groups: pl.DataFrame
    #: NCCL kernels and graphs traced as a whole, and MPI calls and hand-offs: `thread`, `begin`,
    #: `end`, `node_begin`, `node_end` (moments), `name`, and of kernels `bytes` and `is_graph`.
    kernels: Events
    mpi: Events
    #: Copies by `edge` (node): `bytes`, `source`, `destination` (kinds of memory).
    copies: Events
    #: Nodes of calls that only look whether something is done.
    idle_nodes: np.ndarray


def make_place(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return a number for each place in the program between two calls. before, after: numbers of
    the calls' names.
    """
    return -1 - (before * PLACE + after)


def split_place(place: int) -> tuple[int, int]:
    """Return the numbers of the names of the calls before and after a place (see
    :func:`make_place`).
    """
    before, after = divmod(-1 - place, PLACE)
    return before, after


def classify_size(size: np.ndarray) -> np.ndarray:
    """Return the class of each size (bytes). There are four classes per power of two."""
    return np.round(np.log2(np.maximum(size, 1)) * 4).astype(np.int64)


def build_unit_graph(
    reader: EventReader, unit: int, labels: Mapping[int, str], handoffs: pl.DataFrame
) -> UnitGraph:
    """Build the dependency graph of a unit from its events. labels: name of calls (number) ->
    label. handoffs: between processes, of all units.
    """
    calls, launches = read_calls(reader, unit, handoffs)
    operations = read_operations(reader, unit, calls, launches)
    del launches
    markers = read_markers(reader, unit)
    task_of, device_of = (
        reader.rows.get_column(name).astype(np.int32) for name in ("task", "device")
    )
    # Threads wait for what they drive, and for each other.
    host_of = task_of.copy()
    for gpu, host in reader.rows.hosts.items():
        host_of[task_of == gpu] = host

    does = describe_calls(calls, labels, operations)
    is_copy, work = operations.kind == Kind.COPY, operations.name
    if is_copy.any():
        copied = operations.name * 1000 + classify_size(operations.bytes).astype(np.int32)
        work = np.where(is_copy, copied, work)
    of_nccl, of_copies, of_mpi, polls = map(
        np.flatnonzero, (operations.kind == Kind.NCCL, is_copy, calls.meets, does & POLLS)
    )
    kernels = _list_events(operations, operations.stream, of_nccl)
    kernels |= {name: getattr(operations, name)[of_nccl] for name in ("bytes", "is_graph")}
    mpi = _list_events(calls, calls.thread, of_mpi)
    names = ("bytes", "source", "destination")
    copies = {name: getattr(operations, name)[of_copies].astype(np.int64) for name in names}
    (long_operations, lengths), (long_calls, more) = map(_find_long, (operations, calls))
    lengths = np.append(lengths, more)
    of_calls = (
        calls.begin, calls.end, calls.thread, calls.name, does, calls.meets.view(np.uint8)
    )  # fmt: skip
    of_operations = (
        operations.begin, operations.end, operations.stream, operations.call, work, operations.kind
    )  # fmt: skip
    of_markers = (markers.time, markers.says, markers.thread, markers.stream, markers.event)
    # The moments of operations come first.
    first_call, calls_end = 2 * len(operations.begin), len(calls.begin)
    nodes_of = np.empty(first_call + 2 * calls_end, np.int32)
    # Free data that is not needed while the graph is built.
    del calls, operations, markers, is_copy, work, does
    return_freed_memory()
    arranged, _ = core.build_unit(
        of_calls, of_operations, of_markers, (np.maximum(host_of - 1, 0), device_of), nodes_of
    )
    del of_calls, of_operations, of_markers
    columns = Columns(zip(_COLUMNS, (*arranged[0], *arranged[1]), strict=True))
    del arranged
    nodes_of, nodes_of_calls = np.split(nodes_of, [first_call])
    places = np.append(nodes_of[long_operations], nodes_of_calls[long_calls])
    order = np.argsort(places)

    def find_lengths(nodes: np.ndarray) -> np.ndarray:
        return lengths[order[np.searchsorted(places, nodes, sorter=order)]]

    lasts = make_durations(columns.view("lasts"), find_lengths)
    idle_nodes = nodes_of_calls[np.append(polls, calls_end + polls)]
    kernels |= _find_moments(nodes_of, of_nccl)
    mpi |= _find_moments(nodes_of_calls, of_mpi)
    edge = nodes_of[of_copies].astype(np.int64)
    by_edge = np.argsort(edge)
    copies = {name: column[by_edge] for name, column in {**copies, "edge": edge}.items()}
    del nodes_of, nodes_of_calls
    groups = mark_clear(columns, lasts, np.append(task_of - 1, np.int32(-1)))
    return UnitGraph(
        columns,
        (lasts.place, lasts.length),
        groups,
        kernels,
        mpi,
        copies,
        idle_nodes[idle_nodes >= 0],
    )


def _find_long(events: Operations | Calls) -> tuple[np.ndarray, np.ndarray]:
    """Return the events that last LONG or longer, and their durations (ns)."""
    lasts = events.end - events.begin
    long = np.flatnonzero(lasts >= LONG)
    return long, lasts[long]


def _list_events(events: Operations | Calls, thread: np.ndarray, rows: np.ndarray) -> Events:
    """Return thread, start, end and name of some operations or calls."""
    columns = {"thread": thread, "begin": events.begin, "end": events.end, "name": events.name}
    return {name: column[rows].astype(np.int64) for name, column in columns.items()}


def _find_moments(nodes: np.ndarray, rows: np.ndarray) -> Events:
    """Return the moments of some events: node_begin, node_end. nodes: of the begins of all, then of their ends."""
    places = {"node_begin": rows, "node_end": len(nodes) // 2 + rows}
    return {name: 2 * nodes[place].astype(np.int64) for name, place in places.items()}


def mark_clear(columns: Columns, lasts: Durations, processes: np.ndarray) -> pl.DataFrame:
    """Group the latencies of a unit whose typical duration has to be estimated, and mark the edges
    that show their latency clearly: their source is later than all others of their target.

    Return the `kind`, `process` and `key` of each group, the `count` of marked edges and `usual`,
    their median (ns; NaN if there are none). lasts: durations of the nodes' work. processes: of
    each row.
    """
    columns["marks"] = bytearray(len(columns["kind"]))
    time, row, typical, marks = map(columns.view, ("time", "row", "typical", "marks"))
    kinds = np.append(columns.view("kind"), columns.view("work"))
    graph = make_core_graph(columns, kinds, len(marks), np.zeros(0, np.int32))
    given = graph, time, lasts.columns, processes[row], CLEAR, typical, marks
    numbers, counts, medians = core.group_latencies(*given)
    group = np.frombuffer(numbers, np.int64)
    return pl.DataFrame(
        {
            "kind": group >> 56,
            "process": group >> 32 & 0xFFFFFF,
            "key": group.astype(np.int32).astype(np.int64),
            "count": np.frombuffer(counts, np.int64),
            "usual": np.frombuffer(medians, np.float64),
        }
    )


def make_core_graph(
    columns: Columns, kinds: np.ndarray, joined: int, channels: np.ndarray
) -> object:
    """Return a graph in the form of the compiled functions. kinds: of edges, then of nodes' work.
    joined: first edge that connects units. channels: of the edges from there on.
    """
    target, source, name = map(columns.view, ("target", "source", "name"))
    return core.make_graph(target, source, kinds, joined, name, channels)


def list_cases(rows: np.ndarray, columns: Columns, time: Times) -> pl.DataFrame:
    """Return a frame of edges whose typical duration is to be estimated: `group` (number) and `gap`
    (ns between source and target). rows: numbers of the edges.
    """
    gap = time.nodes[columns.view("target")[rows]] - time[columns.view("source")[rows]]
    return pl.DataFrame({"group": FIRST_GROUP - columns.view("typical")[rows], "gap": gap})


def estimate_usual(groups: pl.DataFrame, columns: Columns, time: Times) -> np.ndarray:
    """Return the typical duration of each group of latencies (ns): the median of its clear cases;
    for launches and returns, by the name of the call. If there are few cases, use this name on all
    processes, then the kind on this process, then the kind.
    """
    kinds, typical, marks = map(columns.view, ("kind", "typical", "marks"))
    groups = groups.with_row_index("group").with_columns(pl.col("group").cast(pl.Int32))
    least = pl.when(pl.col("kind").is_in(_NAMED)).then(FEWEST_NAMED).otherwise(FEWEST_CASES)
    groups = groups.with_columns(usual=pl.when(pl.col("count") >= least).then("usual"))
    known = [groups.drop_nulls("usual")]
    lacking = groups.filter(pl.col("usual").is_null())
    for kind in lacking["kind"].unique().to_list():
        own = lacking.filter(kind=kind)
        rows = np.flatnonzero((kinds[: len(marks)] == kind) & (typical <= FIRST_GROUP))
        cases = list_cases(rows[marks[rows] > 0], columns, time).join(groups, on="group")
        levels = {"key": 2} if kind in _NAMED else {}
        for by, fewest in (levels | {"process": FEWEST_CASES, "kind": FEWEST_CASES}).items():
            medians = cases.group_by(by).agg(cases=pl.len(), more=pl.col("gap").median())
            medians = medians.filter(pl.col("cases") >= fewest).select(by, "more")
            own = own.join(medians, on=by, how="left")
            own = own.with_columns(usual=pl.coalesce("usual", "more")).drop("more")
        if own["usual"].null_count():
            rest = int(np.percentile(list_cases(rows, columns, time)["gap"].to_numpy(), 2))
            rest = min(rest, USUAL_STREAM_GAP) if kind == Kind.STREAM else rest
            own = own.with_columns(pl.col("usual").fill_null(rest))
        known.append(own)
    usual = pl.concat(known).sort("group")["usual"].cast(pl.Int64).to_numpy()
    # Longer ones have no place in the columns.
    return np.minimum(usual, LONG - 1)


def finish_graph(
    columns: Columns,
    long: tuple[np.ndarray, np.ndarray],
    joined: int,
    channels: np.ndarray,
    sizes: np.ndarray,
    processes: np.ndarray,
    groups: pl.DataFrame,
    bounds: Sequence[int],
) -> Graph:
    """Make a graph from its columns, which are reused: plan its replay and give its edges
    durations.

    long: nodes with LONG work, and its duration (ns). channels, sizes: of the edges that connect
    units. groups: of latencies, from :func:`mark_clear`. bounds: the first node of each unit, then
    the first node outside units.
    """
    columns.append("kind", columns.pop("work"))
    target, source, kind, marks = map(columns.view, ("target", "source", "kind", "marks"))
    count, times = len(target), Times(columns.view("time"), Durations(columns.view("lasts"), *long))

    def find_gaps(rows: np.ndarray) -> np.ndarray:
        return times.nodes[target[rows]] - times[source[rows]]

    graph = make_core_graph(columns, kind, joined, channels)
    plan = plan_replay(graph, columns, joined, bounds, find_gaps)
    usual = estimate_usual(groups, columns, times)
    differing = core.find_weights(
        graph, times.nodes, times.weight.columns, usual, columns.view("typical"), marks
    )
    of_edges = make_durations(columns.view("typical"), find_gaps)
    places = np.append(of_edges.place, count + long[0]), np.append(of_edges.length, long[1])
    del of_edges
    columns.append("typical", columns.pop("lasts"))
    weight = Durations(columns.view("typical"), *places)
    differs, values = map(np.frombuffer, differing, (np.int32, np.int64))
    typical = weight.change([(differs, values)])
    return Graph(
        target, source, kind, graph, joined, sizes, columns.view("row"), processes,
        Times(times.nodes, weight), weight, typical,
        marks, plan,
    )  # fmt: skip


def group_places(keys: np.ndarray, totals: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Merge places (times between two calls) that are one place of the program. Return, for each
    key and process, the index of the key to which the process's work there belongs.

    A group contains places that have a call in common, or that are between messages alone.
    Processes pass them about equally often, and each process works at only one of them; its little
    work at the others is assigned to that one. keys: sorted. totals, counts: time (ns) and number
    of each process there, shape (keys, processes).
    """
    group = np.tile(np.arange(len(keys))[:, None], counts.shape[1])
    works = totals > LITTLE * totals.max(axis=1, initial=0, keepdims=True)
    found: list[list[int]] = []
    places = [place for place, key in enumerate(keys.tolist()) if _is_of_mpi(key)]
    for place in sorted(places, key=lambda one: -int(totals[one].sum())):
        fits = (one for one in found if _is_one_place(keys, works, counts, one, place))
        if (of := next(fits, None)) is None:
            found.append([place])
            continue
        of.append(place)
        group[place, works[place]] = of[0]
        group[of[0], works[place]] = place
    return group


def _is_of_mpi(key: int) -> bool:
    return key < 0 and all(MPI_NAMES <= name < 2 * MPI_NAMES for name in split_place(key))


def _is_one_place(
    keys: np.ndarray, works: np.ndarray, counts: np.ndarray, group: list[int], place: int
) -> bool:
    calls = split_place(int(keys[place]))
    own, others = works[place], works[group].any(axis=0)
    often = (counts[place, own].max(initial=0), counts[group][works[group]].max(initial=0))
    return (
        not (own & others).any()
        and any(_is_alike(calls, split_place(int(keys[one]))) for one in group)
        and abs(int(often[0]) - int(often[1])) <= FEW_TIMES
    )


def _is_alike(place: tuple[int, int], other: tuple[int, int]) -> bool:
    """Return True if two places have a call in common, or if all are between sends, receives and
    their waits.
    """
    is_common = place[0] == other[0] or place[1] == other[1]
    return is_common or all(name - MPI_NAMES in _list_messages() for name in (*place, *other))


@cache
def _list_messages() -> frozenset[int]:
    """Return the values of calls that send, receive or wait for messages."""
    known = load_catalogue().name_sets["mpi_point_to_point"].list_known_values()
    return frozenset(known.values())


def join_lines(
    edges: np.ndarray, first: np.ndarray, turn: np.ndarray, counts: np.ndarray, group: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Move the work of each process at a key of a work table to the key of its group. Return three
    arrays: edges (repetition, process), the first line of each remaining key with the end of the
    last, and the indices of the remaining keys.

    first: first line of each key. turn: number of each line within its key. counts: repetitions by
    key and process. group: from :func:`group_places`.
    """
    most = np.zeros(len(group), np.int64)
    np.maximum.at(most, group, counts)
    kept = np.flatnonzero(most)
    begins = np.zeros(len(group), np.int64)
    begins[kept] = np.cumsum(most[kept]) - most[kept]
    lines = np.diff(first)
    joined = np.full((most.sum(), edges.shape[1]), -1, edges.dtype)
    for column in range(edges.shape[1]):
        rows = np.flatnonzero(edges[:, column] >= 0)
        to = np.repeat(begins[group[:, column]], lines)[rows] + turn[rows]
        joined[to, column] = edges[rows, column]
    return joined, np.append(begins[kept], most.sum()), kept


def is_beside_others(larger: np.ndarray, more: int) -> bool:
    """Return True if a process's larger executions of a kernel are additional to the work that all
    do: they recur throughout, and are as many as others run less often. larger: mask of the
    executions. more: number of executions that the process has beyond the others'.
    """
    at = np.flatnonzero(larger) * PARTS // max(len(larger), 1)
    is_more = MOST_HICCUPS < len(at) <= more / IN_PARTS
    return is_more and len(np.unique(at)) >= IN_PARTS * min(PARTS, len(at))


def pack_lines(edges: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Move the selected values of each column of a work table to its first lines, without gaps.
    chosen: mask of the values. Unused lines are -1.
    """
    counts = (chosen & (edges >= 0)).sum(axis=0)
    packed = np.full((counts.max(initial=0), edges.shape[1]), -1, edges.dtype)
    for column, count in enumerate(counts.tolist()):
        own = edges[:, column]
        packed[:count, column] = own[chosen[:, column] & (own >= 0)]
    return packed
