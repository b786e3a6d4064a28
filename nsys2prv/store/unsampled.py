"""Zeros where GPU metrics were not sampled: one period before a GPU's first sample, and before those that follow a hole.

A sample tells of the time since the sample before it, and Paraver's *Next Evt Val* shows it from there on: the first one from the begin of
the trace, one behind a hole for the whole hole. A zero one period before it says that nothing is known until then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from nsys2prv.account import Account
from nsys2prv.clock.maps import ClockMap
from nsys2prv.events import all_kinds
from nsys2prv.reading.extracted import Extracted
from nsys2prv.store.normal import sample_shape
from nsys2prv.store.runs import SAMPLE, Run, SpillReader, SpillWriter

LAYOUT = "gpu_metric"
#: Samples further apart than so many periods have a hole between them.
HOLE = 4
UNSAMPLED = "zeros where nothing was sampled"
#: Blocks of samples of which the period is told.
ENOUGH = 16


def mark_unsampled(results: Sequence[Extracted], folder: Path, clocks: Sequence[ClockMap]) -> list[Extracted]:
    """The results with zeros for the GPUs whose samples they hold first, stored in this folder and counted in the accounts.

    clocks: from each report's time to one that they share.
    """
    firsts: dict[int, int] = {}
    found: dict[tuple, list[tuple[int, Run]]] = {}
    for place, result in enumerate(results):
        for run in result.runs:
            firsts[result.report] = min(run.first, firsts.get(result.report, run.first))
            if run.shape.name == LAYOUT:
                found.setdefault((result.report, result.objects[run.object]), []).append((place, run))
    changed, reader = list(results), SpillReader()
    begin = min((_shared(clocks[report], time) for report, time in firsts.items()), default=0)
    for number, ((report, _), holders) in enumerate(found.items()):
        holders.sort(key=lambda held: held[1].first)
        times = _zeros([run for _, run in holders], reader, clocks[report], begin)
        if len(times):
            place, run = holders[0]
            changed[place] = _with_zeros(changed[place], run, tuple(sorted({metric for _, run in holders for metric in run.shape.metrics})),
                                         times, folder / f"unsampled-{number}.bin")
    reader.close()
    return changed


def _with_zeros(result: Extracted, like: Run, metrics: tuple, times: np.ndarray, path: Path) -> Extracted:
    """The result with a run of zeros of these metrics, of the object of the run `like`."""
    stored = np.ones((len(times), len(metrics)), np.int64)
    shape = sample_shape(LAYOUT, metrics, stored)
    records = np.empty(len(times), shape.dtype)
    records["time"], records["object"], records["values"] = times, like.object, stored
    writer = SpillWriter(path, like.report, like.source)
    run = replace(writer.append(shape, records, int(times[-1]), like.object, stored.size), filler=True)
    writer.close()
    # The kind whose own layout it is, unless only another one, which has it besides, was read there.
    kinds = [kind for kind in all_kinds() if LAYOUT in kind.layouts and kind.name in result.accounts]
    kind = min(kinds, key=lambda kind: kind.layouts.index(LAYOUT)).name
    changed = replace(result, runs=[*result.runs, run], events=result.events + Counter({LAYOUT: stored.size}),
                      accounts=result.accounts.copy())
    changed.add(kind, Account(records=stored.size, beyond=Counter({UNSAMPLED: stored.size})))
    return changed


def _zeros(runs: Sequence[Run], reader: SpillReader, clock: ClockMap, begin: int) -> np.ndarray:
    """When zeros are due in runs of one GPU, which ascend by their first times (local ns). begin: of the job, on the shared clock."""
    apart = all(one.until < other.first for one, other in pairwise(runs))
    times = None if apart else np.unique(np.concatenate([reader.between(run, run.first, None)["time"] for run in runs]))
    period = _period(times if times is not None else _some_times(runs, reader))
    if not period:
        return np.zeros(0, np.int64)
    behind = _behind_holes(times, period) if times is not None else np.concatenate([
        *(_in_run(run, reader, period) for run in runs),
        [other.first for one, other in pairwise(runs) if other.first - one.until > HOLE * period]])
    found = np.unique(behind.astype(np.int64)) - period
    early = runs[0].first - period
    # Without the first one where it would make the trace longer: nothing is shown before its begin.
    return np.append(early, found) if _shared(clock, early) > begin else found


def _shared(clock: ClockMap, time: int) -> int:
    return int(clock.to_global(np.array([time]))[0])


def _some_times(runs: Sequence[Run], reader: SpillReader) -> np.ndarray:
    """Times of samples that follow each other, of the longest run."""
    run = max(runs, key=lambda run: run.rows)
    return reader.between(run, run.first, int(run.samples[ENOUGH]) if len(run.samples) > ENOUGH else None)["time"]


def _period(times: np.ndarray) -> int:
    """The usual time (ns) from sample to sample, 0 of fewer than two. Of two sets of metrics that take turns it is the longer one."""
    return int(np.quantile(np.diff(times), 0.75, method="lower")) if len(times) > 1 else 0


def _behind_holes(times: np.ndarray, period: int) -> np.ndarray:
    return times[1:][np.diff(times) > HOLE * period]


def _in_run(run: Run, reader: SpillReader, period: int) -> np.ndarray:
    """Times of the samples of a run before which there is a hole. Of its blocks only those that last too long are read."""
    edges = np.append(run.samples, run.until)
    count = np.full(len(run.samples), SAMPLE)
    count[-1] = run.rows - 1 - SAMPLE * (len(run.samples) - 1)
    long = np.flatnonzero(np.diff(edges) > (count + HOLE // 2) * period)
    return np.concatenate([np.zeros(0, np.int64), *(
        _behind_holes(reader.between(run, int(edges[block]), int(edges[block + 1]) + 1)["time"], period) for block in long)])
