"""Show progress on standard error, and measure the CPU time of each step in this process and its
workers.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct, field

if TYPE_CHECKING:
    from tqdm import tqdm

T = TypeVar("T")
R = TypeVar("R")
#: What people call the work of a module, or of a function.
_STAGES = {
    "inspect_task": "opening",
    "find_span": "timeline",
    "make_device_states": "device states",
    "join_task": "run joining",
    "checksum_task": "metadata",
    "reading": "reading",
    "derive": "reading",
    "align": "clocks",
    "state_records": "states",
    "prv": "writing",
}


class Progress:
    """Shows bars where people watch: on terminals and in notebooks."""

    def __init__(self, quiet: bool) -> None:
        self._off = quiet or not ("ipykernel" in sys.modules or sys.stderr.isatty())

    def show_bar(self, what: str, total: int, unit: str) -> tqdm | _NoBar:
        """Return a bar to update by hand."""
        if self._off:
            return _NoBar()
        from tqdm import tqdm

        return tqdm(
            total=total, desc=what, unit=f" {unit}", unit_scale=True, file=sys.stderr, leave=False
        )

    def follow(self, items: Iterable[T], what: str, total: int, unit: str) -> Iterator[T]:
        """Yield the items, with a bar that moves on as they are taken."""
        with self.show_bar(what, total, unit) as bar:
            for item in items:
                bar.update(1)
                yield item


class _NoBar:
    """Placeholder for a progress bar that is not shown; avoids importing the real one."""

    def __enter__(self) -> _NoBar:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, count: int) -> None:
        pass


class CpuTimes(Struct):
    """CPU seconds by stage."""

    #: By the name of the stage.
    seconds: Counter[str] = field(default_factory=Counter)
    #: CPU seconds that this process itself spent.
    own: float = 0.0

    def add(self, stage: str, seconds: float, here: bool) -> None:
        """Account CPU seconds to a stage. here: this process spent them."""
        self.seconds[stage] += seconds
        self.own += seconds if here else 0.0

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Add this process's own time within the block to a stage; workers' time is not included."""
        start = time.process_time()
        try:
            yield
        finally:
            self.add(name, time.process_time() - start, True)

    def take_values(
        self, function: Callable[[T], R], results: Iterator[TimedResult]
    ) -> Iterator[R]:
        """Yield the results of a function wrapped by :func:`run_timed`, and record their time."""
        for result in results:
            self.add(_find_stage(function), result.seconds, result.process == os.getpid())
            yield result.value

    def format(self) -> str:
        """Return one line; what no stage explains is this process's handing work out and bringing
        it together, and its imports.
        """
        beside = max(0.0, time.process_time() - self.own)
        parts = [f"{seconds:.2f} {stage}" for stage, seconds in self.seconds.items()]
        return f"CPU seconds: {', '.join([*parts, f'{beside:.2f} beside'])}"


class TimedResult(Struct, frozen=True):
    """Result of a task with its cost."""

    #: Result of the task.
    value: object
    #: CPU time of the task, s.
    seconds: float
    #: The process that ran it.
    process: int


def run_timed(function: Callable[[T], R], task: T) -> TimedResult:
    """Do a task and take its time: of the process, as libraries have threads of their own; of the
    thread where others work beside.
    """
    alone = threading.current_thread() is threading.main_thread()
    clock = time.process_time if alone else time.thread_time
    start = clock()
    value = function(task)
    return TimedResult(value, clock() - start, os.getpid())


def _find_stage(function: Callable) -> str:
    while isinstance(function, partial):
        function = function.func
    module = function.__module__.rpartition(".")[2]
    return _STAGES.get(function.__name__) or _STAGES.get(module, module.replace("_", " "))
