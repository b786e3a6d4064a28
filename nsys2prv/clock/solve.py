"""Solve for the corrections of all hosts' clocks from what their processes did together, and judge
the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.columns import factorize
from nsys2prv.clock import (
    PLAUSIBLE_DRIFT,
    UNCLEAR_KINDS,
    ClockFinding,
    Corrections,
    FindingKind,
    Role,
)
from nsys2prv.clock.adjust import (
    FEWEST_BOUNDS,
    ONE_WAY,
    Precedences,
    connect_parts,
    drop_needless_corrections,
    find_violations,
    move_unconnected_parts,
    remove_violations,
    tighten_bounds,
)
from nsys2prv.clock.gathering import (
    HOLD_BACK,
    ConnectingCalls,
    GatheredCalls,
    concat_rows,
    find_connecting_calls,
    merge_groups,
)
from nsys2prv.clock.least_squares import (
    ENDS,
    UTC,
    Estimate,
    drop_ends,
    gather_collective_ends,
    list_corrections,
    make_links,
    solve_network,
)
from nsys2prv.clock.maps import HostClock

#: Calls that belong together contradict the clocks by no more than this (ns) plus ten times their error.
LARGEST_CONTRADICTION = 1_000_000.0
#: A host's ends are not used if more than this share of its precedences contradicts them; largest
#: number of hosts that are dropped.
CONTRADICTED_SHARE, MOST_CONTRADICTED_HOSTS = 0.05, 64
#: The method where calls are matched by their order alone.
ORDER = "order of collectives"
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
#: Whether used or held back -> before and after the correction -> counts and sizes of violations, by
#: their names in the clock file, in whole ns.
Verdict = Mapping[str, Mapping[str, Mapping[str, int]]]


class Alignment(Struct, frozen=True):
    """Result of aligning the hosts."""

    #: Correction of each host.
    corrections: list[HostClock]
    #: Verdict on the corrections.
    verdict: Verdict
    #: Findings that the user should know.
    findings: list[ClockFinding]


def solve_clocks(
    names: Sequence[str],
    parts: Sequence[GatheredCalls],
    messages: pl.DataFrame,
    pivot: int,
    span: tuple[int, int],
) -> Alignment:
    """Return corrections of the hosts' clocks, from the collective calls and messages (a frame of
    MESSAGES) between them.

    names: of the hosts. parts: calls that are gathered per host, whole groups ascending by kind of
    noise and group. pivot: an instant amid all times (ns). span: first and last placed time that
    bounds are to hold for, at least those observed.
    """
    hosts = len(names)
    gathered = merge_groups(parts)
    connecting = find_connecting_calls(gathered, hosts)
    rows = concat_rows([gathered.rows, connecting.rows])
    # Unclear groups matter only for hosts that all groups together do not place either.
    findings = [
        finding
        for finding in gathered.findings
        if finding.kind not in UNCLEAR_KINDS or finding.clock in connecting.left
    ]
    orders = find_precedences(rows, messages, pivot)
    estimates, network_findings = _solve_network(rows, hosts, orders[~orders.held])
    findings += network_findings
    estimates, adjustment_findings = _adjust_estimates(
        estimates, orders, connecting.doubt, findings
    )
    findings += adjustment_findings
    corrections = list_corrections(estimates)
    limit = np.array(
        [np.inf if e.method == UTC else LARGEST_CONTRADICTION + 10 * e.bound for e in estimates]
    )
    sent = find_precedences(rows.clear(), messages, pivot)
    evidence, misfits = Evidence(rows, sent).drop_misfits(corrections, limit)
    if misfits:
        findings.append(ClockFinding(FindingKind.CONTRADICTED, misfits))
    verdict = own = evidence.judge(corrections)
    # Hosts placed by UTC alone are no evidence against the corrections of the others.
    part = np.array([e.reference for e in estimates])
    if part.any():
        own = evidence.split_by_component(part).judge(corrections)
    observed_hosts = gathered.hosts.union(messages["before"], messages["after"])
    findings += _find_unconnected_hosts(estimates, observed_hosts, connecting)
    before, after, number = (
        sum(times[when][name] for times in own.values())
        for when, name in (("before", "sum_ns"), ("after", "sum_ns"), ("after", "violated"))
    )
    if after > before:
        reason = FindingKind.WORSE.value.format(after, before)
        findings.append(ClockFinding(FindingKind.WORSE, number, reason=reason))
        estimates = [
            replace(e, reference=e.host, method=UTC, offset=0.0, drift=0.0, bound=0.0, rate=0.0)
            for e in estimates
        ]
    sure = connecting.doubt == 0
    host_clocks = [
        _to_host_clock(e, names[e.reference], pivot, span, sure[e.host]) for e in estimates
    ]
    return Alignment(host_clocks, verdict, findings)


def _solve_network(
    rows: pl.DataFrame, hosts: int, orders: Precedences
) -> tuple[list[Estimate], list[ClockFinding]]:
    """Return the network without hosts whose clocks would drift more than is plausible, and without
    hosts whose ends contradict the order of events (they scatter more than they show).
    """
    blocks = gather_collective_ends(rows)
    links, findings = make_links(blocks)

    def solve_without(left_out: set[int]) -> tuple[list[Estimate], list[ClockFinding]]:
        drop_ends(blocks, sorted(left_out))
        links[:] = [link for link in links if not {link.host, link.reference} & left_out]
        return solve_network(blocks, links, hosts)

    estimates, more = solve_network(blocks, links, hosts)
    if steep := [one for one in estimates if abs(one.drift) > PLAUSIBLE_DRIFT]:
        for one in steep:
            reason = FindingKind.STEEP.value.format(one.drift * 1e6)
            findings.append(
                ClockFinding(FindingKind.STEEP, one.observations, clock=one.host, reason=reason)
            )
        estimates, more = solve_without({one.host for one in steep})
    for _ in range(MOST_CONTRADICTED_HOSTS):
        host = _find_contradicted_host(estimates, orders)
        if host is None:
            break
        findings.append(ClockFinding(FindingKind.UNFIT, estimates[host].observations, clock=host))
        estimates, more = solve_without({host})
    return estimates, findings + more


def _find_contradicted_host(estimates: list[Estimate], orders: Precedences) -> int | None:
    """Return the host with the largest share of precedences violated by more than the errors allow,
    None if no share is large.
    """
    compared, _, beyond = find_violations(estimates, orders)
    if not beyond.any():
        return None
    all_of, beyond_of = (
        sum(
            np.bincount(side[mask], minlength=len(estimates))
            for side in (orders.before, orders.after)
        )
        for mask in (compared, beyond)
    )
    share = np.where(beyond_of >= FEWEST_BOUNDS, beyond_of / np.maximum(all_of, 1), 0.0)
    # If two contradict each other, the later one: the first is the reference of the others.
    host = len(share) - 1 - int(np.argmax(share[::-1]))
    return host if share[host] > CONTRADICTED_SHARE else None


def _adjust_estimates(
    estimates: list[Estimate],
    orders: Precedences,
    doubt: np.ndarray,
    findings: Sequence[ClockFinding],
) -> tuple[list[Estimate], list[ClockFinding]]:
    """Return the estimates adjusted to hard bounds. doubt: by host, possible error from calls that
    are matched by order alone, ns. findings: on hosts so far.
    """
    used = orders[~orders.held]
    doubtful = [
        replace(e, method=ORDER, bound=e.bound + float(doubt[e.host]))
        if doubt[e.host] and e.method == ENDS
        else e
        for e in estimates
    ]
    estimates = connect_parts(doubtful, used)
    estimates, violation_findings = remove_violations(estimates, used)
    left_out = frozenset(
        f.clock for f in findings if f.kind in (FindingKind.STEEP, FindingKind.UNFIT)
    )
    certain = used[~((doubt > 0)[used.before] | (doubt > 0)[used.after])]
    estimates = move_unconnected_parts(tighten_bounds(estimates, certain), used, left_out)
    estimates = drop_needless_corrections(estimates, orders)
    one_way = [
        ClockFinding(FindingKind.ONE_WAY, clock=e.host) for e in estimates if e.method == ONE_WAY
    ]
    return estimates, [*violation_findings, *one_way]


def _find_unconnected_hosts(
    estimates: list[Estimate], observed_hosts: frozenset[int], connecting: ConnectingCalls
) -> list[ClockFinding]:
    """Return the hosts not connected to the first one, and those connected by the order of calls
    alone. observed_hosts: hosts that share calls or messages with others.
    """
    findings = []
    for estimate in estimates:
        if estimate.reference == estimate.host and estimate.host:
            others = sum(other.reference == estimate.host for other in estimates) - 1
            reason = FindingKind.APART.value.format(
                "nothing shared with other hosts"
                if estimate.host not in observed_hosts
                else "its calls cannot be paired with those of other hosts"
                if estimate.host in connecting.left
                else "what it did with other hosts does not determine its clock"
            )
            if others:
                reason = f"nothing connects this host and {others} others to the first host: placed by UTC against it"
            findings.append(
                ClockFinding(FindingKind.APART, others, clock=estimate.host, reason=reason)
            )
        elif connecting.doubt[estimate.host]:
            findings.append(ClockFinding(FindingKind.IN_ORDER, clock=estimate.host))
    return findings


def _to_host_clock(
    estimate: Estimate,
    reference: str,
    pivot: int,
    span: tuple[int, int],
    sure: bool,
) -> HostClock:
    # What is a reference of others alone is not known against the trace's own.
    is_aligned = (
        estimate.method != UTC
        and np.isfinite(estimate.bound)
        and (estimate.reference != estimate.host or not estimate.host)
    )
    beyond = 0.0
    if np.isfinite(estimate.first):
        beyond = max(estimate.first - (span[0] - pivot), span[1] - pivot - estimate.last, 0.0)
    return HostClock(
        round(estimate.offset),
        float(estimate.drift) * 1e6,
        int(pivot),
        estimate.method,
        reference,
        int(estimate.observations),
        round(estimate.spread) if np.isfinite(estimate.spread) else None,
        round(estimate.bound + estimate.rate * beyond) if is_aligned else None,
        round(estimate.bound) if is_aligned else None,
        bool(sure and estimate.method != ONE_WAY),
    )


def find_precedences(hosts: pl.DataFrame, messages: pl.DataFrame, pivot: int) -> Precedences:
    """Return the precedences of messages and of collectives (the begin of the root, or of the last
    member, precedes the ends of those that waited for it). hosts: rows of
    :func:`nsys2prv.clock.gathering.gather_per_host`.
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


def _find_message_precedences(messages: pl.DataFrame, pivot: int) -> pl.DataFrame:
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
    return table.filter((pl.col("size") <= MOST_MESSAGES) | begins_step).with_columns(
        held=place % HOLD_BACK == HOLD_BACK - 1
    )


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

    #: Rows of :func:`nsys2prv.clock.gathering.gather_per_host`, of collectives numbered from 0 without
    #: gaps.
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
