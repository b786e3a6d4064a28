"""Find where the work of replayed CUDA graphs was captured: the call in which each of their nodes was made.

A replayed kernel has the number of its node. Nodes of an executable graph are copies of those of the
graph that was captured; the first of such a chain was made by the captured call, at a time and on a
thread that `CUDA_GRAPH_NODE_EVENTS` has. Where all nodes were made at once, at the end of the capture,
the n-th node is the n-th call that launched something in it.
"""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from nsys2prv.events.catalogue import load_catalogue
from nsys2prv.figures.device_group import DeviceGroup

NODES = "cuda_graph_nodes"
#: Layouts of work that has the number of its node.
_OF_NODES = ("cuda_kernel", "nccl_kernel", "memory_operation")
#: Longest chain of copies of a node.
_MOST_COPIES = 8
#: Calls that end a capture, and those that add a node to it.
_END = re.compile("cu(?:da)?StreamEndCapture")
_ADDS = re.compile("cu(?:da)?(?:Launch(?:Cooperative)?Kernel|Mem(?:cpy|set))")


def list_captures(unit: DeviceGroup) -> pl.DataFrame:
    """Return the work of replayed nodes whose capture is recorded: `thread` and `begin` of the work,
    `captor` (row of the thread that captured it) and `captured` (when, ns).
    """
    empty = pl.DataFrame(schema=dict.fromkeys(("thread", "begin", "captor", "captured"), pl.Int64))
    if not unit.has(NODES):
        return empty
    nodes = unit.read_begins(NODES, ("graphNodeId", "originalGraphNodeId"))
    nodes = nodes.select("thread", "begin", node="graphNodeId", original="originalGraphNodeId")
    nodes = nodes.with_columns(unit.list_tasks(nodes)).unique(
        ("task", "node"), keep="first", maintain_order=True
    )
    roots = _find_roots(nodes)
    made = _place_nodes(nodes.filter(pl.col("original") <= 0), unit)
    found = [empty]
    for layout in filter(unit.has, _OF_NODES):
        work = unit.read_begins(layout, ("graph_node",)).filter(pl.col("graph_node") > 0)
        if work.height:
            work = work.with_columns(unit.list_tasks(work)).rename({"graph_node": "node"})
            work = work.select("thread", "begin", "task", "node").join(roots, on=("task", "node"))
            work = work.join(made, on=("task", "root"))
            found.append(work.select(empty.columns))
    return pl.concat(found)


def _find_roots(nodes: pl.DataFrame) -> pl.DataFrame:
    """Return `task`, `node` and `root`, the node that each was copied from first."""
    step = nodes.select("task", root="node", before="original").filter(pl.col("before") > 0)
    roots = nodes.select("task", "node", root="node")
    for _ in range(_MOST_COPIES):
        further = roots.join(step, on=("task", "root"), how="left", maintain_order="left")
        if further["before"].null_count() == further.height:
            break
        roots = further.select("task", "node", root=pl.coalesce("before", "root"))
    return roots


def _place_nodes(nodes: pl.DataFrame, unit: DeviceGroup) -> pl.DataFrame:
    """Return `task`, `root`, `captor` and `captured` of captured nodes. nodes: `thread`, `begin`, `task`,
    `node`.
    """
    placed = nodes.sort("task", "thread", "node")
    find_values = load_catalogue().name_sets["cuda_api"].find_values
    calls = unit.api.with_columns(pl.col("thread").cast(pl.Int64))
    ends = calls.filter(pl.col("call").is_in(find_values(_END)))
    inside = placed.join_asof(
        ends.select("thread", at="begin", until="end").sort("at"),
        left_on="begin", right_on="at", by="thread", check_sortedness=False,
    ) if ends.height else placed.with_columns(at=None, until=None)  # fmt: skip
    late = (pl.col("begin") <= pl.col("until")).fill_null(False)
    captured = placed["begin"].to_numpy().copy()
    adds = calls.filter(pl.col("call").is_in(find_values(_ADDS)))
    launched = np.isin(adds["begin"].to_numpy(), unit.launches["sent"].drop_nulls().to_numpy())
    adds = adds.filter(pl.Series(~launched)).sort("thread", "begin")
    for (thread, at), of_end in inside.with_row_index("row").filter(late).group_by("thread", "at"):
        own = adds.filter(pl.col("thread") == thread, pl.col("begin") < at)["begin"].to_numpy()
        rows = of_end.sort("node")["row"].to_numpy()
        if len(own) >= len(rows):
            captured[rows] = own[-len(rows) :]
    return placed.select("task", root="node", captor="thread", captured=pl.Series(captured))
