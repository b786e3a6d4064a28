"""Fit the corrections of all hosts together by weighted least squares over all collectives.

A host's corrected end of a collective is the collective's end plus noise. On the host with the last
member to arrive, it is later by the block's lateness. The collectives' own ends are eliminated, so
that a common error of several hosts does not count as many independent pairs. The lateness has a
prior. If one host always arrives last, its offset is as uncertain as this prior. If hosts take
turns, the data decide, which gives the midpoint between waiting and last hosts. Drifts also have a
prior: over a span too short to determine a drift, it stays near 0. Ignoring an uncertain drift
would leave an error at the ends of the span.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from msgspec import Struct, field
from msgspec.structs import replace

from nsys2prv._util.columns import factorize, group_rows
from nsys2prv.clock import (
    DRIFT_PRIOR,
    ENOUGH_CALLS,
    NOISE,
    TO_SIGMA,
    ClockFinding,
    Corrections,
    FindingKind,
    Role,
    estimate_spread,
    fit_line,
    take_median,
)

#: Methods that find corrections.
UTC, REFERENCE, ENDS = "UTC", "reference", "ends of collectives"
#: Standard deviations that a bound covers.
SIGMAS_IN_BOUND = 3.0
#: Hosts tried as the one that the others of their group are compared with.
REFERENCES = 3
#: Nanoseconds.
SECOND = 1e9
#: Residuals beyond this many standard deviations count less, and beyond REJECT_SIGMAS not at all.
HUBER_SIGMAS, REJECT_SIGMAS = 3.0, 8.0
#: Unsteadiness that is worth a word, ns.
NOTED_UNSTEADINESS = 5_000.0
#: Steps of the fit, at most.
ROUNDS = 8
#: Scatter of up to this multiple of the modelled noise is usual.
USUAL_SCATTER = 1.5
#: Median of ends that are late at random (exponentially distributed), as a multiple of the scatter of
#: their residuals.
LATE_MIDDLE = 1.25
#: The diagonal of the equations: so much above 1 that they can be solved where nothing determines a host.
UNIT = 1 + 1e-12
#: A host's own matrix can be inverted if its determinant is at least this share of the product of its
#: diagonal.
LEAST_REST = 1e-14
#: Parts of a host's span whose residuals are compared, and how many ends each needs.
PARTS_OF_SPAN, ENOUGH_ENDS = 8, 16
#: A part is off the line if its median differs from it by more than this many standard deviations of a
#: median, and by more than this many ns.
BEND_SIGMAS, LEAST_BEND = 5.0, 5_000.0


class Estimate(Struct, frozen=True):
    """Correction of a host's clock while it is computed: corrected = time + offset + drift * time,
    in ns relative to the pivot (a time in the middle) and to another host, the reference.
    """

    #: Index of the host.
    host: int
    #: Host whose clock it is corrected to.
    reference: int
    #: How it was found.
    method: str
    #: ns at the pivot.
    offset: float = 0.0
    #: ns per ns.
    drift: float = 0.0
    #: Largest error against the reference at any instant of first..last, where something was
    #: observed, ns.
    bound: float = 0.0
    #: Growth of the error for each ns before and after that.
    rate: float = 0.0
    #: Number of observations.
    observations: int = 0
    #: Standard deviation of the residuals, ns.
    spread: float = float("nan")
    #: Corrected time of the first observation.
    first: float = float("nan")
    #: Corrected time of the last observation.
    last: float = float("nan")

    def reverse(self) -> Estimate:
        """Return the reverse correction: from the clock of the reference to the clock of this host."""
        rate = 1 + self.drift
        offset, drift = -self.offset / rate, -self.drift / rate
        return replace(self, host=self.reference, reference=self.host, offset=offset, drift=drift)

    def compose(self, onward: Estimate) -> Estimate:
        """Return this correction followed by `onward`, the correction of its reference relative to
        another host.
        """
        first, last = max(self.first, onward.first), min(self.last, onward.last)
        bound, rate = self.bound + onward.bound, self.rate + onward.rate
        if first > last:
            bound, first, last = bound + rate * (first - last), last, first
        return replace(
            self,
            reference=onward.reference,
            offset=self.offset + onward.offset + onward.drift * self.offset,
            drift=self.drift + onward.drift + onward.drift * self.drift,
            bound=bound,
            rate=rate,
            first=first,
            last=last,
        )


def list_corrections(estimates: Sequence[Estimate]) -> Corrections:
    """Return the corrections of all hosts as arrays."""
    lines = np.array([(one.offset, one.drift) for one in estimates]).reshape(-1, 2)
    return Corrections(*lines.T)


class CollectiveEnds(Struct):
    """End times of the collectives of a group, as arrays by collective and host."""

    #: Key of NOISE.
    noise_kind: int
    #: The hosts.
    clocks: np.ndarray
    #: Mean end of each host's members, float ns relative to the pivot: (collectives, hosts).
    end: np.ndarray
    #: Whether the last to come is there: (collectives, hosts).
    late: np.ndarray
    #: Whether the host has the collective: (collectives, hosts).
    seen: np.ndarray
    #: How much later the last to come ends, as estimated (ns).
    lateness: float = 0.0
    #: Weight of each end, 1 / ns²: (collectives, hosts); empty before the first estimate.
    weight: np.ndarray = field(default_factory=lambda: np.empty(0))

    def correct(self, corrections: Corrections) -> np.ndarray:
        """Return the ends on corrected clocks (float ns), reduced by the lateness of the host that
        arrives last.
        """
        return corrections.apply(self.end, self.clocks) - self.lateness * self.late


def gather_collective_ends(hosts: pl.DataFrame) -> list[CollectiveEnds]:
    """Return the ends of synchronizing collectives, one block per group, without those that are
    held back as a test. hosts: rows from :func:`nsys2prv.match.gathering.gather_per_host`.
    """
    collectives = hosts.filter((pl.col("role") == Role.ALL) & ~pl.col("held"))
    blocks = []
    for part in collectives.partition_by("key", maintain_order=True):
        numbers, row = factorize(part["collective"].to_numpy())
        clocks, column = factorize(part["clock"].to_numpy())
        end, late, seen = np.zeros((3, len(numbers), len(clocks)))
        at = row, column
        end[at], late[at], seen[at] = part["end"].to_numpy(), part["late"].to_numpy(), True
        block = CollectiveEnds(
            part["noise_kind"][0], clocks.astype(np.int64), end, late, seen.astype(bool)
        )
        blocks.append(block)
    return blocks


def make_links(blocks: list[CollectiveEnds], findings: list[ClockFinding]) -> list[Estimate]:
    """Fit a line between the clock of each host in a block and one of its hosts. Return these lines
    as estimates.

    A host that fits no line is removed from its block. A host that fits less than half of its
    collectives is removed from all blocks, because they may fit by chance. findings: a list to
    which findings are added.
    """
    links = []
    hosts = 1 + max((int(block.clocks.max()) for block in blocks), default=-1)
    fitting, unfit = np.zeros((2, hosts), np.int64)
    for block in blocks:
        best, alone = _link_to_centre(block)
        links += best
        for at in alone:
            count, clock = int(block.seen[:, at].sum()), int(block.clocks[at])
            findings.append(ClockFinding(FindingKind.UNFIT, count, clock=clock))
            unfit[clock] += count
        block.seen[:, alone] = False
        fitting[block.clocks] += block.seen.sum(axis=0)
    left_out = np.flatnonzero(unfit > fitting)
    drop_ends(blocks, left_out)
    return [link for link in links if not {link.host, link.reference} & {*left_out.tolist()}]


def drop_ends(blocks: list[CollectiveEnds], hosts: Sequence[int]) -> None:
    """Remove some hosts from all blocks of collectives, so that the next solution does not use
    them.
    """
    for block in blocks:
        block.seen &= ~np.isin(block.clocks, hosts)
        block.weight, block.lateness = np.empty(0), 0.0


def _link_to_centre(block: CollectiveEnds) -> tuple[list[Estimate], list[int]]:
    """Return the lines of the hosts relative to the host that fits most others, and the indices of
    the hosts that do not fit.
    """
    noise = NOISE[block.noise_kind]
    seen = block.seen.sum(axis=0)
    best: tuple[list[Estimate], list[int]] = [], []
    for tried, hub in enumerate(np.argsort(-seen, kind="stable")[:REFERENCES].tolist()):
        links, alone = [], []
        for at in range(len(block.clocks)):
            both = block.seen[:, at] & block.seen[:, hub]
            if at == hub or not both.any():
                continue
            times = block.end[both, at]
            offset, drift, spread = fit_line(times, block.end[both, hub] - times)
            misfit = np.abs(block.end[both, hub] - times * (1 + drift) - offset).max()
            # The spread is of those in the middle: a few may fit by chance.
            few = len(times) < ENOUGH_CALLS and misfit > max(10 * spread, noise.misfit / 4)
            if few or spread > noise.misfit:
                alone.append(at)
                continue
            sigma = float(max(spread, noise.end) / np.sqrt(both.sum()))
            host, reference = block.clocks[[at, hub]].tolist()
            links.append(Estimate(host, reference, ENDS, offset, drift, sigma))
        if not tried or len(links) > len(best[0]):
            best = links, alone if links else [*alone, hub]
        if len(links) >= len(alone):
            break
    return best


def solve_network(
    blocks: list[CollectiveEnds], links: list[Estimate], hosts: int
) -> tuple[list[Estimate], list[ClockFinding]]:
    """Compute the corrections of all hosts from the ends of collectives alone, by least squares.
    Return them, with standard deviations as bounds, and findings. links: lines to start from.
    hosts: their number.

    In each connected part, the host with the lowest number is the reference. A host without common
    collectives is its own reference. Hosts whose times are too far apart to be computed with are
    left out, with a finding.
    """
    try:
        return _solve_network(blocks, links, hosts)
    except _UnsolvableError as error:
        left_out = error.hosts
    counts = [
        sum(int(block.seen[:, block.clocks == host].sum()) for block in blocks) for host in left_out
    ]
    drop_ends(blocks, left_out)
    links = [link for link in links if not {link.host, link.reference} & {*left_out}]
    estimates, findings = solve_network(blocks, links, hosts)
    unfit = [
        ClockFinding(FindingKind.UNFIT, count, clock=host)
        for host, count in zip(left_out, counts, strict=True)
    ]
    return estimates, [*unfit, *findings]


def _solve_network(
    blocks: list[CollectiveEnds], links: list[Estimate], hosts: int
) -> tuple[list[Estimate], list[ClockFinding]]:
    """Compute what :func:`solve_network` returns. Raise _UnsolvableError if hosts have no solution."""
    start = _start_from_tree(links, hosts)
    fit = _Fit(
        blocks,
        list_corrections(start),
        np.array([one.reference for one in start]),
        {block.noise_kind: 1.0 for block in blocks},
    )
    for round_ in range(ROUNDS):
        fit.set_weights(rescale=round_ == 1)
        step = fit.take_step()
        if round_ > 2 and np.abs(step).max(initial=0) < 0.1:
            break
    residuals = fit.set_weights()
    for block in blocks:
        block.weight = (block.weight > 0) / fit.find_noise(block) ** 2
    observed = _observe_hosts(fit, residuals)
    findings = [
        ClockFinding(FindingKind.NOISY, round(times), reason=FindingKind.NOISY.value.format(times))
        for _, times in sorted(fit.scale.items())
        if times > 1
    ]
    findings += [
        ClockFinding(FindingKind.UNSTEADY, round(more), clock=host)
        for host, more in enumerate(observed[-1].tolist())
        if more > NOTED_UNSTEADINESS
    ]
    return _make_estimates(fit, observed), findings


def _make_estimates(fit: _Fit, observed: tuple[np.ndarray, ...]) -> list[Estimate]:
    """Return the corrections of a fit. observed: from :func:`_observe_hosts`."""
    spread, count, first, last, unsteady = observed
    hosts, blocks = len(fit.reference), fit.blocks
    floor = np.full(hosts, max(noise.floor for noise in NOISE.values()))
    for block in blocks:
        seen = block.clocks[(block.weight > 0).any(axis=0)]
        floor[seen] = np.minimum(floor[seen], NOISE[block.noise_kind].floor)
    covariance = fit.find_covariance()
    hops = _count_hops(blocks, fit.reference)
    estimates = []
    for host, (seen, own) in enumerate(zip(count.tolist(), fit.reference.tolist(), strict=True)):
        more = {"observations": seen, "spread": float(spread[host])}
        if seen:
            times = fit.corrections.apply(np.array([first[host], last[host]]), host)
            more |= dict(zip(("first", "last"), times.tolist(), strict=True))
        if hops[host] < 1:
            estimates.append(Estimate(host, host, REFERENCE if seen else UTC, **more))
            continue
        times = np.array([first[host], last[host]])
        ends = np.stack([np.ones(2), times / SECOND], axis=1)
        sigma = np.sqrt(np.einsum("ei,ij,ej->e", ends, covariance[host], ends).clip(0)).max()
        bound = floor[host] * np.sqrt(hops[host]) + SIGMAS_IN_BOUND * sigma
        estimates.append(
            Estimate(
                host,
                own,
                ENDS,
                float(fit.corrections.offset[host]),
                float(fit.corrections.drift[host]),
                float(bound + unsteady[host] + unsteady[own]),
                SIGMAS_IN_BOUND * max(float(covariance[host, 1, 1]), 0.0) ** 0.5 / SECOND,
                **more,
            )
        )
    return estimates


def _start_from_tree(links: list[Estimate], hosts: int) -> list[Estimate]:
    """Return initial corrections along the tree of the most certain links, relative to the lowest
    host of each tree.
    """
    root = np.arange(hosts)
    tree: list[list[Estimate]] = [[] for _ in range(hosts)]
    for link in sorted(links, key=lambda link: (link.bound, link.host, link.reference)):
        if root[link.host] != root[link.reference]:
            root[root == root[link.host]] = root[link.reference]
            tree[link.reference].append(link)
            tree[link.host].append(link.reverse())
    placed: dict[int, Estimate] = {}
    for start in range(hosts):
        todo = [] if start in placed else [Estimate(start, start, REFERENCE)]
        while todo:
            here = todo.pop()
            placed[here.host] = here
            todo += [link.compose(here) for link in tree[here.host] if link.host not in placed]
    return [placed[host] for host in range(hosts)]


class _UnsolvableError(Exception):
    """The equations of some hosts have no solution."""

    def __init__(self, hosts: list[int]) -> None:
        super().__init__(hosts)
        self.hosts = hosts


class _Fit(Struct):
    """A least-squares fit in progress."""

    #: The ends; their weights and lateness are estimated too.
    blocks: list[CollectiveEnds]
    #: Corrections as estimated so far.
    corrections: Corrections
    #: Reference of each host.
    reference: np.ndarray
    #: Ratio of the noise of each kind to its model.
    scale: dict[int, float]

    def find_noise(self, block: CollectiveEnds) -> float:
        """Return the standard deviation of one end (ns)."""
        return NOISE[block.noise_kind].end * self.scale[block.noise_kind]

    def set_weights(self, rescale: bool = False) -> list[np.ndarray]:
        """Set the weights of the blocks from their residuals, and return the residuals as standard
        deviations of one end (ns).
        """
        residuals = []
        for block in self.blocks:
            ends = block.correct(self.corrections)
            if block.weight.size:
                weight = block.weight
                common = (ends * weight).sum(axis=1) / np.maximum(weight.sum(axis=1), 1e-300)
                lost = weight.sum(axis=1) == 0
                common[lost] = _find_common_ends(ends[lost], block.seen[lost])
            else:
                common = _find_common_ends(ends, block.seen)
            count = np.maximum(block.seen.sum(axis=1, keepdims=True), 2)
            residuals.append((ends - common[:, None]) / np.sqrt(1 - 1 / count))
        if rescale:
            for noise_kind in self.scale:
                values = np.concatenate(
                    [
                        residual[block.seen]
                        for residual, block in zip(residuals, self.blocks, strict=True)
                        if block.noise_kind == noise_kind
                    ]
                )
                times = estimate_spread(values) / NOISE[noise_kind].end if len(values) else 1.0
                self.scale[noise_kind] = times if times > USUAL_SCATTER else 1.0
        for block, residual in zip(self.blocks, residuals, strict=True):
            sigma = self.find_noise(block)
            size = np.abs(residual) / sigma
            shared = block.seen & (size < REJECT_SIGMAS)
            shared &= shared.sum(axis=1, keepdims=True) > 1
            block.weight = (
                np.where(shared, np.minimum(1, HUBER_SIGMAS / np.maximum(size, HUBER_SIGMAS)), 0)
                / sigma**2
            )
        return residuals

    def take_step(self) -> np.ndarray:
        """Improve the corrections and the lateness of each block by one step; return the step of
        the offsets (ns).
        """
        root, matrix, right, lateness = self.make_normal_equations()
        step = np.linalg.solve(matrix, np.einsum("hij,hj->hi", root, right).ravel())
        step = np.einsum("hji,hj->hi", root, step.reshape(-1, 2))
        self.corrections = Corrections(
            self.corrections.offset + step[:, 0], self.corrections.drift + step[:, 1] / SECOND
        )
        for block, (row, top, bottom) in zip(self.blocks, lateness, strict=True):
            block.lateness += float((top - (row * step[block.clocks]).sum()) / bottom)
        return step[:, 0]

    def find_covariance(self) -> np.ndarray:
        """Return the covariance of each host's step, shape (hosts, 2, 2); 0 for fixed hosts."""
        root, matrix, *_ = self.make_normal_equations()
        hosts = np.arange(len(root))
        own = np.linalg.inv(matrix).reshape(len(hosts), 2, -1, 2)[hosts, :, hosts]
        return np.einsum("hji,hjk,hkl->hil", root, own, root)

    def make_normal_equations(
        self,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[tuple[np.ndarray, float, float]]]:
        """Return the normal equations for a step of (offset in ns, drift in ns per s) per host,
        after the collectives' ends and the lateness are eliminated.

        Results: the root of the inverse of each host's own matrix, shape (hosts, 2, 2), 0 for fixed
        hosts; the matrix of all hosts, in units in which each host's own matrix is 1, minus the
        products of terms shared with eliminated variables; the right side, shape (hosts, 2); and
        how the step determines the lateness of each block. Raise _UnsolvableError for hosts whose
        own matrix cannot be inverted.
        """
        hosts = np.arange(len(self.reference))
        own, right = np.zeros((len(hosts), 2, 2)), np.zeros((len(hosts), 2))
        shared, lateness = [], []
        for block in self.blocks:
            w = block.weight
            total = np.maximum(w.sum(axis=1, keepdims=True), 1e-300)
            ends = np.where(w > 0, block.correct(self.corrections), 0.0)
            ends = ends - (w * ends).sum(axis=1, keepdims=True) / total
            late = block.late - (w * block.late).sum(axis=1, keepdims=True) / total
            tau = block.end / SECOND
            wt = w * tau
            weights = np.stack([w, wt], axis=2)
            # The model subtracts the lateness, so its column has the other sign than an offset's.
            row = -(weights * late[:, :, None]).sum(axis=0)
            noise = NOISE[block.noise_kind]
            prior = noise.late_sigma**-2
            bottom = float((w * late * late).sum() + prior)
            top = float((w * late * ends).sum() - (block.lateness - noise.late) * prior)
            mixed = wt.sum(axis=0)
            own[block.clocks] += np.stack(
                [np.stack([w.sum(axis=0), mixed]), np.stack([mixed, (wt * tau).sum(axis=0)])]
            ).transpose(2, 0, 1)
            right[block.clocks] -= (weights * ends[:, :, None]).sum(axis=0) + row * top / bottom
            parts = [weights / np.sqrt(total)[:, :, None], row[None] / bottom**0.5]
            shared.append((block.clocks, np.concatenate(parts)))
            lateness.append((row, top, bottom))
        # Not of references, nor where nothing determines the offset any more.
        free = (self.reference != hosts) & (own[:, 0, 0] > 0)
        prior = (DRIFT_PRIOR * SECOND) ** -2
        own[:, 1, 1] += prior
        right[:, 1] -= self.corrections.drift * SECOND * prior
        own[~free] = np.eye(2)
        # Rounding may leave nothing of the determinant.
        rest = 1 - own[:, 0, 1] ** 2 / (own[:, 0, 0] * own[:, 1, 1])
        if singular := np.flatnonzero(rest < LEAST_REST).tolist():
            raise _UnsolvableError(singular)
        root = np.linalg.inv(np.linalg.cholesky(own)) * free[:, None, None]
        matrix = np.eye(right.size) * UNIT
        for clocks, part in shared:
            at = (2 * clocks[:, None] + [0, 1]).ravel()
            common = np.einsum("ehj,hij->ehi", part, root[clocks]).reshape(len(part), -1)
            matrix[np.ix_(at, at)] -= common.T @ common
        return root, matrix, right, lateness


def _find_common_ends(ends: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Return the median end of each collective, or 0 without ends."""
    return np.nan_to_num(take_median(np.where(seen, ends, np.nan), 1))


def _count_hops(blocks: list[CollectiveEnds], reference: np.ndarray) -> np.ndarray:
    """Return the number of blocks on the way from each host to its reference."""
    hops = np.where(reference == np.arange(len(reference)), 0, -1)
    members = [block.clocks[(block.weight > 0).any(axis=0)] for block in blocks]
    for hop in range(1, len(reference) + 1):
        near = [clocks for clocks in members if (hops[clocks] == hop - 1).any()]
        if not near:
            break
        for clocks in near:
            hops[clocks[hops[clocks] < 0]] = hop
    return hops


def _observe_hosts(fit: _Fit, residuals: list[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Return for each host: the spread of the residuals of its used ends, their number, and their
    first and last time; and the unsteadiness of all its ends (ns).

    Unsteadiness is unusual scatter, plus the distance of whole parts of the span from the line.
    Ends with more scatter are late more often than early, which shifts their middle by as much.
    Parts off the line show a clock with a changing rate, for example if NTP adjusts it. residuals:
    of each block.
    """
    hosts = len(fit.reference)
    spread, count, unsteady = np.full(hosts, np.nan), np.zeros(hosts, np.int64), np.zeros(hosts)
    first, last = np.full(hosts, np.inf), np.full(hosts, -np.inf)
    ends = [
        np.stack(
            [
                np.broadcast_to(block.clocks, block.end.shape),
                block.end,
                residual,
                block.weight > 0,
                # Ends that are farther off do not belong to this collective.
                block.seen & (np.abs(residual) < NOISE[block.noise_kind].misfit),
                np.full(block.end.shape, USUAL_SCATTER * fit.find_noise(block)),
            ]
        ).reshape(6, -1)
        for block, residual in zip(fit.blocks, residuals, strict=True)
    ]
    table = np.concatenate([np.empty((6, 0)), *ends], axis=1)
    for host, rows in group_rows(table[0].astype(np.int64)):
        _, time, residual, used, sane, usual = table[:, rows]
        if used.any():
            times = time[used > 0]
            spread[host], count[host] = estimate_spread(residual[used > 0]), len(times)
            first[host], last[host] = times.min(), times.max()
        if sane.sum() >= ENOUGH_ENDS:
            time, residual = time[sane > 0], residual[sane > 0]
            scatter = estimate_spread(residual)
            unsteady[host] = LATE_MIDDLE * scatter if scatter > usual.max() else 0.0
            unsteady[host] += _find_bend(time, residual)
    return spread, count, first, last, unsteady


def _find_bend(times: np.ndarray, values: np.ndarray) -> float:
    """Return the largest distance of a part's median from 0 that chance does not explain."""
    parts = min(PARTS_OF_SPAN, len(times) // ENOUGH_ENDS)
    if parts < 3:
        return 0.0
    largest = 0.0
    for part in np.array_split(values[np.argsort(times, kind="stable")], parts):
        middle = float(np.median(part))
        chance = 1.2533 * TO_SIGMA * float(np.median(np.abs(part - middle))) / len(part) ** 0.5
        if abs(middle) > max(BEND_SIGMAS * chance, LEAST_BEND):
            largest = max(largest, abs(middle))
    return largest
