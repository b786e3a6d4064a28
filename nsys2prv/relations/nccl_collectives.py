"""NCCL collectives on all their ranks: who came late, who waited, and how fast the transfer was; sends with their receives.

How the kernels of one collective are found, the first way that the reports allow:

1. by the communicator's hash and the sequence number of the advanced NCCL trace, counted per function;
2. by the communicator's hash (in payloads since NCCL 2.25.1) and the order in which a rank launched its operations;
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

from nsys2prv.columns import ABSENT
from nsys2prv.events.kind import Lines, Rows
from nsys2prv.naming.nccl import GROUP, SEND
from nsys2prv.relations.kind import Related, Relation
from nsys2prv.report.sqlite import NULL

LAYOUT = "nccl_collective"
SEND_RECEIVE = 15
#: Share of the collectives matched by order whose kernels must overlap on all ranks.
ENOUGH_OVERLAP = 0.9
MEMBER = ("task", "device")


@dataclass
class _Matched:
    """Kernels of complete collectives, with `key` telling them apart and `size` their ranks; and what to say."""

    kernels: pl.DataFrame
    notes: list[str] = field(default_factory=list)


def relate(facts: Mapping[str, pl.DataFrame]) -> Related:
    kernels = _sane(facts["nccl_kernels"].filter((pl.col("time_begin") != NULL) & (pl.col("time_end") != NULL))).with_row_index("kernel")
    if kernels.select(MEMBER).n_unique() < 2:
        return Related()
    collectives = kernels.filter((pl.col("communicator") != 0) & (pl.col("fused") > pl.col("messages")))
    rest = kernels.filter((pl.col("communicator") == 0) & (pl.col("in_graph") == 0))
    parts, notes, lines = [], [], []
    if collectives.height:
        matched = _by_communicator(collectives)
        parts, notes = [matched.kernels], matched.notes
    elif rest.height:
        matched = _by_order(rest, kernels, facts["nccl_communicators"])
        parts, notes = [matched.kernels], matched.notes
    notes += _unused(kernels, bool(collectives.height))
    rows = _records(pl.concat(parts, how="diagonal")) if parts else []
    notes += _apart(parts)
    messages = facts["nccl_messages"]
    if messages.height:
        line, note = _messages(_sane(messages))
        lines.append(line)
        notes.append(note)
    return Related(rows, lines, notes)


def _sane(kernels: pl.DataFrame) -> pl.DataFrame:
    """The kernels with ends after their begins, as their records in the trace have them."""
    end = pl.when(pl.col("time_end") == NULL).then("time_end").otherwise(pl.max_horizontal("time_end", pl.col("time_begin") + 1))
    return kernels.with_columns(time_end=end)


def _by_communicator(kernels: pl.DataFrame) -> _Matched:
    """By the communicator, and the sequence number where all of its kernels have one, else the order of launches."""
    own = [*MEMBER, "communicator"]
    kernels = kernels.sort(*own, "time_call", "time_begin").with_columns(
        before=(pl.col("fused") - pl.col("messages")).cum_sum().over(own) - (pl.col("fused") - pl.col("messages")),
        numbered=(pl.col("sequence") >= 0).all().over("communicator"))
    kernels = kernels.with_columns(
        function=pl.when("numbered").then("first_operation").otherwise(0),
        ordinal=pl.when("numbered").then("sequence").otherwise("before"),
        members=pl.struct(MEMBER).n_unique().over("communicator"))
    expected = pl.max_horizontal(pl.col("ranks").max().over("communicator"), "members")
    kernels = _completed(kernels.with_columns(size=expected), ["communicator", "function", "ordinal"], ["operation", "fused", "bytes"])
    kernels = kernels.with_columns(complete=pl.col("complete") & (pl.col("numbered") | _equally_many()))
    collectives = kernels.unique("key")
    notes = []
    for numbered, way in ((True, "sequence number"), (False, "order of launches")):
        of_way = collectives.filter(pl.col("numbered") == numbered)
        if of_way.height:
            whole = of_way.filter("complete").height
            notes.append(f"NCCL collectives matched across ranks by communicator and {way}: {whole:,}"
                         + _left(of_way.height - whole, "incomplete or differing between ranks, left out"))
    return _Matched(kernels.filter("complete"), notes)


def _equally_many() -> pl.Expr:
    """Whether all members of the communicator have equally many operations on it.

    Orders of launches say nothing otherwise: a capture that began later calls another collective its first.
    """
    operations = pl.col("fused") - pl.col("messages")
    mine = operations.sum().over(*MEMBER, "communicator")
    return mine.min().over("communicator") == mine.max().over("communicator")


def _completed(kernels: pl.DataFrame, key: list[str], same: list[str]) -> pl.DataFrame:
    """With `key` as a number, and whether the collective is complete: one kernel per rank, the columns `same` equal."""
    kernels = kernels.with_columns(key=pl.struct(key).rank("dense").cast(pl.Int64))
    whole = (pl.len() == pl.col("size").first()) & (pl.struct(MEMBER).n_unique() == pl.len()) & (pl.struct(same).n_unique() == 1)
    return kernels.join(kernels.group_by("key").agg(complete=whole & (pl.len() > 1)), on="key", how="left", maintain_order="left")


def _by_order(kernels: pl.DataFrame, everything: pl.DataFrame, communicators: pl.DataFrame) -> _Matched:
    """By order on each stream, streams of a GPU in the order of their ids."""
    members = everything.select(MEMBER).n_unique()
    none = _Matched(kernels.clear().with_columns(key=pl.lit(0), size=pl.lit(0)))

    def refused(why: str) -> _Matched:
        return _Matched(none.kernels, [f"NCCL collectives not matched across ranks: no payload tells the kernels' communicators and {why}"])

    if communicators.height:
        made = communicators.group_by("task").agg(pl.col("communicator").n_unique(), pl.col("ranks").max())
        if not ((made["communicator"] == 1) & (made["ranks"] == members)).all() or communicators["communicator"].n_unique() > 1:
            return refused("there are several, or one with ranks that have no report")
    kernels = kernels.sort(*MEMBER, "stream", "time_begin").with_columns(row=pl.col("stream").rank("dense").over(MEMBER))
    kernels = kernels.with_columns(ordinal=pl.int_range(pl.len()).over(*MEMBER, "row"), size=pl.lit(members))
    kernels = _completed(kernels, ["row", "ordinal"], ["by_name"])
    if not kernels["complete"].all():
        return refused("the ranks execute different sequences of kernels")
    kernels = kernels.filter(pl.col("by_name") != SEND_RECEIVE)
    spans = kernels.group_by("key").agg(together=pl.col("time_end").min() >= pl.col("time_begin").max())
    if not spans.height or spans["together"].mean() < ENOUGH_OVERLAP:
        return refused("the ranks' kernels of equal order do not overlap in time")
    sure = "the one communicator" if communicators.height else "assuming that all are of one communicator"
    return _Matched(kernels, [f"NCCL collectives matched across ranks by order on each stream, {sure}: {spans.height:,}"])


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


def _messages(messages: pl.DataFrame) -> tuple[Lines, str]:
    """Lines from sends to receives: the n-th send of a rank to another on a communicator, and the n-th receive there from it.

    Only where both have equally many: else one capture may have begun later, and the n-th is not the other's n-th.
    """
    own = ["task", "communicator"]
    two = (pl.col("ranks") == 2) & pl.col("peer").is_between(0, 1)
    rank = pl.when(pl.col("rank") >= 0).then("rank").when(two).then(1 - pl.col("peer")).otherwise(ABSENT)
    messages = messages.with_columns(rank=rank).filter(
        (pl.col("rank") >= 0) & (pl.col("peer") >= 0) & (pl.col("communicator") != 0) & (pl.col("rank") != pl.col("peer")))
    messages = messages.sort(*own, "time_call", "place").with_columns(
        ordinal=pl.int_range(pl.len()).over(*own, "operation", "peer"), many=pl.len().over(*own, "operation", "peer"))
    sent = messages.filter(pl.col("operation") == SEND)
    received = messages.filter(pl.col("operation") != SEND)
    key = ["communicator", "source", "target", "ordinal", "many"]
    pairs = sent.rename({"rank": "source", "peer": "target"}).join(
        received.rename({"rank": "target", "peer": "source"}), on=key, how="inner", suffix="_there", maintain_order="left")
    pairs = pairs.filter((pl.col("bytes") == pl.col("bytes_there")) & (pl.col("time_end_there") != NULL) & (pl.col("time_begin") != NULL))
    alone = sent.height + received.height - 2 * pairs.height
    size = pairs["bytes"].to_numpy()
    received_at = pairs["time_end_there"].to_numpy()
    return Lines("nccl_message", pairs["time_begin"].to_numpy(), pairs["object_kernel"].to_numpy(), received_at,
                 pairs["object_kernel_there"].to_numpy(), received_at, np.maximum(size, 0)), \
        f"NCCL sends matched with their receives: {pairs.height:,}" + _left(alone, "sends and receives without the other side, left out")


RELATIONS = (Relation("nccl_collectives", "NCCL collectives across ranks", ("nccl_kernels", "nccl_messages", "nccl_communicators"),
                      (LAYOUT,), relate),)
