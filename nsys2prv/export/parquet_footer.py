"""Measure Parquet files without decompressing them (:func:`measure_table`). A page can only be
decompressed completely, and a few KB may become any amount. Page headers contain the real sizes.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

#: Bytes at the start and end of Parquet files; size of the footer's length and of these bytes.
MAGIC, TAIL = b"PAR1", 8
#: Numbers of the fields in Parquet's structures: the footer, a schema element, a row group (also
#: ROWS), a column chunk, its metadata, and a page header.
SCHEMA, ROWS, GROUPS, NAME, CHILDREN, COLUMNS, DESCRIPTION = 2, 3, 4, 4, 5, 1, 3
PACKED_BYTES, DATA, DICTIONARY = 7, 9, 11
PAGE_UNPACKED, PAGE_PACKED = 2, 3
#: Structures within structures: more than Parquet has.
DEEPEST = 16
#: Types in Thrift's compact protocol other than numbers, and types of lists.
TRUE, FALSE, BYTE, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = 1, 2, 3, 7, 8, 9, 10, 11, 12


class TableSize(Struct, frozen=True):
    """Columns of a Parquet file, its numbers of rows and values, and its unpacked size (bytes)."""

    #: Its columns.
    columns: dict[str, None]
    #: Number of rows.
    rows: int
    #: Number of values: rows of each column.
    values: int
    #: Bytes of all pages when unpacked; 0 if they are not measured.
    unpacked: int


def measure_table(file: Path, with_pages: bool = True) -> TableSize:
    """Return the size of a table, from its footer and page headers. Raise ValueError if the file is damaged,
    OSError if it cannot be read.
    """
    with file.open("rb") as opened:
        try:
            with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _measure(data, with_pages)
        except (IndexError, KeyError, TypeError, AttributeError):
            raise ValueError("its footer is damaged") from None


def _measure(data: mmap.mmap, with_pages: bool) -> TableSize:
    if data[-4:] != MAGIC:
        raise ValueError("it does not end like a Parquet file")
    length = int.from_bytes(data[-TAIL:-4], "little")
    start = len(data) - TAIL - length
    if start < 0:
        raise ValueError("its footer is damaged")
    # Bytes of their own are read in a fraction of the time.
    footer, _ = _read_struct(data[start:-TAIL], 0)
    described = [column[DESCRIPTION] for group in footer[GROUPS] for column in group[COLUMNS]]
    unpacked = sum(_measure_pages(data, one) for one in described) if with_pages else 0
    if sum(group[ROWS] for group in footer[GROUPS]) != footer[ROWS]:
        raise ValueError("its footer is damaged")
    most = max((len(group[COLUMNS]) for group in footer[GROUPS]), default=0)
    names = dict.fromkeys(_list_names(footer[SCHEMA]))
    return TableSize(names, footer[ROWS], footer[ROWS] * most, unpacked)


def _list_names(schema: Sequence[dict[int, Any]]) -> Iterator[str]:
    """Yield the names of the columns from the flat list of schema elements."""
    inside = 0
    for element in schema[1:]:
        if not inside:
            yield element[NAME].decode("utf-8", "replace")
        inside += element.get(CHILDREN, 0) - bool(inside)


def _measure_pages(data: mmap.mmap, column: dict[int, Any]) -> int:
    """Return the decompressed size of all pages of a column in a row group (bytes)."""
    place = min(column[DATA], column.get(DICTIONARY) or column[DATA])
    end = place + column[PACKED_BYTES]
    unpacked = 0
    while place < end:
        if place < 0:
            raise ValueError("its footer is damaged")
        header, place = _read_struct(data, place)
        if header[PAGE_PACKED] < 0 or header[PAGE_UNPACKED] < 0:
            raise ValueError("a page has no size")
        place += header[PAGE_PACKED]
        unpacked += header[PAGE_UNPACKED]
    return unpacked


# ---- Thrift's compact protocol: functions return the value, and the position after it ----

#: Bytes of a buffer.
Buffer = mmap.mmap | bytes


def _read_number(data: Buffer, place: int) -> tuple[int, int]:
    """Return an unsigned number, and the position after it."""
    byte = data[place]
    place += 1
    number, shift = byte & 0x7F, 7
    while byte >= 0x80:
        byte = data[place]
        place += 1
        number |= (byte & 0x7F) << shift
        shift += 7
    return number, place


def _read_struct(data: Buffer, place: int, depth: int = 0) -> tuple[dict[int, Any], int]:
    """Return the fields of a structure by their numbers, and the position after it."""
    fields: dict[int, Any] = {}
    number = 0
    while head := data[place]:
        place += 1
        if head >> 4:
            number += head >> 4
        else:
            zigzag, place = _read_number(data, place)
            number = zigzag >> 1 ^ -(zigzag & 1)
        kind = head & 0x0F
        if kind in (TRUE, FALSE):
            fields[number] = kind == TRUE
        else:
            fields[number], place = _read_value(data, place, kind, depth + 1)
    return fields, place + 1


def _read_value(data: Buffer, place: int, kind: int, depth: int) -> tuple[Any, int]:
    if BYTE < kind < DOUBLE:
        byte = data[place]
        if byte < 0x80:
            return byte >> 1 ^ -(byte & 1), place + 1
        number, place = _read_number(data, place)
        return number >> 1 ^ -(number & 1), place
    if depth > DEEPEST:
        raise ValueError("its footer is damaged")
    if kind == STRUCT:
        return _read_struct(data, place, depth)
    if kind == BINARY:
        length, place = _read_number(data, place)
        return data[place : place + length], place + length
    if kind in (LIST, SET):
        head, place = data[place], place + 1
        count = head >> 4
        if count == 15:
            count, place = _read_number(data, place)
        kinds = [head & 0x0F] * min(count, len(data))
    elif kind == MAP:
        count, place = _read_number(data, place)
        head = data[place] if count else 0
        place += bool(count)
        kinds = [head >> 4, head & 0x0F] * min(count, len(data))
    else:
        return (None, place + 8) if kind == DOUBLE else (data[place], place + 1)
    values = []
    for one in kinds:
        value, place = _read_value(data, place, one, depth + 1)
        values.append(value)
    return values, place
