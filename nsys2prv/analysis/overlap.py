"""Communication that overlaps computation, and that does not.

Communication is NCCL kernels and memory operations, as in BSC's view; it is exposed where its
device computes nothing (no other kernel, no graph) and overlapped where it does. Times of
operations and classes are added up kernel by kernel; those of devices are of sets of times.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from nsys2prv.analysis.intervals import count_concurrent, intersect_spans, sum_time_by_count
from nsys2prv.analysis.result import Analysis, Context, Result, Table, divide_columns
from nsys2prv.analysis.unit import COMPUTE, GRAPH, MEMORY, NCCL, WORK, Unit, label_values


def collect(unit: Unit) -> dict[str, pl.DataFrame]:
    by_table: dict[str, list[pl.DataFrame]] = {
        "devices": [],
        "kernels": [],
        "concurrency": [],
        "flight": [],
    }
    for device in unit.devices:
        compute, nccl = (
            unit.find_device_spans(device, COMPUTE, GRAPH),
            unit.find_device_spans(device, NCCL),
        )
        communication = unit.find_device_spans(device, NCCL, MEMORY)
        by_table["devices"].append(
            pl.DataFrame(
                {
                    "device": [device],
                    "communication_ns": [communication.length],
                    "overlapped_ns": [intersect_spans(communication, compute).length],
                    "nccl_ns": [nccl.length],
                    "nccl_overlapped_ns": [intersect_spans(nccl, compute).length],
                    "compute_ns": [compute.length],
                }
            )
        )
        device_work = unit.work.filter(pl.col("device") == device)
        begin, end, what = (device_work[name].to_numpy() for name in ("begin", "end", "what"))
        beside = np.where(
            np.isin(what, (NCCL, MEMORY)),
            compute.within(begin, end),
            communication.within(begin, end),
        )
        kinds = device_work.with_columns(beside=beside).group_by(
            "device", "what", "operation", "name", "class", maintain_order=True
        )
        by_table["kernels"].append(
            kinds.agg(
                count=pl.len(),
                time_ns=(pl.col("end") - pl.col("begin")).sum(),
                beside_ns=pl.col("beside").sum(),
            )
        )
        kernels = what != MEMORY
        counts = sum_time_by_count(begin[kernels], end[kernels], nccl)
        by_table["concurrency"].append(
            pl.DataFrame(
                list(counts.items()),
                schema={"kernels": pl.Int64, "time_ns": pl.Int64},
                orient="row",
            )
        )
    if unit.has("launch"):
        by_table["flight"].append(_count_in_flight(unit))
    return {
        name: pl.concat(frames) if frames else pl.DataFrame() for name, frames in by_table.items()
    }


def _count_in_flight(unit: Unit) -> pl.DataFrame:
    """Return kernels launched and not begun yet, by task: mean over the elapsed time, and most at a
    time.
    """
    launched = unit.launched.filter(pl.col("what") != MEMORY)
    task = unit.task_of[launched["sender"].to_numpy()]
    rows = []
    for number in np.unique(task):
        sent, begin = (
            launched["sent"].to_numpy()[task == number],
            launched["begin"].to_numpy()[task == number],
        )
        _, counts = count_concurrent(sent, begin)
        rows.append(
            (
                int(number),
                len(sent),
                float(np.maximum(begin - sent, 0).sum() / unit.duration),
                int(counts.max(initial=0)),
            )
        )
    return pl.DataFrame(
        rows,
        schema={
            "task": pl.Int64,
            "launched": pl.Int64,
            "mean_in_flight": pl.Float64,
            "max_in_flight": pl.Int64,
        },
        orient="row",
    )


def conclude(frames: Mapping[str, pl.DataFrame], context: Context) -> Result:
    devices = frames["devices"].sort("device")
    total = devices.sum().with_columns(device=pl.lit(-1, pl.Int64))
    count = devices.height
    devices = pl.concat(
        [
            devices.with_columns(elapsed=pl.lit(context.duration, pl.Int64)),
            total.with_columns(elapsed=pl.lit(context.duration * count, pl.Int64)),
        ]
    )
    exposed = pl.col("communication_ns") - pl.col("overlapped_ns")
    nccl_exposed = pl.col("nccl_ns") - pl.col("nccl_overlapped_ns")
    devices = devices.select(
        "device",
        "communication_ns",
        exposed.alias("exposed_ns"),
        "overlapped_ns",
        divide_columns(exposed, pl.col("communication_ns")).alias("exposed_share_of_communication"),
        divide_columns("overlapped_ns", "communication_ns").alias(
            "overlapped_share_of_communication"
        ),
        (exposed / pl.col("elapsed")).alias("exposed_share_of_elapsed"),
        (pl.col("overlapped_ns") / pl.col("elapsed")).alias("overlapped_share_of_elapsed"),
        "nccl_ns",
        nccl_exposed.alias("nccl_exposed_ns"),
        divide_columns(nccl_exposed, pl.col("nccl_ns")).alias("exposed_share_of_nccl"),
    )
    devices = (
        context.name_devices(devices)
        .with_columns(device=pl.coalesce("device", pl.lit("all")))
        .drop("node")
    )
    tables = {
        "devices": Table(
            "Communication: exposed, and overlapped with computation",
            devices,
            __doc__ or "",
        )
    }
    if not context.reader.layouts & {"nccl_kernel", "memory_operation"}:
        return Result(
            "overlap",
            ANALYSIS.title,
            {},
            [],
            [f"overlap: {context.absent(('nccl_kernel', 'memory_operation'))}"],
        )
    kernels = frames["kernels"]
    tables |= _sum_by_operation(kernels) | _sum_by_class(kernels)
    concurrent = (
        frames["concurrency"]
        .group_by("kernels", maintain_order=True)
        .agg(pl.col("time_ns").sum())
        .sort("kernels")
    )
    if concurrent.height:
        tables["concurrency"] = Table(
            "Concurrent kernels while NCCL kernels run (1: NCCL alone)",
            concurrent.with_columns(
                share_of_nccl=pl.col("time_ns") / pl.col("time_ns").sum(),
                share_of_elapsed=pl.col("time_ns") / (context.duration * count),
            ),
        )
    missing = []
    if frames["flight"].height:
        tables["in_flight"] = Table(
            "Kernels in flight: launched, but not begun yet",
            context.name_tasks(frames["flight"].sort("task")),
        )
    else:
        missing.append(f"kernels in flight: {context.absent(('cuda_api',))}")
    return Result("overlap", ANALYSIS.title, tables, [], missing)


def _sum_by_operation(kernels: pl.DataFrame) -> dict[str, Table]:
    communication = kernels.filter(pl.col("what").is_in([NCCL, MEMORY]))
    if not communication.height:
        return {}
    of_nccl = label_values("operation", "nccl_operation", "operation unknown")
    of_memory = label_values("name", "memory_operation", "memory operation")
    names = pl.when(pl.col("what") == NCCL).then(pl.format("NCCL {}", of_nccl)).otherwise(of_memory)
    rows = (
        communication.with_columns(operation=names)
        .group_by("operation", maintain_order=True)
        .agg(
            pl.col("count").sum(), pl.col("time_ns").sum(), overlapped_ns=pl.col("beside_ns").sum()
        )
    )
    rows = rows.sort("time_ns", descending=True, maintain_order=True)
    exposed = pl.col("time_ns") - pl.col("overlapped_ns")
    return {
        "operations": Table(
            "Communication by operation",
            rows.select(
                "operation",
                "count",
                "time_ns",
                exposed.alias("exposed_ns"),
                "overlapped_ns",
                divide_columns(exposed, pl.col("time_ns")).alias("exposed_share"),
            ),
        )
    }


def _sum_by_class(kernels: pl.DataFrame) -> dict[str, Table]:
    compute = kernels.filter(pl.col("what").is_in([COMPUTE, GRAPH]))
    if not compute.height:
        return {}
    label = (
        pl.when(pl.col("what") == GRAPH)
        .then(pl.lit("CUDA graph"))
        .otherwise(label_values("class", "kernel_class", "Other"))
    )
    rows = (
        compute.with_columns(label.alias("class"))
        .group_by("class", maintain_order=True)
        .agg(
            pl.col("count").sum(),
            pl.col("time_ns").sum(),
            overlapped_ns=pl.col("beside_ns").sum(),
        )
    )
    rows = rows.sort("time_ns", descending=True, maintain_order=True)
    return {
        "classes": Table(
            "Computation by kernel class, and how much of it overlaps communication",
            rows.with_columns(overlapped_share=divide_columns("overlapped_ns", "time_ns")),
        )
    }


ANALYSIS = Analysis(
    "overlap",
    "Overlap of communication and computation",
    (
        "exposed and overlapped communication by device, operation and kernel class; concurrent "
        "kernels; kernels in flight"
    ),
    (tuple(WORK),),
    collect,
    conclude,
)
