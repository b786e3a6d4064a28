"""From times to rows: what one rank's report records of one program's runs (API calls, GPU work, synchronisation,
events).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import names, schema
from .cluster import Cluster, Ints, Rank
from .job import graph_level
from .missing import Bools, Missing, Part
from .names import KERNELS
from .options import Options, Payload
from .program import Kind, Op, Program
from .timeline import Block, Floats
from .write import Column, Export, Tally

NO_ID = 4_294_967_295
"""How exports write "no stream" and "no event"."""

_LOCAL_MEMORY_TOTAL = 250_871_808
_SYNC_TYPES = {Kind.SYNC_EVENT: 1, Kind.WAIT: 2, Kind.SYNC_STREAM: 3, Kind.SYNC_DEVICE: 4}
_EVENT_BASE = 101
_DRIVER_PREFIX = ("cuLaunch", "cuModule", "cuGraph")


@dataclass
class Report:
    """One rank's report while it is being written. Ids in it are per process and begin anew in every report."""

    rank: Rank
    cluster: Cluster
    options: Options
    export: Export
    tally: Tally
    correlation: int = 127
    grid: int = 1
    event_sync: int = 1
    operator: int = 1
    range_id: int = 1
    leaked: int = 0
    """MPI requests that were started and never waited for."""
    first_launch: tuple[int, int, int] | None = None
    """Correlation id, begin and end (local ns) of the first kernel launch."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What the truth says of this report beside the tally."""
    missing: Missing = field(default_factory=Missing)

    @property
    def payload(self) -> Payload:
        return self.options.payload_of(self.rank.rank)

    @property
    def includes_json(self) -> bool:
        """Whether the export was asked for JSON (payloads, generic events)."""
        return self.payload in ("both", "json")

    def order(self, begin: Ints) -> Ints | None:
        """The order in which rows with these begins are to lie in their table."""
        if self.options.row_order == "time":
            return np.argsort(begin, kind="stable")
        if self.options.row_order == "shuffled":
            return np.random.default_rng([self.options.seed, 5, len(begin)]).permutation(len(begin))
        return None

    def insert(
        self,
        table: str,
        labels: Sequence[str],
        columns: dict[str, Column],
        begin: Ints,
        end: Ints | None,
        sizes: Ints | None = None,
        lost: Bools | None = None,
    ) -> None:
        """Add rows with the axes (run, label): ``begin`` and ``end`` in ns; other columns for every row or, per
        label, repeated. Rows that are ``lost`` or beyond the report's cut are left out.
        """
        runs, count = begin.shape
        flat: dict[str, Column] = {} if "timestamp" in columns else {"start": begin.ravel()}
        if end is not None and "timestamp" not in columns:
            flat["end"] = end.ravel()
        for name, column in columns.items():
            if isinstance(column, np.ndarray):
                column = (np.broadcast_to(column, (runs, count)) if column.ndim == 1 else column).ravel()
            flat[name] = column
        kept, closed = self.missing.kept(table, begin, end, lost), self.missing.closed(table, end)
        until = begin if end is None else end
        if closed is not None:
            flat["end"] = np.where(closed, until, None).ravel()  # type: ignore[call-overload]
            until = np.where(closed, until, begin)
        starts = begin.ravel()
        if kept is not None:
            flat = {name: _only(column, kept.ravel()) for name, column in flat.items()}
            starts = starts[kept.ravel()]
        if kept is None or len(starts):
            self.export.insert(table, flat, self.order(starts))
            self.tally.add(table, labels, until - begin, sizes, kept)


class ProgramRows:
    """Writes the runs of one program into one report."""

    def __init__(self, program: Program, report: Report) -> None:
        self.program, self.report = program, report
        ops = program.ops
        self.graph_level = graph_level(report.options, report.rank.rank)
        steps = [1 + (index % 5 == 0) * 2 if op.api else 0 for index, op in enumerate(ops)]
        self.correlations = np.cumsum([0, *steps])[:-1]
        self.correlation_span = int(sum(steps)) + 1
        for nodes in program.graphs.values():
            self.correlations[nodes] = self.correlations[nodes[0] - 1]
        self.api = self._which(lambda op: bool(op.api))
        self.kernels = self._which(
            lambda op: op.kind in (Kind.KERNEL, Kind.COLLECTIVE) and not (self.graph_level and op.graph >= 0)
        )
        self.copies = self._which(lambda op: op.kind is Kind.COPY)
        self.sets = self._which(lambda op: op.kind is Kind.SET)
        self.syncs = self._which(lambda op: op.kind in _SYNC_TYPES)
        self.records = self._which(lambda op: op.kind is Kind.RECORD)
        self.kernel_columns = self._kernel_columns()

    def _which(self, test: Callable[[Op], bool]) -> Ints:
        return np.array([index for index, op in enumerate(self.program.ops) if test(op)], dtype=np.int64)

    def _each(self, which: Ints, value: Callable[[Op], Any], dtype: Any = np.int64) -> NDArray[Any]:
        return np.array([value(self.program.ops[index]) for index in which], dtype=dtype)

    def _placed(self) -> dict[str, Column]:
        rank = self.report.rank
        return {"deviceId": rank.device, "contextId": rank.context, "greenContextId": 0, "globalPid": rank.global_pid}

    def _kernel_columns(self) -> dict[str, Column]:
        string, rank = self.report.export.string, self.report.rank
        shapes = [KERNELS[self.program.ops[index].kernel] for index in self.kernels]
        graphs = self._each(self.kernels, lambda op: op.graph)

        def each(value: Callable[[names.Kernel], int]) -> Ints:
            return np.array([value(shape) for shape in shapes], dtype=np.int64)

        columns: dict[str, Column] = {
            **self._placed(),
            "streamId": self._each(self.kernels, lambda op: rank.stream(op.stream)),
            "demangledName": each(lambda k: string(k.demangled)),
            "shortName": each(lambda k: string(k.short)),
            "mangledName": each(lambda k: string(k.mangled)),
            "launchType": 1,
            "cacheConfig": each(lambda k: 2 if k.cluster[0] else 1),
            "registersPerThread": each(lambda k: k.registers),
            "gridX": self._each(self.kernels, lambda op: blocks(op, self.report.options)),
            "gridY": each(lambda k: k.grid[1]),
            "gridZ": each(lambda k: k.grid[2]),
            "blockX": each(lambda k: k.block[0]),
            "blockY": each(lambda k: k.block[1]),
            "blockZ": each(lambda k: k.block[2]),
            "staticSharedMemory": each(lambda k: k.static_shared),
            "dynamicSharedMemory": each(lambda k: k.dynamic_shared),
            "localMemoryPerThread": 0,
            "localMemoryTotal": _LOCAL_MEMORY_TOTAL,
            "sharedMemoryExecuted": each(lambda k: k.shared_executed),
            "sharedMemoryLimitConfig": each(lambda k: int(k.dynamic_shared > 48 * 1024)),
            "clusterX": each(lambda k: k.cluster[0]),
            "clusterY": each(lambda k: k.cluster[1]),
            "clusterZ": each(lambda k: k.cluster[2]),
            "clusterSchedulingPolicy": 1,
            "maxPotentialClusterSize": each(lambda k: 8 if k.cluster[0] else 0),
            "maxActiveClusters": each(lambda k: 66 if k.cluster[0] else 0),
            "tensorSizeMinusOneElements": "[]",
        }
        if (graphs >= 0).any():
            nodes = [
                node_id(op.graph, self.program.graphs[op.graph].index(index)) if op.graph >= 0 else None
                for index, op in ((i, self.program.ops[i]) for i in self.kernels.tolist())
            ]
            columns["graphNodeId"] = np.array(nodes, dtype=object)
            columns["graphId"] = np.array(
                [graph_id(graph) if graph >= 0 else None for graph in graphs.tolist()], dtype=object
            )
        return columns

    def write(self, block: Block, epochs: Ints) -> None:
        """Write runs that begin at ``epochs`` (true time, ns)."""
        rank, report = self.report.rank, self.report
        runs = len(epochs)

        def local(times: Floats, which: Ints) -> Ints:
            return rank.local(epochs[:, None] + np.rint(times[:, rank.rank, which]).astype(np.int64))

        first = report.correlation + self.correlation_span * np.arange(runs)[:, None]
        self._write_api(first, local(block.host_begin, self.api), local(block.host_end, self.api))
        self._write_kernels(first, local(block.gpu_begin, self.kernels), local(block.gpu_end, self.kernels))
        self._write_memory(first, block, local)
        self._write_events(first, block, local)
        if self.graph_level:
            self._write_graphs(first, block, local)
        report.correlation += self.correlation_span * runs
        report.event_sync += self.program.events * runs

    def _write_api(self, first: Ints, begin: Ints, end: Ints) -> None:
        report = self.report
        if not len(self.api):
            return
        functions = [self.program.ops[index].api for index in self.api]
        if report.first_launch is None:
            at = functions.index(names.LAUNCH_RUNTIME)
            report.first_launch = int(first[0, 0] + self.correlations[self.api[at]]), int(begin[0, at]), int(end[0, at])
        report.insert(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            functions,
            {
                "eventClass": np.array([int(name.startswith(_DRIVER_PREFIX)) for name in functions]),
                "globalTid": self._each(self.api, lambda op: report.rank.global_tid(op.thread)),
                "correlationId": first + self.correlations[self.api],
                "nameId": np.array([report.export.string(name) for name in functions]),
                "returnValue": 0,
            },
            begin,
            end,
            lost=report.missing.of(Part.CALL, self.api),
        )

    def _write_kernels(self, first: Ints, begin: Ints, end: Ints) -> None:
        report = self.report
        if not len(self.kernels):
            return
        count = begin.size
        report.insert(
            "CUPTI_ACTIVITY_KIND_KERNEL",
            [KERNELS[self.program.ops[index].kernel].demangled for index in self.kernels],
            {
                **self.kernel_columns,
                "correlationId": first + self.correlations[self.kernels],
                "gridId": report.grid + np.arange(count).reshape(begin.shape),
            },
            begin,
            end,
            lost=report.missing.of(Part.KERNEL, self.kernels),
        )
        report.grid += count

    def _write_memory(self, first: Ints, block: Block, local: Callable[[Floats, Ints], Ints]) -> None:
        report, rank = self.report, self.report.rank
        for which, table in ((self.copies, "CUPTI_ACTIVITY_KIND_MEMCPY"), (self.sets, "CUPTI_ACTIVITY_KIND_MEMSET")):
            if not len(which):
                continue
            sizes = self._each(which, lambda op: op.bytes)
            columns: dict[str, Column] = {
                **self._placed(),
                "streamId": self._each(which, lambda op: rank.stream(op.stream)),
                "correlationId": first + self.correlations[which],
                "bytes": sizes,
            }
            if which is self.sets:
                labels = ["Memset"] * len(which)
                columns |= {"value": 0, "memKind": 2}
            else:
                kinds = self._each(which, lambda op: op.copy.copy_kind if op.copy else 0)
                labels = [schema.label("ENUM_CUDA_MEMCPY_OPER", kind) for kind in kinds.tolist()]
                columns |= {
                    "copyKind": kinds,
                    "srcKind": self._each(which, lambda op: op.copy.src_kind if op.copy else 0),
                    "dstKind": self._each(which, lambda op: op.copy.dst_kind if op.copy else 0),
                    "copyCount": 1,
                }
                if (kinds == 10).any():
                    columns |= self._peers(kinds)
            report.insert(table, labels, columns, local(block.gpu_begin, which), local(block.gpu_end, which), sizes)

    def _peers(self, kinds: Ints) -> dict[str, Column]:
        """Source and destination of peer copies: from this process's device to the next on the host."""
        rank = self.report.rank
        other = (rank.device + 1) % self.report.options.gpus_per_host

        def where(value: int) -> NDArray[Any]:
            return np.array([value if kind == 10 else None for kind in kinds.tolist()], dtype=object)

        return {
            "srcDeviceId": where(rank.device),
            "srcContextId": where(rank.context),
            "dstDeviceId": where(other),
            "dstContextId": where(other + 1),
        }

    def _write_events(self, first: Ints, block: Block, local: Callable[[Floats, Ints], Ints]) -> None:
        """CUDA events, and SYNCHRONIZATION rows: the middle of the API call (its deviceId is 0 in real exports,
        whatever the device).
        """
        report, rank = self.report, self.report.rank
        runs = np.arange(len(first))[:, None]
        if len(self.records):
            events = self._each(self.records, lambda op: op.event)
            begin = local(block.host_begin, self.records)
            report.insert(
                "CUPTI_ACTIVITY_KIND_CUDA_EVENT",
                ["CUDA event"] * len(events),
                {
                    "timestamp": 0,
                    **self._placed(),
                    "streamId": self._each(self.records, lambda op: rank.stream(op.stream)),
                    "correlationId": first + self.correlations[self.records],
                    "eventId": events + _EVENT_BASE,
                    "eventSyncId": report.event_sync + events + self.program.events * runs,
                },
                begin,
                None,
            )
        if len(self.syncs):
            kinds = [self.program.ops[index].kind for index in self.syncs]
            events = self._each(self.syncs, lambda op: op.event)
            begin, end = local(block.host_begin, self.syncs), local(block.host_end, self.syncs)
            inset = (end - begin) // 8
            types = [_SYNC_TYPES[kind] for kind in kinds]
            report.insert(
                "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
                [schema.label("ENUM_CUPTI_SYNC_TYPE", t) for t in types],
                {
                    "deviceId": 0,
                    "contextId": rank.context,
                    "globalPid": rank.global_pid,
                    "streamId": self._each(
                        self.syncs,
                        lambda op: rank.stream(op.stream) if op.kind in (Kind.WAIT, Kind.SYNC_STREAM) else NO_ID,
                    ),
                    "correlationId": first + self.correlations[self.syncs],
                    "syncType": np.array(types),
                    "eventId": np.where(events < 0, NO_ID, events + _EVENT_BASE),
                    "eventSyncId": np.where(events < 0, 0, report.event_sync + events + self.program.events * runs),
                },
                begin + inset,
                end - inset,
            )

    def _write_graphs(self, first: Ints, block: Block, local: Callable[[Floats, Ints], Ints]) -> None:
        """One GRAPH_TRACE row per launch, from its first kernel's begin to its last one's end."""
        if not self.program.graphs:
            return
        graphs = sorted(self.program.graphs)
        heads = np.array([self.program.graphs[graph][0] for graph in graphs])
        tails = np.array([self.program.graphs[graph][-1] for graph in graphs])
        self.report.insert(
            "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
            [f"graph {graph_id(graph)}" for graph in graphs],
            {
                **self._placed(),
                "streamId": self._each(heads, lambda op: self.report.rank.stream(op.stream)),
                "correlationId": first + self.correlations[heads],
                "graphId": np.array([graph_id(graph) for graph in graphs]),
                "graphExecId": np.array([exec_id(graph) for graph in graphs]),
            },
            local(block.gpu_begin, heads),
            local(block.gpu_end, tails),
        )


def _only(column: Column, which: Bools) -> Column:
    """Some rows of a column with a value per row."""
    if isinstance(column, np.ndarray):
        return column[which]
    return list(compress(column, which.tolist())) if isinstance(column, list) else column


def blocks(op: Op, options: Options) -> int:
    """The first dimension of a kernel's grid; of an NCCL kernel its channels."""
    grid = KERNELS[op.kernel].grid[0]
    return min(grid, options.nccl_channels) if op.kind is Kind.COLLECTIVE and options.nccl_channels else grid


def graph_id(graph: int) -> int:
    """CUPTI's id of a captured graph."""
    return 2 * graph + 1


def exec_id(graph: int) -> int:
    """CUPTI's id of the executable graph made from it."""
    return 2 * graph + 2


def node_id(graph: int, node: int, original: bool = False) -> int:
    """Graph node ids carry the id of their graph in the upper half; a replayed kernel names the executable graph's
    clone.
    """
    return (graph_id(graph) if original else exec_id(graph)) << 32 | node + 1
