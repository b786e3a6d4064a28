"""What additions have in common: rows of a table by column, and what is true of them by thread (or queue) and name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .rows import Report

Row = Mapping[str, Any]


def insert_rows(report: Report, table: str, rows: Sequence[Row]) -> None:
    """Write rows, which all have the same columns."""
    report.export.insert(table, {name: [row[name] for row in rows] for name in rows[0]})


def totals(found: Sequence[tuple[str, str, int, int]]) -> dict[str, dict[str, dict[str, int]]]:
    """Place and name, begin and end (ns) of events -> place -> name -> rows and ns."""
    summed: dict[str, dict[str, dict[str, int]]] = {}
    for place, name, begin, end in found:
        entry = summed.setdefault(place, {}).setdefault(name, {"rows": 0, "ns": 0})
        entry["rows"] += 1
        entry["ns"] += end - begin
    return summed
