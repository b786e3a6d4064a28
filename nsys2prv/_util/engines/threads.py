"""Threads of this process: reading, sorting and formatting release Python's lock."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager

from nsys2prv._util.engines.pool import Pool


@contextmanager
def workers(jobs: int, scheduler: str | None = None) -> Iterator[Pool]:
    """Start `jobs` threads."""
    with ThreadPoolExecutor(max(1, jobs)) as executor:
        yield Pool(executor, max(1, jobs), abandon=_abandon)


def _abandon(executor: Executor) -> None:
    """Begin no further task, and wait for those under way."""
    executor.shutdown(cancel_futures=True)
