"""Read views back that :mod:`nsys2prv.writers.paraver.cfg` writes, and refuse views at which
Paraver's loader would stop.
"""

import re
from collections.abc import Collection
from typing import Any

from view_checks import check_view
from view_conditions import CfgError

from nsys2prv.writers.paraver.cfg import (
    COMPOSE_PLACES,
    DEFAULT_FUNCTIONS,
    FILTER_NAMES,
    LOOKS,
    Cfg,
    Composed,
    Filter,
    Function,
    Histogram,
    HistogramColumns,
    Look,
    Single,
    Window,
)

DESCRIPTION_BEGIN, DESCRIPTION_END = "ConfigFile.BeginDescription", "ConfigFile.EndDescription"
NEW_HISTOGRAM = "< NEW ANALYZER2D >"
_PAIR = re.compile(r"\{([^{},]+), ([^{}]*)\}")
_COLOR = re.compile(r"\{(\d+):(\d+),(\d+),(\d+)\}")
_MODULE = re.compile(r"(\w+) (.+?) \{ (\d+), \{ (.*) \} \}")
#: Tags that say nothing that a view here can vary.
_FIXED = re.compile(
    r"window_(id|position_[xy]|width|height|gradient_function|flags_enabled|custom_color_enabled|semantic_scale_min_at_zero|"
    r"scale_relative|end_time_relative|begin_time_relative|object|drawmode_rows|pixel_size|"
    r"labels_to_draw|logical_filtered|intracomms_enabled|intercomms_enabled|comm_fromto|comm_tagsize|comm_typeval|"
    r"shifts)"
)


def read_cfg(text: str) -> Cfg:
    """Return the view in a file's text; raises CfgError for what Paraver would refuse or what
    :func:`nsys2prv.writers.paraver.cfg.format_cfg` never writes.
    """
    if not text.startswith("#ParaverCFG\n"):
        raise CfgError("the first line is not #ParaverCFG")
    head, _, rest = text.partition(DESCRIPTION_BEGIN + "\n")
    description, end, body = rest.partition("\n" + DESCRIPTION_END)
    if not end:
        raise CfgError("no description")
    windows_text, *tables = body.split(NEW_HISTOGRAM + "\n")
    windows = [
        _parse_window(_parse_tags(part))
        for part in re.split(r"^(?=window_name )", windows_text, flags=re.M)[1:]
    ]
    announced = re.search(r"^ConfigFile.NumWindows: (\d+)$", head, re.M)
    if announced is None or int(announced[1]) != len(windows):
        raise CfgError("NumWindows is not the number of windows")
    *more, last = map(_parse_histogram, tables) if tables else (None,)
    cfg = Cfg(description, tuple(windows), last, tuple(more))
    check_view(cfg)
    return cfg


def _parse_tags(text: str) -> list[tuple[str, str]]:
    """Return tag and value of each line that is no comment."""
    lines = [line.partition(" ") for line in text.split("\n") if line and line[0] not in "#<"]
    for tag, blank, value in lines:
        if not blank or not value or value != value.strip():
            raise CfgError(f"{tag}: no value after exactly one blank")
    return [(tag, value) for tag, _, value in lines]


def _parse_flag(tag: str, value: str) -> bool:
    if value not in ("true", "false"):
        raise CfgError(f"{tag}: {value!r} is neither true nor false")
    return value == "true"


def _parse_capitalized_flag(tag: str, value: str) -> bool:
    if value not in ("True", "False"):
        raise CfgError(f"{tag}: {value!r} is neither True nor False")
    return value == "True"


def _parse_window(tags: list[tuple[str, str]]) -> Window:
    plain: dict[str, str] = {}
    functions: dict[str, str] = {}
    parameters: dict[tuple[str, str], tuple[tuple[float, ...], ...]] = {}
    values: dict[str, tuple[float, ...]] = {}
    for tag, value in tags:
        name = tag.removeprefix("window_")
        if name in ("selected_functions", "compose_functions"):
            functions.update(_parse_pairs(tag, value))
        elif name == "semantic_module":
            place, function, lists = _parse_module(value)
            parameters[place, function] = lists
        elif name == "filter_module":
            place, count, *numbers = value.split(" ")
            if int(count) != len(numbers):
                raise CfgError(f"{tag}: {count} values announced, {len(numbers)} there")
            values[place] = tuple(map(float, numbers))
        elif name in plain:
            raise CfgError(f"{tag} stands twice")
        else:
            plain[name] = value
        if name.endswith(("_enabled", "_filtered")) or name in (
            "open",
            "noncolor_mode",
            "compute_y_max",
        ):
            _parse_flag(tag, value)
    return _build_window(plain, functions, parameters, values)


def _parse_pairs(tag: str, value: str) -> dict[str, str]:
    pairs = dict(_PAIR.findall(value))
    if not re.match(rf"\{{ {len(pairs)}, \{{ ", value):
        raise CfgError(f"{tag}: wrong number of functions")
    return pairs


def _parse_module(value: str) -> tuple[str, str, tuple[tuple[float, ...], ...]]:
    match = _MODULE.fullmatch(value)
    if match is None:
        raise CfgError(f"window_semantic_module: cannot read {value!r}")
    lists = []
    for part in match[4].split(", "):
        count, *numbers = part.split(" ")
        if int(count) != len(numbers):
            raise CfgError(
                f"window_semantic_module: {count} numbers announced, {len(numbers)} there"
            )
        lists.append(tuple(map(float, numbers)))
    if len(lists) != int(match[3]):
        raise CfgError("window_semantic_module: wrong number of parameters")
    return match[1], match[2], tuple(lists)


def _build_window(
    plain: dict[str, str],
    functions: dict[str, str],
    parameters: dict,
    values: dict[str, tuple[float, ...]],
) -> Window:
    known = {
        "name",
        "type",
        "factors",
        "operation",
        "identifiers",
        "comm_lines_enabled",
        "noncolor_mode",
        "color_mode",
        "units",
        "custom_color_palette",
        "level",
        "open",
        "drawmode",
        "physical_filtered",
        "synchronize",
        "maximum_y",
        "minimum_y",
        "compute_y_max",
    }
    for name in plain:
        if name not in known and not _FIXED.fullmatch(f"window_{name}"):
            raise CfgError(f"window_{name}: not a tag of these views")
    for name in (
        "name",
        "type",
        "units",
        "level",
        "noncolor_mode",
        "comm_lines_enabled",
        "open",
        "drawmode",
        "maximum_y",
        "minimum_y",
        "compute_y_max",
    ):
        if name not in plain:
            raise CfgError(f"window_{name} is missing")
    single = plain["type"] == "single"
    looks = [
        style
        for style, look in LOOKS.items()
        if look
        == (
            _parse_flag("window_noncolor_mode", plain["noncolor_mode"]),
            plain.get("color_mode", ""),
        )
    ]
    if not looks:
        raise CfgError(f"no look has colour mode {plain.get('color_mode')}")
    colors = {
        int(value): (int(red), int(green), int(blue))
        for value, red, green, blue in _COLOR.findall(plain.get("custom_color_palette", ""))
    }
    scale = (
        None
        if _parse_flag("window_compute_y_max", plain["compute_y_max"])
        else (float(plain["minimum_y"]), float(plain["maximum_y"]))
    )
    look = Look(
        looks[0],
        plain["units"],
        plain["comm_lines_enabled"] == "true",
        plain["open"] == "true",
        plain["drawmode"],
        colors,
        int(plain.get("synchronize", 0)),
        scale,
    )
    filters = {
        name: Filter(functions.pop(name), values.pop(name, ()))
        for name in FILTER_NAMES
        if name in functions
    }
    defaults = {**DEFAULT_FUNCTIONS, **dict.fromkeys(COMPOSE_PLACES, "As Is")}
    chosen = {
        place: Function(name, parameters.pop((place, name), ()))
        for place, name in functions.items()
        if name != defaults.get(place)
    }
    if parameters or values:
        raise CfgError(
            f"parameters or values without their function or filter: {[*parameters, *values]}"
        )
    common: dict[str, Any] = {
        "title": plain["name"],
        "level": plain["level"],
        "functions": chosen,
        "look": look,
    }
    if single:
        filters = {
            name: condition for name, condition in filters.items() if condition != Filter("All")
        }
        return Single(**common, filters=filters, physical=plain.get("physical_filtered") == "true")
    if (
        filters
        or plain["type"] != "composed"
        or not {"operation", "identifiers", "factors"} <= set(plain)
    ):
        raise CfgError("a composed window has filters, or lacks its operation, factors or parents")
    first, second = map(int, plain["identifiers"].split(" "))
    factor, other = map(float, plain["factors"].split(" "))
    return Composed(
        **common, operation=plain["operation"], parents=(first, second), factors=(factor, other)
    )


def _parse_histogram(text: str) -> Histogram:
    tags = {tag.removeprefix("Analyzer2D.").rstrip(":"): value for tag, value in _parse_tags(text)}
    for name in (
        "CalculateAll",
        "HideCols",
        "Color",
        "SemanticColor",
        "SortCols",
        "SortReverse",
        "ShowOnlyTotals",
        "ShortHeaderLabels",
    ):
        _parse_capitalized_flag(name, tags[name])
    # A table of some rows has columns found by Paraver, as paramedir names its rows wrongly otherwise; those
    # that are declared stay beside it.
    is_of_some_rows = tags.get("Objects", "All") != "All" and float(tags["Maximum"]) > 1
    found = _parse_capitalized_flag("ComputeYScale", tags["ComputeYScale"])
    automatic = found and not is_of_some_rows
    width = (
        float(tags["Delta"])
        if _parse_capitalized_flag("UseFixedDelta", tags["UseFixedDelta"])
        else 0.0
    )
    columns = (
        HistogramColumns(width)
        if automatic
        else HistogramColumns(width, float(tags["Minimum"]), float(tags["Maximum"]))
    )
    return Histogram(
        tags["Name"],
        int(tags["ControlWindow"]),
        int(tags["DataWindow"]),
        tags["Statistic"],
        columns,
        _parse_capitalized_flag("ComputeYScaleZero", tags["ComputeYScaleZero"]),
        int(tags["3D_ControlWindow"]) if "3D_ControlWindow" in tags else None,
        _parse_capitalized_flag("SortCols", tags["SortCols"]),
    )


def find_reason_to_ask(cfg: Cfg, present: Collection[int]) -> str:
    """Return why Paraver would ask before it opens a view on a trace with these event types; empty
    if it just opens it.

    As its loader does: window after window, a type of a list that is not there counts against the
    view, but a range of which any type is there makes up for all windows before it.
    """
    some, missing = False, False
    for window in cfg.windows:
        if not isinstance(window, Single):
            continue
        types = window.types
        some = some or types.condition in ("All", "None")
        there = [value in present for value in types.values]
        some, missing = some or any(there), missing or not all(there)
        if types.condition == "[x,y]" and any(
            types.values[0] <= code <= types.values[1] for code in present
        ):
            some, missing = True, False
    return (
        "no event of the view" if not some else "an event of the view is missing" if missing else ""
    )
