"""Small dense numbers for a few distinct large ones, in columns."""

from __future__ import annotations

import numpy as np

_SIZES = [1 << bits for bits in range(10, 21)]


class Index:
    """Numbers distinct values in the order in which they are met. `values`: the value of each number."""

    def __init__(self) -> None:
        self.values = np.empty(0, np.int64)
        self._size = _SIZES[0]
        self._table = np.zeros(self._size, np.int64)
        self._hashed = True

    def __len__(self) -> int:
        return len(self.values)

    def numbers(self, column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The number of each value of a column, and the places of those never met before, each once, in the order of their numbers."""
        found, known = self._look_up(column)
        if known.all():
            return found, np.empty(0, np.int64)
        unknown = np.flatnonzero(~known)
        values, first = np.unique(column[unknown], return_index=True)
        order = np.argsort(first)
        self.values = np.append(self.values, values[order])
        self._build()
        return self._look_up(column)[0], unknown[first[order]]

    def _look_up(self, column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if not len(self.values):
            return np.zeros(len(column), np.int64), np.zeros(len(column), bool)
        if self._hashed:
            found = self._table[column & (self._size - 1)]
        else:
            found = self._order[np.minimum(np.searchsorted(self._sorted, column), len(self._sorted) - 1)]
        return found, self.values[found] == column

    def _build(self) -> None:
        """A table by the lowest bits, the smallest in which no two values meet; where there is none, a sorted list."""
        for size in _SIZES:
            if size >= len(self.values) and len(np.unique(self.values & (size - 1))) == len(self.values):
                self._size, self._hashed = size, True
                self._table = np.zeros(size, np.int64)
                self._table[self.values & (size - 1)] = np.arange(len(self.values))
                return
        self._hashed = False
        self._order = np.argsort(self.values)
        self._sorted = self.values[self._order]
