"""How the C library deals with freed memory.

Columns of some MB are made and dropped again and again. By default glibc hands each of them back to the system at once, and every new
one costs page faults: a fifth of a conversion's time.
"""

from __future__ import annotations

import ctypes

#: Parameters of glibc's mallopt(3).
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
#: Blocks up to this size come from the heap (glibc takes no more), and so much freed memory a process keeps at its heap's end.
HEAP_BLOCK_BYTES, KEPT_BYTES = 32 << 20, 128 << 20


def keep_freed_memory() -> None:
    """Let this process use freed memory again. Does nothing where there is no glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_MMAP_THRESHOLD, HEAP_BLOCK_BYTES)
    mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
