"""Derive the events of kinds that follow from several tables of one report: a task for each kind and
report.

While reading, a kind sets facts aside (:meth:`Extraction.add_fact`), part by part. Here those of
one report come together in one frame a name, and the kind's `derive` makes rows of them, in the
report's own time. Memory is that of one report's facts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.columns import FrameWriter, read_frame
from nsys2prv.conversion.job import Job
from nsys2prv.events import all_kinds
from nsys2prv.events.extraction import DOMAIN, NAME, OBJECT, Names, Numbering
from nsys2prv.events.kind import Account, Rows
from nsys2prv.store.overlaps import TOO_MANY, assign_nesting_lanes
from nsys2prv.store.runs import SpillWriter
from nsys2prv.store.work_result import WorkResult


class DeriveWork(Struct, frozen=True):
    """One kind in one report."""

    #: Number of the task.
    number: int
    #: Index of the report.
    report: int
    #: Name of the kind.
    kind: str
    #: Results of all reading tasks of the report that hold facts for it, without their runs.
    sources: list[WorkResult]
    #: Folder for its runs.
    folder: Path


def derive_events(job: Job) -> None:
    """Add the events that follow from the facts of the selected kinds."""
    job.results += job.run(derive_task, list(_plan_tasks(job)))


def _plan_tasks(job: Job) -> Iterator[DeriveWork]:
    """Yield a task for every kind that derives and every report with facts of it."""
    numbers = count(1 + max((result.task for result in job.results), default=-1))
    for kind in job.selection.kinds:
        sources: dict[int, list[WorkResult]] = defaultdict(list)
        for result in job.ordered_results if kind.derived else ():
            if not result.facts.keys().isdisjoint(kind.derived.collects):
                sources[result.report].append(replace(result, runs=[], launches=[], nccl_calls=[]))
        for report, of_report in sorted(sources.items()):
            yield DeriveWork(next(numbers), report, kind.name, of_report, job.folder)


def derive_task(task: DeriveWork) -> WorkResult:
    """Bring the facts together and spill the derived events (a pure function over files)."""
    kind = next(kind for kind in all_kinds() if kind.name == task.kind)
    common = _CommonNumbers()
    facts = {name: common.collect_facts(name, task.sources) for name in kind.derived.collects}
    result = WorkResult(task.number, task.report, 0)
    account = Account()
    spill_file = task.folder / f"runs-{task.number}.bin"
    with SpillWriter(spill_file, task.report, task.number) as writer:
        for rows in kind.derived.derive(facts):
            if isinstance(rows, Rows) and rows.nesting_owner is not None:
                lanes, crowded = assign_nesting_lanes(
                    rows.object, rows.nesting_owner, rows.begin, rows.end
                )
                rows.object = common.number_lanes(rows.object, lanes)
                if crowded:
                    account.repaired[TOO_MANY] += crowded
            result.store(rows, writer, account, kind.open_ended)
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

    def collect_facts(self, name: str, sources: Sequence[WorkResult]) -> pl.DataFrame:
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

    def _translate(self, frame: pl.DataFrame, source: WorkResult) -> pl.DataFrame:
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

    def _number_names(self, name_set: str, source: WorkResult, used: np.ndarray) -> np.ndarray:
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
    """Return the column with its distinct values translated by `numbers_of`."""
    used, codes = np.unique(column, return_inverse=True)
    return numbers_of(used)[codes.reshape(-1)] if len(used) else column
