"""Decide whether a job is worth several workers, from the sizes of its reports, before any slow
import.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from nsys2prv._util import workers
from nsys2prv._util.memory import pause_garbage_collection
from nsys2prv._util.workers import count_available_cpus
from nsys2prv._util.workers.pool import is_worth_parallelizing, should_use_threads
from nsys2prv.nsight.report_files import make_file_signature

#: Fewer bytes rarely have as many rows as one process reads and writes while others start.
SMALL_JOB_BYTES = 14_000_000
#: As much work as opening a report and reading each of its tables is, however small they are.
REPORT_BYTES = 2_200_000


def should_parallelize(paths: Sequence[Path], jobs: int) -> bool:
    """True if these reports are enough work for this number of workers."""
    return is_worth_parallelizing(jobs, weigh_reports(paths), SMALL_JOB_BYTES)


def weigh_reports(paths: Sequence[Path]) -> int:
    """Return how much work these reports are, in bytes of large ones."""
    return sum(count_bytes(path) + REPORT_BYTES for path in paths)


def count_bytes(path: Path) -> int:
    """Return the size of a file, or of all files of a folder; 0 if there is none."""
    return sum(size for _, _, _, size, _ in make_file_signature(path))


def start_workers(reports: Sequence[str | Path], engine: str, jobs: int) -> None:
    """Let processes start that will be worth it, while this one imports what it needs itself. jobs:
    how many, 0 for one per CPU.
    """
    jobs, paths = jobs or count_available_cpus(), [Path(report) for report in reports]
    if (
        engine == workers.DEFAULT
        and not should_use_threads(jobs, len(paths))
        and should_parallelize(paths, jobs)
    ):
        from nsys2prv._util.workers import processes

        # There is work for one of each of what makes it worth starting one; others start when there
        # is more.
        processes.prestart_workers(
            jobs, 1 + weigh_reports(paths) // max(1, SMALL_JOB_BYTES), _import_for_tasks
        )


def _import_for_tasks() -> None:
    """Import what the first tasks need."""
    with pause_garbage_collection():
        import_module("nsys2prv.conversion.report_stores")
        import_module("nsys2prv.events").all_kinds()
