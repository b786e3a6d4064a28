"""Merging lines of different shapes by time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from nsys2prv.paraver import compiled, plain
from nsys2prv.paraver.lines import Batch


def merged(batches: Sequence[Batch]) -> Iterator[np.ndarray]:
    """Yield the text of all lines by time, in pieces (uint8).

    Lines of equal time keep the order of the batches, then of their rows; those of batches with
    ties go by these among themselves.
    """
    batches = [batch for batch in batches if len(batch.times)]
    if not batches:
        return
    times = np.concatenate([batch.times for batch in batches])
    order = _order(times)
    owner = np.repeat(
        np.arange(len(batches), dtype=np.uint16), [len(batch.times) for batch in batches]
    )
    _break_ties(order, times, owner, batches)
    yield from (compiled if compiled.AVAILABLE else plain).texts(batches, owner, order)


def _order(times: np.ndarray) -> np.ndarray:
    """Return the stable order of the times: a plain sort of time and row packed into one number,
    where that fits.
    """
    bits = len(times).bit_length()
    low = int(times.min())
    if (int(times.max()) - low).bit_length() + bits > 62:
        return np.argsort(times, kind="stable")
    packed = (times - low) << bits
    packed |= np.arange(len(times))
    packed.sort()
    packed &= (1 << bits) - 1
    return packed


def _break_ties(
    order: np.ndarray, times: np.ndarray, owner: np.ndarray, batches: Sequence[Batch]
) -> None:
    """Reorder, among the lines that have ties, those of equal time; all other lines keep their
    places.
    """
    tied = np.array([batch.ties is not None for batch in batches])
    if not tied.any():
        return
    places = np.flatnonzero(tied[owner[order]])
    time = times[order[places]]
    equal = time[1:] == time[:-1]
    if not equal.any():
        return
    together = np.flatnonzero(np.append(equal, False) | np.append(False, equal))
    places, time = places[together], time[together]
    ties = np.concatenate(
        [
            batch.ties if batch.ties is not None else np.zeros(len(batch.times), np.int64)
            for batch in batches
        ]
    )
    lines = order[places]
    order[places] = lines[np.lexsort((ties[lines], time))]
