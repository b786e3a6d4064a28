"""Read the tables of a job's reports into sorted runs. Each task reads part of one report,
independently of others, in limited memory. Event kinds that use rows of the same table share one
reading of it.

Input: an open job. Output: a job whose events were read, by each report's own clock.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.budget import PART_ROWS, TASK_ROWS
from nsys2prv._util.errors import Nsys2prvError, Unreadable
from nsys2prv._util.stored_columns import StoredFrame
from nsys2prv._util.text import list_some
from nsys2prv._util.workers import LostWorker
from nsys2prv.conversion.clocks import find_host_clocks
from nsys2prv.conversion.cut_rows import NONE, list_rows_between
from nsys2prv.conversion.job import ChosenRows, Opened, Read, ReadPart, complete
from nsys2prv.conversion.report_spans import (
    extract_rows,
    find_span_of_rows,
    list_kinds_left_out,
)
from nsys2prv.conversion.table_maps import NotedParts, choose_by_rowid, find_noted
from nsys2prv.conversion.whole_reports import (
    WholeReport,
    plan_whole_task,
    survey_database,
    survey_report,
)
from nsys2prv.events import all_kinds
from nsys2prv.events.attributes import EARLY_WORK
from nsys2prv.events.captures import CAPTURES
from nsys2prv.events.catalogue import load_catalogue
from nsys2prv.events.extraction import Extraction, ReadingSettings
from nsys2prv.events.kind import (
    LAUNCHES,
    NCCL_CALLS,
    NEVER,
    Account,
    EventKind,
    Reason,
    Rows,
    find_function,
)
from nsys2prv.events.launches import Segment, save_launches
from nsys2prv.events.nccl import COMMUNICATORS, KERNELS, MESSAGES
from nsys2prv.events.stacks import set_stacks_aside
from nsys2prv.export.info import ReportInfo
from nsys2prv.export.source import Part, Shared, SomeRows, Wanted
from nsys2prv.export.sqlite import open_database
from nsys2prv.table.overlaps import TOO_MANY, assign_nesting_lanes
from nsys2prv.table.runs import SpillWriter, find_spill_file
from nsys2prv.table.task_result import CommonNumbers, TaskResult

#: Kinds of events by which the clocks of hosts are aligned.
KINDS_FOR_CLOCKS = frozenset({"graphs", "kernels", "mpi_event_trace", "nccl", "nccl_operations"})
#: Those with facts by which reports are compared, and their facts. For the last ones, all of their rows are needed; they
#: cannot be read in part.
KINDS_WITH_FACTS, WHOLE_KINDS = frozenset({"kernels", "nccl"}), frozenset({"mpi_event_trace"})
NCCL_FACTS = frozenset({COMMUNICATORS, KERNELS, MESSAGES})
#: Purpose of reading rows: to store them, only for the indexes, or in addition only for the clocks.
STORED, INDEXED, BESIDE = "stored", "indexed", "beside"
#: Kinds that read together, the purpose, and whether they may use the indexes.
Group = tuple[tuple[EventKind, ...], str, bool]


def read_reports(job: Opened, part: ReadPart | None = None) -> Read:
    """Read all reports of a job: their contents, start and end, launches without work, and results
    that combine several tables of a report. Raise Unreadable. part: what to read; None for
    everything.
    """
    kinds, alone = job.selection.kinds, list_kinds_for_clocks(job)
    groups = group_kinds(kinds, alone)
    beside = [kind for of_group, use, _ in groups if use != STORED for kind in of_group]
    left_out = list_kinds_left_out(kinds, job.plan.settings, beside)
    compared = part.comparison if part else None
    earlier: list[TaskResult] = []
    if compared:
        groups, earlier = _list_groups_beyond_facts(groups), compared.results
    chosen = part.rows if part else None
    results = read_kinds(job, groups, left_out, chosen, earlier, NCCL_FACTS if compared else ())
    wholes = _survey_reports(job, left_out, results, part)
    results = [*earlier, *results]
    # Events that follow from several tables of one report, by the facts that reading it set aside.
    derived = job.run(derive_task, list(_plan_derive_tasks(kinds, results, job.folder)))
    clock_results = list_clock_results(results) if alone else []
    return complete(
        Read,
        job,
        results=[*results, *derived],
        clock_results=compared.clock_results if compared else clock_results,
        spans={report: one.span for report, one in wholes.items() if one.span is not None},
        lost=[lost for one in wholes.values() for lost in one.lost],
        read_part=part,
    )


def read_facts(job: Opened, chosen: ChosenRows) -> tuple[list[TaskResult], list[TaskResult]]:
    """Read only the facts by which reports are compared, and completely the kinds that cannot be
    read in part. Return the results, and the results of the kinds that are read only to align
    clocks. Raise Unreadable. chosen: the rows that these facts need.
    """
    alone = list_kinds_for_clocks(job)
    groups: list[Group] = []
    for kinds, use, asks in group_kinds(job.selection.kinds, alone):
        whole = tuple(kind for kind in kinds if kind.name in WHOLE_KINDS)
        few = tuple(
            kind for kind in kinds if kind.name in KINDS_WITH_FACTS or LAUNCHES in kind.provides
        )
        few_use = INDEXED if use == STORED else use
        groups += [one for one in ((whole, use, asks), (few, few_use, asks)) if one[0]]
    results = read_kinds(job, groups, (), chosen, without=(CAPTURES, EARLY_WORK), keeps_groups=True)
    return results, list_clock_results(results) if alone else []


def _list_groups_beyond_facts(groups: Sequence[Group]) -> list[Group]:
    """Return the groups of kinds to read after :func:`read_facts`."""
    beyond = (
        (tuple(kind for kind in kinds if kind.name not in WHOLE_KINDS), use, asks)
        for kinds, use, asks in groups
        if use != BESIDE
    )
    return [group for group in beyond if group[0]]


def read_kinds(
    job: Opened,
    groups: Sequence[Group],
    left_out: Sequence[str],
    chosen: ChosenRows | None = None,
    earlier: Sequence[TaskResult] = (),
    without: Collection[str] = (),
    keeps_groups: bool = False,
) -> list[TaskResult]:
    """Return the results of reading these groups of kinds. Raise Unreadable.

    left_out: kinds that are not read, or not completely. chosen: the rows to read; None for all.
    earlier: earlier results, with the NCCL calls to look up. without: facts that are not wanted.
    keeps_groups: whether groups of NCCL calls are looked up later.
    """
    results: list[TaskResult] = []
    # Indexes of each report, which the first stage makes.
    launches: dict[int, list[Segment]] = defaultdict(list)
    nccl_calls: dict[int, list[StoredFrame]] = defaultdict(list)
    nccl_groups: dict[int, tuple[StoredFrame, ...]] = {}
    for result in earlier:
        nccl_calls[result.report] += result.nccl_calls
        if result.nccl_groups:
            nccl_groups[result.report] = tuple(result.nccl_groups)
    used = [one.task for result in earlier for one in (result, result.beside) if one]
    numbers = count(1 + max(used, default=-1))
    stages = plan_tasks(job, groups, left_out, chosen, numbers, frozenset(without))
    rows = sum(task.rows for tasks in stages for task in tasks)
    with job.progress.show_phase("reading", rows) as advance:
        for tasks in stages:
            planned = [
                replace(
                    task,
                    launches=tuple(launches[task.report]),
                    nccl_calls=tuple(nccl_calls[task.report]),
                    nccl_groups=nccl_groups.get(task.report, ()),
                    keeps_groups=keeps_groups,
                )
                for task in tasks
            ]
            waiting = iter(planned)
            try:
                for result in job.run_small(read_task, planned, rows):
                    next(waiting)
                    result.beside.task = result.task + sum(map(len, stages))
                    results.append(result)
                    launches[result.report] += result.launches + result.beside.launches
                    nccl_calls[result.report] += result.nccl_calls
                    advance(result.rows)
            except LostWorker:
                raise
            except Nsys2prvError as error:
                # Results come in the order of their tasks.
                raise Unreadable(str(error), next(waiting).info.given) from None
    return results


def _survey_reports(
    job: Opened, left_out: Sequence[str], read: Sequence[TaskResult], part: ReadPart | None
) -> dict[int, WholeReport]:
    """Return facts about each report as a whole, from the task that read all of it, or from a
    further task after the tasks that did.
    """
    found = {one.report: one.whole for one in read if one.whole}
    results: dict[int, list[TaskResult]] = defaultdict(list)
    for result in read:
        results[result.report].append(result)
    tasks = [
        plan_whole_task(report, info, left_out, job.plan.settings, results[report])
        for report, info in enumerate(job.infos)
        if report not in found
    ]
    if part:
        tasks = [
            replace(
                task,
                chosen=part.rows.chosen[task.report],
                window=part.windows[task.report],
                span=part.spans.get(task.report),
            )
            for task in tasks
        ]
    surveyed = job.run(survey_report, tasks)
    found |= zip((task.report for task in tasks), surveyed, strict=True)
    return dict(sorted(found.items()))


def list_kinds_for_clocks(job: Opened) -> list[EventKind]:
    """Return the event kinds to read only for the clocks, if there are several hosts: kinds that
    align clocks, and that the plan excludes wholly or in part.
    """
    kinds = [kind for kind in all_kinds() if kind.name in KINDS_FOR_CLOCKS]
    left_out = [kind for kind in kinds if kind not in job.selection.kinds]
    several = len(find_host_clocks(job)[1]) > 1
    parts = (part for info in job.infos for part in list_wanted_parts(info, left_out))
    if not (several and job.plan.observes_clocks and any(part.rows for part in parts)):
        return []
    least = job.plan.settings.min_durations
    return [kind for kind in kinds if kind in left_out or least.get(kind.name)]


def list_clock_results(results: Sequence[TaskResult]) -> list[TaskResult]:
    """Return results with the facts of all kinds that align clocks, including kinds that were read
    only for this.
    """
    beside = [result.beside for result in results]
    whole = {name for result in beside for name in result.facts}
    own = (
        replace(result, facts={name: result.facts[name] for name in result.facts.keys() - whole})
        for result in results
    )
    return [*own, *beside]


def list_wanted_parts(info: ReportInfo, kinds: Iterable[EventKind]) -> Iterator[Part]:
    """Yield the parts of a report's tables that these kinds read."""
    tables = {table for kind in kinds for table in kind.tables}
    return (part for table, part in info.parts.items() if table in tables)


def warn_of_far_rows(job: Read) -> list[str]:
    """Return a warning (or none) that names the reports and event kinds with rows whose times are
    far outside the capture.
    """
    kinds: Counter[str] = Counter()
    reports: set[int] = set()
    for result in job.results:
        for kind, account in result.accounts.items():
            if count := account.dropped[Reason.FAR_FROM_CAPTURE]:
                kinds[kind] += count
                reports.add(result.report)
    if not kinds:
        return []
    where = list_some([job.infos[report].name for report in sorted(reports)])
    counts = ", ".join(f"{count:,} of {kind}" for kind, count in kinds.most_common())
    return [
        f"{where}: {Reason.FAR_FROM_CAPTURE.text} are discarded, because their times are damaged: {counts}"
    ]


class TablePart(Struct, frozen=True):
    """Rows of a table that several event kinds read together."""

    #: Names of the kinds.
    kinds: tuple[str, ...]
    #: The rows.
    part: Part
    #: STORED, INDEXED or BESIDE.
    use: str
    #: True if the kinds may look up the indexes.
    asks: bool
    #: True if its rows are counted as rows of the table. For other kinds, they were counted before,
    #: or are not counted.
    counts: bool = True


class ReadingTask(Struct, frozen=True):
    """A task for a worker: parts of the tables of one report to read."""

    #: Number of the task, from 0.
    number: int
    #: Index of the report.
    report: int
    #: Facts about the report.
    info: ReportInfo
    #: Parts to read, in this order.
    parts: tuple[TablePart, ...]
    #: Folder for its runs.
    folder: Path
    #: Settings of reading.
    settings: ReadingSettings
    #: Table with counted rows -> the kind that owns its parts.
    counting: Mapping[str, str]
    #: Where the task reads all of the report that is read: the kinds that are not, or not in full.
    left_out: tuple[str, ...] | None = None
    #: Calls of the report that other tasks indexed.
    launches: tuple[Segment, ...] = ()
    #: NCCL calls of the report that other tasks indexed.
    nccl_calls: tuple[StoredFrame, ...] = ()
    #: Operations and groups of these calls, if they are known.
    nccl_groups: tuple[StoredFrame, ...] = ()
    #: True if later tasks need these.
    keeps_groups: bool = False
    #: Facts that are not wanted.
    without: frozenset[str] = frozenset()

    @property
    def rows(self) -> int:
        """Return the number of rows in the parts."""
        return sum(one.part.count for one in self.parts)


def read_task(task: ReadingTask) -> TaskResult:
    """Read the parts of tables in a task, and store their records. This depends only on files."""
    kinds = {kind.name: kind for kind in all_kinds()}
    result = TaskResult(task.number, task.report, task.rows)
    result.beside = TaskResult(task.number, task.report, 0)
    with (
        SpillWriter(
            find_spill_file(task.folder),
            task.report,
            task.number,
            task.settings.field_masks,
        ) as writer,
        open_database(task.info.path) as database,
    ):
        known, nccl_calls = list(task.launches), list(task.nccl_calls)
        keys = dict.fromkeys(load_catalogue().layouts, 1)
        alone = replace(task.settings, min_durations={}, lines=False, field_masks=keys)
        own, beside = (
            Extraction(task.info, database, known, settings, nccl_calls)
            for settings in (task.settings, alone)
        )
        for extraction in (own, beside):
            extraction.unwanted_facts, extraction.nccl_groups = task.without, task.nccl_groups
        finder = own if task.settings.nccl_calls else beside
        is_indexed = False
        for one in task.parts:
            readers = [kinds[name] for name in one.kinds]
            extraction = beside if one.use == BESIDE else own
            extraction.stores = one.use == STORED
            if one.asks and not is_indexed:
                is_indexed = True
                known += result.launches + result.beside.launches
                if not nccl_calls:
                    result.nccl_calls = list(map(writer.append_frame, finder.found_nccl_calls))
                    nccl_calls += result.nccl_calls
                writer.flush()
            indexing = result if extraction is own else result.beside
            for piece in one.part.split(PART_ROWS):
                _read_piece(task, readers, piece, extraction, writer, result, one.counts)
                for launched in extraction.launched:
                    indexing.launches += save_launches(launched, writer)
                extraction.launched = []
        if not nccl_calls:
            result.nccl_calls = list(map(writer.append_frame, finder.found_nccl_calls))
        if task.keeps_groups:
            found = own.found_nccl_groups or beside.found_nccl_groups
            result.nccl_groups = list(map(writer.append_frame, found))
        if task.left_out is not None:
            writer.flush()
            of_report = task.report, task.info, task.left_out, task.settings, [result]
            result.whole = survey_database(plan_whole_task(*of_report), database)
            # No other task of the report uses them.
            result.launches, result.nccl_calls, result.beside.launches = [], [], []
        result.names = {name: names.save(writer) for name, names in own.names.items()}
        result.unnamed, result.callers = own.unnamed, np.concatenate(own.callers)
        for extraction, of_one in ((own, result), (beside, result.beside)):
            of_one.objects, of_one.domains = list(extraction.objects), list(extraction.domains)
            of_one.facts = extraction.save_facts(writer)
    return result


def _read_piece(
    task: ReadingTask,
    kinds: Sequence[EventKind],
    piece: Part,
    extraction: Extraction,
    writer: SpillWriter,
    result: TaskResult,
    counts: bool,
) -> None:
    """Give each kind of a table its rows from a piece. counts: whether to count rows by table."""
    # The other rows contain few rows for these kinds, so only the columns of these few are read.
    shared = _read_once(extraction, kinds, piece, are_few=not counts)
    if (
        counts
        and extraction.stores
        and task.counting.get(piece.table) in [kind.name for kind in kinds]
    ):
        result.tables[piece.table] += (
            extraction.database.count_rows(piece) if shared is None else len(shared.met)
        )
    for number, kind in enumerate(kinds):
        if shared is not None and not shared.mask_meeting(number).any():
            continue
        extraction.condition = kind.make_condition(task.info)
        extraction.min_duration = extraction.settings.min_durations.get(kind.name, 0)
        extraction.shared = None if shared is None else (shared, number)
        own_rows = piece if shared is None or (kind.columns and counts) else shared.narrow(number)
        account = extraction.account = Account()
        for rows in extract_rows(kind, extraction, own_rows):
            if not extraction.stores:
                result.note_span(kind.name, find_span_of_rows(rows, kind.open_ended))
                continue
            if isinstance(rows, Rows):
                set_stacks_aside(extraction, rows)
            result.store(rows, writer, account, kind.open_ended)
        if kind.derived:
            account.skipped[Reason.FACT] += account.rows - account.dropped.total()
        if extraction.stores:
            if counts and not kind.rereads_rows:
                result.of_table[piece.table] += account.rows
            result.add(kind.name, account)


def _read_once(
    extraction: Extraction, kinds: Sequence[EventKind], part: Part, are_few: bool
) -> Shared | None:
    """Return a part of a table for several kinds, with their conditions in this order; None if each
    kind must read it separately. are_few: if few rows meet any condition, return only these rows,
    without columns.
    """
    if len(kinds) < 2 and not are_few:
        return None
    integers = dict.fromkeys(name for kind in kinds for name in kind.columns)
    texts = dict.fromkeys(name for kind in kinds for name in kind.texts)
    conditions = [kind.make_condition(extraction.report) for kind in kinds]
    wanted = Wanted(tuple(integers), tuple(texts), (), conditions)
    if are_few:
        wanted = Wanted(conditions=conditions)
    return extraction.database.read_once(part, wanted)


def group_kinds(selected: Sequence[EventKind], alone: Sequence[EventKind]) -> list[Group]:
    """Return the groups of event kinds that read the same table and are therefore read together.
    alone: kinds that are read only for the clocks.
    """
    launching = [kind for kind in all_kinds() if LAUNCHES in kind.provides]
    is_indexed = any(LAUNCHES in kind.needs for kind in selected)
    indexed = [kind for kind in launching if is_indexed and kind not in selected]
    if alone and not is_indexed:
        alone = [*(kind for kind in launching if kind not in selected), *alone]
    tables = {kind.tables for kind in (*selected, *indexed, *alone) if kind.provides}
    groups: list[Group] = []
    for kinds, use in ((selected, STORED), (indexed, INDEXED), (alone, BESIDE)):
        # Kinds that read the same tables are included.
        first = [kind for kind in kinds if kind.tables in tables and not kind.needs]
        second = [kind for kind in kinds if kind not in first]
        for of_stage, asks in ((first, False), (second, True)):
            groups += [(group, use, asks) for group in _group_by_table(of_stage)]
    return groups


def plan_tasks(
    job: Opened,
    groups: Sequence[Group],
    left_out: Sequence[str],
    rows: ChosenRows | None,
    numbers: Iterator[int],
    without: frozenset[str],
) -> tuple[list[ReadingTask], list[ReadingTask]]:
    """Return the reading tasks of two stages: tasks that fill the indices of launching calls and
    NCCL calls, then tasks that may use them. For a small report, one task does both. numbers: of
    the tasks. The other parameters are those of :func:`read_kinds`.
    """
    selected = job.selection.kinds
    provided = {index for kind in selected for index in kind.provides}
    settings = replace(
        job.plan.settings, lines=LAUNCHES in provided, nccl_calls=NCCL_CALLS in provided
    )
    counting = _find_counting_kinds(selected)
    stages: tuple[list, list] = ([], [])
    for index, info in enumerate(job.infos):
        chosen = (rows.chosen[index], rows.noted[index], rows.limited) if rows else ({}, {}, ())
        of_stages = [
            list(_gather_parts(info, [group for group in groups if group[2] == asks], *chosen))
            for asks in (False, True)
        ]
        all_parts = [part for parts in chain.from_iterable(of_stages) for part in parts]
        if sum(one.part.count for one in all_parts) <= TASK_ROWS:
            of_stages = [[all_parts] if all_parts else [], []]
        is_whole = rows is None and sum(map(len, of_stages)) == 1
        more = job.folder, settings, counting, tuple(left_out) if is_whole else None
        for stage, of_stage in zip(stages, of_stages, strict=True):
            stage += [(index, info, tuple(parts), *more) for parts in of_stage]
    first_works, second_works = (
        [ReadingTask(next(numbers), *one, without=without) for one in of] for of in stages
    )
    return first_works, second_works


def _group_by_table(kinds: Sequence[EventKind]) -> list[tuple[EventKind, ...]]:
    """Group kinds that read the same table, if all its readers are selected; otherwise, most rows
    might belong to none of them. Kinds and groups keep the given order.
    """
    readers: dict[tuple[str, ...], list[EventKind]] = defaultdict(list)
    for kind in all_kinds():
        if len(kind.tables) == 1 and not kind.opt_in:
            readers[kind.tables].append(kind)
    groups = []
    for kind in kinds:
        group = readers.get(kind.tables, [])
        if kind not in group or not all(other in kinds for other in group):
            groups.append((kind,))
        elif kind is group[0]:
            groups.append(tuple(group))
    return groups


def _find_counting_kinds(selected: Iterable[EventKind]) -> dict[str, str]:
    """Return table -> the first kind that reads it, for tables that kinds read only in part."""
    readers: dict[str, list[EventKind]] = defaultdict(list)
    for kind in selected:
        for table in kind.tables:
            readers[table].append(kind)
    return {
        table: kinds[0].name
        for table, kinds in readers.items()
        if all(kind.where or kind.where_in_report for kind in kinds)
    }


def _gather_parts(
    info: ReportInfo,
    groups: Iterable[Group],
    chosen: Mapping[str, Sequence[Part]],
    noted: Mapping[str, NotedParts],
    limited: Collection[str],
) -> Iterator[list[TablePart]]:
    """Yield for each group of kinds the parts of a report for one task, at most TASK_ROWS rows.
    chosen, noted, limited: as in :class:`ChosenRows`.
    """
    of_task: list[TablePart] = []
    room = TASK_ROWS
    for one in _list_parts(info, groups, chosen, noted, limited):
        first = one.part.first
        while first <= one.part.last:
            rows = one.part
            if not isinstance(rows, SomeRows):
                rows = replace(rows, first=first, last=min(rows.last, first + room - 1))
            of_task.append(replace(one, part=rows))
            room -= rows.count
            first = rows.last + 1
            if room <= 0:
                yield of_task
                of_task, room = [], TASK_ROWS
    if of_task:
        yield of_task


def _list_parts(
    info: ReportInfo,
    groups: Iterable[Group],
    chosen: Mapping[str, Sequence[Part]],
    noted: Mapping[str, NotedParts],
    limited: Collection[str],
) -> Iterator[TablePart]:
    """Yield the parts of tables that groups of kinds read. chosen, noted, limited: as in
    :class:`ChosenRows`.
    """
    for group, use, asks in groups:
        if use != STORED and all(kind.make_condition(info) == NEVER for kind in group):
            continue
        names = tuple(kind.name for kind in group)
        # Kinds that have to read all of a table.
        whole = [
            one
            for one in (group if chosen else ())
            if not (one.separable or one.name in limited) and one.make_condition(info) != NEVER
        ]
        for table in group[0].tables:
            if table not in info.parts:
                continue
            parts = chosen.get(table)
            if parts is None or not all(kind.noted for kind in whole):
                yield TablePart(names, info.parts[table], use, asks)
                continue
            for part in parts:
                yield TablePart(names, part, use, asks)
            others = find_noted(info, whole, noted[table]) if whole else ()
            for part in _list_others(info.parts[table], parts, others):
                yield TablePart(tuple(kind.name for kind in whole), part, use, asks, counts=False)


def _list_others(whole: Part, parts: Sequence[Part], noted: Sequence[Part]) -> Iterator[Part]:
    """Yield the noted rows of a table that are in none of these parts. noted: sorted."""
    if parts and all(isinstance(one, SomeRows) for one in (*parts, *noted)):
        known, rowids = (
            np.concatenate([NONE, *(one.rowids for one in of)]) for of in (parts, noted)
        )
        yield from choose_by_rowid(whole, np.setdiff1d(rowids, known, assume_unique=True))
        return
    yield from _intersect(list(list_rows_between(whole, parts)), noted)


def _intersect(parts: Sequence[Part], others: Sequence[Part]) -> Iterator[Part]:
    """Yield the rows of a table that are both in `parts` and in `others`. others: sorted."""
    firsts = np.array([one.first for one in others], np.int64)
    lasts = np.array([one.last for one in others], np.int64)
    for part in parts:
        for place in range(lasts.searchsorted(part.first), firsts.searchsorted(part.last, "right")):
            one = others[place]
            first, last = max(part.first, one.first), min(part.last, one.last)
            if not isinstance(one, SomeRows):
                yield replace(part, first=first, last=last)
            elif found := one.find_between(first, last):
                yield found


class DeriveTask(Struct, frozen=True):
    """A task for a worker: make the events of one report that an event kind derives from stored
    facts.
    """

    #: Number of the task.
    number: int
    #: Index of the report.
    report: int
    #: Name of the kind.
    kind: str
    #: Results of all reading tasks of the report that hold facts for it, without their runs.
    sources: list[TaskResult]
    #: Folder for its runs.
    folder: Path


def _plan_derive_tasks(
    kinds: Iterable[EventKind], results: Sequence[TaskResult], folder: Path
) -> Iterator[DeriveTask]:
    """Yield a task for every kind that derives events, and every report with facts for it."""
    ordered = sorted(results, key=lambda result: result.task)
    numbers = count(1 + max((result.task for result in results), default=-1))
    for kind in kinds:
        sources: dict[int, list[TaskResult]] = defaultdict(list)
        for result in ordered if kind.derived else ():
            if not result.facts.keys().isdisjoint(kind.derived.collects):
                sources[result.report].append(replace(result, runs=[], launches=[], nccl_calls=[]))
        for report, of_report in sorted(sources.items()):
            yield DeriveTask(next(numbers), report, kind.name, of_report, folder)


def derive_task(task: DeriveTask) -> TaskResult:
    """Make and store the events that a kind derives from facts of one report. This depends only on
    files.
    """
    kind = next(kind for kind in all_kinds() if kind.name == task.kind)
    common = CommonNumbers()
    facts = {name: common.collect_facts(name, task.sources) for name in kind.derived.collects}
    result = TaskResult(task.number, task.report, 0)
    account = Account()
    path = find_spill_file(task.folder)
    with SpillWriter(path, task.report, task.number) as writer:
        for rows in find_function(kind.derived.derive)(facts):
            if isinstance(rows, Rows) and rows.nesting_owner is not None:
                lanes, crowded = assign_nesting_lanes(
                    rows.object, rows.nesting_owner, rows.begin, rows.end
                )
                rows.object = common.number_lanes(rows.object, lanes)
                if crowded:
                    account.repaired[TOO_MANY] += crowded
            result.store(rows, writer, account, kind.open_ended)
        result.objects, result.domains = list(common.objects), list(common.domains)
        result.names = {name_set: names.save(writer) for name_set, names in common.names.items()}
    result.add_found(kind.name, account)
    return result
