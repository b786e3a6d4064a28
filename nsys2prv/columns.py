"""Small operations on columns of integers that several rooms need. No loop over rows in any of them."""

from __future__ import annotations

import numpy as np

#: Stands for "this row lacks the attribute" in columns of the normal form; Paraver values are never negative.
ABSENT = -1
#: The end of a range that its report does not close; the writer closes it at the end of the trace.
OPEN = np.iinfo(np.int64).max
#: Ranges of keys up to this size are counted in a table rather than sorted.
_TABLE_LIMIT = 1 << 20


def factorize(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct keys in ascending order, and for every row the index of its key among them."""
    if not len(keys):
        return keys, np.zeros(0, np.int64)
    low, high = int(keys.min()), int(keys.max())
    if low == high:
        return keys[:1], np.zeros(len(keys), np.int64)
    if high - low < _TABLE_LIMIT:
        shifted = keys - low
        seen = np.zeros(high - low + 1, bool)
        seen[shifted] = True
        return np.flatnonzero(seen) + low, (np.cumsum(seen) - 1)[shifted]
    distinct, codes = np.unique(keys, return_inverse=True)
    return distinct, codes.reshape(-1)


def factorize_together(*columns: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """Distinct combinations of several columns: their values, column by column, and each row's index among them."""
    parts = [factorize(column) for column in columns]
    combined = parts[0][1]
    for distinct, codes in parts[1:]:
        combined = combined * len(distinct) + codes
    combinations, rows = factorize(combined)
    values = []
    rest = combinations
    for distinct, _ in reversed(parts):
        values.append(distinct[rest % len(distinct)] if len(distinct) else distinct)
        rest = rest // max(len(distinct), 1)
    return values[::-1], rows


def is_sorted(values: np.ndarray) -> bool:
    return bool((values[1:] >= values[:-1]).all())
