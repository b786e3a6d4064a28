"""Constrain clocks by the order of events: one event must have begun before another can have ended.

A receive ends after its send begins. If all members of a collective wait for all, none leaves
before the last has entered. In collectives with a root, the others wait for the root, or the root
waits for the others.

Precedences are linear conditions on the offsets and drifts of two hosts. :func:`move_jointly`
minimizes the sum of their violations, together with springs that pull hosts to where other
observations place them. A violation counts far more than any spring, so every condition that can be
satisfied is satisfied. If precedences contradict each other, as few as possible are violated; these
are given up, the worst first. An interior-point method finds the minimum: a logarithmic barrier
keeps the conditions and is lowered step by step.

Bounds over time restrict the difference of two clocks to a region of lines. A line over a span is a
point (value at the start, value at the end), and a bound at some time is a half-plane, so several
bounds leave a convex polygon. Differences add up along a path from host to host, and so do
polygons. Several paths to one host leave the intersection.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping

import numpy as np
import polars as pl
from msgspec.structs import replace

from nsys2prv._util.columns import Table, number_rows
from nsys2prv.clock import DRIFT_PRIOR, HOLD_BACK, NOISE, PLAUSIBLE_DRIFT, Corrections, Role

#: Messages between two hosts, in one direction.
MOST_MESSAGES = 2_000
#: Largest number of pairs of hosts of which all collectives together are made. Of more, each host is
#: compared with the last to come and with the lowest host, so that time grows with the number of hosts.
MOST_PAIRS = 1 << 18
#: Only the tightest row in each of so many parts of a host's span is kept of two hosts: a line
#: between clocks touches no more than a few.
PARTS_OF_SPAN = 64


class Precedences(Table, frozen=True):
    """Conditions on clocks, as arrays: the time `begin` on clock `before` is not later than `end`
    on clock `after`. Times are float ns relative to the pivot.
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
        """Return two arrays: the starts and the ends of all precedences on corrected clocks (float
        ns).
        """
        return (corrections.apply(self.begin, self.before), corrections.apply(self.end, self.after))

    def find_slack(self) -> np.ndarray:
        """Return a tolerance (ns) for each precedence: by how much the clocks of devices in one
        host may contradict each other.
        """
        return np.array([noise.slack for noise in NOISE.values()])[self.noise_kind]

    def find_spans(self, corrections: Corrections) -> tuple[np.ndarray, np.ndarray]:
        """Return two arrays: the first and the last corrected time of each host in the precedences;
        inf and -inf without any.
        """
        begin, end = self.correct(corrections)
        return find_spans(len(corrections.offset), (self.before, begin), (self.after, end))

    def find_tightest(self, hosts: int) -> np.ndarray:
        """Return the indices of the precedences that leave least room, for each pair of hosts, in
        each part of the first host's time. hosts: their number.
        """
        first, last = find_spans(hosts, (self.before, self.begin))
        length = np.maximum(last - first, 1.0)[self.before]
        part = ((self.begin - first[self.before]) / length * (PARTS_OF_SPAN - 1)).astype(np.int64)
        order = np.argsort(self.end - self.begin, kind="stable")
        where = (self.before * hosts + self.after) * PARTS_OF_SPAN + part
        return order[number_rows(where[order])[0]]


def find_spans(hosts: int, *times: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return two arrays: the first and the last time of each host. hosts: their number. times:
    pairs of (hosts, times).
    """
    first, last = np.full(hosts, np.inf), np.full(hosts, -np.inf)
    for host, time in times:
        np.minimum.at(first, host, time)
        np.maximum.at(last, host, time)
    return first, last


def find_collective_precedences(hosts: pl.DataFrame, binding: bool = False) -> Precedences:
    """Return the precedences that collectives imply: no member leaves before the members that it
    waits for have arrived. binding: if all members wait for all, use only the start of the last to
    arrive.

    hosts: rows from :func:`nsys2prv.match.gathering.gather_per_host`.
    """
    collective = ["collective", "role"]
    begins = hosts.filter(pl.col("begin").is_not_null())
    ends = hosts.filter(pl.col("first_end").is_not_null())
    ends = ends.select(*collective, "key", end="first_end", after="clock")
    rooted = pl.col("role") != Role.ALL
    if binding:
        begins, others = begins.filter(rooted | pl.col("late")), begins.clear()
    else:
        pairs = pl.len().over("collective").sum().over("key")
        many = ~rooted & (pairs > MOST_PAIRS // (hosts["key"].max() + 1 if hosts.height else 1))
        lowest = pl.col("clock") == pl.col("clock").min().over("key")
        begins, others = begins.filter(~many | pl.col("late") | lowest), begins.filter(many)
    begins, others = (
        side.select(*collective, "noise_kind", "held", "begin", before="clock")
        for side in (begins, others)
    )
    joined = begins.join(ends, on=collective)
    if others.height:
        lowest_ends = ends.filter(pl.col("after") == pl.col("after").min().over("key"))
        joined = pl.concat([joined, others.join(lowest_ends, on=collective)])
    return _to_precedences(joined)


def find_message_precedences(messages: pl.DataFrame, pivot: int) -> Precedences:
    """Return the precedences that messages imply: none is received before it is sent. messages: a
    frame with the columns MESSAGES. pivot: time in the middle of all times (ns).
    """
    pair = ("before", "after")
    table = (
        messages.with_columns(pl.col("begin", "end") - pivot)
        .filter(pl.col("before") != pl.col("after"))
        .sort(*pair, "begin", "end", "noise_kind")
        .with_columns(place=pl.int_range(pl.len()).over(pair), size=pl.len().over(pair))
    )
    # The place after which a whole step of size / MOST_MESSAGES begins: spread evenly, as many as
    # allowed.
    step, place = pl.col("size") / MOST_MESSAGES, pl.col("place")
    begins_step = (place / step).floor() != ((place - 1) / step).floor()
    held = place % HOLD_BACK == HOLD_BACK - 1
    table = table.filter((pl.col("size") <= MOST_MESSAGES) | begins_step)
    return _to_precedences(table.with_columns(held=held))


def _to_precedences(table: pl.DataFrame) -> Precedences:
    """Return the precedences between different hosts. table: their columns."""
    table = table.filter(pl.col("before") != pl.col("after")).with_columns(
        pl.col("noise_kind", "before", "after").cast(pl.Int64),
        pl.col("begin", "end").cast(pl.Float64),
    )
    return Precedences(*(table[name].to_numpy() for name in Precedences.__struct_fields__))


# ---- moving hosts together -----------------------------------------------------------------------


#: No clock keeps its rate for ever: precedences that lines violate by no more than this (ns) are not
#: wrong, but widen bounds by as much.
LARGEST_BEND = 1_000_000.0
#: Precedences are satisfied by this much more than needed (ns), as times are whole ns.
MARGIN = 3.0
#: A spring stretched by its standard deviation weighs as much as a violation of this over it (ns).
#: It is below the smallest of these, so that no spring holds against a precedence.
SPRING_WEIGHT = 10.0
#: Precedences are given up in so many rounds, at most: those violated by more than this share of the
#: largest violation, as the others may be violated because of these.
MOST_ROUNDS, GIVEN_UP_SHARE = 24, 0.25
#: Steps of the minimization, at most; how far each goes towards the nearest condition; and by how much
#: it lowers the barrier, if the last one went nearly as far as it could.
STEPS, STEP_SHARE, STEADY_SHARE, LOWERED, LESS_LOWERED = 200, 0.99, 0.9, 0.1, 0.6
#: What is added to the diagonal of the equations (1), so that they can be solved.
LEAST_STIFFNESS = 1e-17
#: The barrier is low enough that hosts bound from one side alone are moved no further than needed, within ns.
LOW_BARRIER = 1e-11


class Springs(Table, frozen=True):
    """Wanted corrections of hosts, as springs that pull them. The correction added to `host` at
    `time`, minus that of `anchor`, should be `target`, with a standard deviation of `sigma`. All in
    float ns.
    """

    #: The host held.
    host: np.ndarray
    #: The host it is held to; -1 for none.
    anchor: np.ndarray
    #: Corrected time, relative to the pivot.
    time: np.ndarray
    #: The correction.
    target: np.ndarray
    #: How loose the spring is.
    sigma: np.ndarray


def move_jointly(
    corrections: Corrections,
    orders: Precedences,
    springs: Springs,
    slack: np.ndarray,
    fixed: np.ndarray,
) -> tuple[Corrections, np.ndarray, float]:
    """Move the clocks of all hosts so that precedences are satisfied. Return the corrections, a
    mask of the precedences given up, and the largest violation of the others (ns).

    slack: allowed violation of each precedence (ns). fixed: mask of hosts that must not move.
    """
    hosts = len(corrections.offset)
    orders = replace(orders, end=orders.end + slack)
    given_up, forced = np.zeros((2, len(orders)), bool)
    for _ in range(MOST_ROUNDS):
        heeded = np.flatnonzero(~given_up)
        used = np.zeros(len(orders), bool)
        used[heeded[orders[heeded].find_tightest(hosts)]] = True
        used |= forced & ~given_up
        moved = _minimize(corrections, orders[used], springs, fixed)
        begin, end = orders.correct(moved)
        excess = np.where(given_up, 0.0, begin - end)
        worst = float(excess.max(initial=0.0))
        if (missed := (excess > 0) & ~used).any() and not missed[forced].any():
            forced |= missed
        elif worst <= LARGEST_BEND:
            break
        else:
            given_up |= excess > max(GIVEN_UP_SHARE * worst, LARGEST_BEND)
    return moved, given_up, worst


def _minimize(
    corrections: Corrections, orders: Precedences, springs: Springs, fixed: np.ndarray
) -> Corrections:
    """Return the corrections with the smallest sum of violations. The unknowns of each host are the
    correction added in the middle of its time span, and its growth until the end of the longest
    span.
    """
    begin, end = orders.correct(corrections)
    if not len(begin):
        return corrections
    low, high = find_spans(
        len(fixed), (orders.before, begin), (orders.after, end), (springs.host, springs.time)
    )
    seen = low <= high
    low, high = np.where(seen, low, 0.0), np.where(seen, high, 0.0)
    middle, length = (low + high) / 2, max(float((high - low).max()) / 2, 1.0)
    # The last stands for no host.
    free = np.append(seen & ~fixed, False)
    middle = np.append(middle, 0.0)

    def make_rows(
        one: np.ndarray, at: np.ndarray, other: np.ndarray, then: np.ndarray
    ) -> _Differences:
        sides = ((at - middle[one]) / length, (then - middle[other]) / length)
        return _Differences(len(free), one, other, *sides)

    conditions = make_rows(orders.before, begin, orders.after, end)
    holds = make_rows(springs.host, springs.time, springs.anchor, springs.time)
    stiffness = SPRING_WEIGHT / springs.sigma**2
    held, pull = holds.sum_products(stiffness), holds.sum_rows(stiffness * springs.target)
    # Drifts are held, too.
    stiffness = SPRING_WEIGHT / (DRIFT_PRIOR * length) ** 2
    held[1::2, 1::2] += stiffness * np.eye(len(free))
    pull[:-1, 1] -= stiffness * corrections.drift * length
    room = end - begin - MARGIN
    moves = _follow_barrier(conditions, room, held, pull, free)[:-1]
    shift, slope = moves[:, 0], moves[:, 1] / length
    # time + offset + drift * time, to which shift + slope * (that - middle) is added.
    return Corrections(
        corrections.offset * (1 + slope) + shift - slope * middle[:-1],
        corrections.drift + slope + slope * corrections.drift,
    )


def _follow_barrier(
    conditions: _Differences, room: np.ndarray, held: np.ndarray, pull: np.ndarray, free: np.ndarray
) -> np.ndarray:
    """Return the moves, shape (hosts, 2), by which the conditions exceed their room by the smallest
    sum.

    held, pull: matrix and right side of the springs. free: mask of hosts that can move.
    """
    moves = np.zeros((len(free), 2))
    over = np.maximum(-room, 0.0)
    over += max(float(over.max()), 1_000.0)
    # How much each may be exceeded, and how far it then is from that; what each weighs, and what is
    # left to 1.
    near = room + over
    weight, rest = np.full((2, len(room)), 0.5)
    lowered = LOWERED
    for _ in range(STEPS):
        barrier = float(weight @ near + rest @ over) / (2 * len(room))
        if barrier < LOW_BARRIER:
            break
        barrier *= lowered
        left = pull - (held @ moves.ravel()).reshape(-1, 2) - conditions.sum_rows(weight)
        stiff = 1 / (near / weight + over / rest)
        off = barrier / weight - near - barrier / rest + over
        left -= conditions.sum_rows(stiff * off)
        step = _solve(held + conditions.sum_products(stiff), left, free)
        change = conditions.apply(step)
        weight_step = stiff * (off + change)
        over_step = (barrier + over * weight_step) / rest - over
        near_step = over_step - change
        share = STEP_SHARE * min(
            _find_reach(near, near_step),
            _find_reach(over, over_step),
            _find_reach(weight, weight_step),
            _find_reach(rest, -weight_step),
        )
        moves = moves + share * step
        over, near = over + share * over_step, near + share * near_step
        weight, rest = weight + share * weight_step, rest - share * weight_step
        lowered = LOWERED if share > STEADY_SHARE else LESS_LOWERED
    return moves


def _find_reach(values: np.ndarray, step: np.ndarray) -> float:
    """Return how many steps positive values can take before one of them becomes 0, at most slightly
    more than one.
    """
    falls = step < 0
    return float((-values[falls] / step[falls]).min(initial=1 / STEP_SHARE))


def _solve(matrix: np.ndarray, right: np.ndarray, free: np.ndarray) -> np.ndarray:
    """Solve the linear system for the moves of the free hosts."""
    at = np.flatnonzero(np.repeat(free, 2))
    # In units in which each unknown counts alike.
    scale = 1 / np.sqrt(matrix.diagonal()[at])
    scaled = matrix[np.ix_(at, at)] * scale[:, None] * scale
    scaled[np.diag_indices(len(at))] += LEAST_STIFFNESS
    step = np.zeros(right.size)
    step[at] = np.linalg.solve(scaled, right.ravel()[at] * scale) * scale
    return step.reshape(-1, 2)


class _Differences:
    """Differences between the moves of two hosts, each at its own time; -1 for no host. Times count
    in halves of the longest span, from the middle of a host's span.
    """

    def __init__(
        self, hosts: int, one: np.ndarray, other: np.ndarray, at: np.ndarray, then: np.ndarray
    ) -> None:
        self.hosts, self.one, self.other = hosts, one, np.where(other < 0, hosts - 1, other)
        self.at, self.then = at, np.where(other < 0, 0.0, then)
        self.pairs, self.pair = np.unique(self.one * hosts + self.other, return_inverse=True)

    def apply(self, moves: np.ndarray) -> np.ndarray:
        """Return the difference of each row for these moves."""
        one, other = moves[self.one], moves[self.other]
        return one[:, 0] + self.at * one[:, 1] - other[:, 0] - self.then * other[:, 1]

    def sum_rows(self, weights: np.ndarray) -> np.ndarray:
        """Return the weighted sum of the rows of factors, shape (hosts, 2)."""
        sums = [
            np.bincount(self.one, weights * by, self.hosts)
            - np.bincount(self.other, weights * but, self.hosts)
            for by, but in ((1.0, 1.0), (self.at, self.then))
        ]
        return np.stack(sums, axis=1)

    def sum_products(self, weights: np.ndarray) -> np.ndarray:
        """Return the weighted sum of the outer products of the rows of factors with themselves."""
        of_one, of_other = weights * self.at, weights * self.then
        w, a, b, aa, ab, bb = (
            np.bincount(self.pair, values, len(self.pairs))
            for values in (
                weights,
                of_one,
                of_other,
                of_one * self.at,
                of_one * self.then,
                of_other * self.then,
            )
        )
        one, other = np.divmod(self.pairs, self.hosts)
        blocks = ((one, one, w, a, a, aa), (other, other, w, b, b, bb))
        blocks += ((one, other, -w, -b, -a, -ab), (other, one, -w, -a, -b, -ab))
        matrix = np.zeros((self.hosts, 2, self.hosts, 2))
        for row, column, *values in blocks:
            for value, (i, j) in zip(values, ((0, 0), (0, 1), (1, 0), (1, 1)), strict=True):
                np.add.at(matrix, (row, i, column, j), value)
        return matrix.reshape(2 * self.hosts, -1)


# ---- regions of lines ----------------------------------------------------------------------------


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
    """Bounds of a value that changes over time: value(times[i]) is at most (or at least) values[i]."""

    #: When the value is bounded, float ns.
    times: np.ndarray
    #: What the value is bounded by, float ns.
    values: np.ndarray
    #: True where the value is at most this, False where it is at least this.
    is_upper: np.ndarray


def find_feasible_region(
    bounds: Bounds, begin: float, end: float, steepest: float = PLAUSIBLE_DRIFT, slope: float = 0.0
) -> np.ndarray:
    """Find the lines that satisfy all bounds. Return them as a region with corners (value at
    `begin`, value at `end`), shape (n, 2); empty if the bounds contradict each other.

    The slope of a line plus `slope` is at most `steepest`.
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
    """Return True if a region of lines is not empty and is bounded on all sides. corners: of the
    region.
    """
    return len(corners) > 0 and float(np.abs(corners).max()) < UNBOUNDED / 2


def cut_region(corners: np.ndarray, normals: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """Return the part of a convex region in which normal . corner <= limit, for all normals.
    corners: of the region, shape (n, 2).
    """
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
    """Return the part of a convex polygon in which normal . corner <= limit."""
    excess = corners @ normal - limit
    after, later = np.roll(corners, -1, axis=0), np.roll(excess, -1)
    crossed = excess * later < 0
    share = np.where(crossed, excess / np.where(crossed, excess - later, 1.0), 0.0)
    kept = np.stack([corners, corners + (after - corners) * share[:, None]], axis=1)
    return kept[np.stack([excess <= 0, crossed], axis=1)]


def label_connected(one: np.ndarray, other: np.ndarray, size: int) -> np.ndarray:
    """Find groups of hosts that are connected in both directions. Return for each host the lowest
    host of its group. Connections lead from `one` to `other`. size: number of hosts.
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
    """Find the region of possible lines for each host that can be reached from `start`, whose own
    region is (0, 0). Return host -> region. Each is at least as large as all differences together
    allow.

    differences: host -> other host -> region of the other's line minus its own.
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
    """Return the part of `within` that sums of points of the two regions reach; all of it if
    rounding makes this empty.
    """
    normals = np.concatenate([_find_normals(one), _find_normals(other)])
    limits = (one @ normals.T).max(axis=0) + (other @ normals.T).max(axis=0)
    if within is None:
        within = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * UNBOUNDED
    found = cut_region(within, normals, limits)
    return found if len(found) else within


def _find_normals(corners: np.ndarray) -> np.ndarray:
    """Return the outward normals of a region's sides, with length 1."""
    sides = np.roll(corners, -1, axis=0) - corners
    length = np.hypot(*sides.T)
    sides = sides[length > LEAST_CUT] / length[length > LEAST_CUT, None]
    # Corners run counterclockwise.
    return np.stack([sides[:, 1], -sides[:, 0]], axis=1)


def find_centre(corners: np.ndarray, length: float, slope: float = 0.0) -> np.ndarray:
    """Return the most likely line in a region of lines, as (value at the start, value at the end).

    Its slope is the mean slope under the distribution of clock drifts; it lies in the middle of the
    lines with this slope. corners: of the region. length: of the time between start and end (ns).
    slope: of the line to which this one is added.
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
