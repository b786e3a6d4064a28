"""What a report lacks of what the job did: rows that get lost, and all beyond a cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .options import Options

if TYPE_CHECKING:
    from .cluster import Ints
    from .rows import Report

Bools = NDArray[np.bool_]

_LONG_AGO, _NEVER = -(1 << 62), 1 << 62
_OPEN_TABLE = "NVTX_EVENTS"
"""Ranges not closed at the capture's end have rows, without an end; API calls and GPU work have none."""


class Part(str, Enum):
    """Rows a collective leaves in a report."""

    RANGE = "range"  # NCCL's NVTX ranges
    CALL = "call"  # of the CUDA API, which launched the kernel
    KERNEL = "kernel"
    MPI = "mpi"


@dataclass
class Missing:
    """What one report lacks: rows that begin before ``first`` or end after ``last`` (local ns), and of the runs being
    written those in ``lost`` (by part; axes run, operation).
    """

    first: int = _LONG_AGO
    last: int = _NEVER
    lost: dict[Part, Bools] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether the capture has its begin."""
        return self.first == _LONG_AGO

    def of(self, part: Part, operations: Ints) -> Bools | None:
        """Which rows of operations get lost (-1: belongs to none); axes (run, row); None for no row at all."""
        lost = self.lost.get(part)
        return None if lost is None or not len(operations) else lost[:, operations] & (operations >= 0)

    def kept(self, table: str, begin: Ints, end: Ints | None, lost: Bools | None = None) -> Bools | None:
        """Which rows the report has; None for all."""
        if lost is None and self.whole and self.last == _NEVER:
            return None
        until = begin if end is None or table == _OPEN_TABLE else end
        kept: Bools = (begin >= self.first) & (until <= self.last)
        return kept if lost is None else kept & ~lost

    def closed(self, table: str, end: Ints | None) -> Bools | None:
        """Which rows have an end; None for all."""
        if end is None or table != _OPEN_TABLE or self.last == _NEVER:
            return None
        return end <= self.last

    def points(self, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """NVTX rows given one by one, without those beyond the cut."""
        kept = [row for row in rows if self.first <= row["start"] <= self.last]
        return [row | {"end": None} if (row.get("end") or 0) > self.last else row for row in kept]


class Cut:
    """Cuts one of the reports at a moment that is known once its step is simulated."""

    def __init__(self, options: Options, reports: Sequence[Report]) -> None:
        self.kind = options.cut_report
        cut = [report for report in reports if self.kind != "none" and report.rank.rank == options.cut_rank]
        self.report = cut[0] if cut else None
        self.step = int(options.cut_at * options.steps)
        self.share = options.cut_at * options.steps - self.step
        if self.report and self.kind == "begin":
            self.report.missing.first = _NEVER - 1  # nothing before its moment comes

    def see(self, epochs: Ints, lengths: Ints, first: int) -> None:
        """Steps that begin at ``epochs`` and last ``lengths`` (true ns), before they are written; the first is step ``first``."""
        if self.report is None or not first <= self.step < first + len(epochs):
            return
        run = self.step - first
        at = int(epochs[run]) + int(lengths[run] * self.share)
        local = int(self.report.rank.local(np.asarray(at)))
        if self.kind == "begin":
            self.report.missing.first = local
        else:
            self.report.missing.last = local
        self.report.facts["cut"] = {"lacks": self.kind, "true_ns": at, "local_ns": local}
