"""Test iterations of the steady state: the time and parts of each."""

from pathlib import Path

from tools.exports import (
    KERNEL,
    MEMCPY,
    PID,
    make_export,
    make_global_pid,
    make_global_tid,
    make_kernel,
    make_strings,
)

import nsys2prv

US = 1_000


def test_parts_of_iterations(tmp_path: Path) -> None:
    """Each of 5 iterations of 100 us: 40 computing, NCCL for 30 of which 10 are hidden, a copy for
    15 of which 5 are beside NCCL, else idle; the third computes for 20 longer.
    """
    kernels, copies, ranges, begin = [], [], [], 1_000 * US
    for number in range(5):
        more = 20 * US if number == 2 else 0
        since = begin + 30 * US + more
        kernels.append(make_kernel(begin, since + 10 * US))
        kernels.append(
            make_kernel(since, since + 30 * US, streamId=9, demangledName=2, shortName=2)
        )
        copy = {"start": since + 25 * US, "end": since + 40 * US, "deviceId": 0, "contextId": 1}
        copies.append(
            {**copy, "streamId": 11, "globalPid": make_global_pid(), "bytes": 8, "copyKind": 1}
        )
        step = {"start": begin, "end": begin + 99 * US + more, "eventType": 59}
        ranges.append({**step, "globalTid": make_global_tid(PID), "text": f"step {number}"})
        begin += 100 * US + more
    names = make_strings("gemm", "ncclDevKernel_AllReduce_Sum_f32_RING_LL")
    tables = {"StringIds": names, KERNEL: kernels, MEMCPY: copies, "NVTX_EVENTS": ranges}
    report = make_export(tmp_path / "rank0.sqlite", tables, {"text": "TEXT"})
    with nsys2prv.open([report], quiet=True) as job:
        tables = job.analyse("iterations")["iterations"].tables
    result, summary = tables["each"].frame, tables["summary"].frame
    # Without the first; the last one ends with its range.
    assert result["time_ns"].to_list() == [100_000, 120_000, 100_000, 99_000]
    assert result["compute_ns"].to_list() == [40_000, 60_000, 40_000, 40_000]
    assert set(result["exposed_nccl_ns"]) == {20_000}
    assert set(result["exposed_memory_ns"]) == {10_000}
    assert result["idle_ns"].to_list() == [30_000, 30_000, 30_000, 29_000]
    assert summary.row(1) == ("computing", 40_000.0, 40_000, 1, 60_000, 2)


def test_a_job_without_iterations_says_so(tmp_path: Path) -> None:
    report = make_export(
        tmp_path / "rank0.sqlite", {"StringIds": make_strings("gemm"), KERNEL: [make_kernel(5, 9)]}
    )
    with nsys2prv.open([report], quiet=True) as job:
        result = job.analyse("iterations")["iterations"]
    assert not result.tables
    assert "has no repeating part" in result.missing[0]
