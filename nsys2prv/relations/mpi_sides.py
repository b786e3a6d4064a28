"""Reconstruct the messages of MPI calls: transfers of persistent requests, and the calls that
completed receives. All of this is known from one report.

A receive through a request is complete with the first Wait of its handle, else with the last Test
before the handle is used again, else with the receive call itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.columns import OPEN
from nsys2prv.events.mpi import (
    ANYWHERE,
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
from nsys2prv.export.communicators import NOT_REPORTED
from nsys2prv.export.source import NULL
from nsys2prv.relations.blocks import Block, assign_buckets, split_column_names, write_buckets
from nsys2prv.store.work_result import FactFile, read_fact

#: Why no partner is looked for where the report lacks it or the tag.
FROM_ANY_SOURCE_OR_TAG = (
    "from any source or with any tag: the report does not tell which message they received"
)
CONTRADICTORY = "in a communicator whose handle came again for one that the reports do not describe"
#: Why a message cannot be looked for, by its number in the column `why`; -1 where it can.
UNMATCHABLE_REASONS = (
    "of a process whose rank is not in its report",
    "of a rank that several processes claim",
    "in a communicator that the reports do not describe, such as one between groups",
    FROM_ANY_SOURCE_OR_TAG,
    "with a partner that the communicator does not have",
    "with a rank that has no report",
    CONTRADICTORY,
)
#: Columns of the facts that are read.
FACT_COLUMNS = split_column_names(
    "process object_thread time_begin time_end role communicator source destination named tag size"
    " request"
)
#: Columns of messages in blocks. completed: when a receive was, in trace time, NULL or OPEN where
#: the completing call did not end; of others NULL. place: the order of the messages of a report.
MESSAGE_COLUMNS = split_column_names(
    "role why communicator source destination tag named time_begin completed object_thread host size"
    " report place"
)
#: Columns that identify a request, and a stream of messages.
_HANDLE = ["task", "request"]
STREAM = ["communicator", "source", "destination", "tag"]
#: Receives that a call has completed.
_TAKEN = ~pl.col("completed").is_in((NULL, OPEN)) & (
    (pl.col("request") == NULL) | (pl.col("completed") != pl.col("time_end"))
)


class MessageSides(Struct, frozen=True):
    """Messages in blocks by bucket."""

    #: One for each bucket.
    blocks: tuple[Block, ...]
    #: How many may be sent or received.
    either: int
    #: Number of starts of requests whose initialisation is unknown.
    unprepared: int
    #: Of each stream the numbers of sends (`sent`) and of completed receives (`received`).
    streams: pl.DataFrame


def sort_sides(
    messages: tuple[FactFile, ...],
    requests: tuple[FactFile, ...],
    tasks: Mapping[tuple[int, int], int],
    path: Path,
    processes: pl.DataFrame,
    buckets: int,
) -> MessageSides:
    """Sort the messages of some reports into so many buckets by receiver; one that may be sent or
    received comes to the bucket of either.
    """
    sides, unprepared = _find_sides(
        read_fact(messages, tasks, FACT_COLUMNS), read_fact(requests, tasks), processes
    )
    bucket, back = (
        assign_buckets(buckets, sides[rank].to_numpy()) for rank in ("destination", "source")
    )
    either = (sides["role"] == EITHER).to_numpy()
    rows = sides.select(pl.col(MESSAGE_COLUMNS).cast(pl.Int64)).to_numpy()
    other = np.flatnonzero(either & (back != bucket))
    streams = sides.filter(pl.col("why") < 0).group_by(STREAM)
    streams = streams.agg(
        sent=pl.col("role").is_in((SEND, EITHER)).sum(),
        received=((pl.col("role") == RECEIVE) & _TAKEN).sum(),
    )
    bucket, rows = np.append(bucket, back[other]), np.concatenate([rows, rows[other]])
    blocks = write_buckets(path, bucket, rows)
    return MessageSides(blocks, int(either.sum()), unprepared, streams)


def _find_sides(
    messages: pl.DataFrame, requests: pl.DataFrame, processes: pl.DataFrame
) -> tuple[pl.DataFrame, int]:
    """Return all messages with `why`, `completed` and `place`, and the number of starts of unknown
    requests.
    """
    messages = messages.filter(pl.col("time_begin") != NULL)
    messages, unprepared = _repeat_persistent(messages, requests)
    messages = messages.with_row_index("place")
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
    return messages, unprepared


def _explain_unmatchable(processes: pl.DataFrame, own: str, other: str) -> pl.Expr:
    """Return the number of why a message cannot be looked for, -1 if it can."""
    ranks = processes["rank"].filter(processes["rank"] >= 0)
    twice = ranks.filter(ranks.is_duplicated()).implode()
    explanation = pl.lit(-1)
    # By numbers of UNMATCHABLE_REASONS; the first that holds counts.
    for condition, number in reversed(
        (
            (pl.col(own) < 0, 0),
            (pl.col(own).is_in(twice) | pl.col(other).is_in(twice), 1),
            (pl.col("communicator") == 0, 2),
            (~pl.col("named") | (pl.col("tag") < 0) | (pl.col("communicator") == ANYWHERE), 3),
            (pl.col(other) == NOT_REPORTED, 5),
            (pl.col(other) < 0, 4),
            (~pl.col(other).is_in(ranks.implode()), 5),
        )
    ):
        explanation = pl.when(condition).then(pl.lit(number)).otherwise(explanation)
    return explanation


def _repeat_persistent(messages: pl.DataFrame, requests: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Return the messages, repeated for every start of a persistent request (as its handle was last
    initialised), and the number of starts without a known initialisation: of partitioned messages
    and of collectives.
    """
    plain = messages.filter(pl.col("role").is_in([SEND, RECEIVE, EITHER]))
    if not requests.height:
        return plain, 0
    starts = requests.filter((pl.col("role") == STARTED) & (pl.col("time_begin") != NULL))
    if not starts.height:
        return plain, 0
    others = requests.filter(pl.col("role") == USED).select(*_HANDLE, "time_begin")
    uses = pl.concat([messages.filter(pl.col("request") != NULL), others], how="diagonal")
    prepared = {SEND_INIT: SEND, RECEIVE_INIT: RECEIVE}
    started = (
        starts.sort("time_begin")
        .select(*_HANDLE, "object_thread", "time_begin", "time_end")
        .join_asof(
            uses.drop("object_thread", "time_end").sort("time_begin"),
            on="time_begin",
            by=_HANDLE,
            check_sortedness=False,
        )
        .filter(pl.col("role").is_in(list(prepared)))
        .with_columns(pl.col("role").replace(prepared))
    )
    return pl.concat([plain, started.select(plain.columns)]), starts.height - started.height


def _find_completions(messages: pl.DataFrame, requests: pl.DataFrame) -> pl.DataFrame:
    """Return when receives through requests were `completed`, in trace time, by `place`: those that
    another call completed; NULL or OPEN where that did not end.
    """
    through = messages.filter((pl.col("role") == RECEIVE) & (pl.col("request") != NULL)).select(
        "place", *_HANDLE, "time_begin"
    )
    if not through.height or not requests.height:
        return pl.DataFrame()
    calls = requests.filter(pl.col("time_begin") != NULL)
    waits, tests = (
        calls.filter(pl.col("role") == role).select(*_HANDLE, "time_end", at="time_begin")
        for role in (COMPLETED, ASKED)
    )
    used = requests.filter(pl.col("role") == USED)
    sides = (messages.filter(pl.col("request") != NULL), used)
    uses = pl.concat(side.select(*_HANDLE, next="time_begin") for side in sides)
    through = _join_nearest(through, uses, "time_begin", "next", "forward").with_columns(
        pl.col("next").fill_null(OPEN)
    )
    waited = _join_nearest(through, waits, "time_begin", "at", "forward", or_equal=True)
    tested = _join_nearest(through, tests, "next", "at", "backward")
    in_wait = pl.when(pl.col("at") < pl.col("next")).then("time_end")
    in_test = pl.when(pl.col("at") >= pl.col("time_begin")).then("time_end")
    both = waited.select("place", completed=in_wait).join(
        tested.select("place", tested=in_test), on="place"
    )
    return both.select("place", completed=pl.coalesce("completed", "tested")).drop_nulls()


def _join_nearest(
    left: pl.DataFrame,
    right: pl.DataFrame,
    left_on: str,
    right_on: str,
    strategy: str,
    or_equal: bool = False,
) -> pl.DataFrame:
    """Return the left rows with the nearest right row of their handle, in the direction of the
    strategy.
    """
    return left.sort(left_on).join_asof(
        right.sort(right_on),
        left_on=left_on,
        right_on=right_on,
        by=_HANDLE,
        strategy=strategy,
        allow_exact_matches=or_equal,
        coalesce=False,
        check_sortedness=False,
    )
