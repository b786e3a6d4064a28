"""Views made by rule of what is declared of events: a timeline of each field, tables of time and
number of those with names.

They show what no view of the catalogue's files shows: raw attributes, metrics one by one, calls
that few programs make.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from nsys2prv.events.catalogue import Field, Layout, NameSet, load_catalogue
from nsys2prv.events.catalogue.counters import load_counter_tables

#: Layouts of counters that have views -> what a window takes of their samples: each tells of the
#: time before it, or from it on.
COUNTERS = {"gpu_metric": "Next Evt Val", "network_metric": "Last Evt Val"}
Spec = dict[str, Any]


@cache
def list_declared_types() -> dict[str, int]:
    """Return label -> event type, of all fields and counters that have one of their own."""
    types = {
        field.label: field.code
        for layout in load_catalogue().layouts.values()
        for field in layout.fields
        if isinstance(field.code, int)
    }
    return types | {
        label: code
        for layout in COUNTERS
        for code, label in load_counter_tables()[layout].labels.items()
    }


def make_declared_views(
    listed: Iterable[Spec], taken: Collection[str], codes: Mapping[str, Collection[int]]
) -> list[tuple[str, Spec]]:
    """Return name and specification of each view, as the catalogue's files would hold them.

    listed: specifications of the catalogue's views, whose event types need no other view of the
    same kind. taken: names of views. codes: name -> event types.
    """
    shown = {kind: set(types) for kind, types in _list_shown_types(listed, codes).items()}
    names = {code: name for name, types in codes.items() if len(types) == 1 for code in types}
    views: dict[str, Spec] = {}
    titles = {spec["title"] for spec in listed}
    for kind, code, name, spec in (*_make_counter_views(), *_make_layout_views()):
        if code in shown[kind]:
            continue
        shown[kind].add(code)
        name = f"{name}_{code}" if name in taken or name in views else name
        if spec["title"] in titles:
            spec["title"] += f" ({code})"
        titles.add(spec["title"])
        views[name] = {**spec, "types": names[code]}
    return list(views.items())


def _list_shown_types(
    listed: Iterable[Spec], codes: Mapping[str, Collection[int]]
) -> dict[str, list[int]]:
    """Return statistic of a table, "" for timelines -> event types that a view of one plain window
    shows.
    """
    shown: dict[str, list[int]] = {"": [], "Time": [], "# Bursts": []}
    for spec in listed:
        types = spec.get("types")
        plain = isinstance(types, str) and "level" not in spec and "values" not in spec
        if (
            plain
            and len(codes[types]) == 1
            and (statistic := spec.get("histogram", {}).get("statistic", "")) in shown
        ):
            shown[statistic] += codes[types]
    return shown


def _make_layout_views() -> Iterator[tuple[str, int, str, Spec]]:
    """Return kind of view, event type, name and specification of each view of fields."""
    for layout in load_catalogue().layouts.values():
        for place, field in enumerate(layout.fields):
            if not isinstance(field.code, int):
                continue
            name = layout.name if place == 0 else f"{layout.name}_{field.name}"
            window: Spec = {"compose_thread": "Stacked Val"} if layout.nests else {}
            yield "", field.code, f"extra/basics/{name}", _make_timeline(layout, field, window)
            if field.values is None:
                continue
            if place == 0 or (layout.nests and isinstance(field.values, NameSet)):
                shows = f"Time that each row spends with each value of: {field.label}."
                spec = _make_table(field, "Time", "time", shows, "ns") | window
                yield "Time", field.code, f"extra/analysis/{name}_time_2dh", spec
            if place == 0:
                shows = f"How often each row has each value of: {field.label}."
                spec = _make_table(field, "# Bursts", "number", shows, "times")
                yield "# Bursts", field.code, f"extra/analysis/{name}_calls_2dh", spec


def _make_table(field: Field, statistic: str, quantity: str, shows: str, unit: str) -> Spec:
    title = f"{_make_title(field.label)}: {quantity}"
    return {"title": title, "shows": shows, "unit": unit, "histogram": {"statistic": statistic}}


def _make_timeline(layout: Layout, field: Field, window: Spec) -> Spec:
    nested = " Of records within others the innermost." if layout.nests else ""
    number = {"look": "gradient"} if field.values is None else {}
    return {
        "title": _make_title(field.label),
        "shows": f"{field.label}, as the records of {layout.title} tell it, while they last.{nested}",
        "unit": field.unit or ("number" if field.values is None else "name"),
        **window,
        **number,
    }


def _make_counter_views() -> Iterator[tuple[str, int, str, Spec]]:
    """Yield the same of sampled numbers."""
    for layout, function in COUNTERS.items():
        for code, label in load_counter_tables()[layout].labels.items():
            unit = re.search(r"\[(.*)\]$", label)
            spec: Spec = {
                "title": _make_title(label),
                "shows": f"{label}, as sampled; of each device on its row.",
                "unit": unit[1] if unit else "number",
                "thread": function,
                "look": "gradient",
            }
            if unit and unit[1].endswith("%"):
                spec["scale"] = [0, 100]
            yield "", code, f"extra/hwcounters/{_make_file_name(label)}", spec


def _make_title(label: str) -> str:
    """Return a label as Paraver takes it for a window: without slashes."""
    return label.replace("/", "-")


def _make_file_name(label: str) -> str:
    return re.sub(r"[^a-z0-9%]+", "_", label.lower().replace("%", "percent")).strip("_")
