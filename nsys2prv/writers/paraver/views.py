"""List the Paraver views with data in a trace; write views (all, those for a trace, or one at a
given time); and install them.

Views are installed in a subfolder of Paraver's folder in the home directory. Paraver's menu "Hints"
offers them through the workspaces in `workspaces.xml`, a Boost archive that Paraver reads at its
start (``api/workspacemanager.cpp`` in paraver-kernel). Other workspaces in the file are kept.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice, zip_longest
from pathlib import Path, PurePosixPath
from xml.etree import ElementTree

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.errors import Nsys2prvError, UsageError
from nsys2prv._util.files import load_templates, name_beside, write_complete_files
from nsys2prv.writers.paraver import check
from nsys2prv.writers.paraver.cfg import (
    Cfg,
    Contents,
    Single,
    View,
    combine_cfgs,
    explain_empty_view,
    format_cfg,
    load_environment,
    load_views,
    narrow_types,
    remove_empty_rows,
)

#: Views that a listing for a trace begins with.
MOST_VIEWS_LISTED = 10
#: Title, in a listing, of the views that are in no menu.
NO_MENU_TITLE = "In no menu (written with --all)"
#: The folder of views below Paraver's, and in it that of single views at a moment.
INSTALLED, AT_MOMENTS = "nsys2prv", "moments"
WORKSPACES_FILE = "workspaces.xml"
#: Paraver's number of workspaces for event types, and the format of each of these types.
OF_EVENTS = 2
_STORED_TYPE = struct.Struct("<iI")


class ViewFit(Struct, frozen=True):
    """A view, and the data that a trace lacks for it."""

    #: Path of the view's file, below the folder of views.
    path: str
    #: Title of the view.
    title: str
    #: Description of the data missing for it from the trace, or "".
    lacking: str


def find_views_for_trace(trace: Path) -> list[ViewFit]:
    """Return all views in the catalogue's order, each with the data that the trace lacks for it (""
    for none).
    """
    contents = TraceContents(trace).whole
    by_breadth = sorted(load_views().codes.items(), key=lambda entry: -len(entry[1]))
    names = {code: name for name, codes in by_breadth for code in codes}
    lacking: dict[str, str] = {}
    for view in load_views().views:
        members = (*view.opens, *view.opens_if)
        shown = any(not lacking[one] for one in members)
        lacking[view.path] = "" if shown else _explain(view, contents, names)
        if view.kernels and not lacking[view.path]:
            from nsys2prv.writers.paraver.kernels import explain_lacking_kernels

            lacking[view.path] = explain_lacking_kernels(trace, view.kernels)
    return [ViewFit(view.path, view.title, lacking[view.path]) for view in load_views().views]


def _explain(view: View, contents: Contents, names: Mapping[int, str]) -> str:
    """Return a text with the data that the trace lacks for a view, and the option that writes it;
    "" if nothing is missing.
    """
    lacking, option = explain_empty_view(view, contents, names), view.needs.partition("; ")[2]
    return f"{lacking}; {option}" if lacking and option else lacking


def format_views(trace: Path, fits: Collection[ViewFit], everything: bool = False) -> str:
    """Return a text that lists the views with data in a trace: a few for each menu or, with
    `everything`, all, and then those without data. fits: from :func:`find_views_for_trace`.
    """
    shown, empty = [fit for fit in fits if not fit.lacking], [fit for fit in fits if fit.lacking]
    listed = shown if everything else _choose_listed_views(shown)
    widths = [len(fit.path) for fit in (*listed, *(empty if everything else ()))]
    template = load_templates(__package__).get_template("views.txt")
    return template.render(
        trace=trace,
        fits=fits,
        shown=shown,
        empty=empty,
        everything=everything,
        menus=_group_by_menu(listed),
        more=len(shown) - len(listed),
        line=f"  %-{max(widths, default=0)}s  %s",
    )


def _choose_listed_views(shown: Iterable[ViewFit]) -> list[ViewFit]:
    """Return the views for the start of a list: the first view with data of each menu, then the
    second ones, until there are enough; then views outside the menus.
    """
    by_path = {fit.path: fit for fit in shown}
    menus = [
        [by_path[path] for path in group if path in by_path]
        for group in load_views().menus.values()
    ]
    turns = (fit for turn in zip_longest(*menus) for fit in turn if fit)
    return list(islice(dict.fromkeys((*turns, *by_path.values())), MOST_VIEWS_LISTED))


def _group_by_menu(fits: Iterable[ViewFit]) -> dict[str, list[ViewFit]]:
    """Return title of a menu -> its views in order. A view is in the first menu that has it. Views
    in no menu come last.
    """
    by_path = {fit.path: fit for fit in fits}
    groups = {}
    for title, group in load_views().menus.items():
        groups[title] = [by_path.pop(path) for path in group if path in by_path]
    groups[NO_MENU_TITLE] = list(by_path.values())
    return {title: group for title, group in groups.items() if group}


def copy_views(target: Path, trace: Path | None = None, everything: bool = False) -> list[str]:
    """Write the core views to a folder, all or none, and return their paths. The folder is created.

    trace, everything: as in :func:`make_views`.
    """
    texts = make_views(trace, everything)
    write_complete_files({target / path: text for path, text in texts.items()})
    return list(texts)


def make_views(trace: Path | None = None, everything: bool = False) -> dict[str, str]:
    """Make the files of the core views. Return path -> text.

    trace: the trace to which they are adapted. Long lists of event types are reduced to those in
    the trace, because Paraver compares every event with each type in a list. Tables have only rows
    with data, and windows are as high as their rows need. everything: also return the views in
    `extra/`.
    """
    views = [view for view in load_views().views if everything or view.is_core]
    rows: dict[str, int] = {}
    if trace:
        contents, rows = TraceContents(trace), _count_rows_by_level(trace)
        types, by_row, firsts = contents.whole.types, contents.rows, contents.firsts
        views = [remove_empty_rows(narrow_types(view, types), by_row, firsts) for view in views]
        views = _fit_workspaces(views, trace)
    return {view.path: format_cfg(choose_plane(view.cfg, trace), rows) for view in views}


def _fit_workspaces(views: Sequence[View], trace: Path) -> list[View]:
    """Return the views. Workspaces (views that open others) are reduced to views with data in the
    trace.
    """
    fits = {fit.path for fit in find_views_for_trace(trace) if not fit.lacking}
    by_path = {view.path: view.cfg for view in views}
    fitted = []
    for view in views:
        members = [by_path[path] for path in (*view.opens, *view.opens_if) if path in fits]
        combined = combine_cfgs(view.cfg.description, members) if members else view.cfg
        fitted.append(replace(view, cfg=combined))
    return fitted


def choose_plane(cfg: Cfg, trace: Path | None) -> Cfg:
    """Return a view that opens with the most interesting kernel, if it has a plane for each kernel;
    otherwise the same view.
    """
    table = cfg.histogram
    if trace is None or table is None or table.planes is None:
        return cfg
    # Imported on demand, because it imports polars.
    from nsys2prv.writers.paraver.kernels import KERNEL_TYPE, find_kernel_to_show

    window = cfg.windows[table.planes - 1]
    if not isinstance(window, Single) or KERNEL_TYPE not in window.types.values:
        return cfg
    return replace(cfg, histogram=replace(table, plane=find_kernel_to_show(trace)))


def _count_rows_by_level(trace: Path) -> dict[str, int]:
    """Return level -> number of its rows, from the .row beside a trace; empty without a .row."""
    names = name_beside(trace, ".row")
    if not names.is_file():
        return {}
    text = names.read_text(encoding="utf-8", errors="replace")
    return {
        level.lower(): int(size)
        for level, size in re.findall(r"^LEVEL (\w+) SIZE ([1-9]\d{0,8})\s*$", text, re.MULTILINE)
    }


class Workspace(Struct, frozen=True):
    """A menu of views that Paraver offers for traces with certain event types or states, as in
    `workspaces.xml`.
    """

    #: Name in the menu.
    name: str
    #: Kind: of states (1) or of events (2).
    kind: int
    #: The kind of each value, and the value in base64.
    values: list[tuple[int, str]]
    #: Path and title of each view.
    hints: list[tuple[str, str]]


def find_paraver_folder() -> Path:
    """Return Paraver's folder for a user's files."""
    return Path.home() / ".paraver"


def install_views(trace: Path | None = None, everything: bool = False) -> tuple[Path, int, int]:
    """Write the views and let Paraver offer those with data in the trace; without a trace, those
    with data in nearly every trace. Return their folder, the number of offered views, and the
    number of menus. Arguments are as in :func:`copy_views`.
    """
    home = find_paraver_folder()
    folder, path = home / INSTALLED, home / WORKSPACES_FILE
    others = [one for one in _read_workspaces(path) if not one.name.startswith("nsys2prv ")]
    texts = {folder / name: text for name, text in make_views(trace, everything).items()}
    fits = find_views_for_trace(trace) if trace else ()
    offered = {fit.path for fit in fits if not fit.lacking} or {*load_views().for_most}
    own = _list_workspaces(folder, offered)
    template = load_environment().get_template(WORKSPACES_FILE)
    write_complete_files({**texts, path: template.render(spaces=[*own, *others])})
    return folder, sum(len(space.hints) for space in own), len(own)


def write_view(
    name: str, span: tuple[int, int] | None, folder: Path | None, trace: Path | None
) -> Path:
    """Write one view with its windows set to a time span of the trace (ns), and return its path.

    name: of the file, with or without folder and ending. folder: destination, None for Paraver's
    folder. trace: its trace. Raise UsageError for an unknown view.
    """
    by_name = {PurePosixPath(view.path).stem: view for view in load_views().views}
    wanted = PurePosixPath(name).name.removesuffix(".cfg")
    if wanted not in by_name:
        near = get_close_matches(wanted, by_name, 1)
        hint = f"did you mean {near[0]}?" if near else "`nsys2prv cfgs` lists the views"
        raise UsageError(f"--view {name}: unknown view; {hint}")
    folder = folder or find_paraver_folder() / INSTALLED / AT_MOMENTS
    at = f"@{span[0]}-{span[1]}" if span else ""
    path = folder / f"{wanted}{at}.cfg"
    write_complete_files({path: make_view(by_name[wanted].path, span, trace)})
    return path


def make_view(path: str, span: tuple[int, int] | None, trace: Path | None) -> str:
    """Return the text of one view, given by its path, with its windows set to a time span of the
    trace (ns).
    """
    [view] = (one for one in load_views().views if one.path == path)
    return format_cfg(choose_plane(view.cfg, trace), span=span)


def _list_workspaces(folder: Path, offered: Collection[str]) -> list[Workspace]:
    """Return a workspace for each menu, with its offered views in a folder. Paraver shows a
    workspace for traces with an event type for which one of its views has data.
    """
    titles = {view.path: view.title for view in load_views().views}
    spaces = []
    for title, paths in load_views().menus.items():
        values = [(OF_EVENTS, _encode_type(code)) for code in load_views().menu_types[title]]
        hints = [(str(folder / path), titles[path]) for path in paths if path in offered]
        spaces.append(Workspace(f"nsys2prv {title}", OF_EVENTS, values, hints))
    return [space for space in spaces if space.hints]


def _encode_type(code: int) -> str:
    return base64.b64encode(_STORED_TYPE.pack(OF_EVENTS, code)).decode()


def _read_workspaces(path: Path) -> list[Workspace]:
    """Return the user's existing workspaces. Raise Nsys2prvError if they cannot be read, because
    they would be lost.
    """
    if not path.exists():
        return []
    try:
        root = ElementTree.parse(path).getroot()
        items = root.iterfind("workspace_manager/workspaces/item/second")
        return [*map(_read_workspace, items)]
    except (OSError, ElementTree.ParseError, ValueError, AttributeError, TypeError) as error:
        raise Nsys2prvError(
            f"{path}: Paraver's workspaces cannot be read ({error}); move the file away, and try again"
        ) from None


def _read_workspace(item: ElementTree.Element) -> Workspace:
    values = []
    for value in item.iterfind("autoTypes/item"):
        if value.find("type") is None:
            # As Paraver wrote them at first: plain numbers of events.
            values.append((OF_EVENTS, _encode_type(int(value.text))))
        else:
            values.append((int(value.findtext("type")), value.findtext("WorkspaceValue").strip()))
    hints = [
        (hint.findtext("first") or "", hint.findtext("second") or "")
        for hint in item.iterfind("hintCFGs/item")
    ]
    kind = int(item.findtext("type") or OF_EVENTS)
    return Workspace(item.findtext("name") or "", kind, values, hints)


class TraceContents:
    """Reads which event types, states and values a .prv or .prv.gz contains, in total and for each
    row. Raises Nsys2prvError, in one line, for other files.
    """

    def __init__(self, path: Path) -> None:
        if path.exists() and not path.is_file():
            raise Nsys2prvError(f"{path}: is not a regular file; give the name of a trace")
        findings = check.CheckFindings()
        opening, blocks = check.open_text(path, findings)
        header = check.read_header(opening, path.name, findings)
        if header is not None:
            self._trace = check.TraceReader(blocks, header, check.Labels())
        for finding in findings:
            if finding.rule == "damaged-gzip":
                raise Nsys2prvError(f"{path}: the compressed file is damaged: {finding.example}")
        if not opening.startswith(check.MAGIC):
            raise Nsys2prvError(
                f"{path}: not a Paraver trace: it does not start with {check.MAGIC}"
            )
        if header is None:
            raise Nsys2prvError(
                f"{path}: its header is damaged; `nsys2prv check` describes the damage"
            )
        #: Task of each thread.
        self._tasks = np.repeat(np.arange(len(header.tasks)), [count for count, _ in header.tasks])

    @property
    def whole(self) -> Contents:
        """Contents of the whole trace."""
        return self._group_contents(np.zeros_like(self._tasks), 1)[0]

    @property
    def firsts(self) -> list[int]:
        """For each thread, the first thread of its task."""
        return np.searchsorted(self._tasks, self._tasks).tolist()

    @property
    def rows(self) -> dict[str, list[Contents]]:
        """Level (`thread`, `task`) -> contents of each of its rows, in Paraver's order.
        Communication lines count for every row.
        """
        threads = len(self._tasks)
        return {
            "thread": self._group_contents(np.arange(threads), threads),
            "task": self._group_contents(self._tasks, int(self._tasks[-1]) + 1),
        }

    def _group_contents(self, groups: np.ndarray, count: int) -> list[Contents]:
        """Return the contents of each group of rows. groups: group of each row."""
        trace, group = self._trace, groups[self._trace.rows]
        pairs, states = ([set() for _ in range(count)] for _ in range(2))
        events, is_state = np.flatnonzero(trace.kinds == check.EVENTS), trace.kinds == check.STATES
        bits = np.unpackbits(trace.entries["small"][events], axis=1, bitorder="little")
        entry, value = np.nonzero(bits)
        found = np.stack([group[events[entry]], trace.numbers[events[entry]], value], 1)
        for of_group, *pair in found.tolist():
            pairs[of_group].add(tuple(pair))
        for of_group, state in np.stack([group, trace.numbers], 1)[is_state].tolist():
            states[of_group].add(state)
        tags = frozenset(trace.numbers[trace.kinds == check.TAGS].tolist())
        return [
            Contents(
                frozenset(code for code, _ in of_types),
                frozenset(code for code, value in of_types if value),
                tags,
                frozenset(of_states),
                frozenset(of_types),
            )
            for of_types, of_states in zip(pairs, states, strict=True)
        ]
