"""Observe host clocks by collective calls of MPI and NCCL: all members leave a collective at nearly
the same time.

The calls of a few reports are sorted into blocks on disk by communicator and member. Then pieces of
whole communicators are gathered per host (:mod:`nsys2prv.match.gathering`). Calls are matched by
numbers in the report, otherwise by their order on each member: n-th calls belong together unless
rows are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import astuple, replace

from nsys2prv._util.budget import PIECE_ROWS
from nsys2prv._util.columns import OPEN
from nsys2prv.clock import CALLS, NoiseKind, Role
from nsys2prv.events.mpi import MEETINGS, PROCESSES
from nsys2prv.events.nccl import COMMUNICATORS, KERNELS, SEVERAL_OPERATIONS
from nsys2prv.export.source import NULL
from nsys2prv.match import (
    COLUMNS,
    DEVICES,
    Block,
    FactFile,
    Observed,
    RelationContext,
    group_blocks,
    hash_signatures,
    read_blocks,
    read_fact,
    write_blocks,
)
from nsys2prv.match.nccl_collectives import EQUAL_COLUMNS, find_role, keep_sound_kernels

if TYPE_CHECKING:
    from nsys2prv.match.gathering import GatheredCalls

#: Returns the calls (COLUMNS["calls"] and `communicator`) of some reports from their facts.
SelectCalls = Callable[[pl.DataFrame, pl.DataFrame], pl.DataFrame]


class MemberBlock(Block, frozen=True):
    """Stored calls of one member of a communicator (the group), sorted by start."""

    #: Number of the process.
    member: int
    #: Node of the clock of these times.
    clock: int
    #: True if the report numbers all of them.
    numbered: bool
    #: True if none ends before it begins.
    sane: bool
    #: True if the report has the communicator's beginning.
    began: bool
    #: First time, ns.
    earliest: int
    #: Last time, ns.
    latest: int


def observe_mpi(context: RelationContext) -> Observed:
    """Return the blocking MPI calls of every process, by communicator, from which clocks are
    compared.
    """
    return _observe(context, NoiseKind.MPI, _select_mpi_calls, MEETINGS, PROCESSES)


def observe_nccl(context: RelationContext) -> Observed:
    """Return the kernels of NCCL collectives, by communicator, from which clocks are compared."""
    return _observe(context, NoiseKind.NCCL, _select_kernels, KERNELS, COMMUNICATORS)


def _observe(
    context: RelationContext, noise_kind: int, select: SelectCalls, *facts: str
) -> Observed:
    pieces = context.divide_facts(*facts)
    blocks = context.run_each(f"calls-{noise_kind}", sort_calls, *pieces, more=(select,))
    return Observed(divide_calls(chain.from_iterable(blocks), noise_kind))


def _select_mpi_calls(calls: pl.DataFrame, processes: pl.DataFrame) -> pl.DataFrame:
    has_times = (pl.col("time_begin") != NULL) & ~pl.col("time_end").is_in((NULL, OPEN))
    calls = calls.filter((pl.col("task") >= 0) & has_times)
    # Processes recorded from MPI_Init on.
    began = processes.filter("began")["task"] if processes.height else pl.Series([], dtype=pl.Int64)
    return calls.with_columns(
        member=pl.col("task") * DEVICES,
        clock="host",
        number=pl.lit(-1),
        function=pl.lit(0),
        role="waits",
        signature=pl.Series(hash_signatures(calls["signature"].to_numpy())),
        began=pl.col("task").is_in(began.implode()),
    )


def _select_kernels(kernels: pl.DataFrame, communicators: pl.DataFrame) -> pl.DataFrame:
    kernels = keep_sound_kernels(kernels).filter(
        (pl.col("task") >= 0)
        & (pl.col("communicator") != 0)
        & (pl.col("fused") > pl.col("messages"))
    )
    # Whether the call is known that made the communicator on this rank.
    made_here = communicators.filter("made") if communicators.height else kernels.clear()
    made_here = made_here.select("task", "communicator", began=True).unique()
    owner = ["task", "communicator"]
    kernels = kernels.join(made_here, on=owner, how="left", maintain_order="left")
    # Kernels of several operations, some with a root, bind in a way that their sum does not show.
    tells = (pl.col("operation") != SEVERAL_OPERATIONS) & (pl.col("rank") >= 0)
    kernels = kernels.filter((find_role() == int(Role.ALL)) | tells)
    signature = hash_signatures(*(kernels[name].to_numpy() for name in EQUAL_COLUMNS))
    return kernels.with_columns(
        member=pl.col("task") * DEVICES + pl.col("device"),
        clock="host",
        number="sequence",
        function="first_operation",
        role=find_role(),
        is_root=(pl.col("root") == pl.col("rank")) & (pl.col("root") >= 0),
        signature=pl.Series(signature),
        began=pl.col("began").fill_null(False),
    )


def sort_calls(
    files: tuple[FactFile, ...],
    others: tuple[FactFile, ...],
    tasks: Mapping[tuple[int, int], int],
    path: Path,
    select: SelectCalls,
) -> tuple[MemberBlock, ...]:
    """Store the calls of some reports in a file, as a block for each member of a communicator.
    others: facts with further properties of the members. select: function that makes the rows from
    the facts.
    """
    calls = select(read_fact(files, tasks), read_fact(others, tasks))
    calls = calls.rename({"time_begin": "begin", "time_end": "end"})
    calls = calls.select(pl.col("communicator", *COLUMNS["calls"]).cast(pl.Int64))
    calls = calls.sort("communicator", "member", "begin", maintain_order=True)
    owner = calls.select(pl.struct("communicator", "member").rle_id().cast(pl.Int64)).to_series()
    blocks = write_blocks(path, owner.to_numpy(), calls.select(COLUMNS["calls"]))
    members = calls.group_by("communicator", "member", maintain_order=True).agg(
        pl.col("clock").first(),
        numbered=(pl.col("number") >= 0).all(),
        sane=(pl.col("end") >= pl.col("begin")).all(),
        began=pl.col("began").first() == 1,
        earliest=pl.min_horizontal(pl.col("begin", "end").min()),
        latest=pl.max_horizontal(pl.col("begin", "end").max()),
    )
    return tuple(
        MemberBlock(*astuple(replace(block, group=communicator)), *rest)
        for block, (communicator, *rest) in zip(blocks, members.iter_rows(), strict=True)
    )


def divide_calls(members: Iterable[MemberBlock], noise_kind: int) -> list[CallPiece]:
    """Divide calls into pieces, each with all members of some communicators. noise_kind: how
    exactly these calls end together (NoiseKind).
    """
    pieces: list[CallPiece] = []
    room = 0
    for blocks in group_blocks(members):
        rows = sum(block.rows for block in blocks)
        if rows > room:
            pieces.append(CallPiece((), noise_kind))
            room = PIECE_ROWS
        pieces[-1] = CallPiece((*pieces[-1].blocks, *blocks), noise_kind)
        room -= rows
    return pieces


class CallPiece(Struct, frozen=True):
    """All calls of some communicators."""

    #: Calls of each member and report.
    blocks: tuple[MemberBlock, ...]
    #: clock.NoiseKind.
    noise_kind: int

    @property
    def times(self) -> list[int]:
        """Return two times (ns): the piece has no times before the first or after the second."""
        return [time for block in self.blocks for time in (block.earliest, block.latest)]

    def read_calls(self) -> pl.DataFrame:
        """Return all calls as a frame with the columns CALLS. Numbers of calls in reports count
        each function of a communicator separately.
        """
        others = [block.group for block in self.blocks if not block.numbered]
        groups = np.array([block.group for block in self.blocks])
        groups = np.repeat(groups, [block.rows for block in self.blocks])
        is_numbered = ~pl.Series(groups).is_in(others)
        calls = read_blocks(self.blocks).with_columns(
            noise_kind=pl.lit(self.noise_kind),
            communicator=pl.Series(groups),
            function=pl.when(is_numbered).then("function").otherwise(0),
            number=pl.when(is_numbered).then("number").otherwise(-1),
        )
        # Calls numbered by the report have separate numbers for each function.
        calls = calls.with_columns(group=pl.struct("communicator", "function").rank("dense"))
        return calls.select(pl.col(name).cast(dtype) for name, dtype in CALLS.items())

    def gather(self, pivot: int) -> GatheredCalls:
        """Find the collectives among these calls, with their ends on each host. pivot: a time in
        the middle of all times (ns).
        """
        from nsys2prv.match.gathering import gather_calls

        is_one = len({block.group for block in self.blocks}) == 1
        is_sane = all(block.sane for block in self.blocks)
        is_numbered = all(block.numbered for block in self.blocks)
        is_large = sum(block.rows for block in self.blocks) > PIECE_ROWS
        if is_one and is_sane and is_large and not is_numbered:
            return self._gather_by_member(pivot)
        return gather_calls(self.read_calls(), pivot)

    def _gather_by_member(self, pivot: int) -> GatheredCalls:
        """Return the calls of one large communicator without recorded call numbers, one member at a
        time.
        """
        from nsys2prv.match.gathering import gather_by_member
        from nsys2prv.match.sequences import Member

        by_member: dict[int, list[MemberBlock]] = {}
        for block in self.blocks:
            by_member.setdefault(block.member, []).append(replace(block, numbered=False))
        members = []
        for member, blocks in sorted(by_member.items()):
            rows, began = sum(block.rows for block in blocks), all(block.began for block in blocks)
            load = partial(_load_calls, replace(self, blocks=tuple(blocks)), pivot)
            members.append(Member(member, rows, load, began, blocks[0].clock))
        return gather_by_member(members, self.noise_kind, 1)


def _load_calls(piece: CallPiece, pivot: int) -> pl.DataFrame:
    calls = piece.read_calls().with_columns(pl.col("begin", "end") - pivot)
    return calls.sort("begin", maintain_order=True)
