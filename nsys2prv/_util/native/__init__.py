"""Compiled core: reads the tables of SQLite exports from their pages, fills and orders records, formats
lines, and replays jobs. The installation compiles it.
"""

from __future__ import annotations

try:
    from nsys2prv._util.native import _core as core
except ImportError as error:
    raise ImportError(
        "the compiled core of nsys2prv is missing: install nsys2prv again, with a C compiler"
    ) from error

__all__ = ["core"]
