"""Represent a job in each stage of a conversion.

`Opened` is the job before its reports are read; `Read` has their events, `Numbered` their rows, and
`Placed` their time in the trace. `Job` can be cut, written and analyzed. A stage takes its
predecessor and returns its own class, which has all earlier fields. Arrays are int64, times ns.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import asdict, replace

from nsys2prv._util import files
from nsys2prv._util.columns import ABSENT, factorize_together
from nsys2prv._util.text import Note, Progress
from nsys2prv._util.workers import Pool, make_pool
from nsys2prv.clock.maps import UNPLACED, ClockMap, ClockRecord, Placement
from nsys2prv.conversion.damaged_work import DamagedWork
from nsys2prv.conversion.options import Options, Plan
from nsys2prv.conversion.table_maps import NotedParts
from nsys2prv.conversion.whole_reports import LostLaunches
from nsys2prv.events import Selection
from nsys2prv.events.extraction import ObjectKey
from nsys2prv.export.info import ReportInfo
from nsys2prv.export.outlines import Outline
from nsys2prv.export.ranks import Captures
from nsys2prv.export.source import Part
from nsys2prv.table.event_reader import CutEdges
from nsys2prv.table.runs import LINE, TRACE, Run, Shape, Span
from nsys2prv.table.slices import GlobalIds, IdTable
from nsys2prv.table.task_result import TaskResult
from nsys2prv.writers.names import NameValues
from nsys2prv.writers.rows import ObjectModel

#: Latest time (UTC, ns) at which a trace may begin.
END_OF_DATES = 250_000_000_000_000_000_000
#: Maximum number of short tasks, with about this many rows, that are sent to a worker together.
MOST_TOGETHER, ROWS_TOGETHER = 16, 200_000
Stage = TypeVar("Stage", bound="Opened")


@contextmanager
def open_workplace(
    options: Options, reports: int, target: Path
) -> Iterator[tuple[Pool, Path, Path]]:
    """Yield the workers for this number of reports, a folder for new files beside `target`, and a
    folder for temporary files. Raise Nsys2prvError if files cannot be written there.
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
            pool.check_shared([staging, working])
            yield pool, staging, working
    except OSError as error:
        raise files.describe_write_error(error, target, folders) from error


class Opened(Struct, frozen=True, eq=False, kw_only=True):
    """A job whose reports are open, but of which only metadata has been read."""

    #: What to read, how to align it, and what to leave out.
    plan: Plan
    #: Folder of temporary files, including the runs.
    folder: Path
    #: Pool that runs the tasks, and the display of progress.
    pool: Pool
    progress: Progress
    #: Metadata of the reports, in rank order, and the clock of each: its own clocks until the stage
    #: `Placed`.
    infos: list[ReportInfo]
    placements: list[Placement]
    #: A line for each report that could not be read.
    unread: list[str]
    #: Warnings for the summary.
    warnings: list[str]
    #: Those about the set of reports, by kind of note of the quality: reports are missing, or do not
    #: belong together.
    of_set: Mapping[str, list[str]] = {}
    #: Path of a report -> outlines of its tables, if a time range is to be read.
    outlines: Mapping[Path, dict[str, Outline]] = {}

    @property
    def selection(self) -> Selection:
        """Return the selected event kinds."""
        return self.plan.selection

    @property
    def machines(self) -> list[int]:
        """Return the number of the machine on which each report was recorded."""
        return [placement.machine for placement in self.placements]

    def run(self, function: Callable, tasks: Iterable) -> Iterator:
        """Run a function that depends only on files on each task, and yield the results in order."""
        return self.pool.run_in_order(function, tasks)

    def run_small(self, function: Callable, tasks: Sequence, rows: int = 1) -> Iterator:
        """Run short tasks on the workers as :meth:`run` does, several at a time. rows: total number
        of rows.
        """
        most = min(MOST_TOGETHER, ROWS_TOGETHER * len(tasks) // max(1, rows))
        together = self.pool.limit_together(len(tasks), most)
        return self.pool.run_in_order(function, tasks, together)


class ChosenRows(Struct, frozen=True):
    """The rows of each report to read."""

    #: Of each report table -> rows to read; all of tables that are not here.
    chosen: list[dict[str, tuple[Part, ...]]]
    #: For each report: table -> the rows noted in its outline.
    noted: list[dict[str, NotedParts]]
    #: Kinds that are read in these rows only, although further rows of them are noted.
    limited: frozenset[str] = frozenset()


class Comparison(Struct, frozen=True):
    """Facts of a whole job, of which only a part is converted, to compare its reports."""

    #: Results of reading the facts. Kinds that cannot be read in part are complete in them.
    results: list[TaskResult]
    #: As in `Read` and `Numbered`.
    clock_results: list[TaskResult]
    silent_in_nccl: dict[tuple[int, int], tuple[int, int]] | None
    #: Corrections of the hosts' clocks; None for none.
    clock_record: ClockRecord | None


class ReadPart(Struct, frozen=True):
    """The part of a job to read for a time range: rows of tables, and the times that they cover."""

    rows: ChosenRows
    #: Of jobs whose reports are compared.
    comparison: Comparison | None
    #: First and last time of the events of each report, read or not, local ns.
    spans: dict[int, Span]
    #: The requested part in the time of the trace, and in the time of each report.
    span: Span
    windows: list[Span]
    #: (report, object) of threads and streams that have events all the time.
    objects: list[tuple[int, ObjectKey]]
    #: Table that is not read completely -> number of its rows, and number of rows that are not
    #: read.
    unread: dict[str, tuple[int, int]]


class Read(Opened, frozen=True, eq=False, kw_only=True):
    """A job whose reports were read; the times of each are still those of its own clock."""

    #: Results of the tasks; indices in their runs are local to the task.
    results: list[TaskResult]
    #: Results of the kinds that are read only to align host clocks; empty if all of these are
    #: converted.
    clock_results: list[TaskResult]
    #: First and last time of the events of each report, in the trace or not, in local ns.
    spans: dict[int, Span]
    #: Processes with launching calls without recorded work.
    lost: list[LostLaunches]
    #: The part that was read; None for the whole job.
    read_part: ReadPart | None = None

    @property
    def ordered_results(self) -> list[TaskResult]:
        """Return the results in the order of their tasks."""
        return sorted(self.results, key=lambda result: result.task)

    @property
    def unnamed(self) -> set[str]:
        """Return the texts that replace names missing from the reports."""
        return set().union(*(result.unnamed for result in self.results))

    @property
    def next_task(self) -> int:
        """Return a number for the next task that is not used yet."""
        return 1 + max((result.task for result in self.results), default=-1)

    def list_objects(self) -> list[tuple[int, ObjectKey]]:
        """Return (number of the report, key) for all objects (threads, streams, devices) with
        events.
        """
        return [(result.report, key) for result in self.results for key in result.objects]


class Numbered(Read, frozen=True, eq=False, kw_only=True):
    """A job in which every thread, stream and device with events has a row of the trace."""

    #: Groups of reports that were recorded together.
    captures: Captures
    #: (report, process) with NCCL kernels without the payloads that other reports have -> number of these
    #: kernels, and of matched ones among them.
    silent_in_nccl: dict[tuple[int, int], tuple[int, int]]
    #: Paraver's tree of nodes, tasks and threads.
    model: ObjectModel

    def find_threads(self, result: TaskResult) -> np.ndarray:
        """Return the row of the trace (thread index) of each object in a result."""
        return np.array([self.model.rows[result.report, key] for key in result.objects], np.int64)


class Placed(Numbered, frozen=True, eq=False, kw_only=True):
    """A job in which the times of all reports can be converted to trace time."""

    #: Corrections of the hosts' clocks; None if there is only one clock, or none was to be corrected.
    clock_record: ClockRecord | None
    #: Maps to trace time: of every report, and last the identity for runs in trace time.
    clocks: list[ClockMap]
    #: UTC at trace time 0, ns.
    epoch: int


class Job(Placed, frozen=True, eq=False, kw_only=True):
    """A complete job, which can be cut, written and analyzed."""

    #: Notes for the summary.
    notes: list[Note]
    #: GPU work with impossible recorded times.
    damaged: list[DamagedWork]
    #: Name set -> labels of the values of names.
    values: dict[str, NameValues]
    #: Original labels if `values` contains pseudonyms; otherwise empty.
    plain_labels: Mapping[str, pl.DataFrame]
    #: (name, number) of every NVTX domain, sorted.
    domain_codes: list[tuple[str, int]]
    #: All runs, and the meaning of their local times and numbers in the trace.
    runs: list[Run]
    ids: GlobalIds
    #: Records and sampled numbers by layout, lines by kind.
    written: Counter[str]
    #: Read but not written, by (layout or kind of lines, reason).
    left_out: Counter[tuple[str, str]]
    #: For a part of a job: the whole job, and the omitted events at its edges.
    uncut: Job | None = None
    edges: CutEdges | None = None

    @property
    def duration(self) -> int:
        """Return the length of the trace (ns)."""
        return self.ids.duration

    @property
    def begin_utc(self) -> datetime | None:
        """Return the start of the trace in UTC, or None if no report has a clock."""
        is_placed = any(placement.method != UNPLACED for placement in self.placements)
        if not is_placed or not 0 < self.epoch < END_OF_DATES:
            return None
        return datetime.fromtimestamp(self.epoch // 1_000_000_000, timezone.utc)


def complete(stage: type[Stage], job: Opened, **fields: Any) -> Stage:
    """Return the job at a later stage of the conversion. stage: class of this stage. fields: new or
    changed fields.
    """
    return stage(**asdict(job) | fields)


def settle(job: Placed, **fields: Any) -> Job:
    """Make a job from all its results: list their runs, and translate numbers that are valid only
    in one task to numbers of the trace. fields: new or changed fields of `Job`.
    """
    known = asdict(job) | fields
    results, values = known["results"], known["values"]
    by_task = sorted(results, key=lambda result: result.task)
    places = {result.task: place for place, result in enumerate(by_task)}
    shapes: dict[Shape, Shape] = {}
    runs = [
        replace(run, task=places[run.task], shape=shapes.setdefault(run.shape, run.shape))
        for result in results
        for run in result.runs
    ]
    written = sum_counters(result.events for result in results)
    # Of all records, and of the spans of the reports' events.
    lasts = {report: [last] for report, (_, last) in job.spans.items()}
    for run in runs:
        if run.shape.stream == LINE:
            written[run.shape.name] += run.rows
        lasts.setdefault(run.report, []).append(run.greatest_time)
    duration = max(
        int(job.clocks[report].to_global(np.array(times)).max()) for report, times in lasts.items()
    )
    return Job(
        **known
        | {
            "runs": runs,
            "ids": _make_global_ids(job, by_task, values, known["domain_codes"], duration),
            "written": written,
            "left_out": sum_counters(result.left_out for result in results),
        }
    )


def _make_global_ids(
    job: Placed,
    by_task: Sequence[TaskResult],
    values: Mapping[str, NameValues],
    domain_codes: Sequence[tuple[str, int]],
    duration: int,
) -> GlobalIds:
    """Return the translation of local times and numbers in the runs of these results to those of
    the trace.
    """
    # One array for all results of the trace: with each of many ranks there are more of both.
    every = np.arange(job.model.tree.threads)
    objects = [every if one.report == TRACE else job.find_threads(one) for one in by_task]
    domain_numbers = {name: index for index, (name, _) in enumerate(domain_codes)}
    domains = [np.array([domain_numbers[one] for one in of.domains], np.int64) for of in by_task]
    names = {
        name: [np.array(of_set.by_task.get(one.task, ()), np.int64) for one in by_task]
        for name, of_set in values.items()
    }
    stacks = [
        np.append(of_task, ABSENT)[result.callers]  # ABSENT is the last one
        for result, of_task in zip(by_task, names["caller"], strict=True)
    ]
    callers, numbers = factorize_together(*np.ascontiguousarray(np.concatenate(stacks).T))
    lengths = np.cumsum([len(of_task) for of_task in stacks])
    return GlobalIds(
        job.clocks,
        duration,
        IdTable.from_columns(objects),
        IdTable.from_columns(domains),
        {name: IdTable.from_columns(columns) for name, columns in names.items()},
        IdTable.from_columns(np.split(numbers, lengths[:-1])),
        np.stack(callers, axis=1),
    )


def group_by_report(runs: Iterable[Run]) -> dict[int, list[Run]]:
    """Return number of the report -> its runs, in order."""
    by_report: dict[int, list[Run]] = defaultdict(list)
    for run in runs:
        by_report[run.report].append(run)
    return by_report


def sum_counters(counters: Iterable[Counter]) -> Counter:
    """Add up counters. Unlike `+`, this keeps counts of zero."""
    total: Counter = Counter()
    for counter in counters:
        total.update(counter)
    return total
