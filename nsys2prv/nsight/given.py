"""The reports that are meant by what was given: files, folders of reports, and patterns that no
shell has expanded.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable
from pathlib import Path

from nsys2prv._util.archive import is_archive
from nsys2prv._util.errors import Nsys2prvError
from nsys2prv._util.files import FILE_ENDINGS, NOT_EXPORTED, TABLES

STORE = ".store"


def reports_meant(given: Iterable[str | Path]) -> list[Path]:
    """Return every report or store: of a folder those in it, of a pattern those that match it.
    Others stay as they are, whether or not they exist.

    Raises Nsys2prvError for a folder without any report and for a pattern that nothing matches.
    """
    return [report for one in given for report in _meant(Path(one))]


def _meant(path: Path) -> list[Path]:
    try:
        if path.is_dir() and not _is_export(path):
            return _in_folder(path)
        if path.exists() or not glob.has_magic(str(path)):
            return [path]
    except OSError:
        return [path]
    found = sorted(map(Path, glob.glob(str(path), recursive=True)))
    if not found:
        raise Nsys2prvError(f"{path}: no file matches this pattern")
    return [report for one in found for report in (_meant(one) if one.is_dir() else [one])]


def _in_folder(folder: Path) -> list[Path]:
    """Return the reports of a folder; of one that is there as nsys wrote it and exported, the
    export.
    """
    found = [path for path in sorted(folder.iterdir()) if _is_report(path)]
    exported = {path.stem for path in found if path.suffix.lower() not in NOT_EXPORTED}
    found = [
        path
        for path in found
        if path.suffix.lower() not in NOT_EXPORTED or path.stem not in exported
    ]
    if not found:
        raise Nsys2prvError(
            f"{folder}: no reports in this folder; reports are .sqlite files, folders of Parquet files or .nsys-rep files"
        )
    return found


def _is_report(path: Path) -> bool:
    if path.is_dir():
        return _is_export(path)
    return path.suffix.lower() in FILE_ENDINGS or (path.suffix == STORE and is_archive(path))


def _is_export(folder: Path) -> bool:
    """True if this folder is one report: nsys writes a file for each of its tables."""
    return any(path.suffix in TABLES and path.is_file() for path in folder.iterdir())
