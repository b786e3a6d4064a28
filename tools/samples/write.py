"""Writing one export: rows in bulk into SQLite, strings once, and a tally of everything written."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import schema

Column = NDArray[Any] | list[Any] | int | str | None
"""One value per row, or one value for all rows."""

_COMPACT_BELOW_ROWS = 1_000_000


class Tally:
    """Counts, summed durations (ns) and bytes of the rows written, by table and by a label (a name or kind)."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[str, list[int]]] = {}

    def add(
        self,
        table: str,
        labels: Sequence[str],
        durations: NDArray[np.int64],
        sizes: NDArray[np.int64] | None = None,
        kept: NDArray[np.bool_] | None = None,
    ) -> None:
        """Rows with the axes (run, label); only those ``kept``."""
        counts = np.full(durations.shape[1], durations.shape[0]) if kept is None else kept.sum(axis=0)
        totals = (durations if kept is None else durations * kept).sum(axis=0).tolist()
        volumes = repeat(0) if sizes is None else (sizes * counts).tolist()
        found = self.tables.setdefault(table, {})
        for name, count, total, volume in zip(labels, counts.tolist(), totals, volumes, strict=False):
            if kept is not None and not count:
                continue
            entry = found.setdefault(name, [0, 0, 0])
            entry[0] += count
            entry[1] += total
            entry[2] += volume

    def summary(self) -> dict[str, Any]:
        return {
            table: {
                "rows": sum(entry[0] for entry in labels.values()),
                "ns": sum(entry[1] for entry in labels.values()),
                "bytes": sum(entry[2] for entry in labels.values()),
                "by_name": {
                    name: dict(zip(("rows", "ns", "bytes"), labels[name], strict=True)) for name in sorted(labels)
                },
            }
            for table, labels in sorted(self.tables.items())
        }


class Export:
    """A new SQLite export. Tables come into being with their first row, as in a real (lazy) export."""

    def __init__(self, path: Path, page_size: int) -> None:
        path.unlink(missing_ok=True)
        self.database = sqlite3.connect(path, isolation_level=None)
        for pragma in (
            f"page_size = {page_size}",
            "journal_mode = OFF",
            "synchronous = OFF",
            "locking_mode = EXCLUSIVE",
        ):
            self.database.execute(f"PRAGMA {pragma}")
        self.database.execute("BEGIN")
        self.strings: dict[str, int] = {}
        self.rows: dict[str, int] = {}
        self.create("StringIds")

    def create(self, table: str, statement: str = "") -> None:
        """Create a table unless it exists; by ``statement`` if the schema does not have it, or not so."""
        if table not in self.rows:
            self.database.execute(statement or schema.tables()[table])
            self.rows[table] = 0

    def string(self, text: str) -> int:
        """The id of a text in StringIds."""
        return self.strings.setdefault(text, len(self.strings))

    def insert(self, table: str, columns: dict[str, Column], order: NDArray[np.int64] | None = None) -> None:
        """Add rows. Columns left out, or None, are NULL. ``order`` is the order in which the rows are to lie."""
        self.create(table)
        names, marks, values = [], [], []
        for name, column in columns.items():
            if column is None:
                continue
            names.append(f'"{name}"')
            if isinstance(column, int):
                marks.append(str(column))
            else:
                marks.append("?")
                values.append(_values(column, order))
        statement = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join(marks)})"
        self.rows[table] += self.database.executemany(statement, zip(*values, strict=False)).rowcount

    def close(self) -> None:
        """Write the enumerations and the strings, and finish the file."""
        for table, enum in schema.enums().items():
            if enum.beside and enum.beside not in self.rows:
                continue
            self.database.execute(enum.statement)
            self.database.executemany(f"INSERT INTO {table} VALUES (?, ?, ?)", enum.rows)
        self.insert("StringIds", {"id": list(self.strings.values()), "value": list(self.strings)})
        self.database.execute("COMMIT")
        if sum(self.rows.values()) < _COMPACT_BELOW_ROWS:
            self.database.execute("VACUUM")
        self.database.close()


def _values(column: NDArray[Any] | list[Any] | str, order: NDArray[np.int64] | None) -> Sequence[Any] | Iterator[str]:
    if isinstance(column, str):
        return repeat(column)
    if isinstance(column, list):
        return column if order is None else [column[i] for i in order.tolist()]
    return (column if order is None else column[order]).tolist()  # type: ignore[no-any-return]
