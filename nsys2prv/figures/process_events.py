"""Read what the iterations of a process are found by: the kernels of a stream, or the MPI calls of a
thread, and what each iteration has some of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl

from nsys2prv._util.columns import factorize_together
from nsys2prv._util.intervals import SIDES
from nsys2prv.events.catalogue import load_catalogue, map_labels
from nsys2prv.events.mpi import MPI_LAYOUTS
from nsys2prv.figures.device_group import WORK, to_arrays
from nsys2prv.figures.repeats import NEVER, Events
from nsys2prv.table.event_reader import EventReader

GRAPHS = "cuda_graph"
KERNELS = ("cuda_kernel", GRAPHS)
NCCL = "nccl_kernel"
COPIES, SYNCS = "memory_operation", "cuda_synchronization"
#: Of calls of MPI what tells one from another: all of it, and what stays the same where sizes change.
MPI_FIELDS = ("call", "partner", "communicator", "root", "size", "sent", "received")
WITHOUT_SIZES = MPI_FIELDS[:4]
_CLASSES, _COPIES, _SYNCS = (
    map_labels("kernel_class"),
    map_labels(COPIES),
    map_labels("synchronization"),
)
OPTIMIZER = _CLASSES["optimizer"]
#: What hosts fetch from devices, and load into these, and how they wait.
FETCHED, LOADED = ([_COPIES[f"cuda memcpy {way}"]] for way in ("device-to-host", "host-to-device"))
WAITED = [_SYNCS[f"{what} synchronize"] for what in ("event", "stream", "context")]


def list_launches(reader: EventReader, unit: int) -> np.ndarray:
    """Return when the calls begin that launch the kernels of a unit's first device; where most are not
    known, when these begin. Calls of MPI in a job without GPUs.
    """
    if not reader.layouts & {*WORK}:
        return np.sort(_read_calls(reader, unit)["begin"].to_numpy())
    kernels = _read_kernels(reader, unit)
    lines = reader.read_lines(["launch"], unit, ("sent", "thread"), np.int32)
    streams = kernels["thread"].unique().to_list()
    sent = lines.filter(pl.col("thread").is_in(streams))["sent"].to_numpy()
    return sent if 2 * len(sent) > kernels.height else kernels["begin"].to_numpy()


def list_events(reader: EventReader, unit: int) -> Iterator[Events]:
    """Yield what the iterations of a unit may be found by, the most telling first: the kernels of the
    busiest stream of its first device; in a job without GPUs the calls of the thread with most calls of
    MPI, with and without sizes.
    """
    if not reader.layouts & {*WORK}:
        calls = _keep_busiest(reader, _read_calls(reader, unit))
        for fields in (MPI_FIELDS, WITHOUT_SIZES):
            _, name = factorize_together(*to_arrays(calls, "layout", *fields))
            yield Events(name, *to_arrays(calls, *SIDES), messages=to_arrays(calls, "begin")[0])
        return
    kernels = _read_kernels(reader, unit)
    lane = _keep_busiest(reader, kernels)
    yield Events(
        *to_arrays(lane, "name", *SIDES),
        collectives=_list_times(reader, unit, NCCL),
        updates=to_arrays(kernels.filter(pl.col("class") == OPTIMIZER), "begin")[0],
        messages=np.sort(_read_calls(reader, unit)["begin"].to_numpy()),
        waits=(
            _list_times(reader, unit, COPIES, "operation", FETCHED),
            _list_times(reader, unit, SYNCS, "type", WAITED),
        ),
        loads=_list_times(reader, unit, COPIES, "operation", LOADED),
    )


def _read_kernels(reader: EventReader, unit: int) -> pl.DataFrame:
    """Return kernels and graphs of a unit's first device by begin: begin, end, thread, name, class. When
    kernels of NCCL begin depends on other ranks: they count alone.
    """
    frames = []
    for layout in KERNELS if reader.layouts & {*KERNELS} else (NCCL,):
        columns = WORK[layout][1]
        fields = [columns[name] for name in ("name", "class") if name in columns]
        frame = reader.read_begins(layout, fields, unit, dtype=np.int32)
        frame = frame.rename({columns["name"]: "name"})
        if layout == GRAPHS:
            # Names of graphs are numbered by themselves.
            unclassed = pl.lit(0, pl.Int32).alias("class")
            frame = frame.with_columns(-pl.col("name") - 1, unclassed)
        frames.append(frame)
    frames = [one for one in frames if one.height] or frames[:1]
    frame = frames[0] if len(frames) == 1 else pl.concat(frames, how="vertical_relaxed")
    device = reader.rows.find("device", frame["thread"])
    of_first = device == device.min()
    frame = frame if of_first.all() else frame.filter(of_first)
    return frame if len(frames) == 1 else frame.sort("begin", maintain_order=True)


def _read_calls(reader: EventReader, unit: int) -> pl.DataFrame:
    """Return the calls of MPI of a unit by begin: begin, end, thread, layout (its place), MPI_FIELDS (0
    where a layout lacks them).
    """
    frames = []
    for place, layout in enumerate(MPI_LAYOUTS):
        known = load_catalogue().layouts[layout].by_name
        fields = [name for name in MPI_FIELDS if name in known]
        frame = reader.read_begins(layout, fields, unit)
        lacking = [pl.lit(0, pl.Int64).alias(name) for name in MPI_FIELDS if name not in known]
        frame = frame.with_columns(*lacking, layout=pl.lit(place, pl.Int64))
        frames.append(frame.select(*SIDES, "thread", "layout", *MPI_FIELDS))
    return pl.concat(frames).sort("begin", maintain_order=True)


def _keep_busiest(reader: EventReader, events: pl.DataFrame) -> pl.DataFrame:
    """Return the events of the stream or thread that has most; all of them where none has half."""
    thread = reader.rows.main_rows[events["thread"].to_numpy()]
    counts = np.bincount(thread, minlength=1)
    return events.filter(thread == counts.argmax()) if 2 * counts.max() >= len(thread) else events


def _list_times(
    reader: EventReader, unit: int, layout: str, field: str = "", values: Sequence[int] = ()
) -> np.ndarray:
    """Return when events of a layout begin in a unit (ns, ascending). values: of a field, of these alone."""
    if layout not in reader.layouts:
        return NEVER
    events = reader.read_begins(layout, [field] if field else [], unit)
    events = events.filter(pl.col(field).is_in(values)) if field else events
    return to_arrays(events, "begin")[0]
