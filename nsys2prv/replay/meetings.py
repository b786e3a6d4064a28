"""Find meetings of several ranks: collectives and messages of NCCL and MPI. No member goes on
before all have come; the time after that is the transfer.

Which calls belong together :mod:`nsys2prv.match.meetings` lists.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.columns import join_first
from nsys2prv.match import MPI_RULES
from nsys2prv.match.meetings import (
    MESSAGES,
    OTHERS,
    ROOT,
    list_collectives,
    list_messages,
    match_by_ends,
    match_graphs,
)
from nsys2prv.replay.graph import AS_RECORDED, LONG
from nsys2prv.replay.thresholds import SLACK
from nsys2prv.replay.unit_graph import classify_size
from nsys2prv.table.event_reader import EventReader

#: What a call that meets others lasts by itself (ns).
MEETING_CALL = 1_000
NCCL_MESSAGE, MPI_MESSAGE = MESSAGES
#: Columns that identify a kernel or call, and columns of members.
_KEY = ("thread", "begin")
_MEMBERS = ("meeting", "node_begin", "node_end", "row", "size", "eager", "holds", "later", "lasts")
#: What holds of members that wait for all others, and others for them.
_BLOCKING = {"eager": pl.lit(False), "holds": pl.lit(True), "later": pl.lit(False)}


class Meetings(Struct, frozen=True):
    """Members of meetings, ordered by meeting."""

    #: Number of the meeting of each member, ascending from 0.
    meeting: np.ndarray
    #: Nodes of its begin and end: of a message, end of the call that completes it.
    begin: np.ndarray
    end: np.ndarray
    #: Row of the trace of each member.
    row: np.ndarray
    #: Class of what is transferred: equal ones may be compared.
    size: np.ndarray
    #: Whether a member goes on without waiting for the others.
    eager: np.ndarray
    #: Whether the others wait for a member.
    holds: np.ndarray
    #: Whether a member may end later than the transfer, because it does something else meanwhile.
    later: np.ndarray
    #: How long its transfer lasts (ns), AS_RECORDED from when all have come to its end.
    lasts: np.ndarray


def find_nccl_meetings(
    reader: EventReader, kernels: pl.DataFrame, graphs: pl.DataFrame
) -> tuple[Meetings, pl.DataFrame]:
    """Return the meetings of NCCL kernels, and those inside graphs that were traced as a whole:
    `node_begin` and `meeting` of each. kernels, graphs: `thread`, `begin`, `end`, `node_begin`,
    `node_end`, `name`, `bytes` of each.
    """
    size = pl.col("name") * 1000 + pl.Series("size", classify_size(kernels["bytes"].to_numpy()))
    kernels = kernels.with_columns(size=size)
    table = list_collectives(reader).filter(~pl.col("rule").is_in(MPI_RULES))
    # Of hosts whose clocks cannot be compared nothing tells when all had come.
    known = table.filter((pl.col("late") >= 0).all().over("collective"))
    members = join_first(known.select("thread", "begin", meeting="collective"), kernels, _KEY)
    messages = _join_nccl_messages(list_messages(reader), kernels)
    left = kernels.join(table, on=_KEY, how="anti").join(messages, on="node_begin", how="anti")
    found = match_by_ends(reader, left, (members, messages))
    frames = (members, messages, *found)
    inside = match_graphs(reader, graphs, frames)
    return _group_members([frame.with_columns(**_BLOCKING) for frame in frames]), inside


def _join_nccl_messages(messages: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the members of messages; kernels that exchange several meet once."""
    places = kernels.with_row_index("place").select("place", "thread", "begin", "end")
    sides = messages.filter(pl.col("kind") == NCCL_MESSAGE)
    sides = join_first(sides, places.rename({"place": "first"}), ("sender", "sent"), _KEY)
    sides = sides.select("thread", "received", "first", "bytes")
    sides = join_first(sides, places, ("thread", "received"), ("thread", "end"))
    ways = sides.group_by("first", "place", maintain_order=True).agg(pl.col("bytes").sum())
    pairs = ways.group_by(
        a=pl.min_horizontal("first", "place"),
        b=pl.max_horizontal("first", "place"),
        maintain_order=True,
    ).agg(pl.col("bytes").max())
    members = pairs.with_row_index("meeting").unpivot(
        ["a", "b"], index=["meeting", "bytes"], value_name="place"
    )
    kernels = kernels.with_row_index("place").drop("bytes", "size")
    members = members.join(kernels, on="place", maintain_order="left")
    size = pl.Series("size", -1 - classify_size(members["bytes"].to_numpy()))
    members = members.with_columns(size - pl.col("name") * 1000, pl.col("meeting").cast(pl.Int64))
    return _divide_transfers(members)


def _divide_transfers(members: pl.DataFrame) -> pl.DataFrame:
    """Return members of messages with how long each transfer `lasts`. A kernel ends with the last of
    its transfers, which may have begun late because a partner came late: its partners of that one do
    not end before it. All transfers of a kernel have the pace of that one, where none contradicts.
    """
    begun, until = pl.col("begin").max().over("meeting"), pl.col("end").min().over("meeting")
    known = (pl.col("bytes") > 0).all().over("node_begin")
    members = members.with_columns(
        most=(until - begun).clip(0),
        amount=pl.when(known).then("bytes").otherwise(1),
        may_be_last=pl.col("end") - until < SLACK,
    )
    members = members.with_columns(
        pace=(pl.col("end") - begun).clip(0) / pl.col("amount"),
        may_be_last=pl.col("may_be_last") | ~pl.col("may_be_last").any().over("node_begin"),
    )
    pace = pl.col("pace").filter("may_be_last").min().over("node_begin")
    lasts = (pace * pl.col("amount")).round().cast(pl.Int64)
    most = pl.when("may_be_last").then(lasts).otherwise("most")
    return members.with_columns(lasts=pl.min_horizontal(lasts, most, LONG - 1))


def find_mpi_meetings(reader: EventReader, calls: pl.DataFrame) -> Meetings:
    """Return the meetings of calls of MPI. calls: `thread`, `begin`, `end`, `node_begin`, `node_end`,
    `name` of each outermost one.
    """
    calls = calls.select(*_KEY, "end", "node_begin", "node_end", "name")
    table = list_collectives(reader).filter(pl.col("rule").is_in(MPI_RULES))
    members = join_first(table, calls, _KEY)
    # A call that returns at once comes, and ends, with the one that completes it.
    ends = calls.select("thread", until="end", ended="node_end")
    comes = calls.select("thread", comes="begin", came="node_begin")
    members = _join_left(_join_left(members, ends, "until"), comes, "comes")
    size = pl.Series("size", classify_size(members["bytes"].to_numpy()))
    members = members.with_columns(
        size + pl.col("name") * 1000,
        node_end=pl.coalesce("ended", "node_end"),
        node_begin=pl.coalesce("came", "node_begin"),
        meeting="collective",
    )
    collectives = [_choose_awaited(members, awaits) for awaits in (ROOT | OTHERS, ROOT, OTHERS)]
    return _group_members([*collectives, *_join_mpi_messages(list_messages(reader), calls)])


def _join_left(members: pl.DataFrame, calls: pl.DataFrame, on: str) -> pl.DataFrame:
    """Return members with the last of the calls that begins, or ends, at a time of theirs."""
    calls = calls.unique(("thread", on), keep="last", maintain_order=True)
    return members.join(calls, on=("thread", on), how="left", maintain_order="left")


def _choose_awaited(members: pl.DataFrame, awaits: int) -> pl.DataFrame:
    """Return the members of meetings of those who wait for the root, the others, or both, and of these."""
    own = pl.col("awaits") == awaits
    is_awaited = pl.when("is_root").then(awaits & ROOT).otherwise(awaits & OTHERS) != 0
    some = members.filter(own.any().over("collective") & (own | is_awaited))
    return some.with_columns(eager=~own, holds=is_awaited)


def _join_mpi_messages(messages: pl.DataFrame, calls: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield the members of messages: the call that completes the receive waits for the send, and for
    the call of the sender without which no data moves; that which completes the send waits for the
    call of the receiver that lets it go on.
    """
    messages = messages.filter(pl.col("kind") == MPI_MESSAGE).rename({"message": "meeting"})
    # Nobody's time counts twice.
    is_one = pl.col("drives").is_null() & (pl.col("lets") == pl.col("takes"))
    one, two = messages.filter(is_one), messages.filter(is_one.not_().fill_null(True))
    yield _list_sides(one, calls, "sent", "received", "released")
    yield _list_sides(two, calls, "sent", "received", "drives")
    yield _list_sides(two.filter(pl.col("lets").is_not_null()), calls, "sent", "lets", "released")


#: Sides of messages: columns that identify a call, what of it (:data:`_KEY` or its end), and whether it
#: waits for the others, and they for it.
_SIDES = {
    "sent": ("sender", "begin", False, True),
    "received": ("thread", "end", True, True),
    "released": ("sender", "end", True, False),
    "lets": ("thread", "begin", False, True),
    "drives": ("sender", "begin", False, True),
}


def _list_sides(messages: pl.DataFrame, calls: pl.DataFrame, *names: str) -> pl.DataFrame:
    """Return sides of messages as members."""
    frames = []
    for name in names:
        row, of, waits, holds = _SIDES[name]
        members = join_first(messages, calls, (row, name), ("thread", of), "_call").select(
            *("meeting", "bytes", "name", "node_begin", "node_end"),
            thread=row,
            eager=not waits,
            holds=holds,
        )
        frames.append(members)
    members = pl.concat(frames)
    size = pl.Series("size", -1 - classify_size(members["bytes"].to_numpy()))
    size -= members["name"] * 1000
    return members.with_columns(size, pl.col("meeting").cast(pl.Int64), later=True)


def find_handoffs(handoffs: pl.DataFrame, calls: pl.DataFrame) -> Meetings:
    """Return hand-offs between processes as meetings: those that wait go on once the one that does not lets
    them. calls: as for :func:`find_mpi_meetings`, of both sides.
    """
    table = handoffs.with_columns(meeting="handoff")
    ends = table.select("meeting", thread="releaser", begin="released").unique(maintain_order=True)
    sides = {False: table.select("meeting", *_KEY), True: ends}
    frames = [
        join_first(side, calls, _KEY).with_columns(eager=pl.lit(holds), holds=pl.lit(holds))
        for holds, side in sides.items()
    ]
    return _group_members([pl.concat(frames).with_columns(size=pl.lit(0), later=pl.lit(False))])


def _group_members(frames: Sequence[pl.DataFrame]) -> Meetings:
    """Return members of meetings of at least two, numbered through."""
    parts, before = [], 0
    for frame in frames:
        frame = frame.filter(pl.len().over("meeting") > 1)
        number = pl.col("meeting").rank("dense").cast(pl.Int64) - 1 + before
        if "lasts" not in frame.columns:
            frame = frame.with_columns(lasts=pl.lit(AS_RECORDED, pl.Int64))
        frame = frame.rename({"thread": "row"}).select(number, *_MEMBERS[1:])
        before += frame["meeting"].n_unique()
        parts.append(frame)
    if not parts:
        none = np.zeros(0, np.int64)
        return Meetings(*[none] * 5, *[none.astype(bool)] * 3, none)
    members = pl.concat(parts).sort("meeting", maintain_order=True)
    return Meetings(*(members[name].to_numpy() for name in _MEMBERS))
