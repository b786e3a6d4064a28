"""MPI: sends matched with the receives that took them, as lines; collectives as observations of the
hosts' clocks.

Sends and receives are first brought to what the ranks made of them: what persistent requests
transferred, and what completed receives. A receive through a request is complete with the first
Wait of its handle, else with the last Test before the handle is used again, else with the receive
call itself. All of this is known from one report.

Then the n-th send of a communicator, sender, receiver and tag is what the n-th such receive took,
where it is certain that the reports have all of both. A receive that does not say where its message
is from is one of the only sends that it can be of, if these and the receives are equally many then;
else it makes what follows uncertain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.columns import OPEN
from nsys2prv._util.errors import ClockNote, Detail
from nsys2prv.clock import NoiseKind
from nsys2prv.events.mpi import (
    ANYWHERE,
    ASKED,
    COMPLETED,
    EITHER,
    MEETINGS,
    MESSAGES,
    PROCESSES,
    RECEIVE,
    RECEIVE_INIT,
    REQUESTS,
    SEND,
    SEND_INIT,
    STARTED,
    USED,
)
from nsys2prv.nsight.communicators import NOT_REPORTED
from nsys2prv.nsight.source import NULL
from nsys2prv.relations import DEVICES, MPI, Observed, Relation, RelationContext
from nsys2prv.relations.blocks import (
    Block,
    MemberBlock,
    MessageFile,
    assign_buckets,
    count_buckets,
    divide_calls,
    group_blocks,
    hash_signatures,
    read_frame,
    save_messages,
    sort_calls,
    split_column_names,
    store_lines,
    write_block,
    write_buckets,
)
from nsys2prv.store.task_result import FactFile, TaskResult, read_fact

#: The relation, and the kind of its lines in the catalogue.
NAME, LINE_KIND = "mpi_messages", "mpi_message"
#: Tags of other lines (see the catalogue); an MPI tag among them is written so much higher.
OUR_TAGS, TAG_OFFSET = (55_000, 55_999), 1_000_000_000
#: Why a message cannot be looked for whose partner or tag the report does not tell.
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
#: Why a message of a stream has no line.
ORDER_UNCERTAIN, NO_PARTNER = "whose order is not certain", "without a partner"
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
#: What tells requests apart, and streams of messages in order.
_HANDLE = ["task", "request"]
_STREAM = ["communicator", "source", "destination", "tag"]
_OF_ONE, _NAMED = pl.col("communicator") != ANYWHERE, pl.col("named") == 1


#: Receives that a call has completed.
_TAKEN = ~pl.col("completed").is_in((NULL, OPEN)) & (
    (pl.col("request") == NULL) | (pl.col("completed") != pl.col("time_end"))
)
#: Receives that do not say where their messages are from, and by what of a stream these are known,
#: those that say most first.
_WILD = (
    (_OF_ONE & _NAMED & (pl.col("tag") < 0), ("communicator", "destination", "source")),
    (_OF_ONE & ~_NAMED & (pl.col("tag") >= 0), ("communicator", "destination", "tag")),
    (~_OF_ONE & (pl.col("tag") >= 0), ("destination", "tag")),
    (_OF_ONE & ~_NAMED & (pl.col("tag") < 0), ("communicator", "destination")),
    (~_OF_ONE & (pl.col("tag") < 0), ("destination",)),
)


class MessageSides(Struct, frozen=True):
    """Messages in blocks by bucket."""

    #: One for each bucket.
    blocks: tuple[Block, ...]
    #: How many may be sent or received.
    either: int
    #: How many starts there are of requests that nothing says what they are for.
    unprepared: int
    #: Of each stream the numbers of sends (`sent`) and of completed receives (`received`).
    streams: pl.DataFrame


class MatchedMessages(Struct, frozen=True):
    """Messages that a step matched."""

    #: PAIR_COLUMNS of each pair that is certain and complete, then its report and place.
    pairs: tuple[Block, ...]
    #: How many messages, by side and why they are of no pair, "" for those of one.
    fates: Counter[tuple[int, str]]
    #: Receives that were not complete in the end.
    unfinished: int
    #: Those before their sends, by whether both are on one host.
    early: Counter[bool]


def relate_messages(context: RelationContext) -> list[TaskResult]:
    """Return lines for the messages that are matched, and notes on those that are not."""
    sides, processes = _sort_into_buckets(context)
    more = processes, _find_contradictions(sides, processes)
    matched = context.run_each("mpi-pairs", match_messages, _group_sides(sides), more=more)
    pairs = [block for part in matched for block in part.pairs]
    results = store_lines(context, NAME, LINE_KIND, True, pairs)
    results[0].notes = _describe_unmatched(
        sum((part.fates for part in matched), Counter()),
        sum(part.either for part in sides),
        sum(part.unprepared for part in sides),
        sum(part.unfinished for part in matched),
        sum((part.early for part in matched), Counter()),
    )
    return results


def observe_messages(context: RelationContext) -> Observed:
    """Return files of bounds from messages between hosts: none is received before it is sent."""
    sides, processes = _sort_into_buckets(context)
    more = processes, _find_contradictions(sides, processes)
    messages = context.run_each("mpi-pairs", observe_pairs, _group_sides(sides), more=more)
    return Observed(messages=messages)


def _sort_into_buckets(context: RelationContext) -> tuple[list[MessageSides], pl.DataFrame]:
    """Return the sides of messages, by report, and of the processes of the job the MPI rank (-1 if
    unknown), and whether it was recorded from MPI_Init on (`began`) and until MPI_Finalize
    (`ended`).
    """
    processes = (
        read_fact(context.files[PROCESSES], context.tasks)
        .group_by("task")
        .agg(pl.col("rank").max(), pl.col("began", "ended").any())
    )
    more = (processes, count_buckets(context.files[MESSAGES]))
    batches = context.batch_facts(MESSAGES, REQUESTS)
    return context.run_each("mpi-sides", sort_sides, *batches, more=more), processes


def _find_contradictions(sides: Sequence[MessageSides], processes: pl.DataFrame) -> pl.DataFrame:
    """Return the communicators and tags in which ranks, of which all is recorded, received what
    nobody sent: their calls were in another communicator, of which nothing is recorded but the
    handle, that of one freed before.
    """
    whole = processes.filter(pl.col("began") & pl.col("ended"))["rank"].implode()
    streams = pl.concat([part.streams for part in sides]).group_by(_STREAM)
    sums = streams.agg(pl.col("sent", "received").sum())
    lost = (pl.col("sent") == 0) & (pl.col("received") > 0) & pl.col("source").is_in(whole)
    return sums.filter(lost).select("communicator", "tag").unique()


def _group_sides(sides: Sequence[MessageSides]) -> list[tuple[Block, ...]]:
    return group_blocks(block for part in sides for block in part.blocks)


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
    return MessageSides(
        write_buckets(path, np.append(bucket, back[other]), np.concatenate([rows, rows[other]])),
        int(either.sum()),
        unprepared,
        sides.filter(pl.col("why") < 0)
        .group_by(_STREAM)
        .agg(
            sent=pl.col("role").is_in((SEND, EITHER)).sum(),
            received=((pl.col("role") == RECEIVE) & _TAKEN).sum(),
        ),
    )


def _find_sides(
    messages: pl.DataFrame, requests: pl.DataFrame, processes: pl.DataFrame
) -> tuple[pl.DataFrame, int]:
    """Return all messages with `why`, `completed` and `place`, and how many starts there are of
    requests that nothing says what they are for.
    """
    messages, unprepared = _repeat_persistent(
        messages.filter(pl.col("time_begin") != NULL), requests
    )
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
    unknown, claimed, undescribed, wild, alone, absent, _ = map(
        pl.lit, range(len(UNMATCHABLE_REASONS))
    )
    return (
        pl.when(pl.col(own) < 0)
        .then(unknown)
        .when(pl.col(own).is_in(twice) | pl.col(other).is_in(twice))
        .then(claimed)
        .when(pl.col("communicator") == 0)
        .then(undescribed)
        .when(~pl.col("named") | (pl.col("tag") < 0) | (pl.col("communicator") == ANYWHERE))
        .then(wild)
        .when(pl.col(other) == NOT_REPORTED)
        .then(absent)
        .when(pl.col(other) < 0)
        .then(alone)
        .when(~pl.col(other).is_in(ranks.implode()))
        .then(absent)
        .otherwise(pl.lit(-1))
    )


def _repeat_persistent(messages: pl.DataFrame, requests: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Return the messages, with one more for every start of a persistent request, by what its
    handle was last used for, and the number of starts of which that is not known: of partitioned
    messages and of collectives.
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
    uses = pl.concat(
        side.select(*_HANDLE, next="time_begin")
        for side in (messages.filter(pl.col("request") != NULL), used)
    )
    through = _join_nearest(through, uses, "time_begin", "next", "forward").with_columns(
        pl.col("next").fill_null(OPEN)
    )
    waited = _join_nearest(through, waits, "time_begin", "at", "forward", or_equal=True)
    tested = _join_nearest(through, tests, "next", "at", "backward")
    return (
        waited.select("place", completed=pl.when(pl.col("at") < pl.col("next")).then("time_end"))
        .join(
            tested.select(
                "place", tested=pl.when(pl.col("at") >= pl.col("time_begin")).then("time_end")
            ),
            on="place",
        )
        .select("place", completed=pl.coalesce("completed", "tested"))
        .drop_nulls()
    )


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


def match_messages(
    blocks: Sequence[Block], path: Path, processes: pl.DataFrame, contradictory: pl.DataFrame
) -> MatchedMessages:
    """Match the messages of some receivers."""
    messages = _read_blocks(blocks, contradictory)
    pairs, fates = _pair_messages(messages, processes, in_time=True)
    taken = _keep_complete(pairs)
    rows = taken.select(
        "time_begin",
        "object_thread",
        "completed",
        "receiver",
        "size",
        pl.col("tag") + TAG_OFFSET * pl.col("tag").is_between(*OUR_TAGS),
        "report",
        "place",
    )
    early = taken.filter(pl.col("completed") < pl.col("time_begin"))
    return MatchedMessages(
        write_block(path, rows.to_numpy()),
        fates,
        pairs.height - taken.height,
        Counter((early["host"] == early["host_there"]).to_list()),
    )


def observe_pairs(
    blocks: Sequence[Block], path: Path, processes: pl.DataFrame, contradictory: pl.DataFrame
) -> MessageFile:
    """Match the messages of some receivers, and store those between hosts."""
    messages = _read_blocks(blocks, contradictory)
    pairs, _ = _pair_messages(messages, processes, in_time=False)
    return save_messages(_keep_complete(pairs), NoiseKind.MPI, path)


def _read_blocks(blocks: Sequence[Block], contradictory: pl.DataFrame) -> pl.DataFrame:
    """Return the messages by their begins, those of contradictory communicators and tags with that
    as the reason why they cannot be looked for.
    """
    messages = read_frame(blocks, MESSAGE_COLUMNS).sort("time_begin", "report", "place")
    number = UNMATCHABLE_REASONS.index(CONTRADICTORY)
    told = contradictory.with_columns(number=pl.lit(number, pl.Int64))
    messages = messages.join(told, on=["communicator", "tag"], how="left", maintain_order="left")
    why = pl.when(pl.col("why") < 0).then(pl.coalesce("number", "why")).otherwise("why")
    return messages.with_columns(why=why).drop("number")


def _keep_complete(pairs: pl.DataFrame) -> pl.DataFrame:
    return pairs.filter((pl.col("completed") != NULL) & (pl.col("completed") != OPEN))


def _pair_messages(
    messages: pl.DataFrame, processes: pl.DataFrame, in_time: bool
) -> tuple[pl.DataFrame, Counter[tuple[int, str]]]:
    """Return the pairs that are certain, by sends, and the fates of sends and receives, see
    :class:`MatchedMessages`.

    in_time: whether the clocks agree, so that a receive before its send speaks against a pair.
    """
    sends, receives, either = (
        messages.filter(pl.col("role") == role) for role in (SEND, RECEIVE, EITHER)
    )
    receives = _find_sources(sends, receives)
    numbered = [
        side.filter(pl.col("why") < 0).with_columns(number=pl.int_range(pl.len()).over(_STREAM))
        for side in (sends, receives)
    ]
    wild = receives.filter(pl.col("why") == UNMATCHABLE_REASONS.index(FROM_ANY_SOURCE_OR_TAG))
    streams = _find_streams(*numbered, wild, either, processes)
    from_the_end = pl.col("number") - pl.len().over(_STREAM).cast(pl.Int64)
    sent, received = (
        side.join(streams, on=_STREAM, maintain_order="left").with_columns(
            number=pl.when("backward").then(from_the_end).otherwise("number")
        )
        for side in numbered
    )
    key = [*_STREAM, "number"]
    pairs = sent.drop("completed").join(
        received.select(
            *key, "completed", receiver="object_thread", posted="time_begin", host_there="host"
        ),
        on=key,
        maintain_order="left",
    )
    is_later = pl.col("completed") >= pl.col("time_begin")
    causal = (pl.col("completed") == NULL) | is_later | (not in_time)
    equal = pl.col("sent") == pl.col("received")
    whole = pl.col("began") & (
        equal | pl.col("wildcard").is_null() | (pl.col("posted") < pl.col("wildcard"))
    )
    part = (
        ~pl.col("began")
        & (equal | pl.col("backward"))
        & pl.min_horizontal("wildcard", "either").is_null()
        & causal.all().over(_STREAM)
    )
    before = pl.col("either").is_null() | (
        pl.max_horizontal("posted", "time_begin") < pl.col("either")
    )
    judged = pairs.with_columns(certain=((whole | part) & before).fill_null(False))
    certain = judged.filter("certain")
    fates: Counter[tuple[int, str]] = Counter()
    for side, frame in ((SEND, sends), (RECEIVE, receives)):
        reasons = dict(frame.group_by("why").len().iter_rows())
        inside = reasons.pop(-1, 0)
        fates.update({(side, UNMATCHABLE_REASONS[why]): count for why, count in reasons.items()})
        fates[side, ""] += certain.height
        fates[side, ORDER_UNCERTAIN] += judged.height - certain.height
        fates[side, NO_PARTNER] += inside - judged.height
    return certain, fates


def _find_sources(sends: pl.DataFrame, receives: pl.DataFrame) -> pl.DataFrame:
    """Return the receives, of which those are of a stream that do not say it, where only one lacks
    receives that they can be, and lacks as many.
    """
    is_wild = pl.col("why") == UNMATCHABLE_REASONS.index(FROM_ANY_SOURCE_OR_TAG)
    wild = receives.filter(is_wild)
    if not wild.height:
        return receives
    sent, got = (side.filter(pl.col("why") < 0).group_by(_STREAM) for side in (sends, receives))
    lacking = (
        sent.agg(lacks=pl.len().cast(pl.Int64))
        .join(got.agg(got=pl.len().cast(pl.Int64)), on=_STREAM, how="left")
        .with_columns(pl.col("lacks") - pl.col("got").fill_null(0))
        .filter(pl.col("lacks") > 0)
    )
    found = []
    for which, keys in _WILD:
        rest = [name for name in _STREAM if name not in keys]
        told = (
            wild.filter(which)
            .drop(rest)
            .join(lacking.filter(pl.len().over(keys) == 1), on=keys)
            .filter(pl.len().over(keys) == pl.col("lacks"))
        )
        found.append(told.select(receives.columns))
        lacking = lacking.join(told, on=_STREAM, how="anti")
    told = pl.concat(found).with_columns(why=pl.lit(-1, pl.Int64), named=pl.lit(1, pl.Int64))
    order = ["report", "place"]
    return pl.concat([receives.join(told, on=order, how="anti"), told]).sort("time_begin", *order)


def _find_streams(
    sends: pl.DataFrame,
    receives: pl.DataFrame,
    wild: pl.DataFrame,
    either: pl.DataFrame,
    processes: pl.DataFrame,
) -> pl.DataFrame:
    """Return the streams with both sends and receives: how many of each (`sent`, `received`),
    whether both ranks were recorded from the beginning (`began`), when the first of the `wild`
    receives was posted that might take from it though it does not say so (`wildcard`), and when the
    first call was made that either sends or receives in it (`either`; null: none); and whether
    their ends alone tell their order (`backward`).
    """
    streams = (
        sends.group_by(_STREAM)
        .agg(sent=pl.len())
        .join(receives.group_by(_STREAM).agg(received=pl.len()), on=_STREAM)
    )
    for name in ("began", "ended"):
        ranks = processes.filter(name)["rank"].implode()
        both = pl.col("source").is_in(ranks) & pl.col("destination").is_in(ranks)
        streams = streams.with_columns(both.alias(name))
    for number, (which, keys) in enumerate(_WILD):
        firsts = (
            wild.filter(which).group_by(keys).agg(pl.col("time_begin").min().alias(f"{number}"))
        )
        streams = streams.join(firsts, on=keys, how="left")
    backward = either.rename({"source": "destination", "destination": "source"})
    touched = pl.concat([side.select(*_STREAM, "time_begin") for side in (either, backward)])
    streams = streams.join(
        touched.group_by(_STREAM).agg(either=pl.col("time_begin").min()), on=_STREAM, how="left"
    )
    wildcard = pl.min_horizontal(map(str, range(len(_WILD))))
    doubtful = pl.min_horizontal(wildcard, "either").is_not_null()
    return streams.select(
        *_STREAM,
        "sent",
        "received",
        "began",
        "either",
        wildcard=wildcard,
        backward=~pl.col("began") & pl.col("ended") & ~doubtful,
    )


def _describe_unmatched(
    fates: Counter[tuple[int, str]],
    either: int,
    unprepared: int,
    unfinished: int,
    early: Counter[bool],
) -> list[str]:
    # To anybody nobody sends: such rows are damaged.
    told = {
        key: count
        for key, count in fates.items()
        if count and key != (SEND, FROM_ANY_SOURCE_OR_TAG)
    }
    sends, receives = (
        sum(count for (of, _), count in told.items() if of == side) for side in (SEND, RECEIVE)
    )
    lines = fates[SEND, ""] - unfinished
    lacking = {
        f"{noun} {why}": count
        for side, noun in ((SEND, "sends"), (RECEIVE, "receives"))
        for (of, why), count in sorted(told.items())
        if of == side and why
    }
    lacking["messages of MPI_Sendrecv whose direction the report does not tell"] = either
    lacking["starts of requests of which the reports do not say what for, such as partitioned"] = (
        unprepared
    )
    lacking["receives not complete when the report ends"] = unfinished
    notes: list[str] = [
        Detail(f"MPI messages: {lines:,} lines for {sends:,} sends and {receives:,} receives"),
        *(f"MPI messages: {count:,} {lack}" for lack, count in lacking.items() if count),
    ]
    if early[False]:
        notes.append(
            ClockNote(
                f"MPI messages: {early[False]:,} received before they were sent, so the clocks of some hosts do not agree"
            )
        )
    if early[True]:
        notes.append(
            f"MPI messages: {early[True]:,} received before they were sent on one host, whose reports have one clock: "
            "some calls are not in the reports, or wrong"
        )
    return notes


def observe_collectives(context: RelationContext) -> Observed:
    """Return the blocking calls of every process, by communicator; the n-th of each is the others'
    n-th unless rows are missing.
    """
    processes = read_fact(context.files[PROCESSES], context.tasks)
    began = processes.filter("began")["task"].to_list() if processes.height else []
    batches = context.batch_facts(MEETINGS)
    more = (sorted(set(began)),)
    blocks = context.run_each("mpi-calls", sort_collective_calls, *batches, more=more)
    return Observed(divide_calls(chain.from_iterable(blocks), NoiseKind.MPI))


def sort_collective_calls(
    files: tuple[FactFile, ...],
    tasks: Mapping[tuple[int, int], int],
    path: Path,
    began: Sequence[int],
) -> tuple[MemberBlock, ...]:
    """Sort the calls of some reports by communicator, process and begin. began: tasks recorded from
    MPI_Init on.
    """
    has_times = (pl.col("time_begin") != NULL) & ~pl.col("time_end").is_in((NULL, OPEN))
    calls = read_fact(files, tasks).filter((pl.col("task") >= 0) & has_times)
    nothing = pl.lit(0, pl.Int64)
    calls = calls.select(
        "communicator",
        "host",
        "is_root",
        member=pl.col("task") * DEVICES,
        number=nothing - 1,
        function=nothing,
        role="waits",
        begin="time_begin",
        end="time_end",
        signature=pl.Series(hash_signatures(calls["signature"].to_numpy())),
        began=pl.col("task").is_in(began),
    )
    return sort_calls(calls, path)


RELATIONS = (
    Relation(
        "mpi_collectives",
        "MPI collectives",
        MPI,
        (MEETINGS, PROCESSES),
        observe=observe_collectives,
    ),
    Relation(
        NAME,
        "MPI messages",
        MPI,
        (MESSAGES, REQUESTS, PROCESSES),
        relate=relate_messages,
        observe=observe_messages,
    ),
)
