"""Paraver views (.cfg files) as data, the words of Paraver that readers and writers of views need,
and the location of the package's views.

Paraver does not check a word's place: a function of the wrong group, an unknown statistic or a
derived window without parents end the program. ``tools/view_catalogue.py`` makes the views of
``cfgs/catalogue``, and ``tools/view_checks.py`` refuses such; here none is checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from shlex import quote
from types import MappingProxyType

from msgspec import Struct, field, json

from nsys2prv._util.errors import Nsys2prvError

#: Functions on state records and on communications; all others are on events or rows.
STATE_FUNCTIONS = frozenset(
    (
        *("State As Is", "Useful", "State Sign", "Given State"),
        *("In State", "Not In State", "State Record Dur."),
    )
)
COMMUNICATION_FUNCTIONS = frozenset(
    (
        *("Last Tag", "Comm Size", "Comm Recv. Partner", "Comm Partner", "Last Send Dur."),
        *("Next Recv Dur.", "Last Send Size", "Send Bytes in Transit", "Send Messages in Transit"),
        *("Recv Bytes in Transit", "Recv Messages in Transit", "Recv Negative Messages"),
        *("Recv Negative Bytes", "Number Of Sends", "Number Of Send Bytes", "Number Of Receives"),
        *("Number Of Receive Bytes", "Event Bytes", "Event Sent Bytes"),
        *("Send BandWidth", "Recv BandWidth"),
    )
)
#: Place of a function in `window_selected_functions` -> the one there when nothing is asked for.
DEFAULT_FUNCTIONS = MappingProxyType(
    {
        "cpu": "Active Thd",
        "appl": "Adding",
        "task": "Adding",
        "thread": "State As Is",
        "node": "Adding",
        "system": "Adding",
        "workload": "Adding",
    }
)
#: A composed window has no functions at these places.
SINGLE_ONLY_PLACES = ("cpu", "thread")
COMPOSE_PLACES = (
    *(f"compose_{place}" for place in DEFAULT_FUNCTIONS),
    "topcompose1",
    "topcompose2",
)
FILTER_NAMES = ("from_obj", "to_obj", "tag_msg", "size_msg", "bw_msg", "evt_type", "evt_value")
#: Levels that are not of the machine, from coarse to fine.
PROCESS_LEVELS = ("workload", "appl", "task", "thread")
#: How a timeline is drawn -> (coloured, colour mode or none: a colour per value).
LOOKS = MappingProxyType(
    {
        "code": (True, ""),
        "gradient": (True, "window_in_null_gradient_mode"),
        "line": (False, ""),
        "fused": (True, "window_in_fused_lines_mode"),
    }
)
#: An event value that no trace holds.
NO_VALUE = -1
#: Beside the views: all that is to be known of them, as `tools/make_views.py` makes it of their
#: catalogue; and the folder, for those who ask, of the views outside of the core.
VIEWS_FILE, EXTRA = "views.json", "extra"
VIEW_SUFFIX = ".cfg"


class CfgError(Nsys2prvError):
    """A view that cannot be made, or that Paraver would refuse, misunderstand or crash on."""


class Function(Struct, frozen=True, omit_defaults=True):
    """A semantic function with its parameters, each a list of numbers."""

    #: Paraver's name of the function.
    name: str
    #: The numbers of each parameter.
    parameters: tuple[tuple[float, ...], ...] = ()


class Filter(Struct, frozen=True, omit_defaults=True):
    """Filter of types, values or tags."""

    #: `All`, `None`, `=`, `<`, ...
    condition: str
    #: Numbers that the condition compares with.
    values: tuple[float, ...] = ()


class Look(Struct, frozen=True, omit_defaults=True):
    """Appearance of a timeline."""

    #: A key of LOOKS.
    style: str = "code"
    #: Unit of the time axis.
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

    #: Title of the window.
    title: str
    #: Objects that its rows stand for: `thread`, `task`, ...
    level: str = "thread"
    #: Place (`thread`, `task`, `compose_thread`, `topcompose1`...) -> function.
    functions: Mapping[str, Function] = field(default_factory=dict)
    #: How it is drawn.
    look: Look = Look()


class Single(Window, frozen=True, tag=True):
    """A timeline of records."""

    #: Name of a filter (`evt_type`, `tag_msg`...) -> its values.
    filters: Mapping[str, Filter] = field(default_factory=dict)
    #: Communications count by their physical times instead of the logical ones.
    physical: bool = False

    @property
    def types(self) -> Filter:
        """Return the filter of event types."""
        return self.filters.get("evt_type", Filter("All"))

    @property
    def guards(self) -> bool:
        """Passes no event: it lists event types of which one suffices for Paraver to load the view."""
        return self.filters.get("evt_value") == Filter("=", (float(NO_VALUE),))


class Composed(Window, frozen=True, tag=True):
    """A timeline made of two others, given by their numbers in the view (from 1)."""

    #: Paraver's name of the operation on the parents' two values.
    operation: str = ""
    #: Numbers of the two windows, from 1.
    parents: tuple[int, int] = (0, 0)
    #: What the parents' values are multiplied by.
    factors: tuple[float, float] = (1.0, 1.0)


class HistogramColumns(Struct, frozen=True, omit_defaults=True):
    """Columns of a histogram: `width` (0: as many as Paraver thinks fit) from `first` to `last`, or
    over all values met.
    """

    #: 0 for as many columns as Paraver thinks fit.
    width: float = 1.0
    #: None for the least value met.
    first: float | None = None
    #: None for the greatest value met.
    last: float | None = None


class Histogram(Struct, frozen=True, omit_defaults=True):
    """A table of the windows `control` (its values are the columns), `data` and, in 3D, `planes`."""

    #: Title of the table.
    title: str
    #: Number of the window whose values are the columns.
    control: int
    #: Number of the window that is summed up.
    data: int
    #: Paraver's name of the statistic in the cells.
    statistic: str
    #: Width and range of the columns.
    columns: HistogramColumns = HistogramColumns()
    #: Whether 0 has a column.
    zero: bool = False
    #: Number of the window whose values are planes, None in 2D.
    planes: int | None = None
    #: The columns come by their totals, the greatest first, instead of by their values.
    sort: bool = False
    #: Those shown (from 0), where the columns follow from their values; None: all.
    rows: tuple[int, ...] | None = None
    #: The value of the plane that is shown first, 0 for none.
    plane: int = 0


class Cfg(Struct, frozen=True, omit_defaults=True):
    """A view: its windows in order, and its table, if it is one."""

    #: What the view shows, in lines for people.
    description: str
    #: Windows in the file's order; others name them by their number, from 1.
    windows: tuple[Single | Composed, ...]
    #: The table, None for timelines.
    histogram: Histogram | None = None


class View(Struct, frozen=True, omit_defaults=True):
    """A view of the package."""

    #: Path of its file, below the folder of views.
    path: str
    #: Title of the window that it shows.
    title: str
    #: What it shows, in sentences.
    shows: str
    #: Unit of the values.
    unit: str
    #: In words, the events without which it shows nothing.
    needs: str
    #: What its file says.
    cfg: Cfg
    #: Its place among the views to open first, 0 for the others.
    first: int = 0

    @property
    def is_core(self) -> bool:
        """True if it has a file in the folder; the others are made when views are written."""
        return not self.path.startswith(f"{EXTRA}/")


class Views(Struct, frozen=True):
    """All views of the package."""

    #: Name -> event types.
    codes: dict[str, tuple[int, ...]]
    #: Title of each menu -> paths of its views, in their order.
    menus: dict[str, tuple[str, ...]]
    #: Event types that one window shows together by their values.
    groups: tuple[frozenset[int], ...]
    #: Core views, then those made by rule from declarations of events.
    views: tuple[View, ...]


@cache
def load_views() -> Views:
    """Return all views of the package."""
    return json.decode((find_views_folder() / VIEWS_FILE).read_bytes(), type=Views)


def find_views_folder() -> Path:
    """Return the folder of the views: inside the installed package, or next to it in a checkout."""
    package = Path(__file__).parents[3]
    for candidate in (package / "cfgs", package.parent / "cfgs"):
        if candidate.is_dir():
            return candidate
    raise Nsys2prvError(
        f"{package}: the views are missing from this installation; install nsys2prv again"
    )


def make_view_command(trace: str, view: str, span: tuple[int, int] | None = None) -> str:
    """Return the command that opens a trace in Paraver with a view. span: begin and end (ns) of the
    time that it shows.
    """
    time = ""
    if span:
        # As many decimals as tell the two ends apart well.
        digits = min(max(11 - len(str(max(span[1] - span[0], 1))), 3), 9)
        time = f" --time {span[0] / 1e9:.{digits}f}:{span[1] / 1e9:.{digits}f}"
    return f"wxparaver {quote(trace)} $(nsys2prv cfgs --view {Path(view).stem}{time})"


def list_core_views() -> list[str]:
    """Return every view of the core, as a path below that folder."""
    root = find_views_folder()
    return sorted(str(path.relative_to(root)) for path in root.rglob("*.cfg"))
