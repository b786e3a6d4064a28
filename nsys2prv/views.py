"""The Paraver views that come with the package."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from nsys2prv.errors import Nsys2prvError

if TYPE_CHECKING:
    from nsys2prv.paraver.cfg.model import Cfg

#: Views that a summary names to be opened first.
MOST_FIRST = 5
WORKSPACES = "workspaces"


def folder() -> Path:
    """Where the views lie: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).parent
    for candidate in (package / "cfgs", package.parent / "cfgs"):
        if candidate.is_dir():
            return candidate
    raise Nsys2prvError(f"{package}: the views are missing from this installation; install nsys2prv again")


def views() -> list[str]:
    """Every view, as a path below :func:`folder`."""
    root = folder()
    return sorted(str(path.relative_to(root)) for path in root.rglob("*.cfg"))


def copy_to(target: Path) -> tuple[list[str], list[str]]:
    """Copy all views into a folder, which is made, with workspaces that make Paraver offer them; returns what was written."""
    root, copied, written = folder(), views(), []
    try:
        for view in copied:
            (target / view).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / view, target / view)
        for name, text in workspaces().items():
            written.append(f"{WORKSPACES}/{name}")
            (target / WORKSPACES).mkdir(exist_ok=True)
            (target / written[-1]).write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise Nsys2prvError(f"{error.filename2 or error.filename or target}: {error.strerror or error}") from None
    return copied, written


def workspaces() -> dict[str, str]:
    """Name -> text of files that Paraver imports: one for the views to open first and one for each folder of views."""
    from nsys2prv.paraver.cfg.catalogue import FILE, codes_of, in_order, load
    from nsys2prv.paraver.cfg.workspace import SUFFIX, workspace, workspace_text

    catalogue = folder() / FILE
    known = frozenset(code for codes in codes_of(catalogue).values() for code in codes)
    found = {view.path: view for view in load(catalogue)}
    groups = {"nsys2prv": in_order(found.values())}
    for path, view in found.items():
        groups.setdefault(f"nsys2prv {path.partition('/')[0]}", []).append(view)
    return {name.replace(" ", "-") + SUFFIX: workspace_text(workspace(name, group, known)) for name, group in groups.items()}


def fitting(trace: Path) -> list[tuple[str, str, str]]:
    """Path, title, and why it shows nothing of a trace (empty: it does) of every view, in the catalogue's order."""
    from nsys2prv.paraver.cfg.catalogue import FILE, codes_of, load
    from nsys2prv.paraver.cfg.fits import why_empty
    from nsys2prv.paraver.contents import contents

    catalogue, held = folder() / FILE, contents(trace)
    by_breadth = sorted(codes_of(catalogue).items(), key=lambda entry: -len(entry[1]))
    names = {code: name for name, codes in by_breadth for code in codes}
    return [(view.path, view.title, why_empty(view.cfg, held, names)) for view in load(catalogue)]


def first_views(types: Collection[int]) -> list[str]:
    """Up to five views worth opening first on a trace with these event types, and with lines of any kind; where the catalogue names none
    for them, timelines of the types themselves."""
    from nsys2prv.catalogue import catalogue
    from nsys2prv.paraver.cfg import FIRST
    from nsys2prv.paraver.cfg.fits import why_empty
    from nsys2prv.paraver.contents import Contents

    root = folder()
    held = Contents(frozenset(types), frozenset(types), frozenset(line.tag or 0 for line in catalogue().lines.values()))
    chosen = (root / FIRST).read_text(encoding="utf-8").splitlines()
    for found in (_read(root, chosen), _timelines(root)):
        shown = list(islice((path for path, cfg in found if not why_empty(cfg, held, {})), MOST_FIRST))
        if shown:
            return shown
    return []


def _read(root: Path, paths: Iterable[str]) -> Iterator[tuple[str, Cfg]]:
    """Views as they lie there: the catalogue of all takes ten times as long."""
    from nsys2prv.paraver.cfg.reader import read_cfg

    return ((path, read_cfg((root / path).read_text(encoding="utf-8"))) for path in paths)


def _timelines(root: Path) -> Iterator[tuple[str, Cfg]]:
    """The views that are none of tables, the plainest first."""
    from nsys2prv.paraver.cfg.catalogue import FILE, load

    found = ((view.path, view.cfg) for view in load(root / FILE) if view.cfg.histogram is None)
    yield from sorted(found, key=lambda view: not view[0].startswith("basics/"))


def listed(trace: Path, found: list[tuple[str, str, str]]) -> list[str]:
    """What :func:`fitting` found, for people."""
    shown = [(path, title) for path, title, reason in found if not reason]
    empty = [(path, reason) for path, _, reason in found if reason]
    width = max(len(path) for path, _, _ in found)
    lines = [f"{len(shown)} of {len(found)} views show something of {trace}:", *(f"  {path:<{width}}  {title}" for path, title in shown)]
    return [*lines, *([f"{len(empty)} do not:"] if empty else []), *(f"  {path:<{width}}  {reason}" for path, reason in empty)]
