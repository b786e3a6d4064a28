"""Arrange the work of a job by process and repetition, with medians of processes that do the same."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from msgspec import Struct

from nsys2prv._util.native import core
from nsys2prv.replay.graph import Changes, Durations, Graph

#: Work that is longer than usual is far beyond what this share differs by at most.
USUALLY = 0.97
#: Work of one iteration may be longer for one reason: chance is judged by so many parts of the time.
PARTS = 10


class Excess(Struct, frozen=True):
    """Excess time of the work of each process over the usual (ns), a value per process."""

    #: In all, on average, the square of the standard error of that, and the most.
    total: np.ndarray
    mean: np.ndarray
    error: np.ndarray
    most: np.ndarray
    #: What nearly all work differs by at most.
    usually: float


class WorkTable(Struct, frozen=True, dict=True):
    """Work of some kinds: a line for the k-th repetition of each, a column for each process."""

    #: Edge of the work, by what is done the k-th time and process, -1 where a process does not (int32).
    edges: np.ndarray
    #: What work it is, ascending: keys of edges (int32).
    keys: np.ndarray
    #: First line of each of these, and the end of the last (int64).
    first: np.ndarray
    #: How long each edge lasts (ns).
    weight: Durations

    @cached_property
    def usual(self) -> np.ndarray:
        """The median of each line (ns)."""
        return self.find_medians(self.mask_columns(slice(None)))

    def mask_columns(self, columns: np.ndarray | slice) -> np.ndarray:
        """Return a mask of these columns."""
        mask = np.zeros(self.edges.shape[1], bool)
        mask[columns] = True
        return mask

    def find_medians(self, columns: np.ndarray) -> np.ndarray:
        """Return the medians of some columns (a mask) in each line (ns), NaN of none."""
        found = np.empty(len(self.edges))
        core.find_medians(self.edges, columns, self.weight.columns, found)
        return found

    def share(self, takers: np.ndarray, givers: np.ndarray, is_mean: bool = False) -> Changes:
        """Let some columns (a mask) do what they do in the time of others: their median, or the mean. What
        no other does gets as much shorter as the rest.
        """
        room = len(self.edges) * np.count_nonzero(takers)
        edges, new = np.empty(room, np.int32), np.empty(room, np.int64)
        given = (self.edges, takers, givers, self.weight.columns, is_mean)
        count = core.share_work(*given, edges, new)
        return [(edges[:count], new[:count])] if count else []

    def measure(self, column: int) -> np.ndarray:
        """Return the durations of a column (ns), -1 where the process does not do the work."""
        edges = np.ascontiguousarray(self.edges[:, column])
        return np.where(edges >= 0, self.weight[np.maximum(edges, 0)], -1)

    @cached_property
    def part(self) -> np.ndarray:
        """The part of the time that each line is of, below PARTS."""
        counts = np.diff(self.first)
        place = np.arange(len(self.edges)) - np.repeat(self.first[:-1], counts)
        return (place * PARTS // np.repeat(counts, counts)).astype(np.uint8)

    @cached_property
    def excess(self) -> Excess:
        """Excess time of the work of processes over the usual."""
        figures = np.zeros((self.edges.shape[1], 4))
        given = (self.edges, self.usual, self.weight.columns, USUALLY)
        usually = core.measure_excess(*given, figures)
        return Excess(*figures.T, usually)

    @cached_property
    def error(self) -> np.ndarray:
        """The square of the standard error of the mean excess of each process (ns), also where all work
        in a part of the time is longer for one reason.
        """
        errors = self.excess.error.copy()
        for column in range(len(errors)):
            own = self.measure(column)
            longer = np.where(own >= 0, own - self.usual, 0.0)
            sums = np.bincount(self.part, longer, PARTS)
            of_parts = sums.var() * PARTS / max(np.count_nonzero(own >= 0), 1) ** 2
            errors[column] = max(errors[column], of_parts)
        return errors

    @cached_property
    def by_key(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The median of what each process does of each key (ns, NaN for nothing), how long it takes in
        all, and how often it does so: (keys, processes).
        """
        shape = len(self.keys), self.edges.shape[1]
        medians, (totals, counts) = np.empty(shape), np.empty((2, *shape), np.int64)
        core.summarize_keys(self.edges, self.first, self.weight.columns, medians, totals, counts)
        return medians, totals, counts


def make_work_table(
    graph: Graph, columns: np.ndarray, rows: np.ndarray, processes: int
) -> WorkTable:
    """Return the table of work of some edges. columns: of each row of the trace."""
    table, keys, first = core.tabulate_work(graph.core, graph.row, columns, rows, processes)
    edges = np.frombuffer(table, np.int32).reshape(-1, max(processes, 1))
    keys, first = np.frombuffer(keys, np.int32), np.frombuffer(first, np.int64)
    return WorkTable(edges, keys, first, graph.weight)
