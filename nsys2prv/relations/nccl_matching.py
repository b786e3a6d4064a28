"""Collectives of NCCL from the kernels of all ranks: which are complete, also where the ranks' orders
of launches differ, and records on their kernels. A step looks at some of them. And a warning where
reports of ranks are missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from msgspec import Struct, field
from msgspec.structs import replace

from nsys2prv._util.text import list_some
from nsys2prv.clock import ALIGNED_ERROR, UTC_ERROR, Role
from nsys2prv.clock import NCCL as SOURCE
from nsys2prv.events.call_indexes import GROUP, SEND_RECEIVE
from nsys2prv.events.kind import Rows
from nsys2prv.events.nccl import COMMUNICATORS
from nsys2prv.relations import DEVICES, write_result
from nsys2prv.relations.blocks import Block, hash_signatures, write_block, write_blocks
from nsys2prv.relations.nccl_kernels import (
    BY_ENDS,
    BY_LAUNCH,
    KEPT,
    KIND,
    CollectivePiece,
    find_bandwidth,
    list_operation_roles,
    where_comparable,
)
from nsys2prv.store.task_result import FactBook, TaskResult, read_fact

if TYPE_CHECKING:
    from nsys2prv.clock.sequences import CallSequence

NAME, LAYOUT, TRANSFER = "nccl_collectives", "nccl_collective", "nccl_transfer"
#: Fields of the layouts, and columns of records: these with times (ns), where they are, and what
#: tells their order among equals.
FIELDS = ("operation", "collective", "late", "wait", "transfer")
TRANSFER_FIELDS = ("operation", "algorithm_bandwidth", "bus_bandwidth")
ORDER = ("settled", "task", "device", "group", "before")
RECORD = ("begin", "end", "object", *FIELDS, *ORDER)
TRANSFER_RECORD = ("ready", "end", "object", *TRANSFER_FIELDS, *ORDER)
#: What tells collectives apart; function: 0 where all functions are numbered together.
KEY = ("group", "function", "ordinal")
#: What is known of a piece, beside each of its kernels.
PIECE = ("group", "way", "ranks", "by_function", "settled")
#: What is equal on all ranks of a collective: of one whose communicator is known, and of others.
SAME, SAME_UNKNOWN = KIND, ("by_name",)


class MatchedCollectives(Struct, frozen=True):
    """Collectives that a step matched in its pieces."""

    #: That it looked at.
    pieces: tuple[CollectivePiece, ...]
    #: File with a row for each collective: first begin, group, function, ordinal.
    firsts: Path
    #: RECORD rows of kernels of complete collectives, numbered from 1 within the step.
    records: tuple[Block, ...] = ()
    #: TRANSFER_RECORD rows: the part of them after the last member's begin, if the bytes are known.
    transfers: tuple[Block, ...] = ()
    #: Collectives by method of matching.
    matched_by_way: Counter[int] = field(default_factory=Counter)
    #: Complete collectives by method of matching.
    whole: Counter[int] = field(default_factory=Counter)
    #: Collectives that have records.
    matched: int = 0
    #: Collectives of which a kernel ends before the last one begins.
    apart: int = 0
    #: Greatest such gap, ns.
    gap: int = 0
    #: Groups whose orders of launches are inconclusive.
    unsteady: frozenset[int] = frozenset()
    #: Collectives matched on hosts whose times cannot be compared.
    unplaced: int = 0


def match_kernels(
    pieces: tuple[CollectivePiece, ...], has_communicators: bool, path: Path
) -> MatchedCollectives:
    """Match the kernels of the pieces. has_communicators: whether they are of known communicators. path: of
    files, but for their endings.
    """
    kernels = _read_kernels(pieces)
    collectives = _group_kernels(kernels, SAME if has_communicators else SAME_UNKNOWN)
    whole = collectives.filter("whole")
    chosen = whole if has_communicators else whole.filter(pl.col("by_name") != SEND_RECEIVE)
    chosen = chosen.sort("first", *KEY).with_columns(collective=pl.int_range(1, pl.len() + 1))
    firsts = path.with_suffix(".firsts")
    chosen.select("first", *KEY).to_numpy().tofile(firsts)
    records, transfers = _make_records(
        kernels.join(chosen.select(*KEY, "collective", "first", "last", "comparable"), on=KEY)
    )
    gaps = chosen.filter(pl.col("comparable") & (pl.col("gap") > 0))["gap"]
    unsteady = collectives.filter(
        (pl.col("way") == BY_LAUNCH)
        & ~pl.col("settled")
        & pl.col("comparable")
        & (pl.col("gap") > 0)
    )
    return MatchedCollectives(
        pieces,
        firsts,
        write_block(path.with_suffix(".records"), records.to_numpy()),
        write_block(path.with_suffix(".transfers"), transfers.to_numpy()),
        Counter(collectives["way"].to_list()),
        Counter(whole["way"].to_list()),
        chosen.height,
        len(gaps),
        gaps.max() or 0,
        frozenset(unsteady["group"]),
        chosen.filter(~pl.col("comparable")).height,
    )


def _read_kernels(pieces: Sequence[CollectivePiece]) -> pl.DataFrame:
    """Return the kernels of the pieces: columns KEPT, KEY, and what is known of their pieces."""
    parts = [piece.read() for piece in pieces]
    sizes = [len(part) for part in parts]
    columns = dict(zip(KEPT, np.ascontiguousarray(np.concatenate(parts).T), strict=True))
    for name in PIECE:
        columns[name] = np.repeat([getattr(piece, name) for piece in pieces], sizes)
    return pl.DataFrame(columns).with_columns(
        function=pl.when("by_function").then("first_operation").otherwise(0)
    )


def _group_kernels(kernels: pl.DataFrame, same: Sequence[str]) -> pl.DataFrame:
    """Return the collectives of these kernels, by KEY: by_name, way and settled of one of its
    kernels; whole: it is complete; first, last: begins of kernels; gap: how much earlier than the
    last begin the first end is, ns; comparable: all times can be compared. same: columns that are
    equal on all ranks.
    """
    alike = pl.all_horizontal(pl.col(name).min() == pl.col(name).max() for name in same)
    begin, part = pl.col("time_begin"), pl.col("part")
    return kernels.group_by(KEY).agg(
        pl.col("by_name", "way", "settled").first(),
        whole=(pl.len() > 1)
        & (pl.len() == pl.col("ranks").first())
        & (pl.len() == (pl.col("task") * DEVICES + pl.col("device")).n_unique())
        & alike,
        first=begin.min(),
        last=begin.max(),
        gap=begin.max() - pl.col("time_end").min(),
        comparable=part.min() == part.max(),
    )


def _make_records(kernels: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return RECORD of these kernels, by begin, and TRANSFER_RECORD of those whose bytes are known,
    by their own begins. kernels: with what is known of their collectives.
    """
    ranks, shared, reduced = (pl.col(name) for name in ("ranks", "share_bytes", "reduce_bytes"))
    plain = pl.col("bytes") - shared - reduced - pl.col("message_bytes")
    begin, end, last = (pl.col(name) for name in ("time_begin", "time_end", "last"))
    operation, by_name = pl.col("operation"), pl.col("by_name")
    transfer = pl.max_horizontal(end - last, 0)
    described = kernels.with_columns(
        begin=begin,
        ready=last,
        end=end,
        object="object_kernel",
        operation=pl.when(operation > 0)
        .then(operation)
        .when(by_name > 0)
        .then(by_name)
        .otherwise(GROUP),
        late=where_comparable(begin - pl.col("first")),
        wait=where_comparable(pl.min_horizontal(last, end) - begin),
        transfer=where_comparable(transfer),
        algorithm_bandwidth=find_bandwidth(plain + reduced + shared * ranks, transfer),
        bus_bandwidth=find_bandwidth(
            plain + reduced * 2 * (ranks - 1) / ranks + shared * (ranks - 1), transfer
        ),
    )
    measured = described.filter(
        (pl.col("known") == 1) & (pl.col("bytes") >= 0) & (transfer > 0) & pl.col("comparable")
    )
    return (
        described.sort("begin").select(pl.col(RECORD).cast(pl.Int64)),
        measured.sort("ready").select(pl.col(TRANSFER_RECORD).cast(pl.Int64)),
    )


def number_collectives(paths: Sequence[Path]) -> None:
    """Number the collectives of several steps through: from 1 by their first begin, then by group,
    function and ordinal. paths: of each step the file of its collectives; that with .numbers is to
    hold their numbers (int64).
    """
    firsts = [np.fromfile(path, np.int64).reshape(-1, 4) for path in paths]
    together = np.concatenate(firsts)
    numbers = np.empty(len(together), np.int64)
    numbers[np.lexsort(together.T[::-1])] = np.arange(1, len(together) + 1)
    ends = np.cumsum([len(part) for part in firsts])
    for path, part in zip(paths, np.split(numbers, ends[:-1]), strict=True):
        part.tofile(path.with_suffix(".numbers"))


def store_records(
    number: int,
    parts: Sequence[tuple[Block, Path]],
    transfers: Sequence[Block],
    low: int | None,
    high: int | None,
    folder: Path,
) -> TaskResult:
    """Store the records that begin within a span of time (ns; None: without a limit). parts: of
    each step that matched, its records and the file of their numbers. transfers: of all steps.
    """
    stored, numbered = [], RECORD.index("collective")
    for block, path in parts:
        rows = block.read(low, high)
        rows[:, numbered] = np.fromfile(path, np.int64)[rows[:, numbered] - 1]
        stored.append(rows)
    moved = [block.read(low, high) for block in transfers]
    made = [
        _make_rows(LAYOUT, RECORD, FIELDS, stored),
        _make_rows(TRANSFER, TRANSFER_RECORD, TRANSFER_FIELDS, moved),
    ]
    return write_result(NAME, number, folder, [rows for rows in made if len(rows.begin)])


def _make_rows(
    layout: str, columns: tuple[str, ...], fields: tuple[str, ...], parts: Sequence[np.ndarray]
) -> Rows:
    """Return records of a layout from parts with these columns, which begin with begin, end and
    object, in their order among equals.
    """
    table = np.concatenate([np.zeros((0, len(columns)), np.int64), *parts])
    column = dict(zip(columns, table.T, strict=True))
    order = np.lexsort([column[name] for name in reversed(ORDER)])
    begin, end, object_ = (table[order, place] for place in range(3))
    return Rows(layout, begin, end, object_, {name: column[name][order] for name in fields})


#: Findings that say that ends tell nothing, rather than that they speak against a match.
UNCLEAR = ("few", "ambiguous")


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


#: Ranks that are named.
MOST_NAMED = 8


def warn_of_absent_members(book: FactBook) -> list[str]:
    """Return a warning where the largest communicator that lacks ranks says that there are more
    ranks than reports of them.
    """
    files = book.files([COMMUNICATORS])[COMMUNICATORS]
    return _describe_missing_ranks(read_fact(files, book.tasks)) if files else []


def _describe_missing_ranks(communicators: pl.DataFrame) -> list[str]:
    """Return what :func:`warn_of_absent_members` does. communicators: a row for each time that a
    process told of one: communicator, task, ranks (their number), rank.
    """
    with_ranks = communicators.filter(
        (pl.col("communicator") != 0) & (pl.col("ranks") > 1) & (pl.col("task") >= 0)
    )
    # A process may have several GPUs, each with a rank of its own; all members may not have told
    # theirs.
    groups = with_ranks.group_by("communicator").agg(
        size=pl.col("ranks").max(),
        sizes=pl.col("ranks").n_unique(),
        told=pl.struct("task", "rank").n_unique(),
        present=pl.col("rank").filter(pl.col("rank") >= 0).unique(),
    )
    lacking = groups.filter((pl.col("told") < pl.col("size")) & (pl.col("sizes") == 1)).sort(
        "size", "communicator", descending=True
    )
    if not lacking.height:
        return []
    row = lacking.row(0, named=True)
    missing = (
        sorted(set(range(row["size"])) - set(row["present"]))
        if len(row["present"]) == row["told"]
        else []
    )
    named = list_some([*map(str, missing)], MOST_NAMED)
    which = (
        f"; there is none of its rank{'s' if len(missing) > 1 else ''} {named}" if missing else ""
    )
    return [
        f"an NCCL communicator has {row['size']} ranks, and there are reports of {row['told']} of them{which}"
    ]
