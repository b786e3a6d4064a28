"""Share the context for describing causes of a job: the job and its replay, how a finding is made,
and where in the program the time of a cause is spent (call, kernel, NVTX range, moment).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from msgspec.structs import replace

from nsys2prv._util.columns import DURATION, join_columns
from nsys2prv._util.intervals import Spans, find_innermost, find_parents, merge_spans
from nsys2prv._util.text import shorten_name
from nsys2prv.events.catalogue import map_labels
from nsys2prv.figures.device_group import (
    DeviceGroup,
    find_rows,
    read_ordered_ranges,
    to_arrays,
)
from nsys2prv.figures.host_time import (
    PARTS,
    describe_parts,
    find_host_parts,
    list_activities,
    sum_host_parts,
    sum_ranges,
)
from nsys2prv.figures.kernels import is_shared
from nsys2prv.figures.nvtx_operations import NUMBER
from nsys2prv.figures.stacks import find_place, measure_places
from nsys2prv.match.handoffs import list_handoffs, list_joining_handoffs
from nsys2prv.replay.graph import TRANSFERS, Edges, Graph, Kind, split_size
from nsys2prv.replay.unit_graph import split_place
from nsys2prv.replay.whatif import GPU, Replay
from nsys2prv.table.event_reader import CAPTURED, HOST, RANGES
from nsys2prv.verdict.host_use import OVER, JobFacts, NamedTime, Pauses
from nsys2prv.verdict.thresholds import EXPLAINS, LARGE_PART, LEAST_STATED, MOST
from nsys2prv.verdict.words import ADVICE, TEXTS, Said, say

#: Groups of NVTX names from here on represent all names that differ only in numbers.
ALIKE, ALL_NUMBERS = 1 << 40, pl.col("pattern").str.replace_all(NUMBER, "*")
#: Columns of list_activities -> the fields of NamedTime.
NAMED_TIMES = ("part", "names", "name", "time", "longest")


class CauseContext(JobFacts, frozen=True, dict=True):
    """Describes causes of lost time in a job: finds the names, NVTX ranges and moments of the work
    concerned.
    """

    replay: Replay

    @property
    def graph(self) -> Graph:
        """The dependency graph of the job."""
        return self.replay.graph

    @property
    def edges(self) -> Edges:
        """Columns about the edges of the graph."""
        return self.replay.edges

    @cached_property
    def _ranges(self) -> dict[tuple[str, int], tuple[Any, ...]]:
        """Cache: (layout, unit) -> NVTX ranges."""
        return {}

    @property
    def waiting(self) -> str:
        """Return a text that names the ranks that wait for others."""
        if is_shared(self.frames):
            return "Kernels"
        return "GPUs" if self.job.has_gpus else "Ranks"

    @cached_property
    def host_places(self) -> list[tuple[int, int, float]]:
        """(kind, key, share) of each host activity on the critical path (a call, or the time
        between two calls), the longest first.
        """
        path, kinds = self.replay.path, self.replay.edges.kind
        path = path[np.isin(kinds[path], (Kind.CALL, Kind.GAP, Kind.LAUNCH))]
        sums = self.replay.sum_work(path, "kind", "key")
        share = pl.col("lasts") / max(sums["lasts"].sum(), 1)
        return sums.select("kind", "key", share).rows()

    @cached_property
    def launches_graphs(self) -> bool:
        """True if graph launches take most of the launch time on the critical path."""
        shares = {False: 0.0, True: 0.0}
        for kind, key, share in self.host_places:
            call = {Kind.CALL: key, Kind.LAUNCH: key // 2}.get(Kind(kind), -1)
            if "Launch" in (name := self.name_call(call)):
                shares["GraphLaunch" in name] += share
        return shares[True] > shares[False]

    @cached_property
    def already(self) -> dict[str, bool]:
        """Measures against lost time that the program already takes, as key -> bool: most launches
        are of graphs; no copy uses pageable memory; micro-batches pass a rank several times.
        """
        copies, kinds = self.frames["copies"], map_labels("memory_kind")
        used = {*copies["source"], *copies["destination"]} if copies.height else set()
        is_pinned = kinds["pinned"] in used and kinds["pageable"] not in used
        pipeline = self.replay.pipeline
        is_interleaved = pipeline is not None and pipeline.rounds > 1
        return {
            "graphs": self.launches_graphs,
            "pinned": is_pinned,
            "interleaved": is_interleaved,
        }

    def advise(self, key: str) -> str:
        """Return the advice with this key of ADVICE, or an alternative if the program already
        follows it.
        """
        others = TEXTS["already"].get(key, {})
        return ADVICE[next((do for fact, do in others.items() if self.already[fact]), key)]

    def is_backed(self, gain: float, states: float) -> bool:
        """Return True if the times that explain a cause (`states`, ns) amount to its savings
        (`gain`, a share of the span).
        """
        return states >= LEAST_STATED * gain * self.replay.span

    def describe_unrecorded(
        self, partly: object = None, what: str = "host activity during this time"
    ) -> Said:
        """Return a sentence that some host activity was not recorded, or only partly, with the
        option that records it.
        """
        return say("unrecorded", what=what, partly=partly, options=self.lacking)

    def list_unrecorded(self, known: object) -> list[Said]:
        """Return sentences about options that would record more about hosts. known: kinds of host
        activity that were recorded; empty for none.
        """
        return [self.describe_unrecorded(known)] if self.frames["unrecorded"].height else []

    # Times and places of edges.

    def measure(self, edges: np.ndarray) -> np.ndarray:
        """Return the recorded duration of the work of each edge (ns); a call includes its wait."""
        begin, end = self.find_times(edges)
        return np.maximum(end - begin, 0)

    def find_times(self, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return two arrays: the recorded start and end of each edge (ns)."""
        time = self.graph.time
        return time[self.edges.source[edges]], time[self.edges.target[edges]]

    def measure_busy(self, edges: np.ndarray) -> float:
        """Return the share of these edges' time in which a GPU of the process works, for the
        process with the most time in them.
        """
        lasts, process = self.measure(edges), np.maximum(self.edges.process[edges], 0)
        longest = int(np.argmax(np.bincount(process, lasts, 1)))
        work = merge_spans(*self.find_times(self.replay.select(GPU, processes=[longest])))
        own = process == longest
        busy = work.within(*self.find_times(edges[own])).sum()
        return float(busy / max(lasts[own].sum(), 1))

    def keep_name(self, edges: np.ndarray, saved: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Keep only the edges of the name (such as a kernel) with the largest savings. Return them,
        and their savings (ns). saved: savings of each edge (ns).
        """
        if not len(edges):
            return edges, saved
        own = self.edges.key[edges] == self._find_longest_name(edges, saved, "key")[0]
        return edges[own], saved[own]

    def _find_longest_name(self, edges: np.ndarray, lasts: np.ndarray, *by: str) -> tuple:
        return self.replay.sum_work(edges, *by, lasts=lasts).row(0)

    def find_moment(
        self, edges: np.ndarray, saved: np.ndarray, ranks: tuple[int, ...] = ()
    ) -> tuple[tuple[int, int, tuple[int, ...]], ...]:
        """Return the moments with the largest savings, as (start, end, ranks to look at); times are
        ns of the trace. edges, saved: the work, and its savings (ns). ranks: ranks at fault. If
        there are many small parts, return all moments in which others wait for these ranks.
        """
        if not len(edges):
            return ()
        process, worst = self.edges.process[edges], int(np.argmax(saved))
        (begin,), (end,) = self.find_times(edges[[worst]])
        if ranks:
            (first, last), at = self._find_awaited(process), self.find_times(edges)[0]
            order = np.argsort(at)
            until = np.append(0, np.cumsum(saved[order]))
            low, high = (np.searchsorted(at[order], time) for time in (first, last))
            sums = until[high] - until[low]
            if len(sums) and saved[worst] < LARGE_PART * sums.max():
                begin, end = first[np.argmax(sums)], last[np.argmax(sums)]
        elif process[worst] >= 0:
            ranks = self.job.list_ranks([int(process[worst]) + 1])
        return ((max(int(begin), 0), int(end), ranks),)

    def _find_awaited(self, processes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the starts and ends of the parts of the critical path on these processes."""
        path = self.replay.path
        own = np.isin(self.edges.process[path], processes)
        begins, ends = self.find_times(path)
        # The last edge of the path is the first.
        return (
            begins[np.flatnonzero(np.diff(own, append=False) & own)],
            ends[np.flatnonzero(np.diff(own, prepend=False) & own)],
        )

    # Names.

    def name_call(self, name: int) -> str:
        """Return the label of a call. name: its number."""
        return self.replay.job.calls.get(name, f"call {name}")

    def name_kernel(self, name: int) -> str:
        """Return the label of a kernel or a graph. name: its number."""
        label = self.context.find_label(name, "kernels", "nccl_kernels", "graphs")
        return shorten_name(label) or f"kernel {name}"

    def name_transfer(self, kind: Kind, name: int) -> str:
        """Return the label of a transfer: an NCCL kernel or an MPI call. name: its number."""
        if name <= 0:
            return TEXTS["work"][kind.name]
        return self.name_kernel(name) if kind == Kind.NCCL else self.name_call(name)

    def name_transfers(self, edges: np.ndarray, weights: np.ndarray) -> Said:
        """Return a text with the transfers that have most of the weight, and their NVTX range.
        weights: of each edge.
        """
        names, place = np.unique(split_size(self.edges.size[edges])[0], return_inverse=True)
        own = place == np.argmax(np.bincount(place, weights, len(names)))
        kind = Kind(self.edges.kind[edges[own][0]])
        label = self.name_transfer(kind, int(names[place[own][0]]))
        return self._name_inside(label, edges[own], weights[own])

    def _name_inside(self, what: str, edges: np.ndarray, weights: np.ndarray) -> Said:
        """Return a text with an item, and the NVTX range with most of these weights."""
        return say("inside", what=what, range=self.name_range(self.find_range(edges, weights)[0]))

    def name_place(self, kind: Kind, key: int) -> str:
        """Return the name of a call, a launch, or the time between two calls: for example `in
        cudaFree`. kind: of edge, such as CALL or GAP. key: number of the name or place.
        """
        if kind == Kind.CALL:
            return f"in {self.name_call(key)}"
        if kind == Kind.KERNEL:
            return f"in kernel {self.name_kernel(key)}"
        if kind == Kind.LAUNCH:
            return f"from {self.name_call(key // 2)} to the start of its work"
        if kind != Kind.GAP:
            return f"in {TEXTS['work'][kind.name]}"
        before, after = map(self.name_call, split_place(key))
        return f"between {before} calls" if before == after else f"between {before} and {after}"

    def name_work(self, edges: np.ndarray, weights: np.ndarray) -> Said:
        """Return a text with the place in the program and the NVTX range that have most of the
        weight. weights: of each edge.
        """
        kind, key, *_ = self._find_longest_name(edges, weights, "kind", "key")
        return self._name_inside(self.name_place(Kind(kind), key), edges, weights)

    def name_range(self, group: int) -> str:
        """Return the label of a group of NVTX ranges, or ""."""
        if group >= ALIKE:
            return str(self.alike["pattern"][self.list_groups(group)[0]])
        return self.context.find_label(group, "range") if group >= 0 else ""

    # NVTX ranges.

    @cached_property
    def alike(self) -> pl.DataFrame:
        """For each group of NVTX names, the common name of all groups that differ only in numbers
        (`pattern`), and its number (`code`).
        """
        names = self.context.folded.select("group", pattern=pl.col("operation"))
        names = names.unique("group").sort("group").with_columns(ALL_NUMBERS)
        return names.with_columns(code=pl.col("pattern").rank("dense").cast(pl.Int64) - 1)

    def list_groups(self, group: int) -> list[int]:
        """Return the groups of NVTX names that a group from :meth:`find_range` represents."""
        alike = self.alike.filter(code=group - ALIKE)
        return alike["group"].to_list() if group >= ALIKE else [group]

    def find_range(self, edges: np.ndarray, weights: np.ndarray) -> tuple[int, float]:
        """Find the NVTX range that explains a loss, on the process with the largest part of it.
        Return the group of the innermost range with most of the weight and its share of the weight,
        or (-1, 0.0) if no range explains it.

        edges: the work that was lost; weights: the loss of each. If ranges that differ only in
        numbers, such as layers, share the weights, the group represents all of them
        (:meth:`list_groups`).
        """
        process = np.maximum(self.edges.process[edges], 0)
        own = process == np.argmax(np.bincount(process, weights)) if len(edges) else process > 0
        found = self.find_groups(edges[own])
        inside = found >= 0
        if not inside.any():
            return -1, 0.0
        of_single = np.bincount(found[inside], weights[own][inside])
        codes = self.alike["code"].to_numpy()
        of_alike = np.bincount(codes[: len(of_single)], of_single)
        single, alike = int(of_single.argmax()), int(of_alike.argmax())
        is_single = of_single[single] >= MOST * of_alike[codes[single]]
        group, time = (
            (single, of_single[single])
            if is_single and codes[single] == alike
            else (ALIKE + alike, of_alike[alike])
        )
        share = float(time / weights[own].sum())
        return (group, share) if share >= EXPLAINS else (-1, 0.0)

    def find_groups(self, edges: np.ndarray) -> np.ndarray:
        """Return for each edge the group of the innermost NVTX range in which the host executed or
        launched its work, or -1: on its thread, otherwise on the first thread of its process.
        """
        work, row, time = self._find_host_times(edges)
        groups, rows = np.full(len(edges), -1, np.int64), self.context.reader.rows
        hosts = pl.col("thread").filter(pl.col("kind") == HOST).min().over("task")
        first = rows.threads.select(hosts.fill_null(-1)).to_series().to_numpy()
        for layout in filter(self.context.reader.layouts.__contains__, RANGES):
            for at, when in (self._find_captures(*work), (row, time), (first[row], time)):
                units = rows.units[at]
                for unit in np.unique(units).tolist():
                    own = np.flatnonzero((units == unit) & (groups < 0) & (at >= 0))
                    groups[own] = self._find_innermost(layout, unit, at[own], when[own])
        return groups

    def _find_captures(self, row: np.ndarray, begin: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the thread and time (ns) of the capture of graph work, given by its row and start;
        -1 for other work.
        """
        captor, captured, reader = *np.full((2, len(row)), -1), self.context.reader
        units = reader.rows.units[row]
        for unit in np.unique(units).tolist() if reader.captures else ():
            key = f"replays {unit}"
            replays = reader.remember(key, lambda unit=unit: reader.read_replays(unit))
            own = np.flatnonzero(units == unit)
            found = find_rows(*to_arrays(replays, "thread", "begin"), row[own], begin[own])
            own, found = own[found >= 0], found[found >= 0]
            captor[own], captured[own] = (replays[name].to_numpy()[found] for name in CAPTURED)
        return captor, captured

    def _find_host_times(
        self, edges: np.ndarray
    ) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray, np.ndarray]:
        """Return the row and start (ns) of each edge's activity, then the row of the host thread
        and its time (ns). For device work, this is the time of its launch.
        """
        rows, at, kind = self.replay.job.rows, self.graph.time, self.edges.kind[edges]
        source, target = self.edges.source[edges], self.edges.target[edges]
        # Transfers follow a meeting; the begin of the earlier work counts.
        node, transfers = source.copy(), np.flatnonzero(np.isin(kind, TRANSFERS))
        own = target[transfers], source[transfers], Kind.MEET, Kind.CALL
        node[transfers] = self._step_back(*own)
        launched = np.flatnonzero(np.isin(kind, (Kind.KERNEL, Kind.COPY, Kind.NCCL)))
        work = rows[node], at[node]
        node[launched] = self._step_back(node[launched], node[launched], Kind.LAUNCH)
        time = np.where(kind == Kind.GAP, (at[source] + at[target]) // 2, at[node])
        return work, rows[node], time

    def _step_back(self, nodes: np.ndarray, others: np.ndarray, *kinds: Kind) -> np.ndarray:
        """Return the sources of edges of these kinds, on one row, that lead to the nodes. Without
        such an edge, return the entry in `others`.
        """
        steps = self.graph.find_edges(nodes, kinds)
        found, has_step = others.copy(), steps >= 0
        found[has_step] = self.edges.source[steps[has_step]]
        return found

    def _find_innermost(
        self, layout: str, unit: int, row: np.ndarray, time: np.ndarray
    ) -> np.ndarray:
        """Return the group of the innermost range on each row at each time, or -1."""
        if (layout, unit) not in self._ranges:
            given = self.context.reader, self.options, layout, unit
            *sides, groups = read_ordered_ranges(*given)
            parent = find_parents(*sides)[1]
            self._ranges[layout, unit] = sides, parent, np.append(groups, -1)
        sides, parent, groups = self._ranges[layout, unit]
        return groups[find_innermost(sides, parent, row, time)]

    # Host activity.

    def name_processes(self, processes: Sequence[int]) -> str:
        """Return a text that names processes: ranks with hosts and GPUs, or a thread of a helper
        with its host.
        """
        if (row := self.replay.job.helpers.get(processes[0])) is None:
            return self.job.describe_ranks([one + 1 for one in processes])
        name, node = self.context.name_thread(row)
        return f"process {name} ({node})"

    def describe_waiters(
        self, processes: Sequence[int], gained: float | None = None
    ) -> Iterator[Said]:
        """Yield sentences about the ranks that wait in OS runtime calls until processes hand off
        their results: the call and the wait time. gained: savings within it (ns), if not all of it.
        """
        process_of = self.graph.processes
        rows = list_joining_handoffs(self.context.reader)
        rows = rows.filter(
            pl.col("end").is_between(self.replay.begin, self.replay.end),
            pl.Series(np.isin(process_of[rows["releaser"].to_numpy()], processes)),
        )
        if not rows.height:
            return
        waits = rows.group_by("releaser", "since").agg(lasts=DURATION.max())["lasts"]
        waiting = np.unique(process_of[rows["thread"].to_numpy()])
        ranks = [one for one in waiting.tolist() if one not in self.replay.job.helpers]
        sums = rows.group_by("call").agg(lasts=DURATION.sum()).sort("lasts", "call")
        yield say(
            "waited for",
            waiters=self.name_processes(ranks or waiting.tolist()),
            one=len(ranks) < 2,
            several=len(ranks) > 1,
            call=self.context.find_label(sums["call"][-1], "osrt", "pthread"),
            count=len(waits),
            whole=waits.sum(),
            gained=gained,
            median=waits.median(),
            longest=waits.max(),
        )

    def describe_pauses(self, edges: np.ndarray, told: str) -> list[Said]:
        """Return sentences about the activities of hosts between calls, and about options that
        would record more of them. edges: the pauses. told: NVTX range that has already been named.
        """
        pauses = self.find_pauses(edges)
        if pauses.range and pauses.range.name == told:
            pauses = replace(pauses, range=None)
        described = [*pauses.describe()]
        return [*described, *self.list_unrecorded(described)]

    def find_pauses(self, edges: np.ndarray) -> Pauses:
        """Return the activities of a host during these pauses between calls: of the host with the
        longest pauses in total.
        """
        if (longest := self._find_longest(edges)) is None:
            return Pauses(dict.fromkeys(PARTS, 0), None, None)
        unit, row, spans = longest
        until = self._describe_releaser(row, spans)
        return replace(self._find_activities(unit, row, spans), until=until)

    def _describe_releaser(self, row: int, spans: Spans) -> Said | None:
        """Return a sentence about the other thread that ends most waits of a host thread in a set
        of times, and about its activity until then; None if no such thread is known.
        """
        waits = list_handoffs(self.context.reader).filter(thread=row)
        begin, end, since, released = to_arrays(waits, "begin", "end", "since", "released")
        waits = waits.select("releaser", time=spans.within(begin, end))
        sums = waits.group_by("releaser").agg(pl.col("time").sum()).sort("time", "releaser")
        if not sums.height or sums["time"][-1] < EXPLAINS * spans.length:
            return None
        other, time = sums.row(-1)
        own = (waits["releaser"] == other).to_numpy() & (waits["time"] > 0).to_numpy()
        works = merge_spans(np.maximum(since, begin)[own], released[own])
        does = self._find_activities(self._open_unit(other), other, works)
        name, _ = self.context.name_thread(other)
        known = describe_parts(does.parts) if does.parts["unknown"] < works.length else ""
        what = ", ".join(str(one.of_whole) for one in (does.range, does.call) if one)
        share = time / max(spans.length, 1)
        return say("until", share=share, thread=name, parts=known, what=what)

    def _find_activities(self, unit: DeviceGroup, row: int, spans: Spans) -> Pauses:
        """Return the activities of a thread in a set of times."""
        # Ranges first: while all calls are in memory these would need more.
        ranges = sum_ranges(unit, row, spans, alone=True)
        when = [*find_host_parts(unit, row, spans)]
        parts = sum_host_parts(when)
        # A host that goes on afterwards has neither ended nor not begun.
        for part in (*OVER, "away"):
            parts["unknown"] += parts[part]
            parts[part] = 0
        whole = max(sum(parts.values()), 1)
        rows = join_columns([list_activities(unit, row, [spans], ranges, [when])])
        rows = rows.sort("time", descending=True)
        named = []
        for of_parts in (["range"], ["nccl", "io", "os"]):
            own = rows.filter(pl.col("part").is_in(of_parts))
            own = own.filter(pl.col("time") >= EXPLAINS * whole).head(1)
            found = None
            for part, names, name, time, lasts in own.select(*NAMED_TIMES).rows():
                if label := self.context.find_label(name, names):
                    found = NamedTime(part, names, label, time, lasts, time / whole)
            named.append(found)
        return Pauses(parts, *named)

    def find_function(self, edges: np.ndarray) -> str:
        """Return where in the program (from call stacks) the host is for most of the time of these
        edges (calls, or pauses between calls); "" if stacks do not show it. Only the host with the
        most time counts.
        """
        kinds = set(self.edges.kind[edges].tolist())
        if (
            not kinds
            or not kinds <= {Kind.CALL, Kind.GAP}
            or (longest := self._find_longest(edges)) is None
        ):
            return ""
        unit, row, spans = longest
        places = measure_places(unit, row, spans)
        return str(find_place(places, max(spans.length, 1), self.context) or "")

    def _open_unit(self, row: int) -> DeviceGroup:
        """Return the unit of a row, with the CUDA API calls of this row alone."""
        unit = int(self.context.reader.rows.units[row])
        folder = Path(str(self.options.groups)).parent
        return DeviceGroup(self.context.reader, unit, self.options, folder, row)

    def _find_longest(self, edges: np.ndarray) -> tuple[DeviceGroup, int, Spans] | None:
        """Return the host thread with the most time in these edges, with its unit and these times."""
        row = np.asarray(self.replay.job.rows[self.edges.source[edges]], np.int64)
        longest = int(np.argmax(np.bincount(row + 1, self.measure(edges)))) - 1
        if longest < 0:
            return None
        return (
            self._open_unit(longest),
            longest,
            merge_spans(*self.find_times(edges[row == longest])),
        )
