"""Running tasks: in this process when there is little to do, else in worker processes. Any other Executor serves as well."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection
from typing import TypeVar

from nsys2prv.allocator import keep_freed_memory
from nsys2prv.errors import Nsys2prvError

T, R = TypeVar("T"), TypeVar("R")


class SerialExecutor(Executor):
    """Runs each task where it is submitted."""

    def submit(self, function: Callable[..., R], /, *args: object, **kwargs: object) -> Future[R]:
        future: Future[R] = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def available_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def make_executor(jobs: int) -> Executor:
    """`jobs` worker processes, or this process for one. Workers start afresh and use one thread each."""
    if jobs <= 1:
        return SerialExecutor()
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    return ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"), initializer=_begin_worker)


def _begin_worker() -> None:
    keep_freed_memory()
    _watch_parent()


def _watch_parent() -> None:
    """End this worker when its parent is gone, however that went."""
    parent = multiprocessing.parent_process()

    def wait() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    if parent is not None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.Thread(target=wait, daemon=True).start()


def in_order(executor: Executor, function: Callable[[T], R], tasks: Iterable[T], ahead: int) -> Iterator[R]:
    """Results in the order of the tasks, with at most `ahead` tasks submitted beyond the one awaited."""
    waiting: list[Future[R]] = []
    try:
        for task in tasks:
            waiting.append(executor.submit(function, task))
            if len(waiting) > ahead:
                yield waiting.pop(0).result()
        while waiting:
            yield waiting.pop(0).result()
    except BrokenProcessPool:
        raise Nsys2prvError("a worker process ended early: killed, most likely for lack of memory (try -j 1), or started from a script "
                            "without `if __name__ == \"__main__\":`") from None
    finally:
        for future in waiting:
            future.cancel()
