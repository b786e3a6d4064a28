"""SQLite files before they are opened: whether one is readable, what lies beside it, what its
errors may tell.
"""

from __future__ import annotations

import os
import re
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from nsys2prv._util.errors import Nsys2prvError
from nsys2prv._util.files import describe_missing_file

if TYPE_CHECKING:
    pass

MAGIC = b"SQLite format 3\x00"
#: The first bytes of a rollback journal that has something to roll back.
JOURNAL = bytes.fromhex("d9d505f920a163d7")
#: What reading a damaged database comes to; SQLite's own messages quote it, which may be no text.
DAMAGE = (sqlite3.Error, UnicodeError)
_KNOWN = re.compile(
    "malformed database schema|database disk image is malformed|file is not a database|unsupported file format"
    "|disk I/O error|string or blob too big|out of memory|columns of mixed types|table [A-Z_]+"
)


def make_database_uri(path: Path) -> str:
    """Return the read-only URI of a database file."""
    return f"file:{quote(os.fsencode(path.absolute()))}?mode=ro" + (
        "" if has_log(path) else "&immutable=1"
    )


def has_log(path: Path) -> bool:
    """True if a write-ahead log next to the database holds data that belongs to it."""
    try:
        return Path(f"{path}-wal").stat().st_size > 0
    except OSError:
        return False


def has_journal(path: Path) -> bool:
    """True if a rollback journal next to the database says that a change of it is incomplete."""
    try:
        with Path(f"{path}-journal").open("rb") as file:
            return file.read(len(JOURNAL)) == JOURNAL
    except OSError:
        return False


def remove_quoted_content(error: Exception) -> str:
    """Return SQLite's error message without quoted content, which in a damaged database may be
    anything, secrets of its user included.
    """
    text = str(error)
    match = _KNOWN.search(text)
    return (
        match[0]
        if match
        else re.split(r"[(:\"'\n]", text, maxsplit=1)[0].strip() or type(error).__name__
    )


def check_file(path: Path) -> int:
    """Return the size of the file. Raises one clear line unless this is a readable SQLite file."""
    try:
        if path.is_dir():
            raise Nsys2prvError(
                f"{path}: is a folder without tables; give .sqlite exports, or folders of nsys export --type parquetdir"
            )
        if not path.exists():
            raise Nsys2prvError(describe_missing_file(path))
        if not path.is_file():
            raise Nsys2prvError(f"{path}: is not a regular file")
        with path.open("rb") as file:
            head, size = file.read(16), os.fstat(file.fileno()).st_size
    except OSError as error:
        raise Nsys2prvError(f"{path}: cannot be read ({error.strerror or error})") from None
    if head != MAGIC:
        defect = "is empty" if not head else "is not an SQLite database"
        raise Nsys2prvError(
            f"{path}: {defect}; make one with: nsys export --type sqlite REPORT.nsys-rep"
        )
    return size
