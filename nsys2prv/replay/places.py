"""Find places between calls of MPI that are one place of the program: ranks that work alike there, but
then do different things, as one sends what another receives.
"""

from __future__ import annotations

import numpy as np

from nsys2prv.replay.events import MPI_NAMES
from nsys2prv.replay.unit_graph import split_place

#: By so many times processes may differ that pass a place equally often: the first and the last time they
#: come from, or go to, another one.
FEW_TIMES = 2


def group_places(keys: np.ndarray, totals: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return for each key the place of that of its group with most time: places with the same call
    before, or behind, which no process has two of, and processes pass about equally often. keys: ascending;
    totals, counts: how long each process works there (ns), and how often: (keys, processes).
    """
    group = np.arange(len(keys))
    found: list[list[int]] = []
    places = [place for place, key in enumerate(keys.tolist()) if _is_of_mpi(key)]
    for place in sorted(places, key=lambda one: -int(totals[one].sum())):
        fits = (one for one in found if _is_one_place(keys, counts, one, place))
        of = next(fits, None)
        if of is None:
            found.append([place])
        else:
            of.append(place)
            group[place] = of[0]
    return group


def _is_of_mpi(key: int) -> bool:
    return key < 0 and all(MPI_NAMES <= name < 2 * MPI_NAMES for name in split_place(key))


def _is_one_place(keys: np.ndarray, counts: np.ndarray, group: list[int], place: int) -> bool:
    before, after = split_place(int(keys[place]))
    calls = [split_place(int(keys[one])) for one in group]
    others, own = counts[group].sum(axis=0), counts[place]
    return (
        not ((others > 0) & (own > 0)).any()
        and any(one[0] == before or one[1] == after for one in calls)
        and abs(int(own.max()) - int(others.max())) <= FEW_TIMES
    )


def join_lines(
    edges: np.ndarray, first: np.ndarray, group: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a table of work with the lines of each group of keys together, the first line of each key
    that is left, and the end of the last, and which keys these are.
    """
    kept = np.flatnonzero(group == np.arange(len(group)))
    lines = np.diff(first)
    most = np.zeros(len(group), np.int64)
    np.maximum.at(most, group, lines)
    begins = np.append(0, np.cumsum(most[kept]))
    # Where the lines of each key go.
    to = np.repeat(begins[np.searchsorted(kept, group)], lines)
    to += np.arange(len(edges)) - np.repeat(first[:-1], lines)
    joined = np.full((begins[-1], edges.shape[1]), -1, edges.dtype)
    np.maximum.at(joined, to, edges)
    return joined, begins, kept
