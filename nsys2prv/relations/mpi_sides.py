"""Sends and receives of MPI messages as the ranks made them: what persistent requests transferred,
and what completed receives.

A receive through a request is complete with the first Wait of its handle, else with the last Test
before the handle is used again, else with the receive call itself. All of this is known from one
report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.columns import OPEN
from nsys2prv.events.mpi import (
    ASKED,
    COMPLETED,
    EITHER,
    RECEIVE,
    RECEIVE_INIT,
    SEND,
    SEND_INIT,
    STARTED,
    USED,
)
from nsys2prv.nsight.columns import NULL
from nsys2prv.relations.blocks import Block, assign_buckets, split_column_names, write_buckets
from nsys2prv.store.task_result import FactFile, read_fact

#: A message whose partner or tag the report does not tell.
ANY = "any"
#: Why a message cannot be looked for, by its number in the column `why`; -1 where it can.
WHY = (
    "of a process whose rank is not in its report",
    "of a rank that several processes claim",
    "in a communicator that the report does not describe",
    ANY,
    "with a partner that the communicator does not have",
    "with a rank that has no report",
)
#: Columns of messages in blocks. completed: when a receive was, in trace time, NULL or OPEN where
#: the completing call did not end; of others NULL. place: the order of the messages of a report.
KEPT = split_column_names(
    "role why communicator source destination tag named time_begin completed object_thread host size"
    " report place"
)
#: Columns of the facts that are read.
READ = split_column_names(
    "process object_thread time_begin time_end role communicator source destination named tag size"
    " request"
)
_HANDLE = ["task", "request"]


class Process(NamedTuple):
    """Process of the job."""

    #: MPI rank; -1 if unknown.
    rank: int
    #: True if it was recorded from MPI_Init on.
    began: bool
    #: True if it was recorded until MPI_Finalize.
    ended: bool = False


class MessageSides(Struct, frozen=True):
    """Messages in blocks by bucket."""

    #: One for each bucket.
    blocks: tuple[Block, ...]
    #: How many may be sent or received.
    either: int


def sort_sides(
    messages: tuple[FactFile, ...],
    requests: tuple[FactFile, ...],
    tasks: Mapping[tuple[int, int], int],
    processes: Sequence[Process],
    buckets: int,
    path: Path,
) -> MessageSides:
    """Sort the messages of some reports into so many buckets by communicator and receiver; one that
    may be sent or received comes to the bucket of either.
    """
    request_facts = read_fact(requests, tasks) if requests else _make_no_requests()
    sides = _find_sides(read_fact(messages, tasks, READ), request_facts, processes)
    communicator = sides["communicator"].to_numpy()
    bucket, back = (
        assign_buckets(communicator, sides[rank].to_numpy(), buckets)
        for rank in ("destination", "source")
    )
    either = (sides["role"] == EITHER).to_numpy()
    rows = sides.select(pl.col(KEPT).cast(pl.Int64)).to_numpy()
    other = np.flatnonzero(either & (back != bucket))
    return MessageSides(
        write_buckets(path, np.append(bucket, back[other]), np.concatenate([rows, rows[other]])),
        int(either.sum()),
    )


def _find_sides(
    messages: pl.DataFrame, requests: pl.DataFrame, processes: Sequence[Process]
) -> pl.DataFrame:
    """Return all messages with `why`, `completed` and `place`."""
    messages = _repeat_persistent(
        messages.filter(pl.col("time_begin") != NULL), requests
    ).with_row_index("place")
    role = pl.col("role")
    messages = messages.with_columns(
        why=pl.when(role == SEND)
        .then(_explain_unmatchable(processes, "source", "destination"))
        .when(role == RECEIVE)
        .then(_explain_unmatchable(processes, "destination", "source"))
        .otherwise(-1),
        completed=pl.when(role == RECEIVE).then("time_end").otherwise(NULL),
    )
    completed = _find_completions(messages, requests)
    if completed.height:
        messages = messages.update(completed, on="place", how="left", maintain_order="left")
    return messages


def _explain_unmatchable(processes: Sequence[Process], own: str, other: str) -> pl.Expr:
    """Return the number of why a message cannot be looked for, -1 if it can."""
    ranks = Counter(process.rank for process in processes if process.rank >= 0)
    twice = sorted(rank for rank, count in ranks.items() if count > 1)
    unknown, claimed, undescribed, wild, alone, absent = map(pl.lit, range(len(WHY)))
    return (
        pl.when(pl.col(own) < 0)
        .then(unknown)
        .when(pl.col(own).is_in(twice) | pl.col(other).is_in(twice))
        .then(claimed)
        .when(pl.col("communicator") == 0)
        .then(undescribed)
        .when(~pl.col("named") | (pl.col("tag") < 0))
        .then(wild)
        .when(pl.col(other) < 0)
        .then(alone)
        .when(~pl.col(other).is_in(sorted(ranks)))
        .then(absent)
        .otherwise(pl.lit(-1))
    )


def _make_no_requests() -> pl.DataFrame:
    integers = ("task", "object_thread", "time_begin", "time_end", "request")
    return pl.DataFrame(schema={**dict.fromkeys(integers, pl.Int64), "role": pl.Int8})


def _repeat_persistent(messages: pl.DataFrame, requests: pl.DataFrame) -> pl.DataFrame:
    """Return the messages, with one more for every start of a persistent request, by what its
    handle was prepared for last.
    """
    prepared = messages.filter(pl.col("role").is_in([SEND_INIT, RECEIVE_INIT])).sort("time_begin")
    plain = messages.filter(pl.col("role").is_in([SEND, RECEIVE, EITHER]))
    if not prepared.height:
        return plain
    starts = requests.filter((pl.col("role") == STARTED) & (pl.col("time_begin") != NULL)).sort(
        "time_begin"
    )
    prepared_messages = prepared.drop("object_thread", "time_end").with_columns(
        role=pl.when(pl.col("role") == SEND_INIT).then(SEND).otherwise(RECEIVE).cast(pl.Int8)
    )
    started = (
        starts.select(*_HANDLE, "object_thread", "time_begin", "time_end")
        .join_asof(prepared_messages, on="time_begin", by=_HANDLE, check_sortedness=False)
        .filter(pl.col("role").is_not_null())
    )
    return pl.concat([plain, started.select(plain.columns)])


def _find_completions(messages: pl.DataFrame, requests: pl.DataFrame) -> pl.DataFrame:
    """Return when receives through requests were `completed`, in trace time, by `place`: those that
    another call completed; NULL or OPEN where that did not end.
    """
    through = messages.filter((pl.col("role") == RECEIVE) & (pl.col("request") != NULL)).select(
        "place", *_HANDLE, "time_begin"
    )
    if not through.height or not requests.height:
        return pl.DataFrame()
    uses = pl.concat(
        [
            messages.filter(pl.col("request") != NULL).select(*_HANDLE, "time_begin"),
            requests.filter(pl.col("role") == USED).select(*_HANDLE, "time_begin"),
        ]
    ).sort("time_begin")
    through = through.sort("time_begin").join_asof(
        uses.with_columns(next="time_begin"),
        on="time_begin",
        by=_HANDLE,
        strategy="forward",
        allow_exact_matches=False,
        check_sortedness=False,
    )
    through = through.with_columns(pl.col("next").fill_null(OPEN))
    ends = requests.filter(pl.col("time_begin") != NULL).sort("time_begin")
    waits, tests = (
        ends.filter(pl.col("role") == role).select(
            *_HANDLE, "time_begin", "time_end", at="time_begin"
        )
        for role in (COMPLETED, ASKED)
    )
    waited = through.join_asof(
        waits, on="time_begin", by=_HANDLE, strategy="forward", check_sortedness=False
    ).select("place", completed=pl.when(pl.col("at") < pl.col("next")).then("time_end"))
    tested = (
        through.sort("next")
        .join_asof(
            tests,
            left_on="next",
            right_on="time_begin",
            by=_HANDLE,
            strategy="backward",
            allow_exact_matches=False,
            check_sortedness=False,
        )
        .select("place", tested=pl.when(pl.col("at") >= pl.col("time_begin")).then("time_end"))
    )
    return (
        waited.join(tested, on="place")
        .select("place", completed=pl.coalesce("completed", "tested"))
        .drop_nulls()
    )
