"""Rate matrix products whose shapes NVTX ranges have: operations per second by product, and how much
that is of what the GPU can do.

Operations of a product are those of its shapes (`events/range_texts.py`); its time is that of the kernels
that were launched within its range. The GPU's peak is dense, by its model and the data type in the
kernel's name (`gpus.yaml`); where one of these is not known no share is given. Model FLOPs utilization
(MFU) counts the products with known shapes alone, so it is at least so much.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache

import polars as pl

from nsys2prv._util.files import load_shipped_file
from nsys2prv.figures.device_group import COMPUTE, GEMM, DeviceGroup, join_launch_ranges
from nsys2prv.figures.result import Context, Result, divide_columns

GPUS = load_shipped_file(__package__, "gpus.yaml")
#: Columns that tell products from others.
_KEY = ("device", "range", "operations", "name")
#: A part of a GPU has a part of its peak, which is not known.
_PART = re.compile(r"\bMIG\b")


def collect(unit: DeviceGroup) -> Iterator[tuple[str, pl.DataFrame]]:
    """Collect products of the steady state by device, range, operations and longest kernel
    (`products`), and the time of all matrix products of each device (`gemm`).
    """
    begin, end = unit.options.get_steady_span(unit.duration)
    inside = (pl.col("begin") >= begin) & (pl.col("end") <= end)
    time = (pl.col("end") - pl.col("begin")).sum()
    gemm = unit.work.filter(inside & (pl.col("what") == COMPUTE) & (pl.col("class") == GEMM))
    yield "gemm", gemm.group_by("device", maintain_order=True).agg(gemm_ns=time)
    ranges = unit.read_begins("nvtx_pushpop", ("range", "operations"))
    ranges = ranges.filter(pl.col("operations") > 0).with_row_index("product")
    if not ranges.height:
        return
    work = unit.list_launched_work(("sender", "sent", "begin", "end", "what", "name", "device"))
    within = join_launch_ranges(work.filter(inside & (pl.col("what") == COMPUTE)), ranges)
    longest = pl.col("name").sort_by(pl.col("end") - pl.col("begin")).last()
    products = within.group_by("product", maintain_order=True).agg(
        pl.col("device", "range", "operations").first(), longest, time_ns=time
    )
    sums = products.group_by(_KEY, maintain_order=True)
    yield "products", sums.agg(count=pl.len().cast(pl.Int64), time_ns=pl.col("time_ns").sum())


def conclude(frames: Mapping[str, pl.DataFrame], context: Context, result: Result) -> None:
    """Add products by how long they take, and what devices do of what they can."""
    rows = frames["products"]
    if not rows.height:
        result.missing.append(
            "operations per second of matrix products: no NVTX range has their shapes "
            "(PyTorch: torch.autograd.profiler.emit_nvtx(record_shapes=True))"
        )
        return
    models = {
        device: next(iter(names)) for device, names in context.options.gpus if len(names) == 1
    }
    labels = context.labels["kernels"].with_columns(
        data_type=pl.col("label").map_elements(find_data_type, return_dtype=pl.String)
    )
    known = labels.select("data_type", name=pl.col("value").cast(pl.Int64))
    rows = rows.cast({"name": pl.Int64}).join(known, on="name", how="left", maintain_order="left")
    peak = pl.struct("device", "data_type").map_elements(
        lambda one: find_peak(models.get(one["device"], ""), one["data_type"]),
        return_dtype=pl.Float64,
    )
    rows = rows.with_columns(peak_tflop_s=peak, all=pl.col("operations") * pl.col("count"))
    result.add("products", _label_products(rows, context))
    result.add("devices", _sum_by_device(rows, frames["gemm"], context))


def _label_products(rows: pl.DataFrame, context: Context) -> pl.DataFrame:
    sums = rows.group_by(
        "range", "operations", "name", "data_type", "peak_tflop_s", maintain_order=True
    )
    sums = sums.agg(pl.col("count", "time_ns", "all").sum())
    speed = pl.col("all") / pl.col("time_ns") / 1e3
    sums = sums.sort("time_ns", descending=True, maintain_order=True).with_columns(
        tflop_s=speed, peak_share=speed / pl.col("peak_tflop_s")
    )
    named = context.label_names(sums, "name", "kernels")
    named = context.label_names(named, "range", "nvtx")
    return named.select(
        "range", pl.col("operations").alias("flop"), pl.col("name").alias("kernel"), "data_type",
        "count", "time_ns", "tflop_s", "peak_tflop_s", "peak_share",
    )  # fmt: skip


def _sum_by_device(rows: pl.DataFrame, gemm: pl.DataFrame, context: Context) -> pl.DataFrame:
    """Return what each device does of what it can: in products, and of all of the steady state."""
    length = context.options.covered_steady.length
    ideal = pl.col("all") / pl.col("peak_tflop_s") / 1e3
    is_known = pl.col("peak_tflop_s").is_not_null().all()
    sums = rows.group_by("device").agg(
        pl.col("time_ns", "all").sum(), ideal=pl.when(is_known).then(ideal.sum())
    )
    sums = sums.join(gemm, on="device", how="left").sort("device")
    figures = sums.select(
        "device",
        tflop=pl.col("all") / 1e12,
        tflop_s=pl.col("all") / pl.col("time_ns") / 1e3,
        peak_share=pl.col("ideal") / pl.col("time_ns"),
        of_matrix_products=divide_columns("time_ns", "gemm_ns"),
        mfu_at_least=pl.col("ideal") / length,
    )
    return context.label_devices(figures)


@cache
def find_data_type(kernel: str) -> str | None:
    """Return the data type of the operands of a matrix product, by the kernel's name; None where that
    does not tell.
    """
    found = (one["type"] for one in GPUS["data_types"] if re.search(one["name"], kernel))
    return next(found, None)


@cache
def find_peak(model: str, data_type: str | None) -> float | None:
    """Return the dense peak of a GPU for a data type (10^12 operations a second), None where it is not
    known.
    """
    if _PART.search(model):
        return None
    found = (one for one in GPUS["peaks"] if re.search(one["model"], model))
    peak = next(found, {}).get(data_type)
    return None if peak is None else float(peak)
