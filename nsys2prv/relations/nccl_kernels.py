"""NCCL kernels of a job as blocks on disk: those of one communicator in a few reports, ascending by
what numbers its collectives.

A part of a communicator's collectives is then a slice of every block of it, so that nobody needs
all kernels of a job at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv.clock import Role
from nsys2prv.events.names.calls import ROOT_WAITS, WAIT_FOR_ROOT
from nsys2prv.events.nccl import KERNELS
from nsys2prv.nsight.columns import NULL
from nsys2prv.relations import RelationContext
from nsys2prv.relations.blocks import Block, split_column_names, write_blocks
from nsys2prv.store.facts import FactFile, batch_by_report, read_fact

#: How collectives of a communicator were told from each other.
WAYS = ("sequence number", "order of launches", "the times at which they ended")
BY_NUMBER, BY_LAUNCH, BY_ENDS = range(3)
MEMBER = ("task", "device")
#: Columns of the facts that are read, and those that are kept in blocks. before: operations of the
#: member on the communicator until then. ordinal: what numbers its collectives, as the block is
#: sorted.
READ = split_column_names(
    "process device stream object_kernel time_begin time_end time_call in_graph by_name communicator"
    " operation first_operation fused messages sequence ranks bytes known reduce_bytes share_bytes"
    " message_bytes"
)
KEPT = split_column_names(
    "ordinal before task device object_kernel time_begin time_end by_name operation first_operation"
    " fused bytes known reduce_bytes share_bytes message_bytes part"
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
    members_seen: pl.DataFrame
    #: Number of kernels in CUDA graphs.
    graphs: int
    #: Number of other kernels of no known communicator.
    lone: int


def order_kernels(context: RelationContext, name: str) -> list[OrderedKernels]:
    """Return all NCCL kernels in order."""
    return context.run(
        [
            partial(
                _order_kernels_of_reports,
                files,
                context.tasks,
                context.folder / f"{name}-{context.number}-{number}.blocks",
            )
            for number, files in enumerate(batch_by_report(context.files[KERNELS]))
        ]
    )


def _order_kernels_of_reports(
    files: tuple[FactFile, ...], tasks: Mapping[tuple[int, int], int], path: Path
) -> OrderedKernels:
    """Bring kernels of some reports into order, in files of blocks."""
    kernels = keep_sound_kernels(
        read_fact(files, tasks, READ).filter(
            (pl.col("time_begin") != NULL) & (pl.col("time_end") != NULL)
        )
    )
    blocks, members = _order_by_communicator(kernels, path)
    free = kernels["in_graph"].to_numpy() == 0
    lone = np.flatnonzero(free & (kernels["communicator"].to_numpy() == 0))
    return OrderedKernels(
        blocks,
        _order_by_stream(kernels, lone, path.with_suffix(".rest")),
        frozenset(kernels.select(MEMBER).unique().iter_rows()),
        members,
        int((~free).sum()),
        len(lone),
    )


def _order_by_communicator(
    kernels: pl.DataFrame, path: Path
) -> tuple[tuple[Block, ...], pl.DataFrame]:
    """Return blocks of the kernels of collectives whose communicator is known, and what is told of
    these.
    """
    owner = ("task", "device", "communicator")
    operations = pl.col("fused") - pl.col("messages")
    kernels = (
        kernels.filter((pl.col("communicator") != 0) & (operations > 0))
        .sort(*owner, "time_call", "time_begin", maintain_order=True)
        .with_columns(before=operations.cum_sum().over(owner) - operations)
    )
    members = kernels.group_by(owner, maintain_order=True).agg(
        operations=operations.sum(),
        numbered=(pl.col("sequence") >= 0).all(),
        ranks=pl.col("ranks").max(),
        first=pl.col("time_begin").min(),
        last=pl.col("time_end").max(),
    )
    lacking = members.filter(~pl.col("numbered"))["communicator"].unique()
    by_number = ~pl.col("communicator").is_in(lacking.implode())
    kernels = kernels.with_columns(ordinal=pl.when(by_number).then("sequence").otherwise("before"))
    others = set(lacking)
    blocks = tuple(
        replace(block, by_number=block.group not in others)
        for block in _write_blocks(path, kernels, "communicator")
    )
    return blocks, members.drop("task", "device")


def _order_by_stream(kernels: pl.DataFrame, rows: np.ndarray, path: Path) -> tuple[Block, ...]:
    """Return blocks of these kernels, of no known communicator, by order on each stream, streams of
    a GPU in the order of their ids.
    """
    place = pl.int_range(pl.len()).over(*MEMBER, "stream")
    kernels = (
        kernels[rows]
        .sort(*MEMBER, "stream", "time_begin", maintain_order=True)
        .with_columns(row=number_streams(), ordinal=place, before=place)
    )
    return _write_blocks(path, kernels, "row")


def number_streams() -> pl.Expr:
    """Return the number of each kernel's stream, from 1, in the order of ids on its GPU."""
    return pl.col("stream").rank("dense").over(MEMBER).cast(pl.Int64)


def describe_several(communicators: pl.DataFrame, members: int) -> str:
    """Describe why the order of kernels cannot tell their collectives, by the communicators that
    are known of; "" where it can.
    """
    if communicators.height:
        communicators = communicators.filter(pl.col("communicator") != 0)
    if not communicators.height:
        return ""
    by_task = communicators.group_by("task").agg(
        pl.col("communicator").n_unique(), pl.col("ranks").max()
    )
    whole = ((by_task["communicator"] == 1) & (by_task["ranks"] == members)).all()
    if whole and communicators["communicator"].n_unique() == 1:
        return ""
    return "there are several, or one with ranks that have no report"


def list_operation_roles(first: np.ndarray) -> np.ndarray:
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


def _write_blocks(path: Path, kernels: pl.DataFrame, group: str) -> tuple[Block, ...]:
    """Write the kernels as blocks of a group, in which those of equal ordinals keep their order."""
    kernels = kernels.sort(group, "ordinal", maintain_order=True)
    rows = np.empty((kernels.height, len(KEPT)), np.int64)
    for place, name in enumerate(KEPT):
        rows[:, place] = kernels[name].to_numpy()
    return write_blocks(path, kernels[group].to_numpy(), rows)


def order_by_launch(block: Block, path: Path) -> Block:
    """Put a block in the order of launches, where its sequence numbers are not to be heeded."""
    rows = block.read()
    rows[:, 0] = rows[:, 1]
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    return write_blocks(path, np.full(len(rows), block.group), rows)[0]


class CollectivePiece(Struct, frozen=True):
    """Collectives of a group with low <= ordinal < high (None: without a limit), in all its blocks."""

    #: Number of the communicator or stream.
    group: int
    #: One for each report.
    blocks: tuple[Block, ...]
    #: How they were told apart, an index into WAYS.
    way: int
    #: Number of kernels of a collective.
    ranks: int
    #: True if each function has numbers of its own.
    by_function: bool = False
    #: True if the order of launches was found inconclusive and another method decided.
    settled: bool = False
    #: First ordinal, None for all.
    low: int | None = None
    #: Ordinal behind the last, None for all.
    high: int | None = None

    @property
    def rows(self) -> int:
        """Kernels of the blocks."""
        return sum(block.rows for block in self.blocks)

    def read(self) -> np.ndarray:
        """Return its kernels, a row of KEPT each."""
        return np.concatenate([block.read(self.low, self.high) for block in self.blocks])


def divide_kernels(
    pieces: Sequence[CollectivePiece], most: int
) -> list[tuple[CollectivePiece, ...]]:
    """Return portions of about `most` kernels at most: several pieces, in their order, or a part of
    one.
    """
    portions: list[tuple[CollectivePiece, ...]] = []
    few: list[CollectivePiece] = []
    room = most
    for piece in pieces:
        if piece.rows > most:
            portions += [(part,) for part in _split_piece(piece, -(-piece.rows // most))]
            continue
        if few and piece.rows > room:
            portions.append(tuple(few))
            few, room = [], most
        few.append(piece)
        room -= piece.rows
    return [*portions, tuple(few)] if few else portions


def _split_piece(piece: CollectivePiece, count: int) -> list[CollectivePiece]:
    """Return the piece in about so many parts, by the ordinals of its largest block."""
    largest = max(piece.blocks, key=lambda block: block.rows)
    cuts = np.unique(largest.sample_ordinals(count + 1)[1:-1]).tolist()
    return [
        replace(piece, low=low, high=high)
        for low, high in zip([None, *cuts], [*cuts, None], strict=True)
    ]
