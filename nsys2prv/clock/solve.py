"""Hosts' clocks aligned by what their processes did together: observations in, corrections and a verdict out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from nsys2prv.clock import network
from nsys2prv.clock.adjust import UTC, Estimate, connect, estimates_of, project, tighten
from nsys2prv.clock.blocks import blocks_of, links_of
from nsys2prv.clock.gathering import Gathered, gathered, together
from nsys2prv.clock.hosts import precedences
from nsys2prv.clock.observations import NOISE, Calls, Finding, Messages, pivot_of
from nsys2prv.clock.oneway import ONE_WAY, one_way
from nsys2prv.clock.residuals import Sample, residual_samples
from nsys2prv.clock.robust import PLAUSIBLE_DRIFT
from nsys2prv.clock.unmoved import unmoved
from nsys2prv.clock.verdict import Verdict, judge, within, without_misfits

#: What is matched rightly contradicts the clocks by no more than this beside ten times their error, ns.
MISFIT = 1_000_000.0
#: Unsteadiness that is worth a word, ns.
UNSTEADY = 5_000.0
#: Standard deviations that a bound covers.
COVER = 3.0


@dataclass(frozen=True)
class HostCorrection:
    """corrected = placed + offset_ns + drift * (placed - pivot), of one host; 0 and 0 of a reference.

    reference: host that this one is corrected to. bound_ns: largest error against it at any instant of the span observed, None
    where nothing was observed. observations: collectives (or messages) used. spread_ns: standard deviation of this host's ends of
    collectives about the common ones, NaN without. drift_sigma: standard deviation of the drift, a plain ratio. span: first and
    last placed time observed.
    """

    host: int
    reference: int
    method: str
    pivot: int
    offset_ns: float = 0.0
    drift: float = 0.0
    bound_ns: float | None = None
    drift_sigma: float = 0.0
    observations: int = 0
    spread_ns: float = float("nan")
    span: tuple[int, int] | None = None

    @property
    def drift_ppm(self) -> float:
        return self.drift * 1e6


@dataclass(frozen=True)
class Alignment:
    """Corrections by host, the verdict on them, and what the user should know. `kept_utc`: they were worse, and all are 0.

    samples: of each host, how far its ends of collectives lie from the usual ones.
    """

    corrections: list[HostCorrection]
    verdict: Verdict
    findings: list[Finding]
    kept_utc: bool = False
    samples: list[tuple[Sample, ...]] = field(default_factory=list)


def align(hosts: int, calls: Calls | None = None, messages: Messages | None = None) -> Alignment:
    """Corrections of the clocks of `hosts` hosts, from the collective calls and messages between them."""
    calls, messages = calls or Calls.none(), messages or Messages.none()
    pivot = pivot_of(calls, messages)
    return solved(hosts, [gathered(calls, pivot)], messages, pivot)


def solved(hosts: int, parts: Sequence[Gathered], messages: Messages, pivot: int) -> Alignment:
    """The same from calls that are gathered per host already, in parts of whole groups, ascending by source and group."""
    rows, groups, findings = together(parts)
    orders = precedences(rows, messages, pivot)
    net, floors, found = _network(rows, groups, hosts)
    findings += found
    used = orders.of(~orders.held)
    estimates = connect(estimates_of(net, floors, COVER), used)
    estimates, found = project(estimates, used)
    findings += found
    left_out = frozenset(finding.clock for finding in findings if finding.kind in ("steep", "unfit"))
    estimates = unmoved(one_way(tighten(estimates, used), used, left_out), orders)
    findings += [Finding("one way", "bound by others in one direction only: moved just as far as that takes, so its error is not known",
                         clock=e.host) for e in estimates if e.method == ONE_WAY]
    offset, drift = np.array([e.offset for e in estimates]), np.array([e.drift for e in estimates])
    sent = precedences(rows.clear(), messages, pivot)
    limit = np.array([np.inf if e.method == UTC else MISFIT + 10 * e.bound for e in estimates])
    rows, sent, misfits = without_misfits(rows, sent, offset, drift, limit)
    if misfits:
        findings.append(Finding("contradicted", "collectives and messages that cannot belong together, by the clocks that all others tell: "
                                "left out", misfits))
    verdict = judge(rows, sent, offset, drift)
    # What is placed by UTC alone tells nothing against the corrections of the others.
    part = np.array([e.reference for e in estimates])
    own = verdict if (part == 0).all() else judge(*within(rows, sent, part), offset, drift)
    findings += _apart(estimates)
    if own.worse:
        after, before = own.used_after + own.held_after, own.used_before + own.held_before
        findings.append(Finding("worse", f"corrections violate causality by {after.total:.0f} ns in all, UTC by {before.total:.0f} ns: "
                                "UTC is kept", after.number))
        estimates = [Estimate(e.host, e.host, UTC, observations=e.observations, spread=e.spread, first=e.first, last=e.last)
                     for e in estimates]
        offset, drift = np.zeros(hosts), np.zeros(hosts)
    return Alignment([_correction(estimate, pivot) for estimate in estimates], verdict, findings, own.worse,
                     residual_samples(rows, offset, drift, pivot))


def _correction(estimate: Estimate, pivot: int) -> HostCorrection:
    seen = np.isfinite(estimate.first)
    return HostCorrection(
        estimate.host, estimate.reference, estimate.method, pivot, estimate.offset, estimate.drift,
        estimate.bound if estimate.method != UTC and np.isfinite(estimate.bound) else None, estimate.drift_sigma,
        estimate.observations, estimate.spread,
        (pivot + round(estimate.first), pivot + round(estimate.last)) if seen else None)


def _apart(estimates: list[Estimate]) -> list[Finding]:
    """What is not connected to the first host."""
    findings = []
    for estimate in estimates[1:]:
        if estimate.reference == estimate.host:
            others = sum(other.reference == estimate.host for other in estimates) - 1
            reason = ("nothing shared with other hosts: placed by UTC alone" if not others else
                      f"nothing connects this host and {others} others to the first host: placed by UTC against it")
            findings.append(Finding("apart", reason, others, clock=estimate.host))
    return findings


def _network(rows: pl.DataFrame, groups: dict[int, int], hosts: int) -> tuple[network.Network, np.ndarray, list[Finding]]:
    """The network without hosts whose clocks would drift beyond all plausibility; and each host's least error, ns."""
    blocks = blocks_of(rows, groups)
    links, findings = links_of(blocks)
    net = network.solve(blocks, links, hosts)
    steep = np.flatnonzero(np.abs(net.drift) > PLAUSIBLE_DRIFT).tolist()
    if steep:
        findings += [Finding("steep", f"a drift of {net.drift[host] * 1e6:.0f} ppm is no clock's: the host is left out",
                             int(net.observations[host]), clock=host) for host in steep]
        for block in blocks:
            block.seen &= ~np.isin(block.clocks, steep)
            block.weight, block.lateness = np.empty(0), 0.0
        net = network.solve(blocks, [link for link in links if link.clock not in steep and link.to not in steep], hosts)
    findings += [Finding("noisy", f"ends of collectives scatter {times:.1f} times as much as is usual: bounds are widened",
                         round(times), source=source) for source, times in sorted(net.scale.items()) if times > 1]
    findings += [Finding("unsteady", "ends of collectives scatter or lie off any line more than is usual: bounds are wider by so many ns",
                         round(more), clock=host) for host, more in enumerate(net.unsteady.tolist()) if more > UNSTEADY]
    floors = np.full(hosts, max(noise.floor for noise in NOISE.values()))
    for block in blocks:
        seen = block.clocks[(block.weight > 0).any(axis=0)]
        floors[seen] = np.minimum(floors[seen], NOISE[block.source].floor)
    return net, floors, findings
