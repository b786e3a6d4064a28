"""Cut a job to size, between aligning and writing it.

In: a job, aligned and related by all its events, and a plan. Out: a job whose runs are rewritten in
the time of the cut trace: ranges are clipped, and states and counters in force at the cut's begin
are repeated there.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import numpy as np
import polars as pl
from msgspec.structs import replace

from nsys2prv._util.columns import ABSENT
from nsys2prv._util.errors import NothingToWrite, Nsys2prvError
from nsys2prv._util.notes import Note
from nsys2prv._util.text import format_seconds, list_some, suggest_range
from nsys2prv.conversion.cut_runs import CutWindow, CutWork, cut_task
from nsys2prv.conversion.job import Job, group_by_report, sum_counters
from nsys2prv.conversion.options import MOST_LISTED, CutPlan, Region, choose_reports, make_error
from nsys2prv.events.catalogue import NameSet, load_catalogue
from nsys2prv.events.extraction import DeviceKey, ThreadKey
from nsys2prv.events.kind import describe_reason
from nsys2prv.events.name_rules import NamePattern
from nsys2prv.table.event_reader import CutEdges
from nsys2prv.table.runs import SpillReader, take_rows
from nsys2prv.table.slices import to_begin_times, to_trace_times
from nsys2prv.writers.rows import ObjectModel, build_object_model, find_process

#: The name set of NVTX ranges, and the layout with such names that does not last.
NAMES, MARKS = "nvtx", "nvtx_mark"
#: A number without a unit in a span of time; the hint where the span is all or nothing.
BARE_NUMBER, SECONDS = re.compile(r"\d *(:|$)"), "numbers without a unit are seconds"


def cut_job(job: Job, plan: CutPlan) -> Job:
    """Return the job reduced to the part and the rows that the plan selects. Raises NothingToWrite
    where nothing is left, Nsys2prvError where the job lacks what the plan names.
    """
    model, threads = _choose_rows(plan, job)
    if model is job.model and not plan.changes_runs:
        return job
    window, notes = _find_window(job, plan), []
    smaller, clipped = _cut_runs(job, window, model, threads, plan)
    whole = format_seconds(job.duration)
    if (window.first, window.end) != (0, job.duration):
        notes.append(f"{format_seconds(window.first)} to {format_seconds(window.end)} of {whole}")
    elif BARE_NUMBER.search(plan.options.time):
        notes.append(f"--time {plan.options.time} is all of the trace; {SECONDS}")
    if left_out := (smaller.left_out - job.left_out).total():
        notes.append(f"{left_out:,} records left out")
    if clipped:
        notes.append(f"{clipped:,} ranges clipped")
    cut = [Note(f"cut: {'; '.join(notes)}")] if notes else []
    return replace(smaller, notes=[*job.notes, *cut])


def _find_window(job: Job, plan: CutPlan) -> CutWindow:
    duration, options = job.duration, plan.options
    first, last = _find_region_span(plan.region, job) if plan.region else (0, duration)
    first = max(first, plan.first.resolve(duration) if plan.first else 0)
    last = min(last, duration, plan.last.resolve(duration) if plan.last else duration)
    if last <= first and (options.time or plan.region):
        given = (("--time", options.time), ("--region", options.region))
        where = " ".join(f"{option} {text}" for option, text in given if text)
        hint = f"; {SECONDS}; for nanoseconds write ns behind them"
        words = {"where": where, "duration": format_seconds(duration)}
        words["hint"] = hint if BARE_NUMBER.search(options.time) else ""
        raise make_error("cut_outside", NothingToWrite, **words)
    return CutWindow(first, last, last == duration, 0 if options.keep_time else first)


def _cut_runs(
    job: Job, window: CutWindow, model: ObjectModel, threads: list[np.ndarray], plan: CutPlan
) -> tuple[Job, int]:
    """Return the job with its runs cut, and how many ranges were clipped."""
    tasks = []
    for report, runs in sorted(group_by_report(job.runs).items()):
        clock, spill_file = job.clocks[report], job.folder / f"cut-{report}.bin"
        own = {run.task: threads[run.task] for run in runs}
        damaged = tuple(one.end for one in job.damaged if one.report == report)
        more = plan, window, spill_file, damaged
        tasks.append(CutWork(tuple(runs), clock, job.duration, own, *more))
    cut = list(job.run(cut_task, tasks))
    parts = [part.result for part in cut]
    left_out = sum_counters(part.left_out for part in parts)
    if not any(part.runs for part in parts):
        lost: Counter[str] = Counter()
        for (_, reason), count in left_out.items():
            lost[reason] += count
        reasons = ", ".join(f"{count:,} {describe_reason(why)}" for why, count in (+lost).items())
        raise make_error("cut_empty", NothingToWrite, reasons=reasons)
    *clocks, identity = job.clocks
    # A report of several ranks has all lines of its threads.
    carried = {thread: until for part in cut for thread, until in part.carried.items()}
    pending = {thread: since for part in cut for thread, since in part.pending.items()}
    sides = window.first > 0, window.end < job.duration
    smaller = replace(
        job,
        uncut=job,
        edges=CutEdges(window.first - window.origin, *sides, carried, pending),
        threads=threads,
        model=model,
        runs=[run for part in parts for run in part.runs],
        duration=window.end - window.origin,
        epoch=job.epoch + window.origin,
        clocks=[*(clock.delay(-window.origin) for clock in clocks), identity],
        written=+sum_counters(part.events for part in parts),
        left_out=+sum_counters([job.left_out, left_out]),
    )
    return smaller, sum(part.clipped for part in cut)


def _choose_rows(plan: CutPlan, job: Job) -> tuple[ObjectModel, list[np.ndarray]]:
    """Return the object model of the selected rows (the job's own if that is all of them), and, for
    each reading task, the row of each local object, -1 for none. Raises Nsys2prvError where no row
    is left.
    """
    model, cut, machines = job.model, plan.options, job.machines
    if not (cut.ranks or cut.hosts):
        return model, job.threads
    keys, wanted = list(model.rows), set(choose_reports(job.infos, plan))
    if plan.ranks:
        ranks = [process.rank for process in model.processes]
        known = sorted({rank for rank in ranks if rank is not None})
        kept: set[int | None] = set()
        for word, wanted_ranks in plan.ranks.items():
            found = {rank for rank in known if rank in wanted_ranks}
            if not found:
                there = list_some([*map(str, known)], MOST_LISTED) or "none"
                raise make_error("ranks_absent", Nsys2prvError, word=word, there=there)
            kept |= found
        keys = [
            (report, key)
            for report, key in keys
            if isinstance(key, DeviceKey) or ranks[model.tasks[report, find_process(key)]] in kept
        ]
        wanted &= {report for report, key in keys if not isinstance(key, DeviceKey)}
        if not wanted:
            raise make_error("ranks_elsewhere", Nsys2prvError)
    # Samples of a machine may be in any of its reports.
    near = {machines[report] for report in wanted}
    keys = [
        (report, key)
        for report, key in keys
        if report in wanted or (isinstance(key, DeviceKey) and machines[report] in near)
    ]
    if len(keys) == len(model.rows):
        return model, job.threads
    if not keys:
        raise make_error("ranks_without_rows", Nsys2prvError)
    smaller = build_object_model(
        job.infos, machines, keys, job.captures.firsts, lambda *_: model.roles
    )
    place = np.full(model.tree.threads, -1)
    for key, row in smaller.rows.items():
        place[model.rows[key]] = row
    return smaller, [place[threads] for threads in job.threads]


def _find_region_span(region: Region, job: Job) -> tuple[int, int]:
    """Return begin and end (ns of the trace) of the region. Raises Nsys2prvError where no range
    matches.
    """
    labels = pl.DataFrame(schema={"value": pl.Int64, "label": pl.String})
    if NAMES in job.values:
        labels = job.values[NAMES].labels
    pieces = list(_read_ranges(job, NamePattern.from_glob(region.pattern, labels)))
    if not pieces:
        hint = suggest_range(region.pattern, labels["label"].to_list())
        raise make_error("region_unknown", Nsys2prvError, pattern=region.pattern, hint=hint)
    ranges = pl.concat(pieces).sort("thread", "begin", -pl.col("end"))
    place = pl.int_range(1, pl.len() + 1).over("thread")
    ranges = ranges.with_columns(place=place)
    last = ranges["place"].max() if region.last is None else region.last
    chosen = ranges.filter(pl.col("place").is_between(region.first, last))
    if chosen.is_empty():
        most = ranges["place"].max()
        words = {"pattern": region.pattern, "first": region.first, "most": most}
        raise make_error("region_beyond", Nsys2prvError, **words)
    return chosen["begin"].min(), chosen["end"].max()


def _read_ranges(job: Job, pattern: NamePattern) -> Iterator[pl.DataFrame]:
    """Yield thread, begin and end of the ranges with matching names."""
    # Layout of NVTX ranges -> the field with the name.
    name_fields = {
        name: layout.fields[0].name
        for name, layout in load_catalogue().layouts.items()
        if name != MARKS
        and layout.fields
        and isinstance(layout.fields[0].values, NameSet)
        and layout.fields[0].values.name == NAMES
    }
    threads: dict[tuple[int, int], int] = {}
    by_task = job.ordered_results
    with SpillReader() as reader:
        for run in job.runs:
            if run.index is None or run.shape.name not in name_fields:
                continue
            values = job.names[NAMES][run.task]
            if not pattern.may_match(values):
                continue
            ranges = reader.read_local(run)
            numbers = ranges.get("number", np.full(run.rows, ABSENT))
            names = values[ranges[name_fields[run.shape.name]]]
            ranges = take_rows(ranges, pattern.find_matches(names, numbers))
            if not len(ranges["begin"]):
                continue
            # Ranges that overlap are on further rows of their thread.
            keys = by_task[run.task].objects
            owners = [(run.report, key.tid if isinstance(key, ThreadKey) else -1) for key in keys]
            own = np.array([threads.setdefault(owner, len(threads)) for owner in owners])
            clock = job.clocks[run.report]
            yield pl.DataFrame(
                {
                    "thread": own[ranges["row"]],
                    "begin": to_begin_times(ranges["begin"], ranges["end"], clock),
                    "end": to_trace_times(ranges["end"], clock, job.duration),
                }
            )
