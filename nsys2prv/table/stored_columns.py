"""Columns of numbers in Arrow's layout, at places of a file: their values, one after the other, and
where a row may lack one a bit for each row. Any rows of them can be read.
"""

from __future__ import annotations

import errno
import os
from io import FileIO
from typing import BinaryIO

import numpy as np
from msgspec import Struct

#: Place of the bits of a column that every row has.
NO_BITS = -1


class StoredColumn(Struct, frozen=True, array_like=True):
    """Where a column is in a file."""

    #: Type of the numbers, as numpy writes it.
    dtype: str
    #: Bytes before the values.
    values: int
    #: Bytes before the bits that say which rows have a value; NO_BITS: all have one.
    valid: int = NO_BITS
    #: Of columns of several numbers a row: how many; 0 for others.
    width: int = 0


def write_column(
    file: BinaryIO, values: np.ndarray, valid: np.ndarray | None = None
) -> StoredColumn:
    """Append a column to a file. valid: mask of the rows that have a value, None for all."""
    place = file.tell()
    file.write(memoryview(values).cast("B"))
    if valid is None:
        width = values.shape[1] if values.ndim > 1 else 0
        return StoredColumn(values.dtype.str, place, width=width)
    bits = file.tell()
    file.write(memoryview(np.packbits(valid, bitorder="little")))
    return StoredColumn(values.dtype.str, place, bits)


def read_values(file: FileIO, column: StoredColumn, first: int, last: int) -> np.ndarray:
    """Return the values of rows first <= row < last; of those without one any number."""
    dtype = np.dtype(column.dtype)
    size = dtype.itemsize * max(column.width, 1)
    values = np.frombuffer(_read(file, (last - first) * size, column.values + first * size), dtype)
    return values.reshape(-1, column.width) if column.width else values


def read_valid(file: FileIO, column: StoredColumn, first: int, last: int) -> np.ndarray:
    """Return a mask of these rows: which have a value, of a column of which some lack one."""
    start = first // 8
    bits = _read(file, (last + 7) // 8 - start, column.valid + start)
    mask = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little").view(bool)
    return mask[first - 8 * start :][: last - first]


def _read(file: FileIO, size: int, place: int) -> bytes:
    """Return bytes of a file. One call reads 2 GB at most."""
    data = os.pread(file.fileno(), size, place)
    while len(data) < size:
        more = os.pread(file.fileno(), size - len(data), place + len(data))
        if not more:
            raise OSError(errno.EIO, "is cut short", str(file.name))
        data += more
    return data
