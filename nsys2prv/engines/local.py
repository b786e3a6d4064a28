"""Workers on this machine: its own processes, or this process for one."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cached_property
from multiprocessing import connection
from typing import TypeVar

from nsys2prv.allocator import keep_freed_memory
from nsys2prv.engines.own_share import SharingExecutor
from nsys2prv.engines.pool import Pool

R = TypeVar("R")
#: Among so few workers this process is one: more of them would have it hand out work all the time.
SHARING_JOBS = 4


class SerialExecutor(Executor):
    """Runs each task where it is submitted."""

    def submit(self, function: Callable[..., R], /, *args: object, **kwargs: object) -> Future[R]:
        future: Future[R] = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class _WhenNeeded(Executor):
    """An executor that is made at the first task: even one without workers costs a process that tracks its resources."""

    def __init__(self, make: Callable[[], Executor]) -> None:
        self._make = make

    @cached_property
    def _made(self) -> Executor:
        return self._make()

    def submit(self, function: Callable[..., R], /, *args: object, **kwargs: object) -> Future[R]:
        return self._made.submit(function, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        if "_made" in self.__dict__:
            self._made.shutdown(wait, cancel_futures=cancel_futures)


#: By their number, workers that started before they were asked for.
_ahead: dict[int, Executor] = {}


def start(jobs: int, count: int, first: Callable[[], object]) -> None:
    """Let `count` of so many workers start, and do what they need first, while this process does something else; the next :func:`workers`
    has them."""
    if jobs > 1 and jobs not in _ahead:
        others = _processes(_others(jobs))
        for _ in range(min(count, _others(jobs))):
            others.submit(first)
        _ahead[jobs] = _shared(others, jobs)


def _others(jobs: int) -> int:
    """How many processes do the work of so many workers, beside this one."""
    return jobs - 1 if jobs <= SHARING_JOBS else jobs


def _shared(others: Executor, jobs: int) -> Executor:
    return SharingExecutor(others, _others(jobs)) if _others(jobs) < jobs else others


def _processes(number: int) -> Executor:
    for library in ("POLARS_MAX_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(library, "1")
    return ProcessPoolExecutor(number, mp_context=multiprocessing.get_context("spawn"), initializer=_begin_worker)


@contextmanager
def workers(jobs: int, scheduler: str | None = None) -> Iterator[Pool]:
    """`jobs` workers: processes, which start afresh and use one thread each; of few workers this process is one."""
    if jobs <= 1:
        yield Pool(SerialExecutor(), 1)
        return
    with ExitStack() as stack:
        def started(executor: Executor) -> Executor:
            return stack.enter_context(executor)

        ahead = _ahead.pop(jobs, None)
        # What killed a worker most likely was memory: the next ones are fewer.
        yield Pool(started(ahead) if ahead else _WhenNeeded(lambda: started(_shared(_processes(_others(jobs)), jobs))), jobs,
                   renew=lambda: started(_processes(max(1, jobs // 2))), ends=True)


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
