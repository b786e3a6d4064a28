"""A job whose reports are read, as it is written, cut or analysed, with the workers that run its tasks;
and the account of every row and record of it, which is in the trace or counted with the reason why
not.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from nsys2prv._util.files import (
    check_folder,
    describe_write_error,
    make_temporary_folder,
    make_working_folder,
)
from nsys2prv._util.progress import CpuTimes, Progress, run_timed
from nsys2prv._util.workers import Pool, make_pool
from nsys2prv.clock.maps import ClockMap
from nsys2prv.conversion.lost_launches import LostLaunches
from nsys2prv.conversion.options import Options
from nsys2prv.conversion.timeline import Timeline
from nsys2prv.events import Selection
from nsys2prv.events.catalogue import Metric
from nsys2prv.events.kind import Account, Reason
from nsys2prv.nsight.captures import Captures
from nsys2prv.nsight.info import ReportInfo
from nsys2prv.paraver.object_model import ObjectModel
from nsys2prv.paraver.values import NameValues
from nsys2prv.store.runs import COUNTER, LINE, TRACE, Run, Shape, Span
from nsys2prv.store.task_result import TaskResult
from nsys2prv.store.windows import GlobalIds, IdTable, choose_window_bounds, join_small_runs


@contextmanager
def open_workplace(
    options: Options, reports: int, target: Path
) -> Iterator[tuple[Pool, Path, Path]]:
    """Yield the workers for so many reports, a folder for what is to be put in place beside the
    target, and one for intermediate files. Raises Nsys2prvError where the target or such files
    cannot be written.
    """
    folders = [target.parent, *([options.tmp] if options.tmp else [])]
    try:
        for folder in folders:
            check_folder(folder)
        with (
            make_pool(options.engine, options.jobs, options.scheduler, reports) as pool,
            make_temporary_folder(target.parent) as staging,
            make_working_folder(staging, options.tmp) as working,
            pool.ensure_end(),
        ):
            yield pool, staging, working
    except OSError as error:
        raise describe_write_error(error, target, folders) from error


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
        tasks: Iterable,
        what: Callable[[Any], str] = lambda _: "nsys2prv",
    ) -> Iterator:
        """Return results of pure functions over files, in the order of the tasks. what: names a
        task for people.
        """
        timed = partial(run_timed, function)
        return self.spent.take_values(
            function, self.pool.run_in_order(timed, tasks, 2 * self.pool.jobs, what)
        )


class Job(Struct):
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
    #: First and last time of the events of each report, in the trace or not, in local ns.
    spans: Mapping[int, Span]
    #: All runs; `run.task` is an index into `threads`, `domains` and each list of `names`.
    runs: list[Run]
    #: Per task: index into model.tree of the thread of each local object.
    threads: list[np.ndarray]
    #: Per task: index into `domain_codes` of each local NVTX domain.
    domains: list[np.ndarray]
    #: Name set -> per task: event value of each local name.
    names: dict[str, list[np.ndarray]]
    #: Records and sampled numbers by layout, lines by kind.
    written: Counter[str]
    #: Read but not written, by (layout or kind of lines, reason).
    left_out: Counter[tuple[str, str]]
    #: Length of the trace, ns.
    duration: int
    #: Notes of the preparation, for the summary.
    notes: list[str] = field(default_factory=list)
    #: Warnings of the preparation, for the summary.
    warnings: list[str] = field(default_factory=list)
    #: Processes with launching calls of which there is no work.
    lost: list[LostLaunches] = field(default_factory=list)
    #: Work on GPUs that begins before its launch: report, globalPid, CUDA ordinal, number, and by
    #: how much at most (ns).
    early_work: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    #: One line for each report that could not be read.
    unread: list[str] = field(default_factory=list)
    #: Which reports were recorded together.
    captures: Captures = Captures((), {})
    #: (report, process) whose NCCL kernels have no payloads, other than those of other reports -> how
    #: many kernels, and how many of these were matched all the same.
    silent_in_nccl: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    #: True if this is a part of the job that was read.
    is_cut: bool = False

    @classmethod
    def from_results(
        cls,
        results: list[TaskResult],
        *,
        model: ObjectModel,
        timeline: Timeline,
        values: dict[str, NameValues],
        domain_codes: list[tuple[str, int]],
        spans: Mapping[int, Span],
        **others: Any,
    ) -> Job:
        """Return the job of these results. others: fields that do not follow from them."""
        by_task = sorted(results, key=lambda result: result.task)
        numbers = {result.task: index for index, result in enumerate(by_task)}
        domain_index = {name: index for index, (name, _) in enumerate(domain_codes)}
        shapes: dict[Shape, Shape] = {}
        runs = [
            replace(run, task=numbers[run.task], shape=shapes.setdefault(run.shape, run.shape))
            for result in results
            for run in result.runs
        ]
        written = sum_counters(result.events for result in results)
        for run in runs:
            if run.shape.stream == LINE:
                written[run.shape.name] += run.rows
        return cls(
            results=results,
            model=model,
            timeline=timeline,
            values=values,
            domain_codes=domain_codes,
            spans=spans,
            runs=runs,
            threads=[find_threads(result, model) for result in by_task],
            domains=[
                np.array([domain_index[domain] for domain in result.domains], np.int64)
                for result in by_task
            ],
            names={
                name: [
                    np.array(name_values.by_task.get(result.task, ()), np.int64)
                    for result in by_task
                ]
                for name, name_values in values.items()
            },
            written=written,
            left_out=sum_counters(result.left_out for result in results),
            duration=find_trace_duration(results, spans, timeline.clocks),
            **others,
        )

    @property
    def clocks(self) -> list[ClockMap]:
        """Return the maps to trace time: of every report, and last the identity for runs that are
        in trace time.
        """
        return self.timeline.clocks


def sum_counters(counters: Iterable[Counter]) -> Counter:
    """Return the sum of counts, zeros included."""
    total: Counter = Counter()
    for counter in counters:
        total.update(counter)
    return total


def collect_metrics(job: Job) -> dict[str, set[Metric]]:
    """Return the sampled numbers met, by layout."""
    metrics: dict[str, set[Metric]] = defaultdict(set)
    for shape in {run.shape for run in job.runs if run.shape.stream == COUNTER}:
        metrics[shape.name].update(shape.metrics)
    return metrics


def find_trace_duration(
    results: Sequence[TaskResult], spans: Mapping[int, Span], clocks: Sequence[ClockMap]
) -> int:
    """Return the length of the trace (ns), from all that it holds and the spans of the reports'
    events (local ns).
    """
    lasts = {report: [last] for report, (_, last) in spans.items()}
    for run in (run for result in results for run in result.runs):
        lasts.setdefault(run.report, []).append(run.greatest_time)
    return max(
        int(clocks[report].to_global(np.array(times)).max()) for report, times in lasts.items()
    )


def find_threads(result: TaskResult, model: ObjectModel) -> np.ndarray:
    """Return the thread index of each local object of a result."""
    if result.report == TRACE:
        return np.arange(model.tree.threads)
    return np.array([model.rows[result.report, key] for key in result.objects], np.int64)


class RecordBalance(Struct):
    """Records or sampled numbers of a layout, or lines of a kind. made = written + left_out."""

    #: Number that was made.
    made: int = 0
    #: Number that is in the trace.
    written: int = 0
    #: Reason -> number.
    left_out: dict[str, int] = field(default_factory=dict)

    @property
    def missing(self) -> int:
        """Return the number of records that nothing accounts for: 0."""
        return self.made - self.written - sum(self.left_out.values())


class Ledger(Struct):
    """Accounts of all rows and records of a job."""

    #: By kind of event, or relation.
    kinds: dict[str, Account] = field(default_factory=dict)
    #: By layout.
    records: dict[str, RecordBalance] = field(default_factory=dict)
    #: By kind of line.
    lines: dict[str, RecordBalance] = field(default_factory=dict)
    #: For tables of which kinds take rows by conditions: their rows, and those that no kind took.
    tables: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def missing(self) -> dict[str, int]:
        """Return what does not balance, by kind, layout or kind of line: empty unless something is
        wrong.
        """
        return {
            name: account.missing
            for accounts in (self.kinds, self.records, self.lines)
            for name, account in accounts.items()
            if account.missing
        }


def sum_accounts(results: Iterable[TaskResult]) -> dict[str, Account]:
    """Return the accounts of all results together, by kind of event, or relation."""
    accounts: dict[str, Account] = {}
    for result in results:
        for kind, account in result.accounts.items():
            accounts[kind] = accounts.get(kind, Account()) + account
    return dict(sorted(accounts.items()))


def make_ledger(
    kinds: Mapping[str, Account],
    results: Sequence[TaskResult],
    written: Mapping[str, int],
    left_out: Mapping[tuple[str, str], int],
) -> Ledger:
    """Return the account. kinds: the :func:`sum_accounts` of the results. written: records by
    layout and lines by kind; left_out: those that are not, by (layout or kind of line, reason).
    """
    reasons = group_by_name(left_out)
    events = sum_counters(result.events for result in results)
    for (name, reason), count in sum_counters(result.left_out for result in results).items():
        # These were taken off the events.
        events[name] += count * (reason == Reason.IN_OTHER_REPORT)
    lines = sum_counters(result.lines for result in results)
    tables = sum_counters(result.tables for result in results)
    taken = sum_counters(result.of_table for result in results)

    def balance(made: Counter[str]) -> dict[str, RecordBalance]:
        return {
            name: RecordBalance(made[name], written.get(name, 0), reasons.get(name, {}))
            for name in sorted(made)
        }

    return Ledger(
        {kind: account for kind, account in kinds.items() if account.rows or account.synthesized},
        balance(+events),
        balance(lines),
        {
            table: {"rows": rows, Reason.NOT_SELECTED: rows - taken[table]}
            for table, rows in sorted(tables.items())
        },
    )


def group_by_name(counts: Mapping[tuple[str, str], int]) -> dict[str, dict[str, int]]:
    """Return counts by (kind or layout, reason) as reason -> count for each kind or layout."""
    by_name: dict[str, dict[str, int]] = {}
    for (name, reason), count in sorted(counts.items()):
        if count:
            by_name.setdefault(name, {})[reason] = count
    return by_name


def plan_windows(job: Job) -> tuple[list[Run], GlobalIds, list[int]]:
    """Return what :class:`WindowReader` reads a job's records from (its runs, small ones joined,
    and the global ids of what they refer to), and the times (ns) at which its windows begin.
    """
    global_ids = GlobalIds(
        job.clocks,
        job.duration,
        IdTable.from_columns(job.threads),
        IdTable.from_columns(job.domains),
        {name: IdTable.from_columns(columns) for name, columns in job.names.items()},
    )
    runs = join_small_runs(job.runs, global_ids, job.folder, job.workers.run)
    return runs, global_ids, choose_window_bounds(runs, job.clocks)
