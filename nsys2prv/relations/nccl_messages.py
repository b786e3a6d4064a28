"""NCCL sends with their receives, as lines between the kernels of two ranks.

The n-th send of a rank to another on a communicator belongs to the n-th receive there from it, if
both have equally many and all their kernels overlap. Otherwise (captures that begin or end at
different calls, missing rows) the kernels' ends tell which belong together, for a kernel that sends
and the one that receives end nearly together. Where they do not (small messages wait in a buffer),
the order stands if both have equally many and none is received before it is sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.columns import ABSENT
from nsys2prv._util.errors import Detail
from nsys2prv.clock import ALIGNED_ERROR, UTC_ERROR, Role
from nsys2prv.clock import NCCL as SOURCE
from nsys2prv.events.names.calls import SEND
from nsys2prv.events.nccl import MESSAGES
from nsys2prv.nsight.source import NULL
from nsys2prv.relations import (
    NCCL,
    ObservationFile,
    Observations,
    Relation,
    RelationContext,
    save_observations,
)
from nsys2prv.relations.blocks import Block, buckets_of, group_blocks, store_lines, write_blocks
from nsys2prv.relations.nccl_exchanges import LAYOUT, TRANSFER, KernelStep, store_sides
from nsys2prv.relations.nccl_kernels import keep_sound_kernels
from nsys2prv.store.facts import FactFile, batches, read_fact
from nsys2prv.store.task_result import TaskResult

NAME, KIND = "nccl_messages", "nccl_message"
#: Findings that say that ends do not tell.
TELL_NOTHING = ("few", "ambiguous", "unrelated")
_STREAM = ["communicator", "source", "target"]
#: Columns of the facts that are read, and of messages in blocks.
READ = (
    "process",
    "object_kernel",
    "time_begin",
    "time_end",
    "time_call",
    "place",
    "communicator",
    "operation",
    "bytes",
    "peer",
    "ranks",
    "rank",
    "messages",
    "pure",
)
KEPT = (
    "task",
    "host",
    "part",
    "object_kernel",
    "time_begin",
    "time_end",
    "time_call",
    "place",
    "communicator",
    "source",
    "target",
    "sends",
    "bytes",
    "messages",
    "pure",
)
#: The order of messages; lines of pairs that are certain come first.
ORDER = ("task", "communicator", "time_call", "place")
#: Facts (bytes) that one step matches; lines that one step stores.
BUCKET_BYTES, STEP_ROWS = 8_000_000, 200_000


def relate(context: RelationContext) -> list[TaskResult]:
    """Return lines from sends to receives, stored by time, and what they tell of their kernels."""
    buckets = _buckets(context, "messages")
    found = list(
        context.run(
            [
                PairStep(
                    blocks,
                    max(1, len(buckets)),
                    context.folder / f"pairs-{context.number}-{place}.blocks",
                )
                for place, blocks in enumerate(buckets)
            ]
        )
    )
    records = [block for part in found for block in part.records]
    results = store_lines(context, NAME, KIND, False, records, STEP_ROWS)
    pairs, left = sum(block.rows for block in records), sum(part.left for part in found)
    results[0].notes = [Detail(f"NCCL sends matched with their receives: {pairs:,}")]
    if left:
        results[0].notes.append(
            f"NCCL: {left:,} sends and receives without their other side in the reports: no line is written"
        )
    sides = group_blocks(block for part in found for block in part.sides)
    number = context.number + len(results)
    steps = [KernelStep(number + place, part, context.folder) for place, part in enumerate(sides)]
    return [*results, *context.run(steps)]


def observe(context: RelationContext) -> list[ObservationFile]:
    """Return observations of clocks from messages between hosts, by senders."""
    return list(
        context.run(
            [
                HostsStep(blocks, context.folder / f"observed-messages-{place}.pickle")
                for place, blocks in enumerate(_buckets(context, "clock-messages"))
            ]
        )
    )


def _buckets(context: RelationContext, name: str) -> list[tuple[Block, ...]]:
    """Return the messages by communicator and sender, several of them together, in blocks."""
    files = context.files[MESSAGES]
    count = max(1, sum(file.frame.size for file in files) // BUCKET_BYTES)
    steps = [
        SendersStep(part, context.tasks, count, context.folder / f"{name}-{number}.blocks")
        for number, part in enumerate(batches(files))
    ]
    return group_blocks(block for blocks in context.run(steps) for block in blocks)


class SendersStep(Struct, frozen=True):
    """Sorts the messages of some reports into so many buckets by communicator and sender."""

    files: tuple[FactFile, ...]
    tasks: Mapping[tuple[int, int], int]
    buckets: int
    path: Path

    def run(self) -> tuple[Block, ...]:
        messages = _usable(read_fact(self.files, self.tasks, READ))
        bucket = buckets_of(
            messages["communicator"].to_numpy(), messages["source"].to_numpy(), self.buckets
        )
        order = np.argsort(bucket, kind="stable")
        return write_blocks(self.path, bucket[order], messages.to_numpy()[order])


class PairedMessages(Struct, frozen=True):
    """records: PAIR of each, without a tag; then whether it is doubtful, and ORDER. left: sends and
    receives of no pair. sides: SIDE of both kernels of each, by bucket of rows of the trace.
    """

    records: tuple[Block, ...]
    left: int
    sides: tuple[Block, ...]


class PairStep(Struct, frozen=True):
    """Matches the messages of some senders. buckets: of the kernels' rows."""

    blocks: tuple[Block, ...]
    buckets: int
    path: Path

    def run(self) -> PairedMessages:
        messages = _read(self.blocks)
        pairs = _pairs(messages, ALIGNED_ERROR if messages["part"].n_unique() == 1 else UTC_ERROR)
        rows = pairs.sort("time_begin", maintain_order=True).select(
            pl.col(
                "time_begin", "object_kernel", "time_end_there", "object_kernel_there", "bytes"
            ).cast(pl.Int64),
            pl.lit(0, pl.Int64).alias("tag"),
            pl.col("doubtful", *ORDER).cast(pl.Int64),
        )
        return PairedMessages(
            write_blocks(self.path, np.zeros(rows.height, np.int64), rows.to_numpy()),
            messages.height - 2 * pairs.height,
            store_sides(pairs, self.buckets, self.path.with_suffix(".sides")),
        )


class HostsStep(Struct, frozen=True):
    """Matches the messages of some senders, and stores those between hosts."""

    blocks: tuple[Block, ...]
    path: Path

    def run(self) -> ObservationFile:
        return save_observations(_between_hosts(_pairs(_read(self.blocks), UTC_ERROR)), self.path)


def _read(blocks: Sequence[Block]) -> pl.DataFrame:
    return pl.DataFrame(
        np.concatenate([block.read() for block in blocks]),
        schema=dict.fromkeys(KEPT, pl.Int64),
        orient="row",
    )


def _between_hosts(pairs: pl.DataFrame) -> Observations:
    from nsys2prv.clock.observations import Messages

    pairs = pairs.filter(pl.col("host") != pl.col("host_there"))
    sender, sent, receiver, received = (
        pairs[name].to_numpy() for name in ("host", "time_begin", "host_there", "time_end_there")
    )
    return Observations(
        messages=Messages(np.full(pairs.height, SOURCE), sender, sent, receiver, received)
    )


def _usable(messages: pl.DataFrame) -> pl.DataFrame:
    """Return the messages of which both sides are known, with columns KEPT."""
    two = (pl.col("ranks") == 2) & pl.col("peer").is_between(0, 1)
    rank = (
        pl.when(pl.col("rank") >= 0)
        .then("rank")
        .when(two)
        .then(1 - pl.col("peer"))
        .otherwise(ABSENT)
    )
    sending = pl.col("operation") == SEND
    messages = (
        keep_sound_kernels(messages)
        .with_columns(rank=rank)
        .filter(
            (pl.col("rank") >= 0)
            & (pl.col("peer") >= 0)
            & (pl.col("communicator") != 0)
            & (pl.col("rank") != pl.col("peer"))
            & (pl.col("time_begin") != NULL)
            & (pl.col("time_end") != NULL)
        )
    )
    messages = messages.with_columns(
        sends=sending.cast(pl.Int64),
        source=pl.when(sending).then("rank").otherwise("peer"),
        target=pl.when(sending).then("peer").otherwise("rank"),
    )
    return messages.select(pl.col(KEPT).cast(pl.Int64))


def _pairs(messages: pl.DataFrame, error: float) -> pl.DataFrame:
    """Return sends with their receives (`..._there`). error: of the clocks, ns."""
    messages = messages.sort(ORDER).with_columns(pl.col("sends") == 1, doubtful=pl.lit(False))
    messages = messages.with_columns(ordinal=pl.int_range(pl.len()).over(*_STREAM, "sends"))
    orders = messages.join(_orders(messages), on=_STREAM, how="left", maintain_order="left")
    doubtful = orders.filter(~pl.col("together").fill_null(False))
    if doubtful.height:
        messages = pl.concat(
            [
                orders.filter("together"),
                _by_ends(doubtful.with_columns(doubtful=pl.lit(True)), error),
            ]
        )
    return _joined(messages.filter(pl.col("ordinal") >= 0))


def _joined(messages: pl.DataFrame) -> pl.DataFrame:
    sent, received = messages.filter("sends"), messages.filter(~pl.col("sends"))
    pairs = sent.join(
        received, on=[*_STREAM, "ordinal"], how="inner", suffix="_there", maintain_order="left"
    )
    return pairs.filter(pl.col("bytes") == pl.col("bytes_there"))


def _orders(messages: pl.DataFrame) -> pl.DataFrame:
    """Return, for each stream, whether its orders may be right (`possible`: equally many sends and
    receives, of equal sizes, none received before it is sent), and whether they certainly are
    (`together`: all their kernels overlap).
    """
    counts = messages.group_by(_STREAM).agg(
        sent=pl.col("sends").sum(), received=(~pl.col("sends")).sum()
    )
    causal = pl.col("time_end_there") >= pl.col("time_begin")
    overlap = causal & (pl.col("time_end") >= pl.col("time_begin_there"))
    met = (
        _joined(messages)
        .group_by(_STREAM)
        .agg(pairs=pl.len(), causal=causal.all(), overlap=overlap.all())
    )
    even = (pl.col("sent") == pl.col("received")) & (pl.col("pairs") == pl.col("sent"))
    return counts.join(met, on=_STREAM).select(
        *_STREAM, possible=even & pl.col("causal"), together=even & pl.col("overlap")
    )


def _by_ends(messages: pl.DataFrame, error: float) -> pl.DataFrame:
    """Return the messages with the ordinals that their kernels' ends tell, -1 where they tell none
    and the order is not possible.
    """
    from nsys2prv.clock.observations import Calls
    from nsys2prv.clock.sequences import recognise_collectives

    messages = messages.with_columns(group=pl.struct(_STREAM).rank("dense").cast(pl.Int64))
    member = messages["sends"].cast(pl.Int64).to_numpy()
    count = messages.height
    ordinals, findings = recognise_collectives(
        Calls(
            np.full(count, SOURCE),
            messages["group"].to_numpy(),
            member,
            member,
            np.full(count, -1),
            np.maximum(messages["bytes"].to_numpy(), 0),
            np.full(count, int(Role.ALL)),
            np.zeros(count, bool),
            np.full(count, 2),
            messages["time_begin"].to_numpy(),
            messages["time_end"].to_numpy(),
        ),
        error,
    )
    unknown = pl.col("group").is_in(
        sorted({finding.group for finding in findings if finding.kind in TELL_NOTHING})
    )
    order = pl.when(pl.col("possible").fill_null(False)).then("ordinal").otherwise(-1)
    return messages.with_columns(
        ordinal=pl.when(unknown).then(order).otherwise(pl.Series("found", ordinals))
    ).drop("group")


RELATIONS = (
    Relation(
        NAME,
        "NCCL messages",
        NCCL,
        (MESSAGES,),
        (LAYOUT, TRANSFER),
        relate=relate,
        observe=observe,
    ),
)
