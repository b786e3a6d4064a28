"""Find iterations in the sequence of a process's events: the kernels of a stream, or the MPI calls
of a thread.

A mark is an event, or a few consecutive events, that recur. The time from one mark to the next is
an interval: a layer, a micro-batch, a step, or ten steps and an evaluation. Iterations are the
shortest intervals that contain everything that the job does repeatedly: nearly all kinds of events
by time; its communication; and the update of weights, or otherwise the exchange between host and
device. Layers and micro-batches lack some of these. An occasional evaluation adds nothing that
steps do not contain. If a host only launches, layers look like iterations. Then intervals count
only if there are very many, if they are tiny, or if they consist of shorter ones.

:class:`Period` places the iterations found in time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, starmap

import numpy as np
from msgspec import Struct

from nsys2prv._util.columns import factorize_together
from nsys2prv.figures.thresholds import (
    ALIKE,
    AS_MANY,
    LEAST_COUNT,
    LEAST_KERNELS,
    LEAST_REGULAR,
    LEAST_SAME,
    MOST_IN_LAYER,
    MOST_LAYERS,
    MOST_VARIANCE,
    NEARLY_SAME,
    REGULAR,
    SAME_BY_CHANCE,
    SELDOM,
    TINY,
    USUAL,
)

#: Events of a mark, at most; marks that are tried; events that are looked at for them.
LONGEST_MARK, MOST_TRIED, MOST_EVENTS = 8, 24, 1_000_000
#: Times of absent events.
NEVER = np.zeros(0, np.int64)


class Events(Struct, frozen=True):
    """Events of a stream or a thread in order, among which a repetition is looked for."""

    #: Kind, begin and end (ns) of each event.
    name: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    #: Times when devices communicate, and when they update weights (ns, ascending): each iteration has some
    #: if the process ever does it.
    collectives: np.ndarray = NEVER
    updates: np.ndarray = NEVER
    #: Times when the host communicates: each iteration has some if it does so repeatedly.
    messages: np.ndarray = NEVER
    #: Times when the host waits for the device, for each way to do it: each iteration has one of these. Times
    #: when it sends something to the device, as in each iteration, or the weights of each layer.
    waits: Sequence[np.ndarray] = ()
    loads: np.ndarray = NEVER


class Repeated(Struct, frozen=True):
    """Consecutive intervals of a process that are alike, and so may be its iterations."""

    #: Places of their marks; usual number of events.
    places: np.ndarray
    size: float
    #: Their completeness, and whether they have what each iteration has, or None if nothing decides.
    complete: float
    has_signs: bool | None


def find_repeated(events: Events) -> Iterator[list[Repeated]]:
    """Yield lists of intervals that may be the iterations of a process, shorter intervals first.
    Later candidates count only if earlier ones are not iterations.
    """
    if len(events.name):
        yield from _Sequence(events).list_repeated()


class _Sequence:
    """The events of a process that are examined."""

    def __init__(self, events: Events) -> None:
        self.events, (_, self.name) = events, factorize_together(events.name)
        #: Each event counts until the next one begins.
        self.lasts = np.diff(events.begin, append=events.end[-1]).astype(float)
        order = _order(self.name)
        again = np.diff(self.name[order]) == 0
        #: Place of the event of the same name before each, -1 for none.
        self.before = np.full(len(order), -1)
        self.before[order[1:][again]] = order[:-1][again]

    def list_repeated(self) -> Iterator[list[Repeated]]:
        """Yield complete sets of similar intervals; of sets with about the same interval size, the
        most complete. Sets with fewer signs than others are excluded.
        """
        found: list[Repeated] = []
        for codes in self._list_codes():
            marks: dict[int, tuple[float, np.ndarray]] = {}
            for variance, own in chain.from_iterable(starmap(self._list_recurring, codes)):
                if variance < marks.get(len(own), (MOST_VARIANCE,))[0]:
                    marks[len(own)] = variance, own
            found += self._find_alike(marks)
            yield _choose(found)

    def _find_alike(self, marks: Mapping[int, tuple[float, np.ndarray]]) -> Iterator[Repeated]:
        """Yield sets of similar intervals between marks. marks: number of marks -> relative
        variance and places. The most regular marks are tried.
        """
        chosen = sorted(marks.values(), key=lambda one: (round(one[0], 1), -len(one[1])))
        for _, places in chosen[:MOST_TRIED]:
            places = self._keep_regular(places)
            if len(places) >= LEAST_COUNT and self._is_repeated(places):
                share, complete = self._find_what_is_usual(places)
                if share >= ALIKE:
                    size = float(np.median(np.diff(places)))
                    signs = find_signs(self.events, self.events.begin[places], size)
                    yield Repeated(places, size, complete, signs)

    # ---- marks --------------------------------------------------------------------------------

    def _list_codes(self) -> Iterator[list[tuple[np.ndarray, np.ndarray]]]:
        """Yield (codes, places) in the sequence: each event, the first of several equal ones, and
        two of these in a row; then more of these in a row.
        """
        name = self.name
        places = np.arange(len(name))
        if len(name) > MOST_EVENTS:
            # Marks of long intervals are rare.
            counts = np.bincount(name)
            order = np.argsort(counts, kind="stable")
            rare = np.cumsum(counts[order]) <= MOST_EVENTS
            rare[0] = True
            places = np.flatnonzero(np.isin(name, order[rare]))
        found = [(name[places], places)]
        places = places[np.append(True, np.diff(name[places]) != 0)]
        # Numbers for the consecutive events that begin at each place.
        numbers, length = name[places], 1
        found.append((numbers, places))
        while length < LONGEST_MARK and len(numbers) > length:
            # What comes seldom does not come more often with what follows.
            own = np.flatnonzero((numbers[:-length] >= 0) & (numbers[length:] >= 0))
            _, codes = factorize_together(numbers[own], numbers[own + length])
            often = np.bincount(codes, minlength=1)[codes] >= LEAST_COUNT
            numbers, length = np.full(len(numbers) - length, -1), 2 * length
            numbers[own[often]] = codes[often]
            yield [*found, (codes[often], places[own[often]])]
            found = []
        yield found

    def _list_recurring(
        self, codes: np.ndarray, places: np.ndarray
    ) -> Iterator[tuple[float, np.ndarray]]:
        """Yield the places of codes that recur over most of the sequence, with the relative
        variance of their distances.
        """
        if not len(codes):
            return
        order = _order(codes)
        first = np.flatnonzero(np.append(True, np.diff(codes[order]) != 0))
        count = np.diff(first, append=len(codes))
        own = places[order]
        distance = np.diff(own, append=0).astype(float)
        distance[first + count - 1] = 0
        total = np.add.reduceat(distance, first)
        squares = np.add.reduceat(distance * distance, first)
        variance = squares * (count - 1) / np.maximum(total, 1) ** 2 - 1
        recurs = (
            (count >= LEAST_COUNT)
            & (total >= LEAST_KERNELS * (1 - 1 / count) * len(self.name))
            & (variance < MOST_VARIANCE)
        )
        for at in np.flatnonzero(recurs)[np.argsort(variance[recurs], kind="stable")].tolist():
            yield float(variance[at]), own[first[at] : first[at] + count[at]]

    # ---- intervals ----------------------------------------------------------------------------

    def _keep_regular(self, places: np.ndarray) -> np.ndarray:
        """Return the longest part of the marks in which most distances are similar."""
        sizes = np.diff(places)
        usual = np.median(sizes)
        alike = (sizes <= AS_MANY * usual) & (AS_MANY * sizes >= usual)
        score = np.append(0, np.cumsum(np.where(alike, 1, -1)))
        lowest = np.minimum.accumulate(score)
        last = int(np.argmax(score - lowest))
        first = int(np.argmax(score[: last + 1] == lowest[last]))
        return places[first : last + 1]

    def _is_repeated(self, places: np.ndarray) -> bool:
        """Return True if intervals have the same contents, cover most of the sequence, and are
        about equally long.
        """
        count = len(places) - 1
        first, last = int(places[0]), int(places[-1])
        sizes, lasts = np.diff(places), np.diff(self.events.begin[places])
        # The first may take however long, for what is done once, and of many another one.
        time, usual = lasts[count > LEAST_COUNT :].sum(), np.median(lasts)
        time -= lasts[1:].max() * (count >= SAME_BY_CHANCE)
        is_usual = (lasts <= REGULAR * usual) & (REGULAR * lasts >= usual)
        # A few of about the same size may be so by chance.
        apart = NEARLY_SAME * np.median(sizes) * (count >= SAME_BY_CHANCE)
        is_same = abs(sizes - np.median(sizes)) <= apart
        return bool(
            (last - first) * (1 + 1 / count) >= LEAST_KERNELS * len(self.name)
            and lasts[is_usual].sum() >= LEAST_REGULAR * time
            and sizes[is_same].sum() >= LEAST_SAME * (last - first)
        )

    def _find_what_is_usual(self, places: np.ndarray) -> tuple[float, float]:
        """Return the share of time in kinds of events that nearly all intervals contain, and the
        quality of the marks.

        The quality is the share of intervals with each kind, weighted by time, minus the share of
        intervals that consist of several.
        """
        first, last, sizes = places[0], places[-1], np.diff(places)
        name, spent = self.name[first:last], self.lasts[first:last].copy()
        # One may be stalled however long.
        spent[np.argmax(spent)] = 0
        is_first = self.before[first:last] < np.repeat(places[:-1], sizes)
        having = np.bincount(name[is_first], minlength=name.max() + 1) / len(sizes)
        times = sizes / np.median(sizes)
        is_several = (times > AS_MANY) & (abs(times - times.round()) <= NEARLY_SAME * times)
        several = sizes[is_several].sum() / sizes.sum()
        time = max(spent.sum(), 1)
        share = spent[having[name] >= USUAL].sum() / time
        return float(share), round(float((spent * having[name]).sum() / time - several), 2)


def find_signs(events: Events, edges: np.ndarray, size: float) -> bool | None:
    """Return True if nearly all intervals contain what each iteration of a job contains, such as
    communication; False if not; None if this cannot be decided. edges: times between them (ns).
    size: usual number of kernels per interval.
    """

    def share(times: np.ndarray) -> float:
        return float(np.mean(np.diff(np.searchsorted(times, edges)) > 0))

    def have(times: np.ndarray) -> bool:
        return share(times) >= USUAL

    def recurs(times: np.ndarray) -> bool:
        return bool(np.diff(np.searchsorted(times, edges[[0, -1]]))[0] >= LEAST_COUNT)

    needed = [times for times in (events.collectives, events.updates) if len(times)]
    needed += [events.messages] if recurs(events.messages) else []
    if not all(map(have, needed)):
        return False
    if len(events.updates) or recurs(events.messages):
        return True
    if any(recurs(times) and have(times) for times in events.waits):
        return True
    others = [times for times in (*events.waits, events.loads) if recurs(times)]
    if have(events.loads) or size <= TINY:
        others = [times for times in others if SELDOM < share(times) < USUAL]
    return False if others else None


def _choose(found: Sequence[Repeated]) -> list[Repeated]:
    """Return the intervals that may be iterations, shorter ones first. For hosts that only launch,
    return the longest, unless they may be layers.
    """
    chosen = [one for one in found if one.has_signs]
    if not chosen:
        bare = [one for one in found if one.has_signs is None]
        longest = max((one.size for one in bare), default=0)
        is_made_of_others = longest > REGULAR * min((one.size for one in found), default=0)
        chosen = [one for one in bare if REGULAR * one.size > longest]
        if not is_made_of_others:
            chosen = [
                one
                for one in chosen
                if len(one.places) > MOST_LAYERS or not TINY < one.size <= MOST_IN_LAYER
            ]
    best: list[Repeated] = []
    for one in sorted(chosen, key=lambda one: (-one.complete, -len(one.places))):
        if not any(abs(one.size - other.size) <= NEARLY_SAME * other.size for other in best):
            best.append(one)
    return sorted(best, key=lambda one: one.size)


def _order(codes: np.ndarray) -> np.ndarray:
    """Return the stable sort order of non-negative numbers."""
    # numpy sorts 16 bits by radix.
    order = np.argsort(codes.astype(np.uint16), kind="stable")
    if codes.max(initial=0) >> 16:
        order = order[np.argsort((codes >> 16).astype(np.uint16)[order], kind="stable")]
    return order


class Period:
    """The iterations of a process: their starts and the end of the last one (ns)."""

    #: Begins, ascending: as long before the first event as the host usually takes to prepare it, for that
    #: belongs to it. End of the last one (ns).
    begins: np.ndarray
    end: int
    #: Whether a repetition is a whole number of iterations: otherwise any event may be their first.
    is_sure: bool

    def __init__(self, events: Events, marks: np.ndarray) -> None:
        """Set up the iterations. marks: index of an event of each iteration."""
        self._events, self._marks, name = events, marks, events.name
        sizes = np.diff(marks)
        usual = int(np.argmin(abs(sizes - np.median(sizes))))
        begin, end = marks[usual : usual + 2].tolist()
        first, last = int(marks[0]), int(marks[-1])
        self._size, self._least, self._most = end - begin, int(sizes.min()), int(sizes.max())
        back = min(self._size, first)
        # Number of events before the first mark, and from the last one on, that are as in the usual
        # iteration.
        before = _count_alike(name[first - back : first][::-1], name[end - back : end][::-1])
        self._behind = _count_alike(name[last : last + self._size], name[begin:end])
        self.is_sure = self._least <= before + self._behind <= self._size
        if before < back and before + self._behind < self._size:
            # The first one begins otherwise: by where the last one ends.
            before = min(self._size - self._behind, first)
        self._cut(before)

    def _cut(self, lead: int) -> None:
        """Set starts and ends. lead: number of events before the mark at which an iteration begins."""
        edges, events = self._marks - lead, self._events
        edges = edges[edges >= 0]
        behind = int(edges[-1]) + self._size
        if lead + self._behind < self._least:
            edges, behind = edges[:-1], int(edges[-1])
        else:
            # What follows the last one as it follows others, such as an evaluation.
            more = events.name[behind : int(edges[-1]) + self._most]
            known = np.isin(more, events.name[self._marks[0] : self._marks[-1]])
            behind += int(np.argmin(np.append(known, False)))
        begin, inner = events.begin[edges], edges > 0
        pauses = begin[inner] - np.maximum.accumulate(events.end)[edges[inner] - 1]
        self.begins = begin.copy()
        self.begins[inner] -= np.clip(pauses, 0, int(np.median(pauses)) if inner.any() else 0)
        self.end = int(events.end[edges[-1] : behind].max())
        self._lead = lead

    @property
    def usual(self) -> float:
        """Usual length of an iteration (ns)."""
        return float(np.median(np.diff(self.begins, append=self.end)))

    def is_like(self, other: Period) -> bool:
        """Return True if the iterations of another process last as long. Rough agreement is enough
        if both have almost the same number of iterations.
        """
        more = abs(len(self.begins) - len(other.begins))
        apart = REGULAR - 1 if more <= 1 else NEARLY_SAME
        return abs(self.usual - other.usual) <= apart * self.usual

    def move_to(self, other: Period) -> None:
        """Move the starts of the iterations to those of another process's iterations, if any event
        may be the first of an iteration.
        """
        if self.is_sure or other is self:
            return
        middles = (other.begins[1:] + other.begins[:-1]) // 2
        wanted = other.begins[np.searchsorted(middles, self.begins)]
        if abs(np.median(wanted - self.begins)) > NEARLY_SAME * self.usual:
            places = np.searchsorted(self._events.begin, np.stack([self.begins, wanted]))
            lead = (self._lead - int(np.median(places[1] - places[0]))) % self._size
            # Rather where the last one ends, if that is near.
            ended = self._size - self._behind
            self._cut(ended if abs(lead - ended) <= NEARLY_SAME * self._size else lead)


def find_periods(events: Events) -> list[Period]:
    """Find what may be the iterations of a process, the shortest first; empty if it does not repeat
    itself.
    """
    for repeated in find_repeated(events):
        periods = [Period(events, one.places) for one in repeated]
        if found := [one for one in periods if len(one.begins) >= LEAST_COUNT]:
            return found
    return []


def choose_alike(found: Sequence[Sequence[Period]]) -> list[Period]:
    """Choose the iterations of several processes: the shortest that all repeating processes have,
    starting at the same place. Return nothing if they differ, or if most processes do not repeat.
    found: candidates of each process.
    """
    repeating = [own for own in found if own]
    if 2 * len(repeating) > len(found):
        for one in repeating[0]:
            alike = [next(filter(one.is_like, own), None) for own in repeating]
            if None not in alike:
                first = max(alike, key=lambda one: (one.is_sure, len(one.begins)))
                for other in alike:
                    other.move_to(first)
                return alike
    return []


def _count_alike(some: np.ndarray, others: np.ndarray) -> int:
    """Return how many of the first values of `some` match `others`, allowing few exceptions."""
    alike = some[: len(others)] == others[: len(some)]
    enough = alike & (np.cumsum(alike) >= ALIKE * np.arange(1, len(alike) + 1))
    return int(np.flatnonzero(enough)[-1]) + 1 if enough.any() else 0
