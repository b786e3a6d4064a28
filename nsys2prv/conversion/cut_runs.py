"""Cut the runs of one report to a window of time and to selected rows.

In: runs and their clock map. Out: runs in the time of the cut trace. A task is a pure function over
files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from nsys2prv._util.columns import ABSENT, OPEN, group_rows, is_sorted, mask_changes
from nsys2prv.clock.maps import ClockMap
from nsys2prv.conversion.options import CutPlan
from nsys2prv.events.catalogue import Layout, Metric, load_catalogue
from nsys2prv.events.kind import Reason
from nsys2prv.table.runs import (
    COUNTER,
    LINE,
    STATE,
    TIMES,
    TRACE,
    Run,
    SpillReader,
    SpillWriter,
    find_only_object,
    find_role,
    take_rows,
)
from nsys2prv.table.slices import find_masks, to_begin_times, to_trace_times
from nsys2prv.table.work_result import WorkResult, append_samples

SECOND = 1_000_000_000


class CutWindow(Struct, frozen=True):
    """Window first <= time < end (ns of the whole trace)."""

    #: Begin, ns of the whole trace.
    first: int
    #: End, ns of the whole trace; not included unless the window is closed.
    end: int
    #: True if `end` is the trace's own end, which belongs to the window.
    closed: bool
    #: Time that becomes 0.
    origin: int = 0

    def has(self, times: np.ndarray) -> np.ndarray:
        """Return a mask (bool) of the times that lie in it."""
        return (times >= self.first) & ((times <= self.end) if self.closed else (times < self.end))


class CutWork(Struct, frozen=True):
    """Runs of one report to cut."""

    #: Runs to cut, of one report.
    runs: tuple[Run, ...]
    #: Map to the time of the whole trace.
    clock: ClockMap
    #: Length of the whole trace, ns.
    duration: int
    #: Per task: row of each local object, -1 for one that is left out.
    threads: Mapping[int, np.ndarray]
    #: What is left out.
    plan: CutPlan
    #: Time to keep.
    window: CutWindow
    #: File for what stays.
    spill_file: Path
    #: Ends of work whose times are damaged (local ns).
    damaged: tuple[int, ...] = ()


class CutPart(Struct, frozen=True):
    """Result of cutting one task, in the time of the cut trace."""

    #: What is left.
    result: WorkResult
    #: How many ranges were clipped.
    clipped: int
    #: Of lines that were left out, as in CutEdges.
    carried: dict[int, int]
    pending: dict[int, int]


def cut_task(task: CutWork) -> CutPart:
    """Cut the runs of a task."""
    with SpillReader() as reader, SpillWriter(task.spill_file, TRACE, 0) as writer:
        cutter = _Cutter(task, reader, writer)
        return CutPart(cutter.cut(), cutter.clipped, cutter.carried, cutter.pending)


class _RangesInForce(Struct):
    """The ranges of one run that may be in force when the cut begins. Which of them are is known when
    all runs have been read.
    """

    #: Run that they are of.
    run: Run
    #: Their columns, as :func:`read_local` has them.
    columns: dict[str, np.ndarray]
    #: Begins and ends in the whole trace (ns).
    begin: np.ndarray
    end: np.ndarray


class _RowSamples(Struct):
    """Samples of a layout on one row."""

    #: Any of its runs.
    run: Run
    #: Metric -> time and stored value in force when the cut begins, and whether it is a filler.
    latest: dict[Metric, tuple[int, int, bool]] = field(default_factory=dict)
    #: Runs that are thinned together: their times (ns) and values, a column for each metric.
    thinned: list[tuple[Run, np.ndarray, np.ndarray]] = field(default_factory=list)


class _Cutter:
    """Cuts the runs of a task, one after the other."""

    def __init__(self, task: CutWork, reader: SpillReader, writer: SpillWriter) -> None:
        self.task, self.reader, self.writer = task, reader, writer
        self.window, self.plan, self.clock = task.window, task.plan, task.clock
        #: What is left, and the number of ranges that were clipped.
        self.out, self.clipped = WorkResult(0, TRACE, 0), 0
        #: By thread, as in CutEdges.
        self.carried: dict[int, int] = {}
        self.pending: dict[int, int] = {}
        #: Ranges that nest and are open when the cut begins.
        self.heads: list[_RangesInForce] = []
        #: The last state of each row at or before the cut's begin.
        self.states: list[_RangesInForce] = []
        #: Samples by row of the trace and layout.
        self.samples: dict[tuple[int, str], _RowSamples] = {}

    def cut(self) -> WorkResult:
        """Cut all runs and return them."""
        for run in self.task.runs:
            shape = run.shape
            self.writer.task = run.task
            if shape.name in self.plan.away:
                self.out.leave_out(shape.name, Reason.KIND_LEFT_OUT, run.count)
            elif shape.stream == LINE:
                self._cut_lines(run)
            elif shape.stream == COUNTER:
                self._cut_samples(run)
            elif shape.stream == STATE:
                self._cut_state_records(run)
            elif load_catalogue().layouts[shape.name].is_state:
                self._cut_states(run)
            else:
                self._cut_ranges(run)
        self._write_heads()
        self._write_states()
        for (_, name), samples in self.samples.items():
            self._write_samples(name, samples)
        return self.out

    def _read_up_to_end(self, run: Run) -> dict[str, np.ndarray]:
        """Return the rows of a run that may be before the cut's end."""
        end = self.window.end
        until = None if self.window.closed else self.clock.to_local(end) + self.clock.slack + 1
        spans = run.find_spans(run.find_blocks(run.first_time, until))
        return self.reader.read_local(run, spans or [(0, 0)])

    def _take(self, rows: np.ndarray, kept: np.ndarray, name: str, reason: str) -> np.ndarray:
        """Return the rows that are kept, and count the others as left out."""
        self.out.leave_out(name, reason, len(rows) - np.count_nonzero(kept))
        return rows[kept]

    def _find_kept(self, run: Run, objects: np.ndarray) -> np.ndarray:
        return self.task.threads[run.task][objects] >= 0

    # Ranges

    def _cut_ranges(self, run: Run) -> None:
        name, window = run.shape.name, self.window
        greatest = int(self.clock.to_global(np.int64(run.greatest_time)))
        if not run.index.is_open and greatest <= window.first:
            self.out.leave_out(name, Reason.OUTSIDE_CUT, run.rows)
            return
        columns = self._read_up_to_end(run)
        begin = to_begin_times(columns["begin"], columns["end"], self.clock)
        end = to_trace_times(columns["end"], self.clock, self.task.duration)
        inside = end > window.first
        if not window.closed:
            inside &= begin < window.end
        self.out.leave_out(name, Reason.OUTSIDE_CUT, run.rows - np.count_nonzero(inside))
        chosen = np.flatnonzero(inside)
        kept = self._find_kept(run, columns["row"][chosen])
        chosen = self._take(chosen, kept, name, Reason.ROW_LEFT_OUT)
        if not len(chosen):
            return
        columns, begin, end = take_rows(columns, chosen), begin[chosen], end[chosen]
        self.clipped += int(np.count_nonzero((begin < window.first) | (end > window.end)))
        if load_catalogue().layouts[name].nests and (before := begin < window.first).any():
            self.heads.append(
                _RangesInForce(run, take_rows(columns, before), begin[before], end[before])
            )
            columns, begin, end = take_rows(columns, ~before), begin[~before], end[~before]
        self._append_ranges(run, columns, begin, end)

    def _append_ranges(
        self, run: Run, columns: dict[str, np.ndarray], begin: np.ndarray, end: np.ndarray
    ) -> None:
        """Write ranges, given their begins and ends in the whole trace. They keep ends behind the cut:
        clipped ranges would all have the same one, and the writer puts outer ranges first by them.
        """
        if not len(begin):
            return
        window = self.window
        begin = np.maximum(begin, window.first) - window.origin
        columns = {**columns, "begin": begin, "end": end - window.origin}
        if not is_sorted(begin):
            columns = take_rows(columns, np.argsort(begin, kind="stable"))
        last = int(np.minimum(end, window.end).max()) - window.origin
        self.writer.task = run.task
        self.out.runs.append(self.writer.append_ranges(_find_layout(run), columns, last))
        self.out.events[run.shape.name] += len(begin)

    def _write_heads(self) -> None:
        """Write the nested ranges that are open when the cut begins, outer ones first, in their
        order in the whole trace.
        """
        if not self.heads:
            return
        place, begin, end, row = self._join_in_force(self.heads)
        # Of those of a row that end together the outer ones are later in order, and all of them
        # later than what begins with the cut.
        by_end = np.lexsort((-place, -begin, end, row))
        ranks = np.arange(len(row))
        changes = mask_changes(row[by_end], end[by_end])
        order = end - self.window.origin + 1
        order[by_end] += ranks - np.maximum.accumulate(np.where(changes, ranks, 0))
        for head, own in zip(self.heads, _split_like(order, self.heads), strict=True):
            columns = {**head.columns, "order": own}
            self._append_ranges(head.run, columns, head.begin, head.end)

    def _join_in_force(self, pieces: Sequence[_RangesInForce]) -> tuple[np.ndarray, ...]:
        """Return of all ranges of some pieces their places in the order in which ranges of equal times are
        written, and begin, end (ns of the whole trace) and row.
        """
        names = sorted({piece.run.shape.name for piece in pieces})
        layouts = [np.full(len(one.begin), names.index(one.run.shape.name)) for one in pieces]
        masks = [find_masks(_find_layout(one.run), one.columns) for one in pieces]
        order = np.lexsort((np.concatenate(masks), np.concatenate(layouts)))
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        rows = [self.task.threads[one.run.task][one.columns["row"]] for one in pieces]
        times = ([one.begin for one in pieces], [one.end for one in pieces])
        return place, *map(np.concatenate, (*times, rows))

    # States

    def _cut_state_records(self, run: Run) -> None:
        """Cut state records of rows, with a begin and an end, which are in trace time."""
        columns, window = self._read_up_to_end(run), self.window
        kept = (columns["end"] > window.first) & (columns["time"] < window.end)
        columns = take_rows(columns, kept & self._find_kept(run, columns["row"]))
        if len(columns["time"]):
            columns["time"] = np.maximum(columns["time"], window.first) - window.origin
            columns["end"] = np.minimum(columns["end"], window.end) - window.origin
            last, only = int(columns["end"].max()), find_only_object(columns["row"])
            self.out.runs.append(self.writer.append(run.shape, columns, last, only))

    def _cut_states(self, run: Run) -> None:
        name, window = run.shape.name, self.window
        columns = self._read_up_to_end(run)
        time = to_begin_times(columns["begin"], columns["end"], self.clock)
        thread = self.task.threads[run.task][columns["row"]]
        kept = thread >= 0
        self.out.leave_out(name, Reason.ROW_LEFT_OUT, np.count_nonzero(~kept))
        columns, time, thread = take_rows(columns, kept), time[kept], thread[kept]
        before = np.flatnonzero(time <= window.first)
        if len(before):
            _, behind = np.unique(thread[before][::-1], return_index=True)
            last = before[len(before) - 1 - behind]
            self.states.append(
                _RangesInForce(run, take_rows(columns, last), time[last], time[last] + 1)
            )
        inside = window.has(time) & (time > window.first)
        # Those that turn out to be in force when the cut begins are put back on the account.
        self.out.leave_out(
            name, Reason.OUTSIDE_CUT, run.rows - len(kept) + len(time) - np.count_nonzero(inside)
        )
        self._append_states(run, take_rows(columns, inside), time[inside])

    def _append_states(self, run: Run, columns: dict[str, np.ndarray], time: np.ndarray) -> None:
        self._append_ranges(run, columns, time, np.maximum(time, self.window.first) + 1)

    def _write_states(self) -> None:
        """Write the state of each row when the cut begins. Layouts that share an event type share
        their states.
        """
        groups: dict[object, list[_RangesInForce]] = {}
        for states in self.states:
            groups.setdefault(_find_layout(states.run).fields[0].code, []).append(states)
        for group in groups.values():
            place, time, _, thread = self._join_in_force(group)
            order = np.lexsort((place, time, thread))
            in_force = np.zeros(len(thread), bool)
            in_force[order[np.append(np.diff(thread[order]) != 0, True)]] = True
            for states, own in zip(group, _split_like(in_force, group), strict=True):
                count = int(np.count_nonzero(own))
                self.out.left_out[states.run.shape.name, Reason.OUTSIDE_CUT] -= count
                first = np.full(count, self.window.first)
                self._append_states(states.run, take_rows(states.columns, own), first)

    # Lines

    def _cut_lines(self, run: Run) -> None:
        name, window = run.shape.name, self.window
        columns = self._read_up_to_end(run)
        send = self.clock.to_global(columns["time"])
        receive = self.clock.to_global(columns["receive"])
        begins, ends = window.has(send), window.has(receive)
        half, inside = np.count_nonzero(begins != ends), np.flatnonzero(begins & ends)
        self.out.leave_out(name, Reason.HALF_OUTSIDE_CUT, half)
        self.out.leave_out(name, Reason.OUTSIDE_CUT, run.rows - len(inside) - half)
        self._note_work_beyond(run, columns, send, receive)
        ends_kept = [self._find_kept(run, columns[end]) for end in ("sender", "receiver")]
        both = np.logical_and(*ends_kept)[inside]
        kept = self._take(inside, both, name, Reason.ROW_LEFT_OUT)
        if not len(kept):
            return
        clock, new = self.clock.delay(-window.origin), take_rows(columns, kept)
        for column in new:
            if find_role(LINE, name, column) == TIMES:
                new[column] = to_trace_times(new[column], clock, OPEN)
        last = int(max(new["time"].max(), new["receive"].max()))
        self.out.runs.append(self.writer.append(run.shape, new, last))
        self.out.events[name] += len(kept)

    def _note_work_beyond(
        self, run: Run, columns: dict[str, np.ndarray], send: np.ndarray, receive: np.ndarray
    ) -> None:
        """Note the work that was launched before the cut and runs in it, and the work that is launched
        in it and begins behind it. send, receive: in the whole trace (ns).
        """
        window, sender = self.window, self.task.threads[run.task][columns["sender"]]
        until = to_trace_times(columns["until"], self.clock, self.task.duration)
        is_sound = ~np.isin(columns["until"], self.task.damaged)
        runs_on = (send < window.first) & (until > window.first) & is_sound
        waits = (send >= window.first) & ~window.has(receive)
        for thread, rows in group_rows(np.where(runs_on | waits, sender, ABSENT)):
            if thread == ABSENT:
                continue
            own_until, own_send = until[rows][runs_on[rows]], send[rows][waits[rows]]
            if len(own_until):
                last = min(int(own_until.max()), window.end) - window.origin
                self.carried[thread] = max(self.carried.get(thread, last), last)
            if len(own_send):
                first = int(own_send.min()) - window.origin
                self.pending[thread] = min(self.pending.get(thread, first), first)

    # Samples

    def _cut_samples(self, run: Run) -> None:
        """Cut samples, thinned out to the given rate, and note the numbers in force at the begin."""
        name, window, metrics = run.shape.name, self.window, run.shape.metrics
        thread = int(self.task.threads[run.task][run.object])
        if thread < 0:
            self.out.leave_out(name, Reason.ROW_LEFT_OUT, run.values)
            return
        columns = self._read_up_to_end(run)
        time, values = self.clock.to_global(columns["time"]), columns["values"]
        samples = self.samples.setdefault((thread, name), _RowSamples(run))
        before = values[: np.searchsorted(time, window.first, "right")]
        for place in np.flatnonzero(before.any(axis=0)):
            last = np.flatnonzero(before[:, place])[-1]
            latest = int(time[last]), int(before[last, place]), run.filler
            # Of two numbers of one time the greater stays, as where records are joined.
            samples.latest[metrics[place]] = max(latest, samples.latest.get(metrics[place], latest))
        inside = window.has(time) & (time > window.first)
        time, values = time[inside], values[inside]
        self.out.leave_out(name, Reason.OUTSIDE_CUT, run.values - np.count_nonzero(values))
        if name in self.plan.rates:
            kept = self._thin(name, time, values)
            samples.thinned.append((run, time, kept))
        else:
            self._append_samples(run, metrics, time, values)

    def _thin(self, name: str, time: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Return the values of a layout that its rate keeps, 0 in the place of others, and count these as
        left out: of each metric the last value in each interval of trace time stays, so that values
        at the ends of intervals stay right.
        """
        rate = self.plan.rates[name]
        stretch = time // max(1, SECOND // rate)
        kept = np.zeros_like(values)
        for place, column in enumerate(values.T):
            rows = np.flatnonzero(column)
            rows = rows[np.lexsort((column[rows], time[rows]))]
            rows = rows[np.append(np.diff(stretch[rows]) != 0, True)[: len(rows)]]
            kept[rows, place] = column[rows]
        reason = Reason.ABOVE_SAMPLE_RATE.with_detail(f"{rate:,}")
        self.out.leave_out(name, reason, np.count_nonzero(values) - np.count_nonzero(kept))
        return kept

    def _write_samples(self, name: str, samples: _RowSamples) -> None:
        """Write what is known of a row when all runs have been read."""
        if samples.thinned:
            every = {metric for run, _, _ in samples.thinned for metric in run.shape.metrics}
            metrics = tuple(sorted(every))
            time = np.concatenate([time for _, time, _ in samples.thinned])
            wide = np.zeros((len(time), len(metrics)), np.int64)
            start = 0
            for run, _, values in samples.thinned:
                places = [metrics.index(metric) for metric in run.shape.metrics]
                wide[start : start + len(values), places] = values
                start += len(values)
            order = np.argsort(time, kind="stable")
            kept = np.empty_like(wide)
            kept[order] = self._thin(name, time[order], wide[order])
            start = 0
            for run, own, _ in samples.thinned:
                self._append_samples(run, metrics, own, kept[start : start + len(own)])
                start += len(own)
        for is_filler in (False, True):
            latest = {
                metric: value
                for metric, (_, value, filler) in sorted(samples.latest.items())
                if filler == is_filler
            }
            if latest:
                self.out.left_out[name, Reason.OUTSIDE_CUT] -= len(latest)
                run = replace(samples.run, filler=is_filler)
                values = np.array([[*latest.values()]], np.int64)
                self._append_samples(run, tuple(latest), np.array([self.window.first]), values)

    def _append_samples(
        self, run: Run, metrics: tuple[Metric, ...], time: np.ndarray, values: np.ndarray
    ) -> None:
        """Write samples of a run, without metrics that have no value."""
        carried, rows = values.any(axis=0), values.any(axis=1)
        if not carried.any():
            return
        time, values = time[rows] - self.window.origin, values[np.ix_(rows, carried)]
        metrics = tuple(metric for metric, there in zip(metrics, carried, strict=True) if there)
        self.writer.task = run.task
        written = append_samples(self.writer, run.shape.name, metrics, run.object, time, values)
        self.out.runs.append(replace(written, filler=run.filler))
        self.out.events[run.shape.name] += written.count


def _find_layout(run: Run) -> Layout:
    return load_catalogue().layouts[run.shape.name]


def _split_like(column: np.ndarray, pieces: Sequence[_RangesInForce]) -> list[np.ndarray]:
    """Return the values of a column of all ranges, for the ranges of each piece."""
    return np.split(column, np.cumsum([len(piece.begin) for piece in pieces])[:-1])
