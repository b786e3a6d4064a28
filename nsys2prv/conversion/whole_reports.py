"""Find out what concerns reports as a whole: when their events begin and end, read or not, and which
launching calls have no work in them.

Time 0 and the duration of a trace follow from all events, whatever kinds of them are asked for, so
that traces of the same reports can be laid over each other. Of the tables that are not read for the
trace the columns of times are, and where these exceed what is known, the few pieces of the table
with the earliest and the latest times; of kinds whose times differ from their columns' by reading
them as for a trace.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cache
from itertools import chain
from operator import itemgetter

import numpy as np
from msgspec import Struct, field

from nsys2prv._util.columns import ABSENT, OPEN
from nsys2prv.conversion.lost_launches import LostLaunches, count_lost_launches
from nsys2prv.events import all_kinds
from nsys2prv.events.extraction import Extraction, ReadingSettings
from nsys2prv.events.kind import Account, Counters, EventKind, Rows, Segment
from nsys2prv.events.name_rules import may_drop
from nsys2prv.events.nvtx import TABLE as NVTX_TABLE
from nsys2prv.export.info import ReportInfo
from nsys2prv.export.recording import ENDS, TIMES
from nsys2prv.export.source import NULL, TIME_LIMIT, Columns, Part, Shared, mask_usable
from nsys2prv.export.sqlite import Database
from nsys2prv.table.runs import Span
from nsys2prv.table.work_result import WorkResult, repair_times

#: Rows of the pieces in which the earliest and latest events of a table are sought.
PIECE_ROWS = 20_000
#: Bounds of unknown times.
UNKNOWN = -TIME_LIMIT, TIME_LIMIT
#: Kinds whose ranges end where rows anywhere else in their table say.
ENDS_ELSEWHERE = ("gpu_contexts",)


class WholeReport(Struct, frozen=True):
    """What was found out about a report as a whole."""

    #: First and last time of its events (local ns), None where it has none.
    span: Span | None
    #: Its processes with launching calls that lack work.
    lost: list[LostLaunches]


class WholeWork(Struct, frozen=True):
    """Finds out what concerns one report as a whole."""

    #: Index of the report.
    report: int
    #: What is known of the report.
    info: ReportInfo
    #: Kinds that were not read, or not in full.
    kinds: tuple[str, ...]
    #: Settings of reading.
    settings: ReadingSettings
    #: Span of the kinds that were read and may make the trace longer; None where they have no events.
    known: Span | None
    #: Span of all kinds that were stored.
    stored: Span | None
    #: Its launching calls.
    launches: tuple[Segment, ...]


def plan_whole_work(
    report: int,
    info: ReportInfo,
    left_out: Sequence[str],
    asked: ReadingSettings,
    results: Sequence[WorkResult],
) -> WholeWork:
    """Return the task of a report that has been read. left_out: kinds that were not read, or not in
    full; asked: settings of reading; results: all of the report.
    """
    settings = ReadingSettings(
        lines=False, kernel_rules=asked.kernel_rules, nvtx_rules=asked.nvtx_rules
    )
    noted = [span for result in results for span in result.spans.values()]
    own = _list_spans_of_runs(results, _list_layouts_about_profiler())
    known, stored = _unite_spans(*own, *noted), _unite_spans(*_list_spans_of_runs(results))
    launches = tuple(chain.from_iterable(result.launches for result in results))
    return WholeWork(report, info, tuple(left_out), settings, known, stored, launches)


def _list_spans_of_runs(results: Sequence[WorkResult], but: Collection[str] = ()) -> list[Span]:
    """Return the spans of runs, `but` those of some layouts."""
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


def list_kinds_left_out(
    selected: Collection[EventKind], settings: ReadingSettings, beside: Collection[EventKind]
) -> list[str]:
    """Return the names of the kinds that are not read, or not in full. beside: kinds that are
    read though they are not selected.
    """
    return [
        kind.name
        for kind in all_kinds()
        if kind.tables
        and not (kind.opt_in or kind.rereads_rows or kind in beside)
        and (kind not in selected or settings.min_durations.get(kind.name))
    ]


def survey_report(work: WholeWork) -> WholeReport:
    """Find out what concerns a report as a whole (a pure function over files)."""
    with Database(work.info.path) as database:
        return survey_database(work, database)


def survey_database(work: WholeWork, database: Database) -> WholeReport:
    """Find out what concerns the report of an open database as a whole."""
    span = find_span(work, database)
    # Rows about the profiler count only in a report that holds nothing else.
    span = work.stored if span is None else span
    lost = []
    if work.launches and span:
        lost = count_lost_launches(work.report, work.info, work.launches, database, span[1])
    return WholeReport(span, lost)


class _Scan(Struct):
    """Tables in which the earliest and the latest events are sought."""

    #: The task.
    work: WholeWork
    #: The report.
    database: Database
    #: Pieces of each table with the bounds of their times (ns).
    pieces: dict[str, list[tuple[Part, int, int]]] = field(default_factory=dict)
    #: Which kinds have which rows of a piece, and the times of these, where several kinds read it.
    shared: dict[Part, Shared | None] = field(default_factory=dict)


def find_span(work: WholeWork, database: Database) -> Span | None:
    """Return the span of all events of a report; None if it has none."""
    parts, scan, span = work.info.parts.keys(), _Scan(work, database), work.known
    kinds = [one for one in all_kinds() if one.name in work.kinds and parts & set(one.tables)]
    # Of the others little has to be read where these are long.
    kinds.sort(key=lambda kind: not kind.plain_times)
    for extends in (True, False):
        if extends or span is None:
            for kind in (kind for kind in kinds if kind.extends_trace == extends):
                span = _widen(span, scan, kind, [one for one in kinds if one.tables == kind.tables])
    return span


def _widen(
    span: Span | None, scan: _Scan, kind: EventKind, together: Sequence[EventKind]
) -> Span | None:
    """Return the span made long enough for the events of a kind. together: the kinds that read its
    tables.
    """
    pieces, parts = [], scan.work.info.parts
    for table in kind.tables:
        if table in parts and table not in scan.pieces:
            scan.pieces[table] = list(_list_pieces(scan.database, scan.work.info, parts[table]))
        pieces += scan.pieces.get(table, ())
    bounds = _unite_spans(*(piece[1:] for piece in pieces if piece[1:] != UNKNOWN)) or UNKNOWN
    if kind.name in ENDS_ELSEWHERE:
        pieces = [(part, *bounds) for part, _, _ in pieces]
    # Pieces without times of their own lie where the others of the kind do.
    pieces = [(piece[0], *(bounds if piece[1:] == UNKNOWN else piece[1:])) for piece in pieces]
    read: set[Part] = set()
    for part, first, _ in sorted(pieces, key=itemgetter(1)):
        if span is not None and first >= span[0]:
            break
        read.add(part)
        span = _unite_spans(span, _read_span(scan, kind, part, together, span))
    for part, _, last in sorted(pieces, key=itemgetter(2), reverse=True):
        if span is not None and last <= span[1]:
            break
        if part not in read:
            span = _unite_spans(span, _read_span(scan, kind, part, together, span))
    return span


def _list_pieces(
    database: Database, info: ReportInfo, part: Part
) -> Iterator[tuple[Part, int, int]]:
    """Yield pieces of a part with the bounds of their events' times, but those that can have none;
    the bounds are UNKNOWN in tables without times.
    """
    names = _list_time_columns(database, part.table)
    for piece in part.split(PIECE_ROWS):
        bounds = _find_bounds(database.read(piece, names), names, info) if names else UNKNOWN
        if bounds is not None:
            yield (piece, *bounds)


def _list_time_columns(database: Database, table: str) -> tuple[str, ...]:
    """Return the columns of a table with times of its rows, that of their begins first."""
    columns = database.tables[table].columns
    begin = next((name for name in TIMES if name in columns), None)
    return tuple(name for name in (begin, *ENDS) if name in columns) if begin else ()


def _find_bounds(columns: Columns, names: Sequence[str], info: ReportInfo) -> Span | None:
    """Return the bounds of the times in columns, that of begins first; None without begins."""
    capture = info.capture
    times = [
        times[mask_usable(times) & (times >= capture.first) & (times <= capture.last)]
        for times in (columns[name] for name in names)
    ]
    if not len(times[0]):
        return None
    # Events last 1 ns at least.
    return int(times[0].min()), max(int(column.max()) for column in times if len(column)) + 1


def _read_span(
    scan: _Scan, kind: EventKind, part: Part, together: Sequence[EventKind], span: Span | None
) -> Span | None:
    """Return the span of the events of a kind in a piece of its table, by reading them, or their
    times where that is enough; None where it is within `span`. Of kinds that read the piece together,
    the times of their rows are read once.
    """
    info, database, of_kind = scan.work.info, scan.database, None
    names = _list_time_columns(database, part.table)
    if len(together) > 1 and names:
        if part not in scan.shared:
            times = tuple(dict.fromkeys(("start", "end", *names)))
            conditions = [one.make_condition(info) for one in together]
            scan.shared[part] = database.read_once(part, times, (), conditions)
        if shared := scan.shared[part]:
            of_kind = shared, together.index(kind)
            if not shared.mask_meeting(of_kind[1]).any():
                return None
            rows = shared.select_meeting(of_kind[1], names, ())
            bounds = _find_bounds(rows, names, info)
            if bounds is None or (
                span is not None
                and _unite_spans(span, bounds) == span
                and kind.name not in ENDS_ELSEWHERE
            ):
                return None
    extraction = Extraction(info, database, settings=scan.work.settings)
    extraction.condition, extraction.stores = kind.make_condition(info), False
    extraction.shared = of_kind
    rules = extraction.nvtx_rules if part.table == NVTX_TABLE else ()
    if kind.plain_times and not may_drop(rules):
        columns, none = extraction.read(part, ("start", "end")), np.zeros(0, np.int64)
        rows = Rows(kind.layouts[0], columns["start"], columns["end"], none, {})
        return find_span_of_rows(extraction.drop_far_rows(rows), kind.open_ended)
    pieces = extract_rows(kind, extraction, part)
    return _unite_spans(*(find_span_of_rows(rows, kind.open_ended) for rows in pieces))


def find_span_of_rows(rows: Rows | Counters, open_ended: bool) -> Span | None:
    """Return the first and the last time (ns) of rows or samples as they would be stored; None where
    none would. open_ended: a row without an end lasts to the end of the trace.
    """
    if isinstance(rows, Counters):
        time = rows.time[mask_usable(rows.time) & (rows.values != ABSENT).any(axis=1)]
        return (int(time.min()), int(time.max())) if len(time) else None
    kept, end = repair_times(rows, open_ended, Account())
    begin, end = rows.begin[kept], end[kept]
    lasts = end[end != OPEN].max(initial=NULL)
    return (int(begin.min()), max(int(begin.max()) + 1, int(lasts))) if len(begin) else None


def extract_rows(kind: EventKind, extraction: Extraction, piece: Part) -> Iterator[Rows | Counters]:
    """Yield the rows of a kind in a piece of its table, without damaged times."""
    for rows in kind.extract(extraction, piece):
        yield extraction.drop_far_rows(rows) if kind.extends_trace else rows


def _unite_spans(*spans: Span | None) -> Span | None:
    """Return the span that covers all given ones; None for no span."""
    known = [span for span in spans if span is not None]
    return (min(first for first, _ in known), max(last for _, last in known)) if known else None
