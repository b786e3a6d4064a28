"""Make state records of threads and streams: a task for each report, in chunks of its time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from nsys2prv._util.columns import OPEN, StoredFrame, read_frame
from nsys2prv.clock.maps import ClockMap
from nsys2prv.events.catalogue import Layout, NameSet, catalogue
from nsys2prv.events.catalogue.sections import StateRule
from nsys2prv.events.extraction import ObjectKey, QueueKey, StreamKey, ThreadKey
from nsys2prv.relations.innermost import (
    NOTHING,
    Changes,
    Keys,
    Ranges,
    innermost_states,
    overlay_layers,
)
from nsys2prv.store import windows
from nsys2prv.store.runs import (
    BEGIN,
    COUNTER,
    LINE,
    STATE,
    TRACE,
    Run,
    Shape,
    SpillReader,
    SpillWriter,
    list_present_fields,
)
from nsys2prv.store.task_result import TaskResult


class Records:
    """The state that each object is in since when; changes, in the order of time, turn it into
    records.

    state: of each object at time 0.
    """

    def __init__(self, state: np.ndarray) -> None:
        self._state = state.copy()
        self._since = np.zeros(len(state), np.int64)

    def after(self, changes: Changes) -> tuple[np.ndarray, ...]:
        """Return object, begin, end and state of the records that these changes end, by begin."""
        object_, time, state = changes.object, changes.time, changes.state
        # An object's changes with its present state in front of them.
        seen, first = np.unique(object_, return_index=True)
        object_ = np.insert(object_, first, seen)
        time = np.insert(time, first, self._since[seen])
        state = np.insert(state, first, self._state[seen])
        other = (
            np.append(True, (np.diff(object_) != 0) | (np.diff(state) != 0))
            if len(object_)
            else np.zeros(0, bool)
        )
        object_, time, state = object_[other], time[other], state[other]
        last = np.append(np.diff(object_) != 0, True) if len(object_) else np.zeros(0, bool)
        self._since[object_[last]], self._state[object_[last]] = time[last], state[last]
        ended = np.flatnonzero(~last)
        return _by_begin(object_[ended], time[ended], time[ended + 1], state[ended])

    def rest(self, objects: np.ndarray, end: int) -> tuple[np.ndarray, ...]:
        """Return the records of these objects that last until the end."""
        return _by_begin(
            objects, self._since[objects], np.full(len(objects), end), self._state[objects]
        )


def _by_begin(
    object_: np.ndarray, begin: np.ndarray, end: np.ndarray, state: np.ndarray
) -> tuple[np.ndarray, ...]:
    kept = np.flatnonzero(begin < end)
    order = kept[np.argsort(begin[kept], kind="stable")]
    return object_[order], begin[order], end[order], state[order]


#: Ranges looked at together.
CHUNK_RECORDS = 300_000
IDLE, RUNNING, NOT_CREATED = 0, 1, 2


class StateTask(Struct, frozen=True):
    """A report's results, without their names; names: of its tasks, per name set. threads: of each
    task's objects, thread of the trace.

    states: thread -> the state in which it is outside of all ranges; only these have states. asked:
    of these, threads that have states only if a range implies one. clock: to trace time. others:
    of each task, runs that imply no states.
    """

    number: int
    results: tuple[TaskResult, ...]
    names: Mapping[int, Mapping[str, StoredFrame]]
    threads: Mapping[int, np.ndarray]
    states: Mapping[int, int]
    asked: frozenset[int]
    clock: ClockMap
    duration: int
    spill: Path
    others: Mapping[int, tuple[Run, ...]] = field(default_factory=dict)


def plan_state_tasks(
    results: Sequence[TaskResult],
    rows: Mapping[tuple[int, ObjectKey], int],
    threads: Mapping[int, np.ndarray],
    clocks: Sequence[ClockMap],
    duration: int,
    spill: Path,
) -> list[StateTask]:
    """Return a task for each report that has rows with states. rows: of the objects of reports;
    threads: of each task's objects.
    """
    states: dict[int, dict[int, int]] = {}
    asked: dict[int, set[int]] = {}
    for (report, key), thread in rows.items():
        if isinstance(key, QueueKey):
            asked.setdefault(report, set()).add(thread)
        # Further rows of a thread are for ranges that overlap others, and no threads.
        if isinstance(key, (StreamKey, QueueKey)) or (isinstance(key, ThreadKey) and not key.lane):
            states.setdefault(report, {})[thread] = RUNNING if isinstance(key, ThreadKey) else IDLE
    first = max((result.task for result in results), default=-1) + 1
    tasks = []
    for report in sorted(states):
        own = [result for result in results if result.report == report]
        tasks.append(
            StateTask(
                first + len(tasks),
                tuple(
                    replace(
                        result, names={}, objects=[], launches=[], runs=_state_runs(result.runs)
                    )
                    for result in own
                ),
                {result.task: result.names for result in own},
                {result.task: threads[result.task] for result in own},
                states[report],
                frozenset(asked.get(report, ())),
                clocks[report],
                duration,
                spill,
                {result.task: _others(result.runs) for result in own},
            )
        )
    return tasks


def _state_runs(runs: Sequence[Run]) -> list[Run]:
    """Return begins of layouts that imply states."""
    return [
        run
        for run in runs
        if run.shape.stream == BEGIN and catalogue().layouts[run.shape.name].state is not None
    ]


def _others(runs: Sequence[Run]) -> tuple[Run, ...]:
    """Return begins and samples of layouts that imply no states, and lines."""
    return tuple(
        run
        for run in runs
        if run.shape.stream in (COUNTER, LINE)
        or (run.shape.stream == BEGIN and catalogue().layouts[run.shape.name].state is None)
    )


def _without_events(task: StateTask, threads: np.ndarray) -> np.ndarray:
    """Return which of the threads are of a host and have no event at all, nor a line."""
    silent = np.array([task.states[thread] == RUNNING for thread in threads.tolist()], bool)
    runs = [(result.task, run) for result in task.results for run in result.runs]
    runs += [(number, run) for number, others in task.others.items() for run in others]
    reader = SpillReader()
    for number, run in runs:
        if not silent.any():
            break
        if run.object >= 0:
            met = np.array([run.object])
        else:
            records = reader.read_between(run, -OPEN, None)
            ends = ("sender", "receiver") if run.shape.stream == LINE else ("object",)
            met = np.unique(np.concatenate([np.unique(records[name]) for name in ends]))
        silent &= ~np.isin(threads, task.threads[number][met])
    reader.close()
    return silent


def make_states(task: StateTask) -> TaskResult:
    """Return the state records of one report's rows, as runs in trace time."""
    result = TaskResult(task.number, TRACE, 0)
    writer = SpillWriter(task.spill / f"runs-{task.number}.bin", TRACE, task.number)
    try:
        for records in _records(task):
            if len(records[0]):
                result.runs.append(_append(writer, *records))
    finally:
        writer.close()
    return result


def _append(
    writer: SpillWriter, thread: np.ndarray, begin: np.ndarray, end: np.ndarray, state: np.ndarray
) -> Run:
    shape = Shape(STATE, STATE)
    records = np.empty(len(thread), shape.dtype)
    for name, column in (("time", begin), ("end", end), ("object", thread), ("state", state)):
        records[name] = column
    return writer.append(shape, records, int(end.max()))


def _records(task: StateTask) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield thread, begin, end and state of records, by begin, a piece of the report's time after
    the other.
    """
    threads = np.array(sorted(task.states), np.int64)
    outside = np.array([task.states[thread] for thread in threads.tolist()], np.int64)
    outside[_without_events(task, threads)] = NOT_CREATED
    wanted = ~np.isin(threads, np.fromiter(task.asked, np.int64, len(task.asked)))
    records = Records(outside)
    ranges, holding = Ranges.none(), Ranges.none()
    first = 0
    for new_ranges, new_holding, limit in ranges_by_chunk(task, threads):
        wanted[new_ranges.object] = True
        ranges, holding = Ranges.joined([ranges, new_ranges]), Ranges.joined([holding, new_holding])
        # What a clock moved to the limit or behind it is for the next chunk.
        begun, held = (
            ranges.chosen(np.flatnonzero(ranges.begin < limit)),
            holding.chosen(np.flatnonzero(holding.begin < limit)),
        )
        keys = Keys(first, limit, len(threads), (begun.begin, begun.end, held.begin))
        layers = [
            innermost_states(begun.chosen(np.flatnonzero(begun.yields == yields)), keys)
            for yields in (False, True)
        ]
        layers.append((keys.of(held.object, held.begin), held.state))
        objects, *columns = records.after(overlay_layers(layers, outside, keys))
        yield threads[objects], *columns
        outside[held.object] = held.state
        # What ends at the limit is told to end with the next chunk.
        ranges, holding = (
            ranges.chosen(np.flatnonzero(ranges.end >= limit)),
            holding.chosen(np.flatnonzero(holding.begin >= limit)),
        )
        first = limit
    objects, *columns = records.rest(np.flatnonzero(wanted), task.duration)
    yield threads[objects], *columns


def ranges_by_chunk(task: StateTask, threads: np.ndarray) -> Iterator[tuple[Ranges, Ranges, int]]:
    """Yield the ranges that begin in a chunk of time, what the layouts that hold say in it (by
    begin), and up to when all that began is told.

    Objects are indices into `threads`.
    """
    runs = [(result.task, run) for result in task.results for run in result.runs]
    reader = SpillReader()
    rules = _Rules(task)
    for first, last, limit in _bounds(task, [run for _, run in runs]):
        ranges, holding = [Ranges.none()], [Ranges.none()]
        for number, run in runs:
            if (last is not None and run.first >= last) or (
                first is not None and run.until < first
            ):
                continue
            found = reader.read_between(run, -OPEN if first is None else first, last)
            if len(found):
                layout = catalogue().layouts[run.shape.name]
                (holding if layout.is_state else ranges).append(
                    _ranges(task, number, run, layout, found, threads, rules)
                )
        states = Ranges.joined(holding)
        yield Ranges.joined(ranges), states.chosen(np.argsort(states.begin, kind="stable")), limit
    reader.close()


def _bounds(task: StateTask, runs: Sequence[Run]) -> Iterator[tuple[int | None, int | None, int]]:
    """Yield chunks of local time (None: without a bound), and the trace time up to which each and
    those before it are complete.
    """
    samples = (
        np.sort(np.concatenate([run.samples for run in runs])) if runs else np.zeros(0, np.int64)
    )
    step = max(1, len(samples) * CHUNK_RECORDS // max(1, sum(run.rows for run in runs)))
    first, told = None, 0
    for time in sorted({int(time) for time in samples[step::step]}):
        # A clock that is slowed down may have a range begin 1 ns earlier, see store.placing.
        limit = int(task.clock.to_global(np.int64(time))) - (task.clock.slack > 0)
        if told < limit < task.duration:
            yield first, time, limit
            first, told = time, limit
    yield first, None, task.duration


def _ranges(
    task: StateTask,
    number: int,
    run: Run,
    layout: Layout,
    found: np.ndarray,
    threads: np.ndarray,
    rules: _Rules,
) -> Ranges:
    """Return the records of a run that imply states of rows with states."""
    begin, end = (
        windows.to_begin_times(found, task.clock),
        windows.to_end_times(found, task.clock, task.duration),
    )
    thread = task.threads[number][found["object"]]
    object_ = np.minimum(np.searchsorted(threads, thread), len(threads) - 1)
    state = rules.states(number, run, layout, found)
    kept = np.flatnonzero(
        (threads[object_] == thread) & (state != NOTHING) & ((begin < end) | layout.is_state)
    )
    return Ranges(
        object_[kept],
        begin[kept],
        end[kept],
        state[kept],
        np.full(len(kept), layout.state is not None and layout.state.yields),
    )


class _Rules:
    """State rules of layouts, applied to records; caches the states of the names of each task."""

    def __init__(self, task: StateTask) -> None:
        self._files = task.names
        self._of_names: dict[tuple[int, str, str], np.ndarray] = {}

    def states(self, number: int, run: Run, layout: Layout, found: np.ndarray) -> np.ndarray:
        """Return the state that each record implies, NOTHING where it implies none."""
        rule = layout.state
        assert rule is not None
        field = next(
            field for field in layout.fields if field.name == (rule.field or layout.fields[0].name)
        )
        otherwise = NOTHING if rule.otherwise is None else rule.otherwise
        if field in list_present_fields(layout, run.shape.present):
            if rule.names and isinstance(field.values, NameSet):
                return self._by_name(number, layout, field.values.name, rule, otherwise)[
                    found[field.name]
                ]
            if rule.values:
                return _by_value(rule, otherwise)[
                    np.minimum(found[field.name], max(value for value, _ in rule.values) + 1)
                ]
        return np.full(len(found), otherwise)

    def _by_name(
        self, number: int, layout: Layout, name_set: str, rule: StateRule, otherwise: int
    ) -> np.ndarray:
        """Return the state for each of the names that a task met."""
        key = number, layout.name, name_set
        if key not in self._of_names:
            patterns = [(state, re.compile(pattern)) for state, pattern in rule.names]
            texts = read_frame(self._files[number][name_set])["text"].to_list()
            self._of_names[key] = np.array(
                [
                    next((state for state, pattern in patterns if pattern.search(text)), otherwise)
                    for text in texts
                ],
                np.int64,
            )
        return self._of_names[key]


def _by_value(rule: StateRule, otherwise: int) -> np.ndarray:
    """Return the state for each value up to one more than the greatest that the rule knows."""
    table = np.full(max(value for value, _ in rule.values) + 2, otherwise)
    for value, state in rule.values:
        table[value] = state
    return table
