"""Find, for every time, the state of the innermost open range of each object; vectorized, ranges
may overlap arbitrarily.

Times are int64 ns. Objects are small indices. All functions are about one stretch of time, first <=
time < limit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import astuple

#: No range tells.
NOTHING = -1
#: Keys of an object and a time must stay below this.
_LARGEST_KEY = 1 << 62


class Ranges(Struct):
    """Columns of equal length: object, begin, end, the state that each implies, and whether it
    yields to ranges that do not.
    """

    #: Row of the trace.
    object: np.ndarray
    #: ns.
    begin: np.ndarray
    #: ns.
    end: np.ndarray
    #: That the range implies.
    state: np.ndarray
    #: Whether it yields to ranges that do not.
    yields: np.ndarray

    def __len__(self) -> int:
        return len(self.begin)

    def take(self, rows: np.ndarray) -> Ranges:
        return Ranges(*(column[rows] for column in astuple(self)))

    @classmethod
    def concat(cls, parts: list[Ranges]) -> Ranges:
        return cls(*map(np.concatenate, zip(*map(astuple, parts), strict=True)))

    @classmethod
    def make_empty(cls) -> Ranges:
        return cls(*(np.zeros(0, np.int64) for _ in range(4)), np.zeros(0, bool))


class Changes(Struct):
    """From `time` on, `object` has `state`. By object, then time; at most one at a time of an
    object.
    """

    #: Row of the trace.
    object: np.ndarray
    #: ns.
    time: np.ndarray
    #: From then on.
    state: np.ndarray


class Keys:
    """One number for an object and a time of the stretch, in the order of object, then time.

    times: all that may be asked for. Where the stretch is too long for so many objects (damaged
    reports span years), each time counts as its place among them.
    """

    def __init__(self, first: int, limit: int, objects: int, times: Sequence[np.ndarray]) -> None:
        self._first, self._limit = first, limit
        self._places: np.ndarray | None = None
        #: Keys of one object; that of the limit is the last.
        self.span = limit - first + 1
        if self.span * max(objects, 1) >= _LARGEST_KEY:
            self._places = np.unique(
                np.clip(np.concatenate([*times, [first, limit]]), first, limit)
            )
            self.span = len(self._places)

    def join(self, object_: np.ndarray, time: np.ndarray) -> np.ndarray:
        inside = np.clip(time, self._first, self._limit)
        return object_ * self.span + (
            inside - self._first if self._places is None else np.searchsorted(self._places, inside)
        )

    def split(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return objects and times."""
        object_ = keys // self.span
        place = keys - object_ * self.span
        return object_, place + self._first if self._places is None else self._places[place]


def find_innermost_states(ranges: Ranges, keys: Keys) -> tuple[np.ndarray, np.ndarray]:
    """Return the keys at which the innermost of these ranges changes, ascending, and its state from
    there on (NOTHING where none is open).

    Innermost is what began last; of ranges that began together the shortest, then the one of the
    greatest state. At the stretch's limit nothing changes; before the first key of an object
    nothing is open. What began before the stretch counts as begun with it, in its order.
    """
    begin, end = keys.join(ranges.object, ranges.begin), keys.join(ranges.object, ranges.end)
    order = np.argsort(begin, kind="stable")
    together = np.diff(begin[order]) == 0
    if together.any():
        tied = np.flatnonzero(np.append(together, False) | np.append(False, together))
        rows = order[tied]
        order[tied] = rows[
            np.lexsort((ranges.state[rows], -ranges.end[rows], ranges.begin[rows], begin[rows]))
        ]
    begin, end, state = begin[order], end[order], ranges.state[order]
    outer = _find_enclosing(begin, end)
    changes = np.sort(np.concatenate((begin, end)))  # numpy's unique is many times as slow
    changes = changes[np.append(True, changes[1:] != changes[:-1])] if len(changes) else changes
    changes = changes[(changes + 1) % keys.span != 0]
    innermost = np.searchsorted(begin, changes, "right") - 1
    closed = np.flatnonzero(end[innermost] <= changes)
    while len(closed):
        innermost[closed] = outer[innermost[closed]]
        closed = closed[innermost[closed] >= 0]
        closed = closed[end[innermost[closed]] <= changes[closed]]
    return changes, np.where(innermost >= 0, state[innermost], NOTHING)


def _find_enclosing(begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return, for each range, the last of those before it that ends later, NOTHING where none does
    that is still open at its begin.

    Every range points to the one before it, and on to where that points as long as that ends no
    later: what lies between ends earlier still. So all go on at once, and steps grow as others' do.
    """
    outer = np.arange(-1, len(begin) - 1)
    if len(begin):
        outer[1:][begin[1:] >= np.maximum.accumulate(end)[:-1]] = NOTHING
    going = np.flatnonzero(outer >= 0)
    going = going[end[outer[going]] <= end[going]]
    while len(going):
        outer[going] = outer[outer[going]]
        going = going[outer[going] >= 0]
        going = going[end[outer[going]] <= end[going]]
    return outer


def overlay_layers(
    layers: list[tuple[np.ndarray, np.ndarray]], before: np.ndarray, keys: Keys
) -> Changes:
    """Overlay layers of (keys, states): at each time the first layer with a state counts; the last
    one always has one.

    before: of each object what the last layer says before its first key; the others say NOTHING
    then.
    """
    where = np.concatenate([layer_keys for layer_keys, _ in layers])
    layer = np.repeat(np.arange(len(layers)), [len(layer_keys) for layer_keys, _ in layers])
    says = np.concatenate([states for _, states in layers])
    order = np.argsort(where, kind="stable")
    where, layer, says = where[order], layer[order], says[order]
    object_, time = keys.split(where)
    place = np.arange(len(where))
    start = np.maximum.accumulate(np.where(np.diff(object_, prepend=-1) != 0, place, 0))
    state = np.full(len(where), NOTHING)
    for number in range(len(layers)):
        last = np.maximum.accumulate(np.where(layer == number, place, -1))
        has_state = last >= start
        default = before[object_] if number == len(layers) - 1 else NOTHING
        state = np.where(state == NOTHING, np.where(has_state, says[last], default), state)
    final = np.ones(len(where), bool)
    final[:-1] = np.diff(where) != 0
    return Changes(object_[final], time[final], state[final])
