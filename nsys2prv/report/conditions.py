"""Conditions in SQL on rows that are in memory: SQLite itself decides, once for each distinct combination of the values they look at."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import Formatter

import numpy as np

from nsys2prv.columns import factorize_together
from nsys2prv.report.source import NULL, quoted

COMBINATIONS = "combinations_looked_at"
#: Of fewer rows so many combinations, and of more rows one for so many, are quicker to ask than the rows themselves.
FEW, ROWS_PER_COMBINATION = 1000, 8
#: A value of each type by the type's number, as in native/records.h.
OF_TYPE = (None, 0, 0.5, "", b"")


@dataclass(frozen=True)
class LookedAt:
    """The columns that conditions look at: by their values, or by nothing but the values' types, of which NULL is one."""

    values: tuple[str, ...]
    types: tuple[str, ...]


def looked_at(conditions: Sequence[str]) -> LookedAt:
    """What conditions with columns in braces look at."""
    text = "\n".join(conditions)
    names = dict.fromkeys(name for where in conditions for name in columns_asked(where))
    types = tuple(name for name in names if text.count(f"{{{name}}}") == len(
        re.findall(rf"typeof\(\{{{name}\}}\)|\{{{name}\}} IS (?:NOT )?NULL", text)))
    return LookedAt(tuple(name for name in names if name not in types), types)


def columns_asked(where: str) -> list[str]:
    """The columns that a condition has in braces."""
    return list(dict.fromkeys(name for _, name, _, _ in Formatter().parse(where) if name))


def conditions_met(connection: sqlite3.Connection, columns: Mapping[str, np.ndarray], types: Sequence[str], declared: Mapping[str, str],
                   rows: int, conditions: Sequence[str]) -> np.ndarray | None:
    """Which of some conditions each row meets, as bits: 1 is the first. None where the rows have too many combinations of values.

    columns: those that the conditions look at (int64, NULL as :data:`NULL`). types: the ones of them that hold numbers of types. declared:
    the types that the table's columns were declared with, by which SQLite compares.
    """
    values, codes = factorize_together(*columns.values()) if columns else ([], np.zeros(rows, np.int64))
    count = len(values[0]) if columns else 1
    if count > max(FEW, rows // ROWS_PER_COMBINATION):
        return None
    # One more, so that there is a table where conditions look at no column.
    combinations = zip(*(_plain(column, name in types) for name, column in zip(columns, values, strict=True)), [0] * count, strict=True)
    columns_of_table = [*(f"{quoted(name)} {'' if name in types else declared[name]}" for name in columns), "one_more"]
    connection.execute(f"CREATE TEMP TABLE {COMBINATIONS} ({', '.join(columns_of_table)})")
    try:
        connection.executemany(f"INSERT INTO {COMBINATIONS} VALUES ({', '.join('?' * len(columns_of_table))})", combinations)
        met = " + ".join(f"CASE WHEN {condition} THEN {1 << number} ELSE 0 END" for number, condition in enumerate(conditions))
        found = connection.execute(f"SELECT {met} FROM {COMBINATIONS} ORDER BY rowid").fetchall()
    finally:
        connection.execute(f"DROP TABLE {COMBINATIONS}")
    return np.fromiter((bits for bits, in found), np.int64, count)[codes]


def _plain(column: np.ndarray, of_types: bool) -> list[object]:
    """Values as SQLite takes them."""
    return [OF_TYPE[value] for value in column.tolist()] if of_types else [None if value == NULL else value for value in column.tolist()]
