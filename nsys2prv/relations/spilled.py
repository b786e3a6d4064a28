"""Storing what follows from relating: runs in trace time, on thread indices."""

from __future__ import annotations

from pathlib import Path

from nsys2prv.account import Account
from nsys2prv.reading.extracted import Extracted
from nsys2prv.relations.kind import Related
from nsys2prv.store.runs import TRACE, SpillWriter


def spilled(related: Related, name: str, number: int, folder: Path) -> Extracted:
    """What the relation of this name found, stored under this number of a task."""
    result = Extracted(number, TRACE, 0)
    account = Account()
    writer = SpillWriter(folder / f"runs-{number}.bin", TRACE, number)
    try:
        for rows in (*related.rows, *related.counters):
            result.store(rows, writer, account)
        for lines in related.lines:
            result.store_lines(lines, writer)
    finally:
        writer.close()
    result.notes = related.notes
    result.add_found(name, account)
    return result
