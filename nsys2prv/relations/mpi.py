"""Messages of MPI and of UCX, as lines from sends to the receives that took them; MPI's messages and
collectives as observations of the hosts' clocks.

The n-th send of a communicator, sender, receiver and tag belongs to the n-th such receive, if the
reports surely have all of both (mpi_sides.py finds the sides). A receive that does not say where its
message is from is one of the only sends that it can be of, if these and the receives are equally
many then; else it makes what follows uncertain.

The n-th send of a UCX worker to another with a tag meets the n-th receive of that worker from the
first with that tag. Lines are drawn only where MPI was not traced, for its messages travel by UCX.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

import polars as pl
from msgspec import Struct

from nsys2prv._util.columns import OPEN
from nsys2prv._util.errors import ClockNote, Detail
from nsys2prv.clock import NoiseKind
from nsys2prv.events.host import TRANSFERS
from nsys2prv.events.kind import CommunicationLines
from nsys2prv.events.mpi import (
    ANYWHERE,
    EITHER,
    MEETINGS,
    MESSAGES,
    PROCESSES,
    RECEIVE,
    REQUESTS,
    SEND,
)
from nsys2prv.export.source import NULL
from nsys2prv.relations import DEVICES, Observed, RelationContext, write_result
from nsys2prv.relations.blocks import (
    Block,
    MemberBlock,
    MessageFile,
    count_buckets,
    divide_calls,
    group_blocks,
    hash_signatures,
    read_frame,
    save_messages,
    sort_calls,
    store_lines,
    write_block,
)
from nsys2prv.relations.mpi_sides import (
    CONTRADICTORY,
    FROM_ANY_SOURCE_OR_TAG,
    MESSAGE_COLUMNS,
    STREAM,
    UNMATCHABLE_REASONS,
    MessageSides,
    sort_sides,
)
from nsys2prv.store.work_result import FactFile, WorkResult, read_fact

#: Columns that identify a stream of UCX messages.
UCX_CHANNEL = ("sender_worker", "receiver_worker", "tag")
#: Tags of other lines (see the catalogue); an MPI tag among them is written so much higher.
OUR_TAGS, TAG_OFFSET = (55_000, 55_999), 1_000_000_000
#: Why a message of a stream has no line.
ORDER_UNCERTAIN, NO_PARTNER = "whose order is not certain", "without a partner"
_OF_ONE, _NAMED = pl.col("communicator") != ANYWHERE, pl.col("named") == 1
#: Receives from MPI_ANY_SOURCE, and the fields of their streams that are known, the most specific
#: first.
_WILD = (
    (_OF_ONE & _NAMED & (pl.col("tag") < 0), ("communicator", "destination", "source")),
    (_OF_ONE & ~_NAMED & (pl.col("tag") >= 0), ("communicator", "destination", "tag")),
    (~_OF_ONE & (pl.col("tag") >= 0), ("destination", "tag")),
    (_OF_ONE & ~_NAMED & (pl.col("tag") < 0), ("communicator", "destination")),
    (~_OF_ONE & (pl.col("tag") < 0), ("destination",)),
)


def relate_messages(context: RelationContext) -> list[WorkResult]:
    """Return lines for the messages that are matched, and notes on those that are not."""
    sides, more = _sort_into_buckets(context)
    matched = context.run_each("mpi-pairs", match_messages, _group_sides(sides), more=more)
    pairs = [block for part in matched for block in part.pairs]
    results = store_lines(context, "mpi_messages", "mpi_message", True, pairs)
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
    sides, more = _sort_into_buckets(context)
    messages = context.run_each("mpi-pairs", observe_pairs, _group_sides(sides), more=more)
    return Observed(messages=messages)


def _sort_into_buckets(
    context: RelationContext,
) -> tuple[list[MessageSides], tuple[pl.DataFrame, pl.DataFrame]]:
    """Return the sides of messages, by report; and of the processes of the job the MPI rank (-1 if
    unknown), and whether it was recorded from MPI_Init on (`began`) and until MPI_Finalize
    (`ended`), with the communicators and tags that contradict each other.
    """
    processes = (
        read_fact(context.files[PROCESSES], context.tasks)
        .group_by("task")
        .agg(pl.col("rank").max(), pl.col("began", "ended").any())
    )
    more = (processes, count_buckets(context.files[MESSAGES]))
    batches = context.batch_facts(MESSAGES, REQUESTS)
    sides = context.run_each("mpi-sides", sort_sides, *batches, more=more)
    return sides, (processes, _find_contradictions(sides, processes))


def _find_contradictions(sides: Sequence[MessageSides], processes: pl.DataFrame) -> pl.DataFrame:
    """Return the communicators and tags in which fully recorded ranks received messages that nobody
    sent. Their calls were in another communicator that reuses the handle of a freed one, which the
    reports do not show.
    """
    whole = processes.filter(pl.col("began") & pl.col("ended"))["rank"].implode()
    streams = pl.concat([part.streams for part in sides]).group_by(STREAM)
    sums = streams.agg(pl.col("sent", "received").sum())
    lost = (pl.col("sent") == 0) & (pl.col("received") > 0) & pl.col("source").is_in(whole)
    return sums.filter(lost).select("communicator", "tag").unique()


def _group_sides(sides: Sequence[MessageSides]) -> list[tuple[Block, ...]]:
    return group_blocks(block for part in sides for block in part.blocks)


def _describe_unmatched(
    fates: Counter[tuple[int, str]],
    either: int,
    unprepared: int,
    unfinished: int,
    early: Counter[bool],
) -> list[str]:
    # A send names its receiver; rows that do not are damaged.
    del fates[SEND, FROM_ANY_SOURCE_OR_TAG]
    sends, receives = (
        sum(count for (of, _), count in fates.items() if of == side) for side in (SEND, RECEIVE)
    )
    lines, nouns = fates[SEND, ""] - unfinished, {SEND: "sends", RECEIVE: "receives"}
    lacking = {f"{nouns[of]} {why}": count for (of, why), count in sorted(fates.items()) if why} | {
        "messages of MPI_Sendrecv whose direction the report does not tell": either,
        "starts of requests of which the reports do not say what for, such as partitioned": unprepared,
        "receives not complete when the report ends": unfinished,
    }
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


def match_messages(
    blocks: Sequence[Block], path: Path, processes: pl.DataFrame, contradictory: pl.DataFrame
) -> MatchedMessages:
    """Match the messages of some receivers."""
    messages = _read_blocks(blocks, contradictory)
    pairs, fates = _pair_messages(messages, processes, in_time=True)
    taken = _keep_complete(pairs)
    tag = pl.col("tag") + TAG_OFFSET * pl.col("tag").is_between(*OUR_TAGS)
    ends = ("time_begin", "object_thread", "completed", "receiver")
    rows = taken.select(*ends, "size", tag, "report", "place")
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
        side.filter(pl.col("why") < 0).with_columns(number=pl.int_range(pl.len()).over(STREAM))
        for side in (sends, receives)
    ]
    wild = receives.filter(pl.col("why") == UNMATCHABLE_REASONS.index(FROM_ANY_SOURCE_OR_TAG))
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
    pairs = sent.drop("completed").join(taking, on=key, maintain_order="left")
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
    """Return the receives, with the source of those from MPI_ANY_SOURCE filled in where exactly one
    sender lacks receives, and lacks as many.
    """
    is_wild = pl.col("why") == UNMATCHABLE_REASONS.index(FROM_ANY_SOURCE_OR_TAG)
    wild = receives.filter(is_wild)
    if not wild.height:
        return receives
    sent, got = (side.filter(pl.col("why") < 0).group_by(STREAM) for side in (sends, receives))
    lacking = (
        sent.agg(lacks=pl.len().cast(pl.Int64))
        .join(got.agg(got=pl.len().cast(pl.Int64)), on=STREAM, how="left")
        .with_columns(pl.col("lacks") - pl.col("got").fill_null(0))
        .filter(pl.col("lacks") > 0)
    )
    found = []
    for which, keys in _WILD:
        rest = [name for name in STREAM if name not in keys]
        told = (
            wild.filter(which)
            .drop(rest)
            .join(lacking.filter(pl.len().over(keys) == 1), on=keys)
            .filter(pl.len().over(keys) == pl.col("lacks"))
        )
        found.append(told.select(receives.columns))
        lacking = lacking.join(told, on=STREAM, how="anti")
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


def relate_ucx_messages(context: RelationContext) -> list[WorkResult]:
    """Return lines for the messages of UCX, by one step."""
    if context.files[MESSAGES]:
        return []
    step = partial(
        match_ucx_messages,
        context.files[TRANSFERS],
        context.tasks,
        context.first_task,
        context.folder,
    )
    return context.run_steps([step])


def match_ucx_messages(
    files: tuple[FactFile, ...], tasks: Mapping[tuple[int, int], int], number: int, folder: Path
) -> WorkResult:
    """Match sends with receives, and store a line for each pair."""
    rows = read_fact(files, tasks).with_columns(
        sender_worker=pl.when("is_send").then("worker").otherwise("peer"),
        receiver_worker=pl.when("is_send").then("peer").otherwise("worker"),
    )
    rows = rows.sort("time_begin", maintain_order=True).with_columns(
        turn=pl.int_range(pl.len()).over(*UCX_CHANNEL, "is_send")
    )
    sends, receives = rows.filter("is_send"), rows.filter(~pl.col("is_send"))
    pairs = sends.join(receives, on=(*UCX_CHANNEL, "turn"), maintain_order="left")
    send, sender, receive, receiver, size, tag = (
        pairs[name].to_numpy()
        for name in (
            *("time_begin", "object_thread", "time_end_right", "object_thread_right"),
            *("bytes", "tag"),
        )
    )
    lines = CommunicationLines("ucx_message", send, sender, receive, receiver, receive, size, tag)
    result = write_result("ucx_messages", number, folder, lines=[lines] if pairs.height else [])
    if alone := rows.height - 2 * pairs.height:
        note = f"UCX: {alone:,} sends and receives without their other side in the reports: no line"
        result.notes.append(Detail(note))
    return result
