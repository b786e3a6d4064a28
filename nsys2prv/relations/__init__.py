"""Relations between the events of several reports, one module each, and states of rows.

A relation reads *facts*, small frames that event kinds set aside while reading
(:meth:`Extraction.fact`), once every clock, object and name is known, and yields further records
and lines in trace time. Every module of this package that defines ``RELATIONS`` is found by
:func:`all_relations`.
"""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module

from nsys2prv.relations.kind import Relation


@cache
def all_relations() -> tuple[Relation, ...]:
    """Every relation this version finds, in alphabetical order."""
    relations = [
        relation
        for module in pkgutil.iter_modules(__path__)
        for relation in getattr(import_module(f"{__name__}.{module.name}"), "RELATIONS", ())
    ]
    return tuple(sorted(relations, key=lambda relation: relation.name))
