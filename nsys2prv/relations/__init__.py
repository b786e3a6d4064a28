"""Relations between the events of several reports, one module each, and states of rows.

A relation reads *facts*, small frames that event kinds set aside while reading
(:meth:`Extraction.fact`), once every clock, object and name is known, and yields further records
and lines in trace time. :func:`all_relations` gives the ``RELATIONS`` of the modules listed here,
:func:`run_relations` runs them. What else is in this package is imported where it is needed.

Below: the declaration of a relation, and its results, observations of clocks and runs in trace
time.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from msgspec import Struct, field

from nsys2prv.events.kind import Account, Counters, Lines, Rows
from nsys2prv.store.facts import FactBook
from nsys2prv.store.runs import TRACE, SpillWriter
from nsys2prv.store.task_result import TaskResult

if TYPE_CHECKING:
    from nsys2prv.clock.gathering import GatheredCalls
    from nsys2prv.clock.observations import Calls, Messages
    from nsys2prv.store.facts import FactFile
    from nsys2prv.store.task_result import TaskResult

#: Models of parallel programs, as --align names them.
MPI, NCCL = "mpi", "nccl"
#: What a relation goes by that no parallel program's rules are behind.
NO_MODEL = ""
#: A task has fewer devices than this.
DEVICES = 1 << 12


class RelationResult(Struct):
    """Records, counters and lines in trace time (ns), on objects that are thread indices of the
    trace; and what to say of them.

    Fields of the rows' layouts are plain numbers or values of closed sets.
    """

    rows: list[Rows] = field(default_factory=list)
    lines: list[Lines] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    counters: list[Counters] = field(default_factory=list)


def _no_calls() -> Calls:
    from nsys2prv.clock.observations import Calls

    return Calls.none()


def _no_messages() -> Messages:
    from nsys2prv.clock.observations import Messages

    return Messages.none()


class Observations(Struct):
    """Observations between the clocks of hosts: calls by `task * DEVICES + device`, on the clocks
    of the column `host`.
    """

    calls: Calls = field(default_factory=_no_calls)
    messages: Messages = field(default_factory=_no_messages)


R = TypeVar("R", covariant=True)
S = TypeVar("S")


class Step(Protocol[R]):
    """A part of the work, for any worker: data alone, and what to do with it (a pure function over
    files).
    """

    def run(self) -> R: ...


class ObservationChunk(Protocol):
    """A part of what was observed, on disk. source: of its calls (clock.observations), -1 without.
    first, last: between which times it lies (ns), None of nothing.
    """

    @property
    def source(self) -> int: ...

    @property
    def first(self) -> int | None: ...

    @property
    def last(self) -> int | None: ...

    def observed(self) -> Observations: ...

    def gathered(self, pivot: int) -> tuple[GatheredCalls, Messages]:
        """Return calls by host, and messages. pivot: an instant amid all times."""


class RelationContext(Struct, frozen=True):
    """Context that a relation runs in."""

    #: Facts by name, see :class:`FactBook`.
    files: Mapping[str, tuple[FactFile, ...]]
    #: (report, globalPid) -> 0-based task of the trace.
    tasks: Mapping[tuple[int, int], int]
    #: Folder for files between the steps and for runs.
    folder: Path
    #: First free task number.
    number: int
    #: Runs steps in parallel on the workers and yields their results in order.
    run: Callable[[Sequence[Step[S]]], Iterator[S]]


class Relation(Struct, frozen=True):
    """The declaration of a relation: what it reads, and two functions.

    Both get the facts as files, and run steps on them: data with a `run` for any worker. How many
    facts a step reads at a time is theirs to say.

    A frame of facts has the columns that its event kind gave it, where trace times and thread
    indices stand for local times and objects, and `report` (index in rank order), `host` (its
    machine), `part` (of which the times can be compared with each other), `task` (0-based task of
    the trace) of its process by the column `process`.
    """

    #: Name.
    name: str
    #: Title for people.
    title: str
    #: Model of parallel programs by whose rules it goes, NO_MODEL for none.
    model: str
    #: Names of the facts that it reads; it is left out where none of the first was found.
    facts: tuple[str, ...]
    #: Record layouts that it yields.
    layouts: tuple[str, ...] = ()
    #: Returns what follows from the facts, stored. None: nothing does.
    relate: Callable[[RelationContext], list[TaskResult]] | None = None
    #: Returns what the facts tell of clocks that are not known to agree; times are those of the
    #: hosts' clocks then. Each chunk has all calls of its groups, chunks ascend by group. None:
    #: nothing.
    observe: Callable[[RelationContext], Sequence[ObservationChunk]] | None = None


def write_result(related: RelationResult, name: str, number: int, folder: Path) -> TaskResult:
    """Return the result of the relation of this name, stored under this task number."""
    result = TaskResult(number, TRACE, 0)
    account = Account()
    writer = SpillWriter(folder / f"runs-{number}.bin", TRACE, number)
    try:
        for rows in (*related.rows, *related.counters):
            result.store(rows, writer, account)
        for lines in related.lines:
            result.store_lines(lines, writer)
    finally:
        writer.close()
    result.notes = related.notes
    result.add_found(name, account)
    return result


class ObservationFile(Struct, frozen=True):
    """Observations in a file."""

    path: Path
    #: Least source of its calls; -1 without any.
    source: int
    #: First time, ns; None if empty.
    first: int | None
    #: Last time, ns; None if empty.
    last: int | None

    def observed(self) -> Observations:
        return pickle.loads(self.path.read_bytes())

    def gathered(self, pivot: int) -> tuple[GatheredCalls, Messages]:
        from nsys2prv.clock.gathering import gather_calls

        observed = self.observed()
        return gather_calls(observed.calls, pivot), observed.messages


def save_observations(observed: Observations, path: Path) -> ObservationFile:
    from nsys2prv.clock.observations import span_of

    path.write_bytes(pickle.dumps(observed))
    source = int(observed.calls.source.min()) if len(observed.calls.source) else -1
    return ObservationFile(
        path, source, *(span_of(observed.calls, observed.messages) or (None, None))
    )


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
