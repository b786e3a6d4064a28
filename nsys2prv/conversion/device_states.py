"""Derive the states of each physical GPU, from all streams of all processes that use it, in trace
time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
from msgspec import Struct

from nsys2prv._util.columns import sum_changes
from nsys2prv.conversion.job import Job, make_global_ids
from nsys2prv.events.extraction import DeviceKey, StreamKey, find_stream_device, identify_gpu
from nsys2prv.events.kind import Rows
from nsys2prv.relations import write_result
from nsys2prv.store.overlaps import NEVER
from nsys2prv.store.runs import BEGIN, RecordFormat, Run
from nsys2prv.store.windows import (
    WindowReader,
    WindowRecords,
    choose_window_bounds,
    load_global_ids,
)
from nsys2prv.store.work_result import WorkResult

#: The kind and the layout of the states of devices.
DEVICE_STATE = "device_state"
#: Bits of the classes of work that is under way, in the value of a state.
NCCL, MEMORY, COMPUTE = 1, 2, 4
#: Layout of operations -> the bit of its class.
BITS = {
    "nccl_kernel": NCCL,
    "memory_operation": MEMORY,
    "cuda_kernel": COMPUTE,
    "cuda_graph": COMPUTE,
}


def find_devices(job: Job) -> list[tuple[int, DeviceKey]]:
    """Return the GPUs that get states, as objects of the trace: those with streams that hold
    events.
    """
    if not any(kind.name == DEVICE_STATE for kind in job.selection.kinds):
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
    # Where each process has a GPU of its own, its streams tell the same.
    own_gpus = len(uses) == len({process for process, _ in uses}) == len({gpu for _, gpu in uses})
    if own_gpus and DEVICE_STATE not in job.selection.asked:
        return []
    return sorted({(report, device) for report, _, device in streams})


class DeviceStateWork(Struct, frozen=True):
    """Task that derives the states of GPUs from all operations on them."""

    #: Number of the task.
    number: int
    #: Begins of the operations.
    runs: tuple[Run, ...]
    #: File with what their times and numbers mean.
    global_ids: Path
    #: Thread of the trace -> that of its GPU.
    gpu_of: np.ndarray
    #: Folder for its runs.
    folder: Path


def find_device_states(job: Job, number: int) -> Iterator[WorkResult]:
    """Return the states of all GPUs, by tasks from `number` on."""
    gpu_of = np.full(job.model.tree.threads, -1)
    gpus_of: dict[int, set[int]] = defaultdict(set)
    for (report, key), thread in job.model.rows.items():
        if isinstance(key, StreamKey):
            device = find_stream_device(job.infos[report], key)
            gpu_of[thread] = job.model.rows[report, device]
            gpus_of[report].add(gpu_of[thread])
    runs: dict[int, list[Run]] = defaultdict(list)
    for run in job.runs:
        if run.shape.stream == BEGIN and run.shape.name in BITS:
            runs[run.report].append(run)
    global_ids = job.folder / "ids-of-operations"
    make_global_ids(job).save(global_ids)
    tasks = [
        DeviceStateWork(
            number + place,
            tuple(run for report in reports for run in runs[report]),
            global_ids,
            gpu_of,
            job.folder,
        )
        for place, reports in enumerate(_group_sharing({one: gpus_of[one] for one in sorted(runs)}))
    ]
    return job.run(make_device_states, tasks)


def _group_sharing(gpus_of: Mapping[int, Iterable[int]]) -> list[list[int]]:
    """Return groups of reports such that no two groups have a GPU in common."""
    group_of: dict[int, set[int]] = {}
    for report, gpus in gpus_of.items():
        group = {report}.union(*(group_of.get(gpu, ()) for gpu in gpus))
        for one in group:
            group_of.update(dict.fromkeys(gpus_of[one], group))
    groups: dict[int, list[int]] = {}
    for report, gpus in gpus_of.items():
        groups.setdefault(id(group_of[next(iter(gpus))]), []).append(report)
    return list(groups.values())


def make_device_states(task: DeviceStateWork) -> WorkResult:
    """Return the states of the task's GPUs, as runs in trace time on thread indices."""
    global_ids = load_global_ids(task.global_ids)
    sweeps: dict[int, GpuStateSweep] = defaultdict(GpuStateSweep)
    bounds = choose_window_bounds(task.runs, global_ids.clocks)
    with WindowReader(task.runs, global_ids) as reader:
        states = (
            _find_window_states(task, reader.read(first, last), sweeps, last)
            for first, last in pairwise([*bounds, None])
        )
        found = (rows for rows in states if len(rows.begin))
        return write_result(DEVICE_STATE, task.number, task.folder, found)


class GpuStateSweep:
    """The state of one device over time, found by going once through the ranges on it. From window
    to window it keeps an end for each class, and the state under way.

    A state is the sum of the bits of the classes of which some range is under way; 0 is none.
    """

    def __init__(self) -> None:
        self._ends: dict[int, int] = {}
        self._since, self._state = NEVER, 0

    def advance_until(
        self, ranges: Mapping[int, tuple[np.ndarray, np.ndarray]], last: int | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return begins, ends (int64 ns) and states of the ranges of one state other than 0 that
        end before `last`, in their order.

        ranges: bit of a class -> begins and ends of the ranges of it that begin from the pass
        before on and before `last` (None: all others).
        """
        none = np.zeros(0, np.int64)
        times, steps = [none], [none]
        for bit in sorted({*ranges, *self._ends}):
            begins, ends = self._find_stretches(bit, *ranges.get(bit, (none, none)), last)
            times += [begins, ends]
            steps += [np.full(len(begins), bit), np.full(len(ends), -bit)]
        # Of changes at one time only what they lead to counts, and only if it is another state.
        time, change = sum_changes(np.concatenate(times), np.concatenate(steps))
        state = self._state + change
        other = np.diff(state, prepend=self._state) != 0
        time, state = np.append(self._since, time[other]), np.append(self._state, state[other])
        self._since, self._state = int(time[-1]), int(state[-1])
        busy = state[:-1] != 0
        return time[:-1][busy], time[1:][busy], state[:-1][busy]

    def _find_stretches(
        self, bit: int, begin: np.ndarray, end: np.ndarray, last: int | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the begins of stretches of a class, and their ends; the one under way ends before
        `last` too.
        """
        order = np.argsort(begin, kind="stable")
        begin, end = begin[order], end[order]
        # until[k]: to where there was something of the class under way when range k begins.
        until = np.maximum.accumulate(np.append(self._ends.pop(bit, NEVER), end))
        apart = begin > until[:-1]
        ends = np.append(until[:-1][apart], until[-1])
        ends = ends[ends != NEVER]
        if len(ends) and last is not None and ends[-1] >= last:
            self._ends[bit] = int(ends[-1])
            ends = ends[:-1]
        return begin[apart], ends


def _find_window_states(
    task: DeviceStateWork,
    operations: Mapping[RecordFormat, WindowRecords],
    sweeps: dict[int, GpuStateSweep],
    last: int | None,
) -> Rows:
    """Return the states of all GPUs that end in a window; `sweeps` go from window to window.
    operations: that begin in it.
    """
    gpu, bit, begin, end = _concatenate_columns(
        (
            task.gpu_of[records.column("object")],
            np.full(len(records), BITS[shape.name]),
            records.times,
            records.column("end"),
        )
        for shape, records in operations.items()
    )
    states = []
    for number in sorted({*sweeps, *np.unique(gpu).tolist()}):
        own = {one: (gpu == number) & (bit == one) for one in (NCCL, MEMORY, COMPUTE)}
        ranges = {one: (begin[rows], end[rows]) for one, rows in own.items()}
        begins, ends, values = sweeps[number].advance_until(ranges, last)
        states.append((begins, ends, np.full(len(begins), number), values))
    begins, ends, objects, values = _concatenate_columns(states)
    return Rows(DEVICE_STATE, begins, ends, objects, {"state": values})


def _concatenate_columns(pieces: Iterable[tuple[np.ndarray, ...]]) -> list[np.ndarray]:
    """Return the four columns (int64) of all pieces."""
    none = (np.zeros(0, np.int64),) * 4
    return [np.concatenate(column) for column in zip(none, *pieces, strict=True)]
