"""Hosts' clocks aligned by what their processes did together: observations in, corrections and a
verdict out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv.clock import UTC_ERROR
from nsys2prv.clock.adjust import (
    ENDS,
    ONE_WAY,
    UTC,
    Estimate,
    connect_parts,
    drop_needless_corrections,
    list_corrections,
    make_estimates,
    move_free_parts,
    remove_violations,
    tighten_bounds,
)
from nsys2prv.clock.clock_file import HostClock
from nsys2prv.clock.communicator_pooling import PooledCalls, pool_calls
from nsys2prv.clock.gathering import OPEN, GatheredCalls, merge_groups
from nsys2prv.clock.least_squares import Network, make_blocks, make_links, solve_network
from nsys2prv.clock.observations import NOISE, PLAUSIBLE_DRIFT, ClockFinding, Messages
from nsys2prv.clock.verdict import (
    Precedences,
    Sample,
    Verdict,
    drop_misfits,
    find_precedences,
    judge_corrections,
    sample_residuals,
    split_by_component,
)

#: What is matched rightly contradicts the clocks by no more than this beside ten times their error,
#: ns.
MISFIT = 1_000_000.0
#: Unsteadiness that is worth a word, ns.
UNSTEADY = 5_000.0
#: Standard deviations that a bound covers.
COVER = 3.0
#: The method where nothing but the order of calls tells which of them belong together.
ORDER = "order of collectives"


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

    names: of the hosts. parts: calls that are gathered per host, whole groups ascending by source
    and group. pivot: an instant amid all times (ns). span: first and last placed time that bounds
    are to hold for, at least those observed.
    """
    hosts = len(names)
    gathered = merge_groups(parts)
    pooled = pool_calls(gathered, hosts, UTC_ERROR)
    everything = merge_groups([gathered, pooled.calls])
    rows = everything.rows
    # What could not be told of one group matters only where all of them do not place the host
    # either.
    findings = [
        finding
        for finding in gathered.findings
        if finding.kind not in OPEN or finding.clock in pooled.left
    ]
    orders = find_precedences(rows, messages, pivot)
    net, floors, network_findings = _solve_network(rows, hosts)
    findings += network_findings
    estimates, network_findings = _adjust_estimates(
        make_estimates(net, floors, COVER), orders, pooled.doubt, findings
    )
    findings += network_findings
    offset, drift = list_corrections(estimates)
    sent = find_precedences(rows.clear(), messages, pivot)
    limit = np.array([np.inf if e.method == UTC else MISFIT + 10 * e.bound for e in estimates])
    rows, sent, misfits = drop_misfits(rows, sent, offset, drift, limit)
    if misfits:
        findings.append(ClockFinding("contradicted", misfits))
    verdict = judge_corrections(rows, sent, offset, drift)
    # What is placed by UTC alone tells nothing against the corrections of the others.
    part = np.array([e.reference for e in estimates])
    own = verdict
    if part.any():
        own = judge_corrections(*split_by_component(rows, sent, part), offset, drift)
    observed_hosts = gathered.hosts.union(messages.sender.tolist(), messages.receiver.tolist())
    findings += _find_unconnected_hosts(estimates, observed_hosts, pooled)
    if own.after.total > own.before.total:
        reason = (
            f"corrections violate causality by {own.after.total:.0f} ns in all, UTC by {own.before.total:.0f} ns: "
            "UTC is kept"
        )
        findings.append(ClockFinding("worse", own.after.number, reason=reason))
        estimates = [
            replace(e, reference=e.host, method=UTC, offset=0.0, drift=0.0, bound=0.0, rate=0.0)
            for e in estimates
        ]
        offset, drift = list_corrections(estimates)
    samples = sample_residuals(rows, offset, drift, pivot)
    sure = pooled.doubt == 0
    corrections = [
        _to_host_clock(e, names[e.reference], pivot, span, sure[e.host], samples[e.host])
        for e in estimates
    ]
    return Alignment(corrections, verdict, findings)


def _adjust_estimates(
    estimates: list[Estimate],
    orders: Precedences,
    doubt: np.ndarray,
    findings: Sequence[ClockFinding],
) -> tuple[list[Estimate], list[ClockFinding]]:
    """Return the estimates adjusted to hard bounds. doubt: by host, which of its calls belong to
    those of its reference, ns. findings: on hosts so far.
    """
    used = orders.take(~orders.held)
    doubtful = [
        replace(e, method=ORDER, bound=e.bound + float(doubt[e.host]))
        if doubt[e.host] and e.method == ENDS
        else e
        for e in estimates
    ]
    estimates = connect_parts(doubtful, used)
    estimates, violation_findings = remove_violations(estimates, used)
    left_out = frozenset(f.clock for f in findings if f.kind in ("steep", "unfit"))
    certain = used.take(~((doubt > 0)[used.before] | (doubt > 0)[used.after]))
    estimates = move_free_parts(tighten_bounds(estimates, certain), used, left_out)
    estimates = drop_needless_corrections(estimates, orders)
    one_way = [ClockFinding("one way", clock=e.host) for e in estimates if e.method == ONE_WAY]
    return estimates, [*violation_findings, *one_way]


def _to_host_clock(
    estimate: Estimate,
    reference: str,
    pivot: int,
    span: tuple[int, int],
    sure: bool,
    samples: tuple[Sample, ...],
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
        samples,
    )


def _find_unconnected_hosts(
    estimates: list[Estimate], observed_hosts: frozenset[int], pooled: PooledCalls
) -> list[ClockFinding]:
    """Return the hosts not connected to the first one, and those connected by the order of calls
    alone. observed_hosts: hosts that share anything.
    """
    findings = []
    for estimate in estimates:
        if estimate.reference == estimate.host and estimate.host:
            others = sum(other.reference == estimate.host for other in estimates) - 1
            reason = (
                f"nothing connects this host and {others} others to the first host: placed by UTC against it"
                if others
                else "nothing shared with other hosts: placed by UTC alone"
                if estimate.host not in observed_hosts
                else "its calls cannot be paired with those of other hosts: placed by UTC alone"
                if estimate.host in pooled.left
                else "what it did with other hosts does not determine its clock: placed by UTC alone"
            )
            findings.append(ClockFinding("apart", others, clock=estimate.host, reason=reason))
        elif pooled.doubt[estimate.host]:
            findings.append(ClockFinding("in order", clock=estimate.host))
    return findings


def _solve_network(
    rows: pl.DataFrame, hosts: int
) -> tuple[Network, np.ndarray, list[ClockFinding]]:
    """Return the network without hosts whose clocks would drift beyond all plausibility; and each
    host's least error, ns.
    """
    blocks = make_blocks(rows)
    links, findings = make_links(blocks)
    net = solve_network(blocks, links, hosts)
    steep = np.flatnonzero(np.abs(net.drift) > PLAUSIBLE_DRIFT).tolist()
    if steep:
        for host in steep:
            reason = f"a drift of {net.drift[host] * 1e6:.0f} ppm is more than a clock can have: the host is left out"
            findings.append(
                ClockFinding("steep", int(net.observations[host]), clock=host, reason=reason)
            )
        for block in blocks:
            block.seen &= ~np.isin(block.clocks, steep)
            block.weight, block.lateness = np.empty(0), 0.0
        links = [link for link in links if not {link.clock, link.to} & set(steep)]
        net = solve_network(blocks, links, hosts)
    for _, times in sorted(net.scale.items()):
        if times > 1:
            reason = f"ends of collectives scatter {times:.1f} times as much as is usual: bounds are widened"
            findings.append(ClockFinding("noisy", round(times), reason=reason))
    findings += [
        ClockFinding("unsteady", round(more), clock=host)
        for host, more in enumerate(net.unsteady.tolist())
        if more > UNSTEADY
    ]
    floors = np.full(hosts, max(noise.floor for noise in NOISE.values()))
    for block in blocks:
        seen = block.clocks[(block.weight > 0).any(axis=0)]
        floors[seen] = np.minimum(floors[seen], NOISE[block.source].floor)
    return net, floors, findings
