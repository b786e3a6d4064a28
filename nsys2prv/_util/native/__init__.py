"""Import the compiled core, which reads SQLite tables from pages, fills and sorts records, and
formats lines.

`core` is the extension module, or None if the package was installed without a C compiler. Then
SQLite's driver reads, and numpy writes. Analyses and checks need the core.
"""

from __future__ import annotations

from typing import Any

from nsys2prv._util.errors import Nsys2prvError

try:
    from nsys2prv._util.native import _core as core
except ImportError:
    core: Any = None  # type: ignore[no-redef]

__all__ = ["NEEDS_CORE", "core", "require_core"]

#: Message for features that need it.
NEEDS_CORE = (
    "needs the compiled core, which this installation lacks; install nsys2prv with a C compiler"
)


def require_core(what: str) -> None:
    """Raise Nsys2prvError if the compiled core is missing. what: the feature that needs it."""
    if core is None:
        raise Nsys2prvError(f"{what} {NEEDS_CORE}")
