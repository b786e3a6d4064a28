"""Ranges that lie within each other on threads: their depths and parents. No loop over ranges, one over depths."""

from __future__ import annotations

import numpy as np


def parents(thread: np.ndarray, begin: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The depth (from 0) and the parent (row index, -1 for none) of each range; rows by thread, begin, longer first.

    Ranges that overlap without lying within each other have the one as parent that began last of those still open.
    """
    count = len(begin)
    if not count:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    starts = np.flatnonzero(np.diff(thread, prepend=thread[0] - 1))
    group = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, count)))
    # Ends of a thread that lie at or before a begin: counted by merging both, thread by thread.
    order = np.lexsort((end, group))
    ends_before = np.empty(count, np.int64)
    for first, last in zip(starts.tolist(), np.append(starts[1:], count).tolist(), strict=True):
        ends_before[first:last] = np.searchsorted(end[order[first:last]], begin[first:last], "right")
    depth = np.arange(count) - starts[group] - ends_before
    parent = np.full(count, -1, np.int64)
    upper = np.flatnonzero(depth == 0)
    for level in range(1, int(depth.max()) + 1):
        rows = np.flatnonzero(depth == level)
        found = np.searchsorted(upper, rows) - 1
        known = found >= 0
        candidate = upper[np.maximum(found, 0)]
        same = known & (group[candidate] == group[rows])
        parent[rows[same]] = candidate[same]
        upper = rows
    return depth, parent


def sums_within(thread: np.ndarray, begin: np.ndarray, end: np.ndarray, at_thread: np.ndarray, at: np.ndarray,
                values: np.ndarray) -> np.ndarray:
    """For each range the sum of `values` over the points that its thread has in [begin, end]; rows as in parents.

    at_thread, at, values: of the points, ascending by thread and time.
    """
    before = np.concatenate([[0], np.cumsum(values)])
    total = np.zeros(len(begin), np.int64)
    starts = np.flatnonzero(np.diff(thread, prepend=thread[0] - 1)) if len(thread) else np.zeros(0, np.int64)
    for first, last in zip(starts.tolist(), np.append(starts[1:], len(thread)).tolist(), strict=False):
        low, high = np.searchsorted(at_thread, (thread[first], thread[first] + 1))
        points = at[low:high]
        total[first:last] = (before[low + np.searchsorted(points, end[first:last], "right")]
                             - before[low + np.searchsorted(points, begin[first:last], "left")])
    return total
