"""Where the records of runs stand in trace time."""

from __future__ import annotations

import numpy as np

from nsys2prv.clock.maps import Clock
from nsys2prv.columns import OPEN


def begins(records: np.ndarray, clock: Clock) -> np.ndarray:
    """Trace times (ns) of begin records."""
    return begins_of(records["time"], records["end"], clock)


def begins_of(begin: np.ndarray, end: np.ndarray, clock: Clock) -> np.ndarray:
    """Trace times (ns) at which ranges begin, by their local times.

    A clock that is slowed down may leave nothing of a range of 1 ns, which would then end before it begins: it begins 1 ns earlier.
    """
    times = clock.to_global(begin)
    if clock.slack:
        closed = end != OPEN
        times -= closed & (clock.to_global(np.where(closed, end, 0)) <= times) & (times > 0)
    return times


def ends(records: np.ndarray, clock: Clock, duration: int) -> np.ndarray:
    """Trace times (ns) at which the ranges of begin records end: those without an end, with the trace."""
    return moments(records["end"], clock, duration)


def moments(times: np.ndarray, clock: Clock, opened: int) -> np.ndarray:
    """Trace times (ns) of local ones; `opened` for those that are OPEN."""
    lasting = times == OPEN
    return np.where(lasting, opened, clock.to_global(np.where(lasting, 0, times))) if lasting.any() else clock.to_global(times)
