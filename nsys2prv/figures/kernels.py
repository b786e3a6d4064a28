"""Analyze kernels by name and class, and sampled metrics of GPUs, network and other devices as step
functions of time.

Metrics are averaged while kernels run and by device, and mapped over time. Metrics also show GPUs
that work for other programs while this job does not use them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.columns import RULE
from nsys2prv._util.intervals import (
    MODES,
    Spans,
    count_durations,
    make_statistics,
    merge_spans,
    spill_durations,
)
from nsys2prv._util.text import format_nanoseconds, format_span
from nsys2prv.figures.device_group import (
    COMMUNICATING,
    GEMM,
    GRAPH,
    MEMORY,
    Collected,
    DeviceGroup,
    Frames,
    label_values,
    to_arrays,
)
from nsys2prv.figures.result import DECLARED, Context, Result, divide_columns
from nsys2prv.figures.thresholds import (
    FEWEST_SAMPLES,
    LEAST_ACTIVE,
    LEAST_SAMPLED,
    SAME_PERIODS,
)
from nsys2prv.table.event_reader import UNKNOWN, Samples

#: Columns that identify a kernel.
KERNEL_KEY = ["what", "name", "class", "tensor"]
#: Column -> label of the GPU metric (percent) that is averaged while kernels run.
METRICS: dict[str, str] = DECLARED["kernels"].terms


#: Bins of the distribution of durations, and kernels that have one.
BINS, MOST_DISTRIBUTIONS = 24, 60


def collect(unit: DeviceGroup) -> Collected:
    """Yield durations of kernels by task, and metrics of GPUs while kernels run."""
    kernels = unit.work.filter(pl.col("what") != MEMORY)
    kernels = kernels.with_columns(unit.list_tasks(kernels).cast(pl.Int32))
    path = unit.folder / f"kernel-durations-{unit.number}.bin"
    by = ["task", *KERNEL_KEY]
    yield "kernels", spill_durations(kernels, by, path, unit.list_apart(kernels))
    yield from measure_kernels(unit, kernels, KERNEL_KEY)


def measure_kernels(
    unit: DeviceGroup,
    kernels: pl.DataFrame,
    by: list[str],
    metrics: Mapping[str, str] = METRICS,
) -> Collected:
    """Yield the sampled metrics of GPUs while their kernels run (`measured`), in the form of
    :func:`_sum_metrics`. by: columns of `kernels` by which they are grouped. metrics: name in the
    result -> name of the metric.
    """
    for samples in unit.reader.read_samples("gpu_metric", unit.number):
        on_device = kernels.filter(pl.col("device") == unit.device_of[samples.thread])
        yield "measured", _sum_metrics(on_device, samples, by, metrics)


def _sum_metrics(
    kernels: pl.DataFrame, samples: Samples, by: list[str], metrics: Mapping[str, str]
) -> pl.DataFrame:
    """Return sums of metrics (% ns) over the kernels of a device that last at least FEWEST_SAMPLES
    samples, and the time (ns) in which they are known.

    Columns: `by`, and for each metric its name with `_sum` and `_known`. metrics: name -> label.
    """
    begin, end = to_arrays(kernels, "begin", "end")
    period = float(np.median(np.diff(samples.time))) if len(samples.time) > 1 else np.inf
    is_long = end - begin >= FEWEST_SAMPLES * period
    # Without long kernels, one that counts for nothing says that there are samples.
    chosen = np.flatnonzero(is_long) if is_long.any() else np.arange(min(len(begin), 1))
    begin, end = begin[chosen], np.where(is_long, end, begin)[chosen]
    columns: dict[str, pl.Series] = {}
    for name, label in metrics.items():
        values, known_time = np.zeros(len(begin)), np.zeros(len(begin), np.int64)
        if label in samples.metrics:
            steps = make_steps(samples, samples.metrics.index(label))
            values, known_time = steps.integrate(begin, end)
        columns |= {f"{name}_sum": pl.Series(values), f"{name}_known": pl.Series(known_time)}
    by_kernel = kernels[chosen].with_columns(**columns).group_by(by, maintain_order=True)
    return by_kernel.agg(pl.col(*columns).sum())


def conclude(frames: Frames, context: Context, result: Result) -> None:
    """Add tables of kernels, their classes, and Tensor Cores to the result."""
    groups, measured = frames["kernels"], frames["measured"]
    tasks = groups["task"].n_unique()
    if not measured.height:
        absent = context.explain_absence(("gpu_metric",))
        result.missing.append(f"measured Tensor Core activity: {absent}")
    rows = _compute_figures(groups, measured, KERNEL_KEY, tasks)
    of_kernels = measured.filter(pl.col("what") != GRAPH) if measured.height else measured
    by_class = _label_classes(_compute_figures(groups, of_kernels, ["class"], tasks))
    named = _label_classes(context.label_names(rows, "name", "kernels", "nccl_kernels", "graphs"))
    named = named.rename({"name": "kernel", "tensor": "tensor_cores"})
    result.add("kernels", named.drop("what", *MODES))
    result.add("classes", by_class)
    longest = rows.select(KERNEL_KEY).head(MOST_DISTRIBUTIONS)
    own = groups.join(longest, KERNEL_KEY, "semi", maintain_order="left")
    bins = count_durations(own, KERNEL_KEY, BINS)
    bins = context.label_names(bins, "name", "kernels", "nccl_kernels", "graphs")
    bins = bins.select(pl.col("name").alias("kernel"), "low_ns", "high_ns", "count")
    result.add("durations", bins, count=MOST_DISTRIBUTIONS)
    result.add("tensor_cores", _sum_tensor_cores(groups.filter(pl.col("class") == GEMM)))
    # Kernels that communicate last as long as ranks wait for each other, so they have no modes of their own.
    two = named.filter(pl.col("two_modes") & ~pl.col("what").is_in(COMMUNICATING))
    two = two.select("kernel", "count", "time_ns", *MODES).drop("two_modes")
    result.add("two_modes", two, RULE)
    if two.height:
        result.notes.append(RULE)


def _compute_figures(
    groups: pl.DataFrame, measured: pl.DataFrame, by: list[str], tasks: int
) -> pl.DataFrame:
    """Return statistics of spilled groups by some of their columns, the largest time first, and
    mean metrics over the kernels' time as shares. measured: from :func:`_sum_metrics`, or empty.
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
    """Return classes and Tensor Core use as texts. Class 0 means graphs."""
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


# ---- sampled metrics -----------------------------------------------------------------------------


#: Layouts with samples that cover the time since the previous sample; samples of other layouts cover the time
#: until the next.
COVER_BEFORE = ("gpu_metric",)


class Steps(Struct, frozen=True):
    """A step function: values[k] applies from edges[k] to edges[k + 1] (ns) if known[k]. Elsewhere
    it is unknown, and stored as 0.
    """

    #: Times at which the value may change (ns), one more than values.
    edges: np.ndarray
    #: Value between two edges.
    values: np.ndarray
    #: Whether anything is known there.
    known: np.ndarray

    def integrate(self, begin: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return two arrays for the intervals [begin, end): the integral over their known part, and
        the length of that part (ns).
        """
        last, first = self._integrate_until(end), self._integrate_until(begin)
        return last[0] - first[0], np.rint(last[1] - first[1]).astype(np.int64)

    def _integrate_until(self, times: np.ndarray) -> list[np.ndarray]:
        """Return the integral of the values, and the known time, up to each time."""
        if len(self.edges) < 2:
            return [np.zeros(np.shape(times))] * 2
        times = np.clip(times, self.edges[0], self.edges[-1])
        index = np.minimum(np.searchsorted(self.edges, times, "right") - 1, len(self.values) - 1)
        since, lengths = times - self.edges[index], np.diff(self.edges)
        return [
            np.concatenate([[0.0], np.cumsum(values * lengths)])[index] + values[index] * since
            for values in (self.values, self.known)
        ]


def make_steps(samples: Samples, metric: int) -> Steps:
    """Return one sampled metric of a device as a step function, from the times that have a value.
    metric: its index in the samples.
    """
    column = samples.values[:, metric]
    has_value = ~np.isnan(column)
    time, column = samples.time[has_value], column[has_value]
    column = column[1:] if samples.layout in COVER_BEFORE else column[:-1]
    return Steps(time, np.maximum(column, 0), column != UNKNOWN)


#: Layouts of periodic samples, and of samples taken by the program.
REGULAR, IRREGULAR = ("gpu_metric", "network_metric"), ("generic_counter", "memory_in_use")


def collect_metrics(unit: DeviceGroup) -> Collected:
    """Yield statistics of each sampled metric of each device, and its means over time."""
    bins = unit.options.bins
    edges = np.arange(bins + 1) * unit.duration // bins
    for samples in unit.read_samples(*REGULAR, *IRREGULAR):
        for number, metric in enumerate(samples.metrics):
            steps = make_steps(samples, number)
            if steps.known.any():
                yield "means", _summarize_steps(steps, samples, number)
                yield "maps", _average_in_bins(steps, edges, samples.thread, metric)


def _summarize_steps(
    steps: Steps, samples: Samples, metric: int, span: tuple[int, int] | None = None
) -> pl.DataFrame:
    """Return statistics of one metric of a device as a row: when it is first and last known, and
    values over a span (default: all of this time).
    """
    begins, ends = steps.edges[:-1], steps.edges[1:]
    since, until = int(begins[steps.known][0]), int(ends[steps.known][-1])
    first, last = span or (since, until)
    integral, known = steps.integrate(np.array([first]), np.array([last]))
    values = steps.values[steps.known & (ends > first) & (begins < last)]
    inside = (samples.time >= first) & (samples.time <= last)
    summary = {
        "thread": samples.thread,
        "layout": samples.layout,
        "metric": samples.metrics[metric],
        "samples": np.count_nonzero(samples.values[inside, metric] >= 0),
        "integral": integral[0],
        "known": known[0],
        "min": values.min(),
        "max": values.max(),
        "since": since,
        "until": until,
        "period": float(np.median(np.diff(steps.edges))),
    }
    return pl.DataFrame([summary])


def _compare_together(means: pl.DataFrame, context: Context, result: Result) -> pl.DataFrame:
    """Return the statistics of devices (:func:`_summarize_steps`) over the time that all have in
    common. Devices that were sampled for much less time are excluded; notes name them.
    """
    keys, is_regular = ["layout", "metric"], pl.col("layout").is_in(REGULAR)
    enough = pl.col("known") >= LEAST_SAMPLED * pl.col("known").max().over(keys)
    means = means.with_columns(compared=enough | ~is_regular)
    since, until = pl.col("since"), pl.col("until")
    differs = pl.max_horizontal(since.max() - since.min(), until.max() - until.min())
    spans = means.filter(is_regular & pl.col("compared")).group_by(keys)
    spans = spans.agg(
        first=since.max(), last=until.min(), differs=differs > SAME_PERIODS * pl.col("period").max()
    ).filter(pl.col("differs") & (pl.col("first") < pl.col("last")))
    common = {(layout, metric): span for layout, metric, *span, _ in spans.rows()}
    again = [
        _summarize_steps(steps, samples, number, common[layout, metric])
        for layout in spans["layout"].unique()
        for samples in context.reader.read_samples(layout)
        for number, metric in enumerate(samples.metrics)
        if (layout, metric) in common and (steps := make_steps(samples, number)).known.any()
    ]
    if again:
        means = means.update(pl.concat(again), on=["thread", *keys])
        first, last = (int(spans[name].max()) for name in ("first", "last"))
        result.notes.append(
            f"metrics are compared over the time in which all are sampled ({format_span(first, last)})"
        )
    shorter = means.filter(~pl.col("compared")).group_by("node", "device", maintain_order=True)
    for node, device, begin, end in shorter.agg(since.min(), until.max()).rows():
        result.notes.append(
            f"{device} of {node} is sampled for too short a time to be compared ({format_span(begin, end)})"
        )
    figures = ("integral", "known", "min", "max")
    return means.with_columns(pl.when("compared").then(name).alias(name) for name in figures)


def _average_in_bins(steps: Steps, edges: np.ndarray, thread: int, metric: str) -> pl.DataFrame:
    """Return the mean of a metric in each bin with known values: thread, bin, mean, metric."""
    integral, known_time = steps.integrate(edges[:-1], edges[1:])
    bins = np.flatnonzero(known_time > 0)
    means = pl.DataFrame({"bin": bins, "mean": integral[bins] / known_time[bins]})
    return means.with_columns(thread=pl.lit(thread, pl.Int64), metric=pl.lit(metric))


def conclude_metrics(frames: Frames, context: Context, result: Result) -> None:
    """Add tables of mean metrics, and maps of metrics over time, to the result."""
    rows = context.reader.rows.threads.select("thread", "node", pl.col("row").alias("device"))
    if frames["means"].height:
        means = frames["means"].join(rows, on="thread", how="left", maintain_order="left")
        means = _compare_together(means.sort("layout", "thread"), context, result)
        means = means.with_columns(mean=divide_columns("integral", "known"))
        columns = ("node", "device", "metric", "samples", "mean", "min", "max")
        result.add("means", means.select(columns))
        by_metric = means.group_by("layout", "metric", maintain_order=True).agg(
            devices=pl.col("known").count().cast(pl.Int64),
            mean=pl.col("integral").sum() / pl.col("known").sum(),
            min_mean=(pl.col("integral") / pl.col("known")).min(),
            max_mean=(pl.col("integral") / pl.col("known")).max(),
        )
        result.add("metrics", by_metric.drop("layout"))
        maps = frames["maps"].join(rows, on="thread", how="left", maintain_order="left")
        maps = maps.sort("metric", "thread", "bin")
        columns = ("metric", "node", "device", "bin", "mean")
        result.add("map", maps.select(columns))
    for layout, whose in (("gpu_metric", "GPUs"), ("network_metric", "the network")):
        if layout not in context.reader.layouts:
            result.missing.append(f"metrics of {whose}: {context.explain_absence((layout,))}")
    if result.tables:
        bins = context.options.bins
        length = format_nanoseconds(context.duration / bins)
        result.notes.append(
            f"maps of metrics over time (on the page and in JSON) have {bins} bins of {length} each"
        )


# ---- work of others ------------------------------------------------------------------------------


#: Metrics (in %) that show whether a GPU works, the best first; and a pattern for all of them.
ACTIVE = (re.compile(r"SMs? Active\b"), re.compile(r"GR Active\b"))
ANY_ACTIVE = re.compile("|".join(one.pattern for one in ACTIVE))
#: Time -> its name, for a whole job and for one with a steady state.
OF_OTHERS = {
    "before": ("before its first work", "before its steady state"),
    "idle": ("between its first and last work", "in its steady state"),
    "after": ("after its last work", "after its steady state"),
}


def measure_other_work(
    unit: DeviceGroup, device: int, times: Mapping[str, Spans]
) -> Iterator[pl.DataFrame]:
    """Yield how active a device is in each of several sets of times in which the job does not use
    it, as rows: `device`, `when` (name of the set), `metric`, `active` (mean, a share).
    """
    if not unit.has("gpu_metric"):
        return
    for samples in unit.reader.read_samples("gpu_metric", unit.number, ANY_ACTIVE):
        fits = (one for name in ACTIVE for one in samples.metrics if name.match(one))
        metric = next(fits, "")
        if unit.device_of[samples.thread] != device or not metric or len(samples.time) < 2:
            continue
        steps = make_steps(samples, samples.metrics.index(metric))
        # Samples that cover some of the job's own work.
        period, active = int(np.median(np.diff(samples.time))), unit.find_active_spans(device)
        own = merge_spans(active.begin - period, active.end + period)
        for when, time in times.items():
            free = time - own
            integral, known = (float(one.sum()) for one in steps.integrate(free.begin, free.end))
            if known > 0:
                row = {"device": device, "when": when, "metric": metric}
                yield pl.DataFrame([{**row, "active": integral / known / 100}])


def select_other_work(frames: Frames) -> pl.DataFrame:
    """Return the rows of :func:`measure_other_work` in which GPUs are active, so that they work for
    other programs.
    """
    rows = frames["other_work"]
    return rows.filter(pl.col("active") >= LEAST_ACTIVE) if rows.height else rows


def is_shared(frames: Frames) -> bool:
    """Return True if a GPU works for other programs between this job's first and last work on it,
    or in its steady state. It then does not wait for the host.
    """
    rows = select_other_work(frames)
    return bool(rows.height) and "idle" in rows["when"]


def describe_other_work(frames: Frames, context: Context) -> str:
    """Return a sentence about the GPU that works most for other programs, or ""."""
    rows = select_other_work(frames)
    if not rows.height:
        return ""
    most = rows.sort("active").row(-1, named=True)
    own = rows.filter(device=most["device"])
    names = dict(context.reader.rows.devices.select("device", "label").rows())
    times = [
        f"{active:.1%} {OF_OTHERS[when][context.options.steady is not None]}"
        for when, active in own.select("when", "active").rows()
    ]
    others = rows["device"].n_unique() - 1
    more = f" and {others} more GPUs" if others > 1 else " and another GPU" if others else ""
    return (
        f"Another process, or unrecorded work, keeps {names[most['device']]}{more} busy while this job "
        f"has no work there: {most['metric']} is {' and '.join(times)} on average."
    )
