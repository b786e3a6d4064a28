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
from nsys2prv.columns import OPEN
from nsys2prv.store.placing import moments
from nsys2prv.store.runs import BEGIN, RESOLVED, Run

#: What a column may hold besides plain numbers and values of name sets. No name set is called so.
MOMENT, OBJECT, DOMAIN = "moments", "objects", "domains"


@dataclass
class Lookup:
    """Local indices of every source -> global numbers: `table[start[source] + local]`."""

    start: np.ndarray
    table: np.ndarray

    @classmethod
    def of(cls, columns: Sequence[np.ndarray]) -> Lookup:
        lengths = np.array([len(column) for column in columns], np.int64)
        return cls(np.cumsum(lengths) - lengths, np.concatenate([*columns, np.zeros(0, np.int64)]))

    def __call__(self, local: np.ndarray, source: int) -> np.ndarray:
        """Global numbers (int64) of local indices of one source; those of RESOLVED runs are global already."""
        return local.astype(np.int64) if source == RESOLVED else self.table[self.start[source]:][local]


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

    def resolved(self, run: Run, name: str, column: np.ndarray) -> np.ndarray:
        """A column of some records of a run, but for their time, in trace time (OPEN stays) or in global numbers."""
        role = _role(run.shape.stream, run.shape.name, name)
        if role == MOMENT:
            return moments(column, self.clocks[run.report], OPEN)
        lookup = {OBJECT: self.objects, DOMAIN: self.domains}.get(role) or self.names.get(role)
        return column if lookup is None else lookup(column, run.source)

    def save(self, path: Path) -> None:
        """For :func:`nsys2prv.meanings.load`."""
        with path.open("wb") as file:
            pickle.dump(self, file, protocol=pickle.HIGHEST_PROTOCOL)


@cache
def _role(stream: str, kind: str, name: str) -> str:
    """What a column of records of a layout or kind of lines holds: moments, objects, domains, values of a name set (its name), or
    plain numbers ("")."""
    if name in ("end", "receive", "until"):
        return MOMENT
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
