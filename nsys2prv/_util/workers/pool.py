"""Running tasks in order on an executor, again where a worker was lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from nsys2prv._util.errors import Nsys2prvError

T, R = TypeVar("T"), TypeVar("R")
#: How often a task is tried alone after a worker was lost at it or beside it.
ATTEMPTS = 2
#: Up to so many workers of this machine, for a job of up to so many reports, are threads: they start
#: at once and share what is imported, and most of the work on a large report releases Python's lock.
#: More of them would wait for that lock, and so would those that work on many small reports.
MOST_THREADS, MOST_REPORTS_OF_THREADS = 4, 16


def should_use_threads(jobs: int, reports: int) -> bool:
    """True if workers of this machine finish sooner as threads than as processes."""
    return jobs <= MOST_THREADS and reports <= MOST_REPORTS_OF_THREADS


def is_worth_parallelizing(jobs: int, work: int, while_starting: int) -> bool:
    """True if `jobs` workers finish sooner than one process, counting their start-up.
    while_starting: the amount of work that one process does while others start.
    """
    return work * (jobs - 1) >= while_starting * jobs if jobs > 1 else work >= while_starting


@dataclass
class _Submitted(Generic[T, R]):
    #: The task, kept to be submitted again if its worker is lost.
    task: T
    #: Its result, once it is done.
    future: Future[R]


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
