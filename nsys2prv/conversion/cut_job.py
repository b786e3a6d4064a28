"""Cutting a job to size, a stage between preparing it and writing it.

A cut takes the job as it is without one, aligned and related by all its events, and rewrites its
runs in trace time: what straddles the cut is clipped, what was in force at its begin is told there.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from msgspec.structs import replace

from nsys2prv._util.errors import NothingToWrite
from nsys2prv._util.text import format_seconds, format_size
from nsys2prv.conversion import cut_runs
from nsys2prv.conversion.cut_plan import (
    CutPlan,
    CutRuns,
    CutSpec,
    CutTask,
    CutWindow,
    Moment,
    add_units,
    parse_span,
)
from nsys2prv.conversion.cut_selection import choose_rows, find_region_span
from nsys2prv.conversion.cut_size import Fitting
from nsys2prv.conversion.job import Job, sum_counters
from nsys2prv.events.reasons import describe_reason
from nsys2prv.paraver.object_model import ObjectModel
from nsys2prv.store.runs import Run


def cut_job(job: Job, plan: CutPlan) -> Job:
    """Return the job with what is wanted of it. Raises NothingToWrite where that is nothing,
    Nsys2prvError where it cannot be told what it is.
    """
    model, threads = choose_rows(plan.cut, job)
    rewrites = model is not job.model or plan.changes_runs
    if not rewrites and plan.cut.max_size is None:
        return job
    window = _find_window(job, plan)
    orders = plan.make_spec(window)
    parts: list[CutRuns] = []
    smaller, notes = job, []
    if rewrites:
        parts = _cut_runs(job, orders, threads, "cut")
        smaller = _make_cut_job(job, window, model, threads, parts)
    if (window.first, window.last) != (0, job.duration):
        notes.append(
            f"{format_seconds(window.first)} to {format_seconds(window.last)} of {format_seconds(job.duration)}"
        )
    elif add_units(plan.cut.time):
        notes.append(
            f"--time {plan.cut.time} is all of the trace; numbers without a unit are seconds"
        )
    if plan.cut.max_size is not None:
        fitting = Fitting(smaller, orders, plan.cut.max_size)
        while not fitting.fits:
            # What was weighed before may be a little less than what comes out.
            parts = _cut_runs(job, fitting.go_further(), threads, f"fit-{len(fitting.done)}")
            smaller = _make_cut_job(job, window, model, threads, parts)
            fitting.measure_again(smaller)
        if fitting.done:
            left = "; ".join(step.what for step in fitting.done)
            notes.append(f"left out to stay within {format_size(fitting.limit)}: {left}")
    if smaller is job:
        return job
    if left_out := (smaller.left_out - job.left_out).total():
        notes.append(f"{left_out:,} records left out")
    if clipped := sum(sum(part.clipped.values()) for part in parts):
        notes.append(f"{clipped:,} ranges clipped")
    smaller.notes = [*job.notes, *([f"cut: {'; '.join(notes)}"] if notes else [])]
    return smaller


def _find_window(job: Job, plan: CutPlan) -> CutWindow:
    first, last = find_region_span(plan.region, job) if plan.region else (0, job.duration)
    whole = first, min(last, job.duration)
    first, last = _intersect(whole, plan.first, plan.last, job.duration)
    if last <= first and (plan.cut.time or plan.region):
        options = (("--time", plan.cut.time), ("--region", plan.cut.region))
        where = " ".join(f"{option} {text}" for option, text in options if text)
        raise NothingToWrite(
            f"{where}: nothing to write: no part of the trace, which lasts {format_seconds(job.duration)}, lies in it"
            f"{_hint_at_seconds(plan, whole, job.duration)}"
        )
    return CutWindow(first, last, last == job.duration, 0 if plan.cut.keep_time else first)


def _intersect(
    whole: tuple[int, int], first: Moment | None, last: Moment | None, duration: int
) -> tuple[int, int]:
    """Return the intersection of a span of time (ns) with the one from `first` to `last`."""
    return max(whole[0], first.resolve(duration) if first else 0), min(
        whole[1], last.resolve(duration) if last else duration
    )


def _hint_at_seconds(plan: CutPlan, whole: tuple[int, int], duration: int) -> str:
    """Return a hint where numbers without a unit would be within if they were ns."""
    with_units = add_units(plan.cut.time)
    if not with_units:
        return ""
    first, last = _intersect(whole, *parse_span(with_units), duration)
    return (
        f"; numbers without a unit are seconds; for nanoseconds write --time {with_units}"
        if first < last
        else ""
    )


def _cut_runs(job: Job, orders: CutSpec, threads: list[np.ndarray], name: str) -> list[CutRuns]:
    by_report: dict[int, list[Run]] = {}
    for run in job.runs:
        by_report.setdefault(run.report, []).append(run)
    tasks = [
        CutTask(
            tuple(runs),
            job.clocks[report],
            job.duration,
            {run.source: threads[run.source] for run in runs},
            orders,
            job.folder / f"{name}-{report}.bin",
        )
        for report, runs in sorted(by_report.items())
    ]
    parts = list(job.workers.run(cut_runs.cut_task, tasks, ahead=job.workers.pool.jobs))
    if not any(part.runs for part in parts):
        lost = sum_counters(
            Counter({reason: count})
            for part in parts
            for (_, reason), count in part.left_out.items()
        )
        reasons = ", ".join(
            f"{count:,} {describe_reason(why)}" for why, count in lost.items() if count
        )
        raise NothingToWrite(f"nothing to write: the cut leaves nothing ({reasons})")
    return parts


def _make_cut_job(
    job: Job, window: CutWindow, model: ObjectModel, threads: list[np.ndarray], parts: list[CutRuns]
) -> Job:
    smaller = replace(job, is_cut=True)
    smaller.runs = [run for part in parts for run in part.runs]
    smaller.threads = threads
    smaller.model = model
    smaller.duration = window.last - window.origin
    *clocks, identity = job.clocks
    smaller.timeline = replace(
        job.timeline,
        epoch=job.timeline.epoch + window.origin,
        clocks=[*(clock.delay(-window.origin) for clock in clocks), identity],
    )
    smaller.written = +sum_counters(part.written for part in parts)
    smaller.left_out = +sum_counters([job.left_out, *(part.left_out for part in parts)])
    return smaller
