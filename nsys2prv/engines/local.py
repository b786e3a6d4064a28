"""Workers on this machine: its own processes, or this process for one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import ExitStack, contextmanager, suppress
from typing import TypeVar

from nsys2prv.engines.pool import Pool
from nsys2prv.engines.processes import ProcessExecutor, WorkerLost

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


#: By their number, workers that started before they were asked for.
_ahead: dict[int, ProcessExecutor] = {}


def start(jobs: int, count: int, first: Callable[[], object]) -> None:
    """Let `count` of so many workers start, and do what they need first, while this process does something else; the next :func:`workers`
    has them."""
    if jobs > 1 and jobs not in _ahead:
        _ahead[jobs] = _executor(jobs)
        with suppress(WorkerLost):
            _ahead[jobs].begin(count, first)


def _executor(jobs: int) -> ProcessExecutor:
    """So many workers, of few this process is one."""
    return _processes(jobs - 1, own_share=True) if jobs <= SHARING_JOBS else _processes(jobs)


def _processes(number: int, own_share: bool = False) -> ProcessExecutor:
    for library in ("POLARS_MAX_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(library, "1")
    return ProcessExecutor(number, own_share)


@contextmanager
def workers(jobs: int, scheduler: str | None = None) -> Iterator[Pool]:
    """`jobs` workers: processes, which start afresh and use one thread each; of few workers this process is one."""
    if jobs <= 1:
        yield Pool(SerialExecutor(), 1)
        return
    with ExitStack() as stack:
        # What killed a worker most likely was memory: the next ones are fewer.
        yield Pool(stack.enter_context(_ahead.pop(jobs, None) or _executor(jobs)), jobs,
                   renew=lambda: stack.enter_context(_processes(max(1, jobs // 2))), ends=True,
                   abandon=ProcessExecutor.kill)
