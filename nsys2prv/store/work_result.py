"""The result of a task on reports or between them: runs, the account of rows, and facts, which are
collected here for comparisons of ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import polars as pl
from msgspec import Struct, field

from nsys2prv._util.columns import (
    OPEN,
    StoredFrame,
    factorize,
    join_pieces,
    read_columns,
    read_frame,
)
from nsys2prv.clock import ALIGNED_ERROR
from nsys2prv.clock.maps import ClockMap
from nsys2prv.events.call_indexes import Segment
from nsys2prv.events.extraction import DOMAIN, NAME, OBJECT, TIME, Names, Numbering, ObjectKey
from nsys2prv.events.kind import Account, CommunicationLines, Counters, Reason, Rows
from nsys2prv.export.source import NULL
from nsys2prv.store.runs import LINE, Run, Span, SpillWriter
from nsys2prv.store.spilling import spill_counters, spill_lines, spill_rows

#: Facts (bytes) that one step of a relation brings into order, unless one report has more: of NCCL,
#: fifty thousand kernels.
BATCH_BYTES = 10_000_000


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
    runs: list[Run] = field(default_factory=list)
    #: Meaning of the local object indices.
    objects: list[ObjectKey] = field(default_factory=list)
    #: Names of the local NVTX domains.
    domains: list[str] = field(default_factory=list)
    #: Name set -> frame of local names: text and, where any name has one, short and the index of
    #: its domain.
    names: dict[str, StoredFrame] = field(default_factory=dict)
    #: Callers of the local call stacks, by level: local names of the set `caller`.
    callers: list[tuple[int, ...]] = field(default_factory=list)
    #: Frames for the relations between reports, by name.
    facts: dict[str, StoredFrame] = field(default_factory=dict)
    #: Segments of the index from correlation ids to launching calls.
    launches: list[Segment] = field(default_factory=list)
    #: Frames of NCCL calls for later tasks.
    nccl_calls: list[StoredFrame] = field(default_factory=list)
    #: Notes for the summary.
    notes: list[str] = field(default_factory=list)
    #: Number of records by layout.
    events: Counter[str] = field(default_factory=Counter)
    #: Account of each kind of event or relation.
    accounts: dict[str, Account] = field(default_factory=dict)
    #: Rows by table, for tables that kinds read in parts by conditions.
    tables: Counter[str] = field(default_factory=Counter)
    #: Rows of these tables that kinds have read.
    of_table: Counter[str] = field(default_factory=Counter)
    #: Communication lines by kind, before any is left out.
    lines: Counter[str] = field(default_factory=Counter)
    #: Lines that are not stored, by (kind of lines, reason).
    left_out: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: Objects and facts of what was read for the clocks alone; and the spans of the events of kinds
    #: that are not stored.
    beside: WorkResult | None = None
    spans: dict[str, Span] = field(default_factory=dict)
    #: What the task found out about its report as a whole, where it read all of it.
    whole: Any = None

    def add(self, kind: str, account: Account) -> None:
        """Add to the account of a kind of event."""
        self.accounts[kind] = self.accounts.get(kind, Account()) + account

    def add_found(self, kind: str, account: Account) -> None:
        """Add to the account what no row by itself is a record of."""
        account.synthesized[Reason.FROM_SEVERAL_ROWS] = account.records + account.dropped.total()
        self.add(kind, account)

    def store(
        self, rows: Rows | Counters, writer: SpillWriter, account: Account, open_ended: bool = False
    ) -> None:
        """Store records or samples, and the lines to them, and count them. open_ended: as for
        :func:`nsys2prv.store.spilling.spill_rows`.
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


#: The fact column of communicators, and what their numbers are mixed with in each further capture.
COMMUNICATOR, CAPTURE_BITS = "communicator", np.int64(0x1E3779B97F4A7C15)


class FactFile(Struct, frozen=True):
    """Facts of one reading task."""

    #: The facts, on disk; times are local ns.
    frame: StoredFrame
    #: Index of the report.
    report: int
    #: Clock map of the report.
    clock: ClockMap
    #: Index of the report's host.
    host: int
    #: Thread index of each local object of the task, int64.
    threads: np.ndarray
    #: Number of the reports whose times can be compared with this one's.
    clock_group: int = 0
    #: Number of the reports that were recorded at the same time.
    capture: int = 0


class FactBook(Struct, frozen=True):
    """Index of all facts of a job."""

    #: Results of reading.
    results: Sequence[WorkResult]
    #: Clock map of each report.
    clocks: Sequence[ClockMap]
    #: Index of the host of each report.
    hosts: Sequence[int]
    #: Reading task -> thread index of each of its local objects.
    threads: Mapping[int, np.ndarray]
    #: (report, globalPid) -> 0-based task of the trace.
    tasks: Mapping[tuple[int, int], int]
    #: Clock group of each report: times of reports of one group can be compared. None: of one group.
    clock_groups: Sequence[int] = ()
    #: Capture of each report: what belongs together is in one. None: all reports are of one.
    captures: Sequence[int] = ()
    #: Largest error (ns) of times of one clock group against each other.
    clock_error: int = ALIGNED_ERROR

    def list_files(self, names: Sequence[str]) -> dict[str, tuple[FactFile, ...]]:
        """Return the files of these facts, in the order of their tasks."""
        ordered = sorted(self.results, key=lambda result: result.task)
        return {
            name: tuple(
                FactFile(
                    result.facts[name],
                    result.report,
                    self.clocks[result.report],
                    self.hosts[result.report],
                    self.threads[result.task],
                    self.clock_groups[result.report] if self.clock_groups else 0,
                    self.captures[result.report] if self.captures else 0,
                )
                for result in ordered
                if name in result.facts
            )
            for name in names
        }


def batch_by_report(files: Sequence[FactFile]) -> list[tuple[FactFile, ...]]:
    """Return the files in batches for a step each, all of a report in one."""
    batches: list[list[FactFile]] = []
    room, report = 0, -1
    for file in sorted(files, key=lambda file: file.report):
        if room <= 0 and file.report != report:
            batches.append([])
            room = BATCH_BYTES
        batches[-1].append(file)
        room -= file.frame.size
        report = file.report
    return [tuple(batch) for batch in batches]


def read_fact(
    files: Sequence[FactFile],
    tasks: Mapping[tuple[int, int], int],
    columns: Sequence[str] | None = None,
) -> pl.DataFrame:
    """Return the facts of one name, from all its files, or some columns of them."""
    if not files:
        return pl.DataFrame()
    read = [(file, read_columns(file.frame, columns)) for file in files]
    alike = groupby(read, key=lambda item: [(name, one.dtype) for name, one in item[1].items()])
    return pl.concat([_translate_facts(list(group), tasks) for _, group in alike], how="diagonal")


def _translate_facts(
    read: Sequence[tuple[FactFile, Mapping[str, Any]]], tasks: Mapping[tuple[int, int], int]
) -> pl.DataFrame:
    """Return facts of tasks, which have the same columns."""
    files = [file for file, _ in read]
    columns = {name: join_pieces([columns[name] for _, columns in read]) for name in read[0][1]}
    heights = [len(next(iter(columns.values()))) for _, columns in read]
    bounds = np.cumsum(heights)[:-1]

    def by_file(name: str, translate: Callable[[FactFile, np.ndarray], np.ndarray]) -> np.ndarray:
        parts = np.split(np.asarray(columns[name]), bounds)
        return np.concatenate(list(map(translate, files, parts)))

    def find_tasks(file: FactFile, processes: np.ndarray) -> np.ndarray:
        distinct, codes = factorize(processes)
        found = [tasks.get((file.report, process), -1) for process in distinct.tolist()]
        return np.array(found, np.int64)[codes]

    for name in columns:
        if name.startswith(TIME):
            columns[name] = by_file(name, _to_trace_times)
        elif name.startswith(OBJECT):
            columns[name] = by_file(name, lambda file, objects: file.threads[objects])
    for name in ("report", "host", "clock_group", "capture"):
        columns[name] = np.repeat(np.array([getattr(file, name) for file in files]), heights)
    if COMMUNICATOR in columns and columns["capture"].any():
        columns[COMMUNICATOR] = separate_captures(
            np.asarray(columns[COMMUNICATOR]), columns["capture"]
        )
    if "process" in columns:
        columns["task"] = by_file("process", find_tasks)
    return pl.DataFrame(columns)


def separate_captures(communicators: np.ndarray, captures: np.ndarray) -> np.ndarray:
    """Return communicators (0: unknown), numbered apart for each capture, so that data of different
    times are not compared. Those of the first capture stay as they are.
    """
    mixed = communicators ^ (captures.astype(np.int64) * CAPTURE_BITS)
    return np.where(communicators == 0, 0, mixed)


def _to_trace_times(file: FactFile, times: np.ndarray) -> np.ndarray:
    is_time = (times != NULL) & (times != OPEN)
    return np.where(is_time, file.clock.to_global(np.where(is_time, times, 0)), times)


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
