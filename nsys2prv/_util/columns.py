"""Small operations on columns of integers that several rooms need. No loop over rows in any of
them.
"""

from __future__ import annotations

import numpy as np

#: Stands for "this row lacks the attribute" in columns of the normal form; Paraver values are never
#: negative.
ABSENT = -1
#: The end of a range that its report does not close; the writer closes it at the end of the trace.
OPEN = np.iinfo(np.int64).max
#: Ranges of keys up to this size, or this many times the keys, are counted in a table rather than
#: sorted.
_TABLE_LIMIT, _TABLE_PER_KEY = 1 << 20, 16


def factorize(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct keys in ascending order, and for every row the index of its key among
    them.
    """
    if not len(keys):
        return keys, np.zeros(0, np.int64)
    low, high = int(keys.min()), int(keys.max())
    if low == high:
        return keys[:1], np.zeros(len(keys), np.int64)
    if high - low < min(_TABLE_LIMIT, _TABLE_PER_KEY * len(keys)):
        shifted = keys - low
        seen = np.zeros(high - low + 1, bool)
        seen[shifted] = True
        return np.flatnonzero(seen) + low, (np.cumsum(seen) - 1)[shifted]
    distinct, codes = np.unique(keys, return_inverse=True)
    return distinct, codes.reshape(-1)


def factorize_together(*columns: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """Return distinct combinations of several columns: their values, column by column, and each
    row's index among them.
    """
    distinct, codes = factorize(columns[0])
    values = [distinct]
    for column in columns[1:]:
        more, further = factorize(column)
        if len(more) < 2:
            values.append(np.repeat(more, len(values[0])))
            continue
        combined, codes = factorize(further if len(values[0]) == 1 else codes * len(more) + further)
        values = [*(value[combined // len(more)] for value in values), more[combined % len(more)]]
    return values, codes


def narrowed(values: np.ndarray) -> np.ndarray:
    """Return integers of 64 bits as unsigned ones of as few bytes as hold all of them; negative
    ones keep all their bits.
    """
    return values.view(np.uint64).astype(
        np.min_scalar_type(int(values.view(np.uint64).max(initial=0))), copy=False
    )


def occurrence(codes: np.ndarray) -> np.ndarray:
    """Return, for each row, the number of earlier rows with its code. Codes are indices, as
    :func:`factorize` gives them.
    """
    counts = np.bincount(codes)
    place = np.empty(len(codes), np.int64)
    place[np.argsort(codes, kind="stable")] = np.arange(len(codes)) - np.repeat(
        np.cumsum(counts) - counts, counts
    )
    return place


def over_slices(
    values: np.ndarray, first: np.ndarray, last: np.ndarray, ufunc: np.ufunc
) -> np.ndarray:
    """Apply ``ufunc`` (minimum or maximum) to each ``values[first:last]``, none of them empty.

    O(values * log + slices), however the slices overlap: a slice is covered by two blocks of a
    power of two, and the blocks of each size are made of those of half of it.
    """
    # The exponent is exact for lengths below 2**53.
    size = np.frexp((last - first).astype(np.float64))[1] - 1
    result = np.empty(len(first), values.dtype)
    blocks = values
    for power in range(int(size.max(initial=-1)) + 1):
        chosen = np.flatnonzero(size == power)
        result[chosen] = ufunc(blocks[first[chosen]], blocks[last[chosen] - (1 << power)])
        blocks = ufunc(blocks[: -(1 << power)], blocks[1 << power :])
    return result


def is_sorted(values: np.ndarray) -> bool:
    return bool((values[1:] >= values[:-1]).all())
