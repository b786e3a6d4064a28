"""The views of the folder ``catalogue`` as :class:`Cfg` objects. How its files are written stands
at the top of its codes.yaml.

Beside them stand views made by rule of what is declared of events: a timeline of each field, tables
of time and number of those with names. They show what no view of the catalogue's files shows: raw
attributes, metrics one by one, calls that few programs make.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from nsys2prv._util.yaml_files import parse_yaml
from nsys2prv.events.catalogue import Field, Layout, NameSet, load_catalogue
from nsys2prv.events.catalogue.counters import find_code, load_counter_tables
from nsys2prv.paraver.cfg.model import (
    CfgError,
    check_view,
)
from nsys2prv.paraver.cfg.view_specs import SUFFIX, Codes, View, make_view

#: The catalogue's folder, the file of it whose anchors the others use, and the one that says where
#: views are found.
FILE, TEMPLATES, MENUS = "catalogue", "templates.yaml", "menus.yaml"
#: The folder of the views outside of the core.
EXTRA = "extra"
_WORD = re.compile(r"\{(\w+)\}")


@cache
def load_views(path: Path) -> tuple[View, ...]:
    """Return all views of a catalogue. Raises CfgError naming the view with everything that is
    wrong.
    """
    codes = Codes(load_codes(path))
    listed = [spec for topic in _read_topics(path).values() for spec in _read_specs(topic)]
    core = {name for menu in _read_menu_places(path).values() for name in menu}
    specs = listed
    if core:
        unknown = core - {name for name, _ in listed}
        if unknown:
            raise CfgError(f"{path / MENUS}: no view is called {', '.join(sorted(unknown))}")
        specs = [(name if name in core else f"{EXTRA}/{name}", spec) for name, spec in listed]
        specs += make_declared_views(
            [spec for _, spec in listed], {name for name, _ in specs}, codes.numbers
        )
    views, titles, paths = [], set(), set()
    for name, spec in specs:
        try:
            view = make_view(name, spec, codes)
            check_view(view.cfg)
            if view.title in titles:
                raise CfgError(f"another view has the title {view.title!r}")
            if view.path in paths:
                raise CfgError("another view has this path")
        except (CfgError, KeyError, TypeError, ValueError) as error:
            raise CfgError(
                f"{path}: {name}: {error if isinstance(error, CfgError) else repr(error)}"
            ) from error
        titles.add(view.title)
        paths.add(view.path)
        views.append(view)
    return tuple(views)


def _read_specs(topic: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and specification of each view of a file."""
    yield from topic.get("views", {}).items()
    for family in topic.get("families", []):
        yield from _expand_family(family)


@cache
def load_menus(path: Path) -> dict[str, tuple[View, ...]]:
    """Return title of each menu of a catalogue -> its views, in their order."""
    by_path = {view.path: view for view in load_views(path)}
    return {
        title: tuple(by_path[name + SUFFIX] for name in names)
        for title, names in _read_menu_places(path).items()
        if title
    }


def is_core_view(view: View) -> bool:
    """True if a view has a file next to the catalogue; the others are made when views are
    installed.
    """
    return not view.path.startswith(f"{EXTRA}/")


def _read_menu_places(path: Path) -> dict[str, tuple[str, ...]]:
    """Return title of a menu -> names of its views; under "" those of the core that no menu has.
    Empty: all views are of the core.
    """
    file = path / MENUS
    spec = parse_yaml(file.read_text(encoding="utf-8")) if file.exists() else {}
    places = {**spec.get("menus", {}), "": spec.get("others", [])} if spec else {}
    return {title: tuple(names) for title, names in places.items()}


@cache
def load_codes(path: Path) -> dict[str, tuple[int, ...]]:
    """Return name -> event types, of a catalogue."""
    code_lists: dict[str, tuple[int, ...]] = {}
    for name, topic in _read_topics(path).items():
        for word, spec in topic.get("codes", {}).items():
            if word in code_lists:
                raise CfgError(f"{path / name}: another file has the event type {word!r} too")
            try:
                code_lists[word] = tuple(_list_numbers(spec))
            except (KeyError, TypeError, ValueError) as error:
                raise CfgError(f"{path / name}: event type {word!r}: {error}") from error
    if _read_menu_places(path):
        named = {code for codes in code_lists.values() for code in codes if len(codes) == 1}
        code_lists.update(
            (label, (code,))
            for label, code in list_declared_types().items()
            if label not in code_lists and code not in named
        )
    return code_lists


@cache
def _read_topics(path: Path) -> dict[str, dict[str, Any]]:
    """Return the catalogue's files by name, each read with the templates before it."""
    files = sorted(file for file in path.glob("*.yaml") if file.name not in (TEMPLATES, MENUS))
    if not files:
        raise CfgError(f"{path}: no catalogue of views here (a folder of .yaml files)")
    templates = path / TEMPLATES
    before = templates.read_text(encoding="utf-8") if templates.exists() else ""
    topics = {}
    for file in files:
        try:
            topics[file.name] = parse_yaml(f"{before}\n{file.read_text(encoding='utf-8')}")
        except yaml.YAMLError as error:
            raise CfgError(f"{file}: {error}") from error
    return topics


def _expand_family(family: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the views of a family: each of its patterns with the words of each member."""
    for words in family["members"]:
        for path, pattern in family["views"].items():
            try:
                yield _fill_in(path, words), _fill_in(pattern, words)
            except KeyError as error:
                raise CfgError(f"{path}: no word {error} in {words}") from error


def _fill_in(pattern: Any, words: Mapping[str, Any]) -> Any:
    """Return a pattern with its {words} filled in. A string that is one word becomes what the word
    stands for, whatever that is; such a key is replaced by the entries of its word.
    """
    if isinstance(pattern, str):
        word = _WORD.fullmatch(pattern)
        return words[word[1]] if word else pattern.format_map(words)
    if isinstance(pattern, list):
        return [_fill_in(part, words) for part in pattern]
    if not isinstance(pattern, dict):
        return pattern
    filled: dict[Any, Any] = {}
    for key, value in pattern.items():
        name = _fill_in(key, words)
        filled.update(name if isinstance(name, dict) else {name: _fill_in(value, words)})
    return filled


def _list_numbers(spec: Any) -> Iterator[int]:
    """Yield numbers of an entry of `codes`: a field or counter of a layout, a number, a series, or
    a list of these.
    """
    if isinstance(spec, dict) and len(spec) == 1:
        yield find_code(*next(iter(spec.items())))
    elif isinstance(spec, dict):
        yield from range(spec["first"], spec["first"] + spec["step"] * spec["count"], spec["step"])
    elif isinstance(spec, list):
        for part in spec:
            yield from _list_numbers(part)
    else:
        yield int(spec)


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
