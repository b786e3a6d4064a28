"""Threads of this process: reading and sorting release Python's lock, formatting does so in part."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from nsys2prv.engines.pool import Pool


@contextmanager
def workers(jobs: int, scheduler: str | None = None) -> Iterator[Pool]:
    """`jobs` threads."""
    with ThreadPoolExecutor(max(1, jobs)) as executor:
        yield Pool(executor, max(1, jobs))
