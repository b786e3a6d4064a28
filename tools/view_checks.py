"""Define Paraver's view keywords as its loader knows them, and find mistakes in a view of a catalogue.

Paraver does not check keywords: a function of the wrong group, an unknown statistic or a derived window
without parents end the program. So every name is checked against these tables when views are made and tested.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import MappingProxyType

from msgspec import structs
from view_catalogue import list_details, load_menus, load_views
from view_conditions import COMMUNICATION_FUNCTIONS, STATE_FUNCTIONS, CfgError, may_change_zero

from nsys2prv.writers.paraver.cfg import (
    COMPOSE_PLACES,
    DEFAULT_FUNCTIONS,
    FILTER_NAMES,
    LOOKS,
    PROCESS_LEVELS,
    SINGLE_ONLY_PLACES,
    VIEW_SUFFIX,
    Cfg,
    Composed,
    Histogram,
    Single,
    View,
    Window,
)


def _split_words(text: str) -> tuple[str, ...]:
    """Return the words of a list; several words of one name have single blanks between them."""
    return tuple(" ".join(word.split()) for word in text.split(",") if word.strip())


def _load_functions(*by_parameters: str) -> MappingProxyType[str, int]:
    """Return function -> number of its parameters, from lists of those with none, one, two."""
    return MappingProxyType(
        {name: count for count, text in enumerate(by_parameters) for name in _split_words(text)}
    )


#: Of Paraver's words those that views use. Functions of a thread's records -> how many parameters they take, each a number or a list of numbers;
#: the tables behind it likewise.
THREAD = MappingProxyType(
    dict.fromkeys((*sorted(STATE_FUNCTIONS), *sorted(COMMUNICATION_FUNCTIONS)), 0)
    | _load_functions(
        "Last Evt Val, Next Evt Val, Next Evt Type, Thread ID, Node ID",
    )
)
#: Functions of levels above threads.
HIGH = _load_functions("Adding, AddingSign, Maximum", "Thread i")
#: Functions of values, whatever these were made of.
COMPOSE = _load_functions(
    """
    As Is, Sign, 1-Sign, Floor, Ceil, Stacked Val, Nesting level, Burst Time, Divide by Burst Time,
    Join Bursts
    """,
    "Div, Prod, Add, Inverse Div, Is Equal (Sign), log N",
)
#: Of composed windows.
OPERATIONS = _split_words(
    """
    add, product, divide, maximum, minimum, controlled: clear by, controlled: maximum,
    controlled: add
    """
)
#: Condition -> least and greatest number of values.
CONDITIONS = MappingProxyType(
    {"All": (0, 0), "None": (0, 0), "[x,y]": (2, 2)} | dict.fromkeys(("=", "!="), (1, 10_000))
)
DRAW_MODES = _split_words(
    "draw_last, draw_maximum, draw_randnotzero, draw_average, draw_averagenotzero"
)
STATISTICS = _split_words(
    """
    Time, % Time, % Window Time, # Bursts, # Bursts != 0, Integral, Average value, Average value != 0,
    Average per Burst != 0, Sum bursts, #Sends, Bytes sent
    """
)
#: Of these, those to which a data window of 0 adds nothing: Paraver shows no column then.
STATISTICS_OF_DATA = _split_words(
    "# Bursts != 0, Integral, Average value, Average value != 0, Average per Burst != 0, Sum bursts, #Sends, Bytes sent"
)
#: The largest number that Paraver keeps as an event type with a label.
LAST_TYPE = 2**31 - 1


def load_checked_views(path: Path) -> tuple[View, ...]:
    """Return all views of a catalogue. Raises CfgError naming the first wrong one with everything
    that is wrong with it.
    """
    views = load_views(path)
    titles, paths = set(), set()
    for view in views:
        try:
            check_view(view.cfg)
            if view.title in titles:
                raise CfgError(f"another view has the title {view.title!r}")
            if view.path in paths:
                raise CfgError("another view has this path")
        except CfgError as error:
            raise CfgError(f"{path}: {view.path.removesuffix(VIEW_SUFFIX)}: {error}") from error
        titles.add(view.title)
        paths.add(view.path)
    for title, group in load_menus(path).items():
        for view in group:
            singles = [window for window in view.cfg.windows if isinstance(window, Single)]
            types = {int(code) for window in singles for code in window.types.values}
            if details := types & list_details().keys():
                raise CfgError(
                    f"{path}: {view.path}: the menu {title} is for views whose events are written by default: {details} are not"
                )
    return views


def check_view(cfg: Cfg) -> None:
    """Check a view. Raises CfgError with everything that is wrong with it."""
    if problems := "; ".join(_find_problems(cfg)):
        raise CfgError(problems)


def _find_problems(cfg: Cfg) -> Iterator[str]:
    if not cfg.windows:
        yield "no window"
    if any(
        line.startswith(("#", "ConfigFile.", "window_")) or line.strip() != line
        for line in cfg.description.split("\n")
        if line
    ):
        yield "a line of the description looks like a part of the view"
    for number, window in enumerate(cfg.windows, 1):
        where = f"window {number} ({window.title})"
        problems = (
            _check_single(window)
            if isinstance(window, Single)
            else _check_composed(window, number, cfg.windows)
        )
        for problem in (*_check_any_window(window), *problems):
            yield f"{where}: {problem}"
    for table in cfg.tables if cfg.windows else ():
        for problem in _check_histogram(table, cfg.windows):
            yield f"histogram: {problem}"


def _check_any_window(window: Window) -> Iterator[str]:
    if not window.title.strip() or window.title.strip() != window.title or _is_odd(window.title):
        yield f"title {window.title!r} is empty, has blanks around it or holds a slash or line end"
    if window.level not in PROCESS_LEVELS:
        yield f"no level {window.level!r}"
    look = window.look
    for quantity, value, allowed in (
        ("look", look.style, LOOKS),
        ("draw mode", look.draw, DRAW_MODES),
    ):
        if value not in allowed:
            yield f"no {quantity} {value!r}"
    if look.scale is not None and not (look.style != "code" and look.scale[0] < look.scale[1]):
        yield f"scale {look.scale} is not two ascending numbers, or of a look without a scale"
    for value, color in look.colors.items():
        if len(color) != 3 or not all(0 <= part <= 255 for part in color):
            yield f"colour {color} of {value} is not three numbers up to 255"
    for place, function in window.functions.items():
        if place in COMPOSE_PLACES:
            group = COMPOSE
        elif place in DEFAULT_FUNCTIONS and (
            isinstance(window, Single) or place not in SINGLE_ONLY_PLACES
        ):
            group = THREAD if place == "thread" else HIGH
        else:
            yield f"no place {place!r} for a function"
            continue
        if function.name not in group:
            yield f"{place}: no function {function.name!r} of this group"
        elif len(function.parameters) != group[function.name] or not all(function.parameters):
            yield f"{place}: {function.name} takes {group[function.name]} parameters, not {function.parameters}"


def _is_odd(title: str) -> bool:
    return "\n" in title or "/" in title


def _check_single(window: Single) -> Iterator[str]:
    for name, condition in window.filters.items():
        if name not in FILTER_NAMES:
            yield f"no filter {name!r}"
        elif condition.condition not in CONDITIONS:
            yield f"{name}: no condition {condition.condition!r}"
        else:
            least, most = CONDITIONS[condition.condition]
            if not least <= len(condition.values) <= most:
                yield f"{name}: {len(condition.values)} values for {condition.condition!r}"
    types = window.types
    if not all(value == int(value) and 0 < value <= LAST_TYPE for value in types.values):
        yield "an event type is not within 1..2147483647"
    if len(set(types.values)) < len(types.values) and types.condition != "[x,y]":
        yield "an event type stands twice"
    if types.condition == "[x,y]" and types.values != tuple(sorted(types.values)):
        yield "the range of event types is empty"


def _check_composed(window: Window, number: int, windows: tuple[Window, ...]) -> Iterator[str]:
    if not isinstance(window, Composed):
        yield "neither single nor composed"
        return
    if window.operation not in OPERATIONS:
        yield f"no operation {window.operation!r}"
    if not all(1 <= parent < number for parent in window.parents):
        yield f"parents {window.parents} are not windows before it"
        return
    if _is_finer(window.level, [windows[parent - 1].level for parent in window.parents]):
        yield f"level {window.level} is finer than those of its parents"


def _is_finer(level: str, others: Sequence[str]) -> bool:
    """True if a level is finer than all others."""
    known = [PROCESS_LEVELS.index(one) for one in others if one in PROCESS_LEVELS]
    return level in PROCESS_LEVELS and PROCESS_LEVELS.index(level) > max(known, default=99)


def _check_histogram(histogram: Histogram, windows: tuple[Window, ...]) -> Iterator[str]:
    if not histogram.title or _is_odd(histogram.title):
        yield f"title {histogram.title!r} is empty or holds a slash or line end"
    if histogram.statistic not in STATISTICS:
        yield f"no statistic {histogram.statistic!r}"
    columns = histogram.columns
    if columns.width < 0 or (columns.first is None) != (columns.last is None):
        yield "columns need a width of at least 0, and a first with a last"
    if columns.first is not None and (columns.width == 0 or columns.last < columns.first):
        yield "columns from a first to a last need a width and an order"
    numbers = {"control": histogram.control, "data": histogram.data, "planes": histogram.planes}
    for name, number in numbers.items():
        if number is not None and not 1 <= number <= len(windows):
            yield f"{name} window {number} is not there"
            return
    if columns.first is None:
        # Where nothing passes the filters of the columns' window Paraver finds one column, of 0.
        if histogram.statistic not in STATISTICS_OF_DATA:
            yield f"{histogram.statistic} has a column of 0 where nothing is there: take {', '.join(STATISTICS_OF_DATA)}"
        elif not _is_zero_where(windows, histogram.data, histogram.control):
            yield "the data window must be 0 where the columns' window is, or a column of 0 has its values"
    control, data = windows[histogram.control - 1], windows[histogram.data - 1]
    if _is_finer(data.level, [control.level]):
        yield f"the data window's level {data.level} is finer than the control window's {control.level}"
    for above, below in ((histogram.control, histogram.data), (histogram.data, histogram.control)):
        if above != below and above in _list_ancestors(windows, below):
            yield f"window {above} is a parent of window {below}: control and data must not be"


def _is_zero_where(windows: tuple[Window, ...], number: int, other: int) -> bool:
    """True if a window is 0 wherever another one is, as far as filters and operations show: it has the same
    records, or is a product with such a window.
    """
    window, reference = windows[number - 1], windows[other - 1]
    if number == other:
        return True
    if may_change_zero(window):
        return False
    if isinstance(window, Single):
        same = isinstance(reference, Single) and window.filters == reference.filters
        return same and window.level == reference.level
    if isinstance(reference, Composed) and not may_change_zero(reference):
        made_of = [(one.operation, one.factors) for one in (window, reference)]
        pairs = zip(window.parents, reference.parents, strict=False)
        if made_of[0] == made_of[1] and all(_are_alike(windows, *pair) for pair in pairs):
            return True
    deciding = {"product": window.parents, "divide": window.parents[:1]}
    return any(
        _is_zero_where(windows, parent, other) for parent in deciding.get(window.operation, ())
    )


def _are_alike(windows: tuple[Window, ...], number: int, other: int) -> bool:
    """True if two windows are one, or have equal declarations except for names and parents, which are
    alike."""
    one, two = windows[number - 1], windows[other - 1]
    if number == other or type(one) is not type(two):
        return number == other
    if isinstance(one, Single):
        return structs.replace(two, title=one.title) == one
    alike = structs.replace(two, title=one.title, parents=one.parents) == one
    pairs = zip(one.parents, two.parents, strict=True)
    return alike and all(_are_alike(windows, *pair) for pair in pairs)


def _list_ancestors(windows: tuple[Window, ...], number: int) -> set[int]:
    window = windows[number - 1]
    if not isinstance(window, Composed):
        return set()
    return set(window.parents).union(
        *(_list_ancestors(windows, parent) for parent in window.parents)
    )
