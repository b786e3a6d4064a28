"""What is a report, and which reader an export needs."""

from __future__ import annotations

from pathlib import Path

from nsys2prv.report.endings import FILE_ENDINGS
from nsys2prv.report.folder import Folder, is_export_folder
from nsys2prv.report.source import Source
from nsys2prv.report.sqlite import Database
from nsys2prv.store.archive import is_archive


def is_report(path: Path) -> bool:
    """Whether this can be taken for a report, or for a store of some."""
    return path.suffix.lower() in FILE_ENDINGS or is_export_folder(path) or is_archive(path)


def open_source(path: str | Path) -> Source:
    """An export opened for reading: an SQLite file, or a folder of tables. Raises Nsys2prvError when it is neither."""
    return Folder(path) if is_export_folder(Path(path)) else Database(path)
