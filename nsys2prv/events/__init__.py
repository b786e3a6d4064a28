"""One module per kind of event: it reads the tables of its kind into the normal form and knows
nothing of Paraver.

Every module of this package that defines ``KINDS`` is found by :func:`all_kinds`, and so is every
kind of the catalogue that needs no module; adding a kind touches no other module.
"""

from __future__ import annotations

import pkgutil
from functools import cache, partial
from importlib import import_module

from nsys2prv.events.kind import EventKind, declare_kind


@cache
def all_kinds() -> tuple[EventKind, ...]:
    """Return every kind of event this version translates, in alphabetical order."""
    from nsys2prv.events.calls import extract_declared
    from nsys2prv.events.catalogue import load_catalogue

    kinds = {
        kind.name: kind
        for module in pkgutil.iter_modules(__path__)
        for kind in getattr(import_module(f"{__name__}.{module.name}"), "KINDS", ())
    }
    for name in load_catalogue().kinds.keys() - kinds.keys():
        kinds[name] = declare_kind(name, partial(extract_declared, name))
    return tuple(kinds[name] for name in sorted(kinds))
