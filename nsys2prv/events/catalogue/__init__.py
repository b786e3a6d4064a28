"""Declare event types, their labels and their values, as typed data.

Input: the files in ``events`` (``events/README.md`` describes their format) and ``counters.yaml``.
Output: :func:`load_catalogue`, which defines every Paraver number for the record writer, the
``.pcf`` and the documents. A test checks that each event type has one meaning.
"""

from __future__ import annotations

import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from functools import cache, cached_property
from itertools import count
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from nsys2prv._util.files import load_shipped, load_shipped_file, read_data_text, read_data_texts

DOMAIN_STEP = 100
#: Domains numbered by their text take these numbers; lower ones belong to the fixed names, see
#: :func:`number_domains`.
FIRST_HASHED_DOMAIN, LAST_HASHED_DOMAIN = 50, 499
#: 9600 + 100 * 204 is 30000, which POP's BasicAnalysis takes for CPU sampling.
FORBIDDEN_DOMAINS = frozenset({204})
#: Event types of a line of ``calls``: its code names the event, code + 1 is the result, code + 2...
#: the numbers.
RESULT, NUMBERS = 1, 2
#: Event types of callers, as Extrae numbers them: CALLER + level.
CALLER, CALLER_LEVELS = 70_000_000, 3
#: Column of the callers of rows: numbers of call stacks that have the same ones.
CALLERS = "callers"
#: Units of the exports' integers if the name states another unit: SQLite contains the numbers
#: before Nsight's display factor.
REAL_UNITS = {"mhz": "Hz", "ghz": "Hz", "gb/s": "B/s", "mb/s": "B/s"}
#: Units that older metric sets omit from names.
IMPLIED_UNITS = frozenset({"throughput%", "hz", "requests"})
_NAME = re.compile(r"(.*?)\s*\[([^\]]*)\]\s*", re.DOTALL)
#: Precision of fractions until all values of a name are known: the integers are the bits of a
#: 64-bit floating-point number (not negative).
UNSCALED = -1
#: Suffix of the names of fractions, so that a name is never both a fraction and an integer.
FRACTION = " (fraction)"


class DomainCode(Struct, frozen=True):
    """An event type that depends on the NVTX domain: base + 100 * domain number."""

    #: Event type of the default domain, which has number 0.
    base: int
    #: Domains that have a type of their own.
    named: tuple[tuple[str, int], ...] = ()
    #: True if no other domains occur.
    only_named: bool = False

    def code_of(self, domain: str, number: int) -> int:
        """Return the event type for the domain with this name and number."""
        return dict(self.named).get(domain, self.base + DOMAIN_STEP * number)


class ValueSet(Struct, frozen=True):
    """A fixed set of values with labels, equal in every trace."""

    #: Name in the catalogue.
    name: str
    #: (value, label), ascending.
    labels: tuple[tuple[int, str], ...]


class NameSet(Struct, frozen=True, forbid_unknown_fields=True):
    """A set of names that are found in reports (such as kernels). They get numbers when the trace
    is written.
    """

    #: Name in the catalogue.
    name: str
    #: Name sets of one space have values that do not overlap.
    space: str
    #: Value of the first name without a fixed value.
    first: int = 1
    #: File of the package with names that have fixed values, None for none.
    known: str | None = None

    def list_known_values(self) -> dict[str, int]:
        """Return name -> value for the names with fixed values."""
        return _read_known_names(self.known) if self.known else {}

    def find_values(self, names: re.Pattern[str]) -> list[int]:
        """Return the values of the listed names that a pattern matches at their start."""
        return [value for name, value in self.list_known_values().items() if names.match(name)]


class Field(Struct, frozen=True):
    """One field of a record, which is written with its event type."""

    #: Name within its layout.
    name: str
    #: Event type.
    code: int | DomainCode
    #: Label in the .pcf.
    label: str
    #: Meaning of its values; None for plain numbers.
    values: ValueSet | NameSet | None = None
    #: True if rows may lack it.
    optional: bool = False
    #: Unit of plain numbers, "" if none is given.
    unit: str = ""
    #: Number that is added to plain numbers in a Paraver trace, where 0 ends an event.
    offset: int = 0
    #: Column of the export from which it is read; "" if the kind finds it in another way.
    column: str = ""
    #: Least valid number of the column; smaller ones count as NULL.
    least: int = 0
    #: Number that is added to numbers in the column that have labels, which begin at 1.
    plus: int = 0
    #: Value of numbers without a label; None if such rows lack the field.
    unknown: int | None = None
    #: Of names: template that makes a name from the number in the column, instead of the string
    #: with that id.
    text: str = ""
    #: Name of rows without one.
    unnamed: str = ""
    #: True if it is written only on request, by its name or with all others.
    detail: bool = False
    #: True if a call and the work that it launched have the same value; written with the lines
    #: between them.
    of_launch: bool = False
    #: True if it summarizes all details; written if the details are not.
    sums_up: bool = False
    #: Another field and values of it: written only in rows where it has one of them; None for all
    #: rows.
    only_with: tuple[str, tuple[int, ...]] | None = None
    #: Level of the caller in the row's call stack; 0 if it is not a caller. All levels of a stack
    #: are stored together, as its number (`CALLERS`).
    level: int = 0


class State(Struct, frozen=True, forbid_unknown_fields=True):
    """A state that a row of a trace can be in, with its number and color."""

    #: Name in declarations.
    name: str
    #: Value in the trace.
    value: int
    #: Label in the .pcf.
    label: str
    #: Red, green, blue, 0 to 255.
    color: tuple[int, int, int]


class StateRule(Struct, frozen=True):
    """Rule for the state of a row during an event: by name, then by value, then `otherwise`."""

    #: State if neither `names` nor `values` decide; None for no state.
    otherwise: int | None = None
    #: Field of the record that decides; "" for the field that names the event.
    field: str = ""
    #: For fields with names: states (None for none) and regular expressions; the first that matches decides.
    names: tuple[tuple[int | None, str], ...] = ()
    #: For other fields: values and states.
    values: tuple[tuple[int, int], ...] = ()
    #: True if the state counts only while no other event has a state.
    yields: bool = False

    def find_state(self, name: str) -> int | None:
        """Return the number of the state that a row is in during an event with this name, or None."""
        fitting = (state for state, pattern in self.names if re.search(pattern, name))
        return next(fitting, self.otherwise)


class Layout(Struct, frozen=True, dict=True):
    """A type of record: the event types (fields) that are written together."""

    #: Name in the catalogue.
    name: str
    #: Title.
    title: str
    #: Its event types; the first names the event.
    fields: tuple[Field, ...]
    #: True if its ranges nest on one object.
    nests: bool = False
    #: True if its rows have no ends: each lasts until the next one of its object, and the last one
    #: until the end of the trace.
    is_state: bool = False
    #: Of counters: first and last event type of names that `counters.yaml` does not list.
    hashed: tuple[int, int] | None = None
    #: State that an object is in during its rows, None for none.
    state: StateRule | None = None

    @cached_property
    def by_name(self) -> dict[str, Field]:
        """The fields by their names."""
        return {field.name: field for field in self.fields}

    def _mask(self, is_chosen: Callable[[Field], object]) -> int:
        return sum(1 << bit for bit, field in enumerate(self.fields) if is_chosen(field))

    @cached_property
    def usual_mask(self) -> int:
        """Bits of the fields that are written by default (bit n: the n-th field)."""
        return self._mask(lambda field: not (field.detail or field.of_launch))

    @cached_property
    def launch_mask(self) -> int:
        """Bits of the fields that are written only if the lines of launches are."""
        return self._mask(lambda field: field.of_launch)

    @cached_property
    def every_mask(self) -> int:
        """Bits of all fields, except fields that summarize others."""
        return self._mask(lambda field: not field.sums_up)

    @cached_property
    def state_mask(self) -> int:
        """Bit of the field that determines the state of a row; 0 if none does."""
        wanted = self.state and (self.state.field or self.fields[0].name)
        return self._mask(lambda field: field.name == wanted)

    @cached_property
    def callers_mask(self) -> int:
        """Bits of the fields with callers (functions of the call stack)."""
        return self._mask(lambda field: field.level)

    @cached_property
    def has_domain(self) -> bool:
        """True if its event types depend on the NVTX domain."""
        return any(isinstance(field.code, DomainCode) for field in self.fields)


class LineKind(Struct, frozen=True, forbid_unknown_fields=True):
    """A kind of communication line, such as from a call to the work that it launched."""

    #: Name in the catalogue.
    name: str
    #: Label.
    label: str
    #: Tag of its lines; None: each of them has its own.
    tag: int | None = None
    #: True if its lines lead from calls to the work that they launched; written only on request.
    of_launch: bool = False
    #: Layout of the ranges from whose start its lines leave and at whose end they arrive, "" for
    #: none.
    joins: str = ""


class CallTable(Struct, frozen=True, forbid_unknown_fields=True):
    """A line of the section ``calls``: a table with calls of host threads, or with GPU work. It
    defines a layout, a name set and an event kind (:mod:`nsys2prv.events.attributes`).
    """

    #: Name of the kind of event, of its layout and of its name set.
    name: str
    #: Table of the export.
    table: str
    #: Event type that names the event; the types of its result and its numbers follow.
    code: int
    #: Title of the kind and of the event type.
    label: str
    #: Further command-line names that include the kind.
    groups: tuple[str, ...] = ()
    #: Columns with ids of StringIds; the first one with a text names the event.
    names: tuple[str, ...] = ("nameId",)
    #: ENUM_ table with the label for the number in the single column of `names`. "" if there is
    #: none: if no column of `names` has a text, the label of the table is the name.
    enum: str = ""
    #: Columns of begin and end (ns), or of a point in time alone.
    time: tuple[str, ...] = ("start", "end")
    #: Column of the globalTid, or globalPid.
    thread: str = "globalTid"
    #: Title of the rows of GPU work, one for each process and GPU; "" for calls of host
    #: threads.
    queue: str = ""
    #: Column of the GPU's number.
    gpu: str = "gpu"
    #: Column of a result, which is written if it is above 0; "" for none.
    result: str = ""
    #: Further columns -> the labels of their event types.
    numbers: dict[str, str] = {}
    #: Rows without an end are points in time.
    marks: bool = False
    #: Table of the call stacks of its rows, "" for none.
    stacks: str = ""
    #: As in layouts.
    state: Any = None

    @property
    def has_duration(self) -> bool:
        """True if its rows have durations; False if they are points in time."""
        return len(self.time) > 1

    def make_kind(self) -> dict[str, Any]:
        """Return the event kind of this table, as a declaration in a section ``kinds``."""
        return {
            "title": self.label,
            "row": "GPU, a row for each process" if self.queue else "host thread",
            "tables": [self.table],
            "read": "attributes.extract_line",
            "separable": True,
            "groups": self.groups,
            "has_duration": self.has_duration,
            "overlap_group": self.name if self.queue else "",
            "lookup_tables": [self.stacks] if self.stacks else [],
            "gpu_work": bool(self.queue),
        }

    def make_layout(self) -> dict[str, Any]:
        """Return the layout of this table, as a declaration in a section ``layouts``. GPU work does
        not nest, so its layout has additional rows.
        """
        fields: dict[str, dict[str, Any]] = {
            "call": {"code": self.code, "label": self.label, "values": {"names": self.name}}
        }
        further = {"optional": True, "least": 1}
        if self.result:
            label, code = f"Result of {self.label}", self.code + RESULT
            fields["result"] = {"code": code, "label": label, "column": self.result, **further}
        for code, (column, label) in enumerate(self.numbers.items(), self.code + NUMBERS):
            fields[column] = {"code": code, "label": label, "column": column, **further}
        if self.stacks:
            fields["caller"] = {
                "code": CALLER + 1,
                "label": "Caller at level {}",
                "values": {"names": "caller"},
                "optional": True,
                "level": 1,
                "count": CALLER_LEVELS,
            }
        return {"title": self.label, "nests": not self.queue, "fields": fields, "state": self.state}


class Catalogue(Struct, frozen=True):
    """All declarations of the catalogue (layouts, event types, name sets, ...), by name."""

    #: Event types that occur together in records.
    layouts: dict[str, Layout]
    #: Kinds of communication records.
    lines: dict[str, LineKind]
    #: Names found in reports.
    name_sets: dict[str, NameSet]
    #: Closed sets of values, the same in every trace.
    value_sets: dict[str, ValueSet]
    #: NVTX domains with fixed numbers, by number; the first is the default domain.
    domains: tuple[str, ...]
    #: Tables whose layouts and name sets come from one line each.
    calls: dict[str, CallTable]
    #: Declarations of event kinds (:func:`nsys2prv.events.kind.declare_kind`).
    kinds: dict[str, dict[str, Any]]
    #: Declarations of relations (:func:`nsys2prv.match.all_relations`).
    relations: dict[str, dict[str, Any]]
    #: States of rows, by value.
    states: tuple[State, ...]
    #: Layout -> event type -> names of sampled numbers.
    counters: dict[str, dict[int, list[str]]]
    #: (section, entry) -> the file that declares it.
    files: dict[tuple[str, object], str]


@cache
def load_catalogue() -> Catalogue:
    """Load the files in ``events`` as one catalogue. Raise ValueError with the file and the entry for
    mistakes in them.
    """
    data, files = _read_sections()

    def make_each(section: str, make: Callable[[str, Any], Any]) -> dict[Any, Any]:
        made = {}
        for name, spec in data.get(section, {}).items():
            with name_entry(files.get((section, name), ""), section, name):
                made[name] = make(name, spec)
        return made

    def make_structs(section: str, kind: type, key: str = "name") -> dict[Any, Any]:
        """Return entries as structs with their name in the field `key`."""
        return make_each(section, lambda name, spec: msgspec.convert({key: name, **spec}, kind))

    calls = make_structs("calls", CallTable)
    data["layouts"] |= {name: call.make_layout() for name, call in calls.items()}
    data["kinds"] |= {name: call.make_kind() for name, call in calls.items()}
    data["name_sets"] |= {name: {} for name in calls}
    files |= {("layouts", name): files["calls", name] for name in calls}
    value_sets = make_each(
        "value_sets", lambda name, labels: ValueSet(name, tuple(sorted(labels.items())))
    )
    name_sets = make_each(
        "name_sets",
        lambda name, spec: msgspec.convert({"name": name, "space": name, **spec}, NameSet),
    )
    states = make_structs("states", State, "value")
    state_values = {state.name: state.value for state in states.values()}

    def make_field(name: str, spec: dict[str, Any]) -> Field:
        code, values = spec["code"], None
        if isinstance(code, dict):
            code = DomainCode(**{**code, "named": tuple(code.get("named", {}).items())})
        if named := spec.get("values"):
            values = value_sets[named["fixed"]] if "fixed" in named else name_sets[named["names"]]
        only_with = next(
            ((other, tuple(some)) for other, some in spec.get("only_with", {}).items()), None
        )
        return Field(
            **{"name": name, **spec, "code": code, "values": values, "only_with": only_with}
        )

    def make_layout(name: str, spec: dict[str, Any]) -> Layout:
        specs = data["layouts"][spec["fields_of"]]["fields"] if "fields_of" in spec else {}
        specs = specs | (spec.get("fields") or {})
        fields = [make_field(*one) for item in specs.items() for one in _list_fields(*item)]
        # The field that names the event must be first, in spite of YAML's merge key.
        fields.sort(key=lambda field: field.values is None or field.optional)
        rest = {key: value for key, value in spec.items() if key != "fields_of"}
        rest["state"] = _make_state_rule(spec.get("state"), data["state_rules"], state_values)
        rest["hashed"] = tuple(spec["hashed"]) if "hashed" in spec else None
        return Layout(**{"name": name, **rest, "fields": tuple(fields)})

    return Catalogue(
        make_each("layouts", make_layout),
        make_structs("lines", LineKind),
        name_sets,
        value_sets,
        tuple(data["domains"]),
        calls,
        data["kinds"],
        data["relations"],
        tuple(state for _, state in sorted(states.items())),
        data.get("counters", {}),
        files,
    )


def _list_fields(name: str, spec: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the fields of an entry with their names: one field, or `count` of them."""
    rest = {key: value for key, value in spec.items() if key != "count"}
    for number in range(spec.get("count", 0)):
        own = {key: rest[key] + number for key in ("code", "level") if key in rest}
        label = rest["label"].format(number + 1)
        yield f"{name}_{number + 1}", {**rest, **own, "label": label}
    if "count" not in spec:
        yield name, spec


@contextmanager
def name_entry(file: str, section: str, name: object) -> Iterator[None]:
    """In a `with` block, convert mistakes in a declaration into a ValueError that names the file
    and the entry.
    """
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError, msgspec.ValidationError) as error:
        reason = f"nothing is called {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"catalogue/events/{file}: {section}: {name}: {reason}") from error


def _make_state_rule(
    spec: str | Mapping[str, Any] | None,
    rules: Mapping[str, Mapping[str, Any]],
    values: Mapping[str, int],
) -> StateRule | None:
    """Return the rule for the key ``state`` of a layout: a state, or the name of a rule and whether
    it yields to others. values: state name -> number.
    """
    if spec is None:
        return None
    if isinstance(spec, str):
        return StateRule(values[spec])
    rule = rules[spec["rule"]]
    # Blanks are only for readability.
    names = {state: pattern.replace(" ", "") for state, pattern in rule.get("names", {}).items()}
    of_states = rule.get("values", {}).items()
    return StateRule(
        values[rule["otherwise"]] if "otherwise" in rule else None,
        rule.get("field", ""),
        tuple((values.get(state), pattern) for state, pattern in names.items()),
        tuple((value, values[state]) for state, numbers in of_states for value in numbers),
        spec.get("yields", False),
    )


def _read_sections() -> tuple[dict[str, Any], dict[tuple[str, object], str]]:
    """Return section -> entries of all files, and (section, entry) -> file."""
    sections: dict[str, Any] = {}
    files: dict[tuple[str, object], str] = {}
    for file, topic in read_data_texts(f"{__package__}.events", ".yaml").items():
        for section, entries in load_shipped(topic).items():
            if isinstance(entries, list):
                sections.setdefault(section, []).extend(entries)
                continue
            for name in entries:
                if other := files.get((section, name)):
                    raise ValueError(
                        f"catalogue/events/{file}: {section}: {name}: is in {other}, too"
                    )
                files[section, name] = file
            sections.setdefault(section, {}).update(entries)
    return sections, files


@cache
def _read_known_names(filename: str) -> dict[str, int]:
    lines = read_data_text(__package__, filename).splitlines()
    pairs = (line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))
    return {name: int(value) for value, name in pairs}


def hash_to_numbers(
    names: Iterable[str], first: int, last: int, forbidden: Set[int] = frozenset()
) -> dict[str, int]:
    """Give each name a number between `first` and `last` that depends on its hash, and so is the
    same in most traces. Return name -> number.

    If two names have the same hash, the later one in alphabetical order gets the next free number.
    Names that find no place get numbers after `last`. forbidden: numbers not to use.
    """
    slots = last - first + 1
    taken = set(forbidden)
    # Taken number -> a later one, before which none is free, so that no run of taken numbers is
    # searched twice.
    behind: dict[int, int] = {}
    numbers = {}
    for name in sorted(set(names)):
        number = first + zlib.crc32(name.encode("utf-8", "surrogatepass")) % slots
        if len(taken) >= slots:
            number = last + 1
        walked = []
        while number in taken:
            walked.append(number)
            number = behind.get(number, first if number == last else number + 1)
        taken.add(number)
        numbers[name] = number
        behind.update(dict.fromkeys(walked, number))
    return numbers


def number_domains(domains: set[str]) -> dict[str, int]:
    """Give each NVTX domain a number. Return name ("" for the default domain) -> number.

    Known names have fixed numbers. Other names get the hash of their text, so that they have the
    same number in every trace. If two names in a trace have the same hash, the later one in
    alphabetical order gets the next free number.
    """
    fixed_domains = load_catalogue().domains
    numbers = {name: fixed_domains.index(name) for name in domains if name in fixed_domains}
    bounds = FIRST_HASHED_DOMAIN, LAST_HASHED_DOMAIN
    return numbers | hash_to_numbers(domains - set(numbers), *bounds, FORBIDDEN_DOMAINS)


class Metric(NamedTuple):
    """A sampled metric: its label, and the number of decimals in its integers (value = integer / 10
    ** precision).
    """

    #: Its label.
    name: str
    #: Decimals of its integers.
    precision: int = 0


class CounterTable(NamedTuple):
    """The names of metrics that the catalogue lists for a layout: event type -> label, and
    normalized name -> label.
    """

    #: Event type -> label.
    labels: dict[int, str]
    #: Reduced name and unit -> label.
    known: dict[tuple[str, str], str]


@cache
def find_hashed_types() -> dict[str, tuple[int, int]]:
    """Return layout -> (first, last) of the event types that metrics not listed in
    ``counters.yaml`` get.
    """
    return {
        name: layout.hashed for name, layout in load_catalogue().layouts.items() if layout.hashed
    }


@cache
def load_counter_tables() -> dict[str, CounterTable]:
    """Return layout -> table of the metrics that the catalogue lists; the table is empty if a
    layout has none.
    """
    tables = {
        name: CounterTable({}, {})
        for name, layout in load_catalogue().layouts.items()
        if not layout.fields
    }
    listed = load_shipped_file(__package__, "counters.yaml") | load_catalogue().counters
    for layout, entries in listed.items():
        known: dict[tuple[str, str], str] = {}
        for label, name in ((names[0], name) for names in entries.values() for name in names):
            base, unit = _reduce_name(name)
            known.setdefault((base, unit), label)
            if unit in IMPLIED_UNITS:
                known.setdefault((base, ""), label)
        labels = {code: names[0] for code, names in entries.items()}
        tables[layout] = CounterTable(labels, known)
    return tables


def split_unit(name: str) -> tuple[str, str]:
    """Split the name of a metric into (name without unit, unit in brackets after it or "")."""
    match = _NAME.fullmatch(name)
    return (match[1].strip(), match[2].strip()) if match else (name.strip(), "")


def _reduce_name(name: str) -> tuple[str, str]:
    """Return a normalized form that is equal for different spellings of a name."""
    base, unit = split_unit(name)
    base = re.sub(r"[^a-z0-9]+", " ", base.casefold()).strip()
    unit = re.sub(r"\s+", "", unit.casefold())
    return base, REAL_UNITS.get(unit, unit).casefold()


def find_known_label(layout: str, name: str) -> str | None:
    """Return the catalogue's label for a counter of this layout; None if it lists no counter of
    this name.
    """
    return load_counter_tables()[layout].known.get(_reduce_name(name))


def make_metrics(layout: str, names: Iterable[tuple[str, int]]) -> tuple[Metric, ...]:
    """Give metrics that are sampled together unique labels. names: (name, decimals of its
    integers). Return the metrics.

    The label of an unlisted name is the name itself, in the unit of the export's integers. The same
    applies to the second of two equivalent names.
    """
    metrics: dict[str, int] = {}
    further: defaultdict[str, Iterator[int]] = defaultdict(lambda: count(2))
    for name, decimals in names:
        label = find_known_label(layout, name) or ""
        if not label or label in metrics:
            base, unit = split_unit(name)
            unit = REAL_UNITS.get(re.sub(r"\s+", "", unit.casefold()), unit)
            label = (f"{base} [{unit}]" if unit else base) or "metric without a name"
        plain = label
        while label in metrics:
            label = f"{plain} #{next(further[plain])}"
        metrics[label] = decimals
    return tuple(map(Metric, metrics, metrics.values()))


def assign_counter_codes(names: Mapping[str, Iterable[str]]) -> dict[tuple[str, str], int]:
    """Give all metrics found event types. Return (layout, label) -> event type. names: layout ->
    labels.
    """
    codes = {
        (layout, label): code
        for layout, table in load_counter_tables().items()
        for code, label in table.labels.items()
    }
    unlisted: dict[tuple[int, int], list[tuple[str, str]]] = {}
    for layout, labels in names.items():
        for label in set(labels):
            if (layout, label) not in codes:
                unlisted.setdefault(find_hashed_types()[layout], []).append((layout, label))
    for (first, last), keys in unlisted.items():
        numbers = hash_to_numbers((f"{layout}\0{label}" for layout, label in keys), first, last)
        codes.update({(layout, label): numbers[f"{layout}\0{label}"] for layout, label in keys})
    return codes


@cache
def map_labels(value_set: str) -> dict[str, int]:
    """Return label (in lower case) -> value for the value set with this name."""
    return {label.lower(): value for value, label in load_catalogue().value_sets[value_set].labels}
