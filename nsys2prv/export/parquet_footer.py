"""Read the footers of Parquet files (:func:`measure_table`). They say where the pages of a table are
in the file. A page can only be unpacked completely, and a few KB may become any amount, so the
pages are measured before they are read.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

import numpy as np
from msgspec import Struct

from nsys2prv._util.budget import REMEMBERED_RESULTS
from nsys2prv._util.native import core, require_core

#: Bytes at the start and end of Parquet files; size of the footer's length and of these bytes.
MAGIC, TAIL = b"PAR1", 8
#: Bytes that are read at once: the footers of most files.
END_BYTES = 1 << 14
#: Parquet's numbers of the types of values that are read, as in native/parquet.c.
INTEGERS, REALS, BYTE_ARRAY = {0, 1, 2}, {4, 5}, 6
KNOWN = {*INTEGERS, *REALS, BYTE_ARRAY}
#: Numbers of converted types whose values are as they are stored: texts, and integers except those
#: of 32 bits without a sign.
AS_STORED = {0, 11, 12, *range(14, 19)}
#: Numbers of a chunk of a column: its place in the file, its bytes, and the number of its codec.
CHUNK = 3


class ColumnForm(Struct, frozen=True):
    """The form in which a Parquet file stores a column."""

    #: Its place among the columns.
    place: int
    #: Parquet's number of the type of its values.
    type: int
    #: Whether it may have nulls.
    is_optional: bool


class TableSize(Struct, frozen=True):
    """Columns of a Parquet file, its numbers of rows and values, its unpacked size (bytes), and where
    its rows are.
    """

    #: Its columns. A form is None if only polars can read the column.
    columns: dict[str, ColumnForm | None]
    #: Number of columns in the file, of which nested columns have several.
    width: int
    #: Number of rows.
    rows: int
    #: Number of values: rows of each column.
    values: int
    #: Bytes of all pages when unpacked; 0 if they are not measured.
    unpacked: int
    #: Rows of each group, and the place, size and codec of each column in it (int64).
    group_rows: np.ndarray
    chunks: np.ndarray


def measure_table(file: Path, with_pages: bool = True) -> TableSize:
    """Return the size of a table, from its footer and page headers. Raise ValueError if the file is damaged,
    OSError if it cannot be read.
    """
    require_core("reading Parquet tables")
    descriptor = os.open(file, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        end = os.pread(descriptor, END_BYTES, max(0, size - END_BYTES))
        if end[-4:] != MAGIC:
            raise ValueError("it does not end like a Parquet file")
        length = int.from_bytes(end[-TAIL:-4], "little")
        start = size - TAIL - length
        if start < 0:
            raise ValueError("its footer is damaged")
        footer = end[-TAIL - length : -TAIL]
        if len(footer) < length:
            footer = os.pread(descriptor, length, start)
        elements, rows, in_groups, in_chunks = core.read_parquet_footer(footer, start)
        columns, width = _list_columns(tuple(elements))
        group_rows = np.frombuffer(in_groups, np.int64)
        chunks = np.frombuffer(in_chunks, np.int64).reshape(-1, CHUNK)
        if len(chunks) != width * len(group_rows):
            raise ValueError("its footer is damaged")
        unpacked = core.measure_parquet_pages(descriptor, chunks) if with_pages else 0
        return TableSize(columns, width, rows, rows * width, unpacked, group_rows, chunks)
    finally:
        os.close(descriptor)


@lru_cache(4 * REMEMBERED_RESULTS)
def _list_columns(elements: tuple[tuple, ...]) -> tuple[dict[str, ColumnForm | None], int]:
    """Return the columns of a schema with their forms, and how many columns the file has. elements: all
    elements of the schema in one list, nested ones behind their parents.
    """
    columns: dict[str, ColumnForm | None] = {}
    inside = width = 0
    for name, kind, repetition, children, converted, is_logical in elements[1:]:
        if not inside:
            is_stored = converted in AS_STORED or (converted < 0 and not is_logical)
            is_known = kind in KNOWN and is_stored
            form = ColumnForm(width, kind, bool(repetition))
            decoded = name.decode("utf-8", "replace")
            columns[decoded] = form if is_known and repetition < 2 and not children else None
        inside += children - bool(inside)
        width += not children
    return columns, width
