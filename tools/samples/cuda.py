"""Rows of CUDA in one rank's report: calls of the API, kernels, copies, events, synchronisation,
graphs.

No public export holds the rows that CUDA graphs leave when they are made. Their tables follow
NVIDIA's schema reference. Known from users' reports: node events are named "Graph Node Creation"
and come after the capture's end; kernels name clones, which point to the captured nodes by
``originalGraphNodeId``. The other names are inferred.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .cluster import Ints
from .data import KERNELS, LAUNCHES
from .options import Options
from .program import GRAPH_BEGIN, GRAPH_INSTANTIATE, Kind, Op, Program
from .report import Column, Report
from .timeline import Block

NO_ID = 4_294_967_295  # how exports write "no stream" and "no event"
SYNC_TYPES = {Kind.SYNC_EVENT: 1, Kind.WAIT: 2, Kind.SYNC_STREAM: 3, Kind.SYNC_DEVICE: 4}
ON_STREAM = (Kind.WAIT, Kind.SYNC_STREAM)
FIRST_EVENT = 101
NODE, EXECUTABLE, GRAPH = 77, 94, 95  # event classes
TABLE = "CUPTI_ACTIVITY_KIND_"


def count_blocks(op: Op, options: Options) -> int:
    """Return the first dimension of a kernel's grid; of an NCCL kernel its channels."""
    grid = KERNELS[op.kernel].columns["gridX"]
    limited = op.kind is Kind.COLLECTIVE and options.nccl_channels
    return min(grid, options.nccl_channels) if limited else grid


def number_graph(graph: int) -> int:
    """Return CUPTI's id of a captured graph; the executable graph made from it has the next."""
    return 2 * graph + 1


def number_node(graph: int, node: int, original: bool = False) -> int:
    """Return the id of a graph's node; a replayed kernel names the executable graph's clone."""
    return number_graph(graph) + (not original) << 32 | node + 1


class CudaRows:
    """Writes the runs of one program into one report."""

    def __init__(self, program: Program, report: Report) -> None:
        self.program, self.report, self.ops = program, report, program.ops
        self.whole_graphs = report.options.graph_level(report.rank.rank) == "graph"
        steps = [1 + (index % 5 == 0) * 2 if op.api else 0 for index, op in enumerate(self.ops)]
        self.correlations = np.cumsum([0, *steps])[:-1]
        self.correlation_span = int(sum(steps)) + 1
        for nodes in program.graphs.values():
            self.correlations[nodes] = self.correlations[nodes[0] - 1]
        self.api = np.array([index for index, op in enumerate(self.ops) if op.api], np.int64)
        kernels = program.all_of(Kind.KERNEL, Kind.COLLECTIVE)
        hidden = [index for index in kernels if self.whole_graphs and self.ops[index].graph >= 0]
        self.kernels = np.array([one for one in kernels if one not in hidden], np.int64)
        self.kernel_columns = self._list_kernel_columns()

    def _each(self, which: Ints, value: Callable[[Op], Any], dtype: Any = np.int64) -> Any:
        return np.array([value(self.ops[index]) for index in which], dtype=dtype)

    def _place(self, which: Ints, first: Ints | int = 0) -> dict[str, Column]:
        """Return where operations run, and the ids of their calls if the runs' first is given."""
        rank = self.report.rank
        placed = {**rank.columns, "streamId": self._each(which, lambda op: rank.stream(op.stream))}
        return {**placed, "correlationId": first + self.correlations[which]}

    def _list_kernel_columns(self) -> dict[str, Column]:
        table, columns = f"{TABLE}KERNEL", self._place(self.kernels)
        kernels = [KERNELS[self.ops[index].kernel].columns for index in self.kernels]
        for name in kernels[0] if kernels else ():
            columns[name] = self.report.encode(table, name, [one[name] for one in kernels])
        columns["gridX"] = self._each(
            self.kernels, lambda op: count_blocks(op, self.report.options)
        )
        columns |= {"launchType": 1, "localMemoryPerThread": 0, "localMemoryTotal": 250_871_808}
        columns |= {"clusterSchedulingPolicy": 1, "tensorSizeMinusOneElements": "[]"}
        nodes = [(self.ops[index].graph, index) for index in self.kernels.tolist()]
        if any(graph >= 0 for graph, _ in nodes):
            ids = [
                (number_node(graph, self.program.graphs[graph].index(index)), number_graph(graph))
                if graph >= 0
                else (None, None)
                for graph, index in nodes
            ]
            columns["graphNodeId"], columns["graphId"] = np.array(ids, object).T
        return columns

    def write(self, block: Block, epochs: Ints) -> None:
        """Write runs that begin at ``epochs`` (true time, ns)."""
        report = self.report
        first = report.correlation + self.correlation_span * np.arange(len(epochs))[:, None]
        if len(which := self.api):
            self._write_calls(first, *report.edges(epochs, block.host, which))
        if len(which := self.kernels):
            begin, end = report.edges(epochs, block.gpu, which)
            columns = self.kernel_columns | {"correlationId": first + self.correlations[which]}
            columns["gridId"] = report.grid + np.arange(begin.size).reshape(begin.shape)
            report.insert(f"{TABLE}KERNEL", begin, end, **columns)
            report.grid += begin.size
        for kind in (Kind.COPY, Kind.SET):
            if len(which := np.array(self.program.all_of(kind), np.int64)):
                edges = report.edges(epochs, block.gpu, which)
                self._write_memory(kind, which, first, *edges)
        self._write_events(first, block, epochs)
        if self.whole_graphs and self.program.graphs:
            self._write_graphs(first, block, epochs)
        report.correlation += self.correlation_span * len(epochs)
        report.event_sync += self.program.events * len(epochs)

    def _write_calls(self, first: Ints, begin: Ints, end: Ints) -> None:
        report, functions = self.report, [self.ops[index].api for index in self.api]
        correlations = first + self.correlations[self.api]
        if report.first_launch is None:
            at = functions.index(LAUNCHES["runtime"])
            first_launch = (int(values[0, at]) for values in (correlations, begin, end))
            report.first_launch = tuple(first_launch)
        threads = [self.ops[index].thread for index in self.api]
        report.insert_calls(begin, end, functions, thread=threads, correlationId=correlations)

    def _write_memory(self, kind: Kind, which: Ints, first: Ints, begin: Ints, end: Ints) -> None:
        table = "MEMSET" if kind is Kind.SET else "MEMCPY"
        columns = self._place(which, first)
        columns["bytes"] = self._each(which, lambda op: op.bytes)
        if kind is Kind.SET:
            columns |= {"value": 0, "memKind": 2}
        else:
            kinds = self._each(which, lambda op: op.copy).T
            columns |= dict(zip(("copyKind", "srcKind", "dstKind"), kinds, strict=True))
            columns["copyCount"] = 1
            # A peer copy: from this process's device to the next on the host.
            if (of_peers := kinds[0] == 10).any():
                own = self.report.rank.device
                other = (own + 1) % self.report.options.gpus_per_host
                for side, device in (("src", own), ("dst", other)):
                    columns[f"{side}DeviceId"] = np.where(of_peers, device, None)
                    columns[f"{side}ContextId"] = np.where(of_peers, device + 1, None)
        self.report.insert(f"{TABLE}{table}", begin, end, **columns)

    def _write_events(self, first: Ints, block: Block, epochs: Ints) -> None:
        """Write CUDA events, and SYNCHRONIZATION rows: the middle of the API call (its deviceId is
        0 in real exports, whatever the device).
        """
        report = self.report
        recorded = report.event_sync + self.program.events * np.arange(len(first))[:, None]
        if len(which := np.array(self.program.all_of(Kind.RECORD), np.int64)):
            events = self._each(which, lambda op: op.event)
            columns = self._place(which, first) | {"timestamp": 0}
            columns |= {"eventId": events + FIRST_EVENT, "eventSyncId": recorded + events}
            begin, _ = report.edges(epochs, block.host, which)
            report.insert(f"{TABLE}CUDA_EVENT", begin, **columns)
        if len(which := np.array(self.program.all_of(*SYNC_TYPES), np.int64)):
            events = self._each(which, lambda op: op.event)
            types = self._each(which, lambda op: SYNC_TYPES[op.kind])
            begin, end = report.edges(epochs, block.host, which)
            inset = (end - begin) // 8
            columns = self._place(which, first) | {"deviceId": 0, "syncType": types}
            del columns["greenContextId"]
            waits = self._each(which, lambda op: op.kind in ON_STREAM, np.bool_)
            columns["streamId"] = np.where(waits, columns["streamId"], NO_ID)
            columns["eventId"] = np.where(events < 0, NO_ID, events + FIRST_EVENT)
            columns["eventSyncId"] = np.where(events < 0, 0, recorded + events)
            report.insert(f"{TABLE}SYNCHRONIZATION", begin + inset, end - inset, **columns)

    def _write_graphs(self, first: Ints, block: Block, epochs: Ints) -> None:
        """Write a GRAPH_TRACE row per launch, from its first kernel's begin to its last kernel's end."""
        graphs = sorted(self.program.graphs)
        heads, tails = (
            np.array([self.program.graphs[graph][place] for graph in graphs]) for place in (0, -1)
        )
        ids = np.array([number_graph(graph) for graph in graphs])
        columns = {**self._place(heads, first), "graphId": ids, "graphExecId": ids + 1}
        begin, _ = self.report.edges(epochs, block.gpu, heads)
        _, end = self.report.edges(epochs, block.gpu, tails)
        self.report.insert(f"{TABLE}GRAPH_TRACE", begin, end, **columns)


def write_graph_creation(program: Program, block: Block, epoch: Ints, report: Report) -> None:
    """Write rows for the graphs that the initial program, run at ``epoch``, captured."""
    rank, ops = report.rank, program.ops
    begins, ends = (edge[0].tolist() for edge in report.edges(epoch, block.host, range(len(ops))))
    main = rank.global_tid(0)
    graphs: list[tuple[Any, ...]] = []
    nodes: list[tuple[int, int, int, int, int | None]] = []
    for index in (index for index, op in enumerate(ops) if op.api == GRAPH_INSTANTIATE):
        begin = max(one for one in range(index) if ops[one].api == GRAPH_BEGIN)
        graph, count = ops[index].launches, index - begin - 2
        number = number_graph(graph)
        created, captured = begins[begin] + 200, ends[index - 1]
        made, done = begins[index], ends[index]
        graphs.append((created, created + 90, GRAPH, main, "Graph Creation", number, None))
        graphs.append(
            (made + 300, done - 300, EXECUTABLE, main, "Graph Exec Creation", number, number + 1)
        )
        step = max(1, (done - made) // (2 * count + 2))
        for node in range(count):
            original = number_node(graph, node, original=True)
            nodes.append((captured + 5 * node, NODE, main, original, None))
            nodes.append((made + step * (node + 1), NODE, main, number_node(graph, node), original))
    if not graphs:
        return
    names = "start end eventClass globalTid nameId graphId graphExecId"
    report.add("CUDA_GRAPH_EVENTS", names, graphs)
    if report.options.graph_level(rank.rank) == "node":
        name = "Graph Node Creation"
        rows = [(start, start, kind, tid, name, *ids) for start, kind, tid, *ids in sorted(nodes)]
        names = "start end eventClass globalTid nameId graphNodeId originalGraphNodeId"
        report.add("CUDA_GRAPH_NODE_EVENTS", names, rows)
