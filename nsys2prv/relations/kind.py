"""What a relation declares, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import polars as pl

from nsys2prv.clock.observations import Calls, Messages
from nsys2prv.events.kind import Counters, Lines, Rows

if TYPE_CHECKING:
    from nsys2prv.clock.gathering import Gathered
    from nsys2prv.reading.extracted import Extracted
    from nsys2prv.reading.facts import FactFile

#: Models of parallel programs, as --align names them.
MPI, NCCL = "mpi", "nccl"
#: What a relation goes by that no parallel program's rules are behind.
NO_MODEL = ""
#: A task has fewer devices than this.
DEVICES = 1 << 12


@dataclass
class Related:
    """Records, counters and lines in trace time (ns), on objects that are thread indices of the trace; and what to say of them.

    Fields of the rows' layouts are plain numbers or values of closed sets.
    """

    rows: list[Rows] = field(default_factory=list)
    lines: list[Lines] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    counters: list[Counters] = field(default_factory=list)


@dataclass
class Observed:
    """What binds the clocks of hosts to each other: calls by `task * DEVICES + device`, on the clocks of the column `host`."""

    calls: Calls = field(default_factory=Calls.none)
    messages: Messages = field(default_factory=Messages.none)


R = TypeVar("R", covariant=True)
S = TypeVar("S")


class Step(Protocol[R]):
    """A part of the work, for any worker: data alone, and what to do with it (a pure function over files)."""

    def run(self) -> R: ...


class Portion(Protocol):
    """A part of what was observed, on disk. source: of its calls (clock.observations), -1 without. first, last: between which times it
    lies (ns), None of nothing."""

    @property
    def source(self) -> int: ...

    @property
    def first(self) -> int | None: ...

    @property
    def last(self) -> int | None: ...

    def observed(self) -> Observed: ...

    def gathered(self, pivot: int) -> tuple[Gathered, Messages]:
        """Calls by host, and messages. pivot: an instant amid all times."""


@dataclass(frozen=True)
class Division:
    """What a relation has that divides its work into steps. files, tasks: its facts, see :class:`FactBook`. folder: for files between
    the steps and for runs. number: the first number of a task that is free. run: does steps side by side, wherever the workers are;
    their results, in order."""

    files: Mapping[str, tuple[FactFile, ...]]
    tasks: Mapping[tuple[int, int], int]
    folder: Path
    number: int
    run: Callable[[Sequence[Step[S]]], Iterator[S]]


@dataclass(frozen=True)
class Relation:
    """The declaration of a relation.

    model: whose rules it goes by. facts: the frames it reads; it is left out when none of the first was found. layouts: the record
    layouts it yields. relate: facts by name -> what follows from them. observe: facts by name -> what they tell of clocks that are
    not known to agree; their times are those of the hosts' clocks then. Memory of both is that of all facts. Where that is too much,
    `divided` stands instead of `relate`: what follows, as its steps have stored it (:func:`spilled`); `portions` instead of
    `observe`: the same in portions, each with all calls of its groups, ascending by group; None where that cannot be.

    A facts frame has the columns that its event kind gave it, where trace times and thread indices stand for local times and objects, and
    `report` (index in rank order), `host` (its machine), `part` (of which the times can be compared with each other), `task` (0-based task
    of the trace) of its process by the column `process`.
    """

    name: str
    title: str
    model: str
    facts: tuple[str, ...]
    layouts: tuple[str, ...] = ()
    relate: Callable[[Mapping[str, pl.DataFrame]], Related] | None = None
    divided: Callable[[Division], list[Extracted]] | None = None
    portions: Callable[[Division], list[Portion] | None] | None = None
    observe: Callable[[Mapping[str, pl.DataFrame]], Observed] | None = None
