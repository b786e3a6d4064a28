"""Read an SQLite export (:class:`Database`), from its pages (:mod:`nsys2prv.nsight.sqlite_pages`) or by SQLite.

Databases are opened read-only, and immutable unless a write-ahead log beside them holds data, so
that a read-only folder or a file system without locks works and nothing is ever written beside the
input.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import polars as pl
from msgspec.structs import replace

from nsys2prv._util.errors import Nsys2prvError
from nsys2prv.nsight.report_files import (
    DAMAGE,
    check_file,
    has_journal,
    has_log,
    make_database_uri,
    remove_quoted_content,
)
from nsys2prv.nsight.source import (
    Columns,
    Extent,
    Part,
    Shared,
    SomeRows,
    Source,
    SourceTable,
    SqlNames,
    Tables,
    choose_spread_rows,
    make_columns,
    quote_name,
)
from nsys2prv.nsight.sqlite_pages import (
    Pages,
    evaluate_conditions,
    find_condition_columns,
    open_pages,
    select_condition_bits,
)

#: Rows of a batch: more than are read at a time, so that they come in one piece, whose first rows
#: settle the types of all.
BATCH_ROWS = str(1 << 18)
#: No row takes less space; a table whose rowids span more than the file can hold has gaps.
LEAST_ROW_BYTES = 4
#: The column of the conditions that a row meets.
MET = "conditions met"
#: Rows of a table that are looked at together for the few that a condition wants.
LONG_TABLE = 100_000
#: Registered strings asked for in one statement.
STRINGS = 500
#: What comes with a database is data: nothing in it is run.
DISTRUST = "PRAGMA trusted_schema = OFF"
#: Columns by a table's name and the statement that made it, which reports of one version share; so
#: many at most.
_COLUMNS: dict[tuple[str, str], dict[str, str]] = {}
MOST_KNOWN = 10_000


class Driver:
    """SQLite's ADBC driver: results of queries in SQL as polars frames. The connection to the
    database is there until :meth:`close`. unreadable: makes what is raised where it is damaged.
    """

    def __init__(self, uri: str, unreadable: Callable[[Exception], Exception]) -> None:
        # Few reports need it, and it takes a while to import.
        import adbc_driver_manager as manager
        import adbc_driver_sqlite

        self._manager, self._make_unreadable_error = manager, unreadable
        try:
            self._database = adbc_driver_sqlite.connect(uri)
            self._connection = manager.AdbcConnection(self._database)
            with manager.AdbcStatement(self._connection) as statement:
                statement.set_sql_query(DISTRUST)
                statement.execute_update()
        except (manager.Error, UnicodeError) as error:
            raise self._make_unreadable_error(error) from None

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
        self._database.close()

    def query_frame(self, sql: str) -> pl.DataFrame | None:
        """Return a query's whole result, or None where a column has values of several types."""
        manager = self._manager
        statement = manager.AdbcStatement(self._connection)
        try:
            statement.set_options(**{"adbc.sqlite.query.batch_rows": BATCH_ROWS})
            statement.set_sql_query(sql)
            stream, _ = statement.execute_query()
            return pl.DataFrame(stream)
        except (manager.Error, pl.exceptions.PolarsError, UnicodeError) as error:
            if "mismatch" in str(error).lower():
                return None
            raise self._make_unreadable_error(error) from None
        finally:
            # Of a damaged database it may raise again what the reading did.
            with suppress(manager.Error):
                statement.close()


class Database(Source):
    """One export opened for reading. Raises :class:`Nsys2prvError` when it is not one.

    Rows of large tables are read from the file's pages. SQLite answers questions in SQL, and reads
    where the pages are not plainly rows of the table, or hold values that are not of a column's
    type.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._size = check_file(self.path)
        self._uri = make_database_uri(self.path)
        self._driver: Driver | None = None
        try:
            self._connection = sqlite3.connect(self._uri, uri=True, isolation_level=None)
            self._connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            self._connection.execute(DISTRUST)
            if hasattr(self._connection, "setconfig"):
                self._connection.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)
            # Views and virtual tables are left alone: reading them would run code that came with
            # the file.
            tables = self._connection.execute(
                "SELECT name, sql, rootpage FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'"
            )
            #: Table -> the statement that made it, and the number of its first page.
            self._made = {
                name: (sql, root) for name, sql, root in tables if not name.startswith("sqlite_")
            }
            self.tables = Tables(self._made, self._table)
        except DAMAGE as error:
            raise self._make_unreadable_error(error) from None

    def _make_unreadable_error(self, error: Exception) -> Nsys2prvError:
        is_text = not isinstance(error, UnicodeError)
        reason = remove_quoted_content(error) if is_text else "names that are no text"
        return Nsys2prvError(
            f"{self.path}: cannot be read as an SQLite export ({reason}); export the report again with: "
            f"nsys export --type sqlite --force-overwrite true {self.path.with_suffix('.nsys-rep').name}"
        )

    @cached_property
    def _pages(self) -> Pages | None:
        """Return the file's pages, if they are all that there is of the database."""
        if has_log(self.path) or has_journal(self.path):
            return None
        return open_pages(self.path, self.query)

    def _table(self, name: str) -> SourceTable:
        """Return the description of a table: its columns as SQLite takes the statement."""
        key = name, self._made[name][0]
        columns = _COLUMNS.get(key)
        if columns is None:
            described = self.query(f"PRAGMA table_info({quote_name(name)})")
            columns = {column: declared for _, column, declared, *_ in described}
            if len(_COLUMNS) < MOST_KNOWN:
                _COLUMNS[key] = columns
        return SourceTable(name, columns, partial(self._find_extent, name, columns))

    def _find_extent(self, name: str, columns: dict[str, str]) -> Extent:
        taken = {column.lower() for column in columns}
        rowid = next((word for word in ("rowid", "_rowid_", "oid") if word not in taken), "")
        try:
            first, last = self._connection.execute(
                f"SELECT (SELECT min({rowid or 'no'}) FROM {quote_name(name)}), (SELECT max({rowid or 'no'}) FROM {quote_name(name)})"
            ).fetchone()
        except sqlite3.OperationalError:
            return Extent(1, self.count(name), "")
        except DAMAGE as error:
            raise self._make_unreadable_error(error) from None
        if not isinstance(first, int) or not isinstance(last, int):
            return Extent()
        if (last - first) * LEAST_ROW_BYTES > self._size:
            return Extent(1, self.count(name), "")
        return Extent(first, last, rowid)

    def close(self) -> None:
        self._connection.close()
        if self._driver:
            self._driver.close()
        self._driver = None
        self.__dict__.pop("_pages", None)

    def count(self, table: str, where: str = "") -> int:
        return self.query(
            f"SELECT count(*) FROM {quote_name(table)} WHERE {self.make_condition(table, where)}"
        )[0][0]

    def count_rows(self, part: Part, where: str = "") -> int:
        return self.query(
            f"SELECT count(*) FROM {self.select_rows(part)} WHERE {self.make_condition(part.table, where)}"
        )[0][0]

    def query(self, sql: str) -> list[tuple]:
        try:
            return self._connection.execute(sql).fetchall()
        except DAMAGE as error:
            raise self._make_unreadable_error(error) from None

    def read_small_table(self, table: str, *columns: str, where: str = "") -> list[tuple]:
        if table not in self.tables:
            return []
        named = SqlNames(self.tables[table].columns)
        expressions = ", ".join(named[column] for column in columns)
        condition = self.make_condition(table, where)
        return [
            row
            for rows in self._select_rows_to_read(table, where)
            for row in self.query(f"SELECT {expressions} FROM {rows} WHERE {condition}")
        ]

    def _select_rows_to_read(self, table: str, where: str) -> Iterator[str]:
        """Yield table expressions in SQL that have all rows of a table that meet a condition. Of a
        long table these are the rows themselves where they are few: its pages tell which they are
        several times faster than SQLite does.
        """
        extent = self.tables[table].extent
        if not where or extent.rows < LONG_TABLE:
            yield quote_name(table)
            return
        for part in Part(table, extent.first, extent.last).split(LONG_TABLE):
            pages = self._read_pages(part, (), (), [where])
            yield _select_rows(
                part if pages is None else Shared(part, *pages).narrow(0), extent.rowid
            )

    def read_strings(self, ids: np.ndarray | list[int]) -> dict[int, str]:
        if not self.has("StringIds", "id", "value"):
            return {}
        return {
            number: _to_text(value)
            for start in range(0, len(ids), STRINGS)
            for number, value in self.query(
                "SELECT id, value FROM StringIds WHERE id IN "
                f"({', '.join(str(int(number)) for number in ids[start : start + STRINGS])})"
            )
        }

    def sample_integers(self, columns: Mapping[str, str]) -> list[int]:
        selects = []
        for table, column in columns.items():
            extent = self.tables[table].extent
            if extent.rowid:
                rows = _select_rows(
                    SomeRows(table, extent.first, extent.last, tuple(choose_spread_rows(extent))),
                    extent.rowid,
                )
                selects.append(
                    f"SELECT {quote_name(column)} FROM {rows} WHERE typeof({quote_name(column)}) = 'integer'"
                )
        return [time for (time,) in self.query(" UNION ALL ".join(selects))] if selects else []

    def read(
        self, part: Part, integers: tuple[str, ...], texts: tuple[str, ...] = (), where: str = ""
    ) -> Columns:
        from_pages = self._read_pages(part, integers, texts, [where] if where else [])
        # Of damaged values it is not known here which rows they are in.
        if from_pages is None or (where and from_pages[0].damaged):
            return self._read_by_driver(part, integers, texts, where)
        columns, condition_bits = from_pages
        return columns.where(condition_bits != 0) if where else columns

    def _read_pages(
        self,
        part: Part,
        integers: tuple[str, ...],
        texts: tuple[str, ...],
        conditions: Sequence[str],
    ) -> tuple[Columns, np.ndarray] | None:
        """Return columns of all rows of a part, and which conditions each row meets, as bits; None
        where SQLite has to read them.
        """
        table = self.tables[part.table]
        if isinstance(part, SomeRows) or not table.extent.rowid or self._pages is None:
            return None
        looked_at = find_condition_columns(conditions)
        from_pages = self._pages.read(part, self._made[part.table][1], integers, texts, looked_at)
        if from_pages is None:
            return None
        columns, values = from_pages
        if not conditions:
            return columns, np.zeros(0, np.int64)
        in_sql = [self.make_condition(part.table, where) for where in conditions]
        try:
            condition_bits = evaluate_conditions(
                self._connection, values, looked_at.types, table.columns, columns.rows, in_sql
            )
        except DAMAGE as error:
            raise self._make_unreadable_error(error) from None
        return None if condition_bits is None else (columns, condition_bits)

    def _read_by_driver(
        self, part: Part, integers: tuple[str, ...], texts: tuple[str, ...], where: str
    ) -> Columns:
        """Return the columns as the driver reads them. It settles a column's type on its first
        rows; where a later row breaks it (a damaged export), the part is read again with every
        value checked.
        """
        have = self.tables[part.table].columns
        present = [name for name in integers if name in have]
        of_texts = [_select_text(name) for name in texts if name in have]
        source = f"FROM {self.select_rows(part)} WHERE {self.make_condition(part.table, where)}"
        damaged = 0
        plain = [*map(quote_name, present), *of_texts]
        frame = self._frame(f"SELECT {', '.join(plain) or 'NULL'} {source}")
        if frame is None or not _are_integers(frame, present):
            guarded = [*map(_select_integer, present), *of_texts]
            frame = self._frame(f"SELECT {', '.join(guarded) or 'NULL'} {source}")
            if frame is None:
                raise self._make_unreadable_error(ValueError(f"table {part.table}"))
            if present:
                odd = "sum(typeof({}) NOT IN ('integer', 'null'))"
                counts = " + ".join(odd.format(quote_name(name)) for name in present)
                damaged = self.query(f"SELECT {counts} {source}")[0][0] or 0
        return replace(make_columns(frame, integers, texts), damaged=damaged)

    def read_once(
        self,
        part: Part,
        integers: tuple[str, ...],
        texts: tuple[str, ...],
        conditions: Sequence[str],
    ) -> Shared | None:
        from_pages = self._read_pages(part, integers, texts, conditions)
        if from_pages is not None:
            return None if from_pages[0].damaged else Shared(part, *from_pages)
        have = self.tables[part.table].columns
        present = [name for name in integers if name in have]
        bits = select_condition_bits(
            [self.make_condition(part.table, where) for where in conditions]
        )
        expressions = [
            *map(quote_name, present),
            *(_select_text(name) for name in texts if name in have),
            f"{bits} AS {quote_name(MET)}",
        ]
        frame = self._frame(f"SELECT {', '.join(expressions)} FROM {self.select_rows(part)}")
        if frame is None or not _are_integers(frame, [*present, MET]):
            return None
        return Shared(part, make_columns(frame.drop(MET), integers, texts), frame[MET].to_numpy())

    def read_joined(
        self, part: Part, key: str, table: str, integers: tuple[str, ...], where: str
    ) -> Columns:
        # By the other table's key, where it has one: reading in parts would walk all of it.
        columns = ", ".join(map(_select_integer, integers))
        wanted = f"SELECT {quote_name(key)} FROM {self.select_rows(part)}"
        frame = self.select(
            f"SELECT {columns} FROM {quote_name(table)} WHERE {quote_name(key)} IN ({wanted}) AND {self.make_condition(table, where)}"
        )
        return make_columns(frame, integers, ())

    def select_rows(self, part: Part, where: str = "") -> str:
        rows = _select_rows(part, self.tables[part.table].extent.rowid)
        if not where:
            return rows
        return f"(SELECT * FROM {rows} WHERE {self.make_condition(part.table, where)})"

    def select(self, sql: str) -> pl.DataFrame:
        frame = self._frame(sql)
        if frame is None:
            raise self._make_unreadable_error(ValueError("columns of mixed types"))
        return frame

    def _frame(self, sql: str) -> pl.DataFrame | None:
        """Return a query's whole result, or None where the driver stumbles over mixed types."""
        if self._driver is None:
            self._driver = Driver(self._uri, self._make_unreadable_error)
        return self._driver.query_frame(sql)


def _are_integers(frame: pl.DataFrame, names: Sequence[str]) -> bool:
    types = frame.schema
    return all(types[name] == pl.Int64 for name in names)


def _to_text(value: object) -> str:
    """Return a value of a column of texts."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return "" if value is None else str(value)


def _select_integer(name: str) -> str:
    """Return a column of integers in SQL, NULL for what is none."""
    quoted = quote_name(name)
    return f"CASE typeof({quoted}) WHEN 'integer' THEN {quoted} END AS {quoted}"


def _select_text(name: str) -> str:
    """Return a column of texts in SQL, as bytes."""
    return f"CAST(COALESCE({quote_name(name)}, '') AS BLOB) AS {quote_name(name)}"


def _select_rows(part: Part, rowid: str) -> str:
    """Return the part as a table expression in SQL."""
    if rowid and isinstance(part, SomeRows):
        return f"(SELECT * FROM {quote_name(part.table)} WHERE {rowid} IN ({', '.join(map(str, part.rowids))}))"
    if rowid:
        return f"(SELECT * FROM {quote_name(part.table)} WHERE {rowid} BETWEEN {part.first} AND {part.last})"
    return f"(SELECT * FROM {quote_name(part.table)} LIMIT {part.last - part.first + 1} OFFSET {part.first - 1})"
