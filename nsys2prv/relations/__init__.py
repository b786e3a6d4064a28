"""Relations between the events of several reports, one module each, and states of rows.

A relation reads *facts*, small frames that event kinds set aside while reading
(:meth:`Extraction.fact`), once every clock, object and name is known, and yields further records
and lines in trace time. :func:`all_relations` gives the ``RELATIONS`` of the modules listed here,
:func:`run_relations` runs them. What else is in this package is imported where it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path

from nsys2prv.relations.kind import Relation, RelationContext, S, Step
from nsys2prv.store.facts import FactBook
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


def run_relations(book: FactBook, spill_folder: Path, run: Run) -> list[TaskResult]:
    """Relate the facts by all relations, in their order."""
    results: list[TaskResult] = []
    number = max((result.task for result in book.results), default=-1) + 1
    for relation in all_relations():
        files = book.files(relation.facts) if relation.relate else {}
        if files and files[relation.facts[0]]:
            found = relation.relate(
                RelationContext(
                    files, book.tasks, spill_folder, number, lambda steps: run(run_step, steps)
                )
            )
            number = max((result.task + 1 for result in found), default=number)
            results += found
    return results


def run_step(step: Step[S]) -> S:
    """Do a step of a relation's work."""
    return step.run()
