"""What a relation declares, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import polars as pl

from nsys2prv.events.kind import Lines, Rows

#: Columns of facts whose names begin so hold local times (ns) and local objects; a relation sees trace times and thread indices.
TIME, OBJECT = "time_", "object_"


@dataclass
class Related:
    """Records and lines in trace time (ns), on objects that are thread indices of the trace; and what to say of them.

    Fields of the rows' layouts are plain numbers or values of closed sets.
    """

    rows: list[Rows] = field(default_factory=list)
    lines: list[Lines] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Relation:
    """The declaration of a relation.

    facts: the frames it reads; it is left out when none of the first was found. layouts: the record layouts it yields. relate:
    facts by name -> what follows from them. A facts frame has the columns that its event kind gave it, with times and objects
    translated, and `report` (index in rank order), `task` (0-based task of the trace) of its process by the column `process`.
    """

    name: str
    title: str
    facts: tuple[str, ...]
    layouts: tuple[str, ...]
    relate: Callable[[Mapping[str, pl.DataFrame]], Related]
