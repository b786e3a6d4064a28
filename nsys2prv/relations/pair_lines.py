"""Lines between matched pairs, from blocks of pairs by the time of sending to stored runs, some of them at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nsys2prv.events.kind import Lines
from nsys2prv.reading.extracted import Extracted
from nsys2prv.relations.blocks import Block, windows
from nsys2prv.relations.kind import Division, Related
from nsys2prv.relations.spilled import spilled
from nsys2prv.store.runs import TRACE

#: The first columns of a pair: times (ns), threads of the trace, bytes, the line's tag (of kinds whose lines have their own; else
#: anything). Columns behind them tell the order of lines of equal time.
PAIR = ("send", "sender", "receive", "receiver", "size", "tag")


@dataclass(frozen=True)
class LinesStep:
    """Stores the lines that begin within a span of time (ns; None: without a limit). name: of the relation; kind: of lines."""

    name: str
    kind: str
    tagged: bool
    number: int
    pairs: tuple[Block, ...]
    low: int | None
    high: int | None
    folder: Path

    def run(self) -> Extracted:
        rows = np.concatenate([block.read(self.low, self.high) for block in self.pairs])
        rows = rows[np.lexsort(rows.T[:len(PAIR) - 1:-1])]
        send, sender, receive, receiver, size, tag = rows[:, :len(PAIR)].T
        lines = Lines(self.kind, send, sender, receive, receiver, receive, np.maximum(size, 0), tag if self.tagged else None)
        return spilled(Related(lines=[lines]), self.name, self.number, self.folder)


def stored_lines(division: Division, name: str, kind: str, tagged: bool, pairs: Sequence[Block], most: int) -> list[Extracted]:
    """The lines of all pairs, about `most` a step; one result without any where there are none."""
    steps = [LinesStep(name, kind, tagged, division.number + place, tuple(pairs), low, high, division.folder)
             for place, (low, high) in enumerate(windows(pairs, most))] if pairs else []
    return list(division.run(steps)) or [Extracted(division.number, TRACE, 0)]
