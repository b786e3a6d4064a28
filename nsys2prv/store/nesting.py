"""Ranges of several threads on one row of a stream: lanes on which they nest.

Paraver shows nested ranges by a stack (Stacked Val): of two that cross, the end of one takes the
other away. Ranges of one owner lie within each other for the most part, and so may those of another
within them (a backward pass on a thread of its own within an iteration). Where they do not, all
that an owner has in one stretch of time moves together.
"""

from __future__ import annotations

import numpy as np

from nsys2prv._util.columns import factorize_together, reduce_slices
from nsys2prv.store.overlaps import MOST_LANES, assign_first_free_lanes


def assign_nesting_lanes(
    object_: np.ndarray, owner: np.ndarray, begin: np.ndarray, end: np.ndarray
) -> tuple[np.ndarray, int]:
    """Return the lane of each range on its object, 0 for the object itself, and how many found no
    lane on which they nest.
    """
    layers, lanes = np.zeros(len(begin), np.int64), np.zeros(len(begin), np.int64)
    if not len(begin):
        return lanes, 0
    crowded = sum(
        _assign_layers(rows, begin, end, layers) for rows in _group_rows(begin, end, object_, owner)
    )
    stretch = _find_stretches(begin, end, object_, owner, layers)
    crowded += sum(
        _assign_nested_lanes(rows, begin, end, stretch, lanes)
        for rows in _group_rows(begin, end, object_)
    )
    return lanes, crowded


def _group_rows(begin: np.ndarray, end: np.ndarray, *keys: np.ndarray) -> list[np.ndarray]:
    """Return the rows of each group by begin, the longer first."""
    _, codes = factorize_together(*keys)
    order = np.lexsort((-end, begin, codes))
    return np.split(order, np.flatnonzero(np.diff(codes[order])) + 1)


def _find_crossing(begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return a mask of the rows that begin within an earlier one and end after it."""
    order = np.argsort(end, kind="stable")
    ends = end[order]
    first, last = np.searchsorted(ends, begin, "right"), np.searchsorted(ends, end, "left")
    crossing = np.zeros(len(begin), bool)
    spanning = np.flatnonzero(first < last)
    if len(spanning):
        crossing[spanning] = (
            reduce_slices(begin[order], first[spanning], last[spanning], np.minimum)
            < begin[spanning]
        )
    return crossing


def _assign_layers(rows: np.ndarray, begin: np.ndarray, end: np.ndarray, layers: np.ndarray) -> int:
    """Fill in layers of an owner's rows in which all nest; returns how many are left over in the
    last.
    """
    for layer in range(MOST_LANES):
        layers[rows] = layer
        rows = rows[_find_crossing(begin[rows], end[rows])]
        if not len(rows):
            return 0
    return len(rows)


def _find_stretches(begin: np.ndarray, end: np.ndarray, *keys: np.ndarray) -> np.ndarray:
    """Return, for each row, the number of its stretch: the rows of equal keys between two times at
    which there is none.
    """
    _, codes = factorize_together(*keys)
    order = np.lexsort((begin, codes))
    group = codes[order]
    # Ends as numbers that grow from group to group, so that one running maximum serves all.
    times, place = np.unique(end[order], return_inverse=True)
    reach = times[np.maximum.accumulate(group * len(times) + place.reshape(-1)) % len(times)]
    fresh = np.ones(len(order), bool)
    fresh[1:] = (group[1:] != group[:-1]) | (begin[order][1:] >= reach[:-1])
    stretch = np.empty(len(order), np.int64)
    stretch[order] = np.cumsum(fresh) - 1
    return stretch


def _assign_nested_lanes(
    rows: np.ndarray, begin: np.ndarray, end: np.ndarray, stretch: np.ndarray, lanes: np.ndarray
) -> int:
    """Fill in the lanes of an object's rows, stretch by stretch; returns how many find none."""
    _, unit = np.unique(stretch[rows], return_inverse=True)
    unit = unit.reshape(-1)
    for lane in range(MOST_LANES):
        stays = np.ones(int(unit.max()) + 1, bool)
        stays[unit[_find_crossing(begin[rows], end[rows])]] = False
        if not stays[unit].any():
            return _assign_free_lanes(rows, begin, end, unit, lanes, lane)
        lanes[rows] = lane
        rows, unit = rows[~stays[unit]], unit[~stays[unit]]
        if not len(rows):
            return 0
    return len(rows)


def _assign_free_lanes(
    rows: np.ndarray,
    begin: np.ndarray,
    end: np.ndarray,
    unit: np.ndarray,
    lanes: np.ndarray,
    free: int,
) -> int:
    """Fill in lanes from `free` on, on which no stretch overlaps another; returns how many rows
    find none.
    """
    numbers, unit = np.unique(unit, return_inverse=True)
    unit = unit.reshape(-1)
    first, last = (
        np.full(len(numbers), np.iinfo(np.int64).max),
        np.full(len(numbers), np.iinfo(np.int64).min),
    )
    np.minimum.at(first, unit, begin[rows])
    np.maximum.at(last, unit, end[rows])
    order = np.lexsort((-last, first))
    of_unit = np.empty(len(numbers), np.int64)
    of_unit[order], _ = assign_first_free_lanes(
        np.zeros(len(numbers), np.int64), first[order], last[order], {}
    )
    wanted = of_unit[unit] + free
    lanes[rows] = np.minimum(wanted, MOST_LANES - 1)
    return int(np.count_nonzero(wanted >= MOST_LANES))
