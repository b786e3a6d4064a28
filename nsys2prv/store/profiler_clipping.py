"""Clip the events of the profiler to the time of the program, counted in the account."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from nsys2prv.events import all_kinds
from nsys2prv.events.kind import Account, EventKind
from nsys2prv.events.reasons import Reason
from nsys2prv.store.runs import (
    BEGIN,
    SpillReader,
    SpillWriter,
    pair_runs,
)
from nsys2prv.store.spilling import append_events
from nsys2prv.store.task_result import TaskResult


def clip_profiler_events(
    results: Sequence[TaskResult], spans: Mapping[int, tuple[int, int]], folder: Path
) -> list[TaskResult]:
    """Return the results with rows of kinds that do not extend the trace cut to the spans (local
    ns) of what else the reports hold.
    """
    kinds = {
        layout: kind
        for kind in all_kinds()
        if not kind.rows.extends_trace
        for layout in kind.layouts
    }
    return [
        _clip_result(result, kinds, spans[result.report], folder)
        if result.report in spans
        else result
        for result in results
    ]


def _clip_result(
    result: TaskResult, kinds: dict[str, EventKind], span: tuple[int, int], folder: Path
) -> TaskResult:
    outside = {
        run
        for run in result.runs
        if run.shape.name in kinds
        and run.shape.stream == BEGIN
        and (run.first < span[0] or run.last > span[1])
    }
    if not outside:
        return result
    writer, reader = (
        SpillWriter(folder / f"span-{result.task}.bin", result.report, result.task),
        SpillReader(),
    )
    changed = replace(result, runs=[], events=result.events.copy(), accounts=result.accounts.copy())
    for run, ends in pair_runs(result.runs):
        if run not in outside:
            changed.runs += [run] if ends is None else [run, ends]
            continue
        kind = kinds[run.shape.name]
        records = reader.read_between(run, run.first, None)
        kept, repaired = (
            _clip_ranges(records, span) if kind.rows.has_duration else _clip_points(records, span)
        )
        changed.runs += (
            append_events(writer, run.shape, kept, kept["end"], int(kept["end"].max()))
            if len(kept)
            else []
        )
        gone = len(records) - len(kept)
        changed.events[run.shape.name] -= gone
        changed.add(
            kind.name,
            Account(
                records=-gone, dropped=Counter({Reason.OUTSIDE_PROGRAM: gone}), repaired=repaired
            ),
        )
    reader.close()
    writer.close()
    return changed


def _clip_ranges(records: np.ndarray, span: tuple[int, int]) -> tuple[np.ndarray, Counter[str]]:
    """Return the ranges that lie at least partly within the span (ns), cut to it, and how many were
    cut.
    """
    kept = records[(records["end"] > span[0]) & (records["time"] < span[1])]
    cut = int(np.count_nonzero((kept["time"] < span[0]) | (kept["end"] > span[1])))
    kept["time"], kept["end"] = np.maximum(kept["time"], span[0]), np.minimum(kept["end"], span[1])
    return kept[np.lexsort((-kept["end"], kept["time"]))], Counter({Reason.CUT_TO_PROGRAM: cut})


def _clip_points(records: np.ndarray, span: tuple[int, int]) -> tuple[np.ndarray, Counter[str]]:
    """Return the points, those outside the span (ns) put to its begin or end, and how many these
    are.
    """
    kept = records.copy()
    kept["time"] = np.clip(kept["time"], span[0], max(span[0], span[1] - 1))
    kept["end"] = kept["time"] + 1
    return kept, Counter(
        {Reason.MOVED_TO_PROGRAM: int(np.count_nonzero(kept["time"] != records["time"]))}
    )
