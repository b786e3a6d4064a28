"""Solve for the corrections of all hosts' clocks from what their processes did together, and judge
the result.

Hosts that no settled communicator connects are placed by all that two of them have in common:
communicators that could not be settled one by one are judged together. Where that does not settle
them either, the order of the calls is taken as it is, if both hosts have equally many of each
communicator, and these are so few that nothing speaks for another pairing, or UTC speaks for this
one: it is probably right, but nothing shows it. If it is wrong, the host is off by no more than the
calls reach over, as long as the two have one call in common.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv.clock import UNCLEAR_KINDS, UTC_ERROR, FindingKind, Role
from nsys2prv.clock.adjust import (
    FEWEST_BOUNDS,
    ONE_WAY,
    TOLERANCE,
    connect_parts,
    drop_needless_corrections,
    list_corrections,
    move_unconnected_parts,
    remove_violations,
    tighten_bounds,
)
from nsys2prv.clock.bounds import Evidence, Precedences, Verdict, find_precedences
from nsys2prv.clock.gathering import (
    GatheredCalls,
    concat_rows,
    gather_per_host,
    merge_groups,
    sample_collectives,
)
from nsys2prv.clock.least_squares import (
    ENDS,
    UTC,
    Estimate,
    Network,
    drop_ends,
    gather_collective_ends,
    make_links,
    solve_network,
)
from nsys2prv.clock.maps import HostClock
from nsys2prv.clock.matching import (
    FEWEST_CALLS,
    SURE_RATING,
    Ends,
    find_rival_distances,
    find_self_fits,
    find_width,
    mask_compatible,
    rate_match,
    rate_order,
)
from nsys2prv.clock.observations import (
    NOISE,
    PLAUSIBLE_DRIFT,
    ClockFinding,
    Messages,
    Noise,
    fit_line,
)
from nsys2prv.clock.sequences import (
    USUAL_UTC_ERROR,
    CallSequence,
    are_nearby,
    do_fit_in_order,
    pair_calls,
)

#: What is matched rightly contradicts the clocks by no more than this beside ten times their error,
#: ns.
LARGEST_CONTRADICTION = 1_000_000.0
#: Unsteadiness that is worth a word, ns.
NOTED_UNSTEADINESS = 5_000.0
#: A host's ends are not used if more than this share of its precedences contradicts them; at most
#: so many hosts are dropped.
CONTRADICTED_SHARE, MOST_CONTRADICTED_HOSTS = 0.05, 64
#: The method where nothing but the order of calls tells which of them belong together.
ORDER = "order of collectives"
#: Hosts that one host is compared with before it is given up.
MOST_TRIES = 3
#: Signatures are below this: group * MOST_SIGNATURES + signature tells those of one group from
#: another's.
MOST_SIGNATURES = 1 << 32


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
    messages: Messages,
    pivot: int,
    span: tuple[int, int],
) -> Alignment:
    """Return corrections of the hosts' clocks, from the collective calls and messages between them.

    names: of the hosts. parts: calls that are gathered per host, whole groups ascending by kind of
    noise and group. pivot: an instant amid all times (ns). span: first and last placed time that
    bounds are to hold for, at least those observed.
    """
    hosts = len(names)
    gathered = merge_groups(parts)
    connecting = _find_connecting_calls(gathered, hosts)
    rows = concat_rows([gathered.rows, connecting.rows])
    # Unclear groups matter only for hosts that all groups together do not place either.
    findings = [
        finding
        for finding in gathered.findings
        if finding.kind not in UNCLEAR_KINDS or finding.clock in connecting.left
    ]
    orders = find_precedences(rows, messages, pivot)
    net, network_findings = _solve_network(rows, hosts, orders[~orders.held])
    findings += network_findings
    estimates, adjustment_findings = _adjust_estimates(
        net.estimates, orders, connecting.doubt, findings
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
    # What is placed by UTC alone tells nothing against the corrections of the others.
    part = np.array([e.reference for e in estimates])
    if part.any():
        own = evidence.split_by_component(part).judge(corrections)
    observed_hosts = gathered.hosts.union(messages.sender.tolist(), messages.receiver.tolist())
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
) -> tuple[Network, list[ClockFinding]]:
    """Return the network without hosts whose clocks would drift more than is plausible, and without
    hosts whose ends contradict the order of events (they scatter more than they show).
    """
    blocks = gather_collective_ends(rows)
    links, findings = make_links(blocks)
    net = solve_network(blocks, links, hosts)
    steep = [e for e in net.estimates if abs(e.drift) > PLAUSIBLE_DRIFT]
    if steep:
        for e in steep:
            reason = FindingKind.STEEP.value.format(e.drift * 1e6)
            findings.append(
                ClockFinding(FindingKind.STEEP, e.observations, clock=e.host, reason=reason)
            )
        left_out = {e.host for e in steep}
        drop_ends(blocks, sorted(left_out))
        links = [link for link in links if not {link.clock, link.to} & left_out]
        net = solve_network(blocks, links, hosts)
    for _ in range(MOST_CONTRADICTED_HOSTS):
        host = _find_contradicted_host(net.estimates, orders)
        if host is None:
            break
        count = net.estimates[host].observations
        findings.append(ClockFinding(FindingKind.UNFIT, count, clock=host))
        drop_ends(blocks, [host])
        links = [link for link in links if host not in (link.clock, link.to)]
        net = solve_network(blocks, links, hosts)
    for _, times in sorted(net.scale.items()):
        if times > 1:
            reason = FindingKind.NOISY.value.format(times)
            findings.append(ClockFinding(FindingKind.NOISY, round(times), reason=reason))
    findings += [
        ClockFinding(FindingKind.UNSTEADY, round(more), clock=host)
        for host, more in enumerate(net.unsteady.tolist())
        if more > NOTED_UNSTEADINESS
    ]
    return net, findings


def _find_contradicted_host(estimates: list[Estimate], orders: Precedences) -> int | None:
    """Return the host with the largest share of precedences violated by more than the errors allow,
    None if no share is large.
    """
    begin, end = orders.correct(list_corrections(estimates))
    errors = np.array([estimate.bound for estimate in estimates])
    same = np.array([estimate.reference for estimate in estimates])
    compared = same[orders.before] == same[orders.after]
    allowed = errors[orders.before] + errors[orders.after] + TOLERANCE + orders.find_slack()
    beyond = compared & (begin - end > allowed)
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
    # Of two that contradict each other the later one: the first is the reference of the rest.
    host = len(share) - 1 - int(np.argmax(share[::-1]))
    return host if share[host] > CONTRADICTED_SHARE else None


def _adjust_estimates(
    estimates: list[Estimate],
    orders: Precedences,
    doubt: np.ndarray,
    findings: Sequence[ClockFinding],
) -> tuple[list[Estimate], list[ClockFinding]]:
    """Return the estimates adjusted to hard bounds. doubt: by host, which of its calls belong to
    those of its reference, ns. findings: on hosts so far.
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
    alone. observed_hosts: hosts that share anything.
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


class ConnectingCalls(Struct, frozen=True):
    """Calls of hosts that share communicators."""

    #: Calls of hosts that belong together, rows of :func:`gather_per_host`.
    rows: pl.DataFrame
    #: Per host: possible error in addition to its bound, ns; 0 where the calls surely belong
    #: together, inf where nothing is known.
    doubt: np.ndarray
    #: Hosts that share calls with others but could not be placed by them.
    left: list[int]


class _Pair(Struct):
    """Calls of two hosts that belong together: rows of the frame, of one and of the other."""

    #: Rows of one host.
    one: np.ndarray
    #: Rows of the other.
    other: np.ndarray
    #: How far they may be off each other, ns; 0 where they surely belong together.
    doubt: float = 0.0


class _UnsettledCalls(Struct, dict=True):
    """The calls that are not settled."""

    #: All calls.
    frame: pl.DataFrame
    #: The rows of each group by host.
    places: dict[int, dict[tuple[int, int], np.ndarray]]

    def __post_init__(self) -> None:
        self.end = self.frame["end"].to_numpy().astype(np.float64)
        self.signature = self.frame["signature"].to_numpy()
        self.all = self.frame["role"].to_numpy() == Role.ALL

    def find_shared_groups(self, one: int, other: int) -> list[tuple[int, int]]:
        """Return the groups in which two hosts have calls, ascending."""
        return sorted(self.places[one].keys() & self.places[other].keys())


def _find_connecting_calls(gathered: GatheredCalls, hosts: int) -> ConnectingCalls:
    """Return the calls that place hosts which no settled collectives connect."""
    settled = _find_parts(gathered.rows, hosts)
    part = settled.copy()
    frame = gathered.unsettled
    calls = _UnsettledCalls(frame, {})
    for (noise_kind, group, host), rows in frame.with_row_index("row").group_by(
        "noise_kind", "group", "clock", maintain_order=True
    ):
        calls.places.setdefault(host, {})[noise_kind, group] = (
            rows["row"].to_numpy().astype(np.int64)
        )
    pairs: dict[tuple[int, int], _Pair | None] = {}
    host_pairs: list[tuple[int, int, _Pair]] = []
    for sure in (True, False):
        tries = dict.fromkeys(calls.places, 0)
        for first in sorted(calls.places):
            todo = [host for host in sorted(calls.places) if part[host] == part[first]]
            for one in todo:
                for other in sorted(calls.places):
                    if (
                        part[other] == part[first]
                        or (tries[other] >= MOST_TRIES and (one, other) not in pairs)
                        or not calls.find_shared_groups(one, other)
                    ):
                        continue
                    if (one, other) not in pairs:
                        tries[other] += 1
                        pairs[one, other] = _pair_hosts(calls, one, other)
                    pair = pairs[one, other]
                    if pair is None or (sure and pair.doubt):
                        continue
                    host_pairs.append((one, other, pair))
                    new = np.flatnonzero(part == part[other])
                    part[new] = part[first]
                    todo += [host for host in new.tolist() if host in calls.places]
    sizes = np.bincount(part)
    left = [host for host in sorted(calls.places) if sizes[part[host]] == 1]
    return ConnectingCalls(
        _gather_pairs(frame, host_pairs), _sum_doubts_by_host(settled, host_pairs), left
    )


def _find_parts(rows: pl.DataFrame, hosts: int) -> np.ndarray:
    """Return the lowest host that each host is connected to by collectives in which all wait for
    all.
    """
    root = np.arange(hosts)
    used = rows.filter((pl.col("role") == Role.ALL) & ~pl.col("held"))
    for clocks in used.group_by("key").agg(pl.col("clock").unique())["clock"]:
        roots = np.unique(root[clocks.to_numpy()])
        root[np.isin(root, roots)] = roots[0]
    return root


def _pair_hosts(calls: _UnsettledCalls, one: int, other: int) -> _Pair | None:
    """Return the calls that two hosts have in common; None where nothing tells."""
    shared = calls.find_shared_groups(one, other)
    noise = max((NOISE[noise_kind] for noise_kind, _ in shared), key=lambda noise: noise.reach)
    here, theirs = ([calls.places[host][group] for group in shared] for host in (one, other))
    in_order = _pair_in_order(calls, here, theirs, noise)
    if len(shared) > 1 and (in_order is None or in_order.doubt):
        own_rows, own = _concat_groups(calls, here)
        other_rows, others = _concat_groups(calls, theirs)
        places, _ = pair_calls(others, own, noise, False, UTC_ERROR)
        if places is not None:
            return _Pair(own_rows[places[places >= 0]], other_rows[places >= 0])
    return in_order


def _pair_in_order(
    calls: _UnsettledCalls, here: list[np.ndarray], theirs: list[np.ndarray], noise: Noise
) -> _Pair | None:
    """Return the calls of two hosts paired in their order, for groups in which both have the same
    calls; None if they do not fit. here, theirs: rows of each host, by group.
    """
    even = [
        at
        for at, (a, b) in enumerate(zip(here, theirs, strict=True))
        if len(a) == len(b)
        and mask_compatible(calls.signature[a], calls.signature[b]).all()
        and (calls.all[a] == calls.all[b]).all()
    ]
    if not even:
        return None
    a, b = (np.concatenate([side[at] for at in even]) for side in (here, theirs))
    kind = np.repeat(even, [len(here[at]) for at in even]) * MOST_SIGNATURES + calls.signature[a]
    kept = calls.all[a]
    a, b, kind = a[kept], b[kept], kind[kept]
    order = np.argsort(calls.end[a], kind="stable")
    a, b, kind = a[order], b[order], kind[order]
    ends, others = calls.end[a], calls.end[b]
    if not len(a) or not do_fit_in_order(ends, others, noise):
        return None
    offset, slope, spread = fit_line(ends, others - ends)
    unmoved = Ends(others, calls.signature[a])
    own, other = Ends(ends, kind).move(offset, slope), Ends(others, kind)
    own, other = (side[np.argsort(side.time, kind="stable")] for side in (own, other))
    width = find_width(noise, spread, len(ends))
    certainty = rate_match(own, other, width, find_rival_distances(other))
    if certainty >= SURE_RATING:
        return _Pair(a, b)
    if spread > noise.reach:
        return None
    # Only the order within a group is evidence, not the order across groups.
    if (
        certainty == 0.0
        and max(len(here[at]) for at in even) >= FEWEST_CALLS
        and not (
            len(even) == 1
            and (
                are_nearby(ends, others, USUAL_UTC_ERROR)
                or rate_order(ends, others, find_self_fits(unmoved), noise) > 0
            )
        )
    ):
        return None
    reach = max(float(np.ptp(calls.end[here[at]])) for at in even)
    return _Pair(a, b, reach or np.inf)


def _concat_groups(
    calls: _UnsettledCalls, groups: list[np.ndarray]
) -> tuple[np.ndarray, CallSequence]:
    """Return the rows of all groups by their ends, and their sequence."""
    rows = np.concatenate(groups)
    sizes = [len(group) for group in groups]
    kind = np.repeat(np.arange(len(groups)) * MOST_SIGNATURES, sizes) + calls.signature[rows]
    order = np.argsort(calls.end[rows], kind="stable")
    return rows[order], CallSequence(calls.end[rows][order], kind[order], calls.all[rows][order])


def _gather_pairs(frame: pl.DataFrame, pairs: list[tuple[int, int, _Pair]]) -> pl.DataFrame:
    """Return the calls of all pairs by collective: of one host, those of its pairs with others are
    the same.
    """
    parts = [
        frame[rows].with_columns(hub=pl.lit(one, pl.Int32), ordinal=pl.Series(pair.one))
        for one, _, pair in pairs
        for rows in (pair.one, pair.other)
    ] or [frame.clear().with_columns(hub=pl.lit(0, pl.Int32), ordinal=pl.lit(0, pl.Int64))]
    table = pl.concat(parts).unique(["hub", "ordinal", "clock"], maintain_order=True)
    key = pl.struct("hub", "noise_kind", "group").rank("dense").cast(pl.Int32) - 1
    return gather_per_host(sample_collectives(table.with_columns(key=key)))


def _sum_doubts_by_host(settled: np.ndarray, pairs: list[tuple[int, int, _Pair]]) -> np.ndarray:
    """Return by host how far it may be off the lowest host that it is connected to. settled: parts
    without the pairs, which connect them.
    """
    near: dict[int, list[tuple[int, float]]] = {}
    for one, other, pair in pairs:
        for a, b in ((settled[one], settled[other]), (settled[other], settled[one])):
            near.setdefault(int(a), []).append((int(b), pair.doubt))
    reached: dict[int, float] = {}
    for start in sorted(set(settled.tolist())):
        todo = [(start, 0.0)]
        while todo:
            at, doubt = todo.pop()
            if at not in reached:
                reached[at] = doubt
                todo += [(to, doubt + more) for to, more in near.get(at, [])]
    return np.array([reached[at] for at in settled.tolist()])
