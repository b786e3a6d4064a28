"""Read the tables of a job's reports into sorted runs. Each task reads part of one report, on its
own, in bounded memory. Kinds of events that take rows of the same table share one reading of it.

In: a job that is open. Out: the same job with its `results` and `spans`, by each report's own
clock.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.columns import FrameWriter, StoredFrame, read_frame
from nsys2prv._util.errors import Nsys2prvError, Unreadable
from nsys2prv._util.text import list_some
from nsys2prv.conversion.clocks import find_host_clocks
from nsys2prv.conversion.job import Job
from nsys2prv.conversion.lost_launches import find_lost_launches
from nsys2prv.conversion.open import list_wanted_parts
from nsys2prv.conversion.spans import extract_rows, find_spans
from nsys2prv.events import all_kinds
from nsys2prv.events.call_indexes import (
    LaunchIndex,
    NcclCallIndex,
    Segment,
    save_launches,
    save_nccl_calls,
)
from nsys2prv.events.catalogue import load_catalogue
from nsys2prv.events.cuda import EARLY_WORK
from nsys2prv.events.extraction import Extraction, ReadingSettings
from nsys2prv.events.kind import LAUNCHES, Account, EventKind, Reason, Rows, find_function
from nsys2prv.events.stacks import set_stacks_aside
from nsys2prv.export.info import ReportInfo
from nsys2prv.export.source import Part, Shared
from nsys2prv.export.sqlite import Database
from nsys2prv.store.overlaps import TOO_MANY, assign_nesting_lanes
from nsys2prv.store.runs import SpillWriter
from nsys2prv.store.work_result import CommonNumbers, WorkResult

#: Rows read at a time: a few tens of MB whatever the table.
PART_ROWS = 200_000
#: Rows of one task: small enough to share the work out, large enough that opening the report again
#: costs nothing.
TASK_ROWS = 400_000
#: Kinds of events that tell how clocks of hosts are to be aligned, with those that they refer to.
KINDS_FOR_CLOCKS = frozenset(
    {"cuda_api_trace", "graphs", "kernels", "mpi_event_trace", "nccl", "nccl_operations"}
)
#: Folder of the runs of kinds that are read for the clocks alone.
FOR_CLOCKS = "for-clocks"


def read_reports(job: Job) -> None:
    """Read all reports: what they hold, when it begins and ends, which launches lack work, and what
    follows from several tables of a report. Raises Unreadable.
    """
    kinds, settings = job.selection.kinds, job.plan.settings
    job.results = read_kinds(job, kinds, settings, job.folder)
    job.spans = find_spans(job)
    job.lost = find_lost_launches(job.infos, job.results, job.spans, job.workers.run)
    job.early_work = [
        (result.report, *row)
        for result in job.results
        if EARLY_WORK in result.facts
        for row in read_frame(result.facts[EARLY_WORK]).rows()
    ]
    job.results += derive_events(job, kinds, job.results, job.folder)
    job.clock_results = _read_for_clocks(job)


def read_kinds(
    job: Job, kinds: Sequence[EventKind], settings: ReadingSettings, folder: Path
) -> list[WorkResult]:
    """Return the results of reading these kinds of events. Raises Unreadable."""
    results: list[WorkResult] = []
    stages = plan_tasks(job.infos, kinds, folder, settings)
    rows = sum(task.rows for tasks in stages for task in tasks)
    with job.workers.progress.show_phase("reading", rows) as advance:
        for number, tasks in enumerate(stages):
            planned = add_indexes(tasks, results) if number else tasks
            waiting = iter(planned)
            try:
                for result in job.workers.run(read_task, planned, lambda task: str(task.info.path)):
                    next(waiting)
                    results.append(result)
                    advance(result.rows)
            except Nsys2prvError as error:
                # Results come in the order of their tasks.
                raise Unreadable(str(error), next(waiting).info.given) from None
    return results


def _read_for_clocks(job: Job) -> list[WorkResult]:
    """Read the kinds of events by which the clocks of hosts are aligned, where there are several
    hosts and the plan leaves some of these kinds out.
    """
    kinds = [kind for kind in all_kinds() if kind.name in KINDS_FOR_CLOCKS]
    left_out = [kind for kind in kinds if kind not in job.selection.kinds]
    several = len(find_host_clocks(job.infos, job.placements)[1]) > 1
    if not (several and job.plan.observes_clocks) or not any(
        part.rows for info in job.infos for part in list_wanted_parts(info, left_out)
    ):
        return []
    names = dict.fromkeys(load_catalogue().layouts, 1)
    settings = replace(job.plan.settings, min_durations={}, field_masks=names)
    folder = job.folder / FOR_CLOCKS
    folder.mkdir()
    results = read_kinds(job, kinds, settings, folder)
    return results + derive_events(job, kinds, results, folder)


def warn_of_far_rows(job: Job) -> list[str]:
    """Return a warning that names the reports and kinds of events with rows of damaged times."""
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
        f"{where}: {Reason.FAR_FROM_CAPTURE.text} are left out because their times are damaged: {counts}"
    ]


class TablePart(Struct, frozen=True):
    """Rows of a table that kinds read together."""

    #: Names of the kinds.
    kinds: tuple[str, ...]
    #: The rows.
    part: Part
    #: False where they are read for the indexes alone.
    wanted: bool
    #: True if the kinds may look up the indexes.
    asks: bool


class ReadingWork(Struct, frozen=True):
    """Parts of one report to read."""

    #: Number of the task, from 0.
    number: int
    #: Index of the report.
    report: int
    #: What is known of the report.
    info: ReportInfo
    #: What to read, in this order.
    parts: tuple[TablePart, ...]
    #: Folder for its runs.
    folder: Path
    #: Settings of reading.
    settings: ReadingSettings
    #: Table whose rows are counted -> the kind whose parts are its.
    counting: Mapping[str, str]
    #: Calls of the report that other tasks indexed.
    launches: tuple[Segment, ...] = ()
    #: NCCL calls of the report that other tasks indexed.
    nccl_calls: tuple[StoredFrame, ...] = ()

    @property
    def rows(self) -> int:
        """Return the number of rows of the parts."""
        return sum(one.part.rows for one in self.parts)


def read_task(task: ReadingWork) -> WorkResult:
    """Read the task's parts and spill their runs (a pure function over files)."""
    kinds = {kind.name: kind for kind in all_kinds()}
    result = WorkResult(task.number, task.report, task.rows)
    with (
        FrameWriter(task.folder / f"launches-{task.number}.bin") as launches,
        SpillWriter(
            task.folder / f"runs-{task.number}.bin",
            task.report,
            task.number,
            task.settings.field_masks,
        ) as writer,
        Database(task.info.path) as database,
    ):
        launch_index, nccl_calls = LaunchIndex(list(task.launches)), NcclCallIndex(task.nccl_calls)
        extraction = Extraction(task.info, database, launch_index, task.settings, nccl_calls)

        def save_indexes() -> None:
            result.nccl_calls += save_nccl_calls(extraction.found_nccl_calls, launches)
            launch_index.segments += result.launches
            extraction.nccl_calls = NcclCallIndex((*task.nccl_calls, *result.nccl_calls))
            extraction.found_nccl_calls = []
            launches.flush()

        for one in task.parts:
            readers = [kinds[name] for name in one.kinds]
            if one.asks and not (launch_index.segments or extraction.nccl_calls):
                save_indexes()
            for piece in one.part.split(PART_ROWS):
                _read_piece(task, readers, piece, one.wanted, extraction, writer, result)
                for launched in extraction.launched:
                    result.launches += save_launches(launched, launches)
                extraction.launched = []
        result.nccl_calls += save_nccl_calls(extraction.found_nccl_calls, launches)
    result.objects, result.domains = list(extraction.objects), list(extraction.domains)
    with FrameWriter(writer.path) as frames:
        result.names = {name: names.save(frames) for name, names in extraction.names.items()}
        result.facts = extraction.save_facts(frames)
    return result


def _read_piece(
    task: ReadingWork,
    kinds: Sequence[EventKind],
    piece: Part,
    wanted: bool,
    extraction: Extraction,
    writer: SpillWriter,
    result: WorkResult,
) -> None:
    """Let the kinds, all of one table, have their rows of a piece of it. wanted: whether they are
    to be stored.
    """
    shared = _read_once(extraction, kinds, piece)
    if task.counting.get(piece.table) in [kind.name for kind in kinds]:
        result.tables[piece.table] += (
            extraction.database.count_rows(piece) if shared is None else len(shared.met)
        )
    for number, kind in enumerate(kinds):
        if shared is not None and not shared.mask_meeting(number).any():
            continue
        extraction.condition = kind.make_condition(task.info)
        extraction.stores = wanted
        extraction.min_duration = task.settings.min_durations.get(kind.name, 0)
        extraction.shared = None if shared is None else (shared, number)
        own_rows = piece if shared is None or kind.columns else shared.narrow(number)
        account = extraction.account = Account()
        for rows in extract_rows(kind, extraction, own_rows):
            if wanted:
                if isinstance(rows, Rows):
                    set_stacks_aside(extraction, rows)
                result.store(rows, writer, account, kind.open_ended)
        if kind.derived:
            account.skipped[Reason.FACT] += account.rows - account.dropped.total()
        if wanted:
            if not kind.rereads_rows:
                result.of_table[piece.table] += account.rows
            result.add(kind.name, account)


def _read_once(extraction: Extraction, kinds: Sequence[EventKind], part: Part) -> Shared | None:
    """Return a part of a table for several kinds, their conditions in this order; None where each
    has to read it.
    """
    if len(kinds) < 2:
        return None
    integers = dict.fromkeys(name for kind in kinds for name in kind.columns)
    texts = dict.fromkeys(name for kind in kinds for name in kind.texts)
    conditions = [kind.make_condition(extraction.report) for kind in kinds]
    return extraction.database.read_once(part, tuple(integers), tuple(texts), conditions)


def plan_tasks(
    reports: Sequence[ReportInfo],
    selected: Sequence[EventKind],
    folder: Path,
    settings: ReadingSettings,
) -> tuple[list[ReadingWork], list[ReadingWork]]:
    """Return tasks of two stages: those that fill the indices of launching calls and of NCCL calls,
    then those that may ask them. Of a small report one task does both.

    The second stage's tasks get their report's indices through :func:`add_indexes` once the first
    stage is done.
    """
    settings = replace(settings, lines=any(LAUNCHES in kind.provides for kind in selected))
    launches_needed = any(LAUNCHES in kind.needs for kind in selected)
    providers = [
        kind
        for kind in all_kinds()
        if (kind.provides and kind in selected) or (LAUNCHES in kind.provides and launches_needed)
    ]
    tables = {kind.tables for kind in providers}
    # Those that read the same tables come along.
    first = [
        kind
        for kind in all_kinds()
        if kind in providers or (kind in selected and kind.tables in tables and not kind.needs)
    ]
    second = [kind for kind in selected if kind not in first]
    counting, wanted = _find_counting_kinds(selected), {kind.name for kind in selected}
    stages: tuple[list, list] = ([], [])
    for index, info in enumerate(reports):
        portions = [
            list(_gather_portions(info, _group_by_table(kinds), wanted, asks))
            for kinds, asks in ((first, False), (second, True))
        ]
        all_parts = [part for parts in chain.from_iterable(portions) for part in parts]
        if sum(one.part.rows for one in all_parts) <= TASK_ROWS:
            portions = [[all_parts] if all_parts else [], []]
        for stage, of_stage in zip(stages, portions, strict=True):
            stage += [(index, info, tuple(parts), folder, settings, counting) for parts in of_stage]
    numbers = count()
    first_works, second_works = ([ReadingWork(next(numbers), *one) for one in of] for of in stages)
    return first_works, second_works


def _group_by_table(kinds: Sequence[EventKind]) -> list[tuple[EventKind, ...]]:
    """Group kinds that read the same table, if all its readers are selected: of the rows that fewer
    kinds read together, most might be of none. Kinds and groups are in the order given.
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
    """Return the tables that kinds read only in part, each with the first kind that reads it."""
    readers: dict[str, list[EventKind]] = defaultdict(list)
    for kind in selected:
        for table in kind.tables:
            readers[table].append(kind)
    return {
        table: kinds[0].name
        for table, kinds in readers.items()
        if all(kind.where or kind.where_in_report for kind in kinds)
    }


def _gather_portions(
    info: ReportInfo, groups: Sequence[tuple[EventKind, ...]], wanted: set[str], asks: bool
) -> Iterator[list[TablePart]]:
    """Yield a report's parts for each of the groups of kinds that read together, gathered into
    portions of at most TASK_ROWS rows. asks: whether they may look up the indexes.
    """
    portion: list[TablePart] = []
    room = TASK_ROWS
    for group in groups:
        names = tuple(kind.name for kind in group)
        for part in (info.parts[table] for table in group[0].tables if table in info.parts):
            first = part.first
            while first <= part.last:
                last = min(part.last, first + room - 1)
                rows = Part(part.table, first, last)
                portion.append(TablePart(names, rows, names[0] in wanted, asks))
                room -= rows.rows
                first = last + 1
                if room <= 0:
                    yield portion
                    portion, room = [], TASK_ROWS
    if portion:
        yield portion


def add_indexes(tasks: Sequence[ReadingWork], results: Iterable[WorkResult]) -> list[ReadingWork]:
    """Return the tasks of the second stage with the indexes (of launching calls and of NCCL calls)
    that the first one made of their reports.
    """
    segments: dict[int, list[Segment]] = defaultdict(list)
    nccl_calls: dict[int, list[StoredFrame]] = defaultdict(list)
    for result in results:
        segments[result.report] += result.launches
        nccl_calls[result.report] += result.nccl_calls
    return [
        replace(
            task, launches=tuple(segments[task.report]), nccl_calls=tuple(nccl_calls[task.report])
        )
        for task in tasks
    ]


class DeriveWork(Struct, frozen=True):
    """One kind in one report."""

    #: Number of the task.
    number: int
    #: Index of the report.
    report: int
    #: Name of the kind.
    kind: str
    #: Results of all reading tasks of the report that hold facts for it, without their runs.
    sources: list[WorkResult]
    #: Folder for its runs.
    folder: Path


def derive_events(
    job: Job, kinds: Iterable[EventKind], results: Sequence[WorkResult], folder: Path
) -> list[WorkResult]:
    """Return the events of these kinds that follow from several tables of one report: from the
    facts that reading it set aside (:meth:`Extraction.add_fact`). Memory is that of one report's
    facts.
    """
    return list(job.run(derive_task, list(_plan_derive_tasks(kinds, results, folder))))


def _plan_derive_tasks(
    kinds: Iterable[EventKind], results: Sequence[WorkResult], folder: Path
) -> Iterator[DeriveWork]:
    """Yield a task for every kind that derives and every report with facts of it."""
    ordered = sorted(results, key=lambda result: result.task)
    numbers = count(1 + max((result.task for result in results), default=-1))
    for kind in kinds:
        sources: dict[int, list[WorkResult]] = defaultdict(list)
        for result in ordered if kind.derived else ():
            if not result.facts.keys().isdisjoint(kind.derived.collects):
                sources[result.report].append(replace(result, runs=[], launches=[], nccl_calls=[]))
        for report, of_report in sorted(sources.items()):
            yield DeriveWork(next(numbers), report, kind.name, of_report, folder)


def derive_task(task: DeriveWork) -> WorkResult:
    """Bring the facts together and spill the derived events (a pure function over files)."""
    kind = next(kind for kind in all_kinds() if kind.name == task.kind)
    common = CommonNumbers()
    facts = {name: common.collect_facts(name, task.sources) for name in kind.derived.collects}
    result = WorkResult(task.number, task.report, 0)
    account = Account()
    spill_file = task.folder / f"runs-{task.number}.bin"
    with SpillWriter(spill_file, task.report, task.number) as writer:
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
    with FrameWriter(spill_file) as frames:
        result.names = {name_set: names.save(frames) for name_set, names in common.names.items()}
    result.add_found(kind.name, account)
    return result
