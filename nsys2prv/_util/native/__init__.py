"""Compiled core: reads the tables of SQLite exports from their pages, fills and orders records, and
formats lines.

`core` is the extension module, None if the package was installed without a C compiler: then
SQLite's driver reads, and numpy writes. Analyses and checks need it.
"""

from __future__ import annotations

from typing import Any

from nsys2prv._util.errors import Nsys2prvError

try:
    from nsys2prv._util.native import _core as core
except ImportError:
    core: Any = None  # type: ignore[no-redef]

__all__ = ["NEEDS_CORE", "core", "require_core"]

#: Said of what cannot be done without it.
NEEDS_CORE = (
    "needs the compiled core, which this installation lacks: install nsys2prv with a C compiler"
)


def require_core(what: str) -> None:
    """Raise Nsys2prvError without the compiled core. what: the feature that needs it."""
    if core is None:
        raise Nsys2prvError(f"{what} {NEEDS_CORE}")
