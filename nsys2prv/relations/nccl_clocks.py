"""NCCL collectives as observations of the hosts' clocks, also where the ranks' orders of launches
differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv.clock import ALIGNED_ERROR, UTC_ERROR, Role
from nsys2prv.clock import NCCL as SOURCE
from nsys2prv.events.names.calls import ALL_WAIT, GROUP, ROOT_WAITS, WAIT_FOR_ROOT
from nsys2prv.events.nccl import COMMUNICATORS, KERNELS
from nsys2prv.nsight.columns import NULL
from nsys2prv.relations import DEVICES, Observed, RelationContext
from nsys2prv.relations.blocks import Block, hash_signatures, split_column_names, write_blocks
from nsys2prv.relations.call_blocks import MemberBlock, divide_calls, sort_calls
from nsys2prv.relations.nccl_kernels import (
    BY_ENDS,
    KEPT,
    MEMBER,
    CollectivePiece,
    describe_several,
    keep_sound_kernels,
    list_operation_roles,
    number_streams,
)
from nsys2prv.store.facts import FactFile, batch_by_report, read_fact

if TYPE_CHECKING:
    from nsys2prv.clock.sequences import CallSequence

#: Findings that say that ends tell nothing, rather than that they speak against a match.
UNCLEAR = ("few", "ambiguous")
#: What is equal on all ranks of a collective.
KIND = ("operation", "fused", "bytes")


class _MemberKernels(Struct, frozen=True):
    """Kernels of a member in a block."""

    #: The kernels.
    block: Block
    #: Number of the device.
    member: int
    #: Number of kernels.
    count: int

    def read(self) -> dict[str, np.ndarray]:
        """Return its columns KEPT, and `place` in the block, by begins."""
        columns = dict(zip(KEPT, self.block.read().T, strict=True))
        place = np.flatnonzero(_number_members(columns) == self.member)
        place = place[np.lexsort((columns["before"][place], columns["time_begin"][place]))]
        return {name: column[place] for name, column in columns.items()} | {"place": place}


def _number_members(columns: Mapping[str, np.ndarray]) -> np.ndarray:
    return columns["task"] * DEVICES + columns["device"]


def number_by_ends(
    piece: CollectivePiece, even: bool, pivot: int, path: Path
) -> tuple[CollectivePiece, int]:
    """Number a communicator's kernels by when they ended. Return the piece with other ordinals, and
    how many kernels are of no collective. Where ends cannot tell, the order stands if all members
    have equally many operations (even).

    pivot: time amid all times of communicators that are numbered so. path: of new blocks.
    """
    from nsys2prv.clock.sequences import Member, number_group

    members, parts = [], set()
    for block in piece.blocks:
        rows = block.read()
        columns = dict(zip(KEPT, rows.T, strict=True))
        owners, counts = np.unique(_number_members(columns), return_counts=True)
        members += map(partial(_MemberKernels, block), owners.tolist(), counts.tolist())
        parts.update(np.unique(columns["part"]).tolist())
    members.sort(key=lambda part: part.member)
    # Times of one part are aligned.
    fits, findings = number_group(
        [Member(part.member, part.count, partial(_read_calls, part, pivot)) for part in members],
        SOURCE,
        0,
        ALIGNED_ERROR if len(parts) == 1 else UTC_ERROR,
    )
    if even and any(finding.kind in UNCLEAR for finding in findings):
        return replace(piece, settled=True), 0
    blocks = []
    for number, block in enumerate(piece.blocks):
        numbered = [(members[at], ordinals) for at, ordinals in fits.items()]
        own = [(part, ordinals) for part, ordinals in numbered if part.block == block]
        blocks += _write_numbered(block, own, path.with_suffix(f".{number}"))
    kept = sum(block.rows for block in blocks)
    return replace(piece, blocks=tuple(blocks), way=BY_ENDS, settled=True), piece.rows - kept


def _read_calls(part: _MemberKernels, pivot: int) -> CallSequence:
    from nsys2prv.clock.sequences import CallSequence

    columns = part.read()
    return CallSequence(
        (columns["time_end"] - pivot).astype(np.float64),
        hash_signatures(*(columns[name] for name in KIND)),
        list_operation_roles(columns["first_operation"]) == Role.ALL,
    )


def _write_numbered(
    block: Block, numbered: Iterable[tuple[_MemberKernels, np.ndarray]], path: Path
) -> tuple[Block, ...]:
    """Write the block with these ordinals, without kernels that have none."""
    rows = block.read()
    rows[:, 0] = -1
    for part, ordinals in numbered:
        rows[part.read()["place"], 0] = ordinals
    rows = rows[rows[:, 0] >= 0]
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    return write_blocks(path, np.full(len(rows), block.group), rows)


#: Columns of the facts that are read.
READ = split_column_names(
    "process device time_begin time_end communicator operation first_operation fused messages"
    " sequence root rank bytes"
)
READ_FOR_ORDER = (*READ, "stream", "in_graph", "by_name")


def observe_collectives(context: RelationContext) -> Observed:
    """Return the kernels of collectives: by communicator and, where the trace numbers them,
    function. Where no communicator is known, by their order.
    """
    facts, path = context.files, context.folder / "nccl-calls"
    steps = []
    for number, files in enumerate(batch_by_report(facts[KERNELS])):
        reports = {file.report for file in files}
        communicator_files = tuple(file for file in facts[COMMUNICATORS] if file.report in reports)
        steps.append(
            partial(
                _sort_by_communicator,
                files,
                communicator_files,
                context.tasks,
                path.with_suffix(f".{number}"),
            )
        )
    results = context.run(steps)
    if not any(has_calls for _, has_calls in results):
        results = context.run(
            [partial(_sort_by_order, facts[KERNELS], facts[COMMUNICATORS], context.tasks, path)]
        )
    return Observed(divide_calls((block for blocks, _ in results for block in blocks), SOURCE))


def _sort_by_communicator(
    files: tuple[FactFile, ...],
    communicators: tuple[FactFile, ...],
    tasks: Mapping[tuple[int, int], int],
    path: Path,
) -> tuple[tuple[MemberBlock, ...], bool]:
    """Sort the kernels of some reports by communicator, member and begin. Return their blocks, and
    whether any communicator is known.
    """
    # Without collectives whose communicators are not known.
    kernels = _mark_begun(
        _read_kernels(files, tasks, READ).filter(
            (pl.col("communicator") != 0) & (pl.col("fused") > pl.col("messages"))
        ),
        read_fact(communicators, tasks),
    )
    # Nor are those of several operations of use, some with a root: they bind in a way that their
    # sum does not tell.
    for_all = _list_roles() == Role.ALL
    usable = for_all | ((pl.col("operation") != GROUP) & (pl.col("rank") >= 0))
    return _sort_calls(kernels.filter(usable), path), kernels.height > 0


def _sort_by_order(
    files: tuple[FactFile, ...],
    communicators: tuple[FactFile, ...],
    tasks: Mapping[tuple[int, int], int],
    path: Path,
) -> tuple[tuple[MemberBlock, ...], bool]:
    """Sort the kernels in which all wait for all by their name alone, of no known communicator, by
    their order on each stream, streams of a GPU in the order of their ids; none where that cannot
    be right. Whether it is shows in when they ended.
    """
    everything = _read_kernels(files, tasks, READ_FOR_ORDER)
    known_communicators = read_fact(communicators, tasks)
    members = everything.select(MEMBER).n_unique()
    kernels = _mark_begun(
        everything.filter((pl.col("communicator") == 0) & (pl.col("in_graph") == 0)),
        known_communicators,
    )
    kernels = kernels.sort(*MEMBER, "stream", "time_begin").with_columns(
        communicator=number_streams(), sequence=-1, operation="by_name", first_operation="by_name"
    )
    ordinal = pl.int_range(pl.len()).over(*MEMBER, "communicator")
    whole = kernels.group_by("communicator", ordinal=ordinal).agg(
        (pl.len() == members) & (pl.col("by_name").n_unique() == 1)
    )
    if members < 2 or not whole["len"].all() or describe_several(known_communicators, members):
        kernels = kernels.clear()
    return _sort_calls(kernels.filter(pl.col("by_name").is_in(ALL_WAIT)), path), False


def _read_kernels(
    files: tuple[FactFile, ...], tasks: Mapping[tuple[int, int], int], columns: tuple[str, ...]
) -> pl.DataFrame:
    return keep_sound_kernels(
        read_fact(files, tasks, columns).filter(
            (pl.col("time_begin") != NULL) & (pl.col("time_end") != NULL) & (pl.col("task") >= 0)
        )
    )


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


def _sort_calls(kernels: pl.DataFrame, path: Path) -> tuple[MemberBlock, ...]:
    calls = kernels.select(
        "communicator",
        "host",
        member=pl.col("task") * DEVICES + pl.col("device"),
        number="sequence",
        function="first_operation",
        role=_list_roles(),
        is_root=(pl.col("root") == pl.col("rank")) & (pl.col("root") >= 0),
        begin="time_begin",
        end="time_end",
        signature=pl.Series(hash_signatures(*(kernels[name].to_numpy() for name in KIND))),
        began="began",
    )
    return sort_calls(calls.cast(pl.Int64), path)


def _list_roles() -> pl.Expr:
    """Return the role of each call (clock.observations.Role)."""
    first = pl.col("first_operation")
    return (
        pl.when(first.is_in(WAIT_FOR_ROOT))
        .then(Role.FROM_ROOT)
        .when(first.is_in(ROOT_WAITS))
        .then(Role.TO_ROOT)
        .otherwise(Role.ALL)
    )
