"""By what their names end in reports are told from other files, without anything being opened."""

from __future__ import annotations

from pathlib import Path

#: What only nsys reads; every file that is a report; the folders that nsys makes of one.
NOT_EXPORTED = {".nsys-rep", ".qdrep"}
FILE_ENDINGS = {".sqlite", *NOT_EXPORTED}
#: Of the files of a folder of tables.
TABLES = {".parquet", ".arrow"}
FOLDER_ENDINGS = {".parquetdir", ".arrowdir"}


def named_as_report(path: Path) -> bool:
    """Whether the name is hardly that of anything else."""
    return path.suffix.lower() in FILE_ENDINGS | FOLDER_ENDINGS
