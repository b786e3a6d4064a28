"""The trace for Perfetto, read as its trace processor does: against the account, and plain SQL."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from pathlib import Path

import pytest
from tools.exports import (
    KERNEL,
    make_call,
    make_export,
    make_kernel,
    make_nvtx_range,
    make_rows,
    make_strings,
)
from tools.perfetto_reader import PerfettoTrace, read_perfetto

from nsys2prv import Options, convert
from nsys2prv.conversion.options import CutOptions

SAMPLES = Path(__file__).parents[2] / "sample_reports"
#: Sort of a flow, in the upper bits of its id.
LAUNCH, MESSAGE = 0, 1


def convert_to_perfetto(reports: list[Path], output: Path, **options: object) -> PerfettoTrace:
    convert(reports, output, Options(**options))
    return read_perfetto(output)


def list_ranges(trace: PerfettoTrace, category: str) -> list[tuple[int, int]]:
    """Return begin and duration (ns) of ranges."""
    return [(one.begin, one.duration) for one in trace.slices if one.category == category]


@pytest.mark.parametrize(
    ("sample", "arguments"),
    [("cluster", True), ("machine", True), ("machine", False), ("mpi", True)],
)
def test_counts_are_those_of_the_account(sample: str, arguments: bool, tmp_path: Path) -> None:
    reports = sorted((SAMPLES / sample).glob("*.sqlite"))
    cut = CutOptions(arguments=arguments)
    trace = convert_to_perfetto(reports, tmp_path / "out.pftrace.gz", cut=cut)
    ledger = json.loads((tmp_path / "out.nsys2prv.json").read_text())["ledger"]
    written = {name: one["written"] for name, one in ledger["records"].items()}
    lines = {name: one["written"] for name, one in ledger["lines"].items()}
    counts = Counter(one.category for one in trace.slices)
    ends = {name: 2 * number for name, number in lines.items() if name in counts}
    sampled = sum(number for name, number in written.items() if name not in counts)
    assert counts == {**ends, **{name: n for name, n in written.items() if name in counts}}
    assert sum(map(len, trace.counters.values())) == sampled
    flows = Counter(flow >> 62 for flow, _, _ in trace.flows)
    # Launches are told by an attribute, as long as that is written.
    assert flows[LAUNCH] == sum(number for name, number in lines.items() if name not in ends)
    assert bool(flows[LAUNCH]) == (arguments and sample != "mpi")
    assert flows[MESSAGE] == sum(number for name, number in lines.items() if name in ends)
    kernels, time = 0, 0
    for report in reports:
        with sqlite3.connect(report) as connection:
            if connection.execute(
                f"SELECT 1 FROM sqlite_master WHERE name = '{KERNEL}'"
            ).fetchone():
                query = f"SELECT count(*), sum(end - start) FROM {KERNEL}"
                count, length = connection.execute(query).fetchone()
                kernels, time = kernels + count, time + length
    found = list_ranges(trace, "cuda_kernel") + list_ranges(trace, "nccl_kernel")
    assert len(found) == kernels
    # Clocks of hosts are corrected.
    assert abs(sum(duration for _, duration in found) - time) <= kernels


def test_overlaps_nesting_and_states_come_out_as_recorded(tmp_path: Path) -> None:
    kernels = [(100, 400, 1), (200, 600, 2), (300, 350, 3), (600, 700, 4)]
    ranges = [(50, 500), (50, 300), (50, 60), (90, 650), (90, 100)]
    tables = {
        "StringIds": make_strings("kern", "cudaLaunchKernel"),
        KERNEL: [make_kernel(begin, end, correlationId=c) for begin, end, c in kernels],
        "CUPTI_ACTIVITY_KIND_RUNTIME": [make_call(10 * c, 10 * c + 5, c) for *_, c in kernels],
        "NVTX_EVENTS": [
            *(make_nvtx_range(begin, end, f"r{begin}-{end}", kind=60) for begin, end in ranges),
            *(
                make_nvtx_range(begin, end, f"p{end}")
                for begin, end in ((10, 90), (10, 40), (40, 90))
            ),
        ],
        "SCHED_EVENTS": make_rows(
            "start cpu isSchedIn globalTid threadState threadBlock",
            *(
                (t, 0, s, make_nvtx_range(1, 2, "")["globalTid"], 1, None)
                for t, s in ((20, 1), (50, 0), (80, 1))
            ),
        ),
    }
    trace = convert_to_perfetto(
        [make_export(tmp_path / "r.sqlite", tables)], tmp_path / "o.pftrace"
    )
    zero = min(one.begin for one in trace.slices)
    begin = min(range_[0] for *_, range_ in [(0, one) for one in ranges] + [(0, (10, 0))])
    moved = begin - zero

    def restore(category: str) -> list[tuple[int, int]]:
        found = list_ranges(trace, category)
        return sorted((time + moved, time + moved + duration) for time, duration in found)

    assert restore("cuda_kernel") == sorted((b, e) for b, e, _ in kernels)
    assert restore("nvtx_startend") == sorted(ranges)
    assert restore("nvtx_pushpop") == [(10, 40), (10, 90), (40, 90)]
    states = restore("thread_state")
    assert [state[0] for state in states] == [20, 50, 80]
    assert [state[1] for state in states[:2]] == [50, 80]
    # Each kernel is joined to its call, and lanes of a stream are shown as one.
    assert len(trace.flows) == len(kernels)
    tracks = {one.track for one in trace.slices if one.category == "cuda_kernel"}
    assert len(tracks) > 1
    assert len({trace.tracks[track] for track in tracks}) == 1
