"""Collectives of NCCL from the kernels of all ranks: which are complete, and records on their
kernels. A step looks at some of them. And a warning where reports of ranks are missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
from msgspec import Struct, field

from nsys2prv._util.columns import ABSENT
from nsys2prv._util.text import list_some
from nsys2prv.events.kind import Rows
from nsys2prv.events.names.calls import GROUP, SEND_RECEIVE
from nsys2prv.events.nccl import COMMUNICATORS
from nsys2prv.relations import write_result
from nsys2prv.relations.blocks import Block, write_block
from nsys2prv.relations.nccl_kernels import BY_LAUNCH, KEPT, Piece
from nsys2prv.store.facts import FactBook, read_fact
from nsys2prv.store.task_result import TaskResult

NAME, LAYOUT, TRANSFER = "nccl_collectives", "nccl_collective", "nccl_transfer"
#: Fields of the layouts, and columns of records: these with times (ns), where they are, and what
#: tells their order among equals.
FIELDS = ("operation", "collective", "late", "wait", "transfer")
TRANSFER_FIELDS = ("operation", "algorithm_bandwidth", "bus_bandwidth")
ORDER = ("settled", "task", "device", "group", "before")
RECORD = ("begin", "end", "object", *FIELDS, *ORDER)
TRANSFER_RECORD = ("ready", "end", "object", *TRANSFER_FIELDS, *ORDER)
#: What is equal on all ranks of a collective: of one whose communicator is known, and of others.
SAME, SAME_UNKNOWN = ("operation", "fused", "bytes"), ("by_name",)


class MatchedCollectives(Struct, frozen=True):
    """Collectives that a step matched in its pieces."""

    pieces: tuple[Piece, ...]
    #: File with a row for each collective: first begin, group, function, ordinal.
    firsts: Path
    #: RECORD rows of kernels of complete collectives, numbered from 1 within the step.
    records: tuple[Block, ...] = ()
    #: TRANSFER_RECORD rows: the part of them after the last member's begin, if the bytes are known.
    transfers: tuple[Block, ...] = ()
    #: Collectives by method of matching.
    met: Counter[int] = field(default_factory=Counter)
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


def match_kernels(pieces: tuple[Piece, ...], known: bool, path: Path) -> MatchedCollectives:
    """Match the kernels of the pieces. known: whether they are of known communicators. path: of
    files, but for their endings.
    """
    kernels = _Kernels.of(pieces)
    firsts = path.with_suffix(".firsts")
    if not len(kernels.piece):
        np.empty(0, np.int64).tofile(firsts)
        return MatchedCollectives(pieces, firsts)
    met = kernels.collectives(SAME if known else SAME_UNKNOWN)
    one = met.order[met.starts]
    chosen = met.whole if known else met.whole & (kernels["by_name"][one] != SEND_RECEIVE)
    records, transfers, keys = _records(kernels, met, chosen)
    keys.tofile(firsts)
    piece = kernels.piece[one]
    ways = np.array([piece.way for piece in pieces])[piece]
    gaps = met.gap[chosen & met.comparable]
    unsure = np.array([piece.way == BY_LAUNCH and not piece.settled for piece in pieces])[piece]
    wrong = piece[unsure & met.comparable & (met.gap > 0)]
    return MatchedCollectives(
        pieces,
        firsts,
        write_block(path.with_suffix(".records"), records),
        write_block(path.with_suffix(".transfers"), transfers),
        Counter(ways.tolist()),
        Counter(ways[met.whole].tolist()),
        int(chosen.sum()),
        int((gaps > 0).sum()),
        int(gaps.max(initial=0)),
        frozenset(pieces[at].group for at in set(wrong.tolist())),
        int((chosen & ~met.comparable).sum()),
    )


class _Kernels(Struct, frozen=True):
    """Kernels of pieces: columns KEPT; piece: number of each one's. In the order of their members,
    communicators and launches, those of settled pieces last.
    """

    columns: dict[str, np.ndarray]
    piece: np.ndarray
    pieces: tuple[Piece, ...]

    @classmethod
    def of(cls, pieces: tuple[Piece, ...]) -> _Kernels:
        parts = [piece.read() for piece in pieces]
        piece = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        columns = dict(zip(KEPT, np.ascontiguousarray(np.concatenate(parts).T), strict=True))
        del parts
        group = np.array([piece.group for piece in pieces])[piece]
        settled = np.array([piece.settled for piece in pieces])[piece]
        order = np.lexsort((columns["before"], group, columns["device"], columns["task"], settled))
        return cls({name: column[order] for name, column in columns.items()}, piece[order], pieces)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name]

    def of_piece(self, name: str) -> np.ndarray:
        """Return the piece's attribute for each kernel."""
        return np.array([getattr(piece, name) for piece in self.pieces], np.int64)[self.piece]

    def collectives(self, same: tuple[str, ...]) -> _Collectives:
        """Return the collectives of these kernels. same: columns that are equal on all ranks."""
        group = self.of_piece("group")
        function = np.where(self.of_piece("by_function"), self["first_operation"], 0)
        key = group, function, self["ordinal"]
        order = np.lexsort((self["device"], self["task"], *key[::-1]))
        key = tuple(column[order] for column in key)
        steps = [column[1:] != column[:-1] for column in key]
        new = np.append(True, np.logical_or.reduce(steps))
        starts = np.flatnonzero(new)
        count = np.diff(np.append(starts, len(order)))
        begin, end = self["time_begin"][order], self["time_end"][order]
        task, device = self["task"][order], self["device"][order]
        again = ~new[1:] & (task[1:] == task[:-1]) & (device[1:] == device[:-1])
        whole = (count > 1) & (count == self.of_piece("ranks")[order[starts]])
        whole &= ~np.logical_or.reduceat(np.append(False, again), starts)
        for name in same:
            column = self[name][order]
            differs = np.append(False, (column[1:] != column[:-1]) & ~new[1:])
            whole &= ~np.logical_or.reduceat(differs, starts)
        part = self["part"][order]
        comparable = np.minimum.reduceat(part, starts) == np.maximum.reduceat(part, starts)
        codes = np.empty(len(order), np.int64)
        codes[order] = np.repeat(np.arange(len(starts)), count)
        last = np.maximum.reduceat(begin, starts)
        return _Collectives(
            order,
            starts,
            codes,
            tuple(column[starts] for column in key),
            whole,
            np.minimum.reduceat(begin, starts),
            last,
            last - np.minimum.reduceat(end, starts),
            comparable,
        )


class _Collectives(Struct, frozen=True):
    """Collectives by group, function and ordinal. order: of the kernels by collective; starts:
    where each collective begins in it. codes: of each kernel, its collective's index. key: of each.
    whole: which are complete. first, last: begin of a kernel. gap: how much earlier than the last
    begin the first end is, ns. comparable: whether all times can be compared.
    """

    order: np.ndarray
    starts: np.ndarray
    codes: np.ndarray
    key: tuple[np.ndarray, ...]
    whole: np.ndarray
    first: np.ndarray
    last: np.ndarray
    gap: np.ndarray
    comparable: np.ndarray


def _records(
    kernels: _Kernels, met: _Collectives, chosen: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return RECORD of each kernel of the collectives chosen, by begin, TRANSFER_RECORD of those
    whose bytes are known, by their own begins, and the collectives' first begins and keys. They are
    numbered from 1 by their first begin.
    """
    at = np.flatnonzero(chosen)
    at = at[np.argsort(met.first[at], kind="stable")]
    number = np.zeros(len(chosen), np.int64)
    number[at] = np.arange(1, len(at) + 1)
    rows = np.flatnonzero(chosen[met.codes])
    codes = met.codes[rows]
    begin, end, told, total, shared, reduced, messages = (
        kernels[name][rows]
        for name in (
            "time_begin",
            "time_end",
            "known",
            "bytes",
            "share_bytes",
            "reduce_bytes",
            "message_bytes",
        )
    )
    ranks = kernels.of_piece("ranks")[rows]
    last = met.last[codes]
    transfer = np.maximum(end - last, 0)
    plain = total - shared - reduced - messages
    comparable = met.comparable[codes]
    measured = np.flatnonzero((told == 1) & (total >= 0) & (transfer > 0) & comparable)

    def speed(moved: np.ndarray) -> np.ndarray:
        # In floating point, for the product may be beyond 64 bits. 0 B/s is where nothing moved, no
        # slow transfer.
        exact = moved * 1e9 / np.maximum(transfer, 1)
        return np.maximum(np.round(exact), np.sign(exact)).astype(np.int64)

    operation, by_name = kernels["operation"][rows], kernels["by_name"][rows]
    columns = {
        "begin": begin,
        "ready": last,
        "end": end,
        "object": kernels["object_kernel"][rows],
        "operation": np.where(operation > 0, operation, np.where(by_name > 0, by_name, GROUP)),
        "collective": number[codes],
        "late": np.where(comparable, begin - met.first[codes], ABSENT),
        "wait": np.where(comparable, np.minimum(last - begin, end - begin), ABSENT),
        "transfer": np.where(comparable, transfer, ABSENT),
        "algorithm_bandwidth": speed(plain + reduced + shared * ranks),
        "bus_bandwidth": speed(plain + reduced * 2 * (ranks - 1) / ranks + shared * (ranks - 1)),
        "settled": kernels.of_piece("settled")[rows],
        "task": kernels["task"][rows],
        "device": kernels["device"][rows],
        "group": kernels.of_piece("group")[rows],
        "before": kernels["before"][rows],
    }

    def table(names: tuple[str, ...], order: np.ndarray) -> np.ndarray:
        return np.stack([columns[name][order] for name in names], axis=1)

    return (
        table(RECORD, np.argsort(begin, kind="stable")),
        table(TRANSFER_RECORD, measured[np.argsort(last[measured], kind="stable")]),
        np.stack([met.first[at], *(column[at] for column in met.key)], axis=1),
    )


def number_collectives(parts: Sequence[tuple[Path, Path]]) -> None:
    """Number the collectives of several steps through: from 1 by their first begin, then by group,
    function and ordinal. parts: of each step the file of its collectives and the one that is to
    hold their numbers (int64).
    """
    firsts = [np.fromfile(path, np.int64).reshape(-1, 4) for path, _ in parts]
    together = np.concatenate(firsts)
    numbers = np.empty(len(together), np.int64)
    numbers[np.lexsort(together.T[::-1])] = np.arange(1, len(together) + 1)
    ends = np.cumsum([len(part) for part in firsts])
    for (_, path), part in zip(parts, np.split(numbers, ends[:-1]), strict=True):
        part.tofile(path)


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
    found, numbered = [], RECORD.index("collective")
    for block, path in parts:
        rows = block.read(low, high)
        rows[:, numbered] = np.fromfile(path, np.int64)[rows[:, numbered] - 1]
        found.append(rows)
    made = [
        _rows(LAYOUT, RECORD, FIELDS, found),
        _rows(
            TRANSFER,
            TRANSFER_RECORD,
            TRANSFER_FIELDS,
            [block.read(low, high) for block in transfers],
        ),
    ]
    return write_result(NAME, number, folder, [rows for rows in made if len(rows.begin)])


def _rows(
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


#: Ranks that are named.
MOST_NAMED = 8


def absent_members(book: FactBook) -> list[str]:
    """Return a warning where the largest communicator that lacks ranks says that there are more
    ranks than reports of them.
    """
    files = book.files([COMMUNICATORS])[COMMUNICATORS]
    return _missing_ranks_warning(read_fact(files, book.tasks)) if files else []


def _missing_ranks_warning(communicators: pl.DataFrame) -> list[str]:
    """Return what :func:`absent_members` does. communicators: a row for each time that a process
    told of one: communicator, task, ranks (their number), rank.
    """
    known = communicators.filter(
        (pl.col("communicator") != 0) & (pl.col("ranks") > 1) & (pl.col("task") >= 0)
    )
    # A process may have several GPUs, each with a rank of its own; all members may not have told
    # theirs.
    groups = known.group_by("communicator").agg(
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
