"""Derive states: state records of threads and streams, and the states of GPUs as events.

A thread or stream is in the state of its innermost open range; ranges may overlap arbitrarily. The
state of a GPU names the classes of work in progress on it, from all streams of all processes.

Input: runs of reports. Output: runs in trace time. Each task processes windows of time, first <=
time < limit. Times are int64 ns; objects are small indices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from msgspec import Struct

from nsys2prv._util.columns import Table, find_places, group_rows, number_linked, sum_changes
from nsys2prv._util.native import core
from nsys2prv._util.stored_columns import save_object
from nsys2prv.conversion.job import Job, group_by_report
from nsys2prv.events.catalogue import Field, Layout, load_catalogue
from nsys2prv.events.extraction import QueueKey, StreamKey, ThreadKey, find_stream_device
from nsys2prv.events.kind import Rows
from nsys2prv.match import write_result
from nsys2prv.table.runs import (
    LINE,
    STATE,
    TRACE,
    Run,
    SpillWriter,
    find_present_fields,
    find_spill_file,
    get_shape,
    read_run,
)
from nsys2prv.table.slices import GlobalIds, RangeSlice, load_global_ids
from nsys2prv.table.task_result import TaskResult
from nsys2prv.table.windows import WindowReader, choose_window_bounds

#: States of rows outside of all ranges.
IDLE, RUNNING, NOT_CREATED = 0, 1, 2
#: No state, if no range implies one.
NOTHING = -1

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

#: Layout -> values of its deciding field, ascending, and the state that each implies.
ValueStates = dict[str, tuple[np.ndarray, np.ndarray]]


class StateTask(Struct, frozen=True):
    """A task for a worker: the rows of one report whose states are to be computed, and the records
    that determine them.
    """

    #: Number of the task.
    number: int
    #: Runs of ranges, samples and lines.
    runs: tuple[Run, ...]
    #: File of the :class:`GlobalIds` that translate their times and numbers.
    global_ids: Path
    #: States that values imply.
    value_states: ValueStates
    #: Threads that have states, ascending, and the state in which each is outside of all ranges.
    threads: np.ndarray
    outside: np.ndarray
    #: True for queues, which have states only if a range implies one.
    is_queue: np.ndarray
    #: Folder for its runs.
    folder: Path
    #: Start and end (ns) of the report's capture. Rows have no states outside it. None for no
    #: limits.
    captured: tuple[int, int] | None


def plan_state_tasks(job: Job) -> list[StateTask]:
    """Return a task for each report with rows that have states (such as running, waiting)."""
    rows: dict[int, dict[int, tuple[int, bool]]] = defaultdict(dict)
    for (report, key), thread in job.model.rows.items():
        # Further rows of a thread are for ranges that overlap others, and no threads.
        if isinstance(key, (StreamKey, QueueKey)) or (isinstance(key, ThreadKey) and not key.lane):
            state = RUNNING if isinstance(key, ThreadKey) else IDLE
            rows[report][thread] = state, isinstance(key, QueueKey)
    runs = group_by_report(run for run in job.runs if run.shape.stream != STATE)
    global_ids = job.folder / "ids-of-states"
    save_object(job.ids, global_ids)
    captured, value_states = _find_captured_times(job), _map_values_to_states(job)
    tasks = []
    for number, report in enumerate(sorted(rows), job.next_task):
        threads = np.array([(row, *of) for row, of in sorted(rows[report].items())], np.int64).T
        own = threads[0], threads[1], threads[2].astype(bool)
        task = number, tuple(runs[report]), global_ids, value_states, *own, job.folder
        tasks.append(StateTask(*task, captured.get(report)))
    return tasks


def _find_captured_times(job: Job) -> dict[int, tuple[int, int]]:
    """Return start and end (ns of the trace) of each capture of a process that was captured several
    times. The first capture starts with the trace, and the last one ends with it.
    """
    captured = {}
    for chain in job.captures.chains:
        spans = [job.clocks[one].to_global(np.array(job.spans[one])).tolist() for one in chain]
        spans[0][0], spans[-1][1] = 0, job.duration
        captured |= {report: tuple(span) for report, span in zip(chain, spans, strict=True)}
    return captured


def _map_values_to_states(job: Job) -> ValueStates:
    """Return layout -> the state for each value of the field that decides the state. For name
    fields, values are the job's names.
    """
    found: ValueStates = {}
    for layout in load_catalogue().layouts.values():
        rule = layout.state
        values = dict(sorted(rule.values)) if rule is not None else {}
        if rule is not None and rule.names:
            names = job.values.get(_find_deciding_field(layout).values.name)
            for value, label in names.labels.sort("value").iter_rows() if names else ():
                state = rule.find_state(label)
                values[value] = NOTHING if state is None else state
        if values:
            found[layout.name] = tuple(
                np.array([*side], np.int64) for side in zip(*values.items(), strict=True)
            )
    return found


def _find_deciding_field(layout: Layout) -> Field:
    return next(iter(find_present_fields(layout.name, layout.state_mask).values()))


def _find_default(layout: Layout) -> int:
    return NOTHING if layout.state.otherwise is None else layout.state.otherwise


def make_states(task: StateTask) -> TaskResult:
    """Compute the state records of one report's rows, and store them in trace time."""
    result = TaskResult(task.number, TRACE, 0)
    shape = get_shape(STATE, STATE)
    path = find_spill_file(task.folder)
    with SpillWriter(path, TRACE, task.number) as writer:
        for thread, begin, end, state in _make_records(task, load_global_ids(task.global_ids)):
            if task.captured is not None:
                begin, end = np.maximum(begin, task.captured[0]), np.minimum(end, task.captured[1])
                thread, begin, end, state = (
                    column[begin < end] for column in (thread, begin, end, state)
                )
            if len(thread):
                columns = {"time": begin, "end": end, "row": thread, "state": state}
                result.runs.append(writer.append(shape, columns))
    return result


def _make_records(task: StateTask, global_ids: GlobalIds) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield thread, start, end and state of records, window by window, each sorted by start."""
    threads = task.threads
    outside = np.where(_mask_idle_threads(task, global_ids), NOT_CREATED, task.outside)
    since, current = np.zeros_like(outside), outside.copy()
    wanted = ~task.is_queue
    ranges = Ranges.make_empty()
    layouts, duration = load_catalogue().layouts, global_ids.duration
    deciding = [
        run
        for run in task.runs
        if run.index is not None and layouts[run.shape.name].state is not None
    ]
    bounds = [one for one in choose_window_bounds(deciding, global_ids.clocks) if one < duration]
    with WindowReader(deciding, global_ids) as reader:
        for first, last in pairwise([*bounds, None]):
            limit = duration if last is None else last
            begun, holding = [ranges], [Ranges.make_empty()]
            for found in reader.read(first, last).ranges:
                part = _read_ranges(task, found, threads)
                if found.layout.is_state:
                    holding.append(part)
                else:
                    begun.append(part)
                    wanted[part.object] = True
            ranges, held = Ranges.concat(begun), Ranges.concat(holding)
            ranges = ranges[np.lexsort((ranges.state, -ranges.end, ranges.begin, ranges.object))]
            held = held[np.lexsort((held.begin, held.object))]
            columns = [getattr(ranges, name) for name in Ranges.__struct_fields__]
            changes = held.object, held.begin, held.state
            found = core.find_states(columns, changes, (outside, since, current), first, limit)
            yield _sort_records(threads, *(np.frombuffer(column, np.int64) for column in found))
            # Ranges that end at the limit end in the next window.
            ranges = ranges[ranges.end >= limit]
    rows = np.flatnonzero(wanted & (since < duration))
    yield _sort_records(threads, rows, since[rows], np.full(len(rows), duration), current[rows])


def _sort_records(
    threads: np.ndarray, object_: np.ndarray, begin: np.ndarray, *columns: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Return records of objects sorted by start, with their threads."""
    order = np.argsort(begin, kind="stable")
    return threads[object_[order]], begin[order], *(column[order] for column in columns)


def _mask_idle_threads(task: StateTask, global_ids: GlobalIds) -> np.ndarray:
    """Return a mask of the host threads without events and lines."""
    silent = task.outside == RUNNING
    for run in task.runs:
        if not silent.any():
            break
        objects = np.array([run.object])
        if run.object < 0:
            names = ("sender", "receiver") if run.shape.stream == LINE else ("row",)
            objects = np.unique(np.concatenate([*read_run(run, *names).values()]))
        silent &= ~np.isin(task.threads, global_ids.objects.get_table(run.task)[objects])
    return silent


def _read_ranges(task: StateTask, ranges: RangeSlice, threads: np.ndarray) -> Ranges:
    """Return the ranges of a layout that have states, on rows that have states."""
    begin, end, thread = ranges.begin, ranges.until, ranges.column("row")
    object_ = find_places(threads, thread)
    state = _find_states(task.value_states, ranges)
    is_state = ranges.layout.is_state
    kept = np.flatnonzero((object_ >= 0) & (state != NOTHING) & ((begin < end) | is_state))
    yields = np.full(len(kept), int(ranges.layout.state.yields))
    return Ranges(object_[kept], begin[kept], end[kept], state[kept], yields)


def _find_states(value_states: ValueStates, ranges: RangeSlice) -> np.ndarray:
    """Return the state implied by each range, or NOTHING."""
    layout = ranges.layout
    default = _find_default(layout)
    if layout.name not in value_states:
        return np.full(len(ranges), default)
    values, states = value_states[layout.name]
    column = ranges.find_field(_find_deciding_field(layout).name)
    return np.append(states, default)[find_places(values, column)]


class Ranges(Table, frozen=True):
    """Ranges of time on rows, each with the state that its row is in."""

    #: Row of the trace.
    object: np.ndarray
    #: Begin, ns.
    begin: np.ndarray
    #: End, ns.
    end: np.ndarray
    #: State that the range implies.
    state: np.ndarray
    #: Whether it yields to ranges that do not.
    yields: np.ndarray


class DeviceStateTask(Struct, frozen=True):
    """A task for a worker: the operations on some GPUs, from which their states are computed."""

    #: Number of the task.
    number: int
    #: Operations.
    runs: tuple[Run, ...]
    #: File of the :class:`GlobalIds` that translate their times and numbers.
    global_ids: Path
    #: Thread of the trace -> that of its GPU.
    gpu_of: np.ndarray
    #: Folder for its runs.
    folder: Path


def find_device_states(job: Job, number: int) -> Iterator[TaskResult]:
    """Compute the states of all GPUs. Yield the results of the tasks, numbered from `number`."""
    gpu_of = np.full(job.model.tree.threads, -1)
    gpus_of: dict[int, set[int]] = defaultdict(set)
    for (report, key), thread in job.model.rows.items():
        if isinstance(key, StreamKey):
            device = find_stream_device(job.infos[report], key)
            gpu_of[thread] = job.model.rows[report, device]
            gpus_of[report].add(gpu_of[thread])
    runs = group_by_report(
        run for run in job.runs if run.index is not None and run.shape.name in BITS
    )
    global_ids = job.folder / "ids-of-operations"
    save_object(job.ids, global_ids)
    # Reports that share a GPU are of one task.
    reports = sorted(runs)
    groups: dict[int, list[Run]] = defaultdict(list)
    for report, group in zip(reports, number_linked(gpus_of[one] for one in reports), strict=True):
        groups[group] += runs[report]
    tasks = [
        DeviceStateTask(number + group, tuple(own), global_ids, gpu_of, job.folder)
        for group, own in groups.items()
    ]
    return job.run(make_device_states, tasks)


def make_device_states(task: DeviceStateTask) -> TaskResult:
    """Compute the states of the task's GPUs, and store them in trace time on rows of the trace."""
    global_ids = load_global_ids(task.global_ids)
    bounds = choose_window_bounds(task.runs, global_ids.clocks)
    states = GpuStates()
    with WindowReader(task.runs, global_ids) as reader:
        pieces = (
            states.advance(_read_operations(task, reader.read(first, last, ()).ranges), first, last)
            for first, last in pairwise([*bounds, None])
        )
        rows = (
            Rows(DEVICE_STATE, begin, end, gpu, {"state": state})
            for gpu, begin, end, state in pieces
            if len(gpu)
        )
        return write_result(DEVICE_STATE, task.number, task.folder, rows)


def _read_operations(task: DeviceStateTask, operations: Sequence[RangeSlice]) -> np.ndarray:
    """Return an array with the rows GPU, bit, start and end."""
    columns = [np.zeros((4, 0), np.int64)]
    for ranges in operations:
        gpu, bits = (
            task.gpu_of[ranges.column("row")],
            np.full(len(ranges), BITS[ranges.layout.name]),
        )
        columns.append(np.array([gpu, bits, ranges.begin, ranges.end]))
    return np.concatenate(columns, axis=1)


class GpuStates:
    """Computes the states of GPUs window by window. A state is the sum of the bits of all classes
    of operations (such as compute or copy) that run at the time.
    """

    def __init__(self) -> None:
        #: GPU -> when its present state began, and that state.
        self._present: dict[int, tuple[int, int]] = {}
        self._under_way = np.zeros((4, 0), np.int64)

    def advance(self, operations: np.ndarray, first: int, last: int | None) -> np.ndarray:
        """Return the states that end before `last`, sorted by start, as an array with four rows:
        GPU, start, end (ns) and state (not 0).

        operations: array with the rows GPU, bit, start and end, of operations that start in the
        window, first <= start < last (None: the last window).
        """
        known = np.concatenate([self._under_way, operations], axis=1)
        limit = int(known[3].max(initial=first)) + 1 if last is None else last
        pieces = [np.zeros((4, 0), np.int64)]
        for gpu, rows in group_rows(known[0]):
            _, bits, begin, end = known[:, rows]
            changes = [
                _find_busy_times(bit, begin[bits == bit].clip(first), end[bits == bit])
                for bit in np.unique(bits).tolist()
            ]
            time, state = sum_changes(*np.concatenate(changes, axis=1))
            inside = time < limit
            since, present = self._present.get(gpu, (0, 0))
            time, state = np.append(since, time[inside]), np.append(present, state[inside])
            changed = np.append(True, np.diff(state) != 0)
            time, state = time[changed], state[changed]
            self._present[gpu] = int(time[-1]), int(state[-1])
            pieces.append(np.stack([np.full(len(time) - 1, gpu), time[:-1], time[1:], state[:-1]]))
        self._under_way = known[:, known[3] >= limit]
        states = np.concatenate(pieces, axis=1)
        states = states[:, (states[3] != 0) & (states[1] < states[2])]
        return states[:, np.argsort(states[1], kind="stable")]


def _find_busy_times(bit: int, begin: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the times at which a class of operations becomes busy and idle, and its bit with a
    sign.
    """
    time, count = sum_changes(np.append(begin, end), np.repeat([1, -1], len(begin)))
    return time, np.diff(count > 0, prepend=False) * np.where(count > 0, bit, -bit)
