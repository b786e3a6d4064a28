"""Look up the latest time of a group before another time, in columns."""

from __future__ import annotations

import numpy as np

from nsys2prv._util.columns import factorize


def latest_before(
    group: np.ndarray, time: np.ndarray, at_group: np.ndarray, at: np.ndarray
) -> np.ndarray:
    """Return for each (at_group, at) the index of the latest time of that group that is not later,
    -1 for none.
    """
    if not len(time) or not len(at):
        return np.full(len(at), -1, np.int64)
    _, codes = factorize(np.concatenate([group, at_group]))
    span = int(max(time.max(), at.max())) + 1
    if span * (int(codes.max()) + 1) < 1 << 62:
        keys, asked = codes[: len(group)] * span + time, codes[len(group) :] * span + at
    else:
        _, ranks = np.unique(np.concatenate([time, at]), return_inverse=True)
        keys, asked = (
            codes[: len(group)] * len(ranks) + ranks[: len(time)],
            codes[len(group) :] * len(ranks) + ranks[len(time) :],
        )
    order = np.argsort(keys, kind="stable")
    place = np.searchsorted(keys[order], asked, "right") - 1
    found = order[np.maximum(place, 0)]
    return np.where((place >= 0) & (codes[found] == codes[len(group) :]), found, -1)
