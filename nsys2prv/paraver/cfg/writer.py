"""Write a view: the text of its .cfg file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate

from nsys2prv.paraver.cfg import (
    COMPOSE_PLACES,
    DEFAULT_FUNCTIONS,
    FILTER_NAMES,
    LOOKS,
    PROCESS_LEVELS,
    SINGLE_ONLY_PLACES,
    Cfg,
    Composed,
    Filter,
    Histogram,
    Single,
    Window,
)

VERSION = "3.4"
#: Pixels: of timelines with a row for each thread, and of others; of tables; and of what shares a
#: screen with the title of each timeline.
WINDOW_WIDTH, WINDOW_HEIGHT, LOW_HEIGHT, TABLE_HEIGHT = 1000, 500, 250, 640
SCREEN_HEIGHT, TITLE_HEIGHT = 900, 40
#: Pixels where the number of rows is known: of one, and of what is above and below all of them, in
#: timelines and in tables.
ROW_HEIGHT, FRAME_HEIGHT = 15, 60
TABLE_ROW_HEIGHT, TABLE_FRAME_HEIGHT = 23, 210
DESCRIPTION_BEGIN, DESCRIPTION_END = "ConfigFile.BeginDescription", "ConfigFile.EndDescription"
NEW_HISTOGRAM = "< NEW ANALYZER2D >"


def format_cfg(cfg: Cfg, rows: Mapping[str, int] | None = None) -> str:
    """Return the text of a view's file.

    rows: level -> number of its rows in the trace that the file is for. Windows are then as high as
    these need, and at most as the screen.
    """
    head = [
        "#ParaverCFG",
        f"ConfigFile.Version: {VERSION}",
        f"ConfigFile.NumWindows: {len(cfg.windows)}",
        DESCRIPTION_BEGIN,
        *cfg.description.split("\n"),
        DESCRIPTION_END,
    ]
    rows = rows or {}
    places = list(accumulate((window.look.shown for window in cfg.windows), initial=0))
    parts = [head]
    for number, window in enumerate(cfg.windows, 1):
        height = _choose_height(window.level, rows, places[-1])
        parts.append(_format_window(window, number, places[number - 1], height))
    if cfg.histogram is not None:
        level = cfg.windows[cfg.histogram.control - 1].level
        parts.append(_format_histogram(cfg.histogram, rows.get(level, 0)))
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def format_number(value: float) -> str:
    """Return a number without exponent, blanks or needless decimals."""
    return str(int(value)) if value == int(value) else f"{value:.12f}".rstrip("0")


def _format_bool(value: bool) -> str:
    return "true" if value else "false"


def _choose_height(level: str, rows: Mapping[str, int], shown: int) -> int:
    """Return the height of one of the timelines that share a screen."""
    most = SCREEN_HEIGHT // max(1, shown) - TITLE_HEIGHT
    if level in rows:
        return min(max(FRAME_HEIGHT + ROW_HEIGHT * rows[level], LOW_HEIGHT), most)
    return min(WINDOW_HEIGHT if level == "thread" else LOW_HEIGHT, most)


def _format_window(window: Window, number: int, place: int, height: int) -> list[str]:
    """Return lines of a window; `place` is how many of those that are shown stand above it."""
    return [
        "#" * 80,
        f"< NEW DISPLAYING WINDOW {window.title} >",
        "#" * 80,
        f"window_name {window.title}",
        *(
            _format_single(window, number, place, height)
            if isinstance(window, Single)
            else _format_composed(window, number, place, height)
        ),
    ]


def _format_single(window: Single, number: int, place: int, height: int) -> list[str]:
    conditions = {name: window.filters.get(name, Filter("All")) for name in FILTER_NAMES}
    lines = [
        "window_type single",
        f"window_id {number}",
        *_format_appearance(window, place, height),
        f"window_logical_filtered {_format_bool(not window.physical)}",
        f"window_physical_filtered {_format_bool(window.physical)}",
        "window_intracomms_enabled true",
        "window_intercomms_enabled true",
        "window_comm_fromto true",
        "window_comm_tagsize true",
        "window_comm_typeval true",
        *_format_functions(window, tuple(DEFAULT_FUNCTIONS), conditions),
    ]
    for name, condition in conditions.items():
        if condition.values:
            numbers = " ".join(format_number(value) for value in condition.values)
            lines.append(f"window_filter_module {name} {len(condition.values)} {numbers}")
    return lines


def _format_composed(window: Composed, number: int, place: int, height: int) -> list[str]:
    places = tuple(place for place in DEFAULT_FUNCTIONS if place not in SINGLE_ONLY_PLACES)
    return [
        "window_type composed",
        f"window_id {number}",
        "window_factors " + " ".join(f"{factor:.12f}" for factor in window.factors),
        "window_shifts 0 0",
        f"window_operation {window.operation}",
        "window_identifiers " + " ".join(map(str, window.parents)),
        *_format_appearance(window, place, height),
        *_format_functions(window, places, {}),
    ]


def _format_appearance(window: Window, place: int, height: int) -> list[str]:
    look = window.look
    low, high = look.scale or (0.0, 1.0)
    colored, mode = LOOKS[look.style]
    colors = ",".join(
        f"{{{value}:{','.join(map(str, color))}}}" for value, color in look.colors.items()
    )
    # Levels of the machine are all selected where nothing is said.
    selected = "1" if window.level == "appl" else "All"
    return [
        "window_position_x 50",
        f"window_position_y {50 + place * (height + TITLE_HEIGHT)}",
        f"window_width {WINDOW_WIDTH}",
        f"window_height {height}",
        f"window_comm_lines_enabled {_format_bool(look.lines)}",
        "window_flags_enabled false",
        f"window_noncolor_mode {_format_bool(colored)}",
        *([f"window_color_mode {mode}"] if mode else []),
        f"window_custom_color_enabled {_format_bool(bool(colors))}",
        *([f"window_custom_color_palette {colors}"] if colors else []),
        f"window_semantic_scale_min_at_zero {_format_bool(look.style in ('line', 'fused'))}",
        f"window_units {look.units}",
        f"window_maximum_y {format_number(high)}",
        f"window_minimum_y {format_number(low)}",
        f"window_compute_y_max {_format_bool(look.scale is None)}",
        f"window_level {window.level}",
        "window_scale_relative 1",
        "window_end_time_relative 1",
        *(
            [f"window_object appl {{ 1, {{ {selected} }} }}"]
            if window.level in PROCESS_LEVELS
            else []
        ),
        "window_begin_time_relative 0",
        f"window_open {_format_bool(look.shown)}",
        f"window_drawmode {look.draw}",
        f"window_drawmode_rows {look.draw}",
        "window_pixel_size 1",
        "window_labels_to_draw 1",
        *([f"window_synchronize {look.group}"] if look.group else []),
    ]


def _format_functions(
    window: Window, places: Iterable[str], conditions: dict[str, Filter]
) -> list[str]:
    """Return functions and filter conditions of each place, and the parameters of those that have
    some.
    """
    names = {place: function.name for place, function in window.functions.items()}
    chosen = {place: names.get(place, DEFAULT_FUNCTIONS[place]) for place in places}
    chosen.update((name, condition.condition) for name, condition in conditions.items())
    composes = {place: names.get(place, "As Is") for place in COMPOSE_PLACES}
    lines = [
        f"{tag} {{ {len(table)}, {{ {', '.join(f'{{{place}, {name}}}' for place, name in table.items())} }} }}"
        for tag, table in (
            ("window_selected_functions", chosen),
            ("window_compose_functions", composes),
        )
    ]
    for place, function in window.functions.items():
        if function.parameters:
            lists = ", ".join(
                f"{len(values)} {' '.join(f'{value:.12f}' for value in values)}"
                for values in function.parameters
            )
            lines.append(
                f"window_semantic_module {place} {function.name} {{ {len(function.parameters)}, {{ {lists} }} }}"
            )
    return lines


def _format_histogram(histogram: Histogram, rows: int) -> list[str]:
    """Return lines of a table; `rows` is 0 where their number is not known."""
    rows = rows if histogram.rows is None else len(histogram.rows)
    columns = histogram.columns
    first, last = (0.0, 1.0) if columns.first is None else (columns.first, columns.last)
    width = columns.width or 1.0
    lines = [
        ("Name", histogram.title),
        ("X", "80"),
        ("Y", "80"),
        ("Width", WINDOW_WIDTH),
        (
            "Height",
            min(TABLE_FRAME_HEIGHT + TABLE_ROW_HEIGHT * rows, SCREEN_HEIGHT - TITLE_HEIGHT)
            if rows
            else TABLE_HEIGHT,
        ),
        ("ControlWindow", histogram.control),
        ("DataWindow", histogram.data),
        ("Accumulator", "Semantic"),
        ("Statistic", histogram.statistic),
        ("CalculateAll", "True"),
        ("HideCols", "True"),
        ("HorizVert", "Horizontal"),
        ("Color", "True"),
        ("SemanticColor", "False"),
        ("Zoom", "Disabled"),
        ("SortCols", histogram.sort),
        ("SortCriteria", "Total"),
        ("SortReverse", "False"),
        ("AnalysisLimits", "Alltrace"),
        ("ComputeYScale", columns.first is None or histogram.rows is not None),
        ("ComputeYScaleZero", histogram.zero),
        ("Minimum", format_number(first)),
        ("Maximum", format_number(last)),
        ("Delta", format_number(width)),
        ("UseFixedDelta", columns.width > 0),
        ("NumColumns", format_number(max(1, (last - first) // width + 1))),
        ("ComputeGradient", "True"),
        ("MinimumGradient", "0"),
        ("MaximumGradient", "1"),
        ("Objects", "All" if histogram.rows is None else ",".join(map(str, histogram.rows))),
        ("DrawModeObjects", "draw_maximum"),
        ("DrawModeColumns", "draw_maximum"),
        ("PixelSize", "1"),
        ("ColorMode", "window_in_null_gradient_mode"),
        ("ShowOnlyTotals", "False"),
        ("ShortHeaderLabels", "False"),
    ]
    text = [NEW_HISTOGRAM, *(f"Analyzer2D.{tag}: {value}" for tag, value in lines)]
    if histogram.planes is not None:
        text += [
            f"Analyzer2D.3D_ControlWindow: {histogram.planes}",
            "Analyzer3D.ComputeYScale: True",
            "Analyzer2D.3D_Minimum: 0",
            "Analyzer2D.3D_Maximum: 1",
            "Analyzer2D.3D_Delta: 1",
            "Analyzer2D.3D_FixedValue: 0",
        ]
    return text
