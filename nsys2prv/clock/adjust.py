"""Adjust corrections to hard bounds: connect, move and tighten hosts so that no effect precedes its
cause.

Hosts bound in one direction only are moved just far enough; hosts whose own clocks contradict
nothing keep them. A line over a span is the pair (value at its begin, value at its end); bounds
leave a convex region of these.
"""

from __future__ import annotations

import heapq
from itertools import count

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.columns import Table, group_rows
from nsys2prv.clock import (
    DRIFT_PRIOR,
    NOISE,
    PLAUSIBLE_DRIFT,
    ClockFinding,
    Corrections,
    FindingKind,
)
from nsys2prv.clock.least_squares import ENDS, REFERENCE, UTC, Estimate, list_corrections

#: How corrections were found, beside by ends alone.
BOUNDS = "causality"
ONE_WAY, CONFIRMED = "causality, one way", "UTC, confirmed"
#: By how much bounds are relaxed (ns), one after the other, until they do not contradict each
#: other, as no clock keeps its rate for ever; the error is larger by twice as much.
RELAXATIONS = (0.0, *(1_000.0 * 2.0**step for step in range(11)))
#: Violations of no more than this (and the slack of their noise) are noise, ns.
TOLERANCE = 3_000.0
#: Times that all hosts are moved, at most.
SWEEPS = 3
#: Fewer bounds than this may be of calls that do not belong together.
FEWEST_BOUNDS = 8
#: UTC is never wrong by more than this (ns); larger corrections mean wrong data.
LARGEST_ONE_WAY = 1_000_000_000.0
#: A correction larger than this (ns) is made though its error might be as large.
LARGEST_UNMOVED = 10_000.0
#: First and last time of a correction that is valid at all times.
AT_ALL_TIMES = {"first": -np.inf, "last": np.inf}
#: Bounds kept of each side: the tightest of as many parts of the span.
PARTS_OF_SPAN = 64
#: Values that are not bounded at all, ns.
UNBOUNDED = 1e12
#: Steeper than this no line is, unless all others are forbidden.
STEEPEST_SLOPE = 3 * DRIFT_PRIOR


class Precedences(Table, frozen=True):
    """`begin` on clock `before` is not later than `end` on clock `after`: float ns relative to the
    pivot.
    """

    #: Key of NOISE.
    noise_kind: np.ndarray
    #: Clock of the begin.
    before: np.ndarray
    #: The earlier time.
    begin: np.ndarray
    #: Clock of the end.
    after: np.ndarray
    #: The later time.
    end: np.ndarray
    #: Held back from the estimate, to judge it by.
    held: np.ndarray

    def correct(self, corrections: Corrections) -> tuple[np.ndarray, np.ndarray]:
        """Return the begins and the ends by corrected clocks."""
        return (corrections.apply(self.begin, self.before), corrections.apply(self.end, self.after))

    def find_slack(self) -> np.ndarray:
        """Return by how much clocks of devices within a host may contradict each other, ns."""
        return np.array([noise.slack for noise in NOISE.values()])[self.noise_kind]


def connect_parts(estimates: list[Estimate], orders: Precedences) -> list[Estimate]:
    """Return parts that no ends connect, connected by bounds in both directions: each along the
    road of the smallest error to a reference.
    """
    part = np.array([estimate.reference for estimate in estimates])
    inner = np.array([estimate.bound for estimate in estimates])
    begin, end = orders.correct(list_corrections(estimates))
    before, after = part[orders.before], part[orders.after]
    across = np.flatnonzero(before != after)
    pair = np.minimum(before, after)[across] * len(part) + np.maximum(before, after)[across]
    roads: dict[int, list[Estimate]] = {}
    for number, places in group_rows(pair):
        rows = across[places]
        more = float(inner[orders.before[rows]].max() + inner[orders.after[rows]].max())
        one, other = divmod(number, len(part))
        for reference, host in ((one, other), (other, one)):
            road = _find_part_correction(
                host, reference, begin[rows], end[rows], before[rows] == host
            )
            if road is not None:
                roads.setdefault(reference, []).append(replace(road, bound=road.bound + more))
    return _compose_corrections(estimates, part, roads)


def _find_part_correction(
    host: int, reference: int, begin: np.ndarray, end: np.ndarray, leaving: np.ndarray
) -> Estimate | None:
    """Return the correction of a host's part to another part; None where all precedences lead one
    way, or contradict each other. `leaving` precedences start in the host's part, the others end
    there.
    """
    if leaving.all() or not leaving.any():
        return None
    bounds = _bound_changes(begin, end, leaving)
    first, last = float(bounds.times.min()), float(bounds.times.max())
    for by in RELAXATIONS:
        line = find_middle_line(bounds.relax(by), first, last)
        if line is not None:
            slope = (line.last - line.first) / max(last - first, 1.0)
            return Estimate(
                host,
                reference,
                BOUNDS,
                line.first - slope * first,
                slope,
                line.error + 2 * by,
                line.slope_error,
                len(begin),
                first=first,
                last=last,
            )
    return None


def _compose_corrections(
    estimates: list[Estimate], part: np.ndarray, roads: dict[int, list[Estimate]]
) -> list[Estimate]:
    """Return corrections of the parts composed along the roads of the smallest error from the
    lowest part. roads: by the reference that they lead to.
    """
    reached: dict[int, Estimate] = {}
    order = count()
    for start in np.unique(part).tolist():
        queue = [(0.0, start, next(order), Estimate(start, start, REFERENCE, **AT_ALL_TIMES))]
        while queue:
            *_, here = heapq.heappop(queue)
            if here.host not in reached:
                reached[here.host] = here
                for road in roads.get(here.host, []):
                    whole = road.compose(here)
                    heapq.heappush(queue, (whole.bound, whole.host, next(order), whole))
    result = []
    for estimate in estimates:
        road = reached[estimate.reference]
        if road.reference == road.host:
            if estimate.method == UTC and road.host in roads:
                estimate = replace(estimate, method=REFERENCE)
        else:
            alone = estimate.method in (UTC, REFERENCE)
            observed = estimate
            if not np.isfinite(estimate.first):
                observed = replace(estimate, **AT_ALL_TIMES)
            estimate = replace(
                observed.compose(road),
                method=BOUNDS if alone else f"{ENDS}, {BOUNDS}",
                observations=estimate.observations or road.observations,
            )
        result.append(estimate)
    return result


def find_violations(
    estimates: list[Estimate], orders: Precedences
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return which precedences are between hosts of one reference; by how much more than noise these
    are violated (ns; -inf for others); and which of them by more than the errors of the hosts.
    """
    bound, reference = (
        np.array([getattr(one, name) for one in estimates]) for name in ("bound", "reference")
    )
    begin, end = orders.correct(list_corrections(estimates))
    same = reference[orders.before] == reference[orders.after]
    excess = np.where(same, begin - end - orders.find_slack() - TOLERANCE, -np.inf)
    return same, excess, excess > bound[orders.before] + bound[orders.after]


def remove_violations(
    estimates: list[Estimate], orders: Precedences, findings: list[ClockFinding]
) -> list[Estimate]:
    """Return the estimates, moved as little as possible to remove the violations that lie within
    their error; larger ones are taken for wrong data.
    """
    estimates = list(estimates)
    slack = TOLERANCE + orders.find_slack()
    beyond = np.zeros(len(orders), bool)
    for _ in range(SWEEPS):
        same, excess, beyond = find_violations(estimates, orders)
        wrong = (excess > 0) & ~beyond
        touched = np.unique(np.concatenate([orders.before[wrong], orders.after[wrong]])).tolist()
        movable = [host for host in touched if estimates[host].reference != host]
        if not movable:
            break
        for host in sorted(movable, key=lambda host: -estimates[host].bound):
            estimates[host] = _move_host(estimates, host, orders, same & ~beyond, slack)
    hosts, counts = np.unique(orders.before[beyond], return_counts=True)
    findings += [
        ClockFinding(FindingKind.EARLY, count, clock=host)
        for host, count in zip(hosts.tolist(), counts.tolist(), strict=True)
    ]
    return estimates


def _move_host(
    estimates: list[Estimate], host: int, orders: Precedences, heeded: np.ndarray, slack: np.ndarray
) -> Estimate:
    estimate = estimates[host]
    rows = heeded & ((orders.before == host) | (orders.after == host))
    begin, end = orders[rows].correct(list_corrections(estimates))
    corners = _find_feasible_changes(estimate, begin, end, orders.before[rows] == host, slack[rows])
    if not len(corners):
        return estimate
    first, last = find_nearest_point(corners).tolist()
    if max(abs(first), abs(last)) > estimate.bound:
        return estimate
    slope = (last - first) / max(estimate.last - estimate.first, 1.0)
    return replace(
        estimate,
        offset=estimate.offset + first - slope * estimate.first,
        drift=estimate.drift + slope,
    )


def tighten_bounds(estimates: list[Estimate], orders: Precedences) -> list[Estimate]:
    """Return the estimates with bounds no wider than the precedences between each host and its
    reference allow.
    """
    reference = np.array([estimate.reference for estimate in estimates])
    slack = orders.find_slack()
    begin, end = orders.correct(list_corrections(estimates))
    leaving = orders.after == reference[orders.before]
    rows = np.flatnonzero(leaving | (orders.before == reference[orders.after]))
    hosts = np.where(leaving, orders.before, orders.after)[rows]
    result = list(estimates)
    for host, places in group_rows(hosts):
        at, estimate = rows[places], estimates[host]
        both_ways = leaving[at].any() and not leaving[at].all()
        if both_ways and np.isfinite(estimate.first):
            corners = _find_feasible_changes(estimate, begin[at], end[at], leaving[at], slack[at])
            if len(corners):
                bound = min(estimate.bound, float(np.abs(corners).max()))
                result[host] = replace(estimate, bound=bound)
    return result


def _find_feasible_changes(
    estimate: Estimate, begin: np.ndarray, end: np.ndarray, leaving: np.ndarray, slack: np.ndarray
) -> np.ndarray:
    """Return the corners of the corrections that may still be added to a host's times, within the
    error of its drift. `leaving` precedences start at the host, the others end there.
    """
    first, last = estimate.first, estimate.last
    bounds = _bound_changes(begin, end, leaving, slack).thin(first, last)
    return find_feasible_region(bounds, first, last, estimate.rate)


def _bound_changes(
    begin: np.ndarray, end: np.ndarray, leaving: np.ndarray, slack: np.ndarray | float = 0.0
) -> Bounds:
    """Return bounds of the correction that may be added to a host's times; `leaving` precedences
    start there, the others end there.
    """
    room = end - begin + slack
    return Bounds(np.where(leaving, begin, end), np.where(leaving, room, -room), leaving)


def move_unconnected_parts(
    estimates: list[Estimate], orders: Precedences, left_out: set[int]
) -> list[Estimate]:
    """Return the estimates, with unconnected parts moved until they no longer violate causality
    against the parts placed before them, from the first host's part on. They may be off by more:
    their bound is infinite.

    left_out: hosts whose clocks are not to be believed.
    """
    part = np.array([estimate.reference for estimate in estimates])
    begin, end = orders.correct(list_corrections(estimates))
    early = begin - end
    before, after = part[orders.before], part[orders.after]
    part_pairs, counts = np.unique(np.stack([before, after], axis=1), axis=0, return_counts=True)
    pairs = {
        (b, a): float(early[(before == b) & (after == a)].max())
        for (b, a), count in zip(part_pairs.tolist(), counts.tolist(), strict=True)
        if b != a and count >= FEWEST_BOUNDS and not left_out & {b, a}
    }
    shift = {int(part[0]): 0.0}
    ways = [way for pair in pairs for way in (pair, pair[::-1])]
    while near := {q for p, q in ways if p in shift and q not in shift}:
        q = min(near)
        later = max((pairs[p, q] + shift[p] for p in shift if (p, q) in pairs), default=0.0)
        earlier = max((pairs[q, p] - shift[p] for p in shift if (q, p) in pairs), default=0.0)
        moved = 0.0 if min(later, earlier) > 0 else max(later, 0.0) - max(earlier, 0.0)
        shift[q] = moved if abs(moved) <= LARGEST_ONE_WAY else 0.0
    return [
        replace(
            estimate,
            reference=int(part[0]),
            method=ONE_WAY,
            offset=estimate.offset + shift[estimate.reference],
            bound=np.inf,
        )
        if shift.get(estimate.reference)
        else estimate
        for estimate in estimates
    ]


def drop_needless_corrections(estimates: list[Estimate], orders: Precedences) -> list[Estimate]:
    """Return the estimates, with 0 for hosts whose correction is smaller than its own error and
    whose times, as placed, violate no causality.
    """
    late = orders.begin > orders.end
    contradicted = np.union1d(orders.before[late], orders.after[late])
    result = []
    for estimate in estimates:
        ends = np.array([estimate.first, estimate.last])
        ends = np.where(np.isfinite(ends), ends, 0.0)
        moved = float(np.abs(estimate.offset + estimate.drift * ends).max())
        if (
            estimate.reference != estimate.host
            and moved <= min(estimate.bound, LARGEST_UNMOVED)
            and estimate.host not in contradicted
        ):
            estimate = replace(
                estimate,
                method=CONFIRMED,
                offset=0.0,
                drift=0.0,
                bound=estimate.bound + moved,
                rate=estimate.rate + abs(estimate.drift),
            )
        result.append(estimate)
    return result


class Bounds(Table, frozen=True):
    """Bounds of a value over time: value(times[i]) is at most values[i], or at least."""

    #: When the value is bounded, float ns.
    times: np.ndarray
    #: What the value is bounded by, float ns.
    values: np.ndarray
    #: True where the value is at most this, False where it is at least this.
    is_upper: np.ndarray

    def relax(self, by: float) -> Bounds:
        """Return bounds that leave `by` more on their side, ns."""
        return replace(self, values=self.values + np.where(self.is_upper, by, -by))

    def thin(self, begin: float, end: float) -> Bounds:
        """Return the tightest bound of each side in each of PARTS_OF_SPAN parts of the span."""
        share = (self.times - begin) / max(end - begin, 1.0)
        part = np.clip(share * PARTS_OF_SPAN, 0, PARTS_OF_SPAN - 1).astype(np.int64)
        part = np.where(self.is_upper, part, part + PARTS_OF_SPAN)
        order = np.lexsort((np.where(self.is_upper, self.values, -self.values), part))
        return self[order[np.flatnonzero(np.diff(part[order], prepend=-1))]]


def find_feasible_region(
    bounds: Bounds, begin: float, end: float, steepest: float = PLAUSIBLE_DRIFT
) -> np.ndarray:
    """Return corners (value at `begin`, value at `end`) of the region that the bounds leave to
    lines of no larger slope, of shape (n, 2); empty if they contradict.
    """
    length = max(end - begin, 1.0)
    order = np.argsort(~bounds.is_upper, kind="stable")
    share = (bounds.times[order] - begin) / length
    sign = np.where(bounds.is_upper[order], 1.0, -1.0)
    normals = np.stack([sign * (1 - share), sign * share], axis=1)
    steep = steepest * length
    normals = np.concatenate([normals, [[-1, 1], [1, -1]]])
    limits = np.concatenate([sign * bounds.values[order], [steep, steep]])
    corners = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * UNBOUNDED
    for _ in range(4 * len(limits)):
        excess = (corners @ normals.T - limits).max(axis=0)
        worst = int(np.argmax(excess))
        if excess[worst] <= 1e-3:
            break
        corners = _cut_polygon(corners, normals[worst], limits[worst])
        if not len(corners):
            break
    return corners


def _cut_polygon(corners: np.ndarray, normal: np.ndarray, limit: float) -> np.ndarray:
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
    """A line amid bounds, over a span; all in ns."""

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
    corners = find_feasible_region(bounds, begin, end, STEEPEST_SLOPE)
    if not len(corners):
        corners = find_feasible_region(bounds, begin, end)
    if not len(corners) or np.abs(corners).max() >= UNBOUNDED / 2:
        return None
    length = max(end - begin, 1.0)
    first, last = _find_centre(corners, length)
    slopes = (corners[:, 1] - corners[:, 0]) / length
    return MiddleLine(
        first,
        last,
        float(np.abs(corners - [first, last]).max()),
        float(np.abs(slopes - (last - first) / length).max()),
    )


def _find_centre(corners: np.ndarray, length: float) -> tuple[float, float]:
    """Return the likeliest line of a region: the mean slope by the distribution of drifts of
    clocks, in the middle of the lines of that slope.
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
