"""Measure how a GPU spends an iteration of the steady state (computing, communication alone, copies alone,
idle): median, minimum, maximum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import polars as pl

from nsys2prv._util.intervals import Spans, take_first
from nsys2prv.figures.device_group import BUSY, WORK, DeviceGroup, Steady
from nsys2prv.figures.result import DECLARED, KERNEL_NAMES, Context, Result

#: Description of the tables; columns of what devices do -> names for people.
ABOUT, PARTS = (DECLARED["iterations"].terms[name] for name in ("about", "parts"))


def find_phases(length: int, covered: Spans, steady: Steady) -> pl.DataFrame:
    """Return the job's start-up, steady state and shutdown, as far as they are recorded: `phase`,
    `begin_ns`, `time_ns`, `time_share` of the job (length: ns), and of the steady state `iterations`,
    and `activity`, by what these were found.
    """
    edges = covered.find_hull()[0], steady.begin, steady.end, covered.find_hull()[1]
    phases = pl.DataFrame(
        {
            "phase": ["start-up", "steady state", "shutdown"],
            "begin_ns": edges[:3],
            "time_ns": np.diff(edges),
            "time_share": np.diff(edges) / max(length, 1),
            "iterations": [None, steady.count, None],
            "activity": [None, steady.found_by, None],
        }
    )
    return phases.filter(pl.col("time_ns") > 0)


def collect(unit: DeviceGroup) -> Iterator[tuple[str, pl.DataFrame]]:
    """Collect how the devices spend each iteration of the steady state (ns, added up)."""
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


def conclude(frames: Mapping[str, pl.DataFrame], context: Context, result: Result) -> None:
    """Add the iterations of the steady state, and what is usual of them."""
    steady, parts = context.options.steady, frames["iterations"]
    if steady is not None and not parts.height:
        result.missing.append(f"iterations: {context.explain_absence(tuple(WORK))}")
        return
    if steady is None:
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
    each = times.join(means, on="iteration", maintain_order="left")
    if KERNEL_NAMES not in context.available:
        each = each.drop("compute_ns", "exposed_nccl_ns")
        why = context.explain_absence((KERNEL_NAMES,))
        result.missing.append(f"communication of iterations: {why}")
    result.add("summary", _summarize(each), f"Found by {steady.found_by}. {ABOUT}")
    result.add("each", each)


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
            if column in each.columns
        ]
    )
