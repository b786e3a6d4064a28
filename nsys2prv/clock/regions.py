"""Regions of lines: what bounds over time leave to the difference of two clocks, and to that of hosts
that only others connect.

A line over a span is the point (value at its begin, value at its end); a bound at some time is a
half-plane, so several leave a convex polygon. Differences add up along a way from host to host, and
so do polygons; several ways to one host leave what they have in common.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping

import numpy as np

from nsys2prv._util.columns import Table
from nsys2prv.clock import DRIFT_PRIOR, PLAUSIBLE_DRIFT

#: Values that are not bounded at all, ns.
UNBOUNDED = 1e12
#: Steeper than this no difference of two clocks is, unless all others are forbidden: crystals are
#: specified to within 100 ppm at worst.
STEEPEST_SLOPE = 4 * DRIFT_PRIOR
#: A cut that takes away less than this (ns) and this share of the width is left out: regions would
#: have ever more corners.
LEAST_CUT, LEAST_CUT_SHARE = 1e-3, 1e-3
#: Regions are narrowed again only if it takes away more than this (ns) or this share of them, and so
#: often for each host, as regions around a circle of hosts would shrink for ever.
LEAST_GAIN, LEAST_SHARE, MOST_TURNS = 10.0, 0.02, 64


class Bounds(Table, frozen=True):
    """Bounds of a value over time: value(times[i]) is at most values[i], or at least."""

    #: When the value is bounded, float ns.
    times: np.ndarray
    #: What the value is bounded by, float ns.
    values: np.ndarray
    #: True where the value is at most this, False where it is at least this.
    is_upper: np.ndarray


def find_feasible_region(
    bounds: Bounds, begin: float, end: float, steepest: float = PLAUSIBLE_DRIFT, slope: float = 0.0
) -> np.ndarray:
    """Return corners (value at `begin`, value at `end`) of the region that the bounds leave to
    lines whose slope plus `slope` is no larger, of shape (n, 2); empty if they contradict.
    """
    length = max(end - begin, 1.0)
    order = np.argsort(~bounds.is_upper, kind="stable")
    share = (bounds.times[order] - begin) / length
    sign = np.where(bounds.is_upper[order], 1.0, -1.0)
    normals = np.stack([sign * (1 - share), sign * share], axis=1)
    normals = np.concatenate([normals, [[-1, 1], [1, -1]]])
    rises = (steepest - slope) * length, (steepest + slope) * length
    limits = np.concatenate([sign * bounds.values[order], rises])
    corners = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * UNBOUNDED
    return cut_region(corners, normals, limits)


def is_bounded(corners: np.ndarray) -> bool:
    """Return whether the bounds leave something, and leave no side open."""
    return len(corners) > 0 and float(np.abs(corners).max()) < UNBOUNDED / 2


def cut_region(corners: np.ndarray, normals: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """Return the part of the region where normal . corner <= limit, of each."""
    for _ in range(4 * len(limits)):
        reach = corners @ normals.T
        most = reach.max(axis=0)
        width = most - reach.min(axis=0)
        excess = most - limits - np.where(width < UNBOUNDED, LEAST_CUT_SHARE * width, 0.0)
        worst = int(np.argmax(excess))
        if excess[worst] <= LEAST_CUT:
            break
        corners = _cut_polygon(corners, normals[worst], limits[worst])
        if not len(corners):
            break
    return corners


def _cut_polygon(corners: np.ndarray, normal: np.ndarray, limit: float) -> np.ndarray:
    """Return the convex polygon's part where normal . corner <= limit."""
    excess = corners @ normal - limit
    after, later = np.roll(corners, -1, axis=0), np.roll(excess, -1)
    crossed = excess * later < 0
    share = np.where(crossed, excess / np.where(crossed, excess - later, 1.0), 0.0)
    kept = np.stack([corners, corners + (after - corners) * share[:, None]], axis=1)
    return kept[np.stack([excess <= 0, crossed], axis=1)]


def label_connected(one: np.ndarray, other: np.ndarray, size: int) -> np.ndarray:
    """Return of each host the lowest one that is connected with it in both directions; itself, if
    none is. Connections lead from `one` to the `other`.
    """
    ahead: dict[int, list[int]] = defaultdict(list)
    behind: dict[int, list[int]] = defaultdict(list)
    for a, b in np.unique(np.stack([one, other], axis=1), axis=0).tolist():
        ahead[a].append(b)
        behind[b].append(a)
    labels = np.full(size, -1)
    for start in range(size):
        if labels[start] < 0:
            labels[[*(_reach(start, ahead) & _reach(start, behind))]] = start
    return labels


def _reach(start: int, ways: Mapping[int, list[int]]) -> set[int]:
    reached, todo = {start}, [start]
    while todo:
        new = set(ways.get(todo.pop(), ())) - reached
        reached |= new
        todo += new
    return reached


def spread_regions(
    start: int, differences: Mapping[int, Mapping[int, np.ndarray]]
) -> dict[int, np.ndarray]:
    """Return the regions of all hosts that can be reached from `start`, whose own is (0, 0): each at
    least as large as what all differences together leave.

    differences: host -> other host -> region of the other's line less its own.
    """
    regions = {start: np.zeros((1, 2))}
    turns = dict.fromkeys(differences, 0)
    todo = deque([start])
    while todo:
        host = todo.popleft()
        for other, difference in differences[host].items():
            if other == start or turns[other] >= MOST_TURNS:
                continue
            known = regions.get(other)
            found = _add_regions(regions[host], difference, known)
            if known is None or _is_narrowed(known, found):
                regions[other] = found
                turns[other] += 1
                if other not in todo:
                    todo.append(other)
    return regions


def _is_narrowed(known: np.ndarray, found: np.ndarray) -> bool:
    gain = np.ptp(known, axis=0) - np.ptp(found, axis=0)
    return bool((gain > np.maximum(LEAST_GAIN, LEAST_SHARE * np.ptp(known, axis=0))).any())


def _add_regions(one: np.ndarray, other: np.ndarray, within: np.ndarray | None) -> np.ndarray:
    """Return the part of `within` that a sum of a point of each region reaches; nothing is cut off
    where rounding makes that empty.
    """
    normals = np.concatenate([_find_normals(one), _find_normals(other)])
    limits = (one @ normals.T).max(axis=0) + (other @ normals.T).max(axis=0)
    if within is None:
        within = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * UNBOUNDED
    found = cut_region(within, normals, limits)
    return found if len(found) else within


def _find_normals(corners: np.ndarray) -> np.ndarray:
    """Return the directions in which the sides of a region face, of length 1."""
    sides = np.roll(corners, -1, axis=0) - corners
    length = np.hypot(*sides.T)
    sides = sides[length > LEAST_CUT] / length[length > LEAST_CUT, None]
    # Corners run counterclockwise.
    return np.stack([sides[:, 1], -sides[:, 0]], axis=1)


def find_centre(corners: np.ndarray, length: float, slope: float = 0.0) -> np.ndarray:
    """Return the likeliest line of a region (value at begin, value at end): the mean slope by the
    distribution of drifts of clocks, in the middle of the lines of that slope. slope: of a line to
    which this one is added.
    """
    rise = corners[:, 1] - corners[:, 0]
    likely = np.linspace(rise.min(), rise.max(), 101)
    size = ((likely / length + slope) / DRIFT_PRIOR) ** 2
    weight = np.exp((size.min() - size) / 2)
    wanted = float((likely * weight).sum() / weight.sum())
    centre = corners.sum(axis=1) / 2
    after, above = np.roll(centre, -1), rise - wanted
    beyond = np.roll(above, -1)
    crossed = (above <= 0) != (beyond <= 0)
    share = above[crossed] / (above[crossed] - beyond[crossed])
    crossing = (
        centre[crossed] + (after[crossed] - centre[crossed]) * share if crossed.any() else centre
    )
    amid = float(crossing.min() + crossing.max()) / 2
    return np.array([amid - wanted / 2, amid + wanted / 2])
