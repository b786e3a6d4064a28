"""Devices that several reports have samples of: which reports' are written, and which are left out.

Every nsys on a host records all its network interfaces, may record all its GPUs, and each one of the job the same switch. Reports that
follow one another, of one process or of several, each tell of a time of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from nsys2prv.clock.maps import ClockMap
from nsys2prv.events import all_kinds
from nsys2prv.events.extraction import DeviceKey
from nsys2prv.notes import Detail
from nsys2prv.reading.extracted import Extracted
from nsys2prv.store.runs import BEGIN, COUNTER

#: The reason of what is left out.
TWICE = "held by several reports, of which the first one's are written"


def written_once(results: Sequence[Extracted], rows: Mapping[tuple[int, object], int],
                 clocks: Sequence[ClockMap]) -> tuple[list[Extracted], list[str]]:
    """The results without what an earlier report has of the same device, layout and time, counted there, and a note on what is left out.

    rows: (report, object key) -> thread of the trace, the same for one device in several reports. clocks: from each report's time to one
    that they share. Reports are in rank order.
    """
    written = _written(results, rows, clocks)
    kept, left_out, devices = [], Counter(), set()
    for result in results:
        away = [(run, thread) for run, thread in _of_devices(result, rows) if result.report not in written[thread, run.shape.name]]
        if away:
            counts = Counter()
            for run, thread in away:
                counts[run.shape.name] += run.values if run.shape.stream == COUNTER else run.rows * (run.shape.stream == BEGIN)
                devices.add(thread)
            left_out.update(counts)
            gone = {id(run) for run, _ in away}
            result = replace(result, runs=[run for run in result.runs if id(run) not in gone], events=result.events - counts,
                             left_out=result.left_out + Counter({(name, TWICE): count for name, count in counts.items()}))
        kept.append(result)
    notes = [Detail(f"{sum(left_out.values()):,} samples left out: several reports hold them, of {len(devices)} devices; "
                    "the first one's are written")] if left_out else []
    return kept, notes


def _written(results: Sequence[Extracted], rows: Mapping[tuple[int, object], int],
             clocks: Sequence[ClockMap]) -> dict[tuple[int, str], set[int]]:
    """By thread and layout the reports that are written: each that has nothing at a time of which one before it tells."""
    spans: dict[tuple[int, str], dict[int, tuple[int, int]]] = {}
    for result in results:
        for run, thread in _of_devices(result, rows):
            found = spans.setdefault((thread, run.shape.name), {})
            first, last = found.get(result.report, (run.first, run.last))
            found[result.report] = min(first, run.first), max(last, run.last)
    written: dict[tuple[int, str], set[int]] = {}
    for key, found in spans.items():
        told: dict[int, tuple[int, int]] = {}
        for report, span in sorted(found.items()):
            first, last = clocks[report].to_global(np.array(span)).tolist()
            if all(last < begin or end < first for begin, end in told.values()):
                told[report] = first, last
        written[key] = set(told)
    return written


def _of_devices(result: Extracted, rows: Mapping[tuple[int, object], int]):
    """The runs of devices that tell of the device itself, each with its thread."""
    own = {layout for kind in all_kinds() if not kind.sampled for layout in kind.layouts}
    threads = {number: rows[result.report, key] for number, key in enumerate(result.objects) if isinstance(key, DeviceKey)}
    return [(run, threads[run.object]) for run in result.runs if run.object in threads and run.shape.name not in own]
