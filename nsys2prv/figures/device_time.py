"""Measure idle time of devices, launch latency, CUDA API calls and memory operations. Sum exposed
and overlapped communication by device, operation and kernel class.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from nsys2prv._util.columns import COUNT, DURATION, sum_by, take_rows
from nsys2prv._util.intervals import SIDES, Spans, make_statistics, spill_durations, unite
from nsys2prv.events.catalogue import map_labels
from nsys2prv.figures.device_group import (
    COMMUNICATING,
    COMPUTE,
    GRAPH,
    MEMORY,
    NCCL,
    OTHER_COMMUNICATION,
    Collected,
    Columns,
    DeviceGroup,
    Frames,
    find_ordered_rows,
    label_values,
    to_arrays,
)
from nsys2prv.figures.host_time import PARTS, WAITING, find_task_parts
from nsys2prv.figures.result import DECLARED, Context, Result, divide_columns, sum_known

#: Classes of gaps by length: names, and bounds in ns.
LENGTHS = ("< 1 us", "1-10 us", "10-100 us", "100 us - 1 ms", "1-10 ms", "10-100 ms", ">= 100 ms")
BOUNDS = 10 ** np.arange(3, 9)
#: Gaps this long are listed on their own, so many of a device.
LONG_NS, MOST_LONG = 1_000_000, 5
_PAGEABLE_MEMORY = map_labels("memory_kind")["pageable"]
#: Whether a memory operation reads or writes pageable memory.
PAGEABLE = (pl.col("source") == _PAGEABLE_MEMORY) | (pl.col("destination") == _PAGEABLE_MEMORY)
#: Columns that distinguish sorts of memory operations.
MOVES = ["operation", "source", "destination"]


def collect(unit: DeviceGroup) -> Collected:
    """Yield gaps between GPU work by length (`gaps`), the longest gaps (`long`), durations of calls
    and latencies, and sums of memory operations.
    """
    for device in unit.known_devices:
        idle = unit.covered - unit.find_active_spans(device)
        length = idle.end - idle.begin
        size, long = np.searchsorted(BOUNDS, length, "right"), np.flatnonzero(length >= LONG_NS)
        long_gaps = Spans(idle.begin[long], idle.end[long])
        host = {"unknown": np.zeros(len(LENGTHS), np.int64)}
        of_long = {"unknown": np.zeros(len(long), np.int64)}
        for part, spans in find_task_parts(unit, unit.find_main_task(device), idle):
            if len(spans):
                # Each of these spans is in one gap.
                gap = np.searchsorted(idle.begin, spans.begin, "right") - 1
                host[part] = host.get(part, 0) + _sum_sizes(size[gap], spans)
                inside = spans.within(long_gaps.begin, long_gaps.end)
                of_long[part] = of_long.get(part, 0) + inside
        count = np.bincount(size, minlength=len(LENGTHS))
        sums = {"class": np.arange(len(LENGTHS)), "count": count, "time_ns": _sum_sizes(size, idle)}
        yield "gaps", _place(device, take_rows({**sums, **host}, count > 0))
        most = np.argsort(-length[long], kind="stable")[:MOST_LONG]
        gaps = {"begin": long_gaps.begin, "time_ns": length[long], **of_long}
        yield "long", _place(device, take_rows(gaps, most))
    if unit.has("cuda_api"):
        yield "calls", _spill(unit, unit.api, "call", "call-durations", unit.list_apart(unit.api))
        if unit.has("launch"):
            yield from _measure_latencies(unit)
    if unit.has("memory_operation"):
        moves = unit.read_begins("memory_operation", (*MOVES, "bytes"))
        sums = moves.group_by(MOVES, maintain_order=True).agg(
            count=COUNT,
            bytes=sum_known(pl.col("bytes")),
            time_ns=DURATION.sum(),
        )
        yield "memory", sums


def _sum_sizes(size: np.ndarray, spans: Spans) -> np.ndarray:
    """Return the total length of spans by the class of their gaps (`size`)."""
    return np.bincount(size, spans.end - spans.begin, len(LENGTHS)).astype(np.int64)


def _place(device: int, columns: Mapping[str, np.ndarray]) -> Columns:
    """Return columns with their device."""
    return {**columns, "device": np.full(len(columns["time_ns"]), device)}


def _spill(
    unit: DeviceGroup, frame: pl.DataFrame, by: str, name: str, apart: np.ndarray | None = None
) -> pl.DataFrame:
    return spill_durations(frame, [by], unit.folder / f"{name}-{unit.number}.bin", apart)


def _measure_latencies(unit: DeviceGroup) -> Collected:
    work = unit.list_launched_work(("sender", "sent", "begin", "what"))
    sender, sent, begin, what = (work[name].to_numpy() for name in work.columns)
    call = find_ordered_rows(*to_arrays(unit.api, "thread", "begin"), sender, sent)
    returned = unit.api["end"].to_numpy()
    task, kernel = unit.task_of[sender], what != MEMORY
    returned = np.where(call >= 0, returned[call], begin) if len(returned) else begin
    times = {"latencies": (kernel, sent), "queued": (kernel & (begin > returned), returned)}
    for name, (own, since) in times.items():
        rows = pl.DataFrame({"task": task[own], "begin": since[own], "end": begin[own]})
        yield name, _spill(unit, rows, "task", name)


def conclude(frames: Frames, context: Context, result: Result) -> None:
    """Add tables of gaps between GPU work, latencies, calls and memory operations to the result."""
    if frames["gaps"].height:
        _add_gap_tables(frames, context, result)
    for name in ("latencies", "queued"):
        if frames[name].height:
            by_task = make_statistics(frames[name], ["task"]).drop("time_ns").sort("task")
            result.add(name, context.label_tasks(by_task))
    if frames["calls"].height:
        rows = make_statistics(frames["calls"], ["call"])
        rows = context.label_names(rows, "call", "cuda_api").select(
            "call",
            "count",
            "time_ns",
            (pl.col("time_ns") / pl.col("time_ns").sum()).alias("time_share"),
            pl.exclude("call", "count", "time_ns"),
        )
        result.add("calls", rows)
    if frames["memory"].height:
        result.add("memory", _sum_moves(frames["memory"]))


def _add_gap_tables(frames: Frames, context: Context, result: Result) -> None:
    gaps, long = (frames[name].fill_null(0) for name in ("gaps", "long"))
    parts = [part for part in (WAITING, *PARTS) if part in gaps.columns]
    host = [pl.col(part).alias(f"{part}_ns") for part in parts]
    whole = gaps.group_by("class").agg(pl.col("count", "time_ns", *parts).sum()).sort("class")
    whole = whole.select(
        pl.col("class")
        .replace_strict(dict(enumerate(LENGTHS)), return_dtype=pl.String)
        .alias("length"),
        "count",
        "time_ns",
        (pl.col("time_ns") / (context.elapsed * gaps["device"].n_unique())).alias("elapsed_share"),
        *host,
    )
    result.add("gaps", whole)
    if long.height:
        long = long.sort("time_ns", descending=True, maintain_order=True)
        long = long.select("device", pl.col("begin").alias("begin_ns"), "time_ns", *host)
        result.add("long_gaps", context.label_devices(long), count=MOST_LONG)


def _sum_moves(memory: pl.DataFrame) -> pl.DataFrame:
    rows = memory.group_by(MOVES, maintain_order=True).agg(
        pl.col("count", "time_ns").sum(), bytes=sum_known(pl.col("bytes"))
    )
    return rows.sort("time_ns", descending=True, maintain_order=True).select(
        label_values("operation", "memory_operation", "other"),
        label_values("source", "memory_kind", None),
        label_values("destination", "memory_kind", None),
        "count",
        "bytes",
        "time_ns",
        divide_columns(pl.col("bytes").cast(pl.Float64), "time_ns").alias("bandwidth_gb_s"),
        PAGEABLE.alias("pageable"),
    )


# ---- overlap -------------------------------------------------------------------------------------


#: Layout of operations of UCX.
UCX = "ucx_transfers"
#: Shares in the table of devices: the part, and the whole.
SHARES: dict[str, list[str]] = DECLARED["overlap"].terms


def collect_overlap(unit: DeviceGroup) -> Collected:
    """Yield how much communication of each device overlaps other work (`devices`), how much other
    work overlaps each kernel (`kernels`), and the overlapped time of UCX operations by task
    (`ucx`).
    """
    if unit.has(UCX):
        yield from _measure_ucx(unit)
    begin, end, what, devices = to_arrays(unit.work, *SIDES, "what", "device")
    lasts, beside = np.zeros((2, len(begin)), np.int64)
    for device in unit.known_devices:
        compute = unit.find_device_spans(device, COMPUTE, GRAPH)
        nccl = unit.find_device_spans(device, *COMMUNICATING)
        communication = unit.find_device_spans(device, MEMORY, *COMMUNICATING)
        sums = {
            "device": device,
            "communication_ns": communication.length,
            "overlapped_ns": (communication & compute).length,
            "nccl_ns": nccl.length,
            "nccl_overlapped_ns": (nccl & compute).length,
        }
        yield "devices", {name: np.array([value]) for name, value in sums.items()}
        rows = np.flatnonzero(devices == device)
        is_communication = np.isin(what[rows], (MEMORY, *COMMUNICATING))
        for own, others in ((is_communication, compute), (~is_communication, communication)):
            sides = begin[rows[own]], end[rows[own]]
            lasts[rows[own]] = unit.covered.within(*sides)
            beside[rows[own]] = others.within(*sides)
    rows = np.argsort(devices, kind="stable")
    rows = rows[lasts[rows] > 0]
    count = np.ones(len(rows), np.int64)
    kinds = {
        name: unit.work[name].to_numpy()[rows] for name in ("what", "operation", "name", "class")
    }
    yield "kernels", sum_by(kinds, time_ns=lasts[rows], overlapped_ns=beside[rows], count=count)


def _measure_ucx(unit: DeviceGroup) -> Collected:
    rows = unit.read_begins(UCX)
    tasks, of_work = unit.list_tasks(rows), unit.list_tasks(unit.work)
    for task in tasks.unique().sort().to_list():
        used = unit.work.filter(of_work == task)["device"].unique().to_list()
        compute = unite(*(unit.find_device_spans(one, COMPUTE, GRAPH) for one in used))
        own = rows.filter(tasks == task)
        under_way = unit.merge_rows(own)
        sums = {
            "task": task,
            "count": own.height,
            "time_ns": under_way.length,
            "overlapped_ns": (under_way & compute).length,
        }
        yield "ucx", pl.DataFrame([sums])


def conclude_overlap(frames: Frames, context: Context, result: Result) -> None:
    """Add tables of exposed and overlapped communication by device, operation and class to the
    result.
    """
    devices, kernels, ucx = frames["devices"], frames["kernels"], frames["ucx"]
    exposed = pl.col("time_ns") - pl.col("overlapped_ns")
    share = divide_columns(exposed, "time_ns").alias("exposed_share")
    if ucx.height:
        rows = ucx.sort("task").with_columns(exposed.alias("exposed_ns"), share)
        result.add("ucx", context.label_tasks(rows))
    if not devices.height or not devices["communication_ns"].sum():
        if not ucx.height:
            absent = context.explain_absence(("nccl_kernel", "memory_operation"))
            result.missing.append(f"overlap: {absent}")
        return
    result.add("devices", _compute_exposed(devices.sort("device"), context))
    operation = label_values("operation", "nccl_operation", "operation unknown")
    label = (
        pl.when(pl.col("what") == NCCL)
        .then(pl.format("NCCL {}", operation))
        .when(pl.col("what") == OTHER_COMMUNICATION)
        .then(pl.lit("kernels other than NCCL's"))
        .otherwise(label_values("name", "memory_operation", "memory operation"))
    )
    moving = kernels.filter(pl.col("what").is_in([MEMORY, *COMMUNICATING]))
    operations = _sum_by(moving, "operation", label).select(
        pl.exclude("overlapped_ns"), exposed.alias("exposed_ns"), "overlapped_ns", share
    )
    result.add("operations", operations)
    of_kernel = label_values("class", "kernel_class", "Other")
    label = pl.when(pl.col("what") == GRAPH).then(pl.lit("CUDA graph")).otherwise(of_kernel)
    computing = kernels.filter(pl.col("what").is_in([COMPUTE, GRAPH]))
    overlapped = divide_columns("overlapped_ns", "time_ns")
    classes = _sum_by(computing, "class", label).with_columns(overlapped_share=overlapped)
    result.add("classes", classes)


def _compute_exposed(devices: pl.DataFrame, context: Context) -> pl.DataFrame:
    """Return the communication of each device, and of all devices in the last row."""
    devices = devices.with_columns(elapsed=pl.lit(context.elapsed, pl.Int64))
    devices = pl.concat([devices, devices.sum().with_columns(device=pl.lit(-1, pl.Int64))])
    devices = devices.with_columns(
        exposed_ns=pl.col("communication_ns") - pl.col("overlapped_ns"),
        nccl_exposed_ns=pl.col("nccl_ns") - pl.col("nccl_overlapped_ns"),
    ).with_columns(divide_columns(*pair).alias(name) for name, pair in SHARES.items())
    *of_communication, of_nccl = SHARES
    return context.label_devices(devices).select(
        pl.col("device").fill_null("all"),
        "communication_ns",
        "exposed_ns",
        "overlapped_ns",
        *of_communication,
        "nccl_ns",
        "nccl_exposed_ns",
        of_nccl,
    )


def _sum_by(kernels: pl.DataFrame, name: str, label: pl.Expr) -> pl.DataFrame:
    """Return count, time_ns and overlapped_ns by a label, the largest time first."""
    sums = kernels.group_by(label.alias(name), maintain_order=True).agg(
        pl.col("count", "time_ns", "overlapped_ns").sum()
    )
    return sums.sort("time_ns", descending=True, maintain_order=True)
