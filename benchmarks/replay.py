"""Measure what the replay of a job costs: CPU time for each call and operation, and memory.

python -m tools.samples run --ranks 8 --hosts 1 --events-per-rank 2400000
python benchmarks/replay.py run
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from time import process_time
from typing import TypeVar

import nsys2prv
from nsys2prv.replay.causes import KernelFacts, find_causes
from nsys2prv.replay.events import label_calls
from nsys2prv.replay.job_graph import join_units
from nsys2prv.replay.unit_graph import build_unit_graph
from nsys2prv.replay.whatif import Replay

T = TypeVar("T")


def measure(what: str, function: Callable[[], T], events: int = 0) -> T:
    """Print CPU seconds, microseconds for each event, and the peak of memory so far."""
    begin = process_time()
    result = function()
    seconds = process_time() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    each = f"{seconds * 1e6 / events:6.2f} us per event" if events else " " * 19
    print(f"{what:24}{seconds:8.2f} s {each}  peak {peak:,} MiB", flush=True)
    return result


def main() -> None:
    job = measure("read", lambda: nsys2prv.open(sys.argv[1], quiet=True, jobs=1))
    with job:
        labels, reader = label_calls(job.labels), job.reader
        names = ("cuda_api", "cuda_kernel", "nccl_kernel", "memory_operation", "cuda_graph")
        events = sum(job.layouts.get(name, 0) for name in names)
        print(f"{events:,} calls and operations")
        numbers = sorted({*reader.rows.units.tolist()})
        units = measure(
            "graphs of units",
            lambda: [build_unit_graph(reader, unit, labels) for unit in numbers],
            events,
        )
        graph = measure("joined", lambda: join_units(reader, labels, units), events)
        steady = job.steady
        begin, end = (steady.begin, steady.end) if steady else (0, job.duration)
        measure("a pass", graph.graph.run, events)
        causes = measure(
            "causes", lambda: find_causes(Replay(graph, begin, end), KernelFacts()), events
        )
        for cause in causes:
            print(f"  {cause.kind}: {cause.gain:.1%}")


if __name__ == "__main__":
    main()
