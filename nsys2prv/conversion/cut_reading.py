"""Choose what to read of a large job of which only a part in time is asked for: the rows that lie in the
part, the calls that launched work in it and the work that its calls launch. Maps of the tables, which
tell the times of each block of rows, find them.

In: a job that is open. Out: the rows to read; and what has to be known of all events: when those of each report
begin and end, and the threads and streams that have some all the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat, starmap
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import astuple, replace

from nsys2prv._util.budget import PART_ROWS, TASK_ROWS
from nsys2prv._util.columns import OPEN, factorize_together, find_bounds, find_edges
from nsys2prv.conversion.clocks import find_host_clocks, find_placements
from nsys2prv.conversion.job import Opened, Read, ReadPart, complete
from nsys2prv.conversion.whole_reports import WholeTask, find_span, list_kinds_left_out
from nsys2prv.events import all_kinds
from nsys2prv.events.cuda import KERNEL_TABLE
from nsys2prv.events.extraction import STREAM_COLUMNS, ObjectKey, StreamKey, ThreadKey
from nsys2prv.events.kind import LAUNCHES, EventKind
from nsys2prv.events.metrics import SAMPLED
from nsys2prv.events.nvtx import MARK_TYPES, RANGE_TYPES
from nsys2prv.events.nvtx import TABLE as NVTX_TABLE
from nsys2prv.export.database import Database
from nsys2prv.export.info import ReportInfo
from nsys2prv.export.recording import ENDS, TIMES
from nsys2prv.export.source import NULL, Part, SomeRows, are_all_usable, mask_usable, zero_nulls
from nsys2prv.export.sqlite import open_database
from nsys2prv.table.runs import Span

#: Rows of a block of a map; and rows of a job, and of each of its reports, from which on a map is worth it.
BLOCK_ROWS, LEAST_ROWS, LEAST_REPORT_ROWS = 4096, 250_000, 20_000
#: Rows of some blocks that are read at once; blocks before a part in which all series of samples are
#: expected.
PIECE_ROWS, NEAR_BLOCKS = PART_ROWS // BLOCK_ROWS * BLOCK_ROWS, 8
#: Functions that translate each row of a table by itself, but for the calls that launched it.
READERS = frozenset(
    {
        "attributes.extract_declared",
        "attributes.extract_line",
        "cuda.extract_api_calls",
        "cuda.extract_event_records",
        "cuda.extract_kernels",
        "cuda.extract_memory_operations",
        "cuda.extract_synchronizations",
        "host.extract_openacc",
        "host.extract_os_calls",
        "metrics.extract_gpu_metrics",
        "nvtx.extract_ranges",
    }
)
#: Columns that tell the series of a sample.
SERIES = ("typeId", "metricId")
CORRELATION = "correlationId"
#: Clocks are rounded by less (ns).
MARGIN = 1_000
#: How the names of NCCL's kernels begin; rows of kernels in which its members are looked for.
NCCL, LOOKED_AT = "nccl", 100_000


class TableMap(Struct, frozen=True):
    """Bounds of the blocks of a table."""

    #: All rows of the table.
    part: Part
    #: Of each block the least begin and the greatest end (ns, OPEN where a range has none), the least and the
    #: greatest correlation id, and the first and the last time within the capture (6, blocks): OPEN and NULL where
    #: rows are missing, so that these are not known.
    bounds: np.ndarray
    #: Threads or streams of the first row of each block.
    objects: tuple[ObjectKey, ...]

    def find_overlapping(self, span: Span) -> np.ndarray:
        """Return a mask of the blocks with rows in a span, and of the one that ends last."""
        begins, ends, *_ = self.bounds
        found = (begins <= span[1]) & (ends >= span[0])
        found[ends.argmax()] = True
        return found

    def find_ids(self, ids: np.ndarray) -> np.ndarray:
        """Return a mask of the blocks that may have some of these correlation ids, ascending."""
        low, high = self.bounds[2:4]
        return ids.searchsorted(low, "left") < ids.searchsorted(high, "right")

    def list_parts(self, blocks: np.ndarray) -> tuple[Part, ...]:
        """Return the rows of these blocks (a mask)."""
        edges = find_edges(blocks)
        return tuple(
            replace(
                self.part,
                first=self.part.first + first * BLOCK_ROWS,
                last=min(self.part.last, self.part.first + last * BLOCK_ROWS - 1),
            )
            for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
            if blocks[first]
        )


class MapTask(Struct, frozen=True):
    """Maps tables of one report."""

    #: What is known of the report.
    info: ReportInfo
    #: Tables to map.
    tables: tuple[str, ...]


class ChoiceTask(Struct, frozen=True):
    """Chooses rows of one report."""

    #: What is known of the report.
    info: ReportInfo
    #: Its maps, by table.
    maps: dict[str, TableMap]
    #: Part that is asked for, local ns.
    span: Span
    #: Tables of which rows can be chosen.
    tables: set[str]


def reads_in_part(kind: EventKind) -> bool:
    """Return whether rows of a kind can be read without those before."""
    return kind.read in READERS and not (kind.opt_in or kind.rereads_rows)


def choose_part(job: Opened) -> ReadPart | None:
    """Return the rows to read of a job; None to read all of it: if no part in time is asked for, the job is
    small, or the trace needs all events.
    """
    if not _can_choose(job):
        return None
    kinds = [kind for kind in all_kinds() if not (kind.opt_in or kind.rereads_rows)]
    tables = {table for kind in kinds for table in kind.tables}
    map_tasks = [(at, one) for at, info in enumerate(job.infos) for one in _plan_maps(info, tables)]
    maps: list[dict[str, TableMap]] = [{} for _ in job.infos]
    mapped = job.run(map_tables, [task for _, task in map_tasks])
    for (report, _), found in zip(map_tasks, mapped, strict=True):
        maps[report] |= found
    names = tuple(list_kinds_left_out((), job.plan.settings, ()))
    spanned = [
        (WholeTask(at, info, names, job.plan.settings, None, None, ()), maps[at])
        for at, info in enumerate(job.infos)
    ]
    found_spans = enumerate(job.run(_find_span_by_maps, spanned))
    spans = {report: span for report, span in found_spans if span is not None}
    if not spans:
        return None
    windows = _find_windows(job, spans)
    # What follows from kernels of NCCL of several ranks follows from all of them.
    members = {member for found in job.run(list_members, job.infos) for member in found}
    tables = _list_tables(reads_in_part)
    if len(members) > 1:
        tables -= _list_tables(lambda kind: bool({*kind.provides, *kind.needs} & {LAUNCHES}))
    choices = list(map(ChoiceTask, job.infos, maps, windows, repeat(tables)))
    chosen = list(job.run(choose_rows, choices))
    selected = {table for kind in job.selection.kinds for table in kind.tables}
    unread: dict[str, tuple[int, int]] = {}
    for info, parts in zip(job.infos, chosen, strict=True):
        for table in parts.keys() & selected:
            all_rows, rest = unread.get(table, (0, 0))
            rows = info.parts[table].rows
            read = sum(part.rows for part in parts[table])
            unread[table] = all_rows + rows, rest + rows - read
    read_in_part = {
        table for kind in job.selection.kinds if reads_in_part(kind) for table in kind.tables
    }
    objects = [
        (report, key)
        for report, of_report in enumerate(maps)
        for table, one in of_report.items()
        if table in read_in_part
        for key in one.objects
    ]
    return ReadPart(chosen, spans, windows, list(dict.fromkeys(objects)), unread)


def _can_choose(job: Opened) -> bool:
    plan = job.plan
    rows = sum(part.rows for info in job.infos for part in info.parts.values())
    return bool(
        plan.cut.options.time
        and not plan.cut.region
        and not plan.options.states
        and not any(kind.opt_in for kind in job.selection.kinds)
        and rows >= max(LEAST_ROWS, LEAST_REPORT_ROWS * len(job.infos))
        and len(find_host_clocks(job)[1]) == 1
    )


def _find_windows(job: Opened, spans: Mapping[int, Span]) -> list[Span]:
    """Return the part that is asked for in the time of each report."""
    read = complete(Read, job, results=[], clock_results=[], spans=dict(spans), lost=[])
    placements, epoch = find_placements(read)
    clocks = [placement.map.delay(-epoch) for placement in placements]
    duration = max(int(clocks[at].to_global(np.int64(last))) for at, (_, last) in spans.items())
    first, last = (
        moment.resolve(duration) if moment else usual
        for moment, usual in ((job.plan.cut.first, 0), (job.plan.cut.last, duration))
    )
    return [(clock.to_local(first) - MARGIN, clock.to_local(last) + MARGIN) for clock in clocks]


# ---- maps -----------------------------------------------------------------------------------------


def _plan_maps(info: ReportInfo, tables: Iterable[str]) -> Iterator[MapTask]:
    own: list[str] = []
    for table in sorted({*tables} & info.parts.keys()):
        own.append(table)
        if sum(info.parts[one].rows for one in own) > TASK_ROWS:
            yield MapTask(info, tuple(own))
            own = []
    if own:
        yield MapTask(info, tuple(own))


def map_tables(task: MapTask) -> dict[str, TableMap]:
    """Map the tables of a report, except those without times (a pure function over files)."""
    with open_database(task.info.path) as database:
        found = ((table, _map_table(database, task.info, table)) for table in task.tables)
        return {table: one for table, one in found if one}


def _map_table(database: Database, info: ReportInfo, table: str) -> TableMap | None:
    columns, part = database.tables[table].columns, info.parts[table]
    begin = next((name for name in TIMES if name in columns), None)
    if begin is None:
        return None
    names = [begin, *(name for name in ENDS if name in columns)]
    times, typed = len(names), table == NVTX_TABLE
    names += [name for name in (CORRELATION, "eventType") if name in columns]
    bounds = []
    for piece in part.split(PIECE_ROWS):
        rows = database.read(piece, tuple(names))
        if rows.rows != piece.rows:
            # Where rows are missing, it is not known in which blocks.
            unknown = [[-OPEN], [OPEN], [-OPEN], [OPEN], [OPEN], [NULL]]
            bounds.append(np.repeat(unknown, -(-piece.rows // BLOCK_ROWS), axis=1))
            continue
        begin, *ends = (rows[name] for name in names[:times])
        usable = all(map(are_all_usable, (begin, *ends)))
        known, latest = [begin, *ends], np.maximum(begin, ends[0]) if ends else begin
        if not usable:
            is_range = np.isin(rows["eventType"], RANGE_TYPES) if typed else True
            ends = [
                np.where(mask_usable(end), end, np.where(is_range, OPEN, begin)) for end in ends
            ]
            timed, latest = mask_usable(begin), np.maximum.reduce([begin, *ends])
            begin, latest = np.where(timed, begin, OPEN), np.where(timed, latest, -OPEN)
        own = [_find_block_bounds(begin, latest)]
        if not (usable and info.capture.holds(begin) and info.capture.holds(latest)):
            kept = [mask_usable(one) & ~info.capture.mask_far(one) for one in known]
            firsts = np.where(kept[0], known[0], OPEN)
            lasts = [np.where(*one, -OPEN) for one in zip(kept, known, strict=True)]
            own.append(_find_block_bounds(firsts, np.maximum.reduce(lasts)))
        ids = rows[CORRELATION] if CORRELATION in names else np.zeros(len(begin), np.int64)
        low = ids if find_bounds(ids)[0] != NULL else np.where(ids == NULL, OPEN, ids)
        bounds.append(np.concatenate([own[0], _find_block_bounds(low, ids), own[-1]]))
    objects = tuple(_sample_objects(database, part))
    return TableMap(part, np.concatenate(bounds, axis=1), objects)


def _find_block_bounds(least: np.ndarray, greatest: np.ndarray) -> np.ndarray:
    """Return the least and the greatest values of each block."""
    starts = np.arange(0, len(least), BLOCK_ROWS)
    return np.stack([np.minimum.reduceat(least, starts), np.maximum.reduceat(greatest, starts)])


def _sample_objects(database: Database, part: Part) -> Iterator[ObjectKey]:
    """Yield the threads or streams of the first row of each block of a table."""
    places = {
        kind.place for kind in all_kinds() if part.table in kind.tables and reads_in_part(kind)
    }
    rowids = tuple(range(part.first, part.last + 1, BLOCK_ROWS))
    if not (part.rowid and places <= {"thread", "stream"}):
        return
    rows = SomeRows(*astuple(part), rowids)
    if "stream" in places:
        columns = database.read(rows, STREAM_COLUMNS)
        keys = (zero_nulls(columns[name]).tolist() for name in STREAM_COLUMNS)
        yield from starmap(StreamKey, dict.fromkeys(zip(*keys, strict=True)))
    elif places:
        columns = database.read(rows, ("globalTid", "eventType"))
        known = columns["globalTid"] != NULL
        if part.table == NVTX_TABLE:
            known &= np.isin(columns["eventType"], (*RANGE_TYPES, *MARK_TYPES))
        yield from map(ThreadKey, dict.fromkeys(columns["globalTid"][known].tolist()))


def _find_span_by_maps(asked: tuple[WholeTask, dict[str, TableMap]]) -> Span | None:
    """Return the span of all events of a report."""
    task, maps = asked
    known: dict[Part, Span | None] = {}
    for one in maps.values():
        for piece, first, last in zip(
            one.part.split(BLOCK_ROWS), *one.bounds[4:].tolist(), strict=True
        ):
            if last != NULL:
                known[piece] = None if first == OPEN else (first, last + 1)
    with open_database(task.info.path) as database:
        return find_span(task, database, BLOCK_ROWS, known)


# ---- choice ---------------------------------------------------------------------------------------


def list_members(info: ReportInfo) -> set[tuple[Path, int, int]]:
    """Return the processes and GPUs of a report that may take part in collectives of NCCL, as the rows of
    kernels that are looked at tell (a pure function over files).
    """
    part = info.parts.get(KERNEL_TABLE)
    if part is None or "StringIds" not in info.parts:
        return set()
    with open_database(info.path) as database:
        if not database.make_condition(KERNEL_TABLE, f"{{strings:{NCCL}}}"):
            return set()
        rowids = range(part.first, part.last + 1, 1 + part.rows // LOOKED_AT)
        rows = SomeRows(*astuple(part), tuple(rowids)) if part.rowid else part
        columns = database.read(rows, STREAM_COLUMNS[:2])
    distinct, _ = factorize_together(*(columns[name] for name in STREAM_COLUMNS[:2]))
    return {(info.path, *pair) for pair in zip(*(one.tolist() for one in distinct), strict=True)}


def choose_rows(task: ChoiceTask) -> dict[str, tuple[Part, ...]]:
    """Return the rows of each table that have to be read for a part (a pure function over files)."""
    maps, launching = task.maps, _list_tables(lambda kind: LAUNCHES in kind.provides)
    mapped = maps.keys() & task.tables
    blocks = {table: maps[table].find_overlapping(task.span) for table in sorted(mapped)}
    with open_database(task.info.path) as database:
        for table in blocks.keys() & SAMPLED.keys():
            _add_samples_in_force(database, maps[table], blocks[table], task.span[0])
        calls = blocks.keys() & launching
        works = {table for table in blocks if CORRELATION in database.tables[table].columns} - calls
        # The calls of all work that is read, and the work of the calls in the part.
        ids = {
            role: _read_ids(database, [(maps[table], blocks[table]) for table in tables])
            for role, tables in (("calls", calls), ("works", works))
        }
        for table in works:
            blocks[table] |= maps[table].find_ids(ids["calls"])
        for table in calls:
            blocks[table] |= maps[table].find_ids(ids["works"])
    return {
        table: maps[table].list_parts(found) for table, found in blocks.items() if not found.all()
    }


def _list_tables(meets: Callable[[EventKind], bool]) -> set[str]:
    return {table for kind in all_kinds() if meets(kind) for table in kind.tables}


def _read_ids(database: Database, chosen: Sequence[tuple[TableMap, np.ndarray]]) -> np.ndarray:
    """Return the correlation ids of blocks of tables, ascending."""
    parts = [part for one, blocks in chosen for part in one.list_parts(blocks)]
    pieces = [database.read(part, (CORRELATION,))[CORRELATION] for part in parts]
    return np.unique(np.concatenate([np.zeros(0, np.int64), *pieces]))


def _add_samples_in_force(
    database: Database, one: TableMap, blocks: np.ndarray, begin: int
) -> None:
    """Add to the blocks of a table of samples the first and the last one, by which it is known when sampling
    went on, those beside, and those with the last sample of each series at `begin` (local ns): all where
    these are far.
    """
    before = one.bounds[0] <= begin
    blocks[np.flatnonzero(before)[-1:]] = True
    blocks[1:] |= blocks[:-1]
    for near in (1, NEAR_BLOCKS):
        for _ in range(near):
            blocks[:-1] |= blocks[1:]
        held = _list_series(database, one, blocks & before, begin)
        if _list_series(database, one, before & ~blocks, begin) <= held:
            break
    else:
        blocks[:] = True
    blocks[[0, -1]] = True


def _list_series(
    database: Database, one: TableMap, blocks: np.ndarray, until: int
) -> set[tuple[int, ...]]:
    """Return the series that have samples in these blocks, not later than `until` (local ns)."""
    series: set[tuple[int, ...]] = set()
    clock = next(name for name in TIMES if name in database.tables[one.part.table].columns)
    for part in one.list_parts(blocks):
        for piece in part.split(PIECE_ROWS):
            rows = database.read(piece, (clock, *SERIES))
            rows = rows.where(rows[clock] <= until)
            distinct, _ = factorize_together(*(rows[name] for name in SERIES))
            series |= set(zip(*(column.tolist() for column in distinct), strict=True))
    return series
