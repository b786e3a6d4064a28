"""Rate products with shapes in NVTX ranges (matrices, attention, convolutions): operations per
second by product, as a share of the GPU's peak, and as a share of the rate that the shape allows.

The operations of a product follow from its shapes (`events/range_texts.py`). Its time is that of
the kernels launched in its range. Attention counts without a mask, or with a causal mask if the
kernel's name states it. The GPU's peak is dense, and depends on the model and on the data type in
the kernel's name (`gpus.yaml`). If one of these is unknown, no share is given. Model FLOPs
utilization (MFU) counts only products with known shapes, so it is a lower bound.

A shape allows the peak or, if lower, the rate that the GPU's memory can deliver: its bandwidth
times the operations per byte, with each operand and result moved once (the roofline).
"""

from __future__ import annotations

import re
from functools import cache

import polars as pl

from nsys2prv._util.columns import COUNT, DURATION
from nsys2prv._util.files import load_shipped_file
from nsys2prv.export.info import UNKNOWN, GpuLimits
from nsys2prv.figures.device_group import (
    ATTENTION,
    COMPUTE,
    CONVOLUTION,
    GEMM,
    Collected,
    DeviceGroup,
    Frames,
    join_launch_ranges,
)
from nsys2prv.figures.iterations import keep_outermost
from nsys2prv.figures.kernels import METRICS, measure_kernels
from nsys2prv.figures.nvtx_operations import list_captured_work, read_ranges
from nsys2prv.figures.result import Context, Result, divide_columns
from nsys2prv.figures.thresholds import BEYOND_PEAK, FAR_BELOW, MOST_BELOW, SHORTEST_KERNEL

GPUS = load_shipped_file(__package__, "gpus.yaml")
#: Facts from the shapes of a product, and the columns that distinguish products.
_SHAPES = ("operations", "masked", "elements")
KEY = ("device", "range", *_SHAPES, "name")
#: Metrics shown next to computed values.
BESIDE = METRICS | {
    f"dram_{way.lower()}_active": f"DRAM {way} Bandwidth [Throughput %]"
    for way in ("Read", "Write")
}
#: A part of a GPU has a part of its peak, which is not known.
_PART = re.compile(r"\bMIG\b")
#: FP16 operations of a multiprocessor in a clock, by compute capability, half of it of GeForce with sums in FP32 since
#: one; and of other types the share of that, and since when they are there.
_PER_CLOCK = {70: 1024, 75: 1024, 80: 2048, 86: 1024, 89: 1024, 90: 4096, 100: 8192, 120: 1024}
_HALF_SINCE = 75
_SHARES = {"fp16": (1.0, 70), "bf16": (1.0, 80), "tf32": (0.5, 80), "fp8": (2.0, 89)}
#: Sums of :func:`sum_rates` -> operations per second, and their share of the peak.
RATES = {
    "tflop_s": divide_columns(pl.col("flop") / 1e3, "product_ns"),
    "peak_share": divide_columns("ideal_ns", "product_ns"),
}
#: Whether attention has a causal mask, in names of FlashAttention 2: behind the traits and whether it drops.
_MASK = r"flash_(?:fwd|bwd)\w*<.*>, ?\w+, ?(\w+)"
_MASKS = {"0": "none", "false": "none", "1": "causal", "true": "causal"}


def list_product_work(unit: DeviceGroup) -> pl.DataFrame:
    """Return the kernels of products (GEMMs, attention, convolutions with recorded shapes), sorted
    by launch time (capture time for graphs). The outermost of nested ranges is the product.

    Columns: `product` (a number; each replay is a product), fields of its range and shapes (KEY),
    `sender`, `at` (start of the range), `begin`, `end`, `thread`, `name`, `device`, `class` and
    `tensor`.
    """

    def find() -> pl.DataFrame:
        columns = (
            "sender",
            "sent",
            "thread",
            "begin",
            "end",
            "what",
            "name",
            "device",
            "class",
            "tensor",
        )
        has_captures = bool(unit.reader.captures)
        work = unit.list_launched_work(columns) if has_captures else unit.work.clear()
        captured = list_captured_work(unit, work.schema)
        fields = ("range", *_SHAPES)
        ranges = read_ranges(
            unit, captured, "nvtx_pushpop", fields, wanted=lambda rows: rows["operations"] > 0
        )
        if not ranges.height:
            return unit.work.clear()
        ranges = keep_outermost(ranges).with_row_index("product")
        if not has_captures:
            work = unit.list_launched_work(columns)
        key = ("thread", "begin")
        replayed = captured.join(work.select(*key, replay="sent"), on=key)
        launched = work.join(replayed, on=key, how="anti") if captured.height else work
        work = pl.concat([launched, replayed], how="diagonal")
        within = join_launch_ranges(work.filter(pl.col("what") == COMPUTE), ranges)
        product = pl.struct("product", "replay").rank("dense") if captured.height else "product"
        return within.with_columns(product=product)

    return unit.remember("products", find)


def sum_products(work: pl.DataFrame, *keys: str) -> pl.DataFrame:
    """Sum products by shape (KEY) and further columns: return `count` and `time_ns`, with the name
    of their longest kernels. work: from :func:`list_product_work`.
    """
    longest = pl.col("name").sort_by(DURATION).last()
    products = work.group_by("product", maintain_order=True).agg(
        pl.col("device", "range", *_SHAPES, *keys).first(),
        longest,
        time_ns=DURATION.sum(),
    )
    sums = products.group_by(*KEY, *keys, maintain_order=True)
    return sums.agg(count=COUNT, time_ns=pl.col("time_ns").sum())


def collect(unit: DeviceGroup) -> Collected:
    """Yield products (GEMMs, attention, convolutions) of the steady state (`products`), metrics
    while their kernels run (`measured`), and the time of all kernels of such classes on each device
    (`every`).
    """
    work = list_product_work(unit)
    if not work.height:
        return
    inside = unit.is_in_steady()
    time = DURATION.sum()
    is_product = pl.col("class").is_in((GEMM, CONVOLUTION, ATTENTION))
    every = unit.work.filter(inside & (pl.col("what") == COMPUTE) & is_product)
    yield "every", every.group_by("device", maintain_order=True).agg(every_ns=time)
    work = work.filter(inside)
    yield "products", sum_products(work)
    yield from measure_kernels(unit, work, ["name"], BESIDE)


def conclude(frames: Frames, context: Context, result: Result) -> None:
    """Add tables of products by time, and of the utilization of devices, to the result."""
    rows = frames["products"]
    if not rows.height:
        result.missing.append(
            "operations per second of GEMMs, attention and convolutions: no NVTX range contains their shapes "
            "(PyTorch: torch.autograd.profiler.emit_nvtx(record_shapes=True); vLLM: --enable-layerwise-nvtx-tracing; SGLang: "
            "--enable-layerwise-nvtx-marker)"
        )
        return
    rows = rate_products(rows, context)
    products = _label_products(rows, frames["measured"], context)
    result.add("products", products, span=context.options.span_name)
    if (products["peak_share"].max() or 0) > BEYOND_PEAK:
        result.notes.append(
            "products above the peak rate compute less than is counted (a mask, sparsity), or accumulate in another data type"
        )
    result.add("devices", _sum_by_device(rows, frames["every"], context))


def rate_products(rows: pl.DataFrame, context: Context) -> pl.DataFrame:
    """Add to products the rates that they could reach, or null if unknown. rows: from
    :func:`sum_products`.

    Columns: `data_type`, `mask`, `all` (total operations), `peak_tflop_s`, `memory_gb_s`,
    `allowed_tflop_s` (by the shape), `flop_per_byte`, and `ideal_ns` (time at the allowed rate).
    """
    models = {
        device: next(iter(names)) for device, names in context.options.gpus if len(names) == 1
    }
    limits = dict(context.options.limits)
    memory = {device: one.memory for device, one in limits.items() if one.memory}
    label = pl.col("label")
    known = context.labels["kernels"].select(
        name=pl.col("value").cast(pl.Int64),
        data_type=label.map_elements(find_data_type, return_dtype=pl.String),
        mask=label.str.extract(_MASK).replace_strict(_MASKS, default=None, return_dtype=pl.String),
    )
    rows = rows.cast({"name": pl.Int64}).join(known, on="name", how="left", maintain_order="left")
    peak = pl.struct("device", "data_type").map_elements(
        lambda one: find_peak(
            models.get(one["device"], ""), one["data_type"], limits.get(one["device"], UNKNOWN)
        ),
        return_dtype=pl.Float64,
    )
    is_attention = pl.col("masked") >= 0
    is_masked = is_attention & (pl.col("mask") == "causal")
    sizes = {one["type"]: float(one["bytes"]) for one in GPUS["data_types"]}
    moved = pl.col("elements") * pl.col("data_type").replace_strict(
        sizes, default=None, return_dtype=pl.Float64
    )
    bandwidth = pl.col("device").replace_strict(memory, default=None, return_dtype=pl.Float64)
    rows = rows.with_columns(
        memory_gb_s=bandwidth / 1e9,
        peak_tflop_s=peak,
        operations=pl.when(is_masked).then("masked").otherwise("operations"),
        mask=pl.when(is_attention).then(pl.coalesce("mask", pl.lit("not known"))),
    )
    rows = rows.with_columns(
        all=pl.col("operations") * pl.col("count"), flop_per_byte=pl.col("operations") / moved
    )
    delivered = pl.col("flop_per_byte") * pl.col("memory_gb_s") / 1e3
    # Both must be known.
    is_known = pl.col("peak_tflop_s").is_not_null() & delivered.is_not_null()
    allowed = pl.when(is_known).then(pl.min_horizontal("peak_tflop_s", delivered))
    rows = rows.with_columns(allowed_tflop_s=allowed)
    return rows.with_columns(ideal_ns=pl.col("all") / pl.col("allowed_tflop_s") / 1e3)


def sum_rates(rated: pl.DataFrame, *by: str) -> pl.DataFrame:
    """Sum rated products (:func:`rate_products`) by some columns: `flop` (operations), `product_ns`
    (time), and `ideal_ns` (time at the GPUs' peaks, null if one is unknown).
    """
    peak = pl.col("peak_tflop_s")
    ideal = (pl.col("all") / peak / 1e3).sum()
    return rated.group_by(by, maintain_order=True).agg(
        flop=pl.col("all").sum(),
        product_ns=pl.col("time_ns").sum(),
        ideal_ns=pl.when(peak.is_not_null().all()).then(ideal),
    )


def find_slow_products(rows: pl.DataFrame, context: Context) -> pl.DataFrame:
    """Return the products far below the rate that their shapes allow, with the share of that rate
    that similar products reach (`usual`), and their time at that share (`target_ns`).

    Products whose allowed rate is unknown are excluded. Attention is compared separately, and so
    are memory-bound products. rows: from :func:`sum_products`.
    """
    rated = rate_products(rows, context).with_columns(
        reached=pl.col("ideal_ns") / pl.col("time_ns"),
        is_attention=pl.col("masked") >= 0,
        is_bound_by_memory=pl.col("allowed_tflop_s") < pl.col("peak_tflop_s"),
    )
    sort, ideal = ("is_attention", "is_bound_by_memory"), pl.col("ideal_ns")
    rated = rated.drop_nulls("reached").sort("reached")
    is_above = ideal.cum_sum().over(sort) >= MOST_BELOW * ideal.sum().over(sort)
    usual = pl.col("reached").filter(is_above).min().over(sort).clip(0, 1)
    rated = rated.with_columns(usual=usual)
    target = pl.max_horizontal(ideal / pl.col("usual"), pl.col("count") * SHORTEST_KERNEL)
    slow = rated.filter(pl.col("reached") < FAR_BELOW * pl.col("usual"))
    return slow.with_columns(target_ns=target).filter(pl.col("target_ns") < pl.col("time_ns"))


def _label_products(rows: pl.DataFrame, measured: pl.DataFrame, context: Context) -> pl.DataFrame:
    given = ("data_type", "mask", "peak_tflop_s", "memory_gb_s", "flop_per_byte", "allowed_tflop_s")
    sums = rows.group_by("range", "operations", "name", *given, maintain_order=True)
    sums = sums.agg(pl.col("count", "time_ns", "all").sum())
    speed = pl.col("all") / pl.col("time_ns") / 1e3
    sums = sums.sort("time_ns", descending=True, maintain_order=True).with_columns(
        tflop_s=speed,
        peak_share=speed / pl.col("peak_tflop_s"),
        roofline_share=speed / pl.col("allowed_tflop_s"),
    )
    active = []
    if measured.height:
        known = measured.cast({"name": pl.Int64}).group_by("name").agg(pl.all().sum())
        shares = {
            name: divide_columns(pl.col(f"{name}_sum") / 100, f"{name}_known") for name in BESIDE
        }
        known = known.select("name", **shares)
        active = [name for name in BESIDE if known[name].count()]
        sums = sums.join(known, on="name", how="left", maintain_order="left")
    named = context.label_names(sums, "name", "kernels")
    named = context.label_names(named, "range", "nvtx")
    masks = ["mask"] if named["mask"].count() else []
    return named.select(
        "range", pl.col("operations").alias("flop"), pl.col("name").alias("kernel"), "data_type", *masks,
        "count", "time_ns", "tflop_s", "peak_tflop_s", "peak_share", "memory_gb_s", "flop_per_byte", "allowed_tflop_s",
        "roofline_share", *active,
    )  # fmt: skip


def _sum_by_device(rows: pl.DataFrame, every: pl.DataFrame, context: Context) -> pl.DataFrame:
    """Return the achieved share of the peak of each device: within products, and over the whole
    steady state.
    """
    sums = sum_rates(rows, "device")
    sums = sums.join(every, on="device", how="left").sort("device")
    figures = sums.select(
        "device",
        tflop=pl.col("flop") / 1e12,
        **RATES,
        of_all_products=divide_columns("product_ns", "every_ns"),
        mfu_at_least=pl.col("ideal_ns") / context.options.covered_steady.length,
    )
    return context.label_devices(figures)


@cache
def find_data_type(kernel: str) -> str | None:
    """Return the operand data type of a GEMM from its kernel's name, or None."""
    found = (one["type"] for one in GPUS["data_types"] if re.search(one["name"], kernel))
    return next(found, None)


@cache
def find_peak(model: str, data_type: str | None, limits: GpuLimits = UNKNOWN) -> float | None:
    """Return the dense peak of a GPU for a data type (10^12 operations per second), or None. For
    models without an entry that have Tensor Cores, it is computed from their SMs and clock.
    """
    if _PART.search(model):
        return None
    found = [one for one in GPUS["peaks"] if re.search(one["model"], model)]
    if found:
        peak = found[0].get(data_type)
        return None if peak is None else float(peak)
    able = 10 * limits.major + limits.minor
    share, since = _SHARES.get(data_type or "", (0.0, 0))
    per_clock = _PER_CLOCK.get(able, 0) / (2 if "GeForce" in model and able >= _HALF_SINCE else 1)
    if data_type == "fp32":
        share, per_clock = 1.0, (128 if able <= 80 else 256) * (able in _PER_CLOCK)
    is_known = able >= since and per_clock * share * limits.clock > 0
    return limits.processors * limits.clock * per_clock * share / 1e12 if is_known else None
