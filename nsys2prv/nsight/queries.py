"""SQL on tables that are not in SQLite: what a query mentions of them is brought into a temporary
database first.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping

import polars as pl

from nsys2prv.nsight.source import Part, SourceTable, quote_name
from nsys2prv.nsight.sqlite_pages import COMBINATIONS

#: (table, columns, part of it or None for all, condition) -> its rows, a bounded number at a time.
Reader = Callable[[str, list[str], Part | None, str], Iterator[pl.DataFrame]]
AFFINITIES = {pl.Int64: "INTEGER", pl.Float64: "REAL", pl.String: "TEXT", pl.Binary: "BLOB"}


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
        if not columns:
            return pl.repeat(
                bool(self._connection.execute(f"SELECT {condition}").fetchone()[0]),
                rows.height,
                dtype=pl.Boolean,
                eager=True,
            )
        combinations = rows.select(columns).unique(maintain_order=True)
        self._fill(COMBINATIONS, iter([combinations]))
        matching = self._connection.execute(
            f"SELECT rowid FROM {COMBINATIONS} WHERE {condition}"
        ).fetchall()
        self._connection.execute(f"DROP TABLE {COMBINATIONS}")
        if len(matching) in (0, combinations.height):
            return pl.repeat(bool(matching), rows.height, dtype=pl.Boolean, eager=True)
        chosen = combinations[[number - 1 for (number,) in matching]].with_columns(
            pl.lit(True).alias("\0met")
        )
        return (
            rows.select(columns)
            .join(chosen, on=columns, how="left", nulls_equal=True, maintain_order="left")["\0met"]
            .fill_null(False)
        )

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
