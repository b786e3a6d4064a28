"""Hosts whose own clocks nothing speaks against stay where they are: clocks kept together by hardware agree better than any estimate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from nsys2prv.clock.adjust import Estimate
from nsys2prv.clock.hosts import Precedences

CONFIRMED = "UTC, confirmed"
#: A correction larger than this (ns) is made though its error might be as large.
LARGEST = 10_000.0


def unmoved(estimates: list[Estimate], orders: Precedences) -> list[Estimate]:
    """The estimates, with 0 for hosts whose correction is within its own error and whose placed times violate no causality."""
    late = orders.begin > orders.end
    contradicted = np.union1d(orders.before[late], orders.after[late])
    result = []
    for estimate in estimates:
        ends = np.array([estimate.first, estimate.last])
        moved = float(np.abs(estimate.offset + estimate.drift * np.where(np.isfinite(ends), ends, 0.0)).max())
        if estimate.reference != estimate.host and moved <= min(estimate.bound, LARGEST) and estimate.host not in contradicted:
            estimate = replace(estimate, method=CONFIRMED, offset=0.0, drift=0.0, bound=estimate.bound + moved,
                               rate=estimate.rate + abs(estimate.drift))
        result.append(estimate)
    return result
