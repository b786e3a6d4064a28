"""Names of sampled numbers and their event types: ``counters.yaml``, and the sections `counters` of
the files in ``events``; event types and values by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import NamedTuple

from nsys2prv._util.yaml_files import load_shipped, read_data_text
from nsys2prv.events.catalogue import DomainCode, hash_to_numbers, load_catalogue

#: What the exports' integers are in where a name says another unit: SQLite holds the numbers before
#: Nsight's display factor.
REAL_UNITS = {"mhz": "Hz", "ghz": "Hz", "gb/s": "B/s", "mb/s": "B/s"}
#: Units that older sets leave out of the names.
IMPLIED_UNITS = frozenset({"throughput%", "hz", "requests"})
_NAME = re.compile(r"(.*?)\s*\[([^\]]*)\]\s*", re.DOTALL)


#: Precision of fractions until all of their name are known: the integers are the bits of floating
#: point (64 bits, not negative).
UNSCALED = -1
#: Behind the names of fractions, so that a name is never both a fraction and a whole number.
FRACTION = " (fraction)"


class Metric(NamedTuple):
    """A sampled number: its label, and how many decimals its integers stand for (value = integer /
    10 ** precision).
    """

    #: Its label.
    name: str
    #: Decimals of its integers.
    precision: int = 0


class CounterTable(NamedTuple):
    """The fixed names of a layout: event type -> label, and what a name is reduced to -> label."""

    #: Event type -> label.
    labels: dict[int, str]
    #: Reduced name and unit -> label.
    known: dict[tuple[str, str], str]


@cache
def find_hashed_types() -> dict[str, tuple[int, int]]:
    """Return the event types of names that ``counters.yaml`` does not list, by layout: first and
    last.
    """
    return {
        name: layout.hashed for name, layout in load_catalogue().layouts.items() if layout.hashed
    }


@cache
def load_counter_tables() -> dict[str, CounterTable]:
    """Return the tables of listed names by layout of counters, empty for one that has none."""
    tables = {
        name: CounterTable({}, {})
        for name, layout in load_catalogue().layouts.items()
        if not layout.fields
    }
    listed = load_shipped(read_data_text(__package__, "counters.yaml")) | load_catalogue().counters
    for layout, entries in listed.items():
        listed_labels: dict[tuple[str, str], str] = {}
        for names in entries.values():
            for name in names:
                base, unit = _reduce_name(name)
                listed_labels.setdefault((base, unit), names[0])
                if unit in IMPLIED_UNITS:
                    listed_labels.setdefault((base, ""), names[0])
        tables[layout] = CounterTable(
            {code: names[0] for code, names in entries.items()}, listed_labels
        )
    return tables


def split_unit(name: str) -> tuple[str, str]:
    """Return a name without its unit, and the unit in brackets behind it ("" without one)."""
    match = _NAME.fullmatch(name)
    return (match[1].strip(), match[2].strip()) if match else (name.strip(), "")


def _reduce_name(name: str) -> tuple[str, str]:
    """Return the common form of two spellings of one name."""
    base, unit = split_unit(name)
    unit = re.sub(r"\s+", "", unit.casefold())
    return re.sub(r"[^a-z0-9]+", " ", base.casefold()).strip(), REAL_UNITS.get(
        unit, unit
    ).casefold()


def find_known_label(layout: str, name: str) -> str | None:
    """Return the label of a name that is listed, else None."""
    return load_counter_tables()[layout].known.get(_reduce_name(name))


def label_metrics(layout: str, names: Iterable[str]) -> list[str]:
    """Return the labels of metrics that are sampled together, each its own.

    An unlisted name is its own label, in the unit that the export's integers really have; so is one
    that means the same as another of the names.
    """
    labels: dict[str, None] = {}
    for name in names:
        label = find_known_label(layout, name) or ""
        if not label or label in labels:
            base, unit = split_unit(name)
            unit = REAL_UNITS.get(re.sub(r"\s+", "", unit.casefold()), unit)
            label = (f"{base} [{unit}]" if unit else base) or "metric without a name"
        count, candidate = 1, label
        while candidate in labels:
            count += 1
            candidate = f"{label} #{count}"
        labels[candidate] = None
    return list(labels)


def assign_counter_codes(names: Mapping[str, Iterable[str]]) -> dict[tuple[str, str], int]:
    """Return the event type of every (layout, label) met."""
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


def find_code(layout: str, name: str) -> int:
    """Return the event type of a layout's field, or of a counter by its label. Raises KeyError for
    one that is not there.

    A field whose type depends on the NVTX domain has none.
    """
    for field in load_catalogue().layouts[layout].fields:
        if field.name == name and not isinstance(field.code, DomainCode):
            return field.code
    labels = load_counter_tables()[layout].labels if layout in load_counter_tables() else {}
    codes = [code for code, label in labels.items() if label == name]
    if not codes:
        raise KeyError(f"{layout}: no field or counter {name!r} with an event type of its own")
    return codes[0]


@cache
def map_labels(value_set: str) -> dict[str, int]:
    """Return label in lower case -> value."""
    return {label.lower(): value for value, label in load_catalogue().value_sets[value_set].labels}
