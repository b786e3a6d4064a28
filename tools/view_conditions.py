"""Find the contents that a trace needs for a view to show something: :func:`list_conditions`.

A window is 0 where nothing passes its filters; the effect of functions and operations on 0 was observed in
Paraver.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

from nsys2prv._util.errors import Nsys2prvError
from nsys2prv._util.files import load_shipped_file
from nsys2prv.events.catalogue import load_catalogue
from nsys2prv.writers.paraver.cfg import (
    COMPOSE_PLACES,
    DEFAULT_FUNCTIONS,
    LARGE_VALUE,
    Cfg,
    Composed,
    Contents,
    Function,
    Histogram,
    Need,
    Single,
    View,
    Window,
    explain_empty_view,
    make_contents,
)

_WORDS = load_shipped_file("nsys2prv.writers.paraver", "words.yaml")
#: Functions of states, and of communications; all others are of events or rows.
STATE_FUNCTIONS = frozenset(_WORDS["state_functions"])
COMMUNICATION_FUNCTIONS = frozenset(_WORDS["communication_functions"])
#: The function of the row alone, independent of its records.
ROW_FUNCTION = "Thread ID"
#: The function that adds a number to the value.
ADDING_FUNCTION = "Add"
#: Function that may make something else of 0 -> whether it does with these numbers as parameters.
CHANGES_ZERO: dict[str, Callable[[list[float]], bool]] = {
    "1-Sign": lambda _: True,
    "Burst Time": lambda _: True,
    ADDING_FUNCTION: any,
    "Is Equal (Sign)": lambda numbers: 0 in numbers,
}
#: A function before which a number is added only to keep its argument from being 0.
LOGARITHM = "log N"
#: Operations whose result is not 0 where either of their windows is not; where the first is not.
#: That of all others is not 0 where both are not.
OPERATIONS_OF_EITHER = frozenset(("add", "maximum"))
OPERATIONS_OF_THE_FIRST = frozenset(
    ("controlled: clear by", "controlled: maximum", "controlled: add")
)
#: Statistics of the columns' window alone, independent of the data window's values.
STATISTICS_OF_COLUMNS = frozenset(("Time", "% Time", "% Window Time", "# Bursts", "# Bursts != 0"))
#: Statistics of the lines that pass the filters of the columns' window, by partner.
STATISTICS_OF_LINES = frozenset(("#Sends", "Bytes sent"))
#: Event types of CUDA's calls and work, which nearly every trace has.
CUDA_TYPES = frozenset(range(63_000_000, 63_001_000))
#: Layouts of which nearly every trace with any of CUDA's has records.
USUAL_LAYOUTS = ("cuda_api", "cuda_kernel", "memory_operation")
#: Characters of a headline.
MOST_SENTENCE = 90
#: Whatever the trace has meets it.
NOTHING_NEEDED = Need("all")


class CfgError(Nsys2prvError):
    """A view that cannot be made, or that Paraver would refuse, misunderstand or crash on."""


def list_conditions(cfg: Cfg) -> tuple[Need, ...]:
    """Return the contents that a trace needs for a view to show something, in the order in which missing ones
    are reported.

    Paraver opens no view on a trace without any event type named in the view. A timeline shows something if
    one of its open windows is not 0 throughout; a table, if none of the windows for its columns, planes and
    values is. A table with a column for 0 needs a window that finds records.
    """
    windows, table = cfg.windows, cfg.histogram
    singles = [(at, one) for at, one in enumerate(windows, 1) if isinstance(one, Single)]
    conditions = []
    if not any(one.types.condition in ("All", "None") for _, one in singles):
        conditions.append(Need("any", tuple(Need("types", window=at) for at, _ in singles)))
    if table is None:
        shown = [at for at, one in enumerate(windows, 1) if one.look.shown]
        for at, one in singles:
            # Lines of some kinds; those of all but some are drawn where there are any.
            tags = one.filters.get("tag_msg")
            if one.look.lines and tags and tags.condition == "=":
                conditions.append(Need("tags", window=at))
        return *conditions, _need_any(_list_window_needs(windows, at) for at in shown)
    if table.statistic in STATISTICS_OF_LINES:
        return *conditions, Need("tags", window=table.control)
    records = [_need_records(at, one) for at, one in singles if _name_function(one) != ROW_FUNCTION]
    if table.zero:
        conditions.append(_need_any(records))
    if table.zero and not records:
        return tuple(conditions)
    numbers = _list_table_windows(table)
    return *conditions, Need("all", tuple(_list_window_needs(windows, at) for at in numbers))


def _list_table_windows(table: Histogram) -> list[int]:
    """Return the numbers of the windows that must not be 0."""
    return [
        table.control,
        *([table.planes] if table.planes is not None else []),
        *([] if table.statistic in STATISTICS_OF_COLUMNS else [table.data]),
    ]


def _need_any(needs: Iterable[Need]) -> Need:
    needs = tuple(needs)
    if not needs or NOTHING_NEEDED in needs:
        return NOTHING_NEEDED
    return needs[0] if len(needs) == 1 else Need("any", needs)


def _list_window_needs(windows: Sequence[Window], number: int) -> Need:
    """Return the contents that a window, by its number, needs in order not to be 0 throughout."""
    window = windows[number - 1]
    if may_change_zero(window):
        return NOTHING_NEEDED
    if not isinstance(window, Composed):
        return _need_records(number, window)
    if window.operation in OPERATIONS_OF_THE_FIRST:
        return _list_window_needs(windows, window.parents[0])
    if window.operation not in OPERATIONS_OF_EITHER:
        return Need("all", tuple(_list_window_needs(windows, one) for one in window.parents))
    counted = zip(window.parents, window.factors, strict=True)
    return _need_any(_list_window_needs(windows, parent) for parent, factor in counted if factor)


def may_change_zero(window: Window) -> bool:
    """True if the functions of a window may change 0."""
    functions = [
        (function.name, [*chain(*function.parameters)])
        for place, function in window.functions.items()
        if place in COMPOSE_PLACES
    ]
    if LOGARITHM in dict(functions):
        functions = [one for one in functions if one[0] != ADDING_FUNCTION]
    return any(name in CHANGES_ZERO and CHANGES_ZERO[name](numbers) for name, numbers in functions)


def _need_records(number: int, window: Single) -> Need:
    function = _name_function(window)
    if function == ROW_FUNCTION:
        return NOTHING_NEEDED
    if function in STATE_FUNCTIONS:
        return Need("states")
    return Need("tags" if function in COMMUNICATION_FUNCTIONS else "events", window=number)


def _name_function(window: Single) -> str:
    """Return the name of a window's function of a thread's records."""
    return window.functions.get("thread", Function(DEFAULT_FUNCTIONS["thread"])).name


def find_menu_types(views: Sequence[View], known: frozenset[int]) -> list[int]:
    """Return the event types with which one of these views shows something, of all known ones."""
    return sorted({code for view in views for code in _find_telling_types(view, known)})


def list_views_for_most(views: Iterable[View], codes: Iterable[Sequence[int]]) -> list[str]:
    """Return the paths of views that show something for nearly every trace for which Paraver offers them in a
    menu, that is, for traces with any event type of the view. Nearly every trace with CUDA has API calls,
    memory operations and kernels; few have lines, states, other types and values. codes: the event types of
    each name; those of series, such as of NVTX domains, occur with others.
    """
    known = frozenset(types[0] for types in codes if len(types) == 1)
    usual = frozenset(
        field.code
        for layout in USUAL_LAYOUTS
        for field in load_catalogue().layouts[layout].fields
        if isinstance(field.code, int) and not field.detail
    )
    shown = []
    for view in views:
        # Ranges that keep Paraver from asking have types of all between.
        singles = [
            window
            for window in view.cfg.windows
            if isinstance(window, Single)
            and not (window.guards and window.types.condition == "[x,y]")
        ]
        # Paraver offers views without event types for any trace.
        types = set().union(*(_list_window_types(one, known) for one in singles)) or {0}
        contents = (_make_least_contents(code, usual) for code in types)
        if not any(explain_empty_view(view, one, {}) for one in contents):
            shown.append(view.path)
    return shown


def _make_least_contents(code: int, usual: frozenset[int]) -> Contents:
    """Return the known contents of a trace with an event type."""
    types = usual | {code} if code in CUDA_TYPES else frozenset((code,))
    values = frozenset((one, LARGE_VALUE) for one in types)
    return Contents(types, types, frozenset(), values=values)


def _find_telling_types(view: View, known_codes: frozenset[int]) -> set[int]:
    """Return the event types of a view, or only its types other than CUDA's if it shows nothing without
    those.
    """
    window_types = [
        _list_window_types(window, known_codes)
        for window in view.cfg.windows
        if isinstance(window, Single)
    ]
    needed = [
        types
        for types in window_types
        if types and explain_empty_view(view, make_contents(known_codes - types), {})
    ]
    return set().union(*([types for types in needed if not types <= CUDA_TYPES] or window_types))


def _list_window_types(window: Single, known_codes: frozenset[int]) -> set[int]:
    numbers = {int(code) for code in window.types.values}
    if window.types.condition != "[x,y]":
        return numbers
    return {code for code in known_codes if min(numbers) <= code <= max(numbers)}


def list_first_views(views: Sequence[View]) -> list[list[View]]:
    """Return the views to open first: those named in the catalogue, then timelines of named values, then
    those of numbers, the plainest of each first.
    """
    chosen = sorted(
        (view for view in views if view.first), key=lambda view: (view.first, view.path)
    )
    timelines = [view for view in views if view.cfg.histogram is None]
    timelines.sort(key=lambda view: "basics/" not in view.path)
    named = [view for view in timelines if view.cfg.windows[-1].look.style == "code"]
    return [chosen, named, [view for view in timelines if view not in named]]


def write_headline(shows: str) -> str:
    """Return the first sentence on the contents of a view; if it is long, without examples, or cut."""
    sentence = shows.partition(". ")[0].rstrip(".")
    if len(sentence) > MOST_SENTENCE:
        sentence = re.sub(r" \([^)]*\)", "", sentence)
    if len(sentence) <= MOST_SENTENCE:
        return sentence
    shortened = sentence[:MOST_SENTENCE]
    cut = max(shortened.rfind(","), shortened.rfind(";"))
    return shortened[:cut] if cut >= 0 else f"{shortened.rsplit(' ', 1)[0]} ..."
