"""Decide whether a view shows anything of a trace, from the trace's event types, small values,
communication tags and states; cut it to what it shows; and choose the views to open first.

A window is 0 where nothing passes its filters. What functions and operations make of 0 is what
Paraver was seen to make of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice

from msgspec import Struct
from msgspec.structs import replace

from nsys2prv.events.catalogue import load_catalogue
from nsys2prv.writers.paraver.cfg import (
    COMMUNICATION_FUNCTIONS,
    COMPOSE_PLACES,
    DEFAULT_FUNCTIONS,
    PROCESS_LEVELS,
    STATE_FUNCTIONS,
    Cfg,
    Composed,
    Filter,
    Function,
    Histogram,
    Single,
    View,
    Window,
    load_views,
)

#: Views that a summary names to be opened first, and the characters of a sentence on one.
MOST_FIRST, MOST_SENTENCE = 5, 90
#: Larger values are counted as this one.
LARGE_VALUE = 100
#: Values from here on label results that views compute.
NAMED_BY_VIEWS = 1_000_001
#: A list of more event types than this takes Paraver noticeable time.
LONG_LIST = 20
#: If there are more types than this only the first and the last are named.
MOST_TYPES_NAMED = 3
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
STATISTICS_OF_COLUMNS = frozenset(("Time", "% Window Time", "# Bursts"))


class Contents(Struct, frozen=True):
    """Contents of a trace."""

    #: Event types of its events.
    types: frozenset[int]
    #: Event types with a value that is not 0.
    filled: frozenset[int]
    #: Tags of communications.
    tags: frozenset[int]
    #: States of rows.
    states: frozenset[int] = frozenset()
    #: Type -> its values, LARGE_VALUE for those from LARGE_VALUE on; None if unknown.
    values: frozenset[tuple[int, int]] | None = None


def make_contents(types: Iterable[int]) -> Contents:
    """Return the contents of a trace with these event types and lines of any kind."""
    all_types = frozenset(types)
    return Contents(
        all_types, all_types, frozenset(line.tag or 0 for line in load_catalogue().lines.values())
    )


def explain_empty_view(cfg: Cfg, trace: Contents, names: Mapping[int, str]) -> str:
    """Return, in words, what a view needs and the trace lacks; empty if it shows something. names:
    event type -> name.

    A timeline shows something where one of its open windows is not 0 throughout, a table where none
    is of the windows that it takes its columns, planes and values from: what else Paraver writes
    there is all of the time, in a column of 0. One that has a column for 0 shows something where
    one of its windows finds records. It opens neither on a trace without any event type that the
    view names.
    """
    windows = _Windows(cfg.windows, trace, names)
    reasons = windows.list_missing_types() or (
        windows.explain_timelines()
        if cfg.histogram is None
        else windows.explain_table(cfg.histogram)
    )
    return "; ".join(dict.fromkeys(reasons))


def narrow_types(cfg: Cfg, present: Collection[int]) -> Cfg:
    """Return the view with long lists of event types reduced to those present; a list without any
    present type stays.
    """
    return replace(cfg, windows=tuple(_narrow_window(window, present) for window in cfg.windows))


def _narrow_window(window: Window, present: Collection[int]) -> Window:
    types = window.types if isinstance(window, Single) else Filter("All")
    values = tuple(code for code in types.values if code in present)
    if types.condition != "=" or len(types.values) <= LONG_LIST or not values:
        return window
    return replace(window, filters={**window.filters, "evt_type": Filter("=", values)})


def remove_empty_rows(cfg: Cfg, rows: Mapping[str, Sequence[Contents]]) -> Cfg:
    """Return the view with its table limited to rows that show something. rows: level -> contents
    of each of its rows.

    A table stays as it is if its columns are given and tell more than names of the view's own, or
    if one of its windows covers more than one row.
    """
    table = cfg.histogram
    if table is None or table.zero or 0 <= (table.columns.first or NAMED_BY_VIEWS) < NAMED_BY_VIEWS:
        return cfg
    level = cfg.windows[table.control - 1].level
    if any(
        window.level not in PROCESS_LEVELS
        or PROCESS_LEVELS.index(window.level) < PROCESS_LEVELS.index(level)
        for window in cfg.windows
        if level in rows
    ):
        return cfg
    row_contents = rows.get(level, ())
    shown = {contents: not explain_empty_view(cfg, contents, {}) for contents in set(row_contents)}
    chosen = tuple(number for number, contents in enumerate(row_contents) if shown[contents])
    if len(chosen) in (0, len(row_contents)):
        return cfg
    return replace(cfg, histogram=replace(table, rows=chosen))


class _Windows(Struct, frozen=True):
    """A view's windows over a trace. Methods return the reasons why something is 0 throughout,
    none if it is not.
    """

    #: The view's windows, in its order.
    windows: Sequence[Window]
    #: Contents of the trace.
    trace: Contents
    #: Event type -> name, for reasons.
    names: Mapping[int, str]

    def list_missing_types(self) -> list[str]:
        singles = [window for window in self.windows if isinstance(window, Single)]
        if any(
            window.types.condition in ("All", "None")
            or _apply_filter(window.types, self.trace.types)
            for window in singles
        ):
            return []
        return [
            f"no {_name_types(window.types, self.names)}" for window in singles if not window.guards
        ]

    def explain_timelines(self) -> list[str]:
        shown = [number for number, window in enumerate(self.windows, 1) if window.look.shown]
        return _join_reasons([self.explain_window(number) for number in shown])

    def explain_table(self, histogram: Histogram) -> list[str]:
        records = [
            self._explain_single(window)
            for window in self.windows
            if isinstance(window, Single) and _get_function_name(window) != ROW_FUNCTION
        ]
        if histogram.zero and all(records):
            return _join_reasons(records)
        numbers = [
            histogram.control,
            *([histogram.planes] if histogram.planes is not None else []),
            *([] if histogram.statistic in STATISTICS_OF_COLUMNS else [histogram.data]),
        ]
        return [reason for number in numbers for reason in self.explain_window(number)]

    def explain_window(self, number: int) -> list[str]:
        """Return the result for a window by its number, from 1."""
        window = self.windows[number - 1]
        functions = [
            (function.name, [*chain(*function.parameters)])
            for place, function in window.functions.items()
            if place in COMPOSE_PLACES
        ]
        if LOGARITHM in dict(functions):
            functions = [one for one in functions if one[0] != ADDING_FUNCTION]
        if any(name in CHANGES_ZERO and CHANGES_ZERO[name](numbers) for name, numbers in functions):
            return []
        if not isinstance(window, Composed):
            return self._explain_single(window)
        if window.operation in OPERATIONS_OF_THE_FIRST:
            return self.explain_window(window.parents[0])
        if window.operation not in OPERATIONS_OF_EITHER:
            return [reason for parent in window.parents for reason in self.explain_window(parent)]
        counted = zip(window.parents, window.factors, strict=True)
        return _join_reasons([self.explain_window(parent) for parent, factor in counted if factor])

    def _explain_single(self, window: Single) -> list[str]:
        function = _get_function_name(window)
        if function == ROW_FUNCTION:
            return []
        if function in STATE_FUNCTIONS:
            return [] if any(self.trace.states) else ["no states"]
        if function not in COMMUNICATION_FUNCTIONS:
            return list(self._explain_events(window))
        wanted = window.filters.get("tag_msg", Filter("All"))
        if _apply_filter(wanted, self.trace.tags):
            return []
        tags = ", ".join(f"{tag:.0f}" for tag in wanted.values)
        return ["no communication" + (f" of tag {tags}" if wanted.condition == "=" else "")]

    def _explain_events(self, window: Single) -> Iterator[str]:
        types = window.types
        if not _apply_filter(types, self.trace.types):
            yield f"no {_name_types(types, self.names)}"
        elif not _apply_filter(types, self.trace.filled):
            yield f"nothing but 0 in {_name_types(types, self.names)}"
        elif self.trace.values is not None and (lists := _list_wanted_values(window)):
            values = {value for code, value in self.trace.values if _apply_filter(types, (code,))}
            for wanted in lists:
                values &= {min(int(value), LARGE_VALUE) for value in wanted}
            if not any(values):
                yield f"no value {_join_words([str(int(value)) for value in lists[0] if value])} in {_name_types(types, self.names)}"


def _join_reasons(reasons: Sequence[list[str]]) -> list[str]:
    """Return the reasons of all windows; none if one window has none."""
    return [*chain(*reasons)] if all(reasons) else []


def _get_function_name(window: Single) -> str:
    """Return the name of a window's function of a thread's records."""
    return window.functions.get("thread", Function(DEFAULT_FUNCTIONS["thread"])).name


def _list_wanted_values(window: Single) -> list[tuple[float, ...]]:
    """Return lists of event values; a window shows only values that are in all of them."""
    values = window.filters.get("evt_value", Filter("All"))
    function = window.functions.get("compose_thread", Function("As Is"))
    return [
        *([values.values] if values.condition == "=" else []),
        *([function.parameters[0]] if function.name == "Is Equal (Sign)" else []),
    ]


def _apply_filter(condition: Filter, numbers: Collection[int]) -> set[int]:
    """Return the numbers that pass a filter of Paraver's."""
    values = condition.values
    match condition.condition:
        case "All":
            return set(numbers)
        case "None":
            return set()
        case "=":
            return set(numbers).intersection(values)
        case "!=":
            return set(numbers).difference(values)
    return {number for number in numbers if min(values) <= number <= max(values)}


def _name_types(types: Filter, names: Mapping[int, str]) -> str:
    """Return the types of a window by name; of a range its ends."""
    if not types.values:
        return "events"
    numbers = [int(code) for code in types.values]
    called = {names.get(number, "") for number in numbers}
    ends = types.condition == "[x,y]"
    if len(called) == 1 and called != {""}:
        numbered = f"{numbers[0]} … {numbers[-1]}" if ends else _join_words(list(map(str, numbers)))
        return f"{called.pop()} ({numbered})"
    words = [
        f"{names[number]} ({number})" if number in names else f"event type {number}"
        for number in numbers
    ]
    return " to ".join(words) if ends else _join_words(words)


def _join_words(words: Sequence[str]) -> str:
    return ", ".join(words) if len(words) <= MOST_TYPES_NAMED else f"{words[0]} … {words[-1]}"


def choose_first_views(types: Collection[int]) -> dict[str, str]:
    """Return up to five views worth opening first on a trace with these event types, and with lines
    of any kind, and what each shows in a sentence; where the catalogue names none for them,
    timelines of the types themselves.
    """
    contents = make_contents(types)
    chosen = sorted(
        (view for view in load_views().views if view.first),
        key=lambda view: (view.first, view.path),
    )
    for candidates in (chosen, _list_timelines(named=True), _list_timelines(named=False)):
        fitting = (
            (view.path, _take_first_sentence(view.shows))
            for view in candidates
            if not explain_empty_view(view.cfg, contents, {})
        )
        if first := dict(islice(fitting, MOST_FIRST)):
            return first
    return {}


def _take_first_sentence(shows: str) -> str:
    """Return the first sentence on what a view shows, or its begin."""
    sentence = shows.partition(". ")[0].rstrip(".")
    if len(sentence) <= MOST_SENTENCE:
        return sentence
    shortened = sentence[:MOST_SENTENCE]
    cut = max(shortened.rfind(","), shortened.rfind(";"))
    return shortened[:cut] if cut >= 0 else f"{shortened.rsplit(' ', 1)[0]} ..."


def _list_timelines(named: bool) -> list[View]:
    """Return the timelines, the plainest first: those whose values are named, or those of numbers,
    which may all be 0.
    """
    timelines = [
        view
        for view in load_views().views
        if view.cfg.histogram is None and (view.cfg.windows[-1].look.style == "code") == named
    ]
    return sorted(timelines, key=lambda view: "basics/" not in view.path)
