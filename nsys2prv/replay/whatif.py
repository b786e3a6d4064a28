"""Replay a job within a time span with other durations for some of its work (what-ifs)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from operator import is_not
from typing import Any

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.budget import return_freed_memory
from nsys2prv._util.native import core
from nsys2prv.match.groups import Pipeline
from nsys2prv.replay.events import HANDOFF, MPI_NAMES, WAITED
from nsys2prv.replay.graph import (
    LONG,
    NO_WEIGHT,
    NOTHING_KEPT,
    TRANSFERS,
    WORK,
    Changes,
    Durations,
    Edges,
    Graph,
    Kept,
    Kind,
    Times,
    split_rows,
)
from nsys2prv.replay.job_graph import JobGraph
from nsys2prv.replay.thresholds import (
    COPY_SPEEDS,
    LARGER,
    MORE_OFTEN,
    MOST_HICCUPS,
    NOT_KNOWN,
    PARTS,
    USUALLY,
)
from nsys2prv.replay.unit_graph import (
    FEW_TIMES,
    OF_TIMES,
    PLACE,
    group_places,
    is_beside_others,
    join_lines,
    pack_lines,
)

#: Kinds of work that a rank may do slower than others, and the display name of it.
GPU, HOST, COPIES = (Kind.KERNEL,), (Kind.GAP, Kind.CALL), (Kind.COPY,)
#: Kinds of edges that are time of the host.
HOST_TIME = (*HOST, Kind.LAUNCH, Kind.RETURN, Kind.HANDOFF)
#: Maximum number of latencies used to find the usual one.
CASES = 200_000
#: A span that contains all edges.
ALWAYS = (-(1 << 62), 1 << 62)
#: Kinds of edges used in what-ifs.
_SELECTED = (*WORK, Kind.LAUNCH, Kind.RETURN, Kind.HANDOFF, Kind.MEET)
#: Columns that identify the work of a process.
_OF_WORK = ("key", "process")
#: Fields that changes do not affect.
_KEPT = (
    *("counts", "processes", "span", "path", "_rows", "tables", "measured", "_last", "weight"),
)


class Excess(Struct, frozen=True):
    """Time by which each process takes longer than usual for the same work (ns), one value per
    process.
    """

    #: On average, and the square of the standard error of that, also where all work in a part of the time is
    #: longer for one reason.
    mean: np.ndarray
    error: np.ndarray
    #: The most, and the sum, in each part of the time: (processes, PARTS).
    longest: np.ndarray
    sums: np.ndarray
    #: Variation that nearly all work stays within.
    usually: float


class WorkTable(Struct, frozen=True, dict=True):
    """Comparable work of several processes: a line for each repetition of some work (key), a column
    for each process.
    """

    #: Edge of the work, by repetition and process, -1 for a process without it (int32).
    edges: np.ndarray
    #: Identity of the work, ascending: keys of edges (int32).
    keys: np.ndarray
    #: First line of each of these, and the end of the last (int64).
    first: np.ndarray
    #: Duration of each edge (ns).
    weight: Durations
    #: Process of each column, ascending.
    processes: np.ndarray

    @cached_property
    def usual(self) -> np.ndarray:
        """The median over all processes in each line (ns)."""
        return self.find_medians(self.mask_columns(slice(None)))

    def mask_columns(self, columns: np.ndarray | slice) -> np.ndarray:
        """Return a mask of the columns with these indices. columns: indices or a slice."""
        mask = np.zeros(self.edges.shape[1], bool)
        mask[columns] = True
        return mask

    def find_columns(self, processes: Sequence[int]) -> np.ndarray:
        """Return the column indices of these processes."""
        return np.flatnonzero(np.isin(self.processes, processes))

    def mask_processes(self, processes: Sequence[int]) -> np.ndarray:
        """Return a mask of the columns that belong to these processes."""
        return self.mask_columns(self.find_columns(processes))

    def find_medians(self, columns: np.ndarray) -> np.ndarray:
        """Return the median duration in each line over some columns (a mask) (ns), or NaN."""
        found = np.empty(len(self.edges))
        core.find_medians(self.edges, columns, self.weight.columns, found)
        return found

    def share(self, takers: np.ndarray, givers: np.ndarray, is_mean: bool = False) -> Changes:
        """Return changes in which some processes (`takers`) do their work in the time that others
        (`givers`) take: their median or, with is_mean, their mean. Both are masks of columns. Work
        that no giver does is shortened by the same ratio.
        """
        room = len(self.edges) * np.count_nonzero(takers)
        edges, new = np.empty(room, np.int32), np.empty(room, np.int64)
        given = (self.edges, takers, givers, self.weight.columns, is_mean)
        count = core.share_work(*given, edges, new)
        return [(edges[:count], new[:count])] if count else []

    @cached_property
    def longer(self) -> dict[tuple[int, ...], np.ndarray | None]:
        """Cache: processes -> mask of the lines in which they take longer than others."""
        return {}

    def find_alike(self, columns: np.ndarray) -> np.ndarray:
        """Return a mask of the keys that some columns (a mask) do about as often as one of the
        others, or as all others that do them, so that repetitions can be compared.
        """
        counts = self.by_key[2]
        if columns.all():
            few = np.where(counts > 0, counts, counts.max(initial=0)).min(axis=1)
        else:
            few = counts[:, ~columns].max(axis=1)
        return (counts[:, columns] <= MORE_OFTEN * few[:, None] + 1).all(axis=1)

    def measure(self, column: int, lines: slice = slice(None)) -> np.ndarray:
        """Return the durations of one column in some lines (ns); -1 where its process does not have
        the work.
        """
        edges = np.ascontiguousarray(self.edges[lines, column])
        return np.where(edges >= 0, self.weight[np.maximum(edges, 0)], -1)

    def list_edges(self, key: int, columns: np.ndarray | int) -> np.ndarray:
        """Return the edges (int32) of the work with this index in `keys`, by repetition. columns:
        one column, or a mask of several.
        """
        edges = self.edges[self.first[key] : self.first[key + 1], columns]
        return np.ascontiguousarray(edges[edges >= 0])

    @cached_property
    def turn(self) -> np.ndarray:
        """Return for each line the number of the repetition of its key, from 0."""
        return np.arange(len(self.edges)) - np.repeat(self.first[:-1], np.diff(self.first))

    @cached_property
    def part(self) -> np.ndarray:
        """Return the number of the time part that each line is in (uint8, below PARTS): the
        repetitions of a key are divided into equal parts.
        """
        counts = np.diff(self.first)
        return (self.turn * PARTS // np.repeat(counts, counts)).astype(np.uint8)

    @cached_property
    def total_excess(self) -> np.ndarray:
        """Time by which all work of each process takes longer than usual (ns), one value per
        process.
        """
        columns = self.edges.shape[1]
        total = np.zeros(columns)
        for part in split_rows(len(self.edges), columns):
            edges = self.edges[part]
            own = self.weight[np.maximum(edges, 0)] - self.usual[part, None]
            # Each is rounded, so that sums are exact.
            own = np.where(edges >= 0, own.astype(np.float32), 0)
            total += own.sum(axis=0, dtype=float)
        return total

    @cached_property
    def excess(self) -> Excess:
        """Time by which the work of each process takes longer than usual, with its variation."""
        columns = self.edges.shape[1]
        mean, error = np.zeros((2, columns))
        sums, longest = np.zeros((2, columns, PARTS))
        apart = []
        for column in range(columns):
            lines = np.flatnonzero(self.edges[:, column] >= 0)
            own = (self.weight[self.edges[lines, column]] - self.usual[lines]).astype(np.float32)
            part, count = self.part[lines], max(len(lines), 1)
            sums[column] = np.bincount(part, own, PARTS)
            # Lines of a part are consecutive within each key.
            first = np.flatnonzero(np.diff(part, prepend=PARTS))
            np.maximum.at(
                longest[column], part[first], np.maximum.reduceat(own, first) if len(own) else own
            )
            mean[column] = own.sum(dtype=float) / count
            of_parts = sums[column].var() * PARTS
            error[column] = max(np.square(own - mean[column]).sum(), of_parts) / count**2
            apart.append(np.abs(own))
        every = np.concatenate(apart).astype(float)
        usually = float(np.quantile(every, USUALLY)) if len(every) else 0.0
        return Excess(mean, error, longest, sums, usually)

    def join_places(self) -> WorkTable:
        """Return the table in which times between MPI calls are merged if they belong to one place
        in the program, at which processes make different calls (see :func:`group_places`).
        """
        _, totals, counts = self.by_key
        group = group_places(self.keys, totals, counts)
        if (group == np.arange(len(group))[:, None]).all():
            return self
        edges, first, kept = join_lines(self.edges, self.first, self.turn, counts, group)
        return WorkTable(edges, self.keys[kept], first, self.weight, self.processes)

    def split_sizes(self) -> WorkTable:
        """Return the table with separate keys for larger kernels that only some processes run, in
        addition to kernels of the same name that all processes run. An example is the output layer.
        The new key keeps the name.
        """
        counts, half = self.by_key[2], (self.edges.shape[1] - 1) // 2
        more = counts - np.sort(counts, axis=1)[:, half, None]
        if not (more > MOST_HICCUPS).any():
            return self
        tops = np.empty_like(counts)
        for column in range(self.edges.shape[1]):
            tops[:, column] = np.maximum.reduceat(self.measure(column), self.first[:-1])
        # On slow GPUs all are longer.
        medians = np.nan_to_num(self.by_key[0], nan=1.0)
        pace = medians / np.maximum(np.sort(medians, axis=1)[:, half, None], 1)
        usual = np.sort(tops / np.maximum(pace, 1e-9), axis=1)[:, half, None]
        limits = LARGER * usual * pace
        has_larger = (usual > 0) & (tops > limits)
        has_larger &= more > MOST_HICCUPS
        blocks, keys = [], []
        for key, (begin, end) in enumerate(pairwise(self.first.tolist())):
            block = self.edges[begin:end]
            is_larger = np.zeros(block.shape, bool)
            for column in np.flatnonzero(has_larger[key]).tolist():
                own = self.measure(column, slice(begin, end))
                larger = own > limits[key, column]
                is_beside = is_beside_others(larger[own >= 0], int(more[key, column]))
                is_larger[:, column] = larger & is_beside
            for some in (~is_larger, is_larger) if is_larger.any() else (None,):
                blocks.append(block if some is None else pack_lines(block, some))
                keys.append(self.keys[key])
        first = np.cumsum([0, *map(len, blocks)])
        return WorkTable(
            np.concatenate(blocks), np.array(keys, np.int32), first, self.weight, self.processes
        )

    def keep(self, is_kept: np.ndarray) -> WorkTable:
        """Return the table with only some keys. is_kept: mask of the keys."""
        counts = np.diff(self.first)
        first = np.cumsum([0, *counts[is_kept]])
        edges = self.edges[np.repeat(is_kept, counts)]
        return WorkTable(edges, self.keys[is_kept], first, self.weight, self.processes)

    @cached_property
    def by_key(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Three arrays of shape (keys, processes): median time (ns, or NaN), total time (ns), and
        number of repetitions.
        """
        shape = len(self.keys), self.edges.shape[1]
        medians, (totals, counts) = np.empty(shape), np.empty((2, *shape), np.int64)
        core.summarize_keys(self.edges, self.first, self.weight.columns, medians, totals, counts)
        return medians, totals, counts


def make_work_table(
    graph: Graph, rows: np.ndarray, processes: np.ndarray, weight: Durations
) -> WorkTable:
    """Arrange the work of some processes in a table in which repetitions can be compared. rows:
    edges with the work. weight: durations of edges.
    """
    count = len(processes)
    # Of each process, and last of meetings.
    column = np.full(graph.processes.max(initial=0) + 2, -1, np.int32)
    column[processes] = np.arange(count)
    columns = column[graph.processes]
    table, keys, first = core.tabulate_work(graph.core, graph.row, columns, rows, count)
    edges = np.frombuffer(table, np.int32).reshape(-1, max(count, 1))
    keys, first = np.frombuffer(keys, np.int32), np.frombuffer(first, np.int64)
    return WorkTable(edges, keys, first, weight, processes)


class KernelFacts(Struct, frozen=True):
    """Known facts about kernels and memory in a job; kernels are given by their event values."""

    #: Kernels that are GEMMs without Tensor Cores, and processes whose GPUs have some.
    products: tuple[Collection[int], Collection[int]] = ((), ())
    #: Kernels of products far below the rate allowed by their shapes, with their process and the share of
    #: their time that they would take at the rate of the job's other products.
    slow_products: Sequence[tuple[int, int, float]] = ()
    #: Kinds of memory: pageable and pinned memory of the host.
    pageable: int = -2
    pinned: int = -2
    #: Usual speed of large copies of pinned memory with these GPUs (B/ns).
    copy_speed: float = COPY_SPEEDS[0]
    #: Whether the job repeats the same work: other jobs may pause because there is none.
    is_steady: bool = True
    #: Number of iterations, or 0 if unknown.
    iterations: int = 0


class WhatIf:
    """The last what-if: durations, and times of nodes, in arrays that each overwrites."""

    def __init__(self, graph: Graph, counts: np.ndarray, kept: Kept) -> None:
        self._graph, self._counts, self._kept = graph, counts, kept
        self._values = np.empty_like(graph.weight.value)
        self._nodes = np.empty_like(graph.time.nodes)
        self._changes: Changes | None = None
        self._weight, self._result = graph.weight, None

    def change(self, changes: Changes) -> Durations:
        """Return the durations of all edges with these changes."""
        last = self._changes
        if last is None or len(last) != len(changes) or any(map(is_not, last, changes)):
            self._changes = self._result = None
            self._weight = self._graph.weight.change(changes, self._kept, self._values)
            self._changes = changes
        return self._weight

    def run(self, changes: Changes) -> tuple[Times, int]:
        """Return the times of all moments with these changes, and the last that counts (ns)."""
        weight = self.change(changes)
        if self._result is None:
            self._result = self._graph.run(weight, self._counts, self._nodes)
        return self._result


class Replay(Struct, frozen=True, dict=True):
    """Computes what a job would take with changed durations, within a time span."""

    #: The graph.
    job: JobGraph
    #: First and last time that count (ns of the trace).
    begin: int
    end: int
    #: Changes applied already: savings are in addition to them.
    done: tuple[tuple[np.ndarray, np.ndarray | float], ...] = ()
    #: Edges that no change makes shorter than so (ascending, ns): the profiler works in them, which is
    #: no gain.
    kept: Kept = NOTHING_KEPT
    #: Known facts about kernels and memory.
    known: KernelFacts = KernelFacts()
    #: Changes if no thread waits for a CPU.
    cpu_waits: Changes = []
    #: The stages of the job, if it is a pipeline; sets of processes, and their meaning.
    pipeline: Pipeline | None = None
    groups: Mapping[tuple[int, ...], tuple[str, int, int]] = {}

    @property
    def graph(self) -> Graph:
        """The graph of the job."""
        return self.job.graph

    @property
    def edges(self) -> Edges:
        """Edges of the graph."""
        return self.job.graph.edges

    @cached_property
    def counts(self) -> np.ndarray:
        """For each node, as bits, which of its moments in the span count. Calls that only test for
        completion do not.
        """
        counts = self.graph.count_moments(self.begin, self.end)
        counts[self.job.idle_nodes] = 0
        return counts

    @cached_property
    def processes(self) -> np.ndarray:
        """Numbers of the processes with work, sorted."""
        graph = self.graph
        is_there = np.zeros(len(graph.processes), bool)
        is_there[graph.row] = True
        found = np.setdiff1d(graph.processes[is_there], [*self.job.helpers])
        return found[found >= 0]

    @cached_property
    def span(self) -> int:
        """Length of the recorded span (ns)."""
        return self.run([])[1] - self.begin

    @cached_property
    def _last(self) -> WhatIf:
        return WhatIf(self.graph, self.counts, self.kept)

    def prepare(self) -> None:
        """Replay the unchanged job once, so that another thread may then list changes during a
        replay.
        """
        self.before, self.span, self._rows  # noqa: B018

    def free_memory(self) -> None:
        """Free the data of what-ifs. The next one recomputes it."""
        for name in ("_last", "_rows", "tables", "before"):
            self.__dict__.pop(name, None)
        return_freed_memory()

    def run(self, changes: Changes) -> tuple[Times, int]:
        """Replay the job with these changes, in addition to those applied. Return the times of all
        moments, and the new end of the span (ns). The times are valid until the next what-if.
        """
        times, last = self._last.run([*self.done, *changes])
        return times, max(last, self.begin)

    def apply(self, changes: Changes) -> Durations:
        """Return the durations of all edges with these changes, in addition to those applied."""
        return self.graph.weight.change([*self.done, *changes], self.kept)

    def compute_gain(self, changes: Changes, least: float = 0.0) -> float:
        """Return the savings of these changes, beyond those applied, as a share of the recorded
        span.

        Return 0 if the savings are certainly less than `least`, because changes save no more than
        their time on the critical path (proof: `path_bound.py`).
        """
        if not any(len(rows) for rows, _ in changes) or self.span <= 0:
            return 0.0
        return_freed_memory()
        if least:
            path, length = self.before
            weight = self._last.change([*self.done, *changes])
            if length - _measure(weight, path) < least * self.span:
                return 0.0
        return (self.end_before - self.run(changes)[1]) / self.span

    @cached_property
    def end_before(self) -> int:
        """The end of the span with the changes applied so far (ns)."""
        return self.run([])[1] if self.done else self.begin + self.span

    @cached_property
    def before(self) -> tuple[np.ndarray, int]:
        """Two values of a replay with the changes applied so far: the edges of the critical path,
        and the length of this path (ns).
        """
        times, self.__dict__["end_before"] = self.run([])
        path = self.graph.trace_path(self.counts, self.begin, times)
        return path, _measure(times.weight, path)

    def change(self, changes: Changes) -> Replay:
        """Return a replay with these changes applied."""
        changed = replace(self, done=(*self.done, *changes))
        # Recorded values stay the same.
        for name in _KEPT:
            changed.__dict__[name] = getattr(self, name)
        return changed

    def add_facts(self, **fields: Any) -> Replay:
        """Return a replay with other values of some fields, which say what is known of the job."""
        made = replace(self, **fields)
        computed = self.__dict__.keys() & {"counts", "processes", "_rows"}
        made.__dict__.update({name: self.__dict__[name] for name in computed})
        return made

    @cached_property
    def weight(self) -> Durations:
        """Durations of the edges, as used to compare work: as recorded, or without waits for CPUs."""
        return self.graph.weight

    def skip_cpu_waits(self) -> Replay:
        """Return a replay in which no thread waits for a CPU."""
        changed = self.change(self.cpu_waits)
        changed.__dict__.update(weight=self.apply(self.cpu_waits), tables={})
        return changed

    @cached_property
    def _rows(self) -> dict[Kind, np.ndarray]:
        return self.graph.select(_SELECTED, self.begin, self.end)

    def select(
        self,
        kinds: Collection[Kind],
        keys: Collection[int] | None = None,
        processes: Collection[int] | None = None,
        longest: int = LONG,
    ) -> np.ndarray:
        """Return the edges of some kinds in the span. keys, processes: only edges with one of
        these; None for all. longest: only edges shorter than this (ns), LONG for any.
        """
        rows = [self._rows[kind] for kind in kinds]
        if longest < LONG or keys is not None or processes is not None:
            chosen = {"longest": longest, "keys": keys, "processes": processes}
            rows = [self.graph.choose(one, **chosen) for one in rows]
        return rows[0] if len(rows) == 1 else np.concatenate(rows)

    def list_work(self, edges: np.ndarray) -> pl.DataFrame:
        """Return a frame about these edges: `edge`, `lasts` (ns), `kind`, `key`, `process`."""
        columns = {name: getattr(self.edges, name)[edges] for name in ("kind", "key", "process")}
        return pl.DataFrame({"edge": edges, "lasts": self.graph.weight[edges], **columns})

    def sum_work(
        self, edges: np.ndarray, *by: str, lasts: np.ndarray | None = None
    ) -> pl.DataFrame:
        """Sum the durations of edges by some columns of :meth:`list_work`. Return these, `lasts`
        (ns; by default from the recording) and `count`, the longest first; with equal time, the
        lowest values first.
        """
        graph, parts = self.graph, []
        for part in split_rows(len(edges)):
            some = edges[part]
            columns = {name: getattr(graph.edges, name)[some] for name in by}
            columns["lasts"] = graph.weight[some] if lasts is None else lasts[part]
            parts.append(sum_lasts(pl.DataFrame(columns).with_columns(count=1), *by))
        return sum_lasts(pl.concat(parts), *by)

    def list_saved(self, changes: Changes) -> tuple[np.ndarray, np.ndarray]:
        """Return two arrays: the edges that these changes shorten, and by how much (ns)."""
        weight, parts = self.weight, []
        for edges, new in self.graph.weight.keep(changes, self.kept):
            for part in split_rows(len(edges)):
                some = edges[part]
                before = weight[some]
                left = new[part] if isinstance(new, np.ndarray) else before * new
                saved = np.where(left > -(1 << 62), before - left.astype(np.int64), 0)
                parts.append((some[saved > 0], saved[saved > 0]))
        edges, saved = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        return edges, saved

    def find_first_calls(self, names: Collection[int]) -> np.ndarray:
        """Return the edges of the first call with each of these names (numbers) in each process."""
        edges = self.edges
        calls = self.graph.select((Kind.CALL,), *ALWAYS)[Kind.CALL]
        calls = self.graph.choose(calls, keys=names)
        calls = calls[np.argsort(self.graph.time[edges.target[calls]], kind="stable")]
        pairs = self.list_work(calls).select("key", "process").to_struct()
        return calls[pairs.is_first_distinct().to_numpy()]

    # Work of one process, or several, done like the others.

    @cached_property
    def tables(self) -> dict[tuple[Kind, ...], WorkTable]:
        """Cache: kinds -> work table."""
        return {}

    @cached_property
    def measured(self) -> dict[str, Any]:
        """Cache: name -> result that is computed once."""
        return {}

    def remember(self, name: str, measure: Callable[[], Any]) -> Any:
        """Return `measure()`, which is computed only once for each name. The result must not depend
        on changes.
        """
        if name not in self.measured:
            self.measured[name] = measure()
        return self.measured[name]

    def list_compared(self, kinds: tuple[Kind, ...]) -> np.ndarray:
        """Return the sorted processes to compare for some kinds of work. If GPUs of a process are
        ranks, these and the hosts that launch their work are compared.
        """
        drivers = self.job.drivers
        if not drivers:
            return self.processes
        workers = {*drivers.values()} if Kind.GAP in kinds else {*drivers}
        return self.processes[np.isin(self.processes, [*workers])]

    def tabulate(self, kinds: tuple[Kind, ...]) -> WorkTable:
        """Return the work of some kinds as a table that compares processes. The table is computed
        once.
        """
        if kinds not in self.tables:
            work = self._select_work(kinds)
            if Kind.GAP in kinds and HANDOFF not in self.job.calls:
                work = self._add_common(work, kinds)
            processes = self.list_compared(kinds)
            table = make_work_table(self.graph, work, processes, self.weight)
            self.tables[kinds] = table.join_places() if Kind.GAP in kinds else table.split_sizes()
        return self.tables[kinds]

    def _select_work(self, kinds: tuple[Kind, ...]) -> np.ndarray:
        """Return the edges of some kinds that are a process's own work. MPI calls are not, because
        it is unknown how they wait.
        """
        others = [name for name in self.job.calls if name < MPI_NAMES]
        # Helpers do nothing that ranks do.
        is_whole = not (self.job.helpers or self.job.drivers)
        ranks = None if is_whole else self.list_compared(kinds).tolist()
        if Kind.CALL not in kinds or len(others) == len(self.job.calls):
            rows = self.select(kinds, processes=ranks)
        else:
            rest = [kind for kind in kinds if kind != Kind.CALL]
            chosen = self.select(rest, processes=ranks), self.select((Kind.CALL,), others, ranks)
            rows = np.concatenate(chosen)
        if Kind.GAP not in kinds or HANDOFF not in self.job.calls:
            return rows
        # Work that others wait for is done by only one process, and a wait is not work.
        return rows[~(np.isin(rows, self.find_releases()) | self._is_before(rows, WAITED))]

    def _add_common(self, work: np.ndarray, kinds: tuple[Kind, ...]) -> np.ndarray:
        """Add work outside the span of some processes, because the span cuts them at different
        places.

        If several processes do work about equally often in the whole job, all repetitions are added
        that any of them does within the span.
        """
        spans = (ALWAYS[0], self.begin), (self.end, ALWAYS[1])
        before, behind = (
            np.concatenate([*self.graph.select(kinds, *span).values()]) for span in spans
        )
        counts = self._count_work(work, "count")
        for name, others in (("before", before), ("behind", behind)):
            counts = counts.join(self._count_work(others, name), on=_OF_WORK, how="left")
        counts = counts.with_columns(pl.col("before", "behind").fill_null(0))
        done = pl.col("before") + pl.col("count")
        whole = done + pl.col("behind")
        apart = whole.max() - whole.min()
        is_even = (pl.len() > 1) & (apart <= FEW_TIMES) & (apart <= OF_TIMES * whole.min())
        common = counts.filter(is_even.over("key")).select(
            *_OF_WORK,
            # So many of the last before, and of the first behind.
            before=pl.col("before") - pl.col("before").min().over("key"),
            behind=done.max().over("key") - done,
        )
        last = self._take(before, common.select(*_OF_WORK, most="before"), True)
        first = self._take(behind, common.select(*_OF_WORK, most="behind"), False)
        return np.concatenate([last, work, first])

    def _count_work(self, edges: np.ndarray, name: str) -> pl.DataFrame:
        """Return the number of these edges for each work of a process (columns `_OF_WORK`), in a
        column `name`.
        """
        parts = [
            pl.DataFrame({one: getattr(self.edges, one)[edges[part]] for one in _OF_WORK})
            .group_by(_OF_WORK)
            .len(name)
            for part in split_rows(len(edges))
        ]
        sums = parts[0] if len(parts) == 1 else pl.concat(parts).group_by(_OF_WORK).sum()
        return sums.cast({name: pl.Int64})

    def _take(self, edges: np.ndarray, most: pl.DataFrame, is_last: bool) -> np.ndarray:
        """Return the first, or the last (`is_last`), edges of each work of a process. most: how
        many of each.
        """
        own = pl.DataFrame({name: getattr(self.edges, name)[edges] for name in _OF_WORK})
        own = own.join(
            most.filter(pl.col("most") > 0), on=_OF_WORK, how="left", maintain_order="left"
        )
        number = pl.int_range(pl.len(), dtype=pl.Int64).over(_OF_WORK)
        number = pl.len().over(_OF_WORK) - 1 - number if is_last else number
        return edges[own.select((number < pl.col("most")).fill_null(False)).to_series().to_numpy()]

    def find_releases(self, processes: Sequence[int] | None = None) -> np.ndarray:
        """Return the edges with work of processes between their last call or wait and the moment
        when they release waiting processes. processes: None for all.
        """
        if HANDOFF not in self.job.calls:
            return np.zeros(0, np.int32)
        gaps = self.select((Kind.GAP,), processes=processes)
        gaps = gaps[self._is_before(gaps, HANDOFF)]
        meet = self.edges.source[self.select((Kind.MEET,))]
        return gaps[np.isin(self.edges.target[gaps], meet)]

    def _is_before(self, edges: np.ndarray, call: int) -> np.ndarray:
        """Return a mask of the edges for the time between two calls that precedes this call."""
        places = -1 - self.edges.key[edges].astype(np.int64)
        return (self.edges.kind[edges] == Kind.GAP) & (places % PLACE == call)

    def do_as_others(self, kinds: tuple[Kind, ...], processes: Sequence[int]) -> Changes:
        """Return changes in which processes take as long for their work as the others: for each
        repetition, the median of those that did the same. Work that no other process did is
        shortened by the same ratio.
        """
        table = self.tabulate(kinds)
        members = table.mask_processes(processes)
        return self._share(table, members) if kinds == GPU else table.share(members, ~members)

    def _share(self, table: WorkTable, members: np.ndarray) -> Changes:
        """Return changes in which some columns (a mask) of kernels take as long as others: those of
        the same pipeline stage, if there are any, because other stages do the same work in another
        order, and as often as they have layers.
        """
        changes: Changes = []
        left = members.copy()
        for stage in self.pipeline.stages if self.pipeline else ():
            peers = np.isin(table.processes, stage)
            own, others = members & peers, ~members & peers
            if own.any() and others.any():
                changes += table.share(own, others)
                left &= ~own
        if left.any() and not members.all():
            changes += table.share(left, ~members)
        return changes

    def react_as_others(
        self, processes: Sequence[int], choose: Callable[[Kind], np.ndarray] | None = None
    ) -> Changes:
        """Return changes in which launches, returns from calls and hand-offs of some processes have
        the median latencies of the others. choose: function that returns the edges of these
        processes for a kind; None for all.
        """
        changes: Changes = []
        latencies = self.remember("latencies", self._sample_latencies)
        for kind, (known, place, typical) in latencies.items():
            rows = choose(kind) if choose else self.select((kind,), processes=processes)
            if not len(rows):
                continue
            name = f"{kind.name} without {[*processes]}"
            if name not in self.measured:
                others = typical[~np.isin(known, processes)[place]]
                # They are in order.
                middle = others[(len(others) - 1) // 2 : len(others) // 2 + 1]
                self.measured[name] = int(np.median(middle)) if len(others) else None
            if (median := self.measured[name]) is not None:
                saved = np.maximum(self.edges.typical[rows] - median, 0)
                changes.append((rows, self.graph.weight[rows] - saved))
        return changes

    def _sample_latencies(self) -> dict[Kind, tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Typical weights (ns) of launches, returns and hand-offs, sorted, sampled at random if
        there are many. For each kind: processes, and for each weight its process as an index into
        these, and the weights.
        """
        edges, random = self.edges, np.random.default_rng(1)
        latencies = {}
        for kind in (Kind.LAUNCH, Kind.RETURN, Kind.HANDOFF):
            rows = self.select((kind,))
            if len(rows) > CASES:
                rows = np.sort(rows[random.integers(0, len(rows), CASES)])
            # Sorted with the process, which is faster than by indices. Meetings have process -1.
            both = np.sort(edges.typical[rows] << 32 | edges.process[rows] + 1)
            typical, process = both >> 32, both & 0xFFFFFFFF
            known = np.flatnonzero(np.bincount(process))
            place = np.zeros(known.max(initial=0) + 1, np.int64)
            place[known] = np.arange(len(known))
            latencies[kind] = known - 1, place[process], typical
        return latencies

    def scale(self, kinds: Collection[Kind], factor: float = 0.0, **chosen: Any) -> Changes:
        """Return changes in which work of some kinds takes only a fraction (`factor`) of its time.
        chosen: arguments of :meth:`select`.
        """
        return [(self.select((kind,), **chosen), factor) for kind in kinds]

    def balance(self, kinds: tuple[Kind, ...] = GPU) -> Changes:
        """Return changes in which processes share each repetition of work of some kinds equally. On
        GPUs, only work that all do about equally often is shared.
        """
        if len(self.list_compared(kinds)) < 2:
            return []
        table = self.tabulate(kinds)
        every = table.mask_columns(slice(None))
        table = table.keep(table.find_alike(every)) if kinds == GPU else table
        # Work that is equal after the applied changes stays equal.
        return replace(table, weight=self.apply([])).share(every, every, is_mean=True)

    def compare_kernels(self, processes: Sequence[int]) -> Changes:
        """Return changes in which processes take as long for each kernel as the others, if these
        run it about as often.
        """
        table = self.tabulate(GPU)
        own = table.mask_processes(processes)
        return self._share(table.keep(table.find_alike(own)), own)

    def transfer_as_others(self, is_wanted: Callable[[tuple[str, ...]], bool]) -> Changes:
        """Return changes in which transfers on some channels (sets of communicating processes)
        between hosts take as long as on the others: the median for the same operation, size, and
        number of members and hosts.

        Channels with unknown members are included if their transfers end together with longer
        transfers on these. is_wanted: function that selects channels by their hosts.
        """
        edges = self.edges
        rows, channel, lasts, number = self.remember("transfers", self._list_transfers)
        shapes, wanted = zip(
            *(
                (len(members) * 2 + (len(hosts) > 1), is_wanted(hosts))
                for members, hosts in self.job.channels
            ),
            strict=True,
        )
        own = np.array(wanted)[channel]
        if not own.any() or own.all():
            return []
        longest = np.zeros(number.max(initial=-1) + 1, lasts.dtype)
        np.maximum.at(longest, number[own], lasts[own])
        ends_with = np.bincount(channel, longest[number] >= lasts, len(shapes))
        is_hidden = ends_with >= NOT_KNOWN * np.bincount(channel, minlength=len(shapes))
        of_others = [one for one in np.flatnonzero(wanted) if len(self.job.channels[one][1]) > 1]
        is_wanted, own = own, is_hidden[channel]
        work = pl.DataFrame(
            {"size": edges.size[rows], "shape": np.array(shapes)[channel], "own": own}
        )
        alike = pl.col("lasts").filter(~pl.col("own")).median().over("size", "shape")
        usual = work.with_columns(lasts=lasts).select(alike).to_series().to_numpy()
        # Of others there may be none.
        own &= ~np.isnan(usual)
        new = np.fmin(usual, lasts).astype(np.int64)
        changes = [(rows[some], new[some]) for some in (own & is_wanted, own & ~is_wanted)]
        # What several messages share is as quick as these.
        is_known = np.isin(channel[own & is_wanted], of_others).any()
        return [*changes, (self.find_shared_links(of_others), 0.0)] if is_known else changes

    def _list_transfers(self) -> tuple[np.ndarray, ...]:
        """Return the edges of transfers that have a link of their own, their channels, durations
        (ns), and a number for each moment at which they end.
        """
        rows = np.setdiff1d(self.select(TRANSFERS), self.find_shared_links())
        _, number = np.unique(self.edges.target[rows], return_inverse=True)
        return rows, self.edges.key[rows], self.graph.weight[rows], number

    def find_shared_links(self, channels: Collection[int] | None = None) -> np.ndarray:
        """Return the edges of transfers between hosts during which several messages share a link.
        channels: only transfers on these; None for all.
        """
        rows = self.select((Kind.NCCL,), channels)
        # Of transfers whose members are not known no size is, either.
        return rows[(self.edges.size[rows] == 0) & (self.edges.key[rows] > 0)]

    # What the whole job could do.

    def transfer_at_once(self) -> Changes:
        """Return changes in which all data arrives as soon as all ranks have arrived. In jobs of
        several processes, transfers with unknown members do not change, because they contain waits.
        """
        rows = self.select(TRANSFERS)
        if len(self.processes) > 1:
            rows = rows[self.edges.key[rows] > 0]
        return [(rows, 0.0)]

    def expect_messages(self) -> Changes:
        """Return the changes that make every message available as soon as somebody waits for it: the
        receiver, and the sender of a large message, continue after the transfer time.
        """
        edges, graph = self.edges, self.graph
        waits = self.select(TRANSFERS)
        waits = waits[edges.size[waits] < 0]
        if not len(waits):
            return []
        shared = self.find_shared_links()
        ends, number = np.unique(edges.target[waits], return_inverse=True)
        takes = np.zeros(len(ends), np.int64)
        np.maximum.at(takes, number, graph.weight[waits])
        # Of a loop of tests the time before the last of them.
        own = self.select((Kind.CALL, Kind.MEET, Kind.GAP))
        own = own[np.isin(edges.target[own], ends)]
        lasts = graph.weight[own] + takes[np.searchsorted(ends, edges.target[own])]
        waits = np.concatenate([waits, shared])
        return [(own, lasts), (waits, np.full(len(waits), NO_WEIGHT))]

    def remove_calls(self, names: Collection[int], repeated: bool = False) -> Changes:
        """Return changes in which calls with these names take no time and wait for nothing.
        repeated: except the first call of each name in each process, which initializes things for
        the others.
        """
        edges = self.edges
        calls, returns = (self.select((kind,), names) for kind in (Kind.CALL, Kind.RETURN))
        # What is launched before a call returns begins as early as is typical.
        launches = self.select((Kind.LAUNCH,), [2 * name for name in names])
        if repeated and len(calls):
            first = self.find_first_calls(names)
            calls = np.setdiff1d(calls, first)
            returns = returns[~np.isin(edges.target[returns], edges.target[first])]
            launches = launches[~np.isin(edges.source[launches], edges.source[first])]
        if not len(calls):
            return []
        at_once = np.minimum(self.graph.weight[launches], edges.typical[launches])
        return [
            (calls, 0.0),
            (returns, np.full(len(returns), NO_WEIGHT)),
            (launches, at_once.astype(np.int64)),
        ]

    def remove_place(self, kind: Kind, key: int) -> Changes:
        """Return changes in which one call (kind CALL), or the time between two calls (GAP), takes
        no time. The call also waits for nothing. key: number of its name or place.
        """
        return self.remove_calls([key]) if kind == Kind.CALL else self.scale((kind,), keys=[key])

    # What the time of the span is made of.

    @cached_property
    def path(self) -> np.ndarray:
        """The edges of the critical path of the recorded span, the last one first."""
        return self.graph.trace_path(self.counts, self.begin)

    def measure_outside(self) -> float:
        """Return the share of the span in which the critical path waits for events from outside the
        job, such as requests.
        """
        edges, graph = self.edges, self.graph
        pauses = self.path[edges.kind[self.path] == Kind.GAP]
        pauses = pauses[graph.binding[pauses] == 0]
        lasts = graph.time[edges.target[pauses]] - graph.time[edges.source[pauses]]
        return float(lasts.sum()) / max(self.span, 1)

    def measure_unexplained(self) -> float:
        """Return the share of the span for which the critical path waits without a recorded reason."""
        edges, graph = self.edges, self.graph
        kinds = edges.kind[self.path]
        latencies = self.path[(kinds >= Kind.LAUNCH) & (kinds != Kind.MEET)]
        lasts = graph.weight[latencies]
        excess = lasts - edges.typical[latencies]
        # Typical ones, unless clocks contradict each other, have none.
        some = (excess != 0) | (lasts < 0)
        latencies, excess = latencies[some], excess[some]
        begins, ends = (graph.time[side[latencies]] for side in (edges.source, edges.target))
        left = ends - self.find_returns(latencies, begins, ends)
        excess = np.minimum(excess, left).sum()
        return float(excess) / max(self.span, 1)

    def find_returns(self, rows: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Return for each launch the time at which its call ends (ns), but not later than the start
        of the work. For edges that are not launches of work starting within its call, return their
        starts.

        rows: numbers of edges. begins, ends: their times (ns).
        """
        edges, graph, returns = self.edges, self.graph, begins.copy()
        within = np.flatnonzero((edges.kind[rows] == Kind.LAUNCH) & (edges.key[rows] % 2 == 0))
        source = edges.source[rows[within]]
        # Most calls are the work of the node at their begin.
        call = len(graph.target) + (source >> 1)
        others = np.flatnonzero(edges.kind[call] != Kind.CALL)
        if len(others):
            calls = np.flatnonzero(edges.kind[: len(graph.target)] == Kind.CALL)
            calls = calls[np.isin(edges.source[calls], source[others])]
            calls = calls[np.argsort(edges.source[calls])]
            call[others] = calls[np.searchsorted(edges.source[calls], source[others])]
        at = graph.time[edges.target[call]]
        returns[within] = np.clip(at, begins[within], ends[within])
        return returns


def sum_lasts(work: pl.DataFrame, *by: str) -> pl.DataFrame:
    """Sum `lasts` and `count` of some work by the columns `by`. Return the sums, the longest first;
    with equal time, the lowest values first. work: frame with `lasts` (ns), `count` and these
    columns.
    """
    sums = work.group_by(by).agg(pl.col("lasts", "count").sum())
    return sums.sort(-pl.col("lasts"), *by)


def _measure(weight: Durations, path: np.ndarray) -> int:
    """Return the length of a path (ns), or a very negative number if one of its edges does not
    apply.
    """
    length = 0
    for part in split_rows(len(path)):
        lasts = weight[path[part]]
        if lasts.min(initial=0) <= NO_WEIGHT:
            return -(1 << 62)
        length += int(lasts.sum())
    return length
