"""Event types and values by name, for those who are not to know their numbers."""

from __future__ import annotations

from functools import cache

from nsys2prv.events.catalogue import DomainCode, catalogue
from nsys2prv.events.catalogue.counters import counter_tables


def code_of(layout: str, name: str) -> int:
    """Return the event type of a layout's field, or of a counter by its label. Raises KeyError for
    one that is not there.

    A field whose type depends on the NVTX domain has none.
    """
    for field in catalogue().layouts[layout].fields:
        if field.name == name and not isinstance(field.code, DomainCode):
            return field.code
    labels = counter_tables()[layout].labels if layout in counter_tables() else {}
    found = [code for code, label in labels.items() if label == name]
    if not found:
        raise KeyError(f"{layout}: no field or counter {name!r} with an event type of its own")
    return found[0]


@cache
def values_of(value_set: str) -> dict[str, int]:
    """Return label in lower case -> value."""
    return {label.lower(): value for value, label in catalogue().value_sets[value_set].labels}
