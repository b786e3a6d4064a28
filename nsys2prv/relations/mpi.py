"""MPI: sends matched with the receives that took them (mpi_sides.py, mpi_pairs.py), as lines;
collectives as observations of the hosts' clocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

import polars as pl

from nsys2prv._util.columns import OPEN
from nsys2prv._util.errors import ClockNote, Detail
from nsys2prv.clock import NoiseKind
from nsys2prv.events.mpi import MEETINGS, MESSAGES, PROCESSES, RECEIVE, REQUESTS, SEND
from nsys2prv.export.source import NULL
from nsys2prv.relations import DEVICES, Observed, RelationContext
from nsys2prv.relations.blocks import (
    Block,
    MemberBlock,
    count_buckets,
    divide_calls,
    group_blocks,
    hash_signatures,
    sort_calls,
    store_lines,
)
from nsys2prv.relations.mpi_pairs import match_messages, observe_pairs
from nsys2prv.relations.mpi_sides import FROM_ANY_SOURCE_OR_TAG, STREAM, MessageSides, sort_sides
from nsys2prv.store.work_result import FactFile, WorkResult, read_fact

#: The relation, and the kind of its lines in the catalogue.
NAME, LINE_KIND = "mpi_messages", "mpi_message"


def relate_messages(context: RelationContext) -> list[WorkResult]:
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
