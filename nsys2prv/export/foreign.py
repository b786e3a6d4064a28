"""Name files that are no exports of Nsight Systems, but that people give as such, by their content, with
what to do instead.

In: a path, or the tables of an SQLite database. Out: :class:`ForeignFile`, an error for users.
"""

from __future__ import annotations

import os
import re
import sqlite3
import zlib
from collections.abc import Container, Mapping
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from nsys2prv._util.errors import Nsys2prvError
from nsys2prv._util.files import load_shipped_file
from nsys2prv._util.text import list_some

#: Bytes at the begin of a file that are looked at; unpacked ones as well.
LOOKED_AT = 1 << 16
#: Columns of a database that are looked at.
MOST_COLUMNS = 10_000
#: How gzip files begin, and what zlib calls their format; how SQLite databases begin.
GZIP, GZIP_WINDOW, SQLITE = b"\x1f\x8b", 31, b"SQLite format 3\x00"
#: Addresses of other machines.
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+[^/]")


class ForeignFile(Nsys2prvError):
    """A file is of another kind than an export of Nsight Systems."""


@cache
def _load_kinds() -> dict[str, Any]:
    return load_shipped_file(__package__, "foreign.yaml")


def explain_foreign_file(path: Path) -> ForeignFile | None:
    """Return the error for a file of another kind; None for an export, and where nothing tells what
    it is.
    """
    head, kinds = _read_head(path), _load_kinds()
    if head.startswith(SQLITE):
        try:
            check_tables(path, _read_tables(path))
        except ForeignFile as error:
            return error
        return None
    inner = b""
    if head.startswith(GZIP):
        with suppress(zlib.error):
            inner = zlib.decompressobj(GZIP_WINDOW).decompress(head, LOOKED_AT)
    for kind in kinds["content"]:
        begins, text = bytes.fromhex(kind.get("begins", "")), kind.get("text", "").encode()
        if any(one and one.startswith(begins) and text in one for one in (head, inner)):
            return _make_error(path, kind)
    for begins, command in kinds["packed"].items():
        if head.startswith(bytes.fromhex(begins)):
            return ForeignFile(f"{path}: is a compressed file; unpack it: {command} {path.name}")
    name = path.name.lower().removesuffix(".gz")
    found = (kind for kind in kinds["names"] if name.endswith(tuple(kind["ends"])))
    return next((_make_error(path, kind) for kind in found), None)


def _read_head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(LOOKED_AT)
    except OSError:
        return b""


def _read_tables(path: Path) -> dict[str, list[str]]:
    """Return the columns of each table of a database; none where it is damaged."""
    uri = f"file:{quote(os.fsencode(path.absolute()))}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            rows = connection.execute(
                "SELECT t.name, c.name FROM sqlite_master t, pragma_table_info(t.name) c WHERE t.type = 'table'"
            ).fetchmany(MOST_COLUMNS)
    except (sqlite3.Error, UnicodeError):
        return {}
    tables: dict[str, list[str]] = {}
    for table, column in rows:
        tables.setdefault(table, []).append(column)
    return tables


def has_foreign_name(path: Path) -> bool:
    """True if a file of this name is probably the work of another profiler, or unfinished."""
    return path.name.lower().endswith((".qdstrm", ".ncu-rep", ".otf2", ".nvvp", ".nvprof", ".db"))


def check_tables(path: Path, tables: Mapping[str, Container[str]]) -> None:
    """Check that a database has a table of Nsight Systems. Raises ForeignFile otherwise. tables:
    name -> columns.
    """
    kinds = _load_kinds()
    if "StringIds" in tables:
        return
    for kind in kinds["tables"]:
        for table, columns in tables.items():
            is_named_so = table.startswith(kind["begins"])
            if is_named_so and ("column" not in kind or kind["column"] in columns):
                raise _make_error(path, kind)
    if tables and not any(re.match(kinds["own"], table) for table in tables):
        plain = [table for table in tables if re.fullmatch(r"\w{1,40}", table, re.ASCII)]
        named = f" (it has {list_some(plain, 3)})" if plain else ""
        raise ForeignFile(
            f"{path}: is an SQLite database of another program, without a table of Nsight Systems{named}; give the reports of nsys, "
            "exported with: nsys export --type sqlite REPORT.nsys-rep"
        )


def check_no_url(path: str) -> None:
    """Check that a path is none of another machine. Raises Nsys2prvError otherwise."""
    url = _URL.match(path)
    if url and not Path(path).exists():
        raise Nsys2prvError(
            f"{path}: is a URL ({url[1]}), and nsys2prv reads files; download it, and give the file"
        )


def _make_error(path: Path, kind: Mapping[str, str]) -> ForeignFile:
    return ForeignFile(f"{path}: is {kind['what']}; {kind['do'].replace('FILE', path.name)}")
