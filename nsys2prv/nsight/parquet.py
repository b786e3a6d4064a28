"""Read an export that is a folder with a Parquet file for each table (``nsys export -t parquetdir``).

polars reads rows and columns; what is asked in SQL is answered by SQLite itself (:class:`Queries`),
so that it means the same as on an SQLite export: what a query mentions of the tables is brought
into a temporary database first. A condition is decided once for each distinct combination of the
values that it looks at.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import polars as pl

from nsys2prv._util.data_files import panics_unseen
from nsys2prv._util.errors import Nsys2prvError
from nsys2prv.nsight.report_files import remove_quoted_content
from nsys2prv.nsight.source import (
    SAMPLED_ROWS,
    Columns,
    Extent,
    Part,
    Shared,
    SomeRows,
    Source,
    SourceTable,
    Tables,
    cast_to_bytes,
    decode_texts,
    make_columns,
    quote_name,
)
from nsys2prv.nsight.sqlite_pages import COMBINATIONS, list_columns_in

#: (table, columns, part of it or None for all, condition) -> its rows, a bounded number at a time.
Reader = Callable[[str, list[str], Part | None, str], Iterator[pl.DataFrame]]
AFFINITIES = {pl.Int64: "INTEGER", pl.Float64: "REAL", pl.String: "TEXT", pl.Binary: "BLOB"}
T = TypeVar("T")
#: What reading a damaged file raises.
DAMAGE = pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError
#: Rows looked at together where all of a table is asked for.
PIECE_ROWS = 200_000
#: Types whose values read as integers though they are none.
NO_NUMBERS = ("String", "Binary", "Float32", "Float64")


class Queries:
    """An SQLite database of its own, in a file that SQLite makes where memory does not suffice and
    removes in the end.

    Whole tables stay in it, with the columns that some query mentioned; parts of tables and what
    conditions look at go after use.
    """

    def __init__(self, tables: Mapping[str, SourceTable], read: Reader) -> None:
        self._tables, self._read = tables, read
        self._connection = sqlite3.connect("", isolation_level=None)
        self._connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        self._connection.execute("PRAGMA journal_mode = OFF")
        self._loaded: dict[str, set[str]] = {}
        self._parts: dict[str, tuple[Part, str]] = {}

    def close(self) -> None:
        """Let go of the temporary database."""
        self._connection.close()

    def select_rows(self, part: Part, where: str) -> str:
        """Return a name for these rows, good for one query."""
        name = f"rows_of_part_{len(self._parts)}"
        self._parts[name] = part, where
        return name

    def run(self, sql: str) -> tuple[list[str], list[tuple]]:
        """Return the names of the result's columns, and its rows."""
        words = self._bring_in(sql)
        parts = [word for word in words if word in self._parts]
        for name in parts:
            part, where = self._parts.pop(name)
            self._fill(
                name, self._read(part.table, self._find_mentioned(part.table, words), part, where)
            )
        try:
            cursor = self._connection.execute(sql)
            return [column[0] for column in cursor.description], cursor.fetchall()
        finally:
            for name in parts:
                self._connection.execute(f"DROP TABLE {name}")

    def mask_met(self, rows: pl.DataFrame, columns: list[str], condition: str) -> pl.Series:
        """Return a mask of the rows that meet a condition in SQL on these columns: SQLite is asked
        once for each combination of their values.
        """
        self._bring_in(condition)
        looked_at = (
            rows.select(columns)
            if columns
            else rows.select(one=pl.repeat(1, pl.len(), dtype=pl.Int64))
        )
        combinations = looked_at.unique(maintain_order=True)
        self._fill(COMBINATIONS, iter([combinations]))
        matching = self._connection.execute(
            f"SELECT rowid FROM {COMBINATIONS} WHERE {condition}"
        ).fetchall()
        self._connection.execute(f"DROP TABLE {COMBINATIONS}")
        if len(matching) in (0, combinations.height):
            return pl.repeat(bool(matching), rows.height, dtype=pl.Boolean, eager=True)
        chosen = combinations[[number - 1 for (number,) in matching]]
        chosen = chosen.with_columns(pl.lit(True).alias("\0met"))
        joined = looked_at.join(
            chosen, on=columns, how="left", nulls_equal=True, maintain_order="left"
        )
        return joined["\0met"].fill_null(False)

    def _find_mentioned(self, table: str, words: Iterable[str]) -> list[str]:
        """Return the table's columns that a query mentions, or for one that only counts rows any of
        them.
        """
        columns = list(self._tables[table].columns)
        return [column for column in columns if column in words] or columns[:1]

    def _bring_in(self, sql: str) -> dict[str, None]:
        """Bring in what a query mentions of whole tables; returns its words."""
        words = dict.fromkeys(re.findall(r"\w+", sql))
        for name in [word for word in words if word in self._tables]:
            columns = {*self._find_mentioned(name, words), *self._loaded.get(name, ())}
            if columns != self._loaded.get(name):
                self._fill(name, self._read(name, sorted(columns), None, ""))
                self._loaded[name] = columns
        return words

    def _fill(self, name: str, pieces: Iterator[pl.DataFrame]) -> None:
        """Make a table of these pieces, of which there is at least one."""
        self._connection.execute(f"DROP TABLE IF EXISTS {quote_name(name)}")
        for number, rows in enumerate(pieces):
            if not number:
                columns = ", ".join(
                    f"{quote_name(column)} {AFFINITIES[kind.base_type()]}"
                    for column, kind in rows.schema.items()
                )
                self._connection.execute(f"CREATE TABLE {quote_name(name)} ({columns})")
            # Not around the loop: reading a piece may ask a query of its own.
            self._connection.execute("BEGIN")
            marks = ", ".join("?" * rows.width)
            self._connection.executemany(
                f"INSERT INTO {quote_name(name)} VALUES ({marks})", rows.iter_rows()
            )
            self._connection.execute("COMMIT")


class Folder(Source):
    """A folder of tables opened for reading. Rows are numbered from 1 in the order of their file."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            files = sorted(
                file for file in self.path.iterdir() if file.suffix == ".parquet" and file.is_file()
            )
        except OSError as error:
            raise Nsys2prvError(
                f"{self.path}: cannot be read ({error.strerror or error})"
            ) from None
        if not files:
            raise Nsys2prvError(
                f"{self.path}: holds Arrow tables, which nsys2prv does not read; {self._reopen()}"
            )
        self.files = {file.stem: file for file in files}
        self.tables = Tables(self.files, self._table)
        self._queries = Queries(self.tables, self._read_pieces)
        self._counted: dict[str, int] = {}

    def list_filled_tables(self) -> dict[str, Part]:
        names = [name for name, table in self.tables.items() if table.columns]
        # One query, as each takes a while to begin. Where it fails, the table that it fails at is
        # found when that is counted alone.
        with suppress(*DAMAGE), panics_unseen():
            counts = pl.concat([self.scan(name).select(pl.len()) for name in names]).collect()
            self._counted = dict(zip(names, counts.to_series(), strict=True))
        return super().list_filled_tables()

    def close(self) -> None:
        self._queries.close()

    def _make_unreadable_error(self, table: str, error: BaseException) -> Nsys2prvError:
        # polars quotes values.
        reason = re.split(r"[\[\"'`\n]", str(error), maxsplit=1)[0].strip() or type(error).__name__
        return Nsys2prvError(
            f"{self.files[table]}: cannot be read as a table ({reason[:160]}); {self._reopen()}"
        )

    def _reopen(self) -> str:
        name = re.sub("_(pqt|arw)dir$", "", self.path.stem)
        return f"export the report again with: nsys export --type parquetdir --force-overwrite true {name}.nsys-rep"

    def scan(self, table: str) -> pl.LazyFrame:
        """Return a table, of which nothing is read yet."""
        return pl.scan_parquet(str(self.files[table]))

    def collect(self, table: str, frame: pl.LazyFrame) -> pl.DataFrame:
        """Run a query on a table and convert the result to the few types that SQLite has."""
        return self._try_reading(table, lambda: to_sqlite_types(frame.collect()))

    def _table(self, name: str) -> SourceTable:
        """Return the description of a file's table."""
        schema = self._try_reading(name, lambda: self.scan(name).collect_schema())
        return SourceTable(
            name,
            {column: str(kind) for column, kind in schema.items()},
            partial(self._find_extent, name, len(schema)),
        )

    def _find_extent(self, name: str, columns: int) -> Extent:
        if columns and name not in self._counted:
            self._counted[name] = self._try_reading(
                name, lambda: self.scan(name).select(pl.len()).collect().item()
            )
        return Extent(1, self._counted.get(name, 0), "")

    def _try_reading(self, table: str, reading: Callable[[], T]) -> T:
        """Read a table; raises one clear line if that fails."""
        try:
            with panics_unseen(str(self.files[table])):
                return reading()
        except DAMAGE as error:
            raise self._make_unreadable_error(table, error) from None

    def _read_having(self, part: Part, columns: list[str], where: str) -> pl.DataFrame:
        """Return columns (if none are given, any) of those rows of a part that meet a condition.
        The table has these columns.
        """
        columns = columns or list(self.tables[part.table].columns)[:1]
        rows = self.scan(part.table).slice(part.first - 1, part.last - part.first + 1)
        frame = self.collect(
            part.table, rows.select({*columns, *self._list_looked_at(part.table, where)})
        )
        if isinstance(part, SomeRows):
            frame = frame[[number - part.first for number in part.rowids]]
        if where:
            frame = frame.filter(self._mask_meeting(part.table, frame, where))
        return frame.select(columns)

    def _list_looked_at(self, table: str, where: str) -> list[str]:
        """Return the columns of a table that a condition looks at."""
        return [name for name in list_columns_in(where) if name in self.tables[table]]

    def _mask_meeting(self, table: str, rows: pl.DataFrame, where: str) -> pl.Series:
        """Return a mask of the rows of a table, with what a condition looks at, that meet it."""
        looked_at, condition = self._list_looked_at(table, where), self.make_condition(table, where)
        try:
            return self._queries.mask_met(rows, looked_at, condition)
        except sqlite3.Error as error:
            raise self._make_unreadable_error(table, error) from None

    def _read_pieces(
        self, table: str, columns: list[str], part: Part | None, where: str
    ) -> Iterator[pl.DataFrame]:
        """Yield rows of a table, or of a part of it, that meet a condition, a bounded number at a
        time, bytes as text; at least one piece.
        """
        part = part or self.get_whole_table(table)
        for piece in part.split(PIECE_ROWS) if part.last >= part.first else [part]:
            rows = self._read_having(piece, columns, where)
            # Text that is no UTF-8 is among bytes; from SQLite it comes as text with replacement
            # characters.
            yield rows.with_columns(
                decode_texts(rows[name]) for name, kind in rows.schema.items() if kind == pl.Binary
            )

    def count(self, table: str, where: str = "") -> int:
        part = self.get_whole_table(table)
        return self.count_rows(part, where) if where else self.tables[table].extent.rows

    def count_rows(self, part: Part, where: str = "") -> int:
        return sum(rows.height for rows in self._read_pieces(part.table, [], part, where))

    def query(self, sql: str) -> list[tuple]:
        return self._run(sql)[1]

    def _run(self, sql: str) -> tuple[list[str], list[tuple]]:
        try:
            return self._queries.run(sql)
        except sqlite3.Error as error:
            raise Nsys2prvError(
                f"{self.path}: cannot be read as an export ({remove_quoted_content(error)}); {self._reopen()}"
            ) from None

    def read_small_table(self, table: str, *columns: str, where: str = "") -> list[tuple]:
        if table not in self.tables:
            return []
        have = [name for name in columns if name in self.tables[table]]
        missing = [pl.lit(None).alias(name) for name in columns if name not in have]
        return [
            row
            for rows in self._read_pieces(table, have, None, where)
            for row in rows.with_columns(missing).select(columns).rows()
        ]

    def read_strings(self, ids: np.ndarray | list[int]) -> dict[int, str]:
        if not self.has("StringIds", "id", "value") or not len(ids):
            return {}
        wanted = pl.Series("id", np.asarray(ids, np.int64))
        rows = self._read_matching("StringIds", "id", wanted, ["id", "value"])
        return dict(zip(rows["id"], decode_texts(cast_to_bytes(rows["value"])), strict=True))

    def _read_matching(
        self, table: str, key: str, wanted: pl.Series, columns: list[str]
    ) -> pl.DataFrame:
        """Return columns of all rows of a table whose key, a column of integers, is among those
        wanted.
        """
        rows = self.scan(table).select(columns)
        kind = self._try_reading(table, lambda: rows.collect_schema()[key])
        if not len(wanted) or not kind.is_integer():
            return self.collect(table, rows.head(0))
        wanted = wanted.cast(kind, strict=False, wrap_numerical=True)
        near = rows.filter(pl.col(key).is_between(wanted.min(), wanted.max()))
        keys = wanted.unique().rename(key).to_frame().lazy()
        return self.collect(table, near.join(keys, on=key, how="semi", maintain_order="left"))

    def sample_integers(self, columns: Mapping[str, str]) -> list[int]:
        frames = [
            rows.select(pl.col(column).alias("time").cast(pl.Int64, strict=False))
            for table, column in columns.items()
            if self.tables[table].columns[column] not in NO_NUMBERS
            for rows in self._sample_rows(table)
        ]
        # Whoever reads the table tells what is wrong with it.
        with suppress(*DAMAGE), panics_unseen():
            return pl.concat(frames).collect().to_series().drop_nulls().to_list()
        return []

    def _sample_rows(self, table: str) -> list[pl.LazyFrame]:
        rows = self.tables[table].extent.rows
        if rows > PIECE_ROWS:
            # Without all rows between them; each slice is a part of the query, with its price.
            return [self.scan(table).slice(place, 1) for place in (0, rows // 2, rows - 1)]
        return [self.scan(table).gather_every(-(-rows // SAMPLED_ROWS))]

    def read(
        self, part: Part, integers: tuple[str, ...], texts: tuple[str, ...] = (), where: str = ""
    ) -> Columns:
        names = [name for name in {*integers, *texts} if name in self.tables[part.table]]
        return make_columns(self._read_having(part, names, where), integers, texts)

    def read_once(
        self,
        part: Part,
        integers: tuple[str, ...],
        texts: tuple[str, ...],
        conditions: Sequence[str],
    ) -> Shared | None:
        names = {name for name in (*integers, *texts) if name in self.tables[part.table]}
        names.update(*(self._list_looked_at(part.table, where) for where in conditions))
        rows = self._read_having(part, sorted(names), "")
        condition_bits = np.zeros(rows.height, np.int64)
        for number, where in enumerate(conditions):
            chosen = self._mask_meeting(part.table, rows, where)
            condition_bits |= chosen.to_numpy().astype(np.int64) << number
        columns = make_columns(rows, integers, texts)
        return None if columns.damaged else Shared(part, columns, condition_bits)

    def read_joined(
        self, part: Part, key: str, table: str, integers: tuple[str, ...], where: str
    ) -> Columns:
        columns = {key, *integers, *self._list_looked_at(table, where)}
        wanted = self._read_having(part, [key], "")[key]
        wanted = wanted if wanted.dtype == pl.Int64 else wanted.clear()
        rows = self._read_matching(table, key, wanted, list(columns))
        return make_columns(rows.filter(self._mask_meeting(table, rows, where)), integers, ())

    def select_rows(self, part: Part, where: str = "") -> str:
        return self._queries.select_rows(part, where)

    def select(self, sql: str) -> pl.DataFrame:
        names, rows = self._run(sql)
        frame = pl.DataFrame(rows, schema=names, orient="row", infer_schema_length=None)
        # As SQLite's driver has it, columns without a value are integers.
        return frame.with_columns(pl.col(pl.Null).cast(pl.Int64))


def to_sqlite_types(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the columns in SQLite's types: integers of 64 bits with a sign, floating point, text,
    bytes.
    """
    return frame.with_columns(_to_plain_column(column) for column in frame.iter_columns())


def _to_plain_column(column: pl.Series) -> pl.Series:
    kind = column.dtype
    if kind.is_temporal():
        column, kind = column.to_physical(), pl.Int64()
    if kind == pl.UInt64:
        return column.cast(pl.Int64, wrap_numerical=True)
    if kind.is_integer() or kind in (pl.Boolean, pl.Null):
        return column.cast(pl.Int64)
    if kind.is_float():
        return column.cast(pl.Float64)
    if kind in (pl.String, pl.Binary):
        return column
    return column.cast(pl.String, strict=False)
