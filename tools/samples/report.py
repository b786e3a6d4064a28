"""Write one rank's report: tables in SQLite, ids, and the truth about it.

A table is created with its first row, as in a real (lazy) export. Texts can be given for columns of whole
numbers: they are added to StringIds, and the column has their ids. Functions that add a family of further
tables get a :class:`Scene`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .cluster import Cluster, Ints, Rank
from .data import enums, read_columns, tables
from .options import Options

Truth = dict[str, Any]
Column = Any  # an array or a list with a value per row, or one int, str or None for all rows
COMPACT_BELOW_ROWS = 1_000_000


class Export:
    """A new SQLite export."""

    def __init__(self, path: Path, page_size: int) -> None:
        path.unlink(missing_ok=True)
        self.path = path
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

    def encode(self, table: str, column: str, value: Any) -> Any:
        """Replace a text by its id if the column is one of whole numbers."""
        is_id = isinstance(value, str) and read_columns(table).get(column) == "INTEGER"
        return self.string(value) if is_id else value

    def insert(self, table: str, columns: dict[str, Column], order: Ints | None = None) -> None:
        """Add rows. Missing columns, or None, are NULL. ``order``: of the rows in the table."""
        self.create(table)
        given = {
            name: self.encode(table, name, column)
            for name, column in columns.items()
            if column is not None
        }
        marks = [str(int(one)) if isinstance(one, int) else "?" for one in given.values()]
        values = [_order(one, order) for one in given.values() if not isinstance(one, int)]
        names = ", ".join(f'"{name}"' for name in given)
        statement = f"INSERT INTO {table} ({names}) VALUES ({', '.join(marks)})"
        added = self.database.executemany(statement, zip(*values, strict=False))
        self.rows[table] += added.rowcount

    def delete(self, table: str, condition: str, *values: int) -> None:
        """Delete the rows of a table that meet a condition."""
        if table in self.rows:
            deleted = self.database.execute(f"DELETE FROM {table} WHERE {condition}", values)
            self.rows[table] -= deleted.rowcount

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
    facts: Truth = field(default_factory=dict)  # what the truth says of this report

    @property
    def payload(self) -> str:
        return self.options.payload_of(self.rank.rank)

    @property
    def includes_json(self) -> bool:
        """True if the export contains JSON (payloads, generic events)."""
        return self.payload in ("both", "json")

    def order(self, begin: Ints) -> Ints:
        """Return the order of rows with these begins in their table."""
        if self.options.row_order == "time":
            return np.argsort(begin, kind="stable")
        return np.random.default_rng([self.options.seed, 5, len(begin)]).permutation(len(begin))

    def tids(self, threads: Sequence[int]) -> Ints:
        """Return the globalTid of threads given by their distance from the pid."""
        return np.array([self.rank.global_tid(thread) for thread in threads], dtype=np.int64)

    def local(self, epochs: Ints, times: Any) -> Ints:
        """Return local ns of true times since runs' epochs; the first axis of times is the run."""
        begins = epochs.reshape(-1, *[1] * (times.ndim - 1))
        return self.rank.local(begins + np.rint(times).astype(np.int64))

    def edges(self, epochs: Ints, times: tuple[Any, Any], which: Any) -> tuple[Ints, Ints]:
        """Return local begins and ends of operations in runs that begin at ``epochs``, from times
        with the axes (run, rank, operation).
        """
        begin, end = (self.local(epochs, edge[:, self.rank.rank, which]) for edge in times)
        return begin, end

    def add(self, table: str, names: str, rows: Sequence[Sequence[Any]]) -> None:
        """Add rows given one by one; ``names`` of the columns, with spaces between."""
        named = names.split()
        encoded = [
            [self.export.encode(table, name, one) for name, one in zip(named, row, strict=True)]
            for row in rows
        ]
        columns = map(list, zip(*encoded, strict=True))
        self.export.insert(table, dict(zip(named, columns, strict=True)))

    def insert(
        self, table: str, begin: Ints, end: Ints | None = None, **columns: Column
    ) -> tuple[int, int]:
        """Add rows with these begins and ends (ns; None: the table has no end), which lie as
        :meth:`order` says; return their number and their ns.

        Other columns have a value for all rows, or values for the last axes of ``begin``: usually
        its axes are run and label, and a column has a value per label. ``thread`` stands for
        globalTid, by the distance from the pid.
        """
        if "thread" in columns:
            threads = columns.pop("thread")
            one = isinstance(threads, int)
            columns["globalTid"] = self.rank.global_tid(threads) if one else self.tids(threads)
        columns = {"start": begin, "end": end} | columns
        if "start" not in read_columns(table):
            del columns["start"]
        spread = {name: self._spread(table, name, one, begin) for name, one in columns.items()}
        if begin.size:
            self.export.insert(table, spread, self.order(begin.ravel()))
        return begin.size, 0 if end is None else int((end - begin).sum())

    def encode(self, table: str, name: str, values: list[Any]) -> NDArray[Any]:
        """Make an array of a column's values, with ids instead of texts."""
        encoded = [self.export.encode(table, name, one) for one in values]
        return np.array(encoded, None if all(isinstance(one, int) for one in encoded) else object)

    def _spread(self, table: str, name: str, column: Column, begin: Ints) -> Column:
        """Give a column a value for each row."""
        if isinstance(column, list):
            column = self.encode(table, name, column)
        if isinstance(column, np.ndarray):
            return np.broadcast_to(column, begin.shape).ravel()
        return column

    def insert_calls(
        self, begin: Ints, end: Ints, functions: Sequence[str], **columns: Column
    ) -> None:
        """Add calls of CUDA's API, with the axes (run, function)."""
        of_driver = ("cuLaunch", "cuModule", "cuGraph")
        columns["eventClass"] = [int(name.startswith(of_driver)) for name in functions]
        given = {"nameId": [*functions], "returnValue": 0} | columns
        self.insert("CUPTI_ACTIVITY_KIND_RUNTIME", begin, end, **given)


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

    def insert(self, table: str, begin: Any, end: Any = None, **columns: Any) -> tuple[int, int]:
        """Add rows as :meth:`Report.insert` does."""
        return self.report.insert(table, begin, end, **columns)


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
