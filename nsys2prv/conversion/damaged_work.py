"""Find GPU work with impossible times within the capture.

The operations of a stream run one after another. If one operation starts and ends during an earlier
one, the times of one of them are wrong. If two do so, the times of the earlier one are wrong, by
majority. Nodes of one graph may run concurrently. Kernels that may start before the previous one
ends also overlap, but end after it.

Input: a job with overlapping work on additional rows. Output: its damaged work, which analyses
exclude.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.budget import PART_ROWS
from nsys2prv._util.columns import factorize_together
from nsys2prv.events.cuda import COPIES, DECOMPRESSIONS, GRAPH_TABLE, KERNEL_TABLE, SETS
from nsys2prv.events.extraction import STREAM_COLUMNS, ObjectKey, StreamKey
from nsys2prv.export.info import ReportInfo
from nsys2prv.export.source import NULL, mask_usable
from nsys2prv.export.sqlite import open_database

#: Tables of the operations of streams.
TABLES = (KERNEL_TABLE, GRAPH_TABLE, COPIES, SETS, DECOMPRESSIONS)
#: Columns that identify a stream, with its context.
QUEUE = (*STREAM_COLUMNS, "contextId", "greenContextId")
#: Damage is rare: a stream does not run its operations one after the other if more than FEW of them, and more
#: than this share, enclose others.
FEW, SHARE = 2, 0.01
#: Maximum nesting of damaged operations.
MOST_NESTED = 8


class DamagedWork(Struct, frozen=True):
    """An operation on a stream whose recorded times cannot be true, because other work ran there
    meanwhile.
    """

    #: Index of the report.
    report: int
    #: Its stream.
    stream: StreamKey
    #: Its recorded begin and end (local ns).
    begin: int
    end: int
    #: Id of the call that launched it; None if not recorded.
    correlation: int | None
    #: Number of later operations of the stream that begin before its end.
    later: int


class SearchTask(Struct, frozen=True):
    """Streams of one report in which damaged operations are to be found."""

    #: Index of the report.
    report: int
    #: Facts about the report.
    info: ReportInfo
    #: Streams with operations that overlap.
    streams: tuple[StreamKey, ...]


def plan_searches(
    infos: Sequence[ReportInfo], objects: Iterable[tuple[int, ObjectKey]]
) -> list[SearchTask]:
    """Return a task for each report in which operations overlap others on their stream. objects:
    (number of the report, key) of all objects with events.
    """
    streams: dict[int, set[StreamKey]] = defaultdict(set)
    for report, key in objects:
        if isinstance(key, StreamKey) and key.lane:
            streams[report].add(key._replace(lane=0))
    return [
        SearchTask(report, infos[report], tuple(sorted(keys)))
        for report, keys in sorted(streams.items())
    ]


def search_streams(task: SearchTask) -> list[DamagedWork]:
    """Find the damaged operations on some streams of a report. This depends only on files."""
    keys = [key[: len(STREAM_COLUMNS)] for key in task.streams]
    streams = pl.DataFrame(keys, schema=dict.fromkeys(STREAM_COLUMNS, pl.Int64), orient="row")
    names = ("start", "end", *QUEUE, "correlationId", "graphNodeId")
    frames = []
    with open_database(task.info.path) as database:
        for table in TABLES if streams.height else ():
            for piece in (
                task.info.parts[table].split(PART_ROWS) if table in task.info.parts else ()
            ):
                columns = database.read(piece, names)
                begin, end = columns["start"], columns["end"]
                inside = (begin >= task.info.capture.first) & (end <= task.info.capture.last)
                timed = mask_usable(begin) & mask_usable(end) & (end > begin) & inside
                frame = pl.DataFrame({name: columns[name][timed] for name in names})
                frames.append(frame.join(streams, on=STREAM_COLUMNS, how="semi"))
    if not frames:
        return []
    # Migrations of memory are launched by no call, and are in no stream.
    rows = pl.concat(frames).filter(pl.col("correlationId") != 0)
    rows = rows.sort(*QUEUE, "start", -pl.col("end"))
    queue = factorize_together(*(rows[name].to_numpy() for name in QUEUE))[1]
    begin, end = rows["start"].to_numpy(), rows["end"].to_numpy()
    found = []
    for row in np.flatnonzero(mark_damaged(queue, _number_launches(rows), begin, end)).tolist():
        last = np.searchsorted(queue, queue[row], "right")
        correlation = int(rows["correlationId"][row])
        found.append(
            DamagedWork(
                task.report,
                StreamKey(*(int(rows[name][row]) for name in STREAM_COLUMNS)),
                int(begin[row]),
                int(end[row]),
                None if correlation == NULL else correlation,
                int(np.searchsorted(begin[row:last], end[row])) - 1,
            )
        )
    return found


def _number_launches(rows: pl.DataFrame) -> np.ndarray:
    """Number the launching call of each operation. Operations with unknown calls get a number each,
    except graph nodes.
    """
    unknown = (rows["correlationId"] == NULL) & (rows["graphNodeId"] == NULL)
    apart = np.where(unknown.to_numpy(), np.arange(rows.height), -1)
    return factorize_together(rows["correlationId"].to_numpy(), apart)[1]


def mark_damaged(
    queue: np.ndarray, launch: np.ndarray, begin: np.ndarray, end: np.ndarray
) -> np.ndarray:
    """Return a mask of the operations with impossible times: during them, two operations of other
    launches start and end. queue: number of each operation's stream. launch: number of its launch.
    begin, end: its times (ns). Operations are sorted by queue and start, longer ones first.
    """
    damaged, left = np.zeros(len(queue), bool), np.arange(len(queue))
    for _ in range(MOST_NESTED):
        # Operations that enclose damaged ones are found when these are removed.
        damaged[_find_holding(left, queue, launch, begin, end, 2)] = True
        left = np.flatnonzero(~damaged)
    holding = np.append(np.flatnonzero(damaged), _find_holding(left, queue, launch, begin, end, 1))
    most = np.maximum(FEW, SHARE * np.bincount(queue))
    is_in_order = np.bincount(queue[holding], minlength=len(most)) <= most
    return damaged & is_in_order[queue]


def _find_holding(
    rows: np.ndarray,
    queue: np.ndarray,
    launch: np.ndarray,
    begin: np.ndarray,
    end: np.ndarray,
    count: int,
) -> np.ndarray:
    """Return a mask of the operations that enclose the next `count` operations of other launches."""
    queue, launch, begin, end = (column[rows] for column in (queue, launch, begin, end))
    changes = np.flatnonzero((np.diff(launch) != 0) | (np.diff(queue) != 0)) + 1
    places = np.searchsorted(changes, np.arange(len(rows)), "right")
    following = np.append(changes, len(rows))[places]
    holds = np.ones(len(rows), bool)
    for place in range(count):
        later = np.minimum(following + place, len(rows) - 1)
        is_later = (following + place < len(rows)) & (queue[later] == queue)
        holds &= is_later & (launch[later] != launch) & (end[later] < end)
    return rows[holds]
