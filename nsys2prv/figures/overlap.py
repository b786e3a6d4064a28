"""Sum exposed and overlapped communication by device, operation and kernel class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import polars as pl

from nsys2prv.figures.device_group import (
    COMMUNICATING,
    COMPUTE,
    GRAPH,
    MEMORY,
    NCCL,
    OTHER_COMMUNICATION,
    DeviceGroup,
    label_values,
    to_arrays,
)
from nsys2prv.figures.intervals import unite
from nsys2prv.figures.result import DECLARED, Context, Result, divide_columns

#: Layout of operations of UCX.
UCX = "ucx_transfers"
#: Shares in the table of devices: the part, and the whole.
SHARES: dict[str, list[str]] = DECLARED["overlap"].terms


def collect(unit: DeviceGroup) -> Iterator[tuple[str, pl.DataFrame]]:
    """Collect the overlapped communication of each device (`devices`), the time that other work
    overlaps each kernel (`kernels`), and the overlapped time of operations of UCX of each task
    (`ucx`).
    """
    if unit.has(UCX):
        yield from _measure_ucx(unit)
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
        yield "devices", pl.DataFrame([sums])
        work = unit.work.filter(pl.col("device") == device)
        begin, end, what = to_arrays(work, "begin", "end", "what")
        is_communication = np.isin(what, (MEMORY, *COMMUNICATING))
        beside = [spans.within(begin, end) for spans in (compute, communication)]
        kinds = work.with_columns(
            time_ns=pl.Series(unit.covered.within(begin, end)),
            overlapped_ns=pl.Series(np.where(is_communication, *beside)),
        ).filter(pl.col("time_ns") > 0)
        by_kind = kinds.group_by("what", "operation", "name", "class", maintain_order=True)
        yield "kernels", by_kind.agg(pl.col("time_ns", "overlapped_ns").sum(), count=pl.len())


def _measure_ucx(unit: DeviceGroup) -> Iterator[tuple[str, pl.DataFrame]]:
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


def conclude(frames: Mapping[str, pl.DataFrame], context: Context, result: Result) -> None:
    """Add exposed and overlapped communication by device, operation and class."""
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
    """Return the communication of each device, and of all in a last row."""
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
    """Return count, time_ns and overlapped_ns by a label, greatest time first."""
    sums = kernels.group_by(label.alias(name), maintain_order=True).agg(
        pl.col("count", "time_ns", "overlapped_ns").sum()
    )
    return sums.sort("time_ns", descending=True, maintain_order=True)
