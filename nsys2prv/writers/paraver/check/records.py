"""Check the records of a trace, block by block: times and objects of all; types, values and open ranges
of events; overlaps of states; directions of communications.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from nsys2prv._util.columns import number_rows
from nsys2prv.events.catalogue import load_catalogue
from nsys2prv.writers.paraver.check import (
    MOST_EXAMPLES,
    BlockReporter,
    CheckFindings,
    check_lines,
    split_lines,
)
from nsys2prv.writers.paraver.check.declarations import LAST_LABELLED, Header, Labels, Objects

#: The largest numbers that Paraver can keep, and the largest that it shows as they are.
LAST_TYPE = LAST_STATE = LAST_SIZE = 2**32 - 1
LAST_EXACT = 2**53
#: Stands behind sorted values, and is none.
BEHIND_VALUES = 2**63 - 1
#: Communications behind the end that are kept until the end is known.
MOST_LATE_COMMS = 1_000_000
#: Places of fields: of the time of any record; of states; of communications.
TIME, STATE_END, STATE_VALUE = 5, 6, 7
PHYSICAL_SEND, RECEIVER, RECEIVE, PHYSICAL_RECEIVE, SIZE, TAG = 6, 7, 11, 12, 13, 14
OPEN_ENDED = -1
#: What is kept of each (row, type): time, value and line of the last pair, ranges open, numbers of
#: pairs and of those with value 0.
_OPEN = np.dtype([(name, "i8") for name in ("time", "value", "line", "depth", "pairs", "zeros")])


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
        self.times.check_order(place, timed, numbers[first[timed] + TIME])
        self._add_events(place, sound.events)
        if len(sound.states):
            self._add_states(place, sound.states)
        if len(sound.comms):
            self._add_comms(place, sound.comms)

    def _add_events(self, place: BlockReporter, lines: np.ndarray) -> None:
        times = place.lines.numbers[place.lines.first[lines] + TIME]
        rows = self.objects.find_rows(place, lines, 1)
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
        rows = self.objects.find_rows(place, lines, 1)
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
        rows, end = rows[order], end[order]
        begins, last = _find_groups(rows)
        before = _shift(end, begins, self._state_ends[rows[begins]])
        place.report("state-overlap", np.sort(lines[order[begin[order] < before]]))
        self._state_ends[rows[last]] = end[last]

    def _add_comms(self, place: BlockReporter, lines: np.ndarray) -> None:
        numbers, first = place.lines.numbers, place.lines.first[lines]
        sent, physically_sent, received, physically_received, size = (
            numbers[first + field]
            for field in (TIME, PHYSICAL_SEND, RECEIVE, PHYSICAL_RECEIVE, SIZE)
        )
        kept = self.objects.find_rows(place, lines, 1) >= 0
        kept &= self.objects.find_rows(place, lines, RECEIVER) >= 0
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


class Times:
    """Checks times and keeps the extremes so far. first, last: least and greatest time of all records;
    end: of the trace as Paraver sees it, which communications do not move.
    """

    def __init__(self, duration: float) -> None:
        self.duration = duration
        self.first: int | None = None
        self.last = 0
        self.end = duration
        self._reached = -(2**63)
        self._late = np.empty(0, np.int64), np.empty(0, np.int64)

    def check_order(self, place: BlockReporter, lines: np.ndarray, times: np.ndarray) -> None:
        """Report lines with a time below an earlier one. lines, times: of all records in the order of
        the file, and those by which it must be sorted.
        """
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
        whether they move the trace's end, as all but communications do.
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
        late = np.flatnonzero(largest > self.end)[: MOST_LATE_COMMS - len(self._late[0])]
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


class Events:
    """Keeps what the events so far say of each type and row. pairs: number of their type:value pairs."""

    def __init__(self, rows: int, labels: Labels) -> None:
        self.pairs = 0
        self.types = ValueNumbers()
        self._rows, self._labels = rows, labels
        self._keys = ValueNumbers()
        self._state = np.empty(0, _OPEN)
        self._unlabelled: dict[int, int] = {}
        self._ranges = np.empty(0, bool)
        self._labelled = np.empty(0, bool)
        self._counts = np.empty(0, np.int64)
        self._tables: list[np.ndarray | None] = []

    def add(
        self, place: BlockReporter, lines: np.ndarray, rows: np.ndarray, times: np.ndarray
    ) -> None:
        """Check the events of a block (line, row and time of each), in the order of the file."""
        record, at = place.lines.find_pairs(lines)
        if not len(at):
            return
        types, values = place.lines.numbers[at], place.lines.numbers[at + 1]
        if int(values.min()) < 0:
            place.report("negative-value", lines[record[values < 0]])
        if int(values.max()) > LAST_EXACT:
            place.report("value-inexact", lines[record[values > LAST_EXACT]])
        sound = (types >= 0) & (types <= LAST_TYPE)
        if not sound.all():
            place.report("negative-type", np.unique(lines[record[types < 0]]))
            place.report("type-wraps", np.unique(lines[record[types > LAST_TYPE]]))
            record, types, values = record[sound], types[sound], values[sound]
        if not len(types):
            return
        pairs = _Pairs(place, lines[record], rows[record], times[record], values)
        self.pairs += len(types)
        code, new = self.types.number(types)
        if len(new):
            self._note_new_types(place, pairs.lines[new])
        self._counts += np.bincount(code, minlength=len(self.types))
        self._check_labels(pairs, code)
        self._follow_pairs(pairs, code)

    def _note_new_types(self, place: BlockReporter, lines: np.ndarray) -> None:
        """Note the types that occur for the first time in these lines."""
        new = self.types.values[-len(lines) :].tolist()
        for code, line in zip(new, lines.tolist(), strict=True):
            if code > LAST_LABELLED:
                place.report("type-beyond-labels", np.array([line]), code)
            elif code not in self._labels.types:
                self._unlabelled[code] = place.base + line
            labels = self._labels.values.get(code)
            known = [value for value in labels or () if 0 < value <= LAST_LABELLED]
            self._tables.append(np.array(known, np.int64) if labels else None)
        self._labelled = np.append(
            self._labelled, [table is not None for table in self._tables[-len(new) :]]
        )
        self._ranges = np.append(
            self._ranges,
            [code in self._labels.values or code not in self._labels.types for code in new],
        )
        self._counts = np.append(self._counts, np.zeros(len(new), np.int64))

    def _check_labels(self, pairs: _Pairs, code: np.ndarray) -> None:
        """Report values without a label, of types that have VALUES. code: numbers of the types."""
        ask = np.flatnonzero(self._labelled[code] & (pairs.values != 0))
        if not len(ask):
            return
        code, values, lines = code[ask], pairs.values[ask], pairs.lines[ask]
        order = np.argsort(
            code.astype(np.uint16) if len(self.types) < 1 << 16 else code, kind="stable"
        )
        bounds = np.flatnonzero(np.diff(code[order], prepend=-1, append=len(self.types)))
        for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            of_type = order[begin:end]
            number = code[of_type[0]]
            bad = of_type[~np.isin(values[of_type], self._tables[number])]
            if len(bad):
                self._report_unlabelled(
                    pairs.place, self.types.values[number], values[bad], lines[bad]
                )

    def _report_unlabelled(
        self, place: BlockReporter, code: int, values: np.ndarray, lines: np.ndarray
    ) -> None:
        """Report values of a type that have no label, in the order of the file."""
        beyond = values > LAST_LABELLED
        place.report("value-beyond-labels", lines[beyond], f"{code}:{values.max()}")
        values, lines = values[~beyond], lines[~beyond]
        if len(values):
            examples = [f"{code}:{value}" for value in values[: MOST_EXAMPLES + 1]]
            first = place.base + int(lines[0])
            place.findings.add("value-unlabelled", first, *examples, count=len(values))

    def _follow_pairs(self, pairs: _Pairs, code: np.ndarray) -> None:
        """Bring what is open up to date, by (row, type), and check what depends on the pair before."""
        place = pairs.place
        key, new = self._keys.number(code * self._rows + pairs.rows)
        if len(new):
            unseen = np.zeros(len(new), _OPEN)
            unseen["time"] = -1
            self._state = np.append(self._state, unseen)
        state = self._state
        # By key, in the order of the file: numbers of keys and places packed into one.
        bits = len(key).bit_length()
        packed = (key << bits) | np.arange(len(key))
        packed.sort()
        order = packed & ((1 << bits) - 1)
        key = packed >> bits
        values, times, lines = pairs.values[order], pairs.times[order], pairs.lines[order]
        ranges = self._ranges[code[order]]
        begins, last = _find_groups(key)
        groups = key[begins]
        time_before = _shift(times, begins, state["time"][groups])
        value_before = _shift(values, begins, state["value"][groups])
        zero = values == 0
        again = (times == time_before) & (value_before != 0)
        place.report("zero-length-range", np.sort(lines[again & ranges & zero]))
        place.report("value-overwritten", np.sort(lines[again & ~ranges & ~zero]))
        count, zeros = last - begins + 1, np.add.reduceat(zero, begins, dtype=np.int64)
        extra, state["depth"][groups] = _count_open(zero, begins, count, state["depth"][groups])
        place.report("end-without-begin", np.sort(lines[extra & ranges]))
        state["time"][groups] = times[last]
        state["value"][groups] = values[last]
        state["line"][groups] = place.base + lines[last]
        state["pairs"][groups] += count
        state["zeros"][groups] += zeros

    def close(self, end: float, findings: CheckFindings, of_labels: CheckFindings) -> None:
        """Report, after all records, open ranges and types without a label.

        findings, of_labels: those of the trace and of its .pcf.
        """
        state = self._state
        types = self._keys.values // self._rows
        ranges = self._ranges[types]
        standing = (state["value"] != 0) & (state["time"] < end)
        self._report("range-open-at-end", standing & ranges, types, findings)
        self._report("counter-open-at-end", standing & ~ranges, types, findings)
        pairs, zeros = np.zeros((2, len(self.types)), np.int64)
        np.add.at(pairs, types, state["pairs"])
        np.add.at(zeros, types, state["zeros"])
        # Where most begins have an end of their own, the type's ranges are pairs; of types known to
        # hold until the next, none is.
        holding = {
            field.code
            for layout in load_catalogue().layouts.values()
            if layout.is_state
            for field in layout.fields
        }
        codes = self.types.values.tolist()
        declared = [code in self._labels.values and code not in holding for code in codes]
        paired = (np.array(declared, bool) & (3 * zeros > pairs))[types]
        self._report(
            "range-unbalanced",
            paired & (state["value"] == 0) & (state["depth"] > 0),
            types,
            findings,
        )
        counts = dict(zip(codes, self._counts.tolist(), strict=True))
        # The first of several lines counts.
        suspects = dict(reversed(self._labels.suspects))
        for code, line in self._unlabelled.items():
            findings.add("type-unlabelled", line, code, count=counts[code])
            if code in suspects:
                of_labels.add("type-among-values", suspects[code], code)

    def _report(
        self, rule: str, chosen: np.ndarray, types: np.ndarray, findings: CheckFindings
    ) -> None:
        places = np.flatnonzero(chosen)
        if len(places):
            lines = self._state["line"][places]
            named = dict.fromkeys(self.types.values[types[places]].tolist())
            examples = [f"type {code}" for code in named]
            findings.add(rule, int(lines.min()), *examples, count=len(places))


class _Pairs(Struct, frozen=True):
    """type:value pairs of a block, in the order of the file; arrays have an element for each."""

    #: The block.
    place: BlockReporter
    #: Index of the line in the block.
    lines: np.ndarray
    #: Row of the event.
    rows: np.ndarray
    #: Time of the event.
    times: np.ndarray
    #: Value of the pair.
    values: np.ndarray


def _count_open(
    is_end: np.ndarray, begins: np.ndarray, count: np.ndarray, depth: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return which pairs end a range while none is open, which leaves it at none, and how many are
    open after each group of pairs. begins, count, depth: of the groups, their first pair, their
    number of pairs, and how many ranges are open before.
    """
    step = 1 - 2 * is_end.astype(np.int64)
    level = np.cumsum(step)
    start = level[begins] - step[begins] - depth
    # Every group lies below the one before, so that the running minimum begins anew with each.
    drop = np.arange(len(begins)) * (2 * len(step) + int(depth.sum()) + 2)
    shift = np.repeat(start + drop, count)
    lowest = np.minimum.accumulate(level - shift) + np.repeat(drop, count)
    np.minimum(lowest, 0, out=lowest)
    level -= np.repeat(start, count)
    last = begins + count - 1
    return lowest < _shift(lowest, begins, 0), level[last] - lowest[last]


def _find_groups(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first and the last element of each run of equal keys (from 0 up)."""
    begins = np.flatnonzero(np.diff(keys, prepend=-1))
    return begins, np.append(begins[1:], len(keys)) - 1


def _shift(values: np.ndarray, begins: np.ndarray, first: np.ndarray | int) -> np.ndarray:
    """Return the value before each; `first` before those where groups begin."""
    before = np.empty_like(values)
    before[1:] = values[:-1]
    before[begins] = first
    return before


class ValueNumbers:
    """Numbers distinct values in the order in which they are met."""

    def __init__(self) -> None:
        #: Value of each number.
        self.values = np.empty(0, np.int64)
        #: The numbers by value; their values, and behind them one that is none.
        self._order = np.empty(0, np.int64)
        self._sorted = np.array([BEHIND_VALUES])

    def __len__(self) -> int:
        return len(self.values)

    def number(self, column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the number of each value of a column, and the places of those never met before,
        each once, in the order of their numbers.
        """
        first, codes = number_rows(column)
        distinct = column[first]
        new = np.sort(first[self._sorted[np.searchsorted(self._sorted, distinct)] != distinct])
        if len(new):
            self.values = np.append(self.values, column[new])
            self._order = np.argsort(self.values)
            self._sorted = np.append(self.values[self._order], BEHIND_VALUES)
        return self._order[np.searchsorted(self._sorted, distinct)][codes], new
