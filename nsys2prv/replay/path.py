"""Find the critical path: the one chain of work and waiting, over all ranks, that explains how long
a span of the job took, as pieces that follow each other without a gap.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from nsys2prv.replay.events import CALL_NAMES, MPI_NAMES, SYNCHRONISES
from nsys2prv.replay.graph import US, Kind
from nsys2prv.replay.whatif import Replay

#: A latency beyond what is usual by less (ns) is nothing to explain.
SLACK = 10 * US


class Cause:
    """Values of the value set `critical_path`."""

    COMPUTATION, NCCL, MEMORY, GRAPH, LATENCY, QUEUED = range(1, 7)
    CALL, RETURN, MPI, HOST, WAIT, OUTSIDE = range(7, 13)
    HANDOFF, FULL_QUEUE, UNEXPLAINED = range(13, 16)


_CAUSES = {
    Kind.KERNEL: Cause.COMPUTATION,
    Kind.COPY: Cause.MEMORY,
    Kind.GAP: Cause.HOST,
    Kind.CALL: Cause.CALL,
    Kind.NCCL: Cause.NCCL,
    Kind.MPI: Cause.MPI,
    Kind.LAUNCH: Cause.LATENCY,
    Kind.RETURN: Cause.RETURN,
    Kind.STREAM: Cause.QUEUED,
    Kind.EVENT: Cause.QUEUED,
    Kind.MEET: Cause.OUTSIDE,
    Kind.HANDOFF: Cause.HANDOFF,
    Kind.QUEUE: Cause.FULL_QUEUE,
    Kind.OTHER: Cause.QUEUED,
    Kind.OUTSIDE: Cause.OUTSIDE,
}


class PathPieces(Struct, frozen=True):
    """Pieces of the path, the last first: columns of one length."""

    #: ns of the trace.
    begin: np.ndarray
    end: np.ndarray
    #: Row of the trace (int64).
    row: np.ndarray
    #: What the time went to, of `Cause`.
    cause: np.ndarray


def find_pieces(replay: Replay) -> PathPieces:
    """Return the pieces of the critical path of the span."""
    path = replay.path
    if not len(path):
        return PathPieces(*np.zeros((4, 0), np.int64))
    graph, edges = replay.job.graph, replay.job.graph.edges
    source, target, kind, key = (
        column[path] for column in (edges.source, edges.target, edges.kind, edges.key)
    )
    # Clocks may be apart a bit: what is waited for is over when what waits begins.
    ends = np.minimum.accumulate(graph.time[target])
    begins = np.append(ends[1:], min(ends[-1], int(graph.time[source[-1]])))
    rows, before = (replay.job.rows[moments].astype(np.int64) for moments in (target, source))
    rows = np.where(rows >= 0, rows, before)
    cause = np.array([_CAUSES[kind] for kind in Kind])[kind]
    is_pause = np.flatnonzero(kind == Kind.GAP)
    cause[is_pause[graph.binding[path[is_pause]] == 0]] = Cause.OUTSIDE
    is_call = kind == Kind.CALL
    waiting = [
        name for name, label in replay.job.calls.items() if CALL_NAMES[SYNCHRONISES].search(label)
    ]
    cause[is_call & np.isin(key, waiting)] = Cause.WAIT
    cause[is_call & (key >= MPI_NAMES)] = Cause.MPI
    # From the begin of a call to an operation that it launches: first the call.
    called, returned = _split_launches(replay, path, begins, ends)
    # What a latency has beyond what is usual comes first, as what was really waited for.
    is_latency = (kind >= Kind.LAUNCH) & ~np.isin(kind, (Kind.MEET, Kind.OUTSIDE))
    beyond = graph.weight[path] - edges.typical[path]
    beyond = np.where(is_latency & (beyond > SLACK), beyond, 0)
    explained = np.clip(returned + beyond, returned, ends)
    first, last = begins[-1:], ends[:1]
    parts = (
        (begins, returned, called, np.full(len(path), Cause.CALL)),
        (returned, explained, rows, np.full(len(path), Cause.UNEXPLAINED)),
        (explained, ends, rows, cause),
        ([replay.begin], first, rows[-1:], [Cause.OUTSIDE]),
        (last, [replay.end], rows[:1], [Cause.OUTSIDE]),
    )
    begin, end, row, cause = map(np.concatenate, zip(*parts, strict=True))
    begin = np.maximum(begin, replay.begin)
    order = np.argsort(-end, kind="stable")
    order = order[end[order] > begin[order]]
    return PathPieces(*(column[order] for column in (begin, end, row, cause)))


def _split_launches(
    replay: Replay, path: np.ndarray, begins: np.ndarray, ends: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return for each edge of the path the row of the call at its begin, and when that call ends;
    only edges from the begin of a call to an operation have one.
    """
    edges = replay.job.graph.edges
    source = edges.source[path]
    within = np.flatnonzero((edges.kind[path] == Kind.LAUNCH) & (edges.key[path] % 2 == 0))
    returned = begins.copy()
    calls = np.flatnonzero(edges.kind == Kind.CALL)
    calls = calls[np.isin(edges.source[calls], source[within])]
    calls = calls[np.argsort(edges.source[calls])]
    if len(calls):
        call = calls[np.searchsorted(edges.source[calls], source[within])]
        at = replay.job.graph.time[edges.target[call]]
        returned[within] = np.clip(at, begins[within], ends[within])
    return replay.job.rows[source].astype(np.int64), returned
