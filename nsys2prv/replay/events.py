"""Read the events of one unit that the replay needs, as columns: outermost calls of host threads,
device operations, and rows with dependencies between calls and streams.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.budget import INTERVAL_ROWS
from nsys2prv._util.columns import (
    ABSENT,
    factorize,
    find_places,
    is_sorted,
    number_rows,
    take_rows,
)
from nsys2prv._util.intervals import find_outermost
from nsys2prv.events.catalogue import load_catalogue, map_labels
from nsys2prv.events.cuda import SYNCHRONISING, SYNCHRONIZATIONS
from nsys2prv.events.mpi import MPI_LAYOUTS
from nsys2prv.replay.graph import CLOCKS_APART, Kind
from nsys2prv.table.event_reader import EventReader

#: Calls by name: those that wait for the device, that wait for all launched work of the process, that copy,
#: and that only poll.
SYNCHRONISES, FREES, COPIES, POLLS, STAGES = 1, 2, 4, 8, 16
CALL_NAMES = {
    SYNCHRONISES: re.compile(SYNCHRONISING),
    FREES: re.compile(
        r"(?i)^cu(?:da)?(?:Free|MemFree|FreeHost|MemFreeHost|HostUnregister|StreamDestroy|DeviceReset"
        r"|CtxDestroy|ModuleUnload|LibraryUnload)(?!.*Async)"
    ),
    COPIES: re.compile(r"(?i)^cu(?:da)?Mem(cpy|set)"),
    # The watchdogs of PyTorch set a mode before they look.
    POLLS: re.compile(r"(?i)^cu(?:da)?(?:(?:Event|Stream)Query|ThreadExchangeStreamCaptureMode)"),
}
#: Meanings of rows about events and synchronizations; the numbers are those of native/replay.c.
RECORD, WAIT_STREAM, WAIT_CONTEXT, WAIT_EVENT, HOLD_STREAM = range(5)
_SYNCHRONISATIONS = {
    SYNCHRONIZATIONS["streamsynchronize"]: WAIT_STREAM,
    SYNCHRONIZATIONS["contextsynchronize"]: WAIT_CONTEXT,
    SYNCHRONIZATIONS["eventsynchronize"]: WAIT_EVENT,
    SYNCHRONIZATIONS["streamwaitevent"]: HOLD_STREAM,
}
#: The layout of CUDA graphs that were traced as a whole.
GRAPHS = "cuda_graph"
#: Layout of operations -> kind of the work, the field that names it, and further ones.
_OPERATIONS = {
    "cuda_kernel": (Kind.KERNEL, "kernel", ("class",)),
    "nccl_kernel": (Kind.NCCL, "kernel", ("bytes", "operation")),
    "memory_operation": (Kind.COPY, "operation", ("bytes", "source", "destination")),
    # Its kernels may meet those of other ranks.
    GRAPHS: (Kind.NCCL, "execution", ()),
}
_CALL_COLUMNS = {
    "begin": np.int64, "end": np.int64, "thread": np.int32, "name": np.int32,
    "correlation": np.int64,
}  # fmt: skip
#: Added to event values of MPI calls, which CUDA's may be equal to. Twice as many there are at most.
#: The last of CUDA's stand for hand-offs, and for the end of a wait of who hands off.
MPI_NAMES = 1 << 14
HANDOFF, WAITED = MPI_NAMES - 1, MPI_NAMES - 2
_OPERATION_COLUMNS = {
    "begin": np.int64, "end": np.int64, "thread": np.int32, "name": np.int32, "kind": np.uint8,
    "is_graph": np.bool_, "correlation": np.int64, "bytes": np.int64, "source": np.int16, "destination": np.int16,
}  # fmt: skip
#: Operations that belong to no stream and no call.
MIGRATIONS = [
    value
    for value, label in load_catalogue().value_sets["memory_operation"].labels
    if re.search(r"(?i)unified|migrat|page", label)
]


class Calls(Struct, frozen=True):
    """The outermost CUDA and MPI calls of host threads, sorted by start, as columns of equal
    length.
    """

    #: ns of the trace.
    begin: np.ndarray
    #: ns of the trace.
    end: np.ndarray
    #: Row of the trace (int32).
    thread: np.ndarray
    #: Event value of the call, the same on all ranks (int32).
    name: np.ndarray

    @property
    def meets(self) -> np.ndarray:
        """Mask of the calls that may wait for other processes: MPI calls and hand-offs."""
        return self.name >= WAITED


class Operations(Struct, frozen=True):
    """Kernels, copies and other work of GPUs, sorted by launch, as columns of equal length."""

    #: ns of the trace.
    begin: np.ndarray
    #: ns of the trace.
    end: np.ndarray
    #: Row of the trace (int32).
    stream: np.ndarray
    #: Event value of the name, the same on all ranks (int32).
    name: np.ndarray
    #: Kind of the work, a Kind (uint8).
    kind: np.ndarray
    #: Whether it is a CUDA graph that was traced as a whole.
    is_graph: np.ndarray
    #: Index of the outermost call that launched it, -1 where unknown (int32).
    call: np.ndarray
    #: Bytes that it moves, -1 where unknown.
    bytes: np.ndarray
    #: Kinds of memory that a copy is from and to, as event values, -1 where unknown (int16).
    source: np.ndarray
    destination: np.ndarray


class Markers(Struct, frozen=True):
    """Records of CUDA events and of synchronization, sorted by start, as columns of equal length."""

    #: ns of the trace.
    time: np.ndarray
    #: Its meaning, such as WAIT_STREAM (uint8).
    says: np.ndarray
    #: Row of the host thread, -1 where unknown (int32).
    thread: np.ndarray
    #: Row of the stream, -1 where unknown (int32).
    stream: np.ndarray
    #: Number of the event, from 0, -1 where unknown (int32).
    event: np.ndarray


class Launches(Struct, frozen=True):
    """The calls that launched work, by task and correlation id: for each, its index in
    :class:`Calls`.
    """

    #: Task of the trace, and the correlation, which is one of its report's process.
    task: np.ndarray
    correlation: np.ndarray
    #: Index of the outermost call (int32).
    call: np.ndarray


def read_calls(reader: EventReader, unit: int, handoffs: pl.DataFrame) -> tuple[Calls, Launches]:
    """Read the outermost CUDA and MPI calls of a unit (threads that share a report or GPU), and the
    calls that launched operations.

    Waits and releases of hand-offs between processes become separate calls. handoffs: of all units
    (HANDOFFS in `match/handoffs.py`).
    """
    fields = {"cuda_api": ("call", "correlation"), **dict.fromkeys(MPI_LAYOUTS, ("call",))}
    columns = reader.read_joined(fields, unit, _CALL_COLUMNS, _make_calls)
    sides = _list_sides(handoffs, reader.rows.units == unit) if handoffs.height else {}
    if sides and len(sides["begin"]):
        order = np.argsort(np.append(sides["begin"], columns["begin"]), kind="stable")
        columns = {
            name: np.append(sides[name].astype(column.dtype), column)[order]
            for name, column in columns.items()
        }
    columns, outer, first = find_outermost(columns)
    begin, end, thread, name, correlation = columns.values()
    del columns
    launches = Launches(
        reader.rows.get_column("process").astype(np.int32)[thread], correlation, outer
    )
    if not (known := correlation >= 0).all():
        launches = Launches(launches.task[known], correlation[known], outer[known])
    return Calls(*(column[first] for column in (begin, end, thread, name))), launches


def _make_calls(layout: str, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the columns _CALL_COLUMNS for the calls of a layout."""
    is_mpi = layout != "cuda_api"
    name = np.minimum(columns["call"], WAITED - 1) + MPI_NAMES * is_mpi
    return {"correlation": np.full(len(name), ABSENT), **columns, "name": name}


def _list_sides(handoffs: pl.DataFrame, is_own: np.ndarray) -> dict[str, np.ndarray]:
    """Return the waits of hand-offs, and the times at which others end them, on the rows in a mask,
    with the columns _CALL_COLUMNS.
    """
    name, waited = pl.lit(HANDOFF).alias("name"), handoffs.filter("waited")
    sides = [
        waited.select(begin="since", end="since", thread="releaser", name=pl.lit(WAITED)).unique(),
        handoffs.select(begin="released", end="released", thread="releaser", name=name).unique(),
        handoffs.select("begin", "end", "thread", name),
    ]
    found = pl.concat(sides).with_columns(correlation=pl.lit(ABSENT))
    found = found.filter(pl.Series(is_own[found["thread"].to_numpy()]))
    return {column: found[column].to_numpy() for column in _CALL_COLUMNS}


def describe_calls(calls: Calls, labels: Mapping[int, str], operations: Operations) -> np.ndarray:
    """Return the effects of each call as flags, such as SYNCHRONISES | FREES (uint8). They depend
    on its name, and on whether it copies pageable memory. labels: name of calls (number) -> label.
    """
    values, codes = factorize(calls.name)
    does = [
        sum(bit for bit, names in CALL_NAMES.items() if names.search(labels.get(value, "")))
        for value in values.tolist()
    ]
    found = np.array(does, np.uint8)[codes]
    pageable = map_labels("memory_kind")["pageable"]
    stages = (operations.source == pageable) | (operations.destination == pageable)
    found[operations.call[stages & (operations.call >= 0)]] |= STAGES
    return found


def read_operations(reader: EventReader, unit: int, calls: Calls, launches: Launches) -> Operations:
    """Read the device operations of a unit, each with the call that launched it. calls, launches:
    of the same unit, from :func:`read_calls`.
    """
    fields = {
        layout: (name, "correlation", *more) for layout, (_, name, more) in _OPERATIONS.items()
    }
    columns = reader.read_joined(fields, unit, _OPERATION_COLUMNS, _make_operations)
    begin, stream = columns["begin"], columns["thread"]
    tasks = reader.rows.get_column("process").astype(np.int32)[stream]
    call = find_launches(launches, tasks, columns.pop("correlation"))
    known = np.flatnonzero(call >= 0)
    call[known[calls.begin[call[known]] > begin[known] + CLOCKS_APART]] = -1
    columns["call"] = call = _order_unlaunched(call, stream, begin, calls)
    launched = np.where(call >= 0, calls.begin[call] if len(calls.begin) else begin, begin)
    order = np.argsort(launched, kind="stable")
    del tasks, known, begin, stream, call, launched
    for name in columns:
        columns[name] = columns[name][order]
    return Operations(stream=columns.pop("thread"), **columns)


def _make_operations(layout: str, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the columns _OPERATION_COLUMNS for the operations of a layout."""
    kind, name, _ = _OPERATIONS[layout]
    none = np.full(len(columns["begin"]), -1)
    made = {**columns, "name": columns[name], "kind": none * 0 + kind}
    made["is_graph"] = np.full(len(none), layout == GRAPHS)
    made["end"] = np.maximum(columns["end"], columns["begin"])
    for field in ("bytes", "source", "destination"):
        made[field] = np.maximum(columns.get(field, none), -1)
    if layout == "cuda_kernel":
        # Kernels that communicate without NCCL are as NCCL's.
        is_nccl = columns["class"] == map_labels("kernel_class")["communication"]
        made["kind"][is_nccl] = Kind.NCCL
    if layout == "memory_operation":
        kept = np.all([columns[name] != one for one in MIGRATIONS], axis=0)
        made = take_rows(made, kept)
    return made


def _order_unlaunched(
    call: np.ndarray, thread: np.ndarray, begin: np.ndarray, calls: Calls
) -> np.ndarray:
    """Return the call that launched each operation.

    If an operation was launched before the capture, it gets the call of the next operation on its
    stream, provided that it began after this call: it was launched no later.
    """
    if not (call < 0).any():
        return call
    frame = pl.DataFrame({"thread": thread, "begin": begin, "call": call}).with_row_index("row")
    known = pl.when(pl.col("call") >= 0).then("call").backward_fill().over("thread")
    following = frame.sort("thread", "begin").with_columns(call=known).sort("row")["call"]
    following = following.fill_null(-1).to_numpy()
    rows = np.flatnonzero((call < 0) & (following >= 0))
    rows = rows[calls.begin[following[rows]] < begin[rows]]
    call[rows] = following[rows]
    return call


def find_launches(launches: Launches, tasks: np.ndarray, correlations: np.ndarray) -> np.ndarray:
    """Return for each pair of task and correlation id the index of its call (int32), or -1 without
    one.
    """
    call = np.full(len(tasks), -1, np.int32)
    for task in np.unique(launches.task).tolist():
        ids, calls = launches.correlation, launches.call
        if not (is_own := launches.task == task).all():
            ids, calls = ids[is_own], calls[is_own]
        if not is_sorted(ids):
            # The first of several calls with one id.
            order = np.argsort(ids, kind="stable")
            ids, calls = ids[order], calls[order]
        calls = np.append(calls, np.int32(-1))
        wanted = np.flatnonzero(tasks == task)
        for first in range(0, len(wanted), INTERVAL_ROWS):
            own = wanted[first : first + INTERVAL_ROWS]
            call[own] = calls[find_places(ids, correlations[own])]
    return call


def read_markers(reader: EventReader, unit: int) -> Markers:
    """Read the rows about CUDA events and synchronization in a unit, such as the recording of an
    event.
    """
    named = "begin", "event", "stream", "thread"
    records = reader.read_begins("cuda_event", ("event", "stream"), unit)
    waits = reader.read_begins("cuda_synchronization", ("event", "stream", "type"), unit)
    says = np.zeros(max(_SYNCHRONISATIONS) + 1, np.uint8)
    says[[*_SYNCHRONISATIONS]] = [*_SYNCHRONISATIONS.values()]
    kind = waits["type"].to_numpy()
    known = np.flatnonzero(np.isin(kind, [*_SYNCHRONISATIONS]))
    given = (records[name].to_numpy() for name in named), (waits[name].to_numpy() for name in named)
    begin, event, stream, thread = (
        np.append(first, second[known]) for first, second in zip(*given, strict=True)
    )
    order = np.argsort(begin, kind="stable")
    says = np.append(np.full(records.height, RECORD, np.uint8), says[kind[known]])[order]
    begin, event, stream, thread = (one[order] for one in (begin, event, stream, thread))
    tasks = reader.rows.get_column("process")
    # The first of several rows of a stream.
    streams = reader.remember("streams of rows", lambda: reader.rows.threads["stream"].to_list())
    row_of: dict[tuple[int, int], int] = {}
    for row in np.flatnonzero(reader.rows.units == unit).tolist():
        if streams[row] is not None:
            row_of.setdefault((int(tasks[row]), int(streams[row])), row)
    task = tasks[thread]
    first, codes = number_rows(task, stream)
    pairs = zip(task[first].tolist(), stream[first].tolist(), strict=True)
    rows = np.array([row_of.get(pair, -1) for pair in pairs], np.int32)
    _, number = number_rows(event, task)
    return Markers(
        begin,
        says,
        thread.astype(np.int32),
        rows[codes],
        np.where(event >= 0, number, -1).astype(np.int32),
    )


def label_calls(labels: Mapping[str, pl.DataFrame]) -> dict[int, str]:
    """Return the labels of calls by the number that :class:`Calls` uses for their name. labels:
    name set -> frame of value and label.
    """
    named = {"cuda_api": 0} | dict.fromkeys(MPI_LAYOUTS, MPI_NAMES)
    return {
        value + more: label
        for name_set, more in named.items()
        if name_set in labels
        for value, label in labels[name_set].select("value", "label").rows()
    }
