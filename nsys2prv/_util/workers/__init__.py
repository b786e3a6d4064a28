"""Engines that run pure functions over files on any :class:`concurrent.futures.Executor`.

An engine is a function here that takes the number of workers and a scheduler's address; its context
gives a :class:`Pool`. Those of other packages (Dask, mpi4py) are imported when they are asked for.
All workers read the reports and the temporary folder by the same paths: on several machines both
are on a file system that they share.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from nsys2prv._util.errors import Nsys2prvError, UsageError
from nsys2prv._util.workers.pool import Pool, should_use_threads

R = TypeVar("R")
#: Workers of this machine: this process if it is one, else threads of it or other processes.
DEFAULT = "local"
CGROUPS = Path("/sys/fs/cgroup")
#: How long to wait for a Dask scheduler, in seconds.
SCHEDULER_TIMEOUT = "10s"


def check_engine(engine: str, scheduler: str | None) -> None:
    """Check that there is such an engine and that it takes these options. Raises UsageError
    otherwise.
    """
    if engine not in (DEFAULT, *ENGINES):
        engine_names = ", ".join((DEFAULT, *ENGINES))
        raise UsageError(f"--engine {engine}: there is no such engine; give one of {engine_names}")
    if scheduler and engine != "dask":
        raise UsageError(
            "--scheduler is for Dask only; give --engine dask too, or leave --scheduler out"
        )


def make_pool(
    engine: str, jobs: int, scheduler: str | None = None, reports: int = 1
) -> AbstractContextManager[Pool]:
    """Return the workers of an engine. Raises UsageError where its packages are not installed.

    jobs: how many, 0 for one per CPU. reports: how many there are to work on.
    """
    check_engine(engine, scheduler)
    jobs = jobs or count_available_cpus()
    if engine == DEFAULT:
        if jobs <= 1:
            return nullcontext(make_serial_pool())
        engine = "threads" if should_use_threads(jobs, reports) else "processes"
    start, needed = ENGINES[engine]
    try:
        for module in needed:
            import_module(module)
    except ImportError as error:
        raise UsageError(
            f"--engine {engine} needs the package {error.name}: pip install {needed[0]}"
        ) from None
    return start(jobs, scheduler)


def make_serial_pool() -> Pool:
    """Return this process, for jobs that are not worth more."""
    return Pool(SerialExecutor(), 1)


class SerialExecutor(Executor):
    """Runs each task where it is submitted."""

    def submit(self, function: Callable[..., R], /, *args: object, **kwargs: object) -> Future[R]:
        future: Future[R] = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def _make_process_pool(jobs: int, scheduler: str | None) -> AbstractContextManager[Pool]:
    from nsys2prv._util.workers import processes

    return processes.make_workers(jobs)


@contextmanager
def _make_thread_pool(jobs: int, scheduler: str | None) -> Iterator[Pool]:
    """Start `jobs` threads: reading, sorting and formatting release Python's lock."""
    with ThreadPoolExecutor(max(1, jobs)) as executor:
        yield Pool(executor, max(1, jobs), abandon=_abandon_executor)


def _abandon_executor(executor: Executor) -> None:
    """Begin no further task, and wait for those under way."""
    executor.shutdown(cancel_futures=True)


@contextmanager
def _make_dask_pool(jobs: int, scheduler: str | None) -> Iterator[Pool]:
    """Return the workers of the Dask cluster with this scheduler; without an address a cluster of
    `jobs` processes of this machine is made and ended.
    """
    import logging

    from distributed import Client, LocalCluster

    if scheduler is None:
        with ExitStack() as stack:
            with _delay_interruptions():
                cluster = stack.enter_context(
                    LocalCluster(
                        n_workers=max(1, jobs),
                        threads_per_worker=1,
                        dashboard_address=None,
                        silence_logs=logging.CRITICAL,
                    )
                )
                client = stack.enter_context(Client(cluster))
            yield _wrap_dask_client(client, one_machine=True)
        return
    try:
        client = Client(scheduler, timeout=SCHEDULER_TIMEOUT)
    except (OSError, ValueError) as error:
        raise Nsys2prvError(
            f"--scheduler {scheduler}: no Dask scheduler answers there ({error})"
        ) from None
    with client:
        yield _wrap_dask_client(client, one_machine=False)


@contextmanager
def _delay_interruptions() -> Iterator[None]:
    """Delay interruptions until the block is left: a cluster half made cannot be ended. Processes
    started within are not interrupted at all, as a terminal would do: this one ends them.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker

    # Starting it would let interruptions through again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _wrap_dask_client(client: Any, one_machine: bool) -> Pool:
    from distributed.scheduler import KilledWorker

    jobs = max(1, sum(client.nthreads().values()))
    # Dask itself gives a lost worker's tasks to others, and names those at which several workers
    # were lost.
    return Pool(client.get_executor(pure=False), jobs, one_machine, lost=(KilledWorker,))


@contextmanager
def _make_mpi_pool(jobs: int, scheduler: str | None) -> Iterator[Pool]:
    """Return the other ranks of an MPI job, such as ``srun -n 64 nsys2prv --engine mpi ...``, or
    this one where there is no other: rank 0 leads. On the others it raises SystemExit once rank 0
    is done.
    """
    from mpi4py import MPI
    from mpi4py.futures import MPICommExecutor

    others = MPI.COMM_WORLD.Get_size() - 1
    with MPICommExecutor(MPI.COMM_WORLD, root=0) as executor:
        if executor is not None:
            yield Pool(executor, max(1, others), one_machine=not others)
            return
    raise SystemExit(0)


#: Engine but for DEFAULT -> the function that starts its workers, and the modules of other packages that it needs.
ENGINES: dict[str, tuple[Callable[..., AbstractContextManager[Pool]], tuple[str, ...]]] = {
    "processes": (_make_process_pool, ()),
    "threads": (_make_thread_pool, ()),
    "dask": (_make_dask_pool, ("distributed",)),
    "mpi": (_make_mpi_pool, ("mpi4py", "mpi4py.MPI")),
}


def count_available_cpus(
    memberships: Path = Path("/proc/self/cgroup"), root: Path = CGROUPS
) -> int:
    """Return the number of CPUs in the process's affinity (as taskset and Slurm set it), or fewer
    if its control groups limit CPU time.
    """
    allowed = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return max(1, min([allowed, *_read_quotas(memberships, root)]))


def _read_quotas(memberships: Path, root: Path) -> Iterator[int]:
    """Yield the whole processors that each control group of this process, and each above it, may
    use (cgroups of version 2, then 1).
    """
    try:
        lines = memberships.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = root / "cpu" if controllers else root
        folder = base / path.lstrip("/")
        for group in (folder, *folder.parents):
            quota, period = _read_limit(group) if group.is_relative_to(base) else (0, 0)
            if quota > 0 and period > 0:
                yield quota // period


def _read_limit(group: Path) -> tuple[int, int]:
    """Return microseconds of processor time in each period, and the period; 0 where there is no
    limit.
    """
    with suppress(OSError, ValueError):
        quota, period = (group / "cpu.max").read_text().split()
        return (0 if quota == "max" else int(quota)), int(period)
    with suppress(OSError, ValueError):
        quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return int(quota), int(period)
    return 0, 0
