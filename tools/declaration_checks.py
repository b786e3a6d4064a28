"""Check the declarations of events, for the makers of views and pages: misspelled and missing names are
reported with their file, and an event type has one meaning. ``python tools/declaration_checks.py`` prints the
next free event types.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path

import yaml

from nsys2prv._util.files import load_shipped_file
from nsys2prv.events import all_kinds
from nsys2prv.events import catalogue as module
from nsys2prv.events.attributes import extract_declared
from nsys2prv.events.catalogue import Catalogue, DomainCode, Field, Layout, load_catalogue
from nsys2prv.events.kind import EventKind, find_function
from nsys2prv.match import all_relations

#: Event types for new fields and lines of calls; no other tool for Paraver uses them.
OWN_TYPES = range(69_200_000, 70_000_000)
DECLARATIONS = Path(module.__file__).parent / "events"
#: Sections of the files -> keys of their entries; none for those that are checked as they are read.
SECTIONS: dict[str, Collection[str]] = {
    "kinds": EventKind.__struct_fields__,
    "layouts": ("fields_of", *Layout.__struct_fields__),
    **dict.fromkeys(
        (
            "calls",
            "counters",
            "domains",
            "lines",
            "name_sets",
            "relations",
            "state_rules",
            "states",
            "value_sets",
        ),
        (),
    ),
}


def check_declarations(folder: Path = DECLARATIONS) -> None:
    """Check the files of declarations in a folder, first each, then all together.

    Raise ValueError with file and entry for an unknown section or key; for an undeclared layout, name set or
    value set; and for a field that nothing reads.
    """
    files = {
        path.name: yaml.safe_load(path.read_text(encoding="utf-8"))
        for path in sorted(folder.glob("*.yaml"))
    }

    def list_declared(*sections: str) -> set[str]:
        return {name for data in files.values() for part in sections for name in data.get(part, ())}

    layouts = list_declared("layouts", "calls")
    sets = {"names": list_declared("name_sets", "calls"), "fixed": list_declared("value_sets")}
    for file, data in files.items():
        _refuse_unknown(f"{file}: section", data, SECTIONS)
        for section, keys in SECTIONS.items():
            for name, entry in data.get(section, {}).items() if keys else ():
                _refuse_unknown(f"{file}: {section}: {name}: key", entry, keys)
        for name, kind in data.get("kinds", {}).items():
            _refuse_unknown(f"{file}: kinds: {name}: layout", kind.get("layouts", ()), layouts)
        for name, layout in data.get("layouts", {}).items():
            for field, spec in (layout.get("fields") or {}).items():
                where = f"{file}: layouts: {name}: {field}:"
                _refuse_unknown(f"{where} key", spec, ("count", *Field.__struct_fields__))
                for key, value in (spec.get("values") or {}).items():
                    _refuse_unknown(f"{where} values: key", [key], sets)
                    _refuse_unknown(f"{where} values: {key}:", [value], sets[key])
    if folder == DECLARATIONS:
        check_event_types(load_catalogue())
        _check_kinds()


def _refuse_unknown(where: str, names: Iterable[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            like = get_close_matches(name, known, 1)
            hint = (
                f"did you mean {like[0]!r}?" if like else f"there are: {', '.join(sorted(known))}"
            )
            raise ValueError(f"{where} {name!r} is unknown; {hint}")


def _refuse_missing(where: str, function: str, package: str = "nsys2prv.events") -> None:
    try:
        find_function(function, package)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{where} {function!r} is no function of {package}: {error}") from error


def _check_kinds() -> None:
    """Check that each kind has its layouts, and that those without a module name every column."""
    layouts = load_catalogue().layouts
    for relation in all_relations():
        for function in filter(None, (relation.relate, relation.observe)):
            _refuse_missing(f"relations: {relation.name}:", function, "nsys2prv.match")
    for kind in all_kinds():
        _refuse_unknown(f"kinds: {kind.name}: layout", kind.layouts, layouts)
        named = (kind.read, kind.where_in_report, kind.hint_when_missing)
        for function in (*named, kind.derived.derive if kind.derived else ""):
            if function:
                _refuse_missing(f"kinds: {kind.name}:", function)
        # Without tables: made of what is read for other kinds.
        if find_function(kind.read) is not extract_declared or not kind.tables:
            continue
        for layout in kind.layouts:
            for field in layouts[layout].fields:
                if not field.column and field.unknown is None:
                    raise ValueError(
                        f"layouts: {layout}: {field.name}: no column; the kind {kind.name} has no module "
                        "that would find it in another way"
                    )


def check_event_types(catalogue: Catalogue) -> dict[int, tuple[str, Hashable]]:
    """Return the owner and meaning of each event type.

    Raise ValueError if two owners give one type different labels or values, because the .pcf contains only
    one of them.
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
            # Names of one space have numbers of their own.
            values = field.values and (getattr(field.values, "space", "") or field.values.name)
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


def find_free_types(catalogue: Catalogue) -> tuple[int, int]:
    """Return the next free event type for a field, and the next free multiple of 100 for a line of `calls`,
    which needs a hundred types.
    """
    calls = {call.code // 100 for call in catalogue.calls.values()}
    taken = [code for code in check_event_types(catalogue) if code in OWN_TYPES]
    free = 100 * (max(taken) // 100 + 1)
    last = max(code for code in taken if code // 100 not in calls)
    return (last + 1 if (last + 1) % 100 else free), free


if __name__ == "__main__":
    field, line = find_free_types(load_catalogue())
    print(f"next free event type of a field: {field}; of a line of calls: {line}")
