"""Event types, their labels and their values: the data of the files in ``events`` as typed
declarations.

Everything that gives a Paraver number a meaning is read from here: the writer of records, the
``.pcf`` and the tables of the documentation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from typing import Any

from nsys2prv._util.data import data_text, data_texts, shipped
from nsys2prv.events.catalogue import calls as call_lines
from nsys2prv.events.catalogue import states as row_states
from nsys2prv.events.catalogue.calls import CallTable
from nsys2prv.events.catalogue.claims import Claims
from nsys2prv.events.catalogue.hashing import hashed_numbers
from nsys2prv.events.catalogue.states import State, StateRule

DOMAIN_STEP = 100
#: Domains numbered by their text take these numbers; lower ones belong to the fixed names, see
#: :func:`domain_numbers`.
FIRST_HASHED_DOMAIN, LAST_HASHED_DOMAIN = 50, 499
#: 9600 + 100 * 204 is 30000, which POP's BasicAnalysis takes for CPU sampling.
FORBIDDEN_DOMAINS = frozenset({204})


@dataclass(frozen=True)
class DomainCode:
    """Event type per NVTX domain: base + 100 * domain number."""

    base: int
    #: Domains that have a type of their own.
    named: tuple[tuple[str, int], ...] = ()
    #: No other domains occur.
    only_named: bool = False

    def of(self, domain: str, number: int) -> int:
        return dict(self.named).get(domain, self.base + DOMAIN_STEP * number)


@dataclass(frozen=True)
class ValueSet:
    """A closed set: value -> label, the same in every trace."""

    name: str
    labels: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class NameSet:
    """Names met in the reports: `known` ones have fixed values, others are numbered from `first`
    on.
    """

    name: str
    space: str
    first: int
    known: str | None = None

    def known_values(self) -> dict[str, int]:
        return _known_names(self.known) if self.known else {}


@dataclass(frozen=True)
class Field:
    """One event type of a record. `values` None: a plain number, in `unit` if given."""

    name: str
    code: int | DomainCode
    label: str
    values: ValueSet | NameSet | None = None
    optional: bool = False
    unit: str = ""


@dataclass(frozen=True)
class Layout:
    """The event types that stand together in one record. `nests`: ranges of it lie within each
    other on one object.

    `holds`: its rows have no ends; each stands until the next one of its object, the last until the
    end of the trace. `hashed`: of counters, first and last event type of names that `counters.yaml`
    does not list. `state`: the state that its rows are in meanwhile, None where that tells nothing.
    """

    name: str
    title: str
    fields: tuple[Field, ...]
    nests: bool = False
    holds: bool = False
    hashed: tuple[int, int] | None = None
    state: StateRule | None = None

    @cached_property
    def has_domain(self) -> bool:
        return any(isinstance(field.code, DomainCode) for field in self.fields)


@dataclass(frozen=True)
class LineKind:
    """A kind of communication record. `tag` None: each of them has its own."""

    name: str
    tag: int | None
    label: str


@dataclass(frozen=True)
class Catalogue:
    """calls: tables whose layouts and name sets come from one line each. counters: layout -> event
    type -> names of sampled numbers.
    """

    layouts: dict[str, Layout]
    lines: dict[str, LineKind]
    name_sets: dict[str, NameSet]
    value_sets: dict[str, ValueSet]
    domains: tuple[str, ...]
    calls: dict[str, CallTable]
    states: tuple[State, ...]
    counters: dict[str, dict[int, list[str]]]


@cache
def catalogue() -> Catalogue:
    """Load the files in ``events`` as one catalogue."""
    data = _sections()
    calls = call_lines.call_tables(data.get("calls", {}))
    _add(data, "layouts", call_lines.layouts(calls))
    _add(data, "name_sets", call_lines.name_sets(calls))
    value_sets = {
        name: ValueSet(name, tuple(sorted(labels.items())))
        for name, labels in data["value_sets"].items()
    }
    name_sets = {name: NameSet(name, **spec) for name, spec in data["name_sets"].items()}

    def values(spec: dict[str, str] | None) -> ValueSet | NameSet | None:
        if spec is None:
            return None
        return value_sets[spec["fixed"]] if "fixed" in spec else name_sets[spec["names"]]

    def field(name: str, spec: dict[str, Any]) -> Field:
        code = spec["code"]
        if isinstance(code, dict):
            code = DomainCode(
                code["base"], tuple(code.get("named", {}).items()), code.get("only_named", False)
            )
        return Field(
            name,
            code,
            spec["label"],
            values(spec.get("values")),
            spec.get("optional", False),
            spec.get("unit", ""),
        )

    def in_order(fields: dict[str, Any]) -> list[str]:
        """Return the naming field first, whatever YAML's merge key did to the order."""
        return sorted(
            fields,
            key=lambda name: not ("values" in fields[name] and not fields[name].get("optional")),
        )

    def fields(spec: dict[str, Any]) -> tuple[Field, ...]:
        found = (
            data["layouts"][spec["fields_of"]]["fields"] if "fields_of" in spec else {}
        ) | spec["fields"]
        return tuple(field(key, found[key]) for key in in_order(found))

    states = row_states.states(data["states"])
    layouts = {
        name: Layout(
            name,
            spec["title"],
            fields(spec),
            spec.get("nests", False),
            spec.get("holds", False),
            tuple(spec["hashed"]) if "hashed" in spec else None,
            row_states.rule(spec.get("state"), data["state_rules"], states),
        )
        for name, spec in data["layouts"].items()
    }
    lines = {
        name: LineKind(name, spec.get("tag"), spec["label"]) for name, spec in data["lines"].items()
    }
    found = Catalogue(
        layouts,
        lines,
        name_sets,
        value_sets,
        tuple(data["domains"]),
        calls,
        states,
        data.get("counters", {}),
    )
    claims_of(found)
    return found


def claims_of(found: Catalogue) -> Claims:
    """Return the event types that layouts use. Raises ValueError where two use one with different
    labels or values: the .pcf has those of one.
    """
    claims = Claims()
    every_domain = _domain_ranges(len(found.domains))
    for layout in found.layouts.values():
        for field in layout.fields:
            owner, values = (
                f"field {field.name!r} of layout {layout.name!r}",
                field.values and field.values.name,
            )
            if not isinstance(field.code, DomainCode):
                claims.add(owner, range(field.code, field.code + 1), (field.label, values))
                continue
            for domain, code in field.code.named:
                claims.add(owner, range(code, code + 1), (domain, values))
            for domains in () if field.code.only_named else every_domain:
                first, last = (
                    field.code.base + DOMAIN_STEP * number
                    for number in (domains.start, domains.stop)
                )
                claims.add(owner, range(first, last, DOMAIN_STEP), (field.label, values))
        if layout.hashed:
            claims.add(
                f"layout {layout.name!r}",
                range(layout.hashed[0], layout.hashed[1] + 1),
                ("a hash of the name", layout.hashed),
            )
    return claims


def _domain_ranges(known: int) -> list[range]:
    """Return the numbers that NVTX domains may have, of which the first `known` have fixed names."""
    edges = [FIRST_HASHED_DOMAIN, *sorted(FORBIDDEN_DOMAINS), LAST_HASHED_DOMAIN + 1]
    hashed = [range(first + (first in FORBIDDEN_DOMAINS), last) for first, last in pairwise(edges)]
    return [range(known), *hashed]


def _sections() -> dict[str, Any]:
    """Return section -> its entries of all files; a name twice in a section is refused."""
    found: dict[str, Any] = {}
    for topic in data_texts(f"{__package__}.events", ".yaml"):
        for section, entries in shipped(topic).items():
            if isinstance(entries, list):
                found.setdefault(section, []).extend(entries)
                continue
            _add(found, section, entries)
    return found


def _add(found: dict[str, Any], section: str, entries: dict[str, Any]) -> None:
    known = found.setdefault(section, {})
    if twice := known.keys() & entries.keys():
        raise ValueError(f"{section}: {', '.join(sorted(twice))} stands there twice")
    known.update(entries)


@cache
def _known_names(filename: str) -> dict[str, int]:
    lines = data_text(__package__, filename).splitlines()
    pairs = (line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))
    return {name: int(value) for value, name in pairs}


def domain_numbers(domains: set[str]) -> dict[str, int]:
    """Return the number of each NVTX domain by its name ("" is the default domain).

    Known names have fixed numbers. Any other name has the number that its text hashes to, so that
    it is the same in every trace; where two names of one trace meet on a number, the later in
    alphabetical order moves to the next free one.
    """
    known = catalogue().domains
    numbers = {name: known.index(name) for name in domains if name in known}
    return numbers | hashed_numbers(
        domains - set(numbers), FIRST_HASHED_DOMAIN, LAST_HASHED_DOMAIN, FORBIDDEN_DOMAINS
    )
