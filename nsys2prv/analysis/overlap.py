"""Measure how much communication overlaps computation, by device, operation and class of kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import polars as pl

from nsys2prv.analysis.intervals import count_concurrent, intersect_spans, sum_time_by_count
from nsys2prv.analysis.result import KERNEL_NAMES, Analysis, Context, Result, divide_columns
from nsys2prv.analysis.unit import (
    COMMUNICATING,
    COMPUTE,
    GRAPH,
    MEMORY,
    NCCL,
    OTHER_COMMUNICATION,
    WORK,
    Unit,
    label_values,
    to_arrays,
)

#: What the tables show.
ABOUT = """Communication that overlaps computation, and that does not.

Communication is kernels of NCCL, other kernels of the class Communication (`--useful bsc` leaves
them out, as BSC's view does) and memory operations; it is exposed where its device computes nothing (no other kernel, no graph) and overlapped where it does. Times of
operations and classes are added up kernel by kernel; those of devices are of sets of times. All are
of the time that the reports of all processes cover.
"""


def collect(unit: Unit) -> Iterator[tuple[str, pl.DataFrame]]:
    """Collect by device how much communication is overlapped, by kernel what runs beside it,
    how many kernels run beside those that communicate, and how many are in flight.
    """
    for device in unit.known_devices:
        compute = unit.find_device_spans(device, COMPUTE, GRAPH)
        nccl = unit.find_device_spans(device, *COMMUNICATING)
        communication = unit.find_device_spans(device, MEMORY, *COMMUNICATING)
        sums = {
            "device": device,
            "communication_ns": communication.length,
            "overlapped_ns": intersect_spans(communication, compute).length,
            "nccl_ns": nccl.length,
            "nccl_overlapped_ns": intersect_spans(nccl, compute).length,
        }
        yield "devices", pl.DataFrame([sums])
        work = unit.work.filter(pl.col("device") == device)
        begin, end, what = to_arrays(work, "begin", "end", "what")
        time = unit.covered.within(begin, end)
        beside = np.where(
            np.isin(what, (MEMORY, *COMMUNICATING)),
            compute.within(begin, end),
            communication.within(begin, end),
        )
        kinds = work.with_columns(beside=beside, time=time).filter(pl.col("time") > 0)
        kinds = kinds.group_by("what", "operation", "name", "class", maintain_order=True)
        yield (
            "kernels",
            kinds.agg(
                count=pl.len(),
                time_ns=pl.col("time").sum(),
                overlapped_ns=pl.col("beside").sum(),
            ),
        )
        kernels = what != MEMORY
        counts = sum_time_by_count(begin[kernels], end[kernels], nccl)
        schema = {"kernels": pl.Int64, "time_ns": pl.Int64}
        yield "concurrency", pl.DataFrame([*counts.items()], schema=schema, orient="row")
    if unit.has("launch"):
        yield "flight", _count_in_flight(unit)


def _count_in_flight(unit: Unit) -> pl.DataFrame:
    """Return kernels launched and not begun yet, by task: mean over the elapsed time, and most at a
    time.
    """
    launched = unit.launched_work.filter(pl.col("what") != MEMORY)
    sender, sent, begin = to_arrays(launched, "sender", "sent", "begin")
    task = unit.task_of[sender]
    rows = []
    for number in np.unique(task).tolist():
        since, until = sent[task == number], begin[task == number]
        rows.append(
            {
                "task": number,
                "launched": len(since),
                "mean_in_flight": unit.covered.within(since, np.maximum(since, until)).sum()
                / unit.covered.length,
                "max_in_flight": count_concurrent(since, until)[1].max(initial=0),
            }
        )
    return pl.DataFrame(rows)


def conclude(frames: Mapping[str, pl.DataFrame], context: Context, result: Result) -> None:
    """Add exposed and overlapped communication by device, operation and class, and kernels
    in flight.
    """
    communicating = ("nccl_kernel", "memory_operation")
    if not frames["devices"].height or not frames["devices"]["communication_ns"].sum():
        result.missing.append(f"overlap: {context.explain_absence(communicating)}")
        return
    devices, kernels = frames["devices"].sort("device"), frames["kernels"]
    result.add(
        "devices",
        "Communication: exposed, and overlapped with computation",
        _compute_exposed(devices, context),
        ABOUT,
    )
    exposed = pl.col("time_ns") - pl.col("overlapped_ns")
    if (rows := _sum_by_operation(kernels)).height:
        rows = rows.select(
            "operation",
            "count",
            "time_ns",
            exposed.alias("exposed_ns"),
            "overlapped_ns",
            divide_columns(exposed, "time_ns").alias("exposed_share"),
        )
        result.add("operations", "Communication by operation", rows)
    if (rows := _sum_by_class(kernels)).height:
        result.add(
            "classes",
            "Computation by kernel class, and how much of it overlaps communication",
            rows.with_columns(overlapped_share=divide_columns("overlapped_ns", "time_ns")),
        )
    concurrent = frames["concurrency"].group_by("kernels").agg(pl.col("time_ns").sum())
    if concurrent.height:
        result.add(
            "concurrency",
            "Concurrent kernels while kernels communicate (1: these alone)",
            concurrent.sort("kernels").with_columns(
                share_of_nccl=pl.col("time_ns") / pl.col("time_ns").sum(),
                share_of_elapsed=pl.col("time_ns") / (context.elapsed * devices.height),
            ),
        )
    if frames["flight"].height:
        result.add(
            "in_flight",
            "Kernels in flight: launched, but not begun yet",
            context.name_tasks(frames["flight"].sort("task")),
        )
    else:
        result.missing.append(f"kernels in flight: {context.explain_absence(('cuda_api',))}")


def _compute_exposed(devices: pl.DataFrame, context: Context) -> pl.DataFrame:
    """Return the communication of each device, and of all in a last row."""
    elapsed = pl.lit(context.elapsed, pl.Int64)
    total = devices.sum().with_columns(
        device=pl.lit(-1, pl.Int64), elapsed=elapsed * devices.height
    )
    devices = pl.concat([devices.with_columns(elapsed=elapsed), total])
    exposed = pl.col("communication_ns") - pl.col("overlapped_ns")
    nccl_exposed = pl.col("nccl_ns") - pl.col("nccl_overlapped_ns")
    devices = devices.select(
        "device",
        "communication_ns",
        exposed.alias("exposed_ns"),
        "overlapped_ns",
        divide_columns(exposed, "communication_ns").alias("exposed_share_of_communication"),
        divide_columns("overlapped_ns", "communication_ns").alias(
            "overlapped_share_of_communication"
        ),
        (exposed / pl.col("elapsed")).alias("exposed_share_of_elapsed"),
        (pl.col("overlapped_ns") / pl.col("elapsed")).alias("overlapped_share_of_elapsed"),
        "nccl_ns",
        nccl_exposed.alias("nccl_exposed_ns"),
        divide_columns(nccl_exposed, "nccl_ns").alias("exposed_share_of_nccl"),
    )
    named = context.name_devices(devices).drop("node")
    return named.with_columns(device=pl.coalesce("device", pl.lit("all")))


def _sum_by_operation(kernels: pl.DataFrame) -> pl.DataFrame:
    """Return communication by operation: operation, count, time_ns, overlapped_ns."""
    of_nccl = label_values("operation", "nccl_operation", "operation unknown")
    of_memory = label_values("name", "memory_operation", "memory operation")
    label = (
        pl.when(pl.col("what") == NCCL)
        .then(pl.format("NCCL {}", of_nccl))
        .when(pl.col("what") == OTHER_COMMUNICATION)
        .then(pl.lit("kernels other than NCCL's"))
        .otherwise(of_memory)
    )
    moving = kernels.filter(pl.col("what").is_in([MEMORY, *COMMUNICATING]))
    return _sum_by(moving, "operation", label)


def _sum_by_class(kernels: pl.DataFrame) -> pl.DataFrame:
    """Return computation by class of kernels: class, count, time_ns, overlapped_ns."""
    of_kernel = label_values("class", "kernel_class", "Other")
    label = pl.when(pl.col("what") == GRAPH).then(pl.lit("CUDA graph")).otherwise(of_kernel)
    return _sum_by(kernels.filter(pl.col("what").is_in([COMPUTE, GRAPH])), "class", label)


def _sum_by(kernels: pl.DataFrame, name: str, label: pl.Expr) -> pl.DataFrame:
    """Return count, time_ns and overlapped_ns by a label, greatest time first."""
    sums = kernels.group_by(label.alias(name), maintain_order=True).agg(
        pl.col("count", "time_ns", "overlapped_ns").sum()
    )
    return sums.sort("time_ns", descending=True, maintain_order=True)


ANALYSIS = Analysis(
    "overlap",
    "Overlap of communication and computation",
    (
        "exposed and overlapped communication by device, operation and kernel class; concurrent "
        "kernels; kernels in flight"
    ),
    (tuple(WORK), (KERNEL_NAMES,)),
    collect,
    conclude,
    is_of_covered=True,
)
