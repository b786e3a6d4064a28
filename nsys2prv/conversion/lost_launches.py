"""Count the calls that launched work of which a report has no row: Nsight Systems has lost it, or
somebody has removed it.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
from msgspec import Struct

from nsys2prv._util.columns import factorize, read_frame
from nsys2prv.events.call_indexes import Launches, Segment
from nsys2prv.events.cuda import COPIES, GRAPH_TABLE, KERNEL_TABLE, SETS
from nsys2prv.nsight.info import ReportInfo
from nsys2prv.nsight.source import NULL
from nsys2prv.nsight.sqlite import Database
from nsys2prv.store.runs import Span
from nsys2prv.store.task_result import TaskResult

#: Calls each of which puts work on a GPU, unless a stream is being captured.
LAUNCHING = re.compile(r"cu(?:da)?(?:Launch(?:Cooperative)?Kernel|Launch(?:Grid|_|$)|GraphLaunch)")
CAPTURE_BEGIN = re.compile(r"cu(?:da)?StreamBeginCapture")
CAPTURE_END = re.compile(r"cu(?:da)?StreamEndCapture")
#: Tables of the work that is launched, of which so many rows are looked at together.
WORK_TABLES, ROWS = (KERNEL_TABLE, GRAPH_TABLE, COPIES, SETS), 1_000_000


#: From this share of lost launches on it is not known when the GPUs of a process were idle.
FEW_LOST = 0.01


class LostLaunches(Struct, frozen=True):
    """Launching calls of a process, some of which have no work."""

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


class LaunchTask(Struct, frozen=True):
    """The calls of one report."""

    #: Index of the report.
    report: int
    #: What is known of the report.
    info: ReportInfo
    #: Its calls.
    segments: tuple[Segment, ...]
    #: When its last event ends (local ns).
    end: int


class _Launches(Struct):
    """Launching calls of one piece of the index."""

    #: globalPid.
    process: int
    #: The calls, ascending by correlation id.
    calls: Launches
    #: Whether no work of each call was found yet.
    left: np.ndarray


class _Work(Struct):
    """The work of one process."""

    #: When the last of it ends (local ns), and how long the longest takes.
    end: int
    longest: int = 0


def find_lost_launches(
    infos: Sequence[ReportInfo],
    results: Iterable[TaskResult],
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
        LaunchTask(report, infos[report], tuple(of), spans[report][1])
        for report, of in segments.items()
        if of
    ]
    return [lost for found in run(count_lost_launches, tasks) for lost in found]


def count_lost_launches(task: LaunchTask) -> list[LostLaunches]:
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
        launches = list(_find_launches(task.segments, source.read_strings(sorted(names))))
        parts = [piece for table in tables for piece in task.info.parts[table].split(ROWS)]
        work: dict[int, _Work] = {}
        for part in parts if launches else ():
            columns = source.read(part, ("globalPid", "correlationId", "start", "end"))
            _unmark_found(launches, columns["globalPid"], columns["correlationId"])
            _extend_work(work, columns)
    for process, busy in work.items():
        if task.end - busy.end <= busy.longest:
            _unmark_cut_off([one for one in launches if one.process == process])
    total: Counter[int] = Counter()
    lost: Counter[int] = Counter()
    for one in launches:
        total[one.process] += len(one.left)
        lost[one.process] += int(one.left.sum())
    return [
        LostLaunches(task.report, process, total[process], count)
        for process, count in lost.items()
        if count
    ]


def _find_launches(segments: Sequence[Segment], texts: dict[int, str]) -> Iterator[_Launches]:
    """Yield the launching calls of each segment. texts: names of functions by their ids."""
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
            yield _Launches(segment.process, calls.take(rows), np.ones(int(rows.sum()), bool))


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


def _unmark_found(
    launches: Sequence[_Launches], processes: np.ndarray, correlations: np.ndarray
) -> None:
    """Take off the calls that launched work. processes, correlations: of the work."""
    distinct, codes = factorize(processes)
    for number, process in enumerate(distinct):
        found = np.unique(correlations[codes == number])
        for one in launches:
            if one.process == process:
                one.left &= ~np.isin(one.calls.ids, found, assume_unique=True)


def _extend_work(work: dict[int, _Work], columns: Mapping[str, np.ndarray]) -> None:
    """Take account of rows of work, except those without times."""
    begin, end = columns["start"], columns["end"]
    usable = (begin != NULL) & (end != NULL)
    processes, codes = factorize(columns["globalPid"][usable])
    for number, process in enumerate(processes.tolist()):
        own = np.flatnonzero(usable)[codes == number]
        busy = work.setdefault(process, _Work(int(end[own[0]])))
        busy.end = max(busy.end, int(end[own].max()))
        busy.longest = max(busy.longest, int((end[own] - begin[own]).max()))


def _unmark_cut_off(launches: Sequence[_Launches]) -> None:
    """Take off the calls of a process whose work begins after the report: those after the last call
    of the same function and thread, or of any, whose work is there. The process's GPUs are busy to
    the end of the report.
    """
    last: defaultdict[tuple[int, int], int] = defaultdict(lambda: NULL)
    keys = [one.calls.kinds.select("thread", "name").rows() for one in launches]
    for one, of_kind in zip(launches, keys, strict=True):
        latest = np.full(len(of_kind), NULL)
        np.maximum.at(latest, one.calls.code[~one.left], one.calls.begin[~one.left])
        for key, time in zip(of_kind, latest.tolist(), strict=True):
            last[key] = max(last[key], time)
    of_any = max(last.values())
    for one, of_kind in zip(launches, keys, strict=True):
        until = np.array([of_any if last[key] == NULL else last[key] for key in of_kind])
        one.left &= one.calls.begin < until[one.calls.code]
