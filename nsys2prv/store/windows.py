"""Time windows: how a trace is cut so that each part fits into memory, and what of a run is in one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nsys2prv.clock.maps import Clock, ClockMap
from nsys2prv.columns import OPEN
from nsys2prv.store import placing
from nsys2prv.store.runs import BEGIN, Run, Shape, SpillReader, picked

#: Records of one window: some tens of MB, whatever the trace.
WINDOW_RECORDS = 300_000
#: With very many runs a window must be worth the look into each.
RECORDS_PER_RUN = 400
#: So many sampled numbers weigh as much as a record of the other kinds.
VALUES_PER_RECORD = 6


def window_bounds(runs: Sequence[Run], clocks: Sequence[ClockMap]) -> list[int]:
    """Times that cut the trace into windows of about equally many records."""
    if not runs:
        return [0]
    times, weights = [], []
    for run in runs:
        samples = run.samples[run.samples != OPEN]
        times.append(clocks[run.report].to_global(samples))
        weights.append(np.full(len(samples), _weight(run) / len(run.samples)))
    time = np.concatenate(times)
    order = np.argsort(time, kind="stable")
    total = np.cumsum(np.concatenate(weights)[order])
    size = max(WINDOW_RECORDS, len(runs) * RECORDS_PER_RUN)
    count = max(1, round(float(total[-1]) / size)) if len(total) else 1
    cuts = np.searchsorted(total, np.arange(1, count) * (total[-1] / count)) if count > 1 else []
    return [0, *sorted({int(time[order[cut]]) for cut in cuts} - {0})]


def _weight(run: Run) -> float:
    """How many records a run is worth: its lines may be long."""
    return run.rows * max(1, len(run.shape.metrics) / VALUES_PER_RECORD)


def placed(reader: SpillReader, run: Run, clock: ClockMap, duration: int, first: int, last: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Trace times and records of a run within a window."""
    records = around(reader, run, clock, first, last)
    times = trace_times(run.shape, records, clock, duration)
    if clock.slack:
        inside = within(times, first, last)
        times, records = times[inside], picked(records, inside)
    return times, records


def around(reader: SpillReader, run: Run, clock: ClockMap, first: int, last: int | None) -> np.ndarray:
    """The records of a run within a window, and where its clock has slack some beside it."""
    return reader.between(run, clock.to_local(first) - clock.slack, None if last is None else clock.to_local(last) + clock.slack)


def within(times: np.ndarray, first: int, last: int | None) -> np.ndarray:
    """Which times are in a window."""
    return (times >= first) & (True if last is None else times < last)


def trace_times(shape: Shape, records: np.ndarray, clock: Clock, duration: int) -> np.ndarray:
    """Trace times (ns) of records; what is open is at the end of the trace."""
    if shape.stream == BEGIN:
        return placing.begins(records, clock)
    return placing.moments(records["time"], clock, duration)
