"""The job that goes through the stages of a conversion, with the workers that run its tasks.

The stages `open`, `read` and `align` fill in its fields; then it can be cut, written and analysed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from types import MappingProxyType

import numpy as np
import polars as pl
from msgspec.structs import replace

from nsys2prv._util import files
from nsys2prv._util.columns import ABSENT, factorize_together
from nsys2prv._util.notes import Note
from nsys2prv._util.text import Progress
from nsys2prv._util.workers import Pool, make_pool
from nsys2prv.clock.maps import UNPLACED, ClockMap, ClockRecord, Placement
from nsys2prv.conversion.damaged_work import DamagedWork
from nsys2prv.conversion.lost_launches import LostLaunches
from nsys2prv.conversion.options import Options, Plan
from nsys2prv.events import Selection
from nsys2prv.events.extraction import ObjectKey
from nsys2prv.export.info import ReportInfo
from nsys2prv.export.ranks import Captures
from nsys2prv.table.event_reader import CutEdges
from nsys2prv.table.runs import LINE, TRACE, Run, Shape, Span
from nsys2prv.table.slices import GlobalIds, IdTable
from nsys2prv.table.work_result import WorkResult
from nsys2prv.writers.names import NameValues
from nsys2prv.writers.rows import ObjectModel

#: Latest time (UTC, ns) at which a trace may begin.
END_OF_DATES = 250_000_000_000_000_000_000
#: At most so many short tasks, of about so many rows, go to a worker together.
MOST_TOGETHER, ROWS_TOGETHER = 16, 200_000


@contextmanager
def open_workplace(
    options: Options, reports: int, target: Path
) -> Iterator[tuple[Pool, Path, Path]]:
    """Yield a pool of workers for this number of reports, a folder for new files beside the target, and a
    folder for intermediate files. Raises Nsys2prvError where files cannot be written there.
    """
    folders = [target.parent, *([options.tmp] if options.tmp else [])]
    try:
        for folder in folders:
            files.check_folder(folder)
        with (
            make_pool(options.engine, options.jobs, options.scheduler, reports) as pool,
            files.make_temporary_folder(target.parent) as staging,
            files.make_temporary_folder(options.tmp or staging) as working,
            pool.ensure_end(),
        ):
            yield pool, staging, working
    except OSError as error:
        raise files.describe_write_error(error, target, folders) from error


class Job:
    """The state of a job. Each stage sets its own fields, which do not exist before. Arrays are
    int64, times ns.
    """

    #: What to read, how to place it, what to leave out.
    plan: Plan
    #: Folder of temporary files, where the runs are.
    folder: Path
    #: Pool that runs the tasks, and the display of progress.
    pool: Pool
    progress: Progress
    #: Notes and warnings for the summary.
    notes: list[Note]
    warnings: list[str]

    #: Opened: metadata of the reports, in rank order, where each is placed (by its own clocks until
    #: it is aligned), and a line for each that could not be read.
    infos: list[ReportInfo]
    placements: list[Placement]
    unread: list[str]

    #: Read: results of the tasks; indices in their runs are local to the task.
    results: list[WorkResult]
    #: First and last time of the events of each report, in the trace or not, in local ns.
    spans: dict[int, Span]
    #: Processes with launching calls without recorded work.
    lost: list[LostLaunches]
    #: Work on GPUs that begins before its launch: report, globalPid, CUDA ordinal, number, and by
    #: how much at most (ns).
    early_work: list[tuple[int, int, int, int, int]]

    #: Results of the kinds that are read only to align the hosts' clocks; empty where all of these
    #: are converted.
    clock_results: list[WorkResult]

    #: Aligned: work of GPUs whose recorded times cannot be right.
    damaged: list[DamagedWork]
    #: Which reports were recorded together.
    captures: Captures
    #: Corrections of the hosts' clocks; None if there is only one clock, or none was to be corrected.
    clock_record: ClockRecord | None
    #: Maps to trace time: of every report, and last the identity for runs in trace time.
    clocks: list[ClockMap]
    #: UTC at trace time 0, ns.
    epoch: int

    #: Numbered: Paraver's tree of nodes, tasks and threads.
    model: ObjectModel
    #: Name set -> labels of the values that `names` refers to.
    values: dict[str, NameValues]
    #: Labels as the reports have them, where those of `values` are pseudonyms; else empty.
    plain_labels: Mapping[str, pl.DataFrame] = MappingProxyType({})
    #: (name, number) of every NVTX domain, sorted.
    domain_codes: list[tuple[str, int]]
    #: (report, process) whose NCCL kernels lack the payloads that other reports have -> number of
    #: these kernels, and how many of them were matched nevertheless; None until this is known.
    silent_in_nccl: dict[tuple[int, int], tuple[int, int]] | None

    #: Settled: all runs; `run.task` is an index into `threads`, `domains` and each list of `names`.
    runs: list[Run]
    #: Per task: index into model.tree of the thread of each local object.
    threads: list[np.ndarray]
    #: Per task: index into `domain_codes` of each local NVTX domain.
    domains: list[np.ndarray]
    #: Name set -> per task: event value of each local name.
    names: dict[str, list[np.ndarray]]
    #: Per task: callers of each local call stack by level, event values.
    callers: list[np.ndarray]
    #: Records and sampled numbers by layout, lines by kind.
    written: Counter[str]
    #: Read but not written, by (layout or kind of lines, reason).
    left_out: Counter[tuple[str, str]]
    #: Length of the trace, ns.
    duration: int
    #: True if this is a part of the job that was read; that job, and what the part leaves out at its edges.
    is_cut: bool = False
    uncut: Job | None = None
    edges: CutEdges | None = None

    def __init__(self, plan: Plan, folder: Path, pool: Pool, progress: Progress) -> None:
        self.plan, self.folder, self.pool, self.progress = plan, folder, pool, progress
        self.notes, self.warnings, self.unread = [], [], []
        self.silent_in_nccl = None

    @property
    def selection(self) -> Selection:
        """Return the kinds of events that are translated."""
        return self.plan.selection

    @property
    def begin_utc(self) -> datetime | None:
        """Return when the trace begins, in UTC; None where no report has a clock."""
        is_placed = any(placement.method != UNPLACED for placement in self.placements)
        if not is_placed or not 0 < self.epoch < END_OF_DATES:
            return None
        return datetime.fromtimestamp(self.epoch // 1_000_000_000, timezone.utc)

    @property
    def machines(self) -> list[int]:
        """Return the number of the machine that each report is of."""
        return [placement.machine for placement in self.placements]

    @property
    def ordered_results(self) -> list[WorkResult]:
        """Return the results in the order of their tasks."""
        return sorted(self.results, key=lambda result: result.task)

    def list_objects(self) -> list[tuple[int, ObjectKey]]:
        """Return the objects that hold events, with the reports that they are in."""
        return [(result.report, key) for result in self.results for key in result.objects]

    def run(self, function: Callable, tasks: Iterable) -> Iterator:
        """Run a pure function over files on each task, and return the results in order."""
        return self.pool.run_in_order(function, tasks)

    def run_small(self, function: Callable, tasks: Sequence, rows: int = 1) -> Iterator:
        """Do the same, where tasks are short. rows: of all."""
        most = min(MOST_TOGETHER, ROWS_TOGETHER * len(tasks) // max(1, rows))
        together = self.pool.limit_together(len(tasks), most)
        return self.pool.run_in_order(function, tasks, together)

    def find_threads(self, result: WorkResult) -> np.ndarray:
        """Return the thread index of each local object of a report's result."""
        return np.array([self.model.rows[result.report, key] for key in result.objects], np.int64)

    def settle(self) -> None:
        """Collect the results into the fields that all later steps read."""
        by_task = self.ordered_results
        places = {result.task: place for place, result in enumerate(by_task)}
        shapes: dict[Shape, Shape] = {}
        self.runs = [
            replace(run, task=places[run.task], shape=shapes.setdefault(run.shape, run.shape))
            for result in self.results
            for run in result.runs
        ]
        # One array for all results of the trace: with each of many ranks there are more of both.
        every = np.arange(self.model.tree.threads)
        self.threads = [
            every if result.report == TRACE else self.find_threads(result) for result in by_task
        ]
        domains = {name: index for index, (name, _) in enumerate(self.domain_codes)}
        self.domains = [
            np.array([domains[domain] for domain in result.domains], np.int64) for result in by_task
        ]
        self.names = {
            name: [np.array(values.by_task.get(one.task, ()), np.int64) for one in by_task]
            for name, values in self.values.items()
        }
        self.callers = [
            np.append(values, ABSENT)[result.callers]  # ABSENT is the last one
            for result, values in zip(by_task, self.names["caller"], strict=True)
        ]
        self.written = sum_counters(result.events for result in self.results)
        for run in self.runs:
            if run.shape.stream == LINE:
                self.written[run.shape.name] += run.rows
        self.left_out = sum_counters(result.left_out for result in self.results)
        # Of all records, and of the spans of the reports' events.
        lasts = {report: [last] for report, (_, last) in self.spans.items()}
        for run in (run for result in self.results for run in result.runs):
            lasts.setdefault(run.report, []).append(run.greatest_time)
        self.duration = max(
            int(self.clocks[report].to_global(np.array(times)).max())
            for report, times in lasts.items()
        )


def group_by_report(runs: Iterable[Run]) -> dict[int, list[Run]]:
    """Return report -> its runs, in their order."""
    by_report: dict[int, list[Run]] = defaultdict(list)
    for run in runs:
        by_report[run.report].append(run)
    return by_report


def sum_counters(counters: Iterable[Counter]) -> Counter:
    """Return the sum of counts, zeros included."""
    total: Counter = Counter()
    for counter in counters:
        total.update(counter)
    return total


def make_global_ids(job: Job) -> GlobalIds:
    """Return the translation of local times and numbers in a job's runs to those of the trace."""
    levels = np.ascontiguousarray(np.concatenate(job.callers).T)
    callers, numbers = factorize_together(*levels)
    lengths = np.cumsum([len(of_task) for of_task in job.callers])
    return GlobalIds(
        job.clocks,
        job.duration,
        IdTable.from_columns(job.threads),
        IdTable.from_columns(job.domains),
        {name: IdTable.from_columns(columns) for name, columns in job.names.items()},
        IdTable.from_columns(np.split(numbers, lengths[:-1])),
        np.stack(callers, axis=1),
    )
