"""Match NCCL sends with receives, as lines between the kernels of two ranks.

The n-th send of a rank to another one in a communicator belongs to the n-th receive there, if both
have equally many and all their kernels overlap. Otherwise (captures that begin or end at different
calls, missing rows), messages are matched by the ends of their kernels, because a sending and a
receiving kernel end nearly together. If ends do not decide (small messages wait in a buffer), the
order is kept if both have equally many and no message is received before it is sent.

NCCL kernels that only send and receive get records if all their messages are matched: their
lateness, their wait for the kernels of the ranks with which they exchange messages, and the
transfer speed. The transfer begins when the last of these kernels, including their own, has begun.
Bandwidth counts the bytes sent or the bytes received, whichever is larger, as nccl-tests does.
Times are in ns, bandwidths in B/s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

import polars as pl
from msgspec import Struct

from nsys2prv._util.columns import ABSENT
from nsys2prv._util.text import Note
from nsys2prv.clock import ALIGNED_ERROR, UNCLEAR_KINDS, UTC_ERROR, FindingKind, NoiseKind, Role
from nsys2prv.events.kind import Rows
from nsys2prv.events.nccl import MESSAGES, RECEIVE, SEND, SEND_RECEIVE
from nsys2prv.match import (
    COLUMNS,
    PAIR_COLUMNS,
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
from nsys2prv.match.nccl_collectives import (
    TRANSFER_FIELDS,
    find_bandwidth,
    keep_sound_kernels,
    make_rows,
    measure_waits,
)
from nsys2prv.table.task_result import TaskResult

#: The relation, and the kind of its lines in the catalogue.
NAME, LINE_KIND = "nccl_messages", "nccl_message"
#: Layouts of records on kernels that only send and receive.
LAYOUT, TRANSFER = "nccl_point_to_point", "nccl_message_transfer"
FIELDS = ("operation", "late", "wait", "transfer")
_STREAM = ["communicator", "source", "target"]
#: The order of messages; lines of certain pairs come first. The kernels of a graph have one call.
ORDER = ("task", "communicator", "time_call", "time_begin", "place")


def relate_messages(context: RelationContext) -> list[TaskResult]:
    """Match NCCL sends with receives. Return results with a communication line for each pair,
    stored by time, and records of the kernels.
    """
    buckets = _sort_into_buckets(context)
    paired = context.run_each("nccl-pairs", pair_messages, buckets, more=(len(buckets),))
    records = [block for part in paired for block in part.records]
    results = store_lines(context, NAME, LINE_KIND, False, records)
    pairs, left = sum(block.rows for block in records), sum(part.left for part in paired)
    results[0].notes = [Note(f"NCCL sends matched with their receives: {pairs:,}", is_routine=True)]
    if left:
        text = f"NCCL: {left:,} sends and receives have no communication line: their partners are not in the reports"
        results[0].notes.append(Note(text))
    sides = group_blocks(block for part in paired for block in part.sides)
    steps = [
        partial(store_kernels, number, part, context.folder)
        for number, part in enumerate(sides, context.first_task + len(results))
    ]
    return [*results, *context.run_all(steps)]


def observe_messages(context: RelationContext) -> Observed:
    """Return NCCL messages between hosts, from which clocks are compared."""
    buckets = _sort_into_buckets(context)
    messages = context.run_each("nccl-pairs", observe_pairs, buckets)
    return Observed(messages=list(chain.from_iterable(messages)))


def _sort_into_buckets(context: RelationContext) -> list[tuple[Block, ...]]:
    """Sort the messages into blocks. Each block contains several pairs of communicator and sender."""
    pieces = context.divide_facts(MESSAGES)
    members = context.run_each("nccl-members", list_members, *pieces)
    guessed = guess_ranks(pl.concat(members)) if members else pl.DataFrame()
    more = (count_buckets(context.files[MESSAGES]), guessed)
    parts = context.run_each("nccl-messages", sort_messages, *pieces, more=more)
    return group_blocks(block for part in parts for block in part)


def list_members(
    files: tuple[FactFile, ...], tasks: Mapping[tuple[int, int], int], path: Path
) -> pl.DataFrame:
    """Return a row for each communicator and task that sends or receives in it: `communicator`,
    `task`, the greatest `peer`, `rank` and `ranks`, and the `least` peer. path: of a new file.
    """
    messages = read_fact(files, tasks, COLUMNS["nccl_members"])
    return messages.group_by("communicator", "task").agg(
        pl.col("peer", "rank", "ranks").max(), least=pl.col("peer").min()
    )


def guess_ranks(members: pl.DataFrame) -> pl.DataFrame:
    """Guess the ranks of tasks in communicators that some reports do not name, because they were
    created before the capture. Return `communicator`, `task` and `guess` (the rank).

    NCCL ranks follow job ranks if all of them send or receive. members: from :func:`list_members`.
    """
    guess = pl.col("task").rank("dense").over("communicator").cast(pl.Int64) - 1
    members = members.with_columns(guess=guess)
    count = pl.len()
    fits = (
        ((pl.col("rank") < 0) | (pl.col("rank") == guess)).all()
        & (pl.col("peer").max() == count - 1)
        & (pl.col("least").min() == 0)
        & ((pl.col("ranks").max() < 0) | (pl.col("ranks").max() == count))
        & ((pl.col("peer") != pl.col("guess")) | (pl.col("least") != pl.col("guess"))).all()
    )
    return members.filter(fits.over("communicator")).select("communicator", "task", "guess")


def sort_messages(
    files: tuple[FactFile, ...],
    tasks: Mapping[tuple[int, int], int],
    path: Path,
    buckets: int,
    guessed: pl.DataFrame,
) -> tuple[Block, ...]:
    """Sort the messages of some reports into this many buckets by communicator and sender, so that
    one task can match a bucket. path: of the new file. guessed: from :func:`guess_ranks`.
    """
    messages = _keep_usable(read_fact(files, tasks, COLUMNS["nccl_message_facts"]), guessed)
    bucket = assign_buckets(
        buckets, messages["communicator"].to_numpy(), messages["source"].to_numpy()
    )
    return write_buckets(path, bucket, messages)


class PairedMessages(Struct, frozen=True):
    """Messages whose send and receive one task paired, and the number of those without partner."""

    #: PAIR_COLUMNS of each, without a tag; then whether it is doubtful, and ORDER.
    records: tuple[Block, ...]
    #: Sends and receives of no pair.
    left: int
    #: Both kernels of each, see :func:`_write_sides`.
    sides: tuple[Block, ...]


def pair_messages(blocks: Sequence[Block], path: Path, buckets: int) -> PairedMessages:
    """Match sends with receives in some buckets, and store the pairs. path: of new files. buckets:
    number of buckets for the kernels' rows.
    """
    messages = read_blocks(blocks)
    pairs = _pair_messages(
        messages, ALIGNED_ERROR if messages["clock_group"].n_unique() == 1 else UTC_ERROR
    )
    ends = ("time_begin", "object_kernel", "time_end_there", "object_kernel_there", "bytes")
    rows = pairs.sort("time_begin", maintain_order=True).select(
        *(pl.col(end).alias(name) for end, name in zip(ends, PAIR_COLUMNS, strict=False)),
        pl.lit(0).alias("tag"),
        pl.col("doubtful", *ORDER),
    )
    return PairedMessages(
        write_block(path, rows),
        messages.height - 2 * pairs.height,
        _write_sides(pairs, buckets, path.with_suffix(".sides")),
    )


def observe_pairs(blocks: Sequence[Block], path: Path) -> tuple[Block, ...]:
    """Match sends with receives in some buckets, and store the messages between hosts in a new
    file.
    """
    pairs = _pair_messages(read_blocks(blocks), UTC_ERROR)
    return write_messages(path, pairs.with_columns(completed="time_end_there"), NoiseKind.NCCL)


def _keep_usable(messages: pl.DataFrame, guessed: pl.DataFrame) -> pl.DataFrame:
    """Return the messages whose sender and receiver are known, with COLUMNS["nccl_messages"]."""
    messages = messages.join(
        guessed, on=("communicator", "task"), how="left", maintain_order="left"
    )
    two = (pl.col("ranks") == 2) & pl.col("peer").is_between(0, 1)
    rank = (
        pl.when(pl.col("rank") >= 0)
        .then("rank")
        .when(two)
        .then(1 - pl.col("peer"))
        .otherwise(pl.col("guess").fill_null(ABSENT))
    )
    sending = pl.col("operation") == SEND
    known = (pl.col("rank") >= 0) & (pl.col("peer") >= 0) & (pl.col("communicator") != 0)
    return (
        keep_sound_kernels(messages)
        .with_columns(rank=rank)
        .filter(known & (pl.col("rank") != pl.col("peer")))
        .with_columns(
            sends=sending,
            source=pl.when(sending).then("rank").otherwise("peer"),
            target=pl.when(sending).then("peer").otherwise("rank"),
        )
        .select(COLUMNS["nccl_messages"])
    )


def _pair_messages(messages: pl.DataFrame, error: float) -> pl.DataFrame:
    """Return sends with their receives (columns end in `_there`). error: of the clocks (ns)."""
    messages = messages.sort(ORDER).with_columns(pl.col("sends") == 1, doubtful=pl.lit(False))
    messages = messages.with_columns(ordinal=pl.int_range(pl.len()).over(*_STREAM, "sends"))
    orders = messages.join(_find_orders(messages), on=_STREAM, how="left", maintain_order="left")
    doubtful = orders.filter(~pl.col("together").fill_null(False))
    if doubtful.height:
        doubtful = _order_by_ends(doubtful.with_columns(doubtful=pl.lit(True)), error)
        messages = pl.concat([orders.filter("together"), doubtful])
    return _join_sides(messages.filter(pl.col("ordinal") >= 0))


def _join_sides(messages: pl.DataFrame) -> pl.DataFrame:
    sent, received = messages.filter("sends"), messages.filter(~pl.col("sends"))
    key = [*_STREAM, "ordinal"]
    pairs = sent.join(received, on=key, suffix="_there", maintain_order="left")
    return pairs.filter(pl.col("bytes") == pl.col("bytes_there"))


def _find_orders(messages: pl.DataFrame) -> pl.DataFrame:
    """Return for each stream whether its order is possible and whether it is certain.

    `possible`: equally many sends and receives, of equal sizes, none received before it is sent.
    `together`: all kernels overlap.
    """
    sides = {"sent": pl.col("sends").sum(), "received": (~pl.col("sends")).sum()}
    counts = messages.group_by(_STREAM).agg(**sides)
    causal = pl.col("time_end_there") >= pl.col("time_begin")
    overlap = causal & (pl.col("time_end") >= pl.col("time_begin_there"))
    joined = _join_sides(messages).group_by(_STREAM)
    joined = joined.agg(pairs=pl.len(), causal=causal.all(), overlap=overlap.all())
    even = (pl.col("sent") == pl.col("received")) & (pl.col("pairs") == pl.col("sent"))
    return counts.join(joined, on=_STREAM).select(
        *_STREAM, possible=even & pl.col("causal"), together=even & pl.col("overlap")
    )


def _order_by_ends(messages: pl.DataFrame, error: float) -> pl.DataFrame:
    """Return the messages with ordinals from the ends of their kernels; -1 if ends do not decide
    and the order is not possible.
    """
    from nsys2prv.match.sequences import number_by_order

    side = pl.col("sends").cast(pl.Int64)
    group = pl.struct(_STREAM).rank("dense").cast(pl.Int64)
    messages = messages.with_columns(group=group, call=pl.int_range(pl.len()))
    middle = (messages["time_begin"].min() + messages["time_end"].max()) // 2
    calls = messages.select(
        "group",
        "call",
        member=side,
        clock=side,
        signature=pl.max_horizontal("bytes", 0),
        begin=pl.col("time_begin") - middle,
        end=pl.col("time_end") - middle,
        role=pl.lit(int(Role.ALL)),
        noise_kind=pl.lit(int(NoiseKind.NCCL)),
        began=pl.lit(False),
    )
    numbered, findings = number_by_order(calls, error)
    found = numbered.select("call", found="ordinal")
    messages = messages.join(found, on="call", how="left", maintain_order="left")
    unclear = (*UNCLEAR_KINDS, FindingKind.UNRELATED)
    groups = sorted({finding.group for finding in findings if finding.kind in unclear})
    unknown = pl.col("group").is_in(groups)
    order = pl.when(pl.col("possible").fill_null(False)).then("ordinal").otherwise(-1)
    ordinal = pl.when(unknown).then(order).otherwise(pl.col("found").fill_null(-1))
    return messages.with_columns(ordinal=ordinal).drop("group", "call", "found")


def _write_sides(pairs: pl.DataFrame, buckets: int, path: Path) -> tuple[Block, ...]:
    """Write both kernels of each pair of messages, by bucket of their trace rows.

    Columns: times and row of the kernel, start of the other side's kernel, direction, bytes (ABSENT
    if unknown), number of messages of the kernel, whether it does nothing else, and whether the
    times are comparable.
    """
    comparable = (pl.col("clock_group") == pl.col("clock_group_there")).cast(pl.Int64)
    sides = []
    for own, other, sends in (("", "_there", 1), ("_there", "", 0)):
        kernel = {
            name: pl.col(f"{column}{own}")
            for name, column in (
                *(("begin", "time_begin"), ("end", "time_end"), ("object", "object_kernel")),
                *(("messages", "messages"), ("pure", "pure")),
            )
        }
        there = pl.col(f"time_begin{other}")
        kernel |= {"there": there, "sends": pl.lit(sends), "comparable": comparable}
        sides.append(pairs.select("bytes", **kernel).cast(pl.Int64))
    rows = pl.concat(sides)
    return write_buckets(path, rows["object"].to_numpy() % buckets, rows)


def store_kernels(number: int, blocks: Sequence[Block], folder: Path) -> TaskResult:
    """Store records of the kernels that send and receive. number: of this task. blocks: from
    :func:`_write_sides`.
    """
    records = _make_records(read_blocks(blocks))
    return write_result(NAME, number, folder, [rows for rows in records if len(rows.begin)])


def _make_records(sides: pl.DataFrame) -> tuple[Rows, Rows]:
    """Return the records of kernels, and of transfers with known bytes."""
    sent = pl.col("sends") == 1
    kernels = (
        sides.group_by("begin", "object", "end")
        .agg(
            first=pl.min_horizontal(pl.col("there").min(), pl.col("begin").first()),
            last=pl.max_horizontal(pl.col("there").max(), pl.col("begin").first()),
            matched=pl.len(),
            sends=sent.sum(),
            bytes=pl.max_horizontal(
                pl.col("bytes").filter(sent).sum(), pl.col("bytes").filter(~sent).sum()
            ),
            sized=(pl.col("bytes") >= 0).all(),
            messages=pl.col("messages").first(),
            pure=pl.col("pure").first(),
            comparable=(pl.col("comparable") == 1).all(),
        )
        .filter((pl.col("pure") == 1) & (pl.col("matched") == pl.col("messages")))
        .sort("begin", "object", "end")
        .with_columns(
            operation=pl.when(pl.col("sends") == 0)
            .then(RECEIVE)
            .when(pl.col("sends") == pl.col("matched"))
            .then(SEND)
            .otherwise(SEND_RECEIVE)
        )
    )
    kernels = measure_waits(kernels)
    speed = find_bandwidth(pl.col("bytes"))
    moved = kernels.filter(pl.col("sized") & (pl.col("transfer") > 0))
    moved = moved.sort("last", "object", "end").with_columns(
        algorithm_bandwidth=speed, bus_bandwidth=speed
    )
    return (
        make_rows(LAYOUT, kernels, "begin", FIELDS),
        make_rows(TRANSFER, moved, "last", TRANSFER_FIELDS),
    )
