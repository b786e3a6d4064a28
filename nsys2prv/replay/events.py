"""The events of one unit that the replay is made of, as columns: outermost calls of host threads,
operations of devices, and rows that say what a call or a stream waits for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.columns import ABSENT, factorize
from nsys2prv._util.native import core
from nsys2prv.events.catalogue import load_catalogue, map_labels
from nsys2prv.events.cuda import CONTEXT, EVENT, STREAM, STREAM_WAIT_EVENT, SYNCHRONISING
from nsys2prv.events.mpi import MPI_LAYOUTS
from nsys2prv.replay.graph import CLOCKS_APART, Kind
from nsys2prv.store.event_reader import EventReader

#: Calls by their names: what waits for the device, what waits for all that its process has launched,
#: what copies, and what only looks whether something is done.
SYNCHRONISES, FREES, COPIES, POLLS = 1, 2, 4, 8
CALL_NAMES = {
    SYNCHRONISES: re.compile(SYNCHRONISING),
    FREES: re.compile(
        r"(?i)^cu(?:da)?(?:Free|MemFree|FreeHost|MemFreeHost|HostUnregister|StreamDestroy|DeviceReset"
        r"|CtxDestroy|ModuleUnload|LibraryUnload)(?!.*Async)"
    ),
    COPIES: re.compile(r"(?i)^cu(?:da)?Mem(cpy|set)"),
    POLLS: re.compile(r"(?i)^cu(?:da)?(?:Event|Stream)Query"),
}
#: What a row about an event or a synchronisation says; the numbers are those of native/replay.c.
RECORD, WAIT_STREAM, WAIT_CONTEXT, WAIT_EVENT, HOLD_STREAM = range(5)
_SYNCHRONISATIONS = {
    STREAM: WAIT_STREAM,
    CONTEXT: WAIT_CONTEXT,
    EVENT: WAIT_EVENT,
    STREAM_WAIT_EVENT: HOLD_STREAM,
}
#: Layout of operations -> kind of the work, the field that names it, and further ones.
_OPERATIONS = {
    "cuda_kernel": (Kind.KERNEL, "kernel", ("class",)),
    "nccl_kernel": (Kind.NCCL, "kernel", ("bytes", "operation")),
    "memory_operation": (Kind.COPY, "operation", ("bytes", "source", "destination")),
    "cuda_graph": (Kind.KERNEL, "execution", ()),
}
#: Added to event values of calls of MPI, which CUDA's may be equal to.
MPI_NAMES = 1 << 20
#: Operations that belong to no stream and no call.
_MIGRATIONS = re.compile(r"(?i)unified|migrat|page")


class Calls(Struct, frozen=True):
    """Outermost calls of host threads, by begin."""

    #: ns of the trace.
    begin: np.ndarray
    #: ns of the trace.
    end: np.ndarray
    #: Row of the trace (int32).
    thread: np.ndarray
    #: Event value of the call, the same on all ranks.
    name: np.ndarray
    #: Whether it is a call of MPI.
    is_mpi: np.ndarray


class Operations(Struct, frozen=True):
    """Operations of devices, by their launches."""

    #: ns of the trace.
    begin: np.ndarray
    #: ns of the trace.
    end: np.ndarray
    #: Row of the trace (int32).
    stream: np.ndarray
    #: Event value of the name, the same on all ranks.
    name: np.ndarray
    #: Kind of the work, a Kind (uint8).
    kind: np.ndarray
    #: Index of the outermost call that launched it, -1 where unknown (int32).
    call: np.ndarray
    #: Bytes that it moves, -1 where unknown.
    bytes: np.ndarray
    #: Kinds of memory that a copy is from and to, as event values, -1 where unknown (int16).
    source: np.ndarray
    destination: np.ndarray


class Markers(Struct, frozen=True):
    """Rows about CUDA events and synchronisation, by begin."""

    #: ns of the trace.
    time: np.ndarray
    #: What it says, such as WAIT_STREAM (uint8).
    says: np.ndarray
    #: Row of the host thread, -1 where unknown (int32).
    thread: np.ndarray
    #: Row of the stream, -1 where unknown (int32).
    stream: np.ndarray
    #: Number of the event, from 0, -1 where unknown (int32).
    event: np.ndarray


def read_calls(reader: EventReader, unit: int) -> tuple[Calls, np.ndarray]:
    """Return the outermost calls of CUDA and MPI of a unit, and (n, 3) task, correlation and index
    of the outermost call of every call that has a correlation.
    """
    frames = []
    for layout in ("cuda_api", *MPI_LAYOUTS):
        if layout in reader.layouts:
            fields = ("call", "correlation") if layout == "cuda_api" else ("call",)
            frame = reader.read_begins(layout, fields, unit)
            is_mpi = layout != "cuda_api"
            frames.append(
                frame.select(
                    "begin",
                    "end",
                    "thread",
                    pl.col("call") + (MPI_NAMES if is_mpi else 0),
                    pl.lit(ABSENT, pl.Int64).alias("correlation") if is_mpi else "correlation",
                    is_mpi=pl.lit(is_mpi),
                )
            )
    if not frames:
        frames = [
            pl.DataFrame(
                schema=dict.fromkeys(("begin", "end", "thread", "call", "correlation"), pl.Int64)
                | {"is_mpi": pl.Boolean}
            )
        ]
    calls = pl.concat(frames).sort("begin", "end", descending=[False, True], maintain_order=True)
    begin, thread = calls["begin"].to_numpy(), calls["thread"].to_numpy().astype(np.int32)
    end = np.maximum(calls["end"].to_numpy(), begin)
    outer = np.empty(len(begin), np.int32)
    count = core.find_outermost(begin, end, thread, len(reader.rows.units), outer)
    first = np.full(count, -1, np.int64)
    first[outer[::-1]] = np.arange(len(outer))[::-1]
    correlation = calls["correlation"].to_numpy()
    known = np.flatnonzero(correlation >= 0)
    tasks = reader.rows.get_column("task")[thread[known]]
    return (
        Calls(
            begin[first],
            end[first],
            thread[first],
            calls["call"].to_numpy()[first],
            calls["is_mpi"].to_numpy()[first],
        ),
        np.stack([tasks, correlation[known], outer[known]], axis=1),
    )


def describe_calls(calls: Calls, labels: Mapping[int, str]) -> np.ndarray:
    """Return what each call may do by its name, such as SYNCHRONISES | FREES (uint8)."""
    values, codes = factorize(calls.name)
    does = [
        sum(bit for bit, names in CALL_NAMES.items() if names.search(labels.get(value, "")))
        for value in values.tolist()
    ]
    return np.array(does, np.uint8)[codes] if len(does) else np.zeros(0, np.uint8)


def read_operations(
    reader: EventReader, unit: int, calls: Calls, launches: np.ndarray
) -> Operations:
    """Return the operations of the devices of a unit. launches: as :func:`read_calls` returns them."""
    names = load_catalogue().value_sets["memory_operation"].labels
    migrations = [value for value, label in names if _MIGRATIONS.search(label)]
    frames = []
    for layout, (kind, name, fields) in _OPERATIONS.items():
        if layout not in reader.layouts:
            continue
        frame = reader.read_begins(layout, (name, "correlation", *fields), unit)
        if layout == "memory_operation":
            frame = frame.filter(~pl.col(name).is_in(migrations))
        frames.append(
            frame.select(
                "begin",
                "end",
                "thread",
                "correlation",
                name=name,
                kind=_find_kinds(layout, kind),
                **{
                    field: pl.col(field) if field in fields else pl.lit(ABSENT, pl.Int64)
                    for field in ("bytes", "source", "destination")
                },
            )
        )
    if not frames:
        none = np.zeros(0, np.int64)
        small = none.astype(np.int32)
        return Operations(none, none, small, none, none.astype(np.uint8), small, none, none, none)
    operations = pl.concat(frames)
    begin, thread = operations["begin"].to_numpy(), operations["thread"].to_numpy()
    tasks = reader.rows.get_column("task")[thread]
    call = find_launches(launches, tasks, operations["correlation"].to_numpy())
    known = np.flatnonzero(call >= 0)
    call[known[calls.begin[call[known]] > begin[known] + CLOCKS_APART]] = -1
    call = _order_unlaunched(call, thread, begin, calls)
    known = np.flatnonzero(call >= 0)
    launched = begin.copy()
    launched[known] = calls.begin[call[known]]
    order = np.lexsort((begin, launched))
    columns = {name: operations[name].to_numpy()[order] for name in operations.columns}
    return Operations(
        columns["begin"],
        np.maximum(columns["end"], columns["begin"]),
        columns["thread"].astype(np.int32),
        columns["name"],
        columns["kind"],
        call[order].astype(np.int32),
        np.maximum(columns["bytes"], -1),
        np.maximum(columns["source"], -1).astype(np.int16),
        np.maximum(columns["destination"], -1).astype(np.int16),
    )


def _order_unlaunched(
    call: np.ndarray, thread: np.ndarray, begin: np.ndarray, calls: Calls
) -> np.ndarray:
    """Return the calls that launched operations, where one that was launched before the capture has
    that of the next operation of its stream, if it began after it: it was launched no later.
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


def _find_kinds(layout: str, kind: Kind) -> pl.Expr:
    """Return the kind of operations of a layout: kernels that communicate without NCCL, as NCCL's."""
    if layout != "cuda_kernel":
        return pl.lit(int(kind), pl.UInt8)
    communicates = pl.col("class") == map_labels("kernel_class")["communication"]
    return pl.when(communicates).then(int(Kind.NCCL)).otherwise(int(kind)).cast(pl.UInt8)


def find_launches(launches: np.ndarray, tasks: np.ndarray, correlations: np.ndarray) -> np.ndarray:
    """Return the call of each (task, correlation), -1 for none. launches: as :func:`read_calls`
    returns them.
    """
    call = np.full(len(tasks), -1, np.int64)
    for task in np.unique(tasks).tolist():
        own, wanted = launches[launches[:, 0] == task], np.flatnonzero(tasks == task)
        if not len(own):
            continue
        least, most = int(own[:, 1].min()), int(own[:, 1].max())
        asked = correlations[wanted]
        inside = (asked >= least) & (asked <= most)
        wanted, asked = wanted[inside], asked[inside]
        if most - least < 16 * len(own) + 1024:
            table = np.full(most - least + 1, -1, np.int64)
            table[own[::-1, 1] - least] = own[::-1, 2]
            call[wanted] = table[asked - least]
        else:
            order = np.argsort(own[:, 1], kind="stable")
            place = np.searchsorted(own[order, 1], asked)
            hit = own[order[place], 1] == asked
            call[wanted] = np.where(hit, own[order[place], 2], -1)
    return call


def read_markers(reader: EventReader, unit: int) -> Markers:
    """Return what a unit's tables of events and synchronisations say."""
    tasks = reader.rows.get_column("task")
    frames = []
    if "cuda_event" in reader.layouts:
        events = reader.read_begins("cuda_event", ("event", "stream"), unit)
        frames.append(events.with_columns(says=pl.lit(RECORD, pl.Int64)))
    if "cuda_synchronization" in reader.layouts:
        rows = reader.read_begins("cuda_synchronization", ("type", "event", "stream"), unit)
        rows = rows.filter(pl.col("type").is_in(list(_SYNCHRONISATIONS)))
        frames.append(
            rows.select(
                "begin", "end", "thread", "event", "stream",
                says=pl.col("type").replace_strict(_SYNCHRONISATIONS, return_dtype=pl.Int64),
            )
        )  # fmt: skip
    if not frames:
        none = np.zeros(0, np.int32)
        return Markers(none.astype(np.int64), none.astype(np.uint8), none, none, none)
    rows = pl.concat([frame.select(frames[0].columns) for frame in frames]).sort(
        "begin", maintain_order=True
    )
    task = tasks[rows["thread"].to_numpy()]
    stream = find_stream_rows(reader, unit, task, rows["stream"].to_numpy())
    event = rows["event"].to_numpy()
    _, number = factorize(event * (int(tasks.max(initial=0)) + 1) + task)
    return Markers(
        rows["begin"].to_numpy(),
        rows["says"].to_numpy().astype(np.uint8),
        rows["thread"].to_numpy().astype(np.int32),
        stream.astype(np.int32),
        np.where(event >= 0, number, -1).astype(np.int32),
    )


def find_stream_rows(
    reader: EventReader, unit: int, tasks: np.ndarray, streams: np.ndarray
) -> np.ndarray:
    """Return the row of each stream number of a task, -1 for none."""
    rows = reader.rows.threads.filter(
        pl.col("stream").is_not_null() & pl.Series(reader.rows.units == unit)
    )
    places = dict(zip(rows.select("task", "stream").rows(), rows["thread"].to_list(), strict=True))
    keys, codes = factorize(tasks * (1 << 40) + np.where(streams >= 0, streams, (1 << 40) - 1))
    found = [places.get(divmod(key, 1 << 40), -1) for key in keys.tolist()]
    return np.array(found, np.int64)[codes] if len(found) else np.zeros(0, np.int64)


def label_calls(labels: Mapping[str, pl.DataFrame]) -> dict[int, str]:
    """Return name of a call, as in :class:`Calls` -> its label. labels: of name sets."""
    named = {"cuda_api": 0} | dict.fromkeys(MPI_LAYOUTS, MPI_NAMES)
    return {
        value + more: label
        for name_set, more in named.items()
        if name_set in labels
        for value, label in labels[name_set].select("value", "label").rows()
    }
