"""Paraver views (.cfg files) as data: the words of their grammar as Paraver's loader knows them, what
is wrong with a view, and where those of the package are.

Paraver does not check a word's place: a function of the wrong group, an unknown statistic or a
derived window without parents end the program. So every name is checked against these tables before
a view is written. ``python tools/make_views.py`` writes every view of ``cfgs/catalogue`` that is
committed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from msgspec import Struct, field

from nsys2prv._util.errors import Nsys2prvError


def _split_words(text: str) -> tuple[str, ...]:
    """Return the words of a list; several words of one name have single blanks between them."""
    return tuple(" ".join(word.split()) for word in text.split(",") if word.strip())


def _load_functions(*by_parameters: str) -> MappingProxyType[str, int]:
    """Return function -> how many parameters it takes, of lists of those with none, one, two."""
    return MappingProxyType(
        {name: count for count, text in enumerate(by_parameters) for name in _split_words(text)}
    )


#: Function -> how many parameters it takes (each a number or a list of numbers), by group: those that
#: tell of state records, of communications, and of threads, with all others.
OF_STATES = _load_functions(
    "State As Is, Useful, State Sign", "Given State, In State, Not In State, State Record Dur."
)
OF_COMMUNICATIONS = _load_functions(
    """
    Last Tag, Comm Size, Comm Recv. Partner, Comm Partner, Last Send Dur., Next Recv Dur.,
    Last Send Size, Send Bytes in Transit, Send Messages in Transit, Recv Bytes in Transit,
    Recv Messages in Transit, Recv Negative Messages, Recv Negative Bytes, Number Of Sends,
    Number Of Send Bytes, Number Of Receives, Number Of Receive Bytes, Event Bytes,
    Event Sent Bytes
    """,
    "Send BandWidth, Recv BandWidth",
)
_OF_EVENTS = _load_functions(
    """
    Last Evt Type, Last Evt Val, Last Evt Val w/o Bursts, Next Evt Type, Next Evt Val,
    Int. Between Evt, Application ID, TaskID, Thread ID, Node ID, Cpu ID
    """,
    """
    Avg Next Evt Val, Avg Last Evt Val, Given Evt Val, In Evt Val, Not In Evt Val, In Appl ID,
    In Task ID, In Thread ID, In Node ID, In Cpu ID
    """,
    "In Evt Range",
)
THREAD = MappingProxyType({**_OF_EVENTS, **OF_STATES, **OF_COMMUNICATIONS})
HIGH = _load_functions(
    "Adding, AddingSign, Average, Maximum, Minimum, Mode, Changed value",
    "Activity, In Activity, Thread i, Add Tasks",
)
PROCESSOR = _load_functions("Active Thd, Active Thd Sign", "Active Thd Val, Active Thd Val Sign")
COMPOSE = _load_functions(
    """
    As Is, Sign, 1-Sign, Floor, Ceil, Round, Abs, Stacked Val, Nesting level, Enumerate, Accumulate,
    Delta, Burst Time, Divide by Burst Time, Begin Time, End Time, Join Bursts, sin, cos,
    sqrt (abs), arc tan
    """,
    """
    Mod, Mod+1, Div, Prod, Add, Subs, Complement, Inverse Div, Is Equal, Is Equal (Sign),
    In Stacked Val, LRU Depth, Timer, Translate, log N, exp
    """,
    "Select Range, Select Range [), Is In Range, Is In Range [)",
)
OPERATIONS = _split_words(
    """
    add, product, substract, divide, maximum, minimum, different, controlled: clear by,
    controlled: maximum, controlled: add, controlled: enumerate, controlled: average
    """
)

#: Place of a function in `window_selected_functions` -> its group and what stands there when
#: nothing is asked for.
SELECTED = MappingProxyType(
    {
        "cpu": (PROCESSOR, "Active Thd"),
        "appl": (HIGH, "Adding"),
        "task": (HIGH, "Adding"),
        "thread": (THREAD, "State As Is"),
        "node": (HIGH, "Adding"),
        "system": (HIGH, "Adding"),
        "workload": (HIGH, "Adding"),
    }
)
#: A composed window has no functions at these places.
SINGLE_ONLY = ("cpu", "thread")
COMPOSES = (*(f"compose_{place}" for place in SELECTED), "topcompose1", "topcompose2")
FILTERS = ("from_obj", "to_obj", "tag_msg", "size_msg", "bw_msg", "evt_type", "evt_value")
#: Condition -> least and greatest number of values.
CONDITIONS = MappingProxyType(
    {"All": (0, 0), "None": (0, 0), "[x,y]": (2, 2)}
    | dict.fromkeys(("=", "!=", ">", "<"), (1, 10_000))
)
#: From coarse to fine; the others are those of the machine.
PROCESS_LEVELS = ("workload", "appl", "task", "thread")
RESOURCE_LEVELS = ("system", "node", "cpu")
UNITS = ("Nanoseconds", "Microseconds", "Milliseconds", "Seconds", "Minutes", "Hours", "Days")
#: How a timeline is drawn -> (coloured, colour mode or none: a colour per value).
LOOKS = MappingProxyType(
    {
        "code": (True, ""),
        "gradient": (True, "window_in_null_gradient_mode"),
        "line": (False, ""),
        "fused": (True, "window_in_fused_lines_mode"),
    }
)
DRAW_MODES = _split_words(
    """
    draw_last, draw_maximum, draw_minnotzero, draw_random, draw_randnotzero, draw_average,
    draw_averagenotzero, draw_mode, draw_absolute_maximum, draw_absolute_minimum
    """
)
STATISTICS = _split_words(
    """
    Time, % Time, % Time Not Zero, % Window Time, # Bursts, % # Bursts, Integral, Average value,
    Maximum, Minimum, Average Burst Time, Stdev Burst Time, Average per Burst, Average value != 0,
    Average per Burst != 0, # Bursts != 0, Sum bursts
    """
)
COMMUNICATION_STATISTICS = _split_words(
    """
    #Sends, #Receives, Bytes sent, Bytes received, Average bytes sent, Average bytes received,
    Minimum bytes sent, Minimum bytes received, Maximum bytes sent, Maximum bytes received
    """
)
#: The largest number that Paraver keeps as an event type with a label.
LAST_TYPE = 2**31 - 1


#: An event value that no trace holds.
NO_VALUE = -1
#: Beside the views: path, description and contents of those to open first, a line of JSON each; and
#: event types that one window shows together by their values.
FIRST, GROUPS = "first.jsonl", "groups.json"


class CfgError(Nsys2prvError):
    """A view that Paraver would refuse, misunderstand or crash on."""


class Function(Struct, frozen=True):
    """A semantic function with its parameters, each a list of numbers."""

    #: As Paraver calls it.
    name: str
    #: Lists of numbers.
    parameters: tuple[tuple[float, ...], ...] = ()


class Filter(Struct, frozen=True):
    """Filter of types, values or tags."""

    #: `All`, `None`, `=`, `<`, ...
    condition: str
    #: That the condition takes.
    values: tuple[float, ...] = ()


class Look(Struct, frozen=True, omit_defaults=True):
    """Appearance of a timeline."""

    #: A key of LOOKS.
    style: str = "code"
    #: Of time, for Paraver's axis.
    units: str = "Nanoseconds"
    #: Whether communication lines are drawn.
    lines: bool = False
    #: Whether the window is opened.
    shown: bool = True
    #: How a pixel shows the many values that it stands for.
    draw: str = "draw_maximum"
    #: Value -> red, green, blue.
    colors: Mapping[int, tuple[int, int, int]] = field(default_factory=dict)
    #: Timelines of one group (from 1) are zoomed together.
    group: int = 0
    #: The values of the first and the last colour of a gradient, or of a line's bottom and top;
    #: None: those met. Values beyond it are drawn orange, with a warning sign in the corner.
    scale: tuple[float, float] | None = None


class Window(Struct, frozen=True, omit_defaults=True):
    """A timeline."""

    #: Of the window.
    title: str
    #: Of its rows: `thread`, `task`, ...
    level: str = "thread"
    #: Place (`thread`, `task`, `compose_thread`, `topcompose1`...) -> function.
    functions: Mapping[str, Function] = field(default_factory=dict)
    #: How it is drawn.
    look: Look = Look()


class Single(Window, frozen=True, tag=True):
    """A timeline of records."""

    #: Name (`evt_type`, `tag_msg`...) -> what passes.
    filters: Mapping[str, Filter] = field(default_factory=dict)
    #: Communications count by their physical times instead of the logical ones.
    physical: bool = False

    @property
    def types(self) -> Filter:
        return self.filters.get("evt_type", Filter("All"))

    @property
    def guards(self) -> bool:
        """Passes no event: it only tells Paraver's loader of which event types one suffices for the
        view.
        """
        return self.filters.get("evt_value") == Filter("=", (float(NO_VALUE),))


class Composed(Window, frozen=True, tag=True):
    """A timeline made of two others, given by their numbers in the view (from 1)."""

    #: Of two values.
    operation: str = ""
    #: Numbers of the windows, from 1.
    parents: tuple[int, int] = (0, 0)
    #: By which their values are multiplied.
    factors: tuple[float, float] = (1.0, 1.0)


class HistogramColumns(Struct, frozen=True):
    """Columns of a histogram: `width` (0: as many as Paraver thinks fit) from `first` to `last`, or
    over all values met.
    """

    #: 0 for as many columns as Paraver thinks fit.
    width: float = 1.0
    #: None for the least value met.
    first: float | None = None
    #: None for the greatest value met.
    last: float | None = None


class Histogram(Struct, frozen=True):
    """A table of the windows `control` (its values are the columns), `data` and, in 3D, `planes`."""

    #: Of the table.
    title: str
    #: Number of the window whose values are the columns.
    control: int
    #: Number of the window that is summed up.
    data: int
    #: As Paraver calls it.
    statistic: str
    #: Their width and range.
    columns: HistogramColumns = HistogramColumns()
    #: A column for 0.
    zero: bool = False
    #: Number of the window whose values are planes, None in 2D.
    planes: int | None = None
    #: The columns come by their totals, the greatest first, instead of by their values.
    sort: bool = False
    #: Those shown (from 0), where the columns follow from their values; None: all.
    rows: tuple[int, ...] | None = None


class Cfg(Struct, frozen=True):
    """A view: its windows in order, and its table, if it is one."""

    #: For people.
    description: str
    #: In order.
    windows: tuple[Single | Composed, ...]
    #: The table, None for timelines.
    histogram: Histogram | None = None


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
    if cfg.histogram is not None and cfg.windows:
        for problem in _check_histogram(cfg.histogram, cfg.windows):
            yield f"histogram: {problem}"


def _check_any_window(window: Window) -> Iterator[str]:
    if not window.title.strip() or window.title.strip() != window.title or _is_odd(window.title):
        yield f"title {window.title!r} is empty, has blanks around it or holds a slash or line end"
    if window.level not in (*PROCESS_LEVELS, *RESOURCE_LEVELS):
        yield f"no level {window.level!r}"
    look = window.look
    for quantity, value, allowed in (
        ("units", look.units, UNITS),
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
        if place in COMPOSES:
            group = COMPOSE
        elif place in SELECTED and (isinstance(window, Single) or place not in SINGLE_ONLY):
            group = SELECTED[place][0]
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
        if name not in FILTERS:
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
    levels = [windows[parent - 1].level for parent in window.parents]
    finer = f"level {window.level} is finer than those of its parents"
    yield from _check_levels(window.level, levels, finer)


def _check_levels(level: str, others: Sequence[str], finer: str) -> Iterator[str]:
    """Check that a level is of one kind with others, and not finer than all of these; `finer`: what
    is wrong then.
    """
    for kind in (PROCESS_LEVELS, RESOURCE_LEVELS):
        if all(one in kind for one in (level, *others)):
            if kind.index(level) > max(map(kind.index, others)):
                yield finer
            return
    yield "levels of processes and of resources together"


def _check_histogram(histogram: Histogram, windows: tuple[Window, ...]) -> Iterator[str]:
    if not histogram.title or _is_odd(histogram.title):
        yield f"title {histogram.title!r} is empty or holds a slash or line end"
    if histogram.statistic not in (*STATISTICS, *COMMUNICATION_STATISTICS):
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
    control, data = windows[histogram.control - 1], windows[histogram.data - 1]
    finer = (
        f"the data window's level {data.level} is finer than the control window's {control.level}"
    )
    yield from _check_levels(data.level, [control.level], finer)
    for above, below in ((histogram.control, histogram.data), (histogram.data, histogram.control)):
        if above != below and above in _list_ancestors(windows, below):
            yield f"window {above} is a parent of window {below}: control and data must not be"


def _list_ancestors(windows: tuple[Window, ...], number: int) -> set[int]:
    window = windows[number - 1]
    if not isinstance(window, Composed):
        return set()
    return set(window.parents).union(
        *(_list_ancestors(windows, parent) for parent in window.parents)
    )


def find_views_folder() -> Path:
    """Return the folder of the views: inside the installed package, or next to it in a checkout."""
    package = Path(__file__).parents[2]
    for candidate in (package / "cfgs", package.parent / "cfgs"):
        if candidate.is_dir():
            return candidate
    raise Nsys2prvError(
        f"{package}: the views are missing from this installation; install nsys2prv again"
    )


def list_core_views() -> list[str]:
    """Return every view of the core, as a path below that folder."""
    root = find_views_folder()
    return sorted(str(path.relative_to(root)) for path in root.rglob("*.cfg"))
