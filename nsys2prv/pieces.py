"""The records of one shape in a time window, from all runs that have some."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from nsys2prv.meanings import Meanings
from nsys2prv.store.runs import Run


@dataclass
class Pieces:
    """Some records of each of several runs of one shape, with their trace times."""

    meanings: Meanings
    _pieces: list[tuple[Run, np.ndarray, np.ndarray]] = field(default_factory=list)

    def add(self, run: Run, times: np.ndarray, records: np.ndarray) -> None:
        self._pieces.append((run, times, records))

    def times(self) -> np.ndarray:
        """Trace times (ns)."""
        return _together([times for _, times, _ in self._pieces])

    def column(self, name: str) -> np.ndarray:
        """A column of all of them, in trace time or global numbers, see :meth:`Meanings.resolved`."""
        return _together([self.meanings.resolved(run, name, records[name]) for run, _, records in self._pieces])


def _together(columns: Sequence[np.ndarray]) -> np.ndarray:
    return columns[0] if len(columns) == 1 else np.concatenate(columns)
