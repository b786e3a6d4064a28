"""Time windows: how a trace is cut so that each part fits into memory, and what of a run is in one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nsys2prv.clock.maps import ClockMap
from nsys2prv.columns import OPEN
from nsys2prv.store import placing
from nsys2prv.store.runs import BEGIN, Run, SpillReader

#: Records of one window: some tens of MB, whatever the trace.
WINDOW_RECORDS = 300_000
#: With very many runs a window must be worth the look into each.
RECORDS_PER_RUN = 12
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
    slack = clock.slack
    records = reader.view(run, clock.to_local(first) - slack, None if last is None else clock.to_local(last) + slack)
    times = trace_times(run, records, clock, duration)
    if slack:
        inside = (times >= first) & (True if last is None else times < last)
        times, records = times[inside], records[inside]
    return times, records


def trace_times(run: Run, records: np.ndarray, clock: ClockMap, duration: int) -> np.ndarray:
    """Trace times (ns) of records of a run; what is open is at the end of the trace."""
    if run.shape.stream == BEGIN:
        return placing.begins(records, clock)
    return placing.moments(records["time"], clock, duration)
