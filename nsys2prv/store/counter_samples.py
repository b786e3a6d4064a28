"""Samples of counters as tables, one row an instant; devices that several reports sampled are kept
once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.errors import Detail
from nsys2prv.clock.maps import ClockMap
from nsys2prv.events import all_kinds
from nsys2prv.events.extraction import DeviceKey
from nsys2prv.events.reasons import Reason
from nsys2prv.store.runs import BEGIN, COUNTER
from nsys2prv.store.task_result import TaskResult


class SampleTable(Struct):
    """Instants with the same event types."""

    #: Event types, one for each column of `stored`.
    codes: np.ndarray
    #: ns.
    time: np.ndarray
    #: Object of each instant.
    object: np.ndarray
    #: Value + 1 of each type (a column each), 0 where an instant has none.
    stored: np.ndarray

    def take(self, chosen: np.ndarray) -> SampleTable:
        return SampleTable(self.codes, self.time[chosen], self.object[chosen], self.stored[chosen])


def join_samples(tables: Sequence[SampleTable]) -> list[SampleTable]:
    """Return the tables with the instants of equal time and object made one; of two numbers of one
    type the greater stays.

    A time that comes once stays where it is, so that what is in order costs no more than a look.
    """
    time = np.concatenate([table.time for table in tables])
    object_ = np.concatenate([table.object for table in tables])
    order = np.lexsort((object_, time))
    same = (np.diff(time[order]) == 0) & (np.diff(object_[order]) == 0)
    if not same.any():
        return list(tables)
    repeated = np.zeros(len(time), bool)
    repeated[order[1:][same]] = repeated[order[:-1][same]] = True
    codes = np.unique(np.concatenate([table.codes for table in tables]))
    kept, parts = [], []
    ends = np.cumsum([len(table.time) for table in tables])
    for table, own_rows in zip(tables, np.split(repeated, ends[:-1]), strict=True):
        kept.append(table.take(~own_rows))
        wide = np.zeros((int(own_rows.sum()), len(codes)), np.int64)
        wide[:, np.searchsorted(codes, table.codes)] = table.stored[own_rows]
        parts.append(wide)
    rows = order[repeated[order]]
    stored = np.concatenate(parts)[(np.cumsum(repeated) - 1)[rows]]
    new = (np.diff(time[rows]) != 0) | (np.diff(object_[rows]) != 0)
    first_of = np.flatnonzero(np.append(True, new))
    greatest = np.maximum.reduceat(stored, first_of)
    kept.append(SampleTable(codes, time[rows][first_of], object_[rows][first_of], greatest))
    return [table for table in kept if len(table.time)]


def count_samples(tables: Sequence[SampleTable]) -> Counter[int]:
    """Return the number of samples of each event type in the tables."""
    counts: Counter[int] = Counter()
    for table in tables:
        numbers = np.count_nonzero(table.stored, axis=0)
        counts.update(dict(zip(table.codes.tolist(), numbers.tolist(), strict=True)))
    return counts


def split_at_holes(table: SampleTable) -> Iterator[SampleTable]:
    """Yield the table cut into tables whose every instant has all their types."""
    lacking = table.stored == 0
    if not lacking.any():
        yield table
        return
    bits = np.packbits(~lacking, axis=1)
    patterns, pattern_of = np.unique(bits, axis=0, return_inverse=True)
    for number in range(len(patterns)):
        rows = np.flatnonzero(pattern_of.reshape(-1) == number)
        carried = ~lacking[rows[0]]
        if carried.any():
            yield SampleTable(
                table.codes[carried],
                table.time[rows],
                table.object[rows],
                table.stored[np.ix_(rows, carried)],
            )


def deduplicate_device_samples(
    results: Sequence[TaskResult],
    rows: Mapping[tuple[int, object], int],
    clocks: Sequence[ClockMap],
) -> tuple[list[TaskResult], list[str]]:
    """Return the results without what an earlier report has of the same device, layout and time,
    counted there, and a note on what is left out.

    rows: (report, object key) -> thread of the trace, the same for one device in several reports.
    clocks: from each report's time to one that they share. Reports are in rank order.
    """
    written = _choose_written(results, rows, clocks)
    kept, left_out, devices = [], Counter(), set()
    for result in results:
        away = [
            (run, thread)
            for run, thread in _find_device_runs(result, rows)
            if result.report not in written[thread, run.shape.name]
        ]
        if away:
            counts = Counter()
            for run, thread in away:
                if run.shape.stream == COUNTER:
                    counts[run.shape.name] += run.values
                elif run.shape.stream == BEGIN:
                    counts[run.shape.name] += run.rows
                devices.add(thread)
            left_out.update(counts)
            gone = {run for run, _ in away}
            reasons = {(name, Reason.IN_OTHER_REPORT): count for name, count in counts.items()}
            result = replace(
                result,
                runs=[run for run in result.runs if run not in gone],
                events=result.events - counts,
                left_out=result.left_out + Counter(reasons),
            )
        kept.append(result)
    if not left_out:
        return kept, []
    return kept, [
        Detail(
            f"{left_out.total():,} samples left out: several reports hold them, of {len(devices)} devices; "
            "the first one's are written"
        )
    ]


def _choose_written(
    results: Sequence[TaskResult],
    rows: Mapping[tuple[int, object], int],
    clocks: Sequence[ClockMap],
) -> dict[tuple[int, str], set[int]]:
    """Return, by thread and layout, the reports that are written: each that has nothing at a time
    of which one before it tells.
    """
    spans: dict[tuple[int, str], dict[int, tuple[int, int]]] = {}
    for result in results:
        for run, thread in _find_device_runs(result, rows):
            device_spans = spans.setdefault((thread, run.shape.name), {})
            first, last = device_spans.get(result.report, (run.first, run.last))
            device_spans[result.report] = min(first, run.first), max(last, run.last)
    written: dict[tuple[int, str], set[int]] = {}
    for key, device_spans in spans.items():
        reported: dict[int, tuple[int, int]] = {}
        for report, span in sorted(device_spans.items()):
            first, last = clocks[report].to_global(np.array(span)).tolist()
            if all(last < begin or end < first for begin, end in reported.values()):
                reported[report] = first, last
        written[key] = set(reported)
    return written


def _find_device_runs(result: TaskResult, rows: Mapping[tuple[int, object], int]):
    """Return the runs of devices that tell of the device itself, each with its thread."""
    own = {layout for kind in all_kinds() if not kind.rows.device_wide for layout in kind.layouts}
    threads = {
        number: rows[result.report, key]
        for number, key in enumerate(result.objects)
        if isinstance(key, DeviceKey)
    }
    return [
        (run, threads[run.object])
        for run in result.runs
        if run.object in threads and run.shape.name not in own
    ]
