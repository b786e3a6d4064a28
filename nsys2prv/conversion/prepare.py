"""From reports to a job that is ready to be written or analysed: opened, read, placed on one
timeline, numbered, related.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from nsys2prv._util.engines.pool import Pool
from nsys2prv._util.errors import Detail, NothingToWrite, Unreadable
from nsys2prv.clock.clock_file import ClockRecord
from nsys2prv.clock.maps import ClockMap, Placement, ReportClock, place_reports
from nsys2prv.conversion import derive, device_states, report_stores
from nsys2prv.conversion.job import Job, Workers, find_threads, find_trace_duration
from nsys2prv.conversion.opened_reports import (
    OpenedReports,
    find_spans,
    list_wanted_parts,
    open_reports,
    read_all,
)
from nsys2prv.conversion.options import Plan
from nsys2prv.conversion.report_spans import Span
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
from nsys2prv.events.catalogue import load_catalogue, number_domains
from nsys2prv.events.mpi import MEETINGS
from nsys2prv.events.reasons import describe_reason
from nsys2prv.events.selection import Selection
from nsys2prv.nsight import job_checks
from nsys2prv.nsight.info import ReportInfo
from nsys2prv.nsight.report_files import ensure_unchanged, has_log
from nsys2prv.paraver import object_model
from nsys2prv.paraver import values as name_values
from nsys2prv.relations import run_relations
from nsys2prv.relations.nccl_matching import warn_of_absent_members
from nsys2prv.store.facts import FactBook, read_fact
from nsys2prv.store.overlaps import separate_overlaps
from nsys2prv.store.profiler_clipping import clip_profiler_events
from nsys2prv.store.sample_corrections import mark_unsampled, scale_fractions
from nsys2prv.store.samples import deduplicate_device_samples
from nsys2prv.store.task_result import TaskResult

#: Kinds of events that tell how clocks of hosts are to be aligned, with those that they refer to.
OBSERVING = frozenset(
    {"cuda_api_trace", "graphs", "kernels", "mpi_event_trace", "nccl", "nccl_operations"}
)


class _JobState(Struct):
    """What is known of the job so far."""

    #: Metadata of the reports, in rank order.
    infos: list[ReportInfo]
    #: Where each report is placed in time.
    placements: list[Placement]
    #: What to read and how to place it.
    plan: Plan
    #: For temporary files.
    folder: Path
    #: Run the tasks.
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
    """Return the job of all of these reports. Raises Unreadable where reading fails at one of
    several.
    """
    paths = [Path(report) for report in reports]
    with ensure_unchanged([path for path in paths if not has_log(path)]):
        opened = open_reports(reports, plan, folder, pool, quiet)
        results = [result for _, result in read_all(opened, folder, report_stores.run_reading_task)]
        spans = find_spans(opened, results, folder)
    stores = list(dict.fromkeys(path for path, _ in opened.stored.values()))
    with report_stores.blame_stores(stores):
        clocks = [
            ReportClock(info.host, info.utc_ns, info.system_ns, info.absolute)
            for info in opened.infos
        ]
        state = _JobState(
            opened.infos,
            place_reports(clocks),
            _add_clock_kinds(opened, place_reports(clocks), spans, folder),
            folder,
            opened.workers,
            results,
            spans,
        )
        state.results += state.run(
            derive.derive_task,
            derive.plan_derive_tasks(results, opened.plan.selection.kinds, folder),
            opened.workers.pool.jobs,
        )
        job = _make_job(state)
    job.stores = stores
    job.warnings, job.unread = (
        [
            *opened.missing,
            *opened.warnings,
            *warn_of_far_rows(opened.infos, results),
            *job.warnings,
        ],
        opened.unread,
    )
    return job


def _add_clock_kinds(
    opened: OpenedReports, placements: list[Placement], spans: Mapping[int, Span], folder: Path
) -> Plan:
    """Return the plan; where it leaves out kinds of events by which clocks of hosts are aligned,
    these are read for that alone, so that the same reports have the same clocks whatever is asked
    for.
    """
    plan, kinds = opened.plan, tuple(kind for kind in all_kinds() if kind.name in OBSERVING)
    left_out = [kind for kind in kinds if kind not in plan.selection.kinds]
    several = len(find_host_clocks(opened.infos, placements)[1]) > 1
    if (
        isinstance(plan.method, ClockRecord)
        or plan.method in (UTC, NONE)
        or not several
        or opened.stored
        or not any(
            part.last >= part.first
            for info in opened.infos
            for part in list_wanted_parts(info, left_out)
        )
    ):
        return plan
    part = folder / "observed"
    part.mkdir()
    observing = replace(
        opened,
        plan=replace(
            plan, selection=Selection(kinds, frozenset()), settings=replace(plan.settings, least={})
        ),
    )
    results = [result for _, result in read_all(observing, part, report_stores.run_reading_task)]
    state = _JobState(
        opened.infos, placements, observing.plan, part, opened.workers, results, spans
    )
    state.results += state.run(
        derive.derive_task, derive.plan_derive_tasks(results, kinds, part), opened.workers.pool.jobs
    )
    if not any(result.runs for result in results):
        return plan
    machines = [placement.machine for placement in placements]
    model = object_model.build_object_model(
        opened.infos,
        machines,
        [(result.report, key) for result in state.results for key in result.objects],
    )
    record = _align_clocks(state, model).record
    shutil.rmtree(part, ignore_errors=True)
    return plan if record is None else replace(plan, method=record)


def _make_job(state: _JobState) -> Job:
    """Return the job of what was read: correct and split the rows, number objects and names, align
    the clocks, then find what follows from several reports, each step on the results of those
    before it. Raises NothingToWrite where nothing was found.
    """
    state.results = clip_profiler_events(state.results, state.spans, state.folder)
    if not any(result.runs for result in state.results):
        raise NothingToWrite(_describe_nothing_found(state))
    state.results, small = scale_fractions(state.results, state.folder)
    state.results = separate_overlaps(
        state.results, partial(state.run, ahead=state.workers.pool.jobs)
    )
    machines = [placement.machine for placement in state.placements]
    seen = [(result.report, key) for result in state.results for key in result.objects]
    gpus = device_states.find_devices(state.infos, machines, seen, state.plan.selection)
    model = object_model.build_object_model(state.infos, machines, [*seen, *gpus])
    clocks = [placement.map for placement in state.placements]
    state.results, notes = deduplicate_device_samples(state.results, model.rows, clocks)
    with state.workers.spent.stage("names"):
        values = _name_values(state)
    notes += (
        [name_values.describe_reused_values(values.values())] if state.plan.base is not None else []
    )
    domains = number_domains({domain for result in state.results for domain in result.domains})
    timeline = _align_clocks(state, model)
    if state.plan.causal:
        timeline = _restore_order(state, model, timeline)
    state.results = mark_unsampled(state.results, state.spans, state.folder, timeline.clocks)
    hosts = [placement.machine for placement in timeline.placements]
    book = _make_fact_book(
        state, model, timeline.clocks, hosts, group_comparable_reports(timeline, state.infos)
    )
    related = run_relations(book, state.folder, state.run)
    # One warning is enough where the launcher's environment tells it.
    if not job_checks.check_missing_ranks(state.infos):
        small = [*small, *warn_of_absent_members(book)]
    if gpus:
        number = 1 + max(result.task for result in (*state.results, *related))
        state.results += state.run(
            device_states.make_device_states,
            device_states.plan_device_states(
                state.results, state.infos, model.rows, timeline.clocks, state.folder, number
            ),
            ahead=state.workers.pool.jobs,
        )
    state.results += related
    if state.plan.states:
        states = _find_states(state, model, timeline)
        state.results += states
        notes = [
            *notes,
            Detail(
                f"{sum(run.rows for result in states for run in result.runs):,} states of threads and streams"
            ),
        ]
    job = Job(
        state.infos,
        state.plan.selection,
        state.results,
        model,
        timeline,
        values,
        sorted(domains.items()),
        state.folder,
        state.workers,
        notes,
        warnings=small,
        spans=state.spans,
    )
    if any(kind.name == "critical_path" for kind in state.plan.selection.kinds):
        # Not before it is needed.
        from nsys2prv.conversion.critical_path import add_critical_path

        with state.workers.spent.stage("critical path"):
            return add_critical_path(job, read_fact(book.files((MEETINGS,))[MEETINGS], book.tasks))
    return job


def _name_values(state: _JobState) -> dict[str, name_values.NameValues]:
    """Return the values of all names met, by name set."""
    labellers = (
        {}
        if state.plan.full_kernel_names
        else dict.fromkeys(("kernels", "nccl_kernels"), name_values.make_kernel_labels)
    )
    if state.plan.without_paths:
        labellers["files"] = name_values.strip_folders
    names: dict[str, dict[int, name_values.NameFile]] = {}
    for result in state.results:
        for name_set, name_file in result.names.items():
            names.setdefault(name_set, {})[result.task] = name_values.NameFile(
                name_file, result.domains
            )
    return name_values.assign_values(
        load_catalogue().name_sets, names, labellers, state.plan.base or {}
    )


def _align_clocks(state: _JobState, model: object_model.ObjectModel) -> Timeline:
    """Return the timeline, on which hosts are aligned as asked for."""
    method = state.plan.method
    placements = place_unclocked(state.placements, state.spans, method)
    record = method if isinstance(method, ClockRecord) else None
    if record is None and method not in (UTC, NONE):
        clocks, names = find_host_clocks(state.infos, state.placements)
        if len(names) > 1:
            # Not before it is needed, as most jobs are of one host: it brings all of the solver.
            from nsys2prv.conversion import align

            book = _make_fact_book(
                state, model, [placement.map for placement in placements], clocks
            )
            alignment = align.align_hosts(
                book,
                method,
                names,
                _find_span(state, placements),
                state.folder / "clocks",
                state.run,
            )
            owners = [
                f"rank {process.rank}"
                if process.rank is not None
                else state.infos[process.report].name
                for process in model.processes
            ]
            record = align.to_record(alignment, names, owners)
    return make_timeline(placements, state.infos, state.spans, record)


def _find_span(state: _JobState, placements: Sequence[Placement]) -> tuple[int, int]:
    """Return the first and the last time of all events, as they are placed."""
    times = [
        placements[report].map.to_global(np.array(span)) for report, span in state.spans.items()
    ]
    return int(min(pair[0] for pair in times)), int(max(pair[1] for pair in times))


def _restore_order(
    state: _JobState, model: object_model.ObjectModel, timeline: Timeline
) -> Timeline:
    """Return the timeline with ranks moved so that no event contradicts another's."""
    from nsys2prv.conversion import align

    reports = range(len(state.infos))
    book = _make_fact_book(
        state, model, [placement.map for placement in timeline.placements], reports
    )
    order = align.restore_order(book, len(reports), state.folder / "order", state.run)
    clocks, hosts = find_host_clocks(state.infos, state.placements)
    names = align.name_reports(state.infos, model.processes)
    return start_at_first_event(
        align.move_reports(timeline, order, names, [hosts[clock] for clock in clocks]), state.spans
    )


def _find_states(
    state: _JobState, model: object_model.ObjectModel, timeline: Timeline
) -> list[TaskResult]:
    """Return the states of all rows."""
    from nsys2prv.relations import thread_states

    threads = {result.task: find_threads(result, model) for result in state.results}
    tasks = thread_states.plan_state_tasks(
        state.results,
        model.rows,
        threads,
        timeline.clocks,
        find_trace_duration(state.results, state.spans, timeline.clocks),
        state.folder,
    )
    return list(state.run(thread_states.make_states, tasks, ahead=state.workers.pool.jobs))


def _make_fact_book(
    state: _JobState,
    model: object_model.ObjectModel,
    clocks: Sequence[ClockMap],
    hosts: Sequence[int],
    parts: Sequence[int] = (),
) -> FactBook:
    threads = {result.task: find_threads(result, model) for result in state.results if result.facts}
    return FactBook(
        state.results,
        clocks,
        hosts,
        threads,
        {(process.report, process.pid): number for number, process in enumerate(model.processes)},
        parts,
    )


def _describe_nothing_found(state: _JobState) -> str:
    names = ", ".join(info.name for info in state.infos[:3]) + (
        ", …" if len(state.infos) > 3 else ""
    )
    lost: Counter[str] = Counter()
    for result in state.results:
        for account in result.accounts.values():
            lost += account.dropped
    why = (
        f" ({', '.join(f'{count} {describe_reason(reason)}' for reason, count in lost.items())})"
        if lost
        else ""
    )
    missing = "of the kinds asked for" if state.plan.selection.asked else "that can be translated"
    return f"{names}: nothing to write: no events {missing}{why}; see what the reports hold with --list"
