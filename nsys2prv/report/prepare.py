"""Files that can be opened read-only, whatever was given: exports themselves, or copies made in a temporary folder."""

from __future__ import annotations

import shutil
from pathlib import Path

from nsys2prv.errors import Nsys2prvError
from nsys2prv.report.endings import NOT_EXPORTED
from nsys2prv.report.folder import is_export_folder
from nsys2prv.report.nsys import export
from nsys2prv.report.sqlite import check_file, has_journal, has_log
from nsys2prv.report.unchanged import signature

#: How often an export in use is copied, until nothing was written meanwhile.
ATTEMPTS = 5


def prepared(path: Path, folder: Path) -> tuple[Path, Path]:
    """The export to read, an SQLite file or a folder of tables, and the path itself.

    A report of nsys is exported into the new folder `folder`. An export with a write-ahead log is copied there with its log: reading it in
    place would make SQLite write beside it.
    """
    if path.suffix.lower() in NOT_EXPORTED:
        if not path.is_file():
            raise Nsys2prvError(f"{path}: no such file")
        return export(path, folder), path
    if is_export_folder(path):
        return path, path
    if has_journal(path):
        # Not rolled back here: a journal can name other files, which SQLite then deletes.
        raise Nsys2prvError(f"{path}: is being written, or its writer was killed ({path.name}-journal is beside it); wait, or export again")
    return (_copied(path, folder), path) if has_log(path) else (path, path)


def _copied(path: Path, folder: Path) -> Path:
    """A copy of an export and its log, as they were at one time."""
    check_file(path)
    folder.mkdir()
    files = [path, path.with_name(path.name + "-wal")]
    for _ in range(ATTEMPTS):
        before = [signature(file) for file in files]
        for file in files:
            shutil.copyfile(file, folder / file.name)
        if before == [signature(file) for file in files]:
            return folder / path.name
    raise Nsys2prvError(f"{path}: is being written all the time; convert it once that is done")
