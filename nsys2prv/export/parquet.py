"""Read a folder of Parquet files, one per table, written by `nsys export --type parquetdir`
(:class:`ParquetFolder`).

Only the requested columns are unpacked, and only for the rows of a part. File sizes are checked
first (:func:`measure_table`), because a few KB may unpack to any amount of data. Page headers
contain the unpacked sizes.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from msgspec import Struct

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

#: What reading a damaged file raises.
DAMAGED_FILE = pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError
#: No table that polars reads has more rows.
MOST_ROWS = (1 << 32) - 2
#: How many times larger an SQLite file of the same tables is.
PACKED = 8
#: Bytes of a file of registered strings all of which are read at once.
FEW_STRINGS = 1 << 17
#: Number of the type of the values of a column, as in native/records.h; NULL is 0.
TYPES = {pl.Int64: 1, pl.Float64: 2, pl.String: 3, pl.Binary: 3}
#: What Parquet files begin and end with; bytes of the length of the footer and of this.
MAGIC, TAIL = b"PAR1", 8
#: Numbers of the fields in Parquet's structures: of the footer, of a group of rows (ROWS, too), of a column
#: of it, of what describes the column, and of the header of a page.
ROWS, GROUPS, COLUMNS, DESCRIPTION = 3, 4, 1, 3
PACKED_BYTES, DATA, DICTIONARY = 7, 9, 11
PAGE_UNPACKED, PAGE_PACKED = 2, 3
#: Structures within structures: more than Parquet has.
DEEPEST = 16
#: Types of Thrift's compact protocol that are no numbers, and those of lists.
TRUE, FALSE, BYTE, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = 1, 2, 3, 7, 8, 9, 10, 11, 12


class ParquetTable(SourceTable):
    """A table in a Parquet file."""

    def __init__(self, file: Path) -> None:
        self.file, self.name = file, file.stem
        self.everything = Part(self.name, 1, MOST_ROWS)

    @cached_property
    def _scanned(self) -> pl.LazyFrame:
        return pl.scan_parquet(self.file, glob=False, hive_partitioning=False)

    @contextmanager
    def explain_damage(self) -> Iterator[None]:
        """Convert errors inside a `with` block into one Nsys2prvError that names the damaged file."""
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
    def columns(self) -> dict[str, pl.DataType]:
        """Column name -> type of its values."""
        with self.explain_damage():
            return dict(self._scanned.collect_schema())

    @cached_property
    def whole(self) -> Part:
        """All rows of the table."""
        with self.explain_damage():
            return Part(self.name, 1, self._scanned.select(pl.len()).collect().item())

    def scan(self, columns: Sequence[str]) -> pl.LazyFrame:
        """Return a lazy frame of these columns, which must exist, in SQLite's types."""
        return self._scanned.select(_to_plain(name, self.columns[name]) for name in columns)

    def read(self, part: Part, columns: Sequence[str]) -> pl.DataFrame:
        """Return these columns of the rows of a part."""
        scanned = self.scan(columns)
        if not isinstance(part, SomeRows):
            return scanned.slice(max(part.first, 1) - 1, part.rows).collect()
        places, first = part.rowids, part.rowids[0]
        if places[-1] - first > TABLE_ROWS:  # far apart
            return pl.concat([scanned.slice(place - 1, 1) for place in places]).collect()
        near = scanned.slice(first - 1, places[-1] - first + 1).collect()
        return near[np.array(places) - first]


def _to_plain(name: str, kind: pl.DataType) -> pl.Expr:
    """Return a column converted to Int64, Float64, String or Binary. Texts that are not UTF-8
    become bytes.
    """
    column = pl.col(name)
    if kind in (pl.Int64, pl.Float64, pl.String, pl.Binary):
        return column
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
                f"{path}: holds Arrow tables, which nsys2prv does not support; {_advise(path)}"
            )
        self.packed = sum(file.stat().st_size for file in files)
        self.size = PACKED * self.packed
        self.tables: dict[str, ParquetTable] = {file.stem: ParquetTable(file) for file in files}
        strings = self.tables.get(STRINGS)
        self.has_few_strings = strings is None or strings.file.stat().st_size <= FEW_STRINGS

    def check(self) -> None:
        """Measure all tables. Raise Nsys2prvError if a file has no valid footer, or if all tables
        unpack to more than files of their size may contain. Damaged pages are found when they are
        read.
        """
        budget = FolderBudget(self.packed)
        for table in self.tables.values():
            with table.explain_damage():
                size = measure_table(table.file)
                budget.take("rows", size.rows)
                budget.take("values", size.values)
                budget.take("bytes when unpacked", size.unpacked)
                table.whole = Part(table.name, 1, size.rows)

    def _read_part(self, part: Part, wanted: Wanted) -> tuple[Columns, np.ndarray]:
        table = self.tables[part.table]
        with table.explain_damage():
            looked_at = find_condition_columns(tuple(wanted.conditions))
            names = (*wanted.integers, *wanted.texts, *wanted.reals)
            names = dict.fromkeys((*names, *looked_at.values, *looked_at.types))
            present = [name for name in names if name in table.columns]
            frame = table.read(part, present) if present else pl.DataFrame()
            rows = frame.height if present else _count_rows(part, table.whole)
            read = frame.to_dict()
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

    def _read_rows(self, table: str, columns: Sequence[str], where: str) -> list[tuple]:
        found: list[tuple] = []
        source, budget = self.tables[table], FolderBudget(self.packed)
        present = [name for name in columns if name in source]
        for piece in source.whole.split(TABLE_ROWS):
            met = self._read_part(piece, Wanted(conditions=[where]))[1] if where else None
            if met is not None and not met.any():
                continue
            with source.explain_damage():
                frame = source.read(piece, present) if present else pl.DataFrame()
                frame = frame if met is None else frame.filter(met != 0)
                for column in frame.iter_columns():
                    if column.dtype in (pl.String, pl.Binary):
                        budget.take("bytes of texts", column.cast(pl.Binary).bin.size().sum())
            read = {
                name: decode_texts(column) if column.dtype == pl.Binary else column
                for name, column in frame.to_dict().items()
            }
            nothing = [None] * frame.height
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
            if not table.columns["id"].is_integer():
                return {}
            frame = table.scan(("id", "value")).filter(chosen).collect()
            return dict(zip(frame["id"], decode_texts(to_bytes(frame["value"])), strict=True))

    def read_stacks(self, table: str, low: int, high: int, of_all: bool = False) -> StackRows:
        """Return call stacks as :meth:`Database.read_stacks` does."""
        source = self.tables[table]
        with source.explain_damage():
            frame = source.scan(FRAME_COLUMNS).filter(pl.col("id").is_between(low, high)).collect()
        rows = make_columns(frame.height, frame.to_dict(), Wanted(FRAME_COLUMNS))
        return StackRows.from_frames(rows)


def _count_rows(part: Part, whole: Part) -> int:
    """Count the rows of a table in a part."""
    if isinstance(part, SomeRows):
        return len(part.rowids)
    return max(0, min(part.last, whole.last) - max(part.first, 1) + 1)


def _advise(folder: Path) -> str:
    name = re.sub("_(pqt|arw)dir$", "", folder.stem)
    return f"export the report again with: nsys export --type sqlite --force-overwrite true {name}.nsys-rep"


class TableSize(Struct, frozen=True):
    """Unpacked size of a table."""

    #: Number of rows.
    rows: int
    #: Number of values: rows of each column.
    values: int
    #: Bytes of all pages when unpacked.
    unpacked: int


def measure_table(file: Path) -> TableSize:
    """Return the unpacked size of a table from its page headers. Raise ValueError if the file is
    damaged, OSError if it cannot be read.
    """
    with file.open("rb") as opened:
        try:
            with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _measure(data)
        except (IndexError, KeyError, TypeError, AttributeError):
            raise ValueError("its footer is damaged") from None


def _measure(data: mmap.mmap) -> TableSize:
    if data[-4:] != MAGIC:
        raise ValueError("it does not end like a Parquet file")
    length = int.from_bytes(data[-TAIL:-4], "little")
    start = len(data) - TAIL - length
    # Bytes of their own are read in a fraction of the time.
    footer = _Reader(data[max(start, 0) : -TAIL], min(start, 0)).read_struct()
    pages = (
        header[PAGE_UNPACKED]
        for group in footer[GROUPS]
        for column in group[COLUMNS]
        for header in _read_page_headers(data, column[DESCRIPTION])
    )
    if sum(group[ROWS] for group in footer[GROUPS]) != footer[ROWS]:
        raise ValueError("its footer is damaged")
    columns = max((len(group[COLUMNS]) for group in footer[GROUPS]), default=0)
    return TableSize(footer[ROWS], footer[ROWS] * columns, sum(pages))


def _read_page_headers(data: mmap.mmap, column: dict[int, Any]) -> Iterator[dict[int, Any]]:
    """Yield the page headers of a column chunk, as field number -> value."""
    place = min(column[DATA], column.get(DICTIONARY) or column[DATA])
    end = place + column[PACKED_BYTES]
    while place < end:
        reader = _Reader(data, place)
        header = reader.read_struct()
        yield header
        if header[PAGE_PACKED] < 0 or header[PAGE_UNPACKED] < 0:
            raise ValueError("a page has no size")
        place = reader.place + header[PAGE_PACKED]


class _Reader:
    """Reader of Thrift's compact protocol."""

    def __init__(self, data: mmap.mmap | bytes, place: int) -> None:
        if place < 0:
            raise ValueError("its footer is damaged")
        self.data, self.place = data, place

    def _read_byte(self) -> int:
        byte = self.data[self.place]
        self.place += 1
        return byte

    def _read_number(self) -> int:
        """Return an unsigned number."""
        data, place = self.data, self.place
        byte = data[place]
        number, shift = byte & 0x7F, 7
        while byte >= 0x80:
            place += 1
            byte = data[place]
            number |= (byte & 0x7F) << shift
            shift += 7
        self.place = place + 1
        return number

    def _read_integer(self) -> int:
        number = self._read_number()
        return number >> 1 ^ -(number & 1)

    def read_struct(self, depth: int = 0) -> dict[int, Any]:
        """Return a structure as field number -> value."""
        fields: dict[int, Any] = {}
        number = 0
        while head := self._read_byte():
            number = number + (head >> 4) if head >> 4 else self._read_integer()
            kind = head & 0x0F
            if BYTE < kind < DOUBLE:
                fields[number] = self._read_integer()
            else:
                fields[number] = (
                    kind == TRUE if kind in (TRUE, FALSE) else self._read(kind, depth + 1)
                )
        return fields

    def _read(self, kind: int, depth: int) -> Any:
        if depth > DEEPEST:
            raise ValueError("its footer is damaged")
        if kind == STRUCT:
            return self.read_struct(depth)
        if kind in (LIST, SET):
            head = self._read_byte()
            count = head >> 4 if head >> 4 < 15 else self._read_number()
            return [self._read(head & 0x0F, depth + 1) for _ in range(count)]
        if kind == MAP:
            count = self._read_number()
            kinds = self._read_byte() if count else 0
            read = range(2 * count)
            return [self._read(kinds & 0x0F if one % 2 else kinds >> 4, depth + 1) for one in read]
        if kind == BINARY:
            length = self._read_number()
            self.place += length
            return None
        if kind == DOUBLE:
            self.place += 8
            return None
        return self._read_byte() if kind in (TRUE, FALSE, BYTE) else self._read_integer()
