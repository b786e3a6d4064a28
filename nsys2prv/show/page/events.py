"""Read the events that a page draws, lane by lane, in some time windows. A lane is a task with one
of its GPUs, or a rank without a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.columns import join_columns, number_as_met, sum_by, take_rows
from nsys2prv._util.files import load_shipped_file
from nsys2prv._util.intervals import SIDES, Spans, merge_spans
from nsys2prv.events.attributes import select_by_state
from nsys2prv.events.catalogue import NameSet, load_catalogue
from nsys2prv.events.cuda import select_synchronising_calls
from nsys2prv.figures.device_group import (
    ATTENTION,
    COMMUNICATION,
    CONVOLUTION,
    GEMM,
    TENSOR_NO,
    AnalysisOptions,
    DeviceGroup,
    find_driving_threads,
    find_ordered_rows,
    list_labels,
    to_arrays,
)
from nsys2prv.figures.host_time import CALLS, choose_thread
from nsys2prv.figures.nvtx_operations import RANGES
from nsys2prv.figures.result import name_communicators
from nsys2prv.figures.time_division import NO_DEVICE, WAITS, list_lanes
from nsys2prv.match import BY_SET_UP, MPI_RULES
from nsys2prv.match.meetings import list_collectives, list_mpi_waits
from nsys2prv.table.event_reader import HOST
from nsys2prv.table.runs import Columns

if TYPE_CHECKING:
    from nsys2prv.open_job import OpenJob

_DECLARED = load_shipped_file(__package__, "events.yaml")
#: Classes of events.
CLASSES: tuple[str, ...] = tuple(_DECLARED["classes"])
#: Kind of track -> columns of its events, after start and length.
COLUMNS: dict[str, list[str]] = _DECLARED["columns"]
#: Layouts of GPU work: kind of track, field of its name, further fields.
WORK_LAYOUTS: dict[str, tuple[str, str, list[str]]] = _DECLARED["work"]
KERNEL_CLASSES = {GEMM: "gemm", CONVOLUTION: "gemm", ATTENTION: "attention", COMMUNICATION: "nccl"}
#: Layouts of calls of hosts -> the class of their events.
CALL_CLASSES = {
    layout: {"cuda": "launch", "nccl": "ncclcall", "ucx": "mpi"}.get(part, part)
    for layout, part in CALLS.items()
}
#: Layouts with shown events, and the value set of the names of NCCL kernels with a known operation.
SHOWN = [*WORK_LAYOUTS, *CALL_CLASSES, *RANGES]
OPERATION = "nccl_operation"
MESSAGES = {"mpi_message": 0, "nccl_message": 1}
#: Number of kernels with a map over lanes and time, those with the most time; maximum number of its time
#: intervals.
MAPS, MAP_BINS = 8, 60
#: Their name in the results of a group.
KERNELS = "kernels"
#: Maximum number of lane pairs in the matrix of messages, those with the most bytes.
MOST_PAIRS = 10_000


class Window(Struct, frozen=True):
    """A time span and lanes (GPUs or ranks) whose events a page includes."""

    begin: int
    end: int
    #: Numbers of lanes.
    lanes: frozenset[int]
    #: Shortest events that are included (ns).
    least: int = 0


class Events(Struct, frozen=True):
    """Events that a page shows: the events within its time windows, and sums for the whole job."""

    #: Kind of track -> lane, begin, end and the columns of COLUMNS, by lane and begin; names as
    #: `source` (name set), `name` (value) and `class`.
    tracks: dict[str, pl.DataFrame]
    #: Lines from sends to receives: from, to (lanes), begin, end, bytes, on_gpu.
    messages: pl.DataFrame
    #: For the whole job: from, to (lanes), count and bytes of the messages, and the sum of their times (ns).
    pairs: pl.DataFrame
    #: For the whole job: lane, kernel (`source`, `name`), bin, count, time (ns), and the edges of the bins.
    kernels: pl.DataFrame
    edges: np.ndarray
    #: Names of threads and communicators, by the numbers that events have.
    threads: dict[int, str]
    communicators: dict[int, str]


def read_events(
    job: OpenJob,
    lanes: Mapping[tuple[int, int], int],
    windows: Sequence[Window],
    collectives: pl.DataFrame,
) -> Events:
    """Read the events that a page shows. lanes: (task, device) -> number of the lane. windows: time
    spans. collectives: from :func:`read_collectives`.
    """
    options = AnalysisOptions(
        synchronising=select_synchronising_calls(job.plain_labels["cuda_api"]),
        io=select_by_state("osrt", job.plain_labels["osrt"], "io"),
        covered=job.coverage.common,
    )
    edges = np.linspace(0, job.duration, MAP_BINS + 1).astype(np.int64)
    if job.steady:
        # Iterations; several together if there are many.
        edges = np.append(job.steady.iteration_begins, job.steady.end)
        edges = np.append(edges[: -1 : -(-(len(edges) - 1) // MAP_BINS)], edges[-1])
    read = partial(_read_group, lanes, windows, edges)
    tracks: dict[str, list[Columns]] = {kind: [] for kind in (*COLUMNS, KERNELS)}
    for parts in job.run_on_groups(read, options):
        for kind, columns in parts:
            tracks[kind].append(columns)
    sources = pl.Series([*map(_find_names, SHOWN), OPERATION])
    joined = {kind: join_columns(parts) for kind, parts in tracks.items() if parts}
    found = {
        kind: frame.with_columns(source=sources[frame["source"]]) for kind, frame in joined.items()
    }
    kernels = found.pop(KERNELS, pl.DataFrame())
    by = ("lane", "begin", pl.col("end").neg())
    whole = {kind: frame.sort(*by, maintain_order=True) for kind, frame in found.items()}
    if kernels.height:
        name, time = to_arrays(kernels, "name", "time")
        kernels = kernels.filter(pl.Series(_mask_longest(np.zeros_like(name), name, time, MAPS)))
    members = collectives.drop("end", "of_nccl").unique(["thread", "begin"], keep="first")
    for kind in {"h", "n"} & {*whole}:
        frame = whole[kind].join(members, ["thread", "begin"], "left", maintain_order="left")
        if kind == "h":
            waits = _sum_mpi_waits(job, frame, map_rows(job, lanes))
            frame = frame.join(waits, ["thread", "begin"], "left", maintain_order="left")
            frame = frame.with_columns(
                pl.col("other").fill_null(0), wait=pl.coalesce("wait", "waited")
            )
        whole[kind] = frame.with_columns(pl.col("collective", "late", "wait").fill_null(0))
    threads = {row for kind in {"h", "x"} & {*whole} for row in whole[kind]["thread"].unique()}
    names = job.reader.rows.threads["name"]
    names = {row: names[row] for row in threads}
    messages, pairs = _read_messages(job, lanes, windows)
    communicators = _name_communicators(job) if "n" in whole else {}
    return Events(whole, messages, pairs, kernels, edges, names, communicators)


def _sum_mpi_waits(job: OpenJob, calls: pl.DataFrame, lane_of_row: np.ndarray) -> pl.DataFrame:
    """Return how long MPI calls wait for other ranks: thread and start of the call, waited (ns),
    and other, the lane for which they wait (from 1; 0 for several).
    """
    of_mpi = calls.filter(pl.col("class") == CLASSES.index("mpi")).select("thread", "begin", "end")
    waits = list_mpi_waits(job.reader)
    other = pl.Series(lane_of_row[waits["other"].to_numpy()] + 1, dtype=pl.Int64)
    waits = waits.select("thread", since="begin", until="end", other=other)
    inside = waits.sort("since").join_asof(
        of_mpi.sort("begin"), left_on="since", right_on="begin", by="thread", check_sortedness=False
    )
    waited = pl.min_horizontal("until", "end") - pl.col("since")
    is_one = pl.col("other").n_unique() == 1
    return inside.group_by("thread", "begin").agg(
        waited=waited.clip(0).sum(), other=pl.when(is_one).then(pl.col("other").first())
    )


def select_events(events: Events, windows: Sequence[Window]) -> Events:
    """Return only the events that are within some windows."""
    tracks = {kind: select_rows(frame, windows) for kind, frame in events.tracks.items()}
    return replace(events, tracks=tracks)


def _read_group(
    lanes: Mapping[tuple[int, int], int],
    windows: Sequence[Window],
    edges: np.ndarray,
    group: DeviceGroup,
) -> list[tuple[str, Columns]]:
    """Return the events of one device group by kind of track, as columns. This depends only on
    files.
    """
    lane_of_row = np.full(len(group.task_of), -1)
    drivers: dict[int, list[int]] = {}
    for task, device in list_lanes(group):
        lane = lanes.get((task, device), -1)
        if device == NO_DEVICE:
            drivers[lane] = [choose_thread(group, task)]
            continue
        of_lane = (group.task_of == task) & (group.device_of == device)
        lane_of_row[of_lane] = lane
        threads = find_driving_threads(group, device)
        host = group.find_host(task)
        drivers[lane] = [one for one in threads if group.task_of[one] == host]
    of_threads = _place_threads(drivers, len(group.task_of))
    return [
        *_list_work(group, lane_of_row, windows, edges),
        *_list_host_events(group, of_threads, windows),
    ]


def _place_threads(drivers: Mapping[int, list[int]], rows: int) -> list[np.ndarray]:
    """Return the lane of each row of the trace, -1 for none; in several columns where a thread has several
    lanes. drivers: lane -> threads.
    """
    columns: list[np.ndarray] = []
    for lane, threads in drivers.items():
        free = (column for column in columns if (column[threads] < 0).all())
        if lane >= 0 and (column := next(free, None)) is None:
            columns.append(column := np.full(rows, -1))
        if lane >= 0:
            column[threads] = lane
    return columns


def select_rows(frame: pl.DataFrame, windows: Sequence[Window]) -> pl.DataFrame:
    """Return the rows of a frame that are within some windows. frame: `lane` (or a negative
    number), `begin`, `end`.
    """
    return frame[np.flatnonzero(_mask_rows(*to_arrays(frame, "lane", *SIDES), windows))]


def _mask_rows(
    lane: np.ndarray, begin: np.ndarray, end: np.ndarray, windows: Sequence[Window]
) -> np.ndarray:
    """Return a mask of the events of lanes (negative for none) that are within some windows."""
    selected = np.zeros(len(lane), bool)
    alike: dict[tuple[bool, ...], list[int]] = {}
    for one in np.flatnonzero(np.bincount(lane[lane >= 0])).tolist():
        alike.setdefault(tuple(one in window.lanes for window in windows), []).append(one)
    for lanes in alike.values():
        rows = np.flatnonzero(lane == lanes[0] if len(lanes) == 1 else np.isin(lane, lanes))
        since, until = begin[rows], end[rows]
        # An event without length is in the window that contains its start.
        inside = merge_windows(windows, lanes[0]).touches(since, np.maximum(until, since + 1))
        for window in windows:
            if window.least and lanes[0] in window.lanes:
                near = (since < window.end) & (until > window.begin)
                inside |= near & (until - since >= window.least)
        selected[rows] = inside
    return selected


def merge_windows(windows: Sequence[Window], lane: int) -> Spans:
    """Return the times in which windows include all events of a lane, not only long ones."""
    whole = [(one.begin, one.end) for one in windows if lane in one.lanes and not one.least]
    return merge_spans(*np.array(whole, np.int64).reshape(-1, 2).T)


def _list_work(
    group: DeviceGroup, lane_of_row: np.ndarray, windows: Sequence[Window], edges: np.ndarray
) -> Iterator[tuple[str, Columns]]:
    streams = group.reader.rows.get_column("stream")
    names = ("begin", "thread", "sent")
    lines = group.reader.read_lines(("launch", "memory"), group.number, names, np.int32)
    sent_keys, sent = to_arrays(lines, "thread", "begin"), np.append(lines["sent"].to_numpy(), 0)
    for layout, (kind, name, fields) in WORK_LAYOUTS.items():
        if not group.has(layout):
            continue
        frame = group.read_begins(layout, (name, *fields))
        lane = lane_of_row[frame["thread"].to_numpy()]
        if layout == "cuda_kernel":
            yield KERNELS, _map_kernels(group, frame, lane, edges)
        chosen = np.flatnonzero(_mask_rows(lane, *to_arrays(frame, *SIDES), windows))
        columns = {one.name: one.to_numpy() for one in frame[chosen].get_columns()}
        row = find_ordered_rows(*sent_keys, columns["thread"], columns["begin"])
        before = np.maximum(columns["begin"] - sent[row], 0)
        columns["class"] = _classify_work(layout, columns)
        columns |= {"lane": lane[chosen], "name": columns.pop(name)}
        columns |= {
            "before": np.where(row >= 0, before, 0),
            "stream": np.maximum(streams[columns["thread"]], 0),
        }
        columns["source"] = np.full_like(row, SHOWN.index(layout))
        if kind == "n":
            # Named by their operations, if known.
            is_known = columns["operation"] >= 0
            columns["source"][is_known] = len(SHOWN)
            columns["name"] = np.where(is_known, columns["operation"], columns["name"])
        yield kind, _choose_columns(kind, columns)


def _map_kernels(
    group: DeviceGroup, kernels: pl.DataFrame, lane: np.ndarray, edges: np.ndarray
) -> Columns:
    """Return the kernel map for `kernels` in Events, for the kernels with the most time. lane: of
    each kernel.
    """
    begin, end, thread, name = to_arrays(kernels, *SIDES, "thread", "kernel")
    bins = np.searchsorted(edges, begin, "right") - 1
    own = np.flatnonzero((lane >= 0) & (bins >= 0) & (bins < len(edges) - 1))
    keys = {"lane": lane[own], "name": name[own], "bin": bins[own]}
    keys["unit"] = group.number_apart(thread[own], np.zeros_like(own))
    count = np.ones(len(own), np.int64)
    sums = sum_by(keys, count=count, time=end[own] - begin[own])
    kept = _mask_longest(sums.pop("unit"), sums["name"], sums["time"], 2 * MAPS)
    sums = take_rows(sums, kept)
    order = np.lexsort((sums["bin"], sums["name"], sums["lane"]))
    source = np.full(len(order), SHOWN.index("cuda_kernel"))
    return {**take_rows(sums, order), "source": source}


def _mask_longest(unit: np.ndarray, name: np.ndarray, time: np.ndarray, count: int) -> np.ndarray:
    """Return a mask of the rows with the `count` names that have the most time in each unit."""
    sums = sum_by({"unit": unit, "name": name}, time=time)
    order = np.lexsort((sums["name"], sums["time"], sums["unit"]))
    units = sums["unit"][order]
    longest = order[np.searchsorted(units, units, "right") - np.arange(len(order)) <= count]
    return np.isin(number_as_met(unit, name)[1], longest)


def _find_name_field(layout: str) -> str:
    """Return the field that names the events of a layout."""
    if layout in WORK_LAYOUTS:
        return WORK_LAYOUTS[layout][1]
    fields = load_catalogue().layouts[layout].fields
    return next(one.name for one in fields if isinstance(one.values, NameSet))


def _find_names(layout: str) -> str:
    """Return the name set, or the value set, of the names of a layout's events."""
    return load_catalogue().layouts[layout].by_name[_find_name_field(layout)].values.name


def _classify_work(layout: str, columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the class of some work. columns: its fields."""
    if layout != "cuda_kernel":
        named = {"nccl_kernel": "nccl", "memory_operation": "copy"}.get(layout, "kernel")
        return np.full(len(columns["begin"]), CLASSES.index(named))
    found = np.full(len(columns["begin"]), CLASSES.index("kernel"))
    for one, name in KERNEL_CLASSES.items():
        found[columns["class"] == one] = CLASSES.index(name)
    is_product = np.isin(columns["class"], (GEMM, CONVOLUTION))
    found[is_product & (columns["tensor_cores"] == TENSOR_NO)] = CLASSES.index("gemm-slow")
    return found


def read_collectives(job: OpenJob) -> pl.DataFrame:
    """Read the kernels and calls that take part in collectives, and other NCCL kernels that wait
    for ranks.

    Columns: thread, begin, end, collective (from 1, MPI after NCCL; 0 for none), lateness and wait
    time (ns), and whether they are NCCL (1, 0). Only blocking MPI collectives are included.
    """
    names = ("thread", "begin", "end", "collective", "late", "wait", "of_nccl")
    table = list_collectives(job.reader)
    is_told = (pl.col("late") >= 0) & ~pl.col("later") & (pl.len().over("collective") > 1)
    table = table.filter(is_told & (pl.col("rule") != BY_SET_UP))
    frames = [table.with_columns(of_nccl=~pl.col("rule").is_in(MPI_RULES)).select(names)]
    if WAITS[1] in job.reader.layouts:
        known = job.reader.read_begins(WAITS[1], ("late", "wait"))
        known = known.with_columns(collective=pl.lit(0), of_nccl=pl.lit(1))
        frames.append(known.filter(pl.col("late") >= 0).select(names))
    return pl.concat(one.cast(pl.Int64) for one in frames)


def _list_host_events(
    group: DeviceGroup, of_threads: Sequence[np.ndarray], windows: Sequence[Window]
) -> Iterator[tuple[str, Columns]]:
    """Yield the calls and ranges of the threads of lanes. of_threads: from :func:`_place_threads`."""
    special = {"cuda_api": ("sync", group.options.synchronising), "osrt": ("io", group.options.io)}

    def keep(columns: Mapping[str, np.ndarray]) -> np.ndarray:
        found = np.zeros(len(columns["thread"]), bool)
        for lane in of_threads:
            found |= _mask_rows(lane[columns["thread"]], columns["begin"], columns["end"], windows)
        return found

    for layout in filter(group.has, (*CALL_CLASSES, *RANGES)):
        kind = "x" if layout in RANGES else "h"
        name = _find_name_field(layout)
        frame = group.reader.read_begins(layout, (name,), group.number, keep)
        thread, begin, end, names = to_arrays(frame, "thread", *SIDES, name)
        number = np.full(len(names), CLASSES.index("nvtx" if kind == "x" else CALL_CLASSES[layout]))
        if layout in special:
            then, values = special[layout]
            number[np.isin(names, values)] = CLASSES.index(then)
        columns = {"begin": begin, "end": end, "thread": thread, "name": names, "class": number}
        columns["source"] = np.full_like(number, SHOWN.index(layout))
        for lane in of_threads:
            columns["lane"] = lane[thread]
            own = np.flatnonzero(_mask_rows(columns["lane"], begin, end, windows))
            yield kind, _choose_columns(kind, take_rows(columns, own))


def _choose_columns(kind: str, columns: Columns) -> Columns:
    """Return the columns of a kind of track in order, as int64."""
    more = {*COLUMNS[kind], "thread"} & {*columns} - {"name"}
    names = ("lane", "begin", "end", "name", "class", *sorted(more), "source")
    return {name: columns[name].astype(np.int64, copy=False) for name in names}


def _name_communicators(job: OpenJob) -> dict[int, str]:
    kernels, rows = job.reader.read_begins("nccl_kernel", ("communicator",)), job.reader.rows
    kernels = kernels.with_columns(rows.find("task", kernels["thread"]))
    tasks = rows.threads.select("task", "rank", "who", "node", "is_gpu").unique("task")
    return name_communicators(kernels.unique(["communicator", "task"]), tasks)


def map_rows(job: OpenJob, lanes: Mapping[tuple[int, int], int]) -> np.ndarray:
    """Return the lane on the page of each row of the trace, or -1. A host thread has the first lane
    of its task. lanes: (task, device) -> number.
    """
    rows = job.reader.rows.threads.select("kind", "task", pl.col("device").fill_null(NO_DEVICE))
    first = {task: lane for (task, _), lane in reversed(lanes.items())}
    first |= {host: first.get(task, -1) for task, host in reversed(job.reader.rows.hosts.items())}
    return np.array(
        [
            first.get(task, -1) if kind == HOST else lanes.get((task, device), -1)
            for kind, task, device in rows.rows()
        ],
        np.int64,
    )


def _read_messages(
    job: OpenJob, lanes: Mapping[tuple[int, int], int], windows: Sequence[Window]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the messages between lanes that are sent within windows of their senders, and `pairs`
    for Events.
    """
    lane_of_row = map_rows(job, lanes)
    names = ("begin", "end", "from", "to", "bytes", "on_gpu")
    frames = [pl.DataFrame(schema=dict.fromkeys(names, pl.Int64))]
    pairs = []
    for kind, on_gpu in MESSAGES.items():
        if kind in job.reader.layouts:
            lines = job.reader.read_lines([kind])
            sender, receiver = (lane_of_row[lines[name]] for name in ("sender", "thread"))
            frame = lines.select(begin="sent", end=pl.max_horizontal("sent", "end"), bytes="bytes")
            frame = frame.with_columns(
                lane=pl.Series(sender), to=pl.Series(receiver), on_gpu=pl.lit(on_gpu)
            )
            frame = frame.filter((pl.col("lane") >= 0) & (pl.col("to") >= 0))
            time = (pl.col("end") - pl.col("begin")).sum().alias("time")
            sums = frame.group_by("lane", "to").agg(
                pl.len().alias("count"), pl.col("bytes").sum(), time
            )
            pairs.append(sums.rename({"lane": "from"}).cast(pl.Int64))
            frame = select_rows(frame, windows)
            frames.append(frame.rename({"lane": "from"}).select(names).cast(pl.Int64))
    whole = pl.concat(pairs) if pairs else pl.DataFrame()
    if whole.height:
        whole = whole.group_by("from", "to").sum().sort("bytes", "from", "to").tail(MOST_PAIRS)
    return pl.concat(frames).sort("begin"), whole


def label_names(job: OpenJob, names: pl.DataFrame) -> pl.Series:
    """Return the labels of names, in the same order. names: frame of `source` (name set) and `name`
    (value).
    """
    if not names.height:
        return pl.Series("label", [], pl.String)
    labels = []
    for source in names["source"].unique().to_list():
        pairs = (
            job.labels[source].rows() if source in job.labels else [*list_labels(source).items()]
        )
        schema = {"name": pl.Int64, "label": pl.String}
        known = pl.DataFrame(pairs, schema=schema, orient="row").unique("name", keep="first")
        labels.append(known.with_columns(source=pl.lit(source)))
    joined = names.join(pl.concat(labels), ["source", "name"], "left", maintain_order="left")
    return joined["label"].fill_null("(without a name)")
