"""One reading of a table for all kinds of events that take some of its rows.

The statement gives the columns that the kinds declare and tells of every row of which kinds it is: a kind of which a part has no row is
not asked, one that declares its columns gets them from there (:meth:`Extraction.read`), and one that needs more reads by itself, of the
part or, where they are few, of its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nsys2prv.events import all_kinds
from nsys2prv.events.extraction import Extraction
from nsys2prv.events.kind import EventKind
from nsys2prv.report.source import Part, Shared


def together(kinds: Iterable[EventKind]) -> list[tuple[EventKind, ...]]:
    """The kinds in their order, those that read one table in groups, if they are all that do: of a few kinds most rows may be of none."""
    readers: dict[tuple[str, ...], list[EventKind]] = {}
    for kind in all_kinds():
        if len(kind.tables) == 1 and not kind.on_demand:
            readers.setdefault(kind.tables, []).append(kind)
    kinds, groups = list(kinds), []
    for kind in kinds:
        group = readers.get(kind.tables, [])
        if kind not in group or not all(other in kinds for other in group):
            groups.append((kind,))
        elif kind is group[0]:
            groups.append(tuple(group))
    return groups


def read_once(extraction: Extraction, kinds: Sequence[EventKind], part: Part) -> Shared | None:
    """A part of a table for several kinds, their conditions in this order; None where each has to read it."""
    if len(kinds) < 2:
        return None
    integers, texts = (tuple(dict.fromkeys(name for kind in kinds for name in names(kind)))
                       for names in (lambda kind: kind.columns, lambda kind: kind.texts))
    return extraction.database.read_once(part, integers, texts, [kind.condition(extraction.report) for kind in kinds])
