"""Sampled metrics of GPUs, network and other devices as step functions of time: means, and maps
over time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv.analysis.device_group import DeviceGroup
from nsys2prv.analysis.result import Analysis, Context, Result, divide_columns
from nsys2prv.analysis.text import format_nanoseconds
from nsys2prv.store.event_reader import UNKNOWN, Samples

#: Layouts whose samples cover the time since the sample before; those of others cover the time until
#: the next.
COVER_BEFORE = ("gpu_metric",)


class Steps(Struct, frozen=True):
    """values[k] holds from edges[k] to edges[k + 1] (ns), where known[k]; nothing is known
    elsewhere, and the value is 0 there.
    """

    #: Times at which the value may change (ns), one more than values.
    edges: np.ndarray
    #: Value between two edges.
    values: np.ndarray
    #: Whether anything is known there.
    known: np.ndarray

    def integrate(self, begin: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the integral of the value over the known part of each [begin, end), and the length of
        that part (ns).
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
    """Return one metric of a device, from the instants that have a value."""
    column = samples.values[:, metric]
    has_value = ~np.isnan(column)
    time, column = samples.time[has_value], column[has_value]
    column = column[1:] if samples.layout in COVER_BEFORE else column[:-1]
    return Steps(time, np.maximum(column, 0), column != UNKNOWN)


SAMPLED = ("gpu_metric", "network_metric", "generic_counter")


def collect(unit: DeviceGroup) -> Iterator[tuple[str, pl.DataFrame]]:
    """Collect figures of each metric of each device, and its means in bins of time."""
    bins = unit.options.bins
    edges = np.arange(bins + 1) * unit.duration // bins
    for layout in SAMPLED:
        for samples in unit.reader.read_samples(layout, unit.number) if unit.has(layout) else ():
            for number, metric in enumerate(samples.metrics):
                steps = make_steps(samples, number)
                if steps.known.any():
                    yield "means", _summarize_steps(steps, samples, number)
                    yield "maps", _average_in_bins(steps, edges, samples.thread, metric)


def _summarize_steps(steps: Steps, samples: Samples, metric: int) -> pl.DataFrame:
    """Return figures of one metric of a device, in a row."""
    integral, known = steps.integrate(steps.edges[:1], steps.edges[-1:])
    values = steps.values[steps.known]
    summary = {
        "thread": samples.thread,
        "layout": samples.layout,
        "metric": samples.metrics[metric],
        "samples": np.count_nonzero(samples.values[:, metric] >= 0),
        "integral": integral[0],
        "known": known[0],
        "min": values.min(),
        "max": values.max(),
    }
    return pl.DataFrame([summary])


def _average_in_bins(steps: Steps, edges: np.ndarray, thread: int, metric: str) -> pl.DataFrame:
    """Return the mean of a metric in each bin in which it is known: thread, bin, mean, metric."""
    integral, known_time = steps.integrate(edges[:-1], edges[1:])
    bins = np.flatnonzero(known_time > 0)
    means = pl.DataFrame({"bin": bins, "mean": integral[bins] / known_time[bins]})
    return means.with_columns(thread=pl.lit(thread, pl.Int64), metric=pl.lit(metric))


def conclude(frames: Mapping[str, pl.DataFrame], context: Context, result: Result) -> None:
    """Add the means of metrics, and their maps over time."""
    rows = context.reader.rows.threads.select("thread", "node", pl.col("row").alias("device"))
    if frames["means"].height:
        means = frames["means"].join(rows, on="thread", how="left", maintain_order="left")
        means = means.sort("layout", "thread").with_columns(
            mean=divide_columns("integral", "known")
        )
        columns = ("node", "device", "metric", "samples", "mean", "min", "max")
        result.add("means", "Sampled metrics by device", means.select(columns), __doc__)
        by_metric = means.group_by("layout", "metric", maintain_order=True).agg(
            devices=pl.len().cast(pl.Int64),
            mean=pl.col("integral").sum() / pl.col("known").sum(),
            min_mean=(pl.col("integral") / pl.col("known")).min(),
            max_mean=(pl.col("integral") / pl.col("known")).max(),
        )
        result.add("metrics", "Sampled metrics over all devices", by_metric.drop("layout"))
        maps = frames["maps"].join(rows, on="thread", how="left", maintain_order="left")
        maps = maps.sort("metric", "thread", "bin")
        columns = ("metric", "node", "device", "bin", "mean")
        result.add("map", "Sampled metrics over time (bins)", maps.select(columns))
    for layout, whose in (("gpu_metric", "GPUs"), ("network_metric", "the network")):
        if layout not in context.reader.layouts:
            result.missing.append(f"metrics of {whose}: {context.explain_absence((layout,))}")
    if result.tables:
        bins = context.options.bins
        length = format_nanoseconds(context.duration / bins)
        result.notes.append(f"maps over time have {bins} bins of {length}")


ANALYSIS = Analysis("metrics", "Metrics over time", (), collect, conclude)
