"""Relating: from the facts of all reports to further runs, in trace time. Each relation is a task of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nsys2prv.extract import Extracted, count_lines
from nsys2prv.facts import FactBook, FactFile, read_facts
from nsys2prv.relations import all_relations
from nsys2prv.store.normal import spill, spill_counters, spill_lines
from nsys2prv.store.runs import BEGIN, TRACE, SpillWriter


@dataclass(frozen=True)
class RelationTask:
    """A relation with its facts. tasks: (report, globalPid) -> 0-based task of the trace."""

    number: int
    relation: str
    facts: Mapping[str, tuple[FactFile, ...]]
    tasks: Mapping[tuple[int, int], int]
    spill: Path


def plan(book: FactBook, spill_folder: Path) -> list[RelationTask]:
    """A task for every relation whose first facts were found."""
    number = max((result.task for result in book.results), default=-1) + 1
    planned = []
    for relation in all_relations():
        facts = book.files(relation.facts)
        if relation.relate and facts[relation.facts[0]]:
            planned.append(RelationTask(number + len(planned), relation.name, facts, book.tasks, spill_folder))
    return planned


def run_task(task: RelationTask) -> Extracted:
    """Relate the facts and spill what follows from them; the result's runs are in trace time, on thread indices."""
    relation = next(item for item in all_relations() if item.name == task.relation)
    related = relation.relate(read_facts(task.facts, task.tasks))
    result = Extracted(task.number, TRACE, 0)
    dropped: Counter[str] = Counter()
    repaired: Counter[str] = Counter()
    writer = SpillWriter(task.spill / f"runs-{task.number}.bin", TRACE, task.number)
    try:
        for rows in related.rows:
            runs = list(spill(rows, False, writer, dropped, repaired))
            result.runs += runs
            result.events[rows.layout] += sum(run.rows for run in runs if run.shape.stream == BEGIN)
        for counters in related.counters:
            runs = list(spill_counters(counters, writer, dropped))
            result.runs += runs
            result.events[counters.layout] += sum(run.values for run in runs)
        for lines in related.lines:
            runs = list(spill_lines(lines, writer))
            result.runs += runs
            count_lines(result, lines, runs)
    finally:
        writer.close()
    result.notes = related.notes
    result.dropped.update({(relation.name, reason): count for reason, count in dropped.items()})
    result.repaired.update({(relation.name, reason): count for reason, count in repaired.items()})
    return result

