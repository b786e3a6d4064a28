"""This process beside its workers: it does a share of the tasks, so that one process less has to start."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TypeVar

R = TypeVar("R")


@dataclass(frozen=True)
class _Task:
    future: Future
    call: tuple[Callable, tuple, dict]

    def done_by(self, do: Callable[..., object]) -> None:
        """Give the result, or how it failed, to whoever waits."""
        if self.future.set_running_or_notify_cancel():
            function, args, kwargs = self.call
            try:
                self.future.set_result(do(function, *args, **kwargs))
            except BaseException as error:
                self.future.set_exception(error)


@dataclass
class SharingExecutor(Executor):
    """Each task goes to who is free first: a thread of this process, or one of so many workers of another executor.

    Once that one breaks, no task is taken any more; what is under way in this process is brought to its end.
    """

    others: Executor
    workers: int
    _tasks: SimpleQueue[_Task | None] = field(default_factory=SimpleQueue, init=False)
    _threads: list[threading.Thread] = field(default_factory=list, init=False)
    _broken: BrokenExecutor | None = field(default=None, init=False)

    def submit(self, function: Callable[..., R], /, *args: object, **kwargs: object) -> Future[R]:
        if self._broken:
            raise self._broken
        if not self._threads:
            targets = [self._work_here, *[self._work_there] * self.workers]
            self._threads = [threading.Thread(target=target, daemon=True) for target in targets]
            for thread in self._threads:
                thread.start()
        task = _Task(Future(), (function, args, kwargs))
        self._tasks.put(task)
        return task.future

    def _work_here(self) -> None:
        while (task := self._tasks.get()) is not None:
            task.done_by(lambda function, *args, **kwargs: function(*args, **kwargs))

    def _work_there(self) -> None:
        try:
            # A worker that is still starting would only keep a task from this process.
            self._by_a_worker(int)
        except BrokenExecutor:
            return
        while (task := self._tasks.get()) is not None:
            task.done_by(self._by_a_worker)

    def _by_a_worker(self, function: Callable[..., R], *args: object, **kwargs: object) -> R:
        try:
            return self.others.submit(function, *args, **kwargs).result()
        except BrokenExecutor as error:
            self._broken = error
            self._refuse_waiting()
            raise

    def _refuse_waiting(self) -> None:
        """What nobody has begun fails as the lost task does."""
        for task in self._waiting():
            if task.future.set_running_or_notify_cancel():
                task.future.set_exception(self._broken)

    def _waiting(self) -> list[_Task]:
        """Take all tasks that nobody has begun."""
        found = []
        while not self._tasks.empty():
            try:
                found.append(self._tasks.get_nowait())
            except Empty:
                break
        for _ in range(found.count(None)):
            self._tasks.put(None)
        return [task for task in found if task is not None]

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        if cancel_futures:
            for task in self._waiting():
                task.future.cancel()
        for _ in self._threads:
            self._tasks.put(None)
        if wait:
            for thread in self._threads:
                thread.join()
        self.others.shutdown(wait, cancel_futures=cancel_futures)
