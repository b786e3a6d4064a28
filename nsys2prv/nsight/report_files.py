"""Find the files of reports, and check that they stay unchanged while they are read. Imports
neither polars nor numpy.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from nsys2prv._util.archive import is_archive
from nsys2prv._util.errors import Nsys2prvError, Unreadable
from nsys2prv._util.files import FILE_ENDINGS, NOT_EXPORTED, TABLES

STORE = ".store"


def find_reports(paths: Iterable[str | Path]) -> list[Path]:
    """Return every report or store: of a folder those in it, of a pattern those that match it.
    Others stay as they are, whether or not they exist.

    Raises Nsys2prvError for a folder without any report and for a pattern that nothing matches.
    """
    paths = list(paths)
    if "" in paths:
        raise Nsys2prvError(
            "an argument is empty, as with a variable that is not set; give the name of a report or folder"
        )
    return [report for one in paths for report in _list_reports_at(Path(one))]


def _list_reports_at(path: Path) -> list[Path]:
    try:
        if path.is_dir() and not _is_export(path):
            return _list_reports_in(path)
        if path.exists() or not glob.has_magic(str(path)):
            return [path]
    except OSError:
        return [path]
    paths = sorted(map(Path, glob.glob(str(path), recursive=True)))
    if not paths:
        raise Nsys2prvError(f"{path}: no file matches this pattern")
    return [
        report for one in paths for report in (_list_reports_at(one) if one.is_dir() else [one])
    ]


def _list_reports_in(folder: Path) -> list[Path]:
    """Return the reports of a folder; of one that is there as nsys wrote it and exported, the
    export.
    """
    paths = [path for path in sorted(folder.iterdir()) if _is_report(path)]
    exported = {path.stem for path in paths if path.suffix.lower() not in NOT_EXPORTED}
    paths = [
        path
        for path in paths
        if path.suffix.lower() not in NOT_EXPORTED or path.stem not in exported
    ]
    if not paths:
        raise Nsys2prvError(
            f"{folder}: no reports in this folder; reports are .sqlite files, folders of Parquet files or .nsys-rep files"
        )
    return paths


def _is_report(path: Path) -> bool:
    if path.is_dir():
        return _is_export(path)
    return path.suffix.lower() in FILE_ENDINGS or (path.suffix == STORE and is_archive(path))


def _is_export(folder: Path) -> bool:
    """True if this folder is one report: nsys writes a file for each of its tables."""
    return any(path.suffix in TABLES and path.is_file() for path in folder.iterdir())


Signature = tuple[tuple[str, int, int, int, int], ...]


def make_file_signature(path: Path) -> Signature:
    """Return name, device, inode, size and time of change of a file, or of all files of a folder;
    nothing where there is none.
    """
    try:
        files = sorted(entry.path for entry in os.scandir(path)) if path.is_dir() else [str(path)]
        states = [(file, os.stat(file)) for file in files]
    except OSError:
        return ()
    return tuple(
        (file, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        for file, status in states
    )


@contextmanager
def ensure_unchanged(paths: Sequence[Path]) -> Iterator[None]:
    """Check that a report was not replaced, changed or cut during the block. Raises one clear line
    otherwise, whatever error that led to.
    """
    before = {path: make_file_signature(path) for path in paths}
    try:
        yield
    except Exception:
        # Whatever it is, of what is no longer there.
        _check_unchanged(before)
        raise
    _check_unchanged(before)


def _check_unchanged(before: dict[Path, Signature]) -> None:
    for path, seen in before.items():
        now = make_file_signature(path)
        if seen and now != seen:
            change = "was replaced or changed" if now else "was removed"
            raise Unreadable(
                f"{path}: {change} while it was read; convert it again once it is complete", path
            ) from None
