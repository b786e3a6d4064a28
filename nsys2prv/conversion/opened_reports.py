"""The reports of a job, open and in rank order, and the reading of all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.errors import Nsys2prvError, Unreadable
from nsys2prv._util.progress import Progress
from nsys2prv._util.text import list_some
from nsys2prv._util.workers import Pool, is_worth_parallelizing, make_serial_pool
from nsys2prv.conversion import reading
from nsys2prv.conversion.job import Workers
from nsys2prv.conversion.options import Plan, choose_reports
from nsys2prv.events.kind import EventKind, Reason
from nsys2prv.nsight.communicators import name_communicators
from nsys2prv.nsight.info import ReportInfo
from nsys2prv.nsight.report_files import should_parallelize
from nsys2prv.nsight.source import Part
from nsys2prv.paraver import object_model
from nsys2prv.store.runs import Span
from nsys2prv.store.task_result import TaskResult

#: Rows of a job that one process reads and writes before others would have started.
SMALL_JOB_ROWS = 250_000
#: Rows that are as much work as opening a report and reading the first of each of its tables.
REPORT_ROWS = 40_000


class OpenedReports(Struct):
    """Reports that are open but not read yet."""

    #: Metadata of the reports, in rank order.
    infos: list[ReportInfo]
    #: What to read and how to place it.
    plan: Plan
    #: Pool that runs the tasks.
    workers: Workers
    #: What the user should know, a line each.
    warnings: list[str]
    #: One line for each report that cannot be opened.
    unread: list[str]


def open_reports(
    reports: Sequence[str | Path], plan: Plan, folder: Path, pool: Pool, quiet: bool
) -> OpenedReports:
    """Read the metadata of the reports, and check that they are of one job."""
    progress = Progress(quiet)
    paths, warnings = _drop_repetitions(reports)
    infos, unread = [], []
    shared = len(paths) > 1 and should_parallelize(paths, pool.jobs)
    inspectors = Workers(pool if shared else make_serial_pool(), progress)
    run_tasks = partial(inspectors.run, what=reading.name_first_report)
    inspections = reading.inspect_reports(paths, folder, plan.options.keep_going, run_tasks)
    for inspected in progress.follow(inspections, "opening reports", len(paths)):
        if isinstance(inspected, ReportInfo):
            infos.append(inspected)
        elif plan.options.keep_going:
            unread.append(str(inspected))
        else:
            raise inspected
    if unread and not infos:
        raise Nsys2prvError(f"none of the reports can be read; of the first: {unread[0]}")
    infos = object_model.order_reports(infos)
    # What is not wanted is read all the same: clocks are aligned and ranks related before
    # anything is cut.
    choose_reports(infos, plan.cut)
    rows = sum(
        part.last - part.first + 1
        for info in infos
        for part in list_wanted_parts(info, plan.selection.kinds)
    )
    if not is_worth_parallelizing(pool.jobs, rows + REPORT_ROWS * len(infos), SMALL_JOB_ROWS):
        pool = make_serial_pool()
    workers = Workers(pool, progress, inspectors.spent)
    communicators = name_communicators([info.communicators for info in infos])
    infos = [
        replace(info, communicators=rows) for info, rows in zip(infos, communicators, strict=True)
    ]
    return OpenedReports(infos, plan, workers, warnings, unread)


def read_all(opened: OpenedReports, folder: Path) -> list[TaskResult]:
    """Read all reports; returns the results of the tasks."""
    plan = opened.plan
    results: list[TaskResult] = []
    stages = reading.plan_tasks(opened.infos, plan.selection.kinds, folder, plan.settings)
    rows = sum(task.rows for tasks in stages for task in tasks)
    with opened.workers.progress.show_bar("reading", rows, "rows") as bar:
        for number, tasks in enumerate(stages):
            planned = reading.add_indexes(tasks, results) if number else tasks
            waiting = iter(planned)
            done = opened.workers.run(
                reading.read_task, planned, what=lambda task: str(task.info.path)
            )
            try:
                for result in done:
                    next(waiting)
                    results.append(result)
                    bar.update(result.rows)
            except Nsys2prvError as error:
                # Results come in the order of their tasks.
                raise Unreadable(str(error), next(waiting).info.given) from None
    return results


def find_spans(
    opened: OpenedReports, results: Sequence[TaskResult], folder: Path
) -> dict[int, Span]:
    """Return the first and the last time (local ns) of the events of each report that has any,
    whether they were read or not. results: of reading.
    """
    plan = opened.plan
    known = reading.find_known_spans(results)
    tasks = reading.plan_span_tasks(opened.infos, known, plan.selection, plan.settings, folder)
    found = opened.workers.run(reading.find_span, tasks, what=lambda task: str(task.info.path))
    spans = zip((task.report for task in tasks), found, strict=True)
    # Rows about the profiler count only in a report that holds nothing else.
    return {
        **reading.find_known_spans(results, extending=False),
        **known,
        **{report: span for report, span in spans if span is not None},
    }


def list_wanted_parts(info: ReportInfo, kinds: Sequence[EventKind]) -> Iterator[Part]:
    """Return the parts of a report's tables that these kinds read."""
    tables = {table for kind in kinds for table in kind.tables}
    return (part for table, part in info.parts.items() if table in tables)


def warn_of_far_rows(infos: Sequence[ReportInfo], results: Iterable[TaskResult]) -> list[str]:
    """Return a warning that names the reports and kinds of events, where there are such rows."""
    kinds: Counter[str] = Counter()
    reports: set[int] = set()
    for result in results:
        for kind, account in result.accounts.items():
            if count := account.dropped[Reason.FAR_FROM_CAPTURE]:
                kinds[kind] += count
                reports.add(result.report)
    if not kinds:
        return []
    where = list_some([infos[report].name for report in sorted(reports)])
    return [
        f"{where}: {Reason.FAR_FROM_CAPTURE.text} are left out because their times are damaged: "
        + ", ".join(f"{count:,} of {kind}" for kind, count in kinds.most_common())
    ]


def _drop_repetitions(reports: Sequence[str | Path]) -> tuple[list[Path], list[str]]:
    """Return the reports without repetitions, and a warning for each of those."""
    paths: dict[Path, Path] = {}
    warnings = []
    for report in map(Path, reports):
        try:
            real = report.resolve()
        except (OSError, RuntimeError):
            real = report  # a link to itself; opening it fails
        if real in paths:
            warnings.append(f"{report}: given twice, read once")
        paths.setdefault(real, report)
    if not paths:
        raise Nsys2prvError("no report given")
    return list(paths.values()), warnings
