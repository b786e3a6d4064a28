"""Result of a task on reports or between them: its runs, and the account of the rows that it read."""

from __future__ import annotations

from collections import Counter

from msgspec import Struct, field

from nsys2prv._util.columns import StoredFrame
from nsys2prv.events.call_indexes import Segment
from nsys2prv.events.extraction import ObjectKey
from nsys2prv.events.kind import Account, CommunicationLines, Counters, Rows
from nsys2prv.events.reasons import Reason
from nsys2prv.store.runs import BEGIN, LINE, Run, SpillWriter
from nsys2prv.store.spilling import spill_counters, spill_lines, spill_rows


class TaskResult(Struct):
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
    #: Frames for the relations between reports, by name.
    facts: dict[str, StoredFrame] = field(default_factory=dict)
    #: Segments of the index from correlation ids to launching calls.
    launches: list[Segment] = field(default_factory=list)
    #: Frames of NCCL regions for later tasks.
    regions: list[StoredFrame] = field(default_factory=list)
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
            value_count = sum(run.values for run in runs)
        else:
            runs = list(spill_rows(rows, open_ended, writer, account))
            value_count = sum(run.rows for run in runs if run.shape.stream == BEGIN)
            if rows.lines is not None:
                self._count_lines(rows.lines, runs)
        self.runs += runs
        self.events[rows.layout] += value_count
        account.records += value_count

    def store_lines(self, lines: CommunicationLines, writer: SpillWriter) -> None:
        """Store lines by themselves, and count them."""
        runs = list(spill_lines(lines, writer))
        self.runs += runs
        self._count_lines(lines, runs)

    def _count_lines(self, lines: CommunicationLines, runs: list[Run]) -> None:
        """Count the lines that were to be stored, and those that were not."""
        stored = sum(run.rows for run in runs if run.shape.stream == LINE)
        self.lines[lines.kind] += len(lines.send)
        if stored < len(lines.send):
            self.left_out[lines.kind, Reason.LINE_WITHOUT_TIME] += len(lines.send) - stored
