"""States of devices: what each physical GPU does, from all streams of all processes that use it, in
trace time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
from msgspec import Struct

from nsys2prv.clock.maps import ClockMap
from nsys2prv.events.extraction import GPU, DeviceKey, ObjectKey, StreamKey
from nsys2prv.events.kind import Account, Rows
from nsys2prv.events.selection import Selection
from nsys2prv.nsight.info import ReportInfo
from nsys2prv.paraver.tree import identify_gpu
from nsys2prv.store.runs import BEGIN, TRACE, Run, SpillReader, SpillWriter
from nsys2prv.store.task_result import TaskResult
from nsys2prv.store.windows import choose_window_bounds, read_window

NAME = LAYOUT = "device_state"
NCCL, MEMORY, COMPUTE = 1, 2, 4
#: Layout of operations -> its bit in the values of the value set.
BITS = {
    "nccl_kernel": NCCL,
    "memory_operation": MEMORY,
    "cuda_kernel": COMPUTE,
    "cuda_graph": COMPUTE,
}
#: Before all times.
NEVER = int(np.iinfo(np.int64).min)


class Sweep:
    """Goes once through the ranges of one device. Between two passes it keeps an end for each
    class, and the state under way.

    A state is the sum of the bits of the classes of which some range is under way; 0 is none.
    """

    def __init__(self) -> None:
        self._ends: dict[int, int] = {}
        self._since, self._state = NEVER, 0

    def read_until(
        self, ranges: Mapping[int, tuple[np.ndarray, np.ndarray]], last: int | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return begins, ends (int64 ns) and states of the ranges of one state other than 0 that
        end before `last`, in their order.

        ranges: bit of a class -> begins and ends of the ranges of it that begin from the pass
        before on and before `last` (None: all others).
        """
        times, steps = [], []
        for bit in sorted({*ranges, *self._ends}):
            begins, ends = self._find_stretches(
                bit, *ranges.get(bit, (np.zeros(0, np.int64),) * 2), last
            )
            times += [begins, ends]
            steps += [np.full(len(begins), bit), np.full(len(ends), -bit)]
        time = np.concatenate([*times, np.zeros(0, np.int64)])
        order = np.argsort(time, kind="stable")
        time = time[order]
        state = self._state + np.cumsum(np.concatenate([*steps, np.zeros(0, np.int64)])[order])
        # Of changes at one time only what they lead to counts, and only if it is another state.
        final = np.append(time[1:] != time[:-1], True)[: len(time)]
        time, state = time[final], state[final]
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


class DeviceStateTask(Struct, frozen=True):
    """Task that derives the states of GPUs from all operations on them."""

    #: Of the task.
    number: int
    #: Runs, each with the thread index of the GPU of each of its local objects (-1: no stream).
    runs: tuple[tuple[Run, np.ndarray], ...]
    #: Map of each report to trace time.
    clocks: Mapping[int, ClockMap]
    #: Folder for its runs.
    spill: Path


def find_devices(
    infos: Sequence[ReportInfo],
    machines: Sequence[int],
    seen: Collection[tuple[int, ObjectKey]],
    selection: Selection,
) -> list[tuple[int, DeviceKey]]:
    """Return the GPUs whose states are to be written, as objects of the trace: those that have
    streams among the objects seen.
    """
    if not any(kind.name == NAME for kind in selection.kinds):
        return []
    streams = {
        (report, key.pid, find_device(infos[report], key))
        for report, key in seen
        if isinstance(key, StreamKey)
    }
    uses = {
        ((report, pid), identify_gpu(infos, machines, report, device))
        for report, pid, device in streams
    }
    if NAME not in selection.asked and len(uses) == len({process for process, _ in uses}) == len(
        {gpu for _, gpu in uses}
    ):
        return []
    return sorted({(report, device) for report, _, device in streams})


def find_device(info: ReportInfo, key: StreamKey) -> DeviceKey:
    """Return the GPU that a stream of the report is on."""
    number = info.find_gpu(key.pid, key.device)
    return (
        DeviceKey(GPU, number=number)
        if number is not None
        else DeviceKey(GPU, str(key.pid), key.device)
    )


def plan_device_states(
    results: Sequence[TaskResult],
    infos: Sequence[ReportInfo],
    rows: Mapping[tuple[int, ObjectKey], int],
    clocks: Sequence[ClockMap],
    spill_folder: Path,
    number: int,
) -> list[DeviceStateTask]:
    """Return tasks from `number` on. rows: (report, object key) -> thread index of the trace."""
    device_runs: dict[int, list[tuple[Run, np.ndarray]]] = defaultdict(list)
    together = _DisjointSets()
    for result in sorted(results, key=lambda result: result.task):
        runs = [run for run in result.runs if run.shape.stream == BEGIN and run.shape.name in BITS]
        if not runs:
            continue
        info = infos[result.report]
        gpus = np.array(
            [
                rows[result.report, find_device(info, key)] if isinstance(key, StreamKey) else -1
                for key in result.objects
            ]
        )
        for gpu in np.unique(gpus[gpus >= 0]).tolist():
            together.join((GPU, gpu), (TRACE, result.report))
        device_runs[result.report] += [(run, gpus) for run in runs]
    groups: dict[object, list[int]] = defaultdict(list)
    for report in device_runs:
        groups[together.find((TRACE, report))].append(report)
    return [
        DeviceStateTask(
            number + place,
            tuple(entry for report in reports for entry in device_runs[report]),
            {report: clocks[report] for report in reports},
            spill_folder,
        )
        for place, reports in enumerate(groups.values())
    ]


def make_device_states(task: DeviceStateTask) -> TaskResult:
    """Return the states of the task's GPUs, as runs in trace time on thread indices."""
    result = TaskResult(task.number, TRACE, 0)
    account = Account()
    sweeps: dict[int, Sweep] = defaultdict(Sweep)
    bounds = choose_window_bounds([run for run, _ in task.runs], task.clocks)
    spill = task.spill / f"runs-{task.number}.bin"
    with (
        closing(SpillWriter(spill, TRACE, task.number)) as writer,
        closing(SpillReader()) as reader,
    ):
        for first, last in zip(bounds, [*bounds[1:], None], strict=True):
            rows = _find_window_states(task, reader, sweeps, first, last)
            if len(rows.begin):
                result.store(rows, writer, account)
    result.add_found(NAME, account)
    return result


def _find_window_states(
    task: DeviceStateTask,
    reader: SpillReader,
    sweeps: dict[int, Sweep],
    first: int,
    last: int | None,
) -> Rows:
    """Return the states of all GPUs that end in a window; `sweeps` go from window to window."""
    pieces: list[tuple[np.ndarray, ...]] = []
    for run, gpus in task.runs:
        clock = task.clocks[run.report]
        if clock.to_global(np.int64(run.until)) < first or (
            last is not None and clock.to_global(np.int64(run.first)) > last
        ):
            continue
        begin, records = read_window(reader, run, clock, 0, first, last)
        bits = np.full(len(begin), BITS[run.shape.name])
        end = clock.to_global(records["end"])
        pieces.append((gpus[records["object"]], bits, begin, end))
    gpu, bit, begin, end = _concatenate_columns(pieces)
    states = []
    for number in sorted({*sweeps, *np.unique(gpu).tolist()}):
        gpu_rows = np.flatnonzero(gpu == number)
        classes = {
            int(value): gpu_rows[bit[gpu_rows] == value] for value in np.unique(bit[gpu_rows])
        }
        begins, ends, values = sweeps[number].read_until(
            {value: (begin[at], end[at]) for value, at in classes.items()}, last
        )
        states.append((begins, ends, np.full(len(begins), number), values))
    begins, ends, objects, values = _concatenate_columns(states)
    return Rows(LAYOUT, begins, ends, objects, {"state": values})


def _concatenate_columns(pieces: Sequence[tuple[np.ndarray, ...]]) -> list[np.ndarray]:
    """Return the four columns (int64) of all pieces."""
    none = (np.zeros(0, np.int64),) * 4
    return [np.concatenate(column) for column in zip(none, *pieces, strict=True)]


class _DisjointSets:
    """Disjoint sets of what is joined."""

    def __init__(self) -> None:
        self._above: dict[object, object] = {}

    def find(self, member: object) -> object:
        """Return the representative of the set that a member belongs to."""
        while (above := self._above.setdefault(member, member)) != member:
            self._above[member] = self._above[above]
            member = above
        return member

    def join(self, one: object, other: object) -> None:
        self._above[self.find(one)] = self.find(other)
