"""Open a folder of Parquet files, one per table, written by `nsys export --type parquetdir`
(:class:`ParquetFolder`). File sizes are checked before rows are read
(:mod:`nsys2prv.export.parquet_footer`); :mod:`nsys2prv.export.parquet_table` reads the rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path

import numpy as np

from nsys2prv._util.budget import TABLE_ROWS, FolderBudget
from nsys2prv._util.columns import take_rows
from nsys2prv.export.database import (
    STRINGS,
    TYPE_BITS,
    Database,
    evaluate_conditions,
    find_condition_columns,
    write_types,
)
from nsys2prv.export.parquet_footer import measure_table
from nsys2prv.export.parquet_table import ParquetTable, advise, combine_columns
from nsys2prv.export.report_files import ForeignFile
from nsys2prv.export.source import FRAME_COLUMNS, NULL, Columns, Part, SomeRows, StackRows, Wanted

#: How many times larger an SQLite file of the same tables is.
PACKED = 8
#: A file of registered strings with at most this many bytes is read completely.
FEW_STRINGS = 1 << 17


class ParquetFolder(Database):
    """An export in a folder of Parquet files. Rows are numbered from 1."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with os.scandir(path) as found:
            sizes = {
                path / file.name: file.stat().st_size
                for file in sorted(found, key=attrgetter("name"))
                if file.name.endswith(".parquet") and file.is_file()
            }
        if not sizes:
            raise ForeignFile(
                f"{path}: contains Arrow tables, which nsys2prv does not support; {advise(path)}"
            )
        self.packed = sum(sizes.values())
        self.size = PACKED * self.packed
        self.tables: dict[str, ParquetTable] = {file.stem: ParquetTable(file) for file in sizes}
        #: The table that was read last.
        self._last: ParquetTable | None = None
        self.has_few_strings = sizes.get(path / f"{STRINGS}.parquet", 0) <= FEW_STRINGS

    def check(self, outlined: bool = False) -> None:
        """Measure all tables. Raise Nsys2prvError if a file has no valid footer, or if all tables
        unpack to more than files of their size may contain. Damaged pages are found when they are
        read.
        """
        budget = FolderBudget(self.packed)
        for table in self.tables.values():
            with table.explain_damage():
                size = table.size = measure_table(table.file)
                budget.take("rows", size.rows)
                budget.take("values", size.values)
                budget.take("bytes when unpacked", size.unpacked)

    def _choose_table(self, name: str) -> ParquetTable:
        """Return a table for reading. Only this table keeps columns."""
        table = self.tables[name]
        if self._last not in (None, table):
            self._last.kept = None
        self._last = table
        return table

    def _read_part(self, part: Part, wanted: Wanted) -> tuple[Columns, np.ndarray]:
        table, met = self._choose_table(part.table), np.zeros(0, np.int64)
        looked_at = find_condition_columns(tuple(wanted.conditions))
        names = (*wanted.integers, *wanted.texts, *wanted.reals)
        names = dict.fromkeys((*names, *looked_at.values, *looked_at.types))
        with table.explain_damage():
            read = table.read(part, [name for name in names if name in table.columns])
            rows = table.count_rows(part)
            columns = combine_columns(rows, read, wanted)
        if wanted.conditions:
            seen = [read[name].look_at(name) for name in looked_at.values if name in read]
            if types := [name for name in looked_at.types if name in read]:
                packed = np.zeros(rows, np.int64)
                for place, name in enumerate(types):
                    packed |= read[name].present * np.int64(read[name].type << TYPE_BITS * place)
                seen.append((packed, write_types(types)))
            in_sql = [self.make_condition(part.table, where) for where in wanted.conditions]
            met = evaluate_conditions(self._evaluate, seen, rows, in_sql)
        return columns, met

    def _read_rows(
        self, table: str, columns: Sequence[str], where: str, parts: Sequence[Part] = ()
    ) -> list[tuple]:
        found: list[tuple] = []
        source, budget = self._choose_table(table), FolderBudget(self.packed)
        present = [name for name in columns if name in source]
        for piece in (one for part in parts or [source.whole] for one in part.split(TABLE_ROWS)):
            rows: Part = piece
            if where:
                met = np.flatnonzero(self._read_part(piece, Wanted(conditions=[where]))[1])
                if not len(met):
                    continue
                rows = SomeRows.choose(piece, met + piece.first)
            with source.explain_damage():
                read = source.read(rows, present)
                listed = {name: column.to_list() for name, column in read.items()}
                for name, column in read.items():
                    if column.texts is not None:
                        # Texts that rows share are in memory once, but not in what is made of them.
                        budget.take("bytes of texts", sum(map(len, filter(None, listed[name]))))
            nothing = [None] * source.count_rows(rows)
            found += zip(*(listed.get(name, nothing) for name in columns), strict=True)
        return found

    def _find_strings(self, ids: Sequence[int]) -> dict[int, str]:
        wanted = np.array(ids, np.int64)
        return dict(self._choose_strings(lambda rows: np.isin(rows["id"], wanted)))

    def _find_beginning(self, begin: str) -> Iterable[int]:
        def begins(rows: Columns) -> np.ndarray:
            codes, distinct = rows.texts["value"]
            return np.array([one.startswith(begin.encode()) for one in distinct.as_list()])[codes]

        return dict(self._choose_strings(begins))

    def _choose_strings(self, choose: Callable[[Columns], np.ndarray]) -> Iterator[tuple[int, str]]:
        """Yield the registered strings that are chosen: id and text. choose: returns a mask of rows."""
        for piece in self.tables[STRINGS].whole.split(TABLE_ROWS):
            rows = self.read(piece, ("id",), ("value",))
            rows = rows.where(choose(rows) & (rows["id"] != NULL))
            codes, distinct = rows.texts["value"]
            texts = distinct.decode()
            for number, code in zip(rows["id"].tolist(), codes.tolist(), strict=True):
                yield number, texts[code]

    def read_stacks(self, table: str, low: int, high: int, of_all: bool = False) -> StackRows:
        """Return the call stacks with ids from `low` to `high` in a table, as
        :meth:`Database.read_stacks` does.
        """
        found = []
        for piece in self.tables[table].whole.split(TABLE_ROWS):
            ids = self.read(piece, FRAME_COLUMNS[:1])["id"]
            met = np.flatnonzero((ids >= low) & (ids <= high))
            if len(met):
                first, last = piece.first + int(met[0]), piece.first + int(met[-1])
                frames = self.read(Part(table, first, last), FRAME_COLUMNS)
                found.append(take_rows(frames.integers, met - met[0]))
        nothing = np.zeros(0, np.int64)
        joined = {
            name: np.concatenate([nothing, *(one[name] for one in found)]) for name in FRAME_COLUMNS
        }
        return StackRows.from_frames(Columns(len(joined["id"]), joined, {}))
