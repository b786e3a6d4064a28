"""Map the tables of a report: bounds of times and ids in each block of rows, with which the rows of
a time range are found.

Input: a report, and the outlines made of its tables when it was opened. Output: a map of each table
with times. Tables without an outline are read; so are blocks with rows that have no time, or a time
far from the capture.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import starmap

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.budget import PART_ROWS, TASK_ROWS
from nsys2prv._util.columns import OPEN, find_bounds
from nsys2prv.conversion.report_spans import PieceBounds
from nsys2prv.events import all_kinds
from nsys2prv.events.extraction import STREAM_COLUMNS, ObjectKey, StreamKey, ThreadKey
from nsys2prv.events.kind import EventKind
from nsys2prv.events.nvtx import MARK_TYPES
from nsys2prv.export import outlines
from nsys2prv.export.database import Database
from nsys2prv.export.info import ReportInfo
from nsys2prv.export.outlines import (
    CORRELATION,
    ENDS,
    EVENT_TYPE,
    GREATEST,
    HIGH,
    IS_NOTED,
    IS_OPEN,
    IS_UNDATED,
    LEAST,
    LOW,
    NVTX_RANGES,
    NVTX_TABLE,
    REASONS,
    TIMES,
    TRAITS,
    NotedRows,
    Outline,
    list_blocks,
)
from nsys2prv.export.recording import Capture
from nsys2prv.export.source import (
    NULL,
    Columns,
    Part,
    SomeRows,
    are_all_usable,
    mask_usable,
    zero_nulls,
)
from nsys2prv.export.sqlite import open_database
from nsys2prv.table.runs import Span

#: One row in this many, and at least so many rows of a table, are sampled; their threads and streams
#: are assumed to have events all the time.
ROWS_PER_SAMPLE, LEAST_SAMPLES = 4096, 64
#: Rows with listed rowids that are read together.
ROWS_TOGETHER = 50_000


class NotedParts(Struct, frozen=True):
    """Parts of a table with the rows that its outline notes."""

    #: Parts of the table that include all of them, and the rows if they are known.
    parts: tuple[Part, ...]
    rows: NotedRows | None = None

    def choose(self, reasons: int, domains: Collection[int]) -> tuple[Part, ...]:
        """Return parts that include the rows with one of these reasons (bits), or in one of these
        domains, sorted.
        """
        if self.rows is None:
            return self.parts
        rowids = self.rows.find(reasons, domains)
        return tuple(part for whole in self.parts for part in choose_by_rowid(whole, rowids))


class TableMap(Struct, frozen=True):
    """The first and last event times in each block of a table's rows, so that reading a time range
    can skip blocks.
    """

    #: All rows of the table, and the rows of a block.
    part: Part
    block_rows: int
    #: For each block: first start and last end (ns, OPEN if a range has none), smallest and largest
    #: id of a call, and first and last time within the capture (6, blocks). Without rows, the
    #: minimums are OPEN, the maximums -OPEN.
    bounds: np.ndarray
    #: The rows noted in its outline.
    noted: NotedParts
    #: Threads or streams with events all the time.
    objects: tuple[ObjectKey, ...]

    @property
    def piece_bounds(self) -> PieceBounds:
        """Return the bounds of the event times in each block."""
        # Events last 1 ns at least.
        first, last = self.bounds[4:]
        return PieceBounds(
            self.part, self.block_rows, first, np.where(first < OPEN, last + 1, -OPEN)
        )

    def find_overlapping(self, span: Span) -> np.ndarray:
        """Return a mask of the blocks with rows in a time span, and of the block that ends last."""
        begins, ends, *_ = self.bounds
        found = (begins <= span[1]) & (ends >= span[0])
        found[ends.argmax()] = True
        return found

    def find_times(self, times: np.ndarray) -> np.ndarray:
        """Return a mask of the blocks with rows that may be open at any of these times. times:
        sorted.
        """
        begins, ends, *_ = self.bounds
        return times.searchsorted(begins) < times.searchsorted(ends, "right")

    def list_parts(self, blocks: np.ndarray) -> tuple[Part, ...]:
        """Return the rows of the selected blocks as parts of the table. blocks: mask."""
        return tuple(list_blocks(self.part, blocks, self.block_rows))


class MapTask(Struct, frozen=True):
    """A task for a worker: find the bounds of event times in tables of one report."""

    #: The report's metadata.
    info: ReportInfo
    #: Tables to map, and the outlines of those that have one.
    tables: tuple[str, ...]
    outlines: dict[str, Outline]


def plan_maps(
    info: ReportInfo, tables: Iterable[str], outlined: dict[str, Outline]
) -> Iterator[MapTask]:
    """Yield tasks that find the bounds of event times in these tables of a report. Each reads at
    most TASK_ROWS rows. outlined: tables with known outlines, which need not be read.
    """
    own: list[str] = []
    for table in sorted({*tables} & info.parts.keys()):
        own.append(table)
        if sum(info.parts[one].rows for one in {*own} - outlined.keys()) > TASK_ROWS:
            yield MapTask(info, tuple(own), outlined)
            own = []
    if own:
        yield MapTask(info, tuple(own), outlined)


def map_tables(task: MapTask) -> dict[str, TableMap]:
    """Find the bounds of event times in tables of a report. Return table -> map, for tables that
    have times. This depends only on files.
    """
    with open_database(task.info.path) as database:
        found = (
            (table, _map_table(database, task.info, table, task.outlines.get(table)))
            for table in task.tables
        )
        return {table: one for table, one in found if one}


def _map_table(
    database: Database, info: ReportInfo, table: str, outline: Outline | None
) -> TableMap | None:
    columns, part = database.tables[table].columns, info.parts[table]
    if not any(name in columns for name in TIMES):
        return None
    block_rows = outline.block_rows if outline else outlines.BLOCK_ROWS
    count = -(-part.rows // block_rows)
    bounds, is_known = np.empty((6, count), np.int64), np.zeros(count, bool)
    noted = NotedParts((part,))
    if outline and outline.bounds.shape[1] == count:
        bounds, is_known = _take_outline(outline, info.capture, any(one in columns for one in ENDS))
        is_noted = (outline.bounds[TRAITS] & IS_NOTED) != 0
        some = tuple(list_blocks(part, is_noted, block_rows))
        noted = NotedParts((part,), outline.noted) if outline.noted else NotedParts(some)
    piece_rows = max(1, PART_ROWS // block_rows) * block_rows
    for unknown in list_blocks(part, ~is_known, block_rows):
        for piece in unknown.split(piece_rows):
            first = (piece.first - part.first) // block_rows
            own = _read_bounds(database, info.capture, piece, block_rows)
            bounds[:, first : first + own.shape[1]] = own
    return TableMap(part, block_rows, bounds, noted, tuple(_sample_objects(database, part)))


def find_noted(info: ReportInfo, kinds: Iterable[EventKind], noted: NotedParts) -> tuple[Part, ...]:
    """Return parts that include the rows that are noted for some kinds, sorted."""
    sought = {kind.noted for kind in kinds}
    reasons = sum(REASONS[name] for name in sought & REASONS.keys())
    domains = {number for (_, number), name in info.domains.items() if name in sought}
    return noted.choose(reasons, domains)


def choose_by_rowid(part: Part, rowids: np.ndarray) -> Iterator[SomeRows]:
    """Yield the rows of a part with these rowids. rowids: ascending."""
    for start in range(0, len(rowids), ROWS_TOGETHER):
        own = rowids[start : start + ROWS_TOGETHER]
        yield SomeRows.choose(replace(part, first=int(own[0]), last=int(own[-1])), own)


def _take_outline(
    outline: Outline, capture: Capture, has_ends: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds of blocks from an outline, and a mask of the blocks whose bounds are known."""
    least, greatest, traits = (outline.bounds[which] for which in (LEAST, GREATEST, TRAITS))
    # Of no rows they are the greatest and the least numbers.
    greatest = np.maximum(greatest, -OPEN)
    is_open = has_ends & ((traits & IS_OPEN) != 0)
    ends = np.where(is_open, OPEN, greatest)
    low, high = outline.bounds[LOW], np.maximum(outline.bounds[HIGH], -OPEN)
    is_empty = (least == OPEN) & (greatest == -OPEN)
    is_known = is_empty | ((least >= capture.first) & (greatest <= capture.last))
    is_known &= (traits & IS_UNDATED) == 0
    return np.stack([least, ends, low, high, least, greatest]), is_known


def _read_bounds(database: Database, capture: Capture, piece: Part, block_rows: int) -> np.ndarray:
    """Return the bounds of the blocks in a piece of a table. If rows are missing, it is unknown in
    which blocks; then each block has the bounds of the piece.
    """
    columns = database.tables[piece.table].columns
    begin = next(name for name in TIMES if name in columns)
    times = (begin, *(name for name in ENDS if name in columns))
    further = [name for name in (CORRELATION,) if name in columns]
    further += [EVENT_TYPE] if piece.table == NVTX_TABLE else []
    rows = database.read(piece, (*times, *further))
    count = -(-piece.rows // block_rows)
    if not rows.rows:
        return np.repeat([[OPEN], [-OPEN]] * 3, count, axis=1)
    starts = np.arange(0, rows.rows, block_rows) if rows.rows == piece.rows else np.array([0])
    bounds = _find_bounds(rows, times, further, capture, starts)
    return bounds if len(starts) == count else np.repeat(bounds[:, :1], count, axis=1)


def _find_bounds(
    rows: Columns, times: tuple[str, ...], further: list[str], capture: Capture, starts: np.ndarray
) -> np.ndarray:
    """Return the bounds of blocks of rows. times: columns of the start and of ends. further:
    columns of the id and type. starts: first row of each block.
    """
    known = [rows[name] for name in times]
    begin, *ends = known
    latest = np.maximum(begin, ends[0]) if ends else begin
    usable = all(map(are_all_usable, known))
    if not usable:
        is_range = np.isin(rows[EVENT_TYPE], NVTX_RANGES) if EVENT_TYPE in further else True
        ends = [np.where(mask_usable(end), end, np.where(is_range, OPEN, begin)) for end in ends]
        timed, latest = mask_usable(begin), np.maximum.reduce([begin, *ends])
        begin, latest = np.where(timed, begin, OPEN), np.where(timed, latest, -OPEN)
    own = [_find_block_bounds(begin, latest, starts)]
    if not (usable and capture.holds(begin) and capture.holds(latest)):
        kept = [mask_usable(one) & ~capture.mask_far(one) for one in known]
        firsts = np.where(kept[0], known[0], OPEN)
        lasts = [np.where(*one, -OPEN) for one in zip(kept, known, strict=True)]
        own.append(_find_block_bounds(firsts, np.maximum.reduce(lasts), starts))
    ids = rows[CORRELATION] if CORRELATION in further else np.zeros(len(begin), np.int64)
    low = ids if find_bounds(ids)[0] != NULL else np.where(ids == NULL, OPEN, ids)
    return np.concatenate([own[0], _find_block_bounds(low, ids, starts), own[-1]])


def _find_block_bounds(least: np.ndarray, greatest: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return the smallest and largest value in each block."""
    return np.stack([np.minimum.reduceat(least, starts), np.maximum.reduceat(greatest, starts)])


def _sample_objects(database: Database, part: Part) -> Iterator[ObjectKey]:
    """Yield the threads or streams of sample rows spread over a table."""
    places = {kind.place for kind in all_kinds() if part.table in kind.tables and kind.separable}
    step = max(1, min(ROWS_PER_SAMPLE, part.rows // LEAST_SAMPLES))
    rowids = range(part.first, part.last + 1, step)
    if not (part.rowid and places <= {"thread", "stream"}):
        return
    rows = SomeRows.choose(part, rowids)
    if "stream" in places:
        columns = database.read(rows, STREAM_COLUMNS)
        keys = (zero_nulls(columns[name]).tolist() for name in STREAM_COLUMNS)
        yield from starmap(StreamKey, dict.fromkeys(zip(*keys, strict=True)))
    elif places:
        columns = database.read(rows, ("globalTid", EVENT_TYPE))
        known = columns["globalTid"] != NULL
        if part.table == NVTX_TABLE:
            known &= np.isin(columns[EVENT_TYPE], (*NVTX_RANGES, *MARK_TYPES))
        yield from map(ThreadKey, dict.fromkeys(columns["globalTid"][known].tolist()))
