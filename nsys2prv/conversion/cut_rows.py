"""Choose the rows of a report that must be read for a time range: the rows in the range, the calls
that launched its GPU work, the work that its calls launch, and the last samples before it. Rows of
overlapping ranges also need the earlier ranges that decide on which additional row they are.

Clocks are aligned, and collectives are matched, by the events of the whole job. The rows for this
are chosen by :mod:`nsys2prv.conversion.compared_rows`.

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
from nsys2prv.events.extraction import STREAM_COLUMNS
from nsys2prv.events.kind import LAUNCHES, EventKind
from nsys2prv.events.metrics import SAMPLED
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
from nsys2prv.export.source import NULL, Columns, Part, SomeRows, mask_usable
from nsys2prv.export.sqlite import open_database
from nsys2prv.table.runs import Span

#: Rows before a part in which all series of samples are expected.
NEAR_ROWS = 32_768
#: Most rows of a table that are listed one by one.
MOST_LISTED = 100_000
#: Of more rows: runs less far apart are joined, and there are at most so many.
FEW_ROWS, MOST_RUNS = 64, 32
#: Most runs of numbers that are kept in memory.
KEPT_RUNS = 100_000
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
    #: Table -> further rows to choose.
    further: Mapping[str, Sequence[Part]]


def choose_rows(task: ChoiceTask) -> dict[str, tuple[Part, ...]]:
    """Choose the rows that must be read for a time range. Return table -> parts, for tables that
    need not be read completely. This depends only on files.
    """
    tables, span = list_tables(lambda kind: kind.separable), task.span
    maps = {table: task.maps[table] for table in sorted(task.maps.keys() & tables)}
    blocks = {table: one.find_overlapping(span) for table, one in maps.items()}
    calls = maps.keys() & list_tables(lambda kind: LAUNCHES in kind.provides)
    parts: dict[str, tuple[Part, ...]] = {}
    with open_database(task.info.path) as database:
        for table in maps.keys() & SAMPLED.keys():
            _add_samples_in_force(database, maps[table], blocks[table], span[0])
            parts[table] = maps[table].list_parts(blocks[table])
        beneath = {
            table: _find_begins_beneath(database, group, span[0])
            for group in _group_overlapping(maps)
            for table in group
        }
        for table, begins in beneath.items():
            blocks[table] |= maps[table].find_times(begins)

        def choose(table: str, ids: Runs) -> tuple[Runs, Runs]:
            begins, last = beneath.get(table, NONE), maps[table].bounds[1].max()

            def select(rows: Columns, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
                chosen = ((begin <= span[1]) & (end >= span[0])) | np.isin(begin, begins)
                if CORRELATION in rows.integers:
                    chosen |= ids.find(rows[CORRELATION], rows[CORRELATION])
                chosen[np.flatnonzero(end == last)[-1:]] = True
                return chosen

            own = blocks[table] | ids.find(*maps[table].bounds[2:4])
            return _select_rows(database, maps[table], own, select)

        # The work of the calls in the part, and the calls of all work that is read.
        works = [table for table in maps if database.has(table, CORRELATION) and table not in calls]
        called = _join(choose(table, NO_RUNS)[1] for table in calls)
        chosen = {table: choose(table, called) for table in works}
        launched = _join(ids for _, ids in chosen.values())
        for table in maps.keys() - parts.keys() - chosen.keys():
            chosen[table] = choose(table, launched)
    for table, (rows, _) in chosen.items():
        further = task.further.get(table, ())
        parts[table] = tuple(_list_parts(maps[table], rows, further))
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


class Runs(Struct, frozen=True):
    """Sets of numbers, stored as runs of close numbers: the first and last number of each run,
    sorted.
    """

    first: np.ndarray
    last: np.ndarray

    @property
    def count(self) -> int:
        """Return the number of numbers."""
        return int((self.last - self.first + 1).sum())

    def expand(self) -> np.ndarray:
        """Return all numbers."""
        lengths = self.last - self.first + 1
        before = np.cumsum(lengths) - lengths
        return np.repeat(self.first - before, lengths) + np.arange(self.count)

    def find(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Return a mask of the ranges from `low` to `high` that may contain some of the numbers."""
        return self.last.searchsorted(low, "left") < self.first.searchsorted(high, "right")

    def join(self, gap: int) -> Runs:
        """Return the runs, with those merged that are at most `gap` apart."""
        apart = np.flatnonzero(self.first[1:] > np.maximum.accumulate(self.last)[:-1] + gap) + 1
        if not len(self.first):
            return self
        starts = np.append(0, apart)
        return Runs(self.first[starts], np.maximum.reduceat(self.last, starts))

    def shrink(self, most: int, gap: int) -> tuple[Runs, int]:
        """Return at most `most` runs, for which runs further apart than `gap` are merged if there
        are more, and the gap up to which they are merged.
        """
        runs = self
        while len(runs.first) > most:
            gap *= 2
            runs = runs.join(gap)
        return runs, gap


NO_RUNS = Runs(NONE, NONE)


def find_runs(numbers: np.ndarray) -> Runs:
    """Return numbers as runs of consecutive numbers. Neighbors in the given order are merged first,
    because most numbers ascend.
    """
    if not len(numbers):
        return Runs(numbers, numbers)
    starts = np.append(0, np.flatnonzero(np.abs(np.diff(numbers)) > 1) + 1)
    first, last = np.minimum.reduceat(numbers, starts), np.maximum.reduceat(numbers, starts)
    order = first.argsort(kind="stable")
    return Runs(first[order], last[order]).join(1)


def _join(several: Iterable[Runs]) -> Runs:
    """Return several sets of runs merged into one. If there are many runs, as in shuffled tables, runs
    further apart are merged too.
    """
    joined, gap = NO_RUNS, 1
    for one in several:
        first, last = map(np.concatenate, zip(astuple(joined), astuple(one), strict=True))
        order = first.argsort(kind="stable")
        joined, gap = Runs(first[order], last[order]).join(gap).shrink(KEPT_RUNS, gap)
    return joined


def _select_rows(
    database: Database,
    one: TableMap,
    blocks: np.ndarray,
    select: Callable[[Columns, np.ndarray, np.ndarray], np.ndarray],
) -> tuple[Runs, Runs]:
    """Return the rows in blocks of a table that `select` chooses from columns, starts and ends, and
    the ids of their calls. If a piece lacks rows, return all its rows.
    """
    found, called = [], []
    further = (CORRELATION,) if database.has(one.part.table, CORRELATION) else ()
    for piece, rows, begin, end in _read_ranges(database, one, blocks, further):
        chosen = np.arange(rows.rows)
        if rows.rows == piece.rows:
            chosen = np.flatnonzero(select(rows, begin, end))
            found.append(find_runs(piece.first + chosen))
        else:
            found.append(Runs(np.array([piece.first]), np.array([piece.last])))
        if further:
            ids = rows[CORRELATION][chosen]
            called.append(find_runs(ids[(ids != 0) & (ids != NULL)]))
    return _join(found), _join(called)


def _list_parts(one: TableMap, rows: Runs, further: Sequence[Part]) -> Iterator[Part]:
    """Yield rows of a table as parts: listed if they are few, otherwise as runs. further: more rows
    to yield.
    """
    rows = _join([rows, *map(_list_runs, further)])
    is_noted_by_row = one.noted.rows or not one.noted.parts
    if one.part.rowid and is_noted_by_row and rows.count <= MOST_LISTED:
        yield from choose_by_rowid(one.part, rows.expand())
        return
    rows, _ = rows.shrink(MOST_RUNS, FEW_ROWS)
    for first, last in zip(rows.first.tolist(), rows.last.tolist(), strict=True):
        yield replace(one.part, first=first, last=last)


def _list_runs(part: Part) -> Runs:
    """Return the rows of a part as runs."""
    if isinstance(part, SomeRows):
        return find_runs(part.rowids)
    return Runs(np.array([part.first]), np.array([part.last]))


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
