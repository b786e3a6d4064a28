"""Count the CPUs that this process may use, and start workers on this machine: this process for
one, threads of it for a few, processes for more.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TypeVar

from nsys2prv._util.engines.pool import MOST_THREADS, Pool

CGROUPS = Path("/sys/fs/cgroup")


def available_cpus(memberships: Path = Path("/proc/self/cgroup"), root: Path = CGROUPS) -> int:
    """Return the number of CPUs in the process's affinity (as taskset and Slurm set it), or fewer
    if its control groups limit CPU time.
    """
    allowed = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return max(1, min([allowed, *_quotas(memberships, root)]))


def _quotas(memberships: Path, root: Path) -> Iterator[int]:
    """Yield the whole processors that each control group of this process, and each above it, may
    use (cgroups of version 2, then 1).
    """
    try:
        lines = memberships.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        base = root if not controllers else root / "cpu"
        if controllers and "cpu" not in controllers.split(","):
            continue
        folder = base / path.lstrip("/")
        for group in (folder, *folder.parents):
            if not group.is_relative_to(base):
                break
            quota, period = _limit(group)
            if quota > 0 and period > 0:
                yield quota // period


def _limit(group: Path) -> tuple[int, int]:
    """Return microseconds of processor time in each period, and the period; 0 where there is no
    limit.
    """
    try:
        quota, period = (group / "cpu.max").read_text().split()
        return (0 if quota == "max" else int(quota)), int(period)
    except (OSError, ValueError):
        pass
    try:
        return int((group / "cpu.cfs_quota_us").read_text()), int(
            (group / "cpu.cfs_period_us").read_text()
        )
    except (OSError, ValueError):
        return 0, 0


R = TypeVar("R")


class SerialExecutor(Executor):
    """Runs each task where it is submitted."""

    def submit(self, function: Callable[..., R], /, *args: object, **kwargs: object) -> Future[R]:
        future: Future[R] = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def workers(jobs: int, scheduler: str | None = None) -> AbstractContextManager[Pool]:
    """Start `jobs` workers."""
    if jobs <= 1:
        return nullcontext(Pool(SerialExecutor(), 1))
    if jobs <= MOST_THREADS:
        return threads(jobs)
    from nsys2prv._util.engines import processes

    return processes.workers(jobs)


@contextmanager
def threads(jobs: int, scheduler: str | None = None) -> Iterator[Pool]:
    """Start `jobs` threads: reading, sorting and formatting release Python's lock."""
    with ThreadPoolExecutor(max(1, jobs)) as executor:
        yield Pool(executor, max(1, jobs), abandon=_abandon)


def _abandon(executor: Executor) -> None:
    """Begin no further task, and wait for those under way."""
    executor.shutdown(cancel_futures=True)
