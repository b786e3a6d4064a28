"""The files that a catalogue makes: one per view, a list of those to open first, and a table of all for people."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nsys2prv.paraver.cfg import FIRST
from nsys2prv.paraver.cfg.catalogue import SUFFIX, View, in_order

TABLE, PICTURES = "views.md", "views"
FOLDERS = {
    "basics": "One event type each, as it stands in the trace",
    "views": "What happens when, on which row",
    "analysis": "How much, how many, how long",
    "model": "What efficiency metrics are made of",
    "hwcounters": "Metrics of GPUs and networks",
}
HEAD = """# The Paraver views

<!-- Made from cfgs/catalogue/ by `python -m nsys2prv.paraver.cfg`; change the files there instead. -->

`nsys2prv cfgs DIR` copies them to a folder, with workspaces: once these are imported (File > Preferences > Workspaces, button
`Import workspaces`), Paraver offers the views in its menu Hints on every trace that has their events. `nsys2prv cfgs --for out.prv`
lists the views that show something of a trace, and what it lacks for the others.

A view opens without questions on every trace that has the events it needs; `any of` a list of events means that one kind of them
suffices. Views whose name ends in `2dh` or `3dh`, and a few others, are tables (histograms).

The pictures are Paraver's own, of the sample jobs, and made by `python docs/make_pictures.py`: timelines zoomed to where the work is,
of some of the ranks and kinds of events; tables without their totals and without the columns that found no place.
"""


def files_of(views: Sequence[View], folder: Path) -> dict[Path, str]:
    """Path -> text of everything made from the catalogue of a folder."""
    made = {folder / view.path: view.text for view in views}
    made[folder / FIRST] = "".join(f"{view.path}\n" for view in in_order(views))
    table = table_path(folder)
    if table is not None:
        made[table] = table_text(views, table.parent)
    return made


def table_path(folder: Path) -> Path | None:
    """Where the table lies: in the docs folder beside the views, if there is one."""
    docs = folder.resolve().parent / "docs"
    return docs / TABLE if docs.is_dir() else None


def stray(views: Sequence[View], folder: Path) -> list[Path]:
    """Views in the folder that the catalogue does not make."""
    made = {folder / view.path for view in views}
    return sorted(path for path in folder.rglob(f"*{SUFFIX}") if path not in made)


def table_text(views: Sequence[View], docs: Path) -> str:
    """All views in a table per folder, each followed by the pictures that there are of its views."""
    parts = [HEAD]
    for folder, title in FOLDERS.items():
        found = [view for view in views if view.path.startswith(f"{folder}/")]
        if not found:
            continue
        parts.append(f"\n## {folder}: {title}\n\n| view | title | shows | unit | needs |\n|---|---|---|---|---|\n")
        parts += [f"| {' | '.join(map(_cell, (f'`{view.path}`', view.title, view.shows, view.unit, view.needs)))} |\n" for view in found]
        for view in found:
            picture = f"{PICTURES}/{view.path.removesuffix(SUFFIX)}.png"
            if (docs / picture).exists():
                parts.append(f"\n**{view.title}** (`{view.path}`)\n\n![{view.title}]({picture})\n")
    return "".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
