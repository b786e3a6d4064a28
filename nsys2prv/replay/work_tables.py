"""Work of a job by who does it, and medians of ranks that do the same."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from msgspec import Struct

from nsys2prv._util.native import core


class WorkTable(Struct, frozen=True, dict=True):
    """Work of some kinds by who does it: the k-th time that a process does it."""

    #: Edges of the work (int32).
    edges: np.ndarray
    #: Row of each edge in `durations`: work that processes have in common (int32).
    row: np.ndarray
    #: Index of each edge's process in `Replay.processes` (int32).
    column: np.ndarray
    #: (rows, processes) ns, -1 where a process has no such work.
    durations: np.ndarray

    @cached_property
    def usual(self) -> np.ndarray:
        """The median of each row (ns)."""
        return self.find_medians(self.mask_columns(slice(None)))

    def mask_columns(self, columns: np.ndarray | slice) -> np.ndarray:
        """Return which columns are some of these."""
        mask = np.zeros(self.durations.shape[1], bool)
        mask[columns] = True
        return mask

    def find_medians(self, columns: np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
        """Return the medians of some columns (a mask) in each row, or in those asked for (ns), NaN of
        none.
        """
        rows = np.arange(len(self.durations), dtype=np.int32) if rows is None else rows
        medians = np.empty(len(rows))
        core.find_medians(self.durations, columns, rows, medians)
        return medians

    @cached_property
    def longer(self) -> list[np.ndarray]:
        """By how much longer than usual each work of a process is (ns), by column."""
        found = []
        for durations in self.durations.T:
            has = np.flatnonzero(durations >= 0)
            found.append((durations[has] - self.usual[has]).astype(np.float32))
        return found


def median_of_rows(durations: np.ndarray) -> np.ndarray:
    """Return the median of the known numbers in each row, NaN of none."""
    if not durations.size:
        return np.full(len(durations), np.nan)
    ordered = np.sort(durations, axis=1)
    count = (~np.isnan(ordered)).sum(axis=1)
    rows = np.arange(len(ordered))
    low, high = np.maximum(count - 1, 0) // 2, np.minimum(count // 2, ordered.shape[1] - 1)
    return np.where(count > 0, (ordered[rows, low] + ordered[rows, high]) / 2, np.nan)
