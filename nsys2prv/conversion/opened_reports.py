"""The reports of a job, open and in rank order, and the reading of all of them: for a trace, or into
a store, on machines that do not write the trace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from nsys2prv._util import errors
from nsys2prv._util.errors import Nsys2prvError, Unreadable, UsageError
from nsys2prv._util.files import put_in_place
from nsys2prv._util.progress import Progress
from nsys2prv._util.store_file import ArchiveWriter, is_archive
from nsys2prv._util.text import list_some
from nsys2prv._util.workers import Pool, is_worth_parallelizing, make_serial_pool
from nsys2prv.conversion import reading, report_stores
from nsys2prv.conversion.job import Workers, open_workplace
from nsys2prv.conversion.options import DEFAULTS, Options, Plan, choose_reports
from nsys2prv.events.kind import EventKind, Reason
from nsys2prv.nsight import job_checks
from nsys2prv.nsight.info import ReportInfo
from nsys2prv.nsight.report_files import ensure_unchanged, has_log, should_parallelize
from nsys2prv.nsight.source import Part
from nsys2prv.paraver import object_model
from nsys2prv.store.runs import Span
from nsys2prv.store.task_result import TaskResult, pack_result

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
    #: Report number -> store that it is in and its entry there.
    stored: dict[int, tuple[Path, report_stores.ArchivedReport]]
    #: One line for each report that cannot be opened.
    unread: list[str]
    #: Ranks of the job without a report, as text.
    missing: list[str] = field(default_factory=list)


def open_reports(
    reports: Sequence[str | Path], plan: Plan, folder: Path, pool: Pool, quiet: bool
) -> OpenedReports:
    """Read the metadata of the reports and of the stores among them, and check that they are of one
    job. Returns them with the plan: of reading, the stores' own.
    """
    progress = Progress(quiet)
    paths, warnings = _drop_repetitions(reports)
    stores = report_stores.open_stores(paths)
    if stores:
        usual = Plan.from_options(DEFAULTS)
        plan = report_stores.check_settings_match(plan, usual, stores)
    exports = [path for path in paths if path not in stores]
    infos, unread = [], []
    shared = len(exports) > 1 and should_parallelize(exports, pool.jobs)
    inspectors = Workers(pool if shared else make_serial_pool(), progress)
    run_tasks = partial(inspectors.run, what=reading.name_first_report)
    inspections = reading.inspect_reports(exports, folder, plan.options.keep_going, run_tasks)
    for inspected in progress.follow(inspections, "opening reports", len(exports)):
        if isinstance(inspected, ReportInfo):
            infos.append(inspected)
        elif plan.options.keep_going:
            unread.append(str(inspected))
        else:
            raise inspected
    if unread and not infos and not stores:
        raise Nsys2prvError(f"none of the reports can be read; of the first: {unread[0]}")
    archived = [(path, report) for path, store in stores.items() for report in store.reports]
    if stores:
        given = [(report.info, path) for path, report in archived]
        given += [(info, info.given) for info in infos]
        report_stores.check_no_duplicate_reports(given)
    places = {id(report.info): (path, report) for path, report in archived}
    with report_stores.blame_stores(list(stores)):
        infos = object_model.order_reports([*infos, *(report.info for _, report in archived)])
        missing = job_checks.check_missing_ranks(infos)
        # What is not wanted is read all the same: clocks are aligned and ranks related before
        # anything is cut.
        choose_reports(infos, plan.cut)
        rows = sum(
            part.last - part.first + 1
            for info in infos
            for part in list_wanted_parts(info, plan.selection.kinds)
        )
        warnings += job_checks.check_job(infos)
    if not is_worth_parallelizing(pool.jobs, rows + REPORT_ROWS * len(infos), SMALL_JOB_ROWS):
        pool = make_serial_pool()
    workers = Workers(pool, progress, inspectors.spent)
    stored = {number: places[id(info)] for number, info in enumerate(infos) if id(info) in places}
    return OpenedReports(infos, plan, workers, warnings, stored, unread, missing)


def read_all(
    opened: OpenedReports, folder: Path, read: Callable[[Any], TaskResult]
) -> Iterator[tuple[int, TaskResult]]:
    """Yield the results of reading all reports, a task at a time, with the number of the stage.
    read: does the work of a task.
    """
    plan = opened.plan
    results: list[TaskResult] = []
    stages = reading.plan_tasks(opened.infos, plan.selection.kinds, folder, plan.settings)
    rows = sum(task.rows for tasks in stages for task in tasks)
    with opened.workers.progress.show_bar("reading", rows, "rows") as bar:
        for number, tasks in enumerate(stages):
            planned = report_stores.replace_with_archived_tasks(
                reading.add_indexes(tasks, results) if number else tasks, number, opened.stored
            )
            waiting = iter(planned)
            done = opened.workers.run(read, planned, what=lambda task: str(task.info.path))
            try:
                for result in done:
                    next(waiting)
                    results.append(result)
                    bar.update(result.rows)
                    yield number, result
            except Nsys2prvError as error:
                # Results come in the order of their tasks.
                raise Unreadable(str(error), next(waiting).info.given) from None


def find_spans(
    opened: OpenedReports, results: Sequence[TaskResult], folder: Path
) -> dict[int, Span]:
    """Return the first and the last time (local ns) of the events of each report that has any,
    whether they were read or not. results: of reading.
    """
    plan, stored = opened.plan, opened.stored
    known = reading.find_known_spans(results)
    planned = reading.plan_span_tasks(opened.infos, known, plan.selection, plan.settings, folder)
    tasks = [task for task in planned if task.report not in stored]
    found = opened.workers.run(reading.find_span, tasks, what=lambda task: str(task.info.path))
    spans = {report: in_store.span for report, (_, in_store) in stored.items()}
    spans |= zip((task.report for task in tasks), found, strict=True)
    # Rows about the profiler count only in a report that holds nothing else.
    return {
        **reading.find_known_spans(results, extending=False),
        **known,
        **{report: span for report, span in spans.items() if span is not None},
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
            if count := account.dropped[Reason.FAR]:
                kinds[kind] += count
                reports.add(result.report)
    if not kinds:
        return []
    where = list_some([infos[report].name for report in sorted(reports)])
    return [
        f"{where}: {Reason.FAR.text} are left out because their times are damaged: "
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
            raise Nsys2prvError(f"{report}: is a link that leads nowhere") from None
        if real in paths:
            warnings.append(f"{report}: given twice, read once")
        paths.setdefault(real, report)
    if not paths:
        raise Nsys2prvError("no report given")
    return list(paths.values()), warnings


def extract_to(
    reports: Sequence[str | Path], store: str | Path, options: Options = DEFAULTS
) -> list[str]:
    """Read these reports into a store; returns warnings. Of the options those of reading count.

    Raises Nsys2prvError with one line for people. A file of the store's name is replaced by the
    complete store only.
    """
    plan, target = Plan.from_options(options), Path(store)
    _check_target(target)
    with open_workplace(options, len(reports), target) as (pool, staging, folder):
        with ensure_unchanged([Path(report) for report in reports if not has_log(Path(report))]):
            opened = open_reports(reports, plan, folder, pool, options.quiet)
            if opened.stored:
                path, _ = next(iter(opened.stored.values()))
                raise UsageError(f"{path}: is a store already; give it to nsys2prv merge")
            results = _write_store(opened, folder, staging / target.name)
        put_in_place(staging, [target])
        errors.ignore_signals()
        return [*opened.warnings, *warn_of_far_rows(opened.infos, results)]


def _write_store(opened: OpenedReports, folder: Path, path: Path) -> list[TaskResult]:
    """Write the store; returns the results of its tasks, of which it has taken what is large."""
    results: list[TaskResult] = []
    archived = [report_stores.ArchivedReport(info, [[], []]) for info in opened.infos]
    with closing(ArchiveWriter(path)) as archive:
        for stage, result in read_all(opened, folder, read_and_pack):
            packed = folder / f"task-{result.task}"
            archive.move_folder(packed)
            archived[result.report].stages[stage].append(packed.name)
            results.append(result)
        spans = find_spans(opened, results, folder)
        archived = [replace(one, span=spans.get(report)) for report, one in enumerate(archived)]
        contents = report_stores.list_contents(opened.plan, archived)
        manifest = report_stores.make_manifest(contents, archive.list_members())
        archive.add_bytes(report_stores.MANIFEST, manifest)
    return results


def read_and_pack(task: reading.ReadingTask) -> TaskResult:
    """Read a task's parts and pack what was found into a folder of the task's number (a pure
    function over files).
    """
    result = reading.read_task(task)
    pack_result(result, task.spill_folder / f"task-{task.number}")
    stored = (*result.runs, *result.names.values(), *result.facts.values())
    for path in {part.path for part in stored}:
        path.unlink()
    result.runs = [replace(run, samples=run.samples[:0]) for run in result.runs]
    result.names, result.facts = {}, {}
    return result


def _check_target(target: Path) -> None:
    """Raise one clear line where the store would replace something else."""
    if target.is_dir():
        raise Nsys2prvError(f"{target}: is a folder; give the name of the store to write")
    if target.exists() and not is_archive(target):
        raise Nsys2prvError(
            f"{target}: is there already and is not a store; remove it or give another name"
        )
