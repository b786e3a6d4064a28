"""The tables of an Nsight Systems SQLite export, as data.

``tables.sql`` holds one CREATE TABLE per table, ``enums.tsv`` the rows of the ``ENUM_*`` tables (schema 3.25.0) and
``enums_more.tsv`` those of the ones that come only with certain tables.
A new table is one more statement in ``tables.sql``; nothing here changes. Those of ``additions`` lie there, in ``*.sql`` and ``*.tsv``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

from nsys2prv.data import data_texts

USUAL, DYNAMIC = ("3.25.0", "2026.2.1.210", "2026.2"), ("3.28.1", "2026.4.1.0", "2026.4")
"""Versions of schema and product, and the product's date: of exports, and of those with dynamic tables."""

SCHEMA_CHECKSUM = "306658267 182758"
"""Of 3.25.0."""

_ENUM_STATEMENT = """CREATE TABLE {table} (
    -- {comment}

    id                          INTEGER   NOT NULL   PRIMARY KEY,      -- Enum numerical value.
    name                        TEXT,                                  -- Enum symbol name.
    label                       TEXT                                   -- Enum human name.
)"""


def _data(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


@cache
def tables() -> dict[str, str]:
    """CREATE TABLE statements by table name, in the order of a real export (the ENUM_* tables apart)."""
    text = "\n".join([_data("tables.sql"), *data_texts(f"{__package__}.additions", ".sql")])
    statements = re.findall(r"^CREATE TABLE (\w+) \(\n.*?^\)$", text, re.M | re.S)
    texts = re.findall(r"^CREATE TABLE \w+ \(\n.*?^\)$", text, re.M | re.S)
    return dict(zip(statements, texts, strict=True))


@dataclass(frozen=True)
class Enum:
    """An ENUM_* table: CREATE TABLE statement, rows (id, name, label), and the table beside which it stands ("": every
    export has it).
    """

    statement: str
    rows: list[tuple[int, str, str]]
    beside: str


@cache
def enums() -> dict[str, Enum]:
    """The ENUM_* tables by name."""
    found: dict[str, Enum] = {}
    rows: list[tuple[int, str, str]] = []
    texts = [_data("enums.tsv"), _data("enums_more.tsv"), *data_texts(f"{__package__}.additions", ".tsv")]
    for line in "".join(texts).splitlines():
        if line.startswith("> "):
            table, comment, *beside = line[2:].split("\t")
            rows = []
            found[table] = Enum(_ENUM_STATEMENT.format(table=table, comment=comment), rows, "".join(beside))
        elif not line.startswith("#"):
            number, name, label = line.split("\t")
            rows.append((int(number), name, label))
    return found


@cache
def label(enum: str, value: int) -> str:
    """The human name of one value of an ENUM_* table, such as 'Host-to-Device'."""
    return next(text for number, _, text in enums()[enum].rows if number == value)
