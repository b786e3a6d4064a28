"""Change what a process does while others wait for it by the operating system.

No other process does that work, so there is nothing to compare it with but itself: it could take as
long as it usually does, or, at most, be done while nobody waits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from nsys2prv.replay.events import HANDOFF
from nsys2prv.replay.graph import Kind
from nsys2prv.replay.thresholds import MOST_HANDED, MUCH_LONGER, QUICK_SHARE
from nsys2prv.replay.unit_graph import PLACE
from nsys2prv.replay.whatif import Changes, Replay


def find_releases(replay: Replay, processes: Sequence[int] | None = None) -> np.ndarray:
    """Return the edges of what processes do, from their last call or wait on, before they let others go on;
    None: of all.
    """
    if HANDOFF not in replay.job.calls:
        return np.zeros(0, np.int32)
    edges = replay.edges
    gaps = replay.select((Kind.GAP,), processes=processes)
    gaps = gaps[is_before(replay, gaps, HANDOFF)]
    return gaps[np.isin(edges.target[gaps], edges.source[replay.select((Kind.MEET,))])]


def is_before(replay: Replay, edges: np.ndarray, call: int) -> np.ndarray:
    """Return which edges are time between two calls of which the second is this one."""
    places = -1 - replay.edges.key[edges].astype(np.int64)
    return (replay.edges.kind[edges] == Kind.GAP) & (places % PLACE == call)


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
    work = replay.list_work(find_releases(replay, processes))
    quick = pl.col("lasts").quantile(QUICK_SHARE, "lower").over("key", "process")
    return work.with_columns(quick=quick)


def hand_off_at_once(replay: Replay, processes: Sequence[int]) -> Changes:
    """Let processes take no time before hand-offs."""
    rows = find_releases(replay, processes)
    return [(rows, 0.0)] if len(rows) else []
