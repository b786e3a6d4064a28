"""A job whose reports are read, as it is written, cut or analysed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from nsys2prv._util.progress import CpuTimes, Progress, run_timed
from nsys2prv._util.workers.pool import Pool
from nsys2prv.clock.maps import ClockMap
from nsys2prv.conversion.timeline import Span, Timeline
from nsys2prv.events.selection import Selection
from nsys2prv.nsight.info import ReportInfo
from nsys2prv.paraver.object_model import ObjectModel
from nsys2prv.paraver.values import NameValues
from nsys2prv.store.runs import LINE, TRACE, Run, Shape
from nsys2prv.store.task_result import TaskResult


class Workers(Struct, frozen=True):
    """Pool that runs the tasks, with progress and accounting of time."""

    #: Executor of the tasks.
    pool: Pool
    #: Display of progress on the terminal.
    progress: Progress
    #: CPU and wall time by stage.
    spent: CpuTimes = field(default_factory=CpuTimes)

    def run(
        self,
        function: Callable,
        tasks: Sequence,
        ahead: int | None = None,
        what: Callable[[Any], str] = lambda _: "nsys2prv",
    ) -> Iterator:
        """Return results of pure functions over files, in the order of the tasks. what: names a
        task for people.
        """
        ahead = 2 * self.pool.jobs if ahead is None else ahead
        return self.spent.over(
            function, self.pool.in_order(partial(run_timed, function), tasks, ahead, what)
        )


class Job(Struct, dict=True):
    """Reports of a job once they are read, with all that is needed to write the trace. All arrays
    are int64.
    """

    #: Metadata of the reports, in rank order.
    infos: list[ReportInfo]
    #: Kinds of events that are translated.
    selection: Selection
    #: Results of reading and of the relations; indices in their runs are local to the task.
    results: list[TaskResult]
    #: Paraver's tree of nodes, tasks and threads.
    model: ObjectModel
    #: Timeline whose clock maps lead from local to trace time.
    timeline: Timeline
    #: Name set -> labels of the values that `names` refers to.
    values: dict[str, NameValues]
    #: (name, number) of every NVTX domain, sorted.
    domain_codes: list[tuple[str, int]]
    #: Folder of temporary files, where the runs are.
    folder: Path
    #: Pool that runs tasks on this job.
    workers: Workers
    #: Notes of the preparation, for the summary.
    notes: list[str] = field(default_factory=list)
    #: Warnings of the preparation, for the summary.
    warnings: list[str] = field(default_factory=list)
    #: One line for each report that could not be read.
    unread: list[str] = field(default_factory=list)
    #: Stores that some of the results come from.
    stores: list[Path] = field(default_factory=list)
    #: True if this is a part of the job that was read.
    is_cut: bool = False
    #: First and last time of the events of each report, in the trace or not, in local ns.
    spans: Mapping[int, Span] = field(default_factory=dict)

    def __post_init__(self) -> None:
        by_task = sorted(self.results, key=lambda result: result.task)
        numbers = {result.task: index for index, result in enumerate(by_task)}
        domain_index = {name: index for index, (name, _) in enumerate(self.domain_codes)}
        shapes: dict[Shape, Shape] = {}
        #: All runs; `run.source` is an index into `threads`, `domains` and each list of `names`.
        self.runs: list[Run] = [
            replace(run, source=numbers[run.source], shape=shapes.setdefault(run.shape, run.shape))
            for result in self.results
            for run in result.runs
        ]
        #: Per source: index into model.tree of the thread of each local object.
        self.threads: list[np.ndarray] = [find_threads(result, self.model) for result in by_task]
        #: Per source: index into `domain_codes` of each local NVTX domain.
        self.domains: list[np.ndarray] = [
            np.array([domain_index[domain] for domain in result.domains], np.int64)
            for result in by_task
        ]
        #: Name set -> per source: event value of each local name.
        self.names: dict[str, list[np.ndarray]] = {
            name: [
                np.array(name_values.by_task.get(result.task, ()), np.int64) for result in by_task
            ]
            for name, name_values in self.values.items()
        }
        #: Records and sampled numbers by layout, lines by kind.
        self.written: Counter[str] = sum_counters(result.events for result in self.results)
        for run in self.runs:
            if run.shape.stream == LINE:
                self.written[run.shape.name] += run.rows
        #: Read but not written, by (layout or kind of lines, reason).
        self.left_out: Counter[tuple[str, str]] = sum_counters(
            result.left_out for result in self.results
        )
        #: Length of the trace, ns.
        self.duration: int = find_trace_duration(self.results, self.spans, self.clocks)

    @property
    def clocks(self) -> list[ClockMap]:
        """To trace time: of every report, and last the identity for runs that are in trace time."""
        return self.timeline.clocks


def sum_counters(counters: Iterable[Counter]) -> Counter:
    """Return the sum of counts, zeros included."""
    total: Counter = Counter()
    for counter in counters:
        total.update(counter)
    return total


def find_trace_duration(
    results: Sequence[TaskResult], spans: Mapping[int, Span], clocks: Sequence[ClockMap]
) -> int:
    """Return the length of the trace (ns), from all that it holds and the spans of the reports'
    events (local ns).
    """
    lasts = {report: [last] for report, (_, last) in spans.items()}
    for run in (run for result in results for run in result.runs):
        lasts.setdefault(run.report, []).append(run.last)
    return max(
        int(clocks[report].to_global(np.array(times)).max()) for report, times in lasts.items()
    )


def find_threads(result: TaskResult, model: ObjectModel) -> np.ndarray:
    """Return the thread index of each local object of a result."""
    if result.report == TRACE:
        return np.arange(model.tree.threads)
    return np.array([model.rows[result.report, key] for key in result.objects], np.int64)
