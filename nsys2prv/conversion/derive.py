"""Derive events that no single table tells: those of a kind that follow from several tables of one
report (a task for each kind and report), and the states of each physical GPU, from all streams of all
processes that use it (in trace time).

While reading, a kind sets facts aside (:meth:`Extraction.add_fact`), part by part. Here those of
one report come together in one frame a name, and the kind's `derive` makes rows of them, in the
report's own time. Memory is that of one report's facts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import count, pairwise
from pathlib import Path

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.columns import FrameWriter, read_frame
from nsys2prv.clock.maps import ClockMap
from nsys2prv.events import Selection, all_kinds
from nsys2prv.events.extraction import (
    DOMAIN,
    GPU,
    NAME,
    OBJECT,
    DeviceKey,
    Names,
    Numbering,
    ObjectKey,
    StreamKey,
    find_stream_device,
    identify_gpu,
)
from nsys2prv.events.kind import Account, EventKind, Rows
from nsys2prv.nsight.info import ReportInfo
from nsys2prv.relations import write_result
from nsys2prv.store.overlaps import NEVER, TOO_MANY, assign_nesting_lanes
from nsys2prv.store.runs import BEGIN, TRACE, Run, SpillReader, SpillWriter
from nsys2prv.store.task_result import TaskResult
from nsys2prv.store.windows import choose_window_bounds, read_window

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


class DeriveTask(Struct, frozen=True):
    """One kind in one report."""

    #: Number of the task.
    number: int
    #: Index of the report.
    report: int
    #: Name of the kind.
    kind: str
    #: Results of all reading tasks of the report that hold facts for it, without their runs.
    sources: tuple[TaskResult, ...]
    #: Folder for its runs.
    spill_folder: Path


def plan_derive_tasks(
    results: Sequence[TaskResult], kinds: Iterable[EventKind], spill_folder: Path
) -> list[DeriveTask]:
    """Return a task for every kind that derives and every report with facts of it."""
    numbers = count(1 + max((result.task for result in results), default=-1))
    ordered = sorted(results, key=lambda result: result.task)
    tasks = []
    for kind in kinds:
        sources: dict[int, list[TaskResult]] = defaultdict(list)
        for result in ordered:
            if kind.derived and not result.facts.keys().isdisjoint(kind.derived.collects):
                sources[result.report].append(replace(result, runs=[], launches=[], nccl_calls=[]))
        tasks += [
            DeriveTask(next(numbers), report, kind.name, tuple(of_report), spill_folder)
            for report, of_report in sorted(sources.items())
        ]
    return tasks


def derive_task(task: DeriveTask) -> TaskResult:
    """Bring the facts together and spill what follows from them (a pure function over files)."""
    kind = next(kind for kind in all_kinds() if kind.name == task.kind)
    common = _CommonNumbers()
    facts = {name: common.collect_facts(name, task.sources) for name in kind.derived.collects}
    result = TaskResult(task.number, task.report, 0)
    account = Account()
    spill_file = task.spill_folder / f"runs-{task.number}.bin"
    with closing(SpillWriter(spill_file, task.report, task.number)) as writer:
        for rows in kind.derived.derive(facts):
            if rows.nesting_owner is not None:
                lanes, crowded = assign_nesting_lanes(
                    rows.object, rows.nesting_owner, rows.begin, rows.end
                )
                rows.object = common.number_lanes(rows.object, lanes)
                if crowded:
                    account.repaired[TOO_MANY] += crowded
            result.store(rows, writer, account, kind.rows.open_ended)
    result.objects, result.domains = list(common.objects), list(common.domains)
    with FrameWriter(spill_file) as frames:
        result.names = {name_set: names.save(frames) for name_set, names in common.names.items()}
    result.add_found(kind.name, account)
    return result


class _CommonNumbers:
    """Objects, domains and names of several reading tasks under common numbers; only what their
    facts name.
    """

    def __init__(self) -> None:
        self.objects = Numbering()
        self.domains = Numbering()
        self.names: dict[str, Names] = {}

    def collect_facts(self, name: str, sources: Sequence[TaskResult]) -> pl.DataFrame:
        """Return the facts of all tasks, with common numbers."""
        frames = [
            self._translate(read_frame(source.facts[name]), source)
            for source in sources
            if name in source.facts
        ]
        return pl.concat(frames) if frames else pl.DataFrame()

    def number_lanes(self, objects: np.ndarray, lanes: np.ndarray) -> np.ndarray:
        """Return the objects that are these lanes of objects."""
        keys = list(self.objects)
        result = objects.copy()
        for lane in np.unique(lanes[lanes > 0]).tolist():
            rows = np.flatnonzero(lanes == lane)
            result[rows] = _translate_distinct(
                objects[rows],
                lambda used, lane=lane: self.objects.number(
                    keys[index]._replace(lane=keys[index].lane + lane) for index in used
                ),
            )
        return result

    def _translate(self, frame: pl.DataFrame, source: TaskResult) -> pl.DataFrame:
        columns = []
        for name in frame.columns:
            if name.startswith(OBJECT):
                number = partial(self._number_keys, self.objects, source.objects)
            elif name == DOMAIN:
                number = partial(self._number_keys, self.domains, source.domains)
            elif name.startswith(NAME):
                number = partial(self._number_names, name.removeprefix(NAME), source)
            else:
                continue
            columns.append(pl.Series(name, _translate_distinct(frame[name].to_numpy(), number)))
        return frame.with_columns(columns)

    @staticmethod
    def _number_keys(
        numbering: Numbering, values: Sequence[Hashable], used: np.ndarray
    ) -> np.ndarray:
        return numbering.number(values[index] for index in used.tolist())

    def _number_names(self, name_set: str, source: TaskResult, used: np.ndarray) -> np.ndarray:
        names = read_frame(source.names[name_set])[used]
        columns = {column: names[column] for column in names.columns}
        if "domain" in columns:
            columns["domain"] = _translate_distinct(
                columns["domain"].to_numpy().astype(np.int64),
                partial(self._number_keys, self.domains, source.domains),
            )
        return self.names.setdefault(name_set, Names()).append(columns) + np.arange(len(used))


def _translate_distinct(
    column: np.ndarray, numbers_of: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Return the column with its distinct values replaced by what `numbers_of` makes of them."""
    used, codes = np.unique(column, return_inverse=True)
    return numbers_of(used)[codes.reshape(-1)] if len(used) else column


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
        time = np.concatenate(times)
        order = np.argsort(time, kind="stable")
        time = time[order]
        state = self._state + np.cumsum(np.concatenate(steps)[order])
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

    #: Number of the task.
    number: int
    #: Runs, each with the thread index of the GPU of each of its local objects (-1: no stream).
    runs: tuple[tuple[Run, np.ndarray], ...]
    #: Map of each report to trace time.
    clocks: Mapping[int, ClockMap]
    #: Folder for its runs.
    spill_folder: Path


def find_devices(
    infos: Sequence[ReportInfo],
    machines: Sequence[int],
    seen: Collection[tuple[int, ObjectKey]],
    selection: Selection,
) -> list[tuple[int, DeviceKey]]:
    """Return the GPUs whose states are to be written, as objects of the trace: those that have
    streams among the objects seen.
    """
    if not any(kind.name == DEVICE_STATE for kind in selection.kinds):
        return []
    streams = {
        (report, key.pid, find_stream_device(infos[report], key))
        for report, key in seen
        if isinstance(key, StreamKey)
    }
    uses = {
        ((report, pid), identify_gpu(infos, machines, report, device))
        for report, pid, device in streams
    }
    # Where each process has a GPU of its own, its streams tell the same.
    own_gpus = len(uses) == len({process for process, _ in uses}) == len({gpu for _, gpu in uses})
    if own_gpus and DEVICE_STATE not in selection.asked:
        return []
    return sorted({(report, device) for report, _, device in streams})


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
                rows[result.report, find_stream_device(info, key)]
                if isinstance(key, StreamKey)
                else -1
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
    sweeps: dict[int, GpuStateSweep] = defaultdict(GpuStateSweep)
    bounds = choose_window_bounds([run for run, _ in task.runs], task.clocks)
    with closing(SpillReader()) as reader:
        states = (
            _find_window_states(task, reader, sweeps, first, last)
            for first, last in pairwise([*bounds, None])
        )
        found = (rows for rows in states if len(rows.begin))
        return write_result(DEVICE_STATE, task.number, task.spill_folder, found)


def _find_window_states(
    task: DeviceStateTask,
    reader: SpillReader,
    sweeps: dict[int, GpuStateSweep],
    first: int,
    last: int | None,
) -> Rows:
    """Return the states of all GPUs that end in a window; `sweeps` go from window to window."""
    pieces: list[tuple[np.ndarray, ...]] = []
    for run, gpus in task.runs:
        clock = task.clocks[run.report]
        if clock.to_global(np.int64(run.last_time)) < first or (
            last is not None and clock.to_global(np.int64(run.first_time)) > last
        ):
            continue
        begin, records = read_window(reader, run, clock, first, last)
        bits = np.full(len(begin), BITS[run.shape.name])
        end = clock.to_global(records["end"])
        pieces.append((gpus[records["object"]], bits, begin, end))
    gpu, bit, begin, end = _concatenate_columns(pieces)
    states = []
    for number in sorted({*sweeps, *np.unique(gpu).tolist()}):
        gpu_rows = np.flatnonzero(gpu == number)
        ranges = {}
        for one in np.unique(bit[gpu_rows]).tolist():
            of_class = gpu_rows[bit[gpu_rows] == one]
            ranges[one] = begin[of_class], end[of_class]
        begins, ends, values = sweeps[number].advance_until(ranges, last)
        states.append((begins, ends, np.full(len(begins), number), values))
    begins, ends, objects, values = _concatenate_columns(states)
    return Rows(DEVICE_STATE, begins, ends, objects, {"state": values})


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
        """Make one set of those that two members belong to."""
        self._above[self.find(one)] = self.find(other)
