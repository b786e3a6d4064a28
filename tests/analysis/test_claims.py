"""What findings say is what the report's tables show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
)

import nsys2prv
from nsys2prv.analysis.result import Finding

MS, US = 1_000_000, 1_000
NAMES = ("kern", "cudaLaunchKernel_v7000", "cudaStreamSynchronize_v3020", "cudaMalloc_v3020")
LAUNCH, SYNCHRONIZE, MALLOC = 2, 3, 4


def find(
    path: Path,
    calls: Sequence[tuple[int, int, int]],
    kernels: Mapping[int, tuple[int, int]],
    more: Mapping[str, Sequence[Row]] | None = None,
    names: Sequence[str] = (),
) -> list[Finding]:
    """Return the findings of a process. calls: begin, end (ns) and name (number in NAMES, then in
    `names`) of each. kernels: index of the call that launches it -> begin, end. more: further tables.
    """
    strings = [
        {"id": number, "value": text} for number, text in enumerate((*NAMES, *names), start=1)
    ]
    tables: dict[str, Sequence[Row]] = {
        "StringIds": strings,
        RUNTIME: [
            make_call(begin, end, number, nameId=name)
            for number, (begin, end, name) in enumerate(calls)
        ],
        **(more or {}),
    }
    if kernels:
        tables[KERNEL] = [
            make_kernel(begin, end, correlationId=call) for call, (begin, end) in kernels.items()
        ]
    make_export(path / "one.sqlite", tables)
    with nsys2prv.open(path / "one.sqlite", quiet=True, jobs=1) as job:
        return job.findings()


def make_overhead(begin: int, end: int, name: int) -> Row:
    """Return a row of the profiler's overhead on the main thread."""
    return {"start": begin, "end": end, "globalTid": make_global_tid(PID), "nameId": name}


def test_a_call_lasts_as_long_as_it_waits(tmp_path: Path) -> None:
    """Three kernels of 1 ms, each launched when the one before was waited for, with idle time."""
    calls, kernels = [], {}
    for begin in range(0, 30 * MS, 10 * MS):
        kernels[len(calls)] = (begin + 20 * US, begin + MS)
        calls += [(begin, begin + 10 * US, LAUNCH), (begin + 20 * US, begin + 9 * MS, SYNCHRONIZE)]
    findings = find(tmp_path, calls, kernels)
    (waiting,) = (one for one in findings if "cudaStreamSynchronize" in one.title)
    assert "8.98 ms at most" in waiting.evidence[0]


@pytest.mark.parametrize(
    ("name", "is_profiler"),
    [
        ("CUDA profiling initialization", True),
        ("dlopen(libcupti.so.12)", True),
        ("Unknown", False),
        ("Lazy Function Loading", False),
        ("dlopen(libnvidia-ptxjitcompiler.so.1)", False),
    ],
)
def test_overhead_that_is_not_the_profilers(name: str, is_profiler: bool, tmp_path: Path) -> None:
    overhead = {"PROFILER_OVERHEAD": [make_overhead(2 * MS, 90 * MS, len(NAMES) + 1)]}
    calls = [(0, MS, MALLOC), (99 * MS, 100 * MS, LAUNCH)]
    findings = find(tmp_path, calls, {1: (101 * MS, 102 * MS)}, overhead, [name])
    assert findings[0].kind == "startup"
    assert ("in the profiler" in findings[0].evidence[0]) is is_profiler


def test_a_call_before_the_first_work_is_told_once(tmp_path: Path) -> None:
    """The call that sets CUDA up ends just before the first kernel begins."""
    calls = [(0, 50 * MS, MALLOC), (50 * MS, 50 * MS + 10 * US, LAUNCH)]
    findings = find(tmp_path, calls, {1: (50 * MS + 15 * US, 50 * MS + 30 * US)})
    assert [one.kind for one in findings] == ["startup"]
