"""Cut the runs of one report to a time window and to selected rows. This filters slices, which are
already in the time of the cut trace.

Input: runs. Output: runs in the time of the cut trace. A task depends only on files.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
from msgspec import Struct, field
from msgspec.structs import replace

from nsys2prv._util.columns import ABSENT, group_rows, is_sorted, take_rows
from nsys2prv.conversion.options import CutPlan
from nsys2prv.events.catalogue import Layout, Metric, load_catalogue
from nsys2prv.events.kind import Reason
from nsys2prv.table.runs import (
    COUNTER,
    LINE,
    STATE,
    TRACE,
    Run,
    SpillReader,
    SpillWriter,
)
from nsys2prv.table.slices import GlobalIds, Slice, find_places, load_global_ids, read_slice
from nsys2prv.table.task_result import TaskResult, append_samples

SECOND = 1_000_000_000


class CutWindow(Struct, frozen=True):
    """The time of the trace that a cut keeps: first <= time < end (ns of the cut trace)."""

    #: Begin of the window.
    first: int
    #: Its end; not included unless the window is closed.
    end: int
    #: True if `end` is the whole trace's own end, which belongs to the window.
    closed: bool
    #: Begin of the whole trace.
    origin: int

    def has(self, times: np.ndarray) -> np.ndarray:
        """Return a mask of the times in the window."""
        return (times >= self.first) & ((times <= self.end) if self.closed else (times < self.end))


class CutTask(Struct, frozen=True):
    """Stored records (runs) of one report to be cut. Times are in the cut trace (ns)."""

    #: Runs to cut, of one report.
    runs: tuple[Run, ...]
    #: File of the :class:`GlobalIds` of the cut trace, in which rows that are left out are -1.
    global_ids: Path
    #: The plan of the cut.
    plan: CutPlan
    #: Time to keep.
    window: CutWindow
    #: File for the kept records.
    spill_file: Path
    #: Ends of work with damaged times.
    damaged: np.ndarray


class CutPart(Struct):
    """Records of one task after the cut, and counts of what was shortened. Times are in the cut
    trace (ns).
    """

    #: The kept records.
    result: TaskResult = field(default_factory=lambda: TaskResult(0, TRACE, 0))
    #: Number of clipped ranges.
    clipped: int = 0
    #: Facts about omitted lines, as in CutEdges.
    carried: dict[int, int] = field(default_factory=dict)
    pending: dict[int, int] = field(default_factory=dict)


class _Samples(Struct):
    """Samples of a run in the window: times, and the values of each metric, or ABSENT."""

    run: Run
    time: np.ndarray
    numbers: dict[Metric, np.ndarray]


def cut_task(task: CutTask) -> CutPart:
    """Remove the records outside the cut from the runs of a task, and shorten ranges at its edges."""
    ids = load_global_ids(task.global_ids)
    with SpillReader() as reader, SpillWriter(task.spill_file, TRACE, 0) as writer:
        cutter = _Cutter(task, ids, reader, writer)
        cutter.cut()
        return cutter.part


class _Cutter:
    """Cuts the runs of a task, one after another."""

    def __init__(
        self, task: CutTask, ids: GlobalIds, reader: SpillReader, writer: SpillWriter
    ) -> None:
        self.task, self.ids, self.reader, self.writer = task, ids, reader, writer
        self.window, self.plan, self.part = task.window, task.plan, CutPart()
        self.result = self.part.result

    def cut(self) -> None:
        """Cut all runs."""
        # Runs with the state of a row, or a number, that applies when the cut starts.
        states: dict[object, list[Run]] = defaultdict(list)
        samples: dict[tuple[int, str], list[Run]] = defaultdict(list)
        for run in self.task.runs:
            shape = run.shape
            if shape.name in self.plan.away:
                self.result.leave_out(shape.name, Reason.KIND_LEFT_OUT, run.count)
            elif shape.stream == LINE:
                self._cut_lines(run)
            elif shape.stream == COUNTER:
                samples[self._find_row(run), shape.name].append(run)
            elif shape.stream == STATE:
                self._cut_state_records(run)
            elif _find_layout(run).is_state:
                # Layouts that share an event type share their states.
                states[_find_layout(run).fields[0].code].append(run)
            else:
                self._cut_ranges(run)
        for of_code in states.values():
            self._cut_states(sorted(of_code, key=lambda run: run.shape.name))
        for of_row in samples.values():
            self._cut_samples(of_row)

    def _read(self, run: Run) -> Slice:
        """Return the rows of a run that start before the end of the cut."""
        window = self.window
        until = None if window.closed else window.end
        return read_slice(run, self.ids, self.reader, None, (window.origin, until), ends=False)

    def _keep(
        self, run: Run, found: Slice, inside: np.ndarray, *rows: str, half_outside: int = 0
    ) -> bool:
        """Drop and count rows outside the window, and rows of excluded trace rows (by these
        columns). Return True if any remain.
        """
        kept = inside
        for row in rows:
            kept = kept & (found.column(row) >= 0)
        there, stay = int(np.count_nonzero(inside)), int(np.count_nonzero(kept))
        name = run.shape.name
        self.result.leave_out(name, Reason.HALF_OUTSIDE_CUT, half_outside)
        self.result.leave_out(name, Reason.OUTSIDE_CUT, run.rows - there - half_outside)
        self.result.leave_out(name, Reason.ROW_LEFT_OUT, there - stay)
        self.result.events[name] += int(stay)
        found.keep(find_places(kept))
        return bool(stay)

    def _find_row(self, run: Run) -> int:
        """Return the trace row of all samples in a run."""
        return int(self.ids.objects.get_table(run.task)[run.object])

    def _cut_ranges(self, run: Run) -> None:
        """Cut ranges to the window. Ends after the window are kept; otherwise, all clipped ranges
        would have the same end, by which the writer puts outer ranges first.
        """
        first = self.window.first
        ranges = self._read(run)
        if not self._keep(run, ranges, ranges.until > first, "row"):
            return
        begin, until, order = ranges.begin, ranges.until, None
        before = np.maximum(first - begin, 0)
        self.part.clipped += int(np.count_nonzero((before > 0) | (until > self.window.end)))
        if _find_layout(run).nests and before.any():
            # Ranges that are open when the cut starts come before ranges that start with it, outer
            # ranges first: they start earlier, or end later.
            order = until + before
        self._append_ranges(run, ranges, until, order)

    def _append_ranges(
        self, run: Run, ranges: Slice, end: np.ndarray, order: np.ndarray | None = None
    ) -> None:
        columns = ranges.make_columns(is_local=True)
        columns |= {"begin": np.maximum(ranges.begin, self.window.first), "end": end}
        columns |= {} if order is None else {"order": order}
        if not is_sorted(columns["begin"]):
            columns = take_rows(columns, np.argsort(columns["begin"], kind="stable"))
        self.writer.task = run.task
        self.result.runs.append(self.writer.append_ranges(_find_layout(run), columns))

    def _cut_states(self, runs: Sequence[Run]) -> None:
        """Cut states, each of which lasts until the next state of its row. The last state at or
        before the start of the cut applies there.
        """
        first, pieces = self.window.first, []
        for number, run in enumerate(runs):
            states = self._read(run)
            columns = {"row": states.column("row"), "begin": states.begin}
            rows = pl.DataFrame(columns).with_row_index("place")
            rows = rows.filter(pl.col("begin") <= first).group_by("row", maintain_order=True).last()
            pieces.append(rows.with_columns(run=pl.lit(number)))
        held = pl.concat(pieces).sort("begin", maintain_order=True).group_by("row").last()
        for number, run in enumerate(runs):
            states = self._read(run)
            inside = self.window.has(states.begin) & (states.begin > first)
            inside[held.filter(run=number)["place"].to_numpy()] = True
            if self._keep(run, states, inside, "row"):
                self._append_ranges(run, states, np.maximum(states.begin, first) + 1)

    def _cut_state_records(self, run: Run) -> None:
        """Cut state records of rows, which have a start and an end."""
        states, window = self._read(run), self.window
        inside = states.column("end") > window.first
        states.keep(find_places(inside & (states.column("row") >= 0)))
        if len(states):
            columns = states.make_columns(is_local=True)
            columns["time"] = np.maximum(columns["time"], window.first)
            columns["end"] = np.minimum(columns["end"], window.end)
            self.writer.task = run.task
            self.result.runs.append(self.writer.append(run.shape, columns))

    def _cut_lines(self, run: Run) -> None:
        """Cut lines. Both ends must be in the window."""
        lines = self._read(run)
        begins, ends = (self.window.has(lines.column(name)) for name in ("time", "receive"))
        self._note_work_beyond(lines, ends)
        half = int(np.count_nonzero(begins != ends))
        if self._keep(run, lines, begins & ends, "sender", "receiver", half_outside=half):
            self.writer.task = run.task
            columns = lines.make_columns(is_local=True)
            self.result.runs.append(self.writer.append(run.shape, columns))

    def _note_work_beyond(self, lines: Slice, ends: np.ndarray) -> None:
        """Note GPU work that was launched before the cut and runs in it, and work that is launched
        in it and starts after it. ends: of lines whose ends are in the window.
        """
        window, send = self.window, lines.times
        until = np.minimum(lines.column("until"), self.ids.duration)
        is_sound = ~np.isin(until, self.task.damaged)
        runs_on = (send < window.first) & (until > window.first) & is_sound
        waits = (send >= window.first) & ~ends
        for thread, rows in group_rows(np.where(runs_on | waits, lines.column("sender"), -1)):
            if thread < 0:
                continue
            own_until, own_send = until[rows][runs_on[rows]], send[rows][waits[rows]]
            if len(own_until):
                last = min(int(own_until.max()), window.end)
                self.part.carried[thread] = max(self.part.carried.get(thread, last), last)
            if len(own_send):
                begin = int(own_send.min())
                self.part.pending[thread] = min(self.part.pending.get(thread, begin), begin)

    def _cut_samples(self, runs: Sequence[Run]) -> None:
        """Cut samples of one layout and row, and reduce them to the requested rate. The last value
        of each metric at or before the start of the cut is in force there.
        """
        name, window = runs[0].shape.name, self.window
        if self._find_row(runs[0]) < 0:
            values = sum(run.values for run in runs)
            self.result.leave_out(name, Reason.ROW_LEFT_OUT, values)
            return
        # Metric -> time and number, and whether its run marks that nothing was sampled. Of two
        # numbers with the same time, the larger is kept, as when records are joined.
        latest: dict[Metric, tuple[int, int, bool]] = {}
        thinned = []
        for run in runs:
            samples = self._read(run)
            time, columns = samples.times, samples.make_columns()
            before = int(np.searchsorted(time, window.first, "right"))
            inside = window.has(time) & (time > window.first)
            own = _Samples(run, time[inside], {})
            for place, metric in enumerate(run.shape.metrics):
                column = columns[str(place)]
                if len(known := np.flatnonzero(column[:before] != ABSENT)):
                    held = int(time[known[-1]]), int(column[known[-1]]), run.filler
                    latest[metric] = max(held, latest.get(metric, held))
                own.numbers[metric] = column[inside]
            stay = sum(int(np.count_nonzero(one != ABSENT)) for one in own.numbers.values())
            self.result.leave_out(name, Reason.OUTSIDE_CUT, run.values - stay)
            if name in self.plan.rates:
                self._thin([own])
                thinned.append(own)
            else:
                self._append_samples(own)
        self._thin(thinned)
        for own in thinned:
            self._append_samples(own)
        for is_filler in (False, True):
            held = {
                metric: one for metric, (_, one, of) in sorted(latest.items()) if of == is_filler
            }
            self.result.left_out[name, Reason.OUTSIDE_CUT] -= len(held)
            numbers = {metric: np.array([one]) for metric, one in held.items()}
            run = replace(runs[0], filler=is_filler)
            self._append_samples(_Samples(run, np.array([window.first]), numbers))

    def _thin(self, pieces: Sequence[_Samples]) -> None:
        """Reduce a layout's samples to its rate.

        For each metric, the last value in each interval of trace time is kept, so that values at
        the ends of intervals remain correct. Removed values become ABSENT and are counted.
        """
        for metric in {metric for one in pieces for metric in one.numbers}:
            own = [one for one in pieces if metric in one.numbers]
            time = np.concatenate([one.time for one in own])
            column = np.concatenate([one.numbers[metric] for one in own])
            name = own[0].run.shape.name
            rate = self.plan.rates[name]
            rows = np.flatnonzero(column != ABSENT)
            rows = rows[np.lexsort((column[rows], time[rows]))]
            interval = (time[rows] - self.window.origin) // max(1, SECOND // rate)
            gone = rows[:-1][np.diff(interval) == 0]
            column[gone] = ABSENT
            reason = Reason.ABOVE_SAMPLE_RATE.with_detail(f"{rate:,}")
            self.result.leave_out(name, reason, len(gone))
            cuts = np.cumsum([len(one.time) for one in own])[:-1]
            for one, kept in zip(own, np.split(column, cuts), strict=True):
                one.numbers[metric] = kept

    def _append_samples(self, own: _Samples) -> None:
        """Write samples, without metrics that have no values."""
        known = {name: one for name, one in own.numbers.items() if (one != ABSENT).any()}
        if not known:
            return
        run, rows = own.run, np.logical_or.reduce([one != ABSENT for one in known.values()])
        self.writer.task, name = run.task, run.shape.name
        numbers = take_rows(known, rows)
        written = append_samples(self.writer, name, numbers, run.object, own.time[rows])
        self.result.runs.append(replace(written, filler=run.filler))
        self.result.events[name] += written.count


def _find_layout(run: Run) -> Layout:
    return load_catalogue().layouts[run.shape.name]
