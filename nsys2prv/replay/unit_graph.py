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
    Markers,
    Operations,
    describe_calls,
    read_calls,
    read_markers,
    read_operations,
)
from nsys2prv.replay.graph import (
    AS_RECORDED,
    LONG,
    TO_ESTIMATE,
    US,
    EdgeColumns,
    Kind,
    NodeColumns,
    make_durations,
    mark_clear,
)
from nsys2prv.store.event_reader import EventReader

#: Places between two calls are numbered below zero: by both names. As in native/arrange.c.
_PLACE = 1 << 15
#: Types of the columns of nodes and of edges.
_COLUMNS = (
    (np.int64, np.int32, np.uint8, np.int32, np.int32),
    (np.int32, np.int32, np.uint8, np.int32, np.int32),
)
#: How long a call that may wait lasts with nothing to wait for, where no call shows it (ns).
USUAL_CALL = 8 * US
#: An operation that begins so long after all that is known to hold it up (ns) may have waited for
#: another stream of its device that has ended within the other time before.
LATE_START, JUST_BEFORE = 15 * US, 8 * US
#: Operations outstanding from which on a launch queue may be full, and how much longer than usual a
#: launch lasts then.
FEWEST_OUTSTANDING, SLOW_LAUNCH = 500, 20


class UnitGraph(Struct):
    """Moments and dependencies of one unit, and what of its events the job's graph needs."""

    #: Nodes, and edges between their moments.
    nodes: NodeColumns
    columns: EdgeColumns
    #: Edges that tell their latency, and groups of latencies (:func:`~nsys2prv.replay.graph.mark_clear`).
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
    task_of = reader.rows.get_column("task").astype(np.int32) - 1
    does = describe_calls(calls, labels)
    parts = _find_dependencies(reader, calls, operations, read_markers(reader, unit), does, task_of)
    # A column at a time, and its parts go.
    columns_of = [[*column] for column in zip(*parts, strict=True)]
    del parts
    edges = tuple(np.concatenate(columns_of.pop(0)) for _ in range(len(columns_of)))
    count = len(operations.begin)
    nodes_of = np.empty(2 * (count + len(calls.begin)), np.int32)
    work = operations.name
    if (operations.kind == Kind.COPY).any():
        copied = operations.name * 1000 + classify_size(operations.bytes).astype(np.int32)
        work = np.where(operations.kind == Kind.COPY, copied, work)
    arranged, contradictions, cycles = core.arrange_unit(
        (operations.begin, operations.end, operations.stream, work, operations.kind),
        (calls.begin, calls.end, calls.thread, calls.name),
        edges,
        nodes_of,
    )
    del edges, work
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
    of_nccl, of_copies = (
        np.flatnonzero(operations.kind == kind) for kind in (Kind.NCCL, Kind.COPY)
    )
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
    marks, groups = mark_clear(nodes, edge_columns, np.append(task_of, np.int32(-1)))
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


_Edges = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def _make_edges(
    kind: Kind, target: np.ndarray, source: np.ndarray, typical: np.ndarray | int = TO_ESTIMATE
) -> _Edges:
    """Return targets, sources, kinds and typical weights."""
    count = len(target)
    return (
        target.astype(np.int32),
        source.astype(np.int32),
        np.full(count, kind, np.uint8),
        np.broadcast_to(np.asarray(typical, np.int32), count),
    )


def _find_dependencies(
    reader: EventReader,
    calls: Calls,
    operations: Operations,
    markers: Markers,
    does: np.ndarray,
    task_of: np.ndarray,
) -> list[_Edges]:
    """Return targets, sources, kinds and typical weights of edges between moments: begins of
    operations, their ends, begins of calls, their ends.
    """
    count, is_nccl = len(operations.begin), operations.kind == Kind.NCCL
    begins, ends = 2 * count, 2 * count + len(calls.begin)
    waited = np.zeros(len(calls.begin), np.uint8)
    held_until = np.empty(count, np.int64)
    found = core.find_dependencies(
        (calls.begin, calls.end, calls.thread, does),
        (
            operations.begin,
            operations.end,
            operations.stream,
            operations.call,
            (operations.kind == Kind.COPY).view(np.uint8),
        ),
        (markers.time, markers.says, markers.thread, markers.stream, markers.event),
        np.maximum(task_of, 0),
        waited,
        held_until,
    )
    dtypes = (np.int32, np.int32, np.uint8, np.int32)
    target, source, kind, typical = (
        np.frombuffer(column, dtype) for column, dtype in zip(found, dtypes, strict=True)
    )
    queued = _find_full_queues(calls, operations, task_of)
    # Ends that wait for more than the begin. Those of transfers wait for other ranks.
    waits = (waited > 0) | calls.is_mpi
    waits[queued[0] - ends] = True
    waiting, transfers = np.flatnonzero(waits), np.flatnonzero(is_nccl)
    own = _find_own_durations(calls, waited > 0, task_of)[waiting]
    return [
        _make_edges(Kind.CALL, ends + waiting, begins + waiting, own),
        _make_edges(Kind.NCCL, count + transfers, transfers, AS_RECORDED),
        (target, source, kind, typical),
        _make_edges(Kind.QUEUE, *queued),
        _make_edges(Kind.OTHER, *_find_other_streams(held_until, operations, reader)),
    ]


def _find_own_durations(calls: Calls, waited: np.ndarray, task_of: np.ndarray) -> np.ndarray:
    """Return how long calls that waited last without the wait (ns), AS_RECORDED for all others."""
    if not waited.any():
        return np.full(len(waited), AS_RECORDED, np.int32)
    over = ("process", "name")
    rows = np.flatnonzero(np.isin(calls.name, np.unique(calls.name[waited])))
    frame = pl.DataFrame(
        {
            "process": task_of[calls.thread[rows]],
            "name": calls.name[rows],
            "lasts": calls.end[rows] - calls.begin[rows],
            "waited": waited[rows],
        }
    ).select(
        "lasts",
        idle=pl.when(~pl.col("waited")).then("lasts").median().over(over).fill_null(USUAL_CALL),
        least=pl.col("lasts").quantile(0.02, "lower").over(over),
    )
    own = frame.select(pl.min_horizontal("idle", "least", "lasts").cast(pl.Int64))
    own_durations = np.full(len(waited), AS_RECORDED, np.int32)
    own_durations[rows] = np.minimum(own.to_series().to_numpy(), LONG - 1)
    return np.where(waited, own_durations, np.int32(AS_RECORDED))


def _find_full_queues(
    calls: Calls, operations: Operations, task_of: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return ends of launches that waited while too many operations of their process were
    outstanding, and the ends of the operations that made room, as moments.
    """
    targets, sources = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    launched = np.flatnonzero(operations.call >= 0)
    process = task_of[operations.stream[launched]]
    count = len(operations.begin)
    for task in np.unique(process).tolist():
        # One operation for each call: the last.
        own = launched[process == task]
        last = np.append(operations.call[own][1:] != operations.call[own][:-1], True)
        own = own[last]
        call = operations.call[own]
        by_end = own[np.argsort(operations.end[own], kind="stable")]
        ended = np.searchsorted(operations.end[by_end], calls.end[call])
        outstanding = np.arange(1, len(own) + 1) - ended
        most = int(outstanding.max(initial=0))
        if most < FEWEST_OUTSTANDING:
            continue
        lasts = calls.end[call] - calls.begin[call]
        full = (lasts > SLOW_LAUNCH * np.median(lasts)) & (outstanding >= most * 0.97)
        if full.sum() < 3:
            continue
        limit = int(np.percentile(outstanding[full], 50)) - 1
        rows = np.arange(limit, len(own))
        targets.append(2 * count + len(calls.begin) + call[rows])
        sources.append(count + by_end[rows - limit])
    return np.concatenate(targets), np.concatenate(sources)


def _find_other_streams(
    held_until: np.ndarray, operations: Operations, reader: EventReader
) -> tuple[np.ndarray, np.ndarray]:
    """Return begins of operations that are later than all that is known to hold them up, just after
    another stream of the device has ended an operation, and the ends of these, which held them up.
    """
    targets, sources = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    late = np.flatnonzero(
        (operations.begin - held_until > LATE_START) & (held_until > np.iinfo(np.int64).min)
    )
    if not len(late):
        return targets[0], sources[0]
    device = reader.rows.get_column("device")[operations.stream]
    for one in np.unique(device[late]).tolist():
        own = late[device[late] == one]
        of_device = np.flatnonzero(device == one)
        by_end = of_device[np.argsort(operations.end[of_device], kind="stable")]
        place = np.searchsorted(operations.end[by_end], operations.begin[own], "right") - 1
        last = by_end[np.maximum(place, 0)]
        fits = (
            (place >= 0)
            & (operations.stream[last] != operations.stream[own])
            & (operations.begin[own] - operations.end[last] < JUST_BEFORE)
            & (operations.end[last] > held_until[own])
        )
        targets.append(own[fits])
        sources.append(len(operations.begin) + last[fits])
    return np.concatenate(targets), np.concatenate(sources)
