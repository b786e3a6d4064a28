"""Represent Paraver views (.cfg files) as data.

This contains Paraver's keywords (``words.yaml``), the location of the package's views, and the text
of a view's file (``templates/view.cfg``). It decides whether a view has data in a trace, from event
types, small values, communication tags and states; reduces a view to the contents of a trace; and
chooses the views to open first.

Paraver does not check keywords: a function of the wrong group, an unknown statistic, or a derived
window without parents ends the program. ``tools/view_catalogue.py`` makes the views in
``cfgs/catalogue``, with the conditions under which they have data (``tools/view_conditions.py``).
``tools/view_checks.py`` refuses wrong keywords. Nothing is checked here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, islice
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from msgspec import Struct, field, json
from msgspec.structs import replace

from nsys2prv._util.errors import Nsys2prvError
from nsys2prv._util.files import load_shipped_file, load_templates
from nsys2prv._util.text import choose_decimals

if TYPE_CHECKING:
    from jinja2 import Environment

_WORDS = load_shipped_file("nsys2prv.writers.paraver", "words.yaml")
DEFAULT_FUNCTIONS: dict[str, str] = _WORDS["default_functions"]
FILTER_NAMES: list[str] = _WORDS["filter_names"]
PROCESS_LEVELS: list[str] = _WORDS["process_levels"]
LOOKS = {style: tuple(look) for style, look in _WORDS["looks"].items()}
#: A composed window has no functions at these places.
SINGLE_ONLY_PLACES = ("cpu", "thread")
COMPOSE_PLACES = (*(f"compose_{one}" for one in DEFAULT_FUNCTIONS), "topcompose1", "topcompose2")
#: An event value that occurs in no trace.
NO_VALUE = -1
#: Data files of the views: facts about all views, made by `tools/make_views.py` from the catalogue;
#: and the folder of the views outside the core.
VIEWS_FILE, EXTRA = "views.json", "extra"
VIEW_SUFFIX = ".cfg"
#: Views that a summary names to be opened first.
MOST_FIRST = 5
#: Larger values are counted as this one.
LARGE_VALUE = 100
#: Values from here on label results that views compute.
NAMED_BY_VIEWS = 1_000_001
#: A list of more event types than this takes Paraver noticeable time.
LONG_LIST = 20
#: If there are more types than this only the first and the last are named.
MOST_TYPES_NAMED = 3


class Function(Struct, frozen=True, omit_defaults=True):
    """A semantic function of Paraver (which turns records into values) with its parameters, each a
    list of numbers.
    """

    #: Paraver's name of the function.
    name: str
    #: The numbers of each parameter.
    parameters: tuple[tuple[float, ...], ...] = ()


class Filter(Struct, frozen=True, omit_defaults=True):
    """A filter that selects records of a timeline by event types, values or tags: a condition, and
    the values to compare with.
    """

    #: `All`, `None`, `=`, `<`, ...
    condition: str
    #: Numbers that the condition compares with.
    values: tuple[float, ...] = ()


#: The filter that all pass.
PASS_ALL = Filter("All")


class Look(Struct, frozen=True, omit_defaults=True):
    """Appearance of a timeline: colors, units, scale."""

    #: A key of LOOKS.
    style: str = "code"
    #: Unit of the time axis.
    units: str = "Nanoseconds"
    #: Whether communication lines are drawn.
    lines: bool = False
    #: Whether the window is opened.
    shown: bool = True
    #: How a pixel shows its many values.
    draw: str = "draw_maximum"
    #: Value -> red, green, blue.
    colors: Mapping[int, tuple[int, int, int]] = field(default_factory=dict)
    #: Timelines of one group (from 1) are zoomed together.
    group: int = 0
    #: Values of the first and last color of a gradient, or of a line's bottom and top; None for the
    #: extremes of the trace. Values beyond these are drawn in orange, with a warning sign in the
    #: corner.
    scale: tuple[float, float] | None = None


class Window(Struct, frozen=True, omit_defaults=True):
    """A timeline of a Paraver view."""

    #: Title of the window.
    title: str
    #: Objects of its rows: `thread`, `task`, ...
    level: str = "thread"
    #: Place (`thread`, `task`, `compose_thread`, `topcompose1`...) -> function.
    functions: Mapping[str, Function] = field(default_factory=dict)
    #: Its style of drawing.
    look: Look = Look()


class Single(Window, frozen=True, tag=True):
    """A timeline that shows records of the trace."""

    #: Name of a filter (`evt_type`, `tag_msg`...) -> its values.
    filters: Mapping[str, Filter] = field(default_factory=dict)
    #: Communications count by their physical times instead of the logical ones.
    physical: bool = False

    @property
    def types(self) -> Filter:
        """Return the filter that selects event types."""
        return self.filters.get("evt_type", PASS_ALL)

    @property
    def guards(self) -> bool:
        """Return True if this timeline shows nothing and only lists event types, so that Paraver
        offers the view only for traces with one of them.
        """
        return self.filters.get("evt_value") == Filter("=", (float(NO_VALUE),))


class Composed(Window, frozen=True, tag=True):
    """A timeline computed from two others, given by their numbers in the view (from 1)."""

    #: Paraver's name of the operation on the parents' two values.
    operation: str = ""
    #: Numbers of the two windows, from 1.
    parents: tuple[int, int] = (0, 0)
    #: Factors of the parents' values.
    factors: tuple[float, float] = (1.0, 1.0)


class HistogramColumns(Struct, frozen=True, omit_defaults=True):
    """Columns of a histogram: of `width` (0: Paraver chooses) from `first` to `last`, or over all
    values that occur.
    """

    #: 0 for as many columns as Paraver thinks fit.
    width: float = 1.0
    #: None for the least value met.
    first: float | None = None
    #: None for the greatest value met.
    last: float | None = None


class Histogram(Struct, frozen=True, omit_defaults=True):
    """A table of a view. The values of window `control` are its columns, those of `data` its
    contents and, in 3D, those of `planes` its planes.
    """

    #: Title of the table.
    title: str
    #: Number of the window with the values of columns.
    control: int
    #: Number of the window that is summed up.
    data: int
    #: Paraver's name of the statistic in the cells.
    statistic: str
    #: Width and range of the columns.
    columns: HistogramColumns = HistogramColumns()
    #: Whether 0 has a column.
    zero: bool = False
    #: Number of the window with the values of planes, None in 2D.
    planes: int | None = None
    #: Columns are sorted by their totals, the greatest first, instead of by their values.
    sort: bool = False
    #: Rows to show (from 0) if the columns follow from their values; None for all.
    rows: tuple[int, ...] | None = None
    #: The value of the plane that is shown first, 0 for none.
    plane: int = 0


class Cfg(Struct, frozen=True, omit_defaults=True):
    """The contents of a Paraver view file: its windows in order, and its table, if it has one."""

    #: Description of the view, in lines.
    description: str
    #: Windows in the file's order; others name them by their number, from 1.
    windows: tuple[Single | Composed, ...]
    #: The table, None for timelines.
    histogram: Histogram | None = None
    #: The tables before it, if it opens several.
    more: tuple[Histogram, ...] = ()

    @property
    def tables(self) -> tuple[Histogram, ...]:
        """All tables of the view; the last one is `histogram`."""
        return self.more if self.histogram is None else (*self.more, self.histogram)


class Need(Struct, frozen=True, omit_defaults=True):
    """Contents that a trace must have so that a view shows something: events that one of its
    windows selects, or any or all of several needs.
    """

    #: `any` or `all` of other needs, or the contents of the window: event `types`, `events`, `tags`
    #: of communications, or `states`.
    kind: str
    #: These other needs.
    needs: tuple[Need, ...] = ()
    #: Number of the window, from 1.
    window: int = 0


class View(Struct, frozen=True, omit_defaults=True):
    """A Paraver view that comes with the package."""

    #: Path of its file, below the folder of views.
    path: str
    #: Title of the window that it shows.
    title: str
    #: Description, in sentences.
    shows: str
    #: Unit of the values.
    unit: str
    #: In words, the events without which it shows nothing.
    needs: str
    #: Contents of its file.
    cfg: Cfg
    #: It shows something of a trace that meets all of these; the first unmet one explains why not.
    conditions: tuple[Need, ...] = ()
    #: Its place among the views to open first, 0 for the others.
    first: int = 0
    #: One short sentence about its contents, for views that may be opened first.
    headline: str = ""
    #: For a workspace: the views that it opens, and the views that it opens only if they show
    #: something of the trace.
    opens: tuple[str, ...] = ()
    #: See above.
    opens_if: tuple[str, ...] = ()
    #: Kernels that it needs beyond event types: `sampled`, `without Tensor Cores`; or "".
    kernels: str = ""

    @property
    def is_core(self) -> bool:
        """Return True if the view has a file in the package. Other views are made when they are
        written.
        """
        return not self.path.startswith(f"{EXTRA}/")


class Views(Struct, frozen=True):
    """All Paraver views of the package, with menus and suggestions which to open first."""

    #: Name -> event types.
    codes: dict[str, tuple[int, ...]]
    #: Title of each menu -> paths of its views, in their order.
    menus: dict[str, tuple[str, ...]]
    #: Paths of the views to open first. Each list is used if the lists before it show nothing:
    #: views of the catalogue, then timelines with named values, then timelines of numbers, which
    #: may all be 0.
    first: tuple[tuple[str, ...], ...]
    #: Title of each menu -> event types with which one of its views shows something.
    menu_types: dict[str, tuple[int, ...]]
    #: Paths of views of menus that show something of nearly every trace with any of their event types.
    for_most: tuple[str, ...]
    #: Core views, then views made from declarations of events.
    views: tuple[View, ...]


@cache
def load_views() -> Views:
    """Return all views of the package."""
    return json.decode((find_views_folder() / VIEWS_FILE).read_bytes(), type=Views)


def find_views_folder() -> Path:
    """Return the folder of the views, in the installed package or next to it in a checkout."""
    package = Path(__file__).parents[3]
    for candidate in (package / "cfgs", package.parent / "cfgs"):
        if candidate.is_dir():
            return candidate
    raise Nsys2prvError(
        f"{package}: the views are missing from this installation; install nsys2prv again"
    )


def make_view_command(trace: str, view: str, span: tuple[int, int] | None = None) -> str:
    """Return the command that opens a trace in Paraver with a view. trace, view: their paths. span:
    start and end (ns) of the time to show, None for all.
    """
    time = ""
    if span:
        digits = choose_decimals(span[1] - span[0])
        time = f" --time {span[0] / 1e9:.{digits}f}:{span[1] / 1e9:.{digits}f}"
    return f"wxparaver {quote(trace)} $(nsys2prv cfgs --view {Path(view).stem}{time})"


def list_core_views() -> list[str]:
    """Return the paths of all core views, relative to the folder of views."""
    root = find_views_folder()
    return sorted(str(path.relative_to(root)) for path in root.rglob(f"*{VIEW_SUFFIX}"))


def list_views(everything: bool) -> list[str]:
    """Return the paths of the core views, or of all views, relative to the folder to which they are
    written.
    """
    extra = (view.path for view in load_views().views if not view.is_core) if everything else ()
    return [*list_core_views(), *sorted(extra)]


def format_cfg(
    cfg: Cfg, rows: Mapping[str, int] | None = None, span: tuple[int, int] | None = None
) -> str:
    """Return the text of a view's file.

    rows: level -> number of its rows in the trace. Windows are then as high as these rows need,
    limited by the screen. span: start and end (ns of the trace) of the time to show; None for the
    whole trace.
    """
    windows = []
    for window in cfg.windows:
        is_single = isinstance(window, Single)
        usual = {
            place: function
            for place, function in DEFAULT_FUNCTIONS.items()
            if is_single or place not in SINGLE_ONLY_PLACES
        }
        chosen = _name_functions(window, usual)
        if is_single:
            filters = {name: window.filters.get(name, PASS_ALL) for name in FILTER_NAMES}
            chosen |= {name: one.condition for name, one in filters.items()}
        composes = _name_functions(window, dict.fromkeys(COMPOSE_PLACES, "As Is"))
        windows.append((window, chosen, composes))
    template = load_environment().get_template("view.cfg")
    return template.render(cfg=cfg, windows=windows, rows=rows or {}, span=span)


def combine_cfgs(description: str, cfgs: Iterable[Cfg]) -> Cfg:
    """Return a view that opens several others, with windows and tables that zoom together.
    description: of the new view.
    """
    windows: list[Single | Composed] = []
    tables: list[Histogram] = []
    for cfg in cfgs:
        before = len(windows)
        for window in cfg.windows:
            if isinstance(window, Composed):
                first, second = window.parents
                window = replace(window, parents=(before + first, before + second))
            windows.append(replace(window, look=replace(window.look, group=1)))
        for table in cfg.tables:
            planes = None if table.planes is None else before + table.planes
            control, data = before + table.control, before + table.data
            tables.append(replace(table, control=control, data=data, planes=planes))
    *more, last = tables or (None,)
    return Cfg(description, tuple(windows), last, tuple(more))


@cache
def load_environment() -> Environment:
    """Return the jinja2 templates for Paraver's files."""
    environment = load_templates(f"{__package__}.templates", keep_trailing_newline=True)
    environment.globals |= {
        "all_looks": LOOKS,
        "process_levels": PROCESS_LEVELS,
        "filter_names": FILTER_NAMES,
    }
    environment.filters |= {
        "bool": lambda value: "true" if value else "false",
        "decimals": lambda values: " ".join(f"{value:.12f}" for value in values),
        # Without exponent, blanks or needless decimals.
        "number": lambda value: (
            str(int(value)) if value == int(value) else f"{value:.12f}".rstrip("0")
        ),
        "pairs": lambda table: ", ".join(f"{{{place}, {name}}}" for place, name in table.items()),
    }
    environment.tests["single"] = lambda window: isinstance(window, Single)
    return environment


def _name_functions(window: Window, usual: Mapping[str, str]) -> dict[str, str]:
    """Return the function for each place that normally has one."""
    return {
        place: window.functions[place].name if place in window.functions else function
        for place, function in usual.items()
    }


class Contents(Struct, frozen=True):
    """Contents of a trace: event types, tags of communications, states and values."""

    #: Event types of its events.
    types: frozenset[int]
    #: Event types with a value that is not 0.
    filled: frozenset[int]
    #: Tags of communications.
    tags: frozenset[int]
    #: States of rows.
    states: frozenset[int] = frozenset()
    #: Type -> its values, LARGE_VALUE for values from LARGE_VALUE on; None if unknown.
    values: frozenset[tuple[int, int]] | None = None


def make_contents(types: Iterable[int]) -> Contents:
    """Return the contents of a trace with these event types and lines of any kind."""
    # Imported on demand, because it imports numpy.
    from nsys2prv.events.catalogue import load_catalogue

    all_types = frozenset(types)
    tags = frozenset(line.tag or 0 for line in load_catalogue().lines.values())
    return Contents(all_types, all_types, tags)


def explain_empty_view(view: View, trace: Contents, names: Mapping[int, str]) -> str:
    """Return text that explains which data the trace lacks for a view; "" if the view has data.
    names: event type -> name.
    """
    reasons = (_explain_need(one, view.cfg.windows, trace, names) for one in view.conditions)
    return "; ".join(dict.fromkeys(filter(None, next(filter(None, reasons), []))))


def _explain_need(
    need: Need, windows: Sequence[Window], trace: Contents, names: Mapping[int, str]
) -> list[str]:
    """Return the reasons why a trace does not meet a condition; [] if it does."""
    if need.kind in ("any", "all"):
        reasons = [_explain_need(one, windows, trace, names) for one in need.needs]
        return [*chain(*reasons)] if need.kind == "all" or all(reasons) else []
    if need.kind == "states":
        return [] if any(trace.states) else ["no states"]
    window = windows[need.window - 1]
    if need.kind == "types":
        if _apply_filter(window.types, trace.types):
            return []
        return ["" if window.guards else f"no {_name_types(window.types, names)}"]
    if need.kind == "events":
        return list(_explain_events(window, trace, names))
    wanted = window.filters.get("tag_msg", PASS_ALL)
    if _apply_filter(wanted, trace.tags):
        return []
    tags = ", ".join(f"{tag:.0f}" for tag in wanted.values)
    return ["no communication" + (f" of tag {tags}" if wanted.condition == "=" else "")]


def _explain_events(window: Single, trace: Contents, names: Mapping[int, str]) -> Iterator[str]:
    types = window.types
    if not _apply_filter(types, trace.types):
        yield f"no {_name_types(types, names)}"
    elif not _apply_filter(types, trace.filled):
        yield f"nothing but 0 in {_name_types(types, names)}"
    elif trace.values is not None and (lists := _list_wanted_values(window)):
        values = {value for code, value in trace.values if _apply_filter(types, (code,))}
        for wanted in lists:
            values &= {min(int(value), LARGE_VALUE) for value in wanted}
        if not any(values):
            shown = _join_words([str(int(value)) for value in lists[0] if value])
            yield f"no value {shown} in {_name_types(types, names)}"


def narrow_types(view: View, present: Collection[int]) -> View:
    """Return the view with long lists of event types reduced to those in the trace. Lists without
    any such type do not change.
    """
    windows = tuple(_narrow_window(window, present) for window in view.cfg.windows)
    return replace(view, cfg=replace(view.cfg, windows=windows))


def _narrow_window(window: Window, present: Collection[int]) -> Window:
    types = window.types if isinstance(window, Single) else PASS_ALL
    values = tuple(code for code in types.values if code in present)
    if types.condition != "=" or len(types.values) <= LONG_LIST or not values:
        return window
    return replace(window, filters={**window.filters, "evt_type": Filter("=", values)})


def remove_empty_rows(
    view: View, rows: Mapping[str, Sequence[Contents]], firsts: Sequence[int]
) -> View:
    """Limit the view's table to rows with data.

    rows: level -> contents of each of its rows. firsts: for each thread, the first thread (from 0)
    of its task. That row is kept, too, because its name contains the rank, and names of streams do
    not. A table does not change if its columns are given and include more than the view's own
    names, or if one of its windows covers more than one row.
    """
    cfg, table = view.cfg, view.cfg.histogram
    if table is None or table.zero or 0 <= (table.columns.first or NAMED_BY_VIEWS) < NAMED_BY_VIEWS:
        return view
    level = cfg.windows[table.control - 1].level
    if any(
        window.level not in PROCESS_LEVELS
        or PROCESS_LEVELS.index(window.level) < PROCESS_LEVELS.index(level)
        for window in cfg.windows
        if level in rows
    ):
        return view
    row_contents = rows.get(level, ())
    shown = {contents: not explain_empty_view(view, contents, {}) for contents in set(row_contents)}
    chosen = [number for number, contents in enumerate(row_contents) if shown[contents]]
    if level == "thread":
        chosen = sorted({*chosen, *(firsts[number] for number in chosen)})
    if len(chosen) in (0, len(row_contents)):
        return view
    *more, table = [replace(one, rows=tuple(chosen)) for one in cfg.tables]
    return replace(view, cfg=replace(cfg, histogram=table, more=tuple(more)))


def _list_wanted_values(window: Single) -> list[tuple[float, ...]]:
    """Return lists of event values. A window shows only values that are in all lists."""
    values = window.filters.get("evt_value", PASS_ALL)
    function = window.functions.get("compose_thread", Function("As Is"))
    return [
        *([values.values] if values.condition == "=" else []),
        *([function.parameters[0]] if function.name == "Is Equal (Sign)" else []),
    ]


def _apply_filter(condition: Filter, numbers: Collection[int]) -> set[int]:
    """Return the numbers that pass a Paraver filter."""
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
    """Return the event types of a window as names; for a range, its ends."""
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
    """Return up to five views that are worth opening first -> one-sentence description.

    types: event types in the trace; lines of any kind are assumed. If the catalogue names no views
    for these, return timelines of the types themselves.
    """
    contents, by_path = make_contents(types), {view.path: view for view in load_views().views}
    for paths in load_views().first:
        fitting = (path for path in paths if not explain_empty_view(by_path[path], contents, {}))
        if first := [*islice(fitting, MOST_FIRST)]:
            return {path: by_path[path].headline for path in first}
    return {}
