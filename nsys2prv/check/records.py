"""States and communications, and the way of all records of a block to the rules."""

from __future__ import annotations

import numpy as np

from nsys2prv.check.body import sound_lines
from nsys2prv.check.events import Events
from nsys2prv.check.fields import lines_of
from nsys2prv.check.findings import Findings
from nsys2prv.check.header import Header
from nsys2prv.check.objects import Objects
from nsys2prv.check.pcf import Labels
from nsys2prv.check.place import Place
from nsys2prv.check.times import Times

LAST_STATE = LAST_SIZE = 2**32 - 1
#: Fields of a record by place: those of the receiver of a communication, and the times.
TIME, STATE_END, STATE_VALUE, PHYSICAL_SEND, RECEIVER, RECEIVE, PHYSICAL_RECEIVE, SIZE = 5, 6, 7, 6, 7, 11, 12, 13
OPEN_ENDED = -1


class Records:
    """All records of a trace, block by block. states, events, comms: how many Paraver can read; lines: of the file."""

    def __init__(self, header: Header, labels: Labels, name: str, findings: Findings) -> None:
        self.states = self.events = self.comms = 0
        self.lines = 1
        self.objects, self.times = Objects(header), Times(header.duration)
        self.pairs = Events(header.threads, labels)
        self._header, self._labels, self._name, self._findings = header, labels, name, findings
        self._state_ends = np.full(header.threads, -1, np.int64)

    def add(self, block: bytes) -> None:
        """The next lines."""
        place = Place(lines_of(block), self.lines + 1, self._name, self._findings)
        self.lines += len(place.lines.kind)
        sound = sound_lines(place, self._header.communicators)
        numbers, first = place.lines.numbers, place.lines.first
        timed = np.sort(np.concatenate((sound.states, sound.events, sound.comms)))
        self.times.order(place, timed, numbers[first[timed] + TIME])
        self._add_events(place, sound.events)
        if len(sound.states):
            self._add_states(place, sound.states)
        if len(sound.comms):
            self._add_comms(place, sound.comms)

    def _add_events(self, place: Place, lines: np.ndarray) -> None:
        times = place.lines.numbers[place.lines.first[lines] + TIME]
        rows = self.objects.rows(place, lines, 1)
        kept = self.times.check(place, lines, [times], moves_end=True) & (rows >= 0)
        if not kept.all():
            lines, rows, times = lines[kept], rows[kept], times[kept]
        self.events += len(lines)
        self.pairs.add(place, lines, rows, times)

    def _add_states(self, place: Place, lines: np.ndarray) -> None:
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
        begin, end, value, rows, lines, is_open = (column[kept] for column in (begin, end, value, rows, lines, is_open))
        if not len(lines):
            return
        self.states += len(lines)
        place.report("state-backwards", lines[end < begin])
        place.report("state-zero-length", lines[(end == begin) & ~is_open])
        unknown = [number for number in np.unique(value).tolist() if number not in self._labels.states]
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

    def _add_comms(self, place: Place, lines: np.ndarray) -> None:
        numbers, first = place.lines.numbers, place.lines.first[lines]
        sent, physically_sent, received, physically_received, size = (
            numbers[first + field] for field in (TIME, PHYSICAL_SEND, RECEIVE, PHYSICAL_RECEIVE, SIZE))
        kept = self.objects.rows(place, lines, 1) >= 0
        kept &= self.objects.rows(place, lines, RECEIVER) >= 0
        kept &= self.times.check(place, lines, [sent, physically_sent, received, physically_received], moves_end=False)
        self.comms += int(kept.sum())
        place.report("sent-backwards", lines[kept & (physically_sent < sent)])
        place.report("received-before-sent", lines[kept & ((physically_received < physically_sent) | (physically_received < sent))])
        place.report("negative-size", lines[kept & (size < 0)])
        place.report("large-size", lines[kept & (size > LAST_SIZE)])
