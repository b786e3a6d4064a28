"""Read a .pftrace as Perfetto's trace processor does: by the numbers of protobuf fields alone."""

import gzip
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple


class Slice(NamedTuple):
    """A range on a track, or a point in time (duration 0)."""

    begin: int
    duration: int
    track: int
    name: str
    category: str
    arguments: dict[str, int | str]


@dataclass
class PerfettoTrace:
    """A trace as read by the trace processor."""

    slices: list[Slice] = field(default_factory=list)
    #: Track -> time and value of each sample.
    counters: dict[int, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))
    #: Id of the flow, and the slices that it joins.
    flows: list[tuple[int, int, int]] = field(default_factory=list)
    #: Track -> name, and the track that it is below.
    tracks: dict[int, tuple[str, int]] = field(default_factory=dict)


def read_fields(data: bytes) -> dict[int, list]:
    """Return the fields of a message by number: numbers, and bytes."""
    fields: dict[int, list] = defaultdict(list)
    place = 0

    def read_varint() -> int:
        nonlocal place
        number = shift = 0
        while True:
            byte = data[place]
            place += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    while place < len(data):
        tag = read_varint()
        if tag & 7 == 0:
            fields[tag >> 3].append(read_varint())
            continue
        length = 8 if tag & 7 == 1 else read_varint()
        assert tag & 7 in (1, 2), f"wire type {tag & 7}"
        assert place + length <= len(data)
        fields[tag >> 3].append(data[place : place + length])
        place += length
    return fields


def read_perfetto(path: Path) -> PerfettoTrace:
    """Read a trace; what the trace processor would count as an error fails."""
    data = path.read_bytes()
    packets = read_fields(gzip.decompress(data) if path.suffix == ".gz" else data)[1]
    trace, events = PerfettoTrace(), []
    #: Field of the interned data -> id -> text.
    names: dict[int, dict[int, str]] = defaultdict(dict)
    for number, packet in enumerate(map(read_fields, packets)):
        for track in map(read_fields, packet[60]):
            inner = [read_fields(one) for one in (*track[3], *track[4])]
            own = [*track[2], *(name for one in inner for name in (*one[6], *one[5]))]
            told = b"".join(own).decode(), *track[5]
            assert trace.tracks.setdefault(track[1][0], told) == told
        for table, entries in ((t, e) for one in packet[12] for t, e in read_fields(one).items()):
            for entry in map(read_fields, entries):
                text = entry[2][0].decode()
                assert names[table].setdefault(entry[1][0], text) == text
        for event in packet[11]:
            assert packet[10] == [1]
            events.append((packet[8][0], number, read_fields(event)))
    # Names stand before what refers to them, whatever the times.
    open_slices: dict[int, list[int]] = defaultdict(list)
    last_of_flow: dict[bytes, int] = {}
    # The slice that an arrow leaves, by its id: those of open slices also have a category.
    left: dict[tuple, int] = {}

    def draw_arrow(arrow: tuple, number: int, leaves: bool) -> None:
        if leaves:
            assert left.setdefault(arrow, number) == number
        elif arrow in left:
            trace.flows.append((arrow[-1], left[arrow], number))

    for time, _, event in sorted(events, key=lambda one: one[:2]):
        track = event[11][0]
        assert track in trace.tracks
        arrow = read_fields(event[6][0]) if event[6] else {}
        if not event[9]:
            # The slice that is open on the track; an arrow enters no other one.
            leaves = arrow[2] == [ord("s")]
            assert leaves or (arrow[2], arrow[12]) == ([ord("f")], [1])
            draw_arrow((event[3][0], arrow[6][0]), open_slices[track][-1], leaves)
            continue
        kind = event[9][0]
        if kind == 2:
            begun = open_slices[track].pop()
            if arrow:
                draw_arrow((arrow[8][0],), begun, arrow[13] == [2])
            trace.slices[begun] = trace.slices[begun]._replace(
                duration=time - trace.slices[begun].begin
            )
        elif kind == 4:
            trace.counters[track].append((time, event[30][0] if event[30] else event[44][0]))
        else:
            arguments = {}
            for one in map(read_fields, event[4]):
                key = names[3][one[1][0]] if one[1] else one[10][0].decode()
                text = names[29][one[17][0]] if one[17] else b"".join(one[6]).decode()
                arguments[key] = text or one[3][0]
            if arrow:
                draw_arrow((arrow[8][0],), len(trace.slices), arrow[13] == [2])
            if kind == 1:
                open_slices[track].append(len(trace.slices))
            for flow in event[47]:
                if flow in last_of_flow:
                    ends = last_of_flow[flow], len(trace.slices)
                    trace.flows.append((int.from_bytes(flow, "little"), *ends))
                last_of_flow[flow] = len(trace.slices)
            name = names[2][event[10][0]] if event[10] else event[23][0].decode()
            category = names[1][event[3][0]] if event[3] else ""
            trace.slices.append(Slice(time, 0, track, name, category, arguments))
    assert not any(open_slices.values())
    return trace
