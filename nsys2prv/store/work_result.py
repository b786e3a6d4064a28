"""Results of tasks, and how their records get there: from the normal form to sorted runs on disk,
with times made sane, rows split by the attributes they carry, sorted; and an account of all rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import msgspec
import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.columns import ABSENT, OPEN, StoredFrame, is_sorted, read_frame
from nsys2prv._util.native import core
from nsys2prv._util.notes import Note
from nsys2prv.events.call_indexes import Segment
from nsys2prv.events.catalogue import CALLER_LEVELS, CALLERS, Layout, Metric, load_catalogue
from nsys2prv.events.extraction import DOMAIN, NAME, OBJECT, Names, Numbering, ObjectKey
from nsys2prv.events.kind import Account, CommunicationLines, Counters, Reason, Rows
from nsys2prv.export.source import NULL, are_all_usable, mask_usable
from nsys2prv.store.runs import (
    BEGIN,
    COUNTER,
    END,
    LINE,
    MOST_FORMATS,
    RecordFormat,
    Run,
    Span,
    SpillWriter,
    get_format,
)

#: The greatest number that is stored in 32 bits.
GREATEST_NARROW = (1 << 32) - 1


class WorkResult(Struct):
    """Result of a task."""

    #: Number of the task.
    task: int
    #: Index of the report that it read.
    report: int
    #: Number of rows that it read.
    rows: int
    #: Runs on disk; a run of ends directly follows that of its begins
    #: (:func:`nsys2prv.store.runs.pair_runs`).
    runs: list[Run] = msgspec.field(default_factory=list)
    #: Meaning of the local object indices.
    objects: list[ObjectKey] = msgspec.field(default_factory=list)
    #: Names of the local NVTX domains.
    domains: list[str] = msgspec.field(default_factory=list)
    #: Name set -> frame of local names: text and, where any name has one, short and the index of
    #: its domain.
    names: dict[str, StoredFrame] = msgspec.field(default_factory=dict)
    #: Callers of the local call stacks, by level: local names of the set `caller`.
    callers: np.ndarray = msgspec.field(
        default_factory=lambda: np.zeros((0, CALLER_LEVELS), np.int64)
    )
    #: Frames for the relations between reports, by name.
    facts: dict[str, StoredFrame] = msgspec.field(default_factory=dict)
    #: Segments of the index from correlation ids to launching calls.
    launches: list[Segment] = msgspec.field(default_factory=list)
    #: Frames of NCCL calls for later tasks.
    nccl_calls: list[StoredFrame] = msgspec.field(default_factory=list)
    #: Notes for the summary.
    notes: list[Note] = msgspec.field(default_factory=list)
    #: Number of records by layout.
    events: Counter[str] = msgspec.field(default_factory=Counter)
    #: Account of each kind of event or relation.
    accounts: dict[str, Account] = msgspec.field(default_factory=dict)
    #: Rows by table, for tables that kinds read in parts by conditions.
    tables: Counter[str] = msgspec.field(default_factory=Counter)
    #: Rows of these tables that kinds have read.
    of_table: Counter[str] = msgspec.field(default_factory=Counter)
    #: Communication lines by kind, before any is left out.
    lines: Counter[str] = msgspec.field(default_factory=Counter)
    #: Lines that are not stored, by (kind of lines, reason).
    left_out: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)
    #: Objects and facts of what was read for the clocks alone; and the spans of the events of kinds
    #: that are not stored.
    beside: WorkResult | None = None
    spans: dict[str, Span] = msgspec.field(default_factory=dict)
    #: What the task found out about its report as a whole, where it read all of it.
    whole: Any = None

    def add(self, kind: str, account: Account) -> None:
        """Add to the account of a kind of event."""
        self.accounts.setdefault(kind, Account()).add(account)

    def add_found(self, kind: str, account: Account) -> None:
        """Add to the account what no row by itself is a record of."""
        account.synthesized[Reason.FROM_SEVERAL_ROWS] = account.records + account.dropped.total()
        self.add(kind, account)

    def store(
        self, rows: Rows | Counters, writer: SpillWriter, account: Account, open_ended: bool = False
    ) -> None:
        """Store records or samples, and the lines to them, and count them. open_ended: as for
        :func:`nsys2prv.store.work_result.spill_rows`.
        """
        if isinstance(rows, Counters):
            runs = list(spill_counters(rows, writer, account))
        else:
            runs = list(spill_rows(rows, open_ended, writer, account))
            if rows.lines is not None:
                self._count_lines(rows.lines, runs)
        self.runs += runs
        stored = sum(run.count for run in runs if run.shape.stream != LINE)
        self.events[rows.layout] += stored
        account.records += stored

    def note_span(self, kind: str, span: Span | None) -> None:
        """Note the span of events of a kind that are not stored."""
        if span is not None:
            first, last = self.spans.get(kind, span)
            self.spans[kind] = min(first, span[0]), max(last, span[1])

    def leave_out(self, name: str, reason: str, count: int) -> None:
        """Count records or lines that are not stored."""
        if count:
            self.left_out[name, reason] += int(count)

    def store_lines(self, lines: CommunicationLines, writer: SpillWriter) -> None:
        """Store lines by themselves, and count them."""
        runs = list(spill_lines(lines, writer))
        self.runs += runs
        self._count_lines(lines, runs)

    def _count_lines(self, lines: CommunicationLines, runs: list[Run]) -> None:
        """Count the lines that were to be stored, and those that were not."""
        stored = sum(run.rows for run in runs if run.shape.stream == LINE)
        self.lines[lines.kind] += len(lines.send)
        self.leave_out(lines.kind, Reason.LINE_WITHOUT_TIME, len(lines.send) - stored)


def spill_rows(
    rows: Rows, open_ended: bool, writer: SpillWriter, account: Account
) -> Iterator[Run]:
    """Store one piece of the normal form; yields its runs: each of begins, directly after it that
    of their ends (:func:`nsys2prv.store.runs.pair_runs`), and lines. What is dropped or repaired is
    counted in the account.

    open_ended: a row without an end lasts to the end of the trace.
    """
    layout = load_catalogue().layouts[rows.layout]
    kept, end = repair_times(rows, open_ended, account)
    if isinstance(kept, slice) or len(kept):
        ascending = rows.selection is None and is_sorted(rows.begin, strictly=True)
        mask = writer.field_masks.get(layout.name, -1)
        for split in _split_by_fields(layout, rows.columns, kept, mask):
            yield from _spill_events(rows, layout, split, end, ascending, writer)
    if rows.lines is not None:
        yield from spill_lines(rows.lines, writer)


def spill_counters(counters: Counters, writer: SpillWriter, account: Account) -> Iterator[Run]:
    """Store samples; yields their run, if there are any with usable times."""
    timed = mask_usable(counters.time)
    carried = np.count_nonzero(counters.values != ABSENT, axis=1)
    if not timed.all():
        account.dropped[Reason.SAMPLE_WITHOUT_TIME] += int(carried[~timed].sum())
    kept = np.flatnonzero(timed & (carried > 0))
    if not len(kept):
        return
    order = _order_by_time(counters.time[kept])
    time, values = counters.time[kept][order], counters.values[kept][order] + 1
    yield append_samples(writer, counters.layout, counters.metrics, counters.object, time, values)


def append_samples(
    writer: SpillWriter,
    layout: str,
    metrics: tuple[Metric, ...],
    object_: int,
    time: np.ndarray,
    stored: np.ndarray,
) -> Run:
    """Store samples of an object, ascending by time. stored: value + 1 of each metric (a column
    each), 0 where there is none.
    """
    shape = get_format(COUNTER, layout, 4 if int(stored.max()) <= GREATEST_NARROW else 8, metrics)
    records = np.empty(len(time), shape.dtype)
    records["time"], records["object"], records["values"] = time, object_, stored
    count = int(np.count_nonzero(stored))
    return writer.append(shape, records, int(time[-1]), object_, count)


def _order_by_time(time: np.ndarray) -> slice | np.ndarray:
    """Return the order of these times; a slice if they are sorted."""
    return slice(None) if is_sorted(time) else np.argsort(time, kind="stable")


def _select_rows(rows: slice | np.ndarray, chosen: slice | np.ndarray) -> slice | np.ndarray:
    """Return the rows at `chosen`; a slice takes all of them."""
    return (
        chosen if isinstance(rows, slice) else rows if isinstance(chosen, slice) else rows[chosen]
    )


def repair_times(
    rows: Rows, open_ended: bool, account: Account
) -> tuple[slice | np.ndarray, np.ndarray]:
    """Return the rows to keep (a slice: all, of which there are some), and the ends of all rows:
    after the begin by at least 1 ns, or OPEN.
    """
    if load_catalogue().layouts[rows.layout].is_state:
        rows = replace(rows, end=rows.begin + 1)
    chosen = slice(None) if rows.selection is None else rows.selection
    if are_all_usable(rows.begin) and are_all_usable(rows.end) and (rows.end > rows.begin).all():
        return chosen, rows.end
    begin, end = rows.begin[chosen], rows.end[chosen]
    timed, closed = mask_usable(begin), mask_usable(end)
    if open_ended:
        opened = timed & ~closed
        if opened.any():
            account.repaired[Reason.NO_END] += int(opened.sum())
    else:
        timed &= closed
    lost = len(begin) - int(timed.sum())
    if lost:
        account.dropped[Reason.NO_TIME] += lost
    backward = timed & closed & (end < begin)
    if backward.any():
        account.repaired[Reason.END_BEFORE_BEGIN] += int(backward.sum())
    if lost or not len(begin):
        chosen = _select_rows(chosen, np.flatnonzero(timed))
    closed = mask_usable(rows.end)
    return chosen, np.where(closed, np.maximum(rows.end, rows.begin + 1), OPEN)


def _split_by_fields(
    layout: Layout, columns: dict[str, np.ndarray], kept: slice | np.ndarray, mask: int
) -> Iterator[tuple[int, int, slice | np.ndarray]]:
    """Yield the bits of the fields that rows carry, all in the mask that are not optional and the
    optional ones that they have; the bits of the numbers that all rows have, but that are not known
    in these; and the kept rows of which that holds.

    Of the others a plain number of 0 is not written where rows of the layout follow one another:
    between them it is 0 anyway.
    """
    follow, fields = not layout.nests and not layout.is_state, len(layout.fields)
    always, some, held = 0, [], []

    def add_mask(bit: int, has: np.ndarray) -> None:
        nonlocal always
        count = np.count_nonzero(has)
        if count == len(has):
            always |= 1 << bit
        elif count:
            some.append(bit)
            held.append(has[kept])

    for bit, field in enumerate(layout.fields):
        if not mask >> bit & 1:
            always |= 1 << fields + bit
            continue
        if field.level or (field.optional and field.name not in columns):
            continue
        column, is_number = columns[field.name], field.values is None
        if field.optional:
            add_mask(bit, column != ABSENT)
        elif bit and follow and is_number:
            add_mask(bit, column > 0)
        else:
            always |= 1 << bit
        if is_number and not field.optional and column.min(initial=0) < 0:
            add_mask(fields + bit, column < 0)
    if CALLERS in columns and columns[CALLERS].any():
        always |= mask & layout.callers_mask
    known = (1 << fields) - 1
    if not some:
        yield always & known, always >> fields, kept
        return
    carried = np.zeros(len(held[0]), np.min_scalar_type((1 << len(some)) - 1))
    for place, has in enumerate(held):
        carried |= np.left_shift(has, place, dtype=carried.dtype)
    counted = carried.itemsize <= 2
    combinations = np.flatnonzero(np.bincount(carried)) if counted else np.unique(carried)
    for combination in combinations.tolist():
        own = sum(1 << bit for place, bit in enumerate(some) if combination >> place & 1)
        alone = len(combinations) == 1
        chosen = slice(None) if alone else np.flatnonzero(carried == combination)
        own |= always
        yield own & known, own >> fields, _select_rows(kept, chosen)


def _spill_events(
    rows: Rows,
    layout: Layout,
    split: tuple[int, int, slice | np.ndarray],
    end: np.ndarray,
    ascending: bool,
    writer: SpillWriter,
) -> Iterator[Run]:
    """Store rows of a layout. split: as :func:`_split_by_fields` yields it. end: of all rows.
    ascending: True if each of these begins after the one before.
    """
    present, unknown, kept = split
    if not ascending:
        kept = _select_rows(kept, _order_outer_first(rows.begin[kept], end[kept]))
    fields = list_numbered_fields(layout.name, present & ~layout.callers_mask)
    columns = {name: np.ascontiguousarray(rows.columns[name], np.int64) for _, name in fields}
    greatest, object_, wide, negative = measure_rows(end, rows.object, columns, kept)
    for place, (_, name) in enumerate(fields) if negative else ():
        if negative >> place & 1:
            # Paraver's tools do not know negative numbers; `unknown` says where they are.
            columns[name] = np.maximum(columns[name], 0)
    wide = sum(1 << bit for place, (bit, _) in enumerate(fields) if wide >> place & 1)
    columns |= {"time": rows.begin, "end": end, "object": rows.object, "domain": rows.domain}
    columns[CALLERS] = rows.columns.get(CALLERS)
    last = len(rows.begin) - 1 if isinstance(kept, slice) else kept[-1]
    greatest = max(greatest, int(rows.begin[last]) + 1)
    shape = get_format(BEGIN, layout.name, present, (), wide, unknown)
    yield writer.append_columns(shape, columns, kept, greatest, object_)
    shape = get_format(END, layout.name, present)
    if layout.is_state:
        yield writer.append(
            shape, _make_closing_records(rows.object[kept], shape), greatest, object_
        )
    else:
        kept = _select_rows(kept, _order_by_time(end[kept]))
        yield writer.append_columns(shape, {**columns, "time": end}, kept, greatest, object_)


@lru_cache(MOST_FORMATS)
def list_numbered_fields(name: str, field_mask: int) -> list[tuple[int, str]]:
    """Return bit and name of the fields of a layout whose bit is set."""
    fields = enumerate(load_catalogue().layouts[name].fields)
    return [(bit, one.name) for bit, one in fields if field_mask >> bit & 1]


def measure_rows(
    end: np.ndarray,
    objects: np.ndarray,
    columns: Mapping[str, np.ndarray],
    rows: slice | np.ndarray,
) -> tuple[int, int, int, int]:
    """Return of some rows (indices, or a slice for all) the greatest end that is not OPEN, the one
    object, -1 for several, and of which columns one needs more than 32 bits, and is negative (a bit
    each).
    """
    if core is None:
        own, some = [column[rows] for column in columns.values()], end[rows]
        wide = (1 << bit for bit, one in enumerate(own) if one.max() > GREATEST_NARROW)
        negative = (1 << bit for bit, one in enumerate(own) if one.min() < 0)
        greatest = int(some[some != OPEN].max(initial=NULL))
        return greatest, find_only_object(objects[rows]), sum(wide), sum(negative)
    every = isinstance(rows, slice)
    given = (np.ascontiguousarray(one, np.int64) for one in (end, objects, *columns.values()))
    return core.measure_rows(tuple(given), None if every else rows)


def append_events(
    writer: SpillWriter,
    shape: RecordFormat,
    begins: np.ndarray,
    end: np.ndarray,
    greatest_time: int,
) -> tuple[Run, Run]:
    """Store begin records, ascending by time, and the end records that belong to them. end: of
    each; greatest_time: as in :class:`Run`.
    """
    object_ = find_only_object(begins["object"])
    end_shape = get_format(END, shape.name, shape.field_mask)
    return (
        writer.append(shape, begins, greatest_time, object_),
        writer.append(end_shape, make_end_records(begins, end, end_shape), greatest_time, object_),
    )


def find_only_object(objects: np.ndarray) -> int:
    """Return the one object of some rows, -1 for several."""
    return int(objects[0]) if (objects == objects[0]).all() else -1


def make_end_records(begins: np.ndarray, end: np.ndarray, shape: RecordFormat) -> np.ndarray:
    """Return the end records of begin records that end at `end`, ascending by time; of states those
    at the end of the trace. shape: of the ends.
    """
    if load_catalogue().layouts[shape.name].is_state:
        return _make_closing_records(begins["object"], shape)
    ends = np.empty(len(begins), shape.dtype)
    order = _order_by_time(end)
    ends["time"] = end[order]
    for name in ends.dtype.names[1:]:
        ends[name] = begins[name][order]
    return ends


def _make_closing_records(objects: np.ndarray, shape: RecordFormat) -> np.ndarray:
    """Return end records at the end of the trace, one for each of the objects of begin records."""
    objects = np.unique(objects)
    ends = np.zeros(len(objects), shape.dtype)
    ends["time"], ends["object"] = OPEN, objects
    return ends


def _order_outer_first(begin: np.ndarray, end: np.ndarray) -> slice | np.ndarray:
    """Return the order by begin, the longer first among equals."""
    if is_sorted(begin, strictly=True):
        return slice(None)
    order = np.argsort(begin, kind="stable")
    sorted_begin = begin[order]
    same = np.flatnonzero(sorted_begin[1:] == sorted_begin[:-1])
    if len(same):
        # Only rows of equal begin are in the wrong order still, and they are few.
        places = np.union1d(same, same + 1)
        equal = order[places]
        order[places] = equal[np.lexsort((-end[equal], begin[equal]))]
    return order


def spill_lines(lines: CommunicationLines, writer: SpillWriter) -> Iterator[Run]:
    """Store lines; yields their run.

    Lines whose ends lack usable times are left out; the row that a line leads to is spilled under
    the same condition.
    """
    columns = {
        "time": lines.send,
        "sender": lines.sender,
        "receive": lines.receive,
        "receiver": lines.receiver,
        "until": np.maximum(lines.until, lines.receive + 1),
        "size": lines.size,
    }
    if lines.tag is not None:
        columns["tag"] = lines.tag
    times = lines.send, lines.receive, lines.until
    kept = slice(None)
    if not all(map(are_all_usable, times)):
        kept = np.flatnonzero(np.logical_and.reduce([mask_usable(time) for time in times]))
        if not len(kept):
            return
    send = lines.send[kept]
    greatest = max(int(send.max()), int(lines.receive[kept].max()))
    kept = _select_rows(kept, _order_by_time(send))
    yield writer.append_columns(get_format(LINE, lines.kind), columns, kept, greatest)


class CommonNumbers:
    """Objects, domains and names of several reading tasks under common numbers; only what their
    facts name.
    """

    def __init__(self) -> None:
        self.objects = Numbering()
        self.domains = Numbering()
        self.names: dict[str, Names] = {}

    def collect_facts(self, name: str, sources: Sequence[WorkResult]) -> pl.DataFrame:
        """Return the facts of all tasks, with common numbers."""
        frames = [
            self._translate(read_frame(source.facts[name]), source)
            for source in sources
            if name in source.facts
        ]
        return pl.concat(frames) if frames else pl.DataFrame()

    def number_lanes(self, objects: np.ndarray, lanes: np.ndarray) -> np.ndarray:
        """Return the objects that are these lanes of objects."""
        keys = list(self.objects)
        result = objects.copy()
        for lane in np.unique(lanes[lanes > 0]).tolist():
            rows = np.flatnonzero(lanes == lane)
            result[rows] = _translate_distinct(
                objects[rows],
                lambda used, lane=lane: self.objects.number(
                    keys[index]._replace(lane=keys[index].lane + lane) for index in used
                ),
            )
        return result

    def _translate(self, frame: pl.DataFrame, source: WorkResult) -> pl.DataFrame:
        columns = []
        for name in frame.columns:
            if name.startswith(OBJECT):
                number = partial(self._number_keys, self.objects, source.objects)
            elif name == DOMAIN:
                number = partial(self._number_keys, self.domains, source.domains)
            elif name.startswith(NAME):
                number = partial(self._number_names, name.removeprefix(NAME), source)
            else:
                continue
            columns.append(pl.Series(name, _translate_distinct(frame[name].to_numpy(), number)))
        return frame.with_columns(columns)

    @staticmethod
    def _number_keys(
        numbering: Numbering, values: Sequence[Hashable], used: np.ndarray
    ) -> np.ndarray:
        return numbering.number(values[index] for index in used.tolist())

    def _number_names(self, name_set: str, source: WorkResult, used: np.ndarray) -> np.ndarray:
        names = read_frame(source.names[name_set])[used]
        columns = {column: names[column] for column in names.columns}
        if "domain" in columns:
            columns["domain"] = _translate_distinct(
                columns["domain"].to_numpy().astype(np.int64),
                partial(self._number_keys, self.domains, source.domains),
            )
        return self.names.setdefault(name_set, Names()).append(columns) + np.arange(len(used))


def _translate_distinct(
    column: np.ndarray, numbers_of: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Return the column with its distinct values translated by `numbers_of`."""
    used, codes = np.unique(column, return_inverse=True)
    return numbers_of(used)[codes.reshape(-1)] if len(used) else column
