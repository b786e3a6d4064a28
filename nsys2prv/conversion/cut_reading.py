"""Read only the rows that are needed if a time range of a large job is requested: the rows in this
part, the calls that launched its GPU work, and the work that its calls launch. Maps of the tables
are used to find them. If clocks of several hosts are aligned, or ranks use NCCL, the facts of the
whole job by which reports are compared are read first.

Input: an open job. Output: a job whose part was read, with facts that depend on all events: when
the events of each report begin and end, the corrections of clocks, and the threads and streams with
events throughout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat

import numpy as np

from nsys2prv.clock.maps import ClockRecord
from nsys2prv.conversion.align import align_by_clock_results, find_captures_of_job, number_rows
from nsys2prv.conversion.clocks import find_clock_corrections, find_host_clocks, find_placements
from nsys2prv.conversion.compared_rows import Members, choose_members, list_members
from nsys2prv.conversion.cut_rows import ChoiceTask, choose_rows
from nsys2prv.conversion.job import ChosenRows, Comparison, Opened, Read, ReadPart, complete
from nsys2prv.conversion.read import KINDS_WITH_FACTS, read_facts, read_reports
from nsys2prv.conversion.report_spans import find_span, list_kinds_left_out
from nsys2prv.conversion.table_maps import TableMap, map_tables, plan_maps
from nsys2prv.events import all_kinds
from nsys2prv.events.extraction import ObjectKey, ReadingSettings
from nsys2prv.export.info import ReportInfo
from nsys2prv.export.outlines import NVTX_TABLE
from nsys2prv.export.sqlite import open_database
from nsys2prv.table.runs import Span

#: Rows of a job, and of each of its reports, from which on a map is worth it.
LEAST_ROWS, LEAST_REPORT_ROWS = 250_000, 20_000
#: Clocks are rounded by less (ns).
MARGIN = 1_000
#: Of each report: table -> map.
Maps = list[dict[str, TableMap]]


def read_part(job: Opened) -> Read | None:
    """Read the part of a job that a requested time range needs. Return None if everything must be
    read: if no time range is requested, if the job is small, or if the trace needs all events.
    Raise Unreadable.
    """
    part = _choose_part(job) if _can_choose(job) else None
    return part and read_reports(job, part)


def _can_choose(job: Opened) -> bool:
    plan = job.plan
    if not plan.cut.options.time or plan.cut.region or plan.options.states:
        return False
    if any(kind.opt_in for kind in job.selection.kinds):
        return False
    rows = sum(part.rows for info in job.infos for part in info.parts.values())
    return rows >= max(LEAST_ROWS, LEAST_REPORT_ROWS * len(job.infos))


def _choose_part(job: Opened) -> ReadPart | None:
    """Choose the rows to read. Return None if no report has events."""
    maps = _map_job(job)
    names = tuple(list_kinds_left_out((), job.plan.settings, ()))
    has_clocks = len(find_host_clocks(job)[1]) > 1
    compares = has_clocks or len(job.infos) > 1 or len(list_members(job.infos[0])) > 1
    asked = names, job.plan.settings, compares
    tasks = [(*of_report, *asked) for of_report in zip(job.infos, maps, strict=True)]
    found = list(job.run(_survey_by_maps, tasks))
    spans = {report: span for report, (span, _) in enumerate(found) if span is not None}
    if not spans:
        return None
    objects = _list_objects(job, maps)
    members = [one for _, one in found if one]
    if not has_clocks and len(frozenset().union(*(one.keys for one in members))) < 2:
        members = []
    compared = _compare_reports(job, maps, spans, members, objects) if members else None
    span, windows = _find_windows(job, spans, compared.clock_record if compared else None)
    further = [_list_shared(one) for one in members] if members else repeat({})
    chosen = list(job.run(choose_rows, map(ChoiceTask, job.infos, maps, windows, further)))
    noted = [
        {table: of_report[table].noted for table in parts}
        for of_report, parts in zip(maps, chosen, strict=True)
    ]
    rows = ChosenRows(chosen, noted, KINDS_WITH_FACTS if compared else frozenset())
    return ReadPart(rows, compared, spans, span, windows, objects, _count_unread(job, chosen))


def _map_job(job: Opened) -> Maps:
    """Return the maps of all tables with events."""
    kinds = [kind for kind in all_kinds() if not (kind.opt_in or kind.rereads_rows)]
    tables = {table for kind in kinds for table in kind.tables}
    tasks = [
        (report, task)
        for report, info in enumerate(job.infos)
        for task in plan_maps(info, tables, job.outlines.get(info.path, {}))
    ]
    maps: Maps = [{} for _ in job.infos]
    mapped = job.run(map_tables, [task for _, task in tasks])
    for (report, _), found in zip(tasks, mapped, strict=True):
        maps[report] |= found
    return maps


def _survey_by_maps(
    task: tuple[ReportInfo, dict[str, TableMap], tuple[str, ...], ReadingSettings, bool],
) -> tuple[Span | None, Members | None]:
    """Return the span of all events of a report, and the rows by which it is compared with others,
    or None. This depends only on files. task: the report, its maps, names of the kinds, settings,
    and whether it is compared.
    """
    info, maps, names, settings, compares = task
    known = {table: one.piece_bounds for table, one in maps.items()}
    with open_database(info.path) as database:
        span = find_span(database, info, names, settings, known=known)
        return span, choose_members(database, info, maps) if compares else None


def _list_objects(job: Opened, maps: Maps) -> list[tuple[int, ObjectKey]]:
    """Return (report, object) of the threads and streams that have events all the time."""
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
    return list(dict.fromkeys(objects))


def _list_shared(members: Members) -> Mapping[str, Sequence]:
    """Return the rows of a report to read in any part of the job: NCCL kernels of a process with
    several GPUs, which share groups of calls.
    """
    is_shared = len(members.keys) > len({process for _, process, _ in members.keys})
    own = members.parts if is_shared else {}
    return {table: parts for table, parts in own.items() if table != NVTX_TABLE}


def _compare_reports(
    job: Opened,
    maps: Maps,
    spans: Mapping[int, Span],
    members: Sequence[Members],
    objects: Sequence[tuple[int, ObjectKey]],
) -> Comparison:
    """Read the facts by which reports are compared, and find the corrections of clocks."""
    chosen = [one.parts for one in members]
    noted = [{table: maps[report][table].noted for table in of} for report, of in enumerate(chosen)]
    results, clock_results = read_facts(job, ChosenRows(chosen, noted, KINDS_WITH_FACTS))
    known = {"results": results, "clock_results": clock_results, "spans": dict(spans), "lost": []}
    read = complete(Read, job, **known)
    captures = find_captures_of_job(read)
    read, silent, record = align_by_clock_results(read, captures)
    numbered = number_rows(read, captures, silent, objects)
    record = record or find_clock_corrections(numbered)
    return Comparison(numbered.results, clock_results, numbered.silent_in_nccl, record)


def _find_windows(
    job: Opened, spans: Mapping[int, Span], record: ClockRecord | None
) -> tuple[Span, list[Span]]:
    """Return the requested part in the time of the trace, and in the time of each report. record:
    corrections of clocks.
    """
    read = complete(Read, job, results=[], clock_results=[], spans=dict(spans), lost=[])
    placements, epoch = find_placements(read, record)
    clocks = [placement.map.delay(-epoch) for placement in placements]
    duration = max(int(clocks[at].to_global(np.int64(last))) for at, (_, last) in spans.items())
    first, last = (
        moment.resolve(duration) if moment else usual
        for moment, usual in ((job.plan.cut.first, 0), (job.plan.cut.last, duration))
    )
    own = [(clock.to_local(first) - MARGIN, clock.to_local(last) + MARGIN) for clock in clocks]
    return (first - MARGIN, last + MARGIN), own


def _count_unread(
    job: Opened, chosen: Sequence[Mapping[str, Sequence]]
) -> dict[str, tuple[int, int]]:
    """Return table that is not read completely -> number of its rows, and of rows that are not
    read.
    """
    selected = {table for kind in job.selection.kinds for table in kind.tables}
    unread: dict[str, tuple[int, int]] = {}
    for info, parts in zip(job.infos, chosen, strict=True):
        for table in parts.keys() & selected:
            all_rows, rest = unread.get(table, (0, 0))
            rows = info.parts[table].rows
            read = sum(part.count for part in parts[table])
            unread[table] = all_rows + rows, rest + rows - read
    return unread
