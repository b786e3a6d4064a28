"""From the normal form to sorted runs: times made sane, rows split by the attributes they carry, sorted, spilled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from nsys2prv.catalogue import Layout, catalogue
from nsys2prv.catalogue.counters import Metric
from nsys2prv.columns import ABSENT, OPEN, factorize, is_sorted
from nsys2prv.events.kind import Counters, Lines, Rows
from nsys2prv.report.info import TIME_LIMIT
from nsys2prv.report.source import NULL
from nsys2prv.store.runs import BEGIN, COUNTER, END, LINE, Run, Shape, SpillWriter, begin_dtype, end_dtype, fields_present

#: The greatest number that is stored in 32 bits.
MOST_NARROW = (1 << 32) - 1


def spill(rows: Rows, open_ended: bool, writer: SpillWriter, dropped: Counter[str], repaired: Counter[str]) -> Iterator[Run]:
    """Store one piece of the normal form; yields its runs. Rows without usable times are counted in `dropped`.

    open_ended: a row without an end lasts to the end of the trace.
    """
    layout = catalogue().layouts[rows.layout]
    if layout.holds:
        rows = replace(rows, end=rows.begin + 1)
    kept, end = _sane_times(rows, open_ended, dropped, repaired)
    if len(kept):
        carried = _carried(layout, rows.columns, kept)
        combinations, codes = factorize(carried)
        for code, present in enumerate(combinations):
            chosen = slice(None) if len(combinations) == 1 else np.flatnonzero(codes == code)
            yield from _spill_events(rows, layout, int(present), kept[chosen], end[chosen], writer)
    if rows.lines is not None:
        yield from spill_lines(rows.lines, writer)


def spill_counters(counters: Counters, writer: SpillWriter, dropped: Counter[str]) -> Iterator[Run]:
    """Store samples; yields their run, if there are any with usable times."""
    usable = _usable(counters.time)
    carried = np.count_nonzero(counters.values != ABSENT, axis=1)
    if not usable.all():
        dropped["samples without usable times"] += int(carried[~usable].sum())
    kept = np.flatnonzero(usable & (carried > 0))
    if not len(kept):
        return
    time = counters.time[kept]
    order = slice(None) if is_sorted(time) else np.argsort(time, kind="stable")
    values = counters.values[kept] + 1
    shape = sample_shape(counters.layout, counters.metrics, values)
    records = np.empty(len(kept), shape.dtype)
    records["time"], records["object"], records["values"] = time[order], counters.object, values[order]
    yield writer.append(shape, records, int(records["time"][-1]), counters.object, int(carried[kept].sum()))


def sample_shape(layout: str, metrics: tuple[Metric, ...], stored: np.ndarray) -> Shape:
    """The shape of records with these numbers, as they are stored (value + 1)."""
    return Shape(COUNTER, layout, 4 if int(stored.max()) <= MOST_NARROW else 8, metrics)


def _usable(times: np.ndarray) -> np.ndarray:
    """Which times a trace can hold: neither NULL nor, in either direction, beyond TIME_LIMIT (ns)."""
    # Not by the absolute value, which overflows for NULL.
    return (times > -TIME_LIMIT) & (times < TIME_LIMIT)


def _sane_times(rows: Rows, open_ended: bool, dropped: Counter[str], repaired: Counter[str]) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the rows to keep, and their ends: after the begin by at least 1 ns, or OPEN."""
    begin, end = rows.begin, rows.end
    usable, closed = _usable(begin), _usable(end)
    if open_ended:
        opened = usable & ~closed
        if opened.any():
            repaired["ranges without an end, closed at the end of the trace"] += int(opened.sum())
    else:
        usable &= closed
    lost = len(begin) - int(usable.sum())
    if lost:
        dropped["rows without usable times"] += lost
    kept = np.flatnonzero(usable) if lost else np.arange(len(begin))
    begin, end, closed = begin[kept], end[kept], closed[kept]
    backward = closed & (end < begin)
    if backward.any():
        repaired["ends before their begins, made 1 ns long"] += int(backward.sum())
    return kept, np.where(closed, np.maximum(end, begin + 1), OPEN)


def _carried(layout: Layout, columns: dict[str, np.ndarray], kept: np.ndarray) -> np.ndarray:
    """For each row the bits of the fields it carries: all that are not optional, and the optional ones that it has.

    Of the others a plain number of 0 is not written where rows of the layout follow one another: between them it is 0 anyway.
    """
    follow = not layout.nests and not layout.holds
    carried = np.zeros(len(kept), np.int64)
    for bit, field in enumerate(layout.fields):
        if field.optional:
            carried |= (columns[field.name][kept] != ABSENT).astype(np.int64) << bit
        elif bit and follow and field.values is None:
            carried |= (columns[field.name][kept] > 0).astype(np.int64) << bit
        else:
            carried |= 1 << bit
    return carried


def _spill_events(rows: Rows, layout: Layout, present: int, kept: np.ndarray, end: np.ndarray, writer: SpillWriter) -> Iterator[Run]:
    begin = rows.begin[kept]
    order = _outer_first(begin, end)
    sorted_rows = kept if isinstance(order, slice) else kept[order]
    # Paraver's tools know no negative values; the few that damage makes say nothing, as 0 does.
    columns = {field.name: np.maximum(rows.columns[field.name][sorted_rows], 0) for field in fields_present(layout, present)}
    wide = sum(1 << bit for bit, field in enumerate(layout.fields) if present >> bit & 1 and int(columns[field.name].max()) > MOST_NARROW)
    records = np.empty(len(kept), begin_dtype(layout, present, wide))
    records["time"], records["end"], records["object"] = begin[order], end[order], rows.object[sorted_rows]
    if layout.has_domain:
        records["domain"] = rows.domain[sorted_rows]
    for name, column in columns.items():
        records[name] = column
    closed = records["end"][records["end"] != OPEN]
    last = max(int(closed.max(initial=NULL)), int(records["time"][-1]) + 1)
    yield from append_events(writer, Shape(BEGIN, layout.name, present, wide=wide), records, records["end"], last)


def append_events(writer: SpillWriter, shape: Shape, begins: np.ndarray, end: np.ndarray, last: int) -> tuple[Run, Run]:
    """Store begin records, ascending by time, and the end records that belong to them. end: of each; last: as in :class:`Run`."""
    layout = catalogue().layouts[shape.name]
    object_ = one_object(begins)
    ends = closings_of(begins, layout) if layout.holds else ends_of(begins, end, layout)
    return writer.append(shape, begins, last, object_), writer.append(Shape(END, shape.name, shape.present), ends, last, object_)


def one_object(records: np.ndarray) -> int:
    """The one object of all records, -1 for several."""
    first, greatest = int(records["object"].min()), int(records["object"].max())
    return first if first == greatest else -1


def ends_of(begins: np.ndarray, end: np.ndarray, layout: Layout) -> np.ndarray:
    """The end records of begin records that end at `end`, ascending by time."""
    ends = np.empty(len(begins), end_dtype(layout))
    order = slice(None) if is_sorted(end) else np.argsort(end, kind="stable")
    ends["time"] = end[order]
    for name in ends.dtype.names[1:]:
        ends[name] = begins[name][order]
    return ends


def closings_of(begins: np.ndarray, layout: Layout) -> np.ndarray:
    """End records at the end of the trace, one for each object of the begin records."""
    objects = np.unique(begins["object"])
    ends = np.zeros(len(objects), end_dtype(layout))
    ends["time"], ends["object"] = OPEN, objects
    return ends


def _outer_first(begin: np.ndarray, end: np.ndarray) -> slice | np.ndarray:
    """The order by begin, the longer first among equals."""
    steps = np.diff(begin)
    if (steps > 0).all():
        return slice(None)
    return np.lexsort((-end, begin))


def spill_lines(lines: Lines, writer: SpillWriter) -> Iterator[Run]:
    """Store lines; yields their run.

    Lines whose ends lack usable times are left out; the row that a line leads to is spilled under the same condition.
    """
    kept = np.flatnonzero(_usable(lines.send) & _usable(lines.receive) & _usable(lines.until))
    if not len(kept):
        return
    order = kept[np.argsort(lines.send[kept], kind="stable")]
    shape = Shape(LINE, lines.kind)
    records = np.empty(len(order), shape.dtype)
    until = np.maximum(lines.until, lines.receive + 1)
    for name, column in (("time", lines.send), ("sender", lines.sender), ("receive", lines.receive), ("receiver", lines.receiver),
                         ("until", until), ("size", lines.size)):
        records[name] = column[order]
    if lines.tag is not None:
        records["tag"] = lines.tag[order]
    last = max(int(records["time"][-1]), int(records["receive"].max()))
    yield writer.append(shape, records, last)
