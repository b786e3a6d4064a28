"""When the events of each report begin and end, whatever kinds of them are asked for: time 0 and
the duration of a trace follow from it, so that traces of the same reports can be laid over each
other.

Of the tables that are not read for the trace the columns of times are, and where these exceed what
is known, the few pieces of the table with the earliest and the latest times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path

import numpy as np
from msgspec import Struct

from nsys2prv._util.columns import OPEN
from nsys2prv.events import all_kinds
from nsys2prv.events.extraction import Extraction, ReadingSettings
from nsys2prv.events.kind import EventKind
from nsys2prv.events.selection import Selection
from nsys2prv.nsight.capture import ENDS, TIMES
from nsys2prv.nsight.columns import TIME_LIMIT, mask_usable
from nsys2prv.nsight.info import ReportInfo
from nsys2prv.nsight.opening import open_source
from nsys2prv.nsight.source import Part, Source
from nsys2prv.store.runs import SpillWriter
from nsys2prv.store.task_result import TaskResult

#: First and last time of a report's events (local ns).
Span = tuple[int, int]
#: Bounds of times of which nothing is known.
UNKNOWN = -TIME_LIMIT, TIME_LIMIT
#: Rows of a piece of a table.
PIECE_ROWS = 20_000
#: Kinds whose ranges end where rows anywhere else in their table say.
ENDS_ELSEWHERE = ("gpu_contexts",)


class SpanTask(Struct, frozen=True):
    """Finds the span of one report's events."""

    #: Index of the report.
    report: int
    #: Facts of the report.
    info: ReportInfo
    #: Kinds that were not read, or not in full.
    kinds: tuple[str, ...]
    #: Span of the kinds that were; None where they have no events.
    known: Span | None
    #: File for a moment.
    spill: Path
    #: Settings of reading.
    settings: ReadingSettings


def find_known_spans(results: Sequence[TaskResult], extending: bool = True) -> dict[int, Span]:
    """Return the span of the runs of each report that has any. extending: those alone of kinds that
    may make the trace longer.
    """
    others = {
        layout for kind in all_kinds() if not kind.rows.extends_trace for layout in kind.layouts
    }
    spans: dict[int, Span] = {}
    for run in (run for result in results for run in result.runs):
        if run.first != OPEN and not (extending and run.shape.name in others):
            span = run.first, run.last
            spans[run.report] = _unite_spans(spans.get(run.report, span), span)
    return spans


def plan_span_tasks(
    infos: Sequence[ReportInfo],
    results: Sequence[TaskResult],
    selection: Selection,
    settings: ReadingSettings,
    folder: Path,
) -> list[SpanTask]:
    """Return a task for each report with tables that were not read, or of which short ranges were
    left out. folder: for files of a moment.
    """
    left_out = [
        kind
        for kind in all_kinds()
        if kind.tables
        and not (kind.selection.opt_in or kind.reads.rereads_rows)
        and (kind not in selection.kinds or settings.least.get(kind.name))
    ]
    known_spans = find_known_spans(results)
    tasks = []
    for report, info in enumerate(infos):
        kinds = tuple(kind.name for kind in left_out if info.parts.keys() & set(kind.tables))
        if kinds:
            tasks.append(
                SpanTask(
                    report,
                    info,
                    kinds,
                    known_spans.get(report),
                    folder / f"span-of-{report}.bin",
                    ReadingSettings(rules=settings.rules, nvtx_rules=settings.nvtx_rules),
                )
            )
    return tasks


def find_span(task: SpanTask) -> Span | None:
    """Return the span of all events of a report (a pure function over files); None if it has none."""
    kinds = [kind for kind in all_kinds() if kind.name in task.kinds]
    span = task.known
    scanned: dict[str, list] = {}
    with open_source(task.info.path) as database:
        for extends in (True, False):
            if extends or span is None:
                for kind in (kind for kind in kinds if kind.rows.extends_trace == extends):
                    span = _widen(span, task, database, kind, scanned)
    task.spill.unlink(missing_ok=True)
    return span


def combine_spans(
    results: Sequence[TaskResult], task_spans: Mapping[int, Span | None]
) -> dict[int, Span]:
    """Return the span of each report with events: as the tasks found it, else as it was read. Rows
    about the profiler count in a report of nothing else alone.
    """
    own, spans = find_known_spans(results, extending=False), find_known_spans(results)
    spans |= {report: span for report, span in task_spans.items() if span is not None}
    return {**own, **spans}


def _widen(
    span: Span | None, task: SpanTask, database: Source, kind: EventKind, scanned: dict[str, list]
) -> Span | None:
    """Return the span made long enough for the events of a kind. scanned: the pieces of tables that
    have been looked at, for the next kind.
    """
    pieces = []
    for table in kind.tables:
        if table in task.info.parts:
            if table not in scanned:
                scanned[table] = list(_list_pieces(database, task.info, task.info.parts[table]))
            pieces += scanned[table]
    timed = [piece[1:] for piece in pieces if piece[1:] != UNKNOWN]
    bounds = _unite_spans(*timed) if timed else UNKNOWN
    if kind.name in ENDS_ELSEWHERE:
        pieces = [(part, *bounds) for part, _, _ in pieces]
    # Pieces without times of their own lie where the others of the kind do.
    pieces = [(piece[0], *(bounds if piece[1:] == UNKNOWN else piece[1:])) for piece in pieces]
    read: set[Part] = set()
    for part, first, _ in sorted(pieces, key=itemgetter(1)):
        if span is not None and first >= span[0]:
            break
        read.add(part)
        span = _join_spans(span, _read_span(task, database, kind, part))
    for part, _, last in sorted(pieces, key=itemgetter(2), reverse=True):
        if span is not None and last <= span[1]:
            break
        if part not in read:
            span = _join_spans(span, _read_span(task, database, kind, part))
    return span


def _list_pieces(database: Source, info: ReportInfo, part: Part) -> Iterator[tuple[Part, int, int]]:
    """Yield pieces of a part with the bounds of their events' times, but those that can have none;
    the bounds are UNKNOWN in tables without times.
    """
    columns = database.tables[part.table].columns
    begin = next((name for name in TIMES if name in columns), None)
    names = tuple(name for name in (begin, *ENDS) if name in columns)
    for piece in part.split(PIECE_ROWS):
        if begin is None:
            yield (piece, *UNKNOWN)
            continue
        piece_columns = database.read(piece, names)
        times = [_are_in_capture(info, piece_columns[name]) for name in names]
        if len(times[0]):
            # Events last 1 ns at least.
            last = max(int(column.max()) for column in times if len(column)) + 1
            yield piece, int(times[0].min()), last


def _are_in_capture(info: ReportInfo, times: np.ndarray) -> np.ndarray:
    return times[mask_usable(times) & (times >= info.capture.first) & (times <= info.capture.last)]


def _read_span(task: SpanTask, database: Source, kind: EventKind, part: Part) -> Span | None:
    """Return the span of the events of a kind in a piece of its table, by reading them."""
    extraction = Extraction(task.info, database, settings=task.settings)
    extraction.condition = kind.make_condition(task.info)
    result = TaskResult(0, task.report, 0)
    writer = SpillWriter(task.spill, task.report, 0)
    try:
        for rows in kind.extract(extraction, part):
            if kind.rows.extends_trace:
                rows = extraction.drop_far_rows(rows)
            result.store(rows, writer, extraction.account, kind.rows.open_ended)
    finally:
        writer.close()
    return find_known_spans([result], extending=False).get(task.report)


def _unite_spans(*spans: Span) -> Span:
    return min(first for first, _ in spans), max(last for _, last in spans)


def _join_spans(one: Span | None, other: Span | None) -> Span | None:
    return _unite_spans(one, other) if one and other else one or other
