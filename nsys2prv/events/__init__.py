"""One module per kind of event: it reads the tables of its kind into the normal form and knows
nothing of Paraver.

Every module of this package that defines ``KINDS`` is found by :func:`all_kinds`; adding a kind
touches no other module.
"""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module

from nsys2prv.events.kind import EventKind


@cache
def all_kinds() -> tuple[EventKind, ...]:
    """Return every kind of event this version translates, in alphabetical order."""
    kinds = [
        kind
        for module in pkgutil.iter_modules(__path__)
        for kind in getattr(import_module(f"{__name__}.{module.name}"), "KINDS", ())
    ]
    return tuple(sorted(kinds, key=lambda kind: kind.name))
