"""Run functions on any :class:`concurrent.futures.Executor`, and yield results in the order of the
tasks. The functions depend only on files.

An engine is a function here that takes the number of workers and a scheduler's address, and returns
a context manager for a :class:`Pool`. Other packages (Dask, mpi4py) are imported on demand. All
workers read the reports and the temporary folder by the same paths, so workers on several machines
need a shared file system.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from nsys2prv._util.budget import collect_garbage_seldom, keep_freed_memory, use_one_thread
from nsys2prv._util.errors import Nsys2prvError, UsageError, delay_signals

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

T, R = TypeVar("T"), TypeVar("R")
#: Workers of this machine: this process if it is one, else threads of it or other processes.
DEFAULT_ENGINE = "local"
#: Up to MOST_THREADS workers on this machine are threads, for a job of up to
#: MOST_REPORTS_OF_THREADS reports: they start at once and share imported modules, and most work on
#: a large report releases Python's lock. More threads would wait for this lock; so would threads
#: that read many small reports.
MOST_THREADS, MOST_REPORTS_OF_THREADS = 4, 16
#: How long to wait for a Dask scheduler, in seconds.
SCHEDULER_TIMEOUT = "10s"
#: Where control groups are.
CGROUPS = Path("/sys/fs/cgroup")
#: How long a worker looks for files, so that one worker does not do it for others (seconds).
CHECK_WORKER_SECONDS = 0.05
#: How often to look whether workers still live while a result is awaited (seconds).
CHECK_SECONDS = 2.0


def count_available_cpus(
    memberships: Path = Path("/proc/self/cgroup"), root: Path = CGROUPS
) -> int:
    """Return the number of CPUs in the process's affinity (set by taskset or Slurm), or fewer if
    control groups limit CPU time.
    """
    allowed = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return max(1, min([allowed, *_read_quotas(memberships, root)]))


def _read_quotas(memberships: Path, root: Path) -> Iterator[int]:
    """Yield the number of whole CPUs that each control group of this process, and each group above
    it, may use (cgroups version 2, then 1).
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
    """Return the CPU time (µs) allowed per period, and the period (µs); 0 if there is no limit."""
    with suppress(OSError, ValueError):
        quota, period = (group / "cpu.max").read_text().split()
        return (0 if quota == "max" else int(quota)), int(period)
    with suppress(OSError, ValueError):
        quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return int(quota), int(period)
    return 0, 0


def make_pool(
    engine: str, jobs: int, scheduler: str | None = None, reports: int = 1
) -> AbstractContextManager[Pool]:
    """Return a context manager for the workers of an engine. Raise UsageError if the engine is
    unknown, does not take these options, or lacks its packages.

    jobs: number of workers, 0 for one per CPU. reports: number of reports to work on.
    """
    if engine not in (DEFAULT_ENGINE, *ENGINES):
        engine_names = ", ".join((DEFAULT_ENGINE, *ENGINES))
        raise UsageError(f"--engine {engine}: unknown engine; give one of {engine_names}")
    if scheduler and engine != "dask":
        raise UsageError("--scheduler is for Dask only; add --engine dask, or omit --scheduler")
    jobs = jobs or count_available_cpus()
    if engine == DEFAULT_ENGINE:
        if jobs <= 1:
            return nullcontext(Pool())
        are_few = jobs <= MOST_THREADS and reports <= MOST_REPORTS_OF_THREADS
        engine = "threads" if are_few else "processes"
    start, needed = ENGINES[engine]
    try:
        for module in needed:
            import_module(module)
    except ImportError as error:
        raise UsageError(
            f"--engine {engine} needs the package {error.name}: pip install {needed[0]}"
        ) from None
    return start(jobs, scheduler)


def is_worth_parallelizing(jobs: int, work: int, while_starting: int) -> bool:
    """Return True if `jobs` workers, including their startup, finish sooner than one process.
    while_starting: amount of work that one process does during this startup.
    """
    return work * (jobs - 1) >= while_starting * jobs if jobs > 1 else work >= while_starting


class LostWorker(Nsys2prvError):
    """Raised if a worker process was killed."""


class Pool(Struct):
    """The workers that run tasks. By default, this is the current process alone, for small jobs."""

    #: Runs the tasks; None: this process.
    executor: Executor | None = None
    #: Number of workers.
    jobs: int = 1
    #: The engine's exceptions that mean that a worker is gone.
    lost: tuple[type[Exception], ...] = (BrokenExecutor,)
    #: Function that ends an executor with unwanted results, and waits for it.
    end: Callable[[Executor], None] = lambda executor: executor.shutdown()
    #: Within it a task is handed over.
    guard: Callable[[], AbstractContextManager[object]] = nullcontext
    #: True if workers may be on other machines.
    is_remote: bool = False

    @property
    def shares_memory(self) -> bool:
        """Return True if the workers are threads of this process, or the process itself."""
        return self.executor is None or isinstance(self.executor, ThreadPoolExecutor)

    @contextmanager
    def ensure_end(self) -> Iterator[None]:
        """Ensure that no task runs any more at the end of a `with` block. Tasks use the temporary
        folder, which could otherwise not be removed.
        """
        try:
            yield
        finally:
            if self.executor is not None:
                self.end(self.executor)

    def run_in_order(
        self, function: Callable[[T], R], tasks: Iterable[T], together: int = 1
    ) -> Iterator[R]:
        """Run a function on each task, on the workers. Yield the results in the order of the tasks.

        together: number of tasks sent to a worker at a time. Tasks that wait are sent in groups of
        at most twice as many (:meth:`limit_together`). Raise LostWorker if a worker process was
        killed.
        """
        if self.executor is None:
            # Not by map, which would take a StopIteration of the function for the end of the tasks.
            for task in tasks:
                yield function(task)
            return
        waiting: deque[Future[Outcome]] = deque()
        left = iter(tasks)
        try:
            while several := list(islice(left, together)):
                waiting.append(self._submit(partial(run_several, function), several))
                if len(waiting) > 2 * self.jobs:
                    yield from self._await_results(waiting.popleft())
            while waiting:
                yield from self._await_results(waiting.popleft())
        except self.lost:
            raise LostWorker(
                "a worker process was killed, probably because memory ran out; try fewer workers (-j 1)"
            ) from None
        finally:
            for future in waiting:
                future.cancel()

    def check_shared(self, paths: Sequence[Path]) -> None:
        """Raise Nsys2prvError if a worker on another machine does not find these files and folders.

        Twice as many checks as workers are run, each of which lasts CHECK_WORKER_SECONDS, so that every worker
        that has started gets one.
        """
        if not self.is_remote:
            return
        for host, missing in self.run_in_order(_list_missing, [paths] * (2 * self.jobs)):
            if missing:
                raise Nsys2prvError(
                    f"{missing[0]}: not found by the worker on {host}; reports, output and --tmp must be on a "
                    "file system that all workers share, and relative paths need workers in the same folder"
                )

    def limit_together(self, tasks: int, most: int) -> int:
        """Return the number of small tasks to send together, at most `most`, so that all workers
        get some.
        """
        return max(1, min(most, tasks // (4 * self.jobs)))

    def _submit(self, function: Callable[[T], R], task: T) -> Future[R]:
        try:
            with self.guard():
                return self.executor.submit(function, task)
        except self.lost:
            raise
        except (OSError, EOFError, ImportError, RuntimeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise Nsys2prvError(
                f"another worker cannot be started ({reason}); try fewer (-j 1)"
            ) from error

    def _await_results(self, future: Future[Outcome]) -> Iterator[Any]:
        # The library waits for the rest of a result if its worker was killed while sending it.
        while not wait([future], CHECK_SECONDS).done:
            if any(not process.is_alive() for process in _list_processes(self.executor)):
                _kill_processes(self.executor)
        results, error = future.result()
        yield from results
        if error is not None:
            raise error


#: Results of tasks that went to a worker together, up to the first that failed, and its error.
Outcome = tuple[list, Nsys2prvError | None]


def run_several(function: Callable[[T], R], tasks: Iterable[T]) -> Outcome:
    """Run the function on each task in turn, and return the results."""
    results: list[R] = []
    try:
        for task in tasks:
            results.append(function(task))
    except Nsys2prvError as error:
        return results, error
    return results, None


def _list_missing(paths: Sequence[Path]) -> tuple[str, list[Path]]:
    """Return this machine's name, and which of these paths do not exist on it."""
    time.sleep(CHECK_WORKER_SECONDS)
    return socket.gethostname(), [path for path in paths if not path.exists()]


@contextmanager
def _make_process_pool(jobs: int, scheduler: str | None) -> Iterator[Pool]:
    """Start `jobs` worker processes with one thread each."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    use_one_thread()
    try:
        # Spawn processes: libraries with threads, such as polars, may hang in a forked process.
        executor = ProcessPoolExecutor(jobs, get_context("spawn"), _prepare_worker)
    except (ImportError, OSError) as error:
        raise Nsys2prvError(
            f"worker processes cannot be started here ({error}); give --engine threads"
        ) from error
    collect_garbage_seldom()
    # A process starts if none is idle.
    pool = Pool(executor, jobs, end=_kill_processes, guard=_delay_interruptions)
    with pool.ensure_end():
        yield pool


def _prepare_worker() -> None:
    """Prepare a worker process. It ends when the process that started it ends, for whatever reason."""
    keep_freed_memory()
    collect_garbage_seldom()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    from multiprocessing import parent_process
    from multiprocessing.connection import wait

    wait([parent_process().sentinel])
    os._exit(1)


def _list_processes(executor: Executor) -> list[BaseProcess]:
    return list((getattr(executor, "_processes", None) or {}).values())


def _kill_processes(executor: Executor) -> None:
    """Kill worker processes and wait until they have ended."""
    for process in _list_processes(executor):
        process.kill()
    executor.shutdown(cancel_futures=True)


@contextmanager
def _make_thread_pool(jobs: int, scheduler: str | None) -> Iterator[Pool]:
    """Start `jobs` worker threads. Reading, sorting and formatting release Python's lock."""
    with ThreadPoolExecutor(max(1, jobs)) as executor:
        yield Pool(executor, max(1, jobs), end=lambda one: one.shutdown(cancel_futures=True))


@contextmanager
def _make_dask_pool(jobs: int, scheduler: str | None) -> Iterator[Pool]:
    """Return the workers of the Dask cluster with this scheduler. Without an address, start a
    cluster of `jobs` processes on this machine, and end it afterwards.
    """
    import logging

    from distributed import Client
    from distributed.scheduler import KilledWorker

    try:
        if scheduler:
            client = Client(scheduler, timeout=SCHEDULER_TIMEOUT)
        else:
            use_one_thread()
            with _delay_interruptions():
                client = Client(
                    n_workers=max(1, jobs),
                    threads_per_worker=1,
                    dashboard_address=None,
                    silence_logs=logging.CRITICAL,
                )
    except (OSError, ValueError) as error:
        raise Nsys2prvError(
            f"--scheduler {scheduler}: no Dask scheduler answers there ({error})"
        ) from None
    # Results that nobody awaits any more are logged as lost, with pages of tracebacks.
    log = logging.getLogger("tornado.application")
    level = log.level
    try:
        with client:
            # Dask repeats a lost worker's tasks elsewhere, and names tasks that lost several workers.
            workers = max(1, sum(client.nthreads().values()))
            executor = client.get_executor(pure=False)
            client.run(use_one_thread)
            try:
                yield Pool(executor, workers, lost=(KilledWorker,), is_remote=bool(scheduler))
            finally:
                log.setLevel(logging.CRITICAL)
    finally:
        log.setLevel(level)


@contextmanager
def _delay_interruptions() -> Iterator[None]:
    """Delay interruptions until the end of a `with` block, because workers cannot be ended while
    they start. Processes started in the block ignore interruptions from the terminal; this process
    ends them.
    """
    with delay_signals():
        if not hasattr(signal, "pthread_sigmask"):
            yield
            return
        from multiprocessing import resource_tracker

        # Starting it later would let interruptions through again.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _make_mpi_pool(jobs: int, scheduler: str | None) -> Iterator[Pool]:
    """Return the other ranks of an MPI job, such as ``srun -n 64 nsys2prv --engine mpi ...``, as
    workers, or this process if it is alone. Rank 0 leads. On the other ranks, raise SystemExit when
    rank 0 is done.
    """
    from mpi4py import MPI
    from mpi4py.futures import MPICommExecutor

    others = MPI.COMM_WORLD.Get_size() - 1
    if MPI.COMM_WORLD.Get_rank():
        use_one_thread()
    with MPICommExecutor(MPI.COMM_WORLD, root=0) as executor:
        if executor is not None:
            yield Pool(executor, max(1, others), is_remote=others > 0)
            return
    raise SystemExit(0)


#: Engine, but for DEFAULT_ENGINE -> the function that starts its workers, and the modules of other
#: packages that it needs.
ENGINES: dict[str, tuple[Callable[..., AbstractContextManager[Pool]], tuple[str, ...]]] = {
    "processes": (_make_process_pool, ()),
    "threads": (_make_thread_pool, ()),
    "dask": (_make_dask_pool, ("distributed",)),
    "mpi": (_make_mpi_pool, ("mpi4py", "mpi4py.MPI")),
}


def prepare_next(items: Iterable[T]) -> Iterator[T]:
    """Yield items. While one item is in use, another thread already makes the next one."""
    iterator, end = iter(items), object()
    with ThreadPoolExecutor(1) as thread:
        following = thread.submit(next, iterator, end)
        while (item := following.result()) is not end:
            following = thread.submit(next, iterator, end)
            yield item
