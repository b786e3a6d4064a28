"""Find when the events of a report start and end, whatever kinds are selected. Only pieces of
tables with times beyond the known span are read by rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from operator import itemgetter
from types import MappingProxyType

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.budget import SURVEY_ROWS
from nsys2prv._util.columns import ABSENT, OPEN
from nsys2prv.events import all_kinds
from nsys2prv.events.extraction import Extraction, ReadingSettings
from nsys2prv.events.kind import Account, Counters, EventKind, Rows
from nsys2prv.export.database import Database
from nsys2prv.export.info import ReportInfo
from nsys2prv.export.outlines import ENDS, TIMES
from nsys2prv.export.source import NULL, TIME_LIMIT, Part, SomeRows, mask_usable
from nsys2prv.table.runs import Span
from nsys2prv.table.task_result import repair_times

#: Bounds of unknown times.
UNKNOWN = -TIME_LIMIT, TIME_LIMIT
#: Pieces of a table, usually the first and the last, that are read separately.
FEW_PIECES = 2
#: Kinds with ranges that end at a time stated in other rows of their table.
ENDS_ELSEWHERE = ("gpu_contexts",)


def list_kinds_left_out(
    selected: Collection[EventKind], settings: ReadingSettings, beside: Collection[EventKind]
) -> list[str]:
    """Return the names of the event kinds that are not read, or not completely. beside: kinds that
    are read although they are not selected.
    """
    return [
        kind.name
        for kind in all_kinds()
        if kind.tables
        and not (kind.opt_in or kind.rereads_rows or kind in beside)
        and (kind not in selected or settings.min_durations.get(kind.name))
    ]


class PieceBounds(Struct, frozen=True):
    """The first and last event time in each piece (some consecutive rows) of a table."""

    #: All rows of the table, and the rows of a piece.
    part: Part
    rows: int
    #: First and last time of each piece (local ns); OPEN and -OPEN if it cannot have events.
    first: np.ndarray
    last: np.ndarray
    #: False for a table without times.
    is_dated: bool = True

    def get_pieces(self, number: int, count: int) -> Part:
        """Return so many pieces of the table from this number on as a part."""
        first = self.part.first + number * self.rows
        last = min(first + count * self.rows - 1, self.part.last)
        return replace(self.part, first=first, last=last)


def find_span(
    database: Database,
    info: ReportInfo,
    names: Collection[str],
    settings: ReadingSettings,
    span: Span | None = None,
    known: Mapping[str, PieceBounds] = MappingProxyType({}),
) -> Span | None:
    """Return the time span of all events of a report; None if it has none. names: of the kinds
    whose events count. span: of the events of other kinds. known: table -> bounds of its times,
    where they are known.
    """
    kinds = [one for one in all_kinds() if one.name in names and info.parts.keys() & {*one.tables}]
    # Of kinds that share a table, those with most of its rows come first.
    kinds.sort(key=lambda kind: (kind.noted, not kind.has_duration))
    bounds = {**known}
    for extends_trace in (True, False):
        if not extends_trace and span is not None:
            break
        pieces: list[_Pieces] = []
        for kind in kinds:
            if kind.extends_trace == extends_trace:
                for table in info.parts.keys() & {*kind.tables} - bounds.keys():
                    bounds[table] = _find_bounds(database, info.parts[table], info)
                own = [bounds[table] for table in kind.tables if table in bounds]
                pieces += _list_pieces(kind, own)

        def read(kind: EventKind, part: Part, known: Span | None) -> Span | None:
            if known and (kind.separable or kind.noted):
                part = _narrow(database, part, known)
            return _read_span(database, info, settings, kind, part) if part.count else None

        span = _extend_span(span, pieces, read)
    return span


class _Pieces(Struct):
    """The pieces of a table that a kind reads, with the first and last time in each (local ns)."""

    kind: EventKind
    table: PieceBounds
    first: np.ndarray
    last: np.ndarray
    #: How often some were taken.
    times: int = 0

    def find_most_beyond(self, span: Span | None) -> tuple[float, int] | None:
        """Return about how far the times of a piece are outside a span at most (ns), and the number
        of the piece; None if no piece has such times.
        """
        low, high = span or (OPEN, -OPEN)
        is_beyond = (self.first <= self.last) & ((self.first < low) | (self.last > high))
        if not is_beyond.any():
            return None
        far = np.maximum(float(low) - self.first, self.last - float(high))
        number = int(np.where(is_beyond, far, -1).argmax())
        return float(far[number]), number

    def take(self, number: int) -> Part:
        """Return the piece with this number as a part, with its neighbors if others were not enough.
        They count no more.
        """
        self.times += 1
        most = max(1, SURVEY_ROWS // self.table.rows) if self.times > FEW_PIECES else 1
        first = number // most * most
        last = min(first + most, len(self.first))
        self.first[first:last], self.last[first:last] = OPEN, -OPEN
        return self.table.get_pieces(first, last - first)


def _list_pieces(kind: EventKind, tables: Sequence[PieceBounds]) -> Iterator[_Pieces]:
    """Yield the pieces of a kind's tables. Pieces without times have the times of the others."""
    elsewhere = [kind.name in ENDS_ELSEWHERE or not one.is_dated for one in tables]
    whole = UNKNOWN
    if any(elsewhere):
        first = min(int(one.first.min()) for one in tables)
        last = max(int(one.last.max()) for one in tables)
        whole = (first, last) if first <= last else UNKNOWN
    for one, is_elsewhere in zip(tables, elsewhere, strict=True):
        ends = whole if is_elsewhere else (one.first, one.last)
        yield _Pieces(kind, one, *(np.zeros_like(one.first) + end for end in ends))


def _extend_span(
    span: Span | None,
    pieces: Sequence[_Pieces],
    read: Callable[[EventKind, Part, Span | None], Span | None],
) -> Span | None:
    """Return a span extended by all pieces of tables. read: function that returns the span of those
    events of a kind in a part that are not all within a span.
    """
    while True:
        # Most pieces lie between the earliest and the latest.
        beyond = [(one.find_most_beyond(span), one) for one in pieces]
        known = [(*found, one) for found, one in beyond if found]
        if not known:
            return span
        _, number, one = max(known, key=itemgetter(0))
        span = unite_spans(span, read(one.kind, one.take(number), span))


def _find_bounds(database: Database, part: Part, info: ReportInfo) -> PieceBounds:
    """Return the bounds of the event times in a table."""
    columns = database.tables[part.table].columns
    begin = next((name for name in TIMES if name in columns), None)
    pieces = list(part.split(SURVEY_ROWS))
    if begin is None:
        none = np.full(len(pieces), OPEN)
        return PieceBounds(part, SURVEY_ROWS, none, -none, is_dated=False)
    names = (begin, *(name for name in ENDS if name in columns))
    spans = [_find_bounds_of_piece(database, piece, names, info) for piece in pieces]
    first, last = np.array(spans, np.int64).reshape(-1, 2).T
    return PieceBounds(part, SURVEY_ROWS, first, last)


def _find_bounds_of_piece(
    database: Database, piece: Part, names: tuple[str, ...], info: ReportInfo
) -> Span:
    """Return the earliest and latest event time in a piece of a table; OPEN and -OPEN without
    starts.
    """
    first, last = info.capture.first, info.capture.last
    begins, *ends = (
        times[mask_usable(times) & (times >= first) & (times <= last)]
        for times in map(database.read(piece, names).__getitem__, names)
    )
    if not len(begins):
        return OPEN, -OPEN
    # Events last 1 ns at least.
    return int(begins.min()), max(int(one.max()) for one in (begins, *ends) if len(one)) + 1


def _narrow(database: Database, part: Part, span: Span) -> Part:
    """Return the rows of a part with times outside a span; all rows of a table without times."""
    columns = database.tables[part.table].columns
    begin = next((name for name in TIMES if name in columns), None)
    if begin is None:
        return part
    ends = [name for name in ENDS if name in columns]
    rows = database.read(part, (begin, *ends))
    if rows.rows != part.rows or not part.rowid:
        return part
    # Events last 1 ns at least.
    beyond = (rows[begin] < span[0]) | (rows[begin] >= span[1])
    for end in ends:
        beyond |= rows[end] > span[1]
    rowids = part.first + np.flatnonzero(beyond & mask_usable(rows[begin]))
    return SomeRows.choose(part, rowids)


def _read_span(
    database: Database, info: ReportInfo, settings: ReadingSettings, kind: EventKind, piece: Part
) -> Span | None:
    """Return the span of the events of a kind in a piece of its table."""
    extraction = Extraction(info, database, settings=settings)
    extraction.condition, extraction.stores = kind.make_condition(info), False
    pieces = extract_rows(kind, extraction, piece)
    return unite_spans(*(find_span_of_rows(rows, kind.open_ended) for rows in pieces))


def find_span_of_rows(rows: Rows | Counters, open_ended: bool) -> Span | None:
    """Return (first, last) time in ns of rows or samples as they would be stored, or None.
    open_ended: rows without an end last to the end of the trace.
    """
    if isinstance(rows, Counters):
        time = rows.time[mask_usable(rows.time) & (rows.values != ABSENT).any(axis=1)]
        return (int(time.min()), int(time.max())) if len(time) else None
    kept, end = repair_times(rows, open_ended, Account())
    begin, end = rows.begin[kept], end[kept]
    lasts = end[end != OPEN].max(initial=NULL)
    return (int(begin.min()), max(int(begin.max()) + 1, int(lasts))) if len(begin) else None


def extract_rows(kind: EventKind, extraction: Extraction, piece: Part) -> Iterator[Rows | Counters]:
    """Yield the records of an event kind in a piece of its table, without rows that have damaged
    times.
    """
    for rows in kind.extract(extraction, piece):
        yield extraction.drop_far_rows(rows) if kind.extends_trace else rows


def unite_spans(*spans: Span | None) -> Span | None:
    """Return the span that covers all given ones; None for none. Spans that are None are ignored."""
    known = [span for span in spans if span is not None]
    return (min(first for first, _ in known), max(last for _, last in known)) if known else None
