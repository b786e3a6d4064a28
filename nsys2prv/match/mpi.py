"""Match MPI and UCX messages as lines from sends to receives, and make clock observations from MPI
messages and collectives.

The n-th send of a communicator, sender, receiver and tag belongs to the n-th such receive, if the
reports certainly contain all sends and receives. A receive with a request completes with the first
Wait for its handle; otherwise with the last Test before the handle is reused; otherwise with the
receive call itself. A receive from MPI_ANY_SOURCE takes the message of the only possible sender, if
as many of its sends as of such receives remain. Otherwise all later pairs are uncertain.

The n-th send of a UCX worker to another with a tag matches the n-th receive of that worker from the
first with that tag. Lines are drawn only if MPI was not traced, because MPI messages use UCX.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.columns import COUNT, OPEN
from nsys2prv._util.files import load_shipped_file
from nsys2prv._util.text import Note, format_count
from nsys2prv.clock import NoiseKind
from nsys2prv.events import mpi
from nsys2prv.events.host import TRANSFERS
from nsys2prv.events.kind import CommunicationLines
from nsys2prv.export.communicators import NOT_REPORTED
from nsys2prv.export.source import NULL
from nsys2prv.match import (
    COLUMNS,
    PAIR_COLUMNS,
    SIDE_COLUMNS,
    Block,
    FactFile,
    Observed,
    RelationContext,
    assign_buckets,
    count_buckets,
    group_blocks,
    read_blocks,
    read_fact,
    store_lines,
    write_block,
    write_buckets,
    write_messages,
    write_result,
)
from nsys2prv.table.task_result import TaskResult

T = TypeVar("T")
#: Columns that identify a stream of UCX messages.
UCX_CHANNEL = ("sender_worker", "receiver_worker", "tag")
#: Tags of other lines (see the catalogue); an MPI tag among them is written so much higher.
OUR_TAGS, TAG_OFFSET = (55_000, 55_999), 1_000_000_000
_OF_ONE, _NAMED = pl.col("communicator") != mpi.ANYWHERE, pl.col("named") == 1
#: Receives from MPI_ANY_SOURCE, and the fields of their streams that are known, the most specific
#: first.
_WILD = (
    (_OF_ONE & _NAMED & (pl.col("tag") < 0), ("communicator", "destination", "source")),
    (_OF_ONE & ~_NAMED & (pl.col("tag") >= 0), ("communicator", "destination", "tag")),
    (~_OF_ONE & (pl.col("tag") >= 0), ("destination", "tag")),
    (_OF_ONE & ~_NAMED & (pl.col("tag") < 0), ("communicator", "destination")),
    (~_OF_ONE & (pl.col("tag") < 0), ("destination",)),
)
_NOTES = load_shipped_file(__package__, "notes.yaml")["mpi"]
#: Reasons why a message cannot be searched, by their number in the column `why`; -1 if it can.
UNMATCHABLE = tuple(_NOTES["unmatchable"])
#: Columns that identify a request, and a stream of messages.
_HANDLE = ["task", "request"]
STREAM = ["communicator", "source", "destination", "tag"]
#: Receives that a call has completed.
_TAKEN = ~pl.col("completed").is_in((NULL, OPEN)) & (
    (pl.col("request") == NULL) | (pl.col("completed") != pl.col("time_end"))
)


class MessageSides(Struct, frozen=True):
    """Sends and receives (sides) of MPI messages, stored by bucket, with their numbers."""

    #: One for each bucket.
    blocks: tuple[Block, ...]
    #: Numbers of messages, see :class:`MatchedMessages`.
    counts: Counter[tuple[int, str]]
    #: Of each stream the numbers of sends (`sent`) and of completed receives (`received`).
    streams: pl.DataFrame


class MatchedMessages(Struct, frozen=True):
    """Messages whose send and receive one task matched, with numbers of paired and unpaired sides."""

    #: PAIR_COLUMNS of each pair that is certain and complete, then its report and place.
    pairs: tuple[Block, ...]
    #: Numbers of messages, by side and reason why they are unpaired (as in notes.yaml), "" for paired ones;
    #: and by 0 and other reasons in notes.
    counts: Counter[tuple[int, str]]


def relate_messages(context: RelationContext) -> list[TaskResult]:
    """Match MPI sends and receives of different ranks. Return results with a communication line for
    each message, and notes about unmatched ones.
    """
    sides, matched = _match_buckets(context, match_messages)
    pairs = [block for part in matched for block in part.pairs]
    results = store_lines(context, "mpi_messages", "mpi_message", True, pairs)
    counts = sum((part.counts for part in (*sides, *matched)), Counter())
    results[0].notes = _describe_unmatched(counts)
    return results


def observe_messages(context: RelationContext) -> Observed:
    """Return MPI messages between hosts, from which clocks are compared: no message is received
    before it is sent.
    """
    _, messages = _match_buckets(context, observe_pairs)
    return Observed(messages=list(chain.from_iterable(messages)))


def _match_buckets(
    context: RelationContext, pair: Callable[..., T]
) -> tuple[list[MessageSides], list[T]]:
    """Sort the messages into buckets by receiver. Return the buckets, and the result of `pair` for
    each.

    `pair` gets the MPI rank of all processes of the job (-1 if unknown), and whether each was
    recorded from MPI_Init on (`began`) and until MPI_Finalize (`ended`). It also gets the
    communicators and tags for which fully recorded ranks received messages without a sender. Such
    calls belong to another communicator that reuses a freed handle, which the reports do not show.
    """
    processes = (
        read_fact(context.files[mpi.PROCESSES], context.tasks)
        .group_by("task")
        .agg(pl.col("rank").max(), pl.col("began", "ended").any())
    )
    more = (processes, count_buckets(context.files[mpi.MESSAGES]))
    pieces = context.divide_facts(mpi.MESSAGES, mpi.REQUESTS)
    sides = context.run_each("mpi-sides", sort_sides, *pieces, more=more)
    whole = processes.filter(pl.col("began") & pl.col("ended"))["rank"].implode()
    streams = pl.concat([part.streams for part in sides]).group_by(STREAM)
    lost = (pl.col("sent") == 0) & (pl.col("received") > 0) & pl.col("source").is_in(whole)
    contradictory = streams.agg(pl.col("sent", "received").sum()).filter(lost)
    contradictory = contradictory.select("communicator", "tag").unique()
    buckets = group_blocks(block for part in sides for block in part.blocks)
    return sides, context.run_each("mpi-pairs", pair, buckets, more=(processes, contradictory))


def sort_sides(
    messages: tuple[FactFile, ...],
    requests: tuple[FactFile, ...],
    tasks: Mapping[tuple[int, int], int],
    path: Path,
    processes: pl.DataFrame,
    buckets: int,
) -> MessageSides:
    """Sort the sends and receives of some reports into this many buckets by receiver, so that one
    task can match a bucket. A message that may be a send or a receive goes into the buckets of
    both. path: of the new file. processes: all processes with their ranks.
    """
    calls = read_fact(messages, tasks, COLUMNS["mpi_message_facts"])
    sides, unprepared = _find_sides(calls, read_fact(requests, tasks), processes)
    bucket, back = (
        assign_buckets(buckets, sides[rank].to_numpy()) for rank in ("destination", "source")
    )
    either = (sides["role"] == mpi.EITHER).to_numpy()
    rows = sides.select(COLUMNS["mpi_messages"])
    other = np.flatnonzero(either & (back != bucket))
    streams = sides.filter(pl.col("why") < 0).group_by(STREAM)
    streams = streams.agg(
        sent=pl.col("role").is_in((mpi.SEND, mpi.EITHER)).sum(),
        received=((pl.col("role") == mpi.RECEIVE) & _TAKEN).sum(),
    )
    bucket, rows = np.append(bucket, back[other]), pl.concat([rows, rows[other]])
    counts = Counter({(0, "either"): int(either.sum()), (0, "unprepared"): unprepared})
    return MessageSides(write_buckets(path, bucket, rows), counts, streams)


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
        why=pl.when(role == mpi.SEND)
        .then(_explain_unmatchable(processes, "source", "destination"))
        .when(role == mpi.RECEIVE)
        .then(_explain_unmatchable(processes, "destination", "source"))
        .otherwise(-1),
        completed=pl.when(role == mpi.EITHER).then(NULL).otherwise("time_end"),
    )
    completed = _find_completions(messages, requests)
    if completed.height:
        messages = messages.update(completed, on="place", how="left", maintain_order="left")
    return messages, unprepared


def _explain_unmatchable(processes: pl.DataFrame, own: str, other: str) -> pl.Expr:
    """Return the number of the reason why a message cannot be matched; -1 if it can."""
    ranks = processes["rank"].filter(processes["rank"] >= 0)
    twice = ranks.filter(ranks.is_duplicated()).implode()
    no_tag = ~pl.col("named") | (pl.col("tag") < 0) | (pl.col("communicator") == mpi.ANYWHERE)
    # The first condition that is met counts.
    conditions = (
        (pl.col(own) < 0, "no_rank"),
        (pl.col(own).is_in(twice) | pl.col(other).is_in(twice), "same_rank"),
        (pl.col("communicator") == 0, "undescribed"),
        (no_tag, "wild"),
        (pl.col(other) == NOT_REPORTED, "no_report"),
        (pl.col(other) < 0, "no_partner"),
        (~pl.col(other).is_in(ranks.implode()), "no_report"),
    )
    numbers = (pl.when(holds).then(UNMATCHABLE.index(why)) for holds, why in conditions)
    return pl.coalesce(*numbers, -1)


def _repeat_persistent(messages: pl.DataFrame, requests: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Return the messages, with one copy for every start of a persistent request (as its handle was
    last initialized). Return also the number of starts without a known initialization: of
    partitioned messages and collectives.
    """
    plain = messages.filter(pl.col("role").is_in([mpi.SEND, mpi.RECEIVE, mpi.EITHER]))
    known = pl.col("time_begin") != NULL
    starts = (
        requests.filter(known & (pl.col("role") == mpi.STARTED)) if requests.height else requests
    )
    if not starts.height:
        return plain, 0
    others = requests.filter(pl.col("role") == mpi.USED).select(*_HANDLE, "time_begin")
    uses = pl.concat([messages.filter(pl.col("request") != NULL), others], how="diagonal")
    uses = uses.drop("object_thread", "time_end")
    starts = starts.select(*_HANDLE, "object_thread", "time_begin", "time_end")
    prepared = {mpi.SEND_INIT: mpi.SEND, mpi.RECEIVE_INIT: mpi.RECEIVE}
    started = (
        _join_nearest(starts, uses, "time_begin", "time_begin")
        .filter(pl.col("role").is_in(list(prepared)))
        .with_columns(pl.col("role").replace(prepared))
    )
    return pl.concat([plain, started.select(plain.columns)]), starts.height - started.height


def _find_completions(messages: pl.DataFrame, requests: pl.DataFrame) -> pl.DataFrame:
    """Return `place` and completion time (`completed`, trace time) of messages that another call
    completed. The time is NULL or OPEN if that call has no end.
    """
    requested = messages.filter(pl.col("request") != NULL)
    through = requested.filter(pl.col("role").is_in((mpi.SEND, mpi.RECEIVE))).select(
        "place", *_HANDLE, "time_begin"
    )
    if not through.height or not requests.height:
        return pl.DataFrame()
    calls = requests.filter(pl.col("time_begin") != NULL)
    waits, tests = (
        calls.filter(pl.col("role") == role).select(*_HANDLE, "time_end", at="time_begin")
        for role in (mpi.COMPLETED, mpi.ASKED)
    )
    sides = (requested, requests.filter(pl.col("role") == mpi.USED))
    uses = pl.concat(side.select(*_HANDLE, next="time_begin") for side in sides)
    forward = {"strategy": "forward"}
    through = _join_nearest(
        through, uses, "time_begin", "next", allow_exact_matches=False, **forward
    ).with_columns(pl.col("next").fill_null(OPEN))
    waited = _join_nearest(through, waits, "time_begin", "at", **forward)
    tested = _join_nearest(through, tests, "next", "at", allow_exact_matches=False)
    in_wait = pl.when(pl.col("at") < pl.col("next")).then("time_end")
    in_test = pl.when(pl.col("at") >= pl.col("time_begin")).then("time_end")
    both = waited.select("place", completed=in_wait).join(
        tested.select("place", tested=in_test), on="place"
    )
    return both.select("place", completed=pl.coalesce("completed", "tested")).drop_nulls()


def _join_nearest(
    left: pl.DataFrame, right: pl.DataFrame, left_on: str, right_on: str, **how: Any
) -> pl.DataFrame:
    """Join each left row with the nearest right row of the same handle."""
    return left.sort(left_on).join_asof(
        right.sort(right_on),
        left_on=left_on,
        right_on=right_on,
        by=_HANDLE,
        coalesce=False,
        check_sortedness=False,
        **how,
    )


def _describe_unmatched(counts: Counter[tuple[int, str]]) -> list[Note]:
    """Return notes with the number of messages with lines, and the reasons for the others."""
    # A send names its receiver; rows that do not are damaged.
    del counts[mpi.SEND, "wild"]
    nouns = {mpi.SEND: "send", mpi.RECEIVE: "receive"}
    sends, receives = (
        sum(count for (of, _), count in counts.items() if of == side) for side in nouns
    )
    lines = counts[mpi.SEND, ""] - counts[0, "unfinished"]
    of = format_count(sends, "send"), format_count(receives, "receive")
    text = f"MPI messages: {format_count(lines, 'line')} for {' and '.join(of)}"
    notes = [Note(text, is_routine=True)]
    reasons = {**_NOTES["unmatchable"], **_NOTES["unmatched"]}
    for of, noun in nouns.items():
        for why, text in sorted(reasons.items(), key=lambda item: item[1]):
            if count := counts[of, why]:
                notes.append(Note(f"MPI messages: {format_count(count, noun)} {text}"))
    for what, text in _NOTES["others"].items():
        if count := counts[0, what]:
            note = Note(f"MPI messages: {count:,} {text}", is_on_clocks=what == "early")
            notes.append(note)
    return notes


def match_messages(
    blocks: Sequence[Block], path: Path, processes: pl.DataFrame, contradictory: pl.DataFrame
) -> MatchedMessages:
    """Match sends with receives in some buckets, and store the pairs in a new file. contradictory:
    streams of messages whose sides contradict each other; they are not matched.
    """
    pairs, counts = _pair_messages(blocks, processes, contradictory, in_time=True)
    tag = pl.col("tag") + TAG_OFFSET * pl.col("tag").is_between(*OUR_TAGS)
    early = pairs.filter(pl.col("completed") < pl.col("time_begin"))
    on_host = (early["host"] == early["host_there"]).sum()
    counts += {(0, "early"): early.height - on_host, (0, "early_on_host"): on_host}
    ends = {"time_begin": "send", "object_thread": "sender", "completed": "receive"}
    rows = pairs.with_columns(tag).rename(ends)
    rows = rows.select(*PAIR_COLUMNS, "report", "place", *SIDE_COLUMNS)
    return MatchedMessages(write_block(path, rows), counts)


def observe_pairs(
    blocks: Sequence[Block], path: Path, processes: pl.DataFrame, contradictory: pl.DataFrame
) -> tuple[Block, ...]:
    """Match sends with receives in some buckets, and store the messages between hosts. Arguments
    are as in :func:`match_messages`.
    """
    pairs, _ = _pair_messages(blocks, processes, contradictory, in_time=False)
    return write_messages(path, pairs, NoiseKind.MPI)


def _pair_messages(
    blocks: Sequence[Block], processes: pl.DataFrame, contradictory: pl.DataFrame, in_time: bool
) -> tuple[pl.DataFrame, Counter[tuple[int, str]]]:
    """Return the certain and complete pairs sorted by send, and the counts of sends and receives
    (see :class:`MatchedMessages`). in_time: the clocks agree, so that a receive before its send
    excludes a pair.
    """
    messages = read_blocks(blocks).sort("time_begin", "report", "place")
    number = UNMATCHABLE.index("contradictory")
    reused = contradictory.with_columns(number=pl.lit(number, pl.Int64))
    messages = messages.join(reused, on=["communicator", "tag"], how="left", maintain_order="left")
    why = pl.when(pl.col("why") < 0).then(pl.coalesce("number", "why")).otherwise("why")
    messages = messages.with_columns(why=why)
    sends, receives, either = (
        messages.filter(pl.col("role") == role) for role in (mpi.SEND, mpi.RECEIVE, mpi.EITHER)
    )
    receives = _find_sources(sends, receives)
    numbered = [
        side.filter(pl.col("why") < 0).with_columns(number=pl.int_range(pl.len()).over(STREAM))
        for side in (sends, receives)
    ]
    wild = receives.filter(pl.col("why") == UNMATCHABLE.index("wild"))
    streams = _find_streams(*numbered, wild, either, processes)
    from_the_end = pl.col("number") - pl.len().over(STREAM).cast(pl.Int64)
    sent, received = (
        side.join(streams, on=STREAM, maintain_order="left").with_columns(
            number=pl.when("backward").then(from_the_end).otherwise("number")
        )
        for side in numbered
    )
    key = [*STREAM, "number"]
    there = {"receiver": "object_thread", "posted": "time_begin", "host_there": "host"}
    taking = received.select(*key, "completed", **there)
    sent = sent.rename({"completed": "released"})
    pairs = sent.join(taking, on=key, maintain_order="left")
    is_later = pl.col("completed") >= pl.col("time_begin")
    causal = (pl.col("completed") == NULL) | is_later | (not in_time)
    equal = pl.col("sent") == pl.col("received")
    before_wild = pl.col("wildcard").is_null() | (pl.col("posted") < pl.col("wildcard"))
    whole = pl.col("began") & (equal | before_wild)
    part = (
        ~pl.col("began")
        & (equal | pl.col("backward"))
        & pl.min_horizontal("wildcard", "either").is_null()
        & causal.all().over(STREAM)
    )
    last = pl.max_horizontal("posted", "time_begin")
    before = pl.col("either").is_null() | (last < pl.col("either"))
    judged = pairs.with_columns(certain=((whole | part) & before).fill_null(False))
    certain = judged.filter("certain")
    complete = certain.filter(~pl.col("completed").is_in((NULL, OPEN)))
    counts = Counter({(0, "unfinished"): certain.height - complete.height})
    for side, frame in ((mpi.SEND, sends), (mpi.RECEIVE, receives)):
        reasons = dict(frame.group_by("why").len().iter_rows())
        inside = reasons.pop(-1, 0)
        counts.update({(side, UNMATCHABLE[why]): count for why, count in reasons.items()})
        counts[side, ""] += certain.height
        counts[side, "unordered"] += judged.height - certain.height
        counts[side, "alone"] += inside - judged.height
    return complete, counts


def _find_sources(sends: pl.DataFrame, receives: pl.DataFrame) -> pl.DataFrame:
    """Set the source of receives from MPI_ANY_SOURCE if exactly one sender has unmatched sends, in
    equal number.
    """
    is_wild = pl.col("why") == UNMATCHABLE.index("wild")
    wild = receives.filter(is_wild)
    if not wild.height:
        return receives
    sent, got = (side.filter(pl.col("why") < 0).group_by(STREAM) for side in (sends, receives))
    lacking = (
        sent.agg(lacks=COUNT)
        .join(got.agg(got=COUNT), on=STREAM, how="left")
        .with_columns(pl.col("lacks") - pl.col("got").fill_null(0))
        .filter(pl.col("lacks") > 0)
    )
    found = []
    for which, keys in _WILD:
        rest = [name for name in STREAM if name not in keys]
        resolved = (
            wild.filter(which)
            .drop(rest)
            .join(lacking.filter(pl.len().over(keys) == 1), on=keys)
            .filter(pl.len().over(keys) == pl.col("lacks"))
        )
        found.append(resolved.select(receives.columns))
        lacking = lacking.join(resolved, on=STREAM, how="anti")
    resolved = pl.concat(found).with_columns(why=pl.lit(-1, pl.Int64), named=pl.lit(1, pl.Int64))
    order = ["report", "place"]
    return pl.concat([receives.join(resolved, on=order, how="anti"), resolved]).sort(
        "time_begin", *order
    )


def _find_streams(
    sends: pl.DataFrame,
    receives: pl.DataFrame,
    wild: pl.DataFrame,
    either: pl.DataFrame,
    processes: pl.DataFrame,
) -> pl.DataFrame:
    """Return the streams that have both sends and receives.

    Columns: counts (`sent`, `received`); whether both ranks were recorded from the start (`began`);
    the time of the first `wild` receive that may take from the stream without naming it
    (`wildcard`); the time of the first call that may be a send or a receive in it (`either`, or
    null); and whether only the ends give the order (`backward`).
    """
    received = receives.group_by(STREAM).agg(received=pl.len())
    streams = sends.group_by(STREAM).agg(sent=pl.len()).join(received, on=STREAM)
    for name in ("began", "ended"):
        ranks = processes.filter(name)["rank"].implode()
        both = pl.col("source").is_in(ranks) & pl.col("destination").is_in(ranks)
        streams = streams.with_columns(both.alias(name))
    for number, (which, keys) in enumerate(_WILD):
        first = pl.col("time_begin").min().alias(f"{number}")
        firsts = wild.filter(which).group_by(keys).agg(first)
        streams = streams.join(firsts, on=keys, how="left")
    turned = either.rename({"source": "destination", "destination": "source"})
    touched = pl.concat([side.select(*STREAM, "time_begin") for side in (either, turned)])
    touched = touched.group_by(STREAM).agg(either=pl.col("time_begin").min())
    streams = streams.join(touched, on=STREAM, how="left")
    wildcard = pl.min_horizontal(map(str, range(len(_WILD))))
    doubtful = pl.min_horizontal(wildcard, "either").is_not_null()
    backward = ~pl.col("began") & pl.col("ended") & ~doubtful
    known = (*STREAM, "sent", "received", "began", "either")
    return streams.select(*known, wildcard=wildcard, backward=backward)


def relate_ucx_messages(context: RelationContext) -> list[TaskResult]:
    """Match UCX sends and receives of different processes. Return results with a communication line
    for each pair. A single task makes them.
    """
    if context.files[mpi.MESSAGES]:
        return []
    more = (context.files[TRANSFERS], context.tasks, context.first_task, context.folder)
    return context.run_all([partial(match_ucx_messages, *more)])


def match_ucx_messages(
    files: tuple[FactFile, ...], tasks: Mapping[tuple[int, int], int], number: int, folder: Path
) -> TaskResult:
    """Match UCX sends with receives, and store a communication line for each pair. number: of this
    task. folder: for its file.
    """
    rows = read_fact(files, tasks).with_columns(
        sender_worker=pl.when("is_send").then("worker").otherwise("peer"),
        receiver_worker=pl.when("is_send").then("peer").otherwise("worker"),
    )
    rows = rows.sort("time_begin", maintain_order=True).with_columns(
        turn=pl.int_range(pl.len()).over(*UCX_CHANNEL, "is_send")
    )
    sends, receives = rows.filter("is_send"), rows.filter(~pl.col("is_send"))
    pairs = sends.join(receives, on=(*UCX_CHANNEL, "turn"), maintain_order="left")
    sides = ("time_begin", "object_thread", "time_end_right", "object_thread_right")
    columns = (pairs[name].to_numpy() for name in (*sides, "bytes", "tag"))
    send, sender, receive, receiver, size, tag = columns
    lines = CommunicationLines("ucx_message", send, sender, receive, receiver, receive, size, tag)
    result = write_result("ucx_messages", number, folder, lines=[lines] if pairs.height else [])
    if alone := rows.height - 2 * pairs.height:
        note = f"UCX: {alone:,} sends and receives have no communication line: their partners are not in the reports"
        result.notes.append(Note(note, is_routine=True))
    return result
