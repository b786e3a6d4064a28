"""Kernels of NCCL that only send and receive: how late they came, how long they waited for those of
the other ranks that they exchange messages with, and how fast the transfer was.

Of a kernel all of whose messages are matched with their other sides. Its transfer begins when the
last of the kernels that it exchanges messages with has begun, itself among them; the bandwidth is
that of the greater of what it sends and what it receives, as nccl-tests has it. Times in ns,
bandwidths in B/s.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.columns import ABSENT
from nsys2prv.events.kind import Rows
from nsys2prv.events.names.calls import RECEIVE, SEND, SEND_RECEIVE
from nsys2prv.relations import RelationResult, write_result
from nsys2prv.relations.blocks import Block, write_blocks
from nsys2prv.store.task_result import TaskResult

RELATION, LAYOUT, TRANSFER = "nccl_messages", "nccl_point_to_point", "nccl_message_transfer"
#: Of a kernel and one of its messages: the kernel's times and row of the trace, the begin of the
#: other side's kernel, whether it sends, its bytes (ABSENT where unknown), how many messages the
#: kernel has, whether it does nothing else, and whether the times can be compared.
SIDE = ("begin", "end", "object", "there", "sends", "bytes", "messages", "pure", "comparable")


def store_sides(pairs: pl.DataFrame, buckets: int, path: Path) -> tuple[Block, ...]:
    """Return SIDE of both kernels of each pair of messages, by bucket of their rows, in a file."""
    comparable = (pl.col("part") == pl.col("part_there")).cast(pl.Int64)
    sides = [
        pairs.select(
            pl.col(f"time_begin{own}").alias("begin"),
            pl.col(f"time_end{own}").alias("end"),
            pl.col(f"object_kernel{own}").alias("object"),
            pl.col(f"time_begin{other}").alias("there"),
            pl.lit(sends, pl.Int64).alias("sends"),
            pl.col("bytes"),
            pl.col(f"messages{own}").alias("messages"),
            pl.col(f"pure{own}").alias("pure"),
            comparable.alias("comparable"),
        ).cast(pl.Int64)
        for own, other, sends in (("", "_there", 1), ("_there", "", 0))
    ]
    rows = pl.concat(sides).select(SIDE).to_numpy()
    bucket = rows[:, SIDE.index("object")] % buckets
    order = np.argsort(bucket, kind="stable")
    return write_blocks(path, bucket[order], rows[order])


class KernelStep(Struct, frozen=True):
    """Stores the records of the kernels in some blocks of SIDE."""

    number: int
    blocks: tuple[Block, ...]
    folder: Path

    def run(self) -> TaskResult:
        sides = pl.DataFrame(
            np.concatenate([block.read() for block in self.blocks]),
            schema=dict.fromkeys(SIDE, pl.Int64),
            orient="row",
        )
        made = [rows for rows in _records(sides) if len(rows.begin)]
        return write_result(RelationResult(made), RELATION, self.number, self.folder)


def _records(sides: pl.DataFrame) -> tuple[Rows, Rows]:
    """Return the records of kernels, and those of transfers whose bytes are known."""
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
            told=(pl.col("bytes") >= 0).all(),
            messages=pl.col("messages").first(),
            pure=pl.col("pure").first(),
            comparable=(pl.col("comparable") == 1).all(),
        )
        .filter((pl.col("pure") == 1) & (pl.col("matched") == pl.col("messages")))
        .sort("begin", "object", "end")
        .with_columns(transfer=pl.max_horizontal(pl.col("end") - pl.col("last"), 0))
        .with_columns(
            operation=pl.when(pl.col("sends") == 0)
            .then(RECEIVE)
            .when(pl.col("sends") == pl.col("matched"))
            .then(SEND)
            .otherwise(SEND_RECEIVE),
            late=pl.col("begin") - pl.col("first"),
            wait=pl.min_horizontal(
                pl.col("last") - pl.col("begin"), pl.col("end") - pl.col("begin")
            ),
            # In floating point, for the product may be beyond 64 bits. 0 B/s is where nothing
            # moved, no slow transfer.
            speed=pl.max_horizontal(
                (pl.col("bytes") * 1e9 / pl.max_horizontal("transfer", 1)).round(),
                pl.col("bytes").sign(),
            ).cast(pl.Int64),
        )
    )
    known = pl.col("comparable")
    told = kernels.with_columns(
        pl.when(known).then(name).otherwise(ABSENT).alias(name)
        for name in ("late", "wait", "transfer")
    )
    moved = kernels.filter(known & pl.col("told") & (pl.col("transfer") > 0)).sort(
        "last", "object", "end"
    )
    return (
        _rows(LAYOUT, told, "begin", ("operation", "late", "wait", "transfer")),
        _rows(
            TRANSFER,
            moved.with_columns(algorithm_bandwidth="speed", bus_bandwidth="speed"),
            "last",
            ("operation", "algorithm_bandwidth", "bus_bandwidth"),
        ),
    )


def _rows(layout: str, frame: pl.DataFrame, begin: str, fields: tuple[str, ...]) -> Rows:
    column = {name: frame[name].to_numpy().astype(np.int64) for name in (begin, "end", "object")}
    return Rows(
        layout,
        column[begin],
        column["end"],
        column["object"],
        {name: frame[name].to_numpy().astype(np.int64) for name in fields},
    )
