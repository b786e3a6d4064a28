"""Compiled core: reads the tables of SQLite exports from their pages, fills and orders records, and
formats lines.

`core` is the extension module, None where the package was installed without a C compiler: then
SQLite's driver reads, and numpy writes.
"""

from __future__ import annotations

from typing import Any

try:
    from nsys2prv._util.native import _core as core
except ImportError:
    core: Any = None  # type: ignore[no-redef]

__all__ = ["core"]
