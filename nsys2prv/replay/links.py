"""Find what passes between processes more slowly than it could: messages of NCCL between pairs of ranks,
and what a process does while others wait for it by the operating system.

No other process does that work, so there is nothing to compare it with but itself: it could take as
long as it usually does, or, at most, be done while nobody waits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from math import comb

import numpy as np
import polars as pl

from nsys2prv.replay.graph import LONG, Changes, Kind, split_size
from nsys2prv.replay.thresholds import (
    APART,
    BY_CHANCE,
    FEWEST_LINKS,
    MOST_HANDED,
    MOST_LINKS,
    MUCH_LONGER,
    QUICK_SHARE,
    SEVERAL,
    SLOWER_LINK,
    SMALL_COPY,
)
from nsys2prv.replay.whatif import Replay


def list_slow_links(replay: Replay) -> Iterator[tuple[int, ...]]:
    """Yield pairs of processes with a link that is slower than all others of their sort (within a host,
    or between two), and processes all of whose links are.
    """
    messages = _list_messages(replay)
    messages = messages.filter(pl.col("bytes") >= SMALL_COPY)
    pace = (pl.col("lasts") / pl.col("bytes")).median()
    links = messages.group_by("a", "b", "between").agg(pace=pace).sort("a", "b")
    # What is slow is slower than the quickest of its sort, too.
    quick = pl.col("pace").quantile(0.25, "lower").over("between")
    is_slow = pl.col("pace") > SLOWER_LINK * quick
    sides = links.with_columns(is_slow).unpivot(["a", "b"], index="pace", value_name="rank")
    slow = sides.group_by("rank").agg(pl.col("pace").all() & (pl.len() > 1)).filter("pace")
    pairs = links.filter(is_slow).sort("pace", descending=True).head(MOST_LINKS)
    ranks = slow.select("rank").sort("rank").head(MOST_LINKS).rows()
    count = sides["rank"].n_unique()
    for processes in (*pairs.select("a", "b").rows(), *ranks):
        own = links.filter(_is_within(processes))
        others = links.filter(
            ~_is_within(processes), pl.col("between").is_in(own["between"].implode())
        )
        if others.height < FEWEST_LINKS:
            continue
        logs = np.log(others["pace"].to_numpy())
        usual = float(np.median(logs))
        # Of many others one may be slow, too.
        apart = np.sort(np.abs(logs - usual))[-2 if len(logs) >= SEVERAL else -1]
        least = float(np.log(own["pace"].to_numpy()).min())
        longer = least - usual
        # By chance all links of one process are hardly ever slower than all of the others.
        chance = count / comb(own.height + others.height, own.height)
        is_certain = least > logs.max() and chance < BY_CHANCE
        if longer > np.log(SLOWER_LINK) and (longer > APART * apart or is_certain):
            yield processes


def send_as_others(replay: Replay, processes: Collection[int]) -> Changes:
    """Let messages between these processes, or of one of them, take as long as those of others: the median
    of one size, or by bytes where others have none.
    """
    messages = _list_messages(replay)
    is_own = _is_within(processes)
    rest = messages.filter(~is_own)
    alike = rest.group_by("size", "between").agg(usual=pl.col("lasts").median())
    pace = rest.group_by("between").agg(pace=(pl.col("lasts") / pl.col("bytes")).median())
    own = messages.filter(is_own)
    own = own.join(alike, on=("size", "between"), how="left", maintain_order="left")
    own = own.join(pace, on="between", how="left", maintain_order="left")
    usual = pl.coalesce("usual", pl.col("pace") * pl.col("bytes"))
    own = own.with_columns(new=pl.min_horizontal("lasts", usual)).drop_nulls("new")
    new = own["new"].clip(0, LONG - 1).cast(pl.Int64)
    return [(own["edge"].to_numpy(), new.to_numpy())]


def _is_within(processes: Collection[int]) -> pl.Expr:
    """Return whether a message is between these processes, or is of the only one."""
    ends = [pl.col(side).is_in([*processes]) for side in ("a", "b")]
    return pl.any_horizontal(ends) if len(processes) == 1 else pl.all_horizontal(ends)


def _list_messages(replay: Replay) -> pl.DataFrame:
    """Return messages of NCCL between two processes each: `edge`, `lasts` (ns), `size` (its class), about how
    many `bytes`, the processes `a` and `b`, and whether it is `between` hosts.
    """
    edges, channels = replay.edges, replay.job.channels
    rows = replay.select((Kind.NCCL,))
    sizes, key = edges.size[rows], edges.key[rows]
    is_pair = np.array([len(members) == 2 for members, _ in channels])
    kept = (sizes < 0) & is_pair[key]
    rows, sizes, key = rows[kept], sizes[kept], key[kept]
    ends = np.array([members if len(members) == 2 else (-1, -1) for members, _ in channels])
    between = np.array([len(hosts) > 1 for _, hosts in channels])
    _, of_bytes, _ = split_size(sizes)
    columns = {"edge": rows, "lasts": replay.graph.weight[rows], "size": sizes}
    columns |= {"a": ends[key, 0], "b": ends[key, 1], "between": between[key]}
    return pl.DataFrame(columns).with_columns(bytes=2.0 ** (of_bytes / 4))


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
