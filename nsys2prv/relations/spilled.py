"""Storing what follows from relating: runs in trace time, on thread indices."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from nsys2prv.reading.extract import Extracted, count_lines
from nsys2prv.relations.kind import Related
from nsys2prv.store.normal import spill, spill_counters, spill_lines
from nsys2prv.store.runs import BEGIN, TRACE, SpillWriter


def spilled(related: Related, name: str, number: int, folder: Path) -> Extracted:
    """What the relation of this name found, stored under this number of a task."""
    result = Extracted(number, TRACE, 0)
    dropped: Counter[str] = Counter()
    repaired: Counter[str] = Counter()
    writer = SpillWriter(folder / f"runs-{number}.bin", TRACE, number)
    try:
        for rows in related.rows:
            runs = list(spill(rows, False, writer, dropped, repaired))
            result.runs += runs
            result.events[rows.layout] += sum(run.rows for run in runs if run.shape.stream == BEGIN)
        for counters in related.counters:
            runs = list(spill_counters(counters, writer, dropped))
            result.runs += runs
            result.events[counters.layout] += sum(run.values for run in runs)
        for lines in related.lines:
            runs = list(spill_lines(lines, writer))
            result.runs += runs
            count_lines(result, lines, runs)
    finally:
        writer.close()
    result.notes = related.notes
    result.dropped.update({(name, reason): count for reason, count in dropped.items()})
    result.repaired.update({(name, reason): count for reason, count in repaired.items()})
    return result
