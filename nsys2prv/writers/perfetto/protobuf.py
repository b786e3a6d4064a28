"""Encode protobuf messages: single ones as bytes, and many of one form from columns of numbers.

Numbers in columns are written with as many bytes for each row as the greatest needs: a varint may
end in groups of zeros. So all messages of one form are equally long, and are put together without
looking at any of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

#: Wire types.
VARINT, FIXED64, BYTES = 0, 1, 2
#: Bytes of a varint in a column, the greatest that are stored at once, and how many take any number.
WIDTHS, WIDEST = (1, 2, 4, 8), 10


def encode_varint(number: int) -> bytes:
    """Return a number from 0 up."""
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)


def make_number(field: int, number: int) -> bytes:
    """Return a field with a number from 0 up."""
    return encode_varint(field << 3 | VARINT) + encode_varint(number)


def make_bytes(field: int, *parts: bytes) -> bytes:
    """Return a field with bytes, or a message of these fields."""
    content = b"".join(parts)
    return encode_varint(field << 3 | BYTES) + encode_varint(len(content)) + content


def make_text(field: int, text: str) -> bytes:
    """Return a field with a text."""
    return make_bytes(field, text.encode("utf-8", "replace"))


class Numbers(NamedTuple):
    """A field with a number from 0 up for each row."""

    field: int
    values: np.ndarray


class Fixed(NamedTuple):
    """A field with 8 bytes for each row."""

    field: int
    values: np.ndarray


class Message(NamedTuple):
    """A field with a message."""

    field: int
    parts: Sequence[Part]


#: A field of messages: bytes that are the same in all, a column, or a message again.
Part = bytes | Numbers | Fixed | Message


class _Column(NamedTuple):
    """Place of a column's bytes in a message, and their values."""

    offset: int
    width: int
    values: np.ndarray


def encode_rows(rows: int, parts: Iterable[Part]) -> np.ndarray:
    """Return a message of these fields for each row, of shape (rows, bytes)."""
    template, columns = _lay_out(parts)
    encoded = np.empty((rows, len(template)), np.uint8)
    encoded[:] = np.frombuffer(template, np.uint8)
    for offset, width, values in columns:
        if width == WIDEST:
            numbers = values.astype(np.uint64)
            for byte in range(WIDEST):
                more = np.uint64(0x80 if byte < WIDEST - 1 else 0)
                encoded[:, offset + byte] = numbers >> np.uint64(7 * byte) & np.uint64(0x7F) | more
        else:
            place = np.ndarray(rows, f"<u{width}", encoded, offset, (len(template),))
            place[:] = values
    return encoded


def _lay_out(parts: Iterable[Part]) -> tuple[bytes, list[_Column]]:
    """Return the bytes of a message, with room for its columns."""
    template = bytearray()
    columns: list[_Column] = []
    for part in parts:
        if isinstance(part, bytes):
            template += part
        elif isinstance(part, Message):
            inner, inner_columns = _lay_out(part.parts)
            template += make_bytes(part.field, inner)
            start = len(template) - len(inner)
            columns += (one._replace(offset=start + one.offset) for one in inner_columns)
        else:
            fixed = isinstance(part, Fixed)
            template += encode_varint(part.field << 3 | (FIXED64 if fixed else VARINT))
            width = 8 if fixed else _find_width(part.values)
            values = part.values
            if not fixed and width < WIDEST:
                values = _spread_groups(values, width)
            columns.append(_Column(len(template), width, values))
            template += bytes(width)
    return bytes(template), columns


def _find_width(values: np.ndarray) -> int:
    greatest = int(values.max(initial=0))
    return next((width for width in WIDTHS if greatest < 1 << 7 * width), WIDEST)


def _spread_groups(values: np.ndarray, width: int) -> np.ndarray:
    """Return numbers whose bytes are varints of so many bytes: groups of 7 bits, each but the last
    with the bit that says that more follow.
    """
    kind = np.dtype(f"u{width}").type
    numbers = values.astype(kind)
    spread = numbers & kind(0x7F)
    for group in range(1, width):
        spread |= (numbers & kind(0x7F << 7 * group)) << kind(group)
    return spread | kind(int.from_bytes(b"\x80" * (width - 1), "little"))
