"""Giving back what is written: what no further window needs of the spilled runs leaves the disk and
the system's memory at once.

A trace is then written into the pages that its runs were in, which the processor has at hand, and
which a virtual machine need not ask its host for; and runs that were not on the disk yet never have
to be. It is an attempt: where the system cannot do it, or only slowly, everything stays until the
end.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct

from nsys2prv._util.columns import OPEN
from nsys2prv.clock.maps import ClockMap
from nsys2prv.store.runs import SAMPLE, Run

#: Of a run so much goes at a time, in whole pages.
CHUNK_BYTES, PAGE = 1 << 20, mmap.ALLOCATIONGRANULARITY
#: File systems that take longer for one chunk (seconds), on the average of so many, write it to
#: their disk first: they are left alone.
SLOW_SECONDS, TRIED = 0.004, 32


class _Chunk(Struct, frozen=True):
    """Bytes `first` to before `last` of a file; needed up to this local time of a report, and about
    this trace time.
    """

    about: int
    until: int
    report: int
    path: Path
    first: int
    last: int


class Release:
    """The runs of a trace while its windows are written."""

    def __init__(self, runs: Sequence[Run], clocks: Sequence[ClockMap]) -> None:
        self._clocks = clocks
        able = hasattr(mmap, "MADV_REMOVE")
        self._chunks = (
            sorted(
                (chunk for run in runs for chunk in _list_chunks(run, clocks[run.report])),
                key=lambda chunk: chunk.about,
                reverse=True,
            )
            if able
            else []
        )
        self._seconds, self._count = 0.0, 0

    def release_before(self, bound: int) -> None:
        """Give back what windows from this trace time on do not read."""
        while self._chunks and self._is_over(self._chunks[-1], bound):
            begun = time.monotonic()
            try:
                _remove_file(self._chunks.pop())
            except (OSError, ValueError):
                self._chunks = []
            self._seconds += time.monotonic() - begun
            self._count += 1
            if self._count >= TRIED and self._seconds > SLOW_SECONDS * self._count:
                self._chunks = []

    def _is_over(self, chunk: _Chunk, bound: int) -> bool:
        clock = self._clocks[chunk.report]
        return chunk.until < clock.to_local(bound) - clock.slack


def remove_others(files: Iterable[Path], runs: Iterable[Run]) -> None:
    """Remove those of these files in which none of the runs is."""
    for path in set(files) - {run.path for run in runs}:
        path.unlink(missing_ok=True)


def _list_chunks(run: Run, clock: ClockMap) -> list[_Chunk]:
    """Return a run in pieces that windows read on their own: they begin to read at a sampled
    record, at most one before their first.
    """
    size = run.shape.dtype.itemsize
    step = max(1, CHUNK_BYTES // (size * SAMPLE))
    ends = np.arange(step, -(-run.rows // SAMPLE) + step, step)
    untils = np.where(
        ends < len(run.samples), run.samples[np.minimum(ends, len(run.samples) - 1)], run.until
    )
    about = np.where(untils == OPEN, OPEN, clock.to_global(np.where(untils == OPEN, 0, untils)))
    lasts = run.offset + np.minimum(ends * SAMPLE, run.rows) * size
    firsts = run.offset + (ends - step) * SAMPLE * size
    # Pages that are wholly of a chunk.
    firsts, lasts = -(-firsts // PAGE) * PAGE, lasts // PAGE * PAGE
    return [
        _Chunk(*values, run.report, run.path, first, last)
        for *values, first, last in zip(
            about.tolist(), untils.tolist(), firsts.tolist(), lasts.tolist(), strict=True
        )
        if first < last
    ]


def _remove_file(chunk: _Chunk) -> None:
    with (
        chunk.path.open("r+b") as file,
        mmap.mmap(file.fileno(), chunk.last - chunk.first, offset=chunk.first) as pages,
    ):
        pages.madvise(mmap.MADV_REMOVE)
