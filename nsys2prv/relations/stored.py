"""What was observed, in a file."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path

from nsys2prv.clock.gathering import Gathered, gathered
from nsys2prv.clock.observations import Messages, span_of
from nsys2prv.relations.kind import Observed


@dataclass(frozen=True)
class Stored:
    """An observation in a file. first, last: between which times it lies (ns), None of nothing. source: the least of its calls', -1
    without."""

    path: Path
    source: int
    first: int | None
    last: int | None

    def observed(self) -> Observed:
        return pickle.loads(self.path.read_bytes())

    def gathered(self, pivot: int) -> tuple[Gathered, Messages]:
        observed = self.observed()
        return gathered(observed.calls, pivot), observed.messages


def store(observed: Observed, path: Path) -> Stored:
    path.write_bytes(pickle.dumps(observed))
    source = int(observed.calls.source.min()) if len(observed.calls.source) else -1
    return Stored(path, source, *(span_of(observed.calls, observed.messages) or (None, None)))
