"""Choose the rows to read if only a time range of a large job is requested: the rows in this part,
the calls that launched its GPU work, and the work that its calls launch. Maps of the tables are
used to find them.

Input: an open job. Output: the rows to read, and facts that depend on all events: when the events
of each report begin and end, and the threads and streams with events throughout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import astuple, replace

from nsys2prv._util.budget import PART_ROWS
from nsys2prv._util.columns import OPEN, factorize_together
from nsys2prv.conversion.clocks import find_host_clocks, find_placements
from nsys2prv.conversion.job import Opened, Read, ReadPart, complete
from nsys2prv.conversion.report_spans import find_span
from nsys2prv.conversion.table_maps import TableMap, map_tables, plan_maps
from nsys2prv.conversion.whole_reports import list_kinds_left_out
from nsys2prv.events import all_kinds
from nsys2prv.events.cuda import KERNEL_TABLE
from nsys2prv.events.extraction import STREAM_COLUMNS, ReadingSettings
from nsys2prv.events.kind import LAUNCHES, EventKind
from nsys2prv.events.metrics import SAMPLED
from nsys2prv.export.database import Database
from nsys2prv.export.info import ReportInfo
from nsys2prv.export.outlines import CORRELATION, ENDS, TIMES
from nsys2prv.export.source import Columns, Part, SomeRows, mask_usable
from nsys2prv.export.sqlite import open_database
from nsys2prv.table.runs import Span

#: Rows of a job, and of each of its reports, from which on a map is worth it.
LEAST_ROWS, LEAST_REPORT_ROWS = 250_000, 20_000
#: Rows before a part in which all series of samples are expected.
NEAR_ROWS = 32_768
#: Columns that tell the series of a sample.
SERIES = ("typeId", "metricId")
#: Clocks are rounded by less (ns).
MARGIN = 1_000
#: How the names of NCCL's kernels begin; rows of kernels in which its members are looked for.
NCCL, LOOKED_AT = "nccl", 100_000
#: Numbers that are less far apart are taken for one run of consecutive ones: ids of calls, rows.
NEAR_IDS, FEW_ROWS = 64, 64
#: Runs of rows of a table at most.
MOST_RUNS = 32


class ChoiceTask(Struct, frozen=True):
    """Task that chooses the rows of one report."""

    #: What is known of the report.
    info: ReportInfo
    #: Its maps, by table.
    maps: dict[str, TableMap]
    #: Part that is asked for, local ns.
    span: Span
    #: Tables of which rows can be chosen.
    tables: set[str]


def choose_part(job: Opened) -> ReadPart | None:
    """Return the rows to read, or None to read everything: if no time range is requested, if the
    job is small, or if the trace needs all events.
    """
    if not _can_choose(job):
        return None
    kinds = [kind for kind in all_kinds() if not (kind.opt_in or kind.rereads_rows)]
    tables = {table for kind in kinds for table in kind.tables}
    map_tasks = [
        (report, task)
        for report, info in enumerate(job.infos)
        for task in plan_maps(info, tables, job.outlines.get(info.path, {}))
    ]
    maps: list[dict[str, TableMap]] = [{} for _ in job.infos]
    mapped = job.run(map_tables, [task for _, task in map_tasks])
    for (report, _), found in zip(map_tasks, mapped, strict=True):
        maps[report] |= found
    names = tuple(list_kinds_left_out((), job.plan.settings, ()))
    spanned = zip(job.infos, maps, repeat(names), repeat(job.plan.settings))
    found_spans = enumerate(job.run(_find_span_by_maps, spanned))
    spans = {report: span for report, span in found_spans if span is not None}
    if not spans:
        return None
    windows = _find_windows(job, spans)
    # What follows from kernels of NCCL of several ranks follows from all of them.
    members = {member for found in job.run(list_members, job.infos) for member in found}
    tables = _list_tables(lambda kind: kind.separable)
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
        table for kind in job.selection.kinds if kind.separable for table in kind.tables
    }
    objects = [
        (report, key)
        for report, of_report in enumerate(maps)
        for table, one in of_report.items()
        if table in read_in_part
        for key in one.objects
    ]
    noted = [
        {table: of_report[table].list_parts(of_report[table].noted) for table in parts}
        for of_report, parts in zip(maps, chosen, strict=True)
    ]
    return ReadPart(chosen, noted, spans, windows, list(dict.fromkeys(objects)), unread)


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
    """Return the requested part in the time of each report."""
    read = complete(Read, job, results=[], clock_results=[], spans=dict(spans), lost=[])
    placements, epoch = find_placements(read)
    clocks = [placement.map.delay(-epoch) for placement in placements]
    duration = max(int(clocks[at].to_global(np.int64(last))) for at, (_, last) in spans.items())
    first, last = (
        moment.resolve(duration) if moment else usual
        for moment, usual in ((job.plan.cut.first, 0), (job.plan.cut.last, duration))
    )
    return [(clock.to_local(first) - MARGIN, clock.to_local(last) + MARGIN) for clock in clocks]


def _find_span_by_maps(
    task: tuple[ReportInfo, dict[str, TableMap], tuple[str, ...], ReadingSettings],
) -> Span | None:
    """Return the span of all events of a report. This depends only on files. task: the report, its
    maps, names of the kinds, and settings.
    """
    info, maps, *asked = task
    known = {table: one.piece_bounds for table, one in maps.items()}
    with open_database(info.path) as database:
        return find_span(database, info, *asked, known=known)


def list_members(info: ReportInfo) -> set[tuple[Path, int, int]]:
    """Return the processes and GPUs of a report that may take part in NCCL collectives, from the
    kernel rows that are examined. This depends only on files.
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


def _list_tables(meets: Callable[[EventKind], bool]) -> set[str]:
    return {table for kind in all_kinds() if meets(kind) for table in kind.tables}


# ---- rows of a report -----------------------------------------------------------------------------


def choose_rows(task: ChoiceTask) -> dict[str, tuple[Part, ...]]:
    """Return table -> the rows that must be read for a part. This depends only on files."""
    maps = {table: task.maps[table] for table in sorted(task.maps.keys() & task.tables)}
    blocks = {table: one.find_overlapping(task.span) for table, one in maps.items()}
    calls = maps.keys() & _list_tables(lambda kind: LAUNCHES in kind.provides)
    with open_database(task.info.path) as database:
        for table in maps.keys() & SAMPLED.keys():
            _add_samples_in_force(database, maps[table], blocks[table], task.span[0])
        works = [table for table in maps if database.has(table, CORRELATION) and table not in calls]
        # The work of the calls in the part, and the calls of all work that is read.
        called = _join(_read_ids(database, maps[one].list_parts(blocks[one])) for one in calls)
        parts = {
            table: _list_work(database, maps[table], blocks[table], called, task.span)
            for table in works
        }
        launched = _join(_read_ids(database, of_table) for of_table in parts.values())
    for table in calls:
        blocks[table] |= launched.find(*maps[table].bounds[2:4])
    parts |= {table: maps[table].list_parts(blocks[table]) for table in maps.keys() - parts.keys()}
    return {
        table: of_table
        for table, of_table in parts.items()
        if sum(part.rows for part in of_table) < maps[table].part.rows
    }


class _Runs(Struct, frozen=True):
    """Numbers as runs of close ones: the first and last number of each run, sorted."""

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


def _find_runs(numbers: np.ndarray, gap: int) -> _Runs:
    """Return numbers as runs of close ones. Neighbors in the given order are merged first, because
    most numbers ascend.
    """
    if not len(numbers):
        return _Runs(numbers, numbers)
    starts = np.append(0, np.flatnonzero(np.abs(np.diff(numbers)) > gap) + 1)
    first, last = np.minimum.reduceat(numbers, starts), np.maximum.reduceat(numbers, starts)
    order = first.argsort(kind="stable")
    return _Runs(first[order], last[order]).join(gap)


def _join(several: Iterable[_Runs], gap: int = NEAR_IDS) -> _Runs:
    """Return several runs merged into one."""
    none = np.zeros((0, 2), np.int64)
    both = np.concatenate([none, *(np.stack(astuple(one), axis=1) for one in several)])
    return _Runs(*both[both[:, 0].argsort(kind="stable")].T).join(gap)


def _read_ids(database: Database, parts: Sequence[Part]) -> _Runs:
    """Return the correlation ids of rows as runs."""
    pieces = (piece for part in parts for piece in part.split(PART_ROWS))
    ids = (database.read(piece, (CORRELATION,))[CORRELATION] for piece in pieces)
    return _join(_find_runs(one, NEAR_IDS) for one in ids)


def _list_work(
    database: Database, one: TableMap, blocks: np.ndarray, called: _Runs, span: Span
) -> tuple[Part, ...]:
    """Return the rows of a table of GPU work that are in a span or belong to calls, and the row
    that ends last. blocks: mask of the blocks with rows in the span, and of the block with the last
    row.
    """
    last = one.bounds[1].max()

    def select(rows: Columns, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        ids = rows[CORRELATION]
        chosen = ((begin <= span[1]) & (end >= span[0])) | called.find(ids, ids)
        chosen[np.flatnonzero(end == last)[-1:]] = True
        return chosen

    pieces = _select_rows(database, one, blocks | called.find(*one.bounds[2:4]), select)
    runs, gap = _join(pieces, FEW_ROWS), FEW_ROWS
    while len(runs.first) > MOST_RUNS:
        gap *= 2
        runs = runs.join(gap)
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
    columns = database.tables[one.part.table].columns
    times = [name for name in TIMES if name in columns][:1]
    times += [name for name in ENDS if name in columns]
    for part in one.list_parts(blocks):
        for piece in part.split(PART_ROWS):
            rows = database.read(piece, (*times, CORRELATION))
            begin, *ends = (rows[name] for name in times)
            end = np.maximum.reduce(
                [begin, *(np.where(mask_usable(one), one, OPEN) for one in ends)]
            )
            if rows.rows == piece.rows:
                chosen = np.flatnonzero(select(rows, begin, end))
                yield _find_runs(piece.first + chosen, FEW_ROWS)
            else:
                yield _Runs(np.array([piece.first]), np.array([piece.last]))


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
    for near in (1, -(-NEAR_ROWS // one.block_rows)):
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
    """Return the series that have samples in these blocks no later than `until` (local ns)."""
    series: set[tuple[int, ...]] = set()
    clock = next(name for name in TIMES if name in database.tables[one.part.table].columns)
    for part in one.list_parts(blocks):
        for piece in part.split(PART_ROWS):
            rows = database.read(piece, (clock, *SERIES))
            rows = rows.where(rows[clock] <= until)
            distinct, _ = factorize_together(*(rows[name] for name in SERIES))
            series |= set(zip(*(column.tolist() for column in distinct), strict=True))
    return series
