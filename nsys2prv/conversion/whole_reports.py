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

from msgspec import Struct

from nsys2prv._util.columns import ABSENT, OPEN
from nsys2prv.conversion.lost_launches import LostLaunches, count_lost_launches
from nsys2prv.events import all_kinds
from nsys2prv.events.extraction import Extraction, ReadingSettings
from nsys2prv.events.kind import Account, Counters, EventKind, Rows, Segment
from nsys2prv.export.database import Database
from nsys2prv.export.info import ReportInfo
from nsys2prv.export.recording import ENDS, TIMES
from nsys2prv.export.source import NULL, TIME_LIMIT, Part, mask_usable
from nsys2prv.export.sqlite import open_database
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
    with open_database(work.info.path) as database:
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


def find_span(work: WholeWork, database: Database) -> Span | None:
    """Return the span of all events of a report; None if it has none."""
    info, span = work.info, work.known
    kinds = [
        one for one in all_kinds() if one.name in work.kinds and info.parts.keys() & {*one.tables}
    ]
    bounds: dict[Part, Span] = {}
    for kind in sorted(kinds, key=lambda kind: not kind.extends_trace):
        if not kind.extends_trace and span is not None:
            break
        parts = [info.parts[table] for table in kind.tables if table in info.parts]
        pieces = [piece for part in parts for piece in part.split(PIECE_ROWS)]
        for piece in pieces:
            if piece not in bounds:
                bounds[piece] = _find_bounds(database, piece, info)
        dated = [piece for piece in pieces if bounds[piece] not in (UNKNOWN, None)]
        whole = _unite_spans(*(bounds[piece] for piece in dated)) or UNKNOWN
        # Most of the others lie between the earliest and the latest.
        edges = (
            (min(dated, key=bounds.get), max(dated, key=lambda one: bounds[one][1]))
            if dated
            else ()
        )
        for piece in dict.fromkeys((*edges, *pieces)):
            own = bounds[piece]
            # Pieces without times of their own lie where the others of the kind do.
            if own == UNKNOWN or kind.name in ENDS_ELSEWHERE:
                own = whole
            if own and (span is None or _unite_spans(span, own) != span):
                span = _unite_spans(span, _read_span(work, database, kind, piece))
    return span


def _find_bounds(database: Database, piece: Part, info: ReportInfo) -> Span | None:
    """Return the bounds of the times of the events in a piece of a table; None where it can have none,
    UNKNOWN in a table without times.
    """
    columns = database.tables[piece.table].columns
    begin = next((name for name in TIMES if name in columns), None)
    if begin is None:
        return UNKNOWN
    names = (begin, *(name for name in ENDS if name in columns))
    first, last = info.capture.first, info.capture.last
    begins, *ends = (
        times[mask_usable(times) & (times >= first) & (times <= last)]
        for times in map(database.read(piece, names).__getitem__, names)
    )
    if not len(begins):
        return None
    # Events last 1 ns at least.
    return int(begins.min()), max(int(one.max()) for one in (begins, *ends) if len(one)) + 1


def _read_span(work: WholeWork, database: Database, kind: EventKind, piece: Part) -> Span | None:
    """Return the span of the events of a kind in a piece of its table."""
    extraction = Extraction(work.info, database, settings=work.settings)
    extraction.condition, extraction.stores = kind.make_condition(work.info), False
    pieces = extract_rows(kind, extraction, piece)
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
