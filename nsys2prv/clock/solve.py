"""Compute the corrections of all host clocks from events that hosts have in common, and judge the
result.
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
    ClockFinding,
    Corrections,
    FindingKind,
    NoiseKind,
    Observations,
    adjust,
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
from nsys2prv.clock.orders import (
    Precedences,
    find_collective_precedences,
    find_message_precedences,
)

#: Calls that belong together contradict the clocks by no more than this (ns) plus ten times their error.
LARGEST_CONTRADICTION = 1_000_000.0
#: A host's ends are not used if more than this share of its precedences contradicts them; largest
#: number of hosts that are dropped.
CONTRADICTED_SHARE, MOST_CONTRADICTED_HOSTS = 0.05, 64
#: The method where calls are matched by their order alone.
ORDER = "order of collectives"
#: Share of collectives and messages that may be taken for misfits.
MISFIT_SHARE = 0.05
#: Whether used or held back -> before and after the correction -> counts and sizes of violations, by
#: their names in the clock file, in whole ns.
Verdict = Mapping[str, Mapping[str, Mapping[str, int]]]


class Alignment(Struct, frozen=True):
    """The result of aligning host clocks: corrections, their test, and findings."""

    #: Correction of each host.
    corrections: list[HostClock]
    #: Verdict on the corrections.
    verdict: Verdict
    #: Findings that the user should know.
    findings: list[ClockFinding]


def solve_clocks(
    names: Sequence[str],
    observed: Observations,
    pivot: int,
    spans: np.ndarray,
    shifts: np.ndarray | None = None,
) -> Alignment:
    """Compute the corrections of host clocks.

    names: of the hosts. observed: events in common. pivot: a time in the middle of all times (ns).
    spans: first and last placed time of each host, for which bounds must hold, shape (hosts, 2);
    nan if unknown. shifts: how much later all these times are than the hosts' own clocks (ns, int64,
    from :func:`~nsys2prv.clock.maps.find_coarse_shifts`; default: 0).
    """
    shifts = np.zeros(len(names), np.int64) if shifts is None else shifts
    hosts, rows, findings = len(names), observed.collectives, [*observed.findings]
    sent = find_message_precedences(observed.messages, pivot)
    orders, binding = (
        Precedences.concat([sent, find_collective_precedences(rows, only_last)])
        for only_last in (False, True)
    )
    estimates = _solve_network(rows, hosts, binding[~binding.held], findings)
    timed_by_gpu = rows.filter(pl.col("noise_kind") == NoiseKind.NCCL)["clock"].unique()
    is_timed_by_gpu = np.isin(np.arange(hosts), timed_by_gpu.to_numpy())
    estimates = _adjust_estimates(estimates, orders, observed.doubt, is_timed_by_gpu, findings)
    corrections = _list_whole_corrections(estimates, shifts)
    evidence = Evidence(rows, sent, shifts)
    limit = np.array(
        [np.inf if e.method == UTC else LARGEST_CONTRADICTION + 10 * e.bound for e in estimates]
    )
    evidence, misfits = evidence.drop_misfits(corrections, limit)
    if misfits:
        findings.append(ClockFinding(FindingKind.CONTRADICTED, misfits))
    verdict = own = evidence.judge(corrections)
    # Hosts placed by UTC alone are no evidence against the corrections of the others.
    part = np.array([e.reference for e in estimates])
    if part.any():
        own = evidence.split_by_component(part).judge(corrections)
    findings += _find_unconnected_hosts(estimates, observed)
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
    sure = observed.doubt == 0
    corrected = _list_whole_corrections(estimates, shifts).apply(
        (spans - pivot).T, np.arange(hosts)
    )
    span = float(np.nanmin(corrected)), float(np.nanmax(corrected))
    host_clocks = []
    for e in estimates:
        own, of_reference = shifts[[e.host, e.reference]].tolist()
        seen = span[0] + of_reference, span[1] + of_reference
        clock = _to_host_clock(e, names[e.reference], pivot - own, seen, sure[e.host])
        host_clocks.append(replace(clock, offset_ns=clock.offset_ns + own - of_reference))
    return Alignment(host_clocks, verdict, findings)


def _list_whole_corrections(estimates: list[Estimate], shifts: np.ndarray) -> Corrections:
    """Return the corrections of shifted times to the clocks of the references, which are not
    shifted. shifts: of :func:`solve_clocks`.
    """
    own = list_corrections(estimates)
    return Corrections(own.offset - shifts[[e.reference for e in estimates]], own.drift)


def _solve_network(
    rows: pl.DataFrame, hosts: int, orders: Precedences, findings: list[ClockFinding]
) -> list[Estimate]:
    """Solve the network. Exclude hosts whose clocks would drift implausibly, and hosts whose ends
    contradict the order of events because they scatter more than they show.
    """
    blocks = gather_collective_ends(rows)
    links = make_links(blocks, findings)
    estimates, more = solve_network(blocks, links, hosts)
    for number in range(1 + MOST_CONTRADICTED_HOSTS):
        if number == 0:
            wrong = [one for one in estimates if abs(one.drift) > PLAUSIBLE_DRIFT]
        elif not (wrong := _find_contradicted_host(estimates, orders)):
            break
        for one in wrong:
            kind = FindingKind.UNFIT if number else FindingKind.STEEP
            reason = kind.value.format(one.drift * 1e6)
            findings.append(ClockFinding(kind, one.observations, clock=one.host, reason=reason))
        if wrong:
            left_out = {one.host for one in wrong}
            drop_ends(blocks, sorted(left_out))
            links = [link for link in links if not {link.host, link.reference} & left_out]
            estimates, more = solve_network(blocks, links, hosts)
    findings += more
    return estimates


def _find_contradicted_host(estimates: list[Estimate], orders: Precedences) -> list[Estimate]:
    """Return the host with the largest share of precedences violated beyond the errors; empty if no
    share is large.
    """
    compared, _, beyond = adjust.find_violations(estimates, orders)
    all_of, beyond_of = (
        np.bincount(np.append(orders.before[mask], orders.after[mask]), minlength=len(estimates))
        for mask in (compared, beyond)
    )
    share = beyond_of / np.maximum(all_of, 1)
    # If two contradict each other, the later one: the first is the reference of the others.
    host = len(share) - 1 - int(np.argmax(share[::-1]))
    return [estimates[host]] if share[host] > CONTRADICTED_SHARE else []


def _adjust_estimates(
    estimates: list[Estimate],
    orders: Precedences,
    doubt: np.ndarray,
    is_timed_by_gpu: np.ndarray,
    findings: list[ClockFinding],
) -> list[Estimate]:
    """Return the estimates adjusted to hard bounds.

    doubt: per host, the possible error from calls matched only by order (ns). is_timed_by_gpu:
    hosts with kernels of collectives. findings: a list to which findings are added.
    """
    left_out = {f.clock for f in findings if f.kind == FindingKind.STEEP}
    doubtful = [
        replace(e, method=ORDER, bound=e.bound + float(doubt[e.host]))
        if doubt[e.host] and e.method == ENDS
        else e
        for e in estimates
    ]
    estimates = adjust.place_by_order(doubtful, orders, findings, left_out)
    certain = orders[~((doubt > 0)[orders.before] | (doubt > 0)[orders.after])]
    estimates = adjust.tighten_bounds(estimates, certain, is_timed_by_gpu)
    estimates = adjust.drop_needless_corrections(estimates, orders)
    one_way = (e.host for e in estimates if e.method == adjust.ONE_WAY)
    findings += [ClockFinding(FindingKind.ONE_WAY, clock=host) for host in one_way]
    return estimates


def _find_unconnected_hosts(
    estimates: list[Estimate], observed: Observations
) -> list[ClockFinding]:
    """Return findings about hosts that are not connected to the first host, or only by the order of
    calls.
    """
    findings = []
    for estimate in estimates:
        if estimate.reference == estimate.host and estimate.host:
            others = sum(other.reference == estimate.host for other in estimates) - 1
            reason = FindingKind.APART.value.format(
                "nothing shared with other hosts"
                if estimate.host not in observed.hosts
                else "its calls cannot be paired with those of other hosts"
                if estimate.host in observed.left
                else "its communication with other hosts does not determine its clock"
            )
            if others:
                reason = f"nothing relates this host and {others} others to the first host, so they are placed by UTC"
            findings.append(
                ClockFinding(FindingKind.APART, others, clock=estimate.host, reason=reason)
            )
        elif observed.doubt[estimate.host]:
            findings.append(ClockFinding(FindingKind.IN_ORDER, clock=estimate.host))
    return findings


def _to_host_clock(
    estimate: Estimate, reference: str, pivot: int, span: tuple[float, float], sure: bool
) -> HostClock:
    # A host that is only the reference of others has no known error against the trace's reference.
    is_aligned = (
        estimate.method != UTC
        and np.isfinite(estimate.bound)
        and (estimate.reference != estimate.host or not estimate.host)
    )
    beyond = 0.0
    if np.isfinite(estimate.first):
        beyond = max(estimate.first - span[0], span[1] - estimate.last, 0.0)
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
        bool(sure and estimate.method != adjust.ONE_WAY),
    )


class Evidence(Struct, frozen=True):
    """Observations with which corrections are tested."""

    #: Rows of :func:`nsys2prv.match.gathering.gather_per_host`.
    collectives: pl.DataFrame
    #: Send and receive of each message.
    messages: Precedences
    #: How much later the times are than the hosts' own clocks (ns), by host.
    shifts: np.ndarray

    def judge(self, corrections: Corrections) -> Verdict:
        """Count and measure how often messages and collectives contradict the clocks (an effect
        before its cause), before and after the corrections.
        """
        uncorrected = Corrections(-self.shifts.astype(float), np.zeros_like(corrections.drift))
        held = np.append(self.collectives["held"].to_numpy(), self.messages.held)
        verdict: dict[str, dict[str, dict[str, int]]] = {"used": {}, "held back": {}}
        for when, by in (("before", uncorrected), ("after", corrections)):
            late = np.append(*self._find_violations(by))
            for use, which in (("used", ~held), ("held back", held)):
                checked = late[which & np.isfinite(late)]
                # Times are whole ns; smaller differences come from rounding.
                wrong = checked[checked >= 1]
                verdict[use][when] = {
                    "checked": len(checked),
                    "violated": len(wrong),
                    "largest_ns": round(wrong.max(initial=0)),
                    "sum_ns": round(wrong.sum()),
                }
        return verdict

    def drop_misfits(self, corrections: Corrections, limit: np.ndarray) -> tuple[Evidence, int]:
        """Drop calls that contradict the corrected clocks by more than `limit` (ns, per host),
        because they do not belong together. Return (the rest, number of dropped calls).

        If there are many, the clocks are as likely to be wrong, and all calls are kept.
        """
        hosts, messages = self.collectives, self.messages
        late, received = self._find_violations(corrections)
        wrong = np.unique(hosts["collective"].to_numpy()[late > limit[hosts["clock"].to_numpy()]])
        lost = received > np.maximum(limit[messages.before], limit[messages.after])
        count = len(wrong) + int(lost.sum())
        if not count or count > MISFIT_SHARE * (hosts["collective"].n_unique() + len(messages)):
            return self, 0
        kept = hosts.filter(~pl.col("collective").is_in(wrong))
        return replace(self, collectives=kept, messages=messages[~lost]), count

    def split_by_component(self, part: np.ndarray) -> Evidence:
        """Divide collectives over several components of hosts (groups whose clocks are related)
        into one collective per component. part: component of each host.
        """
        hosts, messages = self.collectives, self.messages
        number = hosts["collective"].to_numpy() * len(part) + part[hosts["clock"].to_numpy()]
        together = part[messages.before] == part[messages.after]
        split = hosts.with_columns(collective=pl.Series(number))
        return replace(self, collectives=split, messages=messages[together])

    def _find_violations(self, corrections: Corrections) -> tuple[np.ndarray, np.ndarray]:
        """Return by how much (ns) each host's first end of a collective precedes the last start on
        another host, and by how much each receive precedes its send.
        """
        sent, received = self.messages.correct(corrections)
        hosts = self.collectives
        clock = hosts["clock"].to_numpy()
        _, collective = factorize(hosts["collective"].to_numpy())
        begin, end = (
            corrections.apply(hosts[name].cast(pl.Float64).fill_null(none).to_numpy(), clock)
            for name, none in (("begin", -np.inf), ("first_end", np.inf))
        )

        def find_last(begins: np.ndarray) -> np.ndarray:
            last = np.full(len(begins), -np.inf)
            np.maximum.at(last, collective, begins)
            return last[collective]

        last = find_last(begin)
        # On the host of the last begin, the last one of the others counts.
        own = begin == last
        second = find_last(np.where(own, -np.inf, begin))
        several = np.bincount(collective, own)[collective] > 1
        return np.where(own & ~several, second, last) - end, sent - received
