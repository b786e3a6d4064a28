"""Sum the steps of serving by phase (prefill, decode, mixed), as vLLM, SGLang and TensorRT-LLM name them in
NVTX ranges: requests, tokens, and how long steps take by their number of requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import polars as pl

from nsys2prv.figures.device_group import MEMORY, DeviceGroup, join_launch_ranges, label_values
from nsys2prv.figures.result import Context, Result, divide_columns, sum_known

#: Columns of steps.
_FACTS = ("range", "phase", "requests", "tokens")


def collect(unit: DeviceGroup) -> Iterator[tuple[str, pl.DataFrame]]:
    """Collect the steps of serving (`steps`): task, begin, end, what their texts say, and the GPU time of
    the work launched within, that of kernels apart.
    """
    steps = unit.read_begins("nvtx_pushpop", _FACTS)
    steps = steps.filter(pl.col("phase") > 0)
    if not steps.height:
        return
    steps = steps.with_columns(unit.list_tasks(steps)).with_row_index("step")
    work = unit.list_launched_work(("sender", "sent", "begin", "end", "what"))
    within = join_launch_ranges(work, steps.select("step", "thread", "begin", "end"))
    time = pl.col("end") - pl.col("begin")
    sums = within.group_by("step").agg(
        gpu_ns=time.sum(), kernel_ns=time.filter(pl.col("what") != MEMORY).sum()
    )
    of_steps = steps.join(sums, on="step", how="left", maintain_order="left")
    yield (
        "steps",
        of_steps.with_columns(pl.col("gpu_ns", "kernel_ns").fill_null(0)).drop("step", "thread"),
    )


def conclude(frames: Mapping[str, pl.DataFrame], context: Context, result: Result) -> None:
    """Add phases, and how long their steps take by the number of requests."""
    steps = frames["steps"]
    if not steps.height:
        result.missing.append(
            "phases of serving: no NVTX range is a step of vLLM, SGLang or TensorRT-LLM"
        )
        return
    time = pl.col("end") - pl.col("begin")
    known = {name: pl.when(pl.col(name) >= 0).then(name) for name in ("requests", "tokens")}
    steps = steps.with_columns(
        label_values("phase", "serving_phase", "unknown"), time_ns=time, **known
    )
    figures = {
        "ranks": pl.col("task").n_unique().cast(pl.Int64),
        "steps": pl.len().cast(pl.Int64),
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
