"""How the C library and Python deal with freed memory.

Columns of some MB are made and dropped again and again. By default glibc hands each of them back to the system at once, and every new
one costs page faults: a fifth of a conversion's time. And Python looks for garbage among modules while it imports them, which takes a
sixth of the time of starting.
"""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

#: Parameters of glibc's mallopt(3).
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
#: jemalloc's, under the prefix that polars gives it: blocks of some MB are like others, and what is freed is kept for 10 s.
_POLARS = "_RJEM_MALLOC_CONF", "oversize_threshold:0,dirty_decay_ms:10000"
#: Blocks up to this size come from the heap (glibc takes no more), and so much freed memory a process keeps at its heap's end.
HEAP_BLOCK_BYTES, KEPT_BYTES = 32 << 20, 128 << 20


def keep_freed_memory() -> None:
    """Let this process and those that it starts use freed memory again; polars' own allocator, if it is not loaded yet.

    Does nothing where there is no glibc, or no such allocator."""
    os.environ.setdefault(*_POLARS)
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_MMAP_THRESHOLD, HEAP_BLOCK_BYTES)
    mallopt(_TRIM_THRESHOLD, KEPT_BYTES)


@contextmanager
def importing() -> Iterator[None]:
    """Imports, and what else stays as long as the process, are not searched for garbage, now or later."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collecting:
            gc.enable()
