"""Read columns of a table in a Parquet file (:class:`ParquetTable`). Only the requested columns are
read, and only for the rows of a part.

The compiled core reads the files that Nsight Systems writes: uncompressed, in groups of 2,048 rows.
polars would take three times as long for these. It reads all other encodings.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.budget import TABLE_ROWS
from nsys2prv._util.columns import fill_nulls
from nsys2prv._util.errors import Nsys2prvError
from nsys2prv._util.files import hide_stderr
from nsys2prv._util.native import core
from nsys2prv.export.database import LookedAt, SourceTable, write_integer
from nsys2prv.export.parquet_footer import BYTE_ARRAY, REALS, ColumnForm, TableSize, measure_table
from nsys2prv.export.source import (
    NULL,
    Columns,
    DistinctTexts,
    Part,
    SomeRows,
    Wanted,
    gather_columns,
)

#: Exceptions raised when a damaged file is read.
DAMAGED_FILE = pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError
#: No table that polars reads has more rows.
MOST_ROWS = (1 << 32) - 2
#: Columns that polars read, of a part with at most this many rows, are kept for later reading.
KEPT_ROWS = 1 << 17
#: polars reads a file with at most this many bytes completely.
SMALL_FILE = 1 << 18
#: Numbers of the types of values, as in native/records.h; NULL is 0.
INTEGER, REAL, TEXT = 1, 2, 3
#: polars' types that need no conversion.
PLAIN_TYPES = (pl.Int64, pl.Float64, pl.String, pl.Binary)


class ReadColumn(Struct, frozen=True):
    """A column of some rows, with values of the type that the file has."""

    #: Integers (:data:`NULL` for NULL), reals (NaN for NULL), or the index of each row's text.
    values: np.ndarray
    #: Whether each value is not NULL.
    present: np.ndarray
    #: The texts, of which NULL is an empty one.
    texts: DistinctTexts | None = None

    @classmethod
    def from_polars(cls, series: pl.Series) -> ReadColumn:
        """Convert a column that polars read."""
        series = series if series.dtype in PLAIN_TYPES else _convert(series)
        present = series.is_not_null().to_numpy()
        if series.dtype in (pl.String, pl.Binary):
            codes, texts = DistinctTexts.number(series)
            return cls(codes, present, texts)
        instead = NULL if series.dtype == pl.Int64 else np.nan
        return cls(fill_nulls(series, instead).to_numpy(), present)

    @property
    def type(self) -> int:
        """The number of the type of the values."""
        if self.texts is not None:
            return TEXT
        return REAL if self.values.dtype == np.float64 else INTEGER

    def to_list(self) -> list:
        """Return the values, with None for NULL."""
        values = self.values.tolist()
        if self.texts is not None:
            texts = [raw.decode("utf-8", "replace") for raw in self.texts.as_list()]
            values = [texts[code] for code in values]
        if self.present.all():
            return values
        pairs = zip(values, self.present.tolist(), strict=True)
        return [value if is_there else None for value, is_there in pairs]

    def look_at(self, name: str) -> LookedAt:
        """Return the values prepared to evaluate conditions. name: of the column."""
        if self.type == INTEGER:
            return self.values, {name: write_integer}
        if self.texts is None:
            bits = self.values.view(np.int64)
            return bits, {name: lambda one: _write_real(np.int64(one).view(np.float64))}
        texts = [f"CAST(x'{one.hex()}' AS TEXT)" for one in self.texts.as_list()]
        return np.where(self.present, self.values, len(texts)), {name: [*texts, "NULL"].__getitem__}


def _write_real(value: float) -> str:
    """Return a real number as SQL."""
    return repr(float(value)) if abs(value) < 9e307 else "NULL"


def _convert(column: pl.Series) -> pl.Series:
    """Return a column as one of the plain types; texts that are not UTF-8 are bytes."""
    kind = column.dtype
    if kind.is_temporal():
        return column.to_physical().cast(pl.Int64)
    if kind.is_integer() or kind in (pl.Boolean, pl.Null):
        return column.cast(pl.Int64, wrap_numerical=kind == pl.UInt64)
    return column.cast(pl.Float64) if kind.is_float() else column.cast(pl.String, strict=False)


def combine_columns(rows: int, read: Mapping[str, ReadColumn], wanted: Wanted) -> Columns:
    """Return the wanted columns of `rows` rows, in the wanted types."""
    numbers, words = {}, {}
    odd = np.zeros(rows, np.int64)
    for name, one in read.items():
        if name in wanted.texts:
            texts = (one.values, one.texts)
            if one.texts is None:
                listed = pl.Series(one.to_list(), dtype=pl.String, strict=False)
                texts = DistinctTexts.number(listed)
            words[name] = texts
        if name in wanted.integers:
            if one.type == INTEGER:
                numbers[name] = one.values
            else:
                odd += one.present
        if name in wanted.reals and one.type != TEXT:
            is_real = one.type == REAL
            numbers[name] = one.values if is_real else np.where(one.present, one.values, np.nan)
    columns = gather_columns(rows, numbers, words, wanted)
    columns.odd = odd if odd.any() else None
    return columns


class ParquetTable(SourceTable):
    """A table of an export in a Parquet file."""

    def __init__(self, file: Path) -> None:
        self.file, self.name = file, file.stem
        self.everything = Part(self.name, 1, MOST_ROWS)
        #: The part that polars read last, and its columns so far.
        self.kept: tuple[Part, dict[str, ReadColumn]] | None = None

    @contextmanager
    def explain_damage(self) -> Iterator[None]:
        """In a `with` block, convert errors into one Nsys2prvError that names the damaged file."""
        try:
            yield
        except DAMAGED_FILE as error:
            # polars quotes values.
            reason = re.split(r"[\[\"'`\n]", str(error), maxsplit=1)[0].strip()
            raise Nsys2prvError(
                f"{self.file}: cannot be read as a table ({reason[:160] or type(error).__name__}); {advise(self.file.parent)}"
            ) from None

    @cached_property
    def size(self) -> TableSize:
        """The number of rows and the columns of the table, as the file's footer states them."""
        with self.explain_damage():
            return measure_table(self.file, with_pages=False)

    @property
    def columns(self) -> dict[str, ColumnForm | None]:
        """The columns, with their forms."""
        return self.size.columns

    @property
    def whole(self) -> Part:
        """The part with all rows of the table."""
        return Part(self.name, 1, self.size.rows)

    def count_rows(self, part: Part) -> int:
        """Count the rows of the table in a part."""
        if isinstance(part, SomeRows):
            return len(part.rowids)
        return max(0, min(part.last, self.size.rows) - max(part.first, 1) + 1)

    def read(self, part: Part, names: Sequence[str]) -> dict[str, ReadColumn]:
        """Return columns of the rows of a part. They must exist."""
        try:
            return self._read_by_core(part, names)
        except core.StandAside:
            with hide_stderr():
                return self._read_by_polars(part, names)

    def _read_by_core(self, part: Part, names: Sequence[str]) -> dict[str, ReadColumn]:
        """Return columns of the rows of a part. Raise StandAside if polars must read them."""
        size, rows = self.size, self.count_rows(part)
        chosen = part.rowids - 1 if isinstance(part, SomeRows) else None
        found: dict[str, ReadColumn] = {}
        descriptor = os.open(self.file, os.O_RDONLY)
        try:
            for name in names:
                form = size.columns[name]
                if form is None:
                    raise core.StandAside
                values = np.empty(rows, np.float64 if form.type in REALS else np.int64)
                present = np.empty(rows, bool)
                texts = core.Texts() if form.type == BYTE_ARRAY else None
                core.decode_parquet(
                    *(descriptor, size.chunks, size.group_rows, size.width),
                    *(form.place, form.type, form.is_optional, max(part.first, 1) - 1, chosen),
                    *(values, present, texts),
                )
                distinct = None if texts is None else DistinctTexts(read=texts)
                found[name] = ReadColumn(values, present, distinct)
        finally:
            os.close(descriptor)
        return found

    def _read_by_polars(self, part: Part, names: Sequence[str]) -> dict[str, ReadColumn]:
        """Return columns of the rows of a part. Those of at most KEPT_ROWS are kept."""
        if self.kept is None or self.kept[0] != part:
            self.kept = part, {}
        kept = self.kept[1]
        if lacking := [name for name in names if name not in kept]:
            frame = self._collect(part, self._scanned.select(lacking))
            kept |= {one.name: ReadColumn.from_polars(one) for one in frame.iter_columns()}
        if self.count_rows(part) > KEPT_ROWS:
            self.kept = None
        return {name: kept[name] for name in names}

    @cached_property
    def _scanned(self) -> pl.LazyFrame:
        # polars reads a file on other threads, piece by piece; its bytes at once take less time.
        is_small = self.file.stat().st_size <= SMALL_FILE
        source = self.file.read_bytes() if is_small else self.file
        return pl.scan_parquet(source, glob=False, hive_partitioning=False)

    def _collect(self, part: Part, scanned: pl.LazyFrame) -> pl.DataFrame:
        """Return the rows of a part."""
        if not isinstance(part, SomeRows):
            return scanned.slice(max(part.first, 1) - 1, self.count_rows(part)).collect()
        rowids = part.rowids
        first, last = int(rowids[0]), int(rowids[-1])
        if last - first > TABLE_ROWS:  # far apart
            return pl.concat([scanned.slice(one - 1, 1) for one in rowids.tolist()]).collect()
        return scanned.slice(first - 1, last - first + 1).collect()[rowids - first]


def advise(folder: Path) -> str:
    """Return the advice for users whose folder cannot be read."""
    name = re.sub("_(pqt|arw)dir$", "", folder.stem)
    return f"export the report again with: nsys export --type sqlite --force-overwrite true {name}.nsys-rep"
