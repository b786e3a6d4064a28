"""Ranges that share a row of a stream though they come from several threads: rows on which they nest.

Paraver shows nested ranges by a stack (Stacked Val): of two that cross, the end of one takes the other away. Ranges of one owner lie
within each other for the most part; where owners overlap, each has a lane to itself, so that nothing of one seems to lie within another.
"""

from __future__ import annotations

import numpy as np

from nsys2prv.columns import factorize_together, over_slices
from nsys2prv.store.lanes import MOST_LANES, first_free


def nesting_lanes(object_: np.ndarray, owner: np.ndarray, begin: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, int]:
    """The lane of each range on its object, 0 for the object itself, and how many found no lane on which they nest."""
    lanes = np.zeros(len(begin), np.int64)
    if not len(begin):
        return lanes, 0
    crowded = _apart(object_, owner, begin, end, lanes)
    further = np.zeros(len(begin), np.int64)
    _, codes = factorize_together(object_, lanes)
    order = np.lexsort((-end, begin, codes))
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    for rows in np.split(order, starts[1:]):
        crowded += _uncrossed(rows, begin, end, further)
    moved = np.flatnonzero(further)
    if len(moved):
        highest = np.zeros(int(object_.max()) + 1, np.int64)
        np.maximum.at(highest, object_, lanes)
        (objects, _, _), codes = factorize_together(object_[moved], lanes[moved], further[moved])
        number = np.arange(len(objects)) - np.searchsorted(objects, objects, "left")
        wanted = highest[object_[moved]] + 1 + number[codes]
        crowded += int(np.count_nonzero(wanted >= MOST_LANES))
        lanes[moved] = np.minimum(wanted, MOST_LANES - 1)
    return lanes, crowded


def _apart(object_: np.ndarray, owner: np.ndarray, begin: np.ndarray, end: np.ndarray, lanes: np.ndarray) -> int:
    """Fill in lanes on which no owners overlap: all that an owner has in one stretch of time goes to the first that is free."""
    _, codes = factorize_together(object_, owner)
    order = np.lexsort((begin, codes))
    group, first, last = codes[order], begin[order], end[order]
    # Ends made comparable over groups: each group's lie above those of the group before.
    times, place = np.unique(last, return_inverse=True)
    reach = np.maximum.accumulate(group * len(times) + place.reshape(-1)) % len(times)
    fresh = np.ones(len(order), bool)
    fresh[1:] = (group[1:] != group[:-1]) | (first[1:] >= times[reach[:-1]])
    stretch = np.cumsum(fresh) - 1
    starts = np.flatnonzero(fresh)
    stops = np.append(starts[1:], len(order)) - 1
    whole = object_[order[starts]], first[starts], times[reach[stops]]
    by_time = np.lexsort((-whole[2], whole[1], whole[0]))
    of_stretch = np.zeros(len(starts), np.int64)
    of_stretch[by_time], crowded = first_free(*(column[by_time] for column in whole), {})
    lanes[order] = of_stretch[stretch]
    return crowded


def _uncrossed(rows: np.ndarray, begin: np.ndarray, end: np.ndarray, lanes: np.ndarray) -> int:
    """Fill in the lanes of rows (by begin, the longer first) on which each nests with all others; returns how many found none."""
    for lane in range(MOST_LANES):
        lanes[rows] = lane
        rows = rows[_crossing(begin[rows], end[rows])]
        if not len(rows):
            return 0
    return len(rows)


def _crossing(begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Which rows begin within an earlier one and end after it."""
    order = np.argsort(end, kind="stable")
    ends = end[order]
    first, last = np.searchsorted(ends, begin, "right"), np.searchsorted(ends, end, "left")
    found = np.zeros(len(begin), bool)
    some = np.flatnonzero(first < last)
    if len(some):
        found[some] = over_slices(begin[order], first[some], last[some], np.minimum) < begin[some]
    return found
