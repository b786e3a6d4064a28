"""Deriving: events that follow from what several tables of one report tell together. Each report is
a task of its own.

While reading, a kind sets facts aside (:meth:`Extraction.add_fact`), part by part. Here those of
one report come together in one frame a name, and the kind's `derive` makes rows of them, in the
report's own time. Memory is that of one report's facts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.columns import FrameWriter, StoredFrame, read_frame
from nsys2prv.events import all_kinds
from nsys2prv.events.extraction import DOMAIN, NAME, OBJECT, Names, Numbering, ObjectKey
from nsys2prv.events.kind import Account, EventKind
from nsys2prv.store.nesting import assign_nesting_lanes
from nsys2prv.store.overlaps import TOO_MANY
from nsys2prv.store.runs import SpillWriter
from nsys2prv.store.task_result import TaskResult


class TaskFacts(Struct, frozen=True):
    """Facts of one reading task, by name, and what the indices in them mean."""

    #: Name -> facts.
    facts: dict[str, StoredFrame]
    #: What local indices of objects mean.
    objects: tuple[ObjectKey, ...]
    #: What local indices of domains mean.
    domains: tuple[str, ...]
    names: dict[str, StoredFrame]


class DeriveTask(Struct, frozen=True):
    """One kind in one report."""

    #: Of the task.
    number: int
    #: Index of the report.
    report: int
    #: Name of the kind.
    kind: str
    #: Facts of all reading tasks of the report.
    sources: tuple[TaskFacts, ...]
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
        sources: dict[int, list[TaskFacts]] = {}
        for result in ordered if kind.derived else ():
            facts = {
                name: result.facts[name] for name in kind.derived.collects if name in result.facts
            }
            if facts:
                sources.setdefault(result.report, []).append(
                    TaskFacts(
                        facts, tuple(result.objects), tuple(result.domains), dict(result.names)
                    )
                )
        for report, fact_sources in sorted(sources.items()):
            tasks.append(
                DeriveTask(
                    number + len(tasks), report, kind.name, tuple(fact_sources), spill_folder
                )
            )
    return tasks


def derive_task(task: DeriveTask) -> TaskResult:
    """Bring the facts together and spill what follows from them (a pure function over files)."""
    kind = next(kind for kind in all_kinds() if kind.name == task.kind)
    common = _CommonNumbers()
    facts = {name: common.frame(name, task.sources) for name in kind.derived.collects}
    result = TaskResult(task.number, task.report, 0)
    account = Account()
    writer = SpillWriter(task.spill / f"runs-{task.number}.bin", task.report, task.number)
    try:
        for rows in kind.derived.derive(facts):
            if rows.nesting_owner is not None:
                lanes, crowded = assign_nesting_lanes(
                    rows.object, rows.nesting_owner, rows.begin, rows.end
                )
                rows.object = common.number_lanes(rows.object, lanes)
                if crowded:
                    account.repaired[TOO_MANY] += crowded
            result.store(rows, writer, account, kind.rows.open_ended)
    finally:
        writer.close()
    result.objects, result.domains = list(common.objects), list(common.domains)
    with FrameWriter(writer.path) as frames:
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

    def frame(self, name: str, sources: Sequence[TaskFacts]) -> pl.DataFrame:
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

    def _translate(self, frame: pl.DataFrame, source: TaskFacts) -> pl.DataFrame:
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

    def _number_names(self, name_set: str, source: TaskFacts, used: np.ndarray) -> np.ndarray:
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
