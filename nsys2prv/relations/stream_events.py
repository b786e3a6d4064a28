"""Which operations of a device made others wait by a CUDA event: one stream records it, another waits
for it. Pure functions on columns.

An event is complete when what was launched on its stream before the record has ended. What is
launched on the waiting stream after the wait begins later than that. A wait is for the latest
record of its event before it.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from nsys2prv.relations.latest import latest_before


class EventCalls(Struct, frozen=True):
    """Calls that record an event, or that make a stream wait for one: columns of int64."""

    #: When the host made the call (ns of trace time).
    time: np.ndarray
    #: Number of the process.
    task: np.ndarray
    #: Number of the event within the process.
    event: np.ndarray
    #: Number of the stream.
    stream: np.ndarray


def awaited_operations(
    stream: np.ndarray,
    launched: np.ndarray,
    end: np.ndarray,
    records: EventCalls,
    waits: EventCalls,
) -> np.ndarray:
    """Return for each operation the index of the one that an event made it wait for, of several the
    one that ended last, -1 for none. stream, launched, end: of operations; the time of the launching
    call (ns), negative where it is not known.
    """
    awaited = np.full(len(stream), -1, np.int64)
    known = np.flatnonzero(launched >= 0)
    if not len(known) or not len(records.time) or not len(waits.time):
        return awaited
    # Events of all processes by one number.
    number = np.unique(
        np.column_stack([np.r_[records.task, waits.task], np.r_[records.event, waits.event]]),
        axis=0,
        return_inverse=True,
    )[1].reshape(-1)
    mine, asked = number[: len(records.time)], number[len(records.time) :]
    record = latest_before(mine, records.time, asked, waits.time)
    first = _first_after(stream[known], launched[known], waits.stream, waits.time)
    pairs = np.flatnonzero((record >= 0) & (first >= 0))
    record, first = record[pairs], first[pairs]
    last = latest_before(
        stream[known], launched[known], records.stream[record], records.time[record]
    )
    found = (last >= 0) & (records.stream[record] != waits.stream[pairs])
    waiting, before = known[first[found]], known[last[found]]
    order = np.argsort(end[before], kind="stable")
    awaited[waiting[order]] = before[order]
    return awaited


def _first_after(
    group: np.ndarray, time: np.ndarray, at_group: np.ndarray, at: np.ndarray
) -> np.ndarray:
    """Return for each (at_group, at) the index of the earliest time of that group that is not
    earlier, -1 for none.
    """
    last = max(int(time.max()), int(at.max()))
    return latest_before(group, last - time, at_group, last - at)
