"""The critical path of a job: the one chain of work and waiting, from its begin to its end over all
ranks, that explains how long it took. Pure functions on columns.

The path is walked backwards, from the end of what ended last. Each step leads to what the present
one had to wait for:

* The end of an operation of a device leads to its begin; that of a collective of NCCL to the begin
  of its kernel on the rank that came last, as nothing is transferred before.
* The begin of an operation leads to the end of the operation before it on its stream, to the end of
  the one that a CUDA event made its stream wait for, or to the call that launched it, whichever was
  the latest: a call counts by its end, or by its begin where it lasts longer. Where all were over by
  more than SLACK before, and another stream of the device ended an operation since, it leads to that
  one: events made the stream wait that are not recorded.
* The end of a call that synchronises leads to the last end of an operation of its process within the
  call; the end of a call of MPI that waits for another (the one that sends what it receives, the
  last to come to a collective) to the begin of that one, if it is later than its own begin; the end
  of any other call to its begin.
* The begin of a call leads to the end of the call before it on its thread; of the first on its thread
  to the last call of its process that ended before.

The pieces between the steps follow each other without a gap and without overlap: they add up to the
duration of the job.

Which operations made others wait by a CUDA event (one stream records it, another waits for it) is
found first: an event is complete when what was launched on its stream before the record has ended,
what is launched on the waiting stream after the wait begins later than that, and a wait is for the
latest record of its event before it.
"""

from __future__ import annotations

from array import array

import numpy as np
from msgspec import Struct

from nsys2prv._util.columns import ABSENT, factorize

#: An operation that begins so long after what it waited for (ns) waited for something else.
SLACK = 10_000


class Cause:
    """Values of the value set `critical_path`."""

    COMPUTATION, NCCL, MEMORY, GRAPH, LATENCY, QUEUED = range(1, 7)
    CALL, RETURN, MPI, HOST, WAIT, OUTSIDE = range(7, 13)


class Operations(Struct, frozen=True):
    """Work on devices: int64 columns, an element for each operation; times in ns of trace time."""

    #: Begin.
    begin: np.ndarray
    #: End, later.
    end: np.ndarray
    #: Row of the trace.
    thread: np.ndarray
    #: Number of the stream: operations of one stream follow each other.
    stream: np.ndarray
    #: Number of the device.
    device: np.ndarray
    #: Number of the task.
    task: np.ndarray
    #: What it is, of `Cause`.
    cause: np.ndarray
    #: Class of a kernel, ABSENT for others.
    kernel_class: np.ndarray
    #: Index of the call that launched it, -1 where that is not known.
    call: np.ndarray
    #: Index of the operation that began last in its collective; its own of all others.
    last: np.ndarray
    #: Index of the operation that a CUDA event made it wait for, -1 for none.
    awaited: np.ndarray


class HostCalls(Struct, frozen=True):
    """Calls on host threads, none within another: columns of int64, an element for each call."""

    #: Begin.
    begin: np.ndarray
    #: End, later.
    end: np.ndarray
    #: Row of the trace.
    thread: np.ndarray
    #: Number of the task.
    task: np.ndarray
    #: CALL, WAIT (it synchronises) or MPI of `Cause`.
    cause: np.ndarray
    #: Index of the call of MPI that this one waits for: the one that sends what it receives, the
    #: last to come to its collective. -1 for none.
    sender: np.ndarray


class PathPieces(Struct, frozen=True):
    """Pieces of the path, the last first: columns of int64."""

    #: Begin.
    begin: np.ndarray
    #: End.
    end: np.ndarray
    #: Row of the trace.
    thread: np.ndarray
    #: What the time went to, of `Cause`.
    cause: np.ndarray
    #: Class of a kernel, ABSENT for others.
    kernel_class: np.ndarray


def find_critical_path(work: Operations, calls: HostCalls, duration: int) -> PathPieces:
    """Return the path through a job of this duration (ns). Time and memory are linear in the number
    of operations and calls, apart from sorting them.
    """
    before, times = _find_predecessors(work, calls)
    if not len(times):
        return PathPieces(*np.zeros((5, 0), np.int64))
    ends = np.r_[: len(work.end), 2 * len(work.end) : 2 * len(work.end) + len(calls.end)]
    path = _trace_back(before, int(ends[np.argmax(times[ends])]))
    return _make_pieces(work, calls, path, times, duration)


def _find_predecessors(work: Operations, calls: HostCalls) -> tuple[np.ndarray, np.ndarray]:
    """Return for each state the one that the path comes from (-1: none), and its time. States are
    the ends of operations, their begins, the ends of calls, their begins, in this order.
    """
    n, m = len(work.begin), len(calls.begin)
    op_end, op_begin, call_end, call_begin = 0, n, 2 * n, 2 * n + m
    before = np.full(2 * (n + m), -1, np.int64)
    times = np.concatenate([work.end, work.begin, calls.end, calls.begin])

    # The end of an operation: its begin, or that of the last member of its collective.
    own = np.arange(n)
    late = (work.begin[work.last] > work.begin) & (work.begin[work.last] < work.end)
    before[:n] = op_begin + np.where(late, work.last, own)

    # The begin of an operation: the latest of the operation ahead of it on its stream, the one that
    # an event made it wait for, and the call that launched it.
    ahead = find_latest_before(work.stream, work.end, work.stream, work.begin)
    ahead_at = _take_or_none(work.end, ahead)
    called, ended = _take_or_none(calls.begin, work.call), _take_or_none(calls.end, work.call)
    launched = (work.call >= 0) & (called <= work.begin)
    released = np.where(launched, np.where(ended <= work.begin, ended, called), -1)
    signalled = _take_or_none(work.end, work.awaited)
    by_event = (signalled <= work.begin) & (signalled > ahead_at)
    ahead, ahead_at = np.where(by_event, (work.awaited, signalled), (ahead, ahead_at))
    by_stream = ahead_at > released
    before[n : 2 * n] = np.where(
        by_stream, op_end + ahead, np.where(launched, call_begin + work.call, -1)
    )
    # Where all of these are long over, what its device did last.
    earliest = np.maximum(ahead_at, released)
    waiting = np.flatnonzero(work.begin - earliest > SLACK)
    other = find_latest_before(work.device, work.end, work.device[waiting], work.begin[waiting])
    is_later = _take_or_none(work.end, other) > earliest[waiting]
    before[n + waiting[is_later]] = op_end + other[is_later]

    # The end of a call: its begin, or what it waited for.
    before[call_end:call_begin] = call_begin + np.arange(m)
    waits = np.flatnonzero(calls.cause == Cause.WAIT)
    done = find_latest_before(work.task, work.end, calls.task[waits], calls.end[waits])
    is_later = _take_or_none(work.end, done) > calls.begin[waits]
    before[call_end + waits[is_later]] = op_end + done[is_later]
    sent = _take_or_none(calls.begin, calls.sender)
    late = np.flatnonzero((calls.sender >= 0) & (sent > calls.begin) & (sent < calls.end))
    before[call_end + late] = call_begin + calls.sender[late]

    # The begin of a call: the call before it on its thread, of a thread's first one in its task.
    previous = find_latest_before(calls.thread, calls.end, calls.thread, calls.begin)
    first = np.flatnonzero(previous < 0)
    previous[first] = find_latest_before(
        calls.task, calls.end, calls.task[first], calls.begin[first]
    )
    before[call_begin:] = np.where(previous >= 0, call_end + previous, -1)
    return before, times


def _take_or_none(values: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return the values at some places, -1 where a place is negative."""
    if not len(values):
        return np.full(len(places), -1, np.int64)
    return np.where(places >= 0, values[places], -1)


def _trace_back(before: np.ndarray, state: int) -> np.ndarray:
    """Return the states from this one on to the first."""
    follow, path = memoryview(before), array("q")
    while state >= 0:
        path.append(state)
        state = follow[state]
    return np.array(path, np.int64)


def _make_pieces(
    work: Operations, calls: HostCalls, path: np.ndarray, times: np.ndarray, duration: int
) -> PathPieces:
    """Return the pieces between the states of a path, the last first: of each where it was and its
    cause, which the sorts of the two states tell.
    """
    n, m = len(work.begin), len(calls.begin)
    kind = np.searchsorted([n, 2 * n, 2 * n + m], path, "right")
    came_kind = np.append(kind[1:], -1)
    end, begin = times[path], np.append(times[path[1:]], 0)
    thread = np.concatenate([work.thread, work.thread, calls.thread, calls.thread])[path]
    cause = np.concatenate(
        [work.cause, np.full(n, Cause.QUEUED), calls.cause, np.full(m, Cause.HOST)]
    )[path]
    kernel_class = np.concatenate([work.kernel_class, np.full(n + 2 * m, ABSENT)])[path]
    cause[(kind == 2) & (came_kind == 0)] = Cause.RETURN
    cause[-1] = Cause.OUTSIDE
    # From the begin of an operation to that of its call: the latency, and the call.
    launch = np.flatnonzero((kind == 1) & (came_kind == 3))
    call = path[launch + 1] - 2 * n - m
    returned = np.minimum(calls.end[call], end[launch])
    no_class = np.full(len(call), ABSENT)
    columns = (
        (begin, end, thread, cause, kernel_class),
        (begin[launch], returned, calls.thread[call], calls.cause[call], no_class),
        ([end[0]], [duration], thread[:1], [Cause.OUTSIDE], [ABSENT]),
    )
    begin[launch], cause[launch] = returned, Cause.LATENCY
    begin, end, thread, cause, kernel_class = map(np.concatenate, zip(*columns, strict=True))
    order = np.argsort(-end, kind="stable")
    order = order[end[order] > begin[order]]
    return PathPieces(*(column[order] for column in (begin, end, thread, cause, kernel_class)))


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


def find_awaited_operations(
    stream: np.ndarray,
    launched: np.ndarray,
    end: np.ndarray,
    records: EventCalls,
    waits: EventCalls,
) -> np.ndarray:
    """Return for each operation the index of the one that an event made it wait for, of several the
    one that ended last, -1 for none. stream, launched, end: of operations; the time of the
    launching call (ns), negative where it is not known.
    """
    awaited = np.full(len(stream), -1, np.int64)
    launched_rows = np.flatnonzero(launched >= 0)
    if not len(launched_rows) or not len(records.time) or not len(waits.time):
        return awaited
    # Events of all processes by one number.
    number = np.unique(
        np.column_stack([np.r_[records.task, waits.task], np.r_[records.event, waits.event]]),
        axis=0,
        return_inverse=True,
    )[1].reshape(-1)
    recorded, waiting_for = number[: len(records.time)], number[len(records.time) :]
    record = find_latest_before(recorded, records.time, waiting_for, waits.time)
    stream, launched = stream[launched_rows], launched[launched_rows]
    first = _find_first_after(stream, launched, waits.stream, waits.time)
    pairs = np.flatnonzero((record >= 0) & (first >= 0))
    record, first = record[pairs], first[pairs]
    last = find_latest_before(stream, launched, records.stream[record], records.time[record])
    is_awaited = (last >= 0) & (records.stream[record] != waits.stream[pairs])
    waiting, before = launched_rows[first[is_awaited]], launched_rows[last[is_awaited]]
    order = np.argsort(end[before], kind="stable")
    awaited[waiting[order]] = before[order]
    return awaited


def _find_first_after(
    group: np.ndarray, time: np.ndarray, at_group: np.ndarray, at: np.ndarray
) -> np.ndarray:
    """Return for each (at_group, at) the index of the earliest time of that group that is not
    earlier, -1 for none.
    """
    last = max(int(time.max()), int(at.max()))
    return find_latest_before(group, last - time, at_group, last - at)


def find_latest_before(
    group: np.ndarray, time: np.ndarray, at_group: np.ndarray, at: np.ndarray
) -> np.ndarray:
    """Return for each (at_group, at) the index of the latest time of that group that is not later,
    -1 for none.
    """
    if not len(time) or not len(at):
        return np.full(len(at), -1, np.int64)
    _, codes = factorize(np.concatenate([group, at_group]))
    span = int(max(time.max(), at.max())) + 1
    times = np.concatenate([time, at])
    if span * (int(codes.max()) + 1) >= 1 << 62:
        _, times = np.unique(times, return_inverse=True)
        span = len(times)
    keys, wanted_keys = np.split(codes * span + times, [len(group)])
    order = np.argsort(keys, kind="stable")
    place = np.searchsorted(keys[order], wanted_keys, "right") - 1
    latest = order[np.maximum(place, 0)]
    return np.where((place >= 0) & (codes[latest] == codes[len(group) :]), latest, -1)
