"""Count launching calls whose work has no row: Nsight Systems lost it, or somebody removed it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
from msgspec import Struct

from nsys2prv._util.columns import group_rows, read_columns
from nsys2prv.events.call_indexes import Launches, Segment
from nsys2prv.events.cuda import COPIES, DECOMPRESSIONS, GRAPH_TABLE, HOST_NODES, KERNEL_TABLE, SETS
from nsys2prv.export.info import ReportInfo
from nsys2prv.export.source import NULL
from nsys2prv.export.sqlite import Database
from nsys2prv.store.runs import Span
from nsys2prv.store.work_result import WorkResult

#: Calls each of which puts work on a GPU, unless a stream is being captured.
LAUNCHING = re.compile(r"cu(?:da)?(?:Launch(?:Cooperative)?Kernel|Launch(?:Grid|_|$)|GraphLaunch)")
CAPTURE_BEGIN = re.compile(r"cu(?:da)?StreamBeginCapture")
CAPTURE_END = re.compile(r"cu(?:da)?StreamEndCapture")
#: Tables of launched work, and how many of their rows are read at a time.
WORK_TABLES = (KERNEL_TABLE, GRAPH_TABLE, COPIES, SETS, HOST_NODES, DECOMPRESSIONS)
ROWS = 1_000_000
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
    """Return the processes with launching calls that lack work. results: of reading, with indexes
    of calls; spans: of each report's events (local ns).
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
    processes = dict.fromkeys(segment.process for segment in task.segments)
    with Database(task.info.path) as source:
        tables = [table for table in WORK_TABLES if table in task.info.parts]
        if not all(source.has(table, "globalPid", "correlationId") for table in tables):
            return []
        names = {
            name
            for kinds in {segment.kinds for segment in task.segments}
            for name in read_columns(kinds)["name"].tolist()
        }
        texts = source.read_strings(sorted(names))
        work = {process: _Work() for process in processes}
        for part in (piece for table in tables for piece in task.info.parts[table].split(ROWS)):
            columns = source.read(part, ("globalPid", "correlationId", "start", "end"))
            own = [columns[name] for name in ("correlationId", "start", "end")]
            for process, rows in group_rows(columns["globalPid"]):
                if process in work:
                    work[process].add(*(column[rows] for column in own))
    launches: dict[int, int] = defaultdict(int)
    # Begins of calls without work, and of the last one with work, by process, thread and name.
    missing: dict[tuple[int, int, int], list[np.ndarray]] = defaultdict(list)
    last: dict[tuple[int, ...], int] = {}
    for process, calls in _find_launches(task.segments, texts):
        found = work[process].find(calls.ids)
        launches[process] += len(found)
        for code, rows in group_rows(calls.code):
            key = (process, int(calls.kinds.thread[code]), int(calls.kinds.name[code]))
            begin, is_found = calls.begin[rows], found[rows]
            missing[key].append(begin[~is_found])
            if is_found.any():
                latest = int(begin[is_found].max())
                for known in (key, key[:1]):
                    last[known] = max(last.get(known, NULL), latest)
    lost = dict.fromkeys(launches, 0)
    for key, begins in missing.items():
        process, begin = key[0], np.concatenate(begins)
        # Work may begin after the report: of processes that are busy to its end, that of calls after
        # the last one of the same function and thread, or of any, whose work is there.
        if task.end - work[process].last <= work[process].longest:
            begin = begin[begin < last.get(key, last.get(key[:1], NULL))]
        lost[process] += len(begin)
    return [
        LostLaunches(task.report, process, launches[process], count)
        for process, count in lost.items()
        if count
    ]


class _Work:
    """The work of a process: correlation ids, when the last ends, and how long the longest lasts."""

    def __init__(self) -> None:
        self._ids = [np.zeros(0, np.int64)]
        self.last, self.longest = NULL, 0

    def add(self, ids: np.ndarray, start: np.ndarray, end: np.ndarray) -> None:
        """Add work."""
        self._ids.append(np.sort(ids))
        timed = (start != NULL) & (end != NULL)
        self.last = max(self.last, int(end[timed].max(initial=NULL)))
        self.longest = max(self.longest, int((end - start)[timed].max(initial=0)))

    def find(self, ids: np.ndarray) -> np.ndarray:
        """Return whether there is work of calls."""
        found = np.zeros(len(ids), bool)
        for known in self._ids:
            if len(known) and known[0] <= ids[-1] and known[-1] >= ids[0]:
                place = np.minimum(np.searchsorted(known, ids), len(known) - 1)
                found |= known[place] == ids
        return found


def _find_launches(
    segments: Sequence[Segment], texts: dict[int, str]
) -> Iterator[tuple[int, Launches]]:
    """Yield process and launching calls of each segment that has any, by their ids. texts: names of
    functions by their ids.
    """
    launch, begin, end = (
        [number for number, text in texts.items() if pattern.match(text)]
        for pattern in (LAUNCHING, CAPTURE_BEGIN, CAPTURE_END)
    )
    captures = _find_captures(segments, begin, end) if begin else {}
    for segment in segments:
        calls = segment.read()
        wanted = np.isin(calls.kinds.name, launch) & np.isin(calls.kinds.result, (0, NULL))
        rows = wanted[calls.code]
        if segment.process in captures:
            at, (begins, ends) = calls.begin, captures[segment.process]
            rows &= np.searchsorted(begins, at, "right") == np.searchsorted(ends, at, "right")
        if rows.any():
            yield segment.process, calls.take(rows)


def _find_captures(
    segments: Sequence[Segment], begin: list[int], end: list[int]
) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Return when each process captured streams: begins and ends, each ascending. A capture lasts
    until it is ended on the same thread. begin, end: ids of the functions.
    """
    calls: dict[int, list[np.ndarray]] = defaultdict(list)
    for segment in segments:
        of_piece = segment.read()
        chosen = np.isin(of_piece.kinds.name, (*begin, *end))
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
