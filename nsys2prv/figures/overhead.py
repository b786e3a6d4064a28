"""Find where the profiler works while a host makes calls, or pauses between them: that time is no gain."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from nsys2prv.figures.device_group import DeviceGroup, to_arrays
from nsys2prv.figures.host_time import find_profiler_spans
from nsys2prv.figures.intervals import SIDES, Spans
from nsys2prv.replay.graph import Kind, split_rows
from nsys2prv.replay.whatif import Replay


def collect_overhead(unit: DeviceGroup) -> Iterator[pl.DataFrame]:
    """Yield when the profiler works on each thread: thread, begin, end (ns)."""
    if unit.has("profiler_overhead"):
        for thread in unit.read_named("profiler_overhead")["thread"].unique().sort().to_list():
            spans = find_profiler_spans(unit, thread)
            yield pl.DataFrame({"thread": thread, "begin": spans.begin, "end": spans.end})


def find_overhead(replay: Replay, overhead: pl.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Return the calls and pauses of hosts during which the profiler works on the same thread: edges,
    ascending, and for how long it does (ns). overhead: as :func:`collect_overhead` yields it.
    """
    if not overhead.height:
        return replay.kept
    graph, edges = replay.job.graph, np.sort(replay.select((Kind.GAP, Kind.CALL)))
    spans = {
        thread: Spans(*to_arrays(rows, *SIDES)) for (thread,), rows in overhead.group_by("thread")
    }
    kept, lasts = [edges[:0]], [np.zeros(0, np.int64)]
    for part in split_rows(len(edges)):
        row = graph.row[graph.find_nodes(edges[part])]
        for thread in np.intersect1d(row, [*spans]).tolist():
            some = edges[part][row == thread]
            sides = (graph.time[side[some]] for side in (graph.edges.source, graph.edges.target))
            inside = np.minimum(spans[thread].within(*sides), graph.weight[some])
            kept.append(some[inside > 0])
            lasts.append(inside[inside > 0])
    order = np.argsort(places := np.concatenate(kept))
    return places[order], np.concatenate(lasts)[order]
