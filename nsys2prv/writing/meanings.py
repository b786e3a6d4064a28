"""What the local times and indices in runs mean in the trace."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from nsys2prv.catalogue import NameSet, catalogue
from nsys2prv.clock.maps import ClockMap
from nsys2prv.store.runs import BEGIN, RESOLVED, Shape

#: What a column may hold besides times, plain numbers and values of name sets. No name set is called so.
OBJECT, DOMAIN = "objects", "domains"


@dataclass
class Lookup:
    """Local indices of every source -> global numbers: `table[start[source] + local]`."""

    start: np.ndarray
    table: np.ndarray

    @classmethod
    def of(cls, columns: Sequence[np.ndarray]) -> Lookup:
        lengths = np.array([len(column) for column in columns], np.int64)
        return cls(np.cumsum(lengths) - lengths, np.concatenate([*columns, np.zeros(0, np.int64)]))

    def __call__(self, local: np.ndarray, sources: np.ndarray, which: np.ndarray | None) -> np.ndarray:
        """Global numbers (int64) of local indices; row k is of source sources[which[k]], all of the only one where `which` is None.
        Those of RESOLVED runs are global already."""
        resolved = sources == RESOLVED
        if resolved.all():
            return local.astype(np.int64)
        if which is None:
            return self.table[self.start[sources[0]]:][local]
        start = self.start[sources]
        if not resolved.any():
            return self.table[start[which] + local]
        found, mine = local.astype(np.int64), np.flatnonzero(~resolved[which])
        found[mine] = self.table[start[which[mine]] + found[mine]]
        return found


@dataclass
class Meanings:
    """clocks: per report, to trace time; the last is the identity, for runs in trace time. duration: of the trace (ns).

    objects: threads of the tree. domains: indices of NVTX domains. names: values, per name set.
    """

    clocks: Sequence[ClockMap]
    duration: int
    objects: Lookup
    domains: Lookup
    names: Mapping[str, Lookup]

    def lookup(self, shape: Shape, column: str) -> Lookup | None:
        """What gives the global numbers of a column of records, None where it holds plain numbers or times."""
        role = _role(shape.stream, shape.name, column)
        return {OBJECT: self.objects, DOMAIN: self.domains}.get(role) or self.names.get(role)

    def save(self, path: Path) -> None:
        """For :func:`nsys2prv.writing.meanings.load`."""
        with path.open("wb") as file:
            pickle.dump(self, file, protocol=pickle.HIGHEST_PROTOCOL)


def is_moment(column: str) -> bool:
    """Whether a column of records holds times, in which OPEN stays as it is, beside the one by which they are sorted."""
    return column in ("end", "receive", "until")


@cache
def _role(stream: str, kind: str, name: str) -> str:
    """What a column of records of a layout or kind of lines holds: objects, domains, values of a name set (its name), or anything
    else ("")."""
    if name in ("object", "sender", "receiver"):
        return OBJECT
    if name == "domain":
        return DOMAIN
    layout = catalogue().layouts.get(kind) if stream == BEGIN else None
    field = next((field for field in layout.fields if field.name == name), None) if layout else None
    return field.values.name if field and isinstance(field.values, NameSet) else ""


def load(path: Path) -> Meanings:
    """Those saved to a file of this conversion's own."""
    with path.open("rb") as file:
        return pickle.load(file)
