"""Workspaces: how Paraver comes to offer the views in its menu "Hints" when a trace with their
event types is opened.

A file to import (.ws) is the XML of a Boost archive, in which files of views are appended behind
lines of a separator. Paraver copies those to a folder of its own, one per workspace, so their names
are without folders (``Workspace::importWSXML`` and ``importWSCFGs`` in ``api/workspace.cpp`` of
paraver-kernel). Written is the first version of the class, which names event types as plain
numbers; later ones hold the bytes of a C++ structure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence, Sized
from pathlib import PurePosixPath
from xml.sax.saxutils import escape

from msgspec import Struct

from nsys2prv.paraver.cfg.fits import explain_empty_view, make_contents
from nsys2prv.paraver.cfg.model import CfgError, Single
from nsys2prv.paraver.cfg.view_specs import View

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
