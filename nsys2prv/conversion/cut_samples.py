"""Cut sampled numbers: keep those in force when the cut begins, and thin out the others to the rate
asked for.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct, field

from nsys2prv.conversion.cut_plan import CutRuns, CutTask
from nsys2prv.events.catalogue.counters import Metric
from nsys2prv.events.reasons import Reason
from nsys2prv.store.runs import Run, SpillWriter
from nsys2prv.store.spilling import choose_sample_shape

SECOND = 1_000_000_000


class _Series(Struct):
    """Samples of a layout on one row."""

    #: Any of its runs.
    run: Run
    #: Metric -> time and stored value in force when the cut begins.
    latest: dict[Metric, tuple[int, int]] = field(default_factory=dict)
    #: Times of runs to be thinned, ns.
    times: list[np.ndarray] = field(default_factory=list)
    #: Values at these times, a column for each metric.
    values: list[np.ndarray] = field(default_factory=list)
    metrics: list[tuple[Metric, ...]] = field(default_factory=list)


class SampleCutter:
    """Collects the runs of samples of one report, and writes what stays of them."""

    def __init__(self, task: CutTask, out: CutRuns, writer: SpillWriter) -> None:
        self._task, self._out, self._writer = task, out, writer
        self._series: dict[tuple[int, str], _Series] = {}

    def add(self, run: Run, records: np.ndarray) -> None:
        """Take a run, of which these are the records that may be before the cut's end."""
        name, window = run.shape.name, self._task.orders.window
        thread = int(self._task.threads[run.source][run.object])
        if thread < 0:
            self._out.leave_out(name, Reason.ROW_LEFT_OUT, run.values)
            return
        time, values = self._task.clock.to_global(records["time"]), records["values"]
        series = self._series.setdefault((thread, name), _Series(run))
        self._note_latest(series, run.shape.metrics, time, values)
        inside = window.has(time) & (time > window.first)
        time, values = time[inside] - window.origin, values[inside]
        self._out.leave_out(name, Reason.OUTSIDE_CUT, run.values - np.count_nonzero(values))
        if name in self._task.orders.rates:
            time, values = self._thin(name, time, values)
            series.times.append(time)
            series.values.append(values)
            series.metrics.append(run.shape.metrics)
        else:
            self._write(run, run.shape.metrics, time, values)

    def _thin(
        self, name: str, time: np.ndarray, values: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the samples of a layout that its rate lets stay; the others count as left out."""
        rate, origin = self._task.orders.rates[name], self._task.orders.window.origin
        # The length (ns) of the stretches of which one sample stays.
        width = max(1, SECOND // rate)
        thinned_time, thinned = _thin_samples(time + origin, values, width)
        reason = Reason.ABOVE_SAMPLE_RATE.with_detail(f"{rate:,}")
        self._out.leave_out(name, reason, np.count_nonzero(values) - np.count_nonzero(thinned))
        return thinned_time - origin, thinned

    def _note_latest(
        self, series: _Series, metrics: tuple[Metric, ...], time: np.ndarray, values: np.ndarray
    ) -> None:
        before = int(np.searchsorted(time, self._task.orders.window.first, "right"))
        if not before:
            return
        there = values[:before] != 0
        last = before - 1 - np.argmax(there[::-1], axis=0)
        for place in np.flatnonzero(there.any(axis=0)):
            latest = int(time[last[place]]), int(values[last[place], place])
            # Of two numbers of one time the greater stays, as where records are joined.
            series.latest[metrics[place]] = max(latest, series.latest.get(metrics[place], latest))

    def finish(self) -> None:
        """Write what had to wait for all runs."""
        window = self._task.orders.window
        for (_, name), series in self._series.items():
            if series.times:
                self._finish_thinned(name, series)
            if series.latest:
                metrics = tuple(sorted(series.latest))
                values = np.array([[series.latest[metric][1] for metric in metrics]], np.int64)
                self._out.left_out[name, Reason.OUTSIDE_CUT] -= len(metrics)
                self._write(series.run, metrics, np.array([window.first - window.origin]), values)

    def _finish_thinned(self, name: str, series: _Series) -> None:
        metrics = tuple(sorted({metric for number in series.metrics for metric in number}))
        wide = np.zeros((sum(map(len, series.times)), len(metrics)), np.int64)
        start = 0
        for number, values in zip(series.metrics, series.values, strict=True):
            columns = [metrics.index(metric) for metric in number]
            wide[start : start + len(values), columns] = values
            start += len(values)
        time = np.concatenate(series.times)
        order = np.argsort(time, kind="stable")
        time, values = self._thin(name, time[order], wide[order])
        self._write(series.run, metrics, time, values)

    def _write(
        self, run: Run, metrics: tuple[Metric, ...], time: np.ndarray, values: np.ndarray
    ) -> None:
        """Write records, without the metrics of which there is no number."""
        carried = (values != 0).any(axis=0)
        if not carried.any():
            return
        rows = (values != 0).any(axis=1)
        values, time = values[np.ix_(rows, carried)], time[rows]
        metrics = tuple(metric for metric, there in zip(metrics, carried, strict=True) if there)
        shape = choose_sample_shape(run.shape.name, metrics, values)
        records = np.empty(len(time), shape.dtype)
        records["time"], records["object"], records["values"] = time, run.object, values
        count = int(np.count_nonzero(values))
        self._writer.source = run.source
        self._out.runs.append(self._writer.append(shape, records, int(time[-1]), run.object, count))
        self._out.written[run.shape.name] += count


def _thin_samples(
    time: np.ndarray, values: np.ndarray, width: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return times (ascending) and stored values with, of each number, the last of every stretch of
    trace time that begins at a multiple of `width`: so the number in force at the end of a stretch
    is right.
    """
    stretch = time // width
    kept = np.zeros_like(values)
    for place in range(values.shape[1]):
        rows = np.flatnonzero(values[:, place])
        if len(rows):
            rows = rows[np.lexsort((values[rows, place], time[rows]))]
            rows = rows[np.append(np.diff(stretch[rows]) != 0, True)]
            kept[rows, place] = values[rows, place]
    there = (kept != 0).any(axis=1)
    return time[there], kept[there]
