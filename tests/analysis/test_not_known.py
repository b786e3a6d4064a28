"""Test that unknown values have no number: they are neither 0 nor part of a sum."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tools.exports import KERNEL, MEMCPY, make_export, make_global_tid, make_kernel, make_strings

import nsys2prv
from nsys2prv.figures.result import KERNEL_NAMES

SAMPLES = Path(__file__).parents[2] / "sample_reports"


def test_waits_on_hosts_without_common_clock_are_not_known() -> None:
    """Check that such waits do not become exposed communication, and that UTC alone makes no hosts
    comparable.
    """
    shares = {}
    for align in ("auto", "mpi"):
        with nsys2prv.open(SAMPLES / "training", align=align) as job:
            findings = {finding.kind: finding.share for finding in job.findings()}
            shares[align] = findings["exposed_communication"]
            results = job.analyse("collectives", "clocks")
            records = job.frame("nccl_collective", "collective", "late", "wait", "transfer")
    assert 0 < shares["mpi"] < shares["auto"]
    unplaced = records.filter(records["late"].is_null())
    assert unplaced["wait"].null_count() == unplaced["transfer"].null_count() == unplaced.height
    (line,) = (line for line in results["collectives"].missing if "unknown" in line)
    assert f"{unplaced['collective'].n_unique()} NCCL collectives" in line
    assert not results["clocks"].tables["hosts"].frame["comparable"].any()


def test_numbers_that_a_report_lacks_are_null(tmp_path: Path) -> None:
    """Check that neither a sum nor a bandwidth is given if one copy of two has no size."""
    copy = {"deviceId": 0, "contextId": 1, "streamId": 7, "copyKind": 1, "srcKind": 1, "dstKind": 2}
    rows = {
        KERNEL: [make_kernel(0, 50, gridX=4, gridY=None), make_kernel(60, 70, gridX=0, gridY=2)],
        MEMCPY: [
            {**copy, "start": 100, "end": 200, "bytes": None},
            {**copy, "start": 300, "end": 400, "bytes": 1000},
        ],
        "StringIds": make_strings("gemm"),
    }
    with nsys2prv.open(make_export(tmp_path / "r.sqlite", rows)) as job:
        assert job.stacks().columns == ["rank", "thread", "drives_gpus", "stack", "time_ns"]
        kernels = job.frame("cuda_kernel", "grid_x", "grid_y")
        sizes = job.frame("memory_operation", "bytes")["bytes"].to_list()
        (row,) = job.analyse("idle")["idle"].tables["memory"].frame.rows(named=True)
    assert kernels.select("grid_x", "grid_y").rows() == [(4, None), (0, 2)]
    assert sizes == [None, 1000]
    assert (row["count"], row["bytes"], row["bandwidth_gb_s"]) == (2, None, None)


def test_an_analysis_that_needs_names_of_kernels_is_not_available_without(tmp_path: Path) -> None:
    kernels = [make_kernel(1_000 * at, 1_000 * at + 500) for at in range(20)]
    with nsys2prv.open(make_export(tmp_path / "r.sqlite", {KERNEL: kernels})) as job:
        assert KERNEL_NAMES not in job.available
        results = job.analyse("overlap", "efficiencies")
    for result in results.values():
        assert any("the reports lack kernel names" in one for one in result.missing)
        assert "device" not in result.tables


def test_no_other_host_is_told_of_for_a_gpu_without_one(tmp_path: Path) -> None:
    report = tmp_path / "rank1.sqlite"
    shutil.copyfile(SAMPLES / "graphs" / "rank1.sqlite", report)
    with closing(sqlite3.connect(report)) as database:
        database.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_MEMSET DROP COLUMN globalPid")
        database.commit()
    with nsys2prv.open(report, quiet=True) as job:
        (idle,) = [one for one in job.findings() if one.title.startswith("GPUs are idle")]
    assert "host" not in idle.title
    assert "overlap" not in idle.advice


@pytest.mark.parametrize(
    ("sizes", "known", "lacking"),
    [((100, 40, 8), 148, None), ((100, None, 8), 108, 1), ((None, None, None), None, None)],
)
def test_bytes_are_of_the_calls_whose_size_is_known(
    sizes: tuple[int | None, ...], known: int | None, lacking: int | None, tmp_path: Path
) -> None:
    """The number of calls without a size is reported."""
    thread = {"globalTid": make_global_tid(7), "commHandle": 1, "tag": 1, "remoteRank": 1}
    calls = [
        {**thread, "start": 100 * at, "end": 100 * at + 50, "textId": 1, "size": size}
        for at, size in enumerate(sizes, 1)
    ]
    barriers = [{**thread, "start": 900, "end": 950, "textId": 2}]
    tables = {
        "StringIds": make_strings("MPI_Send", "MPI_Barrier"),
        "MPI_RANKS": [{"globalTid": make_global_tid(7), "rank": 0}],
        "MPI_P2P_EVENTS": calls,
        "MPI_COLLECTIVES_EVENTS": barriers,
    }
    with nsys2prv.open(make_export(tmp_path / "r.sqlite", tables)) as job:
        frame = job.analyse("collectives")["collectives"].tables["mpi"].frame
    assert ("of_unknown_size" in frame.columns) == (lacking is not None)
    columns = [name for name in ("call", "bytes", "of_unknown_size") if name in frame.columns]
    rows = {"MPI_Send": (known, lacking), "MPI_Barrier": (None, None)}
    width = len(columns) - 1
    assert {name: tuple(row) for name, *row in frame.select(columns).rows()} == {
        name: row[:width] for name, row in rows.items()
    }
