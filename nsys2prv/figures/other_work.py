"""Find GPUs that work for others while this job has nothing on them, by metrics that were sampled."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import numpy as np
import polars as pl

from nsys2prv.figures.device_group import DeviceGroup
from nsys2prv.figures.intervals import Spans, merge_spans
from nsys2prv.figures.kernels import make_steps
from nsys2prv.figures.result import Context

#: Metrics (in %) that tell whether a GPU works, the best first.
ACTIVE = (re.compile(r"SMs? Active\b"), re.compile(r"GR Active\b"))
#: Mean from which on a GPU works for others: what draws a display, or sets CUDA up, takes less.
LEAST_ACTIVE = 0.1
#: Which time -> what it is called, of a whole job and of one with a steady state.
TIMES = {
    "before": ("before its first work", "before its steady state"),
    "idle": ("between its first and last work", "in its steady state"),
    "after": ("after its last work", "after its steady state"),
}


def measure_other_work(
    unit: DeviceGroup, device: int, times: Mapping[str, Spans]
) -> Iterator[pl.DataFrame]:
    """Yield the mean activity of a device in each of some times while the job has nothing on it: device,
    when, metric, active (a share), in a row.
    """
    if not unit.has("gpu_metric"):
        return
    for samples in unit.reader.read_samples("gpu_metric", unit.number):
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


def select_other_work(frames: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """Return the rows of measure_other_work in which GPUs work for others."""
    rows = frames["other_work"]
    return rows.filter(pl.col("active") >= LEAST_ACTIVE) if rows.height else rows


def is_shared(frames: Mapping[str, pl.DataFrame]) -> bool:
    """Return whether a GPU works for others between this job's first and last work there, or in its steady
    state: then it does not wait for the host.
    """
    rows = select_other_work(frames)
    return bool(rows.height) and "idle" in rows["when"]


def describe_other_work(frames: Mapping[str, pl.DataFrame], context: Context) -> str:
    """Return a sentence on the GPU that works most for others; empty where none does."""
    rows = select_other_work(frames)
    if not rows.height:
        return ""
    most = rows.sort("active").row(-1, named=True)
    own = rows.filter(device=most["device"])
    names = dict(context.reader.rows.devices.select("device", "label").rows())
    times = [
        f"{active:.1%} {TIMES[when][context.options.steady is not None]}"
        for when, active in own.select("when", "active").rows()
    ]
    others = rows["device"].n_unique() - 1
    more = f" and {others} more GPUs" if others > 1 else " and another GPU" if others else ""
    return (
        f"Another process, or work that is not recorded, keeps {names[most['device']]}{more} busy while this job "
        f"has nothing there: {most['metric']} is {' and '.join(times)} on average."
    )
