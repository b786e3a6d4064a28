"""Count launching calls whose work has no row: Nsight Systems lost it, or somebody removed it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.columns import read_frame
from nsys2prv.events.call_indexes import Segment
from nsys2prv.events.cuda import (
    COPIES,
    DECOMPRESSIONS,
    GRAPH_TABLE,
    HOST_NODES,
    KERNEL_TABLE,
    SETS,
)
from nsys2prv.export.info import ReportInfo
from nsys2prv.export.source import NULL
from nsys2prv.export.sqlite import Database
from nsys2prv.store.runs import Span
from nsys2prv.store.work_result import WorkResult

#: Calls each of which puts work on a GPU, unless a stream is being captured.
LAUNCHING = re.compile(r"cu(?:da)?(?:Launch(?:Cooperative)?Kernel|Launch(?:Grid|_|$)|GraphLaunch)")
CAPTURE_BEGIN = re.compile(r"cu(?:da)?StreamBeginCapture")
CAPTURE_END = re.compile(r"cu(?:da)?StreamEndCapture")
#: Tables of the work that is launched, of which so many rows are looked at together.
WORK_TABLES = (KERNEL_TABLE, GRAPH_TABLE, COPIES, SETS, HOST_NODES, DECOMPRESSIONS)
ROWS = 1_000_000


#: Columns of work -> those of its tables.
WORK_COLUMNS = {
    "process": "globalPid",
    "id": "correlationId",
    "begin": "start",
    "end": "end",
}
#: From this share of lost launches on it is not known when the GPUs of a process were idle.
FEW_LOST = 0.01


class LostLaunches(Struct, frozen=True):
    """Launching calls of a process, some without recorded work."""

    #: Index of the report.
    report: int
    #: globalPid.
    process: int
    #: Number of launching calls that succeeded, outside of stream capture.
    launches: int
    #: Number of those without a row of any work, though it would have begun within the report.
    lost: int

    @property
    def hides_idle_time(self) -> bool:
        """True if so many are lost that gaps between the others mean nothing."""
        return self.lost >= FEW_LOST * self.launches


class LaunchWork(Struct, frozen=True):
    """The calls of one report."""

    #: Index of the report.
    report: int
    #: What is known of the report.
    info: ReportInfo
    #: Its calls.
    segments: tuple[Segment, ...]
    #: When its last event ends (local ns).
    end: int


def find_lost_launches(
    infos: Sequence[ReportInfo],
    results: Iterable[WorkResult],
    spans: Mapping[int, Span],
    run: Callable[[Callable, Sequence], Iterator],
) -> list[LostLaunches]:
    """Return the processes with such calls. results: of reading, which have indexed the calls;
    spans: when each report's events begin and end (local ns).
    """
    segments: dict[int, list[Segment]] = defaultdict(list)
    for result in results:
        segments[result.report] += result.launches
    tasks = [
        LaunchWork(report, infos[report], tuple(of), spans[report][1])
        for report, of in segments.items()
        if of
    ]
    return [lost for found in run(count_lost_launches, tasks) for lost in found]


def count_lost_launches(task: LaunchWork) -> list[LostLaunches]:
    """Return the processes of a report with such calls (a pure function over files)."""
    with Database(task.info.path) as source:
        tables = [table for table in WORK_TABLES if table in task.info.parts]
        if not all(source.has(table, "globalPid", "correlationId") for table in tables):
            return []
        names = {
            name
            for kinds in {segment.kinds for segment in task.segments}
            for name in read_frame(kinds)["name"]
        }
        frames = list(_find_launches(task.segments, source.read_strings(sorted(names))))
        if not frames:
            return []
        launches = left = pl.concat(frames)
        busy = []
        for part in (piece for table in tables for piece in task.info.parts[table].split(ROWS)):
            columns = source.read(part, ("globalPid", "correlationId", "start", "end"))
            work = pl.DataFrame({name: columns[old] for name, old in WORK_COLUMNS.items()})
            left = left.join(work, on=("process", "id"), how="anti")
            timed = work.filter((pl.col("begin") != NULL) & (pl.col("end") != NULL))
            lasts = pl.col("end") - pl.col("begin")
            busy.append(timed.group_by("process").agg(pl.max("end"), longest=lasts.max()))
    if busy:
        to_the_end = task.end - pl.max("end") <= pl.max("longest")
        ends = pl.concat(busy).group_by("process").agg(to_the_end=to_the_end)
        left = _leave_out_cut_off(launches, left, ends.filter("to_the_end")["process"])
    total = launches.group_by("process", maintain_order=True).len("launches")
    lost = total.join(left.group_by("process").len("lost"), on="process", maintain_order="left")
    return [LostLaunches(task.report, *row) for row in lost.rows()]


def _find_launches(segments: Sequence[Segment], texts: dict[int, str]) -> Iterator[pl.DataFrame]:
    """Yield the launching calls of each segment that has any. texts: names of functions by their
    ids.
    """
    launch, begin, end = (
        [number for number, text in texts.items() if pattern.match(text)]
        for pattern in (LAUNCHING, CAPTURE_BEGIN, CAPTURE_END)
    )
    captures = _find_captures(segments, begin, end) if begin else {}
    for segment in segments:
        calls = segment.read()
        wanted = np.isin(calls.kinds["name"], launch) & np.isin(calls.kinds["result"], (0, NULL))
        rows = wanted[calls.code]
        if segment.process in captures:
            at, (begins, ends) = calls.begin, captures[segment.process]
            rows &= np.searchsorted(begins, at, "right") == np.searchsorted(ends, at, "right")
        if rows.any():
            own = calls.take(rows)
            columns = {"process": np.full(len(own.ids), segment.process), "id": own.ids}
            columns |= {"begin": own.begin, "thread": own.get("thread"), "name": own.get("name")}
            yield pl.DataFrame(columns).cast(pl.Int64)


def _find_captures(
    segments: Sequence[Segment], begin: list[int], end: list[int]
) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Return when each process captured streams: begins and ends, each ascending. A capture lasts
    until it is ended on the same thread. begin, end: ids of the functions.
    """
    calls: dict[int, list[np.ndarray]] = defaultdict(list)
    for segment in segments:
        of_piece = segment.read()
        chosen = np.isin(of_piece.kinds["name"], (*begin, *end))
        if chosen.any():
            own = of_piece.take(chosen[of_piece.code])
            calls[segment.process].append(np.stack([own.get("thread"), own.begin, own.get("name")]))
    captures = {}
    for process, pieces in calls.items():
        thread, time, name = np.concatenate(pieces, axis=1)
        order = np.lexsort((time, thread))
        thread, time, is_begin = thread[order], time[order], np.isin(name[order], begin)
        pairs = is_begin[:-1] & ~is_begin[1:] & (thread[1:] == thread[:-1])
        captures[process] = np.sort(time[:-1][pairs]), np.sort(time[1:][pairs])
    return captures


def _leave_out_cut_off(launches: pl.DataFrame, left: pl.DataFrame, busy: pl.Series) -> pl.DataFrame:
    """Return the launches without work, except those whose work begins after the report: of
    processes busy to the end, launches after the last call (of the same function and thread, or of
    any) whose work is recorded.
    """
    found = launches.join(left, on=("process", "id"), how="anti")
    kind = ["process", "thread", "name"]
    left = left.join(found.group_by(kind).agg(last=pl.max("begin")), on=kind, how="left")
    of_any = found.group_by("process").agg(last_of_any=pl.max("begin"))
    left = left.join(of_any, on="process", how="left")
    before = pl.col("begin") < pl.coalesce("last", "last_of_any")
    return left.filter(~pl.col("process").is_in(busy.implode()) | before.fill_null(False))
