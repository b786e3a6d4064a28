"""Open the reports of a job: read the metadata of all of them, and put them in rank order.

In: paths of reports and a plan. Out: a `Job` with its `infos` and `placements`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from nsys2prv._util.errors import Nsys2prvError
from nsys2prv._util.text import Progress
from nsys2prv._util.workers import Pool, is_worth_parallelizing, make_serial_pool
from nsys2prv.clock.maps import place_reports
from nsys2prv.conversion.job import Job
from nsys2prv.conversion.options import Plan, choose_reports
from nsys2prv.events.kind import EventKind
from nsys2prv.export.communicators import name_communicators
from nsys2prv.export.info import ReportInfo, read_report_info
from nsys2prv.export.report_files import prepare_export, should_parallelize
from nsys2prv.export.source import Part
from nsys2prv.writers.rows import order_reports

#: Rows of a job that one process reads and writes before others would have started.
SMALL_JOB_ROWS = 250_000
#: Rows that are as much work as opening a report and reading the first of each of its tables.
REPORT_ROWS = 40_000
#: An export and the report as it was given, or the error.
Export = tuple[Path, Path] | Nsys2prvError


def open_reports(
    reports: Sequence[str | Path], plan: Plan, folder: Path, pool: Pool, progress: Progress
) -> Job:
    """Return the job of these reports, which are open but not read yet."""
    paths, warnings = _drop_repetitions(reports)
    shared = len(paths) > 1 and should_parallelize(paths, pool.jobs)
    inspectors = pool if shared else make_serial_pool()
    inspections = inspect_reports(paths, folder, plan.options.keep_going, inspectors)
    infos, unread = [], []
    with progress.show_phase("opening", len(paths)) as advance:
        for inspected in inspections:
            advance(1)
            if isinstance(inspected, ReportInfo):
                infos.append(inspected)
            elif plan.options.keep_going:
                unread.append(str(inspected))
            else:
                raise inspected
    if unread and not infos:
        raise Nsys2prvError(f"none of the reports can be read; of the first: {unread[0]}")
    infos = order_reports(infos)
    # What is not wanted is read all the same: clocks are aligned and ranks related before
    # anything is cut.
    choose_reports(infos, plan.cut)
    rows = sum(
        part.rows for info in infos for part in list_wanted_parts(info, plan.selection.kinds)
    )
    if not is_worth_parallelizing(pool.jobs, rows + REPORT_ROWS * len(infos), SMALL_JOB_ROWS):
        pool = make_serial_pool()
    job = Job(plan, folder, pool, progress)
    communicators = name_communicators([info.communicators for info in infos])
    job.infos = [
        replace(info, communicators=rows) for info, rows in zip(infos, communicators, strict=True)
    ]
    job.placements = place_reports([info.clock for info in job.infos])
    job.unread, job.warnings = unread, warnings
    return job


def inspect_reports(
    paths: Sequence[Path],
    folder: Path,
    keep_going: bool,
    pool: Pool,
) -> Iterator[ReportInfo | Nsys2prvError]:
    """Read the metadata of the reports, in their order; for one that cannot be read, the error.

    folder: where .nsys-rep files are exported to, by this process. keep_going: go on after one that
    cannot be exported.
    """
    exports = _prepare_exports(paths, folder, keep_going)
    return pool.run_in_order(inspect_report, exports, _name_report)


def inspect_report(export: Export) -> ReportInfo | Nsys2prvError:
    """Read the metadata of a report; returns the error where that fails."""
    if isinstance(export, Nsys2prvError):
        return export
    try:
        return read_report_info(*export)
    except Nsys2prvError as error:
        return error


def _name_report(export: Export) -> str:
    """Return the report of a task, for people."""
    return str(export[1]) if isinstance(export, tuple) else "nsys2prv"


def _prepare_exports(paths: Sequence[Path], folder: Path, keep_going: bool) -> Iterator[Export]:
    for number, path in enumerate(paths):
        try:
            yield prepare_export(path, folder / f"export-{number}")
        except Nsys2prvError as error:
            yield error
            if not keep_going:
                break


def list_wanted_parts(info: ReportInfo, kinds: Iterable[EventKind]) -> Iterator[Part]:
    """Return the parts of a report's tables that these kinds read."""
    tables = {table for kind in kinds for table in kind.tables}
    return (part for table, part in info.parts.items() if table in tables)


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
