"""Event types, their labels and their values: the data of the files in ``events`` as typed
declarations.

Everything that gives a Paraver number a meaning is read from here: the writer of records, the
``.pcf`` and the tables of the documentation.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Hashable, Iterable, Set
from functools import cache, cached_property
from itertools import pairwise
from typing import Any, TypeVar

from msgspec import Struct

from nsys2prv._util.data import data_text, data_texts, load_shipped
from nsys2prv.events.catalogue import sections
from nsys2prv.events.catalogue.sections import CallTable, State, StateRule

T = TypeVar("T")
DOMAIN_STEP = 100
#: Domains numbered by their text take these numbers; lower ones belong to the fixed names, see
#: :func:`domain_numbers`.
FIRST_HASHED_DOMAIN, LAST_HASHED_DOMAIN = 50, 499
#: 9600 + 100 * 204 is 30000, which POP's BasicAnalysis takes for CPU sampling.
FORBIDDEN_DOMAINS = frozenset({204})


class DomainCode(Struct, frozen=True):
    """Event type per NVTX domain: base + 100 * domain number."""

    #: Event type of the default domain, whose number is 0.
    base: int
    #: Domains that have a type of their own.
    named: tuple[tuple[str, int], ...] = ()
    #: No other domains occur.
    only_named: bool = False

    def of(self, domain: str, number: int) -> int:
        return dict(self.named).get(domain, self.base + DOMAIN_STEP * number)


class ValueSet(Struct, frozen=True):
    """A closed set of values, the same in every trace."""

    #: Name in the catalogue.
    name: str
    #: (value, label), ascending.
    labels: tuple[tuple[int, str], ...]


class NameSet(Struct, frozen=True):
    """Names that occur in the reports, numbered when the trace is written."""

    #: Name in the catalogue.
    name: str
    #: Values of name sets of one space do not overlap.
    space: str
    #: Value of the first name that has none of its own.
    first: int = 1
    #: File of the package with names whose values are fixed, None for none.
    known: str | None = None

    def known_values(self) -> dict[str, int]:
        return _known_names(self.known) if self.known else {}


class Field(Struct, frozen=True):
    """One event type of a record."""

    #: Name within its layout.
    name: str
    #: Event type.
    code: int | DomainCode
    #: Label in the .pcf.
    label: str
    #: What its values mean; None: they are plain numbers.
    values: ValueSet | NameSet | None = None
    #: Rows may lack it.
    optional: bool = False
    #: Unit of plain numbers, "" if none is given.
    unit: str = ""
    #: What is added to plain numbers in a Paraver trace, where 0 ends an event.
    offset: int = 0


class Layout(Struct, frozen=True, dict=True):
    """The event types that stand together in one record."""

    #: Name in the catalogue.
    name: str
    #: Title for people.
    title: str
    #: Its event types; the first names the event.
    fields: tuple[Field, ...]
    #: Ranges of it lie within each other on one object.
    nests: bool = False
    #: Its rows have no ends: each lasts until the next one of its object, the last one to the end
    #: of the trace.
    is_state: bool = False
    #: Of counters: first and last event type of names that `counters.yaml` does not list.
    hashed: tuple[int, int] | None = None
    #: State that an object is in during its rows, None for none.
    state: StateRule | None = None

    @cached_property
    def has_domain(self) -> bool:
        return any(isinstance(field.code, DomainCode) for field in self.fields)


class LineKind(Struct, frozen=True):
    """A kind of communication record."""

    #: Name in the catalogue.
    name: str
    #: Tag of its lines; None: each of them has its own.
    tag: int | None
    #: Label for people.
    label: str


class Catalogue(Struct, frozen=True):
    """All declarations, by name."""

    layouts: dict[str, Layout]
    lines: dict[str, LineKind]
    name_sets: dict[str, NameSet]
    value_sets: dict[str, ValueSet]
    #: NVTX domains with fixed numbers, by number; the first is the default domain.
    domains: tuple[str, ...]
    #: Tables whose layouts and name sets come from one line each.
    calls: dict[str, CallTable]
    #: States of rows, by value.
    states: tuple[State, ...]
    #: Layout -> event type -> names of sampled numbers.
    counters: dict[str, dict[int, list[str]]]


@cache
def catalogue() -> Catalogue:
    """Load the files in ``events`` as one catalogue."""
    data = _sections()
    calls = sections.call_tables(data.get("calls", {}))
    _add(data, "layouts", sections.call_layouts(calls))
    _add(data, "name_sets", sections.call_name_sets(calls))
    value_sets = {
        name: ValueSet(name, tuple(sorted(labels.items())))
        for name, labels in data["value_sets"].items()
    }
    name_sets = _declared(
        "name_sets", data["name_sets"], lambda name, spec: NameSet(name, **{"space": name, **spec})
    )

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
            spec.get("offset", 0),
        )

    def in_order(fields: dict[str, Any]) -> list[str]:
        """Return the naming field first, whatever YAML's merge key did to the order."""
        return sorted(
            fields,
            key=lambda name: not ("values" in fields[name] and not fields[name].get("optional")),
        )

    def fields(spec: dict[str, Any]) -> tuple[Field, ...]:
        found = (data["layouts"][spec["fields_of"]]["fields"] if "fields_of" in spec else {}) | (
            spec.get("fields") or {}
        )
        return tuple(field(key, found[key]) for key in in_order(found))

    states = sections.parse_states(data["states"])

    def layout(name: str, spec: dict[str, Any]) -> Layout:
        return Layout(
            name,
            spec["title"],
            fields(spec),
            spec.get("nests", False),
            spec.get("is_state", False),
            tuple(spec["hashed"]) if "hashed" in spec else None,
            sections.parse_state_rule(spec.get("state"), data["state_rules"], states),
        )

    layouts = _declared("layouts", data["layouts"], layout)
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


class Claim(Struct, frozen=True):
    """Event types that a layout uses."""

    #: Layout and field, for messages.
    owner: str
    #: Event types.
    numbers: range
    #: Key that must be equal for claims of one type.
    meaning: Hashable


class Claims:
    """All claims so far. Claims of one event type must have the same meaning."""

    def __init__(self) -> None:
        self._single: dict[int, Claim] = {}
        self._series: list[Claim] = []

    def add(self, owner: str, numbers: range, meaning: Hashable) -> None:
        """Note a claim. Raises ValueError naming both owners where another claim gives one of the
        event types another meaning.
        """
        claim = Claim(owner, numbers, meaning)
        if len(numbers) == 1:
            code = numbers[0]
            others = [
                self._single.setdefault(code, claim),
                *[series for series in self._series if code in series.numbers],
            ]
        else:
            others = [
                *[single for code, single in self._single.items() if code in numbers],
                *self._series,
            ]
            self._series.append(claim)
        for other in others:
            if (
                other.meaning != meaning
                and (code := _first_common(numbers, other.numbers)) is not None
            ):
                raise ValueError(
                    f"event type {code}: {other.owner} and {owner} both use it, with different meanings"
                )


def _first_common(one: range, other: range) -> int | None:
    """Return the least number of two ascending ranges, or None."""
    apart = one[-1] < other[0] or other[-1] < one[0]
    if apart or (one.step == other.step and (one.start - other.start) % one.step):
        return None
    few, many = sorted((one, other), key=len)
    return next((number for number in few if number in many), None)


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


def _declared(
    section: str, specs: dict[str, dict[str, Any]], make: Callable[[str, dict[str, Any]], T]
) -> dict[str, T]:
    """Return what is made of the entries of a section, by name. Raises ValueError naming the entry
    that lacks something or has a key that nobody knows.
    """
    made = {}
    for name, spec in specs.items():
        try:
            made[name] = make(name, spec)
        except KeyError as error:
            raise ValueError(f"{section}: {name}: there is no {error}") from error
        except TypeError as error:
            raise ValueError(f"{section}: {name}: {error}") from error
    return made


def _sections() -> dict[str, Any]:
    """Return section -> its entries of all files; a name twice in a section is refused."""
    found: dict[str, Any] = {}
    for topic in data_texts(f"{__package__}.events", ".yaml"):
        for section, entries in load_shipped(topic).items():
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


def hashed_numbers(
    names: Iterable[str], first: int, last: int, forbidden: Set[int] = frozenset()
) -> dict[str, int]:
    """Return a number from `first` to `last` for each name.

    It is the one that the name's text hashes to; where two names meet on it, the later in
    alphabetical order moves to the next free one. More names than numbers go on beyond `last`.
    """
    slots = last - first + 1
    taken = set(forbidden)
    numbers = {}
    for name in sorted(set(names)):
        number = first + zlib.crc32(name.encode("utf-8", "surrogatepass")) % slots
        while number in taken:
            number = number + 1 if len(taken) >= slots or number < last else first
        taken.add(number)
        numbers[name] = number
    return numbers


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
