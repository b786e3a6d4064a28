"""Relating: from the facts of all reports to further runs, in trace time. Each relation is a task of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from nsys2prv.clock.maps import ClockMap
from nsys2prv.columns import OPEN, read_frame
from nsys2prv.extract import Extracted
from nsys2prv.relations import all_relations
from nsys2prv.relations.kind import OBJECT, TIME
from nsys2prv.report.sqlite import NULL
from nsys2prv.store.normal import spill, spill_lines
from nsys2prv.store.runs import BEGIN, SpillWriter

#: Stands for the report of runs that are in trace time: the last of the clock maps is the identity.
TRACE = -1


@dataclass(frozen=True)
class FactFile:
    """Facts of one reading task. threads: thread index of each of its local objects."""

    path: Path
    report: int
    clock: ClockMap
    threads: np.ndarray


@dataclass(frozen=True)
class RelationTask:
    """A relation with its facts. tasks: (report, globalPid) -> 0-based task of the trace."""

    number: int
    relation: str
    facts: Mapping[str, tuple[FactFile, ...]]
    tasks: Mapping[tuple[int, int], int]
    spill: Path


def plan(results: Sequence[Extracted], clocks: Sequence[ClockMap], threads: Mapping[int, np.ndarray],
         tasks: Mapping[tuple[int, int], int], spill_folder: Path) -> list[RelationTask]:
    """A task for every relation whose first facts were found. threads: by reading task, as in FactFile."""
    number = max((result.task for result in results), default=-1) + 1
    planned = []
    for relation in all_relations():
        facts = {name: tuple(FactFile(result.facts[name], result.report, clocks[result.report], threads[result.task])
                             for result in sorted(results, key=lambda item: item.task) if name in result.facts)
                 for name in relation.facts}
        if facts[relation.facts[0]]:
            planned.append(RelationTask(number + len(planned), relation.name, facts, tasks, spill_folder))
    return planned


def run_task(task: RelationTask) -> Extracted:
    """Relate the facts and spill what follows from them; the result's runs are in trace time, on thread indices."""
    relation = next(item for item in all_relations() if item.name == task.relation)
    frames = {name: _frame(files, task.tasks) for name, files in task.facts.items()}
    related = relation.relate(frames)
    result = Extracted(task.number, TRACE, 0)
    dropped: Counter[str] = Counter()
    repaired: Counter[str] = Counter()
    writer = SpillWriter(task.spill / f"runs-{task.number}.bin", TRACE, task.number)
    try:
        for rows in related.rows:
            runs = list(spill(rows, False, writer, dropped, repaired))
            result.runs += runs
            result.events[rows.layout] += sum(run.rows for run in runs if run.shape.stream == BEGIN)
        for lines in related.lines:
            result.runs += spill_lines(lines, writer)
    finally:
        writer.close()
    result.notes = related.notes
    result.dropped.update({(relation.name, reason): count for reason, count in dropped.items()})
    result.repaired.update({(relation.name, reason): count for reason, count in repaired.items()})
    return result


def _frame(files: Sequence[FactFile], tasks: Mapping[tuple[int, int], int]) -> pl.DataFrame:
    """The facts of all tasks as one frame, translated."""
    frames = []
    for file in files:
        frame = read_frame(file.path)
        columns = [pl.lit(file.report, pl.Int64).alias("report")]
        for name in frame.columns:
            values = frame[name].to_numpy() if name.startswith((TIME, OBJECT)) else None
            if name.startswith(TIME):
                known = (values != NULL) & (values != OPEN)
                columns.append(pl.Series(name, np.where(known, file.clock.to_global(np.where(known, values, 0)), values)))
            elif name.startswith(OBJECT):
                columns.append(pl.Series(name, file.threads[values]))
        if "process" in frame.columns:
            numbers = {process: tasks.get((file.report, process), -1) for process in frame["process"].unique()}
            columns.append(frame["process"].replace_strict(numbers, return_dtype=pl.Int64).alias("task"))
        frames.append(frame.with_columns(columns))
    return pl.concat(frames, how="diagonal") if frames else pl.DataFrame()
