"""Files that can be opened read-only, whatever was given: exports themselves, or copies made in a temporary folder."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from nsys2prv.errors import Nsys2prvError
from nsys2prv.report.folder import is_export_folder
from nsys2prv.report.nsys import REPORT_ENDINGS, export
from nsys2prv.report.sqlite import check_file, has_log


def prepared(paths: Sequence[Path], folder: Path) -> Iterator[tuple[Path, Path]]:
    """For each path the export to read, an SQLite file or a folder of tables, and the path itself.

    A report of nsys is exported into `folder`. An export with a write-ahead log is copied there with its log: reading it in place
    would make SQLite write beside it.
    """
    for number, path in enumerate(paths):
        if path.suffix.lower() in REPORT_ENDINGS:
            if not path.is_file():
                raise Nsys2prvError(f"{path}: no such file")
            yield export(path, folder / str(number)), path
        elif has_log(path) and not is_export_folder(path):
            check_file(path)
            (folder / str(number)).mkdir()
            for name in (path.name, path.name + "-wal"):
                shutil.copyfile(path.with_name(name), folder / str(number) / name)
            yield folder / str(number) / path.name, path
        else:
            yield path, path
