"""The iterations of the steady state: how long each takes, and what the devices do in it.

Times are means over devices. Of each moment of a device the first counts that applies: computing
(kernels other than NCCL's, graphs), NCCL alone, memory operations alone, idle. The iterations are
those of the phases of `findings`: an iteration lasts until the next one begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import polars as pl

from nsys2prv.analysis.intervals import subtract_spans, unite_span_sets
from nsys2prv.analysis.result import Analysis, Context, Result
from nsys2prv.analysis.unit import COMPUTE, GRAPH, MEMORY, NCCL, WORK, Unit

#: What the devices do -> its name for people.
PARTS = {
    "compute_ns": "computing",
    "exposed_nccl_ns": "NCCL alone (exposed)",
    "exposed_memory_ns": "memory operations alone",
    "idle_ns": "idle",
}


def collect(unit: Unit) -> Iterator[tuple[str, pl.DataFrame]]:
    steady = unit.options.steady
    if steady is None or not unit.devices:
        return
    begin = np.array(steady.iteration_begins, np.int64)
    end = np.append(begin[1:], steady.end)
    sums = np.zeros((3, len(begin)), np.int64)
    for device in unit.devices:
        compute = unit.find_device_spans(device, COMPUTE, GRAPH)
        nccl = unit.find_device_spans(device, NCCL)
        memory = subtract_spans(
            unit.find_device_spans(device, MEMORY), unite_span_sets([compute, nccl])
        )
        for row, spans in enumerate((compute, subtract_spans(nccl, compute), memory)):
            sums[row] += spans.within(begin, end)
    idle = len(unit.devices) * (end - begin) - sums.sum(axis=0)
    frame = pl.DataFrame(dict(zip(PARTS, (*sums, idle), strict=True))).with_columns(
        iteration=pl.int_range(1, len(begin) + 1), devices=len(unit.devices)
    )
    yield "iterations", frame


def conclude(frames: Mapping[str, pl.DataFrame], context: Context, result: Result) -> None:
    steady, parts = context.options.steady, frames["iterations"]
    if steady is None or not parts.height:
        result.missing.append("iterations: none found; the job does not repeat itself")
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
    each = times.join(means, on="iteration", how="left", maintain_order="left")
    title = "Iterations of the steady state: how a GPU spends its time"
    result.add("summary", title, _summarize(each), f"Found by {steady.found_by}. {__doc__}")
    result.add("each", "Each iteration of the steady state", each)


def _summarize(each: pl.DataFrame) -> pl.DataFrame:
    """Return the median, minimum and maximum of each part, and the iterations that have
    these.
    """
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
        ]
    )


ANALYSIS = Analysis(
    "iterations",
    "Iterations",
    (
        "how a GPU spends an iteration of the steady state (computing, NCCL alone, copies alone, "
        "idle): median, minimum, maximum"
    ),
    (tuple(WORK),),
    collect,
    conclude,
)
