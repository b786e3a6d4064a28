"""Put views where Paraver finds them: a folder below its own one in the home directory, whose views its
menu "Hints" offers by the workspaces in `workspaces.xml`; or one view alone, opened at a moment.

`workspaces.xml` is a Boost archive, which Paraver reads at its start (``api/workspacemanager.cpp`` of
paraver-kernel). Workspaces of others stay in it.
"""

from __future__ import annotations

import base64
import struct
from difflib import get_close_matches
from pathlib import Path, PurePosixPath
from xml.etree import ElementTree

from msgspec import Struct

from nsys2prv._util.errors import Nsys2prvError, UsageError
from nsys2prv.writers.paraver.cfg import load_views
from nsys2prv.writers.paraver.cfg.writer import format_cfg, load_environment
from nsys2prv.writers.paraver.views import (
    Workspace,
    choose_plane,
    copy_views,
    list_workspaces,
    write_text,
)

#: The folder of views below Paraver's, and in it that of single views at a moment.
INSTALLED, AT_MOMENTS = "nsys2prv", "moments"
WORKSPACES_FILE = "workspaces.xml"
#: What Paraver calls a workspace of events; and how it stores each of its types.
OF_EVENTS = 2
_STORED_TYPE = struct.Struct("<iI")


class StoredWorkspace(Struct, frozen=True):
    """A workspace as `workspaces.xml` has it."""

    #: Name in the menu.
    name: str
    #: Of states (1) or of events (2).
    kind: int
    #: The kind of each value, and the value in base64.
    values: list[tuple[int, str]]
    #: Path and title of each view.
    hints: list[tuple[str, str]]


def find_paraver_folder() -> Path:
    """Return the folder in which Paraver keeps what is a user's own."""
    return Path.home() / ".paraver"


def install_views(trace: Path | None = None, everything: bool = False) -> tuple[Path, int, int]:
    """Write the views and make Paraver offer them; returns their folder, and how many views and
    workspaces these are. The arguments are as in :func:`copy_views`.
    """
    home = find_paraver_folder()
    folder, path = home / INSTALLED, home / WORKSPACES_FILE
    others = [one for one in _read_workspaces(path) if not one.name.startswith("nsys2prv ")]
    copied = copy_views(folder, trace, everything)
    own = [_store_workspace(space, folder) for space in list_workspaces()]
    template = load_environment().get_template(WORKSPACES_FILE)
    write_text(path, template.render(spaces=[*own, *others]))
    return folder, len(copied), len(own)


def write_view(
    name: str, span: tuple[int, int] | None, folder: Path | None, trace: Path | None
) -> Path:
    """Write one view, its windows set to a time of the trace (ns), and return its path. name: of the
    file, with or without its folder and ending. folder: where to, None for Paraver's. trace: the one
    that it is for. Raises UsageError where there is no such view.
    """
    by_name = {PurePosixPath(view.path).stem: view for view in load_views().views}
    wanted = PurePosixPath(name).name.removesuffix(".cfg")
    if wanted not in by_name:
        near = get_close_matches(wanted, by_name, 1)
        hint = f"did you mean {near[0]}?" if near else "`nsys2prv cfgs` lists the views"
        raise UsageError(f"--view {name}: there is no such view; {hint}")
    folder = folder or find_paraver_folder() / INSTALLED / AT_MOMENTS
    at = f"@{span[0]}-{span[1]}" if span else ""
    path = folder / f"{wanted}{at}.cfg"
    write_text(path, format_cfg(choose_plane(by_name[wanted].cfg, trace), span=span))
    return path


def _store_workspace(space: Workspace, folder: Path) -> StoredWorkspace:
    values = [
        (OF_EVENTS, base64.b64encode(_STORED_TYPE.pack(OF_EVENTS, code)).decode())
        for code in space.types
    ]
    hints = [(str(folder / view.path), view.title) for view in space.views]
    return StoredWorkspace(space.name, OF_EVENTS, values, hints)


def _read_workspaces(path: Path) -> list[StoredWorkspace]:
    """Return the workspaces that a user has. Raises Nsys2prvError where they cannot be read: they
    are not to be lost.
    """
    if not path.exists():
        return []
    try:
        root = ElementTree.parse(path).getroot()
        return [
            _read_workspace(item)
            for item in root.iterfind("workspace_manager/workspaces/item/second")
        ]
    except (OSError, ElementTree.ParseError, ValueError, AttributeError, TypeError) as error:
        raise Nsys2prvError(
            f"{path}: Paraver's workspaces cannot be read ({error}); move the file away, and try again"
        ) from None


def _read_workspace(item: ElementTree.Element) -> StoredWorkspace:
    values = []
    for value in item.iterfind("autoTypes/item"):
        if value.find("type") is None:
            # As Paraver wrote them at first: plain numbers of events.
            stored = base64.b64encode(_STORED_TYPE.pack(OF_EVENTS, int(value.text))).decode()
            values.append((OF_EVENTS, stored))
        else:
            values.append((int(value.findtext("type")), value.findtext("WorkspaceValue").strip()))
    hints = [
        (hint.findtext("first") or "", hint.findtext("second") or "")
        for hint in item.iterfind("hintCFGs/item")
    ]
    kind = int(item.findtext("type") or OF_EVENTS)
    return StoredWorkspace(item.findtext("name") or "", kind, values, hints)
