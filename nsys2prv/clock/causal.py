"""A controlled logical clock: what still ends before it can is moved forward, smoothly, per report.

After D. Becker, R. Rabenseifner, F. Wolf, J. C. Linford, "Scalable timestamp synchronization for
event traces of message-passing applications", Parallel Computing 35 (2009) 595-607. It restores the
order of events; it does not find out which clock was wrong.

Every report gets a shift of its times, never negative. An end that is too early is moved to the
begin that it must not precede; the shift is kept for what follows and fades (*forward*), and what
lies before is stretched, unless that would move a begin after an end that it must precede
(*backward*). What binds the reports are begins that no end of the others may precede, per
collective or message.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import polars as pl
from msgspec import Struct, field
from msgspec.structs import replace

from nsys2prv._util.columns import Table
from nsys2prv.clock import FindingKind, Role
from nsys2prv.clock.bounds import Violations, count_violations
from nsys2prv.clock.gathering import drop_unrelated_members
from nsys2prv.clock.maps import RankMove, Shifts
from nsys2prv.clock.observations import (
    Calls,
    ClockFinding,
    Messages,
    find_shared_calls,
    sort_findings,
)
from nsys2prv.clock.sequences import number_calls

#: No bound: beyond every time, and sums of two do not overflow.
NO_BOUND = 1 << 60
#: A shift fades by 1 ns in so many; the faster ones are for times so noisy that ranks would drive
#: each other on and on.
FADING = 100, 25, 8
#: It grows, before an end that must be moved, by 1 ns in so many.
GROWING = 10
#: Knots closer than this (ns) keep their distance, so that no two become one.
CLOSE_KNOTS = 4
#: What a shift does between two knots.
NONE, FADES, GROWS, OTHER = range(4)
#: Rounds of moving forward, each of which reaches one report farther: at least and at most, and
#: rounds times knots.
ROUNDS, MOST_KNOT_ROUNDS = (50, 2_000), 100_000_000
#: Attempts at moving forward, after each of which bindings that are not satisfied are set aside;
#: and at drawing lines.
ATTEMPTS = 4


class CausalOrder(Struct, frozen=True):
    """Result of restoring the causal order."""

    #: Shifts of the reports that are moved, by corrected times in ns.
    shifts: dict[int, Shifts]
    #: How far these reports are moved; means are over what was observed of a report.
    moves: dict[int, RankMove]
    #: Violations in what was observed, by the times as placed.
    before: Violations
    #: Violations in what was observed, by the moved times.
    after: Violations
    #: What was found odd on the way.
    findings: list[ClockFinding] = field(default_factory=list)
    #: Whether no binding had to be set aside.
    complete: bool = True


class BoundCalls(Struct, frozen=True):
    """Bindings of some groups' calls."""

    #: Begins that no end may precede: group, report, time.
    begins: pl.DataFrame
    #: Ends that come after them: group, report, time.
    ends: pl.DataFrame
    #: Number of collectives, which are numbered from 0.
    collectives: int
    #: What was found odd on the way.
    findings: list[ClockFinding]
    #: Number of collectives that are not heeded.
    torn: int


def bind_calls(calls: Calls, pivot: int) -> BoundCalls:
    """Return the bindings of calls; whole groups, whose clocks are their reports."""
    table, findings = find_shared_calls(calls, pivot)
    table, order_findings = number_calls(table)
    table, lost = drop_unrelated_members(table)
    rows = _find_extremes(table)
    # Times of one report cannot be moved against each other: where its own members contradict
    # themselves, nothing is known.
    contradictory = (pl.col("role") == Role.ALL) & (pl.col("begin") > pl.col("end"))
    torn = rows.filter(contradictory)["group"].unique()
    rows = rows.filter(
        ~pl.col("group").is_in(torn.implode()) & (pl.len().over("group") > 1)
    ).with_columns(
        group=pl.col("group").rle_id().cast(pl.Int64), report=pl.col("report").cast(pl.Int64)
    )
    begins, ends = (
        rows.filter(pl.col(name).is_not_null()).select("group", "report", time=name)
        for name in ("begin", "end")
    )
    collectives = int(rows["group"].max()) + 1 if rows.height else 0
    return BoundCalls(begins, ends, collectives, [*findings, *order_findings, *lost], len(torn))


def _find_extremes(table: pl.DataFrame) -> pl.DataFrame:
    """Return a row for each collective and report, ascending by both: `group`, the collective's
    number; `report`; `begin`, the latest that no end may precede; `end`, the first that comes after
    begins; `role`.
    """
    root = pl.col("is_root")
    for_all = pl.col("role") == Role.ALL
    binds = for_all | (root == (pl.col("role") == Role.FROM_ROOT))
    bound = for_all | (root == (pl.col("role") == Role.TO_ROOT))
    keys = ["key", "ordinal", "report"]
    rows = (
        table.rename({"clock": "report"})
        .with_columns(begin=pl.when(binds).then("begin"), end=pl.when(bound).then("end"))
        .sort(keys)
    )
    same = rows.select(
        pl.all_horizontal(pl.col(name) == pl.col(name).shift(1) for name in keys).any()
    ).item()
    if same:
        rows = rows.group_by(keys, maintain_order=True).agg(
            pl.col("role").first(), pl.col("begin").max(), pl.col("end").min()
        )
    return rows.with_columns(group=pl.struct("key", "ordinal").rle_id())


def restore_causal_order(
    reports: int, parts: Sequence[BoundCalls], messages: Messages, pivot: int
) -> CausalOrder:
    """Return shifts that restore the order of what was observed on `reports` reports, whose indices
    are the clocks of the observations.

    parts: what calls bind, in parts of whole groups, ascending by kind of noise and group. pivot:
    an instant amid all times (ns).
    """
    net, findings = _find_bindings(parts, messages, reports, pivot)
    still = np.zeros(len(net.knots), np.int64)
    before = net.count_violations(still)
    if not before.number:
        return CausalOrder({}, {}, before, before, findings)
    kept, shifts, rate = _settle_shifts(net)
    slopes = [_find_allowed_changes(net, rate, CLOSE_KNOTS), _find_allowed_changes(net, GROWING, 1)]
    shifts = _smooth_shifts(net.take(kept), shifts, *slopes)
    bent = _find_bends(shifts, *slopes)
    corners, shifts = _find_corners(net.take(kept), shifts, bent)
    after = net.count_violations(shifts)
    complete = bool(kept.all())
    if not complete:
        if not kept.any() or after.total >= before.total:
            findings.append(ClockFinding(FindingKind.GIVEN_UP))
            return CausalOrder({}, {}, before, before, findings, complete=False)
        findings.append(ClockFinding(FindingKind.SET_ASIDE, int((~kept).sum())))
    shifts_by_report, moves = {}, {}
    for report, part in enumerate(net.list_parts()):
        if shifts[part].any():
            largest = int(np.argmax(shifts[part])) + part.start
            chosen = np.flatnonzero(corners[part]) + part.start
            free = (np.diff(chosen) == 1) & (bent[chosen[:-1]] == OTHER)
            times = net.knots[chosen] + pivot
            shifts_by_report[report] = _make_curve(times, shifts[chosen], free, rate)
            mean, at_utc = round(float(shifts[part].mean())), int(net.knots[largest]) + pivot
            moves[report] = RankMove(int(shifts[largest]), mean, at_utc)
    return CausalOrder(shifts_by_report, moves, before, after, findings, complete)


class GroupTimes(Table, frozen=True):
    """Begins or ends by group, ascending. Each report has at most one in a group."""

    #: Number of the group, ascending.
    group: np.ndarray
    #: Index of the report.
    report: np.ndarray
    #: Placed time (ns).
    time: np.ndarray
    #: Index of its time among the knots.
    knot: np.ndarray

    def take(self, groups: np.ndarray) -> GroupTimes:
        """Return the part of the groups that are True in the mask."""
        if groups.all():
            return self
        return self[np.flatnonzero(groups[self.group])]

    def find_greatest_of_others(
        self, values: np.ndarray, groups: int, asked: GroupTimes
    ) -> np.ndarray:
        """Return the greatest of the values that other reports have in the group of each time asked
        for; -NO_BOUND where there is none.
        """
        first, owner, second = (
            np.full(groups, -NO_BOUND),
            np.full(groups, -1),
            np.full(groups, -NO_BOUND),
        )
        if len(values):
            starts = np.flatnonzero(np.diff(self.group, prepend=-1))
            at = self.group[starts]
            if len(starts) == len(values):
                first[at], owner[at] = values, self.report
            else:
                first[at] = np.maximum.reduceat(values, starts)
                rows = np.flatnonzero(values == first[self.group])
                owner[self.group[rows]] = self.report[rows]
                others = np.where(self.report == owner[self.group], -NO_BOUND, values)
                second[at] = np.maximum.reduceat(others, starts)
        own = owner[asked.group] == asked.report
        return np.where(own, second[asked.group], first[asked.group])


class Bindings(Struct, frozen=True):
    """Bindings of `groups` groups: in each, no end is before a begin of another report."""

    #: Number of groups.
    groups: int
    #: Begins that no end may precede.
    begins: GroupTimes
    #: Ends that come after them.
    ends: GroupTimes
    #: Times, int64 ns relative to the pivot; those of report r are knots[bounds[r]:bounds[r + 1]],
    #: ascending and distinct.
    knots: np.ndarray
    #: Index of each report's first knot, and the number of knots.
    bounds: np.ndarray

    def take(self, groups: np.ndarray) -> Bindings:
        """Return the bindings with only the groups that are True."""
        return replace(self, begins=self.begins.take(groups), ends=self.ends.take(groups))

    def list_parts(self) -> list[slice]:
        """Return where the knots of each report are."""
        return [slice(*ends) for ends in pairwise(self.bounds.tolist())]

    def find_lacks(self, shifts: np.ndarray) -> np.ndarray:
        """Return how far each end lies before the last begin of the others, ns; negative where it
        is after it. shifts: of every knot, ns.
        """
        begins = self.begins.time + shifts[self.begins.knot]
        last = self.begins.find_greatest_of_others(begins, self.groups, self.ends)
        return last - (self.ends.time + shifts[self.ends.knot])

    def find_room(self, shifts: np.ndarray) -> np.ndarray:
        """Return how far each begin may be moved in all, ns, until it reaches the first end of the
        others. shifts: those of ends, ns.
        """
        ends = self.ends.time + shifts[self.ends.knot]
        first = -self.ends.find_greatest_of_others(-ends, self.groups, self.begins)
        return first - self.begins.time

    def count_violations(self, shifts: np.ndarray) -> Violations:
        """Return the violations that these shifts of the knots leave."""
        late = self.find_lacks(shifts)
        return count_violations(late[late > -NO_BOUND // 2])


def _find_bindings(
    parts: Sequence[BoundCalls], messages: Messages, reports: int, pivot: int
) -> tuple[Bindings, list[ClockFinding]]:
    """Return the bindings between reports, which are the messages' clocks. parts: ascending by
    source and group.
    """
    *firsts, first = np.cumsum([0, *(part.collectives for part in parts)]).tolist()
    sent = messages.sender != messages.receiver
    number = np.arange(first, first + int(sent.sum()))
    sides = []
    for side, report, time in (
        ("begins", messages.sender, messages.send_begin),
        ("ends", messages.receiver, messages.receive_end),
    ):
        frames = [
            getattr(part, side).with_columns(pl.col("group") + before)
            for part, before in zip(parts, firsts, strict=True)
        ]
        columns = {"group": number, "report": report[sent], "time": time[sent] - np.int64(pivot)}
        sides.append([column.to_numpy() for column in pl.concat([*frames, pl.DataFrame(columns)])])
    knots, places, bounds = _number_knots(sides, reports)
    begins, ends = (GroupTimes(*side, place) for side, place in zip(sides, places, strict=True))
    findings = sort_findings(part.findings for part in parts)
    if torn := sum(part.torn for part in parts):
        findings.append(ClockFinding(FindingKind.TORN, torn))
    return Bindings(first + len(number), begins, ends, knots, bounds), findings


def _number_knots(
    sides: list[list[np.ndarray]], reports: int
) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
    """Return all times by report, where each side's are among them, and where each report's begin."""
    times = np.concatenate([time for *_, time in sides])
    low, high = (int(times.min()), int(times.max())) if len(times) else (0, 0)
    width = max((high - low).bit_length(), 1)
    if width + max(reports - 1, 1).bit_length() > 62:
        raise ValueError("Times of more than a century, or too many reports")
    packed = [(report.astype(np.int64) << width) | (time - low) for _, report, time in sides]
    distinct = np.sort(np.concatenate(packed))
    distinct = distinct[np.diff(distinct, prepend=-1) > 0]
    places = [np.searchsorted(distinct, one) for one in packed]
    bounds = np.searchsorted(distinct, np.arange(reports + 1) << width)
    return (distinct & ((1 << width) - 1)) + low, places, bounds


def _find_allowed_changes(net: Bindings, rate: int, close: int) -> np.ndarray:
    """Return the change that a shift may make at 1 ns in `rate`, summed up from each report's first
    knot, ns.
    """
    whole = net.knots // rate
    steps = np.minimum(np.diff(whole, prepend=0), np.diff(net.knots, prepend=0) // close)
    steps[net.bounds[:-1][net.bounds[:-1] < len(steps)]] = 0
    return np.cumsum(steps)


def _settle_shifts(net: Bindings) -> tuple[np.ndarray, np.ndarray, int]:
    """Return groups that were heeded, the smallest shifts that satisfy them going forward, and how
    they fade.
    """
    kept = np.ones(net.groups, bool)
    best = None
    most = int(np.clip(MOST_KNOT_ROUNDS // max(len(net.knots), 1), *ROUNDS))
    for attempt in range(ATTEMPTS):
        part = net.take(kept)
        # At first the slowest fading that will do; after something was set aside, the fastest tells
        # soonest whether that was enough.
        for rate in FADING[::-1] if attempt else FADING:
            settled, wrong = _move_forward(
                part, _find_allowed_changes(net, rate, CLOSE_KNOTS), most
            )
            done = not len(wrong)
            best = (settled, rate) if done else best
            if done == (attempt == 0):
                break
        if best:
            return kept, *best
        if attempt < ATTEMPTS - 2:
            # What follows from a contradiction is moved with it: the first end on each report is
            # closest to it.
            ends = part.ends
            order = wrong[np.lexsort((ends.time[wrong], ends.report[wrong]))]
            wrong = order[np.diff(ends.report[order], prepend=-1) > 0]
        kept[part.ends.group[wrong]] = False
    return np.zeros(net.groups, bool), np.zeros(len(net.knots), np.int64), FADING[0]


def _move_forward(net: Bindings, fading: np.ndarray, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """Return shifts, and the ends that are still too early: each round moves what is too early, and
    what follows on its report.
    """
    shifts = np.zeros(len(net.knots), np.int64)
    active = net
    reports = len(net.bounds) - 1
    for _ in range(rounds):
        lack = active.find_lacks(shifts)
        wrong = np.flatnonzero(lack > 0)
        if not len(wrong):
            return shifts, wrong
        knots = active.ends.knot[wrong]
        before = shifts.copy()
        np.maximum.at(shifts, knots, shifts[knots] + lack[wrong])
        firsts = np.full(reports, len(shifts))
        np.minimum.at(firsts, active.ends.report[wrong], knots)
        for report in np.flatnonzero(firsts < len(shifts)).tolist():
            part = slice(firsts[report], net.bounds[report + 1])
            shifts[part] = np.maximum.accumulate(shifts[part] + fading[part]) - fading[part]
        touched = np.zeros(net.groups, bool)
        touched[net.begins.group[(shifts != before)[net.begins.knot]]] = True
        active = net.take(touched)
    return shifts, np.flatnonzero(net.find_lacks(shifts) > 0)


def _smooth_shifts(
    net: Bindings, shifts: np.ndarray, fading: np.ndarray, growing: np.ndarray
) -> np.ndarray:
    """Return the shifts, with what lies before them moved too, as far as begins have room."""
    room = np.full(len(shifts), NO_BOUND)
    np.minimum.at(room, net.begins.knot, net.find_room(shifts))
    result = shifts.copy()
    for part in net.list_parts():
        if shifts[part].any():
            grown, faded = growing[part], fading[part]
            wanted = np.maximum.accumulate((shifts[part] - grown)[::-1])[::-1] + grown
            allowed = np.minimum.accumulate((room[part] + faded)[::-1])[::-1] - faded
            result[part] = np.minimum(wanted, allowed)
    return result


def _find_bends(shifts: np.ndarray, fading: np.ndarray, growing: np.ndarray) -> np.ndarray:
    """Return the change of the shift between each knot and the next, ns."""
    step = np.diff(shifts)
    none = (step == 0) & (shifts[1:] == 0)
    kinds = [none, step == -np.diff(fading), step == np.diff(growing)]
    return np.select(kinds, [NONE, FADES, GROWS], OTHER)


def _find_corners(
    net: Bindings, shifts: np.ndarray, bent: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the knots between which lines may be drawn, and what the shifts of all knots are by
    such lines.
    """
    corners = np.ones(len(shifts), bool)
    corners[1:-1] = (bent[1:] != bent[:-1]) | (bent[1:] == OTHER)
    corners[net.bounds[:-1][net.bounds[:-1] < len(shifts)]] = True
    corners[net.bounds[1:][net.bounds[1:] > 0] - 1] = True
    for _ in range(ATTEMPTS):
        drawn = shifts.copy()
        for part in net.list_parts():
            if shifts[part].any():
                line = Shifts(net.knots[part][corners[part]], shifts[part][corners[part]])
                drawn[part] = line.to_global(net.knots[part]) - net.knots[part]
        wrong = np.flatnonzero(net.find_lacks(drawn) > 0)
        if not len(wrong):
            return corners, drawn
        # A line is off by less than 1 ns for rounding, which may be too much where two times are to
        # be equal.
        groups = np.zeros(net.groups, bool)
        groups[net.ends.group[wrong]] = True
        corners[net.ends.knot[wrong]] = True
        corners[net.begins.take(groups).knot] = True
    return np.ones(len(shifts), bool), shifts


def _make_curve(times: np.ndarray, shifts: np.ndarray, free: np.ndarray, rate: int) -> Shifts:
    """Return the curve through corners. free: between which and the next nothing was observed, so
    that a shift may fade and grow again.
    """
    length = np.diff(times)
    faded, grown = rate * shifts[:-1], length - GROWING * shifts[1:]
    meet = (rate * GROWING * (shifts[:-1] - shifts[1:]) + rate * length) // (rate + GROWING)
    apart = faded <= grown
    meet = np.where(apart, faded, meet)
    parts = [
        (times[0] - GROWING * shifts[:1], 0 * shifts[:1]),
        (times, shifts),
        (times[-1] + rate * shifts[-1:], 0 * shifts[:1]),
    ]
    for into, height, there in (
        (meet, shifts[:-1] - meet // rate, free),
        (grown, 0 * meet, free & apart),
    ):
        there = there & (into > 0) & (into < length)
        parts.append((times[:-1][there] + into[there], height[there]))
    times, first = np.unique(np.concatenate([part[0] for part in parts]), return_index=True)
    shifts = np.concatenate([part[1] for part in parts])[first]
    flat = np.zeros(len(times), bool)
    flat[1:-1] = (shifts[1:-1] == shifts[:-2]) & (shifts[1:-1] == shifts[2:])
    return Shifts(times[~flat], shifts[~flat])
