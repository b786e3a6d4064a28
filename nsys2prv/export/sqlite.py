"""Open exports (:func:`open_database`), and read SQLite exports (:class:`SqliteDatabase`) from the
file's pages (:mod:`nsys2prv.export.sqlite_pages`) or with SQLite.

The whole file is checked once for damage (:meth:`SqliteDatabase.check`). Only tables are read:
indexes may be damaged. Files are opened unchanged
(:func:`nsys2prv.export.report_files.prepare_export` handles logs), so read-only folders and file
systems without locks work, and nothing is written beside the input.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import compress
from pathlib import Path

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.budget import SELECTED_ROWS, TABLE_ROWS
from nsys2prv._util.errors import Nsys2prvError
from nsys2prv.export.database import (
    FEW_COMBINATIONS,
    STRINGS,
    Database,
    evaluate_conditions,
    find_condition_columns,
    quote_name,
    select_condition_bits,
)
from nsys2prv.export.outlines import NVTX_TABLE
from nsys2prv.export.parquet import ParquetFolder
from nsys2prv.export.report_files import (
    DAMAGE,
    check_file,
    connect_read_only,
    is_export_folder,
    remove_quoted_content,
)
from nsys2prv.export.source import (
    FRAME_COLUMNS,
    Columns,
    Part,
    Shared,
    SomeRows,
    StackRows,
    Wanted,
    make_columns,
)
from nsys2prv.export.sqlite_pages import (
    SCHEMA,
    DamagedPage,
    SqliteTable,
    ask_core,
    list_tables,
    name_rows,
    open_pages,
    open_schema,
)

#: Columns of the conditions that a row meets, and of its values that are no integers.
MET, DAMAGED_VALUES = "conditions met", "damaged values"
#: A column of integers in SQL, and one of reals, NULL for values of other types; and one of texts and
#: bytes.
_AS_INTEGER = "CASE typeof({0}) WHEN 'integer' THEN {0} END AS {0}"
_AS_REAL = "CASE WHEN typeof({0}) IN ('integer', 'real') THEN CAST({0} AS REAL) END AS {0}"
_AS_TEXT = "CASE typeof({0}) WHEN 'blob' THEN {0} ELSE CAST(COALESCE({0}, '') AS TEXT) END AS {0}"
#: Of files up to this size (bytes) all registered strings are read at once.
SMALL_FILE = 1 << 20
#: Registered strings asked for in one statement.
STRINGS_AT_ONCE = 500
#: Conditions are evaluated for combinations of values if a part has at most FEW_COMBINATIONS, or at
#: most one per this many rows; otherwise, SQLite reads the rows.
ROWS_PER_COMBINATION = 8
#: Output of SQLite's check if a page is damaged, not a value.
PAGE_IN_CHECK = re.compile(r"(?i)\bpage (\d+)")
#: Its output for values that SQLite never writes in this way.
MALFORMED = "NULL value", "NUMERIC value", "row not in PRIMARY KEY order"
#: Its output for a page to which nothing refers.
LOST_PAGE = re.compile(r"(?i)page (\d+)(?: is|:) never used")


def open_database(path: str | Path) -> Database:
    """Open an export for reading: an SQLite file, or a folder of Parquet files. Raise
    :class:`Nsys2prvError` for anything else.
    """
    return ParquetFolder(Path(path)) if is_export_folder(Path(path)) else SqliteDatabase(path)


class SqliteDatabase(Database):
    """An SQLite export. Rows of large tables are read from the file's pages. SQLite reads
    everything that the page reader does not support (:mod:`nsys2prv.export.sqlite_pages`).
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.size = check_file(self.path)
        self.has_few_strings = self.size <= SMALL_FILE
        self.tables: dict[str, SqliteTable] = {}
        with self._explain_damage(SCHEMA):
            self._schema = open_schema(open_pages(self.path), self.size)
            self.tables, self._others = list_tables(self._schema, self._query)

    @cached_property
    def connection(self) -> sqlite3.Connection:
        """SQLite's connection to the file. Most tasks do not need it; on its first query, SQLite
        parses the declarations of all tables.
        """
        connection = connect_read_only(self.path)
        connection.text_factory = _decode
        return connection

    def _make_unreadable_error(self, error: Exception, table: str = "") -> Nsys2prvError:
        """Return the error that tells users that the file, or a table in it, is damaged."""
        # In a damaged file the name of a table may be anything.
        is_plain = re.fullmatch(r"[A-Za-z_]\w{,60}", table, re.ASCII)
        named = f"table {table}" if is_plain else "a table"
        if isinstance(error, DamagedPage):
            of_table = f"{named}, page {error}" if table else f"page {error} is in no table"
            reason = f"malformed: {of_table}"
        elif isinstance(error, UnicodeError):
            reason = "names that are no text"
        else:
            reason = remove_quoted_content(error) + (f" in {named}" if table else "")
        return Nsys2prvError(
            f"{self.path}: cannot be read as an SQLite export ({reason}); export the report again with: "
            f"nsys export --type sqlite --force-overwrite true {self.path.with_suffix('.nsys-rep').name}"
        )

    def _explain_damage(self, table: str = "") -> _Explained:
        """Convert errors inside a `with` block into one Nsys2prvError that names the damaged table."""
        return _Explained(self, table)

    def check(self, outlined: bool = False) -> None:
        """Read all tables. Raise Nsys2prvError, in one line, for damaged pages and for lost pages,
        to which nothing in the file refers.
        """
        file, explain = self._schema.file, self._explain_damage()
        with suppress(*DAMAGE):
            if not file and self._ask_quick_check() == ["ok"]:
                return
        met = bytearray(file.pages // 8 + 1 if file else 0)
        not_all_read = self._others.copy()
        with explain:
            for table in (self._schema, *self.tables.values()):
                explain.table = table.name
                # The outline of NVTX events finds the names among them.
                is_large = not self.has_few_strings and (outlined or table.name == NVTX_TABLE)
                checked = file and table.check(met, is_large)
                if not checked:
                    self._check_by_sql(table.name)
                if not checked or table.has_frames:
                    not_all_read.append(table.root)
            explain.table = ""
            if lost := self._find_lost_page(met, not_all_read):
                raise DamagedPage(lost)

    def _find_lost_page(self, met: bytearray, roots: Sequence[int]) -> int:
        """Return the number of a page that belongs to no table, or 0. met: flags of the pages that
        were read. roots: first pages of other trees.
        """
        if file := self._schema.file:
            return ask_core(file.lost_page, met, np.array(roots, np.uint32)) or 0
        # Where SQLite finds damage elsewhere, lost pages may have been of an index, or free.
        pages = [line for line in self._ask_quick_check() if PAGE_IN_CHECK.search(line)]
        lost = [match for match in map(LOST_PAGE.match, pages) if match]
        return int(lost[0][1]) if lost and len(lost) == len(pages) else 0

    def _ask_quick_check(self) -> list[str]:
        """Return the lines of SQLite's quick_check; only "ok" for a sound file."""
        said = self.connection.execute("PRAGMA quick_check").fetchall()
        return [line for (text,) in said for line in text.splitlines()]

    def _check_by_sql(self, name: str) -> None:
        """Check the pages of a table and of its indexes with SQLite."""
        for (text,) in self.connection.execute(f"PRAGMA quick_check({quote_name(name)})"):
            if page := PAGE_IN_CHECK.search(text):
                raise DamagedPage(page[1])
            if text.startswith(MALFORMED):
                raise sqlite3.DatabaseError("malformed")

    def close(self) -> None:
        """Close the files."""
        super().close()
        if "connection" in self.__dict__:
            self.__dict__.pop("connection").close()
        self._schema = open_schema(None, self.size)

    def _query(self, sql: str) -> list[tuple]:
        """Return all rows of a small query."""
        with self._explain_damage():
            return self.connection.execute(sql).fetchall()

    def _read_rows(
        self, table: str, columns: Sequence[str], where: str, parts: Sequence[Part] = ()
    ) -> list[tuple]:
        source = self.tables[table]
        with self._explain_damage(table):
            rows = source.read_rows(columns)
        if rows is not None:
            if not where or not rows:
                return rows
            if from_pages := self._read_pages(source.everything, Wanted(conditions=[where])):
                return list(compress(rows, from_pages[1].tolist()))
        names = [quote_name(one) if one in source.columns else "NULL" for one in columns]
        pieces = (piece for part in parts or [source.whole] for piece in part.split(TABLE_ROWS))
        return [row for piece in pieces for row in self._read_by_names(piece, names, where)]

    def _read_by_names(self, part: Part, names: Sequence[str], where: str) -> list[tuple]:
        """Return columns of the rows of a part that meet a condition. names: SQL expressions of the
        columns.
        """
        if where and (from_pages := self._read_pages(part, Wanted(conditions=[where]))):
            if not from_pages[1].any():
                return []
            part = Shared(part, *from_pages).narrow(0)
        condition = self.make_condition(part.table, where)
        return self._query(f"SELECT {', '.join(names)} FROM {_select_rows(part)} WHERE {condition}")

    def _find_strings(self, ids: Sequence[int]) -> dict[int, str]:
        return {
            number: _decode(value) if isinstance(value, bytes) else str(value)
            for start in range(0, len(ids), STRINGS_AT_ONCE)
            for number, value in self._query(
                f"SELECT id, coalesce(value, '') FROM {name_rows(STRINGS)} WHERE id IN "
                f"({', '.join(map(str, ids[start : start + STRINGS_AT_ONCE]))})"
            )
        }

    def _find_beginning(self, begin: str) -> Iterable[int]:
        rows = f"{name_rows(STRINGS)} WHERE value GLOB '{begin}*'"
        return [number for (number,) in self._query(f"SELECT id FROM {rows}")]

    def _read_part(self, part: Part, wanted: Wanted) -> tuple[Columns, np.ndarray]:
        return self._read_pages(part, wanted) or self._read_by_sql(part, wanted)

    def _read_pages(self, part: Part, wanted: Wanted) -> tuple[Columns, np.ndarray] | None:
        """Return the result of :meth:`_read_part` from the file's pages, or None if SQLite must
        read the part.
        """
        if not part.rowid:
            return None
        with self._explain_damage(part.table):
            looked_at = find_condition_columns(tuple(wanted.conditions))
            read = self.tables[part.table].read(part, wanted, looked_at)
            if read is None or not wanted.conditions:
                return read and (read[0], np.zeros(0, np.int64))
            columns, seen = read
            in_sql = [self.make_condition(part.table, where) for where in wanted.conditions]
            most = max(FEW_COMBINATIONS, columns.rows // ROWS_PER_COMBINATION)
            met = evaluate_conditions(self._evaluate, seen, columns.rows, in_sql, most)
        return None if met is None else (columns, met)

    def _read_by_sql(
        self, part: Part, wanted: Wanted, where: str = ""
    ) -> tuple[Columns, np.ndarray]:
        """Return the result of :meth:`_read_part` with SQLite. where: a further condition."""
        have = self.tables[part.table].columns
        present = [name for name in wanted.integers if name in have]
        odd = [f"(typeof({quote_name(name)}) NOT IN ('integer', 'null'))" for name in present]
        met = [self.make_condition(part.table, condition) for condition in wanted.conditions]
        expressions = [
            f"{' + '.join(odd) or 0} AS {quote_name(DAMAGED_VALUES)}",
            f"{select_condition_bits(met) or 0} AS {quote_name(MET)}",
            *map(_AS_INTEGER.format, map(quote_name, present)),
            *map(_AS_REAL.format, (quote_name(name) for name in wanted.reals if name in have)),
            *(_AS_TEXT.format(quote_name(name)) for name in wanted.texts if name in have),
        ]
        rows = f"{_select_rows(part)} WHERE {self.make_condition(part.table, where)}"
        frame = self._select(f"SELECT {', '.join(expressions)} FROM {rows}")
        columns = make_columns(frame.height, frame.to_dict(), wanted)
        odd = frame[DAMAGED_VALUES]
        columns.odd = odd.to_numpy() if odd.sum() else None
        return columns, frame[MET].to_numpy()

    def read_stacks(self, table: str, low: int, high: int, of_all: bool = False) -> StackRows:
        """Return the call stacks with ids from `low` to `high` in a table. Unless `of_all`, only
        the rows of these stacks are read.
        """
        source = self.tables[table]
        with self._explain_damage(table):
            stacks = None if of_all or not source.declared.rowid else source.read_stacks(low, high)
            if stacks is None:
                source.check_rows()
        if stacks is None:
            where = f"{{id}} BETWEEN {low} AND {high}"
            rows = self._read_by_sql(source.whole, Wanted(FRAME_COLUMNS), where)[0]
            stacks = StackRows.from_frames(rows)
        return stacks

    def _select(self, sql: str) -> pl.DataFrame:
        """Return the result of a large query as a frame with one type per column."""
        self.connection.text_factory = bytes
        try:
            with self._explain_damage():
                return read_cursor(self.connection.execute(sql))
        finally:
            self.connection.text_factory = _decode


class _Explained(Struct):
    """Converts errors inside a block, see :meth:`SqliteDatabase._explain_damage`."""

    database: SqliteDatabase
    table: str

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (DamagedPage, *DAMAGE, pl.exceptions.PolarsError)):
            raise self.database._make_unreadable_error(error, self.table) from None


def read_cursor(cursor: sqlite3.Cursor) -> pl.DataFrame:
    """Return the rows of a cursor as a frame with one type per column, and texts as bytes."""
    names = [name for name, *_ in cursor.description]
    frames = []
    while rows := cursor.fetchmany(SELECTED_ROWS):
        columns = zip(names, zip(*rows, strict=True), strict=True)
        frames.append(pl.DataFrame([_make_series(*column) for column in columns]))
    if not frames:
        return pl.DataFrame(schema=dict.fromkeys(names, pl.Int64))
    return pl.concat(frames, how="vertical_relaxed").with_columns(pl.col(pl.Null).cast(pl.Int64))


def _select_rows(part: Part) -> str:
    """Return an SQL table expression for the rows of a part."""
    if not part.rowid:
        rows = f"LIMIT {part.rows} OFFSET {part.first - 1}"
    elif isinstance(part, SomeRows):
        rows = f"WHERE {part.rowid} IN ({', '.join(map(str, part.rowids.tolist()))})"
    else:
        rows = f"WHERE {part.rowid} BETWEEN {part.first} AND {part.last}"
    return f"(SELECT * FROM {name_rows(part.table)} {rows})"


def _decode(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _make_series(name: str, values: Sequence[object]) -> pl.Series:
    """Return a column of integers, reals or bytes. Raise ValueError for values of several types."""
    types = {*map(type, values)} - {type(None)}
    for kind, of_kind in ((pl.Null, set()), (pl.Int64, {int}), (pl.Binary, {bytes})):
        if types == of_kind:
            return pl.Series(name, values, kind)
    if types <= {int, float}:
        return pl.Series(name, values, pl.Float64, strict=False)
    raise ValueError("columns of mixed types")
