"""Estimate the memory that Paraver needs to open a trace.

It holds every type:value pair of a trace in 32 bytes, a state in 64 and a communication line in 312
(paraver-kernel 4.11), however long their text is; while it reads and sorts them it needs about 1.8
times that, between 1.5 and 2.2 by how evenly the rows share them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from nsys2prv.store.runs import Run

PAIR_BYTES, STATE_BYTES, LINE_BYTES = 32, 64, 312
#: Its greatest memory while it loads, as a multiple of what the records take in the end.
WHILE_READING = 1.8
#: CPU seconds, with those that the system takes for the memory.
PAIR_SECONDS, STATE_SECONDS, LINE_SECONDS = 0.4e-6, 0.6e-6, 2.5e-6
#: Of traces that need less (bytes) nothing is said.
WORTH_TELLING = 200_000_000
#: What leaving out attributes must spare for it to be said.
WORTH_SPARING = 0.25


class MemoryEstimate(Struct, frozen=True):
    """Contents of a trace that determine Paraver's memory: type:value pairs, those that remain
    without attributes, state records, communication lines.
    """

    pairs: int = 0
    bare: int = 0
    states: int = 0
    lines: int = 0

    @classmethod
    def of(cls, runs: Iterable[Run], further: int = 0) -> MemoryEstimate:
        """Count the contents of the lines that these runs become. further: pairs that stand in no
        run, less those that are written once for several.
        """
        from nsys2prv.events.catalogue import catalogue
        from nsys2prv.store.runs import BEGIN, COUNTER, END, LINE, STATE, list_present_fields

        pairs = bare = further
        rows = {STATE: 0, LINE: 0}
        for run in runs:
            shape = run.shape
            if shape.stream in rows:
                rows[shape.stream] += run.rows
            elif shape.stream == COUNTER:
                pairs += run.values
                bare += run.values
            elif shape.stream in (BEGIN, END):
                pairs += run.rows * len(
                    list_present_fields(catalogue().layouts[shape.name], shape.present)
                )
                bare += run.rows * (shape.present & 1)
        return cls(pairs, bare, rows[STATE], rows[LINE])

    @property
    def held(self) -> int:
        """Bytes that the records take once the trace is loaded."""
        return self._held(self.pairs)

    @property
    def memory(self) -> float:
        """Bytes that Paraver needs while it loads the trace."""
        return WHILE_READING * self.held

    @property
    def seconds(self) -> float:
        """CPU time that it takes for that."""
        return PAIR_SECONDS * self.pairs + STATE_SECONDS * self.states + LINE_SECONDS * self.lines

    def text(self) -> str:
        """Return one line for users; "" for a trace that opens at once."""
        if self.memory < WORTH_TELLING:
            return ""
        bare = WHILE_READING * self._held(self.bare)
        less = (
            f"; {_gigabytes(bare)} with --no-args"
            if bare < (1 - WORTH_SPARING) * self.memory
            else ""
        )
        return f"to open it Paraver needs about {_gigabytes(self.memory)} of memory and {max(1, round(self.seconds)):,} s{less}"

    def _held(self, pairs: int) -> int:
        return PAIR_BYTES * pairs + STATE_BYTES * self.states + LINE_BYTES * self.lines


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:,.1f} GB"
