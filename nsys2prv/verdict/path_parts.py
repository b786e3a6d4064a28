"""Divide the time of a job along its critical path, and the work of each rank, into tables that
compare two runs of a program (:mod:`nsys2prv.show.difference`). Their rows are named facts that add
up.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from nsys2prv._util.columns import sum_by
from nsys2prv.figures.device_group import list_labels
from nsys2prv.figures.host_time import PARTS
from nsys2prv.replay.graph import TRANSFERS, Kind, split_rows, split_size
from nsys2prv.replay.path import Cause, divide_path
from nsys2prv.verdict.cause_context import CauseContext
from nsys2prv.verdict.host_use import JobFacts
from nsys2prv.verdict.thresholds import LEAST_LISTED, MOST

#: Dependency of the path -> part of its time.
OF_CAUSES = {
    Cause.COMPUTATION: "kernel",
    Cause.GRAPH: "kernel",
    Cause.NCCL: "nccl",
    Cause.MEMORY: "copy",
    Cause.LATENCY: "latency",
    Cause.QUEUED: "latency",
    Cause.CALL: "call",
    Cause.RETURN: "call",
    Cause.MPI: "mpi",
    Cause.HOST: "host",
    Cause.WAIT: "call",
    Cause.OUTSIDE: "outside",
    Cause.HANDOFF: "latency",
    Cause.FULL_QUEUE: "call",
    Cause.UNEXPLAINED: "unexplained",
}
#: Kinds of work -> the part of the time that it is.
OF_KINDS = {
    Kind.KERNEL: "kernel",
    Kind.COPY: "copy",
    Kind.GAP: "host",
    Kind.CALL: "call",
    Kind.NCCL: "nccl",
    Kind.MPI: "mpi",
}
#: Kinds of GPU work, identified by name alone.
OF_GPUS = (Kind.KERNEL, Kind.COPY, Kind.NCCL)
#: Columns that identify rows.
KEYS = ("process", "part", "name", "range")


def list_path(facts: CauseContext) -> pl.DataFrame:
    """Divide the job's time along the critical path.

    Columns: `rank`, `part` (of OF_CAUSES, `start` before the replayed time, `exit` after it),
    `name` (kernel, call, or place between two calls), `range` (NVTX, for hosts), and `time_ns`.
    """
    alike, sums = ("process", "cause", "kind", "key", "group"), []
    for pieces in divide_path(facts.replay):
        edges = pieces["edge"]
        known = edges >= 0
        groups, kinds, keys = np.full((3, len(edges)), -1)
        kinds[known], keys[known] = _find_work(facts, edges[known])
        of_host = known & ~np.isin(kinds, OF_GPUS)
        groups[of_host] = facts.find_groups(edges[of_host])
        named = {"kind": kinds, "key": keys, "group": groups}
        by = {name: pieces[name] for name in alike[:2]} | named
        sums.append(pl.DataFrame(sum_by(by, time_ns=pieces["time"])))
    frame = pl.concat(sums).group_by(alike).agg(pl.col("time_ns").sum())
    frame = frame.with_columns(
        part=pl.col("cause").replace_strict(
            {int(cause): part for cause, part in OF_CAUSES.items()}, return_dtype=pl.String
        ),
        # All that differ in numbers alone have one name.
        range=pl.col("group").replace_strict(
            {-1: "", **dict(facts.alike.select("group", "pattern").rows())}, return_dtype=pl.String
        ),
    )
    named = _join_short(_name(facts, frame), facts.replay.span)
    return _label(facts, pl.concat([named, _list_ends(facts)]), "range")


def list_work(facts: CauseContext) -> pl.DataFrame:
    """Return the work of each rank in the replayed time, without wait times.

    Columns: `rank`, `part` (of OF_KINDS), `name`, `follows` (the kernel that most often runs
    before), `count` (of kernels, copies, calls and pauses that end in this time), and `time_ns`.
    """
    replay = facts.replay
    sums = []
    edges = replay.select(OF_KINDS)
    for rows in split_rows(len(edges)):
        some = edges[rows]
        kind, key = _find_work(facts, some)
        by = {"process": replay.edges.process[some], "kind": kind, "key": key}
        values = {
            "time_ns": facts.graph.weight[some],
            "count": _count_calls(facts, some, kind),
        }
        sums.append(pl.DataFrame(sum_by(by, **values)))
    frame = pl.concat(sums).with_columns(
        part=pl.col("kind").replace_strict({int(kind): part for kind, part in OF_KINDS.items()}),
        range=pl.lit(""),
    )
    named = _join_short(_name(facts, frame), replay.span)
    follows = pl.DataFrame(
        [
            (facts.name_kernel(key), facts.name_kernel(before))
            for key, before in _find_orders(facts)
        ],
        {"name": pl.String, "follows": pl.String},
        orient="row",
    ).unique("name", keep="first")
    return _label(facts, named.join(follows, on="name", how="left").drop("range"), "follows")


def _count_calls(facts: CauseContext, edges: np.ndarray, kinds: np.ndarray) -> np.ndarray:
    """Return 1 for each edge, and 0 for transfers of MPI calls that another edge counts: their own
    work, which is the first edge of their end. A call may wait for several transfers.
    """
    counts = np.ones(len(edges), np.int64)
    transfers = np.flatnonzero(kinds == Kind.MPI)
    own_work = facts.graph.target[: facts.graph.joined]
    ends = (facts.edges.target[edges[transfers]] >> 1).astype(own_work.dtype)
    at = np.searchsorted(own_work, ends)
    found = np.minimum(at, len(own_work) - 1)
    is_counted = (own_work[found] == ends) & (facts.edges.kind[found] == Kind.CALL)
    counts[transfers[is_counted]] = 0
    return counts


def _find_work(facts: CauseContext, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the kinds of edges, and numbers of their work that are equal on all ranks: the name
    for transfers, 1000 x source memory kind + destination memory kind for copies, and the key for
    other edges.
    """
    kind = facts.edges.kind[edges].astype(np.int64)
    key = facts.edges.key[edges].astype(np.int64)
    is_transfer = np.isin(kind, TRANSFERS)
    key[is_transfer] = split_size(facts.edges.size[edges[is_transfer]])[0]
    own = np.flatnonzero(kind == Kind.COPY)
    copies = facts.replay.job.copies.sort("edge") if len(own) else pl.DataFrame()
    if copies.height:
        at = np.minimum(np.searchsorted(copies["edge"], edges[own]), copies.height - 1)
        places = (copies["source"] * 1000 + copies["destination"]).to_numpy()[at]
        key[own] = np.where(copies["edge"].to_numpy()[at] == edges[own], places, -1)
    return kind, key


def _find_orders(facts: CauseContext) -> list[tuple[int, int]]:
    """Return each kernel with the kernel that most often starts before it, on the first process
    with kernels.
    """
    edges = facts.replay.select((Kind.KERNEL,), processes=facts.replay.processes[:1].tolist())
    order = np.argsort(facts.find_times(edges)[0], kind="stable")
    key = pl.Series("key", facts.edges.key[edges[order]].astype(np.int64))
    pairs = pl.DataFrame({"key": key, "before": key.shift()}).drop_nulls()
    counts = pairs.group_by("key", "before").len().sort("key", "len", "before", descending=True)
    return counts.unique("key", keep="first", maintain_order=True).select("key", "before").rows()


def _name(facts: CauseContext, work: pl.DataFrame) -> pl.DataFrame:
    """Return the sums of work by KEYS. work: `process`, `part`, `kind`, `key`, `range`, and the
    columns to sum.
    """
    kinds = work.select("kind", "key").unique()
    labels = list_labels("memory_kind")

    def name(kind: int, key: int) -> str:
        if kind == Kind.KERNEL:
            return facts.name_kernel(key)
        if kind == Kind.COPY:
            return " to ".join(filter(None, map(labels.get, divmod(key, 1000))))
        if kind in TRANSFERS:
            return facts.name_transfer(Kind(kind), key)
        if kind in (Kind.CALL, Kind.RETURN, Kind.LAUNCH):
            return facts.name_call(key // 2 if kind == Kind.LAUNCH else key)
        return facts.name_place(Kind.GAP, key) if kind == Kind.GAP else ""

    names = [name(*row) for row in kinds.rows()]
    named = work.join(kinds.with_columns(name=pl.Series(names, dtype=pl.String)), ["kind", "key"])
    is_mpi = pl.col("part").eq("call") & pl.col("name").str.starts_with("MPI_")
    named = named.with_columns(part=pl.when(is_mpi).then(pl.lit("mpi")).otherwise("part"))
    return named.group_by(KEYS).agg(pl.col("^time_ns|count$").sum())


def _join_short(frame: pl.DataFrame, span: int) -> pl.DataFrame:
    """Merge the rows that take little of a span (ns) into one for each rank and part."""
    is_short = pl.col("time_ns") < LEAST_LISTED * span
    short = frame.with_columns(
        pl.when(is_short).then(pl.lit("")).otherwise(name).alias(name) for name in ("name", "range")
    )
    return (
        short.group_by(KEYS).agg(pl.exclude(KEYS).sum().cast(pl.Int64)).cast({"process": pl.Int64})
    )


def list_host_path(facts: JobFacts) -> pl.DataFrame:
    """Divide the time of a job without GPU work or MPI calls by host activity, in the form of
    :func:`list_path`.
    """
    covered = facts.options.covered.find_hull()
    return _label(facts, _divide_host_time(facts, "host", "all", covered[1] - covered[0]), "range")


def _list_ends(facts: CauseContext) -> pl.DataFrame:
    """Return the time before and after the replayed time by host activity."""
    begin, end = facts.options.covered.find_hull()
    before = _divide_host_time(facts, "start", "before", facts.replay.begin - begin)
    return pl.concat([before, _divide_host_time(facts, "exit", "after", end - facts.replay.end)])


def _divide_host_time(facts: JobFacts, part: str, when: str, time: int) -> pl.DataFrame:
    """Return a time (ns) divided by host activity, with the main call or NVTX range of each. when:
    as in :meth:`JobFacts.find_use`.
    """
    use = facts.find_use(when)
    parts = {one: own for one, own in use.parts.items() if own} if use else {}
    edges = np.cumsum([0, *(parts.values() or [1])]) / (sum(parts.values()) or 1) * time
    names = [PARTS[one] for one in parts] or [""]
    of_parts = (
        [
            [*(one for one in use.list_calls(part) if one.share >= MOST), use.inside]
            for part in parts
        ]
        if use
        else [[]]
    )
    return pl.DataFrame(
        {
            "process": np.full(len(names), -1),
            "part": [part] * len(names),
            "name": names,
            "range": [next((one.name for one in most if one), "") for most in of_parts] or [""],
            "time_ns": np.diff(np.round(edges).astype(np.int64)),
        }
    )


def _label(facts: JobFacts, frame: pl.DataFrame, *more: str) -> pl.DataFrame:
    """Return rows with the names of processes, the longest first. more: columns after `name`."""
    tasks = facts.context.tasks.select(process=pl.col("task").cast(pl.Int64) - 1, rank="who")
    order = ("rank", "part", "name", *more)
    joined = frame.join(tasks, on="process", how="left").with_columns(pl.col("rank").fill_null(""))
    rows = joined.select(*order, pl.exclude("process", *order))
    return rows.sort(-pl.col("time_ns"), *order)
