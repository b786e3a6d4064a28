"""Find places between calls of MPI that are one place of the program: ranks that work alike there, but
then do different things, as one sends what another receives. And kernels of one name and several sizes.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from nsys2prv.events.catalogue import load_catalogue
from nsys2prv.replay.events import MPI_NAMES
from nsys2prv.replay.thresholds import IN_PARTS, MOST_HICCUPS, PARTS
from nsys2prv.replay.unit_graph import split_place

#: By so many times processes may differ that pass a place equally often: the first and the last time they
#: come from, or go to, another one.
FEW_TIMES = 2
#: In the whole job they differ by this share of the times at most.
OF_TIMES = 0.1
#: A process that has this share of the most work of any at a place, or less, does its work elsewhere.
LITTLE = 0.05


def group_places(keys: np.ndarray, totals: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return for each key and process the place of the key where its work belongs: that of the group's
    with most time. A group has places that have a call in common, or are between messages alone, that
    processes pass about equally often, and of which each process works at one, if at any; what little
    it does at others goes where it would have been. keys: ascending; totals, counts: how long each
    process works there (ns), and how often: (keys, processes).
    """
    group = np.tile(np.arange(len(keys))[:, None], counts.shape[1])
    works = totals > LITTLE * totals.max(axis=1, initial=0, keepdims=True)
    found: list[list[int]] = []
    places = [place for place, key in enumerate(keys.tolist()) if _is_of_mpi(key)]
    for place in sorted(places, key=lambda one: -int(totals[one].sum())):
        fits = (one for one in found if _is_one_place(keys, works, counts, one, place))
        if (of := next(fits, None)) is None:
            found.append([place])
            continue
        of.append(place)
        group[place, works[place]] = of[0]
        group[of[0], works[place]] = place
    return group


def _is_of_mpi(key: int) -> bool:
    return key < 0 and all(MPI_NAMES <= name < 2 * MPI_NAMES for name in split_place(key))


def _is_one_place(
    keys: np.ndarray, works: np.ndarray, counts: np.ndarray, group: list[int], place: int
) -> bool:
    calls = split_place(int(keys[place]))
    own, others = works[place], works[group].any(axis=0)
    often = (counts[place, own].max(initial=0), counts[group][works[group]].max(initial=0))
    return (
        not (own & others).any()
        and any(_is_alike(calls, split_place(int(keys[one]))) for one in group)
        and abs(int(often[0]) - int(often[1])) <= FEW_TIMES
    )


def _is_alike(place: tuple[int, int], other: tuple[int, int]) -> bool:
    """Return whether places have a call in common, or are all between sends, receives and their waits."""
    is_common = place[0] == other[0] or place[1] == other[1]
    return is_common or all(name - MPI_NAMES in _list_messages() for name in (*place, *other))


@cache
def _list_messages() -> frozenset[int]:
    """Return the values of calls that send, receive and wait."""
    known = load_catalogue().name_sets["mpi_point_to_point"].list_known_values()
    return frozenset(known.values())


def join_lines(
    edges: np.ndarray, first: np.ndarray, turn: np.ndarray, counts: np.ndarray, group: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a table of work with what each process does at each key at the key of its group, the first
    line of each key that is left, and the end of the last, and which keys these are.
    """
    most = np.zeros(len(group), np.int64)
    np.maximum.at(most, group, counts)
    kept = np.flatnonzero(most)
    begins = np.zeros(len(group), np.int64)
    begins[kept] = np.cumsum(most[kept]) - most[kept]
    lines = np.diff(first)
    joined = np.full((most.sum(), edges.shape[1]), -1, edges.dtype)
    for column in range(edges.shape[1]):
        rows = np.flatnonzero(edges[:, column] >= 0)
        to = np.repeat(begins[group[:, column]], lines)[rows] + turn[rows]
        joined[to, column] = edges[rows, column]
    return joined, np.append(begins[kept], most.sum()), kept


def is_beside_others(larger: np.ndarray, more: int) -> bool:
    """Return whether the larger ones of a process's repetitions of a kernel (a mask) are what it does beside
    the work of others: again and again, at all times, and as many as others do less often.
    """
    at = np.flatnonzero(larger) * PARTS // max(len(larger), 1)
    is_more = MOST_HICCUPS < len(at) <= more / IN_PARTS
    return is_more and len(np.unique(at)) >= IN_PARTS * min(PARTS, len(at))


def pack_lines(edges: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Return lines of a table of work with what is chosen (a mask) of each column, one after the other."""
    counts = (chosen & (edges >= 0)).sum(axis=0)
    packed = np.full((counts.max(initial=0), edges.shape[1]), -1, edges.dtype)
    for column, count in enumerate(counts.tolist()):
        own = edges[:, column]
        packed[:count, column] = own[chosen[:, column] & (own >= 0)]
    return packed
