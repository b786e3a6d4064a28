"""Place the iterations of processes in time, by what repeats in the sequences of their events (repeats.py)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nsys2prv.figures.repeats import Events, find_repeated
from nsys2prv.figures.thresholds import ALIKE, LEAST_COUNT, NEARLY_SAME, REGULAR


class Period:
    """Iterations of a process."""

    #: Begins, ascending: as long before the first event as the host usually takes to prepare it, for that
    #: belongs to it. End of the last one (ns).
    begins: np.ndarray
    end: int
    #: Whether what repeats is a whole number of iterations: else any event may be their first.
    is_sure: bool

    def __init__(self, events: Events, marks: np.ndarray) -> None:
        """marks: places of an event of each iteration."""
        self._events, self._marks, name = events, marks, events.name
        sizes = np.diff(marks)
        usual = int(np.argmin(abs(sizes - np.median(sizes))))
        begin, end = marks[usual : usual + 2].tolist()
        first, last = int(marks[0]), int(marks[-1])
        self._size, self._least, self._most = end - begin, int(sizes.min()), int(sizes.max())
        back = min(self._size, first)
        # How many events before the first mark, and from the last one on, are as in the usual iteration.
        before = _count_alike(name[first - back : first][::-1], name[end - back : end][::-1])
        self._behind = _count_alike(name[last : last + self._size], name[begin:end])
        self.is_sure = self._least <= before + self._behind <= self._size
        if before < back and before + self._behind < self._size:
            # The first one begins otherwise: by where the last one ends.
            before = min(self._size - self._behind, first)
        self._cut(before)

    def _cut(self, lead: int) -> None:
        """Set begins and end. lead: how many events before their marks iterations begin."""
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
        """Usual length (ns)."""
        return float(np.median(np.diff(self.begins, append=self.end)))

    def is_like(self, other: Period) -> bool:
        """Return whether iterations of another process last as long, about if there are as many."""
        more = abs(len(self.begins) - len(other.begins))
        apart = REGULAR - 1 if more <= 1 else NEARLY_SAME
        return abs(self.usual - other.usual) <= apart * self.usual

    def move_to(self, other: Period) -> None:
        """Begin where iterations of another process do, if any event may be the first."""
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
    """Return what may be the iterations of a process, the shortest first, none where it does not repeat
    itself.
    """
    for repeated in find_repeated(events):
        periods = [Period(events, one.places) for one in repeated]
        if found := [one for one in periods if len(one.begins) >= LEAST_COUNT]:
            return found
    return []


def choose_alike(found: Sequence[Sequence[Period]]) -> list[Period]:
    """Return the iterations of several processes, the shortest that all have that repeat themselves, cut at
    the same places: none where these differ, or most do not. found: of each process what may be its iterations.
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
    """Return how many at the begin of some are as those of others, nearly all of them."""
    alike = some[: len(others)] == others[: len(some)]
    enough = alike & (np.cumsum(alike) >= ALIKE * np.arange(1, len(alike) + 1))
    return int(np.flatnonzero(enough)[-1]) + 1 if enough.any() else 0
