"""Which reader an export needs."""

from __future__ import annotations

from pathlib import Path

from nsys2prv.report.folder import Folder, is_export_folder
from nsys2prv.report.source import Source
from nsys2prv.report.sqlite import Database


def open_source(path: str | Path) -> Source:
    """An export opened for reading: an SQLite file, or a folder of tables. Raises Nsys2prvError when it is neither."""
    return Folder(path) if is_export_folder(Path(path)) else Database(path)
