"""One rank's report while it is written: tables in SQLite, strings once, a tally of all rows, and
what the report lacks.

A table comes into being with its first row, as in a real (lazy) export. A :class:`Scene` is what
functions get that add a family of further tables.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress, repeat
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .cluster import Cluster, Ints, Rank
from .data import enums, tables
from .options import Options

Bools = NDArray[np.bool_]
Truth = dict[str, Any]
Column = Any  # an array or a list with a value per row, or one int, str or None for all rows
COMPACT_BELOW_ROWS = 1_000_000
LONG_AGO, NEVER = -(1 << 62), 1 << 62


class Export:
    """A new SQLite export."""

    def __init__(self, path: Path, page_size: int) -> None:
        path.unlink(missing_ok=True)
        self.database = sqlite3.connect(path, isolation_level=None)
        modes = "journal_mode = OFF", "synchronous = OFF", "locking_mode = EXCLUSIVE"
        for pragma in (f"page_size = {page_size}", *modes):
            self.database.execute(f"PRAGMA {pragma}")
        self.database.execute("BEGIN")
        self.strings: dict[str, int] = {}
        self.rows: dict[str, int] = {}  # by table
        self.create("StringIds")

    def create(self, table: str, statement: str = "") -> None:
        """Create a table unless it exists; by ``statement`` instead of the schema's."""
        if table not in self.rows:
            self.database.execute(statement or tables()[table])
            self.rows[table] = 0

    def string(self, text: str) -> int:
        """Return the id of a text in StringIds."""
        return self.strings.setdefault(text, len(self.strings))

    def insert(self, table: str, columns: dict[str, Column], order: Ints | None = None) -> None:
        """Add rows. Columns left out, or None, are NULL. ``order``: in which rows are to lie."""
        self.create(table)
        given = {name: column for name, column in columns.items() if column is not None}
        marks = [str(column) if isinstance(column, int) else "?" for column in given.values()]
        values = [_order(column, order) for column in given.values() if not isinstance(column, int)]
        names = ", ".join(f'"{name}"' for name in given)
        statement = f"INSERT INTO {table} ({names}) VALUES ({', '.join(marks)})"
        added = self.database.executemany(statement, zip(*values, strict=False))
        self.rows[table] += added.rowcount

    def close(self) -> None:
        """Write the enumerations and the strings, and finish the file."""
        for table, (statement, rows, owner) in enums().items():
            if not owner or owner in self.rows:
                self.database.execute(statement)
                self.database.executemany(f"INSERT INTO {table} VALUES (?, ?, ?)", rows)
        self.insert("StringIds", {"id": list(self.strings.values()), "value": list(self.strings)})
        self.database.execute("COMMIT")
        if sum(self.rows.values()) < COMPACT_BELOW_ROWS:
            self.database.execute("VACUUM")
        self.database.close()


def _order(column: Column, order: Ints | None) -> Sequence[Any] | Iterator[str]:
    if isinstance(column, str):
        return repeat(column)
    if isinstance(column, list):
        return column if order is None else [column[place] for place in order.tolist()]
    return (column if order is None else column[order]).tolist()


@dataclass
class Report:
    """One rank's report. Ids in it are per process and begin anew in every report."""

    rank: Rank
    cluster: Cluster
    options: Options
    export: Export
    correlation: int = 127  # next ids
    grid: int = 1
    event_sync: int = 1
    operator: int = 1
    range_id: int = 1
    generic_event: int = 1
    leaked: int = 0  # MPI requests that were started and never waited for
    #: Correlation id, begin and end (local ns) of the first kernel launch.
    first_launch: tuple[int, int, int] | None = None
    #: Table -> name or kind -> rows, ns, bytes.
    tally: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    facts: Truth = field(default_factory=dict)  # what else the truth says of this report
    first: int = LONG_AGO  # what begins before (local ns) the report lacks,
    last: int = NEVER  # and what ends after
    #: And of the runs being written these rows, by part; axes (run, operation).
    lost: dict[str, Bools] = field(default_factory=dict)

    @property
    def payload(self) -> str:
        return self.options.payload_of(self.rank.rank)

    @property
    def includes_json(self) -> bool:
        """Whether the export was asked for JSON (payloads, generic events)."""
        return self.payload in ("both", "json")

    def order(self, begin: Ints) -> Ints:
        """Return the order in which rows with these begins are to lie in their table."""
        if self.options.row_order == "time":
            return np.argsort(begin, kind="stable")
        return np.random.default_rng([self.options.seed, 5, len(begin)]).permutation(len(begin))

    def strings(self, texts: Sequence[str]) -> Ints:
        """Return their ids in StringIds."""
        return np.array([self.export.string(text) for text in texts], dtype=np.int64)

    def tids(self, threads: Sequence[int]) -> Ints:
        """Return the globalTid of threads given by their distance from the pid."""
        return np.array([self.rank.global_tid(thread) for thread in threads], dtype=np.int64)

    def local(self, epochs: Ints, times: Any) -> Ints:
        """Return local ns of true times since runs' epochs; the first axis of times is the run."""
        begins = epochs.reshape(-1, *[1] * (times.ndim - 1))
        return self.rank.local(begins + np.rint(times).astype(np.int64))

    def lost_rows(self, part: str, operations: Ints) -> Bools | None:
        """Tell which rows of operations get lost (-1: belongs to none); axes (run, row)."""
        lost = self.lost.get(part)
        if lost is None or not len(operations):
            return None
        return lost[:, operations] & (operations >= 0)

    def kept(self, begin: Ints, end: Ints, lost: Bools | None = None) -> Bools | None:
        """Tell which rows the report has; None for all."""
        if lost is None and self.first == LONG_AGO and self.last == NEVER:
            return None
        kept = (begin >= self.first) & (end <= self.last)
        return kept if lost is None else kept & ~lost

    def count(
        self,
        table: str,
        labels: Sequence[str],
        durations: Ints,
        sizes: Ints | None = None,
        kept: Bools | None = None,
    ) -> None:
        """Tally rows with the axes (run, label); only those ``kept``. sizes: bytes per label."""
        every = np.ones(durations.shape, np.int64)
        counts = (every if kept is None else kept).sum(axis=0)
        totals = (durations * (1 if kept is None else kept)).sum(axis=0).tolist()
        volumes = repeat(0) if sizes is None else (sizes * counts).tolist()
        found = self.tally.setdefault(table, {})
        for name, *added in zip(labels, counts.tolist(), totals, volumes, strict=False):
            if kept is None or added[0]:
                before = found.get(name, (0, 0, 0))
                found[name] = [old + new for old, new in zip(before, added, strict=True)]

    def summarize(self) -> Truth:
        """Return the tally as the truth has it."""
        keys, told = ("rows", "ns", "bytes"), {}
        for table, names in sorted(self.tally.items()):
            sums = map(sum, zip(*names.values(), strict=True))
            by_name = {name: dict(zip(keys, names[name], strict=True)) for name in sorted(names)}
            told[table] = {**dict(zip(keys, sums, strict=True)), "by_name": by_name}
        return told

    def add(self, table: str, names: str, rows: Sequence[Sequence[Any]]) -> None:
        """Add rows given one by one; ``names`` of the columns, with spaces between."""
        columns = map(list, zip(*rows, strict=True))
        self.export.insert(table, dict(zip(names.split(), columns, strict=True)))

    def add_spans(self, table: str, names: str, rows: Sequence[Sequence[Any]]) -> None:
        """Add rows that begin with start and end, tallied together."""
        self.add(table, f"start end {names}", rows)
        lengths = np.array([[row[1] - row[0] for row in rows]], dtype=np.int64)
        self.count(table, ["all"] * len(rows), lengths)

    def insert(
        self,
        table: str,
        labels: Sequence[str],
        columns: dict[str, Column],
        begin: Ints,
        end: Ints | None,
        sizes: Ints | None = None,
        lost: Bools | None = None,
    ) -> None:
        """Add and tally rows with the axes (run, label): ``begin`` and ``end`` in ns; other columns
        for every row or, per label, repeated.

        Rows that are ``lost`` or beyond the report's cut are left out. NVTX ranges that are open at
        the cut have no end; calls and work on the GPU have no row.
        """
        flat: dict[str, Column] = {} if "timestamp" in columns else {"start": begin.ravel()}
        if end is not None and "timestamp" not in columns:
            flat["end"] = end.ravel()
        for name, column in columns.items():
            repeated = isinstance(column, np.ndarray)
            flat[name] = np.broadcast_to(column, begin.shape).ravel() if repeated else column
        until = begin if end is None else end
        kept = self.kept(begin, begin if table == "NVTX_EVENTS" else until, lost)
        if end is not None and table == "NVTX_EVENTS" and self.last != NEVER:
            flat["end"] = np.where(end <= self.last, end, None).ravel()
            until = np.where(end <= self.last, end, begin)
        starts = begin.ravel()
        if kept is not None:
            flat = {name: _select(column, kept.ravel()) for name, column in flat.items()}
            starts = starts[kept.ravel()]
        if len(starts):
            self.export.insert(table, flat, self.order(starts))
            self.count(table, labels, until - begin, sizes, kept)

    def insert_calls(
        self,
        functions: Sequence[str],
        threads: Sequence[int],
        correlations: Ints,
        begin: Ints,
        end: Ints,
        returned: int = 0,
        lost: Bools | None = None,
    ) -> None:
        """Add calls of CUDA's API, with the axes (run, function)."""
        of_driver = ("cuLaunch", "cuModule", "cuGraph")
        classes = np.array([int(name.startswith(of_driver)) for name in functions])
        columns = {"eventClass": classes, "globalTid": self.tids(threads)}
        columns |= {"correlationId": correlations, "nameId": self.strings(functions)}
        columns["returnValue"] = returned
        self.insert("CUPTI_ACTIVITY_KIND_RUNTIME", functions, columns, begin, end, lost=lost)

    def insert_os_calls(
        self,
        functions: Sequence[str],
        threads: Sequence[int],
        returned: Sequence[int],
        begin: Ints,
        end: Ints,
        chains: Column = 0,
        level: int = 0,
    ) -> None:
        """Add calls into the OS runtime, with the axes (run, function). level: of nesting."""
        columns = {"eventClass": 27, "globalTid": self.tids(threads), "nestingLevel": level}
        columns |= {"nameId": self.strings(functions), "returnValue": np.array(returned)}
        columns |= {"callchainId": chains, "argumentsId": 0}
        self.insert("OSRT_API", functions, columns, begin, end)


def _select(column: Column, which: Bools) -> Column:
    """Select rows of a column with a value per row."""
    if isinstance(column, np.ndarray):
        return column[which]
    return list(compress(column, which.tolist())) if isinstance(column, list) else column


@dataclass(frozen=True)
class Scene:
    """A report and the steps that it has."""

    report: Report
    steps: Ints  # begin and end of each step (step, edge), ns on the report's clock
    duration: int  # of the capture, ns
    #: Of this addition alone: the job's own random numbers stay as they are.
    random: np.random.Generator

    def at(self, share: float) -> Ints:
        """Return the moment of every step at which so much of it has passed (0 to 1)."""
        begin, end = self.steps.T
        return begin + ((end - begin) * share).astype(np.int64)

    def insert(
        self, table: str, begin: Any, end: Any = None, thread: int | None = None, **columns: Any
    ) -> tuple[int, int]:
        """Add rows with these begins and ends (ns; None: the table has no end) on a thread
        (distance from the pid); returns their number and their ns. Text in other columns is put
        into StringIds.
        """
        given = {"start": begin} | self.store_texts(columns)
        given |= {} if end is None else {"end": end}
        given |= {} if thread is None else {"globalTid": self.report.rank.global_tid(thread)}
        self.report.export.insert(table, given)
        return len(begin), 0 if end is None else int((end - begin).sum())

    def store_texts(self, columns: dict[str, Any]) -> dict[str, Any]:
        """Replace texts by their ids in StringIds."""
        string = self.report.export.string
        return {
            name: string(value) if isinstance(value, str) else value
            for name, value in columns.items()
        }


def count(truth: Truth, name: str, rows: int, ns: int) -> dict[str, int]:
    """Add to the rows and ns of a name."""
    entry: dict[str, int] = truth.setdefault(name, {"rows": 0, "ns": 0})
    entry["rows"] += rows
    entry["ns"] += ns
    return entry


def sum_events(events: Sequence[tuple[str, str, int, int]]) -> Truth:
    """Sum events (place, name, begin and end in ns) to place -> name -> rows and ns."""
    summed: Truth = {}
    for place, name, begin, end in events:
        count(summed.setdefault(place, {}), name, 1, end - begin)
    return summed
