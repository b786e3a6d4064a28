"""Run pure functions over files on any :class:`concurrent.futures.Executor`: tasks in order, again
where a worker was lost.

An engine is a function here that takes the number of workers and a scheduler's address; its context
gives a :class:`Pool`. Those of other packages (Dask, mpi4py) are imported when they are asked for.
All workers read the reports and the temporary folder by the same paths: on several machines both
are on a file system that they share.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, TypeVar

from nsys2prv._util.errors import Nsys2prvError, UsageError

T, R = TypeVar("T"), TypeVar("R")
#: Workers of this machine: this process if it is one, else threads of it or other processes.
DEFAULT = "local"
#: How often a task is tried alone after a worker was lost at it or beside it.
ATTEMPTS = 2
#: Up to so many workers of this machine, for a job of up to so many reports, are threads: they start
#: at once and share what is imported, and most of the work on a large report releases Python's lock.
#: More of them would wait for that lock, and so would those that work on many small reports.
MOST_THREADS, MOST_REPORTS_OF_THREADS = 4, 16
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


def should_use_threads(jobs: int, reports: int) -> bool:
    """True if workers of this machine finish sooner as threads than as processes."""
    return jobs <= MOST_THREADS and reports <= MOST_REPORTS_OF_THREADS


def is_worth_parallelizing(jobs: int, work: int, while_starting: int) -> bool:
    """True if `jobs` workers finish sooner than one process, counting their start-up.
    while_starting: the amount of work that one process does while others start.
    """
    return work * (jobs - 1) >= while_starting * jobs if jobs > 1 else work >= while_starting


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


@dataclass
class Pool:
    """Workers of an engine."""

    #: Runs the tasks.
    executor: Executor
    #: Number of workers.
    jobs: int
    #: True if all workers are on this machine.
    one_machine: bool = True
    #: Returns an executor in place of a broken one.
    renew: Callable[[], Executor] | None = None
    #: The engine's exceptions that mean that a worker is gone.
    lost: tuple[type[Exception], ...] = (BrokenExecutor,)
    #: True if workers go once no further tasks come.
    ends: bool = False
    #: Ends an executor whose results are no longer wanted, and waits for that.
    abandon: Callable[[Executor], None] = lambda executor: executor.shutdown()
    #: Executors whose workers were lost.
    _former: list[Executor] = field(default_factory=list, init=False)

    def end(self) -> None:
        """Let the workers go: no further tasks come, while this process finishes what is left."""
        if self.ends:
            self.executor.shutdown(wait=False)

    @contextmanager
    def ended(self) -> Iterator[None]:
        """Ensure that after this no task is under way, whatever happens, and workers that can go
        are gone: nobody uses the temporary folder any more, which could not be removed then.
        """
        try:
            yield
        except BaseException:
            for executor in (*self._former, self.executor):
                self.abandon(executor)
            raise
        if self.ends:
            for executor in (*self._former, self.executor):
                executor.shutdown()

    def in_order(
        self,
        function: Callable[[T], R],
        tasks: Iterable[T],
        ahead: int,
        what: Callable[[T], str] = str,
    ) -> Iterator[R]:
        """Yield results in the order of the tasks, with at most `ahead` tasks submitted beyond the
        one awaited.

        Where a worker is lost, the tasks that it leaves undone are done again. what: names a task
        for people, should it be the one.
        """
        waiting: deque[_Submitted[T, R]] = deque()
        try:
            for task in tasks:
                waiting.append(self._submit(function, task))
                if len(waiting) > ahead:
                    yield self._take_first(function, waiting, what)
            while waiting:
                yield self._take_first(function, waiting, what)
        finally:
            for submitted in waiting:
                submitted.future.cancel()

    def _submit(self, function: Callable[[T], R], task: T) -> _Submitted[T, R]:
        try:
            return _Submitted(task, self.executor.submit(function, task))
        except self.lost as error:
            broken: Future[R] = Future()
            broken.set_exception(error)
            return _Submitted(task, broken)

    def _take_first(
        self,
        function: Callable[[T], R],
        waiting: deque[_Submitted[T, R]],
        name_task: Callable[[T], str],
    ) -> R:
        """Return the result of the first task, which waits no longer."""
        first = waiting.popleft()
        try:
            return first.future.result()
        except self.lost:
            result = self._run_alone(function, first.task, name_task)
        for submitted in waiting:
            # What is still under way somewhere is awaited: it must not be done twice at one time.
            if isinstance(submitted.future.exception(), self.lost):
                submitted.future = self._submit(function, submitted.task).future
        return result

    def _run_alone(self, function: Callable[[T], R], task: T, name_task: Callable[[T], str]) -> R:
        """Return the result of a task that has the new workers to itself: if one is lost again, it
        is for this task.
        """
        for _ in range(ATTEMPTS if self.renew else 0):
            self._former.append(self.executor)
            self.executor = self.renew()
            try:
                return self.executor.submit(function, task).result()
            except self.lost:
                continue
        raise Nsys2prvError(
            f"{name_task(task)}: worker processes were killed again and again while they worked on it, most likely for lack of memory; "
            "try -j 1"
        ) from None


@dataclass
class _Submitted(Generic[T, R]):
    #: The task, kept to be submitted again if its worker is lost.
    task: T
    #: Its result, once it is done.
    future: Future[R]


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


#: Engine but for DEFAULT -> the function that starts its workers, and the modules of other packages
#: that it needs.
ENGINES: dict[str, tuple[Callable[..., AbstractContextManager[Pool]], tuple[str, ...]]] = {
    "processes": (_make_process_pool, ()),
    "threads": (_make_thread_pool, ()),
    "dask": (_make_dask_pool, ("distributed",)),
    "mpi": (_make_mpi_pool, ("mpi4py", "mpi4py.MPI")),
}
