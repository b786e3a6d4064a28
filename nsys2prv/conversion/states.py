"""Derive states: state records of threads and streams, and the states of GPUs as events.

A thread or stream is in the state of its innermost open range; ranges may overlap arbitrarily. A
GPU's state names the classes of work in progress on it, from all streams of all processes.

In: runs of reports. Out: runs in trace time. Each task goes through windows of time, first <= time
< limit. Times are int64 ns; objects are small indices.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from msgspec import Struct

from nsys2prv._util.columns import OPEN, Table, mask_changes, number_linked, sum_changes
from nsys2prv.conversion.job import Job, group_by_report, make_global_ids
from nsys2prv.events.catalogue import Field, Layout, NameSet, load_catalogue
from nsys2prv.events.extraction import QueueKey, StreamKey, ThreadKey, find_stream_device
from nsys2prv.events.kind import Rows
from nsys2prv.relations import write_result
from nsys2prv.store.runs import (
    BEGIN,
    COUNTER,
    LINE,
    STATE,
    TRACE,
    RecordFormat,
    Run,
    SpillWriter,
    list_present_fields,
    read_run,
)
from nsys2prv.store.windows import (
    GlobalIds,
    WindowReader,
    WindowRecords,
    choose_window_bounds,
    load_global_ids,
)
from nsys2prv.store.work_result import WorkResult

#: Streams of the runs that show activity of rows.
STREAMS = BEGIN, COUNTER, LINE
#: States of rows outside of all ranges.
IDLE, RUNNING, NOT_CREATED = 0, 1, 2
#: No state, where no range implies one.
NOTHING = -1
#: Keys of an object and a time must stay below this.
_LARGEST_KEY = 1 << 62

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

#: Layout -> values of its deciding names, ascending, and the state that each implies.
NameStates = dict[str, tuple[np.ndarray, np.ndarray]]


class StateWork(Struct, frozen=True):
    """A task: the rows of one report, and the runs that determine their states."""

    #: Number of the task.
    number: int
    #: Begins, samples and lines.
    runs: tuple[Run, ...]
    #: File with what their times and numbers mean.
    global_ids: Path
    #: States that names imply.
    name_states: NameStates
    #: Threads that have states, ascending, and the state in which each is outside of all ranges.
    threads: np.ndarray
    outside: np.ndarray
    #: Which of them have states only if a range implies one.
    is_queue: np.ndarray
    #: Folder for its runs.
    folder: Path
    #: Begin and end (ns) of what the report captured; rows have no states outside. None: all.
    captured: tuple[int, int] | None


def plan_state_tasks(job: Job) -> list[StateWork]:
    """Return a task for each report that has rows with states."""
    rows: dict[int, dict[int, tuple[int, bool]]] = defaultdict(dict)
    for (report, key), thread in job.model.rows.items():
        # Further rows of a thread are for ranges that overlap others, and no threads.
        if isinstance(key, (StreamKey, QueueKey)) or (isinstance(key, ThreadKey) and not key.lane):
            state = RUNNING if isinstance(key, ThreadKey) else IDLE
            rows[report][thread] = state, isinstance(key, QueueKey)
    runs = group_by_report(run for run in job.runs if run.shape.stream in STREAMS)
    global_ids = job.folder / "ids-of-states"
    make_global_ids(job).save(global_ids)
    captured, name_states = _find_captured_times(job), _find_name_states(job)
    tasks = []
    for number, report in enumerate(sorted(rows), 1 + max(one.task for one in job.results)):
        threads = np.array([(row, *of) for row, of in sorted(rows[report].items())], np.int64).T
        own = threads[0], threads[1], threads[2].astype(bool)
        task = number, tuple(runs[report]), global_ids, name_states, *own, job.folder
        tasks.append(StateWork(*task, captured.get(report)))
    return tasks


def _find_captured_times(job: Job) -> dict[int, tuple[int, int]]:
    """Return begin and end (ns of the trace) of each capture of a process that was captured several
    times. The first begins with the trace, the last ends with it.
    """
    captured = {}
    for chain in job.captures.chains:
        spans = [job.clocks[one].to_global(np.array(job.spans[one])).tolist() for one in chain]
        spans[0][0], spans[-1][1] = 0, job.duration
        captured |= {report: tuple(span) for report, span in zip(chain, spans, strict=True)}
    return captured


def _find_name_states(job: Job) -> NameStates:
    """Return the states that the names in a job imply, by layout."""
    found: NameStates = {}
    for name, layout in load_catalogue().layouts.items():
        names = layout.state.names if layout.state is not None else ()
        values = _find_deciding_field(layout).values if names else None
        if isinstance(values, NameSet) and values.name in job.values:
            patterns = [(state, re.compile(pattern)) for state, pattern in names]
            labels = job.values[values.name].labels.sort("value")
            default = _find_default(layout)
            states = [
                next((state for state, pattern in patterns if pattern.search(text)), default)
                for text in labels["label"].to_list()
            ]
            found[name] = labels["value"].to_numpy(), np.array(states, np.int64)
    return found


def _find_deciding_field(layout: Layout) -> Field:
    return list_present_fields(layout, layout.state_mask)[0]


def _find_default(layout: Layout) -> int:
    return NOTHING if layout.state.otherwise is None else layout.state.otherwise


def make_states(task: StateWork) -> WorkResult:
    """Return the state records of one report's rows, as runs in trace time."""
    result = WorkResult(task.number, TRACE, 0)
    shape = RecordFormat(STATE, STATE)
    path = task.folder / f"runs-{task.number}.bin"
    with SpillWriter(path, TRACE, task.number) as writer:
        for thread, begin, end, state in _make_records(task, load_global_ids(task.global_ids)):
            if task.captured is not None:
                begin, end = np.maximum(begin, task.captured[0]), np.minimum(end, task.captured[1])
                thread, begin, end, state = (
                    column[begin < end] for column in (thread, begin, end, state)
                )
            if len(thread):
                columns = {"time": begin, "end": end, "object": thread, "state": state}
                greatest = int(end.max())
                result.runs.append(writer.append_columns(shape, columns, slice(None), greatest))
    return result


def _make_records(task: StateWork, global_ids: GlobalIds) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield thread, begin, end and state of records, window by window, each sorted by begin."""
    threads = task.threads
    outside = np.where(_mask_idle_threads(task, global_ids), NOT_CREATED, task.outside)
    wanted = ~task.is_queue
    records = OpenStates(outside)
    ranges = Ranges.make_empty()
    layouts, duration = load_catalogue().layouts, global_ids.duration
    telling = [
        run
        for run in task.runs
        if run.shape.stream == BEGIN and layouts[run.shape.name].state is not None
    ]
    bounds = [one for one in choose_window_bounds(telling, global_ids.clocks) if one < duration]
    with WindowReader(telling, global_ids) as reader:
        for first, last in pairwise([*bounds, None]):
            limit = duration if last is None else last
            begun, holding = [ranges], [Ranges.make_empty()]
            for shape, found in reader.read(first, last).items():
                part = _read_ranges(task, layouts[shape.name], shape, found, threads, duration)
                if layouts[shape.name].is_state:
                    holding.append(part)
                else:
                    begun.append(part)
                    wanted[part.object] = True
            ranges, held = Ranges.concat(begun), Ranges.concat(holding)
            held = held[np.argsort(held.begin, kind="stable")]
            keys = Keys(first, limit, len(threads), (ranges.begin, ranges.end, held.begin))
            layers = [
                find_innermost_states(ranges[ranges.yields == yields], keys)
                for yields in (False, True)
            ]
            layers.append((keys.join(held.object, held.begin), held.state))
            objects, *columns = records.close_changed(*overlay_layers(layers, outside, keys))
            yield threads[objects], *columns
            outside[held.object] = held.state
            # Ranges that end at the limit end in the next window.
            ranges = ranges[ranges.end >= limit]
    rows = np.flatnonzero(wanted)
    ends = np.full(len(rows), duration), np.full(len(rows), NOTHING)
    objects, *columns = records.close_changed(rows, *ends)
    yield threads[objects], *columns


def _mask_idle_threads(task: StateWork, global_ids: GlobalIds) -> np.ndarray:
    """Return which threads are host threads without any event or line."""
    silent = task.outside == RUNNING
    for run in task.runs:
        if not silent.any():
            break
        objects = np.array([run.object])
        if run.object < 0:
            records = read_run(run)
            ends = ("sender", "receiver") if run.shape.stream == LINE else ("object",)
            objects = np.unique(np.concatenate([np.unique(records[name]) for name in ends]))
        silent &= ~np.isin(task.threads, global_ids.objects.get_table(run.task)[objects])
    return silent


def _read_ranges(
    task: StateWork,
    layout: Layout,
    shape: RecordFormat,
    records: WindowRecords,
    threads: np.ndarray,
    duration: int,
) -> Ranges:
    """Return the ranges of a layout that imply states, on rows that have states."""
    begin, end, thread = records.times, records.column("end"), records.column("object")
    end = np.where(end == OPEN, duration, end)
    object_ = np.minimum(np.searchsorted(threads, thread), len(threads) - 1)
    state = _find_states(task.name_states, layout, shape, records)
    kept = np.flatnonzero(
        (threads[object_] == thread) & (state != NOTHING) & ((begin < end) | layout.is_state)
    )
    yields = np.full(len(kept), layout.state.yields)
    return Ranges(object_[kept], begin[kept], end[kept], state[kept], yields)


def _find_states(
    name_states: NameStates, layout: Layout, shape: RecordFormat, records: WindowRecords
) -> np.ndarray:
    """Return the state that each record implies, NOTHING where it implies none."""
    default, field = _find_default(layout), _find_deciding_field(layout)
    if field in list_present_fields(layout, shape.field_mask):
        if layout.name in name_states:
            values, states = name_states[layout.name]
            return states[np.searchsorted(values, records.column(field.name))]
        if layout.state.values:
            # For each value, up to one more than the greatest that the rule has.
            known = dict(layout.state.values)
            states = np.full(max(known) + 2, default)
            states[list(known)] = list(known.values())
            return states[np.minimum(records.column(field.name), len(states) - 1)]
    return np.full(len(records), default)


class Ranges(Table, frozen=True):
    """Ranges of rows that imply states."""

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


class Keys:
    """Combine an object and a time of a window into one number, ordered by object, then time.

    times: all that may occur. Where a window is too long for that many objects (damaged reports
    span years), the rank of a time among them is used in its place.
    """

    def __init__(self, first: int, limit: int, objects: int, times: Sequence[np.ndarray]) -> None:
        self._first, self._limit = first, limit
        self._places: np.ndarray | None = None
        #: Keys of one object; that of the limit is the last.
        self.span = limit - first + 1
        if self.span * max(objects, 1) >= _LARGEST_KEY:
            self._places = np.unique(
                np.clip(np.concatenate([*times, [first, limit]]), first, limit)
            )
            self.span = len(self._places)

    def join(self, object_: np.ndarray, time: np.ndarray) -> np.ndarray:
        """Return the keys of objects and times; times are clipped to the window."""
        inside = np.clip(time, self._first, self._limit)
        return object_ * self.span + (
            inside - self._first if self._places is None else np.searchsorted(self._places, inside)
        )

    def split(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return objects and times."""
        object_ = keys // self.span
        place = keys - object_ * self.span
        return object_, place + self._first if self._places is None else self._places[place]


def find_innermost_states(ranges: Ranges, keys: Keys) -> tuple[np.ndarray, np.ndarray]:
    """Return the keys at which the innermost range changes, ascending, and its state from there on
    (NOTHING without any range).

    The innermost range is the one that began last; of several that began together the shortest,
    then the one with the greatest state. No change is reported at the window's limit. Ranges that
    began before the window count as begun with it, in their order.
    """
    begin, end = keys.join(ranges.object, ranges.begin), keys.join(ranges.object, ranges.end)
    order = np.argsort(begin, kind="stable")
    together = np.diff(begin[order]) == 0
    if together.any():
        tied = np.flatnonzero(np.append(together, False) | np.append(False, together))
        rows = order[tied]
        order[tied] = rows[
            np.lexsort((ranges.state[rows], -ranges.end[rows], ranges.begin[rows], begin[rows]))
        ]
    begin, end, state = begin[order], end[order], ranges.state[order]
    outer = _find_enclosing(begin, end)
    changes = np.sort(np.concatenate((begin, end)))  # numpy's unique is many times as slow
    changes = changes[mask_changes(changes)]
    changes = changes[(changes + 1) % keys.span != 0]
    innermost = np.searchsorted(begin, changes, "right") - 1
    closed = np.flatnonzero(end[innermost] <= changes)
    while len(closed):
        innermost[closed] = outer[innermost[closed]]
        closed = closed[innermost[closed] >= 0]
        closed = closed[end[innermost[closed]] <= changes[closed]]
    return changes, np.where(innermost >= 0, state[innermost], NOTHING)


def _find_enclosing(begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return, for each range, the last earlier range that ends later and is still open at its
    begin; NOTHING if there is none.

    Every range points to its predecessor, and on to where that points as long as the target ends no
    later. All pointers advance at once, and their steps grow.
    """
    outer = np.arange(-1, len(begin) - 1)
    if len(begin):
        outer[1:][begin[1:] >= np.maximum.accumulate(end)[:-1]] = NOTHING
    going = np.flatnonzero(outer >= 0)
    going = going[end[outer[going]] <= end[going]]
    while len(going):
        outer[going] = outer[outer[going]]
        going = going[outer[going] >= 0]
        going = going[end[outer[going]] <= end[going]]
    return outer


def overlay_layers(
    layers: list[tuple[np.ndarray, np.ndarray]], before: np.ndarray, keys: Keys
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Overlay layers of (keys, states): at each time the first layer with a state counts. Returns
    objects, times and states from then on, sorted by object and time, at most one per object and
    time.

    before: the state of each object in the last layer before its first key; other layers have none.
    """
    where = np.concatenate([layer_keys for layer_keys, _ in layers])
    layer = np.repeat(np.arange(len(layers)), [len(layer_keys) for layer_keys, _ in layers])
    says = np.concatenate([states for _, states in layers])
    order = np.argsort(where, kind="stable")
    where, layer, says = where[order], layer[order], says[order]
    object_, time = keys.split(where)
    place = np.arange(len(where))
    start = np.maximum.accumulate(np.where(np.diff(object_, prepend=-1) != 0, place, 0))
    state = np.full(len(where), NOTHING)
    for number in range(len(layers)):
        last = np.maximum.accumulate(np.where(layer == number, place, -1))
        has_state = last >= start
        default = before[object_] if number == len(layers) - 1 else NOTHING
        state = np.where(state == NOTHING, np.where(has_state, says[last], default), state)
    final = np.ones(len(where), bool)
    final[:-1] = np.diff(where) != 0
    return object_[final], time[final], state[final]


class OpenStates:
    """The current state of each object and when it began; turns changes, in the order of time, into
    records.

    state: of each object at time 0.
    """

    def __init__(self, state: np.ndarray) -> None:
        self._state = state.copy()
        self._since = np.zeros(len(state), np.int64)

    def close_changed(
        self, object_: np.ndarray, time: np.ndarray, state: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        """Return object, begin, end and state of the records that changes end, by begin. The
        changes come as :func:`overlay_layers` returns them.
        """
        # An object's changes with its present state in front of them.
        seen, first = np.unique(object_, return_index=True)
        object_ = np.insert(object_, first, seen)
        time = np.insert(time, first, self._since[seen])
        state = np.insert(state, first, self._state[seen])
        other = np.ones(len(object_), bool)
        other[1:] = (np.diff(object_) != 0) | (np.diff(state) != 0)
        object_, time, state = object_[other], time[other], state[other]
        last = np.ones(len(object_), bool)
        last[:-1] = np.diff(object_) != 0
        self._since[object_[last]], self._state[object_[last]] = time[last], state[last]
        ended = np.flatnonzero(~last)
        ended = ended[time[ended] < time[ended + 1]]
        ended = ended[np.argsort(time[ended], kind="stable")]
        return object_[ended], time[ended], time[ended + 1], state[ended]


class DeviceStateWork(Struct, frozen=True):
    """A task: the operations on some GPUs."""

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
    runs = group_by_report(
        run for run in job.runs if run.shape.stream == BEGIN and run.shape.name in BITS
    )
    global_ids = job.folder / "ids-of-operations"
    make_global_ids(job).save(global_ids)
    # Reports that share a GPU are of one task.
    reports = sorted(runs)
    groups: dict[int, list[Run]] = defaultdict(list)
    for report, group in zip(reports, number_linked(gpus_of[one] for one in reports), strict=True):
        groups[group] += runs[report]
    tasks = [
        DeviceStateWork(number + group, tuple(own), global_ids, gpu_of, job.folder)
        for group, own in groups.items()
    ]
    return job.run(make_device_states, tasks)


def make_device_states(task: DeviceStateWork) -> WorkResult:
    """Return the states of the task's GPUs, as runs in trace time on rows of the trace."""
    global_ids = load_global_ids(task.global_ids)
    bounds = choose_window_bounds(task.runs, global_ids.clocks)
    states = GpuStates(len(task.gpu_of))
    with WindowReader(task.runs, global_ids) as reader:
        pieces = (
            states.advance(_read_operations(task, reader.read(first, last)), first, last)
            for first, last in pairwise([*bounds, None])
        )
        rows = (
            Rows(DEVICE_STATE, begin, end, gpu, {"state": state})
            for gpu, begin, end, state in pieces
            if len(gpu)
        )
        return write_result(DEVICE_STATE, task.number, task.folder, rows)


def _read_operations(
    task: DeviceStateWork, operations: Mapping[RecordFormat, WindowRecords]
) -> np.ndarray:
    """Return an array with the rows GPU, bit, begin and end."""
    columns = [
        np.array(
            [
                task.gpu_of[records.column("object")],
                np.full(len(records), BITS[shape.name]),
                records.times,
                records.column("end"),
            ]
        )
        for shape, records in operations.items()
    ]
    return np.concatenate([np.zeros((4, 0), np.int64), *columns], axis=1)


class GpuStates:
    """Finds the states of GPUs window by window. A state is the sum of the bits of the classes with
    some operation in progress.

    rows: number of rows of the trace.
    """

    def __init__(self, rows: int) -> None:
        self._rows, self._states = rows, OpenStates(np.zeros(rows, np.int64))
        self._under_way = np.zeros((4, 0), np.int64)

    def advance(
        self, operations: np.ndarray, first: int, last: int | None
    ) -> tuple[np.ndarray, ...]:
        """Return GPU, begin, end and state (other than 0) of the states that end before `last`, by
        begin.

        operations: GPU, bit, begin and end of those that begin in the window, first <= begin < last
        (None: the last window).
        """
        gpu, bit, begin, end = known = np.concatenate([self._under_way, operations], axis=1)
        limit = int(end.max(initial=first)) + 1 if last is None else last
        keys = Keys(first, limit, self._rows, (begin, end))
        places, steps = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for one in np.unique(bit):
            own = bit == one
            changes = keys.join(np.tile(gpu[own], 2), np.concatenate([begin[own], end[own]]))
            place, count = sum_changes(changes, np.repeat([1, -1], np.count_nonzero(own)))
            places.append(place)
            steps.append(np.diff(count > 0, prepend=False) * np.where(count > 0, one, -one))
        place, state = sum_changes(np.concatenate(places), np.concatenate(steps))
        inside = (place + 1) % keys.span != 0
        self._under_way = known[:, end >= limit]
        closed = self._states.close_changed(*keys.split(place[inside]), state[inside])
        return tuple(column[closed[-1] != 0] for column in closed)
