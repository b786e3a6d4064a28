"""Find the times in which host threads wait for a CPU: they are off the CPU although no recorded
event makes them wait.

Linux does not record why a thread leaves its CPU. The thread sleeps if it is in a recorded OS
runtime call, or if another thread of its process works meanwhile, for which it may wait. Otherwise,
it waits for a CPU if recorded threads occupy all CPUs of its process, because a thread that can run
does not wait while a CPU is free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.columns import DURATION
from nsys2prv._util.intervals import EMPTY, SIDES, Spans, merge_spans, unite
from nsys2prv.figures.device_group import (
    OS,
    Collected,
    DeviceGroup,
    Frames,
    find_io_spans,
    to_arrays,
)
from nsys2prv.figures.host_time import find_host_parts, find_outside_calls, find_profiler_spans
from nsys2prv.figures.stacks import RUNNING, STATES_OF_THREADS, find_states, read_layouts
from nsys2prv.figures.thresholds import (
    LEAST_OF_CPU,
    LEAST_OF_THREAD,
    LEAST_SLICE,
    LEAST_WAITING,
    LONG_OFF,
)


class CpuUse(Struct, frozen=True):
    """Use of the CPUs of a job's hosts: when threads run, and when main threads wait for a CPU."""

    #: Running spans of threads: task, thread, cpu, begin, end (ns), by begin.
    runs: pl.DataFrame
    #: Spans in which threads of ranks may wait for a CPU: task, thread, begin, end (ns), `in_mpi`, whether
    #: that is `sure`, and whether sleep would be `told`, because OS runtime calls are recorded.
    waits: pl.DataFrame
    #: Host of each task.
    hosts: Mapping[int, str]

    def find_sharing(self, task: int) -> tuple[list[int], list[int]]:
        """Return the tasks that share CPUs with a task (including itself), and all CPUs of these
        tasks, both sorted.
        """
        there = [one for one, host in self.hosts.items() if host == self.hosts.get(task)]
        own = {one: {*_find_cpus(self.runs.filter(task=one))} for one in there}
        cpus: set[int] = set()
        sharing, found = set[int](), {task}
        while found - sharing:
            sharing |= found
            cpus = set().union(*(own[one] for one in sharing))
            found = {one for one, used in own.items() if used & cpus}
        return sorted(sharing), sorted(cpus)

    def count_threads(self, tasks: Sequence[int]) -> int:
        """Return the number of threads of these tasks that do work: that run long enough compared
        with the longest-running thread.
        """
        length = DURATION.sum()
        runs = self.runs.filter(pl.col("task").is_in(tasks))
        sums = runs.group_by("task", "thread").agg(time=length)
        most = pl.col("time").max().over("task")
        return sums.filter(pl.col("time") >= LEAST_OF_THREAD * most).height

    def find_holders(self, thread: int) -> pl.DataFrame:
        """Return the recorded threads that run on a thread's CPU while it waits: `task`, `thread`,
        and `time` (ns).
        """
        waits = self.waits.filter(thread=thread, sure=True)
        own = self.runs.filter(thread=thread)
        begin, end = to_arrays(waits, *SIDES)
        last = np.searchsorted(own["begin"].to_numpy(), begin, "right") - 1
        # The last of these means none.
        left = np.append(own["cpu"].to_numpy(), -1)[last]
        host = self.hosts.get(int(waits["task"][0])) if waits.height else None
        there = [task for task, of in self.hosts.items() if of == host]
        parts = []
        for cpu in np.unique(left).tolist():
            time = merge_spans(begin[left == cpu], end[left == cpu])
            others = self.runs.filter(
                (pl.col("cpu") == cpu) & (pl.col("thread") != thread) & pl.col("task").is_in(there)
            )
            lasts = pl.Series(time.within(*to_arrays(others, *SIDES)), dtype=pl.Int64)
            parts.append(others.select("task", "thread", time=lasts))
        sums = pl.concat([self.runs.select("task", "thread", time="begin").clear(), *parts])
        return sums.group_by("task", "thread").agg(pl.col("time").sum()).sort("task", "thread")


def _find_cpus(runs: pl.DataFrame) -> list[int]:
    sums = runs.group_by("cpu").agg(time=DURATION.sum())
    return sorted(sums.filter(pl.col("time") >= LEAST_OF_CPU * pl.col("time").sum())["cpu"])


def find_running(unit: DeviceGroup, thread: int) -> tuple[Spans, Spans]:
    """Return two sets of times: when a thread runs, and when it is known whether it is on the CPU."""
    runs, off, _, _ = find_states(unit, thread)
    return runs, unite(runs, off)


def collect_cpu_time(unit: DeviceGroup, task: int, threads: list[int], time: Spans) -> Collected:
    """Yield three frames for the threads of a task.

    `cpu_waits`: spans in which they may wait for a CPU (columns of CpuUse). `cpu_shares`: their
    time outside calls and in MPI, and their running time in it (ns). `cpu_runs`, if they wait for
    long: running spans of all threads of the task (columns of CpuUse).
    """
    if not unit.has(*STATES_OF_THREADS):
        return
    every, waiting = pl.DataFrame(), 0
    for thread in threads:
        outside = find_outside_calls(unit, thread, time)
        waits = _find_waits(unit, thread, time, outside)
        if not any(map(len, waits)):
            continue
        runs, known = find_running(unit, thread)
        in_mpi = known & time & unit.find_mpi_spans([thread])
        row = {
            "task": task,
            "thread": thread,
            "outside": known.overlap(outside),
            "runs": runs.overlap(outside),
            "mpi": in_mpi.length,
            "runs_in_mpi": runs.overlap(in_mpi),
        }
        yield "cpu_shares", pl.DataFrame([row])
        every = every if every.width else _list_runs(unit, unit.list_rows(task), time)
        others = merge_spans(*to_arrays(every.filter(pl.col("thread") != thread), *SIDES))
        for spans, in_mpi in zip(waits, (False, True), strict=True):
            waiting = max(waiting, spans.length)
            sure = spans - others if unit.has(*OS) else EMPTY
            for own, is_sure in ((sure, True), (spans - sure, False)):
                rows_of = _list_waits(task, thread, in_mpi, own)
                told = unit.has(*OS)
                yield "cpu_waits", rows_of.with_columns(sure=is_sure, told=told)
    if waiting >= LEAST_WAITING * max(time.length, 1):
        yield "cpu_runs", every.with_columns(task=pl.lit(task, pl.Int64))


def _list_waits(task: int, thread: int, in_mpi: bool, spans: Spans) -> pl.DataFrame:
    """Return the waits of a thread with the columns of CpuUse."""
    values = {"task": task, "thread": thread, "in_mpi": in_mpi}
    sides = pl.DataFrame(dict(zip(SIDES, (spans.begin, spans.end), strict=True)))
    return sides.with_columns(pl.lit(value).alias(name) for name, value in values.items())


def _find_waits(unit: DeviceGroup, thread: int, time: Spans, outside: Spans) -> tuple[Spans, Spans]:
    """Return two sets of spans in which a thread is off the CPU: outside recorded calls, and in MPI
    calls only, which poll.

    Threads that run for less than a slice between such long times are excluded, because they sleep.
    outside: spans outside CUDA and MPI calls.
    """
    parts = find_host_parts(unit, thread, outside)
    off = unite(*(spans for part, spans in parts if part == "off_cpu"))
    runs, of_thread, *_ = find_states(unit, thread)
    long = np.count_nonzero(off.end - off.begin >= LONG_OFF)
    if runs.overlap(outside) < LEAST_SLICE * long:
        return EMPTY, EMPTY
    in_calls = unit.find_thread_spans([thread], "cuda_api", *OS)
    others = unite(in_calls, find_io_spans(unit, [thread]), find_profiler_spans(unit, thread))
    return off, (of_thread & time & unit.find_mpi_spans([thread])) - others


def _list_runs(unit: DeviceGroup, threads: list[int], time: Spans) -> pl.DataFrame:
    """Return the running spans of threads within a set of times: thread, cpu, begin, end, sorted by
    start.
    """
    first, last = time.find_hull()
    changes = read_layouts(unit, STATES_OF_THREADS, "state", "cpu")
    changes = changes.filter(pl.col("thread").is_in(threads)).sort(
        "thread", "begin", maintain_order=True
    )
    following = pl.col("begin").shift(-1).over("thread")
    runs = changes.select(
        pl.col("thread").cast(pl.Int64),
        pl.col("cpu").cast(pl.Int64) - 1,
        "begin",
        end=following,
        runs=pl.col("state") == RUNNING,
    )
    inside = (pl.col("begin") < last) & (pl.col("end") > first)
    return runs.filter(pl.col("runs") & inside).drop("runs").sort("begin")


def find_cpu_use(frames: Frames, hosts: Mapping[int, str]) -> CpuUse | None:
    """Return the use of the hosts' CPUs if threads wait for some; otherwise None. hosts: task ->
    host.
    """
    waits, runs = frames["cpu_waits"], frames["cpu_runs"]
    if not waits.height or not runs.height:
        return None
    runs = runs.sort("begin")
    kept = [waits.filter("sure")]
    by = ("task", "thread", "in_mpi", "told")
    for (task, thread, in_mpi, told), frame in waits.filter(~pl.col("sure")).group_by(by):
        there = [one for one, host in hosts.items() if host == hosts.get(task)]
        held = runs.filter(pl.col("task").is_in(there) & (pl.col("thread") != thread))
        every = spans = merge_spans(*to_arrays(frame, *SIDES))
        for cpu in _find_cpus(runs.filter(task=task)):
            spans = spans & merge_spans(*to_arrays(held.filter(cpu=cpu), *SIDES))
        for own, sure in ((spans, True), (every - spans, False)):
            kept.append(_list_waits(task, thread, in_mpi, own).with_columns(sure=sure, told=told))
    found = pl.concat(kept, how="diagonal_relaxed").sort("thread", "begin")
    return CpuUse(runs, found, hosts) if found["sure"].any() else None
