"""Store columns in files.

Numbers are in Arrow's layout at file offsets, so that any rows can be read. Frames are read as a
whole.
"""

from __future__ import annotations

import errno
import os
import pickle
from collections.abc import Mapping, Sequence
from functools import cached_property
from io import FileIO
from pathlib import Path
from sys import intern
from typing import Any, BinaryIO

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import astuple

from nsys2prv._util.budget import SMALL_FRAME_BYTES, SMALL_FRAME_ROWS
from nsys2prv._util.files import Closable

#: Place of small frames, and type of columns of texts in them.
IN_MEMORY, NO_TYPE = -1, ""
#: Place of the bits of a column that every row has.
NO_BITS = -1


class Packed(Struct, frozen=True):
    """Base class for structures that are pickled with their arrays as bytes, several times as fast
    as arrays. They may not contain tuples.
    """

    def __reduce__(self) -> tuple:
        return _unpack, (type(self), *map(_pack, astuple(self)))


def _pack(value: object) -> object:
    if not isinstance(value, np.ndarray):
        return value
    return value.tobytes(), value.dtype.str, value.shape


def _unpack(kind: type[Packed], *values: Any) -> Packed:
    return kind(
        *(
            np.frombuffer(one[0], one[1]).reshape(one[2]) if isinstance(one, tuple) else one
            for one in values
        )
    )


def save_object(thing: object, path: Path) -> None:
    """Write an object to a file, for :func:`load_object` in other workers of this run."""
    with path.open("wb") as file:
        pickle.dump(thing, file, protocol=pickle.HIGHEST_PROTOCOL)


def load_object(path: Path) -> Any:
    """Return the object that :func:`save_object` wrote."""
    with path.open("rb") as file:
        return pickle.load(file)


class StoredColumn(Struct, frozen=True, array_like=True):
    """Says where a column is in a file, and its type."""

    #: Type of the numbers, as numpy writes it.
    dtype: str
    #: Bytes before the values.
    values: int
    #: Bytes before the bits that say which rows have a value; NO_BITS: all have one.
    valid: int = NO_BITS


def read_values(file: FileIO, column: StoredColumn, first: int, last: int) -> np.ndarray:
    """Read the values of a stored column in the rows first <= row < last. Rows without a value
    contain an arbitrary number.
    """
    size = np.dtype(column.dtype).itemsize
    values = read_bytes(file, column.values + first * size, (last - first) * size)
    return np.frombuffer(values, column.dtype)


def read_valid(file: FileIO, column: StoredColumn, first: int, last: int) -> np.ndarray:
    """Read which rows, first <= row < last, have a value in a stored column. Return a mask."""
    start = first // 8
    bits = read_bytes(file, column.valid + start, (last + 7) // 8 - start)
    mask = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little").view(bool)
    return mask[first - 8 * start :][: last - first]


def read_bytes(file: FileIO, place: int, size: int) -> bytes:
    """Return bytes at a place in a file. A single system call reads at most 2 GB."""
    data = os.pread(file.fileno(), size, place)
    while len(data) < size:
        more = os.pread(file.fileno(), size - len(data), place + len(data))
        if not more:
            raise OSError(errno.EIO, "is cut short", str(file.name))
        data += more
    return data


class StoredFrame(Struct, frozen=True):
    """Columns of equal length, pickled in a file or, if small, in memory."""

    #: File that holds the columns.
    path: Path
    #: Where they begin, in bytes; IN_MEMORY if they are in none.
    offset: int
    #: Their length, in bytes.
    size: int
    #: A small frame itself: its length, the name and type of each column (NO_TYPE of texts), the
    #: bytes of all arrays, and all texts.
    rows: int = 0
    columns: tuple[tuple[str, str], ...] = ()
    data: bytes = b""
    texts: tuple[str, ...] = ()


class FrameWriter(Closable):
    """Appends frames to a file, which is created with the first frame."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def file(self) -> BinaryIO:
        """The file, positioned at its end."""
        file = self.path.open("ab")
        self._end = file.tell()
        return file

    def write_column(self, values: np.ndarray, valid: np.ndarray | None = None) -> StoredColumn:
        """Append a column and return its location. valid: mask of the rows with a value, None for
        all.
        """
        self.file.write(values)
        # The file would tell its end by a system call.
        place, self._end = self._end, self._end + values.nbytes
        if valid is None:
            return StoredColumn(values.dtype.str, place)
        self._end += self.file.write(np.packbits(valid, bitorder="little"))
        return StoredColumn(values.dtype.str, place, place + values.nbytes)

    def append_frame(self, columns: Mapping[str, Sequence | pl.Series | np.ndarray]) -> StoredFrame:
        """Store columns, given by name, and return where they are."""
        columns = {name: _to_array(column) for name, column in columns.items()}
        rows = len(next(iter(columns.values()), ()))
        if rows <= SMALL_FRAME_ROWS and (frame := self._pack_frame(columns, rows)):
            return frame
        pickle.dump(columns, self.file, pickle.HIGHEST_PROTOCOL)
        offset, self._end = self._end, self.file.tell()
        return StoredFrame(self.path, offset, self._end - offset)

    def _pack_frame(
        self, columns: Mapping[str, Sequence | pl.Series | np.ndarray], rows: int
    ) -> StoredFrame | None:
        """Return columns as a small frame; None if they are too long, or neither arrays nor lists
        of texts. rows: their length. This takes half of the time of pickling.
        """
        arrays, texts, types = [], [], []
        for name, column in columns.items():
            is_array = isinstance(column, np.ndarray)
            if is_array and not column.dtype.hasobject:
                arrays.append(np.ascontiguousarray(column))
            elif isinstance(column, list):
                texts += column
            else:
                return None
            types.append((name, column.dtype.str if is_array else NO_TYPE))
        try:
            # Most reports of a job have the same names.
            shared = tuple(map(intern, texts))
        except TypeError:
            return None
        data = b"".join(arrays)
        size = len(data) + sum(map(len, shared))
        if size > SMALL_FRAME_BYTES:
            return None
        return StoredFrame(self.path, IN_MEMORY, size, rows, tuple(types), data, shared)

    def flush(self) -> None:
        """Write buffered data, so that others can read it."""
        if "file" in vars(self):
            self.file.flush()

    def close(self) -> None:
        """Close the file."""
        if "file" in vars(self):
            self.file.close()


def _to_array(column: Sequence | pl.Series | np.ndarray) -> Sequence | pl.Series | np.ndarray:
    """Return a column as an array if every row has a number. Arrays are pickled in a tenth of the
    time.
    """
    is_series = isinstance(column, pl.Series)
    is_whole = is_series and column.dtype.is_numeric() and not column.null_count()
    return column.to_numpy() if is_whole else column


def read_columns(stored: StoredFrame, names: Sequence[str] | None = None) -> dict[str, Any]:
    """Return name -> column as stored, for some names or all."""
    if stored.offset == IN_MEMORY:
        columns = _unpack_frame(stored)
    else:
        with stored.path.open("rb") as file:
            file.seek(stored.offset)
            columns = pickle.load(file)
    return columns if names is None else {name: columns[name] for name in names}


def _unpack_frame(stored: StoredFrame) -> dict[str, Any]:
    """Return the columns of a small frame."""
    columns: dict[str, Any] = {}
    place = first = 0
    for name, dtype in stored.columns:
        if dtype == NO_TYPE:
            columns[name], first = (
                list(stored.texts[first : first + stored.rows]),
                first + stored.rows,
            )
            continue
        found = np.frombuffer(stored.data, dtype, stored.rows, place)
        # The compiled core takes aligned numbers only.
        columns[name] = found.copy() if place % found.itemsize else found
        place += found.nbytes
    return columns


def read_frame(stored: StoredFrame) -> pl.DataFrame:
    """Return the stored columns as a frame."""
    return pl.DataFrame(read_columns(stored))
