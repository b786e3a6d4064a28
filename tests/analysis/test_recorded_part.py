"""Nothing is claimed of what is not the program's, or was not recorded."""

from __future__ import annotations

import re
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
    make_os_call,
    make_strings,
)

import nsys2prv
from nsys2prv.analysis.result import Finding

MS, US = 1_000_000, 1_000
LAUNCH, MALLOC, OVERHEAD, WRITE = range(2, 6)
STRINGS = make_strings(
    "kern", "cudaLaunchKernel_v7000", "cudaMalloc_v3020", "CUPTI: Resource Management", "write"
)


def find(path: Path, tables: dict[str, list[Row]]) -> list[Finding]:
    """Return the findings of a report."""
    report = make_export(path / "one.sqlite", {"StringIds": STRINGS, **tables})
    with nsys2prv.open(report, quiet=True) as job:
        return job.findings()


def make_overhead(begin: int, end: int) -> Row:
    return {"start": begin, "end": end, "globalTid": make_global_tid(PID), "nameId": OVERHEAD}


def test_the_profilers_own_time_within_a_call_is_no_gain(tmp_path: Path) -> None:
    """cudaMalloc lasts 90 ms, of which the profiler takes 30 in two parts."""
    calls = [make_call(0, 90 * MS, 1, nameId=MALLOC), make_call(98 * MS, 99 * MS, 2)]
    overhead = [make_overhead(20 * MS, 40 * MS), make_overhead(50 * MS, 60 * MS)]
    kernel = make_kernel(99 * MS, 100 * MS, correlationId=2)
    (startup,) = find(tmp_path, {RUNTIME: calls, KERNEL: [kernel], "PROFILER_OVERHEAD": overhead})
    assert startup.share == pytest.approx(0.69)
    assert "(30.00 ms of it the profiler's own, which is no gain)" in startup.title
    assert "cudaMalloc 60.00 ms" in startup.title


@pytest.mark.parametrize("where", ["call", "pause", "around"])
def test_the_profilers_own_time_while_gpus_wait_is_no_gain(where: str, tmp_path: Path) -> None:
    """20 kernels of 4 ms; after each a call of 6 ms, or a pause, of which the profiler takes 5 ms. What it
    is said to do during whole calls tells nothing of the thread.
    """
    calls, kernels, overhead = [], [], []
    for number in range(20):
        at = 10 * MS * number
        kernels.append(make_kernel(at + MS, at + 5 * MS, correlationId=2 * number))
        calls.append(make_call(at, at + MS, 2 * number))
        if where != "pause":
            calls.append(make_call(at + MS, at + 10 * MS - US, 2 * number + 1, nameId=MALLOC))
        edge = 2 * US if where == "around" else -US
        overhead.append(
            make_overhead(at + (MS - edge if edge > 0 else 5 * MS), at + 10 * MS - US + edge)
        )
    tables = {RUNTIME: calls, KERNEL: kernels, "PROFILER_OVERHEAD": overhead}
    found = find(tmp_path, tables)
    most = max(one.share for one in found)
    assert (most > 0.4) == (where == "around"), found


def test_a_process_that_exits_does_not_compute(tmp_path: Path) -> None:
    """The last call ends at 40 ms; until 100 ms the thread is on a CPU, as its states alone say."""
    tid = make_global_tid(PID)
    states = [(0, 1), (99 * MS, 0), (99 * MS + US, 1), (100 * MS, 0)]
    tables = {
        RUNTIME: [make_call(MS, 2 * MS, 1)],
        KERNEL: [make_kernel(2 * MS, 30 * MS, correlationId=1)],
        "OSRT_API": [make_os_call(39 * MS, 40 * MS, WRITE)],
        "SCHED_EVENTS": [
            {"start": at, "cpu": 0, "isSchedIn": into, "globalTid": tid} for at, into in states
        ],
    }
    (shutdown,) = (one for one in find(tmp_path, tables) if one.kind == "shutdown")
    assert "mostly ending, without a recorded call or sample" in shutdown.title
    assert "on the GPU" not in shutdown.advice
    del tables["OSRT_API"]
    (shutdown,) = (one for one in find(tmp_path, tables) if one.kind == "shutdown")
    assert "mostly computing" in shutdown.title, "no table tells when the process ends"


def test_moments_and_commands_stay_within_the_capture(tmp_path: Path) -> None:
    """A capture of 300 ms; a call that began in it ends at 2 s."""
    tables = {
        RUNTIME: [make_call(0, 99 * MS, 1, nameId=MALLOC), make_call(99 * MS, 100 * MS, 2)],
        KERNEL: [make_kernel(100 * MS, 110 * MS, correlationId=2)],
        "OSRT_API": [make_os_call(290 * MS, 2000 * MS, WRITE)],
        "ANALYSIS_DETAILS": [{"duration": 300 * MS}],
    }
    found = {one.kind: one for one in find(tmp_path, tables)}
    assert found["shutdown"].moments == ((110 * MS, 300 * MS, ()),)
    for finding in found.values():
        assert float(re.search(r" s to ([\d.]+) s", finding.look_at)[1]) <= 0.3
        assert float(finding.command.rstrip(")").rpartition(":")[2]) <= 0.3


def test_one_time_costs_are_behind_what_holds_the_job_back(tmp_path: Path) -> None:
    """Set up for 500 ms, then 30 kernels, with as long a pause of the host before each."""
    calls, kernels = [make_call(0, 500 * MS, 0, nameId=MALLOC)], []
    for number in range(1, 31):
        at = 490 * MS + 10 * MS * number
        calls.append(make_call(at, at + 10 * US, number))
        kernels.append(make_kernel(at + 10 * US, at + 5 * MS, correlationId=number))
    found = find(tmp_path, {RUNTIME: calls, KERNEL: kernels})
    assert [one.kind for one in found] == ["host_work", "startup"]
    assert found[0].share < found[1].share
