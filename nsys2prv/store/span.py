"""What tells of the profiler rather than of the program does not make the trace longer.

Nsight Systems works before a program's first call and after its last. Such rows would put idle time around everything, and all shares of
the trace, POP's efficiencies among them, would shrink. So ranges of such kinds are cut to the time from the first to the last event of
other kinds in the report, those wholly outside are left out, and points are put to its begin or end. All of them are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from nsys2prv.account import Account
from nsys2prv.events import all_kinds
from nsys2prv.events.kind import EventKind
from nsys2prv.reading.extracted import Extracted
from nsys2prv.store.normal import append_events
from nsys2prv.store.runs import BEGIN, SpillReader, SpillWriter, pairs

OUTSIDE = "before or after all else in the report"
MOVED = "messages before or after all else in the report, put to its begin or end"
CUT = "ranges partly before or after all else in the report, cut to it"


def within(results: Sequence[Extracted], folder: Path) -> list[Extracted]:
    """The results with rows of kinds that do not extend the trace cut to what their report holds else, if it does."""
    kinds = {layout: kind for kind in all_kinds() if not kind.extends for layout in kind.layouts}
    spans: dict[int, tuple[int, int]] = {}
    for result in results:
        for run in result.runs:
            if run.shape.name not in kinds:
                first, last = spans.get(result.report, (run.first, run.last))
                spans[result.report] = min(first, run.first), max(last, run.last)
    return [_cut(result, kinds, spans[result.report], folder) if result.report in spans else result for result in results]


def _cut(result: Extracted, kinds: dict[str, EventKind], span: tuple[int, int], folder: Path) -> Extracted:
    outside = {run for run in result.runs
               if run.shape.name in kinds and run.shape.stream == BEGIN and (run.first < span[0] or run.last > span[1])}
    if not outside:
        return result
    writer, reader = SpillWriter(folder / f"span-{result.task}.bin", result.report, result.task), SpillReader()
    changed = replace(result, runs=[], events=result.events.copy(), accounts=result.accounts.copy())
    for run, ends in pairs(result.runs):
        if run not in outside:
            changed.runs += [run] if ends is None else [run, ends]
            continue
        kind = kinds[run.shape.name]
        records = reader.between(run, run.first, None)
        kept, repaired = _ranges(records, span) if kind.lasting else _points(records, span)
        changed.runs += append_events(writer, run.shape, kept, kept["end"], int(kept["end"].max())) if len(kept) else []
        gone = len(records) - len(kept)
        changed.events[run.shape.name] -= gone
        changed.add(kind.name, Account(records=-gone, dropped=Counter({OUTSIDE: gone}), repaired=repaired))
    reader.close()
    writer.close()
    return changed


def _ranges(records: np.ndarray, span: tuple[int, int]) -> tuple[np.ndarray, Counter[str]]:
    """The ranges that lie at least partly within the span (ns), cut to it, and how many were cut."""
    kept = records[(records["end"] > span[0]) & (records["time"] < span[1])]
    cut = int(np.count_nonzero((kept["time"] < span[0]) | (kept["end"] > span[1])))
    kept["time"], kept["end"] = np.maximum(kept["time"], span[0]), np.minimum(kept["end"], span[1])
    return kept[np.lexsort((-kept["end"], kept["time"]))], Counter({CUT: cut})


def _points(records: np.ndarray, span: tuple[int, int]) -> tuple[np.ndarray, Counter[str]]:
    """The points, those outside the span (ns) put to its begin or end, and how many these are."""
    kept = records.copy()
    kept["time"] = np.clip(kept["time"], span[0], max(span[0], span[1] - 1))
    kept["end"] = kept["time"] + 1
    return kept, Counter({MOVED: int(np.count_nonzero(kept["time"] != records["time"]))})
