"""The moments and dependencies of one unit: what its calls and operations wait for within it."""

from __future__ import annotations

from collections.abc import Mapping

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
from nsys2prv.replay.graph import US, Edges, Kind, join_edges, make_edges
from nsys2prv.store.event_reader import EventReader

#: Places between two calls are numbered below zero: by both names.
_PLACE = 1 << 24
#: What a call that may wait lasts without a reason to, where no such call shows it (ns).
USUAL_CALL = 8 * US
#: What a thread needs that another one woke (ns).
USUAL_WAKE_UP = 5 * US
#: An operation that begins so long after all that is known to hold it up (ns) may have waited for
#: another stream of its device that has ended within the other time before.
LATE_START, JUST_BEFORE = 15 * US, 8 * US
#: Operations outstanding from which on a launch queue may be full, and how much longer than usual a
#: launch lasts then.
FEWEST_OUTSTANDING, SLOW_LAUNCH = 500, 20


class UnitGraph(Struct):
    """Moments and dependencies of one unit. Nodes: begins of operations, their ends, begins of calls,
    their ends.
    """

    #: Recorded times of the nodes (ns).
    times: np.ndarray
    #: Dependencies within the unit; None once they are part of the job's.
    edges: Edges | None
    #: Operations of devices.
    operations: Operations
    #: Outermost calls.
    calls: Calls
    #: Whether a call only looks whether something is done.
    polls: np.ndarray


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
    markers = read_markers(reader, unit)
    task_of = reader.rows.get_column("task").astype(np.int32) - 1
    does = describe_calls(calls, labels)
    edges = _find_dependencies(calls, operations, markers, does, task_of)
    times = np.concatenate([operations.begin, operations.end, calls.begin, calls.end])
    described = _describe_edges(edges, calls, operations, task_of)
    parts = [
        described,
        _make_work(operations, task_of),
        _find_full_queues(calls, operations, task_of),
        _find_other_streams(times, described, operations, reader, task_of),
    ]
    polls = (does & POLLS) > 0
    return UnitGraph(times, join_edges(parts), operations, calls, polls)


def _find_dependencies(
    calls: Calls, operations: Operations, markers: Markers, does: np.ndarray, task_of: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return targets, sources and kinds."""
    target, source, kind = core.find_dependencies(
        (calls.begin, calls.end, calls.thread, does),
        (
            operations.begin,
            operations.end,
            operations.stream,
            operations.call,
            (operations.kind == Kind.COPY).astype(np.uint8),
        ),
        (markers.time, markers.says, markers.thread, markers.stream, markers.event),
        np.maximum(task_of, 0),
    )
    return (
        np.frombuffer(target, np.int32),
        np.frombuffer(source, np.int32),
        np.frombuffer(kind, np.uint8),
    )


def _describe_edges(
    found: tuple[np.ndarray, np.ndarray, np.ndarray],
    calls: Calls,
    operations: Operations,
    task_of: np.ndarray,
) -> Edges:
    """Return the edges with process, key and typical weight, without returns that nothing shows."""
    target, source, kind = found
    count, begins = len(operations.begin), 2 * len(operations.begin)
    ends = begins + len(calls.begin)
    # Of returns those count that the call was there for.
    is_return = kind == Kind.RETURN
    call_of = np.clip(np.where(target >= ends, target - ends, target - begins), 0, None)
    waited = np.zeros(len(calls.begin) + 1, bool)
    rows = np.flatnonzero(is_return)
    unfinished = operations.end[source[rows] - count] > calls.begin[call_of[rows]]
    waited[call_of[rows[unfinished]]] = True
    kept = np.ones(len(target), bool)
    kept[rows] = unfinished | waited[call_of[rows]]
    target, source, kind, call_of = target[kept], source[kept], kind[kept], call_of[kept]

    process, key = np.zeros(len(target), np.int32), np.zeros(len(target), np.int64)
    typical = np.full(len(target), -1, np.int64)
    of_call = target >= begins
    process[of_call] = task_of[calls.thread[call_of[of_call]]]
    process[~of_call] = task_of[operations.stream[target[~of_call]]]
    named = np.isin(kind, (Kind.CALL, Kind.RETURN))
    key[named] = calls.name[call_of[named]]
    launch = np.flatnonzero(kind == Kind.LAUNCH)
    after = source[launch] >= ends
    launching = source[launch] - np.where(after, ends, begins)
    key[launch] = calls.name[launching] * 2 + after
    gap = np.flatnonzero(kind == Kind.GAP)
    key[gap] = make_place(calls.name[source[gap] - ends], calls.name[call_of[gap]])
    # A call that another thread woke; one that is the first of its thread.
    handoff = np.flatnonzero(kind == Kind.HANDOFF)
    woken = np.zeros(len(calls.begin) + 1, bool)
    has_gap = np.zeros(len(calls.begin) + 1, bool)
    has_gap[call_of[gap]] = True
    woken[call_of[handoff]] = True
    typical[gap[woken[call_of[gap]]]] = USUAL_WAKE_UP
    first = handoff[~has_gap[call_of[handoff]]]
    typical[first] = calls.begin[call_of[first]] - calls.end[source[first] - ends]
    call = np.flatnonzero(kind == Kind.CALL)
    typical[call] = _find_own_durations(calls, waited[:-1], task_of)[call_of[call]]
    return make_edges(kind, target, source, process, key, typical)


def _make_work(operations: Operations, task_of: np.ndarray) -> Edges:
    """Return the edges from the begins of operations to their ends."""
    count = len(operations.begin)
    key = np.where(
        operations.kind == Kind.COPY,
        operations.name * 1000 + classify_size(operations.bytes),
        operations.name,
    )
    nodes = np.arange(count)
    return make_edges(operations.kind, count + nodes, nodes, task_of[operations.stream], key)


def _find_own_durations(calls: Calls, waited: np.ndarray, task_of: np.ndarray) -> np.ndarray:
    """Return what calls that have waited last by themselves (ns), -1 for all others."""
    if not waited.any():
        return np.full(len(waited), -1, np.int64)
    over = ("process", "name")
    frame = pl.DataFrame(
        {
            "process": task_of[calls.thread],
            "name": calls.name,
            "lasts": calls.end - calls.begin,
            "waited": waited,
        }
    ).select(
        "lasts",
        idle=pl.when(~pl.col("waited")).then("lasts").median().over(over).fill_null(USUAL_CALL),
        least=pl.col("lasts").quantile(0.02, "lower").over(over),
    )
    own = frame.select(pl.min_horizontal("idle", "least", "lasts").cast(pl.Int64))
    return np.where(waited, own.to_series().to_numpy(), -1)


def _find_full_queues(calls: Calls, operations: Operations, task_of: np.ndarray) -> Edges:
    """Return edges of launches that waited while too many operations of their process were
    outstanding: on the end of the operation that made room.
    """
    parts = [make_edges(Kind.QUEUE, *[np.zeros(0, np.int32)] * 3)]
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
        lasts = calls.end[call] - calls.begin[call]
        full = (lasts > SLOW_LAUNCH * np.median(lasts)) & (outstanding >= most * 0.97)
        if most < FEWEST_OUTSTANDING or full.sum() < 3:
            continue
        limit = int(np.percentile(outstanding[full], 50)) - 1
        rows = np.arange(limit, len(own))
        target = 2 * count + len(calls.begin) + call[rows]
        parts.append(make_edges(Kind.QUEUE, target, count + by_end[rows - limit], task))
    return join_edges(parts)


def _find_other_streams(
    times: np.ndarray,
    edges: Edges,
    operations: Operations,
    reader: EventReader,
    task_of: np.ndarray,
) -> Edges:
    """Return edges of operations that begin later than all that is known to hold them up, just after
    another stream of the device has ended an operation: that one held them up.
    """
    none = make_edges(Kind.OTHER, *[np.zeros(0, np.int32)] * 3)
    count = len(operations.begin)
    if not count:
        return none
    nothing = np.iinfo(np.int64).min
    held_until = np.full(count, nothing)
    rows = np.flatnonzero((edges.target < count) & (times[edges.source] <= times[edges.target]))
    np.maximum.at(held_until, edges.target[rows], times[edges.source[rows]])
    late = np.flatnonzero((operations.begin - held_until > LATE_START) & (held_until > nothing))
    if not len(late):
        return none
    device = reader.rows.get_column("device")[operations.stream]
    targets, sources = [], []
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
        sources.append(count + last[fits])
    target = np.concatenate(targets)
    return make_edges(
        Kind.OTHER, target, np.concatenate(sources), task_of[operations.stream[target]]
    )
