"""Reading alone: from reports to a store, for machines that do not write the trace."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from nsys2prv._util import engines, signals
from nsys2prv._util.archive import ArchiveWriter, is_archive
from nsys2prv._util.errors import Nsys2prvError, UsageError
from nsys2prv._util.files import (
    check_folder,
    describe_write_error,
    make_temporary_folder,
    make_working_folder,
    put_in_place,
)
from nsys2prv.conversion import reading
from nsys2prv.conversion.opened_reports import OpenedReports, find_spans, open_reports, read_all
from nsys2prv.conversion.options import DEFAULTS, Options, Plan
from nsys2prv.conversion.report_stores import (
    MANIFEST,
    ArchivedReport,
    ArchiveManifest,
    make_manifest,
)
from nsys2prv.conversion.summary import warn_of_far_rows
from nsys2prv.nsight.report_files import ensure_unchanged, has_log
from nsys2prv.store.packing import pack_result
from nsys2prv.store.task_result import TaskResult


def extract_to(
    reports: Sequence[str | Path], store: str | Path, options: Options = DEFAULTS
) -> list[str]:
    """Read these reports into a store; returns warnings. Of the options those of reading count.

    Raises Nsys2prvError with one line for people. A file of the store's name is replaced by the
    complete store only.
    """
    plan, target = Plan.from_options(options), Path(store)
    _check_target(target)
    engines.check_engine(options.engine, options.scheduler)
    try:
        with (
            engines.make_pool(
                options.engine, options.jobs, options.scheduler, len(reports)
            ) as pool,
            make_temporary_folder(target.parent) as staging,
            make_working_folder(staging, options.tmp) as folder,
            pool.ended(),
        ):
            with ensure_unchanged(
                [Path(report) for report in reports if not has_log(Path(report))]
            ):
                opened = open_reports(reports, plan, folder, pool, options.quiet)
                if opened.stored:
                    raise UsageError(
                        f"{next(iter(opened.stored.values()))[0]}: is a store already; give it to nsys2prv merge"
                    )
                results = _write_store(opened, folder, staging / target.name)
            put_in_place(staging, [target])
            signals.ignore_signals()
            return [*opened.warnings, *warn_of_far_rows(opened.infos, results)]
    except OSError as error:
        raise describe_write_error(
            error, target, [target.parent, *([options.tmp] if options.tmp else [])]
        ) from error


def _write_store(opened: OpenedReports, folder: Path, path: Path) -> list[TaskResult]:
    """Write the store; returns the results of its tasks, of which it has taken what is large."""
    results: list[TaskResult] = []
    archived = [ArchivedReport(info, [[], []]) for info in opened.infos]
    archive = ArchiveWriter(path)
    try:
        for stage, result in read_all(opened, folder, read_and_pack):
            packed = folder / f"task-{result.task}"
            archive.move_folder(packed)
            archived[result.report].stages[stage].append(packed.name)
            results.append(result)
        spans = find_spans(opened, results, folder)
        archived = [replace(one, span=spans.get(report)) for report, one in enumerate(archived)]
        selection = opened.plan.selection
        archive.add_bytes(
            MANIFEST,
            make_manifest(
                ArchiveManifest(
                    [kind.name for kind in selection.kinds],
                    selection.asked,
                    opened.plan.settings,
                    archived,
                ),
                archive.members(),
            ),
        )
    finally:
        archive.close()
    return results


def read_and_pack(task: reading.ReadingTask) -> TaskResult:
    """Read a task's parts and pack what was found into a folder of the task's number (a pure
    function over files).
    """
    result = reading.read_task(task)
    pack_result(result, task.spill / f"task-{task.number}")
    for path in {
        stored.path for stored in (*result.runs, *result.names.values(), *result.facts.values())
    }:
        path.unlink()
    result.runs = [replace(run, samples=run.samples[:0]) for run in result.runs]
    result.names, result.facts = {}, {}
    return result


def _check_target(target: Path) -> None:
    """Raise one clear line where the store could not be written, or would replace something else."""
    if target.is_dir():
        raise Nsys2prvError(f"{target}: is a folder; give the name of the store to write")
    if target.exists() and not is_archive(target):
        raise Nsys2prvError(
            f"{target}: is there already and is not a store; remove it or give another name"
        )
    check_folder(target.parent)
