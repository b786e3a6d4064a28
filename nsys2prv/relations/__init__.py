"""Relations between the events of several reports, one module each, and states of rows.

A relation reads *facts*, small frames that event kinds set aside while reading
(:meth:`Extraction.fact`), once every clock, object and name is known, and yields further records
and lines in trace time. :func:`all_relations` gives the ``RELATIONS`` of the modules listed here,
:func:`run_relations` runs them: each as one task, or as several steps. What else is in this package
is imported where it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path

from msgspec import Struct

from nsys2prv.relations.kind import Relation, RelationContext, S, Step, write_result
from nsys2prv.store.facts import FactBook, FactFile, read_facts
from nsys2prv.store.task_result import TaskResult

#: The modules of this package that define ``RELATIONS``.
MODULES = ("gpu_memory", "mpi", "nccl_collectives", "nccl_messages")


@cache
def all_relations() -> tuple[Relation, ...]:
    """Return every relation this version finds, in alphabetical order."""
    relations = [
        relation
        for module in MODULES
        for relation in import_module(f"{__name__}.{module}").RELATIONS
    ]
    return tuple(sorted(relations, key=lambda relation: relation.name))


#: Does tasks on workers: a pure function over files, and what it is to be done with; its results,
#: in order.
Run = Callable[[Callable, Sequence], Iterator]


class RelationTask(Struct, frozen=True):
    """A relation with its facts. tasks: (report, globalPid) -> 0-based task of the trace."""

    number: int
    relation: str
    facts: Mapping[str, tuple[FactFile, ...]]
    tasks: Mapping[tuple[int, int], int]
    spill: Path


def run_relations(book: FactBook, spill_folder: Path, run: Run) -> list[TaskResult]:
    """Run all relations on the facts, in their order. Each is one task, except those that divide
    their work into steps.
    """
    number = max((result.task for result in book.results), default=-1) + 1
    files = {
        relation.name: book.files(relation.facts)
        for relation in all_relations()
        if relation.relate or relation.divided
    }
    known = [
        relation
        for relation in all_relations()
        if relation.name in files and files[relation.name][relation.facts[0]]
    ]
    whole = [relation for relation in known if not relation.divided]
    found = dict(
        zip(
            (relation.name for relation in whole),
            run(
                run_relation,
                [
                    RelationTask(
                        number + place,
                        relation.name,
                        files[relation.name],
                        book.tasks,
                        spill_folder,
                    )
                    for place, relation in enumerate(whole)
                ],
            ),
            strict=True,
        )
    )
    results = {name: [result] for name, result in found.items()}
    number += len(whole)
    for relation in known:
        if relation.divided:
            results[relation.name] = relation.divided(
                RelationContext(
                    files[relation.name],
                    book.tasks,
                    spill_folder,
                    number,
                    lambda steps: run(run_step, steps),
                )
            )
            number = max((result.task + 1 for result in results[relation.name]), default=number)
    return [result for relation in known for result in results[relation.name]]


def run_relation(task: RelationTask) -> TaskResult:
    """Relate the facts and spill what follows from them; the result's runs are in trace time, on
    thread indices.
    """
    relation = next(item for item in all_relations() if item.name == task.relation)
    return write_result(
        relation.relate(read_facts(task.facts, task.tasks)), relation.name, task.number, task.spill
    )


def run_step(step: Step[S]) -> S:
    """Do a step of a relation's work."""
    return step.run()
