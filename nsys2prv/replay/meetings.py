"""Meetings of several ranks: collectives and messages of NCCL and MPI. None of their members goes on
before all have come; what it takes after that is the transfer.

Who belongs together is what the relations have found (:mod:`nsys2prv.relations`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv.events.mpi import MPI_LAYOUTS
from nsys2prv.replay.events import MPI_NAMES
from nsys2prv.replay.unit_graph import classify_size
from nsys2prv.store.event_reader import EventReader

#: Collectives of MPI in which every member waits for all others.
_WAITS_FOR_ALL = re.compile(
    r"MPI_I?(Allreduce|Barrier|Allgatherv?|Alltoall[vw]?|Reduce_scatter(_block)?)$"
    r"|MPI_(Init|Init_thread|Comm_(split|dup|create)|Finalize|Win_fence)$"
)
#: Messages below this (bytes) are sent before they are received: their sender does not wait.
EAGER = 8192
#: What a call that meets others lasts by itself (ns).
MEETING_CALL = 1_000
#: Columns of members.
_MEMBERS = ("meeting", "node_begin", "node_end", "row", "size", "eager")


class Meetings(Struct, frozen=True):
    """Members of meetings, by meeting, and where these are between."""

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


def find_nccl_meetings(reader: EventReader, kernels: pl.DataFrame) -> Meetings:
    """Return the meetings of NCCL kernels. kernels: `thread`, `begin`, `end`, `node_begin`,
    `node_end`, `name`, `bytes` of each.
    """
    frames = []
    size = pl.col("name") * 1000 + pl.Series("size", classify_size(kernels["bytes"].to_numpy()))
    kernels = kernels.with_columns(size=size, eager=pl.lit(False))
    if "nccl_collective" in reader.layouts:
        # Of hosts whose clocks cannot be compared nothing tells when all had come.
        records = reader.read_begins("nccl_collective", ("collective", "late"))
        records = records.filter((pl.col("late") >= 0).all().over("collective")).drop("late")
        joined = records.join(kernels, on=("thread", "begin"), how="inner")
        frames.append(
            joined.select(pl.col("collective").alias("meeting"), pl.exclude("collective"))
        )
    if "nccl_message" in reader.layouts:
        frames.append(_join_nccl_messages(reader, kernels))
    return _group_members(frames)


def _join_nccl_messages(reader: EventReader, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the members of messages; kernels that exchange several meet once."""
    lines = reader.read_lines("nccl_message").select("sent", "sender", "thread", until="begin")
    places = kernels.with_row_index("place").select("place", "thread", "begin", "end")
    sides = lines.join(
        places.select("begin", "thread", first="place"),
        left_on=("sender", "sent"), right_on=("thread", "begin"),
    ).join(
        places.select("end", "thread", second="place"),
        left_on=("thread", "until"), right_on=("thread", "end"),
    )  # fmt: skip
    pairs = sides.select(
        a=pl.min_horizontal("first", "second"), b=pl.max_horizontal("first", "second")
    ).unique(maintain_order=True)
    members = pairs.with_row_index("meeting").unpivot(
        ["a", "b"], index="meeting", value_name="place"
    )
    return members.join(kernels.with_row_index("place"), on="place").with_columns(
        pl.col("meeting").cast(pl.Int64)
    )


def find_mpi_meetings(
    reader: EventReader, calls: pl.DataFrame, labels: Mapping[int, str]
) -> Meetings:
    """Return the meetings of calls of MPI. calls: `thread`, `begin`, `end`, `node_begin`, `node_end`,
    `name`, `task` of each outermost one.
    """
    frames = [_match_collectives(reader, calls, labels)]
    if "mpi_message" in reader.layouts:
        lines = reader.read_lines("mpi_message").with_row_index("meeting")
        sender = lines.join(
            calls, left_on=("sender", "sent"), right_on=("thread", "begin"), suffix="_call"
        ).select(
            "meeting", "bytes", "node_begin", "node_end",
            thread="sender", eager=pl.col("bytes") < EAGER,
        )  # fmt: skip
        # A line leads to when its message was received.
        receiver = lines.join(
            calls, left_on=("thread", "begin"), right_on=("thread", "end"), suffix="_call"
        ).select("meeting", "bytes", "node_begin", "node_end", "thread", eager=pl.lit(False))
        both = pl.concat([sender, receiver])
        size = pl.Series("size", -1 - classify_size(both["bytes"].to_numpy()))
        frames.append(both.with_columns(size, pl.col("meeting").cast(pl.Int64)))
    return _group_members(frames)


def _match_collectives(
    reader: EventReader, calls: pl.DataFrame, labels: Mapping[int, str]
) -> pl.DataFrame:
    """Return the members of collectives: the n-th call of a name on a communicator is that of the
    other processes, where all have as many.
    """
    frames = []
    for layout in MPI_LAYOUTS:
        if layout not in reader.layouts:
            continue
        fields = ("call", "communicator", "sent") if layout == "mpi_collective" else ("call",)
        frame = reader.read_begins(layout, fields)
        more = {name: pl.lit(-1, pl.Int64) for name in ("communicator", "sent")}
        frames.append(
            frame.select(
                "begin", "thread", pl.col("call") + MPI_NAMES,
                **{name: pl.col(name) if name in fields else more[name] for name in more},
            )
        )  # fmt: skip
    if not frames:
        return pl.DataFrame(
            schema=dict.fromkeys(("meeting", "node_begin", "node_end", "thread", "size"), pl.Int64)
            | {"eager": pl.Boolean}
        )
    waiting = [name for name, label in labels.items() if _WAITS_FOR_ALL.match(label)]
    found = pl.concat(frames).filter(pl.col("call").is_in(waiting))
    found = found.join(calls, on=("thread", "begin")).sort("begin", maintain_order=True)
    over = ("communicator", "call")
    found = found.with_columns(
        number=pl.int_range(pl.len()).over(*over, "task"), count=pl.len().over(*over, "task")
    ).filter(
        (pl.col("count").min().over(over) == pl.col("count").max().over(over))
        & (pl.col("task").n_unique().over(over) > 1)
    )
    size = pl.Series("size", classify_size(found["sent"].to_numpy()))
    return found.with_columns(
        size + pl.col("call") * 1000,
        meeting=pl.struct(*over, "number").rank("dense").cast(pl.Int64),
        eager=pl.lit(False),
    )


def _group_members(frames: Sequence[pl.DataFrame]) -> Meetings:
    """Return members of meetings of at least two, numbered through."""
    parts, before = [], 0
    for frame in frames:
        frame = frame.filter(pl.len().over("meeting") > 1)
        frame = frame.select(
            meeting=pl.col("meeting").rank("dense").cast(pl.Int64) - 1 + before,
            node_begin="node_begin",
            node_end="node_end",
            row="thread",
            size="size",
            eager="eager",
        )
        before += frame["meeting"].n_unique()
        parts.append(frame)
    if not parts:
        none = np.zeros(0, np.int64)
        return Meetings(none, none, none, none, none, none.astype(bool))
    members = pl.concat(parts).sort("meeting", maintain_order=True)
    return Meetings(*(members[name].to_numpy() for name in _MEMBERS))
