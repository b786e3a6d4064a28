"""Creation of CUDA graphs, as recorded on the host: CUDA_GRAPH_EVENTS and, at node level, CUDA_GRAPH_NODE_EVENTS.

No public export holds such rows. Tables follow NVIDIA's schema reference, event classes ENUM_NSYS_EVENT_CLASS (77
node, 95 graph, 94 executable graph). Known from users' reports: node events are named "Graph Node Creation" and come
after the capture's end; kernels name clones, which point to the captured nodes by ``originalGraphNodeId``. The other
names are inferred.
"""

from __future__ import annotations

import numpy as np

from . import names
from .cluster import Ints
from .job import node_level
from .program import Program
from .rows import Report, exec_id, graph_id, node_id
from .timeline import Block

_NODE, _EXEC, _GRAPH = 77, 94, 95
_EVENT_NS = 90


def write_creation(program: Program, block: Block, epoch: Ints, report: Report) -> None:
    """Rows for the graphs captured by the initial program, which ran once at ``epoch`` (true time, ns)."""
    rank, ops = report.rank, program.ops

    def local(times: np.ndarray, op: int) -> int:
        return int(rank.local(epoch + np.rint(times[0, rank.rank, op]).astype(np.int64))[0])

    nodes: list[tuple[int, int, int | None]] = []
    graphs: list[tuple[int, int, int, int, int, int | None]] = []
    for index, op in enumerate(ops):
        if op.launches < 0 or op.api != names.GRAPH_INSTANTIATE:
            continue
        capture_end = index - 1
        capture_begin = max(i for i in range(index) if ops[i].api == names.GRAPH_BEGIN)
        count = capture_end - capture_begin - 1
        captured, made = local(block.host_end, capture_end), local(block.host_begin, index)
        instantiated = local(block.host_end, index)
        begin = local(block.host_begin, capture_begin)
        graphs.append(
            (
                begin + 200,
                begin + 200 + _EVENT_NS,
                _GRAPH,
                report.export.string("Graph Creation"),
                graph_id(op.launches),
                None,
            )
        )
        graphs.append(
            (
                made + 300,
                instantiated - 300,
                _EXEC,
                report.export.string("Graph Exec Creation"),
                graph_id(op.launches),
                exec_id(op.launches),
            )
        )
        step = max(1, (instantiated - made) // (2 * count + 2))
        for node in range(count):
            nodes.append((captured + 5 * node, node_id(op.launches, node, original=True), None))
            nodes.append(
                (made + step * (node + 1), node_id(op.launches, node), node_id(op.launches, node, original=True))
            )
    if not graphs:
        return
    report.export.insert(
        "CUDA_GRAPH_EVENTS",
        {
            "start": [row[0] for row in graphs],
            "end": [row[1] for row in graphs],
            "eventClass": [row[2] for row in graphs],
            "globalTid": rank.global_tid(0),
            "nameId": [row[3] for row in graphs],
            "graphId": [row[4] for row in graphs],
            "graphExecId": [row[5] for row in graphs],
        },
    )
    _tally(report, "CUDA_GRAPH_EVENTS", [row[1] - row[0] for row in graphs])
    if node_level(report.options, rank.rank):
        nodes.sort()
        report.export.insert(
            "CUDA_GRAPH_NODE_EVENTS",
            {
                "start": [row[0] for row in nodes],
                "end": [row[0] for row in nodes],
                "eventClass": _NODE,
                "globalTid": rank.global_tid(0),
                "nameId": report.export.string("Graph Node Creation"),
                "graphNodeId": [row[1] for row in nodes],
                "originalGraphNodeId": [row[2] for row in nodes],
            },
        )
        _tally(report, "CUDA_GRAPH_NODE_EVENTS", [0] * len(nodes))


def _tally(report: Report, table: str, durations: list[int]) -> None:
    report.tally.add(table, ["all"] * len(durations), np.array([durations], dtype=np.int64))
