"""Represent the dependency graph: typical latencies, the dependency for which each node waited, and
times with other weights.

A node is the start of a call or device operation, an end with dependencies other than the start, or
a meeting of ranks (one node per rank if they meet inside its work). Most calls and operations end
when their work is done. Then the end is not a node, and the work belongs to the node. Moments are
numbered: twice the number of a node, plus one for the end of its work. Nodes of a unit are
contiguous, with sources before targets. Edges are sorted by target: first the edges within units,
then those that connect units. The work of nodes is numbered after all edges, and treated as an edge
from the start of the work to its end.

A node waited for the edge that allowed it last. This edge gets the weight that reproduces the
recording; the excess over the typical weight of its kind is *unexplained*. The other edges keep
their typical weight. An unchanged replay is therefore exact, and a replay with only typical weights
shows how much of the time the dependencies explain.

Columns are as narrow as possible: the graph of a job with ten million calls and operations takes
half a gigabyte. The loops are in `native/replay.c`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from enum import IntEnum
from functools import cached_property

import numpy as np
from msgspec import Struct

from nsys2prv._util.budget import EDGE_ROWS
from nsys2prv._util.native import core

US = 1_000
#: Weight of an edge that does not apply (ns), and the mark in int32 columns for a weight stored in a table.
NO_WEIGHT, LONG = np.iinfo(np.int64).min, np.iinfo(np.int32).max
#: Possible difference between host and device times of one report (ns).
CLOCKS_APART = 20 * US


class Kind(IntEnum):
    """Kinds of edges of a dependency graph: work first, then latencies and order. The same numbers
    are in native/replay.c.
    """

    KERNEL = 0
    COPY = 1
    GAP = 2
    CALL = 3
    NCCL = 4
    MPI = 5
    LAUNCH = 6
    RETURN = 7
    STREAM = 8
    EVENT = 9
    MEET = 10
    HANDOFF = 11
    QUEUE = 12
    OTHER = 13
    OUTSIDE = 14


TRANSFERS = (Kind.NCCL, Kind.MPI)
#: Kinds whose weight is work, which a what-if may change; all others but meetings are latencies.
WORK = (Kind.KERNEL, Kind.COPY, Kind.GAP, Kind.CALL, *TRANSFERS)
#: Kind of an edge that is left out, and of the work of a node that has none.
NO_KIND = 255
#: Typical weights that are yet to be estimated, or are those recorded; below these are the groups that
#: are estimated together.
TO_ESTIMATE, AS_RECORDED, FIRST_GROUP = -1, -2, -3


#: Edges with their new weights: ns, a share of the recorded weight, or NO_WEIGHT. If an edge is
#: named more than once, the least weight counts.
Changes = list[tuple[np.ndarray, np.ndarray | float]]
#: Edges that no change makes shorter than so (ascending, int32; ns).
Kept = tuple[np.ndarray, np.ndarray]
NOTHING_KEPT: Kept = (np.zeros(0, np.int32), np.zeros(0, np.int64))


class Column:
    """An array that is computed on demand: indexed with rows, it looks up their values, EDGE_ROWS
    rows at a time.
    """

    def __init__(self, look_up: Callable[[np.ndarray], np.ndarray]) -> None:
        self._look_up = look_up

    def __getitem__(self, rows: np.ndarray | int) -> np.ndarray:
        rows = np.asarray(rows)
        if rows.size <= EDGE_ROWS:
            return self._look_up(rows)
        first = self._look_up(rows[:EDGE_ROWS])
        found = np.empty(len(rows), first.dtype)
        found[:EDGE_ROWS] = first
        for start in range(EDGE_ROWS, len(rows), EDGE_ROWS):
            found[start : start + EDGE_ROWS] = self._look_up(rows[start : start + EDGE_ROWS])
        return found


def split_rows(count: int, columns: int = 1) -> Iterator[slice]:
    """Yield slices that cover `count` rows, each with about EDGE_ROWS cells of `columns` columns,
    to limit memory. There is at least one slice.
    """
    step = max(EDGE_ROWS // max(columns, 1), 1)
    for start in range(0, max(count, 1), step):
        yield slice(start, start + step)


class Durations(Struct, frozen=True):
    """A column of durations (ns) as int32; durations that are too long for this type are stored
    separately.
    """

    #: LONG for a weight in the table, the least int32 for an edge that does not apply.
    value: np.ndarray
    #: Rows of long ones, ascending, and how long these are (int64).
    place: np.ndarray
    length: np.ndarray
    #: Changed ones: a bit of each says which, how many there are before each 64, and their values.
    changed: tuple[bytearray, ...] = ()

    def __getitem__(self, rows: np.ndarray | int) -> np.ndarray:
        found = np.empty(np.shape(rows), np.int64)
        core.look_up_durations(self.columns, np.ascontiguousarray(rows, np.int32), found)
        return found[()]

    def __len__(self) -> int:
        return len(self.value)

    @property
    def columns(self) -> tuple[np.ndarray | bytearray, ...]:
        """The arrays of this column in the form that the compiled functions take."""
        return self.value, self.place, self.length, *self.changed

    def change(
        self, changes: Changes, kept: Kept = NOTHING_KEPT, out: np.ndarray | None = None
    ) -> Durations:
        """Return these durations with some of them replaced. changes: edges and their new
        durations. kept: edges that get no shorter than so. out: array to fill with all durations,
        as a replay takes them; by default, only changed ones are stored.
        """
        if not changes:
            return self
        if out is None:
            *changed, tabled = core.change_durations(self.columns, changes, *kept)
            made = Durations(self.value, self.place, self.length, tuple(changed))
        else:
            tabled = core.fill_durations(self.columns, changes, *kept, out)
            made = Durations(out, self.place, self.length)
        if not tabled:
            return made
        long: dict[int, int] = {}
        for rows, new in self.keep(changes, kept):
            at = np.flatnonzero(made[rows] >= LONG)
            places = rows[at]
            lengths = (self[places] * new).astype(np.int64) if isinstance(new, float) else new[at]
            for place, length in zip(places.tolist(), lengths.tolist(), strict=True):
                long[place] = min(long.get(place, length), length)
        long = dict(zip(self.place.tolist(), self.length.tolist(), strict=True)) | long
        place = np.array(sorted(long), np.int64)
        lengths = np.array([long[one] for one in place.tolist()], np.int64)
        return Durations(made.value, place, lengths, made.changed)

    def keep(self, changes: Changes, kept: Kept) -> Changes:
        """Return the changes, raised to the lower limit of each edge."""
        places, least = kept
        made: Changes = []
        for edges, new in changes if len(places) else ():
            at = np.searchsorted(places, edges)
            own = np.append(places, -1)[at] == edges
            lasts = new[own] if isinstance(new, np.ndarray) else self[edges[own]] * new
            made.append((edges[~own], new[~own] if isinstance(new, np.ndarray) else new))
            made.append((edges[own], np.maximum(lasts, least[at[own]]).astype(np.int64)))
        return made or changes


def make_durations(value: np.ndarray, find_long: Callable[[np.ndarray], np.ndarray]) -> Durations:
    """Make a column of durations. value: ns (int32), LONG for rows with longer durations.
    find_long: returns the durations (ns, int64) of given rows.
    """
    place = np.flatnonzero(value == LONG)
    return Durations(value, place, find_long(place).astype(np.int64))


class Times(Struct, frozen=True):
    """Times (ns) of all moments of a graph, looked up by the number of the moment."""

    #: Of nodes.
    nodes: np.ndarray
    #: Durations of edges, and of nodes' work behind them.
    weight: Durations

    def __getitem__(self, moments: np.ndarray | int) -> np.ndarray:
        return Column(self._look_up)[moments]

    def _look_up(self, moments: np.ndarray) -> np.ndarray:
        node = moments >> 1
        first = len(self.weight) - len(self.nodes)
        return self.nodes[node] + np.where(moments & 1, self.weight[first + node], 0)


#: Columns of a graph. Of nodes: recorded time (ns), row of the trace (-1 of meetings), how long the
#: work lasts (ns, LONG for one in a table), and the name of the call or operation, of ends of calls
#: -1 less it. Of edges: the node that waits, the moment that it waits for, typical weights (ns, or
#: TO_ESTIMATE, AS_RECORDED or a group), and which tell their latency, later which their target waited
#: for. Of both, a Kind or NO_KIND: edges', and nodes' work.
COLUMNS = {
    "time": np.int64,
    "row": np.int32,
    "work": np.uint8,
    "lasts": np.int32,
    "name": np.int32,
    "target": np.int32,
    "source": np.int32,
    "kind": np.uint8,
    "typical": np.int32,
    "marks": np.uint8,
}


class Columns(dict[str, bytearray]):
    """Growing columns of a graph, by the names in COLUMNS. They grow in place if no array views
    them.
    """

    def view(self, name: str) -> np.ndarray:
        """Return the column with this name as an array, without copying it."""
        return np.frombuffer(self[name], COLUMNS[name])

    def append(self, name: str, values: bytearray | np.ndarray) -> None:
        """Append values to the column with this name. The first values may become the column
        itself.
        """
        if name not in self:
            self[name] = values if isinstance(values, bytearray) else bytearray(values)
            return
        try:
            self[name] += memoryview(values).cast("B")
        except BufferError:
            self[name] = self[name] + memoryview(values).cast("B")


def split_size(size: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Split classes of transfer sizes. Return three arrays: the number of the operation's name, the
    class of its bytes, and whether it is a message.
    """
    is_message = size < 0
    name, of_bytes = np.divmod(np.where(is_message, -1 - size, size), 1000)
    return name, of_bytes, is_message


class Edges:
    """The edges of a graph, followed by the work of its nodes, as columns that are looked up by
    edge.
    """

    def __init__(self, graph: Graph) -> None:
        count, first = len(graph.target), graph.joined
        sizes = np.append(graph.sizes, 0)

        #: A Kind, or NO_KIND (uint8).
        self.kind = graph.kind
        #: Identity of the work, the same number on all ranks: name, place, or channel (int32).
        self.key = Column(graph.find_keys)
        #: Waiting moments, and the moments they wait for.
        self.target = Column(lambda rows: 2 * graph.find_nodes(rows) + (rows >= count))
        self.source = Column(lambda rows: _look_up(rows, graph.source, 2))
        #: Process of the work, -1 for meetings.
        self.process = Column(lambda rows: graph.processes[graph.row[graph.find_nodes(rows)]])
        #: Class of the size of a transfer, of the same operation: 1000 x its name, and that of the
        #: bytes; of messages below zero.
        self.size = Column(
            lambda rows: sizes[np.where(rows < count, np.maximum(rows - first, -1), -1)]
        )
        #: Typical weight (ns).
        self.typical = graph.typical


def _look_up(rows: np.ndarray, column: np.ndarray, factor: int) -> np.ndarray:
    """Return the values of edges in a column (int32). For the work of nodes, which is numbered
    after the edges, return the node number times `factor`.
    """
    found = np.asarray((rows - len(column)) * factor, np.int32)
    is_edge = rows < len(column)
    if not found.ndim:
        return column[rows] if is_edge else found
    found[is_edge] = column[rows[is_edge]]
    return found


class Graph(Struct, frozen=True, dict=True):
    """The dependency graph that a replay runs through. Nodes are moments of the trace; edges,
    sorted by target, are what each node waits for.
    """

    #: Node that each edge leads to, and the moment that it waits for (int32).
    target: np.ndarray
    source: np.ndarray
    #: Kind of edges, and of nodes' work behind them: a Kind, or NO_KIND (uint8).
    kind: np.ndarray
    #: The graph of the compiled functions.
    core: object
    #: First of the edges that join units.
    joined: int
    #: Class of the size of each of these (int32).
    sizes: np.ndarray
    #: Row of the trace of each node, -1 of meetings (int32).
    row: np.ndarray
    #: Process of each row, and last -1.
    processes: np.ndarray
    #: Recorded times.
    time: Times
    #: Weights of edges, and of nodes' work, that reproduce the recording, and typical ones.
    weight: Durations
    typical: Durations
    #: Whether an edge is what its target waited for (uint8).
    binding: np.ndarray
    #: Order in which a replay visits the nodes.
    plan: bytes

    @cached_property
    def edges(self) -> Edges:
        """Columns about edges that are computed on demand, such as their kind, key and process."""
        return Edges(self)

    @property
    def recorded(self) -> tuple[object, np.ndarray, tuple[np.ndarray, ...]]:
        """Arguments for the compiled functions: the graph, the recorded times, and the weights."""
        return self.core, self.time.nodes, self.weight.columns

    def find_nodes(self, rows: np.ndarray) -> np.ndarray:
        """Return the target node of each edge; for a node's work, that node (int32). rows: numbers
        of edges and works.
        """
        return _look_up(rows, self.target, 1)

    def find_keys(self, rows: np.ndarray) -> np.ndarray:
        """Return a number (key) for each edge that identifies its work on all ranks (int32): of its
        name, of its place between two calls, or of its channel. rows: numbers of edges.
        """
        keys = np.empty(rows.shape, np.int32)
        core.find_keys(self.core, np.ascontiguousarray(rows, np.int32), keys)
        return keys

    def run(
        self,
        weight: Durations | None = None,
        counts: np.ndarray | None = None,
        out: np.ndarray | None = None,
    ) -> tuple[Times, int]:
        """Compute the times of all moments with other weights. Return these times, and the time of
        the last counted moment (ns).

        weight: durations of all edges; None for the recorded ones. counts: which moments count,
        from :meth:`count_moments`. out: array to fill with the times of nodes. The times are valid
        as long as `weight` and `out` do not change.
        """
        weight, count = weight or self.weight, len(self.row)
        nodes = np.empty(count, np.int64) if out is None else out
        counts = np.zeros(count, np.uint8) if counts is None else counts
        last = core.replay(self.core, self.time.nodes, weight.columns, self.plan, counts, nodes)
        return Times(nodes, weight), last

    def count_moments(self, begin: int, end: int) -> np.ndarray:
        """Return for each node, as bits, which of its moments (start, end of its work) are in
        (begin, end] (ns).
        """
        counts = np.zeros(len(self.row), np.uint8)
        core.count_moments(*self.recorded, begin, end, counts)
        return counts

    def select(self, kinds: Collection[Kind], begin: int, end: int) -> dict[Kind, np.ndarray]:
        """Return the edges of some kinds that end in (begin, end] (ns), as kind -> numbers of edges
        (int32).
        """
        bits = sum(1 << kind for kind in {*kinds})
        found = core.select_edges(*self.recorded, bits, begin, end)
        return {Kind(kind): np.frombuffer(rows, np.int32) for kind, rows in found.items()}

    def choose(
        self,
        rows: np.ndarray,
        keys: Collection[int] | None = None,
        processes: Collection[int] | None = None,
        longest: int = LONG,
    ) -> np.ndarray:
        """Select from some edges (`rows`) the edges that have one of these keys, belong to one of
        these processes, and are shorter than `longest` (ns; LONG for any). None: any key or
        process.
        """
        wanted = None if keys is None else np.array([*keys], np.int32)
        mask = None
        if processes is not None:
            # First of no row.
            mask = np.roll(np.isin(self.processes, [*processes]), 1)
        chosen = core.choose_edges(*self.recorded, rows, wanted, self.row, mask, longest)
        return np.frombuffer(chosen, np.int32)

    def find_edges(self, moments: np.ndarray, kinds: Collection[Kind]) -> np.ndarray:
        """Return for each moment the number of the first edge of these kinds that leads to it
        within its unit, or -1.
        """
        node, target, is_work = moments >> 1, self.target[: self.joined], moments & 1 > 0
        edge, end = (np.searchsorted(target, node, side) for side in ("left", "right"))
        edge = np.where(is_work, len(self.target) + node, edge)
        while True:
            is_own = is_work | (edge < end)
            other = is_own & ~np.isin(self.kind[edge], kinds)
            if not (other & ~is_work).any():
                return np.where(is_own & ~other, edge, -1)
            edge = edge + (other & ~is_work)

    def trace_path(self, counts: np.ndarray, begin: int, times: Times | None = None) -> np.ndarray:
        """Return the critical path: the edges for which the last counted moment waited, the last
        one first, back to `begin` (ns). times: of a replay; by default, the recorded times.
        """
        binding, times = (self.binding, self.time) if times is None else (None, times)
        path = core.trace_path(self.core, times.nodes, times.weight.columns, binding, counts, begin)
        return np.frombuffer(path, np.int32)


def plan_replay(
    graph: object,
    columns: Columns,
    joined: int,
    bounds: Sequence[int],
    find_gaps: Callable[[np.ndarray], np.ndarray],
) -> bytes:
    """Find the order in which a replay visits the nodes, as bytes for the compiled functions. Edges
    on cycles are removed, first edges whose source is not earlier.

    graph: as the compiled functions take it. joined: first edge that connects units. bounds: first
    node of each unit. find_gaps: returns how much later the targets of given edges are than their
    sources (ns).
    """
    plan, placed = core.plan_replay(graph, np.array(bounds, np.int64))
    is_first, nodes = True, len(columns.view("time"))
    order = np.empty(nodes, np.int32)
    while placed < nodes:
        kind, targets, sources = map(columns.view, ("kind", "target", "source"))
        rows = np.flatnonzero(kind[: len(targets)] != NO_KIND)
        target, source = targets[rows], sources[rows]
        placed = core.order_all((target, source), order)
        if placed == nodes:
            own, join = targets[:joined], targets[joined:]
            stretches = [
                order,
                order + 1,
                own.searchsorted(order),
                joined + join.searchsorted(order),
            ]
            plan = np.stack(stretches, axis=1).astype(np.int32).tobytes()
            break
        rest = np.zeros(nodes, bool)
        rest[order[placed:]] = True
        wrong = rows[rest[target] & rest[source >> 1]]
        earlier = wrong[find_gaps(wrong) <= 0]
        kind[earlier if is_first and len(earlier) else wrong] = NO_KIND
        is_first = False
    return plan
