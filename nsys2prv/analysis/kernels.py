"""Kernels and their classes by time, and how much of the matrix products runs on tensor cores.

Figures are those of `nsys stats` (cuda_gpu_kern_sum): durations of single executions, the deviation
that of a sample. Imbalance: the maximum of the times that ranks spend in a kernel, divided by their
mean over all ranks with kernels, less 1. Tensor cores by the kernel's name; where GPU metrics were
sampled, `tensor_active` is their measured activity while the kernel runs, whatever else runs at
that time.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from nsys2prv.analysis.distributions import RULE, make_histograms, make_statistics, spill_durations
from nsys2prv.analysis.event_reader import Samples
from nsys2prv.analysis.intervals import sum_within
from nsys2prv.analysis.metrics import make_steps
from nsys2prv.analysis.result import Analysis, Context, Result, Table, divide_columns
from nsys2prv.analysis.unit import (
    GEMM,
    GRAPH,
    MEMORY,
    NCCL,
    TENSOR_YES,
    Unit,
    label_values,
    to_arrays,
)

BY = ["what", "name", "class", "tensor"]
#: The class of a kernel, 0 for graphs.
CLASS = pl.when(pl.col("what") == GRAPH).then(pl.lit(0, pl.Int8)).otherwise("class").alias("class")
IS_GEMM = (pl.col("class") == GEMM) & (pl.col("what") != GRAPH)
#: Of so many kernels of greatest time the distribution of durations is given, in so many bins.
MOST_DISTRIBUTIONS, BINS = 20, 40
#: Column -> label of the GPU metric (percent) that is brought together with kernels.
METRICS = {
    "tensor_active": "Tensor Active [Throughput %]",
    "sm_active": "SMs Active [Throughput %]",
}

#: On the table of durations, for people.
ABOUT_DURATIONS = (
    "row: of the kernel in the table of kernels, from 0. Executions by duration: bins from low_ns to high_ns, equally wide in the "
    "logarithm from the least duration to the greatest, which is in the last one; fewer bins where durations are too near each other."
)


def collect(unit: Unit) -> dict[str, pl.DataFrame]:
    kernels = unit.work.filter(pl.col("what") != MEMORY)
    kernels = kernels.with_columns(
        task=pl.Series(unit.task_of[kernels["thread"].to_numpy()], dtype=pl.Int32)
    )
    frames = {
        "kernels": spill_durations(
            kernels, ["task", *BY], unit.folder / f"kernel-durations-{unit.number}.bin"
        )
    }
    measured = [
        _sum_metrics(kernels.filter(pl.col("device") == device), samples)
        for device, samples in unit.gpu_samples.items()
    ]
    frames["iterations"] = _sum_by_iteration(unit.options.windows.slice(1), kernels)
    frames["measured"] = pl.concat(measured) if measured else pl.DataFrame()
    return frames


def _sum_by_iteration(windows: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the time of each class in each iteration: `region`, `iteration`, `class` (0: graphs),
    `time_ns`.
    """
    frames = (
        [
            windows.select("region", "iteration").with_columns(
                pl.lit(key[0], pl.Int8).alias("class"),
                time_ns=pl.Series(
                    sum_within(
                        *to_arrays(class_kernels, "begin", "end"),
                        *to_arrays(windows, "begin", "end"),
                    ),
                    dtype=pl.Int64,
                ),
            )
            for key, class_kernels in kernels.with_columns(CLASS)
            .partition_by("class", as_dict=True)
            .items()
        ]
        if windows.height
        else []
    )
    return pl.concat(frames) if frames else pl.DataFrame()


def _sum_metrics(kernels: pl.DataFrame, samples: Samples) -> pl.DataFrame:
    """Return sums of metrics over the kernels of a device, and over how many ns they are known."""
    begin, end = kernels["begin"].to_numpy(), kernels["end"].to_numpy()
    columns: dict[str, pl.Series] = {}
    for name, label in METRICS.items():
        if label in samples.metrics:
            steps = make_steps(samples, samples.metrics.index(label))
            values, known_time = steps.within(begin, end)
        else:
            values, known_time = np.zeros(len(begin)), np.zeros(len(begin), np.int64)
        columns |= {f"{name}_sum": pl.Series(values), f"{name}_known": pl.Series(known_time)}
    return (
        kernels.with_columns(**columns)
        .group_by(BY, maintain_order=True)
        .agg(pl.col(*columns).sum())
    )


def conclude(frames: Mapping[str, pl.DataFrame], context: Context) -> Result:
    groups, measured = frames["kernels"], frames["measured"]
    total = groups["time_ns"].sum()
    tasks = groups["task"].n_unique()
    rows = make_statistics(groups, BY, modes=True).join(
        _compute_imbalance(groups, BY, tasks), on=BY, how="left", maintain_order="left"
    )
    classes = groups.with_columns(CLASS)
    by_class = make_statistics(classes, ["class"]).join(
        _compute_imbalance(classes, ["class"], tasks), on="class", how="left", maintain_order="left"
    )
    missing = []
    if measured.height:
        rows = rows.join(_compute_means(measured, BY), on=BY, how="left", maintain_order="left")
        means = _compute_means(measured.filter(pl.col("what") != GRAPH), ["class"])
        by_class = by_class.join(means, on="class", how="left", maintain_order="left")
    else:
        missing.append(f"measured activity of tensor cores: {context.absent(('gpu_metric',))}")
    rows = rows.with_columns(time_share=divide_columns(pl.col("time_ns"), pl.lit(total)))
    by_class = by_class.with_columns(time_share=divide_columns(pl.col("time_ns"), pl.lit(total)))
    figures = [
        "count",
        "time_ns",
        "time_share",
        "mean_ns",
        "median_ns",
        "min_ns",
        "max_ns",
        "std_dev_ns",
        "imbalance",
    ]
    extra = [name for name in METRICS if name in rows.columns]
    named = _label_classes(context.label_names(rows, "name", "kernels", "nccl_kernels", "graphs"))
    named = named.rename({"name": "kernel", "tensor": "tensor_cores"})
    tables = {
        "kernels": Table(
            "Kernels",
            named.select("kernel", "class", "tensor_cores", *figures, *extra),
            __doc__ or "",
        ),
        "classes": Table(
            "Kernel classes",
            _label_classes(by_class.with_columns(what=pl.lit(0))).select("class", *figures, *extra),
        ),
        "tensor_cores": Table(
            "GEMM time with and without tensor cores (told by the kernels' names)",
            _sum_tensor_cores(groups),
        ),
    }
    if named.height:
        tables["durations"] = Table(
            f"Durations of the {MOST_DISTRIBUTIONS} kernels that take the most time",
            _make_histograms(groups, rows, named["kernel"]),
            ABOUT_DURATIONS,
        )
    if frames["iterations"].height:
        sums = (
            frames["iterations"]
            .group_by("region", "iteration", "class", maintain_order=True)
            .agg(pl.col("time_ns").sum())
        )
        sums = (
            _label_classes(sums.with_columns(what=pl.lit(0)))
            .sort("iteration", "class")
            .filter(pl.col("time_ns") > 0)
        )
        tables["classes_by_iteration"] = Table(
            "Kernel classes by iteration (time of all devices)",
            sums.select("region", "iteration", "class", "time_ns"),
        )
    # Those of NCCL last as long as ranks wait for each other: no mode of theirs.
    two = named.filter(pl.col("two_modes") & (pl.col("what") != NCCL))
    if two.height:
        tables["two_modes"] = Table(
            "Kernels with bimodal durations",
            two.select("kernel", "count", "time_ns", "low_ns", "high_ns", "high_share"),
            RULE,
        )
    gemm = tables["tensor_cores"].frame
    if not gemm.height:
        tables.pop("tensor_cores")
    elif tasks > 1:
        tables["tensor_cores_by_rank"] = Table(
            "Share of GEMM time on tensor cores by rank",
            context.name_tasks(_sum_tensor_by_task(groups)),
        )
    notes = [RULE]
    if "cuda_graph" in context.reader.layouts:
        notes.append(
            "CUDA graphs were traced as a whole: the kernels inside them are in no figure but those of graphs (profile with "
            "--cuda-graph-trace=node to see them)"
        )
    return Result("kernels", ANALYSIS.title, tables, notes, missing)


def _make_histograms(groups: pl.DataFrame, rows: pl.DataFrame, names: pl.Series) -> pl.DataFrame:
    """Return histograms of the first kernels of a table. rows: their keys, names: their labels,
    both in the table's order.
    """
    first = rows.select(BY).head(MOST_DISTRIBUTIONS).with_row_index("row")
    histograms = make_histograms(
        groups.join(first, on=BY, how="inner", maintain_order="left"), ["row"], BINS
    ).sort("row", maintain_order=True)
    labels = pl.DataFrame({"row": first["row"], "kernel": names.head(MOST_DISTRIBUTIONS)})
    return histograms.join(labels, on="row", how="left", maintain_order="left").select(
        pl.col("row").cast(pl.Int64), "kernel", "low_ns", "high_ns", "count"
    )


def _compute_imbalance(groups: pl.DataFrame, by: list[str], tasks: int) -> pl.DataFrame:
    """Return the greatest time of a task over the mean of all, less 1."""
    per_task = groups.group_by(*by, "task", maintain_order=True).agg(pl.col("time_ns").sum())
    return per_task.group_by(by, maintain_order=True).agg(
        imbalance=pl.col("time_ns").max() * tasks / pl.col("time_ns").sum() - 1
    )


def _compute_means(measured: pl.DataFrame, by: list[str]) -> pl.DataFrame:
    """Return means of the metrics over the kernels' time, as shares."""
    sums = measured.group_by(by, maintain_order=True).agg(pl.exclude(BY).sum())
    return sums.select(
        *by,
        *(
            divide_columns(pl.col(f"{name}_sum") / 100, pl.col(f"{name}_known")).alias(name)
            for name in METRICS
        ),
    )


def _label_classes(rows: pl.DataFrame) -> pl.DataFrame:
    """Return classes and tensor cores as texts."""
    graph = pl.col("what") == GRAPH
    columns = [
        pl.when(graph | (pl.col("class") == 0))
        .then(pl.lit("CUDA graph"))
        .otherwise(label_values("class", "kernel_class", "Other"))
        .alias("class")
    ]
    if "tensor" in rows.columns:
        columns.append(
            pl.when(~graph).then(label_values("tensor", "tensor_cores", "Unknown")).alias("tensor")
        )
    return rows.with_columns(columns)


def _sum_tensor_cores(groups: pl.DataFrame) -> pl.DataFrame:
    rows = (
        groups.filter(IS_GEMM)
        .group_by("tensor", maintain_order=True)
        .agg(pl.col("count").sum(), pl.col("time_ns").sum())
        .sort("tensor")
    )
    return rows.select(
        label_values("tensor", "tensor_cores", "Unknown").alias("tensor_cores"),
        "count",
        "time_ns",
        (pl.col("time_ns") / pl.col("time_ns").sum()).alias("time_share"),
    )


def _sum_tensor_by_task(groups: pl.DataFrame) -> pl.DataFrame:
    return (
        groups.filter(IS_GEMM)
        .group_by("task", maintain_order=True)
        .agg(
            gemm_ns=pl.col("time_ns").sum(),
            tensor_core_share=pl.col("time_ns").filter(pl.col("tensor") == TENSOR_YES).sum()
            / pl.col("time_ns").sum(),
        )
        .sort("task")
    )


ANALYSIS = Analysis(
    "kernels",
    "Kernels",
    (
        "kernels and kernel classes: count, time, mean, median, min, max, standard deviation, "
        "imbalance over ranks, tensor cores; bimodal durations"
    ),
    (("cuda_kernel", "nccl_kernel", "cuda_graph"),),
    collect,
    conclude,
)
