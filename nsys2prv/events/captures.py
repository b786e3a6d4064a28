"""Find the API call that created each node of a replayed CUDA graph.

A replayed kernel has the number of its node. Nodes of an executable graph, and of a graph within
another graph, are copies of nodes of the captured graph. The first node of such a chain was created
by the captured call; `CUDA_GRAPH_NODE_EVENTS` contains its time and thread. If all nodes were
created at the end of the capture, the n-th node belongs to the n-th launching call since the start
of the capture.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from nsys2prv._util.columns import OPEN, group_rows
from nsys2prv.events.extraction import GPU_TABLES, Extraction
from nsys2prv.events.launches import Launches
from nsys2prv.export.info import PROCESS_MASK, find_processes
from nsys2prv.export.source import NULL, Columns

#: Tables of nodes from which graphs were made. The second is the name of the first in 2021.
TABLES = ("CUDA_GRAPH_NODE_EVENTS", "CUDA_GRAPH_EVENTS")
COLUMNS = {
    "node": "graphNodeId",
    "original": "originalGraphNodeId",
    "captor": "globalTid",
    "captured": "start",
}
#: Facts of the nodes that were replayed: `process` and `node`, `captor` (globalTid) and `time_captured`.
CAPTURES = "graph_captures"
#: Longest chain of copies of a node.
_MOST_COPIES = 8
#: Calls that start and end a capture, and calls that add a node to it or to a graph.
_BEGINS, _ENDS = "StreamBeginCapture", "StreamEndCapture"
_ADDS = r"^cu(?:da)?(?:Launch|Graph(?:Launch|Add)|(?:Mem|Malloc|Free)\w*Async)"
_FOUND = ("process", "node", "captor", "captured")


def find_captures(extraction: Extraction, columns: Columns) -> np.ndarray:
    """Find the call that created the CUDA graph node of each row while a graph was captured. Return
    its thread (globalTid) and time (local ns), shape (2, rows); NULL if unknown.

    columns: globalPid and graphNodeId. Found calls are stored as facts.
    """
    captures = np.full((2, columns.rows), NULL)
    rows = np.flatnonzero(columns["graphNodeId"] > 0)
    if len(rows):
        wanted = {"process": columns["globalPid"][rows], "node": columns["graphNodeId"][rows]}
        known = extraction.find_once("captures", lambda: _list_captures(extraction))
        found = pl.DataFrame(wanted).join(
            known, on=("process", "node"), how="left", maintain_order="left"
        )
        captures[:, rows] = [found[name].fill_null(NULL) for name in _FOUND[2:]]
        found = found.drop_nulls("captor").unique().rename({"captured": "time_captured"})
        if found.height:
            extraction.add_fact(CAPTURES, found.to_dict())
    return captures


def _list_captures(extraction: Extraction) -> pl.DataFrame:
    """Return `captor` and `captured` (thread and time of the captured call) for all nodes with a
    known capture.
    """
    pieces = [pl.DataFrame(schema=dict.fromkeys(COLUMNS, pl.Int64))]
    columns = tuple(COLUMNS.values())
    parts = extraction.report.parts
    for table in filter(parts.__contains__, TABLES):
        if extraction.database.has(table, "graphNodeId"):
            read = extraction.read(parts[table], columns, (), "")
            pieces.append(pl.DataFrame({name: read[column] for name, column in COLUMNS.items()}))
    nodes = pl.concat(pieces).filter(
        pl.all_horizontal(pl.col("node", "captor", "captured") != NULL)
    )
    nodes = nodes.with_columns(process=pl.Series(find_processes(nodes["captor"].to_numpy())))
    nodes = nodes.unique(("process", "node"), keep="first", maintain_order=True)
    made = _place_nodes(nodes.filter(pl.col("original") <= 0).sort("process", "node"), extraction)
    return _find_roots(nodes).join(made, on=("process", "root")).select(_FOUND)


def _find_roots(nodes: pl.DataFrame) -> pl.DataFrame:
    """Return `process`, `node` and `root`. The root is the node at the start of the chain of
    copies.
    """
    step = nodes.select("process", root="node", before="original").filter(pl.col("before") > 0)
    roots = nodes.select("process", "node", root="node")
    for _ in range(_MOST_COPIES):
        further = roots.join(step, on=("process", "root"), how="left", maintain_order="left")
        if further["before"].null_count() == further.height:
            break
        roots = further.select("process", "node", root=pl.coalesce("before", "root"))
    return roots


def _place_nodes(nodes: pl.DataFrame, extraction: Extraction) -> pl.DataFrame:
    """Return captured nodes with `node` renamed to `root`. Nodes that were created at the end of a
    capture get the time of their call. nodes: sorted by process and number.
    """
    process, captor, captured = (
        nodes[name].to_numpy().copy() for name in ("process", "captor", "captured")
    )
    for pid, of_process in group_rows(process):
        rows = np.arange(len(process))[of_process]
        begins, ends = (_select_calls(extraction, pid, one) for one in (_BEGINS, _ENDS))
        if not len(ends):
            continue
        # The capture by nsys may start within a graph capture.
        first = min(begins.begin[0], captured[rows].min()) if len(begins) else 0
        adds = _select_calls(extraction, pid, _ADDS, first, captured[rows].max())
        for thread, of_thread in group_rows(captor[rows]):
            own = rows[of_thread]
            in_call = _find_last(adds, thread, captured[own])[1] >= captured[own]
            place, _ = _find_last(ends, thread, captured[own])
            is_late = ~in_call & (place >= 0)
            for at, late in group_rows(place[is_late]):
                late_rows = own[is_late][late]
                end = int(ends.begin[ends.thread == thread][at])
                since = begins.begin[begins.begin < end].max(initial=first)
                inside = slice(*np.searchsorted(adds.begin, (since, end)))
                calls = _choose_captured(extraction, thread, adds[inside], len(late_rows))
                if calls is not None:
                    captor[late_rows], captured[late_rows] = calls.thread, calls.begin
    columns = {"process": process, "root": nodes["node"], "captor": captor, "captured": captured}
    return pl.DataFrame(columns)


def _find_last(calls: Launches, thread: int, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return, for each time, the index of the thread's last call that had begun, and the latest end
    of all calls that had begun; -1 for none. calls: sorted by start.
    """
    own = calls.thread == thread
    place = np.searchsorted(calls.begin[own], times, "right") - 1
    return place, np.append(np.maximum.accumulate(calls.end[own]), -1)[place]


def _select_calls(
    extraction: Extraction, process: int, pattern: str, first: int = 0, last: int = OPEN
) -> Launches:
    """Return the calls of a process with matching names that start within a time span (first <=
    begin <= last), sorted by start.
    """
    found = [Launches.make_empty()]
    for segment in extraction.launches:
        if segment.process == process:
            names = np.array(segment.names)
            texts = pl.Series(extraction.read_strings(names), dtype=pl.String)
            wanted = names[texts.str.contains(pattern).to_numpy()]
            calls = segment.read() if len(wanted) else found[0]
            inside = np.isin(calls.name, wanted) & (calls.begin >= first) & (calls.begin <= last)
            found.append(calls[np.flatnonzero(inside)])
    joined = Launches.concat(found)
    return joined[np.argsort(joined.begin, kind="stable")]


def _choose_captured(
    extraction: Extraction, thread: int, calls: Launches, count: int
) -> Launches | None:
    """Return the captured calls, `count` in number, or None if they cannot be identified.

    Candidates are all calls of the process, then those without work of their own, then among these
    the calls of the thread that ended the capture.
    """
    if len(calls) > count:
        calls = calls[~_mask_direct(extraction, thread & PROCESS_MASK, calls.id)]
    if len(calls) > count:
        calls = calls[calls.thread == thread]
    return calls if len(calls) == count else None


def _mask_direct(extraction: Extraction, process: int, ids: np.ndarray) -> np.ndarray:
    """Return a mask of the calls that launched work directly, by correlation id. These are not
    captured.
    """
    low, high = int(ids.min()), int(ids.max())
    known = [np.zeros(0, np.int64)]
    for table in sorted(GPU_TABLES & extraction.report.parts.keys()):
        where = f"{{correlationId}} BETWEEN {low} AND {high}"
        read = extraction.read(
            extraction.report.parts[table], ("correlationId", "globalPid"), (), where
        )
        known.append(read["correlationId"][read["globalPid"] == process])
    return np.isin(ids, np.concatenate(known))
