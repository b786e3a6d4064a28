"""NCCL sends with their receives, as lines between the kernels of two ranks.

The n-th send of a rank to another on a communicator belongs to the n-th receive there from it, if both have equally many and all
their kernels overlap. Otherwise (captures that begin or end at different calls, missing rows) the kernels' ends tell which belong
together, for a kernel that sends and the one that receives end nearly together. Where they do not (small messages wait in a buffer),
the order stands if both have equally many and none is received before it is sent.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from nsys2prv.clock.observations import NCCL as SOURCE
from nsys2prv.clock.observations import Calls, Messages, Role
from nsys2prv.clock.sequences import recognised
from nsys2prv.columns import ABSENT
from nsys2prv.events.kind import Lines
from nsys2prv.naming.nccl import SEND
from nsys2prv.relations.kind import NCCL, Observed, Related, Relation
from nsys2prv.relations.nccl_kernels import sane
from nsys2prv.report.source import NULL

FACTS = "nccl_messages"
#: Findings that say that ends do not tell.
TELL_NOTHING = ("few", "ambiguous", "unrelated")
_STREAM = ["communicator", "source", "target"]


def relate(facts: Mapping[str, pl.DataFrame]) -> Related:
    """Lines from sends to receives."""
    pairs, alone = _pairs(facts[FACTS])
    size = pairs["bytes"].to_numpy()
    received = pairs["time_end_there"].to_numpy()
    lines = Lines("nccl_message", pairs["time_begin"].to_numpy(), pairs["object_kernel"].to_numpy(), received,
                  pairs["object_kernel_there"].to_numpy(), received, np.maximum(size, 0))
    left = f"; {alone:,} sends and receives without the other side, left out" if alone else ""
    return Related(lines=[lines], notes=[f"NCCL sends matched with their receives: {pairs.height:,}{left}"])


def observe(facts: Mapping[str, pl.DataFrame]) -> Observed:
    """Messages between hosts."""
    pairs = _pairs(facts[FACTS])[0].filter(pl.col("host") != pl.col("host_there"))
    sender, sent, receiver, received = (pairs[name].to_numpy() for name in ("host", "time_begin", "host_there", "time_end_there"))
    return Observed(messages=Messages(np.full(pairs.height, SOURCE), sender, sent, receiver, received))


def _pairs(messages: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Sends with their receives (`..._there`), and how many sends and receives are of no pair."""
    two = (pl.col("ranks") == 2) & pl.col("peer").is_between(0, 1)
    rank = pl.when(pl.col("rank") >= 0).then("rank").when(two).then(1 - pl.col("peer")).otherwise(ABSENT)
    sending = pl.col("operation") == SEND
    messages = sane(messages).with_columns(rank=rank).filter(
        (pl.col("rank") >= 0) & (pl.col("peer") >= 0) & (pl.col("communicator") != 0) & (pl.col("rank") != pl.col("peer"))
        & (pl.col("time_begin") != NULL) & (pl.col("time_end") != NULL))
    messages = messages.with_columns(sends=sending, source=pl.when(sending).then("rank").otherwise("peer"),
                                     target=pl.when(sending).then("peer").otherwise("rank"))
    messages = messages.sort("task", "communicator", "time_call", "place").with_columns(
        ordinal=pl.int_range(pl.len()).over(*_STREAM, "sends"))
    orders = messages.join(_orders(messages), on=_STREAM, how="left", maintain_order="left")
    doubtful = orders.filter(~pl.col("together").fill_null(False))
    if doubtful.height:
        messages = pl.concat([orders.filter("together"), _by_ends(doubtful)])
    pairs = _joined(messages.filter(pl.col("ordinal") >= 0))
    return pairs, orders.height - 2 * pairs.height


def _joined(messages: pl.DataFrame) -> pl.DataFrame:
    sent, received = messages.filter("sends"), messages.filter(~pl.col("sends"))
    pairs = sent.join(received, on=[*_STREAM, "ordinal"], how="inner", suffix="_there", maintain_order="left")
    return pairs.filter(pl.col("bytes") == pl.col("bytes_there"))


def _orders(messages: pl.DataFrame) -> pl.DataFrame:
    """Of each stream, whether its orders may be right (`possible`: equally many sends and receives, of equal sizes, none received
    before it is sent), and whether they are certainly so (`together`: all their kernels overlap)."""
    counts = messages.group_by(_STREAM).agg(sent=pl.col("sends").sum(), received=(~pl.col("sends")).sum())
    causal = pl.col("time_end_there") >= pl.col("time_begin")
    overlap = causal & (pl.col("time_end") >= pl.col("time_begin_there"))
    met = _joined(messages).group_by(_STREAM).agg(pairs=pl.len(), causal=causal.all(), overlap=overlap.all())
    even = (pl.col("sent") == pl.col("received")) & (pl.col("pairs") == pl.col("sent"))
    return counts.join(met, on=_STREAM).select(*_STREAM, possible=even & pl.col("causal"), together=even & pl.col("overlap"))


def _by_ends(messages: pl.DataFrame) -> pl.DataFrame:
    """The messages with the ordinals that their kernels' ends tell, -1 where they tell none and the order is not possible."""
    messages = messages.with_columns(group=pl.struct(_STREAM).rank("dense").cast(pl.Int64))
    member = messages["sends"].cast(pl.Int64).to_numpy()
    count = messages.height
    ordinals, findings = recognised(Calls(
        np.full(count, SOURCE), messages["group"].to_numpy(), member, member, np.full(count, -1),
        np.maximum(messages["bytes"].to_numpy(), 0), np.full(count, int(Role.ALL)), np.zeros(count, bool), np.full(count, 2),
        messages["time_begin"].to_numpy(), messages["time_end"].to_numpy()))
    unknown = pl.col("group").is_in(sorted({finding.group for finding in findings if finding.kind in TELL_NOTHING}))
    order = pl.when(pl.col("possible").fill_null(False)).then("ordinal").otherwise(-1)
    return messages.with_columns(ordinal=pl.when(unknown).then(order).otherwise(pl.Series("found", ordinals))).drop("group")


RELATIONS = (Relation("nccl_messages", "NCCL messages", NCCL, (FACTS,), relate=relate, observe=observe),)
