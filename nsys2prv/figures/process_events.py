"""Read the events that identify the iterations of a process: the kernels of a stream, or the MPI
calls of a thread, and events that occur in each iteration.

Also find the NVTX ranges that are the iterations of a process: ranges of one name (ignoring
numbers) that repeat without overlapping on a thread, together contain most kernels, and contain
about equally many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import polars as pl

from nsys2prv._util.columns import ABSENT, COUNT, factorize_together
from nsys2prv._util.intervals import SIDES
from nsys2prv.events.catalogue import load_catalogue, map_labels
from nsys2prv.events.mpi import MPI_LAYOUTS
from nsys2prv.figures.device_group import WORK, to_arrays
from nsys2prv.figures.nvtx_operations import NUMBER, TAIL
from nsys2prv.figures.repeats import NEVER, Events
from nsys2prv.figures.thresholds import (
    AS_MANY,
    LEAST_COUNT,
    LEAST_KERNELS,
    LEAST_NUMBERED,
    NEARLY,
    USUAL,
)
from nsys2prv.table.event_reader import RANGES, EventReader

GRAPHS = "cuda_graph"
KERNELS = ("cuda_kernel", GRAPHS)
NCCL = "nccl_kernel"
COPIES, SYNCS = "memory_operation", "cuda_synchronization"
#: Fields that distinguish MPI calls: all of them, and those that are constant if sizes change.
MPI_FIELDS = ("call", "partner", "communicator", "root", "size", "sent", "received")
WITHOUT_SIZES = MPI_FIELDS[:4]
_CLASSES, _COPIES, _SYNCS = (
    map_labels("kernel_class"),
    map_labels(COPIES),
    map_labels("synchronization"),
)
OPTIMIZER = _CLASSES["optimizer"]
#: Transfers from devices to hosts and back, and ways of waiting.
FETCHED, LOADED = ([_COPIES[f"cuda memcpy {way}"]] for way in ("device-to-host", "host-to-device"))
WAITED = [_SYNCS[f"{what} synchronize"] for what in ("event", "stream", "context")]
#: Calls of libraries, and layers of a network, are no iterations.
NO_ITERATION = r"^(P?MPI_|nccl[A-Z:])|(?i:(^|[^a-z])(layer|block)s?([^a-z]|$))"
#: Ranges that are tried.
MOST_TRIED = 20


def list_launches(reader: EventReader, unit: int) -> np.ndarray:
    """Return the times (ns, sorted) at which the kernels of a unit's first device are launched; if
    most launching calls are unknown, at which the kernels start; without GPUs, at which its MPI
    calls start.
    """
    if not reader.layouts & {*WORK}:
        return np.sort(_read_calls(reader, unit)["begin"].to_numpy())
    kernels = _read_kernels(reader, unit)
    lines = reader.read_lines(["launch"], unit, ("sent", "thread"), np.int32)
    streams = kernels["thread"].unique().to_list()
    sent = lines.filter(pl.col("thread").is_in(streams))["sent"].to_numpy()
    return sent if 2 * len(sent) > kernels.height else kernels["begin"].to_numpy()


def list_events(reader: EventReader, unit: int) -> Iterator[Events]:
    """Yield series of events of a unit that may repeat with its iterations, the most specific
    series first.

    These are the kernels on the busiest stream of its first device; in a job without GPUs, the
    calls of the thread with the most MPI calls, with and without sizes.
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
    """Return the kernels and graphs of a unit's first device, sorted by start: begin, end, thread,
    name, class. The start of NCCL kernels depends on other ranks, so only their number counts.
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
    of_first = device == (device.min() if frame.height else 0)
    frame = frame if of_first.all() else frame.filter(of_first)
    return frame if len(frames) == 1 else frame.sort("begin", maintain_order=True)


def _read_calls(reader: EventReader, unit: int) -> pl.DataFrame:
    """Return the MPI calls of a unit, sorted by start: begin, end, thread, layout (index),
    MPI_FIELDS (0 in layouts without them).
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
    """Return the events of the stream or thread with the most events; all events if none has half
    of them.
    """
    thread = reader.rows.main_rows[events["thread"].to_numpy()]
    counts = np.bincount(thread, minlength=1)
    return events.filter(thread == counts.argmax()) if 2 * counts.max() >= len(thread) else events


def _list_times(
    reader: EventReader, unit: int, layout: str, field: str = "", values: Sequence[int] = ()
) -> np.ndarray:
    """Return the sorted start times (ns) of events of a layout in a unit. field, values: select
    events by a field.
    """
    if layout not in reader.layouts:
        return NEVER
    events = reader.read_begins(layout, [field] if field else [], unit)
    events = events.filter(pl.col(field).is_in(values)) if field else events
    return to_arrays(events, "begin")[0]


def find_range_name(
    reader: EventReader,
    patterns: pl.DataFrame,
    launches: Mapping[int, np.ndarray],
    may_be: Callable[[int, np.ndarray, float], bool],
) -> str | None:
    """Find the NVTX ranges that are iterations in most of the examined units. Return the pattern of
    their names, or None.

    patterns: from :func:`make_patterns`. launches: unit -> launch times of its kernels. may_be:
    function that decides whether ranges without a number may be iterations, from the unit, edges
    (ns) and the usual number of kernels.
    """
    # Push/pop ranges take precedence over all start/end ranges.
    for layout in RANGES:
        names = [
            _find_by_ranges(
                _list_ranges(reader, unit, patterns, layout),
                patterns,
                begins,
                partial(may_be, unit),
            )
            for unit, begins in launches.items()
        ]
        if names := [name for name in names if name]:
            return max(names, key=names.count)
    return None


def make_patterns(labels: pl.DataFrame) -> pl.DataFrame:
    """Return for each name (`value`) its `pattern` (the name without its numbers), and `code`, the
    pattern's place in alphabetical order (int32, from 1).
    """
    return labels.select(
        value=pl.col("value").cast(pl.Int64),
        pattern=pl.col("label").str.replace(TAIL, "").str.replace_all(NUMBER, "#"),
    ).with_columns(code=pl.col("pattern").rank("dense").cast(pl.Int32))


def _list_ranges(
    reader: EventReader,
    unit: int,
    patterns: pl.DataFrame,
    layout: str,
) -> list[pl.DataFrame]:
    """Return the ranges of a unit with known names, one frame per window of the trace: begin, end,
    thread, code (int32), and number (or ABSENT).
    """
    values = patterns["value"].to_numpy()
    codes = np.zeros(int(values.max(initial=-1)) + 2, np.int32)
    codes[values] = patterns["code"].to_numpy()
    frames = []
    for _, frame in reader.read_windows(layout, ("range", "number"), unit, np.int64):
        # A range without a name has the value -1, and so the last code, which is 0.
        code = pl.Series(codes[frame["range"].to_numpy()])
        frame = frame.select(
            "begin",
            "end",
            pl.col("thread").cast(pl.Int32),
            code=code,
            number=pl.col("number"),
        )
        frames.append(frame.filter(pl.col("code") > 0))
    return frames


def _find_by_ranges(
    ranges: Sequence[pl.DataFrame],
    patterns: pl.DataFrame,
    kernels: np.ndarray,
    may_be: Callable[[np.ndarray, float], bool],
) -> str | None:
    """Return the name pattern of the ranges that are iterations of one task, or None. ranges:
    sorted by start, in several frames. kernels: launch times of its device's kernels. may_be: as in
    :func:`find_range_name`.
    """
    groups = _summarize_groups(ranges)
    with_numbers = patterns.filter(pl.col("pattern").str.contains("#", literal=True))["code"]
    with_numbers = with_numbers.unique().to_list()
    numbered = pl.col("numbered") | pl.col("code").is_in(with_numbers)
    groups = groups.with_columns(numbered=numbered)
    # Two are enough where they are numbered and one follows the other.
    two = (
        (pl.col("count") == LEAST_NUMBERED)
        & pl.col("numbered")
        & (pl.col("covered") >= NEARLY * (pl.col("last") - pl.col("first")))
    )
    calls = patterns.filter(pl.col("pattern").str.contains(NO_ITERATION))["code"].unique()
    is_iteration = ~pl.col("overlaps") & ~pl.col("code").is_in(calls.to_list())
    groups = groups.filter(((pl.col("count") >= LEAST_COUNT) | two) & is_iteration)
    inside = np.searchsorted(kernels, groups["last"].to_numpy()) - np.searchsorted(
        kernels, groups["first"].to_numpy()
    )
    groups = groups.filter(
        pl.Series(inside >= LEAST_KERNELS * len(kernels), dtype=pl.Boolean)
    ).sort(["covered", "count", "code", "thread"], descending=[True, True, False, False])
    if not groups.height:
        return None
    for row in groups.head(MOST_TRIED).iter_rows(named=True):
        is_same = (pl.col("thread") == row["thread"]) & (pl.col("code") == row["code"])
        own = pl.concat(one.filter(is_same) for one in ranges)
        begins, ends, numbers = to_arrays(own, *SIDES, "number")
        # Work of the last iteration may run after its range has ended.
        edges = np.append(begins, ends[-1])
        counts = np.diff(np.searchsorted(kernels, edges))
        # What programs count are iterations; operations have numbers of other things.
        counted = np.mean(np.diff(numbers.clip(0)) == 1) >= USUAL or row["code"] in with_numbers
        if _are_alike(counts) and (counted or may_be(edges, float(np.median(counts)))):
            return str(patterns.filter(pl.col("code") == row["code"])["pattern"][0])
    return None


def _summarize_groups(ranges: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return a row for each thread and code: count, covered (their total length), first start and
    last end (ns), whether any overlaps the next one, and whether any is numbered. ranges: sorted by
    start.
    """
    begin, end, overlaps = pl.col("begin"), pl.col("end"), pl.col("overlaps")
    parts = [
        frame.group_by("thread", "code").agg(
            count=COUNT,
            covered=(end - begin).sum(),
            first=begin.first(),
            last=end.max(),
            until=end.last(),
            overlaps=(begin.shift(-1) < end).any(),
            numbered=(pl.col("number") != ABSENT).any(),
        )
        for frame in ranges
    ]
    follows = (pl.col("first").shift(-1) < pl.col("until")).any()
    return (
        pl.concat(parts)
        .group_by("thread", "code")
        .agg(
            pl.col("count", "covered").sum(),
            pl.col("first").first(),
            pl.col("last").max(),
            overlaps.any() | follows,
            pl.col("numbered").any(),
        )
    )


def _are_alike(counts: np.ndarray) -> bool:
    """Return True if most kernels run in intervals with about as many kernels as the median
    interval. This is so for iterations, but not for the times between calls of a function.
    """
    usual = np.median(counts)
    alike = (counts <= AS_MANY * usual) & (AS_MANY * counts >= usual)
    return bool(counts[alike].sum() > LEAST_KERNELS * counts.sum())
