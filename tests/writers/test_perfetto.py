"""Test the trace for Perfetto, read as its trace processor does, against the account and plain SQL."""

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
#: Name of the slice of what a rank waits in a collective.
WAIT = "wait for the last rank"


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
    counts = Counter(one.category for one in trace.slices if one.name != WAIT)
    ends = {name: 2 * number for name, number in lines.items() if name in counts}
    sampled = sum(number for name, number in written.items() if name not in counts)
    assert counts == {**ends, **{name: n for name, n in written.items() if name in counts}}
    assert sum(map(len, trace.counters.values())) == sampled
    flows = Counter(trace.slices[first].category for _, first, _ in trace.flows)
    # Launches are told by an attribute, as long as that is written.
    launches = sum(lines.get(name, 0) for name in ("launch", "memory") if name not in ends)
    assert flows["cuda_api"] == launches
    assert bool(launches) == (arguments and sample != "mpi")
    assert flows["mpi_point_to_point"] == lines.get("mpi_message", 0)
    assert flows["nccl_message"] == lines.get("nccl_message", 0)
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


def test_arrows_lead_from_the_last_rank_of_a_collective_to_those_that_waited(
    tmp_path: Path,
) -> None:
    reports = sorted((SAMPLES / "graphs").glob("*.sqlite"))
    trace = convert_to_perfetto(reports, tmp_path / "out.pftrace")
    ranges = [one for one in trace.slices if one.category == "nccl_collective" and one.name != WAIT]
    last = {one.arguments["collective"]: one for one in sorted(ranges)}
    waiting = [one for one in ranges if "wait" in one.arguments]
    arrows = [
        (trace.slices[first], trace.slices[second])
        for _, first, second in trace.flows
        if trace.slices[first].category == "nccl_collective"
    ]
    assert len(arrows) == len(waiting) > 10
    for came, waited in arrows:
        assert came == last[waited.arguments["collective"]]
        assert came.begin == waited.begin + waited.arguments["wait"]
    waits = [one for one in trace.slices if one.name == WAIT]
    expected = sorted((one.begin, one.track, one.arguments["wait"]) for one in waiting)
    assert sorted((one.begin, one.track, one.duration) for one in waits) == expected


def test_the_report_is_the_first_process(tmp_path: Path) -> None:
    reports = sorted((SAMPLES / "training").glob("*.sqlite"))
    trace = convert_to_perfetto(reports, tmp_path / "out.pftrace.gz", report=True)
    written = json.loads((tmp_path / "out.report.json").read_text())
    (process,) = (number for number, (name, *_) in trace.tracks.items() if "Report" in name)
    tracks = {number: told[0] for number, told in trace.tracks.items() if told[1:] == (process,)}
    assert len(tracks) == 2 + len(written["findings"])
    for number, finding in enumerate(written["findings"], 1):
        (track,) = (one for one, name in tracks.items() if name.startswith(f"{number}. "))
        slices = [one for one in trace.slices if one.track == track]
        moments = [(one["begin_ns"], one["end_ns"]) for one in finding["moments"]]
        assert slices
        for one in slices:
            assert not moments or (one.begin, one.begin + one.duration) in moments
            assert one.arguments["finding"] == finding["title"]
            told = [text for key, text in one.arguments.items() if key.startswith("measured")]
            assert told == finding["evidence"]
