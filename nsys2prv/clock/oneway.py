"""Hosts that others bind in one direction only: moved just as far as cause and effect demand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from nsys2prv.clock.adjust import Estimate, corrected
from nsys2prv.clock.hosts import Precedences

ONE_WAY = "causality, one way"
#: Fewer bounds than this may be of calls that do not belong together.
FEWEST = 8
#: No UTC is wrong by more than this (ns): what demands more is wrong data.
LARGEST = 1_000_000_000.0


def one_way(estimates: list[Estimate], orders: Precedences, left_out: frozenset[int] = frozenset()) -> list[Estimate]:
    """The estimates, with parts moved that are references of their own and violate causality in one direction against those placed
    before them, from the first host's part on. How far they are off beyond that is not known: their bound is infinite.

    left_out: hosts whose clocks are not to be believed.
    """
    part = np.array([estimate.reference for estimate in estimates])
    begin, end = corrected(estimates, orders)
    early = begin - end
    before, after = part[orders.before], part[orders.after]
    met, counts = np.unique(np.stack([before, after], axis=1), axis=0, return_counts=True)
    pairs = {(b, a): float(early[(before == b) & (after == a)].max()) for (b, a), count in zip(met.tolist(), counts.tolist(), strict=True)
             if b != a and count >= FEWEST and not left_out & {b, a}}
    shift = {int(part[0]): 0.0}
    while True:
        near = sorted({q for pair in pairs for p, q in (pair, pair[::-1]) if p in shift and q not in shift})
        if not near:
            break
        q = near[0]
        later = max((need + shift[p] for (p, r), need in pairs.items() if r == q and p in shift), default=0.0)
        earlier = max((need - shift[p] for (r, p), need in pairs.items() if r == q and p in shift), default=0.0)
        moved = 0.0 if min(later, earlier) > 0 else max(later, 0.0) - max(earlier, 0.0)
        shift[q] = moved if abs(moved) <= LARGEST else 0.0
    return [replace(estimate, reference=int(part[0]), method=ONE_WAY, offset=estimate.offset + shift[estimate.reference], bound=np.inf)
            if shift.get(estimate.reference) else estimate for estimate in estimates]
