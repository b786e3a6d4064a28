"""Relations between the events of several reports, one module each, and states of rows.

A relation reads *facts*, small frames that event kinds set aside while reading
(:meth:`Extraction.fact`), once every clock, object and name is known, and yields further records
and lines in trace time. :func:`all_relations` gives the ``RELATIONS`` of the modules listed here;
what else is in this package is imported where it is needed.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

from nsys2prv.relations.kind import Relation

#: The modules of this package that define ``RELATIONS``.
MODULES = ("gpu_memory", "mpi", "nccl_collectives", "nccl_messages")


@cache
def all_relations() -> tuple[Relation, ...]:
    """Return every relation this version finds, in alphabetical order."""
    relations = [
        relation
        for module in MODULES
        for relation in import_module(f"{__name__}.{module}").RELATIONS
    ]
    return tuple(sorted(relations, key=lambda relation: relation.name))
