"""Move the clocks of all hosts together until no effect precedes its cause.

Precedences are linear conditions on the offsets and drifts of two hosts. The sum of their violations
is minimized, beside springs that hold hosts where other observations place them: a violation counts
far more than any spring. So whatever can be satisfied is, and if precedences contradict each other as
few as possible are violated; these are given up, the worst first.

The minimum is found by an interior-point method: the conditions are kept by a logarithmic barrier,
which is lowered step by step.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from nsys2prv._util.columns import Table
from nsys2prv.clock import DRIFT_PRIOR, Corrections
from nsys2prv.clock.orders import Precedences, find_spans

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
    """What holds hosts where they are placed: the correction that is added to `host` at `time`, less
    that of `anchor`, is `target`, with a standard deviation of `sigma`. All in float ns.
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
    """Return corrections that respect the precedences, a mask of precedences given up, and the
    largest violation of the others (ns).

    slack: by how much each may be violated (ns). fixed: mask of the hosts that
    are not moved.
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
    """Return the corrections that violate the precedences by the least sum.

    Unknown are, for each host, the correction added in the middle of its times, and by how much it
    grows until the end of the longest span.
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
    """Return the moves by which the conditions exceed their room by the least sum, (hosts, 2).

    held, pull: matrix and right side of the springs. free: which hosts can be moved.
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
    """Return how many steps positive values can take before one of them is 0, at most one and a bit."""
    falls = step < 0
    return float((-values[falls] / step[falls]).min(initial=1 / STEP_SHARE))


def _solve(matrix: np.ndarray, right: np.ndarray, free: np.ndarray) -> np.ndarray:
    """Return the moves of the free hosts whose product with the matrix is the right side."""
    at = np.flatnonzero(np.repeat(free, 2))
    # In units in which each unknown counts alike.
    scale = 1 / np.sqrt(matrix.diagonal()[at])
    scaled = matrix[np.ix_(at, at)] * scale[:, None] * scale
    scaled[np.diag_indices(len(at))] += LEAST_STIFFNESS
    step = np.zeros(right.size)
    step[at] = np.linalg.solve(scaled, right.ravel()[at] * scale) * scale
    return step.reshape(-1, 2)


class _Differences:
    """Differences between moves of two hosts, each at a time of its own; -1 for no host. Times count
    in halves of the longest span, from the middle of a host's times.
    """

    def __init__(
        self, hosts: int, one: np.ndarray, other: np.ndarray, at: np.ndarray, then: np.ndarray
    ) -> None:
        self.hosts, self.one, self.other = hosts, one, np.where(other < 0, hosts - 1, other)
        self.at, self.then = at, np.where(other < 0, 0.0, then)
        self.pairs, self.pair = np.unique(self.one * hosts + self.other, return_inverse=True)

    def apply(self, moves: np.ndarray) -> np.ndarray:
        """Return the differences."""
        one, other = moves[self.one], moves[self.other]
        return one[:, 0] + self.at * one[:, 1] - other[:, 0] - self.then * other[:, 1]

    def sum_rows(self, weights: np.ndarray) -> np.ndarray:
        """Return the weighted sum of the rows of factors, (hosts, 2)."""
        sums = [
            np.bincount(self.one, weights * by, self.hosts)
            - np.bincount(self.other, weights * but, self.hosts)
            for by, but in ((1.0, 1.0), (self.at, self.then))
        ]
        return np.stack(sums, axis=1)

    def sum_products(self, weights: np.ndarray) -> np.ndarray:
        """Return the weighted sum of the products of the rows of factors with themselves."""
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
