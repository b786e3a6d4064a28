"""Measure how a GPU spends an iteration of the steady state (computing, exposed communication,
exposed copies, idle): median, minimum, maximum.

Also sum the steps of serving by phase (prefill, decode, mixed), as vLLM, SGLang and TensorRT-LLM
name them in NVTX ranges: requests, tokens, and durations of steps by number of requests.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from nsys2prv._util.columns import COUNT, DURATION
from nsys2prv._util.intervals import Spans, take_first
from nsys2prv.figures.device_group import (
    BUSY,
    MEMORY,
    WORK,
    Collected,
    DeviceGroup,
    Frames,
    Steady,
    join_launch_ranges,
    label_values,
)
from nsys2prv.figures.products import (
    RATES,
    list_product_work,
    rate_products,
    sum_products,
    sum_rates,
)
from nsys2prv.figures.result import (
    DECLARED,
    KERNEL_NAMES,
    Context,
    Result,
    divide_columns,
    sum_known,
)

#: Description of the tables; columns of device activities -> names.
ABOUT, PARTS = (DECLARED["iterations"].terms[name] for name in ("about", "parts"))
#: Columns of steps.
_FACTS = ("range", "phase", "requests", "tokens")


def find_phases(length: int, covered: Spans, steady: Steady) -> pl.DataFrame:
    """Divide a job into startup, steady state and shutdown, as far as recorded.

    Columns: `phase`, `begin_ns`, `time_ns`, `time_share` (of the job); for the steady state also
    `iterations` and the `activity` by which they were identified. length: of the job (ns).
    """
    edges = covered.find_hull()[0], steady.begin, steady.end, covered.find_hull()[1]
    phases = pl.DataFrame(
        {
            "phase": ["startup", "steady state", "shutdown"],
            "begin_ns": edges[:3],
            "time_ns": np.diff(edges),
            "time_share": np.diff(edges) / max(length, 1),
            "iterations": [None, steady.count, None],
            "activity": [None, steady.found_by, None],
        }
    )
    return phases.filter(pl.col("time_ns") > 0)


def collect(unit: DeviceGroup) -> Collected:
    """Yield how the devices spend each iteration of the steady state (ns, summed)."""
    steady = unit.options.steady
    if steady is None or not unit.known_devices:
        return
    begin = np.array(steady.iteration_begins, np.int64)
    end = np.append(begin[1:], steady.end)
    whole = unit.covered.within(begin, end) == end - begin
    sums = np.zeros((3, len(begin)), np.int64)
    for device in unit.known_devices:
        uses = ("compute", "nccl", "memory")
        found = ((name, unit.find_device_spans(device, *BUSY[name])) for name in uses)
        for row, (_, spans) in enumerate(take_first(found)):
            sums[row] += spans.within(begin, end)
    idle = len(unit.known_devices) * (end - begin) - sums.sum(axis=0)
    frame = pl.DataFrame(dict(zip(PARTS, (*sums, idle), strict=True))).with_columns(
        iteration=pl.int_range(1, len(begin) + 1), devices=len(unit.known_devices)
    )
    yield "iterations", frame.filter(pl.Series(whole))


def conclude(frames: Frames, context: Context, result: Result) -> None:
    """Add tables of the iterations of the steady state, and of their typical values, to the result."""
    steady, parts = context.options.steady, frames["iterations"]
    if steady is not None and not parts.height:
        result.missing.append(f"iterations: {context.explain_absence(tuple(WORK))}")
        return
    if steady is None:
        result.missing.append("iterations: none found; the job has no repeating part")
        return
    begin = np.array(steady.iteration_begins, np.int64)
    times = pl.DataFrame(
        {
            "iteration": np.arange(1, len(begin) + 1),
            "begin_ns": begin,
            "time_ns": np.diff(np.append(begin, steady.end)),
        }
    )
    means = parts.group_by("iteration").agg(
        (pl.col(*PARTS).sum() / pl.col("devices").sum()).round().cast(pl.Int64)
    )
    each = times.join(means, on="iteration", maintain_order="left")
    if KERNEL_NAMES not in context.available:
        each = each.drop("compute_ns", "exposed_nccl_ns")
        why = context.explain_absence((KERNEL_NAMES,))
        result.missing.append(f"communication per iteration: {why}")
    result.add("summary", _summarize(each), f"Found by {steady.found_by}. {ABOUT}")
    result.add("each", each)


def _summarize(each: pl.DataFrame) -> pl.DataFrame:
    """Return median, minimum and maximum of each part, and the iterations with these values."""
    return pl.DataFrame(
        [
            {
                "part": name,
                "median_ns": each[column].median(),
                "min_ns": each[column].min(),
                "min_in_iteration": each["iteration"][each[column].arg_min()],
                "max_ns": each[column].max(),
                "max_in_iteration": each["iteration"][each[column].arg_max()],
            }
            for column, name in {"time_ns": "whole iteration", **PARTS}.items()
            if column in each.columns
        ]
    )


def collect_serving(unit: DeviceGroup) -> Collected:
    """Yield the steps of an inference server (`steps`): task, begin, end, fields of their texts,
    and the GPU time of the work launched in them, with kernels separately.
    """
    if not unit.reader.has_column("nvtx_pushpop", "phase", unit.number):
        return
    steps = unit.read_begins("nvtx_pushpop", _FACTS)
    steps = steps.filter(pl.col("phase") > 0)
    if not steps.height:
        return
    steps = steps.with_columns(unit.list_tasks(steps)).with_row_index("step")
    work = unit.list_launched_work(("sender", "sent", "begin", "end", "what"))
    within = join_launch_ranges(work, steps.select("step", "thread", "begin", "end"))
    sums = within.group_by("step").agg(
        gpu_ns=DURATION.sum(), kernel_ns=DURATION.filter(pl.col("what") != MEMORY).sum()
    )
    products = list_product_work(unit)
    if products.height:
        launched = products.drop("sent", "until").rename({"at": "sent"})
        places = steps.select("thread", "begin", "end", "phase", step_range="range")
        products = sum_products(join_launch_ranges(launched, places), "step_range", "phase")
        yield "products", products
    of_steps = steps.join(sums, on="step", how="left", maintain_order="left")
    yield (
        "steps",
        of_steps.with_columns(pl.col("gpu_ns", "kernel_ns").fill_null(0)).drop("step", "thread"),
    )


def conclude_serving(frames: Frames, context: Context, result: Result) -> None:
    """Add tables of the phases of serving, and of durations of their steps by number of requests,
    to the result.
    """
    steps = frames["steps"]
    if not steps.height:
        result.missing.append(
            "serving phases: no NVTX range is a step of vLLM, SGLang or TensorRT-LLM"
        )
        return
    known = {name: pl.when(pl.col(name) >= 0).then(name) for name in ("requests", "tokens")}
    steps = steps.with_columns(
        label_values("phase", "serving_phase", "unknown"), time_ns=DURATION, **known
    )
    figures = {
        "ranks": pl.col("task").n_unique().cast(pl.Int64),
        "steps": COUNT,
        "mean_requests": pl.col("requests").mean(),
        "tokens": sum_known(pl.col("tokens")),
        "time_ns": pl.col("time_ns").sum(),
        "median_ns": pl.col("time_ns").median(),
        "gpu_ns": pl.col("gpu_ns").sum(),
        "kernel_ns": pl.col("kernel_ns").sum(),
        "median_gpu_ns": pl.col("gpu_ns").median(),
    }
    phases = steps.group_by("range", "phase").agg(**figures)
    phases = phases.sort("kernel_ns", "phase", descending=[True, False])
    if frames["products"].height:
        rated = rate_products(frames["products"], context)
        rated = rated.with_columns(label_values("phase", "serving_phase", "unknown"))
        rates = sum_rates(rated, "step_range", "phase").rename({"step_range": "range"})
        phases = phases.join(rates, on=["range", "phase"], how="left", maintain_order="left")
        phases = phases.with_columns(**RATES).drop("flop", "product_ns", "ideal_ns")
    result.add("phases", context.label_names(phases, "range", "nvtx"))
    # Batches of up to 1, 2, 4 and so on requests.
    least = (2 ** pl.col("requests").clip(1).log(2).ceil()).cast(pl.Int64)
    sized = steps.filter(pl.col("requests") > 0).with_columns(up_to_requests=least)
    batches = sized.group_by("range", "phase", "up_to_requests").agg(**figures)
    batches = batches.sort("range", "phase", "up_to_requests").with_columns(
        tokens_per_s=divide_columns(pl.col("tokens") * 1e9, "time_ns")
    )
    shown = ("phase", "up_to_requests", "steps", "median_ns", "median_gpu_ns", "tokens_per_s")
    result.add("batches", context.label_names(batches, "range", "nvtx").select("range", *shown))
