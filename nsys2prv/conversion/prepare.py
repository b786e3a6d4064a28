"""From reports to a job that is ready to be written or analysed: opened, read, placed on one
timeline, numbered, related.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from nsys2prv._util.engines import alone
from nsys2prv._util.engines.pool import Pool, worth_parallelizing
from nsys2prv._util.errors import Detail, NothingToWrite, Nsys2prvError, Unreadable
from nsys2prv._util.progress import Progress
from nsys2prv.clock.maps import ClockMap, Placement, ReportClock, place_reports
from nsys2prv.clock.record import ClockRecord
from nsys2prv.conversion import archive, derive, device_states
from nsys2prv.conversion import reading as extract
from nsys2prv.conversion.cut.selection import choose_reports
from nsys2prv.conversion.job import Job, Workers, find_threads, find_trace_duration
from nsys2prv.conversion.options import DEFAULTS, Plan
from nsys2prv.conversion.spans import Span, combine_spans, find_span, plan_span_tasks
from nsys2prv.conversion.startup import should_parallelize
from nsys2prv.conversion.summary import warn_of_far_rows
from nsys2prv.conversion.timeline import (
    NONE,
    UTC,
    Timeline,
    find_host_clocks,
    group_comparable_reports,
    make_timeline,
    place_unclocked,
    start_at_first_event,
)
from nsys2prv.events import all_kinds
from nsys2prv.events.catalogue import catalogue, domain_numbers
from nsys2prv.events.critical_path import NAME as CRITICAL_PATH
from nsys2prv.events.kind import EventKind
from nsys2prv.events.mpi import MEETINGS
from nsys2prv.events.reasons import reason_text
from nsys2prv.events.selection import Selection
from nsys2prv.nsight import job_checks
from nsys2prv.nsight.info import ReportInfo
from nsys2prv.nsight.report_files import ensure_unchanged
from nsys2prv.nsight.sqlite import has_log
from nsys2prv.paraver import object_model
from nsys2prv.paraver import values as name_model
from nsys2prv.relations import run_relations
from nsys2prv.relations.nccl_matching import absent_members
from nsys2prv.store import samples as device_model
from nsys2prv.store.corrections import clip_profiler_events, mark_unsampled, scale_fractions
from nsys2prv.store.facts import FactBook, read_fact
from nsys2prv.store.overlaps import separate_overlaps
from nsys2prv.store.task_result import TaskResult

#: Kinds of events that tell how clocks of hosts are to be aligned, with those that they refer to.
OBSERVING = frozenset(
    {"cuda_api_trace", "graphs", "kernels", "mpi_event_trace", "nccl", "nccl_operations"}
)
#: So many rows one process reads and writes while others start.
SMALL_JOB_ROWS = 250_000


class _Reading(Struct):
    """State that the stages of reading share."""

    #: Metadata of the reports, in rank order.
    infos: list[ReportInfo]
    #: Where each report is placed in time.
    placements: list[Placement]
    plan: Plan
    folder: Path
    workers: Workers
    #: Results of the tasks done so far.
    results: list[TaskResult] = field(default_factory=list)
    #: First and last time of the events of each report, read or not, in local ns.
    spans: Mapping[int, Span] = field(default_factory=dict)

    def run(self, function: Callable, tasks: Sequence, ahead: int | None = None) -> Iterator:
        return self.workers.run(
            function, tasks, ahead, lambda _: ", ".join(info.name for info in self.infos[:3])
        )


def prepare(
    reports: Sequence[str | Path], plan: Plan, folder: Path, pool: Pool, quiet: bool = True
) -> Job:
    """Return the job of these reports, read by the pool's workers, or by this process where that is
    not worth it.

    folder: of temporary files, see :mod:`nsys2prv._util.files`. Raises Nsys2prvError with one line
    for people when a report cannot be read, NothingToWrite when there is no event of the kinds
    asked for.
    """
    unread: list[str] = []
    reports = list(reports)
    while True:
        part = folder / f"reports-{len(unread)}"
        part.mkdir()
        try:
            job = _prepare(reports, plan, part, pool, quiet)
        except Unreadable as error:
            kept = [report for report in reports if Path(report) != error.report]
            if not plan.keep_going or not kept or len(kept) == len(reports):
                raise
            shutil.rmtree(part, ignore_errors=True)
            reports = kept
            unread.append(str(error))
        else:
            job.unread += unread
            return job


def _prepare(
    reports: Sequence[str | Path], plan: Plan, folder: Path, pool: Pool, quiet: bool
) -> Job:
    """Return the same. Raises Unreadable where reading fails at one report of several."""
    paths = [Path(report) for report in reports]
    with ensure_unchanged([path for path in paths if not has_log(path)]):
        found = open_reports(reports, plan, folder, pool, quiet)
        results = [result for _, result in read_all(found, folder, archive.run_reading_task)]
        spans = find_spans(found, results, folder)
    stores = list(dict.fromkeys(path for path, _ in found.stored.values()))
    with archive.blame_stores(stores):
        clocks = [
            ReportClock(info.host, info.utc_ns, info.system_ns, info.absolute)
            for info in found.infos
        ]
        reading = _Reading(
            found.infos,
            place_reports(clocks),
            _add_clock_kinds(found, place_reports(clocks), spans, folder),
            folder,
            found.workers,
            results,
            spans,
        )
        reading.results += reading.run(
            derive.derive_task,
            derive.plan_derive_tasks(results, found.plan.selection.kinds, folder),
            found.workers.pool.jobs,
        )
        job = _make_job(reading)
    job.stores = stores
    job.warnings, job.unread = (
        [*found.missing, *found.warnings, *warn_of_far_rows(found.infos, results), *job.warnings],
        found.unread,
    )
    return job


def _add_clock_kinds(
    found: OpenedReports, placements: list[Placement], spans: Mapping[int, Span], folder: Path
) -> Plan:
    """Return the plan; where it leaves out kinds of events by which clocks of hosts are aligned,
    these are read for that alone, so that the same reports have the same clocks whatever is asked
    for.
    """
    plan, kinds = found.plan, tuple(kind for kind in all_kinds() if kind.name in OBSERVING)
    left_out = [kind for kind in kinds if kind not in plan.selection.kinds]
    several = len(find_host_clocks(found.infos, placements)[1]) > 1
    if (
        isinstance(plan.method, ClockRecord)
        or plan.method in (UTC, NONE)
        or not several
        or found.stored
        or not any(
            part.last >= part.first
            for info in found.infos
            for part in _list_wanted_parts(info, left_out)
        )
    ):
        return plan
    part = folder / "observed"
    part.mkdir()
    observing = replace(
        found,
        plan=replace(
            plan, selection=Selection(kinds, frozenset()), settings=replace(plan.settings, least={})
        ),
    )
    results = [result for _, result in read_all(observing, part, archive.run_reading_task)]
    reading = _Reading(found.infos, placements, observing.plan, part, found.workers, results, spans)
    reading.results += reading.run(
        derive.derive_task, derive.plan_derive_tasks(results, kinds, part), found.workers.pool.jobs
    )
    if not any(result.runs for result in results):
        return plan
    machines = [placement.machine for placement in placements]
    model = object_model.build_object_model(
        found.infos,
        machines,
        [(result.report, key) for result in reading.results for key in result.objects],
    )
    record = _align_clocks(reading, model).record
    shutil.rmtree(part, ignore_errors=True)
    return plan if record is None else replace(plan, method=record)


class OpenedReports(Struct):
    """Reports that are open but not read yet."""

    #: Metadata of the reports, in rank order.
    infos: list[ReportInfo]
    plan: Plan
    workers: Workers
    warnings: list[str]
    #: Report number -> store that it is in and its entry there.
    stored: dict[int, tuple[Path, archive.ArchivedReport]]
    #: One line for each report that cannot be opened.
    unread: list[str]
    #: Ranks of the job without a report, as text.
    missing: list[str] = field(default_factory=list)


def open_reports(
    reports: Sequence[str | Path], plan: Plan, folder: Path, pool: Pool, quiet: bool
) -> OpenedReports:
    """Return the reports, or stores of them, looked at; the plan as the stores have it."""
    progress = Progress(quiet)
    paths, warnings = _drop_repetitions(reports)
    stores = archive.open_stores(paths)
    if stores:
        usual = Plan.of(DEFAULTS)
        selection, settings = archive.check_settings_match(
            plan.selection, plan.settings, list(stores.values()), (usual.selection, usual.settings)
        )
        plan = replace(plan, selection=selection, settings=settings)
    exports = [path for path in paths if path not in stores]
    infos, unread = [], []
    lookers = Workers(
        pool if len(exports) > 1 and should_parallelize(exports, pool.jobs) else alone(), progress
    )
    looked = extract.inspect_reports(
        exports, folder, plan.keep_going, partial(lookers.run, what=extract.first_report_name)
    )
    for found in progress.over(looked, "opening reports", len(exports)):
        if isinstance(found, ReportInfo):
            infos.append(found)
        elif plan.keep_going:
            unread.append(str(found))
        else:
            raise found
    if unread and not infos and not stores:
        raise Nsys2prvError(f"none of the reports can be read; of the first: {unread[0]}")
    held = [(store.path, report) for store in stores.values() for report in store.contents.reports]
    if stores:
        archive.check_no_duplicate_reports(
            [
                *((report.info, path) for path, report in held),
                *((info, info.given) for info in infos),
            ]
        )
    places = {id(report.info): (path, report) for path, report in held}
    with archive.blame_stores(list(stores)):
        infos = object_model.order_reports([*infos, *(report.info for _, report in held)])
        missing = job_checks.missing_ranks(infos)
        # What is not wanted is read all the same: clocks are aligned and ranks related before
        # anything is cut.
        choose_reports(infos, plan.cut.cut)
        rows = sum(
            part.last - part.first + 1
            for info in infos
            for part in _list_wanted_parts(info, plan.selection.kinds)
        )
        warnings += job_checks.job_warnings(infos)
    return OpenedReports(
        infos,
        plan,
        Workers(
            pool if worth_parallelizing(pool.jobs, rows, SMALL_JOB_ROWS) else alone(),
            progress,
            lookers.spent,
        ),
        warnings,
        {number: places[id(info)] for number, info in enumerate(infos) if id(info) in places},
        unread,
        missing,
    )


def read_all(
    found: OpenedReports, folder: Path, read: Callable[[Any], TaskResult]
) -> Iterator[tuple[int, TaskResult]]:
    """Yield the results of reading all reports, a task at a time, with the number of the stage.
    read: does the work of a task.
    """
    stages = extract.plan_tasks(
        found.infos, found.plan.selection.kinds, folder, found.plan.settings
    )
    results: list[TaskResult] = []
    with found.workers.progress.bar(
        "reading", sum(task.rows for tasks in stages for task in tasks), "rows"
    ) as bar:
        for number, tasks in enumerate(stages):
            planned = archive.replace_with_archived_tasks(
                extract.add_launches(tasks, results) if number else tasks, number, found.stored
            )
            waiting = iter(planned)
            try:
                for result in found.workers.run(
                    read, planned, what=lambda task: str(task.info.path)
                ):
                    next(waiting)
                    results.append(result)
                    bar.update(result.rows)
                    yield number, result
            except Nsys2prvError as error:
                # Results come in the order of their tasks.
                raise Unreadable(str(error), next(waiting).info.given) from None


def find_spans(
    found: OpenedReports, results: Sequence[TaskResult], folder: Path
) -> dict[int, Span]:
    """Return the first and the last time (local ns) of the events of each report that has any,
    whether they were read or not. results: of reading.
    """
    tasks = [
        task
        for task in plan_span_tasks(
            found.infos, results, found.plan.selection, found.plan.settings, folder
        )
        if task.report not in found.stored
    ]
    told = {
        report: stored.span
        for report, (_, stored) in found.stored.items()
        if stored.span is not None
    }
    spans = found.workers.run(find_span, tasks, what=lambda task: str(task.info.path))
    measured = dict(zip((task.report for task in tasks), spans, strict=True))
    return combine_spans(results, {**told, **measured})


def _make_job(reading: _Reading) -> Job:
    reading.results = clip_profiler_events(reading.results, reading.spans, reading.folder)
    if not any(result.runs for result in reading.results):
        raise NothingToWrite(_describe_nothing_found(reading))
    reading.results, small = scale_fractions(reading.results, reading.folder)
    reading.results = separate_overlaps(
        reading.results, partial(reading.run, ahead=reading.workers.pool.jobs)
    )
    machines = [placement.machine for placement in reading.placements]
    seen = [(result.report, key) for result in reading.results for key in result.objects]
    gpus = device_states.find_devices(reading.infos, machines, seen, reading.plan.selection)
    model = object_model.build_object_model(reading.infos, machines, [*seen, *gpus])
    clocks = [placement.map for placement in reading.placements]
    reading.results, notes = device_model.deduplicate_device_samples(
        reading.results, model.rows, clocks
    )
    with reading.workers.spent.stage("names"):
        values = _name_values(reading)
    notes += (
        [name_model.reused_values_note(values.values())] if reading.plan.base is not None else []
    )
    domains = domain_numbers({domain for result in reading.results for domain in result.domains})
    placed = _align_clocks(reading, model)
    if reading.plan.causal:
        placed = _restore_order(reading, model, placed)
    reading.results = mark_unsampled(reading.results, reading.spans, reading.folder, placed.clocks)
    hosts = [placement.machine for placement in placed.placements]
    book = _make_fact_book(
        reading, model, placed.clocks, hosts, group_comparable_reports(placed, reading.infos)
    )
    related = run_relations(book, reading.folder, reading.run)
    # One warning is enough where the launcher's environment tells it.
    if not job_checks.missing_ranks(reading.infos):
        small = [*small, *absent_members(book)]
    if gpus:
        number = 1 + max(result.task for result in (*reading.results, *related))
        reading.results += reading.run(
            device_states.make_device_states,
            device_states.plan_device_states(
                reading.results, reading.infos, model.rows, placed.clocks, reading.folder, number
            ),
            ahead=reading.workers.pool.jobs,
        )
    reading.results += related
    if reading.plan.states:
        states = _find_states(reading, model, placed)
        reading.results += states
        notes = [
            *notes,
            Detail(
                f"{sum(run.rows for result in states for run in result.runs):,} states of threads and streams"
            ),
        ]
    job = Job(
        reading.infos,
        reading.plan.selection,
        reading.results,
        model,
        placed,
        values,
        sorted(domains.items()),
        reading.folder,
        reading.workers,
        notes,
        warnings=small,
        spans=reading.spans,
    )
    if any(kind.name == CRITICAL_PATH for kind in reading.plan.selection.kinds):
        # Not before it is needed.
        from nsys2prv.conversion.critical_path import add_critical_path

        with reading.workers.spent.stage("critical path"):
            return add_critical_path(job, read_fact(book.files((MEETINGS,))[MEETINGS], book.tasks))
    return job


def _name_values(reading: _Reading) -> dict[str, name_model.NameValues]:
    """Return the values of all names met, by name set."""
    labellers = (
        {}
        if reading.plan.full_kernel_names
        else dict.fromkeys(("kernels", "nccl_kernels"), name_model.readable_kernels)
    )
    if reading.plan.without_paths:
        labellers["files"] = name_model.names_without_folders
    met: dict[str, dict[int, name_model.NameFile]] = {}
    for result in reading.results:
        for name_set, found in result.names.items():
            met.setdefault(name_set, {})[result.task] = name_model.NameFile(found, result.domains)
    return name_model.assign_values(catalogue().name_sets, met, labellers, reading.plan.base or {})


def _align_clocks(reading: _Reading, model: object_model.ObjectModel) -> Timeline:
    """Return the timeline, on which hosts are aligned as asked for."""
    method = reading.plan.method
    placements = place_unclocked(reading.placements, reading.spans, method)
    record = method if isinstance(method, ClockRecord) else None
    if record is None and method not in (UTC, NONE):
        clocks, names = find_host_clocks(reading.infos, reading.placements)
        if len(names) > 1:
            # Not before it is needed, as most jobs are of one host: it brings all of the solver.
            from nsys2prv.conversion import align

            book = _make_fact_book(
                reading, model, [placement.map for placement in placements], clocks
            )
            found = align.align_hosts(
                book,
                method,
                len(names),
                _find_span(reading, placements),
                reading.folder / "clocks",
                reading.run,
            )
            owners = [
                f"rank {process.rank}"
                if process.rank is not None
                else reading.infos[process.report].name
                for process in model.processes
            ]
            record = align.to_record(found, names, owners)
    return make_timeline(placements, reading.infos, reading.spans, record)


def _find_span(reading: _Reading, placements: Sequence[Placement]) -> tuple[int, int]:
    """Return the first and the last time of all events, as they are placed."""
    times = [
        placements[report].map.to_global(np.array(span)) for report, span in reading.spans.items()
    ]
    return int(min(pair[0] for pair in times)), int(max(pair[1] for pair in times))


def _restore_order(
    reading: _Reading, model: object_model.ObjectModel, placed: Timeline
) -> Timeline:
    """Return the timeline with ranks moved so that no event contradicts another's."""
    from nsys2prv.conversion import align

    reports = range(len(reading.infos))
    book = _make_fact_book(
        reading, model, [placement.map for placement in placed.placements], reports
    )
    order = align.restore_order(book, len(reports), reading.folder / "order", reading.run)
    clocks, hosts = find_host_clocks(reading.infos, reading.placements)
    names = align.distinct_report_names(reading.infos, model.processes)
    return start_at_first_event(
        align.move_reports(placed, order, names, [hosts[clock] for clock in clocks]), reading.spans
    )


def _find_states(
    reading: _Reading, model: object_model.ObjectModel, placed: Timeline
) -> list[TaskResult]:
    """Return the states of all rows."""
    from nsys2prv.relations import thread_states

    threads = {result.task: find_threads(result, model) for result in reading.results}
    tasks = thread_states.plan_state_tasks(
        reading.results,
        model.rows,
        threads,
        placed.clocks,
        find_trace_duration(reading.results, reading.spans, placed.clocks),
        reading.folder,
    )
    return list(reading.run(thread_states.make_states, tasks, ahead=reading.workers.pool.jobs))


def _make_fact_book(
    reading: _Reading,
    model: object_model.ObjectModel,
    clocks: Sequence[ClockMap],
    hosts: Sequence[int],
    parts: Sequence[int] = (),
) -> FactBook:
    threads = {
        result.task: find_threads(result, model) for result in reading.results if result.facts
    }
    return FactBook(
        reading.results,
        clocks,
        hosts,
        threads,
        {(process.report, process.pid): number for number, process in enumerate(model.processes)},
        parts,
    )


def _list_wanted_parts(info: ReportInfo, kinds: Sequence[EventKind]) -> Iterator:
    tables = {table for kind in kinds for table in kind.tables}
    return (part for table, part in info.parts.items() if table in tables)


def _drop_repetitions(reports: Sequence[str | Path]) -> tuple[list[Path], list[str]]:
    """Return the reports without repetitions, and a warning for each of those."""
    paths: dict[Path, Path] = {}
    warnings = []
    for report in map(Path, reports):
        try:
            real = report.resolve()
        except (OSError, RuntimeError):
            raise Nsys2prvError(f"{report}: is a link that leads nowhere") from None
        if real in paths:
            warnings.append(f"{report}: given twice, read once")
        paths.setdefault(real, report)
    if not paths:
        raise Nsys2prvError("no report given")
    return list(paths.values()), warnings


def _describe_nothing_found(reading: _Reading) -> str:
    names = ", ".join(info.name for info in reading.infos[:3]) + (
        ", …" if len(reading.infos) > 3 else ""
    )
    lost: Counter[str] = Counter()
    for result in reading.results:
        for account in result.accounts.values():
            lost += account.dropped
    why = (
        f" ({', '.join(f'{count} {reason_text(reason)}' for reason, count in lost.items())})"
        if lost
        else ""
    )
    what = "of the kinds asked for" if reading.plan.selection.asked else "that can be translated"
    return (
        f"{names}: nothing to write: no events {what}{why}; see what the reports hold with --list"
    )
