"""What is left of a host's ends of collectives when its line is taken off, and no number of observations averages away."""

from __future__ import annotations

import numpy as np

from nsys2prv.clock.blocks import Block
from nsys2prv.clock.observations import NOISE
from nsys2prv.clock.robust import TO_SIGMA, spread_of

#: Scatter of up to this multiple of the source's noise is usual.
USUAL = 1.5
#: Middle of ends that are late by chance alone (exponentially), as a multiple of the scatter that their residuals show.
SKEWED = 1.25
#: Parts of a host's span whose residuals are compared, and how many ends each needs.
PARTS, ENOUGH = 8, 16
#: A part lies off the line if its median does by so many standard deviations of a median, and by more than this (ns).
SIGNIFICANT, NOTICED = 5.0, 5_000.0


def unsteady(blocks: list[Block], residuals: list[np.ndarray], scale: dict[int, float], hosts: int) -> np.ndarray:
    """By host, ns: how much its ends scatter, if more than is usual, and how far whole parts of its span lie off its line.

    Ends that scatter more are late more often than early, which moves their middle by as much as they scatter. Parts that lie off
    the line show a clock whose rate changes, as when NTP steers it.
    """
    times: list[list[np.ndarray]] = [[] for _ in range(hosts)]
    values: list[list[np.ndarray]] = [[] for _ in range(hosts)]
    usual = np.zeros(hosts)
    for block, residual in zip(blocks, residuals, strict=True):
        for at, clock in enumerate(block.clocks.tolist()):
            seen = block.seen[:, at]
            # Ends that are beyond all reason are not this collective's.
            seen = seen & (np.abs(residual[:, at]) < NOISE[block.source].misfit)
            times[clock].append(block.end[seen, at])
            values[clock].append(residual[seen, at])
            usual[clock] = max(usual[clock], USUAL * NOISE[block.source].end * scale[block.source])
    found = np.zeros(hosts)
    for host in range(hosts):
        value = np.concatenate(values[host]) if values[host] else np.empty(0)
        if len(value) >= ENOUGH:
            spread = spread_of(value)
            found[host] = (SKEWED * spread if spread > usual[host] else 0.0) + _bend(np.concatenate(times[host]), value)
    return found


def _bend(times: np.ndarray, values: np.ndarray) -> float:
    """The largest distance of a part's median from 0, of those that are no chance."""
    parts = min(PARTS, len(times) // ENOUGH)
    if parts < 3:
        return 0.0
    largest = 0.0
    for part in np.array_split(values[np.argsort(times, kind="stable")], parts):
        middle = float(np.median(part))
        chance = 1.2533 * TO_SIGMA * float(np.median(np.abs(part - middle))) / len(part) ** 0.5
        if abs(middle) > max(SIGNIFICANT * chance, NOTICED):
            largest = max(largest, abs(middle))
    return largest
