"""Devices that several reports have samples of: which report's are written, and which are left out.

Every nsys on a host records all its network interfaces, may record all its GPUs, and each one of the job the same switch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from nsys2prv.events import all_kinds
from nsys2prv.events.extraction import DeviceKey
from nsys2prv.extract import Extracted
from nsys2prv.store.runs import BEGIN, COUNTER

#: The reason of what is left out.
TWICE = "held by several reports, of which the first one's are written"


def written_once(results: Sequence[Extracted], rows: Mapping[tuple[int, object], int]) -> tuple[list[Extracted], list[str]]:
    """The results without what an earlier report has of the same device and layout, counted there, and a note on what is left out.

    rows: (report, object key) -> thread of the trace, the same for one device in several reports. Reports are in rank order.
    """
    first: dict[tuple[int, str], int] = {}
    for result in results:
        for run, thread in _of_devices(result, rows):
            key = thread, run.shape.name
            first[key] = min(first.get(key, result.report), result.report)
    kept, left_out, devices = [], Counter(), set()
    for result in results:
        away = [(run, thread) for run, thread in _of_devices(result, rows) if first[thread, run.shape.name] != result.report]
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
    notes = [f"{sum(left_out.values()):,} samples left out: several reports hold them, of {len(devices)} devices; "
             "the first one's are written"] if left_out else []
    return kept, notes


def _of_devices(result: Extracted, rows: Mapping[tuple[int, object], int]):
    """The runs of devices that tell of the device itself, each with its thread."""
    own = {layout for kind in all_kinds() if not kind.sampled for layout in kind.layouts}
    threads = {number: rows[result.report, key] for number, key in enumerate(result.objects) if isinstance(key, DeviceKey)}
    return [(run, threads[run.object]) for run in result.runs if run.object in threads and run.shape.name not in own]
