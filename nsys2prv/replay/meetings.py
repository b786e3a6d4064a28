"""Find meetings of several ranks: NCCL and MPI collectives and messages. No member continues before
all have arrived; the time after that is the transfer.

:mod:`nsys2prv.match.meetings` lists the calls that belong together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.columns import join_first
from nsys2prv._util.intervals import Outermost
from nsys2prv.match import MPI_RULES
from nsys2prv.match.meetings import (
    MESSAGES,
    ON_KNOWN_CLOCKS,
    OTHERS,
    ROOT,
    list_collectives,
    list_messages,
    match_by_ends,
    match_graphs,
)
from nsys2prv.replay.graph import AS_RECORDED, LONG
from nsys2prv.replay.thresholds import FEWEST_CASES, QUICK_LINK, SAME_LINK, SLACK
from nsys2prv.replay.unit_graph import classify_size
from nsys2prv.table.event_reader import EventReader

#: Own duration of a call with a meeting (ns).
MEETING_CALL = 1_000
NCCL_MESSAGE, MPI_MESSAGE = MESSAGES
#: Columns that identify a kernel or call, further ones of calls, and columns of members.
_KEY = ("thread", "begin")
_OF_CALLS = ("node_begin", "node_end", "name")
_MEMBERS = (
    *("meeting", "node_begin", "node_end", "thread", "size", "eager", "holds", "later", "lasts"),
    "needs",
)
#: What holds of members that do not say otherwise: they wait for all others, and others for them.
_USUAL = {"eager": False, "holds": True, "later": False, "lasts": AS_RECORDED, "needs": 0}


class Meetings(Struct, frozen=True):
    """Calls and kernels (members) that wait for each other, sorted by the number of their meeting,
    as columns.
    """

    #: Number of the meeting of each member, ascending from 0.
    meeting: np.ndarray
    #: Nodes of its begin and end: of a message, end of the call that completes it.
    begin: np.ndarray
    end: np.ndarray
    #: Row of the trace of each member.
    row: np.ndarray
    #: Class of the transfer: equal classes may be compared.
    size: np.ndarray
    #: Whether a member goes on without waiting for the others.
    eager: np.ndarray
    #: Whether the others wait for a member.
    holds: np.ndarray
    #: Whether a member may end later than the transfer, because it does something else meanwhile.
    later: np.ndarray
    #: Duration of its transfer (ns); AS_RECORDED from the arrival of the last member to its end.
    lasts: np.ndarray
    #: Time from a member's arrival until the end of the meeting for waiting members (ns): the time that a
    #: shared link needs for the data to be sent then.
    needs: np.ndarray


def find_nccl_meetings(
    reader: EventReader, kernels: pl.DataFrame, graphs: pl.DataFrame
) -> tuple[Meetings, pl.DataFrame]:
    """Find the NCCL kernels of different ranks that wait for each other. Return them, and the
    meetings inside graphs traced as a whole, as a frame of `node_begin` (of the graph) and
    `meeting`.

    kernels, graphs: frames of `thread`, `begin`, `end`, `node_begin`, `node_end`, `name`, `bytes`.
    """
    size = pl.col("name") * 1000 + pl.Series("size", classify_size(kernels["bytes"].to_numpy()))
    kernels = kernels.with_columns(size=size)
    table = list_collectives(reader).filter(~pl.col("rule").is_in(MPI_RULES))
    known = table.filter(ON_KNOWN_CLOCKS).select(*_KEY, meeting="collective")
    members = join_first(known, kernels, _KEY)
    messages = _join_nccl_messages(list_messages(reader), kernels)
    nodes = reader.rows.threads.select("thread", "node")
    messages, shared = _share_links(messages.join(nodes, on="thread", maintain_order="left"))
    left = kernels.join(table, on=_KEY, how="anti").join(messages, on="node_begin", how="anti")
    inside = match_graphs(reader, graphs)
    frames = [members, messages, *match_by_ends(reader, left)]
    return _group_members([*frames, *([shared] if shared.height else [])]), inside


def _join_nccl_messages(messages: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the members of messages. Kernels that exchange several messages meet once."""
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
    """Add the duration of each transfer (`lasts`) to members of messages.

    A kernel ends with its last transfer, which may have begun late because of a late partner; the
    partners of that transfer do not end before it. All transfers of a kernel have the same speed,
    unless that is contradicted.
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
    # Where all end at once, their sizes tell which transfer did: it takes no longer by bytes than usual.
    link = [getattr(pl.col("thread"), side)().over("meeting") for side in ("min", "max")]
    quick = (pl.col("most") / pl.col("amount")).quantile(QUICK_LINK, "lower").over(link)
    several = (pl.len() > 1).over("node_begin") & (pl.len() >= FEWEST_CASES).over(link)
    quick = pl.when(several).then((quick * pl.col("amount")).round().cast(pl.Int64))
    return members.with_columns(lasts=pl.min_horizontal(lasts, most, quick, LONG - 1))


def _share_links(members: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return two frames: the members of messages, and the meetings at shared links.

    If a link explains the end of a kernel, the duration of its messages is limited to what their
    bytes need. A shared link leads from a host to others and is used by several messages.
    Everything exchanged at once has arrived when the last of it has passed the link at the highest
    observed speed. members: from :func:`_divide_transfers`, with the `node`.
    """
    members = members.with_columns(
        begun=pl.col("begin").max().over("meeting"),
        between=(pl.col("node").n_unique() > 1).over("meeting"),
    )
    if not members["between"].any():
        return members, pl.DataFrame()
    passing = members.with_columns(round=_find_rounds(members)).filter("between")
    link, amount = ("round", "node"), pl.col("bytes").clip(0)
    passing = passing.filter((pl.len() > 1).over(link)).sort("begun", descending=True)
    left = amount.cum_sum().over(link)
    pace = (pl.col("end").max().over(link) - pl.col("begun") - SLACK).clip(0) / left
    passing = passing.with_columns(left=left, pace=pace.filter(left > 0).min().over(link))
    # Whatever else is exchanged at the time, it is no slower than this.
    usual = pl.col("pace").filter(pl.struct(link).is_first_distinct())
    passing = passing.with_columns(pace=usual.quantile(QUICK_LINK).over("node"))
    needs = SLACK + (pl.col("left") * pl.col("pace")).round().cast(pl.Int64)
    passing = passing.with_columns(needs=needs)
    over = (pl.col("begun") + pl.col("needs")).max().over(link)
    passing = passing.with_columns(first=pl.col("begun").min().over(link), over=over)
    near = SLACK + SAME_LINK * (pl.col("over") - pl.col("first"))
    explained = passing.filter((pl.col("end") - pl.col("over")).abs() <= near)
    explained = explained["node_begin"].unique().implode()
    members = members.join(passing.select("node", "pace").unique("node"), on="node", how="left")
    # Nor is what stays within a host, where the end of the kernel does not tell how long that takes.
    is_passing = pl.col("between").any().over("node_begin")
    unknown = pl.when("between").then(pl.col("node_begin").is_in(explained)).otherwise(is_passing)
    alone = SLACK + (pl.col("pace") * pl.col("bytes").clip(0)).round().cast(pl.Int64)
    least = pl.min_horizontal("lasts", pl.when(unknown).then(alone))
    members = members.with_columns(lasts=least)
    # All kernels of a message send it; those of the link's host wait for it.
    sides = passing.select("meeting", "needs", link=pl.struct(link).rank("dense"), to="node")
    sides = sides.join(
        members.select("meeting", "node_begin", "node_end", "thread", "node"), on="meeting"
    )
    waits = (pl.col("to") == pl.col("node")) & pl.col("node_begin").is_in(explained)
    sides = sides.with_columns(waits=waits)
    shared = sides.group_by("link", "node_begin", maintain_order=True).agg(
        pl.col("node_end", "thread").first(), pl.col("needs").max(), eager=~pl.col("waits").any()
    )
    shared = shared.filter((~pl.col("eager")).any().over("link"))
    return members, shared.select(
        "node_begin", "node_end", "thread", "needs", "eager", meeting=pl.col("link").cast(pl.Int64),
        size=0, lasts=pl.lit(0, pl.Int64),
    )  # fmt: skip


def _find_rounds(members: pl.DataFrame) -> pl.Series:
    """Return the round of each member of messages. Kernels that exchange messages, directly or
    through others, are in one round.
    """
    kernel = members["node_begin"].to_numpy()
    meeting = members["meeting"].to_numpy()
    of_kernel, number = np.unique(kernel, return_inverse=True)
    leader = np.arange(len(of_kernel))
    while True:
        least = np.full(int(meeting.max(initial=-1)) + 1, len(leader))
        np.minimum.at(least, meeting, leader[number])
        found = leader.copy()
        np.minimum.at(found, number, least[meeting])
        found = found[found]
        if (found == leader).all():
            break
        leader = found
    return pl.Series(leader[number])


def find_mpi_meetings(reader: EventReader, calls: pl.DataFrame) -> Meetings:
    """Find the MPI calls of different ranks that wait for each other. calls: the outermost calls,
    as `thread`, `begin`, `end`, `node_begin`, `node_end`, `name`.
    """
    table = list_collectives(reader).filter(pl.col("rule").is_in(MPI_RULES))
    messages = list_messages(reader).filter(pl.col("kind") == MPI_MESSAGE)
    if not calls.height:
        return _group_members([])
    calls = calls.select("begin", "end", pl.col("thread", *_OF_CALLS).cast(pl.Int32))
    calls = calls.sort("thread", "begin", maintain_order=True)
    index = Outermost(*(calls[name].to_numpy() for name in ("thread", "begin", "end")))
    # A call that returns at once ends with the one that completes it.
    own, since, ends = (
        index.find(table["thread"].to_numpy(), table[name].to_numpy(), name == "until")
        for name in ("begin", "since", "until")
    )
    since, ends = (np.where(other >= 0, other, own) for other in (since, ends))
    node_begin, node_end, name = (calls[column].to_numpy() for column in _OF_CALLS)
    flags = ("awaits", "is_root", "later", "inside")
    members = table.select("thread", *flags, meeting="collective").with_columns(
        node_begin=node_begin[own],
        node_since=node_begin[since],
        node_end=node_end[ends],
        size=classify_size(table["bytes"].to_numpy()) + name[own] * 1000,
    )
    members = members.filter(pl.Series(own >= 0))
    collectives = [
        _choose_awaited(members, awaits, inside)
        for awaits in (ROOT | OTHERS, ROOT, OTHERS)
        for inside in (False, True)
    ]
    return _group_members([*collectives, *_find_messages(messages, calls, index)])


def _choose_awaited(members: pl.DataFrame, awaits: int, inside: bool) -> pl.DataFrame:
    """Return the members that wait in a given way, and the members for which they wait.

    awaits: they wait for the root, the others, or both. inside: they wait until the others are
    inside the calls that complete the meeting; otherwise only until the others have called.
    """
    own = (pl.col("awaits") == awaits) & (pl.col("inside") == inside)
    is_awaited = pl.when("is_root").then(awaits & ROOT).otherwise(awaits & OTHERS) != 0
    some = members.filter(own.any().over("meeting") & (own | is_awaited))
    some = some.with_columns(eager=~own, holds=is_awaited)
    return some.with_columns(node_begin="node_since") if inside else some


#: Sides of messages: the column of the row, that of the time at which its call begins, or ends, whether it
#: waits for the others, and they for it.
_SIDES = {
    "sent": ("sender", False, False, True),
    "received": ("thread", True, True, True),
    "released": ("sender", True, True, False),
    # A test that ends a loop begins when the message has come.
    "polled": ("thread", False, True, False),
    "lets": ("thread", False, False, True),
    "drives": ("sender", False, False, True),
}


def _find_messages(
    messages: pl.DataFrame, calls: pl.DataFrame, index: Outermost
) -> list[pl.DataFrame]:
    """Return the meetings of messages.

    The call that completes the receive waits for the send, and for the sender's call without which
    no data moves. The call that completes the send waits for the receiver's call that releases it.
    """
    rows = {}
    for name, (row, at_end, _, _) in _SIDES.items():
        times = messages["takes" if name == "polled" else name].fill_null(-1)
        found = index.find(messages[row].to_numpy(), times.to_numpy(), at_end)
        rows[name] = found.astype(np.int32)
    waits, polls = messages["lets"].is_not_null().to_numpy(), messages["polls"].to_numpy()
    # No time counts twice.
    is_one = messages["drives"].is_null() & (messages["lets"] == messages["takes"])
    is_one = is_one.fill_null(False).to_numpy() & ~polls
    size = classify_size(messages["bytes"].to_numpy()).astype(np.int32)
    return [
        _list_sides(calls, np.flatnonzero(chosen), rows, size, sides)
        for chosen, sides in (
            (is_one, ("sent", "received", "released")),
            (~is_one & ~polls, ("sent", "received", "drives")),
            (polls, ("sent", "polled", "drives")),
            (~is_one & waits, ("sent", "lets", "released")),
        )
    ]


def _list_sides(
    calls: pl.DataFrame,
    chosen: np.ndarray,
    rows: dict[str, np.ndarray],
    size: np.ndarray,
    sides: tuple[str, ...],
) -> pl.DataFrame:
    """Return the members of meetings for these sides of the chosen messages, if they have both of
    the first two sides. rows: side -> call of each message. size: size classes.
    """
    found = np.stack([rows[side][chosen] for side in sides], axis=1)
    is_there = (found[:, :2] >= 0).all(axis=1)
    found, chosen = found[is_there], chosen[is_there]
    meeting, place = np.nonzero(found >= 0)
    polled = sides.index("polled") if "polled" in sides else -1
    waits, holds = (np.array([_SIDES[side][of] for side in sides]) for of in (2, 3))
    ends = pl.when(pl.Series(place == polled)).then("node_begin").otherwise("node_end")
    return calls[found[meeting, place]].with_columns(
        meeting=meeting,
        node_end=ends,
        size=-1 - pl.Series(size[chosen][meeting]) - pl.col("name") * 1000,
        eager=~waits[place],
        holds=holds[place],
        later=True,
    )


def find_handoffs(handoffs: pl.DataFrame, calls: pl.DataFrame) -> Meetings:
    """Return hand-offs between processes as meetings: waiting threads continue when the other
    process releases them. handoffs: with the columns HANDOFFS. calls: of both sides, as for
    :func:`find_mpi_meetings`.
    """
    table = handoffs.with_columns(meeting="handoff")
    ends = table.select("meeting", thread="releaser", begin="released").unique(maintain_order=True)
    sides = {False: table.select("meeting", *_KEY), True: ends}
    frames = [
        join_first(side, calls, _KEY).with_columns(eager=pl.lit(holds), holds=pl.lit(holds))
        for holds, side in sides.items()
    ]
    return _group_members([pl.concat(frames).with_columns(size=pl.lit(0))])


def _group_members(frames: Sequence[pl.DataFrame]) -> Meetings:
    """Return the members of meetings with at least two members, with consecutive meeting numbers."""
    parts, before = [], 0
    for frame in frames or [pl.DataFrame(schema=dict.fromkeys(_MEMBERS[:5], pl.Int64))]:
        frame = frame.filter(pl.len().over("meeting") > 1)
        number = pl.col("meeting").rank("dense").cast(pl.Int64) - 1 + before
        usual = {name: pl.lit(_USUAL[name]) for name in _USUAL if name not in frame.columns}
        parts.append(frame.with_columns(number, **usual).select(_MEMBERS))
        before += frame["meeting"].n_unique()
    members = pl.concat(parts, how="vertical_relaxed").sort("meeting", maintain_order=True)
    return Meetings(*(column.to_numpy() for column in members.get_columns()))
