"""``python -m nsys2prv.paraver.cfg [FOLDER]``: write the views of FOLDER/catalogue, and their table
for people.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from nsys2prv._util.errors import Nsys2prvError
from nsys2prv.paraver.cfg.catalogue import FILE, is_core, load
from nsys2prv.paraver.cfg.files import files_of, stray, table_path


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m nsys2prv.paraver.cfg", description="Write the Paraver views of a catalogue."
    )
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=Path("cfgs"),
        help=f"folder of {FILE}, where the views are written; "
        "docs/views.md is written beside it if there is a docs folder (default: cfgs)",
    )
    folder: Path = parser.parse_args(arguments).folder
    try:
        views = load(folder / FILE)
        for path, text in files_of(views, folder).items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
    except (Nsys2prvError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for path in stray(views, folder):
        print(f"not in the catalogue: {path}", file=sys.stderr)
    core = sum(map(is_core, views))
    print(
        f"{core} views in {folder}, {len(views) - core} more when they are installed"
        + (f", listed in {table_path(folder)}" if table_path(folder) else "")
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
