"""Sampled metrics of GPUs, network interfaces and other devices, as step functions of time, and the
use of devices.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv.analysis.event_reader import UNKNOWN, Samples
from nsys2prv.analysis.result import Analysis, Context, Result, Table, divide_columns
from nsys2prv.analysis.text import format_nanoseconds
from nsys2prv.analysis.unit import COMPUTE, GRAPH, MEMORY, NCCL, Unit

#: Layouts whose samples tell of the time since the sample before; those of the others, of the time
#: until the next.
TELL_BEFORE = ("gpu_metric",)


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

    def within(self, begin: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return of each [begin, end) the value times ns over what is known of it, and how many ns
        that are.
        """
        last, first = self._integrate(end), self._integrate(begin)
        return last[0] - first[0], np.rint(last[1] - first[1]).astype(np.int64)

    def _integrate(self, times: np.ndarray) -> list[np.ndarray]:
        """Return the integrals of the values, and of what is known, up to each time."""
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
    """Return one metric of a device, of the instants that have it."""
    column = samples.values[:, metric]
    has_value = ~np.isnan(column)
    time, column = samples.time[has_value], column[has_value]
    column = column[1:] if samples.layout in TELL_BEFORE else column[:-1]
    return Steps(time, np.maximum(column, 0), column != UNKNOWN)


SAMPLED = ("gpu_metric", "network_metric", "generic_counter")
BUSY = {
    "compute": (COMPUTE, GRAPH),
    "nccl": (NCCL,),
    "memory": (MEMORY,),
    "active": (COMPUTE, NCCL, GRAPH, MEMORY),
}


def collect(unit: Unit) -> dict[str, pl.DataFrame]:
    edges = make_bin_edges(unit.duration, unit.options.bins)
    means, maps, busy = [], [], []
    for layout in SAMPLED:
        for samples in unit.reader.samples(layout, unit.number) if unit.has(layout) else ():
            for number, metric in enumerate(samples.metrics):
                steps = make_steps(samples, number)
                if not steps.known.any():
                    continue
                whole, known_of_whole = steps.within(steps.edges[:1], steps.edges[-1:])
                known_values, count = (
                    steps.values[steps.known],
                    int(np.count_nonzero(samples.values[:, number] >= 0)),
                )
                means.append(
                    (
                        samples.thread,
                        layout,
                        metric,
                        count,
                        float(whole[0]),
                        int(known_of_whole[0]),
                        float(known_values.min()),
                        float(known_values.max()),
                    )
                )
                integral, known_time = steps.within(edges[:-1], edges[1:])
                known_bins = np.flatnonzero(known_time > 0)
                mean = integral[known_bins] / known_time[known_bins]
                maps.append(
                    pl.DataFrame(
                        {
                            "thread": np.full(len(known_bins), samples.thread),
                            "bin": known_bins,
                            "mean": mean,
                        }
                    ).with_columns(metric=pl.lit(metric))
                )
    for device in unit.devices:
        shares = {
            f"{name}_share": unit.find_device_spans(device, *what).within(edges[:-1], edges[1:])
            / np.maximum(np.diff(edges), 1)
            for name, what in BUSY.items()
        }
        busy.append(
            pl.DataFrame(
                {
                    "device": np.full(len(edges) - 1, device),
                    "bin": np.arange(len(edges) - 1),
                    **shares,
                }
            )
        )
    return {
        "means": pl.DataFrame(
            means,
            schema={
                "thread": pl.Int64,
                "layout": pl.String,
                "metric": pl.String,
                "samples": pl.Int64,
                "integral": pl.Float64,
                "known": pl.Int64,
                "min": pl.Float64,
                "max": pl.Float64,
            },
            orient="row",
        ),
        "maps": pl.concat(maps) if maps else pl.DataFrame(),
        "busy": pl.concat(busy) if busy else pl.DataFrame(),
    }


def make_bin_edges(duration: int, bins: int) -> np.ndarray:
    """Return edges (ns) of equal bins over the job."""
    return np.arange(bins + 1) * duration // bins


def conclude(frames: Mapping[str, pl.DataFrame], context: Context) -> Result:
    tables, missing = {}, []
    rows = context.reader.rows.threads.select("thread", "row", "node")
    if frames["means"].height:
        means = (
            frames["means"]
            .join(rows, on="thread", how="left", maintain_order="left")
            .sort("layout", "thread")
        )
        tables["means"] = Table(
            "Sampled metrics by device",
            means.select(
                "node",
                pl.col("row").alias("device"),
                "metric",
                "samples",
                divide_columns("integral", "known").alias("mean"),
                "min",
                "max",
            ),
            __doc__ or "",
        )
        by_metric = means.group_by("layout", "metric", maintain_order=True).agg(
            devices=pl.len().cast(pl.Int64),
            mean=pl.col("integral").sum() / pl.col("known").sum(),
            min_mean=(pl.col("integral") / pl.col("known")).min(),
            max_mean=(pl.col("integral") / pl.col("known")).max(),
        )
        tables["metrics"] = Table("Sampled metrics over all devices", by_metric.drop("layout"))
        maps = (
            frames["maps"]
            .join(rows, on="thread", how="left", maintain_order="left")
            .sort("metric", "thread", "bin")
        )
        maps = maps.select("metric", "node", pl.col("row").alias("device"), "bin", "mean")
        tables["map"] = Table("Sampled metrics over time (bins)", maps)
    for layout in SAMPLED[:2]:
        if layout not in context.reader.layouts:
            missing.append(
                f"metrics of {'GPUs' if layout == 'gpu_metric' else 'the network'}: {context.absent((layout,))}"
            )
    if frames["busy"].height:
        tables["use"] = Table(
            "Use of devices over time (bins)",
            context.name_devices(frames["busy"].sort("device", "bin")),
        )
    bins = context.options.bins
    return Result(
        "metrics",
        ANALYSIS.title,
        tables,
        [f"maps over time have {bins} bins of {format_nanoseconds(context.duration / bins)}"],
        missing,
    )


ANALYSIS = Analysis(
    "metrics",
    "Metrics and use over time",
    "sampled metrics of GPUs and network: means, and maps over time; use of devices over time",
    (),
    collect,
    conclude,
)
