"""Change what a process does while others of its host wait for it by the operating system.

No other process does that work, so there is nothing to compare it with but itself: it could take as
long as it usually does, or, at most, be done while nobody waits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from nsys2prv.replay.events import HANDOFF
from nsys2prv.replay.graph import Kind
from nsys2prv.replay.thresholds import QUICK_SHARE
from nsys2prv.replay.unit_graph import PLACE
from nsys2prv.replay.whatif import Changes, Replay


def mask_handoffs(replay: Replay, edges: np.ndarray) -> np.ndarray:
    """Return which edges are time between a call and a hand-off after it."""
    places = -1 - replay.edges.key[edges].astype(np.int64)
    return (replay.edges.kind[edges] == Kind.GAP) & (places % PLACE == HANDOFF)


def hand_off_as_usual(replay: Replay, processes: Sequence[int]) -> Changes:
    """Let processes take no longer before each hand-off of a place than they do in the quickest ones."""
    if HANDOFF not in replay.job.calls:
        return []
    edges = replay.select((Kind.GAP,), processes=processes)
    work = replay.list_work(edges[mask_handoffs(replay, edges)])
    quick = pl.col("lasts").quantile(QUICK_SHARE, "lower").over("key", "process")
    work = work.with_columns(quick=quick).filter(pl.col("lasts") > pl.col("quick"))
    rows, lasts = work["edge"].to_numpy(), work["quick"].cast(pl.Int64).to_numpy()
    return [(rows, lasts)] if len(rows) else []
