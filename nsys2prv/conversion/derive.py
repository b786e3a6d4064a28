"""Deriving: events that follow from what several tables of one report tell together. Each report is
a task of its own.

While reading, a kind sets facts aside (:meth:`Extraction.add_fact`), part by part. Here those of
one report come together in one frame a name, and the kind's `derive` makes rows of them, in the
report's own time. Memory is that of one report's facts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.columns import (
    FrameWriter,
    factorize_together,
    read_frame,
    reduce_slices,
)
from nsys2prv.events import all_kinds
from nsys2prv.events.extraction import DOMAIN, NAME, OBJECT, Names, Numbering
from nsys2prv.events.kind import Account, EventKind
from nsys2prv.store.overlaps import MOST_LANES, TOO_MANY, assign_first_free_lanes
from nsys2prv.store.runs import SpillWriter
from nsys2prv.store.task_result import TaskResult


class DeriveTask(Struct, frozen=True):
    """One kind in one report."""

    #: Of the task.
    number: int
    #: Index of the report.
    report: int
    #: Name of the kind.
    kind: str
    #: Results of all reading tasks of the report that hold facts for it, without their runs.
    sources: tuple[TaskResult, ...]
    #: Folder for its runs.
    spill: Path


def plan_derive_tasks(
    results: Sequence[TaskResult], kinds: Iterable[EventKind], spill_folder: Path
) -> list[DeriveTask]:
    """Return a task for every kind that derives and every report with facts of it."""
    tasks: list[DeriveTask] = []
    number = max((result.task for result in results), default=-1) + 1
    ordered = sorted(results, key=lambda result: result.task)
    for kind in kinds:
        collected = set(kind.derived.collects) if kind.derived else set()
        sources: dict[int, list[TaskResult]] = {}
        for result in ordered:
            if collected & result.facts.keys():
                sources.setdefault(result.report, []).append(
                    replace(result, runs=[], launches=[], regions=[])
                )
        for report, of_report in sorted(sources.items()):
            tasks.append(
                DeriveTask(number + len(tasks), report, kind.name, tuple(of_report), spill_folder)
            )
    return tasks


def derive_task(task: DeriveTask) -> TaskResult:
    """Bring the facts together and spill what follows from them (a pure function over files)."""
    kind = next(kind for kind in all_kinds() if kind.name == task.kind)
    common = _CommonNumbers()
    facts = {name: common.frame(name, task.sources) for name in kind.derived.collects}
    result = TaskResult(task.number, task.report, 0)
    account = Account()
    spill = task.spill / f"runs-{task.number}.bin"
    with closing(SpillWriter(spill, task.report, task.number)) as writer:
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
    with FrameWriter(spill) as frames:
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

    def frame(self, name: str, sources: Sequence[TaskResult]) -> pl.DataFrame:
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


def assign_nesting_lanes(
    object_: np.ndarray, owner: np.ndarray, begin: np.ndarray, end: np.ndarray
) -> tuple[np.ndarray, int]:
    """Return the lane of each range on its object, 0 for the object itself, and how many found no
    lane on which they nest.
    """
    layers, lanes = np.zeros(len(begin), np.int64), np.zeros(len(begin), np.int64)
    if not len(begin):
        return lanes, 0
    crowded = sum(
        _assign_layers(rows, begin, end, layers) for rows in _group_rows(begin, end, object_, owner)
    )
    stretch = _find_stretches(begin, end, object_, owner, layers)
    crowded += sum(
        _assign_nested_lanes(rows, begin, end, stretch, lanes)
        for rows in _group_rows(begin, end, object_)
    )
    return lanes, crowded


def _group_rows(begin: np.ndarray, end: np.ndarray, *keys: np.ndarray) -> list[np.ndarray]:
    """Return the rows of each group by begin, the longer first."""
    _, codes = factorize_together(*keys)
    order = np.lexsort((-end, begin, codes))
    return np.split(order, np.flatnonzero(np.diff(codes[order])) + 1)


def _find_crossing(begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return a mask of the rows that begin within an earlier one and end after it."""
    order = np.argsort(end, kind="stable")
    ends = end[order]
    first, last = np.searchsorted(ends, begin, "right"), np.searchsorted(ends, end, "left")
    crossing = np.zeros(len(begin), bool)
    spanning = np.flatnonzero(first < last)
    if len(spanning):
        crossing[spanning] = (
            reduce_slices(begin[order], first[spanning], last[spanning], np.minimum)
            < begin[spanning]
        )
    return crossing


def _assign_layers(rows: np.ndarray, begin: np.ndarray, end: np.ndarray, layers: np.ndarray) -> int:
    """Fill in layers of an owner's rows in which all nest; returns how many are left over in the
    last.
    """
    for layer in range(MOST_LANES):
        layers[rows] = layer
        rows = rows[_find_crossing(begin[rows], end[rows])]
        if not len(rows):
            return 0
    return len(rows)


def _find_stretches(begin: np.ndarray, end: np.ndarray, *keys: np.ndarray) -> np.ndarray:
    """Return, for each row, the number of its stretch: the rows of equal keys between two times at
    which there is none.
    """
    _, codes = factorize_together(*keys)
    order = np.lexsort((begin, codes))
    group = codes[order]
    # Ends as numbers that grow from group to group, so that one running maximum serves all.
    times, place = np.unique(end[order], return_inverse=True)
    reach = times[np.maximum.accumulate(group * len(times) + place.reshape(-1)) % len(times)]
    fresh = np.ones(len(order), bool)
    fresh[1:] = (group[1:] != group[:-1]) | (begin[order][1:] >= reach[:-1])
    stretch = np.empty(len(order), np.int64)
    stretch[order] = np.cumsum(fresh) - 1
    return stretch


def _assign_nested_lanes(
    rows: np.ndarray, begin: np.ndarray, end: np.ndarray, stretch: np.ndarray, lanes: np.ndarray
) -> int:
    """Fill in the lanes of an object's rows, stretch by stretch; returns how many find none."""
    _, unit = np.unique(stretch[rows], return_inverse=True)
    unit = unit.reshape(-1)
    for lane in range(MOST_LANES):
        stays = np.ones(int(unit.max()) + 1, bool)
        stays[unit[_find_crossing(begin[rows], end[rows])]] = False
        if not stays[unit].any():
            return _assign_free_lanes(rows, begin, end, unit, lanes, lane)
        lanes[rows] = lane
        rows, unit = rows[~stays[unit]], unit[~stays[unit]]
        if not len(rows):
            return 0
    return len(rows)


def _assign_free_lanes(
    rows: np.ndarray,
    begin: np.ndarray,
    end: np.ndarray,
    unit: np.ndarray,
    lanes: np.ndarray,
    free: int,
) -> int:
    """Fill in lanes from `free` on, on which no stretch overlaps another; returns how many rows
    find none.
    """
    numbers, unit = np.unique(unit, return_inverse=True)
    unit = unit.reshape(-1)
    first, last = np.zeros((2, len(numbers)), np.int64)
    # Any row's times to begin with.
    first[unit], last[unit] = begin[rows], end[rows]
    np.minimum.at(first, unit, begin[rows])
    np.maximum.at(last, unit, end[rows])
    order = np.lexsort((-last, first))
    of_unit = np.empty(len(numbers), np.int64)
    of_unit[order], _ = assign_first_free_lanes(
        np.zeros(len(numbers), np.int64), first[order], last[order], {}
    )
    wanted = of_unit[unit] + free
    lanes[rows] = np.minimum(wanted, MOST_LANES - 1)
    return int(np.count_nonzero(wanted >= MOST_LANES))
