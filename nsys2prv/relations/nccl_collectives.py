"""NCCL collectives on all their ranks: who came late, who waited, and how fast the transfer was.

How the kernels of one collective are found, the first way that the reports allow:

1. by the communicator's hash and the sequence number of the advanced NCCL trace, counted per function;
2. by the communicator's hash (in payloads since NCCL 2.25.1) and the order in which a rank launched its operations; where that
   contradicts itself (captures that begin or end at different calls, missing rows), by when they ended;
3. where no payload tells a communicator: by order on each stream, if every process has only one communicator and that of all
   GPUs of the job, or nothing tells of any, and all GPUs execute the same sequence of NCCL kernels. Kernels of one collective
   overlap in time, for none ends before all have begun; unless nearly all do, nothing is matched.

A collective is numbered only if it is complete: a kernel of each rank, of the same operations and size.
Times in ns. Bandwidths are over the transfer, in MB/s of 10^6 bytes; bus bandwidth as nccl-tests defines it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from nsys2prv.clock.observations import NCCL as SOURCE
from nsys2prv.clock.observations import Calls, Role
from nsys2prv.clock.sequences import recognised
from nsys2prv.columns import ABSENT
from nsys2prv.events.kind import Rows
from nsys2prv.naming.nccl import GROUP
from nsys2prv.relations.kind import DEVICES, NCCL, Observed, Related, Relation
from nsys2prv.report.source import NULL

LAYOUT = "nccl_collective"
SEND_RECEIVE = 15
#: How collectives of a communicator were told from each other.
WAYS = ("sequence number", "order of launches", "the times at which they ended")
#: Findings that say that ends tell nothing, rather than that they speak against a match.
UNCLEAR = ("few", "ambiguous")
#: Operations in which all wait for the root, and the root for all.
WAIT_FOR_ROOT, ROOT_WAITS = (2, 10), (3, 9)
#: AllReduce, AllGather, ReduceScatter, AlltoAll.
ALL_WAIT = (1, 4, 5, 8)
#: Share of the collectives matched by order whose kernels must overlap on all ranks.
ENOUGH_OVERLAP = 0.9
MEMBER = ("task", "device")


@dataclass
class _Matched:
    """Kernels of complete collectives, with `key` telling them apart and `size` their ranks; and what to say."""

    kernels: pl.DataFrame
    notes: list[str] = field(default_factory=list)


def relate(facts: Mapping[str, pl.DataFrame]) -> Related:
    kernels = sane(facts["nccl_kernels"].filter((pl.col("time_begin") != NULL) & (pl.col("time_end") != NULL))).with_row_index("kernel")
    if kernels.select(MEMBER).n_unique() < 2:
        return Related()
    collectives = kernels.filter((pl.col("communicator") != 0) & (pl.col("fused") > pl.col("messages")))
    rest = kernels.filter((pl.col("communicator") == 0) & (pl.col("in_graph") == 0))
    parts, notes = [], []
    if collectives.height:
        matched = _by_communicator(collectives)
        parts, notes = [matched.kernels], matched.notes
    elif rest.height:
        matched = _by_order(rest, kernels, facts["nccl_communicators"])
        parts, notes = [matched.kernels], matched.notes
    notes += _unused(kernels, bool(collectives.height))
    rows = _records(pl.concat(parts, how="diagonal")) if parts else []
    notes += _apart(parts)
    return Related(rows, notes=notes)


def sane(kernels: pl.DataFrame) -> pl.DataFrame:
    """The kernels with ends after their begins, as their records in the trace have them."""
    end = pl.when(pl.col("time_end") == NULL).then("time_end").otherwise(pl.max_horizontal("time_end", pl.col("time_begin") + 1))
    return kernels.with_columns(time_end=end)


def _by_communicator(kernels: pl.DataFrame) -> _Matched:
    """By the communicator, and the sequence number where all of its kernels have one, else by order or by when they ended."""
    own = [*MEMBER, "communicator"]
    kernels = kernels.sort(*own, "time_call", "time_begin").with_columns(
        before=(pl.col("fused") - pl.col("messages")).cum_sum().over(own) - (pl.col("fused") - pl.col("messages")),
        numbered=(pl.col("sequence") >= 0).all().over("communicator"))
    kernels = kernels.with_columns(
        function=pl.when("numbered").then("first_operation").otherwise(0),
        ordinal=pl.when("numbered").then("sequence").otherwise("before"),
        way=pl.when("numbered").then(pl.lit(WAYS[0])).otherwise(pl.lit(WAYS[1])),
        members=pl.struct(MEMBER).n_unique().over("communicator"))
    kernels = kernels.with_columns(size=pl.max_horizontal(pl.col("ranks").max().over("communicator"), "members"))
    doubtful = ~(pl.col("numbered") | _in_step())
    kernels = pl.concat([kernels.filter(~doubtful), _by_ends(kernels.filter(doubtful))])
    lone = kernels.filter(pl.col("ordinal") < 0).height
    kernels = _completed(kernels.filter(pl.col("ordinal") >= 0), ["communicator", "function", "ordinal"], ["operation", "fused", "bytes"])
    collectives = kernels.unique("key")
    notes = []
    for way in WAYS:
        of_way = collectives.filter(pl.col("way") == way)
        if of_way.height:
            whole = of_way.filter("complete").height
            notes.append(f"NCCL collectives matched across ranks by communicator and {way}: {whole:,}"
                         + _left(of_way.height - whole, "incomplete or differing between ranks, left out"))
    if lone:
        notes.append(f"{lone:,} NCCL kernels that are of no collective on the other ranks: not matched")
    return _Matched(kernels.filter("complete"), notes)


def _equally_many() -> pl.Expr:
    """Whether all members of the communicator have equally many operations on it."""
    operations = pl.col("fused") - pl.col("messages")
    mine = operations.sum().over(*MEMBER, "communicator")
    return mine.min().over("communicator") == mine.max().over("communicator")


def _in_step() -> pl.Expr:
    """Whether orders of launches tell: all members have equally many operations, and no kernel ends before another of its begins.

    Otherwise a capture that began later calls another collective its first, or rows are missing here and there.
    """
    collective = ["communicator", "ordinal"]
    met = pl.col("time_end").min().over(collective) >= pl.col("time_begin").max().over(collective)
    return (_equally_many() & met.all().over("communicator")).over("communicator")


def _by_ends(kernels: pl.DataFrame) -> pl.DataFrame:
    """The kernels with the ordinals that their ends tell, for kernels of one collective end nearly together on all ranks; -1 where
    they tell none. Where they cannot tell, the order stands if all members have equally many operations."""
    if not kernels.height:
        return kernels
    kernels = kernels.with_columns(group=pl.col("communicator").rank("dense").cast(pl.Int64),
                                   member=pl.struct(MEMBER).rank("dense").cast(pl.Int64), number=pl.lit(-1, pl.Int64),
                                   even=_equally_many())
    ordinals, findings = recognised(_calls(kernels, "member"))
    unclear = sorted({finding.group for finding in findings if finding.kind in UNCLEAR})
    by_order = pl.col("group").is_in(unclear) & pl.col("even")
    kernels = kernels.with_columns(
        ordinal=pl.when(by_order).then("before").otherwise(pl.Series("found", ordinals)),
        way=pl.when(by_order).then(pl.lit(WAYS[1])).otherwise(pl.lit(WAYS[2])))
    return kernels.drop("group", "member", "number", "even")


def _completed(kernels: pl.DataFrame, key: list[str], same: list[str]) -> pl.DataFrame:
    """With `key` as a number, and whether the collective is complete: one kernel per rank, the columns `same` equal."""
    kernels = kernels.with_columns(key=pl.struct(key).rank("dense").cast(pl.Int64))
    whole = (pl.len() == pl.col("size").first()) & (pl.struct(MEMBER).n_unique() == pl.len()) & (pl.struct(same).n_unique() == 1)
    return kernels.join(kernels.group_by("key").agg(complete=whole & (pl.len() > 1)), on="key", how="left", maintain_order="left")


def _by_order(kernels: pl.DataFrame, everything: pl.DataFrame, communicators: pl.DataFrame) -> _Matched:
    """By order on each stream, if the kernels of equal order overlap in time."""
    ordered, why = _ordered(kernels, everything, communicators)
    spans = ordered.group_by("key").agg(together=pl.col("time_end").min() >= pl.col("time_begin").max())
    if not why and (not spans.height or spans["together"].mean() < ENOUGH_OVERLAP):
        why = "the ranks' kernels of equal order do not overlap in time"
    if why:
        return _Matched(ordered.clear(), ["NCCL collectives not matched across ranks: "
                                          f"no payload tells the kernels' communicators and {why}"])
    sure = "the one communicator" if communicators.height else "assuming that all are of one communicator"
    return _Matched(ordered, [f"NCCL collectives matched across ranks by order on each stream, {sure}: {spans.height:,}"])


def _ordered(kernels: pl.DataFrame, everything: pl.DataFrame, communicators: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    """Kernels of no known communicator with what they would be by order on each stream, streams of a GPU in the order of their ids;
    none, and why, where that cannot be right."""
    members = everything.select(MEMBER).n_unique()
    kernels = kernels.sort(*MEMBER, "stream", "time_begin").with_columns(row=pl.col("stream").rank("dense").over(MEMBER).cast(pl.Int64))
    kernels = kernels.with_columns(ordinal=pl.int_range(pl.len()).over(*MEMBER, "row"), size=pl.lit(members))
    kernels = _completed(kernels, ["row", "ordinal"], ["by_name"])
    if communicators.height:
        made = communicators.group_by("task").agg(pl.col("communicator").n_unique(), pl.col("ranks").max())
        if not ((made["communicator"] == 1) & (made["ranks"] == members)).all() or communicators["communicator"].n_unique() > 1:
            return kernels.clear(), "there are several, or one with ranks that have no report"
    if not kernels["complete"].all():
        return kernels.clear(), "the ranks execute different sequences of kernels"
    return kernels.filter(pl.col("by_name") != SEND_RECEIVE), ""


def _unused(kernels: pl.DataFrame, by_communicator: bool) -> list[str]:
    """What is to be said of kernels that could not be matched at all."""
    notes = []
    graphs = kernels.filter(pl.col("in_graph") == 1).height
    if graphs:
        notes.append(f"{graphs:,} NCCL kernels in CUDA graphs: replayed without a call, so not matched across ranks")
    if by_communicator:
        lone = kernels.filter((pl.col("communicator") == 0) & (pl.col("in_graph") == 0)).height
        if lone:
            notes.append(f"{lone:,} NCCL kernels without a call that tells their communicator: not matched across ranks")
    return notes


def _apart(parts: list[pl.DataFrame]) -> list[str]:
    """A warning where a rank is done before another begins, which clocks that agree would not show of these collectives."""
    if not parts:
        return []
    gaps = pl.concat(parts, how="diagonal").group_by("key").agg(gap=pl.col("time_begin").max() - pl.col("time_end").min())
    apart = gaps.filter(pl.col("gap") > 0)
    if not apart.height:
        return []
    far = f"{apart['gap'].max() / 1000:,.1f} us"
    return [f"in {apart.height:,} of these collectives a kernel ends before the last one begins, by up to {far}: "
            "the clocks of the reports do not agree so far, and late arrivals and waits are wrong by as much"]


def _left(count: int, why: str) -> str:
    return f"; {count:,} {why}" if count else ""


def _records(kernels: pl.DataFrame) -> list[Rows]:
    """A record on each kernel. Collectives are numbered from 1 by their first begin."""
    if not kernels.height:
        return []
    first, last = pl.col("time_begin").min().over("key"), pl.col("time_begin").max().over("key")
    kernels = kernels.with_columns(first=first, last=last)
    order = kernels.select("key", "first").unique().sort("first", "key").with_row_index("collective", 1)
    kernels = kernels.join(order.select("key", "collective"), on="key", how="left", maintain_order="left")
    duration = pl.col("time_end") - pl.col("time_begin")
    kernels = kernels.with_columns(
        late=pl.col("time_begin") - pl.col("first"),
        wait=pl.min_horizontal(pl.col("last") - pl.col("time_begin"), duration),
        transfer=pl.max_horizontal(pl.col("time_end") - pl.col("last"), 0))
    ranks, shared, reduced = pl.col("size"), pl.col("share_bytes"), pl.col("reduce_bytes")
    plain = pl.col("bytes") - shared - reduced - pl.col("message_bytes")
    measured = (pl.col("known") == 1) & (pl.col("bytes") >= 0) & (pl.col("transfer") > 0)

    def speed(moved: pl.Expr) -> pl.Expr:
        return pl.when(measured).then((moved * 1000 / pl.col("transfer")).round()).otherwise(ABSENT).cast(pl.Int64)

    kernels = kernels.with_columns(
        algorithm_bandwidth=speed(plain + reduced + shared * ranks),
        bus_bandwidth=speed(plain + reduced * 2 * (ranks - 1) / ranks + shared * (ranks - 1)))
    operation = pl.when(pl.col("operation") > 0).then("operation").when(pl.col("by_name") > 0).then("by_name").otherwise(GROUP)
    kernels = kernels.with_columns(operation=operation)
    fields = ("operation", "collective", "late", "wait", "transfer", "algorithm_bandwidth", "bus_bandwidth")
    return [Rows(LAYOUT, kernels["time_begin"].to_numpy(), kernels["time_end"].to_numpy(), kernels["object_kernel"].to_numpy(),
                 {name: kernels[name].cast(pl.Int64).to_numpy() for name in fields})]


def observe(facts: Mapping[str, pl.DataFrame]) -> Observed:
    """The kernels of collectives: by communicator and, where the trace numbers them, function; without communicators by their order."""
    everything = sane(facts["nccl_kernels"].filter((pl.col("time_begin") != NULL) & (pl.col("time_end") != NULL) & (pl.col("task") >= 0)))
    kernels = everything.filter((pl.col("communicator") != 0) & (pl.col("fused") > pl.col("messages")))
    if not kernels.height:
        return Observed(_calls(_observed_by_order(everything, facts["nccl_communicators"]), "host"))
    # Several operations in one kernel, some with a root, bind in a way that their sum does not tell.
    plain = (pl.col("operation") != GROUP) | (_waits() == Role.ALL)
    kernels = kernels.filter(plain & ((_waits() == Role.ALL) | (pl.col("rank") >= 0)))
    numbered = (pl.col("sequence") >= 0).all().over("communicator")
    kernels = kernels.with_columns(number=pl.when(numbered).then("sequence").otherwise(-1),
                                   function=pl.when(numbered).then("first_operation").otherwise(0),
                                   member=pl.col("task") * DEVICES + pl.col("device"))
    kernels = kernels.with_columns(group=pl.struct("communicator", "function").rank("dense").cast(pl.Int64))
    return Observed(_calls(kernels, "host"))


def _observed_by_order(everything: pl.DataFrame, communicators: pl.DataFrame) -> pl.DataFrame:
    """Kernels in which all wait for all by their name alone. Whether their order is right shows in when they ended."""
    rest = everything.filter((pl.col("communicator") == 0) & (pl.col("in_graph") == 0))
    kernels = _ordered(rest, everything, communicators)[0].filter(pl.col("by_name").is_in(ALL_WAIT))
    return kernels.with_columns(
        number=pl.lit(-1, pl.Int64), group="row", first_operation="by_name", operation="by_name",
        member=pl.col("task") * DEVICES + pl.col("device"))


def _waits() -> pl.Expr:
    """Who waits for whom (clock.observations.Role)."""
    first = pl.col("first_operation")
    return pl.when(first.is_in(WAIT_FOR_ROOT)).then(Role.FROM_ROOT).when(first.is_in(ROOT_WAITS)).then(Role.TO_ROOT).otherwise(Role.ALL)


def _calls(kernels: pl.DataFrame, clock: str) -> Calls:
    """The kernels as calls; they have columns group, member, number, and `clock` is the one of their clocks."""
    kernels = kernels.with_columns(waits=_waits().cast(pl.Int64),
                                   signature=pl.struct("operation", "fused", "bytes").rank("dense").cast(pl.Int64))
    column = {name: kernels[name].to_numpy() for name in (
        "group", "member", clock, "number", "signature", "waits", "root", "rank", "ranks", "time_begin", "time_end")}
    return Calls(
        np.full(kernels.height, SOURCE), column["group"], column["member"], column[clock], column["number"], column["signature"],
        column["waits"], (column["root"] == column["rank"]) & (column["root"] >= 0), np.maximum(column["ranks"], 0),
        column["time_begin"], column["time_end"])


RELATIONS = (Relation("nccl_collectives", "NCCL collectives across ranks", NCCL, ("nccl_kernels", "nccl_communicators"), (LAYOUT,),
                      relate, observe),)
