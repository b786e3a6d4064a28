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
from numpy.typing import NDArray

from .cluster import Ints
from .data import KERNELS, LAUNCHES, Kernel, enum_label
from .options import Options
from .program import GRAPH_BEGIN, GRAPH_INSTANTIATE, Kind, Op, Program
from .report import Column, Report
from .timeline import Block, Floats

NO_ID = 4_294_967_295  # how exports write "no stream" and "no event"
SYNC_TYPES = {Kind.SYNC_EVENT: 1, Kind.WAIT: 2, Kind.SYNC_STREAM: 3, Kind.SYNC_DEVICE: 4}
ON_STREAM = (Kind.WAIT, Kind.SYNC_STREAM)
FIRST_EVENT = 101
NODE, EXECUTABLE, GRAPH = 77, 94, 95  # event classes


def blocks_of(op: Op, options: Options) -> int:
    """The first dimension of a kernel's grid; of an NCCL kernel its channels."""
    grid = KERNELS[op.kernel].grid[0]
    return (
        min(grid, options.nccl_channels)
        if op.kind is Kind.COLLECTIVE and options.nccl_channels
        else grid
    )


def graph_id(graph: int) -> int:
    """CUPTI's id of a captured graph; the executable graph made from it has the next."""
    return 2 * graph + 1


def node_id(graph: int, node: int, original: bool = False) -> int:
    """Graph node ids carry the id of their graph in the upper half; a replayed kernel names the
    executable graph's clone.
    """
    return graph_id(graph) + (not original) << 32 | node + 1


class CudaRows:
    """Writes the runs of one program into one report."""

    def __init__(self, program: Program, report: Report) -> None:
        self.program, self.report = program, report
        ops = program.ops
        self.graph_level = report.options.graph_level(report.rank.rank) == "graph"
        steps = [1 + (index % 5 == 0) * 2 if op.api else 0 for index, op in enumerate(ops)]
        self.correlations = np.cumsum([0, *steps])[:-1]
        self.correlation_span = int(sum(steps)) + 1
        for nodes in program.graphs.values():
            self.correlations[nodes] = self.correlations[nodes[0] - 1]
        self.api = np.array([index for index, op in enumerate(ops) if op.api], dtype=np.int64)
        kernels = program.all_of(Kind.KERNEL, Kind.COLLECTIVE)
        self.kernels = np.array(
            [index for index in kernels if not (self.graph_level and ops[index].graph >= 0)],
            dtype=np.int64,
        )
        self.kernel_columns = self._kernel_columns()

    def _each(self, which: Ints, value: Callable[[Op], Any], dtype: Any = np.int64) -> NDArray[Any]:
        return np.array([value(self.program.ops[index]) for index in which], dtype=dtype)

    def _place_events(self, which: Ints, first: Ints | int = 0) -> dict[str, Column]:
        """Where operations run, and the ids of their calls if the runs' first is given."""
        rank = self.report.rank
        placed = {**rank.columns, "streamId": self._each(which, lambda op: rank.stream(op.stream))}
        return {**placed, "correlationId": first + self.correlations[which]}

    def _kernel_columns(self) -> dict[str, Column]:
        string = self.report.export.string
        shapes = [KERNELS[self.program.ops[index].kernel] for index in self.kernels]
        values: dict[str, Callable[[Kernel], int]] = {
            **{
                f"{name}Name": lambda k, name=name: string(getattr(k, name))
                for name in ("demangled", "short", "mangled")
            },
            "cacheConfig": lambda k: 2 if k.cluster[0] else 1,
            "registersPerThread": lambda k: k.registers,
            **{
                f"{what}{axis}": lambda k, what=what, place=place: getattr(k, what)[place]
                for what in ("grid", "block", "cluster")
                for place, axis in enumerate("XYZ")
            },
            "staticSharedMemory": lambda k: k.static_shared,
            "dynamicSharedMemory": lambda k: k.dynamic_shared,
            "sharedMemoryExecuted": lambda k: k.shared_executed,
            "sharedMemoryLimitConfig": lambda k: int(k.dynamic_shared > 48 * 1024),
            "maxPotentialClusterSize": lambda k: 8 if k.cluster[0] else 0,
            "maxActiveClusters": lambda k: 66 if k.cluster[0] else 0,
        }
        columns = self._place_events(self.kernels) | {
            name: np.array([value(k) for k in shapes], np.int64) for name, value in values.items()
        }
        columns |= {
            "gridX": self._each(self.kernels, lambda op: blocks_of(op, self.report.options)),
            "launchType": 1,
            "localMemoryPerThread": 0,
            "localMemoryTotal": 250_871_808,
            "clusterSchedulingPolicy": 1,
            "tensorSizeMinusOneElements": "[]",
        }
        ops, graphs = self.program.ops, self.program.graphs
        if any(ops[index].graph >= 0 for index in self.kernels):
            nodes = [(ops[index].graph, index) for index in self.kernels.tolist()]
            ids = [
                (node_id(graph, graphs[graph].index(index)), graph_id(graph))
                if graph >= 0
                else (None, None)
                for graph, index in nodes
            ]
            columns["graphNodeId"], columns["graphId"] = np.array(ids, object).T
        return columns

    def write(self, block: Block, epochs: Ints) -> None:
        """Write runs that begin at ``epochs`` (true time, ns)."""
        report, rank = self.report, self.report.rank.rank

        def local(times: Floats, which: Ints) -> Ints:
            return report.local(epochs, times[:, rank, which])

        first = report.correlation + self.correlation_span * np.arange(len(epochs))[:, None]
        if len(self.api):
            self._write_calls(
                first, local(block.host_begin, self.api), local(block.host_end, self.api)
            )
        if len(self.kernels):
            begin = local(block.gpu_begin, self.kernels)
            report.insert(
                "CUPTI_ACTIVITY_KIND_KERNEL",
                [KERNELS[self.program.ops[index].kernel].demangled for index in self.kernels],
                {
                    **self.kernel_columns,
                    "correlationId": first + self.correlations[self.kernels],
                    "gridId": report.grid + np.arange(begin.size).reshape(begin.shape),
                },
                begin,
                local(block.gpu_end, self.kernels),
                lost=report.lost_rows("kernel", self.kernels),
            )
            report.grid += begin.size
        for kind in (Kind.COPY, Kind.SET):
            if len(which := np.array(self.program.all_of(kind), dtype=np.int64)):
                self._write_memory(
                    kind, which, first, local(block.gpu_begin, which), local(block.gpu_end, which)
                )
        self._write_events(first, block, local)
        if self.graph_level and self.program.graphs:
            self._write_graphs(first, block, local)
        report.correlation += self.correlation_span * len(epochs)
        report.event_sync += self.program.events * len(epochs)

    def _write_calls(self, first: Ints, begin: Ints, end: Ints) -> None:
        report, ops = self.report, [self.program.ops[index] for index in self.api]
        functions = [op.api for op in ops]
        if report.first_launch is None:
            at = functions.index(LAUNCHES["runtime"])
            report.first_launch = (
                int(first[0, 0] + self.correlations[self.api[at]]),
                int(begin[0, at]),
                int(end[0, at]),
            )
        report.insert_calls(
            functions,
            [op.thread for op in ops],
            first + self.correlations[self.api],
            begin,
            end,
            lost=report.lost_rows("call", self.api),
        )

    def _write_memory(self, kind: Kind, which: Ints, first: Ints, begin: Ints, end: Ints) -> None:
        sizes = self._each(which, lambda op: op.bytes)
        columns = self._place_events(which, first) | {"bytes": sizes}
        if kind is Kind.SET:
            labels = ["Memset"] * len(which)
            columns |= {"value": 0, "memKind": 2}
        else:
            kinds = self._each(which, lambda op: op.copy).T
            labels = [enum_label("ENUM_CUDA_MEMCPY_OPER", one) for one in kinds[0].tolist()]
            columns |= dict(zip(("copyKind", "srcKind", "dstKind"), kinds, strict=True))
            columns["copyCount"] = 1
            # A peer copy: from this process's device to the next on the host.
            if (of_peers := kinds[0] == 10).any():
                own = self.report.rank.device
                other = (own + 1) % self.report.options.gpus_per_host
                for side, device in (("src", own), ("dst", other)):
                    columns[f"{side}DeviceId"] = np.where(of_peers, device, None)
                    columns[f"{side}ContextId"] = np.where(of_peers, device + 1, None)
        table = "CUPTI_ACTIVITY_KIND_MEMSET" if kind is Kind.SET else "CUPTI_ACTIVITY_KIND_MEMCPY"
        self.report.insert(table, labels, columns, begin, end, sizes)

    def _write_events(
        self, first: Ints, block: Block, local: Callable[[Floats, Ints], Ints]
    ) -> None:
        """CUDA events, and SYNCHRONIZATION rows: the middle of the API call (its deviceId is 0 in
        real exports, whatever the device).
        """
        report = self.report
        recorded = report.event_sync + self.program.events * np.arange(len(first))[:, None]
        if len(which := np.array(self.program.all_of(Kind.RECORD), dtype=np.int64)):
            events = self._each(which, lambda op: op.event)
            columns = self._place_events(which, first) | {"timestamp": 0}
            columns |= {"eventId": events + FIRST_EVENT, "eventSyncId": recorded + events}
            labels, begin = ["CUDA event"] * len(events), local(block.host_begin, which)
            report.insert("CUPTI_ACTIVITY_KIND_CUDA_EVENT", labels, columns, begin, None)
        if len(which := np.array(self.program.all_of(*SYNC_TYPES), dtype=np.int64)):
            events = self._each(which, lambda op: op.event)
            types = self._each(which, lambda op: SYNC_TYPES[op.kind])
            begin, end = local(block.host_begin, which), local(block.host_end, which)
            inset = (end - begin) // 8
            columns = self._place_events(which, first) | {"deviceId": 0, "syncType": types}
            del columns["greenContextId"]
            waits = self._each(which, lambda op: op.kind in ON_STREAM, np.bool_)
            columns["streamId"] = np.where(waits, columns["streamId"], NO_ID)
            columns["eventId"] = np.where(events < 0, NO_ID, events + FIRST_EVENT)
            columns["eventSyncId"] = np.where(events < 0, 0, recorded + events)
            labels = [enum_label("ENUM_CUPTI_SYNC_TYPE", one) for one in types.tolist()]
            table = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
            report.insert(table, labels, columns, begin + inset, end - inset)

    def _write_graphs(
        self, first: Ints, block: Block, local: Callable[[Floats, Ints], Ints]
    ) -> None:
        """One GRAPH_TRACE row per launch, from its first kernel's begin to its last one's end."""
        graphs = sorted(self.program.graphs)
        heads, tails = (
            np.array([self.program.graphs[graph][place] for graph in graphs]) for place in (0, -1)
        )
        ids = np.array([graph_id(graph) for graph in graphs])
        self.report.insert(
            "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
            [f"graph {one}" for one in ids.tolist()],
            {**self._place_events(heads, first), "graphId": ids, "graphExecId": ids + 1},
            local(block.gpu_begin, heads),
            local(block.gpu_end, tails),
        )


def write_graph_creation(program: Program, block: Block, epoch: Ints, report: Report) -> None:
    """Rows for the graphs captured by the initial program, which ran once at ``epoch`` (true time,
    ns).
    """
    rank, ops = report.rank, program.ops
    begins, ends = (
        report.local(epoch, times[:, rank.rank]).tolist()[0]
        for times in (block.host_begin, block.host_end)
    )
    main, string = rank.global_tid(0), report.export.string
    graphs: list[tuple[int | None, ...]] = []
    nodes: list[tuple[int, int, int, int, int | None]] = []
    for index in (index for index, op in enumerate(ops) if op.api == GRAPH_INSTANTIATE):
        begin = max(one for one in range(index) if ops[one].api == GRAPH_BEGIN)
        graph, number, count = ops[index].launches, graph_id(ops[index].launches), index - begin - 2
        created, captured, made, done = (
            begins[begin] + 200,
            ends[index - 1],
            begins[index],
            ends[index],
        )
        names = string("Graph Creation"), string("Graph Exec Creation")
        graphs.append((created, created + 90, GRAPH, main, names[0], number, None))
        graphs.append((made + 300, done - 300, EXECUTABLE, main, names[1], number, number + 1))
        step = max(1, (done - made) // (2 * count + 2))
        for node in range(count):
            original = node_id(graph, node, original=True)
            nodes.append((captured + 5 * node, NODE, main, original, None))
            nodes.append((made + step * (node + 1), NODE, main, node_id(graph, node), original))
    if not graphs:
        return
    names = "start end eventClass globalTid nameId graphId graphExecId"
    report.add("CUDA_GRAPH_EVENTS", names, graphs)
    lengths = np.array([[row[1] - row[0] for row in graphs]])
    report.count("CUDA_GRAPH_EVENTS", ["all"] * len(graphs), lengths)
    if report.options.graph_level(rank.rank) == "node":
        name = string("Graph Node Creation")
        rows = [(start, start, kind, tid, name, *ids) for start, kind, tid, *ids in sorted(nodes)]
        names = "start end eventClass globalTid nameId graphNodeId originalGraphNodeId"
        report.add("CUDA_GRAPH_NODE_EVENTS", names, rows)
        lengths = np.zeros((1, len(nodes)), np.int64)
        report.count("CUDA_GRAPH_NODE_EVENTS", ["all"] * len(nodes), lengths)
