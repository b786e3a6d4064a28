"""Iterations of the steady state: times and parts of each, and two jobs compared by them."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
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
from nsys2prv.figures.iteration_times import PARTS
from nsys2prv.figures.result import Result, Table
from nsys2prv.show.finished_job import FinishedJob, compare_jobs, describe_change

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
    assert "does not repeat itself" in result.missing[0]


def run_iterations(steps: int, time: int, exposed: int) -> FinishedJob:
    """Convert a job of so many iterations, of so much time each, of which so much is exposed NCCL
    (ns).
    """
    each = pl.DataFrame({"iteration": range(1, steps + 1), "time_ns": [time] * steps}).with_columns(
        pl.lit(0).alias(name) for name in PARTS
    )
    each = each.with_columns(pl.lit(exposed).alias("exposed_nccl_ns"))
    phases = pl.DataFrame(
        {"phase": ["steady state"], "time_ns": [steps * time], "iterations": [steps]}
    )
    classes = pl.DataFrame({"class": ["GEMM"], "count": [steps], "time_ns": [steps * 50]})
    tables = {
        "findings": {"phases": phases},
        "iterations": {"each": each},
        "kernels": {"classes": classes},
    }
    results = {
        name: Result(name, "", {key: Table("", frame) for key, frame in item.items()})
        for name, item in tables.items()
    }
    return FinishedJob({"name": "job", "duration_ns": 1, "ranks": 1, "devices": 1}, results)


def test_an_outlier_is_named_and_leaves_the_headline_alone() -> None:
    first, second = run_iterations(9, 1_000, 100), run_iterations(9, 1_000, 100)
    each = second.results["iterations"].tables["each"]
    slow = pl.when(pl.col("iteration") == 4).then(9_000).otherwise("time_ns").alias("time_ns")
    second.results["iterations"].tables["each"] = Table("", each.frame.with_columns(slow))
    more, headline = describe_change(compare_jobs(first, second), first, second)
    assert more == 0
    assert headline == (
        "B takes as long as A: the median iteration takes 1.00 us (A: 1.00 us); "
        "more than 1.5 times the median: B's iteration 4 (9.00 us)"
    )


def test_jobs_of_different_numbers_of_iterations_compare() -> None:
    first, second = run_iterations(4, 1_000, 100), run_iterations(10, 1_200, 300)
    more, headline = describe_change(compare_jobs(first, second), first, second)
    assert more == pytest.approx(0.2)
    assert headline.startswith(
        "B takes 20.0 % longer than A: the median iteration takes 1.20 us (A: 1.00 us); "
        "B has 10 iterations, A has 4; per GPU: "
    )
    assert "per GPU: communication alone (exposed) +200 ns" in headline
    result = compare_jobs(first, second)
    each = result.tables["by_iteration"].frame
    assert each["iteration"].to_list() == [1, 2, 3, 4]
    assert set(each["change_of_time_ns"]) == {200}
    assert set(each["change_of_exposed_nccl_ns"]) == {200}
    median = result.tables["iteration"].frame.row(0, named=True)
    assert (median["a_ns"], median["b_ns"]) == (1_000, 1_200)
    assert median["change_share"] == pytest.approx(0.2)
    # Ten iterations take more than four, but not one of them.
    assert result.tables["kernels_classes"].frame["change_ns"].to_list() == [300]
    assert result.tables["kernels_classes"].frame["change_of_iteration_ns"].to_list() == [0]
    same = compare_jobs(first, run_iterations(4, 1_200, 300))
    assert "change_of_iteration_ns" not in same.tables["kernels_classes"].frame.columns
