"""Align the reports of a job: one time, one set of rows, one value for each name, and what follows
from several reports.

In: a job that is read. Out: the same job, ready to be cut, written or analysed.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from itertools import chain

import numpy as np
import polars as pl
from msgspec.structs import replace

from nsys2prv._util.errors import NothingToWrite
from nsys2prv._util.notes import Note
from nsys2prv._util.stored_columns import StoredFrame, read_columns
from nsys2prv.clock.maps import UNPLACED, ClockRecord
from nsys2prv.conversion.clocks import (
    find_clock_corrections,
    find_clock_error,
    find_host_clocks,
    gather_facts,
    group_comparable_reports,
    place_reports_in_trace,
)
from nsys2prv.conversion.damaged_work import plan_searches, search_streams
from nsys2prv.conversion.job import Job, sum_counters
from nsys2prv.conversion.read import warn_of_far_rows
from nsys2prv.events.catalogue import load_catalogue, number_domains
from nsys2prv.events.extraction import DeviceKey, StreamKey, find_stream_device, identify_gpu
from nsys2prv.events.kind import describe_reason
from nsys2prv.events.nccl import COMMUNICATORS, KERNELS
from nsys2prv.export.info import ReportInfo
from nsys2prv.export.ranks import (
    Captures,
    check_claims,
    check_job,
    check_missing_ranks,
    find_captures,
)
from nsys2prv.export.roles import MPI_RANKS, NCCL_RANKS, Evidence, Roles, find_roles
from nsys2prv.match import run_relations
from nsys2prv.match.nccl_adoption import adopt_kernels
from nsys2prv.match.nccl_collectives import warn_of_absent_members
from nsys2prv.table import samples
from nsys2prv.table.overlaps import separate_overlaps
from nsys2prv.table.work_result import WorkResult
from nsys2prv.writers import names as name_values
from nsys2prv.writers.rows import build_object_model


def align_reports(job: Job) -> None:
    """Put the reports of a job on one time, one set of rows and one numbering of names, and add
    what follows from several reports. Raises NothingToWrite where no events were read.
    """
    with job.progress.show_phase("clocks", 4) as advance:
        job.captures = _find_captures(job)
        if record := _align_by_clock_results(job):
            job.plan = replace(job.plan, method=record)
        advance(1)
        _check_job(job)
        job.warnings += [*warn_of_far_rows(job), *_correct_rows(job)]
        advance(1)
        devices = _number_objects(job)
        missing = _check_ranks(job)
        found = (*job.model.roles.conflicts, job.model.describe_shared_gpus())
        job.notes += map(Note, filter(None, found))
        _number_names(job)
        advance(1)
        place_reports_in_trace(job, find_clock_corrections(job))
        samples.mark_unsampled(job.results, job.spans, job.folder, job.clocks)
        _relate_reports(job, devices, is_complete=not missing)
    if job.plan.options.states:
        _add_states(job)
    job.settle()
    if any(kind.name == "critical_path" for kind in job.selection.kinds):
        # Not before it is needed.
        from nsys2prv.conversion.job_reader import make_critical_path

        job.results.append(make_critical_path(job))
        job.settle()


def _align_by_clock_results(job: Job) -> ClockRecord | None:
    """Return the clock corrections that follow from the events read for the clocks alone; None
    without such events. With them, reports get the same clocks whatever kinds of events are
    selected.
    """
    if not any(result.facts for result in job.clock_results):
        return None
    observing = copy(job)
    observing.results, observing.folder = job.clock_results, job.folder / "for-clocks"
    observing.folder.mkdir()
    _adopt_kernels(observing)
    _build_model(observing)
    if _list_facts_of_nccl(job.clock_results) == _list_facts_of_nccl(job.results):
        adopted = iter(_list_facts_of_nccl(observing.results))
        job.results = [
            replace(one, facts=one.facts | next(adopted)) if KERNELS in one.facts else one
            for one in job.results
        ]
        job.silent_in_nccl = observing.silent_in_nccl
    return find_clock_corrections(observing)


def _list_facts_of_nccl(results: Sequence[WorkResult]) -> list[dict[str, StoredFrame]]:
    """Return the facts by which communicators of kernels are found."""
    return [
        {name: one.facts[name] for name in (KERNELS, COMMUNICATORS) if name in one.facts}
        for one in results
        if KERNELS in one.facts
    ]


def _find_captures(job: Job) -> Captures:
    """Return which reports were recorded together."""
    events, recorded = {}, {}
    for report, (first, last) in job.spans.items():
        if job.placements[report].method != UNPLACED:
            clock, info = job.placements[report].map, job.infos[report]
            events[report] = tuple(clock.to_global(np.array([first, last])).tolist())
            begin = info.utc_ns if info.absolute else int(clock.to_global(np.int64(0)))
            length = info.duration_ns
            known = begin is not None and length is not None
            bounds = [*events[report], *((begin, begin + length) if known else ())]
            recorded[report] = min(bounds), max(bounds)
    return find_captures(job.infos, job.machines, events, recorded)


def _check_job(job: Job) -> None:
    """Add warnings about the job as a whole. Where a process was captured several times, its first
    report counts.
    """
    if runs := job.captures.describe_runs(job.infos):
        job.warnings.append(f"{runs}: ranks are compared within a run only")
        return
    again = {report for chain in job.captures.chains for report in chain[1:]}
    job.warnings += check_job([one for at, one in enumerate(job.infos) if at not in again])


def _check_ranks(job: Job) -> list[str]:
    """Add warnings about ranks that are missing or claimed twice from a job of one run; returns those
    about missing ones.
    """
    if len(job.captures.runs) > 1:
        return []
    processes = [one for one in job.model.processes if one.pid and not one.is_helper]
    infos = [job.infos[report] for report in sorted({one.report for one in processes})]
    has_messages = any(result.facts for result in (*job.results, *job.clock_results))
    missing = check_missing_ranks(infos, [one.rank for one in processes], has_messages)
    # What NCCL and MPI number may be of one process or several to the launcher.
    is_sure = {one.source for one in processes} <= {NCCL_RANKS, MPI_RANKS}
    job.warnings = [*missing, *job.warnings, *([] if is_sure else check_claims(infos))]
    return missing


def _correct_rows(job: Job) -> list[str]:
    """Correct the rows that were read; returns warnings. Raises NothingToWrite where there are
    none.
    """
    samples.clip_profiler_events(job.results, job.spans, job.folder)
    again = {report for chain in job.captures.chains for report in chain[:-1]}
    samples.close_open_ranges(job.results, {report: job.spans[report][1] for report in again})
    if not any(result.runs for result in job.results):
        first = [info.name for info in job.infos[:3]]
        names = ", ".join([*first, "…"] if job.infos[3:] else first)
        lost = sum_counters(
            one.dropped for result in job.results for one in result.accounts.values()
        )
        reasons = ", ".join(f"{n} {describe_reason(reason)}" for reason, n in (+lost).items())
        why = f" ({reasons})" if reasons else ""
        missing, advice = "of the kinds asked for", "see what the reports hold with --list"
        if not job.selection.asked:
            missing = "that can be translated"
            advice += "; if the capture is empty, profile the program itself, until it ends"
        raise NothingToWrite(f"{names}: nothing to write: no events {missing}{why}; {advice}")
    warnings = samples.scale_fractions(job.results, job.folder)
    separate_overlaps(job.results, job.run_small)
    searches = plan_searches(job.infos, job.list_objects())
    job.damaged = list(chain.from_iterable(job.run(search_streams, searches)))
    return warnings


def _adopt_kernels(job: Job) -> None:
    """Find communicators of NCCL kernels that do not record theirs, unless this is done."""
    if job.silent_in_nccl is not None:
        return
    clocks, _ = find_host_clocks(job)
    adoption = adopt_kernels(job.results, job.captures.numbers, job.placements, clocks, job.folder)
    job.results, job.silent_in_nccl = adoption.results, adoption.processes


def _build_model(job: Job, more: Sequence[tuple[int, DeviceKey]] = ()) -> None:
    """Build the tree of rows for all objects with events, and for `more`."""
    frames = []
    for result in job.results:
        if COMMUNICATORS in result.facts:
            columns = read_columns(result.facts[COMMUNICATORS])
            firsts = [job.captures.find_first(result.report, one) for one in columns["process"]]
            frames.append(pl.DataFrame({**columns, "report": [report for report, _ in firsts]}))
    find_first = job.captures.find_first
    told = {
        "nccl": pl.concat(frames) if frames else None,
        "silent": {find_first(*one) for one in job.silent_in_nccl or ()},
        "launching": {find_first(one.report, one.process) for one in job.lost},
        "is_one_job": len(job.captures.runs) < 2,
    }

    def find(infos: Sequence[ReportInfo], evidence: Evidence) -> Roles:
        return find_roles(infos, replace(evidence, **told))

    objects = [*job.list_objects(), *more]
    job.model = build_object_model(job.infos, job.machines, objects, job.captures.firsts, find)


def _number_objects(job: Job) -> list[tuple[int, DeviceKey]]:
    """Give every object a row, and drop samples that several reports hold. Returns the GPUs that
    get states, with their reports.
    """
    _adopt_kernels(job)
    devices = _find_devices(job)
    _build_model(job, devices)
    clocks = [placement.map for placement in job.placements]
    job.notes += samples.deduplicate_device_samples(job.results, job.model.rows, clocks)
    return devices


def _find_devices(job: Job) -> list[tuple[int, DeviceKey]]:
    """Return the GPUs that get states: those with streams that hold events."""
    if not any(kind.name == "device_state" for kind in job.selection.kinds):
        return []
    streams = {
        (report, key.pid, find_stream_device(job.infos[report], key))
        for report, key in job.list_objects()
        if isinstance(key, StreamKey)
    }
    uses = {
        ((report, pid), identify_gpu(job.infos, job.machines, report, device))
        for report, pid, device in streams
    }
    # Where each process has a GPU of its own, its streams show the same.
    own_gpus = len(uses) == len({process for process, _ in uses}) == len({gpu for _, gpu in uses})
    if own_gpus and "device_state" not in job.selection.asked:
        return []
    return sorted({(report, device) for report, _, device in streams})


def _number_names(job: Job) -> None:
    """Assign event values to all names and domains."""
    labellers = {}
    if not job.plan.options.full_kernel_names:
        labellers = dict.fromkeys(("kernels", "nccl_kernels"), name_values.make_kernel_labels)
    if job.plan.options.without_paths:
        labellers["files"] = name_values.strip_folders
    sets = load_catalogue().name_sets
    job.values = name_values.assign_values(sets, job.ordered_results, labellers)
    job.notes += map(Note, job.captures.describe_gaps())
    domains = number_domains({domain for result in job.results for domain in result.domains})
    job.domain_codes = sorted(domains.items())


def _relate_reports(job: Job, devices: Sequence[tuple[int, DeviceKey]], is_complete: bool) -> None:
    """Add the results of relations between reports, and the states of GPUs. is_complete: no rank is
    known to lack a report.
    """
    groups, error = group_comparable_reports(job), find_clock_error(job)
    context = gather_facts(job, job.folder, job.clocks, job.machines, groups, error)
    related = run_relations(context)
    if devices:
        # Not before it is needed.
        from nsys2prv.conversion.states import find_device_states

        job.settle()
        number = 1 + max(result.task for result in (*job.results, *related))
        job.results += find_device_states(job, number)
    job.results += related
    # One warning is enough where the launcher's environment says so.
    if is_complete:
        job.warnings += warn_of_absent_members(context, len(job.silent_in_nccl))


def _add_states(job: Job) -> None:
    """Add the state records of threads and streams."""
    job.settle()
    from nsys2prv.conversion import states

    results = list(job.run(states.make_states, states.plan_state_tasks(job)))
    job.results += results
    count = sum(run.rows for result in results for run in result.runs)
    job.notes.append(Note(f"{count:,} states of threads and streams", is_routine=True))
