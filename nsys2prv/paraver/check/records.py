"""Check states, communications and the times of all records."""

from __future__ import annotations

import numpy as np

from nsys2prv.paraver.check import CheckFindings
from nsys2prv.paraver.check.events import Events
from nsys2prv.paraver.check.header import Header, Objects
from nsys2prv.paraver.check.labels import Labels
from nsys2prv.paraver.check.lines import BlockReporter, check_lines, split_lines

LAST_EXACT = 2**53
#: Communications behind the end that are kept until the end is known.
MOST_LATE = 1_000_000


class Times:
    """Keeps the time reached so far. first, last: of all records; end: of the trace as Paraver sees
    it, which communications do not move.
    """

    def __init__(self, duration: float) -> None:
        self.duration = duration
        self.first: int | None = None
        self.last = 0
        self.end = duration
        self._reached = -(2**63)
        self._late = np.empty(0, np.int64), np.empty(0, np.int64)

    def order(self, place: BlockReporter, lines: np.ndarray, times: np.ndarray) -> None:
        """Return the times by which the file must be sorted, in the order of the file's records."""
        if not len(times):
            return
        reached = np.maximum.accumulate(np.concatenate(([self._reached], times)))
        place.report("time-order", lines[times < reached[:-1]])
        self._reached = int(reached[-1])
        first = int(times.min())
        self.first = first if self.first is None else min(self.first, first)

    def check(
        self, place: BlockReporter, lines: np.ndarray, columns: list[np.ndarray], *, moves_end: bool
    ) -> np.ndarray:
        """Check all times of these records and return which records Paraver can read. moves_end:
        not so for communications.
        """
        sound = np.ones(len(lines), bool)
        if not len(lines):
            return sound
        largest = columns[0] if len(columns) == 1 else np.maximum.reduce(columns)
        last = int(largest.max())
        if int(min(column.min() for column in columns)) < 0:
            sound = np.minimum.reduce(columns) >= 0
            place.report("negative-time", lines[~sound])
        if last > LAST_EXACT:
            place.report("time-inexact", lines[largest > LAST_EXACT])
        if last > self.duration:
            place.report("time-beyond-duration", lines[largest > self.duration])
            if not moves_end:
                self._keep_late(place, lines, largest)
        if moves_end and last > self.end:
            self.end = last
            times, places = self._late
            self._late = times[times > last], places[times > last]
        self.last = max(self.last, last)
        return sound

    def _keep_late(self, place: BlockReporter, lines: np.ndarray, largest: np.ndarray) -> None:
        """Keep communications behind the end as far as it is known."""
        late = np.flatnonzero(largest > self.end)[: MOST_LATE - len(self._late[0])]
        times, places = self._late
        self._late = np.append(times, largest[late]), np.append(places, place.base + lines[late])

    def close(self, findings: CheckFindings) -> None:
        """Report, once all records are read, communications behind the end that states and events
        made.
        """
        times, places = self._late
        late = places[times > self.end]
        if len(late):
            findings.add("comm-beyond-end", int(late[0]), count=len(late))


LAST_STATE = LAST_SIZE = 2**32 - 1
#: Fields of a record by place: those of the receiver of a communication, and the times.
TIME = 5
STATE_END = 6
STATE_VALUE = 7
PHYSICAL_SEND = 6
RECEIVER = 7
RECEIVE = 11
PHYSICAL_RECEIVE = 12
SIZE = 13
OPEN_ENDED = -1


class Records:
    """All records of a trace, block by block. states, events, comms: how many Paraver can read;
    lines: of the file.
    """

    def __init__(self, header: Header, labels: Labels, findings: CheckFindings) -> None:
        self.states = self.events = self.comms = 0
        self.lines = 1
        self.objects, self.times = Objects(header), Times(header.duration)
        self.pairs = Events(header.threads, labels)
        self._header, self._labels, self._findings = header, labels, findings
        self._state_ends = np.full(header.threads, -1, np.int64)

    def add(self, block: bytes) -> None:
        """Check the next lines."""
        place = BlockReporter(split_lines(block), self.lines + 1, self._findings)
        self.lines += len(place.lines.kind)
        sound = check_lines(place, self._header.communicators)
        numbers, first = place.lines.numbers, place.lines.first
        timed = np.sort(np.concatenate((sound.states, sound.events, sound.comms)))
        self.times.order(place, timed, numbers[first[timed] + TIME])
        self._add_events(place, sound.events)
        if len(sound.states):
            self._add_states(place, sound.states)
        if len(sound.comms):
            self._add_comms(place, sound.comms)

    def _add_events(self, place: BlockReporter, lines: np.ndarray) -> None:
        times = place.lines.numbers[place.lines.first[lines] + TIME]
        rows = self.objects.rows(place, lines, 1)
        kept = self.times.check(place, lines, [times], moves_end=True) & (rows >= 0)
        if not kept.all():
            lines, rows, times = lines[kept], rows[kept], times[kept]
        self.events += len(lines)
        self.pairs.add(place, lines, rows, times)

    def _add_states(self, place: BlockReporter, lines: np.ndarray) -> None:
        numbers, first = place.lines.numbers, place.lines.first[lines]
        begin, end, value = (numbers[first + field] for field in (TIME, STATE_END, STATE_VALUE))
        is_open = end == OPEN_ENDED
        place.report("state-open", lines[is_open])
        end = np.where(is_open, begin, end)
        rows = self.objects.rows(place, lines, 1)
        kept = self.times.check(place, lines, [begin, end], moves_end=True) & (rows >= 0)
        place.report("negative-state", lines[value < 0])
        place.report("state-wraps", lines[value > LAST_STATE])
        kept &= value >= 0
        begin, end, value, rows, lines, is_open = (
            column[kept] for column in (begin, end, value, rows, lines, is_open)
        )
        if not len(lines):
            return
        self.states += len(lines)
        place.report("state-backwards", lines[end < begin])
        place.report("state-zero-length", lines[(end == begin) & ~is_open])
        unknown = [
            number for number in np.unique(value).tolist() if number not in self._labels.states
        ]
        if unknown:
            place.report("state-unlabelled", lines[np.isin(value, unknown)], unknown[0])
        order = np.argsort(rows, kind="stable")
        rows = rows[order]
        begins = np.flatnonzero(np.diff(rows, prepend=-1))
        before = np.empty_like(rows)
        before[1:] = end[order][:-1]
        before[begins] = self._state_ends[rows[begins]]
        place.report("state-overlap", np.sort(lines[order[begin[order] < before]]))
        last = np.append(begins[1:], len(rows)) - 1
        self._state_ends[rows[last]] = end[order][last]

    def _add_comms(self, place: BlockReporter, lines: np.ndarray) -> None:
        numbers, first = place.lines.numbers, place.lines.first[lines]
        sent, physically_sent, received, physically_received, size = (
            numbers[first + field]
            for field in (TIME, PHYSICAL_SEND, RECEIVE, PHYSICAL_RECEIVE, SIZE)
        )
        kept = self.objects.rows(place, lines, 1) >= 0
        kept &= self.objects.rows(place, lines, RECEIVER) >= 0
        kept &= self.times.check(
            place, lines, [sent, physically_sent, received, physically_received], moves_end=False
        )
        self.comms += int(kept.sum())
        place.report("sent-backwards", lines[kept & (physically_sent < sent)])
        place.report(
            "received-before-sent",
            lines[kept & ((physically_received < physically_sent) | (physically_received < sent))],
        )
        place.report("negative-size", lines[kept & (size < 0)])
        place.report("large-size", lines[kept & (size > LAST_SIZE)])
