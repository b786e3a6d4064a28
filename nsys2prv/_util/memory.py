"""Settings of the memory use of the C library, polars and Python.

Columns of some MB are made and dropped again and again. By default glibc hands each of them back to
the system at once, and every new one costs page faults: a fifth of a conversion's time. And Python
looks for garbage among modules while it imports them, which takes a sixth of the time of starting.

Where the address space is limited (``ulimit -v``), what is only reserved counts: glibc reserves 64
MB for each of the first threads that ask for memory, three fifths of all that a conversion has.
When there is none left, libraries crash or end the process with messages of their own, so the limit is
checked before they are imported.
"""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from nsys2prv._util.errors import Nsys2prvError

#: Parameters of glibc's mallopt(3).
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
#: Settings of jemalloc, with polars' prefix: blocks of some MB are treated like others, and freed
#: memory is kept for 1 s.
_POLARS = "_RJEM_MALLOC_CONF", "oversize_threshold:0,dirty_decay_ms:1000"
#: Blocks up to this size come from the heap (glibc takes no more), and a process keeps this
#: much freed memory at the end of its heap.
HEAP_BLOCK_BYTES, KEPT_BYTES = 32 << 20, 128 << 20
#: Where memory counts more than time, freed blocks of this size and more are not kept.
RETURNED_BYTES = 8 << 20
#: Address space that a process needs, for its libraries most of all; and for each thread of polars,
#: which has one per CPU or one alone.
NEEDED_BYTES, BYTES_PER_THREAD = 768 << 20, 256 << 20


def keep_freed_memory() -> None:
    """Let this process and those that it starts use freed memory again; polars' own allocator, if
    it is not loaded yet.

    Does nothing where there is no glibc, or no such allocator.
    """
    os.environ.setdefault(*_POLARS)
    limit = find_limit("RLIMIT_AS")
    if limit is not None and limit < BYTES_PER_THREAD * (os.cpu_count() or 1):
        os.environ.setdefault("POLARS_MAX_THREADS", "1")
    _set_malloc((_MMAP_THRESHOLD, HEAP_BLOCK_BYTES), (_TRIM_THRESHOLD, KEPT_BYTES))
    if limit is not None:
        _set_malloc((_ARENA_MAX, 1))


def return_large_blocks() -> None:
    """Let this process hand blocks of a MB and more back to the system as soon as they are freed."""
    _set_malloc((_MMAP_THRESHOLD, RETURNED_BYTES), (_TRIM_THRESHOLD, RETURNED_BYTES))


def _set_malloc(*settings: tuple[int, int]) -> None:
    with suppress(AttributeError, OSError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in settings:
            mallopt(parameter, value)


def return_freed_memory() -> None:
    """Hand memory that was freed back to the system: blocks of the heap that larger ones cannot use."""
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def check_address_space() -> None:
    """Check that the limit on address space leaves room for the libraries. Raises one clear line if
    they could not be imported, or would crash soon.
    """
    limit = find_limit("RLIMIT_AS")
    if limit is not None and limit < NEEDED_BYTES:
        raise Nsys2prvError(
            f"out of memory: processes may have {limit >> 20} MB of address space (ulimit -v), and {NEEDED_BYTES >> 20} MB "
            "are needed"
        )


def find_limit(name: str) -> int | None:
    """Return a limit of this process, such as RLIMIT_AS (bytes) or RLIMIT_NOFILE; None if there is
    none.
    """
    try:
        import resource
    except ImportError:  # not on every system
        return None
    limit = resource.getrlimit(getattr(resource, name))[0]
    return None if limit == resource.RLIM_INFINITY else limit


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Exclude imports, and all else that stays as long as the process, from garbage collection."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collecting:
            gc.enable()
