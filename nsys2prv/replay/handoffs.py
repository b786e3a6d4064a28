"""Change what a process does while others wait for it by the operating system.

No other process does that work, so there is nothing to compare it with but itself: it could take as
long as it usually does, or, at most, be done while nobody waits.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from nsys2prv.replay.thresholds import MOST_HANDED, MUCH_LONGER, QUICK_SHARE
from nsys2prv.replay.whatif import Changes, Replay


def hand_off_as_usual(replay: Replay, processes: Sequence[int]) -> Changes:
    """Let processes take no longer before each hand-off of a place than they do in the quickest ones."""
    work = _compare_with_quick(replay, processes).filter(pl.col("lasts") > pl.col("quick"))
    rows, lasts = work["edge"].to_numpy(), work["quick"].cast(pl.Int64).to_numpy()
    return [(rows, lasts)] if len(rows) else []


def is_late_at_times(replay: Replay, processes: Sequence[int]) -> bool:
    """Return whether most of what processes take longer than in the quickest hand-offs is of few that
    take much longer.
    """
    more = pl.col("lasts") - pl.col("quick")
    is_much = pl.col("lasts") > MUCH_LONGER * pl.col("quick")
    work = _compare_with_quick(replay, processes).filter(more > 0)
    much, whole = work.select(more.filter(is_much).sum().alias("much"), whole=more.sum()).row(0)
    return bool(whole) and much >= MOST_HANDED * whole


def _compare_with_quick(replay: Replay, processes: Sequence[int]) -> pl.DataFrame:
    """Return what processes do before hand-offs, as `list_work` does, and how long the `quick` ones take."""
    work = replay.list_work(replay.find_releases(processes))
    quick = pl.col("lasts").quantile(QUICK_SHARE, "lower").over("key", "process")
    return work.with_columns(quick=quick)


def hand_off_at_once(replay: Replay, processes: Sequence[int]) -> Changes:
    """Let processes take no time before hand-offs."""
    rows = replay.find_releases(processes)
    return [(rows, 0.0)] if len(rows) else []
