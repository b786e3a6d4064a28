"""All hosts' corrections together: weighted least squares over all collectives, with each
collective's own end eliminated.

A host's end of a collective, corrected, is the collective's end plus noise; where the last to come
is, it is later by the block's lateness. Eliminating the collectives' ends keeps what the hosts of
one collective have in common from counting as many independent pairs. The lateness has a prior:
with the last to come always on one host, its offset is as uncertain as that prior; where hosts take
turns the data decide, which is the midpoint between who waited and who came last. Drifts have a
prior too: a span too short to tell a drift leaves it near 0, where cutting an uncertain drift off
would leave an error at the span's ends.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from msgspec import Struct

from nsys2prv.clock.blocks import Block, Link, measure_unsteadiness
from nsys2prv.clock.observations import DRIFT_PRIOR, NOISE, spread_of

SECOND = 1e9
#: Residuals beyond this many standard deviations count less, and beyond REJECT not at all.
HUBER, REJECT = 3.0, 8.0
ROUNDS = 8


class Network(Struct):
    """Corrections of the hosts: corrected = time + offset + drift * time, relative to the pivot.
    Arrays have one element per host.
    """

    #: Offset, ns.
    offset: np.ndarray
    #: Drift, a plain ratio.
    drift: np.ndarray
    #: Reference of each host; itself where nothing connects it.
    reference: np.ndarray
    #: Covariance of (offsets, drifts in ns per s), shape (2 * hosts, 2 * hosts), 0 for references.
    covariance: np.ndarray
    #: Number of blocks between a host and its reference.
    hops: np.ndarray
    #: Spread of a host's residuals, ns; NaN without any.
    spread: np.ndarray
    #: Number of collectives used.
    observations: np.ndarray
    #: First time observed, ns.
    first: np.ndarray
    #: Last time observed, ns.
    last: np.ndarray
    #: Deviation of the host's ends that no line and no average removes, ns.
    unsteady: np.ndarray
    #: Ratio of the noise of each source to its model.
    scale: dict[int, float]

    def sigma(self, host: int, time: float) -> float:
        """Return standard deviation of the host's correction at `time` (ns relative to the pivot),
        ns.
        """
        count, at = len(self.offset), time / SECOND
        c = self.covariance
        variance = (
            c[host, host] + 2 * at * c[host, host + count] + at * at * c[host + count, host + count]
        )
        return float(np.sqrt(max(variance, 0.0)))


def solve(blocks: list[Block], links: list[Link], hosts: int) -> Network:
    """Return corrections from the blocks, starting from the links' lines; the lowest host of what
    is connected is the reference.
    """
    offset, drift, reference = _first(links, hosts)
    scale = {block.source: 1.0 for block in blocks}
    for round_ in range(ROUNDS):
        _weigh(blocks, offset, drift, scale, rescale=round_ == 1)
        normal, right, eliminated = _normal(blocks, offset, drift, scale, reference)
        step = _solve(normal, right, reference)
        offset, drift = offset + step[:hosts], drift + step[hosts:] / SECOND
        for block, (row, top, bottom) in zip(blocks, eliminated, strict=True):
            block.lateness += float((top - row @ step[_params(block.clocks, hosts)]) / bottom)
        if round_ > 2 and np.abs(step[:hosts]).max(initial=0) < 0.1:
            break
    residuals = _weigh(blocks, offset, drift, scale)
    for block in blocks:
        block.weight = (block.weight > 0) / (NOISE[block.source].end * scale[block.source]) ** 2
    covariance = _inverse(_normal(blocks, offset, drift, scale, reference)[0], reference)
    return Network(
        offset,
        drift,
        reference,
        covariance,
        _hops(blocks, reference),
        *_observed(blocks, residuals, hosts),
        measure_unsteadiness(blocks, residuals, scale, hosts),
        scale,
    )


def _first(links: list[Link], hosts: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return corrections along the tree of the most certain links."""
    root = list(range(hosts))

    def find(host: int) -> int:
        while root[host] != host:
            root[host] = root[root[host]]
            host = root[host]
        return host

    tree: list[list[Link]] = [[] for _ in range(hosts)]
    for link in sorted(links, key=lambda link: (link.weight, link.clock, link.to)):
        one, other = find(link.clock), find(link.to)
        if one != other:
            root[one] = other
            tree[link.to].append(link)
            tree[link.clock].append(link.reversed())
    offset, drift, reference = np.zeros(hosts), np.zeros(hosts), np.full(hosts, -1)
    for start in range(hosts):
        if reference[start] >= 0:
            continue
        reference[start] = start
        todo = [start]
        while todo:
            to = todo.pop()
            for link in tree[to]:
                if reference[link.clock] < 0:
                    reference[link.clock] = start
                    offset[link.clock] = link.offset + offset[to] + drift[to] * link.offset
                    drift[link.clock] = link.drift + drift[to] + drift[to] * link.drift
                    todo.append(link.clock)
    return offset, drift, reference


def _weigh(
    blocks: list[Block],
    offset: np.ndarray,
    drift: np.ndarray,
    scale: dict[int, float],
    rescale: bool = False,
) -> list[np.ndarray]:
    """Set the blocks' weights by their residuals, which are returned: as standard deviations of one
    end, in ns.
    """
    residuals = []
    for block in blocks:
        ends = (
            block.end * (1 + drift[block.clocks])
            + offset[block.clocks]
            - block.lateness * block.late
        )
        if block.weight.size:
            weight = block.weight
            common = (ends * weight).sum(axis=1) / np.maximum(weight.sum(axis=1), 1e-300)
            lost = weight.sum(axis=1) == 0
            common[lost] = _middle(ends[lost], block.seen[lost])
        else:
            common = _middle(ends, block.seen)
        count = np.maximum(block.seen.sum(axis=1, keepdims=True), 2)
        residuals.append((ends - common[:, None]) / np.sqrt(1 - 1 / count))
    if rescale:
        for source in scale:
            values = [
                r[b.seen]
                for r, b in zip(residuals, blocks, strict=True)
                if b.source == source and b.seen.any()
            ]
            spread = spread_of(np.concatenate(values)) if values else 0.0
            scale[source] = spread / NOISE[source].end if spread > 1.5 * NOISE[source].end else 1.0
    for block, residual in zip(blocks, residuals, strict=True):
        sigma = NOISE[block.source].end * scale[block.source]
        size = np.abs(residual) / sigma
        shared = block.seen & (size < REJECT)
        shared &= shared.sum(axis=1, keepdims=True) > 1
        block.weight = (
            np.where(shared, np.minimum(1, HUBER / np.maximum(size, HUBER)), 0) / sigma**2
        )
    return residuals


def _middle(ends: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Return median of the ends seen of each collective."""
    ordered = np.sort(np.where(seen, ends, np.inf), axis=1)
    count = np.maximum(seen.sum(axis=1), 1)
    at = np.arange(len(ordered))
    both = (ordered[at, (count - 1) // 2] + ordered[at, count // 2]) / 2
    return np.where(np.isfinite(both), both, 0.0)


def _params(clocks: np.ndarray, hosts: int) -> np.ndarray:
    return np.concatenate([clocks, clocks + hosts])


def _normal(
    blocks: list[Block],
    offset: np.ndarray,
    drift: np.ndarray,
    scale: dict[int, float],
    reference: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, list[tuple[np.ndarray, float, float]]]:
    """Return the normal matrix and right side for a step of (offset, drift in ns per s), and how
    the step determines each block's lateness.
    """
    hosts = len(offset)
    normal, right, eliminated = np.zeros((2 * hosts, 2 * hosts)), np.zeros(2 * hosts), []
    for block in blocks:
        w = block.weight
        total = np.maximum(w.sum(axis=1, keepdims=True), 1e-300)
        ends = (
            block.end * (1 + drift[block.clocks])
            + offset[block.clocks]
            - block.lateness * block.late
        )
        ends = np.where(w > 0, ends, 0.0)
        ends = ends - (w * ends).sum(axis=1, keepdims=True) / total
        tau = block.end / SECOND
        wt, root = w * tau, 1 / np.sqrt(total)
        left = np.concatenate([w * root, wt * root], axis=1)
        n = len(block.clocks)
        matrix = -left.T @ left
        at = np.arange(n)
        matrix[at, at] += w.sum(axis=0)
        matrix[at, at + n] += wt.sum(axis=0)
        matrix[at + n, at] += wt.sum(axis=0)
        matrix[at + n, at + n] += (wt * tau).sum(axis=0)
        side = -np.concatenate([(w * ends).sum(axis=0), (wt * ends).sum(axis=0)])
        late = block.late - (w * block.late).sum(axis=1, keepdims=True) / total
        # The model subtracts the lateness, so its column has the other sign than an offset's.
        row = -np.concatenate([(w * late).sum(axis=0), (wt * late).sum(axis=0)])
        noise = NOISE[block.source]
        prior = noise.late_sigma**-2
        bottom = float((w * late * late).sum() + prior)
        top = float((w * late * ends).sum() - (block.lateness - noise.late) * prior)
        params = _params(block.clocks, hosts)
        normal[np.ix_(params, params)] += matrix - np.outer(row, row) / bottom
        right[params] += side - row * top / bottom
        eliminated.append((row, top, bottom))
    priors = np.where(reference == np.arange(hosts), 0.0, (DRIFT_PRIOR * SECOND) ** -2)
    at = np.arange(hosts, 2 * hosts)
    normal[at, at] += priors
    right[hosts:] -= drift * SECOND * priors
    return normal, right, eliminated


def _free(reference: np.ndarray, normal: np.ndarray) -> np.ndarray:
    """Return the parameters to solve for: not those of references, nor offsets that nothing
    determines any more.
    """
    hosts = len(reference)
    free = reference != np.arange(hosts)
    free &= normal[np.arange(hosts), np.arange(hosts)] > 0
    return np.flatnonzero(np.concatenate([free, free]))


def _solve(normal: np.ndarray, right: np.ndarray, reference: np.ndarray) -> np.ndarray:
    free = _free(reference, normal)
    step = np.zeros(len(right))
    if len(free):
        size = 1 / np.sqrt(normal[free, free])
        step[free] = (
            size
            * np.linalg.lstsq(
                normal[np.ix_(free, free)] * np.outer(size, size), right[free] * size, rcond=1e-13
            )[0]
        )
    return step


def _inverse(normal: np.ndarray, reference: np.ndarray) -> np.ndarray:
    free = _free(reference, normal)
    covariance = np.zeros_like(normal)
    if len(free):
        size = 1 / np.sqrt(normal[free, free])
        inverse = np.linalg.pinv(
            normal[np.ix_(free, free)] * np.outer(size, size), rcond=1e-13, hermitian=True
        )
        covariance[np.ix_(free, free)] = inverse * np.outer(size, size)
    return covariance


def _hops(blocks: list[Block], reference: np.ndarray) -> np.ndarray:
    """Return blocks to pass from each host to its reference."""
    hops = np.where(reference == np.arange(len(reference)), 0, -1)
    members = [block.clocks[(block.weight > 0).any(axis=0)] for block in blocks]
    near: Iterable[int] = range(len(blocks))
    for hop in range(1, len(reference) + 1):
        reached = [at for at in near if (hops[members[at]] == hop - 1).any()]
        if not reached:
            break
        for at in reached:
            new = members[at][hops[members[at]] < 0]
            hops[new] = hop
        near = [at for at in near if at not in set(reached)]
    return hops


def _observed(
    blocks: list[Block], residuals: list[np.ndarray], hosts: int
) -> tuple[np.ndarray, ...]:
    """Return the spread of residuals, observations, first and last of each host."""
    values: list[list[np.ndarray]] = [[] for _ in range(hosts)]
    count = np.zeros(hosts, np.int64)
    first, last = np.full(hosts, np.inf), np.full(hosts, -np.inf)
    for block, residual in zip(blocks, residuals, strict=True):
        for at, clock in enumerate(block.clocks.tolist()):
            used = block.weight[:, at] > 0
            if used.any():
                values[clock].append(residual[used, at])
                count[clock] += int(used.sum())
                first[clock] = min(first[clock], block.end[used, at].min())
                last[clock] = max(last[clock], block.end[used, at].max())
    spread = np.array([spread_of(np.concatenate(v)) if v else np.nan for v in values])
    return spread, count, first, last
