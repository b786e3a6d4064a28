"""Read rows of SQLite files with the compiled core and with the sqlite3 module."""

import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

import numpy as np

from nsys2prv._util.native import core
from nsys2prv.export.database import quote_name
from nsys2prv.export.sqlite import open_database
from nsys2prv.export.sqlite_pages import VALUES, SqliteTable

#: All rowids.
ALL = -(2**63), 2**63 - 1


def connect(path: Path) -> sqlite3.Connection:
    """Open a file whose texts come as bytes behind the word text."""
    connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    connection.text_factory = lambda raw: ("text", raw)
    return connection


def read_rows_by_pages(source: SqliteTable) -> list[tuple] | None:
    """Return all rows of a table with all its columns; None where SQLite has to read it."""
    table, fields = source._pages, source.declared.fields
    if table is None:
        return None
    room = table.most_rows(0, table.leaves)
    columns = [(np.empty(room, np.int64), np.empty(room, np.uint8), core.Texts()) for _ in fields]
    try:
        rows, _ = table.decode(
            0,
            table.leaves,
            *ALL,
            [
                field.column(VALUES, *column)
                for field, column in zip(fields.values(), columns, strict=True)
            ],
        )
    except core.StandAside:
        return None
    return list(
        zip(
            *(
                to_plain_values(values[:rows], types[:rows], texts.as_list())
                for values, types, texts in columns
            ),
            strict=True,
        )
    )


def to_plain_values(values: np.ndarray, types: np.ndarray, texts: list[bytes]) -> Iterable[object]:
    """Return values as the sqlite3 module has them."""
    conversions: tuple[Callable[[int, float], object], ...] = (
        lambda value, real: None,
        lambda value, real: value,
        lambda value, real: real,
        lambda value, real: ("text", texts[value]),
        lambda value, real: texts[value],
    )
    return [
        conversions[kind](value, real)
        for value, real, kind in zip(
            values.tolist(), values.view(np.float64).tolist(), types.tolist(), strict=True
        )
    ]


def compare_tables(path: Path) -> tuple[int, list[str]]:
    """Return how many values of all tables are as SQLite has them, and the tables that it has to
    read.
    """
    values, aside = 0, []
    with closing(connect(path)) as connection, open_database(path) as source:
        for name, table in source.tables.items():
            actual = read_rows_by_pages(table)
            if actual is None:
                aside.append(name)
                continue
            # The module refuses names of columns that are no text.
            names = ", ".join(f"c{number}" for number in range(len(table.declared.fields)))
            rows = f"SELECT * FROM {quote_name(name)} NOT INDEXED ORDER BY rowid"
            expected = connection.execute(f"WITH r({names}) AS ({rows}) SELECT * FROM r").fetchall()
            assert actual == expected, name
            # 1 and 1.0 are equal, and not the same.
            assert [tuple(map(type, row)) for row in actual] == [
                tuple(map(type, row)) for row in expected
            ], name
            values += sum(map(len, expected))
    return values, aside
