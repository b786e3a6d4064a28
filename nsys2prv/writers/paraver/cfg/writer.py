"""Write a view: the text of its .cfg file, by the template ``templates/view.cfg``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache, partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from nsys2prv._util.data_files import read_data_text
from nsys2prv.writers.paraver.cfg import (
    COMPOSE_PLACES,
    DEFAULT_FUNCTIONS,
    FILTER_NAMES,
    LOOKS,
    PROCESS_LEVELS,
    SINGLE_ONLY_PLACES,
    Cfg,
    Histogram,
    Single,
    Window,
)

if TYPE_CHECKING:
    from jinja2 import Environment

#: Pixels: width of windows; heights of timelines with a row per thread, of others, and of tables.
WINDOW_WIDTH, WINDOW_HEIGHT, LOW_HEIGHT, TABLE_HEIGHT = 1000, 500, 250, 640
#: Pixels: heights of the screen that timelines share, and of the title of each.
SCREEN_HEIGHT, TITLE_HEIGHT = 900, 40
#: Pixels if the number of rows is known: of one row, and of the space above and below them, in
#: timelines and in tables.
ROW_HEIGHT, FRAME_HEIGHT = 15, 60
TABLE_ROW_HEIGHT, TABLE_FRAME_HEIGHT = 23, 210


def format_cfg(
    cfg: Cfg, rows: Mapping[str, int] | None = None, span: tuple[int, int] | None = None
) -> str:
    """Return the text of a view's file.

    rows: level -> number of its rows in the trace that the file is for. Windows are then as high as
    these need, and at most as the screen. span: begin and end (ns of the trace) of the time that the
    view shows; None for the whole trace.
    """
    rows = rows or {}
    *places, shown = accumulate((window.look.shown for window in cfg.windows), initial=0)
    windows = []
    for number, (window, place) in enumerate(zip(cfg.windows, places, strict=True), 1):
        height = _choose_height(window.level, rows, shown)
        y = 50 + place * (height + TITLE_HEIGHT)
        look = window.look
        functions = _list_functions(window), _list_compose_functions(window)
        windows.append((number, window, look, LOOKS[look.style], y, height, *functions))
    table = {} if cfg.histogram is None else _describe_table(cfg.histogram, cfg.windows, rows)
    return (
        load_environment()
        .get_template("view.cfg")
        .render(
            description=cfg.description, windows=windows, span=span, table=cfg.histogram, **table
        )
    )


@cache
def load_environment() -> Environment:
    """Return the templates of files of Paraver."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(partial(read_data_text, "nsys2prv.writers.paraver.cfg.templates")),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    environment.globals |= {
        "width": WINDOW_WIDTH,
        "process_levels": PROCESS_LEVELS,
        "filter_names": FILTER_NAMES,
    }
    environment.filters |= {
        "bool": lambda value: "true" if value else "false",
        "decimals": lambda values: " ".join(f"{value:.12f}" for value in values),
        "number": _format_number,
        "pairs": lambda table: ", ".join(f"{{{place}, {name}}}" for place, name in table.items()),
    }
    environment.tests["single"] = lambda window: isinstance(window, Single)
    return environment


def _format_number(value: float) -> str:
    """Return a number without exponent, blanks or needless decimals."""
    return str(int(value)) if value == int(value) else f"{value:.12f}".rstrip("0")


def _choose_height(level: str, rows: Mapping[str, int], shown: int) -> int:
    """Return the height of one of the timelines that share a screen."""
    most = SCREEN_HEIGHT // max(1, shown) - TITLE_HEIGHT
    if level in rows:
        return min(max(FRAME_HEIGHT + ROW_HEIGHT * rows[level], LOW_HEIGHT), most)
    return min(WINDOW_HEIGHT if level == "thread" else LOW_HEIGHT, most)


def _list_functions(window: Window) -> dict[str, str]:
    """Return the function of each place, and the condition of each filter of a timeline of records."""
    chosen = {
        place: window.functions[place].name if place in window.functions else default
        for place, default in DEFAULT_FUNCTIONS.items()
        if isinstance(window, Single) or place not in SINGLE_ONLY_PLACES
    }
    if isinstance(window, Single):
        chosen |= {
            name: window.filters[name].condition if name in window.filters else "All"
            for name in FILTER_NAMES
        }
    return chosen


def _list_compose_functions(window: Window) -> dict[str, str]:
    return {
        place: window.functions[place].name if place in window.functions else "As Is"
        for place in COMPOSE_PLACES
    }


def _describe_table(
    table: Histogram, windows: Iterable[Window], rows: Mapping[str, int]
) -> dict[str, Any]:
    """Return what the template needs to know of a table: its height in pixels, and its columns."""
    level = tuple(windows)[table.control - 1].level
    count = rows.get(level, 0) if table.rows is None else len(table.rows)
    height = min(TABLE_FRAME_HEIGHT + TABLE_ROW_HEIGHT * count, SCREEN_HEIGHT - TITLE_HEIGHT)
    first, last = table.columns.first, table.columns.last
    if first is None:
        first, last = 0.0, 1.0
    return {
        "table_height": height if count else TABLE_HEIGHT,
        "first": first,
        "last": last,
        "delta": table.columns.width or 1.0,
    }
