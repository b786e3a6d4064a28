"""From changes of state to state records: each lasts until the next change of its object, so that they chain without a gap."""

from __future__ import annotations

import numpy as np

from nsys2prv.states.innermost import Changes


class Records:
    """The state that each object is in since when; changes, in the order of time, turn it into records.

    state: of each object at time 0.
    """

    def __init__(self, state: np.ndarray) -> None:
        self._state = state.copy()
        self._since = np.zeros(len(state), np.int64)

    def after(self, changes: Changes) -> tuple[np.ndarray, ...]:
        """Object, begin, end and state of the records that these changes end, by begin."""
        object_, time, state = changes.object, changes.time, changes.state
        # An object's changes with its present state in front of them.
        seen, first = np.unique(object_, return_index=True)
        object_ = np.insert(object_, first, seen)
        time = np.insert(time, first, self._since[seen])
        state = np.insert(state, first, self._state[seen])
        other = np.append(True, (np.diff(object_) != 0) | (np.diff(state) != 0)) if len(object_) else np.zeros(0, bool)
        object_, time, state = object_[other], time[other], state[other]
        last = np.append(np.diff(object_) != 0, True) if len(object_) else np.zeros(0, bool)
        self._since[object_[last]], self._state[object_[last]] = time[last], state[last]
        ended = np.flatnonzero(~last)
        return _by_begin(object_[ended], time[ended], time[ended + 1], state[ended])

    def rest(self, objects: np.ndarray, end: int) -> tuple[np.ndarray, ...]:
        """The records of these objects that last until the end."""
        return _by_begin(objects, self._since[objects], np.full(len(objects), end), self._state[objects])


def _by_begin(object_: np.ndarray, begin: np.ndarray, end: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, ...]:
    kept = np.flatnonzero(begin < end)
    order = kept[np.argsort(begin[kept], kind="stable")]
    return object_[order], begin[order], end[order], state[order]
