"""Load the views of the folder ``cfgs/catalogue`` as :class:`View` objects. The comment at the top of its
codes.yaml describes the format.

Further views are made from event declarations: a timeline of each field, tables of time and number of fields
with names. They show what no view in the catalogue's files does: raw attributes, single metrics, calls that
few programs make.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from msgspec.structs import replace
from view_conditions import CfgError, list_conditions, write_headline

from nsys2prv._util.files import parse_yaml
from nsys2prv.events.catalogue import (
    DomainCode,
    Field,
    Layout,
    NameSet,
    find_hashed_types,
    load_catalogue,
    load_counter_tables,
)
from nsys2prv.writers.paraver.cfg import (
    COMPOSE_PLACES,
    DEFAULT_FUNCTIONS,
    EXTRA,
    NO_VALUE,
    VIEW_SUFFIX,
    Cfg,
    Composed,
    Filter,
    Function,
    Histogram,
    HistogramColumns,
    Look,
    Need,
    Single,
    View,
    Window,
    combine_cfgs,
)

#: What a file of the catalogue says of a view, a window or a table.
Spec = dict[str, Any]
#: Name -> event types.
Codes = Mapping[str, tuple[int, ...]]
#: The catalogue's folder, the file of it whose anchors the others use, and the one that says where
#: views are found.
CATALOGUE, TEMPLATES, MENUS = "catalogue", "templates.yaml", "menus.yaml"
_WORD = re.compile(r"\{(\w+)\}")
DESCRIPTION_WIDTH = 100
#: The option that asks for lines of launches, and for what belongs to them.
LAUNCHES = "--lines launches"
#: Units of rates that are known at all times, and of those that are during operations alone.
SAMPLED_RATES = frozenset(
    ("%", "percent", "Throughput %", "MHz", "Hz", "bytes/ms", "packets/ms", "ticks/ms")
)
RATES = frozenset(("GB/s", "MB/s", "B/s", "MIPS of a multiprocessor"))
#: Layouts of counters that have views -> what a window takes of their samples: each tells of the
#: time before it, or from it on.
COUNTERS = {
    "gpu_metric": "Next Evt Val",
    "network_metric": "Last Evt Val",
    "memory_in_use": "Last Evt Val",
    "gpu_blocks": "Last Evt Val",
}
#: Units -> how windows name them behind their titles, which are names of files, too.
SHORT_UNITS = {
    **{unit: unit for unit in ("ns", "%", "bytes", "MHz")},
    **{unit: unit.replace("/", " per ") for unit in ("MB/s", "bytes/ms", "packets/ms", "ticks/ms")},
    "percent": "%",
}
_VIEW = {"title", "shows", "unit", "first", "any_of", "needs", "kernels", "windows", "histogram"}
#: Title of a window that is 1 where a table's columns have a value.
COUNTED = "in any column"
#: Key of a window -> field of its look.
_LOOK = {
    **{name: name for name in ("units", "lines", "draw", "colors", "group", "scale")},
    "look": "style",
    "open": "shown",
}
_PLACES = {*DEFAULT_FUNCTIONS, *COMPOSE_PLACES}
_SINGLE = {"title", "level", "types", "values", "tags", "physical", *_PLACES, *_LOOK}
_COMPOSED = {"title", "level", "op", "of", "factors", *_PLACES, *_LOOK}
_HISTOGRAM = {"title", "unit", "statistic", "columns", "data", "planes", "zero", "columns_from"}


@cache
def load_views(path: Path) -> tuple[View, ...]:
    """Return all views of a catalogue. Raises CfgError naming one that cannot be made."""
    codes = load_codes(path)
    topics = _read_topics(path)
    files = {name: file for file, topic in topics.items() for name, _ in _read_specs(topic)}
    listed = [spec for topic in topics.values() for spec in _read_specs(topic)]
    core = {name for menu in _read_menu_places(path).values() for name in menu}
    specs = [*listed]
    if core:
        if differing := core ^ {name for name, _ in listed}:
            raise CfgError(
                f"{path / MENUS}: name each view of a file here, in a menu, and no other: {', '.join(sorted(differing))}"
            )
        specs += _make_declared_views([spec for _, spec in listed], core, codes)
    views: list[View] = []
    # Workspaces last, since they open the others.
    for name, spec in sorted(specs, key=lambda named: "opens" in named[1]):
        try:
            make = _make_workspace if "opens" in spec else _make_view
            views.append(make(name, spec, codes if make is _make_view else views))
        except (CfgError, KeyError, TypeError, ValueError) as error:
            raise CfgError(
                f"{path / files.get(name, '')}: {name}: {error if isinstance(error, CfgError) else repr(error)}"
            ) from error
    return tuple(views)


@cache
def load_menus(path: Path) -> dict[str, tuple[View, ...]]:
    """Return title of each menu of a catalogue -> its views, in their order."""
    by_path = {view.path: view for view in load_views(path)}
    return {
        title: tuple(by_path[name + VIEW_SUFFIX] for name in names)
        for title, names in _read_menu_places(path).items()
    }


@cache
def load_codes(path: Path) -> Codes:
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
            for label, code in _list_declared_types().items()
            if label not in code_lists and code not in named
        )
        code_lists.update(_list_type_series())
    return code_lists


@cache
def _read_topics(path: Path) -> dict[str, Spec]:
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


def _read_menu_places(path: Path) -> dict[str, tuple[str, ...]]:
    """Return title of a menu -> names of its views; empty for a catalogue without menus, whose views are all
    core views.
    """
    file = path / MENUS
    menus = parse_yaml(file.read_text(encoding="utf-8"))["menus"] if file.exists() else {}
    return {title: tuple(names) for title, names in menus.items()}


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


def _read_specs(topic: Spec) -> Iterator[tuple[str, Spec]]:
    """Yield name and specification of each view of a file."""
    yield from topic.get("views", {}).items()
    for family in topic.get("families", []):
        yield from _expand_family(family)


def _expand_family(family: Spec) -> Iterator[tuple[str, Spec]]:
    """Yield the views of a family: each of its patterns with the words of each member that has a
    word for the name of the file.
    """
    for words in family["members"]:
        for path, pattern in family["views"].items():
            if not set(_WORD.findall(path)) <= set(words):
                continue
            try:
                yield _fill_in(path, words), _fill_in(pattern, words)
            except KeyError as error:
                raise CfgError(f"{path}: no word {error} in {words}") from error


def _fill_in(pattern: Any, words: Spec) -> Any:
    """Fill the {words} of a pattern. A string that is a single word becomes the word's value, of any type;
    such a key is replaced by the entries of its word.
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


def _make_view(name: str, spec: Spec, codes: Codes) -> View:
    title, tables = spec["title"], _to_list(spec.get("histogram", []))
    if "windows" in spec:
        _check_keys(spec, _VIEW)
        specs = spec["windows"]
    else:
        own = {key: value for key, value in spec.items() if key not in _VIEW}
        specs = {f"{title}: columns" if tables else title: own}
    *_, last = specs
    heading = _add_unit(title, spec["unit"])
    windows: dict[str, Window] = {}
    for key, own in specs.items():
        is_shown = key == last and not tables
        own = {"title": heading if is_shown else key, "open": is_shown, **own}
        own = {"draw": _choose_draw_mode(own, spec["unit"]), **own}
        windows[key] = _make_window(own, windows, codes)
    tables = [_leave_out_zero(table, windows) for table in tables]
    shown = [window.get("types") for window in specs.values() if window.get("values") != NO_VALUE]
    tags = [tag for window in specs.values() for tag in _to_list(window.get("tags", []))]
    needs = _describe_needs(shown, tags, "any_of" in spec, codes) or "states (--states)"
    guards = [_parse_types(guard, codes) for guard in _list_guards(spec)]
    guarded, numbers = _add_guards([*windows.values()], guards, heading, not tables)
    by_key = dict(zip(windows, numbers, strict=True))
    *more, table = [_make_histogram(one, heading, by_key, guarded) for one in tables] or [None]
    cfg = Cfg(_describe(spec, needs), tuple(guarded), table, tuple(more))
    path, shows, unit = name + VIEW_SUFFIX, spec["shows"], spec["unit"]
    first = spec.get("first", 0)
    headline = write_headline(shows) if first or not tables else ""
    kernels, conditions = spec.get("kernels", ""), list_conditions(cfg)
    return View(path, title, shows, unit, needs, cfg, conditions, first, headline, kernels=kernels)


def _make_workspace(name: str, spec: Spec, views: list[View]) -> View:
    """Return a view that opens several of these views."""
    _check_keys(spec, {"title", "shows", "unit", "first", "opens", "opens_if"})
    by_path = {view.path: view for view in views}
    opens, opens_if = (
        tuple(path + VIEW_SUFFIX for path in spec.get(key, ())) for key in ("opens", "opens_if")
    )
    members = [by_path[path] for path in opens]
    assert all(path in by_path for path in opens_if)
    needs = "; or ".join(dict.fromkeys(view.needs for view in members))
    cfg = combine_cfgs(_describe(spec, needs), (view.cfg for view in members))
    needed, before = [], 0
    for view in members:
        needed.append(Need("all", tuple(_move_need(one, before) for one in view.conditions)))
        before += len(view.cfg.windows)
    return View(
        name + VIEW_SUFFIX,
        spec["title"],
        spec["shows"],
        spec["unit"],
        needs,
        cfg,
        (Need("any", tuple(needed)),),
        spec.get("first", 0),
        write_headline(spec["shows"]),
        opens,
        opens_if,
    )


def _move_need(need: Need, by: int) -> Need:
    """Return a need with its window numbers increased."""
    moved = tuple(_move_need(one, by) for one in need.needs)
    return replace(need, needs=moved, window=need.window and need.window + by)


def _describe(spec: Spec, needs: str) -> str:
    """Return the description in a view's file."""
    return "\n".join(
        [
            *textwrap.wrap(spec["shows"], DESCRIPTION_WIDTH),
            f"Unit: {spec['unit']}.",
            *textwrap.wrap(f"Needs: {needs}.", DESCRIPTION_WIDTH),
        ]
    )


def _leave_out_zero(spec: Spec, windows: dict[str, Window]) -> Spec:
    """Return the specification of a table with a statistic to which the value 0 of the columns' window
    adds nothing, if the columns are found in the trace; the window that it takes is added to `windows`.

    Where nothing passes that window's filters Paraver finds 0 alone: the table would have a column of
    it, "End", with all of the time.
    """
    if isinstance(spec.get("columns"), list):
        return spec
    *_, last = windows
    spec = {"columns_from": last, **spec}
    if spec["statistic"] == "# Bursts":
        return {**spec, "statistic": "# Bursts != 0", "data": spec["columns_from"]}
    if spec["statistic"] == "Time":
        columns = windows[spec["columns_from"]]
        functions = {**columns.functions, "topcompose1": Function("Sign")}
        if "topcompose1" in columns.functions:
            raise CfgError(
                f"window {spec['columns_from']}: topcompose1 is for the sign of its value"
            )
        look = replace(columns.look, shown=False)
        windows[COUNTED] = replace(columns, title=COUNTED, functions=functions, look=look)
        return {**spec, "statistic": "Integral", "data": COUNTED}
    return spec


def _choose_draw_mode(window: Spec, unit: str) -> str:
    """Return how a pixel shows its many values: codes at random except 0, which mixes the colors of a stretch
    in proportion to its values; rates by their average, or the average of non-zero values for rates during
    operations; other numbers by the maximum.
    """
    if window.get("look", "code") == "code":
        return "draw_randnotzero"
    if unit in SAMPLED_RATES:
        return "draw_average"
    return "draw_averagenotzero" if unit in RATES else "draw_maximum"


def _check_keys(spec: Spec, keys: Collection[str]) -> None:
    unknown = set(spec) - set(keys)
    if unknown:
        raise CfgError(f"unknown keys: {', '.join(sorted(map(str, unknown)))}")


def _make_window(spec: Spec, before: Mapping[str, Window], codes: Codes) -> Window:
    """Return a window. before: the windows above it in the specification, by their keys."""
    composed = "op" in spec
    _check_keys(spec, _COMPOSED if composed else _SINGLE)
    look = {field: spec[key] for key, field in _LOOK.items() if key in spec}
    if "colors" in look:
        look["colors"] = {int(value): tuple(color) for value, color in look["colors"].items()}
    if "scale" in look:
        look["scale"] = tuple(map(float, look["scale"]))
    functions = {place: _parse_function(spec[place]) for place in spec if place in _PLACES}
    if composed:
        numbers = {key: number for number, key in enumerate(before, 1)}
        parents = tuple(numbers.get(parent, 0) for parent in spec["of"])
        first = before.get(spec["of"][0])
        return Composed(
            spec["title"],
            spec.get("level") or (first.level if first else "thread"),
            functions,
            Look(**look),
            spec["op"],
            parents,
            tuple(map(float, spec.get("factors", (1, 1)))),
        )
    functions.setdefault("thread", Function("Last Evt Val"))
    # What stands in a file anyway is no choice of a window.
    if functions["thread"].name == DEFAULT_FUNCTIONS["thread"]:
        del functions["thread"]
    filters = {"evt_type": _parse_types(spec.get("types"), codes)}
    for key, name in (("values", "evt_value"), ("tags", "tag_msg")):
        if key in spec:
            filters[name] = _parse_condition(spec[key])
    level, physical = spec.get("level", "thread"), spec.get("physical", False)
    return Single(spec["title"], level, functions, Look(**look), filters, physical)


def _parse_function(spec: str | Spec) -> Function:
    """Return the function of a specification: `Sign`, or `{Prod: 100}`, `{Is Equal: [[3, 4]]}`,
    `{Select Range: [6, 0]}`: the parameters, each a number or a list.
    """
    if isinstance(spec, str):
        return Function(spec)
    ((name, parameters),) = spec.items()
    return Function(
        name, tuple(tuple(map(float, _to_list(value))) for value in _to_list(parameters))
    )


def _to_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _parse_types(spec: str | list[str] | Spec | None, codes: Codes) -> Filter:
    """Return the types of a name, a list of names, or `{from: name, to: name}` for all types
    between two.
    """
    if spec is None:
        return Filter("None")
    if isinstance(spec, dict):
        first, last = _get_codes(spec["from"], codes), _get_codes(spec["to"], codes)
        return Filter("[x,y]", (min(first), max(last)))
    types = (code for name in _to_list(spec) for code in _get_codes(name, codes))
    return Filter("=", tuple(dict.fromkeys(types)))


def _get_codes(name: str, codes: Codes) -> tuple[int, ...]:
    if name not in codes:
        raise CfgError(f"no event type is called {name!r}")
    return codes[name]


def _parse_condition(spec: float | list[float] | Spec) -> Filter:
    """Return the filter of a number or a list of numbers to pass, or of `{"<": 100}`."""
    ((condition, values),) = spec.items() if isinstance(spec, dict) else [("=", spec)]
    return Filter(condition, tuple(map(float, _to_list(values))))


def _list_guards(spec: Spec) -> list[Any]:
    """Return the types of a view's guards, in their order: ranges, then required types."""
    any_of = spec.get("any_of", [])
    several = isinstance(any_of, list) and all(isinstance(guard, dict) for guard in any_of)
    return [*(any_of if several else [any_of]), *([spec["needs"]] if "needs" in spec else [])]


def _add_guards(
    windows: list[Window], guards: list[Filter], title: str, timeline: bool
) -> tuple[list[Window], list[int]]:
    """Return the windows with the guards after the last single one, and the new number of each.

    A guard passes no event; it is for Paraver's loader, which asks before it opens a view with event types
    missing from the trace. A guard of a range from one type to another, if the trace has any of them, keeps
    the loader from asking about the windows before it. A guard of a list makes it ask about each missing type
    of the list.
    """
    if not guards:
        return windows, list(range(1, len(windows) + 1))
    at = max(number for number, window in enumerate(windows) if isinstance(window, Single)) + 1
    level = windows[at - 1].level
    # A guard lets pass no other lines than the window whose lines are drawn.
    drawn = [one.filters for one in windows if isinstance(one, Single) and one.look.lines]
    tags = {name: filters[name] for filters in drawn for name in filters if name == "tag_msg"}
    added = [
        Single(
            "any of these events" if types.condition == "[x,y]" else "all of these events",
            level,
            {"thread": Function("Last Evt Val")},
            Look(shown=False),
            {"evt_type": types, "evt_value": Filter("=", (float(NO_VALUE),)), **tags},
        )
        for types in guards
    ]
    numbers = [number + 1 + len(added) * (number >= at) for number in range(len(windows))]
    moved = [*windows[:at], *added, *windows[at:]]
    for place, window in enumerate(moved):
        if isinstance(window, Composed):
            parents = tuple(numbers[parent - 1] for parent in window.parents)
            moved[place] = replace(window, parents=parents)
    if timeline and at == len(windows):
        main = moved[at - 1]
        moved[at - 1] = replace(
            main, title=f"{title} (events)", look=replace(main.look, shown=False)
        )
        moved.append(Composed(title, level, {}, main.look, "add", (at, at + 1), (1.0, 0.0)))
    return moved, numbers


def _make_histogram(
    spec: Spec, title: str, numbers: dict[str, int], windows: list[Window]
) -> Histogram:
    """Return the table that a view shows. numbers: number of each window, from 1, by its key."""
    _check_keys(spec, _HISTOGRAM)
    *_, last = numbers
    control = numbers[spec.get("columns_from", last)]
    data = numbers[spec["data"]] if "data" in spec else control
    planes = numbers[spec["planes"]] if "planes" in spec else None
    match columns := spec.get("columns", "values"):
        case "values":
            shape = HistogramColumns(1.0)
        case "spread":
            shape = HistogramColumns(0.0)
        case first, last_value, width:
            shape = HistogramColumns(float(width), float(first), float(last_value))
    statistic, zero = spec["statistic"], spec.get("zero", False)
    sort = columns == "values" and planes is None and _shows_names(windows[control - 1])
    if "title" in spec:
        title = _add_unit(spec["title"], spec["unit"])
    return Histogram(title, control, data, statistic, shape, zero, planes, sort)


def _add_unit(title: str, unit: str) -> str:
    """Return a title with its unit, if that is short."""
    return f"{title} ({SHORT_UNITS[unit]})" if unit in SHORT_UNITS else title


def _shows_names(window: Window) -> bool:
    """True if a window's values are named values of events, in no meaningful order."""
    functions = {function.name for place, function in window.functions.items() if place != "thread"}
    return (
        isinstance(window, Single)
        and window.look.style == "code"
        and functions <= {"Stacked Val", "Maximum"}
        and window.functions.get("thread", Function("")).name == "Last Evt Val"
    )


def _describe_needs(types: list[Any], tags: list[Any], suffices: bool, codes: Codes) -> str:
    """Return in words the events that windows of these types, and of lines with these tags, need.
    suffices: whether one type is enough.
    """
    ranges = [spec for spec in types if isinstance(spec, dict)]
    names = [name for spec in types if not isinstance(spec, dict) for name in _to_list(spec or [])]
    parts = [_describe_types(name, codes) for name in names]
    parts += [
        f"any type from {_describe_types(spec['from'], codes)} to {_describe_types(spec['to'], codes)}"
        for spec in ranges
    ]
    asked = {list_details().get(code) for name in names for code in _get_codes(name, codes)}
    asked |= {list_details().get(tag) for tag in tags if isinstance(tag, int)}
    return (
        ("any of " if suffices else "")
        + ", ".join(dict.fromkeys(parts))
        + "".join(f"; convert with {option}" for option in sorted(filter(None, asked)))
    )


def _describe_types(name: str, codes: Codes) -> str:
    """Return a name with its numbers: all of a few, else the first and the last."""
    numbers = _get_codes(name, codes)
    few = ", ".join(map(str, numbers))
    return f"{name} ({few if len(numbers) < 4 else f'{numbers[0]} … {max(numbers)}'})"


@cache
def _list_declared_types() -> dict[str, int]:
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


def _list_type_series() -> dict[str, tuple[int, ...]]:
    """Return name -> event types: for fields with one type for each NVTX domain, and for counters with types
    derived from their names, the first and the last.
    """
    series = _list_unlisted_counters()
    for layout in load_catalogue().layouts.values():
        for field in layout.fields:
            if isinstance(field.code, DomainCode):
                series[_name_of_all_domains(field)] = _list_domain_types(layout, field)
    return series


def _list_unlisted_counters() -> dict[str, tuple[int, ...]]:
    titles: dict[tuple[int, int], list[str]] = {}
    for layout, types in find_hashed_types().items():
        titles.setdefault(types, []).append(load_catalogue().layouts[layout].title)
    return {f"Unlisted: {', '.join(names)}": types for types, names in titles.items()}


def _name_of_all_domains(field: Field) -> str:
    return field.label.format(domain="of all domains")


def _list_domain_types(layout: Layout, field: Field) -> tuple[int, ...]:
    """Return the types of a field in the domains with fixed numbers, and the one for the program's
    domains."""
    own = "own" if field is layout.fields[0] else f"own_{field.name}"
    domains = enumerate(load_catalogue().domains)
    assert isinstance(field.code, DomainCode)
    codes = [field.code.code_of(domain, number) for number, domain in domains]
    return tuple(codes + [other.code for other in layout.fields if other.name == own])


def _make_declared_views(
    listed: list[Spec], taken: Collection[str], codes: Codes
) -> list[tuple[str, Spec]]:
    """Return name and specification of each declared view, in the form of the catalogue's files.

    listed: specifications of the catalogue's views, whose event types need no other view of the same kind.
    taken: names of views. codes: name -> event types.
    """
    shown = _list_shown_types(listed, codes)
    names = {types: name for name, types in codes.items()}
    views: dict[str, Spec] = {}
    titles = {spec["title"] for spec in listed}
    for kind, types, name, spec in (*_make_counter_views(), *_make_layout_views()):
        if frozenset(types) in shown[kind]:
            continue
        shown[kind].add(frozenset(types))
        name = f"{name}_{types[0]}" if name in taken or name in views else name
        if spec["title"] in titles:
            spec["title"] += f" ({types[0]})"
        titles.add(spec["title"])
        several = {"any_of": {"from": names[types], "to": names[types]}} if len(types) > 2 else {}
        views[name] = {"types": names[types], **several, **spec}
    return list(views.items())


def _list_shown_types(listed: list[Spec], codes: Codes) -> dict[str, set[frozenset[int]]]:
    """Return statistic of a table, "" for timelines -> event types that a view of one plain window
    shows.
    """
    shown: dict[str, set[frozenset[int]]] = {"": set(), "Time": set(), "# Bursts": set()}
    for spec in listed:
        table, *_ = _to_list(spec.get("histogram", {}))
        types, statistic = spec.get("types"), table.get("statistic", "")
        plain = isinstance(types, str | list) and "level" not in spec and "values" not in spec
        if plain and statistic in shown:
            shown[statistic].add(frozenset(c for name in _to_list(types) for c in codes[name]))
    return shown


def _make_layout_views() -> Iterator[tuple[str, tuple[int, ...], str, Spec]]:
    """Yield statistic of a table ("" for timelines), event types, name and specification of each view
    of a field.
    """
    for layout in load_catalogue().layouts.values():
        for place, field in enumerate(layout.fields):
            types = (field.code,)
            if isinstance(field.code, DomainCode):
                has_all = any(f.name == "any_domain" for f in layout.fields[:2])
                if field.code.only_named or (place == 0 and has_all):
                    continue
                types = _list_domain_types(layout, field)
            name = layout.name if place == 0 else f"{layout.name}_{field.name}"
            window: Spec = {"compose_thread": "Stacked Val"} if layout.nests else {}
            yield "", types, f"{EXTRA}/basics/{name}", _make_timeline(layout, field, window)
            if field.values is None:
                continue
            label = _name_of_all_domains(field)
            if place == 0 or (layout.nests and isinstance(field.values, NameSet)):
                shows = f"Time that each row spends with each value of: {label}."
                spec = _make_table(field, "Time", "time", shows, "ns") | window
                yield "Time", types, f"{EXTRA}/analysis/{name}_time_2dh", spec
            if place == 0:
                shows = f"How often each row has each value of: {label}."
                spec = _make_table(field, "# Bursts", "number", shows, "times")
                yield "# Bursts", types, f"{EXTRA}/analysis/{name}_calls_2dh", spec


def _make_table(field: Field, statistic: str, quantity: str, shows: str, unit: str) -> Spec:
    title = f"{_make_title(_name_of_all_domains(field))}: {quantity}"
    return {"title": title, "shows": shows, "unit": unit, "histogram": {"statistic": statistic}}


def _make_timeline(layout: Layout, field: Field, window: Spec) -> Spec:
    nested = " Of records within others the innermost." if layout.nests else ""
    number = {"look": "gradient"} if field.values is None else {}
    label = _name_of_all_domains(field)
    return {
        "title": _make_title(label),
        "shows": f"{label}, as the records of {layout.title} tell it, while they last.{nested}",
        "unit": field.unit or ("number" if field.values is None else "name"),
        **window,
        **number,
    }


def _make_counter_views() -> Iterator[tuple[str, tuple[int, ...], str, Spec]]:
    """Yield the same as :func:`_make_layout_views`, for each view of a sampled number, and for those of all
    numbers with types derived from their names.
    """
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
            yield "", (code,), f"{EXTRA}/hwcounters/{_make_file_name(label)}", spec
    for title, types in _list_unlisted_counters().items():
        spec = {
            "title": title,
            "shows": f"{title.removeprefix('Unlisted: ')} that have no number of their own, each on "
            "its device's row. Of several in a record the last: choose one by its event type.",
            "unit": "that of the counter",
            "types": {"from": title, "to": title},
            "look": "gradient",
        }
        yield "", types, f"{EXTRA}/hwcounters/unlisted_{types[0]}", spec


def _make_title(label: str) -> str:
    """Return a label as Paraver takes it for a window: without slashes."""
    return label.replace("/", "-")


def _make_file_name(label: str) -> str:
    return re.sub(r"[^a-z0-9%]+", "_", label.lower().replace("%", "percent")).strip("_")


def find_code(layout: str, name: str) -> int:
    """Return the event type of a layout's field, or of a counter by its label. Raise KeyError for an unknown
    one.

    A field with a type that depends on the NVTX domain has none.
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
def list_details() -> dict[int, str]:
    """Return the event types and the tags of lines that are written only on request, each with its option."""
    layouts, lines = load_catalogue().layouts, load_catalogue().lines
    return {line.tag: LAUNCHES for line in lines.values() if line.of_launch} | {
        field.code: LAUNCHES if field.of_launch else f"--args {kind}=all"
        for kind, spec in load_catalogue().kinds.items()
        for layout in spec.get("layouts", ())
        for field in layouts[layout].fields
        if field.detail or field.of_launch
    }
