"""Find when the events of a report start and end, whatever kinds are selected. Only pieces of
tables with times beyond the known span are read by rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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
from nsys2prv.export.source import NULL, TIME_LIMIT, Part, mask_usable
from nsys2prv.table.runs import Span
from nsys2prv.table.task_result import repair_times

#: Bounds of unknown times.
UNKNOWN = -TIME_LIMIT, TIME_LIMIT
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

    def get_piece(self, number: int) -> Part:
        """Return the piece of the table with this number as a part."""
        first = self.part.first + number * self.rows
        return replace(self.part, first=first, last=min(first + self.rows - 1, self.part.last))


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
    bounds = {**known}
    for kind in sorted(kinds, key=lambda kind: not kind.extends_trace):
        if not kind.extends_trace and span is not None:
            break
        for table in info.parts.keys() & {*kind.tables} - bounds.keys():
            bounds[table] = _find_bounds(database, info.parts[table], info)
        own = [bounds[table] for table in kind.tables if table in bounds]
        first, last = (
            np.concatenate([getattr(one, end) for one in own]) for end in ("first", "last")
        )
        # Pieces without times have the times of the other pieces of the kind.
        counts = [len(one.first) for one in own]
        elsewhere = np.repeat(
            [kind.name in ENDS_ELSEWHERE or not one.is_dated for one in own], counts
        )
        if elsewhere.any():
            whole = int(first.min()), int(last.max())
            first, last = (
                np.where(elsewhere, end, column)
                for end, column in zip(
                    whole if whole[0] <= whole[1] else UNKNOWN, (first, last), strict=True
                )
            )
        edges = np.cumsum([0, *counts])

        def read(
            place: int, kind: EventKind = kind, own: Sequence = own, edges: np.ndarray = edges
        ) -> Span | None:
            table = int(edges.searchsorted(place, "right")) - 1
            piece = own[table].get_piece(place - int(edges[table]))
            return _read_span(database, info, settings, kind, piece)

        span = _extend_span(span, first, last, read)
    return span


def _extend_span(
    span: Span | None, first: np.ndarray, last: np.ndarray, read: Callable[[int], Span | None]
) -> Span | None:
    """Return a span extended by all pieces of a kind. first, last: bounds of the pieces. read:
    function that returns the span of a piece.
    """

    def extend(span: Span | None, places: Iterable[int]) -> Span | None:
        for place in places:
            bounds = int(first[place]), int(last[place])
            if bounds[0] <= bounds[1] and unite_spans(span, bounds) != span:
                span = unite_spans(span, read(place))
        return span

    # Most of the others lie between the earliest and the latest.
    edges = list(dict.fromkeys((int(first.argmin()), int(last.argmax()))))
    span = extend(span, edges)
    low, high = span or (OPEN, -OPEN)
    outside = (first < low) | (last > high)
    outside[edges] = False
    return extend(span, np.flatnonzero(outside).tolist())


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
