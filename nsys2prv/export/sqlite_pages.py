"""Read rows of an SQLite export from the file's pages, by compiled code, 30 to 60 times as fast as by SQL in Python.

It reads tables as Nsight Systems writes them, and stands aside (:func:`open_pages` and
:meth:`Pages.read` return None) wherever it is not certain of doing what SQLite does: then SQLite
reads. Damage is an error (:class:`DamagedPage`): SQLite would not see all of it. Conditions in SQL
are decided by SQLite, once for each distinct combination of the values they look at.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from nsys2prv._util.columns import factorize_together
from nsys2prv._util.native import core
from nsys2prv.export.source import (
    FRAME_COLUMNS,
    NO_TEXTS,
    NULL,
    Columns,
    DistinctTexts,
    Part,
    StackRows,
    quote_name,
)

#: A column in a condition, of which the type counts, or whether it is NULL, or its value.
_COLUMN = re.compile(r"typeof\(\{(\w+)\}\)|\{(\w+)\} IS (?:NOT )?NULL|\{(\w+)\}")
#: Conditions are evaluated for distinct combinations of values if there are at most so many, or at
#: most one for so many rows.
FEW_COMBINATIONS, ROWS_PER_COMBINATION = 1000, 8
#: A value of each type in SQL, by the type's number, as in native/records.h.
_OF_TYPE = ("NULL", "0", "0.5", "''", "x''")
#: Kinds of columns, as in native/records.h.
INTEGERS, REALS, TYPES, TEXTS, VALUES = range(5)
#: Returns what a pragma of SQLite says of a table.
Describe = Callable[[str], list[tuple]]
#: A page is against the file format: its number.
DamagedPage: type[Exception] = core.Damaged if core else type("Damaged", (Exception,), {})


class ConditionColumns(Struct, frozen=True):
    """The columns that conditions use: by their values, or by the values' types only (NULL is one)."""

    #: Columns whose values count.
    values: tuple[str, ...]
    #: Columns for which only the type counts.
    types: tuple[str, ...]


@lru_cache(1024)
def find_condition_columns(conditions: tuple[str, ...]) -> ConditionColumns:
    """Return the columns that conditions with columns in braces refer to."""
    values, types = {}, {}
    for by_type, by_null, by_value in _COLUMN.findall("\n".join(conditions)):
        (values if by_value else types)[by_type or by_null or by_value] = None
    return ConditionColumns(tuple(values), tuple(name for name in types if name not in values))


def select_condition_bits(conditions: Sequence[str]) -> str:
    """Return in SQL which of the conditions a row meets, as bits: 1 is the first."""
    return " + ".join(
        f"CASE WHEN {condition} THEN {1 << number} ELSE 0 END"
        for number, condition in enumerate(conditions)
    )


def evaluate_conditions(
    connection: sqlite3.Connection,
    columns: Mapping[str, np.ndarray],
    types: Sequence[str],
    rows: int,
    conditions: Sequence[str],
) -> np.ndarray | None:
    """Return as bits which of the conditions each row meets: 1 is the first. None where the rows
    have too many combinations of values.

    columns: those that the conditions look at (int64, NULL as :data:`NULL`). types: the ones of
    them that hold numbers of types.
    """
    # There is a table where conditions look at no column, too.
    looked_at = columns or {"no column": np.zeros(rows, np.int64)}
    values, codes = factorize_together(*looked_at.values())
    count = len(values[0])
    if count > max(FEW_COMBINATIONS, rows // ROWS_PER_COMBINATION):
        return None
    literals = [
        [_OF_TYPE[value] if name in types else _write_integer(value) for value in column.tolist()]
        for name, column in zip(looked_at, values, strict=True)
    ]
    listed = [f"({', '.join(row)})" for row in zip(map(str, range(count)), *literals, strict=True)]
    names = (f"column{place} AS {quote_name(name)}" for place, name in enumerate(looked_at, 2))
    select = f"SELECT {select_condition_bits(conditions)} FROM (SELECT column1, {', '.join(names)}"
    combination_bits: list[tuple] = []
    for first in range(0, count, FEW_COMBINATIONS):
        some = ", ".join(listed[first : first + FEW_COMBINATIONS])
        combination_bits += connection.execute(f"{select} FROM (VALUES {some})) ORDER BY column1")
    return np.fromiter((bits for (bits,) in combination_bits), np.int64, count)[codes]


def _write_integer(value: int) -> str:
    """Return an integer in SQL."""
    return "NULL" if value == NULL else str(value)


class RecordField(Struct, frozen=True):
    """Position of a column in the records of its table, and how to read its values."""

    #: Place of the column in records.
    number: int
    #: As SQLite derives it from the declared type.
    affinity: str
    #: Whether the column is the rowid itself.
    is_rowid: bool
    #: Whether rows that lack it have a default value.
    has_default: bool

    def column(self, kind: int, *arrays: Any) -> tuple:
        """Return the argument of the compiled reader: a kind, and arrays of values, types and texts
        to fill, None for those not wanted.
        """
        place = (self.number, kind, self.is_rowid, self.affinity == "REAL", self.has_default)
        return (*place, NULL, *arrays)


@cache
def find_affinity(declared: str) -> str:
    """Return the affinity of a column of this declared type, by SQLite's rules."""
    kind = declared.upper()
    if "INT" in kind:
        return "INTEGER"
    if any(word in kind for word in ("CHAR", "CLOB", "TEXT")):
        return "TEXT"
    if "BLOB" in kind or not kind:
        return "BLOB"
    return "REAL" if any(word in kind for word in ("REAL", "FLOA", "DOUB")) else "NUMERIC"


def find_fields(describe: Describe) -> dict[str, RecordField] | None:
    """Return the columns of a table of rows, None where its records are not plainly its columns."""
    described = describe("table_xinfo")
    if any(hidden for *_, hidden in described):
        return None  # computed columns
    keys = [(name, kind) for _, name, kind, _, _, key, _ in described if key]
    alias = ""
    if len(keys) == 1 and keys[0][1].upper() == "INTEGER":
        # Unless the key has an index of its own, it is the rowid.
        indices = describe("index_list")
        alias = "" if any(origin == "pk" for _, _, _, origin, *_ in indices) else keys[0][0]
    return {
        name: RecordField(number, find_affinity(kind), name == alias, default is not None)
        for number, name, kind, _, default, _, _ in described
    }


def open_pages(path: Path) -> Pages | None:
    """Return the pages of a database that nothing but the file belongs to."""
    try:
        return Pages(core.TableFile(path)) if core else None
    except core.StandAside:
        return None


#: The table of the other tables, and its columns, as SQLite says it of others.
SCHEMA = "sqlite_master"
_SCHEMA_COLUMNS = [
    (place, name, kind, 0, None, 0, 0)
    for place, (name, kind) in enumerate(
        (
            ("type", "TEXT"),
            ("name", "TEXT"),
            ("tbl_name", "TEXT"),
            ("rootpage", "INT"),
            ("sql", "TEXT"),
        )
    )
]


class Pages:
    """The tables of a file, each found when it is first asked for."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._known: dict[str, tuple[Any, dict[str, RecordField]] | None] = {}

    def list_tables(self) -> Iterator[tuple[bytes, int, bytes]] | None:
        """Return name, first page and SQL of each table; None where SQLite has to tell."""
        texts, everything = ("type", "name", "sql"), Part(SCHEMA, -(1 << 63), (1 << 63) - 1)
        read = self.read(
            everything, 1, lambda _: _SCHEMA_COLUMNS, ("rootpage",), texts, ConditionColumns((), ())
        )
        if read is None:
            return None
        columns = [
            [distinct[code] for code in codes.tolist()]
            for codes, distinct in ((codes, of.as_list()) for codes, of in read[0].texts.values())
        ]
        rows = zip(*columns, read[0]["rootpage"].tolist(), strict=True)
        return ((name, root, sql) for kind, name, sql, root in rows if kind == b"table")

    def make_map(self) -> bytearray:
        """Return room for a bit for each page."""
        return bytearray(self._file.pages // 8 + 1)

    def check(self, root: int, required: bytes, met: bytearray) -> tuple[int, int, int] | None:
        """Read all of the table with this root page, note its pages as met, and return how many
        rows it has and their least and greatest rowid; None where SQLite has to read it. required:
        for each column a byte, 1 if it cannot be NULL. Raises DamagedPage.
        """
        try:
            return self._file.check(root, required, met)
        except core.StandAside:
            return None

    def table(
        self, name: str, root: int, describe: Describe
    ) -> tuple[Any, dict[str, RecordField]] | None:
        """Return a table and its columns. root: the number of its first page; describe: what a
        pragma says of it.
        """
        if name not in self._known:
            fields = find_fields(describe)
            try:
                self._known[name] = fields and (self._file.table(root), fields)
            except core.StandAside:
                self._known[name] = None
        return self._known[name]

    def read(
        self,
        part: Part,
        root: int,
        describe: Describe,
        integers: Sequence[str],
        texts: Sequence[str],
        looked_at: ConditionColumns,
    ) -> tuple[Columns, dict[str, np.ndarray]] | None:
        """Return columns of a part that goes by rowids, as of
        :meth:`nsys2prv.export.sqlite.Database.read`, and those that conditions look at: their types,
        or their values, which are nothing but integers and NULL.
        """
        opened = self.table(part.table, root, describe)
        if opened is None:
            return None
        table, fields = opened
        wanted = (
            *((name, INTEGERS) for name in dict.fromkeys([*integers, *looked_at.values])),
            *((name, TYPES) for name in looked_at.types),
            *((name, TEXTS) for name in texts),
        )
        leaves = table.between(part.first, part.last)
        room = min(part.rows, table.most_rows(*leaves))
        # Each on its own, so that those go that only conditions look at.
        present = [
            (name, kind, np.empty(room, np.int64), core.Texts() if kind == TEXTS else None)
            for name, kind in wanted
            if name in fields
        ]
        described = [
            fields[name].column(kind, values, None, of_texts)
            for name, kind, values, of_texts in present
        ]
        try:
            rows, counts = table.decode(*leaves, part.first, part.last, described)
        except core.StandAside:
            return None
        numbers, types, words = {}, {}, {}
        damaged = 0
        for (name, kind, values, of_texts), (nulls, odd) in zip(present, counts, strict=True):
            if kind == INTEGERS:
                numbers[name] = values[:rows]
                damaged += odd if name in integers else 0
                # Of TEXT affinity, integers would become texts.
                odd += fields[name].affinity == "TEXT" and nulls < rows
                odd = odd if name in looked_at.values else 0
            elif kind == TYPES:
                types[name] = values[:rows]
            else:
                words[name] = values[:rows], DistinctTexts(read=of_texts)
            if odd:
                return None  # a condition may see values other than integers and NULL
        lacking, no_texts = np.full(rows, NULL), (np.zeros(rows, np.int64), NO_TEXTS)
        columns = Columns(
            rows,
            {name: numbers.get(name, lacking) for name in integers},
            {name: words.get(name, no_texts) for name in texts},
            damaged,
        )
        values = {name: numbers[name] for name in looked_at.values if name in fields}
        return columns, values | types

    def read_stacks(
        self, name: str, root: int, describe: Describe, low: int, high: int
    ) -> StackRows | None:
        """Return the call stacks of a table with ids from `low` to `high`; None where SQLite has to
        read them.
        """
        opened = self.table(name, root, describe)
        if opened is None:
            return None
        table, fields = opened
        columns = [fields[one].column(INTEGERS, None, None, None) for one in FRAME_COLUMNS]
        try:
            read = table.stacks(low, high, columns)
        except core.StandAside:
            return None
        if read is None:
            return None
        *numbers, frames = (np.frombuffer(one, np.int64) for one in read)
        return StackRows(*numbers, frames.reshape(-1, 3))
