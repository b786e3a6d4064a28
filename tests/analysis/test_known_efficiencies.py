"""Jobs made by hand whose figures are known beforehand: they are written down here, from the
definitions, not from the program.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest
from tools.exports import (
    KERNEL,
    MEMCPY,
    PID,
    RUNTIME,
    Row,
    make_call,
    make_export,
    make_global_pid,
    make_global_tid,
    make_kernel,
    make_strings,
)

import nsys2prv
from nsys2prv.analysis.result import Result

NAMES = make_strings(
    "gemm",
    "cudaLaunchKernel",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
    "cudaStreamSynchronize",
    "step",
    "MPI_Barrier",
    "ampere_sgemm_128x64_nn",
    "ampere_h16816gemm_128x64_ldg8_stages_64x3_nn",
    "cudaMemcpyAsync",
    "cudaMemcpy",
    "void vllm::cross_device_reduce_2stage<__nv_bfloat16, 4>(vllm::RankData*)",
)
NCCL, SYNC, STEP, BARRIER, PLAIN, TENSOR, COPY, COPY_SYNC, CUSTOM = 3, 4, 5, 6, 7, 8, 9, 10, 11
EXACT = 1e-9


def make_copy(
    start: int,
    end: int,
    size: int,
    kind: int = 1,
    correlation: int | None = None,
    source: int = 0,
    target: int = 2,
) -> Row:
    return {
        "start": start,
        "end": end,
        "deviceId": 0,
        "contextId": 1,
        "streamId": 7,
        "correlationId": correlation,
        "bytes": size,
        "copyKind": kind,
        "srcKind": source,
        "dstKind": target,
        "globalPid": make_global_pid(),
    }


def make_nccl_kernel(start: int, end: int, stream: int = 9, **columns: object) -> Row:
    return make_kernel(start, end, streamId=stream, demangledName=NCCL, shortName=NCCL, **columns)


def make_range(start: int, end: int, name: int = STEP, tid: int = PID) -> Row:
    return {
        "start": start,
        "end": end,
        "eventType": 59,
        "textId": name,
        "domainId": 0,
        "globalTid": make_global_tid(tid),
    }


def make_barrier(start: int, end: int) -> Row:
    return {
        "start": start,
        "end": end,
        "globalTid": make_global_tid(PID),
        "textId": BARRIER,
        "commHandle": 1,
    }


def analyze_tables(
    folder: Path, ranks: Sequence[dict[str, list[Row]]], **options: object
) -> dict[str, Result]:
    paths = [
        make_export(folder / f"rank{number}.sqlite", {"StringIds": NAMES, **tables})
        for number, tables in enumerate(ranks)
    ]
    with nsys2prv.open(paths, align="none") as job:
        return job.analyse(**options)


def get_only_row(results: dict[str, Result], analysis: str, table: str) -> dict[str, object]:
    (row,) = results[analysis].tables[table].frame.rows(named=True)
    return row


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Result]]:
    """Two ranks, 1000 ns. Rank 0 computes 0-400 and 350-600 on two streams, communicates 500-700,
    copies 700-750; rank 1 computes 0-300, communicates 500-700. The last thing is a kernel of rank
    1, 900-1000. The hosts of both are in the API for 200 and 100 ns, in MPI for 100 (of which 50 in
    the API) and 300 ns.
    """
    first = {
        KERNEL: [
            make_kernel(0, 400),
            make_kernel(350, 600, streamId=8),
            make_nccl_kernel(500, 700),
        ],
        MEMCPY: [make_copy(700, 750, 5_000)],
        RUNTIME: [make_call(100, 300, 1)],
        "MPI_COLLECTIVES_EVENTS": [make_barrier(250, 350)],
    }
    second = {
        KERNEL: [make_kernel(0, 300), make_nccl_kernel(500, 700), make_kernel(900, 1000)],
        RUNTIME: [make_call(100, 200, 1)],
        "MPI_COLLECTIVES_EVENTS": [make_barrier(600, 900)],
    }
    return {
        useful: analyze_tables(tmp_path_factory.mktemp(useful), [first, second], useful=useful)
        for useful in ("compute", "all-kernels")
    }


def test_kernels_that_communicate_count_as_those_of_nccl(
    two: dict[str, dict[str, Result]], tmp_path: Path
) -> None:
    """As `two`, without what is not on GPUs, but with vLLM's kernel in the place of NCCL's."""
    name = {"demangledName": CUSTOM, "shortName": CUSTOM}
    first = [
        make_kernel(0, 400),
        make_kernel(350, 600, streamId=8),
        make_kernel(500, 700, streamId=9, **name),
    ]
    second = [
        make_kernel(0, 300),
        make_kernel(500, 700, streamId=9, **name),
        make_kernel(900, 1000),
    ]
    ranks = [{KERNEL: first, MEMCPY: [make_copy(700, 750, 5_000)]}, {KERNEL: second}]
    compute, bsc = (analyze_tables(tmp_path, ranks, useful=useful) for useful in ("compute", "bsc"))
    for analysis, table in (("efficiencies", "devices"), ("overlap", "devices")):
        expected = two["compute"][analysis].tables[table].frame
        assert compute[analysis].tables[table].frame.equals(expected)
    assert (
        compute["overlap"].tables["operations"].frame["operation"][0] == "kernels other than NCCL's"
    )
    assert get_only_row(bsc, "efficiencies", "device")["useful_ns"] == 700 + 600


def test_start_end_ranges_are_operations(tmp_path: Path) -> None:
    """Two of them overlap on the launching thread, within a push/pop range."""
    ranges = [
        make_range(0, 1000),
        {**make_range(100, 500, BARRIER), "eventType": 60},
        {**make_range(300, 700, TENSOR), "eventType": 60},
    ]
    calls = [make_call(at, at + 10, at) for at in (200, 400, 600)]
    kernels = [make_kernel(at + 20, at + 20 + at // 2, correlationId=at) for at in (200, 400, 600)]
    tables = {"NVTX_EVENTS": ranges, RUNTIME: calls, KERNEL: kernels}
    frame = analyze_tables(tmp_path, [tables])["operations"].tables["operations"].frame
    columns = ("operation", "calls", "host_ns", "kernels", "gpu_ns", "gpu_exclusive_ns")
    assert sorted(frame.select(columns).rows()) == sorted(
        [
            ("step", 1, 1000, 3, 600, 600),
            ("MPI_Barrier", 1, 400, 2, 300, 300),
            (NAMES[TENSOR - 1]["value"], 1, 400, 2, 500, 500),
        ]
    )


#: useful (of each device), active.
TIMES = {"compute": ((600, 400), (750, 600)), "all-kernels": ((700, 600), (750, 600))}


@pytest.mark.parametrize("useful", TIMES)
def test_efficiencies_of_devices(two: dict[str, dict[str, Result]], useful: str) -> None:
    (first, second), active = TIMES[useful]
    row = get_only_row(two[useful], "efficiencies", "device")
    assert row["elapsed_ns"] == 1000
    assert row["parallel_efficiency"] == pytest.approx((first + second) / 2000, rel=EXACT)
    assert row["load_balance_efficiency"] == pytest.approx(
        (first + second) / 2 / max(first, second), rel=EXACT
    )
    assert row["communication_efficiency"] == pytest.approx(
        max(first, second) / max(active), rel=EXACT
    )
    assert row["orchestration_efficiency"] == pytest.approx(max(active) / 1000, rel=EXACT)
    rows = two[useful]["efficiencies"].tables["devices"].frame
    assert rows.select("useful_ns", "nccl_ns", "memory_ns", "exposed_ns", "active_ns").rows() == [
        (first, 200, 50, 150, 750),
        (second, 200, 0, 200, 600),
    ]


def test_efficiencies_of_hosts(two: dict[str, dict[str, Result]]) -> None:
    row = get_only_row(two["compute"], "efficiencies", "host")
    outside, useful = (900, 700), (750, 600)
    assert row["mpi_parallel_efficiency"] == pytest.approx(sum(outside) / 2000, rel=EXACT)
    assert row["mpi_load_balance_efficiency"] == pytest.approx(800 / 900, rel=EXACT)
    assert row["mpi_communication_efficiency"] == pytest.approx(0.9, rel=EXACT)
    assert row["offload_efficiency"] == pytest.approx(sum(useful) / sum(outside), rel=EXACT)
    assert row["host_parallel_efficiency"] == pytest.approx(sum(useful) / 2000, rel=EXACT)


def test_overlap(two: dict[str, dict[str, Result]]) -> None:
    tables = two["compute"]["overlap"].tables
    rows = (
        tables["devices"]
        .frame.select(
            "communication_ns", "exposed_ns", "overlapped_ns", "nccl_ns", "nccl_exposed_ns"
        )
        .rows()
    )
    assert rows == [(250, 150, 100, 200, 100), (200, 200, 0, 200, 200), (450, 350, 100, 400, 300)]
    assert tables["operations"].frame.select(
        "operation", "count", "time_ns", "exposed_ns"
    ).rows() == [
        ("NCCL operation unknown", 2, 400, 300),
        ("CUDA memcpy Host-to-Device", 1, 50, 50),
    ]


def test_gaps(two: dict[str, dict[str, Result]]) -> None:
    """Of rank 0's gap, 750-1000, nothing is known; rank 1's gaps are 300-500 and 700-900, in MPI
    for the second.
    """
    rows = two["compute"]["idle"].tables["gaps_of_devices"].frame
    assert rows.select(
        "length", "count", "time_ns", "mpi_ns", "launch_ns", "unknown_ns"
    ).rows() == [("< 1 us", 1, 250, 0, 0, 250), ("< 1 us", 2, 400, 200, 0, 200)]


def test_iterations(tmp_path: Path) -> None:
    """Two steps on each rank: of 100 and 200 ns; the device is busy for 50 and 80 ns of the first,
    50 and 20 of the second.
    """
    first = {
        KERNEL: [make_kernel(0, 50), make_kernel(100, 150)],
        "NVTX_EVENTS": [make_range(0, 90), make_range(100, 290), make_range(120, 140)],
    }
    second = {
        KERNEL: [make_kernel(20, 100), make_kernel(180, 200), make_kernel(400, 500)],
        "NVTX_EVENTS": [make_range(10, 100), make_range(110, 300)],
    }
    results = analyze_tables(tmp_path, [first, second], iterations="st?p")
    rows = results["efficiencies"].tables["iterations"].frame.rows(named=True)
    assert [(row["range"], row["iteration"], row["elapsed_ns"]) for row in rows] == [
        ("step", 1, 100),
        ("step", 2, 200),
    ]
    for row, times in zip(rows, ((50, 80), (50, 20)), strict=True):
        assert row["parallel_efficiency"] == pytest.approx(
            sum(times) / 2 / row["elapsed_ns"], rel=EXACT
        )
        assert row["load_balance_efficiency"] == pytest.approx(
            sum(times) / 2 / max(times), rel=EXACT
        )
        assert row["communication_efficiency"] == 1
        assert row["orchestration_efficiency"] == pytest.approx(
            max(times) / row["elapsed_ns"], rel=EXACT
        )
    over = {
        row["figure"]: row
        for row in results["efficiencies"].tables["over_iterations"].frame.rows(named=True)
    }
    shares = (130 / 200, 70 / 400)
    parallel = over["parallel efficiency"]
    assert [parallel[name] for name in ("mean", "min", "max")] == pytest.approx(
        [sum(shares) / 2, shares[1], shares[0]], rel=EXACT
    )
    assert (parallel["min_in_iteration"], parallel["max_in_iteration"]) == (2, 1)
    whole = get_only_row(results, "efficiencies", "device")
    assert whole["parallel_efficiency"] == pytest.approx((100 + 200) / 1000, rel=EXACT)


def test_rules(tmp_path: Path) -> None:
    """An asynchronous copy of pageable memory, one of pinned, a synchronous one, one within the
    device, and a call that waits: 10 ns of it beside a busy device, 30 ns beside an idle one.
    """
    tables = {
        RUNTIME: [
            make_call(0, 5, 1, nameId=COPY),
            make_call(10, 15, 2, nameId=COPY),
            make_call(20, 60, 3, nameId=COPY_SYNC),
            make_call(70, 75, 4, nameId=COPY_SYNC),
            make_call(80, 120, 5, nameId=SYNC),
        ],
        MEMCPY: [
            make_copy(5, 15, 100, correlation=1),
            make_copy(16, 26, 100, correlation=2, source=1),
            make_copy(30, 50, 100, correlation=3, source=1),
            make_copy(75, 90, 100, kind=8, correlation=4, source=2),
        ],
    }
    rules = analyze_tables(tmp_path, [tables])["idle"].tables["rules"].frame
    result = {
        rule: (count, time) for rule, count, time in rules.select("rule", "count", "time_ns").rows()
    }
    assert result["asynchronous copies of pageable memory"] == (1, 10)
    assert result["synchronous copies"] == (1, 20)
    assert result["synchronous sets"] == (0, 0)
    assert result["API calls that wait for the device and leave it idle"] == (1, 30)


def test_missing_inputs_are_named(tmp_path: Path) -> None:
    results = analyze_tables(tmp_path, [{RUNTIME: [make_call(0, 5, 1)]}])
    missing = {name: " ".join(result.missing) for name, result in results.items()}
    for name in ("efficiencies", "kernels", "overlap"):
        assert "CUPTI_ACTIVITY_KIND_KERNEL" in missing[name], missing[name]
        assert "device" not in results[name].tables
    assert "MPI_P2P_EVENTS" in missing["efficiencies"]
    assert "NVTX_EVENTS" in missing["operations"]
    assert "GPU_METRICS" in missing["metrics"]
    assert results["operations"].tables == {}


def test_scalability() -> None:
    from nsys2prv.analysis.comparison import ComparedJob, compare_scaling
    from nsys2prv.analysis.result import Table

    def run(name: str, devices: int, elapsed: int, useful: int) -> ComparedJob:
        ones = ("load_balance_efficiency", "communication_efficiency", "orchestration_efficiency")
        frame = pl.DataFrame(
            {
                "devices": devices,
                "elapsed_ns": elapsed,
                "useful_ns": useful,
                "parallel_efficiency": useful / devices / elapsed,
                **dict.fromkeys(ones, 1.0),
            }
        )
        return ComparedJob(
            {"name": name},
            {"efficiencies": Result("efficiencies", "", {"device": Table("", frame)})},
        )

    runs = [run("a", 2, 1000, 1600), run("b", 4, 600, 2000)]
    strong = compare_scaling(runs, True).tables["scaling"].frame
    assert strong["computation_scalability"].to_list() == pytest.approx([1, 0.8], rel=EXACT)
    assert strong["global_efficiency"].to_list() == pytest.approx(
        [0.8, 0.8 * 2000 / 2400], rel=EXACT
    )
    assert strong["speedup"].to_list() == pytest.approx([1, 1000 / 600], rel=EXACT)
    assert compare_scaling(runs, False).tables["scaling"].frame[
        "computation_scalability"
    ].to_list() == pytest.approx([1, 1.6], rel=EXACT)
