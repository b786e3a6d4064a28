"""The records of one shape in a time window, from all runs that have some."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from nsys2prv.clock.maps import Clock, RowClocks
from nsys2prv.columns import OPEN
from nsys2prv.store.placing import moments
from nsys2prv.store.runs import Run, Shape, SpillReader, picked, together
from nsys2prv.store.windows import around, trace_times, within
from nsys2prv.writing.meanings import Meanings, is_moment


class WindowReader:
    """Reads the records of a trace window by window, in trace time and in the trace's own numbers. Writers of any format go through it."""

    def __init__(self, runs: Sequence[Run], meanings: Meanings) -> None:
        self._runs, self._meanings, self._reader = runs, meanings, SpillReader()
        self._first = np.array([self._trace_time(run, run.first) for run in runs], np.int64)
        self._until = np.array([self._trace_time(run, run.until) for run in runs], np.int64)

    def read(self, first: int, last: int | None) -> dict[Shape, Pieces]:
        """The records with first <= time < last (ns; None: to the end of the trace), by their shape."""
        touched = self._until >= first
        if last is not None:
            touched &= self._first < last
        runs: dict[Shape, list[tuple[Run, np.ndarray]]] = {}
        for index in np.flatnonzero(touched):
            run = self._runs[index]
            records = around(self._reader, run, self._meanings.clocks[run.report], first, last)
            if len(records):
                runs.setdefault(run.shape, []).append((run, records))
        return {shape: pieces for shape in list(runs) if len(pieces := Pieces(shape, self._meanings, runs.pop(shape), (first, last)))}

    def close(self) -> None:
        """Close the files of the runs."""
        self._reader.close()

    def _trace_time(self, run: Run, time: int) -> int:
        meant = self._meanings
        return meant.duration if time == OPEN else int(meant.clocks[run.report].to_global(np.int64(time)))


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
