"""A job whose reports are read, as it is written, cut or analysed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nsys2prv._util.engines.pool import Pool
from nsys2prv._util.progress import Progress, Spent, timed
from nsys2prv.clock.maps import ClockMap
from nsys2prv.conversion.timeline import Timeline
from nsys2prv.events.selection import Selection
from nsys2prv.nsight.info import ReportInfo
from nsys2prv.paraver.object_model import ObjectModel
from nsys2prv.paraver.values import NameValues
from nsys2prv.store.runs import LINE, TRACE, Run, Shape
from nsys2prv.store.task_result import TaskResult


@dataclass(frozen=True)
class Workers:
    """Who does the work, and where progress is shown."""

    pool: Pool
    progress: Progress
    spent: Spent = field(default_factory=Spent)

    def run(
        self,
        function: Callable,
        tasks: Sequence,
        ahead: int | None = None,
        what: Callable[[Any], str] = lambda _: "nsys2prv",
    ) -> Iterator:
        """Results of pure functions over files, in the order of the tasks. what: names a task for
        people.
        """
        ahead = 2 * self.pool.jobs if ahead is None else ahead
        return self.spent.over(
            function, self.pool.in_order(partial(timed, function), tasks, ahead, what)
        )


@dataclass
class Job:
    """What is known of a job once its reports are read. All arrays are int64.

    infos: the reports, in rank order. results: of reading and relating; their runs' indices are
    local. runs: all runs, whose `source` is an index into these lists: threads, of the thread (in
    model.tree) of each local object; domains, of the local NVTX domains as indices into
    domain_codes; names, per name set, of the values of local names. values: labels of these values.
    domain_codes: (name, number) of every NVTX domain, sorted. placed: the timeline, whose clocks
    lead to trace time. duration: of the trace (ns). written: records and sampled numbers by layout,
    lines by kind; left_out: those that were read and are not written, by (layout or kind of lines,
    reason). notes, warnings: of preparing. unread: what is wrong with reports that could not be
    read. stores: of which some of the results are. is_cut: whether this is a part of what was read.
    folder: of the temporary files, where the runs are.
    """

    infos: list[ReportInfo]
    selection: Selection
    results: list[TaskResult]
    model: ObjectModel
    placed: Timeline
    values: dict[str, NameValues]
    domain_codes: list[tuple[str, int]]
    folder: Path
    workers: Workers
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    stores: list[Path] = field(default_factory=list)
    is_cut: bool = False
    written: Counter[str] = field(init=False)
    left_out: Counter[tuple[str, str]] = field(init=False)
    runs: list[Run] = field(init=False)
    threads: list[np.ndarray] = field(init=False)
    domains: list[np.ndarray] = field(init=False)
    names: dict[str, list[np.ndarray]] = field(init=False)
    duration: int = field(init=False)

    def __post_init__(self) -> None:
        by_task = sorted(self.results, key=lambda result: result.task)
        numbers = {result.task: index for index, result in enumerate(by_task)}
        domain_index = {name: index for index, (name, _) in enumerate(self.domain_codes)}
        shapes: dict[Shape, Shape] = {}
        self.runs = [
            replace(run, source=numbers[run.source], shape=shapes.setdefault(run.shape, run.shape))
            for result in self.results
            for run in result.runs
        ]
        self.threads = [threads_of(result, self.model) for result in by_task]
        self.domains = [
            np.array([domain_index[domain] for domain in result.domains], np.int64)
            for result in by_task
        ]
        self.names = {
            name: [np.array(found.by_task.get(result.task, ()), np.int64) for result in by_task]
            for name, found in self.values.items()
        }
        self.written = sum((result.events for result in self.results), Counter())
        for run in self.runs:
            if run.shape.stream == LINE:
                self.written[run.shape.name] += run.rows
        self.left_out = sum((result.left_out for result in self.results), Counter())
        self.duration = trace_duration(self.results, self.clocks)

    @property
    def clocks(self) -> list[ClockMap]:
        """To trace time: of every report, and last the identity for runs that are in trace time."""
        return self.placed.clocks


def trace_duration(results: Sequence[TaskResult], clocks: Sequence[ClockMap]) -> int:
    """Of the trace (ns), by all that it holds."""
    lasts: dict[int, list[int]] = {}
    for run in (run for result in results for run in result.runs):
        lasts.setdefault(run.report, []).append(run.last)
    return max(
        int(clocks[report].to_global(np.array(times)).max()) for report, times in lasts.items()
    )


def threads_of(result: TaskResult, model: ObjectModel) -> np.ndarray:
    """The thread index of each local object of a result."""
    if result.report == TRACE:
        return np.arange(model.tree.threads)
    return np.array([model.rows[result.report, key] for key in result.objects], np.int64)
