"""The records of one shape in a time window, from all runs that have some."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from nsys2prv.clock.maps import Clock, RowClocks
from nsys2prv.columns import OPEN
from nsys2prv.store.placing import moments
from nsys2prv.store.runs import Run, Shape, picked, together
from nsys2prv.store.windows import trace_times, within
from nsys2prv.writing.meanings import Meanings, is_moment


class Pieces:
    """Records of a shape, those of one run after those of the other, with their trace times. window: from its begin to before its end
    (None: the trace's), to which they are cut, for clocks have slack; None for no window."""

    def __init__(self, shape: Shape, meanings: Meanings, pieces: Sequence[tuple[Run, np.ndarray]],
                 window: tuple[int, int | None] | None = None) -> None:
        self._shape, self._meanings = shape, meanings
        self._reports = np.array([run.report for run, _ in pieces])
        self._sources = np.array([run.source for run, _ in pieces])
        self._records = together([records for _, records in pieces])
        #: Of each row, the number of its piece; None where these do not differ in what their records mean.
        self._which: np.ndarray | None = None
        if (self._reports != self._reports[0]).any() or (self._sources != self._sources[0]).any():
            self._which = np.repeat(np.arange(len(pieces), dtype=np.int32), [len(records) for _, records in pieces])
        #: Trace times (ns).
        self.times = trace_times(shape, self._records, self._clock, meanings.duration)
        if window is not None and self._clock.slack:
            self._keep(within(self.times, *window))

    def __len__(self) -> int:
        return len(self._records)

    def column(self, name: str) -> np.ndarray:
        """A column of all of them, in trace time (OPEN stays) or in global numbers."""
        column = self._records[name]
        if is_moment(name):
            return moments(column, self._clock, OPEN)
        lookup = self._meanings.lookup(self._shape, name)
        return column if lookup is None else lookup(column, self._sources, self._which)

    def translated(self) -> dict[str, np.ndarray]:
        """The columns that are not in trace time or in global numbers as they are stored, but for the time."""
        return {name: self.column(name) for name in self._shape.dtype.names[1:]
                if is_moment(name) or self._meanings.lookup(self._shape, name) is not None}

    def stored(self, order: np.ndarray) -> np.ndarray:
        """The records in this order, as they are stored."""
        return picked(self._records, order)

    @cached_property
    def _clock(self) -> Clock:
        clocks = self._meanings.clocks
        if self._which is None or (self._reports == self._reports[0]).all():
            return clocks[self._reports[0]]
        distinct, code = np.unique(self._reports, return_inverse=True)
        return RowClocks([clocks[report] for report in distinct], code[self._which])

    def _keep(self, inside: np.ndarray) -> None:
        if not inside.all():
            self.times, self._records = self.times[inside], picked(self._records, inside)
            self._which = None if self._which is None else self._which[inside]
            del self._clock
