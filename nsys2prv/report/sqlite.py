"""Reading an SQLite export: which tables and columns it has, and their rows as columns of numbers.

Databases are opened read-only, and immutable unless a write-ahead log beside them holds data, so that a read-only folder or a
file system without locks works and nothing is ever written beside the input.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import adbc_driver_manager as manager
import adbc_driver_sqlite
import numpy as np
import polars as pl

from nsys2prv.errors import Nsys2prvError

#: Stands for NULL in columns of integers.
NULL = np.iinfo(np.int64).min
MAGIC = b"SQLite format 3\x00"
#: No row takes less space; a table whose rowids span more than the file can hold has gaps.
LEAST_ROW_BYTES = 4
#: So many of a column's texts tell whether it is worth looking for those that come again.
SAMPLE_TEXTS = 1000


def database_uri(path: Path) -> str:
    """The read-only URI of a database file."""
    return f"file:{quote(os.fsencode(path.absolute()))}?mode=ro" + ("" if has_log(path) else "&immutable=1")


def has_log(path: Path) -> bool:
    """Whether a write-ahead log beside the database holds data that belongs to it."""
    try:
        return path.with_name(path.name + "-wal").stat().st_size > 0
    except OSError:
        return False


@dataclass(frozen=True)
class Table:
    """A table's columns (name -> declared type) and the range of its rowids (an empty range when it has no rows).

    rowid: the name by which SQLite knows it here. Where there is none (""), or where rowids lie too far apart to count them off,
    rows are numbered from 1 in the order in which SQLite walks the table.
    """

    name: str
    columns: dict[str, str] = field(default_factory=dict)
    first_rowid: int = 1
    last_rowid: int = 0
    rowid: str = "rowid"

    @property
    def extent(self) -> int:
        """An upper bound of its rows; exact where none was deleted."""
        return max(0, self.last_rowid - self.first_rowid + 1)

    def __contains__(self, column: object) -> bool:
        return column in self.columns


@dataclass(frozen=True)
class Part:
    """Consecutive rows of a table, by rowid, both ends included."""

    table: str
    first: int
    last: int

    def split(self, rows: int) -> Iterator[Part]:
        """Pieces of at most `rows` rows."""
        for first in range(self.first, self.last + 1, rows):
            yield Part(self.table, first, min(first + rows - 1, self.last))


@dataclass
class Columns:
    """Rows of one read. integers: int64 with :data:`NULL` for NULL. texts: each row's code into a series of distinct bytes.

    `damaged` counts the values that were no integers where integers belong; they read as NULL.
    """

    rows: int
    integers: dict[str, np.ndarray]
    texts: dict[str, tuple[np.ndarray, pl.Series]]
    damaged: int = 0

    def __getitem__(self, name: str) -> np.ndarray:
        return self.integers[name]

    def where(self, keep: np.ndarray) -> Columns:
        """The rows for which `keep` is true."""
        texts = {name: (codes[keep], distinct) for name, (codes, distinct) in self.texts.items()}
        return Columns(int(keep.sum()), {name: column[keep] for name, column in self.integers.items()}, texts, self.damaged)


class Database:
    """One export opened for reading. Raises :class:`Nsys2prvError` when it is not one."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        check_file(self.path)
        self._uri = database_uri(self.path)
        self._arrow: tuple[manager.AdbcDatabase, manager.AdbcConnection] | None = None
        try:
            self._connection = sqlite3.connect(self._uri, uri=True)
            self._connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            self._connection.execute("PRAGMA trusted_schema = OFF")
            self.tables = {name: self._table(name) for name in self._table_names()}
        except sqlite3.Error as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: Exception) -> Nsys2prvError:
        what = next(iter(str(error).splitlines()), type(error).__name__)
        return Nsys2prvError(f"{self.path}: cannot be read as an SQLite export ({what}); export the report again with: "
                             f"nsys export --type sqlite --force-overwrite true {self.path.with_suffix('.nsys-rep').name}")

    def _table_names(self) -> list[str]:
        # Views and virtual tables are left alone: reading them would run code that came with the file.
        query = "SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'"
        return [name for (name,) in self._connection.execute(query) if not name.startswith("sqlite_")]

    def _table(self, name: str) -> Table:
        columns = {row[1]: row[2] for row in self._connection.execute(f"PRAGMA table_info({quoted(name)})")}
        taken = {column.lower() for column in columns}
        rowid = next((word for word in ("rowid", "_rowid_", "oid") if word not in taken), "")
        try:
            first, last = self._connection.execute(
                f"SELECT (SELECT min({rowid or 'no'}) FROM {quoted(name)}), (SELECT max({rowid or 'no'}) FROM {quoted(name)})").fetchone()
        except sqlite3.OperationalError:
            return Table(name, columns, 1, self._walked(name), "")
        if not isinstance(first, int) or not isinstance(last, int):
            return Table(name, columns)
        if (last - first) * LEAST_ROW_BYTES > self.path.stat().st_size:
            return Table(name, columns, 1, self._walked(name), "")
        return Table(name, columns, first, last, rowid)

    def _walked(self, name: str) -> int:
        return self.query(f"SELECT count(*) FROM {quoted(name)}")[0][0]

    def close(self) -> None:
        self._connection.close()
        for handle in reversed(self._arrow or ()):
            handle.close()
        self._arrow = None

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def has(self, table: str, *columns: str) -> bool:
        """Whether the table exists with all these columns."""
        return table in self.tables and all(column in self.tables[table] for column in columns)

    def whole(self, table: str) -> Part:
        return Part(table, self.tables[table].first_rowid, self.tables[table].last_rowid)

    def count(self, table: str, where: str = "") -> int:
        """The number of rows, or of those that meet a condition (as in :meth:`condition`; walks the table's pages)."""
        return self.query(f"SELECT count(*) FROM {quoted(table)} WHERE {self.condition(table, where)}")[0][0]

    def condition(self, table: str, where: str) -> str:
        """A condition in SQL from one with the table's columns in braces: those that the export lacks are NULL. "" is true."""
        return where.format_map(_Named(self.tables[table].columns)) if where else "1"

    def query(self, sql: str, parameters: tuple[object, ...] = ()) -> list[tuple]:
        """All rows of a small query."""
        try:
            return self._connection.execute(sql, parameters).fetchall()
        except sqlite3.Error as error:
            raise self._unreadable(error) from None

    def small(self, table: str, *columns: str, where: str = "") -> list[tuple]:
        """These columns of the rows of a small table that meet a condition, in the order in which SQLite walks it.

        A column that the export lacks reads as None, a table that it lacks as no rows.
        """
        if table not in self.tables:
            return []
        named = _Named(self.tables[table].columns)
        expressions = ", ".join(named[column] for column in columns)
        return self.query(f"SELECT {expressions} FROM {quoted(table)} WHERE {self.condition(table, where)}")

    def strings(self, ids: np.ndarray | list[int]) -> dict[int, str]:
        """The text of these ids of StringIds; an id without a row is absent."""
        found: dict[int, str] = {}
        if not self.has("StringIds", "id", "value"):
            return found
        wanted = [int(number) for number in ids]
        for start in range(0, len(wanted), 500):
            batch = wanted[start:start + 500]
            marks = ",".join("?" * len(batch))
            for number, value in self.query(f"SELECT id, value FROM StringIds WHERE id IN ({marks})", tuple(batch)):
                found[number] = value.decode("utf-8", "replace") if isinstance(value, bytes) else "" if value is None else str(value)
        return found

    def read(self, part: Part, integers: tuple[str, ...], texts: tuple[str, ...] = (), where: str = "") -> Columns:
        """Columns of some rows. A column that the export lacks reads as NULL throughout.

        `where` is a condition as in :meth:`condition`. The driver settles a column's type on its first rows; where a
        later row breaks it (a damaged export), the part is read again with every value checked.
        """
        have = self.tables[part.table].columns
        present = [name for name in integers if name in have]
        text_present = [name for name in texts if name in have]
        rows = _rows_of(part, self.tables[part.table].rowid) + (f" WHERE {self.condition(part.table, where)}" if where else "")
        text_part = [f"CAST(COALESCE({quoted(name)}, '') AS BLOB) AS {quoted(name)}" for name in text_present]
        source = f"FROM {rows}"
        plain = [quoted(name) for name in present]
        damaged = 0
        frame = self._frame(f"SELECT {', '.join(plain + text_part) or 'NULL AS nothing'} {source}")
        if frame is None or any(str(frame.schema[name]) != "Int64" for name in present):
            guarded = [f"CASE typeof({quoted(name)}) WHEN 'integer' THEN {quoted(name)} END AS {quoted(name)}" for name in present]
            frame = self._frame(f"SELECT {', '.join(guarded + text_part) or 'NULL AS nothing'} {source}")
            if frame is None:
                raise self._unreadable(ValueError(f"table {part.table}"))
            if present:
                bad = " + ".join(f"sum(typeof({quoted(name)}) NOT IN ('integer', 'null'))" for name in present)
                damaged = self.query(f"SELECT {bad} {source}")[0][0] or 0
        height = frame.height
        columns = {name: _integers(frame[name]) for name in present}
        columns.update({name: np.full(height, NULL) for name in integers if name not in have})
        coded = {name: _coded(frame[name]) for name in text_present}
        coded.update({name: (np.zeros(height, np.int64), pl.Series([b""], dtype=pl.Binary)) for name in texts if name not in have})
        return Columns(height, columns, coded, damaged)

    def rows_of(self, part: Part) -> str:
        """The rows of a part as a table expression in SQL, for :meth:`select`."""
        return _rows_of(part, self.tables[part.table].rowid)

    def select(self, sql: str) -> pl.DataFrame:
        """The result of a larger query whose columns each have one type."""
        frame = self._frame(sql)
        if frame is None:
            raise self._unreadable(ValueError("columns of mixed types"))
        return frame

    def _frame(self, sql: str) -> pl.DataFrame | None:
        """A query's whole result as a polars frame, or None where the driver stumbles over mixed types."""
        if self._arrow is None:
            try:
                database = adbc_driver_sqlite.connect(self._uri)
                self._arrow = database, manager.AdbcConnection(database)
            except manager.Error as error:
                raise self._unreadable(error) from None
        statement = manager.AdbcStatement(self._arrow[1])
        try:
            statement.set_options(**{"adbc.sqlite.query.batch_rows": "65536"})
            statement.set_sql_query(sql)
            stream, _ = statement.execute_query()
            return pl.DataFrame(stream)
        except (manager.Error, pl.exceptions.PolarsError) as error:
            if "mismatch" in str(error).lower():
                return None
            raise self._unreadable(error) from None
        finally:
            statement.close()


class _Named(dict):
    """Column -> its name in SQL; NULL for a column that is not there."""

    def __init__(self, columns: Iterable[str]) -> None:
        super().__init__((column, quoted(column)) for column in columns)

    def __missing__(self, column: str) -> str:
        return "NULL"


def _rows_of(part: Part, rowid: str) -> str:
    """The part as a table expression in SQL."""
    if rowid:
        return f"(SELECT * FROM {quoted(part.table)} WHERE {rowid} BETWEEN {part.first} AND {part.last})"
    return f"(SELECT * FROM {quoted(part.table)} LIMIT {part.last - part.first + 1} OFFSET {part.first - 1})"


def _integers(series: pl.Series) -> np.ndarray:
    return (series.fill_null(NULL) if series.null_count() else series).to_numpy()


def _coded(series: pl.Series) -> tuple[np.ndarray, pl.Series]:
    """A column of bytes as codes into its values, distinct ones unless most come once."""
    if series.dtype != pl.Binary:
        return np.zeros(len(series), np.int64), pl.Series([b""], dtype=pl.Binary)
    sample = series.head(SAMPLE_TEXTS)
    if sample.n_unique() > len(sample) // 2:
        return np.arange(len(series)), series  # hardly any comes twice
    distinct = series.unique(maintain_order=True)
    codes = series.to_frame("text").join(distinct.to_frame("text").with_row_index("code"), on="text", how="left",
                                         maintain_order="left")["code"]
    return codes.to_numpy().astype(np.int64), distinct


def decoded(series: pl.Series) -> pl.Series:
    """Bytes as text; what is no UTF-8 gets replacement characters."""
    try:
        return series.cast(pl.String)
    except pl.exceptions.PolarsError:
        return pl.Series([raw.decode("utf-8", "replace") for raw in series], dtype=pl.String)


def quoted(name: str) -> str:
    """An SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def check_file(path: Path) -> None:
    """Raise one clear line unless this is a readable SQLite file."""
    try:
        if path.is_dir():
            raise Nsys2prvError(f"{path}: is a folder; give the .sqlite exports themselves")
        if not path.exists():
            raise Nsys2prvError(f"{path}: no such file")
        if not path.is_file():
            raise Nsys2prvError(f"{path}: is not a regular file")
        with path.open("rb") as file:
            head = file.read(16)
    except OSError as error:
        raise Nsys2prvError(f"{path}: cannot be read ({error.strerror or error})") from None
    if head != MAGIC:
        what = "is empty" if not head else "is not an SQLite database"
        raise Nsys2prvError(f"{path}: {what}; make one with: nsys export --type sqlite REPORT.nsys-rep")
