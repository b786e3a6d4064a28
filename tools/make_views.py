"""Write the views of ``cfgs/catalogue``, and the package's data on them: ``python tools/make_views.py
[FOLDER]``; and make the page of views.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from declaration_checks import check_declarations
from msgspec import json
from view_catalogue import CATALOGUE, load_codes, load_menus
from view_checks import load_checked_views
from view_conditions import find_menu_types, list_first_views, list_views_for_most

from nsys2prv._util.errors import Nsys2prvError
from nsys2prv.writers.paraver.cfg import VIEW_SUFFIX, VIEWS_FILE, View, format_cfg

ROOT = Path(__file__).parent.parent
PICTURES = "views"
HEAD = """# The Paraver views

`nsys2prv cfgs --for out.prv --install` has Paraver offer those that show something of a trace in its menu Hints, by the questions that they
answer; without `--for`, those that do of nearly every trace. `nsys2prv cfgs DIR` writes them to a folder.
`nsys2prv cfgs --for out.prv` names ten views to begin with, of those that show something of a trace; with `--all` it lists them all, and
what the trace lacks for the others. `nsys2prv cfgs --for out.prv DIR` writes the views for that trace: tables then have only the rows that
show something (streams with kernels, not all threads), windows are as high as these rows need, and views of all NVTX domains open as fast as
others, for Paraver compares every event with each type that a view names. Open them with File > Load Configuration.

A view opens without questions on every trace that has the events it needs; `any of` a list of events means that one kind of them
suffices. Views whose name ends in `2dh` or `3dh`, and a few others, are tables (histograms). Any table tells other things of the same
events when another statistic is chosen: instead of a time its share (% Time), its average (Average Burst Time) or its number (# Bursts).

The pictures are Paraver's own, of the sample jobs, and made by `python docs/make_pictures.py` with the views written for their traces:
timelines zoomed to where the work is, of some of the ranks and kinds of events; tables without their totals and without the columns that
found no place.
"""
EXTRA_HEAD = """
## extra

Written by `nsys2prv cfgs --all DIR`: one view of each attribute that no view above shows alone, made by rule of what is declared of events.
`extra/basics/LAYOUT_FIELD` is a timeline, `extra/analysis/LAYOUT_time_2dh` a table of times, `extra/analysis/LAYOUT_calls_2dh` one of
numbers, `extra/hwcounters/NAME` a sampled metric. `nsys2prv cfgs --all` lists them.
"""


def make_files(views: Sequence[View], folder: Path) -> dict[Path, str]:
    """Return path -> text of everything made from the catalogue of a folder."""
    made = {folder / view.path: format_cfg(view.cfg) for view in views if view.is_core}
    menus = load_menus(folder / CATALOGUE)
    codes = load_codes(folder / CATALOGUE)
    known = frozenset(code for of_name in codes.values() for code in of_name)
    types = {title: find_menu_types(group, known) for title, group in menus.items()}
    parts = {
        "codes": codes,
        "menus": {title: [view.path for view in group] for title, group in menus.items()},
        "first": [[view.path for view in group] for group in list_first_views(views)],
        "menu_types": types,
        "for_most": list_views_for_most(chain(*menus.values()), codes.values()),
    }
    # A line for each view, so that differences can be read.
    lines = [f'"{name}": {json.encode(part).decode()},' for name, part in parts.items()]
    listed = ",\n".join(json.encode(view).decode() for view in views)
    made[folder / VIEWS_FILE] = "\n".join(["{", *lines, f'"views": [\n{listed}\n]', "}"]) + "\n"
    return made


def find_stray_views(views: Sequence[View], folder: Path) -> list[Path]:
    """Return views in the folder that the catalogue does not make."""
    made = {folder / view.path for view in views if view.is_core}
    return sorted(path for path in folder.rglob(f"*{VIEW_SUFFIX}") if path not in made)


def page() -> str:
    """Return the page of views: a table per menu, and the existing pictures of its views."""
    parts = [HEAD]
    for title, group in load_menus(ROOT / "cfgs" / CATALOGUE).items():
        parts += [f"\n## {title}\n", *_describe_views(group, ROOT / "docs")]
    return "".join([*parts, EXTRA_HEAD])


def _describe_views(views: Sequence[View], docs: Path) -> Iterator[str]:
    yield "\n| view | title | shows | unit | needs |\n|---|---|---|---|---|\n"
    for view in views:
        yield f"| {' | '.join(map(_format_cell, (f'`{view.path}`', view.title, view.shows, view.unit, view.needs)))} |\n"
    for view in views:
        picture = f"{PICTURES}/{view.path.removesuffix(VIEW_SUFFIX)}.png"
        if (docs / picture).exists():
            yield f"\n**{view.title}** (`{view.path}`)\n\n![{view.title}]({picture})\n"


def _format_cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(description="Write the Paraver views of a catalogue.")
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=Path("cfgs"),
        help=f"folder of {CATALOGUE}, where the views are written (default: cfgs)",
    )
    folder: Path = parser.parse_args(arguments).folder
    try:
        check_declarations()
        views = load_checked_views(folder / CATALOGUE)
        for path, text in make_files(views, folder).items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
    except (Nsys2prvError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for path in find_stray_views(views, folder):
        print(f"not in the catalogue: {path}", file=sys.stderr)
    core = sum(view.is_core for view in views)
    print(f"{core} views in {folder}, {len(views) - core} more with `nsys2prv cfgs --all DIR`")
    return 0


if __name__ == "__main__":
    sys.exit(main())
