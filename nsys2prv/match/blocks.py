"""Rows of a job as blocks on disk, by group and report: nobody needs all rows of a job at once.

Also: lines between matched pairs of rows, and messages between hosts, by which clocks are observed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.columns import join_pieces
from nsys2prv._util.files import load_shipped_file
from nsys2prv.events.kind import CommunicationLines
from nsys2prv.match import FactFile, RelationContext, write_result
from nsys2prv.table.runs import TRACE
from nsys2prv.table.work_result import WorkResult

AnyBlock = TypeVar("AnyBlock", bound="Block")
#: Names of columns by what has them, as ``columns.yaml`` explains them.
COLUMNS = {
    name: tuple(names.split())
    for name, names in load_shipped_file(__package__, "columns.yaml").items()
}
#: Ordinals of each part that are looked at to find where to cut.
SAMPLES = 64
#: Facts (bytes) of a bucket, which one step matches.
BUCKET_BYTES = 8_000_000
#: Lines that one step stores.
LINE_ROWS = 200_000


class Block(Struct, frozen=True):
    """Rows of one group in a file: `rows` rows of int64, after `first` such rows. Ascending by the
    first column, the ordinal, where parts of a block are read.
    """

    #: File that holds the rows.
    path: Path
    #: Number of the group.
    group: int
    #: Rows before it in the file.
    first: int
    #: Number of rows.
    rows: int
    #: Names of the columns.
    columns: tuple[str, ...]

    def read(self, low: int | None = None, high: int | None = None) -> pl.DataFrame:
        """Return the rows with low <= ordinal < high (None: without a limit)."""
        return read_blocks([self], low, high)

    def read_rows(self, low: int | None = None, high: int | None = None) -> np.ndarray:
        """Return the same as an array of rows."""
        first, last = 0, self.rows
        if low is not None:
            first = int(np.searchsorted(self._map_rows()[:, 0], low))
        if high is not None:
            last = int(np.searchsorted(self._map_rows()[:, 0], high))
        width = len(self.columns)
        count, offset = (last - first) * width, (self.first + first) * width * 8
        return np.fromfile(self.path, np.int64, count, offset=offset).reshape(-1, width)

    def sample_ordinals(self, count: int) -> np.ndarray:
        """Return a number of its ordinals, evenly spread."""
        return self._map_rows()[np.linspace(0, self.rows - 1, count).round().astype(np.int64), 0]

    def _map_rows(self) -> np.ndarray:
        width = len(self.columns)
        return np.memmap(self.path, np.int64, "r", self.first * width * 8, (self.rows, width))


def write_blocks(path: Path, groups: np.ndarray, rows: pl.DataFrame) -> tuple[Block, ...]:
    """Write a file of blocks: rows of whole numbers that are sorted by group."""
    if not len(rows):
        return ()
    # By Python: numpy's errors do not say that the disk is full.
    path.write_bytes(np.ascontiguousarray(rows.cast(pl.Int64).to_numpy()).data)
    starts = np.append(np.flatnonzero(np.diff(groups, prepend=groups[:1] - 1)), len(rows)).tolist()
    return tuple(
        Block(path, int(groups[first]), first, last - first, tuple(rows.columns))
        for first, last in pairwise(starts)
    )


def write_block(path: Path, rows: pl.DataFrame) -> tuple[Block, ...]:
    """Write rows of whole numbers as a block of no group."""
    return write_blocks(path, np.zeros(len(rows), np.int64), rows)


def write_buckets(path: Path, bucket: np.ndarray, rows: pl.DataFrame) -> tuple[Block, ...]:
    """Write a block of rows of whole numbers for each bucket."""
    order = np.argsort(bucket, kind="stable")
    return write_blocks(path, bucket[order], rows[order])


def read_blocks(blocks: Sequence[Block], *span: int | None) -> pl.DataFrame:
    """Return the rows of all blocks, one after the other, with low <= ordinal < high."""
    rows = join_pieces([block.read_rows(*span) for block in blocks])
    return pl.DataFrame(rows, blocks[0].columns, orient="row")


def hash_rows(*columns: np.ndarray) -> np.ndarray:
    """Return a number (uint64) for each row of these columns of whole numbers; 0 of zeros alone."""
    mixed = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        mixed = (mixed ^ column.astype(np.uint64)) * np.uint64(0xD6E8FEB86659FD93)
        mixed ^= mixed >> np.uint64(32)
    return mixed


def hash_signatures(*columns: np.ndarray) -> np.ndarray:
    """Return a hash (31 bits) for each row of the values that all members of a collective share; 0
    if all are 0, which means unknown.
    """
    mixed = hash_rows(*columns)
    return np.where(mixed > 0, mixed >> np.uint64(33) | np.uint64(1), 0).astype(np.int64)


def count_buckets(files: Sequence[FactFile]) -> int:
    """Return how many buckets the rows of these facts are to be sorted into."""
    return max(1, sum(file.frame.size for file in files) // BUCKET_BYTES)


def assign_buckets(count: int, *columns: np.ndarray) -> np.ndarray:
    """Return the bucket, below `count`, of each row: rows equal in these columns share one."""
    return (hash_rows(*columns) % np.uint64(count)).astype(np.int64)


def group_blocks(blocks: Iterable[AnyBlock]) -> list[tuple[AnyBlock, ...]]:
    """Return the blocks of each group, ascending by group."""
    groups: dict[int, list[AnyBlock]] = {}
    for block in blocks:
        groups.setdefault(block.group, []).append(block)
    return [tuple(groups[group]) for group in sorted(groups)]


def divide_ordinals(blocks: Sequence[Block], most: int) -> list[tuple[int | None, int | None]]:
    """Return spans (low, high) of ordinals that cut these blocks together into about equal parts of
    about `most` rows.
    """
    rows = sum(block.rows for block in blocks)
    count = -(-rows // most)
    if count <= 1:
        return [(None, None)]
    # A sample stands for as many rows in each block.
    samples = [block.sample_ordinals(-(-block.rows * count * SAMPLES // rows)) for block in blocks]
    sampled = np.sort(np.concatenate(samples))
    cuts = np.unique(sampled[np.arange(1, count) * len(sampled) // count]).tolist()
    return list(zip([None, *cuts], [*cuts, None], strict=True))


def store_by_time(
    context: RelationContext, blocks: Sequence[Block], most: int, step: Callable[..., WorkResult]
) -> list[WorkResult]:
    """Return what the step stores of each span of time (low, high) with about `most` rows of these
    blocks, whose ordinal is a time; one result without anything where there are none. The step also
    gets the folder and the number of its task.
    """
    steps = [
        partial(step, context.folder, number, *span)
        for number, span in enumerate(divide_ordinals(blocks, most), context.first_task)
        if blocks
    ]
    return context.run_steps(steps) or [WorkResult(context.first_task, TRACE, 0)]


#: The first columns of a pair: times (ns), threads of the trace, bytes, the line's tag (of kinds
#: whose lines have their own; else anything). Columns behind them tell the order of lines of equal
#: time.
PAIR_COLUMNS = ("send", "sender", "receive", "receiver", "size", "tag")


def store_lines(
    context: RelationContext, name: str, kind: str, tagged: bool, pairs: Sequence[Block]
) -> list[WorkResult]:
    """Return the lines of all pairs, about LINE_ROWS a step; one result without any where there are
    none. name: of the relation; kind: of lines.
    """
    step = partial(_store_span, name, kind, tagged, tuple(pairs))
    return store_by_time(context, pairs, LINE_ROWS, step)


def _store_span(
    name: str,
    kind: str,
    tagged: bool,
    pairs: Sequence[Block],
    folder: Path,
    number: int,
    *span: int | None,
) -> WorkResult:
    """Store the lines that begin within a span of time (ns; None: without a limit). pairs: rows of
    PAIR_COLUMNS, ascending by the time of the send.
    """
    rows = read_blocks(pairs, *span)
    rows = rows.sort(rows.columns[len(PAIR_COLUMNS) :], maintain_order=True)
    send, sender, receive, receiver, size, tag = (rows[name].to_numpy() for name in PAIR_COLUMNS)
    size, tags = np.maximum(size, 0), tag if tagged else None
    lines = CommunicationLines(kind, send, sender, receive, receiver, receive, size, tags)
    return write_result(name, number, folder, lines=[lines])


def write_messages(path: Path, pairs: pl.DataFrame, noise_kind: int) -> tuple[Block, ...]:
    """Write the pairs between hosts (host, time_begin, host_there, completed) as a block of
    clock.MESSAGES.
    """
    messages = pairs.filter(pl.col("host") != pl.col("host_there")).select(
        noise_kind=pl.lit(noise_kind, pl.Int64),
        before="host",
        begin="time_begin",
        after="host_there",
        end="completed",
    )
    return write_block(path, messages)
