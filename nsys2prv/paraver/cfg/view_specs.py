"""Make a view of its entry in the catalogue."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from nsys2prv.paraver.cfg.model import (
    COMMUNICATION_STATISTICS,
    COMPOSES,
    NO_VALUE,
    SELECTED,
    Cfg,
    CfgError,
    Composed,
    Filter,
    Function,
    Histogram,
    HistogramColumns,
    Look,
    Single,
    Window,
)
from nsys2prv.paraver.cfg.writer import format_cfg

SUFFIX = ".cfg"
DESCRIPTION_WIDTH = 100
#: Units of rates that are known at all times, and of those that are during operations alone.
SAMPLED_RATES = frozenset(
    ("%", "percent", "Throughput %", "MHz", "Hz", "bytes/ms", "packets/ms", "ticks/ms")
)
RATES = frozenset(("GB/s", "MB/s", "B/s", "MIPS of a multiprocessor"))
_VIEW = {"title", "shows", "unit", "first", "any_of", "needs", "windows", "histogram"}
_PLACES = {*SELECTED, *COMPOSES}
_LOOK = {"look", "units", "lines", "open", "draw", "colors", "group", "scale"}
_SINGLE = {"title", "level", "types", "values", "tags", "physical", *_PLACES, *_LOOK}
_COMPOSED = {"title", "level", "op", "of", "factors", *_PLACES, *_LOOK}
_HISTOGRAM = {"statistic", "columns", "data", "planes", "zero", "columns_from"}


class View(Struct, frozen=True):
    """A view of the catalogue."""

    #: Below the folder of views, without ending.
    path: str
    #: Of its window.
    title: str
    #: What it shows, in sentences.
    shows: str
    #: Of its values.
    unit: str
    #: In words, the events without which it shows nothing.
    needs: str
    #: The view itself.
    cfg: Cfg
    #: Its place among the views to open first, 0 for the others.
    first: int = 0

    @property
    def text(self) -> str:
        return format_cfg(self.cfg)


class Codes(Struct, frozen=True):
    """Names of event types: name -> numbers."""

    #: Name -> event types.
    numbers: Mapping[str, tuple[int, ...]]

    def __getitem__(self, name: str) -> tuple[int, ...]:
        if name not in self.numbers:
            raise CfgError(f"no event type is called {name!r}")
        return self.numbers[name]

    def words(self, name: str) -> str:
        """Return a name with its numbers: all of a few, else the first and the last."""
        numbers = self[name]
        few = ", ".join(map(str, numbers))
        return f"{name} ({few if len(numbers) < 4 else f'{numbers[0]} … {max(numbers)}'})"


def check_keys(spec: Mapping[str, Any], keys: set[str]) -> None:
    unknown = set(spec) - keys
    if unknown:
        raise CfgError(f"unknown keys: {', '.join(sorted(map(str, unknown)))}")


def make_view(name: str, spec: dict[str, Any], codes: Codes) -> View:
    title = spec["title"]
    if "windows" in spec:
        check_keys(spec, _VIEW)
        specs = dict(spec["windows"])
    else:
        own = {key: value for key, value in spec.items() if key not in _VIEW - {"title"}}
        if "histogram" in spec:
            own["title"] = f"{title}: columns"
        specs = {title: own}
    keys = list(specs)
    histogram = spec.get("histogram")
    windows: list[Window] = []
    for key in keys:
        last = key == keys[-1] and histogram is None
        own = {"title": title if last else key, "open": last, **specs[key]}
        own = {"draw": _choose_draw_mode(own, spec["unit"]), **own}
        windows.append(_make_window(own, keys[: len(windows)], windows, codes))
    shown = [window.get("types") for window in specs.values() if window.get("values") != NO_VALUE]
    needs = _describe_needs(shown, "any_of" in spec, codes) or "states (--states)"
    guards = [_parse_types(guard, codes) or Filter("None") for guard in _parse_guards(spec)]
    windows, numbers = _add_guards(windows, guards, title, histogram is None)
    places = dict(zip(keys, numbers, strict=True))
    table = None if histogram is None else _make_histogram(histogram, title, places, windows)
    text = "\n".join(
        [
            *textwrap.wrap(spec["shows"], DESCRIPTION_WIDTH),
            f"Unit: {spec['unit']}.",
            *textwrap.wrap(f"Needs: {needs}.", DESCRIPTION_WIDTH),
        ]
    )
    cfg, first = Cfg(text, tuple(windows), table), int(spec.get("first", 0))
    return View(name + SUFFIX, title, spec["shows"], spec["unit"], needs, cfg, first)


def _choose_draw_mode(window: Mapping[str, Any], unit: str) -> str:
    """Return how a pixel shows the many values that it stands for: codes at random except 0, which
    mixes the colours of a stretch as its values are; rates by their average, or the average of
    non-zero values for rates during operations; other numbers by the maximum.
    """
    if window.get("look", "code") == "code":
        return "draw_randnotzero"
    if unit in SAMPLED_RATES:
        return "draw_average"
    return "draw_averagenotzero" if unit in RATES else "draw_maximum"


def _make_window(
    spec: dict[str, Any], names: list[str], windows: list[Window], codes: Codes
) -> Window:
    composed = "op" in spec
    check_keys(spec, _COMPOSED if composed else _SINGLE)
    colors = {int(value): tuple(color) for value, color in spec.get("colors", {}).items()}
    scale = tuple(map(float, spec["scale"])) if "scale" in spec else None
    look = Look(
        spec.get("look", "code"),
        spec.get("units", "Nanoseconds"),
        spec.get("lines", False),
        spec["open"],
        spec["draw"],
        colors,
        spec.get("group", 0),
        scale,
    )
    functions = {place: _parse_function(spec[place]) for place in spec if place in _PLACES}
    if composed:
        parents = [names.index(parent) + 1 if parent in names else 0 for parent in spec["of"]]
        level = spec.get("level") or (windows[parents[0] - 1].level if parents[0] else "thread")
        first, second = map(float, spec.get("factors", (1, 1)))
        pair = (parents[0], parents[1]), (first, second)
        return Composed(spec["title"], level, functions, look, spec["op"], *pair)
    functions.setdefault("thread", Function("Last Evt Val"))
    # What stands in a file anyway is no choice of a window.
    if functions["thread"].name == SELECTED["thread"][1]:
        del functions["thread"]
    filters = {
        "evt_type": _parse_types(spec.get("types"), codes),
        "evt_value": _parse_condition(spec.get("values")),
        "tag_msg": _parse_condition(spec.get("tags")),
    }
    filters = {name: condition for name, condition in filters.items() if condition is not None}
    level, physical = spec.get("level", "thread"), spec.get("physical", False)
    return Single(spec["title"], level, functions, look, filters, physical)


def _parse_function(spec: str | dict[str, Any]) -> Function:
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


def _parse_types(spec: Any, codes: Codes) -> Filter | None:
    """Return a name, a list of names, or `{from: name, to: name}` for all types between two."""
    if spec is None:
        return Filter("None")
    if isinstance(spec, dict):
        return Filter("[x,y]", (min(codes[spec["from"]]), max(codes[spec["to"]])))
    names = [spec] if isinstance(spec, str) else spec
    return Filter("=", tuple(dict.fromkeys(code for name in names for code in codes[name])))


def _parse_condition(spec: Any) -> Filter | None:
    """Return a number or a list of numbers to pass, or `{"<": 100}`."""
    if spec is None:
        return None
    condition, values = next(iter(spec.items())) if isinstance(spec, dict) else ("=", spec)
    return Filter(condition, tuple(map(float, _to_list(values))))


def _parse_guards(spec: Mapping[str, Any]) -> list[Any]:
    """Return the types of a view's guards, in their order: ranges, then what has to be there."""
    any_of = spec.get("any_of", [])
    several = isinstance(any_of, list) and all(isinstance(guard, dict) for guard in any_of)
    return [*(any_of if several else [any_of]), *([spec["needs"]] if "needs" in spec else [])]


def _add_guards(
    windows: list[Window], guards: Sequence[Filter], title: str, timeline: bool
) -> tuple[list[Window], list[int]]:
    """Return the windows with the guards behind the last single one, and the new number of each.

    A guard passes no event and is there for Paraver's loader only. As long as any type of a range
    is in the trace, no types that windows before it name and the trace lacks make Paraver ask
    before it opens the view; of a list behind it each type that the trace lacks does.
    """
    if not guards:
        return windows, list(range(1, len(windows) + 1))
    at = max(number for number, window in enumerate(windows) if isinstance(window, Single)) + 1
    level = windows[at - 1].level
    added = [
        Single(
            "any of these events" if types.condition == "[x,y]" else "all of these events",
            level,
            {"thread": Function("Last Evt Val")},
            Look(shown=False),
            {"evt_type": types, "evt_value": Filter("=", (float(NO_VALUE),))},
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
    spec: dict[str, Any], title: str, places: dict[str, int], windows: list[Window]
) -> Histogram:
    check_keys(spec, _HISTOGRAM)
    last = places[next(reversed(places))]
    control = places[spec["columns_from"]] if "columns_from" in spec else last
    data = places[spec["data"]] if "data" in spec else control
    planes = places[spec["planes"]] if "planes" in spec else None
    match columns := spec.get("columns", "values"):
        case "values":
            shape = HistogramColumns(1.0)
        case "spread":
            shape = HistogramColumns(0.0)
        case first, last_value, width:
            shape = HistogramColumns(float(width), float(first), float(last_value))
    statistic, zero = spec["statistic"], spec.get("zero", False)
    of_events = planes is None and statistic not in COMMUNICATION_STATISTICS
    sort = columns == "values" and of_events and _shows_names(windows[control - 1])
    return Histogram(title, control, data, statistic, shape, zero, planes, sort)


def _shows_names(window: Window) -> bool:
    """True if a window's values are named values of events, in no meaningful order."""
    functions = {function.name for place, function in window.functions.items() if place != "thread"}
    return (
        isinstance(window, Single)
        and window.look.style == "code"
        and functions <= {"Stacked Val", "Maximum"}
        and window.functions.get("thread", Function("")).name == "Last Evt Val"
    )


def _describe_needs(types: list[Any], suffices: bool, codes: Codes) -> str:
    """Return the events that windows of these `types` show, in words; one of them `suffices`, or
    each window needs its own.
    """
    ranges = [spec for spec in types if isinstance(spec, dict)]
    lists = [_to_list(spec or []) for spec in types if not isinstance(spec, dict)]
    parts = [codes.words(name) for names in lists for name in names]
    parts += [
        f"any type from {codes.words(spec['from'])} to {codes.words(spec['to'])}" for spec in ranges
    ]
    return ("any of " if suffices else "") + ", ".join(dict.fromkeys(parts))
