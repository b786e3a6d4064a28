"""Measure the useful time of devices and host threads, for efficiencies: in the whole job, in its
steady state, in each iteration, and in regions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.intervals import SIDES, Spans, merge_spans
from nsys2prv.events.mpi import MPI_LAYOUTS
from nsys2prv.figures.cpu_time import find_running
from nsys2prv.figures.device_group import (
    ALL,
    BUSY,
    WORK,
    DeviceGroup,
    find_mpi_span,
    to_arrays,
)
from nsys2prv.figures.host_time import choose_thread
from nsys2prv.figures.iterations import find_longest_threads, keep_outermost, read_ranges
from nsys2prv.figures.thresholds import (
    LEAST_COVERED,
)

#: Layouts of time in which threads of OpenMP wait in barriers and other synchronization, and of the
#: whole calls of these, which count where no waiting was recorded.
OPENMP_WAITS, OPENMP_SYNC = ("openmp_sync_wait",), ("openmp_barrier", "openmp_sync_region")
#: Parts of the job that have figures; each row of the last two has the number of an iteration, or the
#: key of a region.
STEADY, WHOLE_JOB, ITERATION, REGION = "steady state", "whole job", "iteration", "region"
#: The time that figures of the whole job cover where MPI is recorded, but no GPU work.
MPI_TIME = "MPI_Init to MPI_Finalize"
PART = ["part", "key"]
#: Instructions that a multiprocessor issues in a cycle at most: one for each of its schedulers.
ISSUED = 4
#: Metrics for instructions and the clock; the unit is in brackets after the name.
CLOCK, ISSUE = re.compile(r"GPC Clock Frequency(?: \[(\w+)\])?"), re.compile(r"SM Issue\b.*")
CLOCK_OR_ISSUE = re.compile(f"{CLOCK.pattern}|{ISSUE.pattern}")
UNITS = {"MHz": 1e6, "GHz": 1e9}


def measure_device(
    unit: DeviceGroup, device: int, regions: Sequence[Region]
) -> Iterator[dict[str, list[Any]]]:
    """Yield the times of a device in all parts of the job, as columns: those in PART, `elapsed_ns`,
    and the times in BUSY (ns). regions: NVTX ranges with separate figures.

    For the steady state and its iterations, work counts in the iteration in which it runs on its
    rank, because ranks are in different iterations at one time.
    """
    uses = {f"{name}_ns": what for name, what in BUSY.items()} | {"useful_ns": unit.useful}

    def find_uses(among: np.ndarray | bool = True) -> dict[str, Spans]:
        found = {
            what: unit.merge_device_work(device, *what, among=among) for what in {*uses.values()}
        }
        return {"elapsed_ns": unit.covered, **{name: found[what] for name, what in uses.items()}}

    columns = _measure_parts(unit, _list_windows(unit, unit.covered), find_uses())
    yield columns | {"device": [device] * len(columns["key"])}
    work = unit.work.select("device", *SIDES)
    for region in regions:
        among = (work["device"] == device).to_numpy() & (region.executions_of_work >= 0)
        own = work.with_columns(execution=region.executions_of_work).filter(pl.Series(among))
        if own.height:
            bounds = own.group_by("execution").agg(pl.col("begin").min(), pl.col("end").max())
            windows = {(REGION, region.key): unit.merge_rows(bounds)}
            columns = _measure_parts(unit, windows, find_uses(among))
            yield columns | {"device": [device] * len(columns["key"])}


def _list_windows(unit: DeviceGroup, whole: Spans) -> dict[tuple[str, int], Spans]:
    """Return PART -> the time of the whole job or of its steady state."""
    steady = {(STEADY, 0): unit.options.covered_steady} if unit.options.steady else {}
    return {(WHOLE_JOB, 0): whole, **steady}


def _measure_parts(
    unit: DeviceGroup, windows: Mapping[tuple[str, int], Spans], sets: Mapping[str, Spans]
) -> dict[str, list[Any]]:
    """Return how much of each set of times is in each window (by PART) and, for the steady state,
    in each iteration (ns), if tables are made by which runs are compared.
    """
    steady = unit.options.steady if unit.options.divided and (STEADY, 0) in windows else None
    edges = steady.edges if steady else np.zeros(1, np.int64)
    parts, keys = zip(*windows, strict=True)
    columns: dict[str, list[Any]] = {
        "part": [*parts, *[ITERATION] * (len(edges) - 1)],
        "key": [*keys, *range(1, len(edges))],
    }
    for name, spans in sets.items():
        each = spans.within(edges[:-1], edges[1:]).tolist()
        columns[name] = [*map(spans.overlap, windows.values()), *each]
    return columns


def count_instructions(unit: DeviceGroup, device: int) -> Iterator[pl.DataFrame]:
    """Yield a row of sums of sampled metrics while a device computes in the steady state:
    instructions per SM, clock cycles, the covered time (ns), and useful_ns. Yield nothing without
    samples, or if they cover only part of that time.
    """
    if not unit.has("gpu_metric") or unit.options.steady is None:
        return
    focus = unit.options.covered_steady
    computing = focus & unit.merge_device_work(device, *BUSY["compute"])
    for samples in unit.reader.read_samples("gpu_metric", unit.number, CLOCK_OR_ISSUE):
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
        counts = (busy > 0) & (hertz >= 0) & (share >= 0)
        busy, hertz, share, lasts = (one[counts] for one in (busy, hertz, share, lasts))
        if len(busy) and busy.sum() >= LEAST_COVERED * computing.length:
            row = {
                "instructions": float((ISSUED * share * hertz * lasts).sum() / 1e9),
                "cycles": float((hertz * busy).sum() / 1e9),
                "sampled_ns": float(busy.sum()),
                "useful_ns": unit.merge_device_work(device, *unit.useful).overlap(focus),
            }
            yield pl.DataFrame([row])
            return


# ---- hosts ----------------------------------------------------------------------------------------


def measure_hosts(
    unit: DeviceGroup, task: int, regions: Sequence[Region]
) -> Iterator[dict[str, list[Any]]]:
    """Yield the times of the host threads of a task that count, and of the thread that executes
    each region, in all parts of the job.

    The columns are those in PART, elapsed_ns, outside_mpi_ns, useful_ns, running_ns (on a CPU) out
    of known_ns, begin_ns and end_ns of the part, and times of OpenMP. regions: NVTX ranges with
    separate figures.
    """
    own = unit.list_iterations(task)
    main = int(own["thread"][0]) if own.height else choose_thread(unit, task)
    whole = unit.covered
    if not unit.has(*WORK) and (span := find_mpi_span(unit, main)):
        whole = whole.clip(*span)
    threads = unit.list_threads(task)
    takes_part = own.height or len(unit.find_thread_spans(threads, "cuda_api", *MPI_LAYOUTS))
    counts_all = unit.options.host_threads == ALL
    windows_of = {
        thread: _list_windows(unit, whole) for thread in (threads if counts_all else [main])
    }
    for region in regions:
        executions = region.executions.filter(pl.col("task") == task)
        executing = threads
        if not counts_all:
            # That of PyTorch's backward pass is not the thread with the iterations.
            executing = find_longest_threads(executions)["thread"].to_list()
            executions = executions.filter(pl.col("thread").is_in(executing))
        for thread in executing if executions.height else []:
            windows_of.setdefault(thread, {})[REGION, region.key] = unit.merge_rows(executions)
    for thread, windows in windows_of.items():
        outside = unit.covered - unit.find_mpi_spans([thread])
        useful = outside - unit.find_thread_spans([thread], "cuda_api")
        sets = {"elapsed_ns": unit.covered, "outside_mpi_ns": outside, "useful_ns": useful}
        running, known = find_running(unit, thread)
        if len(known):
            sets |= {"running_ns": useful & running, "known_ns": useful & known}
        columns = _measure_parts(unit, windows, sets)
        of_parts = []
        for window in windows.values():
            row = dict(zip(("begin_ns", "end_ns"), window.find_hull(), strict=True))
            row |= _measure_openmp(unit, task, main, window & outside) if thread == main else {}
            of_parts.append(row)
        count = len(columns["key"])
        for name in of_parts[0]:
            own = [row[name] for row in of_parts]
            columns[name] = own + [None] * (count - len(own))
        columns |= {"task": [task] * count, "thread": [thread] * count}
        yield columns | {"takes_part": [bool(takes_part)] * count}


def _measure_openmp(unit: DeviceGroup, task: int, main: int, outside: Spans) -> dict[str, int]:
    """Return the time of OpenMP activities of a process's threads within some time of its main
    thread (ns). Return nothing if OpenMP, or its synchronization, was not recorded completely.
    """
    main_rows = unit.reader.rows.main_rows
    tasks = {
        thread: spans
        for thread in unit.list_threads(task)
        if len(
            spans := unit.find_thread_spans(
                np.flatnonzero(main_rows == thread).tolist(), "openmp_implicit_task"
            )
        )
    }
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
    """Return the spans in which a thread synchronizes in a parallel region. Each ends with its
    region at the latest, because a thread leaves the last barrier of a region only when the next
    region begins.
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
    """NVTX ranges of one name in a unit, for which the user requested separate figures: in the
    steady state, or in the whole job without one.
    """

    #: Index among the requested ones; group of NVTX names if all are requested.
    key: int
    #: task, thread, begin, end of each execution, by thread and begin.
    executions: pl.DataFrame
    #: For each row of `work` the execution in which it was launched, -1 for none.
    executions_of_work: np.ndarray


def list_regions(unit: DeviceGroup) -> Iterator[Region]:
    """Yield the regions (NVTX ranges with separate figures) that were requested and occur in a
    unit.
    """
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
        # Ranges directly within iterations.
        ranges = ranges.join(unit.iterations, on=["task", "thread", "begin", "end"], how="anti")
        ranges = keep_outermost(ranges)
        groups = unit.options.find_groups(ranges["range"].to_numpy())
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
    """Return the execution in which each row of `work` was launched, or -1: on its own thread,
    otherwise on the thread of its process with the most time in executions.
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
