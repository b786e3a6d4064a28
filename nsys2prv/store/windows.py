"""Time windows: how a trace is cut so that each part fits into memory, and what part of a run lies
in one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nsys2prv._util.columns import OPEN
from nsys2prv.clock.maps import Clock, ClockMap
from nsys2prv.store.runs import BEGIN, Run, Shape, SpillReader, take_records


def to_begin_times(records: np.ndarray, clock: Clock) -> np.ndarray:
    """Return trace times (ns) of begin records."""
    return to_range_begins(records["time"], records["end"], clock)


def to_range_begins(begin: np.ndarray, end: np.ndarray, clock: Clock) -> np.ndarray:
    """Return trace times (ns) at which ranges begin, by their local times.

    A clock that is slowed down may leave nothing of a range of 1 ns, which would then end before it
    begins: it begins 1 ns earlier.
    """
    times = clock.to_global(begin)
    if clock.slack:
        closed = end != OPEN
        times -= closed & (clock.to_global(np.where(closed, end, 0)) <= times) & (times > 0)
    return times


def to_end_times(records: np.ndarray, clock: Clock, duration: int) -> np.ndarray:
    """Return trace times (ns) at which the ranges of begin records end: those without an end, with
    the trace.
    """
    return to_trace_times(records["end"], clock, duration)


def to_trace_times(times: np.ndarray, clock: Clock, opened: int) -> np.ndarray:
    """Return trace times (ns) of local ones; `opened` for those that are OPEN."""
    lasting = times == OPEN
    return (
        np.where(lasting, opened, clock.to_global(np.where(lasting, 0, times)))
        if lasting.any()
        else clock.to_global(times)
    )


#: Records of one window: some tens of MB, whatever the trace.
WINDOW_RECORDS = 300_000
#: With very many runs a window must be worth the look into each.
RECORDS_PER_RUN = 400
#: So many sampled numbers weigh as much as a record of the other kinds.
VALUES_PER_RECORD = 6


def choose_window_bounds(runs: Sequence[Run], clocks: Sequence[ClockMap]) -> list[int]:
    """Return times that cut the trace into windows of about equally many records."""
    if not runs:
        return [0]
    times, weights = [], []
    for run in runs:
        samples = run.samples[run.samples != OPEN]
        times.append(clocks[run.report].to_global(samples))
        weights.append(np.full(len(samples), _count_weighted(run) / len(run.samples)))
    time = np.concatenate(times)
    order = np.argsort(time, kind="stable")
    total = np.cumsum(np.concatenate(weights)[order])
    size = max(WINDOW_RECORDS, len(runs) * RECORDS_PER_RUN)
    count = max(1, round(float(total[-1]) / size)) if len(total) else 1
    cuts = np.searchsorted(total, np.arange(1, count) * (total[-1] / count)) if count > 1 else []
    return [0, *sorted({int(time[order[cut]]) for cut in cuts} - {0})]


def _count_weighted(run: Run) -> float:
    """Return the number of records that a run is worth; lines may count more than one."""
    return run.rows * max(1, len(run.shape.metrics) / VALUES_PER_RECORD)


def read_window(
    reader: SpillReader, run: Run, clock: ClockMap, duration: int, first: int, last: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return trace times and records of a run within a window."""
    records = read_around_window(reader, run, clock, first, last)
    times = find_trace_times(run.shape, records, clock, duration)
    if clock.slack:
        inside = are_in_window(times, first, last)
        times, records = times[inside], take_records(records, inside)
    return times, records


def read_around_window(
    reader: SpillReader, run: Run, clock: ClockMap, first: int, last: int | None
) -> np.ndarray:
    """Return the records of a run within a window, and where its clock has slack some beside it."""
    return reader.read_between(
        run,
        clock.to_local(first) - clock.slack,
        None if last is None else clock.to_local(last) + clock.slack,
    )


def are_in_window(times: np.ndarray, first: int, last: int | None) -> np.ndarray:
    """Return a mask (bool) of the times in a window."""
    return (times >= first) & (True if last is None else times < last)


def find_trace_times(shape: Shape, records: np.ndarray, clock: Clock, duration: int) -> np.ndarray:
    """Return trace times (ns) of records; what is open is at the end of the trace."""
    if shape.stream == BEGIN:
        return to_begin_times(records, clock)
    return to_trace_times(records["time"], clock, duration)
