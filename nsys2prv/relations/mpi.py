"""MPI: sends matched with the receives that took them, as lines; collectives as observations of the
hosts' clocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.columns import OPEN
from nsys2prv._util.errors import ClockNote, Detail
from nsys2prv.clock import MPI as SOURCE
from nsys2prv.events.mpi import EITHER, MEETINGS, MESSAGES, PROCESSES, RECEIVE, REQUESTS, SEND
from nsys2prv.nsight.source import NULL
from nsys2prv.relations import (
    DEVICES,
    MPI,
    ObservationFile,
    Observations,
    Relation,
    RelationContext,
    save_observations,
)
from nsys2prv.relations.blocks import Block, group_blocks, store_lines, write_blocks
from nsys2prv.relations.call_blocks import CallBlocks, CallPortion, divide_calls, sort_calls
from nsys2prv.relations.mpi_sides import ANY, KEPT, WHY, MessageSides, Process, SidesStep
from nsys2prv.store.facts import FactFile, batches, read_fact
from nsys2prv.store.task_result import TaskResult


def observe_collectives(context: RelationContext) -> list[CallPortion]:
    """Return the blocking calls of every process, by communicator; the n-th of each is the others'
    n-th unless rows are missing.
    """
    processes = read_fact(context.files[PROCESSES], context.tasks)
    began = (
        frozenset(processes.filter("began")["task"].to_list()) if processes.height else frozenset()
    )
    steps = [
        MeetingsStep(files, context.tasks, began, context.folder / f"mpi-calls-{number}.blocks")
        for number, files in enumerate(batches(context.files[MEETINGS]))
    ]
    return divide_calls(list(context.run(steps)), SOURCE)


class MeetingsStep(Struct, frozen=True):
    """Sorts the calls of some reports by communicator, process and begin. began: tasks recorded
    from MPI_Init on.
    """

    files: tuple[FactFile, ...]
    tasks: Mapping[tuple[int, int], int]
    began: frozenset[int]
    path: Path

    def run(self) -> CallBlocks:
        nothing = pl.lit(0, pl.Int64)
        return sort_calls(
            _with_times(read_fact(self.files, self.tasks)).select(
                "communicator",
                "host",
                "members",
                member=pl.col("task") * DEVICES,
                number=nothing - 1,
                function=nothing,
                role="waits",
                is_root="is_root",
                begin="time_begin",
                end="time_end",
                operation="signature",
                count=nothing,
                size=nothing,
                began=pl.col("task").is_in(sorted(self.began)).cast(pl.Int64),
            ),
            self.path,
        )


def _with_times(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the calls with both times."""
    known = (pl.col("time_begin") != NULL) & ~pl.col("time_end").is_in((NULL, OPEN))
    return calls.filter((pl.col("task") >= 0) & known)


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
    sides, processes = _sides(context, "messages")
    found = list(
        context.run(
            [
                MatchStep(
                    blocks,
                    processes,
                    context.folder / f"mpi-pairs-{context.number}-{place}.blocks",
                )
                for place, blocks in enumerate(_buckets(sides))
            ]
        )
    )
    results = store_lines(
        context, NAME, KIND, True, [block for part in found for block in part.pairs], STEP_ROWS
    )
    results[0].notes = _notes(
        sum((part.fates for part in found), Counter()),
        sum(part.either for part in sides),
        sum(part.unfinished for part in found),
        sum((part.early for part in found), Counter()),
    )
    return results


def observe_messages(context: RelationContext) -> list[ObservationFile]:
    """Return files of bounds from messages between hosts: none is received before it is sent."""
    sides, processes = _sides(context, "clock-messages")
    return list(
        context.run(
            [
                HostsStep(
                    blocks, processes, context.folder / f"observed-mpi-messages-{place}.pickle"
                )
                for place, blocks in enumerate(_buckets(sides))
            ]
        )
    )


def _sides(context: RelationContext, name: str) -> tuple[list[MessageSides], tuple[Process, ...]]:
    """Return the sides of messages, by report, and the processes of the job."""
    processes = (
        read_fact(context.files[PROCESSES], context.tasks)
        .group_by("task")
        .agg(pl.col("rank").max(), pl.col("began", "ended").any())
    )
    known = tuple(
        Process(*row)
        for row in processes.select("rank", "began", "ended")
        .sort("rank", "began", "ended")
        .iter_rows()
    )
    files = context.files[MESSAGES]
    count = max(1, sum(file.frame.size for file in files) // BUCKET_BYTES)
    steps = []
    for number, part in enumerate(batches(files)):
        reports = {file.report for file in part}
        requests = tuple(file for file in context.files[REQUESTS] if file.report in reports)
        steps.append(
            SidesStep(
                part,
                requests,
                context.tasks,
                known,
                count,
                context.folder / f"mpi-{name}-{number}.blocks",
            )
        )
    return list(context.run(steps)), known


def _buckets(sides: Sequence[MessageSides]) -> list[tuple[Block, ...]]:
    """Return the bucket of each row; a bucket is matched at once."""
    return group_blocks(block for part in sides for block in part.blocks)


class MatchedMessages(Struct, frozen=True):
    """pairs: that are certain and complete, PAIR of each and then its report and place. fates: how
    many messages, by side and why they are of no pair, "" for those of one. unfinished: receives
    that were not complete in the end; early: those before their sends, by whether both are on one
    host.
    """

    pairs: tuple[Block, ...]
    fates: Counter[tuple[int, str]]
    unfinished: int
    early: Counter[bool]


class MatchStep(Struct, frozen=True):
    """Matches the messages of some communicators and receivers."""

    blocks: tuple[Block, ...]
    processes: tuple[Process, ...]
    path: Path

    def run(self) -> MatchedMessages:
        pairs, fates = _pairs(_read(self.blocks), self.processes, in_time=True)
        taken = _complete(pairs)
        first, last = OUR_TAGS
        rows = taken.select(
            "time_begin",
            "object_thread",
            "completed",
            "receiver",
            "size",
            pl.when(pl.col("tag").is_between(first, last))
            .then(pl.col("tag") + TAG_OFFSET)
            .otherwise("tag"),
            "report",
            "place",
        ).to_numpy()
        return MatchedMessages(
            write_blocks(self.path, np.zeros(len(rows), np.int64), rows),
            fates,
            pairs.height - taken.height,
            Counter(
                taken.filter(pl.col("completed") < pl.col("time_begin"))
                .select(pl.col("host") == pl.col("receiving_host"))
                .to_series()
                .to_list()
            ),
        )


class HostsStep(Struct, frozen=True):
    """Matches the messages of some communicators and receivers, and stores those between hosts."""

    blocks: tuple[Block, ...]
    processes: tuple[Process, ...]
    path: Path

    def run(self) -> ObservationFile:
        from nsys2prv.clock.observations import Messages

        pairs = _complete(_pairs(_read(self.blocks), self.processes, in_time=False)[0]).filter(
            pl.col("host") != pl.col("receiving_host")
        )
        sender, sent, receiver, received = (
            pairs[name].to_numpy() for name in ("host", "time_begin", "receiving_host", "completed")
        )
        return save_observations(
            Observations(
                messages=Messages(np.full(len(sent), SOURCE), sender, sent, receiver, received)
            ),
            self.path,
        )


def _read(blocks: Sequence[Block]) -> pl.DataFrame:
    rows = np.concatenate([block.read() for block in blocks])
    return pl.DataFrame(rows, schema=dict.fromkeys(KEPT, pl.Int64), orient="row").sort(
        "time_begin", "report", "place"
    )


def _complete(pairs: pl.DataFrame) -> pl.DataFrame:
    return pairs.filter((pl.col("completed") != NULL) & (pl.col("completed") != OPEN))


def _pairs(
    messages: pl.DataFrame, processes: Sequence[Process], in_time: bool
) -> tuple[pl.DataFrame, Counter[tuple[int, str]]]:
    """Return the pairs that are certain, by sends, and the fates of sends and receives, see
    :class:`MatchedMessages`.

    in_time: whether the clocks agree, so that a receive before its send speaks against a pair.
    """
    sends, receives, either = (
        messages.filter(pl.col("role") == role) for role in (SEND, RECEIVE, EITHER)
    )
    sends, receives = (
        frame.with_columns(
            number=pl.when(pl.col("why") < 0).then(pl.lit(1)).cum_sum().over([*_STREAM, "why"])
        )
        for frame in (sends, receives)
    )
    streams = _streams(sends, receives, either, processes)
    backward = streams.filter("backward").select(_STREAM)
    if backward.height:
        sends, receives = (_counted_from_the_end(frame, backward) for frame in (sends, receives))
    key = [*_STREAM, "number"]
    pairs = (
        sends.filter(pl.col("why") < 0)
        .join(
            receives.filter(pl.col("why") < 0).select(
                *key,
                "completed",
                receiver="object_thread",
                posted="time_begin",
                receiving_host="host",
            ),
            on=key,
            how="inner",
            maintain_order="left",
        )
        .drop("completed")
        .rename({"completed_right": "completed"})
        .join(streams, on=_STREAM, how="left", maintain_order="left")
    )
    causal = (
        (pl.col("completed") == NULL)
        | (pl.col("completed") >= pl.col("time_begin"))
        | (not in_time)
    )
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
        told = dict(frame.group_by("why").len().iter_rows())
        inside = told.pop(-1, 0)
        fates.update({(side, WHY[why]): count for why, count in told.items()})
        fates.update(
            {
                (side, ""): certain.height,
                (side, UNCERTAIN): judged.height - certain.height,
                (side, ALONE): inside - judged.height,
            }
        )
    return certain, fates


def _counted_from_the_end(sides: pl.DataFrame, streams: pl.DataFrame) -> pl.DataFrame:
    """Return the sends or receives with numbers up to 0 in these streams."""
    counts = (
        sides.filter(pl.col("why") < 0)
        .join(streams, on=_STREAM, how="semi")
        .group_by(_STREAM)
        .agg(many=pl.len())
    )
    return (
        sides.join(counts, on=_STREAM, how="left", maintain_order="left")
        .with_columns(pl.col("number") - pl.col("many").fill_null(0).cast(pl.Int64))
        .drop("many")
    )


def _streams(
    sends: pl.DataFrame, receives: pl.DataFrame, either: pl.DataFrame, processes: Sequence[Process]
) -> pl.DataFrame:
    """Return the streams with both sends and receives: how many of each, whether both ranks were
    recorded from the beginning, and to the end, when the first receive was posted that might take
    from it though it does not say so, and when the first call was made that either sends or
    receives in it (null: none); and whether their ends alone tell their order.
    """
    count = {"sent": sends, "received": receives}
    counted = [
        frame.filter(pl.col("why") < 0).group_by(_STREAM).agg(pl.len().alias(name))
        for name, frame in count.items()
    ]
    streams = counted[0].join(counted[1], on=_STREAM, how="inner")
    began = sorted({process.rank for process in processes if process.began})
    ended = sorted({process.rank for process in processes if process.ended})
    streams = streams.with_columns(
        began=pl.col("source").is_in(began) & pl.col("destination").is_in(began),
        ended=pl.col("source").is_in(ended) & pl.col("destination").is_in(ended),
    )
    wild = receives.filter(pl.col("why") == WHY.index(ANY))
    ranks = ["communicator", "destination"]
    named = pl.col("named") == 1
    for name, rows, keys in (
        ("first", wild.filter(~named & (pl.col("tag") < 0)), ranks),
        ("second", wild.filter(~named & (pl.col("tag") >= 0)), [*ranks, "tag"]),
        ("third", wild.filter(named & (pl.col("tag") < 0)), [*ranks, "source"]),
    ):
        streams = streams.join(
            rows.group_by(keys).agg(pl.col("time_begin").min().alias(name)), on=keys, how="left"
        )
    backward = either.rename({"source": "destination", "destination": "source"})
    touched = pl.concat(
        [either.select(*_STREAM, "time_begin"), backward.select(*_STREAM, "time_begin")]
    )
    streams = streams.join(
        touched.group_by(_STREAM).agg(either=pl.col("time_begin").min()), on=_STREAM, how="left"
    )
    streams = streams.with_columns(wildcard=pl.min_horizontal("first", "second", "third")).drop(
        "first", "second", "third"
    )
    return streams.with_columns(
        backward=~pl.col("began")
        & pl.col("ended")
        & pl.min_horizontal("wildcard", "either").is_null()
    )


def _notes(
    fates: Counter[tuple[int, str]], either: int, unfinished: int, early: Counter[bool]
) -> list[str]:
    told = {
        side: {why: count for (of, why), count in fates.items() if of == side and count}
        for side in (SEND, RECEIVE)
    }
    # To anybody nobody sends: such rows are damaged.
    told[SEND].pop(ANY, None)
    if ANY in told[RECEIVE]:
        told[RECEIVE][
            "from any source or with any tag: the report does not tell which message they received"
        ] = told[RECEIVE].pop(ANY)
    sends, receives = (sum(counts.values()) for counts in told.values())
    notes: list[str] = [
        Detail(
            f"MPI messages: {fates[SEND, ''] - unfinished:,} lines for {sends:,} sends and {receives:,} receives"
        )
    ]
    for name, counts in (("sends", told[SEND]), ("receives", told[RECEIVE])):
        notes += [f"MPI messages: {counts[why]:,} {name} {why}" for why in sorted(counts) if why]
    if either:
        notes.append(
            f"MPI messages: {either:,} messages of MPI_Sendrecv whose direction the report does not tell"
        )
    if unfinished:
        notes.append(f"MPI messages: {unfinished:,} receives not complete when the report ends")
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
