"""MPI: sends matched with the receives that took them, as lines; collectives as observations of the
hosts' clocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

import polars as pl
from msgspec import Struct

from nsys2prv._util.columns import OPEN
from nsys2prv._util.errors import ClockNote, Detail
from nsys2prv.clock import MPI as SOURCE
from nsys2prv.events.mpi import EITHER, MEETINGS, MESSAGES, PROCESSES, RECEIVE, REQUESTS, SEND
from nsys2prv.nsight.columns import NULL
from nsys2prv.relations import DEVICES, MPI, Observed, Relation, RelationContext, T
from nsys2prv.relations.blocks import (
    Block,
    MemberBlock,
    MessageFile,
    divide_calls,
    group_blocks,
    hash_signatures,
    read_frame,
    save_messages,
    sort_calls,
    store_lines,
    write_block,
)
from nsys2prv.relations.mpi_sides import ANY, KEPT, WHY, MessageSides, Process, sort_sides
from nsys2prv.store.task_result import FactFile, TaskResult, batch_by_report, read_fact


def observe_collectives(context: RelationContext) -> Observed:
    """Return the blocking calls of every process, by communicator; the n-th of each is the others'
    n-th unless rows are missing.
    """
    processes = read_fact(context.files[PROCESSES], context.tasks)
    began = processes.filter("began")["task"].to_list() if processes.height else []
    steps = []
    for number, files in enumerate(batch_by_report(context.files[MEETINGS])):
        path = context.folder / f"mpi-calls-{number}.blocks"
        steps.append(partial(sort_collective_calls, files, context.tasks, sorted(set(began)), path))
    return Observed(divide_calls(chain.from_iterable(context.run(steps)), SOURCE))


def sort_collective_calls(
    files: tuple[FactFile, ...],
    tasks: Mapping[tuple[int, int], int],
    began: Sequence[int],
    path: Path,
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
    return sort_calls(calls.cast(pl.Int64), path)


NAME, KIND = "mpi_messages", "mpi_message"
#: Tags of other lines (see the catalogue); an MPI tag among them is written so much higher.
OUR_TAGS, TAG_OFFSET = (55_000, 55_999), 1_000_000_000
#: Why a message of a stream has no line.
UNCERTAIN, ALONE = "whose order is not certain", "without a partner"
#: Facts (bytes) that one step matches; lines that one step stores.
BUCKET_BYTES, STEP_ROWS = 8_000_000, 200_000
_STREAM = ["communicator", "source", "destination", "tag"]


def relate_messages(context: RelationContext) -> list[TaskResult]:
    """Return lines for the messages that are matched, and notes on those that are not."""
    sides, processes = _sort_into_buckets(context, "messages")
    path = context.folder / f"mpi-pairs-{context.number}"
    matched = _run_by_bucket(context, match_messages, sides, processes, path)
    pairs = [block for part in matched for block in part.pairs]
    results = store_lines(context, NAME, KIND, True, pairs, STEP_ROWS)
    results[0].notes = _describe_unmatched(
        sum((part.fates for part in matched), Counter()),
        sum(part.either for part in sides),
        sum(part.unfinished for part in matched),
        sum((part.early for part in matched), Counter()),
    )
    return results


def observe_messages(context: RelationContext) -> Observed:
    """Return files of bounds from messages between hosts: none is received before it is sent."""
    sides, processes = _sort_into_buckets(context, "clock-messages")
    path = context.folder / "observed-mpi-messages"
    return Observed(messages=_run_by_bucket(context, observe_pairs, sides, processes, path))


def _sort_into_buckets(
    context: RelationContext, name: str
) -> tuple[list[MessageSides], list[Process]]:
    """Return the sides of messages, by report, and the processes of the job."""
    processes = (
        read_fact(context.files[PROCESSES], context.tasks)
        .group_by("task")
        .agg(pl.col("rank").max(), pl.col("began", "ended").any())
        .select("rank", "began", "ended")
        .sort("rank", "began", "ended")
    )
    process_list = [Process(*row) for row in processes.iter_rows()]
    files = context.files[MESSAGES]
    count = max(1, sum(file.frame.size for file in files) // BUCKET_BYTES)
    steps = []
    for number, part in enumerate(batch_by_report(files)):
        reports = {file.report for file in part}
        requests = tuple(file for file in context.files[REQUESTS] if file.report in reports)
        path = context.folder / f"mpi-{name}-{number}.blocks"
        steps.append(partial(sort_sides, part, requests, context.tasks, process_list, count, path))
    return context.run(steps), process_list


def _run_by_bucket(
    context: RelationContext,
    match: Callable[[Sequence[Block], Sequence[Process], Path], T],
    sides: Sequence[MessageSides],
    processes: Sequence[Process],
    path: Path,
) -> list[T]:
    """Match the blocks of each bucket at once. path: of files, but for their endings."""
    buckets = group_blocks(block for part in sides for block in part.blocks)
    steps = [
        partial(match, blocks, processes, path.with_suffix(f".{place}"))
        for place, blocks in enumerate(buckets)
    ]
    return context.run(steps)


class MatchedMessages(Struct, frozen=True):
    """Messages that a step matched."""

    #: That are certain and complete, PAIR of each and then its report and place.
    pairs: tuple[Block, ...]
    #: How many messages, by side and why they are of no pair, "" for those of one.
    fates: Counter[tuple[int, str]]
    #: Receives that were not complete in the end.
    unfinished: int
    #: Those before their sends, by whether both are on one host.
    early: Counter[bool]


def match_messages(
    blocks: Sequence[Block], processes: Sequence[Process], path: Path
) -> MatchedMessages:
    """Match the messages of some communicators and receivers."""
    pairs, fates = _pair_messages(_read_blocks(blocks), processes, in_time=True)
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


def observe_pairs(blocks: Sequence[Block], processes: Sequence[Process], path: Path) -> MessageFile:
    """Match the messages of some communicators and receivers, and store those between hosts."""
    pairs, _ = _pair_messages(_read_blocks(blocks), processes, in_time=False)
    return save_messages(_keep_complete(pairs), SOURCE, path)


def _read_blocks(blocks: Sequence[Block]) -> pl.DataFrame:
    return read_frame(blocks, KEPT).sort("time_begin", "report", "place")


def _keep_complete(pairs: pl.DataFrame) -> pl.DataFrame:
    return pairs.filter((pl.col("completed") != NULL) & (pl.col("completed") != OPEN))


def _pair_messages(
    messages: pl.DataFrame, processes: Sequence[Process], in_time: bool
) -> tuple[pl.DataFrame, Counter[tuple[int, str]]]:
    """Return the pairs that are certain, by sends, and the fates of sends and receives, see
    :class:`MatchedMessages`.

    in_time: whether the clocks agree, so that a receive before its send speaks against a pair.
    """
    sends, receives, either = (
        messages.filter(pl.col("role") == role) for role in (SEND, RECEIVE, EITHER)
    )
    numbered = [
        side.filter(pl.col("why") < 0).with_columns(number=pl.int_range(pl.len()).over(_STREAM))
        for side in (sends, receives)
    ]
    wild = receives.filter(pl.col("why") == WHY.index(ANY))
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
        fates.update({(side, WHY[why]): count for why, count in reasons.items()})
        fates[side, ""] += certain.height
        fates[side, UNCERTAIN] += judged.height - certain.height
        fates[side, ALONE] += inside - judged.height
    return certain, fates


def _find_streams(
    sends: pl.DataFrame,
    receives: pl.DataFrame,
    wild: pl.DataFrame,
    either: pl.DataFrame,
    processes: Sequence[Process],
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
        ranks = sorted({process.rank for process in processes if getattr(process, name)})
        both = pl.col("source").is_in(ranks) & pl.col("destination").is_in(ranks)
        streams = streams.with_columns(both.alias(name))
    ranks = ["communicator", "destination"]
    named, tagged = pl.col("named") == 1, pl.col("tag") >= 0
    for name, which, keys in (
        ("any", ~named & ~tagged, ranks),
        ("any_source", ~named & tagged, [*ranks, "tag"]),
        ("any_tag", named & ~tagged, [*ranks, "source"]),
    ):
        firsts = wild.filter(which).group_by(keys).agg(pl.col("time_begin").min().alias(name))
        streams = streams.join(firsts, on=keys, how="left")
    backward = either.rename({"source": "destination", "destination": "source"})
    touched = pl.concat([side.select(*_STREAM, "time_begin") for side in (either, backward)])
    streams = streams.join(
        touched.group_by(_STREAM).agg(either=pl.col("time_begin").min()), on=_STREAM, how="left"
    )
    wildcard = pl.min_horizontal("any", "any_source", "any_tag")
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
    fates: Counter[tuple[int, str]], either: int, unfinished: int, early: Counter[bool]
) -> list[str]:
    descriptions = {
        side: {why: count for (of, why), count in fates.items() if of == side and count}
        for side in (SEND, RECEIVE)
    }
    # To anybody nobody sends: such rows are damaged.
    descriptions[SEND].pop(ANY, None)
    if any_ := descriptions[RECEIVE].pop(ANY, 0):
        descriptions[RECEIVE][
            "from any source or with any tag: the report does not tell which message they received"
        ] = any_
    sends, receives = (sum(counts.values()) for counts in descriptions.values())
    lines = fates[SEND, ""] - unfinished
    lacking = {
        **{f"sends {why}": count for why, count in sorted(descriptions[SEND].items()) if why},
        **{f"receives {why}": count for why, count in sorted(descriptions[RECEIVE].items()) if why},
        "messages of MPI_Sendrecv whose direction the report does not tell": either,
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
