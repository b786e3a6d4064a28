"""NCCL kernels of a job as blocks on disk, by communicator and in the order of its collectives,
each block from a few reports.

A part of a communicator's collectives is then a slice of every block of it, so that nobody needs
all kernels of a job at once. And the same kernels as observations of the hosts' clocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.columns import ABSENT
from nsys2prv.clock import NoiseKind, Role
from nsys2prv.events.call_indexes import ROOT_WAITS, SEND_RECEIVE, SEVERAL_OPERATIONS, WAIT_FOR_ROOT
from nsys2prv.events.kind import Rows
from nsys2prv.events.nccl import COMMUNICATORS, KERNELS
from nsys2prv.export.source import NULL
from nsys2prv.relations import DEVICES, Observed, RelationContext
from nsys2prv.relations.blocks import (
    Block,
    MemberBlock,
    divide_calls,
    divide_ordinals,
    hash_signatures,
    sort_calls,
    split_column_names,
    write_blocks,
)
from nsys2prv.store.work_result import FactFile, read_fact

#: How collectives of a communicator were distinguished, in words and by index.
MATCHING_METHODS = ("sequence number", "order of launches", "the times at which they ended")
BY_NUMBER, BY_LAUNCH, BY_ENDS = range(3)
#: `ranks` of kernels that end together but may be of several communicators: usable for clocks only.
IN_STEP = 0
#: Columns that are equal on all ranks of a collective.
EQUAL_COLUMNS = ("operation", "fused", "bytes")
#: Columns of the facts that are read, and those that are kept in blocks. before: operations of the
#: member on the communicator until then. ordinal: what numbers its collectives, as the block is
#: sorted.
FACT_COLUMNS = split_column_names(
    "process device stream object_kernel time_begin time_end time_call in_graph by_name communicator"
    " operation first_operation fused messages sequence ranks bytes known reduce_bytes share_bytes"
    " message_bytes"
)
KERNEL_COLUMNS = split_column_names(
    "ordinal before task device object_kernel time_begin time_end by_name operation first_operation"
    " fused bytes known reduce_bytes share_bytes message_bytes clock_group"
)


class OrderedKernels(Struct, frozen=True):
    """Kernels of a step, in order."""

    #: Rows of KERNEL_COLUMNS, by communicator.
    blocks: tuple[Block, ...]
    #: Communicators whose ordinals there are sequence numbers.
    by_number: frozenset[int]
    #: (task, device) of all kernels.
    members: frozenset[tuple[int, int]]
    #: A row for each communicator and member: number of operations, whether the trace numbers them
    #: all, ranks as in the payloads, first and last time (ns).
    members_seen: pl.DataFrame
    #: Number of kernels in CUDA graphs.
    graphs: int
    #: Number of other kernels of no known communicator.
    lone: int
    #: Number of kernels whose ends do not tell which of several communicators they are of.
    doubtful: int


def order_kernels(
    files: tuple[FactFile, ...], tasks: Mapping[tuple[int, int], int], path: Path
) -> OrderedKernels:
    """Bring kernels of some reports into order, in files of blocks."""
    kernels = keep_sound_kernels(read_fact(files, tasks, FACT_COLUMNS))
    in_step = pl.col("ranks") == IN_STEP
    doubtful = kernels.filter(in_step & (pl.col("by_name") != SEND_RECEIVE)).height
    kernels = kernels.filter(~in_step)
    blocks, by_number, members = _order_by_communicator(kernels, path)
    free = kernels.filter(pl.col("in_graph") == 0)
    return OrderedKernels(
        blocks,
        by_number,
        frozenset(kernels.select("task", "device").unique().iter_rows()),
        members,
        kernels.height - free.height,
        free.filter(pl.col("communicator") == 0).height,
        doubtful,
    )


def _order_by_communicator(
    kernels: pl.DataFrame, path: Path
) -> tuple[tuple[Block, ...], frozenset[int], pl.DataFrame]:
    """Return blocks of the kernels of collectives with known communicators, which communicators are
    ordered by recorded numbers, and facts about them.
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
    # Those of equal ordinals keep their order.
    kernels = kernels.sort("communicator", "ordinal", maintain_order=True)
    rows = kernels.select(pl.col(KERNEL_COLUMNS).cast(pl.Int64)).to_numpy()
    return (
        write_blocks(path, kernels["communicator"].to_numpy(), rows),
        frozenset(members.filter(by_number)["communicator"]),
        members.drop("task", "device"),
    )


def list_operation_roles(first: np.ndarray) -> np.ndarray:
    """Return the role of each operation (clock.Role)."""
    return np.where(
        np.isin(first, WAIT_FOR_ROOT),
        Role.FROM_ROOT,
        np.where(np.isin(first, ROOT_WAITS), Role.TO_ROOT, Role.ALL),
    )


def keep_sound_kernels(kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the kernels that have times, with ends after their begins, as their records in the
    trace have them.
    """
    begin, end = pl.col("time_begin"), pl.col("time_end")
    has_times = (begin != NULL) & (end != NULL)
    return kernels.filter(has_times).with_columns(time_end=pl.max_horizontal(end, begin + 1))


def blank_incomparable(time: pl.Expr) -> pl.Expr:
    """Return a time (ns) of kernels where `comparable`, else ABSENT."""
    return pl.when("comparable").then(time).otherwise(ABSENT)


def find_bandwidth(moved: pl.Expr, transfer: pl.Expr) -> pl.Expr:
    """Return the bandwidth (B/s) of moving so many bytes in so many ns. 0 is where nothing moved,
    no slow transfer.
    """
    # In floating point, for the product may be beyond 64 bits.
    exact = moved * 1e9 / pl.max_horizontal(transfer, 1)
    return pl.max_horizontal(exact.round(), exact.sign())


def make_rows(layout: str, frame: pl.DataFrame, begin: str, fields: tuple[str, ...]) -> Rows:
    """Return records of a layout with these fields. begin: the column of their begins."""
    column = {
        name: frame[name].to_numpy().astype(np.int64) for name in (begin, "end", "object", *fields)
    }
    return Rows(layout, *map(column.pop, (begin, "end", "object")), column)


def order_by_launch(block: Block, path: Path) -> Block:
    """Put a block in the order of launches, where its sequence numbers are not to be heeded."""
    rows = block.read()
    rows[:, 0] = rows[:, 1]
    return write_block_in_order(path, block.group, rows)[0]


def write_block_in_order(path: Path, group: int, rows: np.ndarray) -> tuple[Block, ...]:
    """Write rows of one group as a block, ascending by ordinal."""
    order = np.argsort(rows[:, 0], kind="stable")
    return write_blocks(path, np.full(len(rows), group), rows[order])


class CollectivePiece(Struct, frozen=True):
    """Collectives of a group with low <= ordinal < high (None: without a limit), in all its blocks."""

    #: Number of the communicator or stream.
    group: int
    #: One for each report.
    blocks: tuple[Block, ...]
    #: How they were distinguished, an index into MATCHING_METHODS.
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
        """Return the number of kernels of the blocks."""
        return sum(block.rows for block in self.blocks)

    def read(self) -> np.ndarray:
        """Return its kernels, a row of KERNEL_COLUMNS each."""
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
            spans = divide_ordinals(piece.blocks, most)
            portions += [(replace(piece, low=low, high=high),) for low, high in spans]
            continue
        if few and piece.rows > room:
            portions.append(tuple(few))
            few, room = [], most
        few.append(piece)
        room -= piece.rows
    return [*portions, tuple(few)] if few else portions


#: Columns of the facts that observations of clocks need.
OBSERVED_COLUMNS = split_column_names(
    "process device time_begin time_end communicator operation first_operation fused messages"
    " sequence root rank bytes"
)


def observe_collectives(context: RelationContext) -> Observed:
    """Return the kernels of collectives: by communicator and, where the trace numbers them,
    function.
    """
    batches = context.batch_facts(KERNELS, COMMUNICATORS)
    blocks = context.run_each("nccl-calls", _sort_by_communicator, *batches)
    return Observed(divide_calls(chain.from_iterable(blocks), NoiseKind.NCCL))


def _sort_by_communicator(
    files: tuple[FactFile, ...],
    communicators: tuple[FactFile, ...],
    tasks: Mapping[tuple[int, int], int],
    path: Path,
) -> tuple[MemberBlock, ...]:
    """Sort the kernels of some reports by communicator, member and begin."""
    kernels = keep_sound_kernels(read_fact(files, tasks, OBSERVED_COLUMNS)).filter(
        (pl.col("task") >= 0)
        & (pl.col("communicator") != 0)
        & (pl.col("fused") > pl.col("messages"))
    )
    kernels = _mark_begun(kernels, read_fact(communicators, tasks))
    # Kernels of several operations, some with a root, bind in a way that their sum does not tell.
    rooted = pl.col("first_operation").is_in([*WAIT_FOR_ROOT, *ROOT_WAITS])
    usable = ~rooted | ((pl.col("operation") != SEVERAL_OPERATIONS) & (pl.col("rank") >= 0))
    kernels = kernels.filter(usable)
    calls = kernels.select(
        "communicator",
        "host",
        member=pl.col("task") * DEVICES + pl.col("device"),
        number="sequence",
        function="first_operation",
        role=pl.Series(list_operation_roles(kernels["first_operation"].to_numpy())),
        is_root=(pl.col("root") == pl.col("rank")) & (pl.col("root") >= 0),
        begin="time_begin",
        end="time_end",
        signature=pl.Series(hash_signatures(*(kernels[name].to_numpy() for name in EQUAL_COLUMNS))),
        began="began",
    )
    return sort_calls(calls, path)


def _mark_begun(kernels: pl.DataFrame, communicators: pl.DataFrame) -> pl.DataFrame:
    """Return the frame with `began`: true if the call is known that made the communicator on this
    rank.
    """
    if not communicators.height:
        return kernels.with_columns(began=pl.lit(False))
    made_here = communicators.filter("made").select("task", "communicator").unique()
    return kernels.join(
        made_here.with_columns(began=pl.lit(True)),
        on=["task", "communicator"],
        how="left",
        maintain_order="left",
    ).with_columns(pl.col("began").fill_null(False))
