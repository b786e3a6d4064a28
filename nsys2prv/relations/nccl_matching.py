"""Steps of NCCL collectives: which are complete, from the kernels of all ranks, also where the
ranks' orders of launches differ, and records on their kernels. A step looks at some of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.columns import ABSENT
from nsys2prv.clock import UNCLEAR_KINDS, UTC_ERROR, ClockFinding, NoiseKind, Role
from nsys2prv.events.call_indexes import ROOT_WAITS, SEVERAL_OPERATIONS, WAIT_FOR_ROOT
from nsys2prv.events.kind import Rows
from nsys2prv.export.source import NULL
from nsys2prv.relations import DEVICES, RelationContext, write_result
from nsys2prv.relations.blocks import (
    Block,
    divide_ordinals,
    hash_signatures,
    split_column_names,
    write_block,
    write_blocks,
)
from nsys2prv.store.runs import TRACE
from nsys2prv.store.work_result import WorkResult

#: How collectives of a communicator were distinguished, in words and by index.
MATCHING_METHODS = ("sequence number", "order of launches", "the times at which they ended")
BY_NUMBER, BY_LAUNCH, BY_ENDS = range(3)
#: Columns that are equal on all ranks of a collective.
EQUAL_COLUMNS = ("operation", "fused", "bytes")
#: Columns of kernels in blocks. before: operations of the member on the communicator until then.
#: ordinal: what numbers its collectives, as the block is sorted.
KERNEL_COLUMNS = split_column_names(
    "ordinal before task device object_kernel time_begin time_end by_name operation first_operation"
    " fused bytes known reduce_bytes share_bytes message_bytes clock_group"
)
NAME, LAYOUT, TRANSFER = "nccl_collectives", "nccl_collective", "nccl_transfer"
#: Fields of the layouts, and columns of records: with times (ns), their place, and the key that
#: orders records of equal time.
FIELDS = ("operation", "collective", "late", "wait", "transfer")
TRANSFER_FIELDS = ("operation", "algorithm_bandwidth", "bus_bandwidth")
ORDER = ("settled", "task", "device", "group", "before")
RECORD_COLUMNS = ("begin", "end", "object", *FIELDS, *ORDER)
TRANSFER_RECORD_COLUMNS = ("ready", "end", "object", *TRANSFER_FIELDS, *ORDER)
#: Columns that identify a collective; function: 0 where all functions are numbered together.
COLLECTIVE_KEY = ("group", "function", "ordinal")
#: Kernels that one step compares with each other: some 60 MB.
STEP_ROWS = 100_000
#: Fields of a piece, repeated for each of its kernels.
PIECE_COLUMNS = ("group", "way", "ranks", "by_function", "settled")


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


class MatchedCollectives(Struct, frozen=True):
    """Collectives that a step matched."""

    #: A row for each complete one: first begin, group, function, ordinal.
    firsts: np.ndarray
    #: RECORD_COLUMNS rows of their kernels, numbered from 1 within the step.
    records: tuple[Block, ...]
    #: TRANSFER_RECORD_COLUMNS rows: the part of them after the last member's begin, if the bytes
    #: are known.
    transfers: tuple[Block, ...]
    #: By way, whole and comparable: `count` of collectives, of how many a kernel ends before the last
    #: one begins (`apart`), and the greatest `gap` (ns) between these.
    summary: pl.DataFrame


def match_kernels(pieces: tuple[CollectivePiece, ...], path: Path) -> MatchedCollectives:
    """Match the kernels of the pieces. path: of files, but for their endings."""
    kernels = _read_kernels(pieces)
    collectives = _group_kernels(kernels)
    chosen = collectives.filter("whole").sort("first", *COLLECTIVE_KEY)
    chosen = chosen.with_columns(collective=pl.int_range(1, pl.len() + 1))
    known = chosen.select(*COLLECTIVE_KEY, "collective", "first", "last", "comparable")
    records, transfers = _make_records(kernels.join(known, on=COLLECTIVE_KEY))
    return MatchedCollectives(
        chosen.select("first", *COLLECTIVE_KEY).to_numpy(),
        write_block(path.with_suffix(".records"), records.to_numpy()),
        write_block(path.with_suffix(".transfers"), transfers.to_numpy()),
        collectives.group_by("way", "whole", "comparable").agg(
            count=pl.len(), apart=(pl.col("gap") > 0).sum(), gap=pl.col("gap").max()
        ),
    )


def _read_kernels(pieces: Sequence[CollectivePiece]) -> pl.DataFrame:
    """Return the kernels of the pieces: KERNEL_COLUMNS, COLLECTIVE_KEY, PIECE_COLUMNS."""
    parts = [piece.read() for piece in pieces]
    sizes = [len(part) for part in parts]
    columns = dict(zip(KERNEL_COLUMNS, np.ascontiguousarray(np.concatenate(parts).T), strict=True))
    for name in PIECE_COLUMNS:
        columns[name] = np.repeat([getattr(piece, name) for piece in pieces], sizes)
    function = pl.when("by_function").then("first_operation").otherwise(0)
    return pl.DataFrame(columns).with_columns(function=function)


def _group_kernels(kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the collectives of these kernels, by COLLECTIVE_KEY: way; whole: it is complete; first, last: begins of kernels; gap: how much earlier than the
    last begin the first end is, ns; comparable: all times can be compared.
    """
    alike = pl.all_horizontal(pl.col(name).min() == pl.col(name).max() for name in EQUAL_COLUMNS)
    begin, clock_group = pl.col("time_begin"), pl.col("clock_group")
    members = (pl.col("task") * DEVICES + pl.col("device")).n_unique()
    whole = (pl.len() > 1) & (pl.len() == pl.col("ranks").first()) & (pl.len() == members) & alike
    return kernels.group_by(COLLECTIVE_KEY).agg(
        pl.col("way").first(),
        whole=whole,
        first=begin.min(),
        last=begin.max(),
        gap=begin.max() - pl.col("time_end").min(),
        comparable=clock_group.min() == clock_group.max(),
    )


def _make_records(kernels: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return RECORD_COLUMNS of these kernels in order of begin, and TRANSFER_RECORD_COLUMNS of
    those with known bytes in order of their begins. kernels: with what is known of their
    collectives.
    """
    ranks, shared, reduced = (pl.col(name) for name in ("ranks", "share_bytes", "reduce_bytes"))
    plain = pl.col("bytes") - shared - reduced - pl.col("message_bytes")
    begin, end, last = (pl.col(name) for name in ("time_begin", "time_end", "last"))
    operation, by_name = (pl.when(pl.col(name) > 0).then(name) for name in ("operation", "by_name"))
    bus = plain + reduced * 2 * (ranks - 1) / ranks + shared * (ranks - 1)
    transfer = pl.max_horizontal(end - last, 0)
    described = kernels.with_columns(
        begin=begin,
        ready=last,
        end=end,
        object="object_kernel",
        operation=pl.coalesce(operation, by_name, SEVERAL_OPERATIONS),
        late=blank_incomparable(begin - pl.col("first")),
        wait=blank_incomparable(pl.min_horizontal(last, end) - begin),
        transfer=blank_incomparable(transfer),
        algorithm_bandwidth=find_bandwidth(plain + reduced + shared * ranks, transfer),
        bus_bandwidth=find_bandwidth(bus, transfer),
    )
    sized = (pl.col("known") == 1) & (pl.col("bytes") >= 0)
    measured = described.filter(sized & (transfer > 0) & pl.col("comparable"))
    return (
        described.sort("begin").select(pl.col(RECORD_COLUMNS).cast(pl.Int64)),
        measured.sort("ready").select(pl.col(TRANSFER_RECORD_COLUMNS).cast(pl.Int64)),
    )


def store_collectives(
    context: RelationContext, matched: Sequence[MatchedCollectives]
) -> list[WorkResult]:
    """Store the records of the collectives, by time and numbered through as if one step had found
    them: from 1 by their first begin, then by group, function and ordinal.
    """
    firsts = np.concatenate([np.empty((0, 4), np.int64), *(part.firsts for part in matched)])
    numbers = np.empty(len(firsts), np.int64)
    numbers[np.lexsort(firsts.T[::-1])] = np.arange(1, len(firsts) + 1)
    path = context.folder / f"numbers-{context.first_task}"
    numbers.tofile(path)
    before = np.cumsum([1, *(len(part.firsts) for part in matched)]).tolist()
    records = [
        (block, first)
        for part, first in zip(matched, before, strict=False)
        for block in part.records
    ]
    transfers = [block for part in matched for block in part.transfers]
    windows = divide_ordinals([block for block, _ in records], STEP_ROWS) if records else []
    steps = [
        partial(_store_span, number, records, path, transfers, *window, context.folder)
        for number, window in enumerate(windows, context.first_task)
    ]
    return context.run_steps(steps) or [WorkResult(context.first_task, TRACE, 0)]


def _store_span(
    number: int,
    records: Sequence[tuple[Block, int]],
    numbers: Path,
    transfers: Sequence[Block],
    low: int | None,
    high: int | None,
    folder: Path,
) -> WorkResult:
    """Store the records that begin within a span of time (ns; None: without a limit). records: with
    the number within its step of the first collective in the file `numbers`.
    """
    stored, of_all = [], np.fromfile(numbers, np.int64)
    column = RECORD_COLUMNS.index("collective")
    for block, first in records:
        rows = block.read(low, high)
        rows[:, column] = of_all[rows[:, column] - 1 + first - 1]
        stored.append(rows)
    moved = [block.read(low, high) for block in transfers]
    made = [
        make_rows(LAYOUT, _sort_records(stored, RECORD_COLUMNS), "begin", FIELDS),
        make_rows(
            TRANSFER, _sort_records(moved, TRANSFER_RECORD_COLUMNS), "ready", TRANSFER_FIELDS
        ),
    ]
    return write_result(NAME, number, folder, [rows for rows in made if len(rows.begin)])


def _sort_records(parts: Sequence[np.ndarray], columns: tuple[str, ...]) -> pl.DataFrame:
    """Return records from parts with these columns, in their order among equals."""
    table = np.concatenate([np.zeros((0, len(columns)), np.int64), *parts])
    return pl.DataFrame(table, columns, orient="row").sort(ORDER, maintain_order=True)


def settle_order(
    piece: CollectivePiece, even: bool, mixed: bool, path: Path, pivot: int, clock_error: int
) -> tuple[CollectivePiece, int]:
    """Return a communicator's kernels in the order of their launches, or by when they ended: where
    its members have not equally many operations (even), or that order lets a kernel end before
    another of its collective begins. Return also how many kernels are of no collective.

    Where ends cannot tell, the order stands if the members are even. mixed: the blocks of some are
    ordered by recorded numbers. path: of new blocks, but for their endings. pivot: time amid all
    times. clock_error: largest one of times of one clock group, ns.
    """
    if mixed:
        blocks = []
        for number, block in enumerate(piece.blocks):
            rows = block.read()
            rows[:, 0] = rows[:, 1]
            blocks += _write_in_order(path.with_suffix(f".order{number}"), block.group, rows)
        piece = replace(piece, blocks=tuple(blocks))
    if even and not any(map(_is_contradicted, divide_kernels([piece], STEP_ROWS))):
        return piece, 0
    fits, findings = _number_by_ends(piece.blocks, pivot, clock_error)
    if even and any(finding.kind in UNCLEAR_KINDS for finding in findings):
        return replace(piece, settled=True), 0
    blocks = []
    for number, block in enumerate(piece.blocks):
        rows = block.read()
        rows[:, 0] = -1
        for member, ordinals in fits[number].items():
            rows[_find_member(rows, member), 0] = ordinals
        rows = rows[rows[:, 0] >= 0]
        blocks += _write_in_order(path.with_suffix(f".ends{number}"), block.group, rows)
    kept = sum(block.rows for block in blocks)
    return replace(piece, blocks=tuple(blocks), way=BY_ENDS, settled=True), piece.rows - kept


def _is_contradicted(pieces: tuple[CollectivePiece, ...]) -> bool:
    """Return whether a kernel ends before another of its collective begins, by clocks that agree."""
    apart = pl.col("comparable") & (pl.col("gap") > 0)
    return _group_kernels(_read_kernels(pieces)).select(apart.any()).item()


def _write_in_order(path: Path, group: int, rows: np.ndarray) -> tuple[Block, ...]:
    """Write rows of one group as a block, ascending by ordinal."""
    order = np.argsort(rows[:, 0], kind="stable")
    return write_blocks(path, np.full(len(rows), group), rows[order])


def _number_by_ends(
    blocks: Sequence[Block], pivot: int, clock_error: int
) -> tuple[list[dict[int, np.ndarray]], list[ClockFinding]]:
    """Return the ordinals of the kernels of each member in each block, by when they ended."""
    from nsys2prv.clock.sequences import Member, number_group

    owned = []
    for number, block in enumerate(blocks):
        columns = dict(zip(KERNEL_COLUMNS, block.read().T, strict=True))
        owners, first, counts = np.unique(
            _number_members(columns), return_index=True, return_counts=True
        )
        clocks = columns["clock_group"][first]
        for member, count, clock in zip(
            *map(np.ndarray.tolist, (owners, counts, clocks)), strict=True
        ):
            load = partial(_load_calls, block, member, pivot)
            owned.append((Member(member, count, load, clock=clock), number))
    owned.sort(key=lambda item: item[0].member)
    members = [member for member, _ in owned]
    fits, findings = number_group(members, NoiseKind.NCCL, 0, UTC_ERROR, clock_error)
    by_block: list[dict[int, np.ndarray]] = [{} for _ in blocks]
    for at, fit in fits.items():
        by_block[owned[at][1]][owned[at][0].member] = fit
    return by_block, findings


def _load_calls(block: Block, member: int, pivot: int) -> pl.DataFrame:
    """Return the end, signature and role of a member's calls in a block, by their begins."""
    rows = block.read()
    columns = dict(zip(KERNEL_COLUMNS, rows[_find_member(rows, member)].T, strict=True))
    return pl.DataFrame(
        {
            "end": columns["time_end"] - pivot,
            "signature": hash_signatures(*(columns[name] for name in EQUAL_COLUMNS)),
            "role": list_operation_roles(columns["first_operation"]),
        }
    )


def _find_member(rows: np.ndarray, member: int) -> np.ndarray:
    """Return the places of a member's kernels among the rows of a block, by their begins."""
    columns = dict(zip(KERNEL_COLUMNS, rows.T, strict=True))
    place = np.flatnonzero(_number_members(columns) == member)
    return place[np.lexsort((columns["before"][place], columns["time_begin"][place]))]


def _number_members(columns: Mapping[str, np.ndarray]) -> np.ndarray:
    return columns["task"] * DEVICES + columns["device"]
