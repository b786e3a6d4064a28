"""Test jobs made by hand with known values, which are computed here from the definitions, not by
the program.
"""

from collections.abc import Sequence
from math import prod
from pathlib import Path
from random import Random

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
from nsys2prv.figures.result import Result
from nsys2prv.figures.study_model import Interval, Run
from nsys2prv.show.study.compare import compare_runs
from nsys2prv.show.study.formats import Study

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


def make_copy(start: int, end: int, size: int) -> Row:
    place = {"deviceId": 0, "contextId": 1, "streamId": 7, "globalPid": make_global_pid()}
    what = {"bytes": size, "copyKind": 1, "srcKind": 0, "dstKind": 2}
    return {"start": start, "end": end, **place, **what}


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
    """Like `two`, without events outside GPUs, but with vLLM's kernel in place of NCCL's."""
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
    """Check two ranges that overlap on the launching thread, within a push/pop range."""
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
    ).rows() == [("NCCL operation unknown", 2, 400, 300), ("CUDA memcpy Host-to-Device", 1, 50, 50)]


def test_gaps(two: dict[str, dict[str, Result]]) -> None:
    """Of rank 0's gap, 750-1000, nothing is known; rank 1's gaps are 300-500 and 700-900, in MPI
    for the second.
    """
    rows = two["compute"]["idle"].tables["gaps"].frame
    columns = ("length", "count", "time_ns", "mpi_ns", "unknown_ns")
    assert rows.select(columns).rows() == [("< 1 us", 3, 650, 200, 450)]


def test_all_ranks_have_the_same_iterations(tmp_path: Path) -> None:
    """Three steps on each rank, whose hosts run ahead. What the first launched ends at 120 and 128, the
    last ends at 360; each launches a kernel and one of NCCL that overlaps it on rank 0. In the steady
    state, from 120, runs the end of the first kernel of rank 1.
    """

    def make_rank(first: int, computes: int) -> dict[str, list[Row]]:
        begins = (5, 105, 145)
        kernels = [make_kernel(10, first, correlationId=1)]
        for number, begin in ((2, 130), (3, 230)):
            end = begin + computes
            kernels.append(make_kernel(begin, end, correlationId=number))
            nccl = max(end - 30, begin + 80), begin + 130
            kernels.append(make_nccl_kernel(*nccl, correlationId=10 * number))
        calls = [make_call(at, at + 3, number) for number, at in enumerate(begins, 1)]
        calls += [make_call(at + 5, at + 8, 10 * number) for number, at in ((2, 105), (3, 145))]
        steps = [make_range(0, 90), make_range(100, 140), make_range(140, 180)]
        return {KERNEL: kernels, RUNTIME: calls, "NVTX_EVENTS": steps}

    ranks = [make_rank(120, 100), make_rank(128, 80)]
    options = {"iterations": "st?p", "regions": ("step",)}
    result = analyze_tables(tmp_path, ranks, **options)["efficiencies"]
    row = result.tables["device"].frame.row(0, named=True)
    assert (row["part"], row["elapsed_ns"], row["useful_ns"]) == ("steady state", 240, 368)
    assert row["load_balance_efficiency"] == pytest.approx(184 / 200, rel=EXACT)
    assert row["communication_efficiency"] == pytest.approx(200 / 238, rel=EXACT)
    assert row["orchestration_efficiency"] == pytest.approx(238 / 240, rel=EXACT)
    # 120-260 and 260-360: of each what runs in it.
    each = result.tables["iterations"].frame
    assert each.select("elapsed_ns", "useful_ns").rows() == [(140, 248), (100, 120)]
    host = result.tables["host"].frame.row(0, named=True)
    assert host["offload_efficiency"] == pytest.approx(1 - 6 / 240, rel=EXACT)
    region = result.tables["regions"].frame.row(0, named=True)
    assert (region["region"], region["elapsed_ns"], region["useful_ns"]) == ("step", 230, 360)
    assert result.tables["host_regions"].frame["elapsed_ns"].to_list() == [80]


def list_shares(result: Result) -> dict[tuple[str, str, int], float]:
    """Return all efficiencies and shares by table, column and row; of the spread its extremes."""
    shares = {
        (name, column, row): value
        for name, table in result.tables.items()
        for column in table.frame.columns
        if column.endswith(("_efficiency", "_share"))
        for row, value in enumerate(table.frame[column])
        if value is not None
    }
    spread = result.tables["over_iterations"].frame
    rows = spread.filter(spread["figure"].str.ends_with("efficiency")).rows(named=True)
    return shares | {(row["figure"], one, 0): row[one] for row in rows for one in ("min", "max")}


@pytest.mark.parametrize("seed", range(8))
def test_no_efficiency_exceeds_1_and_parts_make_the_whole(seed: int, tmp_path: Path) -> None:
    """Stages of a pipeline are in different iterations at a time, and do not need the same time for each."""
    random = Random(seed)
    ranks, number = [], 0
    for stage in range(3):
        tables: dict[str, list[Row]] = {KERNEL: [], RUNTIME: [], "NVTX_EVENTS": []}
        free = 100 + 60 * stage
        for step in range(5):
            tables["NVTX_EVENTS"].append(make_range(100 * step, 100 * step + 90))
            for at in range(5, 85, 20):
                number += 1
                host = 100 * step + at
                tables[RUNTIME].append(make_call(host, host + 3, number))
                begin = max(free, host + 5) + random.choice((0, 0, 30 * stage))
                free = begin + random.choice((10, 20, 30, 80))
                make = random.choice((make_kernel, make_nccl_kernel))
                tables[KERNEL].append(make(begin, free, correlationId=number))
        ranks.append(tables)
    result = analyze_tables(tmp_path, ranks, iterations="step")["efficiencies"]
    assert {"iterations", "iterations_of_devices", "over_iterations"} <= result.tables.keys()
    wrong = {key: one for key, one in list_shares(result).items() if not -EXACT < one < 1 + EXACT}
    assert not wrong
    factors = ("load_balance", "communication", "orchestration")
    for table in ("device", "iterations"):
        for row in result.tables[table].frame.rows(named=True):
            product = prod(row[f"{name}_efficiency"] for name in factors)
            assert product == pytest.approx(row["parallel_efficiency"], rel=EXACT)


def make_openmp(start: int, end: int, tid: int = PID, **columns: object) -> Row:
    place = {"globalTid": make_global_tid(tid), "nameId": 1, "eventClass": 78}
    return {"start": start, "end": end, **place, "parallelId": 1, **columns}


@pytest.mark.parametrize(
    ("others", "host_threads"),
    [([], "main"), ([], "all"), ([{RUNTIME: [make_call(0, 400, 1)]}], "main")],
    ids=["one rank", "all threads", "a rank without OpenMP"],
)
def test_openmp(tmp_path: Path, others: list[dict[str, list[Row]]], host_threads: str) -> None:
    """400 ns, of which a region takes 100 on two threads: these wait for 20 and 50 of it; the task of the
    other thread lasts until its next region.
    """

    tables = {
        RUNTIME: [make_call(0, 0, 1), make_call(390, 400, 2)],
        "OPENMP_EVENT_KIND_PARALLEL": [make_openmp(100, 200)],
        "OPENMP_EVENT_KIND_TASK": [
            make_openmp(100, 200, kind=2),
            make_openmp(100, 300, PID + 1, kind=2),
        ],
        "OPENMP_EVENT_KIND_SYNC_REGION_WAIT": [
            make_openmp(180, 200, kind=2),
            make_openmp(150, 200, PID + 1, kind=2),
        ],
    }
    results = analyze_tables(tmp_path, [tables, *others], host_threads=host_threads)
    row = results["efficiencies"].tables["host"].frame.row(0, named=True)
    # Of 800 ns of both threads, 300 idle in the serial part, 70 waiting.
    expected = {"parallel": 430 / 800, "serialisation": 430 / 730, "load_balance": 730 / 800}
    for name, value in {**expected, "scheduling": 1}.items():
        assert row[f"openmp_{name}_efficiency"] == pytest.approx(value, rel=EXACT)


def test_openmp_without_waiting_of_barriers(tmp_path: Path) -> None:
    """400 ns with two regions of 100 on two threads. The other thread waits for a critical section for
    30, and leaves the last barrier of the first region only within the second.
    """
    tables = {
        RUNTIME: [make_call(0, 0, 1), make_call(390, 400, 2)],
        "OPENMP_EVENT_KIND_PARALLEL": [make_openmp(100, 200), make_openmp(250, 350, parallelId=2)],
        "OPENMP_EVENT_KIND_TASK": [
            make_openmp(100, 200, kind=2),
            make_openmp(100, 260, PID + 1, kind=2),
            make_openmp(250, 350, kind=2, parallelId=2),
            make_openmp(260, 390, PID + 1, kind=2, parallelId=2),
        ],
        "OPENMP_EVENT_KIND_SYNC_REGION": [
            make_openmp(180, 200, kind=2),
            make_openmp(150, 260, PID + 1, kind=2),
        ],
        "OPENMP_EVENT_KIND_MUTEX_WAIT": [
            {**make_openmp(300, 330, PID + 1, kind=5), "parallelId": None}
        ],
    }
    result = analyze_tables(tmp_path, [tables])["efficiencies"]
    row = result.tables["host"].frame.row(0, named=True)
    # Of 800 ns of both threads, 200 idle in the serial part, 70 in barriers, 30 waiting for the lock.
    expected = {
        "parallel": 500 / 800,
        "serialisation": 500 / 700,
        "scheduling": 1,
        "lock": 700 / 730,
        "load_balance": 730 / 800,
    }
    for name, value in expected.items():
        assert row[f"openmp_{name}_efficiency"] == pytest.approx(value, rel=EXACT)
    assert any("SYNC_REGION_WAIT was not recorded" in note for note in result.notes)


def test_openmp_without_any_synchronization(tmp_path: Path) -> None:
    """Without recorded barriers, waiting threads cannot be distinguished from working ones."""
    tables = {
        RUNTIME: [make_call(0, 0, 1), make_call(390, 400, 2)],
        "OPENMP_EVENT_KIND_PARALLEL": [make_openmp(100, 200)],
        "OPENMP_EVENT_KIND_TASK": [
            make_openmp(100, 200, kind=2),
            make_openmp(100, 200, PID + 1, kind=2),
        ],
    }
    result = analyze_tables(tmp_path, [tables])["efficiencies"]
    assert not [name for name in result.tables["host"].frame.columns if name.startswith("openmp")]
    (missing,) = [line for line in result.missing if line.startswith("OpenMP efficiencies")]
    assert "OPENMP_EVENT_KIND_SYNC_REGION" in missing


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
    def run(devices: int, elapsed: int, useful: int, **more: float) -> Run:
        sums = {"elapsed_ns": elapsed, "useful_ns": useful, "hosts": devices, **more}
        return Run(
            name=f"run{devices}",
            ranks=devices,
            devices=devices,
            nodes=1,
            interval=Interval(0, 9 * elapsed, 9, ""),
            metrics={"elapsed_ns": elapsed, "device": {"parallel": useful / devices / elapsed}},
            sums=sums,
        )

    def list_figures(study: Study, name: str) -> list[float]:
        return [run.metrics["device"][name] for run in study.runs]

    sampled = {"instructions": 100.0, "clock_hertz": 1e9}
    small = run(2, 1000, 1600, **sampled)
    large = run(4, 600, 2000, instructions=110.0, clock_hertz=9e8)
    study = compare_runs([large, small])
    assert (study.scaling.detected, study.reference) == ("strong", "run2")
    assert [run.metrics["speedup"] for run in study.runs] == pytest.approx([1, 1000 / 600])
    assert list_figures(study, "computation_scalability") == pytest.approx([1, 0.8])
    assert list_figures(study, "global") == pytest.approx([0.8, 0.8 * 2000 / 2400])
    assert list_figures(study, "instruction_scalability") == pytest.approx([1, 1 / 1.1])
    assert list_figures(study, "frequency_scalability") == pytest.approx([1, 0.9])
    assert list_figures(study, "ipc_scalability") == pytest.approx([1, 0.8 * 1.1 / 0.9])
    # The figures of an earlier study are compared anew.
    again = compare_runs(Study.from_dict(study.to_dict()).runs, "weak")
    assert [run.metrics["speedup"] for run in again.runs] == pytest.approx([1, 2000 / 600])
    assert list_figures(again, "computation_scalability") == pytest.approx([1, 1.6])
    assert "indicates strong scaling" in again.warnings[-1]
    for useful, is_other in ((9000, True), (2600, False)):
        mixed = compare_runs([run(2, 1000, 1600), large, run(4, 600, useful)])
        assert any("GPUs compute 4.5 × as long" in line for line in mixed.warnings) == is_other
    small.devices = 0
    apart = compare_runs([large, small])
    assert ("scaling is unknown" in apart.warnings[-1], apart.scaling.why) == (True, "")
    assert ["efficiency" in run.metrics for run in apart.runs] == [True, False]
