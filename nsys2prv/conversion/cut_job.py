"""Cutting a job to size, a stage between preparing it and writing it.

A cut takes the job as it is without one, aligned and related by all its events, and rewrites its
runs in trace time: what straddles the cut is clipped, what was in force at its begin is told there.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from copy import copy
from functools import partial

import numpy as np
import polars as pl
from msgspec.structs import replace

from nsys2prv._util.columns import ABSENT, factorize
from nsys2prv._util.errors import NothingToWrite, Nsys2prvError
from nsys2prv._util.text import format_seconds, format_size, suggest_range
from nsys2prv.conversion.cut_runs import CutTask, CutWindow, cut_task
from nsys2prv.conversion.cut_size import Fitting
from nsys2prv.conversion.job import Job, sum_counters
from nsys2prv.conversion.options import (
    CutPlan,
    CutSpec,
    Moment,
    Region,
    add_units,
    check_ranks,
    choose_reports,
    is_in_ranges,
    parse_span,
)
from nsys2prv.events.catalogue import NameSet, load_catalogue
from nsys2prv.events.extraction import DeviceKey, ObjectKey, ThreadKey
from nsys2prv.events.kind import describe_reason
from nsys2prv.events.nvtx_names import NamePattern
from nsys2prv.nsight.info import ReportInfo
from nsys2prv.paraver.object_model import (
    GPU_ROW_NAMES,
    GpuNumbers,
    ObjectModel,
    build_object_model,
    find_process,
)
from nsys2prv.store import windows
from nsys2prv.store.runs import BEGIN, Run, read_run, take_records

#: Characters of the beginning of a UUID that is given to choose a device; fewer could be a number.
SHORTEST_UUID = 6
#: The name set of NVTX ranges, and the layout with such names that does not last.
NAMES, MARKS = "nvtx", "nvtx_mark"


def cut_job(job: Job, plan: CutPlan) -> Job:
    """Return the job with what is wanted of it. Raises NothingToWrite where that is nothing,
    Nsys2prvError where it cannot be told what it is.
    """
    model, threads = _choose_rows(plan, job)
    rewrites = model is not job.model or plan.changes_runs
    if not rewrites and plan.options.max_size is None:
        return job
    window = _find_window(job, plan)
    cut = partial(_cut_runs, job, window, model, threads)
    smaller, clipped, notes = job, 0, []
    if rewrites:
        smaller, clipped = cut(plan.spec, "cut")
    if (window.first, window.end) != (0, job.duration):
        notes.append(
            f"{format_seconds(window.first)} to {format_seconds(window.end)} of {format_seconds(job.duration)}"
        )
    elif add_units(plan.options.time):
        notes.append(
            f"--time {plan.options.time} is all of the trace; numbers without a unit are seconds"
        )
    if plan.options.max_size is not None:
        fitting = Fitting(smaller, plan.spec, plan.options.max_size)
        while not fitting.fits:
            # What was weighed before may be a little less than what comes out.
            smaller, clipped = cut(fitting.go_further(), f"fit-{len(fitting.done)}")
            fitting.measure_again(smaller)
        if fitting.done:
            left = "; ".join(fitting.done.values())
            notes.append(f"left out to stay within {format_size(fitting.limit)}: {left}")
    if smaller is job:
        return job
    if left_out := (smaller.left_out - job.left_out).total():
        notes.append(f"{left_out:,} records left out")
    if clipped:
        notes.append(f"{clipped:,} ranges clipped")
    smaller.notes = [*job.notes, *([f"cut: {'; '.join(notes)}"] if notes else [])]
    return smaller


def _find_window(job: Job, plan: CutPlan) -> CutWindow:
    first, last = _find_region_span(plan.region, job) if plan.region else (0, job.duration)
    whole = first, min(last, job.duration)
    first, last = _intersect(whole, plan.first, plan.last, job.duration)
    if last <= first and (plan.options.time or plan.region):
        options = (("--time", plan.options.time), ("--region", plan.options.region))
        where = " ".join(f"{option} {text}" for option, text in options if text)
        raise NothingToWrite(
            f"{where}: nothing to write: no part of the trace, which lasts {format_seconds(job.duration)}, lies in it"
            f"{_hint_at_seconds(plan, whole, job.duration)}"
        )
    return CutWindow(first, last, last == job.duration, 0 if plan.options.keep_time else first)


def _intersect(
    whole: tuple[int, int], first: Moment | None, last: Moment | None, duration: int
) -> tuple[int, int]:
    """Return the intersection of a span of time (ns) with the one from `first` to `last`."""
    begin = first.resolve(duration) if first else 0
    return max(whole[0], begin), min(whole[1], last.resolve(duration) if last else duration)


def _hint_at_seconds(plan: CutPlan, whole: tuple[int, int], duration: int) -> str:
    """Return a hint where numbers without a unit would be within if they were ns."""
    with_units = add_units(plan.options.time)
    first, last = _intersect(whole, *parse_span(with_units), duration)
    if not with_units or first >= last:
        return ""
    return f"; numbers without a unit are seconds; for nanoseconds write --time {with_units}"


def _cut_runs(
    job: Job,
    window: CutWindow,
    model: ObjectModel,
    threads: list[np.ndarray],
    spec: CutSpec,
    name: str,
) -> tuple[Job, int]:
    """Return the job with its runs cut, and how many ranges were clipped. name: of the files."""
    by_report: dict[int, list[Run]] = defaultdict(list)
    for run in job.runs:
        by_report[run.report].append(run)
    tasks = [
        CutTask(
            tuple(runs),
            job.clocks[report],
            job.duration,
            {run.task: threads[run.task] for run in runs},
            spec,
            window,
            job.folder / f"{name}-{report}.bin",
        )
        for report, runs in sorted(by_report.items())
    ]
    parts = list(job.workers.run(cut_task, tasks))
    if not any(part.runs for part in parts):
        lost: Counter[str] = Counter()
        for (_, reason), count in sum_counters(part.left_out for part in parts).items():
            lost[reason] += count
        reasons = ", ".join(
            f"{count:,} {describe_reason(why)}" for why, count in lost.items() if count
        )
        raise NothingToWrite(f"nothing to write: the cut leaves nothing ({reasons})")
    smaller = copy(job)
    smaller.is_cut, smaller.threads, smaller.model = True, threads, model
    smaller.runs = [run for part in parts for run in part.runs]
    smaller.duration = window.end - window.origin
    *clocks, identity = job.clocks
    smaller.timeline = replace(
        job.timeline,
        epoch=job.timeline.epoch + window.origin,
        clocks=[*(clock.delay(-window.origin) for clock in clocks), identity],
    )
    smaller.written = +sum_counters(part.written for part in parts)
    smaller.left_out = +sum_counters([job.left_out, *(part.left_out for part in parts)])
    return smaller, sum(part.clipped for part in parts)


def _choose_rows(plan: CutPlan, job: Job) -> tuple[ObjectModel, list[np.ndarray]]:
    """Return the object model of the rows that stay, the job's own where these are all, and for
    each task of reading the row of each local object, -1 for one that goes. Raises Nsys2prvError where none
    stays.
    """
    infos, model, cut = job.infos, job.model, plan.options
    if not (cut.ranks or cut.hosts or cut.devices):
        return model, job.threads
    machines = job.machines
    keys, wanted = list(model.rows), set(choose_reports(infos, plan))
    if plan.ranks:
        keys = _keep_ranks(keys, model, plan)
        wanted &= {report for report, key in keys if not isinstance(key, DeviceKey)}
        if not wanted:
            raise Nsys2prvError(
                "no report has one of these ranks and is from one of these hosts (--ranks, --hosts)"
            )
    keys = _keep_reports(keys, wanted, machines)
    if cut.devices:
        keys = _keep_devices(keys, infos, machines, cut.devices)
    if len(keys) == len(model.rows):
        return model, job.threads
    if not keys:
        raise Nsys2prvError(
            "nothing to write: these ranks have no rows on these devices (--ranks, --devices)"
        )
    smaller = build_object_model(
        infos, machines, keys, job.captures.firsts, lambda *_: model.ranks_of_processes
    )
    place = np.full(model.tree.threads, -1)
    for key, row in smaller.rows.items():
        place[model.rows[key]] = row
    return smaller, [place[threads] for threads in job.threads]


def _keep_reports(
    keys: list[tuple[int, ObjectKey]], wanted: set[int], machines: list[int]
) -> list[tuple[int, ObjectKey]]:
    """Return the selection without the rows of other reports. What is sampled of a machine may be
    in any of its reports.
    """
    near = {machines[report] for report in wanted}
    return [
        (report, key)
        for report, key in keys
        if report in wanted or (isinstance(key, DeviceKey) and machines[report] in near)
    ]


def _keep_ranks(
    keys: list[tuple[int, ObjectKey]], model: ObjectModel, plan: CutPlan
) -> list[tuple[int, ObjectKey]]:
    """Return the selection without the processes of other ranks. Devices stay."""
    ranks = [process.rank for process in model.processes]
    check_ranks({rank for rank in ranks if rank is not None}, plan)

    def stays(report: int, key: ObjectKey) -> bool:
        return isinstance(key, DeviceKey) or is_in_ranges(
            ranks[model.tasks[report, find_process(key)]], plan.ranks
        )

    return [(report, key) for report, key in keys if stays(report, key)]


def _keep_devices(
    keys: list[tuple[int, ObjectKey]],
    infos: list[ReportInfo],
    machines: list[int],
    words: Sequence[str],
) -> list[tuple[int, ObjectKey]]:
    """Return the selection without the rows of other GPUs."""
    gpus = GpuNumbers(infos, machines)
    unknown = set(words)

    def wanted(report: int, key: ObjectKey) -> bool:
        if isinstance(key, ThreadKey) or (
            isinstance(key, DeviceKey) and key.kind not in GPU_ROW_NAMES
        ):
            return True
        number = (
            gpus.find_gpu_number(report, key.number)
            if isinstance(key, DeviceKey)
            else gpus.find_number(report, key)
        )
        gpu = gpus.find_gpu(report, key)
        uuid = _normalize_uuid(gpu.uuid) if gpu is not None else ""
        matching = {
            word
            for word in words
            if word == str(number)
            or (len(word) >= SHORTEST_UUID and uuid.startswith(_normalize_uuid(word)))
        }
        unknown.difference_update(matching)
        return bool(matching)

    kept = [(report, key) for report, key in keys if wanted(report, key)]
    for word in words:
        if word in unknown:
            raise Nsys2prvError(
                f"--devices {word}: there is no such GPU in the trace; give its number as in the names of rows, or "
                f"{SHORTEST_UUID} characters or more of the beginning of its UUID"
            )
    return kept


def _normalize_uuid(uuid: str) -> str:
    return uuid.lower().removeprefix("gpu-").replace("-", "")


def _find_region_layouts() -> dict[str, str]:
    """Return the layouts of NVTX ranges, and of each the field that holds the name."""
    return {
        name: layout.fields[0].name
        for name, layout in load_catalogue().layouts.items()
        if name != MARKS
        and layout.fields
        and isinstance(layout.fields[0].values, NameSet)
        and layout.fields[0].values.name == NAMES
    }


def _find_region_span(region: Region, job: Job) -> tuple[int, int]:
    """Return begin and end (ns of the trace) of the region. Raises Nsys2prvError where there is no such
    range.
    """
    labels = pl.DataFrame(schema={"value": pl.Int64, "label": pl.String})
    if NAMES in job.values:
        labels = job.values[NAMES].labels
    ranges = list(_read_ranges(job, NamePattern.from_glob(region.pattern, labels)))
    if not ranges:
        raise Nsys2prvError(
            f"--region {region.pattern}: no NVTX range of the reports has such a name; "
            + suggest_range(region.pattern, labels["label"].to_list())
        )
    thread, begin, end = (np.concatenate(column) for column in zip(*ranges, strict=True))
    order = np.lexsort((-end, begin, thread))
    _, codes = factorize(thread[order])
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order)) - np.searchsorted(codes, codes) + 1
    chosen = (place >= region.first) & (place <= (region.last or len(place)))
    if not chosen.any():
        raise Nsys2prvError(
            f"--region {region.pattern}:{region.first}: a thread has at most {place.max()} of these ranges; "
            f"give a number from 1 to {place.max()}"
        )
    return int(begin[chosen].min()), int(end[chosen].max())


def _read_ranges(
    job: Job, pattern: NamePattern
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield thread, begin and end of the ranges whose names match."""
    layouts = _find_region_layouts()
    threads: dict[tuple[int, int], int] = {}
    by_task = sorted(job.results, key=lambda result: result.task)
    for run in job.runs:
        if run.shape.stream != BEGIN or run.shape.name not in layouts:
            continue
        values = job.names[NAMES][run.task]
        if not pattern.may_match(values):
            continue
        records = read_run(run)
        numbered = "number" in records.dtype.names
        numbers = records["number"] if numbered else np.full(len(records), ABSENT)
        names = values[records[layouts[run.shape.name]]]
        records = take_records(records, pattern.find_matches(names, numbers))
        if not len(records):
            continue
        # Ranges that overlap are on further rows of their thread.
        keys = by_task[run.task].objects
        owners = [(run.report, key.tid if isinstance(key, ThreadKey) else -1) for key in keys]
        own = np.array([threads.setdefault(owner, len(threads)) for owner in owners])
        clock = job.clocks[run.report]
        end = windows.to_trace_times(records["end"], clock, job.duration)
        yield (
            own[records["object"]],
            windows.to_begin_times(records["time"], records["end"], clock),
            end,
        )
