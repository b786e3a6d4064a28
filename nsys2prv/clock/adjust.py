"""Adjust corrections to hard bounds, so that no effect precedes its cause.

Ends of collectives connect hosts into parts. The order of events constrains all hosts, so all parts
are moved together (:func:`~nsys2prv.clock.orders.move_jointly`). The remaining freedom (a region of
possible lines) is the error. Parts that are bounded in both directions are placed in the middle.
Parts that are bounded in one direction are moved just far enough. Hosts keep clocks that contradict
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.columns import group_rows
from nsys2prv.clock import (
    PLAUSIBLE_DRIFT,
    UTC_ERROR,
    ClockFinding,
    Corrections,
    FindingKind,
    NoiseKind,
)
from nsys2prv.clock.least_squares import (
    ENDS,
    REFERENCE,
    SIGMAS_IN_BOUND,
    UTC,
    Estimate,
    list_corrections,
)
from nsys2prv.clock.orders import (
    STEEPEST_SLOPE,
    Bounds,
    Precedences,
    Springs,
    find_centre,
    find_feasible_region,
    is_bounded,
    label_connected,
    move_jointly,
    spread_regions,
)

#: Methods that find corrections, in addition to ends alone.
BOUNDS = "causality"
ONE_WAY, CONFIRMED = "causality, one way", "UTC, confirmed"
#: Violations by kernels of no more than this (and the slack of their noise) are noise, ns.
TOLERANCE = 3_000.0
#: A correction larger than this (ns) is made though its error might be as large.
LARGEST_UNMOVED = 10_000.0
#: Hosts that have to be moved by more than this (ns) are moved in several steps, at most so many more.
FAR, MOST_RETURNS = 10.0 * UTC_ERROR, 4
#: Springs are no stiffer than this (ns).
LEAST_SIGMA = 100.0


def find_violations(
    estimates: list[Estimate], orders: Precedences
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find the precedences (order of two events on two hosts) that corrected clocks violate. Return
    three arrays over precedences: whether both hosts have the same reference; by how much a
    precedence is violated beyond noise (ns; -inf if the references differ); and whether this exceeds
    the errors of the hosts.
    """
    bound, reference = (
        np.array([getattr(one, name) for one in estimates]) for name in ("bound", "reference")
    )
    begin, end = orders.correct(list_corrections(estimates))
    same = reference[orders.before] == reference[orders.after]
    excess = np.where(same, begin - end - _find_noise(orders), -np.inf)
    return same, excess, excess > bound[orders.before] + bound[orders.after]


def _find_noise(orders: Precedences) -> np.ndarray:
    """Return the allowed violation of each precedence (ns). MPI calls are timed by the host's
    clock, kernels by GPU clocks.
    """
    return np.where(orders.noise_kind == NoiseKind.MPI, 0.0, TOLERANCE + orders.find_slack())


def place_by_order(
    estimates: list[Estimate],
    orders: Precedences,
    findings: list[ClockFinding],
    left_out: set[int],
) -> list[Estimate]:
    """Move the corrections of hosts together, so that every precedence that can be satisfied is
    satisfied. Return the new estimates.

    left_out: hosts with unreliable clocks. findings: a list to which findings are added.
    """
    part = np.array([estimate.reference for estimate in estimates])
    same, excess, beyond = find_violations(estimates, orders)
    _tell_early(orders, beyond, findings)
    distrusted = np.isin(np.arange(len(part)), [*left_out])
    sound = ~beyond & ~(distrusted[orders.before] | distrusted[orders.after])
    if not (~same & sound).any() and not (excess[sound] > 0).any():
        return estimates
    slack = np.where(same, _find_noise(orders), 0.0)
    network = _Network(estimates, orders[sound], slack[sound], part)
    result = network.place(findings)
    _tell_early(orders[sound], network.given_up, findings)
    return result


def _tell_early(orders: Precedences, early: np.ndarray, findings: list[ClockFinding]) -> None:
    hosts, counts = np.unique(orders.before[early], return_counts=True)
    findings += [
        ClockFinding(FindingKind.EARLY, count, clock=host)
        for host, count in zip(hosts.tolist(), counts.tolist(), strict=True)
    ]


class _Road(Struct, frozen=True):
    """The freedom that the order of events leaves to one part relative to another."""

    #: Host that is the reference of the other part.
    start: int
    #: First and last time of the precedences of the part.
    span: np.ndarray
    #: Corners of the region of corrections that may still be added: values at these times, ns.
    corners: np.ndarray
    #: The likeliest of them.
    centre: np.ndarray
    #: Number of precedences.
    observations: int
    #: Additional error of a line, because no clock keeps its rate forever (ns).
    bend: float

    def find_error(self, line: np.ndarray) -> tuple[float, float]:
        """Return the largest error of a line (ns), and the largest error of its slope."""
        slopes = np.diff(self.corners - line, axis=1) / max(self.span[1] - self.span[0], 1.0)
        return float(np.abs(self.corners - line).max()) + self.bend, float(np.abs(slopes).max())


class _Network:
    """Parts of hosts, and the constraints between them from the order of events."""

    def __init__(
        self, estimates: list[Estimate], orders: Precedences, slack: np.ndarray, part: np.ndarray
    ) -> None:
        self.estimates, self.part = estimates, part
        self.bound = np.array([estimate.bound for estimate in estimates])
        before, after = part[orders.before], part[orders.after]
        self.component = label_connected(before, after, len(part))
        # What can be moved against the first host of these is told by nothing else.
        self.group = label_connected(np.append(before, after), np.append(after, before), len(part))
        self.orders, self.slack = orders, slack
        self.given_up = np.zeros(len(orders), bool)

    def place(self, findings: list[ClockFinding]) -> list[Estimate]:
        """Return the estimates of all hosts."""
        corrections = list_corrections(self.estimates)
        unmoved = Corrections(*np.zeros((2, len(self.part))))
        moved, bend = self._move(corrections, unmoved, {})
        for _ in range(MOST_RETURNS if self._find_shifts(moved).max() > FAR else 0):
            # From there on: far from UTC, its springs would rather bend a clock than let go of it.
            if np.abs(moved.drift).max() <= STEEPEST_SLOPE:
                break
            moved, bend = self._move(self._compose(moved), moved, {})
        if steep := np.flatnonzero(np.abs(moved.drift) > PLAUSIBLE_DRIFT).tolist():
            return self._place_others(steep, moved, findings)
        roads: dict[int, _Road] = {}
        for start in np.unique(self.component).tolist():
            roads |= self._find_roads(start, moved, self.orders[~self.given_up], bend)
        begun = self._compose(moved)
        if roads:
            moved, _ = self._move(begun, moved, roads)
        moved = self._undo_slight_moves(moved)
        return [self._finish(host, begun, moved, roads) for host in range(len(self.part))]

    def _move(
        self, corrections: Corrections, moved: Corrections, roads: Mapping[int, _Road]
    ) -> tuple[Corrections, float]:
        """Return corrections that satisfy all precedences that are not given up, and the largest
        remaining violation (ns). moved: previous correction of the reference of each part.
        """
        springs = self._make_springs(corrections, moved, roads)
        fixed = self.group[self.part] == np.arange(len(self.part))
        kept = ~self.given_up
        moved, lost, bend = move_jointly(
            corrections, self.orders[kept], springs, self.slack[kept], fixed
        )
        self.given_up[kept] = lost
        return moved, bend

    def _place_others(
        self, steep: list[int], moved: Corrections, findings: list[ClockFinding]
    ) -> list[Estimate]:
        """Place the hosts again without these, whose clocks would drift implausibly, and return all
        estimates.
        """
        for host in steep:
            reason = FindingKind.STEEP.value.format(moved.drift[host] * 1e6)
            findings.append(ClockFinding(FindingKind.STEEP, clock=host, reason=reason))
        out = np.isin(np.arange(len(self.part)), steep)
        rows = np.flatnonzero(~(out[self.orders.before] | out[self.orders.after]))
        rest = _Network(self.estimates, self.orders[rows], self.slack[rows], self.part)
        result = rest.place(findings)
        self.given_up[rows] = rest.given_up
        return result

    def _find_shifts(self, moved: Corrections) -> np.ndarray:
        """Return the shift of each host in the middle of its time span (ns)."""
        low, high = np.nan_to_num(self.orders.find_spans(moved), posinf=0.0, neginf=0.0)
        return np.abs(moved.offset + moved.drift * (low + high) / 2)

    def _compose(self, moved: Corrections) -> Corrections:
        """Return the corrections of all hosts; each part is moved like its reference."""
        offset, drift = moved.offset[self.part], moved.drift[self.part]
        own = list_corrections(self.estimates)
        return Corrections(own.offset * (1 + drift) + offset, own.drift + drift + own.drift * drift)

    def _make_springs(
        self, corrections: Corrections, moved: Corrections, roads: Mapping[int, _Road]
    ) -> Springs:
        """Return the springs for :func:`move_jointly`.

        They pull hosts to the reference of their part, as their ends require; parts to the middle
        of the freedom that the order of events leaves; and all others to UTC.
        """
        low, high = self.orders.find_spans(corrections)
        rows = []
        for host in np.flatnonzero(low <= high).tolist():
            estimate, ref = self.estimates[host], int(self.part[host])
            if host != ref:
                sigma = max(estimate.bound / SIGMAS_IN_BOUND, LEAST_SIGMA)
                times = moved.apply(np.array([estimate.first, estimate.last]), ref)
                rows += [(host, ref, time, 0.0, sigma) for time in times.tolist()]
            elif road := roads.get(host):
                error, _ = road.find_error(road.centre)
                sides = zip(road.span.tolist(), road.centre.tolist(), strict=True)
                rows += [
                    (host, road.start, *side, max(error / SIGMAS_IN_BOUND, LEAST_SIGMA))
                    for side in sides
                ]
            else:
                rows.append((host, -1, (low[host] + high[host]) / 2, 0.0, UTC_ERROR))
        columns = np.array(rows).reshape(-1, 5).T
        return Springs(*columns[:2].astype(np.int64), *columns[2:])

    def _find_roads(
        self, start: int, moved: Corrections, orders: Precedences, bend: float
    ) -> dict[int, _Road]:
        """Return the freedom of each part of a component relative to its first part. bend: allowed
        violation (ns), if no lines satisfy all precedences.
        """
        before, after = self.part[orders.before], self.part[orders.after]
        inside = (self.component[before] == start) & (self.component[after] == start)
        rows = np.flatnonzero((before != after) & inside)
        if not len(rows):
            return {}
        before, after, orders = before[rows], after[rows], orders[rows]
        begin, end = orders.correct(moved)
        error = self.bound[orders.before] + self.bound[orders.after]
        # A drift scales the time between begin and end, by less than this.
        room = end - begin + error + bend + PLAUSIBLE_DRIFT * np.abs(end - begin)
        span = min(begin.min(), end.min()), max(begin.max(), end.max())
        differences: dict[int, dict[int, np.ndarray]] = {
            host: {} for host in np.unique([before, after]).tolist()
        }
        pair = np.minimum(before, after) * len(self.part) + np.maximum(before, after)
        for number, at in group_rows(pair):
            one, other = divmod(number, len(self.part))
            leaving = before[at] == other
            times = np.where(leaving, begin[at], end[at])
            bounds = Bounds(times, np.where(leaving, room[at], -room[at]), leaving)
            slope = float(moved.drift[other] - moved.drift[one])
            for steepest in (STEEPEST_SLOPE, PLAUSIBLE_DRIFT):
                region = find_feasible_region(bounds, *span, steepest, slope)
                if len(region):
                    differences[one][other], differences[other][one] = region, -region
                    break
        roads = {}
        low, high = self.orders.find_spans(moved)
        for host, region in spread_regions(start, differences).items():
            if host != start and is_bounded(region):
                mine = (before == host) | (after == host)
                own = np.array([low[self.part == host].min(), high[self.part == host].max()])
                share = (own - span[0]) / max(span[1] - span[0], 1.0)
                corners = region @ np.stack([1 - share, share])
                slope = float(moved.drift[host] - moved.drift[start])
                centre = find_centre(corners, max(own[1] - own[0], 1.0), slope)
                roads[host] = _Road(start, own, corners, centre, int(mine.sum()), 2 * bend)
        return roads

    def _undo_slight_moves(self, moved: Corrections) -> Corrections:
        """Return the corrections, with components whose first host hardly moved moved back."""
        hosts = np.arange(len(self.part))
        first = self.component[self.part]
        shift = self._find_shifts(moved)[first]
        slight = np.where((shift <= TOLERANCE) & (self.group[self.part] != first), first, -1)
        offset, drift = moved.offset[slight] * (slight >= 0), moved.drift[slight] * (slight >= 0)
        return Corrections(
            (moved.offset[hosts] - offset) / (1 + drift), (1 + moved.drift[hosts]) / (1 + drift) - 1
        )

    def _finish(
        self, host: int, begun: Corrections, moved: Corrections, roads: Mapping[int, _Road]
    ) -> Estimate:
        """Return the estimate of a host after the final move."""
        estimate, ref = self.estimates[host], int(self.part[host])
        start, group = int(self.component[ref]), int(self.group[ref])
        estimate = replace(
            estimate, offset=float(moved.offset[host]), drift=float(moved.drift[host])
        )
        if road := roads.get(ref):
            alone = estimate.method in (UTC, REFERENCE)
            line = _find_change(begun, moved, ref, road.span)
            line = line - _find_change(begun, moved, start, road.span)
            error, slope_error = road.find_error(line)
            first, last = road.span.tolist()
            if np.isfinite(estimate.first) and not alone:
                first, last = max(first, estimate.first), min(last, estimate.last)
            estimate = replace(
                estimate,
                reference=start,
                method=BOUNDS if alone else f"{ENDS}, {BOUNDS}",
                bound=estimate.bound + error,
                rate=estimate.rate + slope_error,
                observations=estimate.observations or road.observations,
                first=first,
                last=last,
            )
        elif any(road.start == host for road in roads.values()) and estimate.method == UTC:
            estimate = replace(estimate, method=REFERENCE)
        if start != group and (moved.offset[start] or moved.drift[start]):
            estimate = replace(estimate, reference=group, method=ONE_WAY, bound=np.inf)
        return estimate


def _find_change(
    before: Corrections, after: Corrections, host: int, times: np.ndarray
) -> np.ndarray:
    """Return by how much (ns) times of a host become later if the corrections change from `before`
    to `after`.
    """
    shown = (times - before.offset[host]) / (1 + before.drift[host])
    return shown * (1 + after.drift[host]) + after.offset[host] - times


def tighten_bounds(
    estimates: list[Estimate], orders: Precedences, is_timed_by_gpu: np.ndarray
) -> list[Estimate]:
    """Reduce the error bounds of estimates to what precedences between each host and its reference
    allow. Return the new estimates. For hosts without kernels, these are the only bounds, because
    ends of MPI calls may scatter by any time. is_timed_by_gpu: mask of the hosts with kernels.
    """
    reference = np.array([estimate.reference for estimate in estimates])
    corrections = list_corrections(estimates)
    low, high = orders.find_spans(corrections)
    begin, end = orders.correct(corrections)
    room = end - begin + orders.find_slack()
    leaving = orders.after == reference[orders.before]
    rows = np.flatnonzero(leaving | (orders.before == reference[orders.after]))
    result = list(estimates)
    for host, places in group_rows(np.where(leaving, orders.before, orders.after)[rows]):
        at, estimate = rows[places], estimates[host]
        both_ways = leaving[at].any() and not leaving[at].all()
        if not both_ways or not np.isfinite(estimate.first):
            continue
        times = np.where(leaving[at], begin[at], end[at])
        bounds = Bounds(times, np.where(leaving[at], room[at], -room[at]), leaving[at])
        alone = estimate.method == ENDS and not is_timed_by_gpu[host]
        first, last = (low[host], high[host]) if alone else (estimate.first, estimate.last)
        steepest = (STEEPEST_SLOPE, estimate.drift) if alone else (estimate.rate,)
        corners = find_feasible_region(bounds, first, last, *steepest)
        if not len(corners) or (alone and not is_bounded(corners)):
            continue
        bound, rate = float(np.abs(corners).max()), estimate.rate
        if alone:
            slopes = np.diff(corners, axis=1) / max(last - first, 1.0)
            rate = max(rate, float(np.abs(slopes).max()))
        else:
            bound = min(bound, estimate.bound)
        result[host] = replace(estimate, bound=bound, rate=rate, first=first, last=last)
    return result


def drop_needless_corrections(estimates: list[Estimate], orders: Precedences) -> list[Estimate]:
    """Return the estimates, with 0 for corrections that are not needed: smaller than their own
    error, while the uncorrected times violate no causality.
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
