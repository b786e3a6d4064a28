"""Distributions of durations by group, exact, in bounded memory: units spill them sorted by group, groups are then read one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import polars as pl

#: Two modes are reported where a division in two (Otsu's, of the logarithms) leaves each side so much of all executions at least, ...
LEAST_SHARE = 0.05
#: ... so many executions, ...
LEAST_COUNT = 10
#: ... the means of the durations differ by this factor at least, ...
LEAST_FACTOR = 1.2
#: ... and Ashman's D, sqrt(2) |m1 - m2| / sqrt(s1^2 + s2^2) of the logarithms, is at least this (one uniform mode has 3.5, a normal 2.7).
LEAST_D = 4.0
RULE = (f"two modes: the logarithms of the durations divided in two (Otsu) with at least {LEAST_SHARE:.0%} and {LEAST_COUNT} executions on "
        f"either side, means that differ by a factor of {LEAST_FACTOR} or more, and Ashman's D of {LEAST_D:g} or more")


def spill(frame: pl.DataFrame, by: Sequence[str], path: Path) -> pl.DataFrame:
    """Store the durations (end - begin) of a frame's rows by group in a file of int64.

    A row for each group: the columns `by`, `count`, `time_ns` (their sum), `min_ns`, `max_ns`, and `file`, `start`, where they lie.
    """
    durations = frame.select(*by, duration=pl.col("end") - pl.col("begin")).sort(by)
    path.write_bytes(durations["duration"].to_numpy().astype("<i8"))
    groups = durations.group_by(by, maintain_order=True).agg(
        count=pl.len().cast(pl.Int64), time_ns=pl.col("duration").sum(), min_ns=pl.col("duration").min(), max_ns=pl.col("duration").max())
    return groups.with_columns(file=pl.lit(str(path)), start=pl.col("count").cum_sum() - pl.col("count"))


def statistics(groups: pl.DataFrame, by: Sequence[str], modes: bool = False) -> pl.DataFrame:
    """Figures of spilled groups brought together by some of their columns, greatest time first.

    count, time_ns, mean_ns, median_ns, min_ns, max_ns, deviation_ns (of a sample; null for one execution), and with `modes` two_modes,
    low_ns and high_ns (means of the two), high_share (executions in the higher).
    """
    rows = []
    for key, durations in _together(groups, by):
        row = [*key, len(durations), int(durations.sum()), float(durations.mean()), float(np.median(durations)), int(durations.min()),
               int(durations.max()), float(durations.std(ddof=1)) if len(durations) > 1 else None]
        rows.append((*row, *_modes(durations)) if modes else tuple(row))
    schema = {name: groups.schema[name] for name in by} | {
        "count": pl.Int64, "time_ns": pl.Int64, "mean_ns": pl.Float64, "median_ns": pl.Float64, "min_ns": pl.Int64, "max_ns": pl.Int64,
        "deviation_ns": pl.Float64}
    if modes:
        schema |= {"two_modes": pl.Boolean, "low_ns": pl.Float64, "high_ns": pl.Float64, "high_share": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row").sort("time_ns", *by, descending=[True, *[False] * len(by)])


def histograms(groups: pl.DataFrame, by: Sequence[str], bins: int) -> pl.DataFrame:
    """Executions of spilled groups by duration: the columns `by`, then low_ns, high_ns (bins equally wide in the logarithm from the least
    duration to the greatest, which is in the last one; a single bin where all are equal), and count."""
    frames = []
    for key, durations in _together(groups, by):
        least, most = int(durations.min()), int(durations.max())
        edges = np.geomspace(least, most, bins + 1) if most > least else np.array([least, most], float)
        edges[0], edges[-1] = least, most
        counts = np.histogram(durations, edges)[0] if most > least else np.array([len(durations)])
        frames.append(pl.DataFrame({"low_ns": edges[:-1], "high_ns": edges[1:], "count": counts.astype(np.int64)}).select(
            *(pl.lit(value, groups.schema[name]).alias(name) for name, value in zip(by, key, strict=True)), pl.all()))
    return pl.concat(frames)


def _together(groups: pl.DataFrame, by: Sequence[str]) -> Iterator[tuple[tuple, np.ndarray]]:
    """The durations of each group, those of all units in one array."""
    files = {name: np.memmap(name, "<i8", "r") for name in groups["file"].unique() if Path(name).stat().st_size}
    for key, parts in groups.partition_by(by, as_dict=True, maintain_order=True).items():
        slices = parts.select("file", "start", "count").rows()
        yield key, np.concatenate([files[name][start:start + count] for name, start, count in slices])


def _modes(durations: np.ndarray) -> tuple[bool, float | None, float | None, float | None]:
    """Whether there are two modes by the rule of this module, and what they are."""
    none = False, None, None, None
    count = len(durations)
    least = max(LEAST_COUNT, int(np.ceil(LEAST_SHARE * count)))
    if count < 2 * least or durations.min() == durations.max():
        return none
    ordered = np.sort(durations)
    logs = np.log(ordered)
    sums = np.cumsum(logs)
    lower = np.arange(1, count)
    means = sums[:-1] / lower, (sums[-1] - sums[:-1]) / (count - lower)
    between = lower * (count - lower) * (means[1] - means[0]) ** 2
    # Equal durations stay on one side.
    between[ordered[1:] == ordered[:-1]] = -1
    cut = int(np.argmax(between)) + 1
    low, high = logs[:cut], logs[cut:]
    spread = np.sqrt(low.var() + high.var())
    apart = spread == 0 or np.sqrt(2) * (high.mean() - low.mean()) / spread >= LEAST_D
    means_ns = float(ordered[:cut].mean()), float(ordered[cut:].mean())
    if min(cut, count - cut) < least or not apart or means_ns[1] < LEAST_FACTOR * means_ns[0]:
        return none
    return True, *means_ns, (count - cut) / count
