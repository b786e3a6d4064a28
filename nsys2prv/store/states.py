"""What is under way when: ranges of one state each, from overlapping ranges of several classes, in passes over time."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

#: Before all times.
NEVER = int(np.iinfo(np.int64).min)


class Sweep:
    """Goes once through the ranges of one device. Between two passes it keeps an end for each class, and the state under way.

    A state is the sum of the bits of the classes of which some range is under way; 0 is none.
    """

    def __init__(self) -> None:
        self._ends: dict[int, int] = {}
        self._since, self._state = NEVER, 0

    def until(self, found: Mapping[int, tuple[np.ndarray, np.ndarray]], last: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Begins, ends (int64 ns) and states of the ranges of one state other than 0 that end before `last`, in their order.

        found: bit of a class -> begins and ends of the ranges of it that begin from the pass before on and before `last` (None: all
        others).
        """
        times, steps = [], []
        for bit in sorted({*found, *self._ends}):
            begins, ends = self._stretches(bit, *found.get(bit, (np.zeros(0, np.int64),) * 2), last)
            times += [begins, ends]
            steps += [np.full(len(begins), bit), np.full(len(ends), -bit)]
        time = np.concatenate([*times, np.zeros(0, np.int64)])
        order = np.argsort(time, kind="stable")
        time = time[order]
        state = self._state + np.cumsum(np.concatenate([*steps, np.zeros(0, np.int64)])[order])
        # Of changes at one time only what they lead to counts, and only if it is another state.
        final = np.append(time[1:] != time[:-1], True)[:len(time)]
        time, state = time[final], state[final]
        other = np.diff(state, prepend=self._state) != 0
        time, state = np.append(self._since, time[other]), np.append(self._state, state[other])
        self._since, self._state = int(time[-1]), int(state[-1])
        busy = state[:-1] != 0
        return time[:-1][busy], time[1:][busy], state[:-1][busy]

    def _stretches(self, bit: int, begin: np.ndarray, end: np.ndarray, last: int | None) -> tuple[np.ndarray, np.ndarray]:
        """Where stretches of a class begin, and where they, and the one under way, end if that is before `last`."""
        order = np.argsort(begin, kind="stable")
        begin, end = begin[order], end[order]
        # until[k]: to where there was something of the class under way when range k begins.
        until = np.maximum.accumulate(np.append(self._ends.pop(bit, NEVER), end))
        apart = begin > until[:-1]
        ends = np.append(until[:-1][apart], until[-1])
        ends = ends[ends != NEVER]
        if len(ends) and last is not None and ends[-1] >= last:
            self._ends[bit] = int(ends[-1])
            ends = ends[:-1]
        return begin[apart], ends
