"""Feasible region of a line under hard bounds: the pairs (value at the span's begin, value at its
end) that no bound forbids.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import astuple

from nsys2prv.clock.observations import DRIFT_PRIOR, PLAUSIBLE_DRIFT

#: Bounds kept of each side: the tightest of as many parts of the span.
PARTS = 64
#: Values that are not bounded at all, ns.
ANYWHERE = 1e12
#: Steeper than this no line is, unless all others are forbidden.
STEEP = 3 * DRIFT_PRIOR


class Bounds(Struct, frozen=True):
    """value(times[i]) <= values[i] (`upper`) or >= values[i]: float ns. Upper and lower are arrays
    of (times, values).
    """

    #: Times of the upper bounds.
    upper_times: np.ndarray
    #: Upper bounds.
    upper: np.ndarray
    #: Times of the lower bounds.
    lower_times: np.ndarray
    #: Lower bounds.
    lower: np.ndarray

    def subtract_line(self, offset: float, slope: float) -> Bounds:
        """Return bounds of what remains of the value without that line."""
        return Bounds(
            self.upper_times,
            self.upper - offset - slope * self.upper_times,
            self.lower_times,
            self.lower - offset - slope * self.lower_times,
        )

    def relax(self, by: float) -> Bounds:
        return Bounds(self.upper_times, self.upper + by, self.lower_times, self.lower - by)

    def thin(self, begin: float, end: float) -> Bounds:
        """Return the tightest bound of each side in each of PARTS parts of the span."""
        above = _find_tightest(self.upper_times, self.upper, begin, end)
        below = _find_tightest(self.lower_times, -self.lower, begin, end)
        return Bounds(
            self.upper_times[above], self.upper[above], self.lower_times[below], self.lower[below]
        )

    def concat(self, other: Bounds) -> Bounds:
        return Bounds(*map(np.concatenate, zip(astuple(self), astuple(other), strict=True)))


def _find_tightest(times: np.ndarray, values: np.ndarray, begin: float, end: float) -> np.ndarray:
    """Return indices of the smallest value in each of PARTS parts of the span."""
    part = np.clip((times - begin) / max(end - begin, 1.0) * PARTS, 0, PARTS - 1).astype(np.int64)
    order = np.lexsort((values, part))
    return order[np.flatnonzero(np.diff(part[order], prepend=-1))]


def find_feasible_region(
    bounds: Bounds, begin: float, end: float, steepest: float = PLAUSIBLE_DRIFT
) -> np.ndarray:
    """Return corners (value at `begin`, value at `end`) of the region that the bounds leave to
    lines of no larger slope, of shape (n, 2); empty if they contradict.
    """
    length = max(end - begin, 1.0)
    at = np.concatenate([bounds.upper_times, bounds.lower_times])
    share = (at - begin) / length
    sign = np.concatenate([np.ones(len(bounds.upper)), -np.ones(len(bounds.lower))])
    normals = np.stack([sign * (1 - share), sign * share], axis=1)
    limits = np.concatenate([bounds.upper, -bounds.lower])
    steep = steepest * length
    normals = np.concatenate([normals, [[-1, 1], [1, -1]]])
    limits = np.concatenate([limits, [steep, steep]])
    corners = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * ANYWHERE
    for _ in range(4 * len(limits)):
        excess = (corners @ normals.T - limits).max(axis=0)
        worst = int(np.argmax(excess))
        if excess[worst] <= 1e-3:
            break
        corners = _clip(corners, normals[worst], limits[worst])
        if not len(corners):
            break
    return corners


def _clip(corners: np.ndarray, normal: np.ndarray, limit: float) -> np.ndarray:
    """Return the convex polygon's part where normal . corner <= limit."""
    excess = corners @ normal - limit
    after, later = np.roll(corners, -1, axis=0), np.roll(excess, -1)
    kept = []
    for one, other, e, f in zip(corners, after, excess.tolist(), later.tolist(), strict=True):
        if e <= 0:
            kept.append(one)
        if (e < 0 < f) or (f < 0 < e):
            kept.append(one + (other - one) * (e / (e - f)))
    return np.array(kept).reshape(-1, 2)


class MiddleLine(Struct, frozen=True):
    """A line amid bounds: value at `begin`, value at `end`, and largest error of either."""

    #: Value at the begin.
    first: float
    #: Value at the end.
    last: float
    #: Largest error of either.
    error: float
    #: How much steeper or less steep it may be, ns per ns.
    slope_error: float


def find_middle_line(bounds: Bounds, begin: float, end: float) -> MiddleLine | None:
    """Return the line amid the bounds; None if they contradict or leave a side open. What a short
    span leaves of the slope is drawn to 0.
    """
    length = max(end - begin, 1.0)
    first = last = 0.0
    corners = np.empty((0, 2))
    kept = Bounds(*(np.empty(0) for _ in range(4)))
    for _ in range(3):
        # What is tightest shows only once the slope is about right.
        slope = (last - first) / length
        near = (
            bounds.subtract_line(first - slope * begin, slope)
            .thin(begin, end)
            .subtract_line(slope * begin - first, -slope)
        )
        kept = kept.concat(near)
        corners = find_feasible_region(kept, begin, end, STEEP)
        if not len(corners):
            corners = find_feasible_region(kept, begin, end)
        if not len(corners) or np.abs(corners).max() >= ANYWHERE / 2:
            return None
        first, last = _find_centre(corners, length)
    slopes = (corners[:, 1] - corners[:, 0]) / length
    return MiddleLine(
        first,
        last,
        float(np.abs(corners - [first, last]).max()),
        float(np.abs(slopes - (last - first) / length).max()),
    )


def _find_centre(corners: np.ndarray, length: float) -> tuple[float, float]:
    """Return the likeliest line of a region: slopes that it leaves are as likely as they are of
    clocks, and of one slope the middle is taken.
    """
    rise = corners[:, 1] - corners[:, 0]
    likely = np.linspace(rise.min(), rise.max(), 101)
    size = (likely / length / DRIFT_PRIOR) ** 2
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
    return amid - wanted / 2, amid + wanted / 2


def find_nearest_point(corners: np.ndarray) -> np.ndarray:
    """Return the point of the convex polygon that is nearest to (0, 0)."""
    after = np.roll(corners, -1, axis=0)
    edges = after - corners
    turns = corners[:, 0] * after[:, 1] - corners[:, 1] * after[:, 0]
    if len(corners) > 2 and (turns >= 0).all():
        return np.zeros(2)
    length = np.maximum((edges**2).sum(axis=1), 1e-9)
    share = np.clip(-(corners * edges).sum(axis=1) / length, 0, 1)[:, None]
    points = corners + share * edges
    return points[np.argmin((points**2).sum(axis=1))]
