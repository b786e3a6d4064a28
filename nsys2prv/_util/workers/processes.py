"""Worker processes of this machine."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import ExitStack, contextmanager, suppress
from typing import TypeVar

from msgspec import Struct

from nsys2prv._util.workers import Pool
from nsys2prv._util.workers.worker import receive_message, send_message

R = TypeVar("R")
_PROGRAM = "import sys; sys.path[:] = {path!r}; from nsys2prv._util.workers.worker import serve_tasks; serve_tasks()"


class WorkerLost(BrokenExecutor):
    """A worker process ended, or could not be started."""


class _WorkerTraceback(Exception):
    """The traceback of an error in a worker, as its cause."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class Worker:
    """A process that does one task at a time. It is not interrupted from the terminal if the thread
    that starts it blocks SIGINT.

    It shares no lock with anybody, and ends with this process however that ends.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM.format(path=[*map(str, sys.path)])],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def call(self, function: Callable[..., R], /, *args: object, **kwargs: object) -> R:
        """Call an importable function in the worker and return its result. Raises what it raises,
        and WorkerLost.
        """
        message = pickle.dumps((function, args, kwargs), pickle.HIGHEST_PROTOCOL)
        try:
            send_message(self._process.stdin, message)
            outcome = receive_message(self._process.stdout)
        except (EOFError, OSError, ValueError):
            raise WorkerLost("a worker process ended") from None
        done, value, where = pickle.loads(outcome)
        if not done:
            raise value from _WorkerTraceback(where)
        return value

    def kill(self) -> None:
        """Let it end at once; may be called while another thread waits for it."""
        self._process.kill()

    def end(self) -> None:
        """Let it end, and wait until it has."""
        # Its input need not end where it is closed here: a process that was forked meanwhile has
        # it, too.
        with suppress(OSError):
            send_message(self._process.stdin, b"")
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


class _Task(Struct, frozen=True):
    #: Takes the result.
    future: Future
    #: Function, positional and keyword arguments.
    call: tuple[Callable, tuple, dict]

    def complete(self, do: Callable[..., object]) -> None:
        """Give the result, or how it failed, to whoever waits."""
        if self.future.set_running_or_notify_cancel():
            function, args, kwargs = self.call
            try:
                self.future.set_result(do(function, *args, **kwargs))
            except BaseException as error:
                self.future.set_exception(error)


class ProcessExecutor(Executor):
    """Each task goes to the worker process that is free first.

    Workers start with the first task. Once one is lost the others are ended, no task is taken any
    more, and those that wait fail with :class:`WorkerLost`.
    """

    def __init__(self, processes: int, start: Callable[[], Worker] = Worker) -> None:
        self._processes, self._start = processes, start
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._tasks: deque[_Task] = deque()
        self._threads: list[threading.Thread] = []
        self._workers: list[Worker] = []
        self._closed = self._killed = False
        self._lost: WorkerLost | None = None

    def begin(self, count: int, first: Callable[[], object] = int) -> None:
        """Let `count` of the workers start now, and do this first."""
        while len(self._threads) < min(count, self._processes):
            thread = threading.Thread(target=self._serve_worker, args=(first,), daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                raise WorkerLost(str(error)) from None
            self._threads.append(thread)

    def submit(self, function: Callable[..., R], /, *args: object, **kwargs: object) -> Future[R]:
        if not self._closed:
            self.begin(self._processes)
        task = _Task(Future(), (function, args, kwargs))
        with self._lock:
            if self._closed:
                raise self._lost or RuntimeError("cannot schedule new futures after shutdown")
            self._tasks.append(task)
            self._changed.notify()
        return task.future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let the workers end once all tasks are done. cancel_futures: those that nobody has begun
        are not.
        """
        for task in self._close(cancel_futures):
            task.future.cancel()
        if wait:
            self._join()

    def kill(self) -> None:
        """End the workers at once, whatever they are doing, and wait until they have ended."""
        self.shutdown(wait=False, cancel_futures=True)
        self._kill_workers()
        self._join()

    def _close(self, take: bool) -> deque[_Task]:
        """Accept no task any more. take: returns all that nobody has begun."""
        waiting: deque[_Task] = deque()
        with self._lock:
            self._closed = True
            if take:
                waiting, self._tasks = self._tasks, waiting
            self._changed.notify_all()
        return waiting

    def _kill_workers(self) -> None:
        with self._lock:
            self._killed = True
            for worker in self._workers:
                worker.kill()

    def _join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _fail_waiting(self, error: WorkerLost) -> None:
        """Fail the tasks that have not begun as the lost task does."""
        self._lost = self._lost or error
        for task in self._close(take=True):
            if task.future.set_running_or_notify_cancel():
                task.future.set_exception(error)
        self._kill_workers()

    def _take_next(self) -> _Task | None:
        with self._lock:
            self._changed.wait_for(lambda: self._tasks or self._closed)
            return self._tasks.popleft() if self._tasks else None

    def _serve_worker(self, first: Callable[[], object]) -> None:
        # The worker is born with the signals of this thread.
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            worker = self._start()
        except (OSError, MemoryError) as error:
            self._fail_waiting(WorkerLost(str(error)))
            return
        with self._lock:
            self._workers.append(worker)
            if self._killed:
                worker.kill()

        def call(function: Callable[..., R], /, *args: object, **kwargs: object) -> R:
            try:
                return worker.call(function, *args, **kwargs)
            except WorkerLost as error:
                self._fail_waiting(error)
                raise

        try:
            # A worker that is still starting would only keep a task from the others.
            with suppress(Exception):
                call(first)
            while task := self._take_next():
                task.complete(call)
        finally:
            worker.end()


#: By their number, workers that started before they were asked for.
_ahead: dict[int, ProcessExecutor] = {}


def prestart_workers(jobs: int, count: int, first: Callable[[], object]) -> None:
    """Let `count` of so many workers start, and do what they need first, while this process does
    something else; the next :func:`make_workers` has them.
    """
    if jobs > 1 and jobs not in _ahead:
        _ahead[jobs] = _get_processes(jobs)
        with suppress(WorkerLost):
            _ahead[jobs].begin(count, first)


def _get_processes(number: int) -> ProcessExecutor:
    for library in ("POLARS_MAX_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(library, "1")
    return ProcessExecutor(number)


@contextmanager
def make_workers(jobs: int) -> Iterator[Pool]:
    """Start `jobs` fresh processes, which use one thread each."""
    with ExitStack() as stack:
        # What killed a worker most likely was memory: the next ones are fewer.
        yield Pool(
            stack.enter_context(_ahead.pop(jobs, None) or _get_processes(jobs)),
            jobs,
            renew=lambda: stack.enter_context(_get_processes(max(1, jobs // 2))),
            ends=True,
            abandon=ProcessExecutor.kill,
        )
