"""Convert reports to a trace in four stages: open, read, align, write.

Input: paths of reports and `Options`. Output: a trace and its `Summary`. :func:`prepare` stops
before the trace is written, for analyses.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from nsys2prv._util import errors
from nsys2prv._util.errors import Nsys2prvError, Unreadable, UsageError
from nsys2prv._util.files import check_not_read, is_one_of, name_beside, put_in_place
from nsys2prv._util.text import PREPARING, Progress
from nsys2prv._util.workers import Pool, is_worth_parallelizing
from nsys2prv.clock.maps import place_reports
from nsys2prv.conversion.align import align_reports
from nsys2prv.conversion.cut_reading import read_part
from nsys2prv.conversion.job import MOST_TOGETHER, Job, Opened, Read, open_workplace
from nsys2prv.conversion.options import DEFAULTS, CutOptions, Options, Plan, choose_reports
from nsys2prv.conversion.read import list_wanted_parts, read_reports
from nsys2prv.conversion.summary import Summary
from nsys2prv.conversion.write import choose_writer, list_outputs, write_job
from nsys2prv.export.communicators import name_communicators
from nsys2prv.export.info import ReportInfo, read_report_info
from nsys2prv.export.report_files import (
    ForeignFile,
    ensure_unchanged,
    find_reports,
    has_log,
    prepare_export,
    should_parallelize,
)
from nsys2prv.writers.rows import order_reports

#: Endings of the files beside the trace that --report writes.
REPORT, PAGE = ".report.json", ".report.html"
#: A job of fewer rows is read and written by one process sooner than others would have started.
SMALL_JOB_ROWS = 250_000
#: Rows that are as much work as opening a report and reading the first of each of its tables.
REPORT_ROWS = 40_000
#: Path of an export, and of its report as it was given; or why there is none.
Export = tuple[Path, Path] | Nsys2prvError


def convert(
    reports: Sequence[str | Path] | str | Path,
    output: str | Path,
    options: Options = DEFAULTS,
    write_report: Callable[..., str] | None = None,
) -> Summary:
    """Write the trace of these reports (files, folders, patterns) to `output`, and return its
    summary.

    output: .prv for Paraver (with .pcf and .row beside it) or .pftrace for Perfetto, both also with
    .gz. Existing files are replaced only by complete ones. write_report: function that writes the
    files requested by options.report (:func:`nsys2prv.cli.report.write_report_files`).

    Raise Nsys2prvError, in one line, if a report cannot be read or the trace cannot be written;
    NothingToWrite if there are no events of the requested kinds.
    """
    plan = Plan.from_options(options, choose_writer(output)[0].draws_launches)
    given = [reports] if isinstance(reports, str | Path) else reports
    left_out: list[str] = []
    reports = find_reports(given, left_out)
    outputs = _choose_outputs(output, options, reports)
    trace = outputs[0]
    with open_workplace(options, len(reports), trace) as (pool, staging, folder):
        phases = ("writing", *(("analysing", "page") if options.report else ()))
        job = prepare(reports, plan, folder, pool, options.quiet, phases, given, left_out)
        summary = write_job(job, staging / trace.name, keep_runs=options.report)
        if options.report and write_report:
            report_file = staging / name_beside(trace, REPORT).name
            made = staging / trace.name
            summary.report = write_report(
                job, reports, report_file, made, paths=not options.without_paths
            )
            # It is also added to a trace for Perfetto.
            summary.sizes[made] = made.stat().st_size
        put_in_place(staging, outputs)
        errors.ignore_signals()
        summary.sizes = {
            path: summary.sizes[staging / path.name]
            for path in outputs
            if staging / path.name in summary.sizes
        }
        return summary


def prepare(
    reports: Sequence[str | Path],
    plan: Plan,
    folder: Path,
    pool: Pool,
    quiet: bool = True,
    phases: Sequence[str] = (),
    given: Sequence[str | Path] | None = None,
    left_out: Sequence[str] = (),
) -> Job:
    """Return the job of these reports, cut as planned, ready to be written or analyzed. The workers
    of the pool read the reports, or this process if workers are not worthwhile.

    folder: for temporary files (:mod:`nsys2prv._util.files`). phases: later phases, for the
    progress bar. given: the paths that the user gave; files of other programs in a given folder are
    skipped. left_out: gets warnings about such files.

    Raise Nsys2prvError, in one line, if a report cannot be read; NothingToWrite if there are no
    events of the requested kinds.
    """
    progress = Progress(quiet, (*PREPARING, *phases))
    paths = [Path(report) for report in reports]
    found = {*paths} - set(map(Path, reports if given is None else given))
    read = _open_and_read(paths, plan, folder, pool, progress, found)
    job = align_reports(replace(read, warnings=[*left_out, *read.warnings]))
    # Imported only when needed.
    if plan.cut.options != CutOptions():
        from nsys2prv.conversion.cut import cut_job

        job = cut_job(job, plan.cut)
    if plan.options.anonymous:
        from nsys2prv.conversion.anonymous import hide_names

        job = hide_names(job)
    return job


def _open_and_read(
    paths: Sequence[Path],
    plan: Plan,
    folder: Path,
    pool: Pool,
    progress: Progress,
    found: Collection[Path],
) -> Read:
    """Open and read the reports. Unreadable reports are skipped if the plan allows it."""
    unread: list[str] = []
    while True:
        part = folder / f"reports-{len(unread)}"
        part.mkdir()
        try:
            with ensure_unchanged([path for path in paths if not has_log(path)]):
                opened = open_reports(paths, plan, part, pool, progress, found)
                job = read_part(opened) or read_reports(opened)
            return replace(job, unread=[*job.unread, *unread])
        except Unreadable as error:
            kept = [path for path in paths if path != error.report]
            if not plan.options.keep_going or not kept or len(kept) == len(paths):
                raise
            shutil.rmtree(part, ignore_errors=True)
            paths = kept
            unread.append(str(error))


def _choose_outputs(output: str | Path, options: Options, reports: Sequence[Path]) -> list[Path]:
    """Return the files that a conversion writes or removes, the trace first. Raise Nsys2prvError if
    they cannot be written, or are inputs.
    """
    path = Path(output)
    if not str(output):
        raise UsageError(
            "an argument is empty (an unset variable?); give the name of the output trace"
        )
    written = list_outputs(output, options.compress)
    trace = written[0]
    is_folder = str(output).endswith(("/", os.sep)) or path.name in ("", ".", "..")
    if is_folder or (path.is_dir() and path.name != trace.name):
        raise UsageError(
            f"{output}: this is a folder; give the name of the output trace, such as {path / 'out.prv'}"
        )
    if str(output) == "-" or (path.exists() and not path.is_file() and not path.is_dir()):
        raise UsageError(f"{output}: a trace is several files; give its name, as in out.prv")
    if options.states and ".prv" not in trace.suffixes:
        raise UsageError(f"--states: {trace}: only Paraver traces (.prv) have states of rows")
    further = [name_beside(trace, ending) for ending in (REPORT, PAGE)]
    # An earlier trace in the other form (with or without compression) would show wrong names with
    # the new labels.
    packed = trace.suffix == ".gz"
    other_form = trace.with_suffix("") if packed else trace.with_name(f"{trace.name}.gz")
    if other_form.is_file():
        further.append(other_form)
    rules = [path for path in (options.kernel_rules, options.nvtx_rules) if path]
    check_not_read([*written, *further], [*reports, *rules])
    for path in written:
        if path.is_dir():
            raise Nsys2prvError(f"{path}: is a folder; remove it or give another output")
    # A clock file given with --align, of an earlier trace of the same name, stays as it is.
    return [path for path in (*written, *further) if not is_one_of(path, [options.align])]


def open_reports(
    reports: Sequence[str | Path],
    plan: Plan,
    folder: Path,
    pool: Pool,
    progress: Progress,
    found: Collection[Path] = (),
) -> Opened:
    """Open the reports, and return their job with only metadata read. found: reports from folders;
    these are skipped if they are files of other programs.
    """
    paths, warnings = _drop_repetitions(reports)
    pool.check_shared(paths[:1])
    shared = len(paths) > 1 and should_parallelize(paths, pool.jobs)
    inspectors = pool if shared else Pool()
    # Of a part in time rows are chosen by the outlines of the tables.
    inspections = inspect_reports(
        paths, folder, plan.options.keep_going, inspectors, outlined=bool(plan.cut.options.time)
    )
    infos, unread, foreign = [], [], []
    with progress.show_phase("opening", len(paths)) as advance:
        for path, inspected in zip(paths, inspections, strict=False):
            advance(1)
            if isinstance(inspected, ReportInfo):
                infos.append(inspected)
            elif isinstance(inspected, ForeignFile) and path in found:
                foreign.append(inspected)
            elif plan.options.keep_going:
                unread.append(str(inspected))
            else:
                raise inspected
    if unread and not infos:
        raise Nsys2prvError(f"no report can be read; the first error: {unread[0]}")
    if foreign and not infos:
        raise foreign[0]
    warnings += [f"skipped: {error}" for error in foreign]
    infos = order_reports(infos)
    # Excluded data is read anyway: clocks are aligned and ranks related before anything is cut.
    choose_reports(infos, plan.cut)
    rows = sum(
        part.rows for info in infos for part in list_wanted_parts(info, plan.selection.kinds)
    )
    if not is_worth_parallelizing(pool.jobs, rows + REPORT_ROWS * len(infos), SMALL_JOB_ROWS):
        pool = Pool()
    communicators = name_communicators([info.communicators for info in infos])
    return Opened(
        plan=plan,
        folder=folder,
        pool=pool,
        progress=progress,
        infos=[
            replace(info, communicators=rows, outlines={})
            for info, rows in zip(infos, communicators, strict=True)
        ],
        outlines={info.path: info.outlines for info in infos if info.outlines},
        placements=place_reports([info.clock for info in infos]),
        unread=unread,
        warnings=warnings,
    )


def inspect_reports(
    paths: Sequence[Path], folder: Path, keep_going: bool, pool: Pool, outlined: bool = False
) -> Iterator[ReportInfo | Nsys2prvError]:
    """Yield the metadata of the reports in order, or the error of an unreadable report.

    folder: for exports of .nsys-rep files, which this process makes. keep_going: continue after a
    failed export. outlined: add outlines of tables.
    """
    exports = _prepare_exports(paths, folder, keep_going)
    return pool.run_in_order(
        partial(inspect_report, outlined=outlined),
        exports,
        pool.limit_together(len(paths), MOST_TOGETHER),
    )


def inspect_report(export: Export, outlined: bool = False) -> ReportInfo | Nsys2prvError:
    """Return the metadata of a report, or the error if it cannot be read. outlined: add bounds of
    the times in its tables.
    """
    if isinstance(export, Nsys2prvError):
        return export
    try:
        return read_report_info(*export, outlined)
    except Nsys2prvError as error:
        return error


def _prepare_exports(paths: Sequence[Path], folder: Path, keep_going: bool) -> Iterator[Export]:
    for number, path in enumerate(paths):
        try:
            yield prepare_export(path, folder / f"export-{number}")
        except Nsys2prvError as error:
            yield error
            if not keep_going:
                break


def _drop_repetitions(reports: Sequence[str | Path]) -> tuple[list[Path], list[str]]:
    """Return the reports without repeated ones, and a warning for each repeated one."""
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
