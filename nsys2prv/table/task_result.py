"""Represent results of reading tasks, and store their records: from normal form to sorted runs on
disk, with corrected times, and an account of all rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.columns import ABSENT, OPEN, is_sorted, take_rows
from nsys2prv._util.intervals import order_ranges
from nsys2prv._util.stored_columns import StoredFrame, read_frame
from nsys2prv._util.text import Note
from nsys2prv.events.catalogue import CALLER_LEVELS, CALLERS, Metric, load_catalogue
from nsys2prv.events.extraction import DOMAIN, NAME, OBJECT, Names, Numbering, ObjectKey
from nsys2prv.events.kind import (
    Account,
    CommunicationLines,
    Counters,
    Reason,
    Rows,
    make_counter,
)
from nsys2prv.events.launches import Segment
from nsys2prv.export.source import are_all_usable, mask_usable
from nsys2prv.table.runs import COUNTER, LINE, Run, Span, SpillWriter, get_shape


class TaskResult(Struct):
    """Result of a task that read a part of a report: its stored records, names, facts and counts."""

    #: Number of the task.
    task: int
    #: Index of the report that it read.
    report: int
    #: Number of rows that it read.
    rows: int
    #: Runs on disk.
    runs: list[Run] = msgspec.field(default_factory=list)
    #: Meaning of the local object indices.
    objects: list[ObjectKey] = msgspec.field(default_factory=list)
    #: Names of the local NVTX domains.
    domains: list[str] = msgspec.field(default_factory=list)
    #: Name set -> frame of local names: text and, if any name has one, short name and index of its
    #: domain.
    names: dict[str, StoredFrame] = msgspec.field(default_factory=dict)
    #: Texts of names that replace names missing from the report.
    unnamed: set[str] = msgspec.field(default_factory=set)
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
    #: Frames of their operations and groups, if later tasks need these.
    nccl_groups: list[StoredFrame] = msgspec.field(default_factory=list)
    #: Notes for the summary.
    notes: list[Note] = msgspec.field(default_factory=list)
    #: Number of records by layout.
    events: Counter[str] = msgspec.field(default_factory=make_counter)
    #: Account of each kind of event or relation.
    accounts: dict[str, Account] = msgspec.field(default_factory=dict)
    #: Rows by table, for tables that kinds read in parts by conditions.
    tables: Counter[str] = msgspec.field(default_factory=make_counter)
    #: Rows of these tables that kinds have read.
    of_table: Counter[str] = msgspec.field(default_factory=make_counter)
    #: Communication lines by kind, before any is left out.
    lines: Counter[str] = msgspec.field(default_factory=make_counter)
    #: Lines that are not stored, by (kind of lines, reason).
    left_out: Counter[tuple[str, str]] = msgspec.field(default_factory=make_counter)
    #: Objects and facts that were read only for the clocks; and the spans of kinds that are not
    #: stored.
    beside: TaskResult | None = None
    spans: dict[str, Span] = msgspec.field(default_factory=dict)
    #: Facts that the task found about its whole report, if it read all of it.
    whole: Any = None

    def add(self, kind: str, account: Account) -> None:
        """Add counts of rows and records to the account of an event kind."""
        if kind not in self.accounts:
            self.accounts[kind] = Account()
        self.accounts[kind].add(account)

    def add_found(self, kind: str, account: Account) -> None:
        """Add counts of records that do not come from a row of a table to the account of an event
        kind.
        """
        account.synthesized[Reason.FROM_SEVERAL_ROWS] = account.records + account.dropped.total()
        self.add(kind, account)

    def store(
        self, rows: Rows | Counters, writer: SpillWriter, account: Account, open_ended: bool = False
    ) -> None:
        """Store and count records or samples, with the lines that lead to them. open_ended: rows
        without an end last to the end of the trace.
        """
        if isinstance(rows, Counters):
            runs = spill_counters(rows, writer, account)
        else:
            runs = spill_rows(rows, open_ended, writer, account)
        self.runs += runs
        stored = sum(run.count for run in runs)
        self.events[rows.layout] += stored
        account.records += stored
        if isinstance(rows, Rows) and rows.lines is not None:
            self.store_lines(rows.lines, writer)

    def note_span(self, kind: str, span: Span | None) -> None:
        """Extend the time span of a kind's events, for events that are not stored."""
        if span is not None:
            first, last = self.spans.get(kind, span)
            self.spans[kind] = min(first, span[0]), max(last, span[1])

    def leave_out(self, name: str, reason: str, count: int) -> None:
        """Count records or lines that are not stored. name: of their layout or kind. reason: key of
        the reason.
        """
        if count:
            self.left_out[name, reason] += int(count)

    def store_lines(self, lines: CommunicationLines, writer: SpillWriter) -> None:
        """Store and count communication lines, and count those that were excluded."""
        self.lines[lines.kind] += len(lines.send)
        if not writer.field_masks.get(lines.kind, 1):
            return self.leave_out(lines.kind, Reason.LAUNCH_LEFT_OUT, len(lines.send))
        runs = spill_lines(lines, writer)
        self.runs += runs
        lost = len(lines.send) - sum(run.rows for run in runs)
        self.leave_out(lines.kind, Reason.LINE_WITHOUT_TIME, lost)


def spill_rows(rows: Rows, open_ended: bool, writer: SpillWriter, account: Account) -> list[Run]:
    """Store records; return the run of their ranges, or nothing without any. Dropped and repaired
    rows are counted in the account.

    open_ended: rows without an end last to the end of the trace.
    """
    kept, end = repair_times(rows, open_ended, account)
    if not (isinstance(kept, slice) or len(kept)):
        return []
    begin = rows.begin[kept]
    if not is_sorted(begin, strictly=True):
        kept = _select_rows(kept, order_ranges(begin, end[kept]))
    given = {"begin": rows.begin, "end": end, "row": rows.object, **rows.columns}
    if rows.domain is not None:
        given["domain"] = rows.domain
    if CALLERS in given and not given[CALLERS].any():
        del given[CALLERS]
    columns = {name: np.ascontiguousarray(one[kept], np.int64) for name, one in given.items()}
    return [writer.append_ranges(load_catalogue().layouts[rows.layout], columns)]


def spill_counters(counters: Counters, writer: SpillWriter, account: Account) -> list[Run]:
    """Store samples; return their run, if any have usable times."""
    timed = mask_usable(counters.time)
    carried = np.count_nonzero(counters.values != ABSENT, axis=1)
    if not timed.all():
        account.dropped[Reason.SAMPLE_WITHOUT_TIME] += int(carried[~timed].sum())
    kept = np.flatnonzero(timed & (carried > 0))
    if not len(kept):
        return []
    order = _order_by_time(counters.time[kept])
    time, values = counters.time[kept][order], counters.values[kept][order]
    numbers = dict(zip(counters.metrics, values.T, strict=True))
    return [append_samples(writer, counters.layout, numbers, counters.object, time)]


def append_samples(
    writer: SpillWriter,
    layout: str,
    numbers: Mapping[Metric, np.ndarray],
    object_: int,
    time: np.ndarray,
) -> Run:
    """Store samples of an object, sorted by time. numbers: metric -> values (int64), or ABSENT."""
    columns = {"time": time, "row": np.full(len(time), object_)}
    columns |= {str(place): column for place, column in enumerate(numbers.values())}
    return writer.append(get_shape(COUNTER, layout, tuple(numbers)), columns)


def _order_by_time(time: np.ndarray) -> slice | np.ndarray:
    """Return the order of rows by time; a slice if they are sorted."""
    return slice(None) if is_sorted(time) else np.argsort(time, kind="stable")


def _select_rows(rows: slice | np.ndarray, chosen: slice | np.ndarray) -> slice | np.ndarray:
    """Return the rows at these indices. A slice selects all rows."""
    return (
        chosen if isinstance(rows, slice) else rows if isinstance(chosen, slice) else rows[chosen]
    )


def repair_times(
    rows: Rows, open_ended: bool, account: Account
) -> tuple[slice | np.ndarray, np.ndarray]:
    """Repair the times of rows. Return the rows to keep (a slice for all), and the ends of all
    rows: at least 1 ns after the start, or OPEN. open_ended: rows without an end last to the end of
    the trace. account: counts dropped and repaired rows.
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


def spill_lines(lines: CommunicationLines, writer: SpillWriter) -> list[Run]:
    """Store communication lines; return their run, or nothing without any.

    Lines without usable times are dropped. The row to which a line leads is stored under the same
    condition.
    """
    columns = {
        "time": lines.send,
        "sender": lines.sender,
        "receive": lines.receive,
        "receiver": lines.receiver,
        "until": np.maximum(lines.until, lines.receive + 1),
        "size": lines.size,
    }
    if load_catalogue().lines[lines.kind].tag is None:
        columns["tag"] = lines.tag
    if lines.posted is not None:
        columns |= {"posted": lines.posted, "released": lines.released}
    times = lines.send, lines.receive, lines.until
    kept = slice(None)
    if not all(map(are_all_usable, times)):
        kept = np.flatnonzero(np.logical_and.reduce([mask_usable(time) for time in times]))
        if not len(kept):
            return []
    kept = _select_rows(kept, _order_by_time(lines.send[kept]))
    return [writer.append(get_shape(LINE, lines.kind), take_rows(columns, kept))]


class CommonNumbers:
    """Gives objects, domains and names in facts from several reading tasks of a report common
    numbers.
    """

    def __init__(self) -> None:
        self.objects = Numbering()
        self.domains = Numbering()
        self.names: dict[str, Names] = {}

    def collect_facts(self, name: str, sources: Sequence[TaskResult]) -> pl.DataFrame:
        """Return the facts with this name of all tasks as one frame, with common numbers."""
        frames = [
            self._translate(read_frame(source.facts[name]), source)
            for source in sources
            if name in source.facts
        ]
        return pl.concat(frames) if frames else pl.DataFrame()

    def number_lanes(self, objects: np.ndarray, lanes: np.ndarray) -> np.ndarray:
        """Return the numbers of the additional rows (lanes) of objects. objects: numbers of the
        objects. lanes: of each, 0 for the object itself.
        """
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

    def _translate(self, frame: pl.DataFrame, source: TaskResult) -> pl.DataFrame:
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

    def _number_names(self, name_set: str, source: TaskResult, used: np.ndarray) -> np.ndarray:
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
    """Translate the distinct values of a column with `numbers_of`."""
    used, codes = np.unique(column, return_inverse=True)
    return numbers_of(used)[codes.reshape(-1)] if len(used) else column
