"""The graph of moments and dependencies: its order, typical latencies, and what each moment waited
for.

Of the edges of a node the one that allows it last is what it waited for. This one gets the weight
that reproduces the recording, and what it has beyond what is typical of its kind is *unexplained*;
the others keep their typical weight. So the unchanged replay is exact; the replay with typical
weights alone shows how much of the time the dependencies explain.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.columns import factorize_together
from nsys2prv._util.native import core

US = 1_000
#: Weight of an edge that does not hold.
NO_WEIGHT = np.iinfo(np.int64).min
#: How far host and device times of one report may be apart (ns).
CLOCKS_APART = 20 * US
#: Cases in which an edge was over so long (ns) after all others of its node tell its latency.
CLEAR = 20 * US
#: Cases that a median is made of, at least.
FEWEST_CASES = 8
#: What GPUs usually need between two operations of a stream, where no queue ever shows it (ns).
USUAL_STREAM_GAP = 1 * US


class Kind(IntEnum):
    """What an edge stands for: first work, then latencies and order. As in native/replay.c."""

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


#: Kind -> what people call it.
KIND_NAMES = {
    Kind.KERNEL: "kernels",
    Kind.COPY: "copies",
    Kind.GAP: "host between calls",
    Kind.CALL: "calls",
    Kind.NCCL: "NCCL transfer",
    Kind.MPI: "MPI transfer",
    Kind.LAUNCH: "launch latency",
    Kind.RETURN: "return of synchronising calls",
    Kind.STREAM: "stream order",
    Kind.EVENT: "wait for an event",
    Kind.MEET: "meeting of ranks",
    Kind.HANDOFF: "hand-off between threads",
    Kind.QUEUE: "full launch queue",
    Kind.OTHER: "another stream of the device",
    Kind.OUTSIDE: "outside of the job",
}
TRANSFERS = (Kind.NCCL, Kind.MPI)
#: Kinds whose weight is work, which a what-if may change; all others but meetings are latencies.
WORK = (Kind.KERNEL, Kind.COPY, Kind.GAP, Kind.CALL, *TRANSFERS)
_LATENCIES = (
    Kind.LAUNCH, Kind.RETURN, Kind.STREAM, Kind.EVENT, Kind.HANDOFF, Kind.QUEUE, Kind.OTHER,
)  # fmt: skip
#: Edges that stay though what is waited for seems to be later: clocks of hosts may be off a bit.
_KEPT = (*TRANSFERS, Kind.MEET)
#: Typical weight that is yet to be estimated, or is work.
UNKNOWN = -1


class Edges(Struct):
    """Edges as columns of one length."""

    #: Node that waits, and the one that it waits for (int32).
    target: np.ndarray
    source: np.ndarray
    #: A Kind (uint8).
    kind: np.ndarray
    #: Process whose work it is, -1 for meetings (int32).
    process: np.ndarray
    #: What work it is, the same number on all ranks: name, place, or channel of a transfer (int64).
    key: np.ndarray
    #: Typical weight (ns), UNKNOWN where it is work or estimated (int64).
    typical: np.ndarray
    #: Class of the size of a transfer, of the same operation: 1000 x its name, and that of the bytes;
    #: of messages below zero (int32).
    size: np.ndarray

    def take(self, rows: np.ndarray) -> Edges:
        """Return the edges at these indices, or in this mask."""
        return Edges(*(getattr(self, name)[rows] for name in self.__struct_fields__))


def split_size(size: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return of classes of sizes of transfers: the name, the class of the bytes, and whether it is of
    a message.
    """
    is_message = size < 0
    name, of_bytes = np.divmod(np.where(is_message, -1 - size, size), 1000)
    return name, of_bytes, is_message


def make_edges(
    kind: Kind | np.ndarray,
    target: np.ndarray,
    source: np.ndarray,
    process: np.ndarray | int,
    key: np.ndarray | int = 0,
    typical: np.ndarray | int = UNKNOWN,
    size: np.ndarray | int = 0,
) -> Edges:
    """Return edges; a number fills its column."""
    count = len(target)

    def fill(values: np.ndarray | int, dtype: type) -> np.ndarray:
        return np.ascontiguousarray(np.broadcast_to(np.asarray(values, dtype), count))

    return Edges(
        fill(target, np.int32),
        fill(source, np.int32),
        fill(kind, np.uint8),
        fill(process, np.int32),
        fill(key, np.int64),
        fill(typical, np.int64),
        fill(size, np.int32),
    )


def join_edges(parts: Sequence[Edges]) -> Edges:
    """Return the edges of all parts, which are left without any."""
    columns = []
    for name in Edges.__struct_fields__:
        columns.append(np.concatenate([getattr(part, name) for part in parts]))
        for part in parts:
            setattr(part, name, columns[-1][:0])
    return Edges(*columns)


class Graph(Struct, frozen=True, dict=True):
    """Nodes in an order that has sources before targets, and their edges by target."""

    #: Recorded time of each node, ns.
    time: np.ndarray
    #: Edges of node n are first[n] to first[n + 1] (int64).
    first: np.ndarray
    #: The edges; their nodes are numbered in the order.
    edges: Edges
    #: Weight of each edge that reproduces the recording, ns.
    weight: np.ndarray
    #: Whether an edge is what its target waited for.
    binding: np.ndarray
    #: Number that each node of the builder has got.
    number: np.ndarray
    #: Edges left out because what is waited for is later than what waits, by kind.
    contradictions: dict[Kind, int]
    #: Edges left out because they were on cycles.
    cycles: int

    def run(
        self,
        changed: np.ndarray | None = None,
        weights: np.ndarray | None = None,
        why: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return the times of all nodes (ns). changed: edges, ascending, with other weights.

        why: takes the edge that each node waited for, -1 for none (int64).
        """
        time = self.time.copy()
        if changed is None or weights is None:
            changed = weights = np.zeros(0, np.int64)
        core.replay(self.first, self.edges.source, self.weight, changed, weights, time, why)
        return time

    def run_typical(self) -> np.ndarray:
        """Return the times of all nodes if every latency were the typical one (ns)."""
        time = self.time.copy()
        none = np.zeros(0, np.int64)
        weight = np.where(np.isin(self.edges.kind, TRANSFERS), self.weight, self.edges.typical)
        core.replay(self.first, self.edges.source, weight, none, none, time, None)
        return time


def arrange_graph(times: np.ndarray, edges: Edges) -> Graph:
    """Return the graph of nodes with these recorded times (ns): drop what contradicts itself, order
    the nodes, estimate what is typical, and find what each node waited for. Takes over the edges.
    """
    gap = times[edges.target] - times[edges.source]
    late = np.flatnonzero(gap < 0)
    kinds, rows = edges.kind[late], gap[late]
    tolerated = np.isin(kinds, (Kind.LAUNCH, Kind.RETURN)) & (rows >= -CLOCKS_APART)
    wrong = late[~tolerated & ~np.isin(kinds, _KEPT)]
    kinds, counts = np.unique(edges.kind[wrong], return_counts=True)
    contradictions = {Kind(k): int(n) for k, n in zip(kinds.tolist(), counts.tolist(), strict=True)}
    if len(wrong):
        kept = np.ones(len(gap), bool)
        kept[wrong] = False
        edges, gap = edges.take(kept), gap[kept]
    order, edges, gap, cycles = _order_nodes(times, edges, gap)
    number = np.empty(len(times), np.int32)
    number[order] = np.arange(len(times), dtype=np.int32)
    first, rows = np.empty(len(times) + 1, np.int64), np.empty(len(gap), np.int32)
    core.group_edges(edges.target, number, first, rows)
    # A column at a time, in place: all of both would take twice the memory. Numpy makes wide indices
    # of others, each time anew.
    rows = rows.astype(np.intp)
    for name in Edges.__struct_fields__:
        setattr(edges, name, getattr(edges, name)[rows])
    edges.target, edges.source = number[edges.target], number[edges.source]
    gap = gap[rows]
    del rows
    typical, binding = _find_bindings(first, edges, gap)
    edges.typical = typical
    weight = np.where(binding, gap, typical)
    return Graph(times[order], first, edges, weight, binding, number, contradictions, cycles)


def _order_nodes(
    times: np.ndarray, edges: Edges, gap: np.ndarray
) -> tuple[np.ndarray, Edges, np.ndarray, int]:
    """Return the nodes in an order that has sources before targets, without the edges on cycles;
    at first those whose source is not earlier go.
    """
    by_time = np.argsort(times, kind="stable").astype(np.int32)
    order = np.empty(len(times), np.int32)
    cycles = 0
    while True:
        placed = core.sort_nodes(edges.source, edges.target, by_time, order)
        if placed == len(times):
            return order, edges, gap, cycles
        rest = np.zeros(len(times), bool)
        rest[order[placed:]] = True
        wrong = rest[edges.source] & rest[edges.target]
        if not cycles and (wrong & (gap <= 0)).any():
            wrong &= gap <= 0
        cycles += int(wrong.sum())
        edges, gap = edges.take(~wrong), gap[~wrong]


def _find_bindings(
    first: np.ndarray, edges: Edges, gap: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the typical weight of each edge, and whether it is what its target waited for."""
    marked = np.zeros(len(gap), np.uint8)
    core.mark_edges(first, gap, None, CLEAR, marked)
    typical = _estimate_typical(edges, gap, marked.view(bool))
    is_met = np.isin(edges.kind, _KEPT)
    np.minimum(typical, np.where(is_met, np.maximum(gap, 0), gap), out=typical)
    core.mark_edges(first, gap, typical, 0, marked)
    return typical, marked.view(bool)


def _estimate_typical(edges: Edges, gap: np.ndarray, clear: np.ndarray) -> np.ndarray:
    """Return typical weights: of latencies medians of clear cases of the kind on this process, of
    launches and returns by the name of the call; of all else as recorded.
    """
    typical = np.where(edges.typical < 0, gap, edges.typical)
    rows = np.flatnonzero(np.isin(edges.kind, _LATENCIES) & (edges.typical < 0))
    if not len(rows):
        return typical
    own = gap[rows]
    columns, group = factorize_together(edges.kind[rows], edges.process[rows], edges.key[rows])
    groups = pl.DataFrame(dict(zip(("kind", "process", "key"), columns, strict=True)))
    groups = groups.with_row_index("group").cast(pl.Int64)
    usable = clear[rows]
    cases = pl.DataFrame({"group": group[usable], "gap": own[usable]}).join(groups, on="group")
    overall = {}
    for kind in np.unique(columns[0]).tolist():
        known = cases.filter(pl.col("kind") == kind)["gap"]
        if len(known) >= FEWEST_CASES:
            overall[kind] = int(known.median())
        else:
            overall[kind] = int(np.percentile(own[edges.kind[rows] == kind], 2))
            if kind == Kind.STREAM:
                overall[kind] = min(overall[kind], USUAL_STREAM_GAP)
    named = pl.col("kind").is_in([int(Kind.LAUNCH), int(Kind.RETURN)])
    for least, by, of in (
        (5, ("kind", "process", "key"), named),
        (2, ("kind", "key"), named),
        (FEWEST_CASES, ("kind", "process"), pl.lit(True)),
    ):
        medians = cases.filter(of).group_by(by).agg(pl.len(), usual=pl.col("gap").median())
        medians = medians.filter(pl.col("len") >= least).drop("len")
        groups = groups.join(medians, on=by, how="left", maintain_order="left")
        groups = groups.rename({"usual": f"usual_{least}"})
    usual = groups.select(
        pl.coalesce(
            "usual_5", "usual_2", f"usual_{FEWEST_CASES}", pl.col("kind").replace_strict(overall)
        ).cast(pl.Int64)
    )
    typical[rows] = usual.to_series().to_numpy()[group]
    return typical
