"""Interface to one export, whatever its form: its tables and columns, and their rows as columns of
numbers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv.nsight.columns import Columns

#: Of the rows of a part fewer than one in so many are cheaper to read one by one than to look for.
FEW = 20
#: So many rows of a table tell where its times lie.
SPREAD = 16


class Extent(Struct, frozen=True):
    """The range of a table's rowids (an empty one when it has no rows), and the name by which
    SQLite knows them here.

    Where there is no such name (""), or where rowids lie too far apart to count them off, rows are
    numbered from 1 in the order in which SQLite walks the table.
    """

    #: Least rowid.
    first: int = 1
    #: Greatest rowid, below `first` where there are no rows.
    last: int = 0
    #: Name by which SQLite knows them, "" where there is none.
    rowid: str = "rowid"

    @property
    def rows(self) -> int:
        """Return an upper bound of the rows; exact where none was deleted."""
        return max(0, self.last - self.first + 1)


class SourceTable(Struct, frozen=True, dict=True):
    """A table's columns (name -> declared type), and what tells its extent, which is looked up when
    it is first asked for.
    """

    #: As in the export.
    name: str
    #: Name -> declared type.
    columns: dict[str, str]
    #: Finds the extent.
    look: Callable[[], Extent]

    @cached_property
    def extent(self) -> Extent:
        return self.look()

    def __contains__(self, column: object) -> bool:
        return column in self.columns


class Tables(Mapping[str, SourceTable]):
    """The tables of an export, each looked at when it is first asked for."""

    def __init__(self, names: Collection[str], look: Callable[[str], SourceTable]) -> None:
        self._names, self._look = names, look
        self._known: dict[str, SourceTable] = {}

    def __getitem__(self, name: str) -> SourceTable:
        if name not in self._known:
            if name not in self._names:
                raise KeyError(name)
            self._known[name] = self._look(name)
        return self._known[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class Part(Struct, frozen=True):
    """Consecutive rows of a table, by rowid, both ends included."""

    #: Name of the table.
    table: str
    #: First rowid.
    first: int
    #: Last rowid, included.
    last: int

    def split(self, rows: int) -> Iterator[Part]:
        """Yield pieces of at most `rows` rows."""
        for first in range(self.first, self.last + 1, rows):
            yield Part(self.table, first, min(first + rows - 1, self.last))


class SomeRows(Part, frozen=True):
    """Part of a table reduced to the rows with these rowids, ascending."""

    #: Ascending.
    rowids: tuple[int, ...] = ()

    def split(self, rows: int) -> Iterator[Part]:
        """Yield itself: it is small."""
        yield self


class Shared(Struct, frozen=True):
    """Rows of a part, read once for several conditions; none of their values is damaged."""

    #: Where the rows are from.
    part: Part
    #: Columns of all rows.
    rows: Columns
    #: Conditions that each row meets, as bits: 1 is the first.
    met: np.ndarray

    def mask_meeting(self, number: int) -> np.ndarray:
        """Return a mask of the rows that meet a condition."""
        return (self.met & (1 << number)) != 0

    def narrow(self, number: int) -> Part:
        """Return the part, or of it the rows that meet a condition where they are few and their
        rowids are known, for further reading.
        """
        rows = np.flatnonzero(self.mask_meeting(number))
        if len(self.met) != self.part.last - self.part.first + 1 or len(rows) * FEW > len(self.met):
            return self.part
        return SomeRows(
            self.part.table,
            self.part.first,
            self.part.last,
            tuple((rows + self.part.first).tolist()),
        )

    def holds(self, part: Part, integers: tuple[str, ...], texts: tuple[str, ...]) -> bool:
        """True if these columns of this part were asked for."""
        return (
            self.part == part
            and self.rows.integers.keys() >= set(integers)
            and self.rows.texts.keys() >= set(texts)
        )

    def columns(self, number: int, integers: tuple[str, ...], texts: tuple[str, ...]) -> Columns:
        """Return columns of the rows that meet a condition, as :meth:`Source.read` has them."""
        chosen, columns = self.mask_meeting(number), self.rows.select(integers, texts)
        return columns if chosen.all() else columns.where(chosen)


class Source(ABC):
    """One export opened for reading. Conditions and queries are in SQL, with SQLite's meaning,
    whatever the export is.
    """

    #: The SQLite file or the folder.
    path: Path
    #: By name, those with columns. Whatever reads raises
    #: :class:`nsys2prv._util.errors.Nsys2prvError` where the export is damaged.
    tables: Tables

    @abstractmethod
    def close(self) -> None:
        """Let go of the files."""

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def has(self, table: str, *columns: str) -> bool:
        """True if the table exists with all these columns."""
        return table in self.tables and all(column in self.tables[table] for column in columns)

    def get_whole_table(self, table: str) -> Part:
        extent = self.tables[table].extent
        return Part(table, extent.first, extent.last)

    def list_filled_tables(self) -> dict[str, Part]:
        """Return all tables that have rows, whole."""
        return {
            name: self.get_whole_table(name)
            for name, table in self.tables.items()
            if table.extent.rows
        }

    def condition(self, table: str, where: str) -> str:
        """Return a condition in SQL from one with the table's columns in braces: those that the
        export lacks are NULL. "" is true.
        """
        return where.format_map(SqlNames(self.tables[table].columns)) if where else "1"

    @abstractmethod
    def count(self, table: str, where: str = "") -> int:
        """Return the number of rows, or of those that meet a condition (as in :meth:`condition`)."""

    @abstractmethod
    def count_rows(self, part: Part, where: str = "") -> int:
        """Return the number of rows of a part, or of those that meet a condition (as in
        :meth:`condition`).
        """

    @abstractmethod
    def query(self, sql: str) -> list[tuple]:
        """Return all rows of a small query."""

    @abstractmethod
    def read_small_table(self, table: str, *columns: str, where: str = "") -> list[tuple]:
        """Return these columns of the rows of a small table that meet a condition, in the order of
        the rows.

        A column that the export lacks reads as None, a table that it lacks as no rows.
        """

    @abstractmethod
    def strings(self, ids: np.ndarray | list[int]) -> dict[int, str]:
        """Return the text of these ids of StringIds; an id without a row is absent."""

    @abstractmethod
    def sample_integers(self, columns: Mapping[str, str]) -> list[int]:
        """Return the integers that a few rows all over some tables have in one column each.
        columns: by table.
        """

    @abstractmethod
    def read(
        self, part: Part, integers: tuple[str, ...], texts: tuple[str, ...] = (), where: str = ""
    ) -> Columns:
        """Return columns of some rows, in their order: of those that meet `where`, a condition as
        in :meth:`condition`.

        A column that the export lacks reads as NULL throughout.
        """

    @abstractmethod
    def read_once(
        self,
        part: Part,
        integers: tuple[str, ...],
        texts: tuple[str, ...],
        conditions: Sequence[str],
    ) -> Shared | None:
        """Return columns of all rows of a part, and which of some conditions (as in
        :meth:`condition`) each row meets; None where damage forbids it: :meth:`read` tells what is
        damaged.
        """

    @abstractmethod
    def read_joined(
        self, part: Part, key: str, table: str, integers: tuple[str, ...], where: str
    ) -> Columns:
        """Return columns of the rows of another table that share a key with a part's rows and meet
        a condition, in any order.
        """

    @abstractmethod
    def select_rows(self, part: Part, where: str = "") -> str:
        """Return the rows of a part that meet a condition as a table expression in SQL, for one
        :meth:`select`.
        """

    @abstractmethod
    def select(self, sql: str) -> pl.DataFrame:
        """Return the result of a larger query whose columns each have one type."""


def choose_spread_rows(extent: Extent) -> list[int]:
    """Return the numbers of a few rows all over a table, its first and its last among them."""
    steps, length = SPREAD - 1, extent.last - extent.first
    return sorted({extent.first + length * step // steps for step in range(SPREAD)})


class SqlNames(dict):
    """Column -> its name in SQL; NULL for a column that is not there."""

    def __init__(self, columns: Iterable[str]) -> None:
        super().__init__((column, quote_name(column)) for column in columns)

    def __missing__(self, column: str) -> str:
        return "NULL"


def quote_name(name: str) -> str:
    """Return an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'
