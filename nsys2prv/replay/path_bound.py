"""Compute an upper bound of the savings if some processes did their work like the others: the part
of this work on the critical path. This takes little time.

Proof: a moment is no earlier than the source of each of its edges plus the weight of the edge. So
with other weights, the end of the path is no earlier than its first moment plus the sum of the new
weights, and the end of the span is no earlier than the end of the path. With the old weights it is
exactly the first moment plus the old sum. The first moment is not in the span, and stays where it
is; so does a moment that waits for the clock, after which the same holds for the rest of the path.
The savings are therefore at most the sum of what edges on the path get shorter. An edge on the path
that no longer applies proves nothing, and the bound is infinite.
"""

from __future__ import annotations

import numpy as np

from nsys2prv.replay.graph import Kind
from nsys2prv.replay.whatif import Changes, Replay, WorkTable


class PathBound:
    """Says what a change can save at most, from the critical path of a replay with the changes so
    far.
    """

    def __init__(self, replay: Replay) -> None:
        path, _ = replay.before
        self.replay, self.path = replay, path
        self.lasts = replay.apply([])
        #: Whether each edge is on the path, and the process of each edge on it.
        self.is_on = np.zeros(len(self.lasts), bool)
        self.is_on[path] = True
        self.kind, self.process = replay.edges.kind[path], replay.edges.process[path]
        self._tables: dict[tuple[Kind, ...], WorkTable] = {}

    def is_below(
        self, kinds: tuple[Kind, ...], processes: tuple[int, ...], reacts: bool, least: float
    ) -> bool:
        """Return True if the savings of a change are certainly below `least` (a share of the span).
        In this change, processes do work of these kinds, and (with `reacts`) react, like the
        others. For a pipeline, whose stages are compared, return False, because this is unknown.
        """
        table = self._tabulate(kinds)
        own = table.mask_processes(processes)
        if self.replay.pipeline or own.all():
            return False
        edges = table.edges[:, own]
        table = self._take(table, (self.is_on[edges] & (edges >= 0)).any(axis=1))
        changes = table.share(own, ~own)
        # Work that no other process does is shortened like the rest.
        alone = table.edges[(table.edges[:, ~own] < 0).all(axis=1)][:, own]
        changes.append((alone[alone >= 0], 0.0))
        if reacts:
            is_own = np.isin(self.process, processes)
            changes += self.replay.react_as_others(
                processes, lambda kind: self.path[is_own & (self.kind == kind)]
            )
        return self._sum_saved(changes) < least * self.replay.span

    def _tabulate(self, kinds: tuple[Kind, ...]) -> WorkTable:
        """Return the lines of the work table of some kinds with work on the path, without keys."""
        if kinds not in self._tables:
            table = self.replay.tabulate(kinds)
            lines = np.zeros(len(table.edges), bool)
            for column in table.edges.T:
                lines |= (column >= 0) & self.is_on[column]
            self._tables[kinds] = self._take(table, lines)
        return self._tables[kinds]

    @staticmethod
    def _take(table: WorkTable, lines: np.ndarray) -> WorkTable:
        """Return some lines (a mask) of a work table, without keys."""
        own = np.ascontiguousarray(table.edges[lines])
        return WorkTable(own, table.keys[:0], table.first[:1], table.weight, table.processes)

    def _sum_saved(self, changes: Changes) -> int:
        """Return the largest time that changes can remove from the path (ns)."""
        saved = 0
        for edges, new in changes:
            on = self.is_on[edges]
            lasts = self.lasts[edges[on]]
            saved += int(
                np.maximum(lasts - (new[on] if isinstance(new, np.ndarray) else 0), 0).sum()
            )
        return saved
