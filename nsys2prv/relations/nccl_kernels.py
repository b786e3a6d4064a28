"""NCCL kernels of a job as blocks on disk: those of one communicator in a few reports, ascending by
what numbers its collectives.

A part of a communicator's collectives is then a slice of every block of it, so that nobody needs
all kernels of a job at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv.clock import Role
from nsys2prv.events.names.calls import ROOT_WAITS, WAIT_FOR_ROOT
from nsys2prv.events.nccl import KERNELS
from nsys2prv.nsight.source import NULL
from nsys2prv.relations import RelationContext
from nsys2prv.relations.blocks import Block, write_blocks
from nsys2prv.store.facts import FactFile, batches, read_fact

#: How collectives of a communicator were told from each other.
WAYS = ("sequence number", "order of launches", "the times at which they ended")
BY_NUMBER, BY_LAUNCH, BY_ENDS = range(3)
MEMBER = ("task", "device")
#: Columns of the facts that are read, and those that are kept in blocks. before: operations of the
#: member on the communicator until then. ordinal: what numbers its collectives, as the block is
#: sorted.
READ = (
    "process",
    "device",
    "stream",
    "object_kernel",
    "time_begin",
    "time_end",
    "time_call",
    "in_graph",
    "by_name",
    "communicator",
    "operation",
    "first_operation",
    "fused",
    "messages",
    "sequence",
    "ranks",
    "bytes",
    "known",
    "reduce_bytes",
    "share_bytes",
    "message_bytes",
)
KEPT = (
    "ordinal",
    "before",
    "task",
    "device",
    "object_kernel",
    "time_begin",
    "time_end",
    "by_name",
    "operation",
    "first_operation",
    "fused",
    "bytes",
    "known",
    "reduce_bytes",
    "share_bytes",
    "message_bytes",
    "part",
)


class OrderedKernels(Struct, frozen=True):
    """Kernels of a step, in order."""

    #: By communicator: rows of KEPT.
    blocks: tuple[Block, ...]
    #: Rows of kernels of no known communicator, by row of streams.
    rest: tuple[Block, ...]
    #: (task, device) of all kernels.
    members: frozenset[tuple[int, int]]
    #: A row for each communicator and member: number of operations, whether the trace numbers them
    #: all, ranks as in the payloads, first and last time (ns).
    told: pl.DataFrame
    #: Number of kernels in CUDA graphs.
    graphs: int
    #: Number of other kernels of no known communicator.
    lone: int


class OrderKernelsStep(Struct, frozen=True):
    """Brings kernels of some reports into order, in one file of blocks."""

    files: tuple[FactFile, ...]
    tasks: Mapping[tuple[int, int], int]
    path: Path

    def run(self) -> OrderedKernels:
        kernels = keep_sound_kernels(
            read_fact(self.files, self.tasks, READ).filter(
                (pl.col("time_begin") != NULL) & (pl.col("time_end") != NULL)
            )
        )
        blocks, told = self._by_communicator(kernels)
        free = kernels["in_graph"].to_numpy() == 0
        lone = np.flatnonzero(free & (kernels["communicator"].to_numpy() == 0))
        return OrderedKernels(
            blocks,
            self._by_stream(kernels, lone),
            frozenset(kernels.select(MEMBER).unique().iter_rows()),
            told,
            int((~free).sum()),
            len(lone),
        )

    def _by_communicator(self, kernels: pl.DataFrame) -> tuple[tuple[Block, ...], pl.DataFrame]:
        """Return blocks of the kernels of collectives whose communicator is known, and what is told
        of these.
        """
        communicator, task, device, fused, messages = (
            kernels[name].to_numpy()
            for name in ("communicator", "task", "device", "fused", "messages")
        )
        rows = np.flatnonzero((communicator != 0) & (fused > messages))
        if not len(rows):
            return (), _TOLD
        rows = _ordered(
            kernels, rows, ("task", "device", "communicator", "time_call", "time_begin")
        )
        own = [column[rows] for column in (task, device, communicator)]
        starts = np.flatnonzero(
            np.append(True, np.logical_or.reduce([np.diff(column) != 0 for column in own]))
        )
        counts = np.diff(np.append(starts, len(rows)))
        operations = fused[rows] - messages[rows]
        before = np.cumsum(operations) - operations
        before -= np.repeat(before[starts], counts)
        sequence = kernels["sequence"].to_numpy()[rows]
        begin, end, ranks = (
            kernels[name].to_numpy()[rows] for name in ("time_begin", "time_end", "ranks")
        )
        told = pl.DataFrame(
            {
                "communicator": own[2][starts],
                "operations": np.add.reduceat(operations, starts),
                "numbered": np.minimum.reduceat(sequence, starts) >= 0,
                "ranks": np.maximum.reduceat(ranks, starts),
                "first": np.minimum.reduceat(begin, starts),
                "last": np.maximum.reduceat(end, starts),
            }
        )
        by_number = (
            told.group_by("communicator")
            .agg(pl.col("numbered").all())
            .filter("numbered")["communicator"]
            .to_numpy()
        )
        ordinal = np.where(np.isin(own[2], by_number), sequence, before)
        blocks = _write_blocks(self.path, kernels, rows, own[2], ordinal, before)
        numbered = frozenset(by_number.tolist())
        return tuple(replace(block, by_number=block.group in numbered) for block in blocks), told

    def _by_stream(self, kernels: pl.DataFrame, rows: np.ndarray) -> tuple[Block, ...]:
        """Return blocks of kernels of no known communicator, by order on each stream, streams of a
        GPU in the order of their ids.
        """
        if not len(rows):
            return ()
        rows = _ordered(kernels, rows, ("task", "device", "stream", "time_begin"))
        task, device, stream = (
            kernels[name].to_numpy()[rows] for name in ("task", "device", "stream")
        )
        other = np.append(True, (np.diff(task) != 0) | (np.diff(device) != 0))
        new = other | np.append(True, np.diff(stream) != 0)
        starts = np.flatnonzero(new)
        place = np.arange(len(rows)) - np.repeat(starts, np.diff(np.append(starts, len(rows))))
        count = np.cumsum(new)
        owners = np.flatnonzero(other)
        row = count - np.repeat(count[owners] - 1, np.diff(np.append(owners, len(rows))))
        return _write_blocks(self.path.with_suffix(".rest"), kernels, rows, row, place, place)


def order_kernels(context: RelationContext, name: str) -> list[OrderedKernels]:
    """Return all NCCL kernels in order."""
    parts = batches(context.files[KERNELS])
    return list(
        context.run(
            [
                OrderKernelsStep(
                    part,
                    context.tasks,
                    context.folder / f"{name}-{context.number}-{number}.blocks",
                )
                for number, part in enumerate(parts)
            ]
        )
    )


def operation_roles(first: np.ndarray) -> np.ndarray:
    """Return the role of each operation (clock.observations.Role)."""
    return np.where(
        np.isin(first, WAIT_FOR_ROOT),
        Role.FROM_ROOT,
        np.where(np.isin(first, ROOT_WAITS), Role.TO_ROOT, Role.ALL),
    )


def keep_sound_kernels(kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the kernels with ends after their begins, as their records in the trace have them."""
    end = (
        pl.when(pl.col("time_end") == NULL)
        .then("time_end")
        .otherwise(pl.max_horizontal("time_end", pl.col("time_begin") + 1))
    )
    return kernels.with_columns(time_end=end)


#: What a survey without communicators tells of them.
_TOLD = pl.DataFrame(
    schema={
        "communicator": pl.Int64,
        "operations": pl.Int64,
        "numbered": pl.Boolean,
        "ranks": pl.Int64,
        "first": pl.Int64,
        "last": pl.Int64,
    }
)


def _ordered(kernels: pl.DataFrame, rows: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Return the rows in the order of these columns."""
    return rows[np.lexsort([kernels[name].to_numpy()[rows] for name in reversed(names)])]


def _write_blocks(
    path: Path,
    kernels: pl.DataFrame,
    rows: np.ndarray,
    group: np.ndarray,
    ordinal: np.ndarray,
    before: np.ndarray,
) -> tuple[Block, ...]:
    """Write these rows of the kernels as blocks, in which those of equal ordinals keep their order."""
    order = np.lexsort((ordinal, group))
    stored = np.empty((len(rows), len(KEPT)), np.int64)
    stored[:, 0], stored[:, 1] = ordinal[order], before[order]
    for place, name in enumerate(KEPT[2:], 2):
        stored[:, place] = kernels[name].to_numpy()[rows[order]]
    return write_blocks(path, group[order], stored)


class LaunchStep(Struct, frozen=True):
    """Puts a block in the order of launches, where its sequence numbers are not to be heeded."""

    block: Block
    path: Path

    def run(self) -> Block:
        rows = self.block.read()
        rows[:, 0] = rows[:, 1]
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
        return write_blocks(self.path, np.full(len(rows), self.block.group), rows)[0]


class Piece(Struct, frozen=True):
    """Collectives of a group with low <= ordinal < high (None: without a limit), in all its blocks."""

    group: int
    blocks: tuple[Block, ...]
    #: How they were told apart, an index into WAYS.
    way: int
    #: Number of kernels of a collective.
    ranks: int
    #: True if each function has numbers of its own.
    by_function: bool = False
    #: True if the order of launches was found inconclusive and another method decided.
    settled: bool = False
    low: int | None = None
    high: int | None = None

    @property
    def rows(self) -> int:
        """Kernels of the blocks."""
        return sum(block.rows for block in self.blocks)

    def read(self) -> np.ndarray:
        """Return its kernels, a row of KEPT each."""
        return np.concatenate([block.read(self.low, self.high) for block in self.blocks])


def divide_kernels(pieces: Sequence[Piece], most: int) -> list[tuple[Piece, ...]]:
    """Return portions of about `most` kernels at most: several pieces, in their order, or a part of
    one.
    """
    found: list[tuple[Piece, ...]] = []
    few: list[Piece] = []
    room = most
    for piece in pieces:
        if piece.rows > most:
            found += [(part,) for part in _parts(piece, -(-piece.rows // most))]
            continue
        if few and piece.rows > room:
            found.append(tuple(few))
            few, room = [], most
        few.append(piece)
        room -= piece.rows
    return [*found, tuple(few)] if few else found


def _parts(piece: Piece, count: int) -> list[Piece]:
    """Return the piece in about so many parts, by the ordinals of its largest block."""
    largest = max(piece.blocks, key=lambda block: block.rows)
    cuts = np.unique(largest.ordinals(count + 1)[1:-1]).tolist()
    return [
        replace(piece, low=low, high=high)
        for low, high in zip([None, *cuts], [*cuts, None], strict=True)
    ]
