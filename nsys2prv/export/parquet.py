"""Measure Parquet files before they are unpacked: rows, and bytes of their pages, as the headers of the
pages have them. A page is unpacked as a whole, and a few KB may stand for any amount.

In: the path of a table. Out: :class:`TableSize`.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

#: What Parquet files begin and end with; bytes of the length of the footer and of this.
MAGIC, TAIL = b"PAR1", 8
#: Numbers of the fields in Parquet's structures: of the footer, of a group of rows, of a column of it, of
#: what describes the column, and of the header of a page.
ROWS, GROUPS, COLUMNS, DESCRIPTION = 3, 4, 1, 3
PACKED_BYTES, DATA, DICTIONARY = 7, 9, 11
PAGE_UNPACKED, PAGE_PACKED = 2, 3
#: Structures within structures: more than Parquet has.
DEEPEST = 16
#: Types of Thrift's compact protocol that are no numbers, and those of lists.
TRUE, FALSE, BYTE, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = 1, 2, 3, 7, 8, 9, 10, 11, 12


class TableSize(Struct, frozen=True):
    """Size of a table."""

    #: Number of rows.
    rows: int
    #: Number of values: rows of each column.
    values: int
    #: Bytes of all pages when unpacked.
    unpacked: int


def measure_table(file: Path) -> TableSize:
    """Return the size of a table. Raises ValueError where the file is damaged, OSError where it cannot
    be read.
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
    footer = _Reader(data, len(data) - TAIL - length).read_struct()
    pages = (
        header[PAGE_UNPACKED]
        for group in footer[GROUPS]
        for column in group[COLUMNS]
        for header in _read_page_headers(data, column[DESCRIPTION])
    )
    columns = max((len(group[COLUMNS]) for group in footer[GROUPS]), default=0)
    return TableSize(footer[ROWS], footer[ROWS] * columns, sum(pages))


def _read_page_headers(data: mmap.mmap, column: dict[int, Any]) -> Iterator[dict[int, Any]]:
    """Yield the headers of the pages of a column of a group of rows."""
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
    """Reads Thrift's compact protocol."""

    def __init__(self, data: mmap.mmap, place: int) -> None:
        if place < 0:
            raise ValueError("its footer is damaged")
        self.data, self.place = data, place

    def _read_byte(self) -> int:
        byte = self.data[self.place]
        self.place += 1
        return byte

    def _read_number(self) -> int:
        """Return a number without a sign."""
        number = shift = 0
        while True:
            byte = self._read_byte()
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    def _read_integer(self) -> int:
        number = self._read_number()
        return number >> 1 ^ -(number & 1)

    def read_struct(self, depth: int = 0) -> dict[int, Any]:
        """Return the fields of a structure by their numbers."""
        fields: dict[int, Any] = {}
        number = 0
        while head := self._read_byte():
            number = number + (head >> 4) if head >> 4 else self._read_integer()
            kind = head & 0x0F
            fields[number] = kind == TRUE if kind in (TRUE, FALSE) else self._read(kind, depth + 1)
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
