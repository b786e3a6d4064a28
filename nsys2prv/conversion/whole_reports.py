"""Collect facts about whole reports: when their events start and end, whether or not these are
read; and launching calls whose work is missing, with the time from which the activity of GPUs is
therefore unknown.

Time 0 and the duration of a trace depend on all events, whatever kinds are selected, so that traces
of the same reports can be overlaid. From tables that are not read for the trace, only time columns
are read. Parts with times beyond the known span are read by rows.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain

import numpy as np
from msgspec import Struct

from nsys2prv._util.budget import LAUNCH_ROWS
from nsys2prv._util.columns import ABSENT, OPEN, factorize_together, find_places, group_rows
from nsys2prv.conversion.report_spans import find_span, unite_spans
from nsys2prv.events import all_kinds
from nsys2prv.events.cuda import COPIES, DECOMPRESSIONS, GRAPH_TABLE, HOST_NODES, KERNEL_TABLE, SETS
from nsys2prv.events.extraction import ReadingSettings
from nsys2prv.events.launches import Launches, Segment, find_launches
from nsys2prv.export.database import Database
from nsys2prv.export.info import ReportInfo
from nsys2prv.export.source import NULL, Part
from nsys2prv.export.sqlite import open_database
from nsys2prv.table.runs import Span
from nsys2prv.table.task_result import TaskResult

#: Calls that put work on a GPU, unless a stream is being captured.
LAUNCHING = re.compile(r"cu(?:da)?(?:Launch(?:Cooperative)?Kernel|Launch(?:Grid|_|$)|GraphLaunch)")
CAPTURE_BEGIN = re.compile(r"cu(?:da)?StreamBeginCapture")
CAPTURE_END = re.compile(r"cu(?:da)?StreamEndCapture")
#: Tables of memory work, which continues in a stream if kernels are missing; tables of all launched work.
MEMORY_TABLES = (COPIES, SETS)
WORK_TABLES = (KERNEL_TABLE, GRAPH_TABLE, *MEMORY_TABLES, HOST_NODES, DECOMPRESSIONS)
#: From this share of lost launches on it is not known when the GPUs of a process were idle.
FEW_LOST = 0.01
#: Later than any time (ns).
NEVER = np.iinfo(np.int64).max
#: Process, thread and function of launching calls: globalPid, globalTid, id of the name.
CallKind = tuple[int, ...]


class LostLaunches(Struct, frozen=True):
    """A process in which the GPU work of some launching calls was not recorded."""

    #: Index of the report.
    report: int
    #: globalPid.
    process: int
    #: Number of launching calls that succeeded, outside of stream capture.
    launches: int
    #: Number of these calls without a row of work, although the work would have started within the
    #: report.
    lost: int
    #: Start of the first and the last of these calls (local ns).
    first: int
    last: int
    #: Time (local ns) from which the process's GPU activity is unknown, because only earlier calls have work;
    #: None if later ones have some, or none has.
    since: int | None = None

    @property
    def matters(self) -> bool:
        """Return True if the work of so many launches is lost that gaps between the recorded work
        mean nothing.
        """
        return self.lost >= FEW_LOST * self.launches

    @property
    def hides_idle_time(self) -> bool:
        """Return True if the idle time of the process's GPUs is unknown everywhere."""
        return self.matters and self.since is None


class WholeReport(Struct, frozen=True):
    """The time span of a report's events, and launches whose work was lost."""

    #: First and last time of its events (local ns); None if it has none.
    span: Span | None
    #: Its processes with launching calls without work.
    lost: list[LostLaunches]


class WholeTask(Struct, frozen=True):
    """A task for a worker: find the time span of one report's events, and launches whose work was
    lost.
    """

    #: Index of the report.
    report: int
    #: Facts about the report.
    info: ReportInfo
    #: Kinds that were not read, or not in full.
    kinds: tuple[str, ...]
    #: Settings of reading.
    settings: ReadingSettings
    #: Span of the kinds that were read and may make the trace longer; None if they have no events.
    known: Span | None
    #: Span of all kinds that were stored.
    stored: Span | None
    #: Its launching calls.
    launches: tuple[Segment, ...]
    #: Of a report that is read in part table -> rows that are read, the part, and the span of all events.
    chosen: Mapping[str, tuple[Part, ...]] = {}
    window: Span | None = None
    span: Span | None = None

    def list_parts(self, table: str) -> tuple[Part, ...]:
        """Return the rows of a table that the task reads, as parts."""
        return self.chosen.get(table, (self.info.parts[table],))


def plan_whole_task(
    report: int,
    info: ReportInfo,
    left_out: Sequence[str],
    asked: ReadingSettings,
    results: Sequence[TaskResult],
) -> WholeTask:
    """Return the task that finds :class:`WholeReport` for a report that has been read. left_out:
    kinds that were not read, or not completely. asked: settings of reading. results: all results of
    the report.
    """
    settings = ReadingSettings(
        lines=False, kernel_rules=asked.kernel_rules, nvtx_rules=asked.nvtx_rules
    )
    noted = [span for result in results for span in result.spans.values()]
    own = _list_spans_of_runs(results, _list_layouts_about_profiler())
    known, stored = unite_spans(*own, *noted), unite_spans(*_list_spans_of_runs(results))
    launches = tuple(chain.from_iterable(result.launches for result in results))
    return WholeTask(report, info, tuple(left_out), settings, known, stored, launches)


def _list_spans_of_runs(results: Sequence[TaskResult], but: Collection[str] = ()) -> list[Span]:
    """Return the spans of runs, except runs of the layouts in `but`."""
    return [
        (run.first_time, run.greatest_time)
        for result in results
        for run in result.runs
        if run.first_time != OPEN and run.shape.name not in but
    ]


@cache
def _list_layouts_about_profiler() -> frozenset[str]:
    """Return the layouts of kinds that do not make a trace longer."""
    others = (kind.layouts for kind in all_kinds() if not kind.extends_trace)
    return frozenset(chain.from_iterable(others))


def survey_report(task: WholeTask) -> WholeReport:
    """Find the time span and the lost launches of a whole report. This depends only on files."""
    with open_database(task.info.path) as database:
        return survey_database(task, database)


def survey_database(task: WholeTask, database: Database) -> WholeReport:
    """Find the time span and the lost launches of a whole report whose export is open."""
    span = task.span or find_span(database, task.info, task.kinds, task.settings, task.known)
    # Profiler rows count only in a report without other rows.
    span = task.stored if span is None else span
    lost = []
    if task.launches and span:
        lost = count_lost_launches(task, database, span[1])
    return WholeReport(span, lost)


# ---- launches without work ------------------------------------------------------------------------


def count_lost_launches(whole: WholeTask, database: Database, end: int) -> list[LostLaunches]:
    """Return the processes of a report in which the work of launching calls within the task's
    window was not recorded. end: when the report's last event ends (local ns).
    """
    report, info, segments = whole.report, whole.info, whole.launches
    tables = [table for table in WORK_TABLES if table in info.parts]
    if not all(database.has(table, "globalPid", "correlationId") for table in tables):
        return []
    names = {name for segment in segments for name in segment.names}
    texts = database.read_strings(sorted(names))
    done = _read_work(tables, whole, database)
    # Begins of calls without work, and of the last one with work, by process, thread and name.
    missing: dict[int, dict[CallKind, list[np.ndarray]]] = {}
    last: dict[CallKind, int] = {}
    for process, calls in _find_launches(segments, texts, whole.window):
        of_process = missing.setdefault(process, defaultdict(list))
        work = done[process]
        stream = work.find_streams(calls.id)
        work.launches += len(stream)
        found = stream != ABSENT
        (threads, functions), codes = factorize_together(calls.thread, calls.name)
        pairs = zip(threads.tolist(), functions.tolist(), strict=True)
        kinds = [(process, *pair) for pair in pairs]
        for code, rows in group_rows(np.where(found, codes, ~codes)):
            kind, begins = kinds[max(code, ~code)], calls.begin[rows]
            if code < 0:
                of_process[kind].append(begins)
                continue
            work.used[kind].update(np.unique(stream[rows]).tolist())
            for known in (kind, kind[:1]):
                last[known] = max(last.get(known, NULL), int(begins.max()))
    lost = []
    for process, pieces in missing.items():
        work, sure, late = done[process], {}, NEVER
        begins_of = {kind: np.concatenate(parts) for kind, parts in pieces.items()}
        # Work may begin after the report: of processes that are busy to its end, that of calls after
        # the last one of the same function and thread, or of any, whose work is there.
        if end - work.last <= work.longest:
            sure = {kind: last.get(kind, last.get(kind[:1], NULL)) for kind in begins_of}
            ids = np.array([*work.copied.values()], np.int64)
            copies = find_launches(segments, np.full(len(ids), process), ids).begin.tolist()
            copied = dict(zip(work.copied, copies, strict=True))
            late = work.find_late(begins_of, sure, copied)
        counted = [
            begin[(begin < sure.get(kind, NEVER)) | (begin >= late)]
            for kind, begin in begins_of.items()
        ]
        begins = np.concatenate([np.zeros(0, np.int64), *counted])
        if len(begins):
            first, known = int(begins.min()), last.get((process,))
            since = None if known is None or first <= known else max(first, work.last_launched)
            span = first, int(begins.max())
            lost.append(LostLaunches(report, process, work.launches, len(begins), *span, since))
    return lost


def _read_work(tables: Sequence[str], whole: WholeTask, database: Database) -> dict[int, _Work]:
    """Return process -> its recorded work, for processes with launching calls."""
    done = {segment.process: _Work() for segment in whole.launches}
    names = ("globalPid", "correlationId", "streamId", "start", "end")
    for table in tables:
        for part in chain.from_iterable(one.split(LAUNCH_ROWS) for one in whole.list_parts(table)):
            columns = database.read(part, names)
            for process, rows in group_rows(columns["globalPid"]):
                if process in done:
                    own = (columns[name][rows] for name in names[1:])
                    done[process].add(table in MEMORY_TABLES, *own)
    return done


class _Work:
    """The work of a process, and known facts about its launches."""

    def __init__(self) -> None:
        # Correlation ids in pieces, each ascending, and their streams.
        self._pieces: list[tuple[np.ndarray, np.ndarray]] = []
        # Stream -> the greatest correlation id of work on memory.
        self.copied: dict[int, int] = {}
        # When the last work ends, of all work and of launched work, and the duration of the longest
        # (ns).
        self.last = self.last_launched = NULL
        self.longest = self.launches = 0
        # Streams that launches of a kind use.
        self.used: dict[CallKind, set[int]] = defaultdict(set)

    def add(
        self,
        is_memory: bool,
        ids: np.ndarray,
        streams: np.ndarray,
        start: np.ndarray,
        end: np.ndarray,
    ) -> None:
        """Add recorded work."""
        order = np.argsort(ids, kind="stable")
        self._pieces.append((ids[order], streams[order].astype(np.int32)))
        timed = (start != NULL) & (end != NULL)
        last = int(end[timed].max(initial=NULL))
        self.last = max(self.last, last)
        self.longest = max(self.longest, int((end - start)[timed].max(initial=0)))
        if not is_memory:
            self.last_launched = max(self.last_launched, last)
            return
        for stream, rows in group_rows(streams):
            self.copied[stream] = max(self.copied.get(stream, 0), int(ids[rows].max()))

    def find_streams(self, ids: np.ndarray) -> np.ndarray:
        """Return the stream of each call's work, or ABSENT."""
        found = np.full(len(ids), ABSENT)
        for known, streams in self._pieces:
            if len(known) and known[0] <= ids[-1] and known[-1] >= ids[0]:
                places = find_places(known, ids)
                found = np.where(places >= 0, streams[places], found)
        return found

    def find_late(
        self,
        begins_of: Mapping[CallKind, np.ndarray],
        sure: Mapping[CallKind, int],
        copied: Mapping[int, int],
    ) -> int:
        """Return the start (local ns) of the first call whose work may be missing although later
        memory work follows on all streams that its kind uses; NEVER without one. Streams keep the
        order of work.

        begins_of: kind -> starts of calls. sure: kind -> time up to which missing work is certain;
        only later calls are searched. copied: stream -> start of the call of its last memory work,
        or NULL.
        """
        late = NEVER
        for kind, begin in begins_of.items():
            until = min((copied.get(stream, NULL) for stream in self.used[kind]), default=NULL)
            late = min(late, int(begin[(begin >= sure[kind]) & (begin < until)].min(initial=NEVER)))
        return late


def _find_launches(
    segments: Sequence[Segment], texts: dict[int, str], window: Span | None
) -> Iterator[tuple[int, Launches]]:
    """Yield (process, launching calls) for each segment that has calls in the window, by id. texts:
    function id -> name.
    """
    launch, begin, end = (
        [number for number, text in texts.items() if pattern.match(text)]
        for pattern in (LAUNCHING, CAPTURE_BEGIN, CAPTURE_END)
    )
    captures = _find_captures(segments, begin, end) if begin else {}
    for segment in segments:
        calls = segment.read()
        rows = np.isin(calls.name, launch) & ((calls.result == 0) | (calls.result == NULL))
        if window:
            rows &= (calls.begin >= window[0]) & (calls.begin <= window[1])
        if segment.process in captures:
            at, (begins, ends) = calls.begin, captures[segment.process]
            rows &= np.searchsorted(begins, at, "right") == np.searchsorted(ends, at, "right")
        if rows.any():
            yield segment.process, calls[rows]


def _find_captures(
    segments: Sequence[Segment], begin: list[int], end: list[int]
) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Return process -> the times at which it captured streams, as sorted starts and ends. A
    capture lasts until it is ended on the same thread. begin, end: ids of the functions.
    """
    calls: dict[int, list[np.ndarray]] = defaultdict(list)
    for segment in segments:
        of_piece = segment.read()
        own = of_piece[np.isin(of_piece.name, (*begin, *end))]
        if len(own):
            calls[segment.process].append(np.stack([own.thread, own.begin, own.name]))
    captures = {}
    for process, pieces in calls.items():
        thread, time, name = np.concatenate(pieces, axis=1)
        order = np.lexsort((time, thread))
        thread, time, is_begin = thread[order], time[order], np.isin(name[order], begin)
        pairs = is_begin[:-1] & ~is_begin[1:] & (thread[1:] == thread[:-1])
        captures[process] = np.sort(time[:-1][pairs]), np.sort(time[1:][pairs])
    return captures
