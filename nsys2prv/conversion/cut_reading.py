"""Choose the rows to read if only a time range of a large job is requested: the rows in this part,
the calls that launched its GPU work, and the work that its calls launch. Maps of the tables are
used to find them.

Input: an open job. Output: the rows to read, and facts that depend on all events: when the events
of each report begin and end, and the threads and streams with events throughout.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import repeat
from pathlib import Path

import numpy as np

from nsys2prv._util.columns import factorize_together
from nsys2prv.conversion.clocks import find_host_clocks, find_placements
from nsys2prv.conversion.cut_rows import ChoiceTask, choose_rows, list_tables
from nsys2prv.conversion.job import Opened, Read, ReadPart, complete
from nsys2prv.conversion.report_spans import find_span, list_kinds_left_out
from nsys2prv.conversion.table_maps import TableMap, map_tables, plan_maps
from nsys2prv.events import all_kinds
from nsys2prv.events.cuda import KERNEL_TABLE
from nsys2prv.events.extraction import STREAM_COLUMNS, ReadingSettings
from nsys2prv.events.kind import LAUNCHES
from nsys2prv.export.info import ReportInfo
from nsys2prv.export.source import SomeRows
from nsys2prv.export.sqlite import open_database
from nsys2prv.table.runs import Span

#: Rows of a job, and of each of its reports, from which on a map is worth it.
LEAST_ROWS, LEAST_REPORT_ROWS = 250_000, 20_000
#: Clocks are rounded by less (ns).
MARGIN = 1_000
#: How the names of NCCL's kernels begin; rows of kernels in which its members are looked for.
NCCL, LOOKED_AT = "nccl", 100_000


def choose_part(job: Opened) -> ReadPart | None:
    """Choose the rows of tables that a requested time range needs. Return None to read everything:
    if no time range is requested, if the job is small, or if the trace needs all events.
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
    # Conclusions from the NCCL kernels of several ranks need all of these kernels.
    members = {member for found in job.run(list_members, job.infos) for member in found}
    tables = list_tables(lambda kind: kind.separable)
    if len(members) > len({(path, process) for path, process, _ in members}):
        # Several GPUs of a process share groups of NCCL calls: their kernels are read together.
        tables -= list_tables(lambda kind: bool({*kind.provides, *kind.needs} & {LAUNCHES}))
    further = repeat(tables), repeat(len(members) > 1)
    choices = list(map(ChoiceTask, job.infos, maps, windows, *further))
    chosen = list(job.run(choose_rows, choices))
    selected = {table for kind in job.selection.kinds for table in kind.tables}
    unread: dict[str, tuple[int, int]] = {}
    for info, parts in zip(job.infos, chosen, strict=True):
        for table in parts.keys() & selected:
            all_rows, rest = unread.get(table, (0, 0))
            rows = info.parts[table].rows
            read = sum(part.count for part in parts[table])
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
        {table: of_report[table].noted for table in parts}
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
    """Return the processes and GPUs of a report that may take part in NCCL collectives, as (path of
    the report, process, GPU), from a sample of kernel rows. This depends only on files.
    """
    part = info.parts.get(KERNEL_TABLE)
    if part is None or "StringIds" not in info.parts:
        return set()
    with open_database(info.path) as database:
        if not database.make_condition(KERNEL_TABLE, f"{{strings:{NCCL}}}"):
            return set()
        rowids = range(part.first, part.last + 1, 1 + part.rows // LOOKED_AT)
        rows = SomeRows.choose(part, rowids) if part.rowid else part
        columns = database.read(rows, STREAM_COLUMNS[:2])
    distinct, _ = factorize_together(*(columns[name] for name in STREAM_COLUMNS[:2]))
    return {(info.path, *pair) for pair in zip(*(one.tolist() for one in distinct), strict=True)}
