"""Choose the rows of a report that must be read for a time range: the rows in the range, the calls
that launched its GPU work, the work that its calls launch, and the last samples before it. Rows of
overlapping ranges also need the earlier ranges that decide on which additional row they are. If
several ranks use NCCL, collectives are matched by their order, so all of their kernels and the
calls that launched them are read.

Input: maps of the tables. Output: rows of each table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat

import numpy as np
from msgspec import Struct
from msgspec.structs import astuple, replace

from nsys2prv._util.budget import PART_ROWS
from nsys2prv._util.columns import OPEN, factorize_together
from nsys2prv.conversion.table_maps import TableMap, choose_by_rowid
from nsys2prv.events import all_kinds
from nsys2prv.events.cuda import KERNEL_NAMES, KERNEL_TABLE
from nsys2prv.events.extraction import STREAM_COLUMNS
from nsys2prv.events.kind import LAUNCHES, EventKind
from nsys2prv.events.metrics import SAMPLED
from nsys2prv.events.nccl import is_nccl_kernel
from nsys2prv.export.database import Database
from nsys2prv.export.info import ReportInfo
from nsys2prv.export.outlines import (
    CORRELATION,
    ENDS,
    EVENT_TYPE,
    NVTX_STARTEND,
    NVTX_TABLE,
    SERIES,
    TIMES,
)
from nsys2prv.export.source import NULL, Columns, Part, mask_usable
from nsys2prv.export.sqlite import open_database
from nsys2prv.table.runs import Span

#: Rows before a part in which all series of samples are expected.
NEAR_ROWS = 32_768
#: Numbers that are less far apart are taken for one run of consecutive ones: ids of calls, rows.
NEAR_IDS, FEW_ROWS = 64, 64
#: Runs of rows of a table at most; and runs of numbers that are kept in memory.
MOST_RUNS, KEPT_RUNS = 32, 100_000
#: Columns that tell the stream or thread of a range.
OBJECT_COLUMNS = (*STREAM_COLUMNS, "globalTid")
#: Maximum number of ranges that overlap in a chain.
LONGEST_CHAIN = 64
NONE = np.zeros(0, np.int64)


class ChoiceTask(Struct, frozen=True):
    """A task for a worker: choose the rows of one report that a time range needs."""

    #: The report's metadata.
    info: ReportInfo
    #: Its maps, by table.
    maps: dict[str, TableMap]
    #: The requested part (local ns).
    span: Span
    #: Tables with rows that can be chosen.
    tables: set[str]
    #: True if all NCCL kernels are needed.
    needs_nccl: bool


def choose_rows(task: ChoiceTask) -> dict[str, tuple[Part, ...]]:
    """Choose the rows that must be read for a time range. Return table -> parts, for tables that
    need not be read completely. This depends only on files.
    """
    maps = {table: task.maps[table] for table in sorted(task.maps.keys() & task.tables)}
    blocks = {table: one.find_overlapping(task.span) for table, one in maps.items()}
    calls = maps.keys() & list_tables(lambda kind: LAUNCHES in kind.provides)
    with open_database(task.info.path) as database:
        for table in maps.keys() & SAMPLED.keys():
            _add_samples_in_force(database, maps[table], blocks[table], task.span[0])
        beneath = {
            table: _find_begins_beneath(database, group, task.span[0])
            for group in _group_overlapping(maps)
            for table in group
        }
        for table, begins in beneath.items():
            blocks[table] |= maps[table].find_times(begins)
        works = [table for table in maps if database.has(table, CORRELATION) and table not in calls]
        # The work of the calls in the part, and the calls of all work that is read.
        called = _join(_read_ids(database, maps[one].list_parts(blocks[one])) for one in calls)
        parts = {
            table: _list_work(
                database, maps[table], blocks[table], called, task.span, beneath.get(table, NONE)
            )
            for table in works
        }
        launched = _join(_read_ids(database, of_table) for of_table in parts.values())
        for table in calls:
            blocks[table] |= launched.find(*maps[table].bounds[2:4])
        for table in maps.keys() - parts.keys():
            parts[table] = maps[table].list_parts(blocks[table])
        if task.needs_nccl and KERNEL_TABLE in maps:
            _add_nccl_kernels(database, maps, parts, calls)
    return {
        table: of_table
        for table, of_table in parts.items()
        if sum(part.count for part in of_table) < maps[table].part.rows
    }


def list_tables(meets: Callable[[EventKind], bool]) -> set[str]:
    """Return the tables of the event kinds that meet a condition."""
    return {table for kind in all_kinds() if meets(kind) for table in kind.tables}


def list_rows_between(whole: Part, parts: Sequence[Part]) -> Iterator[Part]:
    """Yield the rows of a table that are in none of these parts. parts: sorted."""
    firsts = (whole.first, *(part.last + 1 for part in parts))
    lasts = (*(part.first - 1 for part in parts), whole.last)
    for first, last in zip(firsts, lasts, strict=True):
        if first <= last:
            yield replace(whole, first=first, last=last)


class _Runs(Struct, frozen=True):
    """Sets of numbers, stored as runs of close numbers: the first and last number of each run,
    sorted.
    """

    first: np.ndarray
    last: np.ndarray

    def find(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Return a mask of the ranges from `low` to `high` that may contain some of the numbers."""
        return self.last.searchsorted(low, "left") < self.first.searchsorted(high, "right")

    def join(self, gap: int) -> _Runs:
        """Return the runs, with those merged that are at most `gap` apart."""
        apart = np.flatnonzero(self.first[1:] > np.maximum.accumulate(self.last)[:-1] + gap) + 1
        if not len(self.first):
            return self
        starts = np.append(0, apart)
        return _Runs(self.first[starts], np.maximum.reduceat(self.last, starts))

    def shrink(self, most: int, gap: int) -> tuple[_Runs, int]:
        """Return at most `most` runs, for which runs further apart than `gap` are merged if there
        are more, and the gap up to which they are merged.
        """
        runs = self
        while len(runs.first) > most:
            gap *= 2
            runs = runs.join(gap)
        return runs, gap


def _find_runs(numbers: np.ndarray, gap: int) -> _Runs:
    """Return numbers as runs of close numbers. Neighbors in the given order are merged first,
    because most numbers ascend.
    """
    if not len(numbers):
        return _Runs(numbers, numbers)
    starts = np.append(0, np.flatnonzero(np.abs(np.diff(numbers)) > gap) + 1)
    first, last = np.minimum.reduceat(numbers, starts), np.maximum.reduceat(numbers, starts)
    order = first.argsort(kind="stable")
    return _Runs(first[order], last[order]).join(gap)


def _join(several: Iterable[_Runs], gap: int = NEAR_IDS) -> _Runs:
    """Return several sets of runs merged into one. If there are many runs, as in shuffled tables, runs
    further apart than `gap` are merged too.
    """
    joined = _Runs(NONE, NONE)
    for one in several:
        first, last = map(np.concatenate, zip(astuple(joined), astuple(one), strict=True))
        order = first.argsort(kind="stable")
        joined, gap = _Runs(first[order], last[order]).join(gap).shrink(KEPT_RUNS, gap)
    return joined


def _read_ids(database: Database, parts: Sequence[Part]) -> _Runs:
    """Return the correlation ids of rows as runs."""
    pieces = (piece for part in parts for piece in part.split(PART_ROWS))
    ids = (database.read(piece, (CORRELATION,))[CORRELATION] for piece in pieces)
    return _join(_find_runs(one[(one != 0) & (one != NULL)], NEAR_IDS) for one in ids)


def _list_work(
    database: Database,
    one: TableMap,
    blocks: np.ndarray,
    called: _Runs,
    span: Span,
    begins: np.ndarray,
) -> tuple[Part, ...]:
    """Return the rows of a table of GPU work that are needed: rows in the span, rows launched by
    the calls in `called`, rows that start at one of `begins`, and the row that ends last. blocks:
    mask of the blocks that contain such rows, except for the calls.
    """
    last = one.bounds[1].max()

    def select(rows: Columns, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        ids = rows[CORRELATION]
        chosen = ((begin <= span[1]) & (end >= span[0])) | called.find(ids, ids)
        chosen |= np.isin(begin, begins)
        chosen[np.flatnonzero(end == last)[-1:]] = True
        return chosen

    pieces = _select_rows(database, one, blocks | called.find(*one.bounds[2:4]), select)
    runs, _ = _join(pieces, FEW_ROWS).shrink(MOST_RUNS, FEW_ROWS)
    return tuple(
        replace(one.part, first=first, last=last)
        for first, last in zip(runs.first.tolist(), runs.last.tolist(), strict=True)
    )


def _select_rows(
    database: Database,
    one: TableMap,
    blocks: np.ndarray,
    select: Callable[[Columns, np.ndarray, np.ndarray], np.ndarray],
) -> Iterator[_Runs]:
    """Return the rows in blocks of a table that `select` chooses from columns, starts and ends. If
    a piece lacks rows, or has rows without times, return all its rows.
    """
    for piece, rows, begin, end in _read_ranges(database, one, blocks, (CORRELATION,)):
        if rows.rows == piece.rows:
            chosen = np.flatnonzero(select(rows, begin, end))
            yield _find_runs(piece.first + chosen, FEW_ROWS)
        else:
            yield _Runs(np.array([piece.first]), np.array([piece.last]))


def _read_ranges(
    database: Database, one: TableMap, blocks: np.ndarray, further: tuple[str, ...]
) -> Iterator[tuple[Part, Columns, np.ndarray, np.ndarray]]:
    """Yield the ranges in blocks of a table, piece by piece: part, columns, starts, and ends (OPEN
    for no end).
    """
    columns = database.tables[one.part.table].columns
    times = [name for name in TIMES if name in columns][:1]
    times += [name for name in ENDS if name in columns]
    for part in one.list_parts(blocks):
        for piece in part.split(PART_ROWS):
            rows = database.read(piece, (*times, *further))
            begin, *ends = (rows[name] for name in times)
            ends = [np.where(mask_usable(end), end, OPEN) for end in ends]
            yield piece, rows, begin, np.maximum.reduce([begin, *ends])


# ---- NCCL kernels ---------------------------------------------------------------------------------


def _add_nccl_kernels(
    database: Database,
    maps: Mapping[str, TableMap],
    parts: dict[str, tuple[Part, ...]],
    calls: Iterable[str],
) -> None:
    """Add to the chosen parts the other NCCL kernels, and the calls that launched them. calls:
    tables of calls.
    """

    def is_of_nccl(rows: Columns) -> np.ndarray:
        ids, codes = factorize_together(*(rows[name] for name in KERNEL_NAMES))
        texts = database.read_strings(np.concatenate(ids))
        known = [number for number, text in texts.items() if is_nccl_kernel(text)]
        return np.logical_or.reduce([np.isin(one, known) for one in ids])[codes]

    kernels = _select_others(database, maps[KERNEL_TABLE], parts, KERNEL_NAMES, is_of_nccl)
    ids = [database.read(part, (CORRELATION,))[CORRELATION] for part in kernels]
    launched = np.unique(np.concatenate([NONE, *ids]))
    parts[KERNEL_TABLE] += kernels
    for table in calls:
        parts[table] += _select_others(
            database,
            maps[table],
            parts,
            (CORRELATION,),
            lambda rows: np.isin(rows[CORRELATION], launched),
        )


def _select_others(
    database: Database,
    one: TableMap,
    parts: Mapping[str, tuple[Part, ...]],
    columns: tuple[str, ...],
    select: Callable[[Columns], np.ndarray],
) -> tuple[Part, ...]:
    """Return the rows of a table that are in none of its chosen parts and that `select` chooses
    from these columns. If rows are missing or have no rowids, return all rows of their piece.
    """
    others: list[Part] = []
    rowids = [NONE]
    for between in list_rows_between(one.part, parts[one.part.table]):
        for piece in between.split(PART_ROWS):
            rows = database.read(piece, columns)
            if rows.rows == piece.rows and piece.rowid:
                rowids.append(piece.first + np.flatnonzero(select(rows)))
            else:
                others.append(piece)
    return (*others, *choose_by_rowid(one.part, np.concatenate(rowids)))


# ---- ranges that overlap --------------------------------------------------------------------------


def _group_overlapping(maps: Mapping[str, TableMap]) -> Iterator[dict[str, TableMap]]:
    """Yield the tables of each group of kinds that put overlapping ranges on additional rows."""
    groups = {kind.overlap_group for kind in all_kinds()} - {""}
    for group in sorted(groups):
        tables = maps.keys() & list_tables(lambda kind, group=group: kind.overlap_group == group)
        if tables:
            yield {table: maps[table] for table in sorted(tables)}


def _find_begins_beneath(
    database: Database, maps: Mapping[str, TableMap], moment: int
) -> np.ndarray:
    """Return the starts of ranges that decide on which additional row each open range is (local
    ns).

    These are the ranges that are open at `moment`, the ranges that are open at their starts on the
    same stream or thread, and so on.
    """
    known: dict[tuple[int, ...], set[int]] = {}
    asked: dict[tuple[int, ...] | None, set[int]] = {None: {moment}}
    for _ in range(LONGEST_CHAIN):
        times = np.array(sorted(set().union(*asked.values())), np.int64)
        found: dict[tuple[int, ...] | None, set[int]] = {}
        for one in maps.values():
            for key, begin, end in _list_open_ranges(database, one, times):
                own = known.setdefault(key, set())
                wanted = asked.get(key, set()) | asked.get(None, set())
                if begin not in own and any(begin <= time < max(end, begin + 1) for time in wanted):
                    own.add(begin)
                    found.setdefault(key, set()).add(begin)
        if not found:
            break
        asked = found
    return np.array(sorted(set().union(*known.values())), np.int64)


def _list_open_ranges(
    database: Database, one: TableMap, times: np.ndarray
) -> Iterator[tuple[tuple[int, ...], int, int]]:
    """Yield stream or thread, start and end of the ranges in a table that are open at any of these
    times. times: sorted.
    """
    columns = database.tables[one.part.table].columns
    names = tuple(name for name in OBJECT_COLUMNS if name in columns)
    typed = (EVENT_TYPE,) if one.part.table == NVTX_TABLE else ()
    blocks = one.find_times(times)
    for _, rows, begin, end in _read_ranges(database, one, blocks, (*names, *typed)):
        is_open = times.searchsorted(begin) < times.searchsorted(np.maximum(end, begin + 1))
        if typed:
            is_open &= np.isin(rows[EVENT_TYPE], NVTX_STARTEND)
        found = np.flatnonzero(is_open & mask_usable(begin))
        own = (rows[name][found].tolist() for name in names)
        keys = zip(*own, strict=True) if names else repeat(())
        yield from zip(keys, begin[found].tolist(), end[found].tolist(), strict=False)


# ---- samples --------------------------------------------------------------------------------------


def _add_samples_in_force(
    database: Database, one: TableMap, blocks: np.ndarray, begin: int
) -> None:
    """Add blocks of a table of samples to the mask `blocks`.

    These are the first and the last block, which show when sampling took place; the neighbors; and
    the blocks with the last sample of each series at `begin` (local ns). If these are far away, all
    blocks are added.
    """
    before = one.bounds[0] <= begin
    blocks[np.flatnonzero(before)[-1:]] = True
    blocks[1:] |= blocks[:-1]
    # Usually all series of the table have samples shortly before.
    firsts = choose_by_rowid(one.part, one.noted.rows.rowids) if one.noted.rows else ()
    every = _list_series(database, one, firsts, OPEN) if one.noted.rows else None
    for near in (1, -(-NEAR_ROWS // one.block_rows)):
        for _ in range(near):
            blocks[:-1] |= blocks[1:]
        held = _list_series(database, one, one.list_parts(blocks & before), begin)
        if every is not None and every <= held:
            break
        if _list_series(database, one, one.list_parts(before & ~blocks), begin) <= held:
            break
    else:
        blocks[:] = True
    blocks[[0, -1]] = True


def _list_series(
    database: Database, one: TableMap, parts: Iterable[Part], until: int
) -> set[tuple[int, ...]]:
    """Return the series that have samples in these rows of a table, not later than `until` (local ns)."""
    series: set[tuple[int, ...]] = set()
    clock = next(name for name in TIMES if name in database.tables[one.part.table].columns)
    for part in parts:
        for piece in part.split(PART_ROWS):
            rows = database.read(piece, (clock, *SERIES))
            rows = rows.where(rows[clock] <= until)
            distinct, _ = factorize_together(*(rows[name] for name in SERIES))
            series |= set(zip(*(column.tolist() for column in distinct), strict=True))
    return series
