"""Collect the event types that the catalogue uses, and what each is used for."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from nsys2prv._util.data_files import load_shipped_file
from nsys2prv.events import catalogue as module
from nsys2prv.events.catalogue import Catalogue, DomainCode


def check_event_types(catalogue: Catalogue) -> dict[int, tuple[str, Hashable]]:
    """Return the owner and meaning of each event type.

    Raises ValueError where two owners give one type different labels or values: the .pcf has those
    of one.
    """
    used: dict[int, tuple[str, Hashable]] = {}
    for owner, code, meaning in _list_uses(catalogue):
        other, known = used.setdefault(code, (owner, meaning))
        if known != meaning:
            raise ValueError(
                f"event type {code}: {other} and {owner} both use it, with different meanings"
            )
    return used


def _list_uses(catalogue: Catalogue) -> Iterator[tuple[str, int, Hashable]]:
    """Yield owner, event type and meaning of every use."""
    hashed = range(module.FIRST_HASHED_DOMAIN, module.LAST_HASHED_DOMAIN + 1)
    domains = {*range(len(catalogue.domains)), *hashed} - module.FORBIDDEN_DOMAINS
    for layout in catalogue.layouts.values():
        for field in layout.fields:
            owner = f"field {field.name!r} of layout {layout.name!r}"
            values = field.values and field.values.name
            if not isinstance(field.code, DomainCode):
                yield owner, field.code, (field.label, values)
                continue
            for domain, code in field.code.named:
                yield owner, code, (domain, values)
            for domain in () if field.code.only_named else domains:
                yield owner, field.code.code_of("", domain), (field.label, values)
        if layout.hashed:
            for code in range(layout.hashed[0], layout.hashed[1] + 1):
                yield f"layout {layout.name!r}", code, ("a hash of the name", layout.hashed)
    listed = load_shipped_file(module.__name__, "counters.yaml") | catalogue.counters
    for name, entries in listed.items():
        for code, names in entries.items():
            yield f"counter {names[0]!r} of layout {name!r}", code, names[0]
