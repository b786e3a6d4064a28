"""Build the graph of one unit: what its calls and operations wait for within the unit."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.native import core
from nsys2prv.replay.events import (
    POLLS,
    Calls,
    Operations,
    describe_calls,
    read_calls,
    read_markers,
    read_operations,
)
from nsys2prv.replay.graph import (
    US,
    Durations,
    EdgeColumns,
    Kind,
    NodeColumns,
    Times,
    list_cases,
    make_durations,
)
from nsys2prv.store.event_reader import EventReader

#: Places between two calls are numbered below zero: by both names. As in native/arrange.c.
_PLACE = 1 << 15
#: Cases in which an edge was over so long (ns) after all others of its node tell its latency.
CLEAR = 20 * US
#: Types of the columns of nodes and of edges.
_COLUMNS = (
    (np.int64, np.int32, np.uint8, np.int32, np.int32),
    (np.int32, np.int32, np.uint8, np.int32, np.int32),
)


class UnitGraph(Struct):
    """Moments and dependencies of one unit, and what of its events the job's graph needs."""

    #: Nodes, and edges between their moments.
    nodes: NodeColumns
    columns: EdgeColumns
    #: Edges that tell their latency, and groups of latencies (:func:`mark_clear`).
    marks: np.ndarray
    groups: pl.DataFrame
    #: NCCL kernels, and calls of MPI: `thread`, `begin`, `end`, `node_begin`, `node_end` (moments),
    #: `name`, and `bytes` of kernels.
    kernels: pl.DataFrame
    mpi: pl.DataFrame
    #: Copies: `edge` (node), `bytes`, `source`, `destination` (kinds of memory).
    copies: pl.DataFrame
    #: Nodes of calls that only look whether something is done.
    idle_nodes: np.ndarray
    #: Edges left out because they contradict themselves, by kind, and because of cycles.
    contradictions: dict[Kind, int]
    cycles: int


def make_place(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return the number of the place between calls of two names."""
    return -1 - (before * _PLACE + after)


def split_place(place: int) -> tuple[int, int]:
    """Return the names of the calls before and after a place."""
    before, after = divmod(-1 - place, _PLACE)
    return before, after


def classify_size(size: np.ndarray) -> np.ndarray:
    """Return a class for sizes (bytes) that differ little: four for each power of two."""
    return np.round(np.log2(np.maximum(size, 1)) * 4).astype(np.int64)


def build_unit_graph(reader: EventReader, unit: int, labels: Mapping[int, str]) -> UnitGraph:
    """Return the graph of a unit. labels: value -> label of calls."""
    calls, launches = read_calls(reader, unit)
    operations = read_operations(reader, unit, calls, launches)
    del launches
    markers = read_markers(reader, unit)
    task_of, device_of = (
        reader.rows.get_column(name).astype(np.int32) for name in ("task", "device")
    )
    does = describe_calls(calls, labels)
    count = len(operations.begin)
    nodes_of = np.empty(2 * (count + len(calls.begin)), np.int32)
    is_copy, work = operations.kind == Kind.COPY, operations.name
    if is_copy.any():
        copied = operations.name * 1000 + classify_size(operations.bytes).astype(np.int32)
        work = np.where(is_copy, copied, work)
    arranged, contradictions, cycles = core.build_unit(
        (calls.begin, calls.end, calls.thread, calls.name, does, calls.is_mpi.view(np.uint8)),
        (
            operations.begin,
            operations.end,
            operations.stream,
            operations.call,
            work,
            operations.kind,
        ),
        (markers.time, markers.says, markers.thread, markers.stream, markers.event),
        (np.maximum(task_of - 1, 0), device_of),
        nodes_of,
    )
    del work, markers
    (time, row, kind, key, lasts), columns = (
        [np.frombuffer(column, dtype) for column, dtype in zip(part, dtypes, strict=True)]
        for part, dtypes in zip(arranged, _COLUMNS, strict=True)
    )

    begins = (
        (nodes_of[:count], operations), (nodes_of[2 * count :][: len(calls.begin)], calls)
    )  # fmt: skip
    find_long = partial(_find_lasts, begins, len(time))
    nodes = NodeColumns(time, row, kind, key, make_durations(lasts, find_long))
    del begins, find_long
    moments = nodes_of * 2
    of_nccl, of_copies = np.flatnonzero(operations.kind == Kind.NCCL), np.flatnonzero(is_copy)
    kernels = _list_nodes(operations, operations.stream, of_nccl, moments)
    kernels = kernels.with_columns(bytes=pl.Series(operations.bytes[of_nccl]))
    mpi = _list_nodes(calls, calls.thread, np.flatnonzero(calls.is_mpi), moments[2 * count :])
    copies = {"edge": nodes_of[of_copies]} | {
        name: getattr(operations, name)[of_copies] for name in ("bytes", "source", "destination")
    }
    polls = np.flatnonzero(does & POLLS)
    idle_nodes = nodes_of[2 * count + np.append(polls, len(calls.begin) + polls)]
    del calls, operations, moments, nodes_of, does
    edge_columns = EdgeColumns(*columns)
    marks, groups = mark_clear(nodes, edge_columns, np.append(task_of - 1, np.int32(-1)))
    return UnitGraph(
        nodes,
        edge_columns,
        marks,
        groups,
        kernels,
        mpi,
        pl.DataFrame(copies).cast(pl.Int64).sort("edge"),
        idle_nodes[idle_nodes >= 0],
        {Kind(kind): number for kind, number in enumerate(contradictions) if number},
        cycles,
    )


def _find_lasts(
    begins: tuple[tuple[np.ndarray, Operations | Calls], ...], count: int, nodes: np.ndarray
) -> np.ndarray:
    """Return how long the events that begin at `nodes` last (ns). begins: the nodes of all events."""
    lasts = np.zeros(count if len(nodes) else 0, np.int64)
    for places, events in begins if len(nodes) else ():
        lasts[places] = events.end - events.begin
    return lasts[nodes]


def _list_nodes(
    events: Operations | Calls, thread: np.ndarray, rows: np.ndarray, moments: np.ndarray
) -> pl.DataFrame:
    """Return thread, begin, end, node_begin, node_end and name of some operations or calls. moments:
    of the begins of all, then of their ends.
    """
    return pl.DataFrame(
        {
            "thread": thread[rows].astype(np.int64),
            "begin": events.begin[rows],
            "end": events.end[rows],
            "node_begin": moments[rows].astype(np.int64),
            "node_end": moments[len(thread) + rows].astype(np.int64),
            "name": events.name[rows].astype(np.int64),
        }
    )


def mark_clear(
    nodes: NodeColumns, columns: EdgeColumns, processes: np.ndarray
) -> tuple[np.ndarray, pl.DataFrame]:
    """Put the edges of a unit whose typical weight is to be estimated into groups. Returns which ones
    tell their latency (uint8), and `kind`, `process`, `key` of each group with `count` and `usual`,
    the median of these (ns).
    """
    marks = np.zeros(len(columns.target), np.uint8)
    count = len(columns.target)
    value = np.append(np.zeros(count, np.int32), nodes.lasts.value)
    weight = Durations(value, count + nodes.lasts.place, nodes.lasts.length)
    kinds = np.append(columns.kind, nodes.work)
    found = core.group_latencies(
        core.make_graph(columns.target, columns.source, kinds, count), nodes.time, weight.columns, columns.key,
        processes[nodes.row], CLEAR, columns.typical, marks,
    )  # fmt: skip
    groups = pl.DataFrame(found, dict.fromkeys(("kind", "process", "key"), pl.Int64), orient="row")
    cases = list_cases(np.flatnonzero(marks), columns, Times(nodes.time, weight))
    medians = cases.group_by("group").agg(count=pl.len(), usual=pl.col("gap").median())
    groups = groups.with_row_index("group").with_columns(pl.col("group").cast(pl.Int32))
    return marks, groups.join(medians, on="group", how="left", maintain_order="left").drop("group")
