"""Hard bounds on the hosts' clocks: precedences of events, by how much corrections violate them,
and the lines that they allow.

A line over a span is the pair (value at its begin, value at its end); bounds leave a convex region
of these.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.columns import Table, factorize
from nsys2prv.clock import Role
from nsys2prv.clock.gathering import HOLD_BACK
from nsys2prv.clock.observations import DRIFT_PRIOR, NOISE, PLAUSIBLE_DRIFT, Corrections, Messages

#: Share of collectives and messages that may be taken for misfits.
MISFIT_SHARE = 0.05
#: Messages between two hosts, in one direction.
MOST_MESSAGES = 2_000
#: Columns of precedences.
PRECEDENCE_COLUMNS = {
    "noise_kind": pl.Int64,
    "before": pl.Int64,
    "begin": pl.Float64,
    "after": pl.Int64,
    "end": pl.Float64,
    "held": pl.Boolean,
}
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
        return (
            corrections.apply(self.begin, self.before),
            corrections.apply(self.end, self.after),
        )

    def find_slack(self) -> np.ndarray:
        """Return by how much clocks of devices within a host may contradict each other, ns."""
        return np.select(
            [self.noise_kind == noise_kind for noise_kind in NOISE],
            [noise.slack for noise in NOISE.values()],
        )


def find_precedences(hosts: pl.DataFrame, messages: Messages, pivot: int) -> Precedences:
    """Return the precedences of messages and of collectives (the begin of the root, or of the last
    member, precedes the ends of those that waited for it). hosts: rows of :func:`gather_per_host`.
    """
    binds = pl.col("begin").is_not_null() & (pl.col("late") | (pl.col("role") != Role.ALL))
    begins = hosts.filter(binds).select(
        "collective", "role", "noise_kind", "held", "begin", before="clock"
    )
    ends = hosts.filter(pl.col("first_end").is_not_null()).select(
        "collective", "role", end="first_end", after="clock"
    )
    parts = [
        _find_message_precedences(messages, pivot),
        begins.join(ends, on=["collective", "role"]),
    ]
    table = pl.concat(
        part.filter(pl.col("before") != pl.col("after")).select(
            pl.col(name).cast(kind) for name, kind in PRECEDENCE_COLUMNS.items()
        )
        for part in parts
    )
    return Precedences(*(column.to_numpy() for column in table))


def _find_message_precedences(messages: Messages, pivot: int) -> pl.DataFrame:
    pair = ("before", "after")
    table = pl.DataFrame(
        {
            "noise_kind": messages.noise_kind,
            "before": messages.sender,
            "begin": messages.send_begin - np.int64(pivot),
            "after": messages.receiver,
            "end": messages.receive_end - np.int64(pivot),
        }
    )
    table = (
        table.filter(pl.col("before") != pl.col("after"))
        .sort(*pair, "begin", "end", "noise_kind")
        .with_columns(place=pl.int_range(pl.len()).over(pair), size=pl.len().over(pair))
    )
    # The place after which a whole step of size / MOST_MESSAGES begins: spread evenly, as many as
    # allowed.
    step, place = pl.col("size") / MOST_MESSAGES, pl.col("place")
    begins_step = (place / step).floor() != ((place - 1) / step).floor()
    return table.filter((pl.col("size") <= MOST_MESSAGES) | begins_step).with_columns(
        held=place % HOLD_BACK == HOLD_BACK - 1
    )


#: Whether used or held back -> before and after the correction -> counts and sizes of violations, by
#: their names in the clock file, in whole ns.
Verdict = Mapping[str, Mapping[str, Mapping[str, int]]]


def _count_violations(late: np.ndarray) -> dict[str, int]:
    """Return the violations, of ends that are so late (ns; negative: in time)."""
    # Times are whole ns; smaller differences come from rounding.
    wrong = late[late >= 1]
    return {
        "checked": len(late),
        "violated": len(wrong),
        "largest_ns": round(wrong.max(initial=0)),
        "sum_ns": round(wrong.sum()),
    }


class Evidence(Struct, frozen=True):
    """Observations by which corrections are judged."""

    #: Rows of :func:`gather_per_host`, of collectives numbered from 0 without gaps.
    collectives: pl.DataFrame
    #: Send and receive of each message.
    messages: Precedences

    def judge(self, corrections: Corrections) -> Verdict:
        """Return how often and by how much the corrections violate causality, before and after."""
        nothing = np.zeros_like(corrections.offset)
        held = np.append(self.collectives["held"].to_numpy(), self.messages.held)
        late = {
            "before": self._find_violations(Corrections(nothing, nothing)),
            "after": self._find_violations(corrections),
        }
        return {
            use: {
                when: _count_violations(late[when][which & np.isfinite(late[when])])
                for when in late
            }
            for use, which in (("used", ~held), ("held back", held))
        }

    def _find_violations(self, corrections: Corrections) -> np.ndarray:
        """Return how late the ends of collectives, then messages are for corrected clocks, ns."""
        sent, received = self.messages.correct(corrections)
        late = _find_collective_violations(self.collectives, corrections)
        return np.append(late, sent - received)

    def drop_misfits(self, corrections: Corrections, limit: np.ndarray) -> tuple[Evidence, int]:
        """Return the evidence without calls that contradict the corrected clocks by more than
        `limit` (ns, by host), as they do not belong together, and how many they are. If they are
        more than a few, the clocks are as likely wrong, and all stay.
        """
        hosts, messages = self.collectives, self.messages
        late = _find_collective_violations(hosts, corrections)
        wrong = np.unique(hosts["collective"].to_numpy()[late > limit[hosts["clock"].to_numpy()]])
        sent, received = messages.correct(corrections)
        lost = sent - received > np.maximum(limit[messages.before], limit[messages.after])
        count = len(wrong) + int(lost.sum())
        if not count or count > MISFIT_SHARE * (hosts["collective"].n_unique() + len(messages)):
            return self, 0
        kept = hosts.filter(~pl.col("collective").is_in(wrong))
        return Evidence(_renumber_collectives(kept), messages[~lost]), count

    def split_by_component(self, part: np.ndarray) -> Evidence:
        """Return the evidence within the components that the hosts belong to: a collective across
        several is divided into a share for each.
        """
        hosts, messages = self.collectives, self.messages
        number = hosts["collective"].to_numpy() * len(part) + part[hosts["clock"].to_numpy()]
        hosts = hosts.with_columns(collective=pl.Series(number)).sort(
            "collective", maintain_order=True
        )
        together = part[messages.before] == part[messages.after]
        return Evidence(_renumber_collectives(hosts), messages[together])


def _renumber_collectives(hosts: pl.DataFrame) -> pl.DataFrame:
    _, number = factorize(hosts["collective"].to_numpy())
    return hosts.with_columns(collective=pl.Series(number))


def _find_collective_violations(hosts: pl.DataFrame, corrections: Corrections) -> np.ndarray:
    """Return by how much each host's first end of a collective precedes the last begin on another
    host that it must follow, ns.
    """
    if not hosts.height:
        return np.empty(0)
    clock, collective = (hosts[name].to_numpy() for name in ("clock", "collective"))
    begin, end = (
        corrections.apply(hosts[name].cast(pl.Float64).fill_null(none).to_numpy(), clock)
        for name, none in (("begin", -np.inf), ("first_end", np.inf))
    )
    starts = np.flatnonzero(np.diff(collective, prepend=-1))
    last = np.maximum.reduceat(begin, starts)[collective]
    # On the host of the last begin, the last one of the others counts.
    own = begin == last
    second = np.maximum.reduceat(np.where(own, -np.inf, begin), starts)[collective]
    several = np.add.reduceat(own.astype(np.int64), starts)[collective] > 1
    return np.where(own & ~several, second, last) - end


class Bounds(Table, frozen=True):
    """Bounds of a value over time: value(times[i]) is at most values[i], or at least."""

    #: When the value is bounded, float ns.
    times: np.ndarray
    #: What the value is bounded by, float ns.
    values: np.ndarray
    #: True where the value is at most this, False where it is at least this.
    is_upper: np.ndarray

    def subtract_line(self, offset: float, slope: float) -> Bounds:
        """Return bounds of the value less that line."""
        return replace(self, values=self.values - offset - slope * self.times)

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
    length = max(end - begin, 1.0)
    first = last = 0.0
    corners = np.empty((0, 2))
    kept = Bounds(np.empty(0), np.empty(0), np.empty(0, bool))
    for _ in range(3):
        # What is tightest shows only once the slope is about right.
        slope = (last - first) / length
        near = (
            bounds.subtract_line(first - slope * begin, slope)
            .thin(begin, end)
            .subtract_line(slope * begin - first, -slope)
        )
        kept = Bounds.concat([kept, near])
        corners = find_feasible_region(kept, begin, end, STEEPEST_SLOPE)
        if not len(corners):
            corners = find_feasible_region(kept, begin, end)
        if not len(corners) or np.abs(corners).max() >= UNBOUNDED / 2:
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
