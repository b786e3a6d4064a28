"""Rewriting runs: what a cut leaves of them, in the time of the cut trace. A task is a pure
function over files.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from nsys2prv._util.columns import OPEN, is_sorted
from nsys2prv._util.text import format_duration
from nsys2prv.conversion.cut_plan import CutRuns, CutTask
from nsys2prv.conversion.cut_samples import SampleCutter
from nsys2prv.events.catalogue import Layout, load_catalogue
from nsys2prv.events.reasons import Reason
from nsys2prv.store import windows
from nsys2prv.store.runs import (
    COUNTER,
    LINE,
    STATE,
    TRACE,
    Run,
    SpillReader,
    SpillWriter,
    make_begin_dtype,
    pair_runs,
    take_records,
)
from nsys2prv.store.spilling import append_events, find_only_object

#: Above all ends: among ranges that begin together those with greater ends are the outer ones.
OUTERMOST = 1 << 62


def cut_task(task: CutTask) -> CutRuns:
    """Cut the runs of a task and return what stays of them."""
    cutter = _Cutter(task)
    try:
        return cutter.cut()
    finally:
        cutter.reader.close()
        cutter.writer.close()


class _OpenRanges(Struct):
    """Ranges that are open when the cut begins, of a layout whose ranges nest, of one run: how they
    stand in the whole trace.
    """

    #: Run that they are of.
    run: Run
    #: Begin records.
    records: np.ndarray
    #: Times in the whole trace (ns).
    begin: np.ndarray
    #: Times in the whole trace (ns).
    end: np.ndarray


class _LastStates(Struct):
    """The last records of states at or before the cut's begin, of one run: rows (threads of the
    trace) and times.
    """

    #: Run that they are of.
    run: Run
    #: State records.
    records: np.ndarray
    #: Rows of the trace.
    thread: np.ndarray
    #: Times in the whole trace (ns).
    time: np.ndarray


class _Cutter(Struct, dict=True):
    #: What to cut.
    task: CutTask
    #: Reads the runs.
    reader: SpillReader = field(default_factory=SpillReader)
    #: What is left.
    out: CutRuns = field(default_factory=CutRuns)
    #: Ranges to be opened at the cut's begin.
    heads: list[_OpenRanges] = field(default_factory=list)
    #: States at the cut's begin.
    states: list[_LastStates] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.writer = SpillWriter(self.task.spill, TRACE, 0)
        self.window, self.orders, self.clock = (
            self.task.orders.window,
            self.task.orders,
            self.task.clock,
        )
        self.samples = SampleCutter(self.task, self.out, self.writer)

    def cut(self) -> CutRuns:
        for run, ends in pair_runs(self.task.runs):
            shape = run.shape
            if shape.name in self.orders.away:
                self.out.leave_out(
                    shape.name,
                    Reason.KIND_LEFT_OUT,
                    run.values if shape.stream == COUNTER else run.rows,
                )
            elif shape.stream == LINE:
                self._cut_lines(run)
            elif shape.stream == COUNTER:
                self.samples.add(run, self._read_up_to_end(run))
            elif shape.stream == STATE:
                self._cut_state_records(run)
            elif load_catalogue().layouts[shape.name].is_state:
                self._cut_states(run)
            else:
                self._cut_ranges(run, ends is not None and ends.until == OPEN)
        self._write_heads()
        self._write_states()
        self.samples.finish()
        return self.out

    def _to_cut_time(self, local: int) -> int:
        return int(self.clock.to_global(np.int64(local)))

    def _read_up_to_end(self, run: Run) -> np.ndarray:
        """Return the records of a run that may be before the cut's end."""
        if (
            not self.window.closed
            and self._to_cut_time(run.first) > self.window.last + self.clock.slack
        ):
            return self.reader.read_between(run, run.first, run.first)
        until = (
            None
            if self.window.closed
            else self.clock.to_local(self.window.last) + self.clock.slack + 1
        )
        return self.reader.read_between(run, run.first, until)

    def _find_kept(self, run: Run, objects: np.ndarray) -> np.ndarray:
        return self.task.threads[run.source][objects] >= 0

    # Ranges

    def _cut_ranges(self, run: Run, opened: bool) -> None:
        name, window = run.shape.name, self.window
        if not opened and self._to_cut_time(run.last) <= window.first:
            self.out.leave_out(name, Reason.OUTSIDE_CUT, run.rows)
            return
        records = self._read_up_to_end(run)
        begin, end = (
            windows.to_begin_times(records, self.clock),
            windows.to_end_times(records, self.clock, self.task.duration),
        )
        inside = end > window.first
        if not window.closed:
            inside &= begin < window.last
        self.out.leave_out(name, Reason.OUTSIDE_CUT, run.rows - np.count_nonzero(inside))
        chosen = np.flatnonzero(inside)
        kept = self._find_kept(run, records["object"][chosen])
        self.out.leave_out(name, Reason.ROW_LEFT_OUT, len(chosen) - np.count_nonzero(kept))
        chosen = chosen[kept]
        if least := self.orders.least.get(name, 0):
            long = (end[chosen] - begin[chosen] >= least) | (records["end"][chosen] == OPEN)
            short = Reason.TOO_SHORT.with_detail(format_duration(least))
            self.out.leave_out(name, short, len(chosen) - np.count_nonzero(long))
            chosen = chosen[long]
        if not len(chosen):
            return
        records, begin, end = take_records(records, chosen), begin[chosen], end[chosen]
        self.out.clipped[name] += int(
            np.count_nonzero((begin < window.first) | (end > window.last))
        )
        if load_catalogue().layouts[name].nests and (before := begin < window.first).any():
            self.heads.append(
                _OpenRanges(run, take_records(records, before), begin[before], end[before])
            )
            records, begin, end = take_records(records, ~before), begin[~before], end[~before]
        self._append_ranges(run, records, begin, end, end - window.origin)

    def _append_ranges(
        self, run: Run, records: np.ndarray, begin: np.ndarray, end: np.ndarray, ties: np.ndarray
    ) -> None:
        """Write ranges by their begin and end in the whole trace. ties: what begin records hold in
        place of the end, by which the writer puts outer ranges first: the end in the whole trace,
        for that of the cut is the same for all that it clips.
        """
        if not len(records):
            return
        window = self.window
        begin = np.maximum(begin, window.first) - window.origin
        end = np.minimum(end, window.last) - window.origin
        if not is_sorted(begin):
            order = np.argsort(begin, kind="stable")
            records, begin, end, ties = (
                take_records(records, order),
                begin[order],
                end[order],
                ties[order],
            )
        new, layout, present = self._keep_fields(run, records)
        new["time"], new["end"] = begin, ties
        last = max(int(end.max()), int(begin[-1]) + 1)
        self._append_events(run, present, new, end, last)
        self.out.written[layout.name] += len(new)

    def _keep_fields(self, run: Run, records: np.ndarray) -> tuple[np.ndarray, Layout, int]:
        """Return the records with the fields that are wanted alone."""
        layout = load_catalogue().layouts[run.shape.name]
        present = run.shape.present & self.orders.present.get(layout.name, -1)
        if present == run.shape.present:
            return records, layout, present
        new = np.empty(len(records), make_begin_dtype(layout, present, run.shape.wide))
        for column in new.dtype.names:
            new[column] = records[column]
        return new, layout, present

    def _append_events(
        self, run: Run, present: int, records: np.ndarray, end: np.ndarray, last: int
    ) -> None:
        """Write what is left of a run of begins, and its ends."""
        self.writer.source = run.source
        self.out.runs += append_events(
            self.writer, replace(run.shape, present=present), records, end, last
        )

    def _write_heads(self) -> None:
        """Write the ranges that nest and are open when the cut begins, the outer ones first: in the
        order in which the whole trace has them.
        """
        if not self.heads:
            return
        heads = sorted(self.heads, key=lambda head: (head.run.shape.name, head.run.shape.present))
        begin, end = (
            np.concatenate([getattr(head, name) for head in heads]) for name in ("begin", "end")
        )
        rank = np.empty(len(begin), np.int64)
        rank[np.lexsort((-end, begin))] = np.arange(len(begin))
        start = 0
        for head in heads:
            stop = start + len(head.records)
            self._append_ranges(
                head.run, head.records, head.begin, head.end, OUTERMOST - rank[start:stop]
            )
            start = stop

    # States

    def _cut_state_records(self, run: Run) -> None:
        """Return the state records of rows, with a begin and an end, in trace time."""
        records, window = self._read_up_to_end(run), self.window
        records = records[
            (records["end"] > window.first)
            & (records["time"] < window.last)
            & self._find_kept(run, records["object"])
        ]
        if len(records):
            records["time"] = np.maximum(records["time"], window.first) - window.origin
            records["end"] = np.minimum(records["end"], window.last) - window.origin
            self.writer.source = run.source
            self.out.runs.append(
                self.writer.append(
                    run.shape,
                    records,
                    int(records["end"].max()),
                    find_only_object(records["object"]),
                )
            )

    def _cut_states(self, run: Run) -> None:
        name, window = run.shape.name, self.window
        records = self._read_up_to_end(run)
        time, thread = (
            windows.to_begin_times(records, self.clock),
            self.task.threads[run.source][records["object"]],
        )
        kept = thread >= 0
        self.out.leave_out(name, Reason.ROW_LEFT_OUT, len(kept) - np.count_nonzero(kept))
        records, time, thread = take_records(records, kept), time[kept], thread[kept]
        before = np.flatnonzero(time <= window.first)
        if len(before):
            _, behind = np.unique(thread[before][::-1], return_index=True)
            last = before[len(before) - 1 - behind]
            self.states.append(
                _LastStates(run, take_records(records, last), thread[last], time[last])
            )
        inside = window.has(time) & (time > window.first)
        # Those that turn out to be in force when the cut begins are put back on the account.
        self.out.leave_out(
            name, Reason.OUTSIDE_CUT, run.rows - len(kept) + len(time) - np.count_nonzero(inside)
        )
        self._append_states(run, take_records(records, inside), time[inside])

    def _append_states(self, run: Run, records: np.ndarray, time: np.ndarray) -> None:
        if not len(records):
            return
        new, layout, present = self._keep_fields(run, records)
        new["time"] = np.maximum(time, self.window.first) - self.window.origin
        new["end"] = new["time"] + 1
        self._append_events(run, present, new, new["end"], int(new["time"][-1]) + 1)
        self.out.written[layout.name] += len(new)

    def _write_states(self) -> None:
        """Write the state of each row when the cut begins. Layouts with the same event type tell of
        the same states.
        """
        groups: dict[object, list[_LastStates]] = {}
        for last_states in self.states:
            groups.setdefault(
                load_catalogue().layouts[last_states.run.shape.name].fields[0].code, []
            ).append(last_states)
        for group in groups.values():
            group.sort(
                key=lambda last_states: (last_states.run.shape.name, last_states.run.shape.present)
            )
            thread, time = (
                np.concatenate([getattr(last_states, name) for last_states in group])
                for name in ("thread", "time")
            )
            order = np.lexsort((time, thread))
            in_force = np.zeros(len(thread), bool)
            in_force[order[np.append(np.diff(thread[order]) != 0, True)]] = True
            start = 0
            for last_states in group:
                own_rows = in_force[start : start + len(last_states.time)]
                start += len(last_states.time)
                self.out.left_out[last_states.run.shape.name, Reason.OUTSIDE_CUT] -= int(
                    np.count_nonzero(own_rows)
                )
                self._append_states(
                    last_states.run,
                    take_records(last_states.records, own_rows),
                    np.full(np.count_nonzero(own_rows), self.window.first),
                )

    # Lines

    def _cut_lines(self, run: Run) -> None:
        name, window = run.shape.name, self.window
        records = self._read_up_to_end(run)
        send, receive = (
            self.clock.to_global(records["time"]),
            self.clock.to_global(records["receive"]),
        )
        begins, ends = window.has(send), window.has(receive)
        half = np.count_nonzero(begins != ends)
        self.out.leave_out(name, Reason.HALF_OUTSIDE_CUT, half)
        self.out.leave_out(
            name, Reason.OUTSIDE_CUT, run.rows - np.count_nonzero(begins & ends) - half
        )
        inside = np.flatnonzero(begins & ends)
        kept = inside[
            self._find_kept(run, records["sender"][inside])
            & self._find_kept(run, records["receiver"][inside])
        ]
        self.out.leave_out(name, Reason.ROW_LEFT_OUT, len(inside) - len(kept))
        if not len(kept):
            return
        new = take_records(records, kept)
        new["time"], new["receive"] = send[kept] - window.origin, receive[kept] - window.origin
        self.writer.source = run.source
        self.out.runs.append(
            self.writer.append(run.shape, new, int(max(new["time"].max(), new["receive"].max())))
        )
        self.out.written[name] += len(new)
