"""Kernels and kernel classes: count, time, mean, median, min, max, standard deviation, imbalance
over ranks, tensor cores; bimodal durations.

Figures are those of `nsys stats` (cuda_gpu_kern_sum): durations of single executions, the deviation
that of a sample. Imbalance: the maximum of the times that ranks spend in a kernel, divided by their
mean over all ranks with kernels, less 1. Tensor cores by the kernel's name; where GPU metrics were
sampled, `tensor_active` is their measured activity while the kernel runs, whatever else runs at
that time; unknown of kernels shorter than three samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import polars as pl

from nsys2prv._util.columns import RULE
from nsys2prv.analysis.device_group import (
    COMMUNICATING,
    GEMM,
    GRAPH,
    MEMORY,
    DeviceGroup,
    label_values,
    to_arrays,
)
from nsys2prv.analysis.intervals import count_durations, make_statistics, spill_durations
from nsys2prv.analysis.metrics import make_steps
from nsys2prv.analysis.result import Analysis, Context, Result, divide_columns
from nsys2prv.store.event_reader import Samples

#: Columns that tell kernels apart.
KERNEL_KEY = ["what", "name", "class", "tensor"]
#: Column -> label of the GPU metric (percent) that is brought together with kernels.
METRICS = {
    "tensor_active": "Tensor Active [Throughput %]",
    "sm_active": "SMs Active [Throughput %]",
}

#: Samples that a kernel must last for its metrics to be known.
FEWEST_SAMPLES = 3

#: Bins of the distribution of durations, and kernels that have one.
BINS, MOST_DISTRIBUTIONS = 24, 60

#: Columns of kernels whose durations have two modes.
MODES = ("low_ns", "high_ns", "high_share")


def collect(unit: DeviceGroup) -> Iterator[tuple[str, pl.DataFrame]]:
    """Collect durations of kernels by task, and metrics while kernels run."""
    kernels = unit.work.filter(pl.col("what") != MEMORY)
    kernels = kernels.with_columns(unit.list_tasks(kernels).cast(pl.Int32))
    path = unit.folder / f"kernel-durations-{unit.number}.bin"
    yield "kernels", spill_durations(kernels, ["task", *KERNEL_KEY], path)
    for samples in unit.reader.read_samples("gpu_metric", unit.number):
        on_device = kernels.filter(pl.col("device") == unit.device_of[samples.thread])
        yield "measured", _sum_metrics(on_device, samples)


def _sum_metrics(kernels: pl.DataFrame, samples: Samples) -> pl.DataFrame:
    """Return sums of metrics over the kernels of a device that last FEWEST_SAMPLES, and over how many
    ns they are known.
    """
    begin, end = to_arrays(kernels, "begin", "end")
    period = float(np.median(np.diff(samples.time))) if len(samples.time) > 1 else np.inf
    is_long = end - begin >= FEWEST_SAMPLES * period
    columns: dict[str, pl.Series] = {}
    for name, label in METRICS.items():
        values, known_time = np.zeros(len(begin)), np.zeros(len(begin), np.int64)
        if label in samples.metrics:
            steps = make_steps(samples, samples.metrics.index(label))
            values, known_time = (np.where(is_long, one, 0) for one in steps.integrate(begin, end))
        columns |= {f"{name}_sum": pl.Series(values), f"{name}_known": pl.Series(known_time)}
    by_kernel = kernels.with_columns(**columns).group_by(KERNEL_KEY, maintain_order=True)
    return by_kernel.agg(pl.col(*columns).sum())


def conclude(frames: Mapping[str, pl.DataFrame], context: Context, result: Result) -> None:
    """Add tables of kernels, of their classes, and of tensor cores."""
    groups, measured = frames["kernels"], frames["measured"]
    tasks = groups["task"].n_unique()
    if not measured.height:
        absent = context.explain_absence(("gpu_metric",))
        result.missing.append(f"measured activity of tensor cores: {absent}")
    rows = _compute_figures(groups, measured, KERNEL_KEY, tasks)
    of_kernels = measured.filter(pl.col("what") != GRAPH) if measured.height else measured
    by_class = _label_classes(_compute_figures(groups, of_kernels, ["class"], tasks))
    named = _label_classes(context.label_names(rows, "name", "kernels", "nccl_kernels", "graphs"))
    named = named.rename({"name": "kernel", "tensor": "tensor_cores"})
    result.add("kernels", "Kernels", named.drop("what", "two_modes", *MODES), __doc__)
    result.add("classes", "Kernel classes", by_class)
    longest = rows.select(KERNEL_KEY).head(MOST_DISTRIBUTIONS)
    own = groups.join(longest, KERNEL_KEY, "semi", maintain_order="left")
    bins = count_durations(own, KERNEL_KEY, BINS)
    bins = context.label_names(bins, "name", "kernels", "nccl_kernels", "graphs")
    title = f"Durations of the {MOST_DISTRIBUTIONS} kernels that take most time (bins)"
    bins = bins.select(pl.col("name").alias("kernel"), "low_ns", "high_ns", "count")
    result.add("durations", title, bins)
    title = "GEMM time with and without tensor cores (told by the kernels' names)"
    gemm = groups.filter(pl.col("class") == GEMM)
    result.add("tensor_cores", title, _sum_tensor_cores(gemm))
    # Those that communicate last as long as ranks wait for each other: no mode of theirs.
    two = named.filter(pl.col("two_modes") & ~pl.col("what").is_in(COMMUNICATING))
    two = two.select("kernel", "count", "time_ns", *MODES)
    result.add("two_modes", "Kernels with bimodal durations", two, RULE)
    if two.height:
        result.notes.append(RULE)


def _compute_figures(
    groups: pl.DataFrame, measured: pl.DataFrame, by: list[str], tasks: int
) -> pl.DataFrame:
    """Return statistics of spilled groups by some of their columns, greatest time first, and means
    of the metrics over the kernels' time, as shares. measured: as :func:`_sum_metrics` has it, or
    empty.
    """
    per_task = groups.group_by(*by, "task", maintain_order=True).agg(pl.col("time_ns").sum())
    # The greatest time of a task over the mean of all.
    imbalance = pl.col("time_ns").max() * tasks / pl.col("time_ns").sum() - 1
    frames = [per_task.group_by(by).agg(imbalance=imbalance)]
    if measured.height:
        means = (
            divide_columns(pl.col(f"{name}_sum").sum() / 100, pl.col(f"{name}_known").sum())
            for name in METRICS
        )
        frames.append(measured.group_by(by).agg(**dict(zip(METRICS, means, strict=True))))
    rows = make_statistics(groups, by, modes=by == KERNEL_KEY)
    for frame in frames:
        rows = rows.join(frame, on=by, how="left", maintain_order="left")
    share = divide_columns("time_ns", pl.col("time_ns").sum()).alias("time_share")
    first = (*by, "count", "time_ns")
    return rows.select(*first, share, pl.exclude(*first))


def _label_classes(rows: pl.DataFrame) -> pl.DataFrame:
    """Return classes and tensor cores as texts; class 0 is that of graphs."""
    kinds = label_values("class", "kernel_class", "Other")
    graph = pl.when(pl.col("class") == 0).then(pl.lit("CUDA graph"))
    rows = rows.with_columns(graph.otherwise(kinds).alias("class"))
    if "tensor" in rows.columns:
        tensor = label_values("tensor", "tensor_cores", "Unknown")
        rows = rows.with_columns(pl.when(pl.col("what") != GRAPH).then(tensor).alias("tensor"))
    return rows


def _sum_tensor_cores(gemm: pl.DataFrame) -> pl.DataFrame:
    sums = gemm.group_by("tensor").agg(pl.col("count", "time_ns").sum()).sort("tensor")
    return sums.with_columns(
        label_values("tensor", "tensor_cores", "Unknown"),
        time_share=pl.col("time_ns") / pl.col("time_ns").sum(),
    ).rename({"tensor": "tensor_cores"})


ANALYSIS = Analysis(
    "kernels", "Kernels", (("cuda_kernel", "nccl_kernel", "cuda_graph"),), collect, conclude
)
