"""Make jobs of random events whose traces can be compared with the input.

Kernels of a stream overlap; ranges nest, begin and end together, overlap, or have no end; samples
of one time are in several rows.
"""

import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tools.exports import (
    KERNEL,
    PID,
    RUNTIME,
    Row,
    make_call,
    make_export,
    make_global_tid,
    make_kernel,
    make_nvtx_range,
)

#: Streams, threads, the length of the job (ns), and GPU metrics.
STREAMS, THREADS, LENGTH = (7, 9), (PID, PID + 1), 4000
METRICS = ("SMs Active [Throughput %]", "PCIe RX Throughput [Throughput %]")
STRINGS = ["kern 0", "cudaLaunchKernel", "kern 1", "kern 2", "longer name of a kernel"]
KERNEL_NAMES = (1, 3, 4, 5)

#: Begin, end (ns of the trace) and name.
Range = tuple[int, int, str]


#: What makes pieces small: parts of tables, blocks, runs that are joined, windows of a trace.
_SMALL_PIECES = {
    "conversion.read.PART_ROWS": 17,
    "table.runs.BLOCK_ROWS": 4,
    "table.overlaps.LANE_ROWS": 9,
    "table.windows.WINDOW_RECORDS": 20,
    "table.windows.RECORDS_PER_RUN": 1,
    "table.windows.JOINED_RECORDS": 50,
    "table.range_index.LATE_ROWS": 6,
}


#: Of how many records pieces are at most that are joined, in each way to store a job.
PIECES = {"in one piece": None, "in small pieces": 4, "in small pieces that are joined": 1000}


def set_pieces(monkeypatch: pytest.MonkeyPatch, joined: int | None) -> None:
    """Let everything be stored and written in many small pieces, if not in one. joined: of PIECES."""
    for name, value in (
        (_SMALL_PIECES | {"table.windows.SMALL_RUN": joined}).items() if joined else ()
    ):
        monkeypatch.setattr(f"nsys2prv.{name}", value, raising=False)


@dataclass
class MadeJob:
    """What was put in. Times are ns of the trace.

    kernels: by stream. nested, crossing: by thread, NVTX ranges that are pushed and popped, and those
    that are started and ended. lines: begin of the call, begin and end of the kernel. samples: by
    metric, time -> value. states: by thread, begins, and whether the thread is on a CPU then.
    """

    reports: list[Path] = field(default_factory=list)
    duration: int = LENGTH
    kernels: dict[int, list[Range]] = field(default_factory=dict)
    nested: dict[int, list[Range]] = field(default_factory=dict)
    crossing: dict[int, list[Range]] = field(default_factory=dict)
    lines: Counter[tuple[int, int, int]] = field(default_factory=Counter)
    samples: dict[str, dict[int, int]] = field(default_factory=dict)
    states: dict[int, list[tuple[int, bool]]] = field(default_factory=dict)


def make_job(path: Path, seed: int) -> MadeJob:
    """Write the report of a random job."""
    luck, job = random.Random(seed), MadeJob([path])
    tables: dict[str, list[Row]] = {KERNEL: [], RUNTIME: [], "NVTX_EVENTS": [], "GPU_METRICS": []}
    # The job lasts from 0 to its length.
    edge = make_nvtx_range(0, LENGTH, "all", tid=THREADS[0])
    tables["NVTX_EVENTS"].append(edge)
    job.nested = {thread: [] for thread in THREADS}
    job.nested[THREADS[0]].append((0, LENGTH, "all"))
    _add_kernels(job, luck, tables)
    for thread in THREADS:
        ranges = list(_nest(luck, 1, LENGTH - 500, 0))
        if thread == THREADS[1]:
            ranges += [(LENGTH - 450, None, "without an end"), (LENGTH - 400, None, "nor this")]
        job.nested[thread] += [(begin, end or LENGTH, name) for begin, end, name in ranges]
        tables["NVTX_EVENTS"] += [make_nvtx_range(*one, tid=thread) for one in ranges]
        crossing = [
            (begin, begin + luck.randint(1, 600), f"started {spell(number)}")
            for number, begin in enumerate(luck.choices(range(0, 3000, 7), k=25))
        ]
        job.crossing[thread] = crossing
        tables["NVTX_EVENTS"] += [make_nvtx_range(*one, kind=60, tid=thread) for one in crossing]
        changes = sorted(luck.sample(range(LENGTH), 30))
        job.states[thread] = [(time, bool(place % 2)) for place, time in enumerate(changes)]
        tables.setdefault("SCHED_EVENTS", []).extend(
            {"start": time, "cpu": 0, "isSchedIn": is_on, "globalTid": make_global_tid(thread)}
            for time, is_on in job.states[thread]
        )
    for number, name in enumerate(METRICS):
        values = job.samples.setdefault(name, {})
        for time in range(0, LENGTH, 10):
            values[time] = luck.choice((0, luck.randrange(100), luck.randrange(10**12)))
            row = {"timestamp": time, "typeId": 1, "metricId": number, "value": values[time]}
            tables["GPU_METRICS"].append(row)
    tables["StringIds"] = [{"id": place, "value": text} for place, text in enumerate(STRINGS, 1)]
    tables["TARGET_INFO_GPU_METRICS"] = [
        {"typeId": 1, "metricId": number, "metricName": name} for number, name in enumerate(METRICS)
    ]
    for rows in tables.values():
        luck.shuffle(rows)
    make_export(path, tables)
    return job


def spell(number: int) -> str:
    """Return letters for a number: digits of names would become numbers beside them."""
    return chr(ord("a") + number)


def _add_kernels(job: MadeJob, luck: random.Random, tables: dict[str, list[Row]]) -> None:
    number = 0
    for stream in STREAMS:
        job.kernels[stream] = []
        for begin in luck.choices(range(30, 3000, 5), k=60):
            end, name, number = (
                begin + luck.choice((1, 5, 40, 400)),
                luck.choice(KERNEL_NAMES),
                number + 1,
            )
            job.kernels[stream].append((begin, end, STRINGS[name - 1]))
            more = {"demangledName": name, "shortName": name, "correlationId": number}
            tables[KERNEL].append(make_kernel(begin, end, streamId=stream, **more))
            call = begin - luck.randint(5, 30)
            tables[RUNTIME].append(make_call(call, call + 3, number))
            job.lines[call, begin, end] += 1


def _nest(luck: random.Random, begin: int, end: int, depth: int) -> list[Range]:
    """Return ranges that nest; of some both begins or both ends are at one moment."""
    ranges: list[Range] = []
    time = begin
    while time < end - 2 and len(ranges) < 12:
        until = min(end, time + luck.randint(2, max(3, (end - begin) // 2)))
        ranges.append((time, until, f"range {spell(depth)}.{spell(len(ranges))}"))
        if depth < 3 and until - time > 40:
            first = luck.choice((time, time, time + 7))
            ranges += _nest(luck, first, luck.choice((until, until - 5)), depth + 1)
        time = until + luck.choice((0, 0, 13))
    return ranges
