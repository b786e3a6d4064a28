"""Encode protobuf messages, single ones as bytes and many of one form from columns of numbers; and
number and write the names of events, arguments and categories, to which events refer.

Numbers in columns are written with as many bytes for each row as the greatest needs: a varint may
end in groups of zeros. So all messages of one form are equally long, and are put together without
looking at any of them. Names are written once, at the begin of the file; values that the catalogue
does not list are named in the window that has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import islice
from typing import NamedTuple

import numpy as np

from nsys2prv.events import all_kinds
from nsys2prv.events.catalogue import ValueSet, load_catalogue
from nsys2prv.store.overlaps import list_overlap_groups
from nsys2prv.writers import TraceContent

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


class Packet:
    """Fields of `Trace`, `TracePacket` and `InternedData`."""

    PACKET = 1
    CLOCK_SNAPSHOT, TIMESTAMP, SEQUENCE, TRACK_EVENT = 6, 8, 10, 11
    INTERNED_DATA, SEQUENCE_FLAGS, TRACK_DESCRIPTOR = 12, 13, 60
    CATEGORIES, EVENT_NAMES, ARGUMENT_NAMES, ARGUMENT_TEXTS = 1, 2, 3, 29


#: The one sequence of packets, and what they need: the names at its begin (which clear all before).
ON_SEQUENCE = make_number(Packet.SEQUENCE, 1)
WITH_NAMES = ON_SEQUENCE + make_number(Packet.SEQUENCE_FLAGS, 2)
BEGIN_NAMES = ON_SEQUENCE + make_number(Packet.SEQUENCE_FLAGS, 3)
#: Fields that say again what another one does, for views of Paraver.
REPEATED_FIELDS = frozenset({"any_domain", "own", "own_number"})
#: Names in one packet.
NAMES_AT_ONCE = 10_000


class Packets(NamedTuple):
    """Packets of events, each a row of bytes, and the tracks of these events."""

    tracks: np.ndarray
    encoded: np.ndarray


class CatalogueNumbers(NamedTuple):
    """Numbers of what the catalogue declares, the same in every trace."""

    #: Layout or kind of lines -> number of its tracks; a group of layouts shares them.
    bands: dict[str, int]
    #: Title of each of these.
    titles: list[str]
    #: Those of groups: on rows that are no threads they have the row's own track.
    grouped: frozenset[int]
    #: Category of each layout and kind of lines.
    categories: dict[str, int]
    #: Number of each field's name.
    arguments: dict[str, int]
    #: Number of each set of names or values, and of the kinds of lines ("").
    sets: dict[str, int]
    #: Layouts of points in time.
    points: frozenset[str]

    def number_names(self, name_set: str, values: np.ndarray) -> np.ndarray:
        """Return the ids of the names of these values."""
        return values.astype(np.int64) * len(self.sets) + self.sets[name_set] + 1


@cache
def load_numbers() -> CatalogueNumbers:
    """Return the numbers of what the catalogue declares."""
    catalogue = load_catalogue()
    groups = list_overlap_groups()
    titles = {name: layout.title for name, layout in catalogue.layouts.items()}
    titles |= {name: f"{_name_lines(name)}s" for name in catalogue.lines}
    by_band = {groups.get(name, name): title for name, title in titles.items()}
    numbers = {band: number for number, band in enumerate(by_band)}
    fields = {one.name for layout in catalogue.layouts.values() for one in layout.fields}
    points = (
        layout
        for kind in all_kinds()
        if kind.tables and not kind.has_duration
        for layout in kind.layouts
        if not catalogue.layouts[layout].is_state
    )
    return CatalogueNumbers(
        {name: numbers[groups.get(name, name)] for name in titles},
        list(by_band.values()),
        frozenset(numbers[group] for group in groups.values()),
        {name: number for number, name in enumerate(titles, 1)},
        {name: number for number, name in enumerate(sorted({*fields, "process"}), 1)},
        {name: n for n, name in enumerate(("", *catalogue.name_sets, *catalogue.value_sets))},
        frozenset(points),
    )


def _name_lines(kind: str) -> str:
    """Return the name of an end of such a line."""
    word, _, rest = kind.partition("_")
    return f"{word.upper()} {rest}".strip().replace("_", " ")


def write_names(content: TraceContent) -> Iterator[bytes]:
    """Yield packets with all names that events refer to."""
    entries = (
        make_bytes(table, make_number(1, number), make_text(2, text))
        for table, number, text in _list_names(content)
    )
    flags = BEGIN_NAMES
    while part := list(islice(entries, NAMES_AT_ONCE)):
        yield make_bytes(Packet.PACKET, flags, make_bytes(Packet.INTERNED_DATA, *part))
        flags = WITH_NAMES


def _list_names(content: TraceContent) -> Iterator[tuple[int, int, str]]:
    """Yield table, number and text of each name."""
    numbers, catalogue = load_numbers(), load_catalogue()
    for name, number in numbers.categories.items():
        if name in content.lines or name in content.layouts:
            yield Packet.CATEGORIES, number, name
    for number, (name, _) in enumerate(content.domain_codes, len(numbers.categories) + 1):
        yield Packet.CATEGORIES, number, name or "default domain"
    for name, number in numbers.arguments.items():
        yield Packet.ARGUMENT_NAMES, number, name
    named: dict[tuple[int, str], Iterable[tuple[int, str]]] = {
        (Packet.EVENT_NAMES, ""): enumerate(map(_name_lines, catalogue.lines))
    }
    for layout in content.layouts:
        for place, one in enumerate(catalogue.layouts[layout].fields):
            if one.values is None or one.name in REPEATED_FIELDS:
                continue
            table = Packet.ARGUMENT_TEXTS if place else Packet.EVENT_NAMES
            if isinstance(one.values, ValueSet):
                named[table, one.values.name] = one.values.labels
            else:
                labels = content.values[one.values.name].labels
                named[table, one.values.name] = labels.select("value", "label").iter_rows()
    for (table, name), pairs in named.items():
        for value, label in pairs:
            yield table, int(numbers.number_names(name, np.int64(value))), label


def name_unknown(values: ValueSet, column: np.ndarray, are_names: bool) -> list[Packets]:
    """Return a packet that names the values of a column by their numbers that the set does not list."""
    known = [value for value, _ in values.labels]
    unknown = np.unique(column[~np.isin(column, known)])
    if not len(unknown):
        return []
    table = Packet.EVENT_NAMES if are_names else Packet.ARGUMENT_TEXTS
    ids = load_numbers().number_names(values.name, unknown).tolist()
    entries = (
        make_bytes(table, make_number(1, number), make_text(2, str(value)))
        for number, value in zip(ids, unknown.tolist(), strict=True)
    )
    packet = make_bytes(Packet.PACKET, WITH_NAMES, make_bytes(Packet.INTERNED_DATA, *entries))
    return [Packets(np.zeros(0, np.int64), np.frombuffer(packet, np.uint8)[None])]
