"""Workers on this machine: this process for one, threads of it for a few, processes for more."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

from nsys2prv._util.engines.pool import MOST_THREADS, Pool

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
        from nsys2prv._util.engines import threads

        return threads.workers(jobs)
    from nsys2prv._util.engines import processes

    return processes.workers(jobs)
