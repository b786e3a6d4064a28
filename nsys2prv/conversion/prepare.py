"""Prepare a job: from reports to what can be written or analysed, opened, read, placed on one
timeline, numbered, related, and cut.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
from msgspec import Struct, field
from msgspec.structs import replace

from nsys2prv._util.columns import read_frame
from nsys2prv._util.errors import Detail, NothingToWrite, Unreadable
from nsys2prv._util.workers import Pool
from nsys2prv.clock.maps import UNPLACED, ClockMap, ClockRecord, Placement, place_reports
from nsys2prv.conversion import derive
from nsys2prv.conversion.job import (
    Job,
    Workers,
    find_threads,
    find_trace_duration,
    sum_counters,
)
from nsys2prv.conversion.lost_launches import find_lost_launches
from nsys2prv.conversion.opened_reports import (
    OpenedReports,
    find_spans,
    list_wanted_parts,
    open_reports,
    read_all,
    warn_of_far_rows,
)
from nsys2prv.conversion.options import CutPlan, Plan
from nsys2prv.conversion.timeline import (
    Timeline,
    find_clock_error,
    find_host_clocks,
    group_comparable_reports,
    make_timeline,
    place_unclocked,
)
from nsys2prv.events import Selection, all_kinds
from nsys2prv.events.catalogue import load_catalogue, number_domains
from nsys2prv.events.cuda import EARLY_WORK
from nsys2prv.events.extraction import DeviceKey, ObjectKey
from nsys2prv.events.kind import EventKind, describe_reason
from nsys2prv.events.nccl import COMMUNICATORS
from nsys2prv.nsight import job_checks
from nsys2prv.nsight.captures import Captures, find_captures
from nsys2prv.nsight.info import ReportInfo
from nsys2prv.nsight.ranks import find_ranks
from nsys2prv.nsight.report_files import ensure_unchanged, has_log
from nsys2prv.paraver import object_model
from nsys2prv.paraver import values as name_values
from nsys2prv.relations import run_relations
from nsys2prv.relations.nccl_adoption import Adoption, adopt_kernels
from nsys2prv.relations.nccl_collectives import warn_of_absent_members
from nsys2prv.store.corrections import (
    clip_profiler_events,
    close_open_ranges,
    deduplicate_device_samples,
    mark_unsampled,
    scale_fractions,
)
from nsys2prv.store.overlaps import separate_overlaps
from nsys2prv.store.runs import Span
from nsys2prv.store.task_result import FactBook, TaskResult

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
    #: Folder for temporary files.
    folder: Path
    #: Pool that runs the tasks.
    workers: Workers
    #: Which reports were recorded together.
    captures: Captures
    #: Results of the tasks done so far.
    results: list[TaskResult] = field(default_factory=list)
    #: First and last time of the events of each report, read or not, in local ns.
    spans: Mapping[int, Span] = field(default_factory=dict)
    #: Paraver's tree of nodes, tasks and threads, once the objects are known.
    model: object_model.ObjectModel | None = None

    @property
    def machines(self) -> list[int]:
        """Return the number of the machine that each report is of."""
        return [placement.machine for placement in self.placements]

    def list_objects(self) -> list[tuple[int, ObjectKey]]:
        """Return the objects that hold events, with the reports that they are in."""
        return [(result.report, key) for result in self.results for key in result.objects]

    def run(self, function: Callable, tasks: Sequence) -> Iterator:
        """Return results of pure functions over files, in the order of the tasks."""
        first = ", ".join(info.name for info in self.infos[:3])
        return self.workers.run(function, tasks, lambda _: first)

    def make_rank_finder(self) -> object_model.FindRanks:
        """Return what finds ranks of processes by all that the reports tell of them."""
        told = []
        for result in self.results:
            if COMMUNICATORS in result.facts:
                frame = read_frame(result.facts[COMMUNICATORS])
                owners = [self.captures.find_first(result.report, one) for one in frame["process"]]
                told.append(frame.with_columns(report=pl.Series([one for one, _ in owners])))
        return partial(
            find_ranks,
            nccl=pl.concat(told) if told else None,
            is_one_job=len(self.captures.runs) < 2,
        )

    def adopt_kernels(self) -> Adoption:
        """Return what is found of NCCL kernels whose communicators are not recorded."""
        clocks, _ = find_host_clocks(self.infos, self.placements)
        return adopt_kernels(
            self.results, self.captures.numbers, self.placements, clocks, self.folder
        )

    def derive_events(self, kinds: Sequence[EventKind]) -> None:
        """Add what follows from the facts that these kinds have set aside."""
        tasks = derive.plan_derive_tasks(self.results, kinds, self.folder)
        self.results += self.run(derive.derive_task, tasks)


def prepare(
    reports: Sequence[str | Path], plan: Plan, folder: Path, pool: Pool, quiet: bool = True
) -> Job:
    """Return the job of these reports, cut as planned. They are read by the pool's workers, or by
    this process where that is not worth it.

    folder: of temporary files, see :mod:`nsys2prv._util.files`. Raises Nsys2prvError with one line
    for people when a report cannot be read, NothingToWrite when there is no event of the kinds
    asked for.
    """
    unread: list[str] = []
    paths = [Path(report) for report in reports]
    while True:
        part = folder / f"reports-{len(unread)}"
        part.mkdir()
        try:
            job = _prepare(paths, plan, part, pool, quiet)
        except Unreadable as error:
            kept = [path for path in paths if path != error.report]
            if not plan.options.keep_going or not kept or len(kept) == len(paths):
                raise
            shutil.rmtree(part, ignore_errors=True)
            paths = kept
            unread.append(str(error))
        else:
            job.unread += unread
            return _cut(job, plan.cut)


def _cut(job: Job, plan: CutPlan) -> Job:
    if plan == CutPlan():
        return job
    # Not before it is needed.
    from nsys2prv.conversion.cut_job import cut_job

    return cut_job(job, plan)


def _prepare(paths: Sequence[Path], plan: Plan, folder: Path, pool: Pool, quiet: bool) -> Job:
    """Return the job of all of these reports. Raises Unreadable where reading fails at one of
    several.
    """
    with ensure_unchanged([path for path in paths if not has_log(path)]):
        opened = open_reports(paths, plan, folder, pool, quiet)
        results = read_all(opened, folder)
        spans = find_spans(opened, results, folder)
        lost = find_lost_launches(opened.infos, results, spans, opened.workers.run)
        early_work = [
            (result.report, *row)
            for result in results
            if EARLY_WORK in result.facts
            for row in read_frame(result.facts[EARLY_WORK]).rows()
        ]
    placements = place_reports([info.clock for info in opened.infos])
    captures = _find_captures(opened.infos, placements, spans)
    plan = opened.plan
    if record := _align_with_unselected_kinds(opened, placements, captures, spans, folder):
        plan = replace(plan, method=record)
    state = _JobState(
        opened.infos, placements, plan, folder, opened.workers, captures, results, spans
    )
    state.derive_events(plan.selection.kinds)
    doubts, missing = _check_job(state)
    job = _make_job(state, is_complete=not missing)
    job.unread, job.lost, job.early_work = opened.unread, lost, early_work
    far = warn_of_far_rows(opened.infos, results)
    job.warnings = [*missing, *opened.warnings, *doubts, *far, *job.warnings]
    return job


def _check_job(state: _JobState) -> tuple[list[str], list[str]]:
    """Return doubts about the job, and ranks without a report, a line each. Of a process that was
    captured several times the first report counts.
    """
    captures = state.captures
    again = {report for chain in captures.chains for report in chain[1:]}
    infos = [info for report, info in enumerate(state.infos) if report not in again]
    if runs := captures.describe_runs(state.infos):
        return [f"{runs}: ranks are compared within a run only"], []
    return job_checks.check_job(infos), job_checks.check_missing_ranks(infos)


def _find_captures(
    infos: Sequence[ReportInfo], placements: Sequence[Placement], spans: Mapping[int, Span]
) -> Captures:
    """Return which reports were recorded together. spans: of the events of each, local ns."""
    events, recorded = {}, {}
    for report, (first, last) in spans.items():
        if placements[report].method != UNPLACED:
            clock, info = placements[report].map, infos[report]
            events[report] = tuple(clock.to_global(np.array([first, last])).tolist())
            begin = info.utc_ns if info.absolute else int(clock.to_global(np.int64(0)))
            length = info.duration_ns
            known = begin is not None and length is not None
            bounds = [*events[report], *((begin, begin + length) if known else ())]
            recorded[report] = min(bounds), max(bounds)
    return find_captures(infos, [placement.machine for placement in placements], events, recorded)


def _align_with_unselected_kinds(
    opened: OpenedReports,
    placements: list[Placement],
    captures: Captures,
    spans: Mapping[int, Span],
    folder: Path,
) -> ClockRecord | None:
    """Align the clocks of hosts, where the plan leaves out kinds of events by which that is done:
    they are read for that alone, so that the same reports have the same clocks whatever is asked
    for. Returns None where nothing has to be read, or nothing is there.
    """
    plan, kinds = opened.plan, tuple(kind for kind in all_kinds() if kind.name in OBSERVING)
    left_out = [kind for kind in kinds if kind not in plan.selection.kinds]
    several = len(find_host_clocks(opened.infos, placements)[1]) > 1
    if not (several and plan.observes_clocks) or not any(
        part.last >= part.first
        for info in opened.infos
        for part in list_wanted_parts(info, left_out)
    ):
        return None
    part = folder / "observed"
    part.mkdir()
    every = replace(plan.settings, min_durations={})
    observing = replace(plan, selection=Selection(kinds, frozenset()), settings=every)
    results = read_all(replace(opened, plan=observing), part)
    state = _JobState(
        opened.infos, placements, observing, part, opened.workers, captures, results, spans
    )
    state.derive_events(kinds)
    if not any(result.runs for result in results):
        return None
    state.results = state.adopt_kernels().results
    state.model = object_model.build_object_model(
        state.infos,
        state.machines,
        state.list_objects(),
        state.captures.firsts,
        state.make_rank_finder(),
    )
    record = _align_clocks(state).record
    shutil.rmtree(part, ignore_errors=True)
    return record


def _make_job(state: _JobState, is_complete: bool) -> Job:
    """Return the job of what was read: correct and split the rows, number objects and names, align
    the clocks, then find what follows from several reports, each step on the results of those
    before it. Raises NothingToWrite where nothing was found.
    """
    warnings = _correct_rows(state)
    adoption = state.adopt_kernels()
    state.results = adoption.results
    gpus, notes = _number_objects(state)
    with state.workers.spent.measure("names"):
        values = _name_values(state)
    notes += state.captures.describe_gaps()
    if state.plan.base is not None:
        notes.append(name_values.describe_reused_values(values.values()))
    domains = number_domains({domain for result in state.results for domain in result.domains})
    timeline = _align_clocks(state)
    state.results = mark_unsampled(state.results, state.spans, state.folder, timeline.clocks)
    clock_groups = group_comparable_reports(timeline, state.infos)
    book = replace(
        _make_fact_book(state, timeline.clocks, state.machines, clock_groups),
        clock_error=find_clock_error(timeline, state.infos),
    )
    _relate_reports(state, timeline, book, has_device_states=bool(gpus))
    # One warning is enough where the launcher's environment tells it.
    if is_complete:
        warnings += warn_of_absent_members(book, len(adoption.processes))
    if state.plan.options.states:
        states = _find_states(state, timeline)
        state.results += states
        count = sum(run.rows for result in states for run in result.runs)
        notes.append(Detail(f"{count:,} states of threads and streams"))
    make_job = partial(
        Job.from_results,
        infos=state.infos,
        selection=state.plan.selection,
        model=state.model,
        timeline=timeline,
        values=values,
        domain_codes=sorted(domains.items()),
        folder=state.folder,
        workers=state.workers,
        spans=state.spans,
        captures=state.captures,
        silent_in_nccl=adoption.processes,
        notes=notes,
        warnings=warnings,
    )
    job = make_job(state.results)
    if any(kind.name == "critical_path" for kind in state.plan.selection.kinds):
        # Not before it is needed.
        from nsys2prv.conversion.critical_path import make_critical_path

        with state.workers.spent.measure("critical path"):
            path = make_critical_path(job)
            job = make_job([*state.results, path], warnings=job.warnings)
    return job


def _correct_rows(state: _JobState) -> list[str]:
    """Correct the rows that were read; returns warnings. Raises NothingToWrite where there are
    none.
    """
    state.results = clip_profiler_events(state.results, state.spans, state.folder)
    again = {report for chain in state.captures.chains for report in chain[:-1]}
    lasts = {report: last for report, (_, last) in state.spans.items() if report in again}
    state.results = close_open_ranges(state.results, lasts)
    if not any(result.runs for result in state.results):
        raise NothingToWrite(_describe_nothing_found(state))
    state.results, warnings = scale_fractions(state.results, state.folder)
    state.results = separate_overlaps(state.results, state.run)
    return warnings


def _number_objects(state: _JobState) -> tuple[list[tuple[int, DeviceKey]], list[str]]:
    """Give all objects rows of the trace, and keep what several reports sampled once; returns the
    GPUs whose states are to be written, with their reports, and notes.
    """
    machines, seen = state.machines, state.list_objects()
    gpus = derive.find_devices(state.infos, machines, seen, state.plan.selection)
    state.model = object_model.build_object_model(
        state.infos,
        machines,
        [*seen, *gpus],
        state.captures.firsts,
        state.make_rank_finder(),
    )
    clocks = [placement.map for placement in state.placements]
    state.results, notes = deduplicate_device_samples(state.results, state.model.rows, clocks)
    return gpus, notes


def _relate_reports(
    state: _JobState, timeline: Timeline, book: FactBook, has_device_states: bool
) -> None:
    """Add what follows from several reports: relations, and the states of devices if wanted."""
    related = run_relations(book, state.folder, state.run)
    if has_device_states:
        number = 1 + max(result.task for result in (*state.results, *related))
        tasks = derive.plan_device_states(
            state.results, state.infos, state.model.rows, timeline.clocks, state.folder, number
        )
        state.results += state.run(derive.make_device_states, tasks)
    state.results += related


def _name_values(state: _JobState) -> dict[str, name_values.NameValues]:
    """Return the values of all names met, by name set."""
    labellers = {}
    if not state.plan.options.full_kernel_names:
        labellers = dict.fromkeys(("kernels", "nccl_kernels"), name_values.make_kernel_labels)
    if state.plan.options.without_paths:
        labellers["files"] = name_values.strip_folders
    names: dict[str, dict[int, name_values.NameFile]] = defaultdict(dict)
    for result in state.results:
        for name_set, frame in result.names.items():
            names[name_set][result.task] = name_values.NameFile(frame, result.domains)
    return name_values.assign_values(
        load_catalogue().name_sets, names, labellers, state.plan.base or {}
    )


def _align_clocks(state: _JobState) -> Timeline:
    """Return the timeline, on which hosts are aligned as asked for."""
    method = state.plan.method
    placements = place_unclocked(state.placements, state.spans, method)
    record = method if isinstance(method, ClockRecord) else None
    if state.plan.observes_clocks:
        clocks, names = find_host_clocks(state.infos, state.placements)
        if len(names) > 1:
            # Not before it is needed, as most jobs are of one host: it brings all of the solver.
            from nsys2prv.conversion import align

            maps = [placement.map for placement in placements]
            times = [maps[report].to_global(np.array(span)) for report, span in state.spans.items()]
            span = int(np.min(times)), int(np.max(times))
            book, folder = _make_fact_book(state, maps, clocks), state.folder / "clocks"
            alignment = align.align_hosts(book, method, names, span, folder, state.run)
            record = align.to_record(alignment, names, state.infos, state.model.processes)
    return make_timeline(placements, state.infos, state.spans, record)


def _find_states(state: _JobState, timeline: Timeline) -> list[TaskResult]:
    """Return the states of all rows."""
    from nsys2prv.conversion import state_records

    threads = {result.task: find_threads(result, state.model) for result in state.results}
    duration = find_trace_duration(state.results, state.spans, timeline.clocks)
    tasks = state_records.plan_state_tasks(
        state.results,
        state.model.rows,
        threads,
        timeline.clocks,
        duration,
        state.folder,
        _find_captured_times(state, timeline, duration),
    )
    return list(state.run(state_records.make_states, tasks))


def _find_captured_times(
    state: _JobState, timeline: Timeline, duration: int
) -> dict[int, tuple[int, int]]:
    """Return begin and end (ns of the trace) of each capture of processes that have several: the
    first lasts from the begin of the trace, the last to its end.
    """
    captured = {}
    for chain in state.captures.chains:
        times = [
            timeline.clocks[report].to_global(np.array(state.spans[report])).tolist()
            for report in chain
        ]
        times[0][0], times[-1][1] = 0, duration
        captured |= {report: tuple(span) for report, span in zip(chain, times, strict=True)}
    return captured


def _make_fact_book(
    state: _JobState,
    clocks: Sequence[ClockMap],
    hosts: Sequence[int],
    clock_groups: Sequence[int] = (),
) -> FactBook:
    model = state.model
    threads = {result.task: find_threads(result, model) for result in state.results if result.facts}
    return FactBook(
        state.results, clocks, hosts, threads, model.tasks, clock_groups, state.captures.numbers
    )


def _describe_nothing_found(state: _JobState) -> str:
    first = [info.name for info in state.infos[:3]]
    names = ", ".join([*first, "…"] if state.infos[3:] else first)
    lost = +sum_counters(
        account.dropped for result in state.results for account in result.accounts.values()
    )
    reasons = ", ".join(f"{count} {describe_reason(reason)}" for reason, count in lost.items())
    why = f" ({reasons})" if reasons else ""
    missing = "of the kinds asked for" if state.plan.selection.asked else "that can be translated"
    return f"{names}: nothing to write: no events {missing}{why}; see what the reports hold with --list"
