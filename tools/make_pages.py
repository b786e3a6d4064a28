"""Make the pages of the site that follow from declarations, which are not committed.

mkdocs calls :func:`on_files` (``hooks`` in mkdocs.yml); ``python tools/make_pages.py DIR`` writes them to
a folder.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import make_checks
import make_command_line
import make_efficiencies
import make_events
import make_views

#: Name of each page -> what makes its text.
PAGES: dict[str, Callable[[], str]] = {
    "checks.md": make_checks.page,
    "command-line.md": make_command_line.page,
    "efficiencies.md": make_efficiencies.page,
    "events.md": make_events.page,
    "views.md": make_views.page,
}


def on_files(files: Any, config: Any) -> Any:
    """Add the pages to the files of the site."""
    from mkdocs.structure.files import File

    for name, make in PAGES.items():
        files.append(File.generated(config, name, content=make()))
    return files


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for page, write in PAGES.items():
        (folder / page).write_text(write(), encoding="utf-8")
