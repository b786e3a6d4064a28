"""Read the tables of an export (:class:`Database`) in any form: SQLite
(:mod:`nsys2prv.export.sqlite`) or Parquet (:mod:`nsys2prv.export.parquet`).

Conditions on rows are SQL expressions with column names in braces. SQLite evaluates each condition
once per distinct combination of column values.
"""

from __future__ import annotations

import re
import sqlite3
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from nsys2prv._util.budget import TABLE_ROWS
from nsys2prv._util.columns import factorize_together
from nsys2prv._util.files import Closable
from nsys2prv.export.outlines import Outline
from nsys2prv.export.source import NULL, Columns, Part, Shared, SomeRows, StackRows, Wanted

#: A column in a condition: the type of its value, or the value itself.
_COLUMN = re.compile(r"typeof\(\{(\w+)\}\)|\{(\w+)\} IS (?:NOT )?NULL|\{(\w+)\}")
#: Number of combinations of values for which one statement evaluates conditions.
FEW_COMBINATIONS = 1000
#: A value of each type in SQL, by the type's number, as in native/records.h.
OF_TYPE = ("NULL", "0", "0.5", "''", "x''")
#: Bits of the number of a type if the types of several columns are packed into one number, and the
#: maximum number of columns.
TYPE_BITS, MOST_TYPES = 3, 21
#: Number of rows, spread over a table, from which the range of its times is estimated.
SAMPLED_ROWS = 16
#: The table of registered strings.
STRINGS = "StringIds"
#: Results of queries without tables, and the maximum number that is remembered.
_EVALUATED: dict[str, list[tuple]] = {}
MOST_EVALUATED = 64
#: Returns the answer of SQLite.
Query = Callable[[str], list[tuple]]
#: Values of the columns that conditions use (int64), and column -> function that writes a value as
#: SQL.
LookedAt = tuple[np.ndarray, Mapping[str, Callable[[int], str]]]


class ConditionColumns(Struct, frozen=True):
    """Columns that conditions need: with their values, or only with the types of their values (NULL
    is a type).
    """

    #: Columns that are used by value.
    values: tuple[str, ...]
    #: Columns for which only the type counts.
    types: tuple[str, ...]


@lru_cache(1024)
def find_condition_columns(conditions: tuple[str, ...]) -> ConditionColumns:
    """Return the columns that these conditions name in braces."""
    values, types = {}, {}
    for by_type, by_null, by_value in _COLUMN.findall("\n".join(conditions)):
        (values if by_value else types)[by_type or by_null or by_value] = None
    return ConditionColumns(tuple(values), tuple(name for name in types if name not in values))


def select_condition_bits(conditions: Sequence[str]) -> str:
    """Return an SQL expression for a bit mask of the conditions that a row meets. Bit 0 is the
    first condition.
    """
    return " + ".join(
        f"CASE WHEN {condition} THEN {1 << number} ELSE 0 END"
        for number, condition in enumerate(conditions)
    )


def evaluate_conditions(
    query: Query,
    looked_at: Sequence[LookedAt],
    rows: int,
    conditions: Sequence[str],
    most: int | None = None,
) -> np.ndarray | None:
    """Find out which conditions each row meets: return a bit mask per row (bit 0: the first
    condition).

    query: runs SQL. looked_at: values or types of the condition columns. Return None if these have
    more than `most` combinations of values.
    """
    # A table is needed even if conditions use no column.
    looked_at = looked_at or [(np.zeros(rows, np.int64), {})]
    distinct, codes = factorize_together(*(values for values, _ in looked_at))
    count = len(distinct[0])
    if most is not None and count > most:
        return None
    literals = {
        name: list(map(write, values.tolist()))
        for (_, columns), values in zip(looked_at, distinct, strict=True)
        for name, write in columns.items()
    }
    rows_in_sql = zip(map(str, range(count)), *literals.values(), strict=True)
    listed = [f"({', '.join(row)})" for row in rows_in_sql]
    names = [f", column{place} AS {quote_name(name)}" for place, name in enumerate(literals, 2)]
    select = f"SELECT {select_condition_bits(conditions)} FROM (SELECT column1{''.join(names)}"
    combination_bits: list[tuple] = []
    for first in range(0, count, FEW_COMBINATIONS):
        some = ", ".join(listed[first : first + FEW_COMBINATIONS])
        combination_bits += query(f"{select} FROM (VALUES {some})) ORDER BY column1")
    smallest = np.min_scalar_type((1 << len(conditions)) - 1)
    return np.fromiter((bits for (bits,) in combination_bits), smallest, count)[codes]


def write_integer(value: int) -> str:
    """Return an integer as SQL text."""
    return "NULL" if value == NULL else str(value)


def write_types(columns: Sequence[str]) -> dict[str, Callable[[int], str]]:
    """Return column -> function that writes an SQL literal with the type of the column's value. The
    types of all columns are packed into one number, TYPE_BITS per column.
    """

    def write(place: int, types: int) -> str:
        return OF_TYPE[types >> TYPE_BITS * place & 7]

    return {name: partial(write, place) for place, name in enumerate(columns)}


def quote_name(name: str) -> str:
    """Return a name as a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


class SqlNames(dict):
    """Map from columns of a table to their names in SQL; missing columns map to NULL."""

    def __missing__(self, column: str) -> str:
        return "NULL"


@lru_cache(1024)
def name_columns(columns: tuple[str, ...]) -> SqlNames:
    """Return the names of these columns in SQL, as a map."""
    return SqlNames((column, quote_name(column)) for column in columns)


@lru_cache(1024)
def _insert_names(columns: tuple[str, ...], where: str) -> str:
    """Replace the names of columns in a condition that uses no registered strings by SQL."""
    return where.format_map(name_columns(columns))


class SourceTable:
    """A table of an export: its columns and rows."""

    #: Its columns by their names.
    columns: Mapping[str, Any]
    #: All of its rows; and all of them, without a look at them.
    whole: Part
    everything: Part
    #: Bounds of its rows, if they are known.
    outline: Outline | None = None

    def __contains__(self, column: object) -> bool:
        return column in self.columns


class Database(Closable):
    """An export opened for reading. Raises :class:`Nsys2prvError` for files of other kinds and for
    damaged parts.
    """

    #: The SQLite file or the folder.
    path: Path
    #: Its size, of an SQLite file of its tables (bytes).
    size: int
    #: Whether all registered strings may be read at once.
    has_few_strings: bool
    #: Its tables by their names.
    tables: Mapping[str, SourceTable]

    # ---- what each form of exports has in its own way ----

    def check(self, outlined: bool = False) -> None:
        """Check all tables. Raise Nsys2prvError, in one line, if a table is damaged. outlined: find the
        outlines of tables, if that costs little; always of NVTX events.
        """
        raise NotImplementedError

    def _read_part(self, part: Part, wanted: Wanted) -> tuple[Columns, np.ndarray]:
        """Return columns of all rows of a part, and for each row a bit mask of the conditions that
        it meets.
        """
        raise NotImplementedError

    def _read_rows(
        self, table: str, columns: Sequence[str], where: str, parts: Sequence[Part] = ()
    ) -> list[tuple]:
        """Return columns of the rows of a small table that meet a condition. parts: if the table is
        large, parts that contain all such rows.
        """
        raise NotImplementedError

    def _find_strings(self, ids: Sequence[int]) -> dict[int, str]:
        """Return id -> text of these registered strings."""
        raise NotImplementedError

    def _find_beginning(self, begin: str) -> Iterable[int]:
        """Return the ids of registered strings that start with this text."""
        raise NotImplementedError

    def read_stacks(self, table: str, low: int, high: int, of_all: bool = False) -> StackRows:
        """Return the call stacks with ids from `low` to `high` in a table with
        :data:`FRAME_COLUMNS`.

        of_all: read all rows. Otherwise the rows are assumed to be sorted by id.
        """
        raise NotImplementedError

    # ---- what follows from it ----

    def has(self, table: str, *columns: str) -> bool:
        """Return True if the table exists and has all these columns."""
        return table in self.tables and self.tables[table].columns.keys() >= set(columns)

    def make_condition(self, table: str, where: str) -> str:
        """Convert a condition with column names in braces to SQL for a table; "" becomes true.

        Missing columns become NULL. {strings:TEXT} becomes the ids of registered strings that start
        with TEXT.
        """
        if not where:
            return "1"
        columns = tuple(self.tables[table].columns)
        if "{strings:" not in where:
            return _insert_names(columns, where)
        return where.format_map(ChainMap({"strings": self._string_ids}, name_columns(columns)))

    @cached_property
    def _string_ids(self) -> _StringIds:
        return _StringIds(self)

    @cached_property
    def _evaluator(self) -> sqlite3.Connection:
        """A database without tables, which evaluates conditions for given values."""
        return sqlite3.connect(":memory:")

    def _evaluate(self, sql: str) -> list[tuple]:
        """Return the rows of a query that uses no tables. Its result does not depend on the report."""
        answer = _EVALUATED.get(sql)
        if answer is None:
            if len(_EVALUATED) >= MOST_EVALUATED:
                _EVALUATED.clear()
            answer = _EVALUATED[sql] = self._evaluator.execute(sql).fetchall()
        return answer

    def close(self) -> None:
        """Close the files."""
        if "_evaluator" in self.__dict__:
            self.__dict__.pop("_evaluator").close()
        self.tables = {}

    def count_rows(self, part: Part, where: str = "") -> int:
        """Return the number of rows of a part that meet a condition (as in :meth:`make_condition`);
        all rows without one.
        """
        wanted = Wanted(conditions=[where] if where else [])
        pieces = (self._read_part(piece, wanted) for piece in part.split(TABLE_ROWS))
        return sum(int(np.count_nonzero(met)) if where else rows.rows for rows, met in pieces)

    def read_small_table(
        self,
        table: str,
        *columns: str,
        where: str = "",
        types: tuple[type, ...] = (),
        parts: Sequence[Part] = (),
    ) -> list[tuple]:
        """Return some columns of the rows of a small table that meet a condition, as tuples in row
        order.

        types: required types of the first columns; rows with other types are damaged and skipped.
        parts: as for `_read_rows`. A missing column reads as None, a missing table as no rows.
        """
        found = self._read_rows(table, columns, where, parts) if table in self.tables else []
        return [row for row in found if all(map(isinstance, row, types))] if types else found

    def read_strings(self, ids: np.ndarray | Sequence[int]) -> dict[int, str]:
        """Return id -> text for some registered strings (table StringIds). Ids without a row are
        absent.
        """
        if not self.has(STRINGS, "id", "value"):
            return {}
        numbers = ids.tolist() if isinstance(ids, np.ndarray) else ids
        if not self.has_few_strings:
            return self._find_strings(numbers)
        known = self.strings
        return {
            number: known[number].decode("utf-8", "replace")
            for number in numbers
            if number in known
        }

    @cached_property
    def strings(self) -> dict[int, bytes]:
        """All registered strings: id -> text. Few of them are used, and decoded."""
        rows = self.read(self.tables[STRINGS].everything, ("id",), ("value",))
        codes, distinct = rows.texts["value"]
        texts = map(distinct.as_list().__getitem__, codes.tolist())
        known = dict(zip(rows["id"].tolist(), texts, strict=True))
        known.pop(NULL, None)
        return known

    def sample_integers(self, columns: Mapping[str, str]) -> list[int]:
        """Return some integers from one column of each of several tables, from rows spread over the
        table. columns: table -> column.
        """
        sampled: list[int] = []
        for table, column in columns.items():
            whole = self.tables[table].whole
            if whole.rowid:
                steps, length = SAMPLED_ROWS - 1, whole.last - whole.first
                spread = {whole.first + length * step // steps for step in range(SAMPLED_ROWS)}
                rows = SomeRows.choose(whole, sorted(spread))
                sampled += self.read(rows, (column,))[column].tolist()
        return [value for value in sampled if value != NULL]

    def read(
        self,
        part: Part,
        integers: tuple[str, ...],
        texts: tuple[str, ...] = (),
        where: str = "",
        reals: tuple[str, ...] = (),
    ) -> Columns:
        """Return columns of the rows of a part that meet a condition, in row order.

        integers, texts, reals: names of columns. reals are read as float64, with NaN for values
        that are not numbers. where: as in :meth:`make_condition`. A missing column reads as NULL.
        """
        wanted = Wanted(integers, texts, reals, [where] if where else [])
        columns, met = self._read_part(part, wanted)
        return columns.where(met != 0) if where else columns

    def read_pieces(self, table: str, integers: tuple[str, ...]) -> Iterator[Columns]:
        """Yield integer columns of a whole table, in pieces of some rows."""
        for piece in self.tables[table].whole.split(TABLE_ROWS):
            yield self.read(piece, integers)

    def read_once(self, part: Part, wanted: Wanted) -> Shared | None:
        """Read some columns of all rows of a part, and find the rows that meet each of several
        conditions. Return None if the part is damaged; :meth:`read` then reports the damage.
        wanted: columns and conditions.
        """
        columns, met = self._read_part(part, wanted)
        return None if columns.damaged else Shared(part, columns, met)


class _StringIds(dict[str, str]):
    """SQL lists of the ids of registered strings, by the start of the string."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database

    def __missing__(self, begin: str) -> str:
        if self._database.has_few_strings:
            raw, texts = begin.encode(), self._database.strings.items()
            found = [number for number, text in texts if text.startswith(raw)]
        else:
            found = self._database._find_beginning(begin)
        self[begin] = ", ".join(map(str, found))
        return self[begin]

    def __format__(self, begin: str) -> str:
        return self[begin]
