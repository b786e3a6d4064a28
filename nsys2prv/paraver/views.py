"""Workspaces: how Paraver comes to offer the views in its menu "Hints" when a trace with their
event types is opened.

A file to import (.ws) is the XML of a Boost archive, in which files of views are appended behind
lines of a separator. Paraver copies those to a folder of its own, one per workspace, so their names
are without folders (``Workspace::importWSXML`` and ``importWSCFGs`` in ``api/workspace.cpp`` of
paraver-kernel). Written is the first version of the class, which names event types as plain
numbers; later ones hold the bytes of a C++ structure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence, Sized
from itertools import islice, zip_longest
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from msgspec import Struct

from nsys2prv._util.errors import Nsys2prvError
from nsys2prv.paraver.cfg import CfgError, Single
from nsys2prv.paraver.cfg.fits import explain_empty_view, make_contents

if TYPE_CHECKING:
    from nsys2prv.paraver.cfg import Cfg
    from nsys2prv.paraver.cfg.catalogue import View

SUFFIX = ".ws"
SEPARATOR = "============="
#: The archive version of Paraver's own workspaces.xml, and the version of the class.
ARCHIVE, CLASS = 17, 1
#: Event types of CUDA's calls and work, which nearly every trace has.
OF_CUDA = frozenset(range(63_000_000, 63_001_000))


class Workspace(Struct, frozen=True):
    """Views that Paraver offers together."""

    #: As Paraver shows it.
    name: str
    #: Event types of which one in a trace makes Paraver offer the views.
    types: tuple[int, ...]
    #: In the order of the menu.
    views: tuple[View, ...]


def make_workspace(name: str, views: Sequence[View], known_codes: Collection[int]) -> Workspace:
    """Return a workspace of views, offered on traces with an event type that tells that one of them
    shows something; known_codes: all types.
    """
    types = {code for view in views for code in _find_telling_types(view, frozenset(known_codes))}
    return Workspace(name, tuple(sorted(types)), tuple(views))


def _find_telling_types(view: View, known_codes: frozenset[int]) -> set[int]:
    """Return all event types of a view; but of one that shows nothing without others than CUDA's,
    those others alone.
    """
    window_types = [
        _list_window_types(window, known_codes)
        for window in view.cfg.windows
        if isinstance(window, Single)
    ]
    needed = [
        types
        for types in window_types
        if types and explain_empty_view(view.cfg, make_contents(known_codes - types), {})
    ]
    return set().union(*([types for types in needed if not types <= OF_CUDA] or window_types))


def _list_window_types(window: Single, known_codes: frozenset[int]) -> set[int]:
    numbers = {int(code) for code in window.types.values}
    if window.types.condition != "[x,y]":
        return numbers
    return {code for code in known_codes if min(numbers) <= code <= max(numbers)}


def format_workspace(space: Workspace) -> str:
    """Return the file; raises CfgError if Paraver could not import it as meant."""
    files = [PurePosixPath(view.path).name for view in space.views]
    if len(set(files)) < len(files):
        raise CfgError(f"workspace {space.name}: two views have one file name")
    hints = []
    for file, view in zip(files, space.views, strict=True):
        hints += [
            "\t\t<item>" if hints else '\t\t<item class_id="3" tracking_level="0" version="0">',
            f"\t\t\t<first>{escape(file)}</first>",
            f"\t\t\t<second>{escape(view.title)}</second>",
            "\t\t</item>",
        ]
    head = [
        '<?xml version="1.0" encoding="UTF-8" standalone="yes" ?>',
        "<!DOCTYPE boost_serialization>",
        f'<boost_serialization signature="serialization::archive" version="{ARCHIVE}">',
        f'<workspace class_id="0" tracking_level="0" version="{CLASS}">',
        f"\t<name>{escape(space.name)}</name>",
        "\t<autoTypes>",
        *_format_count(space.types),
        *(f"\t\t<item>{code}</item>" for code in space.types),
        "\t</autoTypes>",
        '\t<hintCFGs class_id="2" tracking_level="0" version="0">',
        *_format_count(files),
        *hints,
        "\t</hintCFGs>",
        "</workspace>",
        "</boost_serialization>",
        "",
    ]
    parts = [
        f"{SEPARATOR}{file}\n{view.text}" for file, view in zip(files, space.views, strict=True)
    ]
    return "\n".join(head) + "\n" + "".join(parts)


def _format_count(items: Sized) -> list[str]:
    return [f"\t\t<count>{len(items)}</count>", "\t\t<item_version>0</item_version>"]


#: Views that a summary names to be opened first, and those that a listing for a trace begins with.
MOST_FIRST, MOST_LISTED = 5, 10
#: Characters of a sentence on a view.
MOST_SENTENCE = 90
WORKSPACES = "workspaces"
#: Beside the views: path, description and contents of those to open first, a line of JSON each; and
#: event types that one window shows together by their values.
FIRST, GROUPS = "first.jsonl", "groups.json"
#: What the views are called in a listing that no menu has.
OTHERS = "In no menu"


class ViewFit(Struct, frozen=True):
    """A view and a trace."""

    path: str  #: of the view, below the folder of views
    title: str  #: of the view
    menus: tuple[str, ...]  #: titles of those that have the view
    lacking: str  #: what the trace lacks for it, in words; "" where it shows something


def find_views_folder() -> Path:
    """Return the folder of the views: inside the installed package, or next to it in a checkout."""
    package = Path(__file__).parents[1]
    for candidate in (package / "cfgs", package.parent / "cfgs"):
        if candidate.is_dir():
            return candidate
    raise Nsys2prvError(
        f"{package}: the views are missing from this installation; install nsys2prv again"
    )


def list_core_views() -> list[str]:
    """Return every view of the core, as a path below :func:`find_views_folder`."""
    root = find_views_folder()
    return sorted(str(path.relative_to(root)) for path in root.rglob("*.cfg"))


def list_extra_views() -> list[str]:
    """Return every other view, as the path that :func:`copy_views` gives it."""
    from nsys2prv.paraver.cfg.catalogue import FILE, is_core_view, load_views

    return sorted(
        view.path for view in load_views(find_views_folder() / FILE) if not is_core_view(view)
    )


def copy_views(target: Path, trace: Path | None = None) -> tuple[list[str], list[str]]:
    """Write all views into a folder, which is made, with workspaces that make Paraver offer them;
    returns what was written.

    trace: the one that they are for. Long lists of event types then name those alone that it has,
    for Paraver compares every event with each type of a list, tables have those rows alone that
    show something, and windows open as high as their rows need.
    """
    from nsys2prv.paraver.cfg.catalogue import FILE, load_views
    from nsys2prv.paraver.cfg.fits import narrow_types, remove_empty_rows
    from nsys2prv.paraver.cfg.writer import format_cfg
    from nsys2prv.paraver.check.check_trace import TraceContents

    texts = {view.path: view.text for view in load_views(find_views_folder() / FILE)}
    if trace:
        contents, rows = TraceContents(trace), _rows_by_level(trace)
        types, by_row = contents.whole.types, contents.rows
        for view in load_views(find_views_folder() / FILE):
            fitting = remove_empty_rows(narrow_types(view.cfg, types), by_row)
            texts[view.path] = format_cfg(fitting, rows)
    spaces = {f"{WORKSPACES}/{name}": text for name, text in make_workspaces().items()}
    try:
        for name, text in (texts | spaces).items():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise Nsys2prvError(
            f"{error.filename2 or error.filename or target}: {error.strerror or error}"
        ) from None
    return list(texts), list(spaces)


def _rows_by_level(trace: Path) -> dict[str, int]:
    """Return level -> number of its rows, as the file of names next to a trace tells; empty if
    there is none.
    """
    names = trace.with_name(trace.name.removesuffix(".gz")).with_suffix(".row")
    if not names.is_file():
        return {}
    text = names.read_text(encoding="utf-8", errors="replace")
    return {
        level.lower(): int(size)
        for level, size in re.findall(r"^LEVEL (\w+) SIZE ([1-9]\d{0,8})\s*$", text, re.MULTILINE)
    }


def make_workspaces() -> dict[str, str]:
    """Return name -> text of files that Paraver imports: one for each menu."""
    from nsys2prv.paraver.cfg.catalogue import FILE, load_codes, load_menus

    catalogue = find_views_folder() / FILE
    known_codes = frozenset(code for codes in load_codes(catalogue).values() for code in codes)
    groups = {f"nsys2prv {title}": group for title, group in load_menus(catalogue).items()}
    return {
        name.replace(" ", "-") + SUFFIX: format_workspace(make_workspace(name, group, known_codes))
        for name, group in groups.items()
    }


def find_views_for_trace(trace: Path) -> list[ViewFit]:
    """Return every view, with what the trace lacks for it, in the catalogue's order."""
    from nsys2prv.paraver.cfg.catalogue import FILE, load_codes, load_menus, load_views
    from nsys2prv.paraver.cfg.fits import explain_empty_view
    from nsys2prv.paraver.check.check_trace import TraceContents

    catalogue, contents = find_views_folder() / FILE, TraceContents(trace).whole
    by_breadth = sorted(load_codes(catalogue).items(), key=lambda entry: -len(entry[1]))
    names = {code: name for name, codes in by_breadth for code in codes}
    places = {
        title: {view.path for view in group} for title, group in load_menus(catalogue).items()
    }
    return [
        ViewFit(
            view.path,
            view.title,
            tuple(title for title, paths in places.items() if view.path in paths),
            explain_empty_view(view.cfg, contents, names),
        )
        for view in load_views(catalogue)
    ]


def choose_listed_views(fits: Collection[ViewFit]) -> dict[str, list[ViewFit]]:
    """Return title of a menu -> those of its views that a listing begins with: of all menus the
    first view that shows something of the trace, then of all the second, until there are enough.
    """
    from nsys2prv.paraver.cfg.catalogue import FILE, load_menus

    shown = {fit.path: fit for fit in fits if not fit.lacking}
    ranks = {
        title: [shown[view.path] for view in group if view.path in shown]
        for title, group in load_menus(find_views_folder() / FILE).items()
    }
    turns = (fit for turn in zip_longest(*ranks.values()) for fit in turn if fit)
    chosen = list(islice(dict.fromkeys(turns), MOST_LISTED))
    return {
        title: [fit for fit in group if fit in chosen and fit.menus[0] == title]
        for title, group in ranks.items()
    }


def choose_first_views(types: Collection[int]) -> dict[str, str]:
    """Return up to five views worth opening first on a trace with these event types, and with lines
    of any kind, and what each shows in a sentence; where the catalogue names none for them,
    timelines of the types themselves.
    """
    from msgspec import json

    from nsys2prv.paraver.cfg import Cfg
    from nsys2prv.paraver.cfg.fits import explain_empty_view, make_contents

    contents = make_contents(types)
    # The catalogue of all takes ten times as long.
    chosen = json.Decoder(tuple[str, str, Cfg]).decode_lines(
        (find_views_folder() / FIRST).read_bytes()
    )
    for candidates in (chosen, _list_timelines(named=True), _list_timelines(named=False)):
        fitting = (
            (path, _take_first_sentence(shows))
            for path, shows, cfg in candidates
            if not explain_empty_view(cfg, contents, {})
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


def _list_timelines(named: bool) -> Iterator[tuple[str, str, Cfg]]:
    """Yield path, description and view of those that are none of tables, the plainest first: those
    of values with names, or those of numbers, which may all be 0.
    """
    from nsys2prv.paraver.cfg.catalogue import FILE, load_views

    timelines = [
        (view.path, view.shows, view.cfg)
        for view in load_views(find_views_folder() / FILE)
        if view.cfg.histogram is None and (view.cfg.windows[-1].look.style == "code") == named
    ]
    yield from sorted(timelines, key=lambda view: "basics/" not in view[0])


def format_views(trace: Path, fits: Collection[ViewFit], everything: bool = False) -> list[str]:
    """Format the result of :func:`find_views_for_trace`: views to begin with by menu, or all of
    them.
    """
    shown, empty = [fit for fit in fits if not fit.lacking], [fit for fit in fits if fit.lacking]
    groups = _group_by_menu(shown) if everything else choose_listed_views(fits)
    named = [fit for group in groups.values() for fit in group] + (empty if everything else [])
    width = max((len(fit.path) for fit in named), default=0)
    head = f"{len(shown)} of {len(fits)} views show something of {trace}" + (
        ":" if everything or not shown else "; to begin with:"
    )
    lines = [head]
    for title, group in groups.items():
        lines += [title, *(f"  {fit.path:<{width}}  {fit.title}" for fit in group)] if group else []
    if everything and empty:
        lines.append(f"{len(empty)} do not:")
        lines += [f"  {fit.path:<{width}}  {fit.lacking}" for fit in empty]
    elif not everything and (rest := len(shown) - len(named)):
        lines.append(f"and {rest} more; --all lists them, and what the trace lacks for the others")
    return lines


def _group_by_menu(fits: Iterable[ViewFit]) -> dict[str, list[ViewFit]]:
    """Return title of a menu -> its views, each in the first menu that has it, in their order
    there; behind them those that no menu has.
    """
    from nsys2prv.paraver.cfg.catalogue import FILE, load_menus

    groups: dict[str, list[ViewFit]] = {
        title: [] for title in (*load_menus(find_views_folder() / FILE), OTHERS)
    }
    order = [
        view.path for group in load_menus(find_views_folder() / FILE).values() for view in group
    ]
    for fit in sorted(fits, key=lambda fit: order.index(fit.path) if fit.menus else len(order)):
        groups[fit.menus[0] if fit.menus else OTHERS].append(fit)
    return groups
