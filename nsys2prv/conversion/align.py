"""Align the reports of a job: give them one time, one set of rows, one value for each name, and
relations between reports.

Input: a job whose events were read. Output: a job that can be cut, written or analyzed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain

import numpy as np
import polars as pl
from msgspec.structs import replace

from nsys2prv._util.errors import NothingToWrite
from nsys2prv._util.stored_columns import StoredFrame, read_columns
from nsys2prv._util.text import Note
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
from nsys2prv.conversion.job import Job, Numbered, Placed, Read, complete, settle, sum_counters
from nsys2prv.conversion.read import warn_of_far_rows
from nsys2prv.events.catalogue import load_catalogue, number_domains
from nsys2prv.events.extraction import (
    DeviceKey,
    ObjectKey,
    StreamKey,
    find_stream_device,
    identify_gpu,
)
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
from nsys2prv.match import RelationContext, run_relations
from nsys2prv.match.nccl_adoption import adopt_kernels
from nsys2prv.match.nccl_collectives import warn_of_absent_members
from nsys2prv.table import samples
from nsys2prv.table.overlaps import separate_overlaps
from nsys2prv.table.task_result import TaskResult
from nsys2prv.writers import names as name_values
from nsys2prv.writers.names import NameValues
from nsys2prv.writers.rows import build_object_model


def align_reports(job: Read) -> Job:
    """Put all reports of a job into one time, one set of rows and one numbering of names, and find
    relations between reports. Return the job. Raise NothingToWrite if no events were read.
    """
    with job.progress.show_phase("clocks", 4) as advance:
        captures = find_captures_of_job(job)
        compared = job.read_part and job.read_part.comparison
        if compared:
            silent, record = compared.silent_in_nccl, compared.clock_record
        else:
            job, silent, record = align_by_clock_results(job, captures)
        advance(1)
        mixed = _check_job(job, captures)
        warnings = [*job.warnings, *mixed, *warn_of_far_rows(job)]
        warnings += _correct_rows(job, captures)
        searches = plan_searches(job.infos, job.list_objects())
        damaged = list(chain.from_iterable(job.run(search_streams, searches)))
        advance(1)
        devices = _find_devices(job)
        further = job.read_part.objects if job.read_part else []
        numbered = number_rows(job, captures, silent, [*devices, *further])
        clocks = [placement.map for placement in job.placements]
        notes = samples.deduplicate_device_samples(numbered.results, numbered.model.rows, clocks)
        missing, claims = _check_ranks(numbered)
        found = (*numbered.model.roles.conflicts, numbered.model.describe_shared_gpus())
        notes += map(Note, (*filter(None, found), *captures.describe_gaps()))
        values, domain_codes = _number_names(numbered)
        advance(1)
        numbered = replace(numbered, warnings=[*missing, *warnings, *claims])
        placed = place_reports_in_trace(numbered, record or find_clock_corrections(numbered))
        samples.mark_unsampled(placed.results, placed.spans, placed.folder, placed.clocks)
        context = _gather_all_facts(placed)
        related = run_relations(context)
        if not missing:
            # One warning is enough if the launcher's environment states the number of ranks.
            absent = warn_of_absent_members(context, len(placed.silent_in_nccl))
            placed = replace(placed, warnings=[*placed.warnings, *absent])
            missing = absent
        of_set = {"ranks_missing": missing, "reports_mixed": mixed, "ranks_claimed": claims}
        placed = replace(placed, of_set=of_set)
    settled = partial(
        settle,
        notes=notes,
        damaged=damaged,
        values=values,
        plain_labels={},
        domain_codes=domain_codes,
    )
    if devices:
        # Not before it is needed.
        from nsys2prv.conversion.states import find_device_states

        number = 1 + max(result.task for result in (*placed.results, *related))
        related = [*find_device_states(settled(placed), number), *related]
    aligned = settled(placed, results=[*placed.results, *related])
    return _add_asked_for(_add_states(aligned))


def align_by_clock_results(
    job: Read, captures: Captures
) -> tuple[Read, dict[tuple[int, int], tuple[int, int]] | None, ClockRecord | None]:
    """Return the clock corrections from events that were read only for the clocks; None without
    such events.

    These events give reports the same clocks whatever event kinds are selected. Return first the
    job, and its `silent_in_nccl` if these events determine it, too.
    """
    if not any(result.facts for result in job.clock_results):
        return job, None, None
    folder, silent = job.folder / "for-clocks", None
    folder.mkdir()
    observing = number_rows(replace(job, results=job.clock_results, folder=folder), captures)
    if _list_facts_of_nccl(job.clock_results) == _list_facts_of_nccl(job.results):
        adopted = iter(_list_facts_of_nccl(observing.results))
        results = [
            replace(one, facts=one.facts | next(adopted)) if KERNELS in one.facts else one
            for one in job.results
        ]
        job, silent = replace(job, results=results), observing.silent_in_nccl
    return job, silent, find_clock_corrections(observing)


def _list_facts_of_nccl(results: Sequence[TaskResult]) -> list[dict[str, StoredFrame]]:
    """Return the facts from which the communicators of kernels are found."""
    return [
        {name: one.facts[name] for name in (KERNELS, COMMUNICATORS) if name in one.facts}
        for one in results
        if KERNELS in one.facts
    ]


def find_captures_of_job(job: Read) -> Captures:
    """Find the reports that were recorded together."""
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


def _check_job(job: Read, captures: Captures) -> list[str]:
    """Return warnings about the job as a whole. If a process was captured several times, only its
    first report counts.
    """
    if runs := captures.describe_runs(job.infos):
        return [f"{runs}; ranks are compared only within a run"]
    again = {report for chain in captures.chains for report in chain[1:]}
    return check_job([one for at, one in enumerate(job.infos) if at not in again])


def _check_ranks(job: Numbered) -> tuple[list[str], list[str]]:
    """Return warnings about missing ranks, and about ranks claimed twice, for a job that is a
    single run.
    """
    if len(job.captures.runs) > 1:
        return [], []
    processes = [one for one in job.model.processes if one.pid and not one.is_helper]
    infos = [job.infos[report] for report in sorted({one.report for one in processes})]
    has_messages = any(result.facts for result in (*job.results, *job.clock_results))
    missing = check_missing_ranks(infos, [one.rank for one in processes], has_messages)
    # Ranks numbered by NCCL and MPI may be one process or several for the launcher.
    is_sure = {one.source for one in processes} <= {NCCL_RANKS, MPI_RANKS}
    return missing, [] if is_sure else check_claims(infos)


def _correct_rows(job: Read, captures: Captures) -> list[str]:
    """Correct the rows that were read, and return warnings. Raise NothingToWrite if there are no
    rows.
    """
    samples.clip_profiler_events(job.results, job.spans, job.folder)
    again = {report for chain in captures.chains for report in chain[:-1]}
    samples.close_open_ranges(job.results, {report: job.spans[report][1] for report in again})
    if not any(result.runs for result in job.results):
        first = [info.name for info in job.infos[:3]]
        names = ", ".join([*first, "…"] if job.infos[3:] else first)
        lost = sum_counters(
            one.dropped for result in job.results for one in result.accounts.values()
        )
        reasons = ", ".join(f"{n} {describe_reason(reason)}" for reason, n in (+lost).items())
        why = f" ({reasons})" if reasons else ""
        missing, advice = "events of the selected kinds", "inspect the reports with --list"
        if not job.selection.asked:
            missing = "supported events"
            advice += ". If the capture is empty, profile the program, not its launcher, and let it exit normally"
        raise NothingToWrite(f"{names}: no {missing} to convert{why}; {advice}")
    warnings = samples.scale_fractions(job.results, job.folder)
    separate_overlaps(job.results, job.run_small)
    return warnings


def number_rows(
    job: Read,
    captures: Captures,
    silent: dict[tuple[int, int], tuple[int, int]] | None = None,
    more: Sequence[tuple[int, ObjectKey]] = (),
) -> Numbered:
    """Return the job with rows for all objects with events, and for the objects in `more`.

    If necessary, first find communicators for NCCL kernels without recorded ones. silent: result of
    an earlier search; then none is needed.
    """
    results = job.results
    if silent is None:
        clocks, _ = find_host_clocks(job)
        numbers = captures.numbers
        results, silent = adopt_kernels(results, numbers, job.placements, clocks, job.folder)
    find_first, frames = captures.find_first, []
    for result in results:
        if COMMUNICATORS in result.facts:
            columns = read_columns(result.facts[COMMUNICATORS])
            firsts = [find_first(result.report, one) for one in columns["process"]]
            frames.append(pl.DataFrame({**columns, "report": [report for report, _ in firsts]}))
    told = {
        "nccl": pl.concat(frames, how="diagonal") if frames else None,
        "silent": {find_first(*one) for one in silent},
        "launching": {find_first(one.report, one.process) for one in job.lost},
        "is_one_job": len(captures.runs) < 2,
    }

    def find(infos: Sequence[ReportInfo], evidence: Evidence) -> Roles:
        return find_roles(infos, replace(evidence, **told))

    objects = [*job.list_objects(), *more]
    model = build_object_model(job.infos, job.machines, objects, captures.firsts, find)
    return complete(
        Numbered, job, results=results, captures=captures, silent_in_nccl=silent, model=model
    )


def _find_devices(job: Read) -> list[tuple[int, DeviceKey]]:
    """Return the GPUs that get states, because their streams have events."""
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


def _number_names(job: Numbered) -> tuple[dict[str, NameValues], list[tuple[str, int]]]:
    """Return the event values of all names, and the numbers of all NVTX domains."""
    labellers = {}
    if not job.plan.options.full_kernel_names:
        labellers = dict.fromkeys(("kernels", "nccl_kernels"), name_values.make_kernel_labels)
    if job.plan.options.without_paths:
        labellers["files"] = name_values.strip_folders
    sets = load_catalogue().name_sets
    domains = number_domains({domain for result in job.results for domain in result.domains})
    values = name_values.assign_values(sets, job.ordered_results, labellers)
    return values, sorted(domains.items())


def _gather_all_facts(job: Placed) -> RelationContext:
    """Return the context for relations between reports, in trace time."""
    groups, error = group_comparable_reports(job), find_clock_error(job)
    return gather_facts(job, job.folder, job.clocks, job.machines, groups, error)


def _add_states(job: Job) -> Job:
    """Add state records of threads and streams if they were requested."""
    if not job.plan.options.states:
        return job
    from nsys2prv.conversion import states

    results = list(job.run(states.make_states, states.plan_state_tasks(job)))
    count = sum(run.rows for result in results for run in result.runs)
    note = Note(f"{count:,} states of threads and streams", is_routine=True)
    return settle(job, results=[*job.results, *results], notes=[*job.notes, note])


def _add_asked_for(job: Job) -> Job:
    """Add the records of on-demand kinds that have no tables and are computed from all events."""
    asked = [kind.name for kind in job.selection.kinds if kind.opt_in and not kind.tables]
    if not asked:
        return job
    # Not before it is needed.
    from nsys2prv.conversion.job_reader import find_asked_for

    found = find_asked_for(job, asked)
    more = {"results": [*job.results, *found.results], "warnings": [*job.warnings, *found.warnings]}
    more["values"] = {**job.values, **found.values}
    if found.places:
        tasks = [
            replace(one, name=" ".join(filter(None, (one.name, found.places.get(number)))))
            for number, one in enumerate(job.model.tree.tasks, 1)
        ]
        more["model"] = replace(job.model, tree=replace(job.model.tree, tasks=tuple(tasks)))
    return settle(job, **more)
