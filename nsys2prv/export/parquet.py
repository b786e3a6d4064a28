"""Read a folder of Parquet files, one per table, written by `nsys export --type parquetdir`
(:class:`ParquetFolder`).

Only the requested columns are unpacked, and only for the rows of a part. File sizes are checked
first (:mod:`nsys2prv.export.parquet_footer`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl

from nsys2prv._util.budget import TABLE_ROWS, FolderBudget
from nsys2prv._util.errors import Nsys2prvError
from nsys2prv._util.files import hide_stderr
from nsys2prv.export.database import (
    STRINGS,
    TYPE_BITS,
    Database,
    LookedAt,
    SourceTable,
    evaluate_conditions,
    find_condition_columns,
    write_integer,
    write_types,
)
from nsys2prv.export.parquet_footer import TableSize, measure_table
from nsys2prv.export.report_files import ForeignFile
from nsys2prv.export.source import (
    FRAME_COLUMNS,
    NULL,
    Columns,
    Part,
    SomeRows,
    StackRows,
    Wanted,
    decode_texts,
    make_columns,
    number_distinct,
    to_bytes,
)

#: Exceptions raised when a damaged file is read.
DAMAGED_FILE = pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError
#: No table that polars reads has more rows.
MOST_ROWS = (1 << 32) - 2
#: How many times larger an SQLite file of the same tables is.
PACKED = 8
#: Columns of a part with at most this many rows are kept for later reading.
KEPT_ROWS = 1 << 17
#: A file with at most this many bytes is read completely.
SMALL_FILE = 1 << 18
#: A file of registered strings with at most this many bytes is read completely.
FEW_STRINGS = 1 << 17
#: Number of the type of the values of a column, as in native/records.h; NULL is 0.
TYPES = {pl.Int64: 1, pl.Float64: 2, pl.String: 3, pl.Binary: 3}


class ParquetTable(SourceTable):
    """A table of an export in a Parquet file."""

    def __init__(self, file: Path) -> None:
        self.file, self.name = file, file.stem
        self.everything = Part(self.name, 1, MOST_ROWS)
        #: The part that was read last, and its columns so far.
        self.kept: tuple[Part, dict[str, pl.Series]] | None = None

    @cached_property
    def _scanned(self) -> pl.LazyFrame:
        # polars reads a file on other threads, piece by piece; its bytes at once take less time.
        is_small = self.file.stat().st_size <= SMALL_FILE
        source = self.file.read_bytes() if is_small else self.file
        return pl.scan_parquet(source, glob=False, hive_partitioning=False)

    @contextmanager
    def explain_damage(self) -> Iterator[None]:
        """In a `with` block, convert errors into one Nsys2prvError that names the damaged file."""
        try:
            with hide_stderr():
                yield
        except DAMAGED_FILE as error:
            # polars quotes values.
            reason = re.split(r"[\[\"'`\n]", str(error), maxsplit=1)[0].strip()
            raise Nsys2prvError(
                f"{self.file}: cannot be read as a table ({reason[:160] or type(error).__name__}); {_advise(self.file.parent)}"
            ) from None

    @cached_property
    def size(self) -> TableSize:
        """The number of rows and the columns of the table, as the file's footer states them."""
        with self.explain_damage():
            return measure_table(self.file, with_pages=False)

    @property
    def columns(self) -> dict[str, None]:
        """The names of the columns (as keys)."""
        return self.size.columns

    @property
    def whole(self) -> Part:
        """The part with all rows of the table."""
        return Part(self.name, 1, self.size.rows)

    def scan(self, columns: Sequence[str]) -> pl.LazyFrame:
        """Return a lazy frame with these columns, which must exist, with the types of the file."""
        return self._scanned.select(columns)

    def read(self, part: Part, columns: Sequence[str]) -> dict[str, pl.Series]:
        """Return these columns of the rows of a part, as name -> values. Columns of a part of at
        most KEPT_ROWS are kept for further reading of it.
        """
        place = Part(part.table, part.first, part.last, part.rowid)
        kept = self.kept[1] if self.kept and self.kept[0] == place else {}
        lacking = [name for name in columns if name not in kept]
        if isinstance(part, SomeRows):
            places = part.rowids - max(part.first, 1)
            read = self._read_rows(part.rowids.tolist(), lacking) if lacking else {}
            return {name: read[name] if name in read else kept[name][places] for name in columns}
        if lacking:
            scanned = self.scan(lacking).slice(max(part.first, 1) - 1, part.rows).collect()
            kept |= _to_plain(scanned)
            self.kept = (place, kept) if scanned.height <= KEPT_ROWS else None
        return {name: kept[name] for name in columns}

    def _read_rows(self, rowids: Sequence[int], columns: Sequence[str]) -> dict[str, pl.Series]:
        """Return these columns of rows by their numbers, which ascend."""
        scanned, first = self.scan(columns), rowids[0]
        if rowids[-1] - first > TABLE_ROWS:  # far apart
            return _to_plain(pl.concat([scanned.slice(one - 1, 1) for one in rowids]).collect())
        near = scanned.slice(first - 1, rowids[-1] - first + 1).collect()
        return _to_plain(near[np.array(rowids) - first])


def _to_plain(frame: pl.DataFrame) -> dict[str, pl.Series]:
    """Return columns as Int64, Float64, String or Binary; texts that are not UTF-8 are bytes."""
    return {one.name: one if one.dtype in TYPES else _cast(one) for one in frame.iter_columns()}


def _cast(column: pl.Series) -> pl.Series:
    kind = column.dtype
    if kind.is_temporal():
        return column.to_physical().cast(pl.Int64)
    if kind.is_integer() or kind in (pl.Boolean, pl.Null):
        return column.cast(pl.Int64, wrap_numerical=kind == pl.UInt64)
    return column.cast(pl.Float64) if kind.is_float() else column.cast(pl.String, strict=False)


def _look_at(column: pl.Series) -> LookedAt:
    """Return the values of a column, prepared to evaluate conditions."""
    if column.dtype == pl.Int64:
        return column.fill_null(NULL).to_numpy(), {column.name: write_integer}
    distinct, codes = number_distinct(column)
    if column.dtype == pl.Float64:
        literals = [
            repr(one) if one is not None and abs(one) < 9e307 else "NULL" for one in distinct
        ]
    else:
        raw = distinct.cast(pl.Binary)
        literals = ["NULL" if one is None else f"CAST(x'{one.hex()}' AS TEXT)" for one in raw]
    return codes, {column.name: literals.__getitem__}


class ParquetFolder(Database):
    """An export in a folder of Parquet files. Rows are numbered from 1."""

    def __init__(self, path: Path) -> None:
        self.path = path
        files = [file for file in sorted(path.glob("*.parquet")) if file.is_file()]
        if not files:
            raise ForeignFile(
                f"{path}: contains Arrow tables, which nsys2prv does not support; {_advise(path)}"
            )
        self.packed = sum(file.stat().st_size for file in files)
        self.size = PACKED * self.packed
        self.tables: dict[str, ParquetTable] = {file.stem: ParquetTable(file) for file in files}
        #: The table that was read last.
        self._last: ParquetTable | None = None
        strings = self.tables.get(STRINGS)
        self.has_few_strings = strings is None or strings.file.stat().st_size <= FEW_STRINGS

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

    def _read_part(self, part: Part, wanted: Wanted) -> tuple[Columns, np.ndarray]:
        table = self.tables[part.table]
        with table.explain_damage():
            looked_at = find_condition_columns(tuple(wanted.conditions))
            names = (*wanted.integers, *wanted.texts, *wanted.reals)
            names = dict.fromkeys((*names, *looked_at.values, *looked_at.types))
            present = [name for name in names if name in table.columns]
            read = self._read(part, present)
            rows = len(read[present[0]]) if present else _count_rows(part, table.whole)
            seen = [_look_at(read[name]) for name in looked_at.values if name in read]
            types = [name for name in looked_at.types if name in read]
            if types:
                numbers = [
                    read[name].is_not_null().to_numpy() * TYPES[read[name].dtype] for name in types
                ]
                packed = sum(one << TYPE_BITS * place for place, one in enumerate(numbers))
                seen.append((packed, write_types(types)))
        met = np.zeros(0, np.int64)
        if wanted.conditions:
            in_sql = [self.make_condition(part.table, where) for where in wanted.conditions]
            met = evaluate_conditions(self._evaluate, seen, rows, in_sql)
        return make_columns(rows, read, wanted), met

    def _read(self, part: Part, columns: Sequence[str]) -> dict[str, pl.Series]:
        """Return columns of some rows. Columns of one table at a time are kept."""
        table = self.tables[part.table]
        if self._last not in (None, table):
            self._last.kept = None
        self._last = table
        return table.read(part, columns)

    def _read_rows(
        self, table: str, columns: Sequence[str], where: str, parts: Sequence[Part] = ()
    ) -> list[tuple]:
        found: list[tuple] = []
        source, budget = self.tables[table], FolderBudget(self.packed)
        present = [name for name in columns if name in source]
        for piece in (one for part in parts or [source.whole] for one in part.split(TABLE_ROWS)):
            rows: Part = piece
            if where:
                met = np.flatnonzero(self._read_part(piece, Wanted(conditions=[where]))[1])
                if not len(met):
                    continue
                rows = SomeRows.choose(piece, met + piece.first)
            with source.explain_damage():
                read = self._read(rows, present)
                for column in read.values():
                    if column.dtype in (pl.String, pl.Binary):
                        budget.take("bytes of texts", column.cast(pl.Binary).bin.size().sum())
            nothing = [None] * max(map(len, read.values()), default=0)
            read = {
                name: decode_texts(column) if column.dtype == pl.Binary else column
                for name, column in read.items()
            }
            found += zip(*(read.get(name, nothing) for name in columns), strict=True)
        return found

    def _find_strings(self, ids: Sequence[int]) -> dict[int, str]:
        return self._collect_strings(pl.col("id").is_in(ids))

    def _find_beginning(self, begin: str) -> Iterable[int]:
        begins = pl.col("value").cast(pl.Binary).bin.starts_with(begin.encode())
        return self._collect_strings(begins)

    def _collect_strings(self, chosen: pl.Expr) -> dict[int, str]:
        """Return id -> text of the registered strings selected by an expression."""
        table = self.tables[STRINGS]
        with table.explain_damage():
            scanned = table.scan(("id", "value"))
            if not scanned.collect_schema()["id"].is_integer():
                return {}
            read = _to_plain(scanned.filter(chosen).collect())
            return dict(zip(read["id"], decode_texts(to_bytes(read["value"])), strict=True))

    def read_stacks(self, table: str, low: int, high: int, of_all: bool = False) -> StackRows:
        """Return the call stacks with ids from `low` to `high` in a table, as
        :meth:`Database.read_stacks` does.
        """
        source = self.tables[table]
        with source.explain_damage():
            frame = source.scan(FRAME_COLUMNS).filter(pl.col("id").is_between(low, high)).collect()
            read = _to_plain(frame)
        rows = make_columns(frame.height, read, Wanted(FRAME_COLUMNS))
        return StackRows.from_frames(rows)


def _count_rows(part: Part, whole: Part) -> int:
    """Count the rows of a table in a part."""
    if isinstance(part, SomeRows):
        return len(part.rowids)
    return max(0, min(part.last, whole.last) - max(part.first, 1) + 1)


def _advise(folder: Path) -> str:
    name = re.sub("_(pqt|arw)dir$", "", folder.stem)
    return f"export the report again with: nsys export --type sqlite --force-overwrite true {name}.nsys-rep"
