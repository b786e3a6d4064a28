"""Measure how long devices and host threads are useful, for efficiencies: in the whole job, in its
steady state, in each iteration, and in regions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv.figures.device_group import (
    ALL,
    BUSY,
    WORK,
    DeviceGroup,
    find_mpi_span,
    to_arrays,
)
from nsys2prv.figures.host_time import choose_thread
from nsys2prv.figures.intervals import SIDES, Spans, merge_spans
from nsys2prv.figures.iterations import find_longest_threads, keep_outermost, read_ranges

#: Layouts of time in which threads of OpenMP wait in barriers and other synchronization, and of the
#: whole calls of these, which count where no waiting was recorded.
OPENMP_WAITS, OPENMP_SYNC = ("openmp_sync_wait",), ("openmp_barrier", "openmp_sync_region")
#: Parts of the job that have figures; each row of the last two has the number of an iteration, or the
#: key of a region.
STEADY, WHOLE_JOB, ITERATION, REGION = "steady state", "whole job", "iteration", "region"
#: The time that figures of the whole job cover where MPI is recorded, but no work of GPUs.
MPI_TIME = "MPI_Init to MPI_Finalize"
PART = ["part", "key"]
#: Instructions that a multiprocessor issues in a cycle at most: one for each of its schedulers.
ISSUED = 4
#: Samples of metrics count in which a device computes for this share of the time.
LEAST_COMPUTING = 0.02
#: Figures are those of a device only if they cover this share of the time that it computes.
LEAST_COVERED = 0.9
#: Metrics that instructions and the clock are made of; the unit stands in brackets behind the name.
CLOCK, ISSUE = re.compile(r"GPC Clock Frequency(?: \[(\w+)\])?"), re.compile(r"SM Issue\b.*")
UNITS = {"MHz": 1e6, "GHz": 1e9}


def measure_device(unit: DeviceGroup, device: int, regions: Sequence[Region]) -> list[pl.DataFrame]:
    """Return the times of a device: rows of PART, elapsed_ns and times of BUSY (ns). Of the steady
    state and its iterations that is what runs in them: ranks are in different ones at a time.
    """
    work, steady = unit.work.select("device", *SIDES), unit.options.steady
    of_device = (work["device"] == device).to_numpy()
    parts = [(WHOLE_JOB, 0, unit.covered, of_device)]
    edges = np.zeros(0, np.int64)
    if steady is not None:
        edges = np.append(steady.iteration_begins, steady.end)
        parts.append((STEADY, 0, unit.options.covered_steady, of_device))
    for region in regions:
        execution = np.where(of_device, region.executions_of_work, -1)
        own = work.select(*SIDES, execution=execution).filter(pl.col("execution") >= 0)
        if own.height:
            bounds = own.group_by("execution").agg(pl.col("begin").min(), pl.col("end").max())
            parts.append((REGION, region.key, unit.merge_rows(bounds), execution >= 0))
    uses = {f"{name}_ns": what for name, what in BUSY.items()} | {"useful_ns": unit.useful}
    rows, each = [], {"elapsed_ns": unit.covered.within(edges[:-1], edges[1:])}
    for part, key, time, among in parts:
        row = {"part": part, "key": key, "elapsed_ns": time.length}
        for what in {*uses.values()}:
            spans = time & unit.merge_device_work(device, *what, among=among)
            named = [name for name, other in uses.items() if other == what]
            row |= dict.fromkeys(named, spans.length)
            if part == STEADY:
                each |= dict.fromkeys(named, spans.within(edges[:-1], edges[1:]))
                if what == BUSY["compute"]:
                    row |= _count_instructions(unit, device, spans)
        rows.append(row)
    numbers = pl.int_range(1, len(edges), eager=True)
    iterations = pl.DataFrame({"part": ITERATION, "key": numbers, **each})
    frames = [pl.DataFrame(rows, infer_schema_length=None), iterations]
    return [one.with_columns(device=pl.lit(device, pl.Int64)) for one in frames]


def _count_instructions(unit: DeviceGroup, device: int, computing: Spans) -> dict[str, float]:
    """Return figures of sampled metrics while a device computes: instructions of a multiprocessor,
    cycles of its clock, and the time that they cover (ns); nothing where they were not sampled,
    or for a part of that time.
    """
    if not unit.has("gpu_metric"):
        return {}
    for samples in unit.reader.read_samples("gpu_metric", unit.number):
        clock = [CLOCK.fullmatch(name) for name in samples.metrics]
        issue = [bool(ISSUE.fullmatch(name)) for name in samples.metrics]
        if unit.device_of[samples.thread] != device or not any(clock) or not any(issue):
            continue
        found = next(filter(None, clock))
        hertz = samples.values[:, clock.index(found)] * UNITS.get(found[1] or "", 1.0)
        share = samples.values[:, issue.index(True)] / 100
        # A sample covers the time since the one before.
        known = np.flatnonzero(~np.isnan(hertz) & ~np.isnan(share))
        time, hertz, share = samples.time[known], hertz[known[1:]], share[known[1:]]
        lasts = np.diff(time)
        busy = computing.within(time[:-1], time[1:])
        counts = (busy > LEAST_COMPUTING * lasts) & (hertz >= 0) & (share >= 0)
        busy, hertz, share, lasts = (one[counts] for one in (busy, hertz, share, lasts))
        if len(busy) and busy.sum() >= LEAST_COVERED * computing.length:
            return {
                "instructions": float((ISSUED * share * hertz * lasts).sum() / 1e9),
                "cycles": float((hertz * busy).sum() / 1e9),
                "sampled_ns": float(busy.sum()),
            }
    return {}


# ---- hosts ----------------------------------------------------------------------------------------


def measure_hosts(
    unit: DeviceGroup, task: int, regions: Sequence[Region]
) -> Iterator[pl.DataFrame]:
    """Yield the times of each host thread of a task that counts: rows of PART, elapsed_ns,
    outside_mpi_ns and useful_ns, and of OpenMP.
    """
    own = unit.list_iterations(task)
    main = int(own["thread"][0]) if own.height else choose_thread(unit, task)
    steady, whole = unit.options.steady, unit.covered
    if not unit.has(*WORK) and (span := find_mpi_span(unit, main)):
        whole = whole.clip(*span)
    windows = [(WHOLE_JOB, 0, whole)]
    edges = np.zeros(0, np.int64)
    if steady is not None:
        windows.append((STEADY, 0, unit.options.covered_steady))
        edges = np.append(steady.iteration_begins, steady.end)
    for region in regions:
        executions = region.executions.filter(pl.col("task") == task)
        if executions.height:
            windows.append((REGION, region.key, unit.merge_rows(executions)))
    threads = unit.list_threads(task) if unit.options.host_threads == ALL else [main]
    takes_part = any(unit.has_calls(thread) for thread in unit.list_threads(task))
    for thread in threads:
        outside = unit.covered - unit.find_mpi_spans([thread])
        useful = outside - unit.find_thread_spans([thread], "cuda_api")
        sets = {"elapsed_ns": unit.covered, "outside_mpi_ns": outside, "useful_ns": useful}
        rows = [
            {
                "part": part,
                "key": key,
                "begin_ns": int(window.begin.min(initial=unit.duration)),
                "end_ns": int(window.end.max(initial=0)),
                **{name: spans.overlap(window) for name, spans in sets.items()},
                **(_measure_openmp(unit, task, main, window & outside) if thread == main else {}),
            }
            for part, key, window in windows
        ]
        each = {name: spans.within(edges[:-1], edges[1:]) for name, spans in sets.items()}
        iterations = pl.DataFrame(
            {"part": ITERATION, "key": pl.int_range(1, len(edges), eager=True), **each}
        )
        yield pl.concat([pl.DataFrame(rows), iterations], how="diagonal").with_columns(
            task=pl.lit(task, pl.Int64),
            thread=pl.lit(thread, pl.Int64),
            takes_part=pl.lit(takes_part or own.height > 0),
        )


def _measure_openmp(unit: DeviceGroup, task: int, main: int, outside: Spans) -> dict[str, int]:
    """Return what the threads of a process do in OpenMP within some time of its main thread (ns);
    nothing where OpenMP, or all synchronization of it, was not recorded.
    """
    tasks = unit.find_spans_by_thread("openmp_implicit_task", task)
    if not tasks or not unit.has(*OPENMP_WAITS, *OPENMP_SYNC):
        return {}
    regions = unit.find_thread_spans([main], "openmp_parallel")
    parallel = outside & regions
    serial = outside.length - parallel.length
    has_waits = any(len(unit.find_thread_spans([thread], *OPENMP_WAITS)) for thread in tasks)
    layouts = OPENMP_WAITS if has_waits else OPENMP_SYNC
    working, syncing, locking = 0, 0, 0
    for thread, spans in tasks.items():
        inside = spans & parallel
        syncs = inside & _find_syncs(unit, thread, layouts, regions)
        locks = (inside & unit.find_thread_spans([thread], "openmp_mutex_wait")) - syncs
        syncing += syncs.length
        locking += locks.length
        working += inside.length - syncs.length - locks.length
    return {
        "openmp_useful": serial + working,
        "openmp_serial": (len(tasks) - 1) * serial,
        "openmp_syncs": syncing,
        "openmp_locks": locking,
        "openmp_all": len(tasks) * outside.length,
        "openmp_whole_syncs": 0 if has_waits else syncing,
    }


def _find_syncs(unit: DeviceGroup, thread: int, layouts: Sequence[str], regions: Spans) -> Spans:
    """Return when a thread synchronizes in a parallel region, each time until that region's end at the
    latest: a thread leaves the last barrier of a region only when the next one begins.
    """
    events = [unit.select_events(one, [thread]) for one in layouts if unit.has(one)]
    begin, end = (
        np.concatenate([regions.begin[:0], *(one[side].to_numpy() for one in events)])
        for side in ("begin", "end")
    )
    region = np.searchsorted(regions.begin, begin, "right") - 1
    closes = np.append(regions.end, 0)[region]
    return unit.covered & merge_spans(begin, np.maximum(np.minimum(end, closes), begin))


# ---- regions --------------------------------------------------------------------------------------


class Region(Struct, frozen=True):
    """NVTX ranges of one unit in the steady state, or in the whole job where there is none."""

    #: Place among those that are asked for; group of NVTX names where all are.
    key: int
    #: task, thread, begin, end of each execution, by thread and begin.
    executions: pl.DataFrame
    #: For each row of `work` the execution in which it was launched, -1 for none.
    executions_of_work: np.ndarray


def list_regions(unit: DeviceGroup) -> Iterator[Region]:
    """Yield the regions of a unit that have figures and were executed."""
    asked = unit.options.regions
    if not asked:
        return
    ranges = read_ranges(unit)
    spans = unit.iterations.group_by("task").agg(pl.col("begin").min(), pl.col("end").max())
    begin, end = unit.options.get_steady_span(unit.duration)
    ranges = ranges.join(spans, on="task", how="left", suffix="_of_focus", maintain_order="left")
    ranges = ranges.filter(
        (pl.col("begin") >= pl.col("begin_of_focus").fill_null(begin))
        & (pl.col("begin") < pl.col("end_of_focus").fill_null(end))
    )
    if asked == ALL:
        # What lies directly within iterations.
        ranges = ranges.join(unit.iterations, on=["task", "thread", "begin", "end"], how="anti")
        ranges = keep_outermost(ranges)
        groups = np.load(str(unit.options.groups), mmap_mode="r")[ranges["range"].to_numpy()]
        ranges = ranges.with_columns(group=pl.Series(groups))
        chosen = {
            key: ranges.filter(pl.col("group") == key)
            for key in np.unique(groups).tolist()
            if key >= 0
        }
    else:
        values = to_arrays(ranges, "range", "number")
        chosen = {
            key: keep_outermost(ranges.filter(pattern.find_matches(*values)))
            for key, (_, pattern) in enumerate(asked)
        }
    for key, executions in chosen.items():
        if executions.height:
            yield Region(key, executions, _assign_work(unit, executions))


def _assign_work(unit: DeviceGroup, executions: pl.DataFrame) -> np.ndarray:
    """Return the execution in which each row of `work` was launched: one of its own thread, or if
    that has none, one of the thread of its process that is longest in executions; -1 for none.
    """
    thread, begin, end = to_arrays(executions, "thread", "begin", "end")
    stands_for = np.full(len(unit.task_of), -1)
    for task, main in find_longest_threads(executions).rows():
        stands_for[unit.task_of == task] = main
    stands_for[np.unique(thread)] = np.unique(thread)
    sent, sender = (unit.launches[name].fill_null(-1).to_numpy() for name in ("sent", "sender"))
    by = np.where(sender >= 0, stands_for[sender], -1)
    # Each thread in a time of its own.
    apart = unit.duration + 1
    place = np.searchsorted(thread * apart + begin, by * apart + sent, "right") - 1
    at = np.maximum(place, 0)
    inside = (place >= 0) & (by >= 0) & (thread[at] == by) & (sent < end[at])
    return np.where(inside, place, -1)
