"""Measure concurrent work: how much longer kernels run while NCCL kernels run on the same GPU, and
how much of a transfer could overlap kernels. Also find slow exchanges between processes: NCCL
messages between pairs of ranks, and work of a process for which others wait in OS runtime calls.

Kernels of one name process different data. A kernel is therefore compared with kernels between the
same kernels, which are at the same place of the program; some overlap NCCL, others run alone. Work
that no other process does can only be compared with itself: it could take its usual time or, at
most, be done while nobody waits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from math import comb
from typing import Any

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.intervals import Spans, merge_spans
from nsys2prv.replay.graph import LONG, TRANSFERS, Changes, Kind, split_size
from nsys2prv.replay.thresholds import (
    APART,
    BY_CHANCE,
    CERTAIN_ERRORS,
    FEWEST_LINKS,
    FEWEST_NAMED,
    LEAST_LONGER,
    MANY_ERRORS,
    MOST_CASES,
    MOST_HANDED,
    MOST_LINKS,
    MOST_LONGER,
    MOSTLY,
    MUCH_LONGER,
    NEIGHBOURS,
    QUICK_LINK,
    QUICK_SHARE,
    SAME_WINDOW,
    SEVERAL,
    SLOWER_LINK,
    SMALL_COPY,
)
from nsys2prv.replay.whatif import GPU, Replay

#: Columns of places: what the shares beside NCCL and the durations (logarithms) vary by there, and
#: together; the medians of the durations `alone` and `beside` (ns), and of how many.
_SUMS = ("shares", "both", "lasts")
_PLACES: dict[str, Any] = {
    "name": pl.Int32,
    "count": pl.Int64,
    **dict.fromkeys((*_SUMS, "alone", "beside"), pl.Float64),
    **dict.fromkeys(("times_alone", "times_beside"), pl.Int64),
}


#: Columns of kernels beside NCCL: how long each lasts (ns), the share of this in which NCCL has some there,
#: and in which these move data.
_KERNELS: dict[str, Any] = {
    "edge": pl.Int32,
    "name": pl.Int32,
    "lasts": pl.Int64,
    **dict.fromkeys(("share", "moving"), pl.Float32),
}


class Beside(Struct, frozen=True):
    """Kernels that run at the same time as NCCL kernels, and how much faster they are without
    these.
    """

    #: Their edges, and the duration of each alone, and without concurrent data transfers (ns).
    edges: np.ndarray
    alone: np.ndarray
    still: np.ndarray
    #: Places of the program with kernels that take longer alongside NCCL, if they sometimes run alongside it
    #: (_PLACES).
    places: pl.DataFrame
    #: Mean factor by which kernels take longer alongside NCCL.
    ratio: float


class _Device(Struct, frozen=True):
    """Kernels of a device in the span, by row and time, and the NCCL kernels on it."""

    #: Edges of kernels, and their rows, names, begins and durations (ns).
    edges: np.ndarray
    row: np.ndarray
    name: np.ndarray
    begin: np.ndarray
    lasts: np.ndarray
    #: The time of NCCL kernels; edges of transfers between ranks in the span, their ends and durations (ns).
    nccl: Spans
    transfers: np.ndarray
    end: np.ndarray
    takes: np.ndarray

    def share(self, covered: Spans) -> np.ndarray:
        """Return the share of each kernel's time that is covered."""
        inside = covered.within(self.begin, self.begin + self.lasts)
        share: np.ndarray = (inside / np.maximum(self.lasts, 1)).astype(np.float32)
        return share


def _list_devices(replay: Replay) -> Iterator[_Device]:
    """Yield the devices that have both kernels and NCCL kernels in the span."""
    graph, edges, job = replay.graph, replay.edges, replay.job
    spans = job.spans.filter((pl.col("end") > replay.begin) & (pl.col("begin") < replay.end))
    if not spans.height:
        return
    kernels, transfers = replay.select(GPU), replay.select((Kind.NCCL,))
    transfers = transfers[edges.key[transfers] > 0]
    # Rows of the trace by their devices.
    known, number = np.unique(job.devices, return_inverse=True)
    place = np.argsort(np.argsort(number, kind="stable"))
    parts = []
    for some in (kernels, transfers):
        row = graph.row[graph.find_nodes(some)]
        order = np.argsort(
            place.astype(np.uint16 if len(place) < 1 << 16 else int)[row], kind="stable"
        )
        bounds = np.searchsorted(number[row[order]], np.arange(len(known) + 1))
        parts.append((some[order], row[order], bounds))
    (kernels, row, first), (transfers, _, begins) = parts
    for (found,), nccl in spans.group_by("device", maintain_order=True):
        device = int(np.searchsorted(known, int(str(found))))
        own, moves = (slice(each[device], each[device + 1]) for each in (first, begins))
        some, moved = kernels[own], transfers[moves]
        begin, lasts = graph.time[edges.source[some]], graph.weight[some]
        covered = merge_spans(nccl["begin"].to_numpy(), nccl["end"].to_numpy())
        yield _Device(
            some, row[own], edges.key[some], begin, lasts, covered,
            moved, graph.time[edges.target[moved]], graph.weight[moved],
        )  # fmt: skip


def find_beside(replay: Replay) -> Beside:
    """Find the kernels that run at the same time as NCCL kernels in the span. The result is
    computed once.
    """
    found: Beside = replay.remember("beside", lambda: _measure_beside(replay))
    return found


def _measure_beside(replay: Replay) -> Beside:
    """Measure how much longer kernels run while they overlap NCCL kernels."""
    parts = [[np.zeros(0, np.int64)] * len(_KERNELS)]
    places, cases = [pl.DataFrame(schema=_PLACES)], []
    for device in _list_devices(replay):
        share = device.share(device.nccl)
        if not (some := np.flatnonzero(share > 0)).size:
            continue
        moving = device.share(merge_spans(device.end - device.takes, device.end))
        columns = (device.edges, device.name, device.lasts, share, moving)
        parts.append([one[some] for one in columns])
        cases.append(_list_cases(device, share, len(parts)))
        if sum(len(place) for place, *_ in cases) >= MOST_CASES:
            places.append(_compare_places(cases))
            cases = []
    places += [_compare_places(cases)] if cases else []
    kernels = pl.DataFrame([*map(np.concatenate, zip(*parts, strict=True))], _KERNELS)
    every = pl.concat(places)
    pooled = _pool(every, "name")
    certain = pl.col("longer") > pl.max_horizontal(CERTAIN_ERRORS * pl.col("error"), LEAST_LONGER)
    slowed = every.join(pooled.filter(certain), on="name", how="semi")
    whole = float(sum(_pool(slowed)["longer"]))
    # Of those that hardly ever run alone nothing is known but what the others do.
    known = CERTAIN_ERRORS * pl.col("error") < whole
    longer = pl.when(certain).then("longer").when(known).then(0.0)
    pooled = pooled.select("name", longer=longer)
    kernels = kernels.join(pooled, on="name", how="left", maintain_order="left")
    loss = 1 - (-pl.col("longer").fill_null(whole)).exp()
    left = (
        (pl.col("lasts") * (1 - pl.col(share) * loss)).cast(pl.Int64)
        for share in ("share", "moving")
    )
    edges = kernels["edge"].to_numpy()
    alone, still = (kernels.select(one).to_series().to_numpy() for one in left)
    return Beside(edges, alone, still, slowed, float(np.exp(whole)))


def _list_cases(device: _Device, share: np.ndarray, number: int) -> tuple[np.ndarray, ...]:
    """Return kernels of a device: their place in the program, name, share of overlap, and duration (a logarithm).
    number: of the device.
    """
    row, name, time = (column[:MOST_CASES] for column in (device.row, device.name, device.lasts))
    count = len(row)
    around = np.arange(-NEIGHBOURS, count + NEIGHBOURS) % count
    rows, names, mixed = row[around], name[around], np.full(count, number)
    for first in range(2 * NEIGHBOURS, -1, -1):
        near = slice(first, first + count)
        mixed = mixed * 1_000_003 + np.where(rows[near] == row, names[near], -1)
    return mixed, name, share[:MOST_CASES], np.log(np.maximum(time, 1))


def _compare_places(cases: Sequence[tuple[np.ndarray, ...]]) -> pl.DataFrame:
    """Return the durations of kernels at equal places of the program by their overlap with NCCL, if it varies
    (_PLACES). cases: of each device.
    """
    columns = map(np.concatenate, zip(*cases, strict=True))
    cases = pl.LazyFrame(dict(zip(("place", "name", "share", "lasts"), columns, strict=True)))
    lasts, of = pl.col("lasts"), pl.col("share")
    varies = (of.max() - of.min() > 1 - MOSTLY) & (pl.len() >= FEWEST_NAMED)
    cases = cases.filter(varies.over("place"))
    # Unusual durations have other reasons.
    cases = cases.filter((lasts - lasts.median().over("place")).abs() < MOST_LONGER)
    sides = {"alone": lasts.filter(of < 1 - MOSTLY), "beside": lasts.filter(of > MOSTLY)}
    places = cases.group_by("place", "name").agg(
        count=pl.len(),
        shares=of.var() * (pl.len() - 1),
        both=pl.cov(of, lasts) * (pl.len() - 1),
        **{name: side.median().exp() for name, side in sides.items()},
        **{f"times_{name}": side.len() for name, side in sides.items()},
        lasts=lasts.var() * (pl.len() - 1),
    )
    return places.select(*_PLACES).cast(_PLACES).collect()


def _pool(places: pl.DataFrame, *by: str) -> pl.DataFrame:
    """Return by how much kernels are `longer` while they overlap NCCL (a logarithm), pooled over
    all places of each kernel, with the `error`.
    """
    shares, both, lasts = (pl.col(name).sum() for name in _SUMS)
    longer = both / shares
    rest = (lasts - longer * both).clip(0) / (pl.col("count").sum() - pl.len() - 1.0)
    sums = {"longer": longer, "error": (rest / shares).sqrt(), "shares": shares}
    pooled = places.group_by(by).agg(**sums) if by else places.select(**sums)
    return pooled.filter((pl.col("shares") > 0) & pl.col("error").is_finite())


def transfer_at_once(replay: Replay) -> Changes:
    """Return changes in which all data arrives as soon as all ranks have arrived. No kernel is then
    slowed by overlap.
    """
    beside = find_beside(replay)
    return [*replay.transfer_at_once(), (beside.edges, beside.still)]


def run_alone(replay: Replay) -> Changes:
    """Return changes in which kernels that overlap NCCL take as long as they do without it."""
    beside = find_beside(replay)
    return [(beside.edges, beside.alone)]


def overlap_transfers(replay: Replay) -> Changes:
    """Return changes in which exposed NCCL transfers overlap the kernels before them: each piece
    starts as soon as one of these kernels is done. The last piece remains exposed, and overlapped
    kernels slow down.
    """
    ratio = find_beside(replay).ratio
    return [_hide(one, ratio) for one in _list_devices(replay) if len(one.transfers)]


def _hide(device: _Device, ratio: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the transfers of a device, and the time of each that kernels cannot hide. ratio:
    factor by which kernels take longer while they overlap NCCL.
    """
    # A kernel of NCCL ends with the longest of its transfers.
    end, kernel = np.unique(device.end, return_inverse=True)
    lasts = np.zeros(len(end), np.int64)
    np.maximum.at(lasts, kernel, device.takes)
    order = np.argsort(device.begin, kind="stable")
    alone = order[device.share(device.nccl)[order] < 1 - MOSTLY]
    begins = device.begin[alone]
    work = merge_spans(begins, begins + device.lasts[alone])
    begin = end - lasts
    since = np.append(0, end[:-1])
    window = np.maximum(work.within(since, begin), 0)
    count = np.searchsorted(begins, begin) - np.searchsorted(begins, since)
    # With hardly anything between them they have what was done before the first.
    is_first = np.append(True, window[1:] >= SAME_WINDOW * lasts[1:])
    group, first = np.cumsum(is_first) - 1, np.flatnonzero(is_first)
    whole, window, count = (np.add.reduceat(one, first)[group] for one in (lasts, window, count))
    hidden = np.minimum(whole * (1 - 1 / np.maximum(count, 1)), window * ratio) / ratio
    left = 1 - hidden / np.maximum(whole, 1)
    return device.transfers, (device.takes * left[kernel]).astype(np.int64)


#: What sorts of messages of MPI are greater by than those of NCCL.
OF_MPI = 2


def list_slow_links(replay: Replay) -> Iterator[tuple[int, ...]]:
    """Yield pairs of processes whose connection is slower than all others of its sort (within a
    host, or between two hosts), and single processes with only slow connections.
    """
    messages = _list_messages(replay)
    messages = messages.filter(pl.col("bytes") >= SMALL_COPY)
    # Of a message of MPI either side may be complete when its call begins.
    is_of_mpi, longest = pl.col("between") >= OF_MPI, pl.col("lasts").max().over("source")
    messages = messages.with_columns(pl.when(is_of_mpi).then(longest).otherwise("lasts"))
    pace = pl.col("lasts") / pl.col("bytes")
    spread = pace.clip(1e-9).log().quantile(0.75) - pace.clip(1e-9).log().quantile(0.25)
    links = messages.group_by("a", "b", "between").agg(
        pace=pace.median(),
        quick=pace.quantile(QUICK_LINK, "lower"),
        # The square of the standard error of the median's logarithm.
        error=(0.93 * spread) ** 2 / pl.col("source").n_unique(),
    )
    links = links.sort("a", "b")
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
        # A slow link is so for its quickest messages, too; others wait for a CPU at times.
        is_always = own["quick"].min() > SLOWER_LINK * others["quick"].median()
        least_certain = MANY_ERRORS * np.sqrt(own["error"].max() + others["error"].median())
        stands_out = longer > max(np.log(SLOWER_LINK), least_certain)
        if is_always and stands_out and (longer > APART * apart or is_certain):
            yield processes


def send_as_others(replay: Replay, processes: Collection[int]) -> Changes:
    """Return changes in which messages between these processes (or of a single process) take as
    long as other messages: the median for the size, or by bytes for other sizes.
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
    wider = [
        key for key, (members, _) in enumerate(replay.job.channels) if {*processes} <= {*members}
    ]
    return [(own["edge"].to_numpy(), new.to_numpy()), (replay.find_shared_links(wider), 0.0)]


def _is_within(processes: Collection[int]) -> pl.Expr:
    """Return an expression: is a message between these processes, or does it belong to the only
    one?
    """
    ends = [pl.col(side).is_in([*processes]) for side in ("a", "b")]
    return pl.any_horizontal(ends) if len(processes) == 1 else pl.all_horizontal(ends)


def _list_messages(replay: Replay) -> pl.DataFrame:
    """Return the sides of messages between two processes.

    Columns: `edge`, `source` (equal for both sides of a message), `lasts` (ns), `size` (class),
    approximate `bytes`, the processes `a` and `b`, and the sort (`between`): 1 for messages between
    hosts, plus OF_MPI for MPI.
    """
    edges, channels = replay.edges, replay.job.channels
    rows = replay.select(TRANSFERS)
    sizes, key = edges.size[rows], edges.key[rows]
    is_pair = np.array([len(members) == 2 for members, _ in channels])
    kept = (sizes < 0) & is_pair[key]
    rows, sizes, key = rows[kept], sizes[kept], key[kept]
    ends = np.array([members if len(members) == 2 else (-1, -1) for members, _ in channels])
    between = np.array([len(hosts) > 1 for _, hosts in channels])
    _, of_bytes, _ = split_size(sizes)
    columns = {"edge": rows, "lasts": replay.graph.weight[rows], "size": sizes}
    columns |= {"a": ends[key, 0], "b": ends[key, 1], "source": edges.source[rows]}
    columns["between"] = between[key] + OF_MPI * (edges.kind[rows] == Kind.MPI)
    return pl.DataFrame(columns).with_columns(bytes=2.0 ** (of_bytes / 4))


def hand_off_as_usual(replay: Replay, processes: Sequence[int]) -> Changes:
    """Return changes in which processes take no longer before each hand-off of results than before
    the quickest hand-offs between the same calls.
    """
    work = _compare_with_quick(replay, processes).filter(pl.col("lasts") > pl.col("quick"))
    rows, lasts = work["edge"].to_numpy(), work["quick"].cast(pl.Int64).to_numpy()
    return [(rows, lasts)] if len(rows) else []


def is_late_at_times(replay: Replay, processes: Sequence[int]) -> bool:
    """Return True if processes lose time in a few hand-offs that take much longer than the
    quickest, rather than in all of them.
    """
    more = pl.col("lasts") - pl.col("quick")
    is_much = pl.col("lasts") > MUCH_LONGER * pl.col("quick")
    work = _compare_with_quick(replay, processes).filter(more > 0)
    much, whole = work.select(more.filter(is_much).sum().alias("much"), whole=more.sum()).row(0)
    return bool(whole) and much >= MOST_HANDED * whole


def _compare_with_quick(replay: Replay, processes: Sequence[int]) -> pl.DataFrame:
    """Return the work of processes before hand-offs, as `list_work` does, with the duration of the
    `quick` ones.
    """
    work = replay.list_work(replay.find_releases(processes))
    quick = pl.col("lasts").quantile(QUICK_SHARE, "lower").over("key", "process")
    return work.with_columns(quick=quick)


def hand_off_at_once(replay: Replay, processes: Sequence[int]) -> Changes:
    """Return changes in which processes take no time before they hand over results to others."""
    rows = replay.find_releases(processes)
    return [(rows, 0.0)] if len(rows) else []
