"""Write traces for Perfetto (https://perfetto.dev): a .pftrace, which consists of packets of the
protobuf message `Trace`.

Input: the content of a trace and the records of its windows. Output: one file with descriptors of
processes, rows and counters, then the packets of each window. :mod:`messages` encodes messages, and
numbers and writes all names.

A Perfetto process is a task of the trace, with Paraver's number. A host thread has a track for each
layout of its events; a GPU stream has one track for all its work. If ranges may overlap,
`table/overlaps.py` has moved them to lanes, which are tracks of the same name; Perfetto draws these
as one. Arrows (flows) lead from a launching call to its work, from the call that sends a message to
the call that ends its receive, and from the last rank of a collective to the ranks that waited for
it. The wait is a slice within the collective's slice.

Arrows of calls are events of Chrome's older form, which Perfetto binds to the open slice on their
track. It accepts them only on a thread's own track, so these calls use that track. Slices of GPU
work are connected by points within them. Collectives have the arrow at their start and end (message
LegacyEvent of protos/perfetto/trace/track_event/track_event.proto).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import ClassVar

import numpy as np
import polars as pl
from msgspec import Struct, field, structs

from nsys2prv._util.columns import mask_changes
from nsys2prv._util.text import capitalize
from nsys2prv.events.catalogue import Field as CatalogueField
from nsys2prv.events.catalogue import ValueSet, load_catalogue, split_unit
from nsys2prv.events.extraction import DeviceKey, ObjectKey, ThreadKey
from nsys2prv.export.info import tid_of
from nsys2prv.table.overlaps import list_overlap_groups
from nsys2prv.table.runs import find_present_fields
from nsys2prv.table.samples import read_samples
from nsys2prv.table.slices import AlikeRanges, RangeSlice, Slice, find_first_times, list_closings
from nsys2prv.table.windows import Window
from nsys2prv.writers import TraceContent, WindowBytes
from nsys2prv.writers.perfetto.messages import (
    ON_SEQUENCE,
    REPEATED_FIELDS,
    WITH_NAMES,
    Field,
    Packet,
    Packets,
    encode_packet,
    encode_rows,
    load_numbers,
    name_unknown,
    write_names,
)


class Track:
    """Numbers of the fields of `TrackDescriptor`, `ProcessDescriptor`, `ThreadDescriptor` and
    `CounterDescriptor` in Perfetto's format.
    """

    UUID, NAME, PROCESS, THREAD, PARENT, COUNTER = 1, 2, 3, 4, 5, 8
    CHILD_ORDERING, ORDER, PROCESS_ORDERING, THREAD_ORDERING = 11, 12, 19, 20
    PID, TID, SORT_INDEX, THREAD_NAME, PROCESS_NAME = 1, 2, 3, 5, 6
    UNIT, UNIT_NAME = 3, 6
    #: Tracks below one are sorted by their ORDER; processes and threads by theirs.
    BY_ORDER, EXPLICIT = 3, 1


class Event:
    """Numbers of the fields of `TrackEvent` and `DebugAnnotation` in Perfetto's format, and the
    types of events.
    """

    CATEGORY, ARGUMENT, ARROW, TYPE, NAME, TRACK, NAME_TEXT = 3, 4, 6, 9, 10, 11, 23
    COUNTER_VALUE, COUNTER_FRACTION, FLOW, CORRELATION = 30, 44, 47, 52
    ARGUMENT_NAME, ARGUMENT_NUMBER, ARGUMENT_TEXT = 1, 3, 17
    ARGUMENT_OWN_TEXT, ARGUMENT_NAME_TEXT = 6, 10
    SLICE_BEGIN, SLICE_END, INSTANT, SAMPLE = 1, 2, 3, 4
    #: Fields of `LegacyEvent`: an arrow of the slice that is open, and one of the slice that its event
    #: begins or ends; and whether these leave it or enter it.
    ARROW_PHASE, ARROW_ID, ENTERS_OPEN = 2, 6, 12
    PHASE_LEAVES, PHASE_ENTERS = ord("s"), ord("f")
    OWN_ARROW_ID, DIRECTION = 8, 13
    ENTERS, LEAVES = 1, 2


#: Clocks of a snapshot: that of the trace, and UTC.
TRACE_CLOCK, UTC_CLOCK = 6, 1
#: The unit of counters that Perfetto knows itself.
BYTES_UNIT = 3
#: Layout of the calls that launch work, the group of layouts with the work of streams, the field that
#: joins the two, and the lines between them.
CALLS, STREAM_GROUP, LAUNCH_FIELD = "cuda_api", "stream", "correlation"
LAUNCH_LINES = frozenset({"launch", "memory"})
#: Fields of ranges of which several ranks have a part: the number that they share, how long (ns) a rank
#: waits in it for the last one, written where it waits at all, and how long it lasts from then on; and
#: the name of the slice of the wait.
COLLECTIVE_FIELD, WAIT_FIELD, TRANSFER_FIELD = "collective", "wait", "transfer"
WAIT_NAME = "wait for the last rank"
#: A flow's id: what it is of, above this bit, and above that one its task or window.
FLOW_SORT_BIT, OWN_ARROW_BIT, FLOW_PLACE_BIT = 62, 61, 36
LAUNCH, MESSAGE = range(2)
_NONE = np.zeros(0, np.int64)


class PerfettoWriter(Struct, dict=True):
    """Writes .pftrace files."""

    unit: ClassVar[str] = "packets"
    draws_launches: ClassVar[bool] = True
    beside: ClassVar[tuple[str, ...]] = ()
    opening: ClassVar[str] = (
        "in Perfetto: open {trace} at https://ui.perfetto.dev; the browser reads it, nothing is uploaded"
    )

    #: Task of each row.
    tasks: np.ndarray = _NONE
    #: Number of the process that launches, of each row.
    launchers: np.ndarray = _NONE
    #: True for each row of a host thread.
    is_thread: np.ndarray = _NONE
    #: Row below which the tracks of each row are shown: of a lane the row that it is a lane of.
    parents: np.ndarray = _NONE
    #: Number of each sampled number, by layout and label; and the decimals of each.
    metrics: dict[tuple[str, str], int] = field(default_factory=dict)
    decimals: list[int] = field(default_factory=list)
    #: Layout of states -> time (ns) of the first one of each row.
    first_states: dict[str, np.ndarray] = field(default_factory=dict)
    #: Layout -> bits of the fields to write.
    field_masks: Mapping[str, int] = field(default_factory=dict)
    #: True if calls are joined to the work that they launched, by an attribute of both.
    has_launches: bool = False

    def begin(self, content: TraceContent) -> bytes:
        """Return the packets (messages of Perfetto's format) with the clock, processes, rows,
        counters, and all names.
        """
        tree, layouts = content.model.tree, load_catalogue().layouts
        self.field_masks = content.layouts
        rows_of_tasks = [len(task.threads) for task in tree.tasks]
        self.tasks = np.repeat(np.arange(len(tree.tasks)), rows_of_tasks)
        self.launchers = self.tasks + 1
        # Helpers number their calls on their own: theirs launched nothing that is in the trace.
        helpers = np.array(sorted(content.model.helper_rows), np.int64)
        self.launchers[helpers] = len(tree.tasks) + 1 + helpers
        keys, self.parents = _find_parents(content.model.rows, tree.threads)
        self.is_thread = np.array([isinstance(key, ThreadKey) for key in keys], bool)
        metrics = sorted((name, one) for name, found in content.metrics.items() for one in found)
        self.metrics = {(layout, one.name): number for number, (layout, one) in enumerate(metrics)}
        self.decimals = [one.precision for _, one in metrics]
        self.has_launches = not content.lines.isdisjoint(LAUNCH_LINES) and all(
            LAUNCH_FIELD in find_present_fields(name, mask)
            for name, mask in content.layouts.items()
            if _is_launched(name)
        )
        self.first_states = {
            name: find_first_times(content.runs, content.global_ids, name, tree.threads)
            for name in content.layouts
            if layouts[name].is_state
        }
        clock = _describe_clock(content.begin_utc)
        rows, counters = self._describe_rows(content, keys), self._describe_counters(content)
        return b"".join((clock, *rows, *counters, *write_names(content)))

    def window(self, window: Window, number: int, is_last: bool) -> WindowBytes:
        """Return the packets of a window. They are not sorted by time: Perfetto does that, and
        keeps this order at equal times (ends, then starts, outer ones first). number: index of the
        window, for unique ids of messages.
        """
        tables, repeated = read_samples(window.samples, self.metrics)
        packets = [
            *self._write_ends(window.ranges),
            *self._write_begins(window.ranges),
            *self._write_messages(window.lines, number),
            *(packet for table in tables for packet in self._write_samples(table)),
        ]
        used = np.zeros(self._first_counter, bool)
        for packet in packets:
            used[packet.tracks] = True
        tracks = self._first_band + np.flatnonzero(used[self._first_band :])
        pieces = [packet.encoded for packet in packets]
        count = sum(map(len, pieces))
        return WindowBytes([*map(self._describe_band, tracks.tolist()), *pieces], count, repeated)

    def end(self, content: TraceContent, trace: Path) -> None:
        """Do nothing, because everything is in the trace."""

    @cached_property
    def _first_row(self) -> int:
        """Return the id of the first row's own track, after the tracks of processes."""
        return 1 + (int(self.tasks[-1]) + 1 if len(self.tasks) else 0)

    @cached_property
    def _first_band(self) -> int:
        """Return the id of the first layout track, after the tracks of rows."""
        return self._first_row + len(self.tasks)

    @cached_property
    def _first_counter(self) -> int:
        """Return the id of the first counter, after all other tracks."""
        return self._first_band + len(self.tasks) * len(load_numbers().titles)

    def _find_tracks(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Return the tracks of a layout, or of a kind of lines, on these rows."""
        numbers = load_numbers()
        band = numbers.bands[name]
        tracks = self._first_band + rows.astype(np.int64) * len(numbers.titles) + band
        if band in numbers.grouped:
            tracks = np.where(self.is_thread[rows], tracks, self._first_row + rows)
        elif band in numbers.joined:
            tracks = np.where(self.is_thread[rows], self._first_row + rows, tracks)
        return tracks

    def _describe_rows(self, content: TraceContent, keys: Sequence[ObjectKey]) -> Iterator[bytes]:
        """Yield the descriptors of processes and rows, in order."""
        tree = content.model.tree
        yield describe_track(
            0, (Track.PROCESS_ORDERING, Track.EXPLICIT), (Track.THREAD_ORDERING, Track.EXPLICIT)
        )
        for number, task in enumerate(tree.tasks, 1):
            name = f"{task.name} on {tree.nodes[task.node]}"
            process = (Track.PID, number), (Track.PROCESS_NAME, name), (Track.SORT_INDEX, number)
            yield describe_track(number, (Track.PROCESS, process), (Track.ORDER, number))
        names = (row.name for task in tree.tasks for row in task.threads)
        for row, (name, key) in enumerate(zip(names, keys, strict=True)):
            process = int(self.tasks[row]) + 1
            described: tuple[Field, ...] = (Track.NAME, name), (Track.PARENT, process)
            if isinstance(key, ThreadKey):
                if self.parents[row] != row:
                    continue
                ids = (Track.PID, process), (Track.TID, tid_of(key.tid))
                thread = *ids, (Track.THREAD_NAME, name), (Track.SORT_INDEX, row)
                described = ((Track.THREAD, thread),)
            order = (Track.ORDER, row), (Track.CHILD_ORDERING, Track.BY_ORDER)
            yield describe_track(self._first_row + row, *described, *order)

    def _describe_counters(self, content: TraceContent) -> Iterator[bytes]:
        for row, metrics in sorted(content.sampled.items()):
            for layout, label in sorted(metrics):
                number = self.metrics[layout, label]
                name, unit = split_unit(label)
                is_bytes = unit.casefold() in ("b", "bytes")
                shown = (Track.UNIT, BYTES_UNIT) if is_bytes else (Track.UNIT_NAME, unit)
                yield describe_track(
                    self._first_counter + row * len(self.metrics) + number,
                    (Track.NAME, name),
                    (Track.PARENT, self._first_row + int(self.parents[row])),
                    (Track.ORDER, len(load_numbers().titles) + number),
                    (Track.COUNTER, (shown,) if unit else ()),
                )

    def _describe_band(self, track: int) -> bytes:
        """Return the descriptor of a layout's track on a row."""
        titles = load_numbers().titles
        row, band = divmod(track - self._first_band, len(titles))
        return describe_track(
            track,
            (Track.NAME, capitalize(titles[band])),
            (Track.PARENT, self._first_row + int(self.parents[row])),
            (Track.ORDER, band),
        )

    def _write_ends(self, slices: Sequence[RangeSlice]) -> Iterator[Packets]:
        for ranges in slices:
            if ranges.layout.name not in load_numbers().points:
                for alike in ranges.split(ranges.at_end):
                    yield self._end_alike(alike)
        for ranges, times, rows in list_closings(slices):
            yield _make_ends(times, self._find_tracks(ranges.layout.name, rows))

    def _end_alike(self, alike: AlikeRanges) -> Packets:
        """Return the packets of range ends. Arrows arrive at the ends on ranks that waited."""
        tracks, arrow = self._find_tracks(alike.layout.name, alike.column("row")), []
        if self._has_waits(alike):
            arrow = [_make_own_arrow(alike.column(COLLECTIVE_FIELD), Event.ENTERS)]
        return _make_ends(alike.until, tracks, *arrow)

    def _write_begins(self, slices: Sequence[RangeSlice]) -> Iterator[Packets]:
        parts = [
            part
            for ranges in slices
            for alike in ranges.split(ranges.at_begin)
            for one in alike.split_by_callers()
            for part in (_divide_ties(one) if self._is_last(one) else [(one, False)])
        ]
        if not parts:
            return
        parts.sort(key=lambda part: (part[0].layout.name, part[0].mask))
        begun = [one for one, _ in parts]
        tracks = [self._find_tracks(one.layout.name, one.column("row")) for one in begun]
        depths = _find_depths(begun, tracks)
        encoded = []
        for (one, leaves), own_tracks in zip(parts, tracks, strict=True):
            unnamed, packets = self._encode_begins(one, own_tracks, leaves)
            yield from unnamed
            encoded.append(packets)
        pieces = [
            (depth, number, np.flatnonzero(own == depth) if own.any() else slice(None))
            for number, own in enumerate(depths)
            for depth in range(int(own.max()) + 1)
        ]
        for depth, number, places in sorted(pieces, key=itemgetter(0, 1)):
            one, packets = begun[number], Packets(*(column[places] for column in encoded[number]))
            if (name := one.layout.name) in self.first_states:
                # A state ends the one before it.
                times = one.begin[places]
                first = self.first_states[name][one.column("row")[places]]
                later = np.flatnonzero((times != first) | (depth > 0))
                yield _make_ends(times[later], packets.tracks[later])
            yield packets
        for one, own_tracks in zip(begun, tracks, strict=True):
            if self._has_waits(one):
                yield from _write_waits(one, own_tracks)

    def _encode_begins(
        self, begins: AlikeRanges, tracks: np.ndarray, leaves: bool
    ) -> tuple[list[Packets], Packets]:
        """Return the packets of range starts, and packets with names that only they use, to be
        written first. leaves: arrows lead from them to the ranks that waited for them.
        """
        name, rows = begins.layout.name, begins.column("row")
        numbers = load_numbers()
        fields = self._list_fields(begins)
        names: list[Packets] = []
        kind = Event.INSTANT if name in numbers.points else Event.SLICE_BEGIN
        event: list[Field] = [
            (Event.TYPE, kind),
            (Event.TRACK, tracks),
            (Event.CATEGORY, numbers.categories[name]),
        ]
        if begins.layout.has_domain:
            domains = begins.column("domain").astype(np.int64)
            event.append((Event.CATEGORY, len(numbers.categories) + 1 + domains))
        for place, one in enumerate(fields.values()):
            if one.name in REPEATED_FIELDS:
                continue
            values = begins.column(one.name)
            if isinstance(one.values, ValueSet):
                names += name_unknown(one.values, values, place == 0)
            if one.values is not None:
                values = numbers.number_names(one.values.name, values)
            if place == 0:
                event.append((Event.NAME, values))
            else:
                kind = Event.ARGUMENT_NUMBER if one.values is None else Event.ARGUMENT_TEXT
                event.append(_make_argument(one.name, values, kind))
        if COLLECTIVE_FIELD in fields:
            collective = begins.column(COLLECTIVE_FIELD)
            event.append((Event.CORRELATION, collective))
            if leaves:
                event.append(_make_own_arrow(collective, Event.LEAVES))
        elif self.has_launches and LAUNCH_FIELD in fields and _is_launched(name):
            correlation = begins.column(LAUNCH_FIELD)
            event.append((Event.FLOW, _make_flows(LAUNCH, self.launchers[rows], correlation)))
        return names, _make_packets(begins.begin, tracks, event)

    def _has_waits(self, ranges: AlikeRanges) -> bool:
        """Return True if these are ranges of ranks that waited for the last rank."""
        return {COLLECTIVE_FIELD, WAIT_FIELD} <= self._list_fields(ranges).keys()

    def _is_last(self, ranges: AlikeRanges) -> bool:
        """Return True if these are ranges of ranks that arrived last."""
        fields = self._list_fields(ranges)
        return {COLLECTIVE_FIELD, TRANSFER_FIELD} <= fields.keys() and WAIT_FIELD not in fields

    def _list_fields(self, begins: AlikeRanges) -> dict[str, CatalogueField]:
        """Return name -> field for the fields of ranges that are written."""
        name = begins.layout.name
        return find_present_fields(name, begins.mask & self.field_masks[name])

    def _write_messages(self, lines: Sequence[Slice], number: int) -> Iterator[Packets]:
        """Yield the arrows of messages, and of launches unless an attribute already connects call
        and work.
        """
        numbers, done = load_numbers(), 0
        for found in sorted(lines, key=lambda one: one.run.shape.name):
            name = found.run.shape.name
            if name in LAUNCH_LINES and self.has_launches:
                continue
            ids = done + np.arange(len(found))
            done += len(found)
            named: list[Field] = [
                (Event.NAME, int(numbers.number_names("", np.int64(numbers.lines[name])))),
                (Event.CATEGORY, numbers.categories[name]),
            ]
            layout = load_catalogue().lines[name].joins
            layout = layout if layout in self.field_masks else name
            if numbers.bands[layout] in numbers.joined:
                own = np.int64(number << FLOW_PLACE_BIT) + ids
                yield from self._write_arrows(found, layout, named, own)
            else:
                named.append((Event.FLOW, _make_flows(MESSAGE, number, ids)))
                yield from self._write_points(found, layout, named)

    def _write_arrows(
        self, found: Slice, layout: str, named: Sequence[Field], ids: np.ndarray
    ) -> Iterator[Packets]:
        """Yield arrows from the calls at the starts of lines to the calls at their ends."""
        sent, came = found.times, found.column("receive")
        # A slice is open until its end.
        ends = ("sender", sent, Event.PHASE_LEAVES), ("receiver", came - 1, Event.PHASE_ENTERS)
        for row, times, phase in ends:
            tracks = self._find_tracks(layout, found.column(row))
            arrow = (Event.ARROW_PHASE, phase), (Event.ARROW_ID, ids), (Event.ENTERS_OPEN, 1)
            event = [*named, (Event.TRACK, tracks), (Event.ARROW, arrow)]
            yield _make_packets(np.maximum(times, sent), tracks, event)

    def _write_points(self, found: Slice, layout: str, named: Sequence[Field]) -> Iterator[Packets]:
        """Yield both ends of lines as points in time, with facts about their messages: within the
        connected ranges of the layout, otherwise on separate tracks.
        """
        sent, came = found.times, found.column("receive")
        if layout != found.run.shape.name:
            came = np.maximum(came - 1, sent)
        arguments = [one for one in ("size", "tag") if one in found.run.columns]
        event = [
            (Event.TYPE, Event.INSTANT),
            *named,
            *(_make_argument(one, found.column(one)) for one in arguments),
        ]
        ends = ("sender", "receiver", sent), ("receiver", "sender", came)
        for row, other, times in ends:
            tracks = self._find_tracks(layout, found.column(row))
            process = self.tasks[found.column(other)] + 1
            own = [*event, (Event.TRACK, tracks), _make_argument("process", process)]
            yield _make_packets(times, tracks, own)

    def _write_samples(self, samples: pl.DataFrame) -> Iterator[Packets]:
        time, row, *numbers = (one.to_numpy() for one in samples.get_columns())
        first = self._first_counter + row * len(self.metrics)
        for code, values in zip(map(int, samples.columns[2:]), numbers, strict=True):
            tracks = first + code
            number: Field = (Event.COUNTER_VALUE, values)
            if decimals := self.decimals[code]:
                fractions = values / 10.0**decimals
                number = Event.COUNTER_FRACTION, fractions.view(np.uint64)
            event = (Event.TYPE, Event.SAMPLE), (Event.TRACK, tracks), number
            # All counters are described at the begin of the file.
            yield _make_packets(time, tracks[:0], event, ON_SEQUENCE)


def _make_packets(
    times: np.ndarray,
    tracks: np.ndarray,
    event: Sequence[Field],
    sequence: Sequence[Field] = WITH_NAMES,
) -> Packets:
    packet = (Packet.TIMESTAMP, times), *sequence, (Packet.TRACK_EVENT, event)
    return Packets(tracks, encode_rows(len(times), (Packet.PACKET, packet)))


def _make_ends(times: np.ndarray, tracks: np.ndarray, *more: Field) -> Packets:
    event = (Event.TYPE, Event.SLICE_END), (Event.TRACK, tracks), *more
    return _make_packets(times, tracks, event, ON_SEQUENCE)


def _make_own_arrow(ids: np.ndarray, direction: int) -> Field:
    """Return the arrow field of a slice that an event starts or ends. ids: shared by both ends of
    an arrow. The trace processor numbers arrows of open slices from 0, in the same space.
    """
    own = ids.astype(np.int64) | 1 << OWN_ARROW_BIT
    return Event.ARROW, ((Event.OWN_ARROW_ID, own), (Event.DIRECTION, direction))


def _divide_ties(ranges: AlikeRanges) -> Iterator[tuple[AlikeRanges, bool]]:
    """Yield the first range of each collective with True, and the other ranges with False. If
    several ranks arrived last together, only one of them has the arrows.
    """
    is_first = np.zeros(len(ranges.begin), bool)
    is_first[np.unique(ranges.column(COLLECTIVE_FIELD), return_index=True)[1]] = True
    places = np.arange(len(ranges.ranges))[ranges.rows]
    for chosen, are_first in ((is_first, True), (~is_first, False)):
        if chosen.any():
            yield structs.replace(ranges, rows=places[chosen]), are_first


def _write_waits(ranges: AlikeRanges, tracks: np.ndarray) -> Iterator[Packets]:
    """Yield slices for the time in which ranges wait for the last rank. A range that is open at the
    start of the trace may have begun earlier, so the end of its wait is unknown.
    """
    begin, came = ranges.begin, ranges.begin + ranges.column(WAIT_FIELD)
    waited = np.flatnonzero((begin > 0) & (came > begin) & (came < ranges.until))
    event = [
        (Event.TYPE, Event.SLICE_BEGIN),
        (Event.NAME_TEXT, WAIT_NAME),
        (Event.CATEGORY, load_numbers().categories[ranges.layout.name]),
        (Event.TRACK, tracks[waited]),
    ]
    yield _make_packets(begin[waited], tracks[waited], event)
    yield _make_ends(came[waited], tracks[waited])


def _make_argument(name: str, values: np.ndarray, kind: int = Event.ARGUMENT_NUMBER) -> Field:
    return Event.ARGUMENT, ((Event.ARGUMENT_NAME, load_numbers().arguments[name]), (kind, values))


def _make_flows(sort: int, place: np.ndarray | int, numbers: np.ndarray) -> np.ndarray:
    """Return flow ids for numbers that are unique at their place. sort: kind of flow."""
    within = numbers.astype(np.uint64) & np.uint64((1 << FLOW_PLACE_BIT) - 1)
    sort_bits = np.uint64(sort << FLOW_SORT_BIT)
    return within | sort_bits | np.uint64(place) << np.uint64(FLOW_PLACE_BIT)


def _is_launched(layout: str) -> bool:
    """Return True for layouts of launching calls and of stream work."""
    return layout == CALLS or list_overlap_groups().get(layout) == STREAM_GROUP


def _find_depths(begun: Sequence[AlikeRanges], tracks: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return for each start the number of other starts at the same time that must precede it on its
    track, because they end later.
    """
    time, end = (
        np.concatenate(parts)
        for parts in ([one.begin for one in begun], [one.find_order() for one in begun])
    )
    track, depths = np.concatenate(tracks), np.zeros(len(time), np.int64)
    order = np.argsort(time, kind="stable")
    same = np.diff(time[order]) == 0
    rows = order[np.append(same, False) | np.append(False, same)]
    rows = rows[np.lexsort((-end[rows], track[rows], time[rows]))]
    place = np.arange(len(rows))
    first = np.where(mask_changes(time[rows], track[rows]), place, 0)
    depths[rows] = place - np.maximum.accumulate(first)
    return np.split(depths, np.cumsum([len(one) for one in tracks])[:-1])


def _find_parents(
    rows: Mapping[tuple[int, ObjectKey], int], count: int
) -> tuple[list[ObjectKey], np.ndarray]:
    """Return the object of each row, and its main row: itself, unless the row is a lane."""
    keys: list[ObjectKey] = [DeviceKey("")] * count
    parents = np.arange(count)
    for (report, key), row in rows.items():
        keys[row] = key
        if getattr(key, "lane", 0):
            parents[row] = rows.get((report, key._replace(lane=0)), row)
    return keys, parents


def describe_track(track: int, *fields: Field) -> bytes:
    """Return a packet that describes a track. track: its id. fields: number -> value."""
    described = (Track.UUID, track), *fields
    return encode_packet((Packet.TIMESTAMP, 0), (Packet.TRACK_DESCRIPTOR, described))


def _describe_clock(begin: datetime | None) -> bytes:
    """Return the packet with the UTC time at which the trace begins, if known."""
    if begin is None:
        return b""
    times = {TRACE_CLOCK: 0, UTC_CLOCK: int(begin.timestamp()) * 1_000_000_000}
    clocks = [(1, ((1, clock), (2, time))) for clock, time in times.items()]
    return encode_packet((Packet.TIMESTAMP, 0), (Packet.CLOCK_SNAPSHOT, clocks))
