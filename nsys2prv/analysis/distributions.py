"""Distributions of durations by group, exact, in bounded memory: units spill them sorted by group,
groups are then read one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl

#: Two modes are reported where a division in two (Otsu's, of the logarithms) leaves each side so
#: much of all executions at least, ...
LEAST_SHARE = 0.05
#: ... so many executions, ...
LEAST_COUNT = 10
#: ... the means of the durations differ by this factor at least, ...
LEAST_FACTOR = 1.2
#: ... and Ashman's D, sqrt(2) |m1 - m2| / sqrt(s1^2 + s2^2) of the logarithms, is at least this
#: (one uniform mode has 3.5, a normal 2.7).
LEAST_D = 4.0
RULE = (
    f"bimodal: the logarithms of the durations divided in two (Otsu) with at least {LEAST_SHARE:.0%} and {LEAST_COUNT} executions on "
    f"either side, means that differ by a factor of {LEAST_FACTOR} or more, and Ashman's D of {LEAST_D:g} or more"
)

#: What is said of durations without two modes.
NO_MODES = False, None, None, None
#: Executions (about) whose durations are in memory at a time, unless one group has more.
TOGETHER = 1_000_000


def spill_durations(frame: pl.DataFrame, by: Sequence[str], path: Path) -> pl.DataFrame:
    """Store the durations (end - begin) of a frame's rows by group in a file of int64.

    A row for each group: the columns `by`, `count`, `time_ns` (their sum), `min_ns`, `max_ns`, and
    `file`, `start`, where they lie.
    """
    durations = frame.select(*by, duration=pl.col("end") - pl.col("begin")).sort(by)
    path.write_bytes(durations["duration"].to_numpy().astype("<i8"))
    groups = durations.group_by(by, maintain_order=True).agg(
        count=pl.len().cast(pl.Int64),
        time_ns=pl.col("duration").sum(),
        min_ns=pl.col("duration").min(),
        max_ns=pl.col("duration").max(),
    )
    return groups.with_columns(
        file=pl.lit(str(path)), start=pl.col("count").cum_sum() - pl.col("count")
    )


def make_statistics(groups: pl.DataFrame, by: Sequence[str], modes: bool = False) -> pl.DataFrame:
    """Return figures of spilled groups brought together by some of their columns, greatest time
    first.

    count, time_ns, mean_ns, median_ns, min_ns, max_ns, std_dev_ns (of a sample; null for one
    execution), and with `modes` two_modes, low_ns and high_ns (means of the two), high_share
    (executions in the higher).
    """
    duration = pl.col("duration")
    frames = []
    for keys, bounds, durations in _gather_durations(groups, by):
        counts = np.diff(bounds)
        figures = (
            pl.DataFrame(
                {"group": np.repeat(np.arange(len(counts)), counts), "duration": durations}
            )
            .group_by("group", maintain_order=True)
            .agg(
                count=pl.len().cast(pl.Int64),
                time_ns=duration.sum(),
                mean_ns=duration.mean(),
                median_ns=duration.median(),
                min_ns=duration.min(),
                max_ns=duration.max(),
                std_dev_ns=duration.std(ddof=1),
            )
        )
        columns = [keys, figures.drop("group")]
        if modes:
            columns.append(_find_group_modes(bounds, durations))
        frames.append(pl.concat(columns, how="horizontal"))
    return pl.concat(frames).sort("time_ns", *by, descending=[True, *[False] * len(by)])


def make_histograms(groups: pl.DataFrame, by: Sequence[str], bins: int) -> pl.DataFrame:
    """Return executions of spilled groups by duration: the columns `by`, then low_ns, high_ns (bins
    equally wide in the logarithm from the least duration to the greatest, which is in the last one;
    fewer bins where durations are too near each other), and count.
    """
    frames = []
    for keys, bounds, durations in _gather_durations(groups, by):
        for number in range(keys.height):
            group_durations = durations[bounds[number] : bounds[number + 1]]
            edges = _make_edges(int(group_durations.min()), int(group_durations.max()), bins)
            counts = (
                np.histogram(group_durations, edges)[0]
                if len(edges) > 2
                else np.array([len(group_durations)])
            )
            bins_of_group = {"low_ns": edges[:-1], "high_ns": edges[1:], "count": counts}
            key = pl.concat([keys[number]] * len(counts))
            frames.append(pl.concat([key, pl.DataFrame(bins_of_group)], how="horizontal"))
    return pl.concat(frames)


def _make_edges(least: int, most: int, bins: int) -> np.ndarray:
    """Return the bounds of bins from `least` to `most` (ns, float64, ascending): of durations that
    a float64 cannot tell apart, one bin.
    """
    inner = np.geomspace(least, most, bins + 1)[1:-1] if most > least else np.zeros(0)
    inner = np.unique(inner[(inner > least) & (inner < most)])
    return np.concatenate([[float(least)], inner, [float(most)]])


def _gather_durations(
    groups: pl.DataFrame, by: Sequence[str]
) -> Iterator[tuple[pl.DataFrame, np.ndarray, np.ndarray]]:
    """Return the durations of some groups at a time: their keys, a row each; where each group's
    durations begin, and the last one's end; and the durations (int64 ns), those of all units of a
    group together.
    """
    files = {
        name: np.memmap(name, "<i8", "r")
        for name in groups["file"].unique()
        if Path(name).stat().st_size
    }
    joined = groups.group_by(by, maintain_order=True).agg("file", "start", "count")
    sizes = joined["count"].list.sum().to_numpy()
    batch = (np.cumsum(sizes) - sizes) // TOGETHER
    for first, last in pairwise([*np.flatnonzero(np.diff(batch, prepend=-1)).tolist(), len(batch)]):
        gathered = joined[first:last]
        slices = gathered.select("file", "start", "count").explode("file", "start", "count").rows()
        durations = np.concatenate(
            [files[name][start : start + count] for name, start, count in slices]
        )
        yield gathered.select(by), np.append(0, np.cumsum(sizes[first:last])), durations


def _find_group_modes(bounds: np.ndarray, durations: np.ndarray) -> pl.DataFrame:
    """Return for each group whether its durations have two modes, and which."""
    modes = {
        number: _find_modes(durations[bounds[number] : bounds[number + 1]])
        for number in np.flatnonzero(np.diff(bounds) >= 2 * LEAST_COUNT).tolist()
    }
    rows = [modes.get(number, NO_MODES) for number in range(len(bounds) - 1)]
    return pl.DataFrame(
        rows,
        schema={
            "two_modes": pl.Boolean,
            "low_ns": pl.Float64,
            "high_ns": pl.Float64,
            "high_share": pl.Float64,
        },
        orient="row",
    )


def _find_modes(durations: np.ndarray) -> tuple[bool, float | None, float | None, float | None]:
    """Return whether there are two modes by the rule of this module, and what they are."""
    count = len(durations)
    least = max(LEAST_COUNT, int(np.ceil(LEAST_SHARE * count)))
    if count < 2 * least or durations.min() == durations.max():
        return NO_MODES
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
        return NO_MODES
    return True, *means_ns, (count - cut) / count
