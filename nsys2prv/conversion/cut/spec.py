"""Specification of a cut of a job's runs, and the account of what was cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from msgspec import Struct, field

from nsys2prv._util.text import duration_text
from nsys2prv.clock.maps import ClockMap
from nsys2prv.events.reasons import Reason
from nsys2prv.store.runs import Run


def shorter(least: int) -> str:
    """Return the reason of ranges shorter than so many ns."""
    return Reason.TOO_SHORT.of(duration_text(least))


def thinned(rate: int) -> str:
    """Return the reason of samples beyond so many a second."""
    return Reason.ABOVE_SAMPLE_RATE.of(f"{rate:,}")


class Window(Struct, frozen=True):
    """Window first <= time < last (ns of the whole trace)."""

    first: int
    last: int
    #: True if `last` is the trace's own end, which belongs to the window.
    closed: bool
    #: Time that becomes 0.
    origin: int = 0

    def has(self, times: np.ndarray) -> np.ndarray:
        """Return a mask (bool) of the times that lie in it."""
        return (times >= self.first) & (
            (times <= self.last) if self.closed else (times < self.last)
        )


class CutSpec(Struct, frozen=True):
    """Specification of a cut."""

    window: Window
    #: Layouts and kinds of lines that are left out.
    away: frozenset[str] = frozenset()
    #: Layout -> bits of the fields that its events may keep (all elsewhere).
    present: Mapping[str, int] = field(default_factory=dict)
    #: Layout -> ns; shorter ranges of it are left out.
    least: Mapping[str, int] = field(default_factory=dict)
    #: Layout of counters -> greatest number of samples per second.
    rates: Mapping[str, int] = field(default_factory=dict)


class CutTask(Struct, frozen=True):
    """Runs of one report to cut."""

    runs: tuple[Run, ...]
    #: Map to the time of the whole trace.
    clock: ClockMap
    #: Length of the whole trace, ns.
    duration: int
    #: Per source: row of each local object, -1 for one that is left out.
    threads: Mapping[int, np.ndarray]
    #: Specification of the cut.
    orders: CutSpec
    #: File for what stays.
    spill: Path


class CutRuns(Struct):
    """Runs after a cut, in the time of the cut trace (report TRACE)."""

    runs: list[Run] = field(default_factory=list)
    #: Records and samples by layout, lines by kind.
    written: Counter[str] = field(default_factory=Counter)
    #: Records and lines not written, by (layout or kind of lines, reason).
    left_out: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: Ranges that begin before the cut or end after it, by layout.
    clipped: Counter[str] = field(default_factory=Counter)

    def leave_out(self, name: str, reason: str, count: int) -> None:
        if count:
            self.left_out[name, reason] += int(count)
