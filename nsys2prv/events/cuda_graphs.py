"""CUDA graph executions, where the graphs were traced as a whole, on the rows of their streams."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsys2prv.columns import factorize
from nsys2prv.events.cuda_kernels import TABLE as KERNELS
from nsys2prv.events.extraction import Extraction, correlation_ids, number
from nsys2prv.events.kind import EventKind, Rows
from nsys2prv.events.lines import launch_lines
from nsys2prv.report.source import NULL, Part, Source

TABLE = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"


def extract(extraction: Extraction, part: Part) -> Iterator[Rows]:
    """One row a graph launch. Traced by node instead, a graph's kernels are rows of the kernel table with a graphNodeId."""
    columns = extraction.read(part, ("start", "end", "deviceId", "streamId", "correlationId", "globalPid", "graphId", "graphExecId"))
    objects = extraction.streams(columns["globalPid"], columns["deviceId"], columns["streamId"])
    ids, codes = factorize(columns["graphExecId"])
    names = ["CUDA graph" if number == NULL else f"CUDA graph exec {number}" for number in ids]
    lines = launch_lines(extraction, "launch", columns, objects, np.zeros(columns.rows, np.int64))
    yield Rows("cuda_graph", columns["start"], columns["end"], objects, {
        "execution": extraction.name("graphs", codes, text=names),
        "graph": number(columns["graphId"]),
        "graph_exec": number(columns["graphExecId"]),
        "correlation": correlation_ids(columns["correlationId"]),
    }, lines=lines)


def by_node(source: Source) -> str:
    """Where graphs were traced node by node."""
    if source.has(KERNELS, "graphNodeId") and source.count(KERNELS, "{graphNodeId} > 0"):
        return "graphs were traced node by node, and their nodes are rows of `kernels`"
    return ""


KINDS = (
    EventKind("graphs", "CUDA graph executions", "GPU stream", (TABLE,), ("cuda_graph",), extract, groups=("cuda",), lanes="stream",
              on_gpu=True, elsewhere=by_node, needs_launches=True),
)
