"""Encode protobuf messages: single messages as bytes, and many messages of the same form from
columns of numbers. Also number and write the names of events, arguments and categories, to which
events refer.

A number in a column takes as many bytes in each row as the largest number needs, because a varint
may end in groups of zeros. All messages of one form are therefore equally long, and are assembled
without a loop over messages. Names are written once, at the start of the file. Values missing from
the catalogue are named in the window that contains them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import islice
from typing import NamedTuple

import numpy as np

from nsys2prv.events import all_kinds
from nsys2prv.events.catalogue import ValueSet, load_catalogue
from nsys2prv.table.overlaps import list_overlap_groups
from nsys2prv.writers import TraceContent

#: Wire types.
VARINT, FIXED64, BYTES = 0, 1, 2
#: Bytes of a varint in a column; the greatest take any number.
WIDTHS = (1, 2, 4, 8, 10)
#: A number from 0 up, a text, or a message; a column has a number for each row: as 8 bytes if they
#: are uint64, else as a varint.
Value = "int | str | np.ndarray | Sequence[Field]"
#: Number of a field of a message, and its value.
Field = tuple[int, Value]
#: Place of a column's bytes in a message, how many they are, and its numbers.
_Column = tuple[int, int, np.ndarray]


def encode_varint(number: int) -> bytes:
    """Return a non-negative number as a varint of Protocol Buffers."""
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)


def encode_packet(*fields: Field) -> bytes:
    """Return one packet with these fields, none of which is a column. Fields are pairs of number
    and value.
    """
    return _lay_out([(Packet.PACKET, fields)])[0]


def encode_rows(rows: int, *fields: Field) -> np.ndarray:
    """Return a message for each row, with these fields, as an array of shape (rows, bytes). rows:
    their number.
    """
    template, columns = _lay_out(fields)
    encoded = np.empty((rows, len(template)), np.uint8)
    encoded[:] = np.frombuffer(template, np.uint8)
    for offset, width, values in columns if rows else ():
        if width == WIDTHS[-1]:
            numbers = values.astype(np.uint64)
            for byte in range(width):
                more = np.uint64(0x80 if byte < width - 1 else 0)
                encoded[:, offset + byte] = numbers >> np.uint64(7 * byte) & np.uint64(0x7F) | more
        else:
            place = np.ndarray(rows, f"<u{width}", encoded, offset, (len(template),))
            place[:] = values if values.dtype == np.uint64 else _spread_groups(values, width)
    return encoded


def _spread_groups(values: np.ndarray, width: int) -> np.ndarray:
    """Return numbers as varints of `width` bytes: groups of 7 bits, all except the last with the
    continuation bit.
    """
    kind = np.dtype(f"u{width}").type
    numbers = values.astype(kind)
    spread = numbers & kind(0x7F)
    for group in range(1, width):
        spread |= (numbers & kind(0x7F << 7 * group)) << kind(group)
    return spread | kind(int.from_bytes(b"\x80" * (width - 1), "little"))


def _lay_out(fields: Iterable[Field]) -> tuple[bytes, list[_Column]]:
    """Return the bytes of a message with space for its columns, and the columns."""
    template = bytearray()
    columns: list[_Column] = []
    for number, value in fields:
        if isinstance(value, int):
            template += encode_varint(number << 3 | VARINT) + encode_varint(value)
        elif isinstance(value, np.ndarray):
            is_fixed = value.dtype == np.uint64
            template += encode_varint(number << 3 | (FIXED64 if is_fixed else VARINT))
            width = 8 if is_fixed else _find_width(int(value.max(initial=0)))
            columns.append((len(template), width, value))
            template += bytes(width)
        else:
            is_text = isinstance(value, str)
            inner, own = (value.encode("utf-8", "replace"), []) if is_text else _lay_out(value)
            template += encode_varint(number << 3 | BYTES) + encode_varint(len(inner))
            columns += ((len(template) + offset, *column) for offset, *column in own)
            template += inner
    return bytes(template), columns


def _find_width(greatest: int) -> int:
    return next(width for width in WIDTHS if greatest < 1 << 7 * width)


class Packet:
    """Numbers of the fields of `Trace`, `TracePacket` and `InternedData` in Perfetto's format."""

    PACKET = 1
    CLOCK_SNAPSHOT, TIMESTAMP, SEQUENCE, TRACK_EVENT = 6, 8, 10, 11
    INTERNED_DATA, SEQUENCE_FLAGS, TRACK_DESCRIPTOR = 12, 13, 60
    CATEGORIES, EVENT_NAMES, ARGUMENT_NAMES, ARGUMENT_TEXTS = 1, 2, 3, 29


#: The one sequence of packets, and what they need: the names at its begin (which clear all before).
ON_SEQUENCE = ((Packet.SEQUENCE, 1),)
WITH_NAMES = (*ON_SEQUENCE, (Packet.SEQUENCE_FLAGS, 2))
BEGIN_NAMES = (*ON_SEQUENCE, (Packet.SEQUENCE_FLAGS, 3))
#: Fields that repeat another one, for views of Paraver.
REPEATED_FIELDS = frozenset({"any_domain", "own", "own_number"})
#: Names in one packet.
NAMES_AT_ONCE = 10_000


class Packets(NamedTuple):
    """Encoded packets of events (a row of bytes each), and the tracks of these events."""

    tracks: np.ndarray
    encoded: np.ndarray


class CatalogueNumbers(NamedTuple):
    """Numbers that Perfetto traces use for layouts, fields and name sets of the catalogue, equal in
    every trace.
    """

    #: Layout or kind of lines -> number of its tracks; a group of layouts shares them.
    bands: dict[str, int]
    #: Title of each of these.
    titles: list[str]
    #: Layouts of groups: on rows other than threads, they have the row's own track.
    grouped: frozenset[int]
    #: Layouts with ranges that lines of threads join: on rows of threads, they have the thread's
    #: own track.
    joined: frozenset[int]
    #: Category of each layout and kind of lines.
    categories: dict[str, int]
    #: Number of each field's name.
    arguments: dict[str, int]
    #: Number of each set of names or values, and of the kinds of lines ("").
    sets: dict[str, int]
    #: Number of each kind of lines.
    lines: dict[str, int]
    #: Layouts of points in time.
    points: frozenset[str]

    def number_names(self, name_set: str, values: np.ndarray) -> np.ndarray:
        """Return the ids that Perfetto traces use for names. name_set: of all of them. values: of
        the names.
        """
        return values.astype(np.int64) * len(self.sets) + self.sets[name_set] + 1


@cache
def load_numbers() -> CatalogueNumbers:
    """Return the numbers of the catalogue's declarations."""
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
    bands = {name: numbers[groups.get(name, name)] for name in titles}
    grouped = frozenset(numbers[group] for group in groups.values())
    joined = frozenset(bands[line.joins] for line in catalogue.lines.values() if line.joins)
    return CatalogueNumbers(
        bands,
        list(by_band.values()),
        grouped,
        joined - grouped,
        {name: number for number, name in enumerate(titles, 1)},
        {name: number for number, name in enumerate(sorted({*fields, "process"}), 1)},
        {name: n for n, name in enumerate(("", *catalogue.name_sets, *catalogue.value_sets))},
        {name: number for number, name in enumerate(catalogue.lines)},
        frozenset(points),
    )


def _name_lines(kind: str) -> str:
    """Return the name of an end of a line of this kind."""
    word, _, rest = kind.partition("_")
    return f"{word.upper()} {rest}".strip().replace("_", " ")


def write_names(content: TraceContent) -> Iterator[bytes]:
    """Yield packets with the texts of all names to which events refer by id."""
    names, sequence = _list_names(content), BEGIN_NAMES
    while part := list(islice(names, NAMES_AT_ONCE)):
        yield _make_name_packet(part, sequence)
        sequence = WITH_NAMES


def _make_name_packet(names: Iterable[tuple[int, int, str]], sequence: Sequence[Field]) -> bytes:
    """Return a packet of names. names: (table, number, text)."""
    entries = [(table, ((1, number), (2, text))) for table, number, text in names]
    return encode_packet(*sequence, (Packet.INTERNED_DATA, entries))


def _list_names(content: TraceContent) -> Iterator[tuple[int, int, str]]:
    """Yield (table, number, text) of each name."""
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
    """Return a packet (or none) that gives names to the values in a column that the value set does
    not list: their numbers.
    """
    known = [value for value, _ in values.labels]
    unknown = np.unique(column[~np.isin(column, known)])
    if not len(unknown):
        return []
    table = Packet.EVENT_NAMES if are_names else Packet.ARGUMENT_TEXTS
    ids = load_numbers().number_names(values.name, unknown)
    names = ((table, *named) for named in zip(ids.tolist(), map(str, unknown), strict=True))
    packet = _make_name_packet(names, WITH_NAMES)
    return [Packets(np.zeros(0, np.int64), np.frombuffer(packet, np.uint8)[None])]
