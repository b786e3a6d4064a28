"""A controlled logical clock: what still ends before it can is moved forward, smoothly, per report.

After D. Becker, R. Rabenseifner, F. Wolf, J. C. Linford, "Scalable timestamp synchronization for
event traces of message-passing applications", Parallel Computing 35 (2009) 595-607. It restores the
order of events; it does not find out which clock was wrong.

Every report gets a shift of its times, never negative. An end that is too early is moved to the
begin that it must not precede; the shift is kept for what follows and fades (*forward*), and what
lies before is stretched, unless that would move a begin after an end that it must precede
(*backward*).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct, field

from nsys2prv.clock.bindings import FAR, Bindings, BoundCalls, bindings_of
from nsys2prv.clock.maps import Shifts
from nsys2prv.clock.observations import Finding, Messages
from nsys2prv.clock.verdict import Violations

#: A shift fades by 1 ns in so many; the faster ones are for times so noisy that ranks would drive
#: each other on and on.
FADING = 100, 25, 8
#: It grows, before an end that must be moved, by 1 ns in so many.
GROWING = 10
#: Knots closer than this (ns) keep their distance, so that no two become one.
CLOSE = 4
#: What a shift does between two knots.
NONE, FADES, GROWS, OTHER = range(4)
#: Rounds of moving forward, each as far as one more hop from report to report: at least and at
#: most, and times the knots.
ROUNDS, WORK = (50, 2_000), 100_000_000
#: How often bindings are set aside that it does not come to an end with, less one.
ATTEMPTS = 4


class Move(Struct, frozen=True):
    """Move of a report."""

    report: int
    #: Largest shift, ns.
    largest: int
    #: Mean shift over what was observed of it, ns.
    mean: float
    #: Placed time of the largest shift, ns.
    at: int


class CausalOrder(Struct, frozen=True):
    """shifts: of the reports that are moved, by corrected times in ns. moves: how far, likewise.
    violations: of what was observed.

    complete: no binding had to be set aside.
    """

    shifts: dict[int, Shifts]
    moves: list[Move]
    before: Violations
    after: Violations
    findings: list[Finding] = field(default_factory=list)
    complete: bool = True


def restore_causal_order(
    reports: int, parts: Sequence[BoundCalls], messages: Messages, pivot: int
) -> CausalOrder:
    """Return shifts that restore the order of what was observed on `reports` reports, whose indices
    are the clocks of the observations.

    parts: what calls bind, in parts of whole groups, ascending by source and group. pivot: an
    instant amid all times (ns).
    """
    net, findings = bindings_of(parts, messages, reports, pivot)
    still = np.zeros(len(net.knots), np.int64)
    before = net.violations(still)
    if not before.number:
        return CausalOrder({}, [], before, before, findings)
    kept, shifts, rate = _settle(net)
    slopes = [_allowed(net, rate, CLOSE), _allowed(net, GROWING, 1)]
    shifts = _smoothed(net.of(kept), shifts, *slopes)
    bent = _bent(shifts, *slopes)
    corners, shifts = _corners(net.of(kept), shifts, bent)
    after = net.violations(shifts)
    complete = bool(kept.all())
    if not complete:
        if not kept.any() or after.total >= before.total:
            findings.append(Finding("given up"))
            return CausalOrder({}, [], before, before, findings, complete=False)
        findings.append(Finding("set aside", int((~kept).sum())))
    found, moves = {}, []
    for report, part in enumerate(net.parts()):
        if shifts[part].any():
            largest = int(np.argmax(shifts[part])) + part.start
            chosen = np.flatnonzero(corners[part]) + part.start
            free = (np.diff(chosen) == 1) & (bent[chosen[:-1]] == OTHER)
            found[report] = _curve(net.knots[chosen] + pivot, shifts[chosen], free, rate)
            moves.append(
                Move(
                    report,
                    int(shifts[largest]),
                    float(shifts[part].mean()),
                    int(net.knots[largest]) + pivot,
                )
            )
    return CausalOrder(found, moves, before, after, findings, complete)


def _allowed(net: Bindings, rate: int, close: int) -> np.ndarray:
    """Return the change that a shift may make at 1 ns in `rate`, summed up from each report's first
    knot, ns.
    """
    whole = net.knots // rate
    steps = np.minimum(np.diff(whole, prepend=0), np.diff(net.knots, prepend=0) // close)
    steps[net.bounds[:-1][net.bounds[:-1] < len(steps)]] = 0
    return np.cumsum(steps)


def _settle(net: Bindings) -> tuple[np.ndarray, np.ndarray, int]:
    """Return groups that were heeded, the smallest shifts that satisfy them going forward, and how
    they fade.
    """
    kept = np.ones(net.groups, bool)
    best = None
    most = int(np.clip(WORK // max(len(net.knots), 1), *ROUNDS))
    for attempt in range(ATTEMPTS):
        part = net.of(kept)
        # At first the slowest fading that will do; after something was set aside, the fastest tells
        # soonest whether that was enough.
        for rate in FADING[::-1] if attempt else FADING:
            found, wrong = _forward(part, _allowed(net, rate, CLOSE), most)
            done = not len(wrong)
            best = (found, rate) if done else best
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


def _forward(net: Bindings, fading: np.ndarray, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """Return shifts, and the ends that are still too early: each round moves what is too early, and
    what follows on its report.
    """
    shifts = np.zeros(len(net.knots), np.int64)
    active = net
    reports = len(net.bounds) - 1
    for _ in range(rounds):
        lack = active.lacks(shifts)
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
        active = net.of(touched)
    return shifts, np.flatnonzero(net.lacks(shifts) > 0)


def _smoothed(
    net: Bindings, shifts: np.ndarray, fading: np.ndarray, growing: np.ndarray
) -> np.ndarray:
    """Return the shifts, with what lies before them moved too, as far as begins have room."""
    room = np.full(len(shifts), FAR)
    np.minimum.at(room, net.begins.knot, net.room(shifts))
    result = shifts.copy()
    for part in net.parts():
        if shifts[part].any():
            wanted = (
                np.maximum.accumulate((shifts[part] - growing[part])[::-1])[::-1] + growing[part]
            )
            allowed = np.minimum.accumulate((room[part] + fading[part])[::-1])[::-1] - fading[part]
            result[part] = np.minimum(wanted, allowed)
    return result


def _bent(shifts: np.ndarray, fading: np.ndarray, growing: np.ndarray) -> np.ndarray:
    """Return the change of the shift between each knot and the next, ns."""
    step = np.diff(shifts)
    none = (step == 0) & (shifts[1:] == 0)
    return np.where(
        none,
        NONE,
        np.where(step == -np.diff(fading), FADES, np.where(step == np.diff(growing), GROWS, OTHER)),
    )


def _corners(net: Bindings, shifts: np.ndarray, bent: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the knots between which lines may be drawn, and what the shifts of all knots are by
    such lines.
    """
    corners = np.ones(len(shifts), bool)
    corners[1:-1] = (bent[1:] != bent[:-1]) | (bent[1:] == OTHER)
    corners[net.bounds[:-1][net.bounds[:-1] < len(shifts)]] = True
    corners[net.bounds[1:][net.bounds[1:] > 0] - 1] = True
    for _ in range(ATTEMPTS):
        drawn = shifts.copy()
        for part in net.parts():
            if shifts[part].any():
                line = Shifts(net.knots[part][corners[part]], shifts[part][corners[part]])
                drawn[part] = line.to_global(net.knots[part]) - net.knots[part]
        wrong = np.flatnonzero(net.lacks(drawn) > 0)
        if not len(wrong):
            return corners, drawn
        # A line is off by less than 1 ns for rounding, which may be too much where two times are to
        # be equal.
        groups = np.zeros(net.groups, bool)
        groups[net.ends.group[wrong]] = True
        corners[net.ends.knot[wrong]] = True
        corners[net.begins.of(groups).knot] = True
    return np.ones(len(shifts), bool), shifts


def _curve(times: np.ndarray, shifts: np.ndarray, free: np.ndarray, rate: int) -> Shifts:
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
