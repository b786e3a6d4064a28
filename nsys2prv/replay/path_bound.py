"""Bound the savings if some processes do their work like the others, by the part of it on the critical path:
more cannot be saved, and looking only at the path takes little time.
"""

from __future__ import annotations

import numpy as np

from nsys2prv.replay.graph import Kind
from nsys2prv.replay.whatif import Changes, Replay, WorkTable


class PathBound:
    """The critical path of a replay, with the changes that are done."""

    def __init__(self, replay: Replay) -> None:
        _, path, _ = replay.before
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
        """Return whether the savings are certainly below this share of the span if processes do work of some
        kinds like the others, and react so: unknown for a pipeline, whose stages are compared.
        """
        table = self._tabulate(kinds)
        own = table.mask_processes(processes)
        if self.replay.pipeline or own.all():
            return False
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
        """Return the lines of the table of some kinds with work on the path, without keys."""
        if kinds not in self._tables:
            table = self.replay.tabulate(kinds)
            lines = np.zeros(len(table.edges), bool)
            for column in table.edges.T:
                lines |= (column >= 0) & self.is_on[column]
            own = np.ascontiguousarray(table.edges[lines])
            self._tables[kinds] = WorkTable(
                own, table.keys[:0], table.first[:1], table.weight, table.processes
            )
        return self._tables[kinds]

    def _sum_saved(self, changes: Changes) -> int:
        """Return the maximum time that changes remove from the path (ns)."""
        saved = 0
        for edges, new in changes:
            on = self.is_on[edges]
            lasts = self.lasts[edges[on]]
            saved += int(
                np.maximum(lasts - (new[on] if isinstance(new, np.ndarray) else 0), 0).sum()
            )
        return saved
