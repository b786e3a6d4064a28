"""The figures of the analyses are those that Paraver's paramedir gave for the views on the samples'
traces.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import cache

import polars as pl
import pytest
from tools.view_answers import SAMPLES, Answers, answer_views

import nsys2prv
from nsys2prv.analysis.job import OpenJob
from nsys2prv.analysis.result import Result

#: paramedir rounds to 10 decimals.
CLOSE = 1e-9


@cache
def analyze_sample(sample: str, useful: str) -> dict[str, Result]:
    with nsys2prv.open(SAMPLES[sample], align="utc") as job:
        return job.analyse(useful=useful)


@pytest.fixture(scope="module", params=sorted(SAMPLES))
def sample(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def answers(sample: str) -> Answers:
    return answer_views(sample)


@pytest.fixture(scope="module")
def job(sample: str) -> Iterator[OpenJob]:
    with nsys2prv.open(SAMPLES[sample], align="utc") as opened:
        yield opened


@pytest.mark.parametrize(("useful", "before"), [("compute", ""), ("all-kernels", "talp_")])
def test_efficiencies_of_devices(sample: str, answers: Answers, useful: str, before: str) -> None:
    result = analyze_sample(sample, useful)["efficiencies"]
    (row,) = result.tables["device"].frame.rows(named=True)
    for name, view in (
        ("parallel_efficiency", f"{before}device_parallel_efficiency"),
        ("load_balance_efficiency", f"{before}device_load_balance"),
        ("communication_efficiency", f"{before}device_communication_efficiency"),
        ("orchestration_efficiency", "device_orchestration_efficiency"),
    ):
        assert [[pytest.approx(100 * row[name], rel=CLOSE)]] == answers.read_rows(
            f"model/{view}.cfg"
        ), name
    shares = [100 * value for value in result.tables["devices"].frame["useful_share"]]
    assert [
        cells
        for cells in answers.read_rows(
            "model/GPU_LB.cfg" if not before else f"model/{before}device_useful_2dh.cfg"
        )
        if cells
    ] == [[pytest.approx(share, rel=CLOSE)] for share in shares]
    product = (
        row["load_balance_efficiency"]
        * row["communication_efficiency"]
        * row["orchestration_efficiency"]
    )
    assert product == pytest.approx(row["parallel_efficiency"], rel=1e-12)


def test_efficiencies_of_hosts(sample: str, answers: Answers) -> None:
    result = analyze_sample(sample, "compute")["efficiencies"]
    (row,) = result.tables["host"].frame.rows(named=True)
    useful = answers.read_totals("model/host_useful_2dh.cfg")
    assert useful["Average"] == [pytest.approx(100 * row["host_parallel_efficiency"], rel=CLOSE)]
    if "model/host_outside_mpi_2dh.cfg" in answers.tables:
        outside = answers.read_totals("model/host_outside_mpi_2dh.cfg")
        assert outside["Average"] == [
            pytest.approx(100 * row["mpi_parallel_efficiency"], rel=CLOSE)
        ]
        assert outside["Avg/Max"] == [pytest.approx(row["mpi_load_balance_efficiency"], rel=CLOSE)]
        assert outside["Maximum"] == [
            pytest.approx(100 * row["mpi_communication_efficiency"], rel=CLOSE)
        ]
        assert useful["Total"][0] / outside["Total"][0] == pytest.approx(
            row["offload_efficiency"], rel=CLOSE
        )
    else:
        assert "mpi_parallel_efficiency" not in row
        assert any("MPI_P2P_EVENTS" in missing for missing in result.missing)


def test_overlap(sample: str, answers: Answers) -> None:
    devices = analyze_sample(sample, "compute")["overlap"].tables["devices"].frame
    *rows, _ = devices.rows(named=True)
    for view, columns in (
        (
            "extra/analysis/overlap-of-communication-2dh.cfg",
            ("exposed_share_of_communication", "overlapped_share_of_communication"),
        ),
        (
            "analysis/overlap-communication-compute-2dh-timeline.cfg",
            ("exposed_share_of_elapsed", "overlapped_share_of_elapsed"),
        ),
    ):
        cells_of_view = [cells + [0.0] * (2 - len(cells)) for cells in answers.read_rows(view)]
        assert cells_of_view == [
            [pytest.approx(100 * row[name], rel=CLOSE, abs=1e-10) for name in columns]
            for row in rows
        ], view


def test_gaps(sample: str, answers: Answers) -> None:
    """The report has one class for all gaps below 1 us, and for all from 100 ms on."""
    gaps = analyze_sample(sample, "compute")["idle"].tables["gaps"].frame
    for view, column in (
        ("analysis/gpu-gaps-time_2dh.cfg", "time_ns"),
        ("extra/analysis/gpu-gaps-count_2dh.cfg", "count"),
    ):
        view_gaps: dict[str, float] = defaultdict(float)
        for name, value in answers.sum_columns(view).items():
            dash = " - " if name.count(" ") > len(["1", "to", "10", "us"]) - 1 else "-"
            view_gaps[
                "< 1 us"
                if " ns" in name
                else ">= 100 ms"
                if name.endswith(" s")
                else name.replace(" to ", dash)
            ] += value
        result = dict(zip(gaps["length"], gaps[column], strict=True))
        assert {name: value for name, value in result.items() if value} == {
            name: pytest.approx(value, rel=CLOSE) for name, value in view_gaps.items() if value
        }, view


def test_time_of_kernels_and_classes(sample: str, answers: Answers) -> None:
    kernels = analyze_sample(sample, "compute")["kernels"]
    for view, table, key in (
        ("analysis/kernel_time_2dh.cfg", "kernels", "kernel"),
        ("analysis/kernel-class-time_2dh.cfg", "classes", "class"),
    ):
        view_sums = {
            name.split(" (")[0]: value for name, value in answers.sum_columns(view).items() if value
        }
        frame = kernels.tables[table].frame
        result = {
            name: time
            for name, time in zip(frame[key], frame["time_ns"], strict=True)
            if name != "CUDA graph"
        }
        assert sorted(result.values()) == pytest.approx(sorted(view_sums.values())), view


def test_tensor_cores(sample: str, answers: Answers) -> None:
    """Over kernels of all classes the view, over GEMMs the table: their sum by class is compared
    through the frames.
    """
    with nsys2prv.open(SAMPLES[sample], align="utc") as job:
        frame = job.frame("cuda_kernel", "class", "tensor_cores")
        nccl = (
            job.frame("nccl_kernel", "class", "tensor_cores")
            if "nccl_kernel" in job.layouts
            else frame.clear()
        )
    view_sums = answers.sum_columns("extra/analysis/tensor_cores_time_2dh.cfg")
    times = dict.fromkeys(("Yes", "No", "Unknown"), 0)
    for part in (frame, nccl):
        for label, begin, end in part.select("tensor_cores", "begin", "end").rows():
            times[label] += end - begin
    assert {label: time for label, time in times.items() if time} == {
        label: pytest.approx(value) for label, value in view_sums.items() if value
    }


def test_collectives(sample: str, answers: Answers) -> None:
    """Waits and transfers of collectives. Views have those of sends and receives, too."""
    tables = analyze_sample(sample, "compute")["collectives"].tables
    across = tables["across_ranks"].frame
    for view, column in (
        ("extra/analysis/nccl_wait_2dh.cfg", "wait_ns"),
        ("extra/analysis/nccl_transfer_2dh.cfg", "transfer_ns"),
    ):
        view_sums = {
            name: value
            for name, value in answers.sum_columns(view).items()
            if value and name not in ("Send", "Recv", "SendRecv")
        }
        result = {
            name: value
            for name, value in across.group_by("operation").agg(pl.col(column).sum()).rows()
            if value
        }
        assert result == {name: pytest.approx(value) for name, value in view_sums.items()}, view


def test_memory_operations(sample: str, answers: Answers) -> None:
    memory = (
        analyze_sample(sample, "compute")["idle"]
        .tables["memory"]
        .frame.group_by("operation")
        .agg(pl.col("count", "bytes", "time_ns").sum())
    )
    for view, column in (
        ("extra/analysis/memory_time_2dh.cfg", "time_ns"),
        ("extra/analysis/memory_calls_2dh.cfg", "count"),
        ("analysis/memory_bytes_2dh.cfg", "bytes"),
    ):
        view_sums = {name: value for name, value in answers.sum_columns(view).items() if value}
        result = dict(zip(memory["operation"], memory[column], strict=True))
        assert result == {name: pytest.approx(value) for name, value in view_sums.items()}, view


def test_api_calls(sample: str, answers: Answers) -> None:
    calls = analyze_sample(sample, "compute")["idle"].tables["calls"].frame
    view_sums = {
        name: value
        for name, value in answers.sum_columns("extra/analysis/api_calls_2dh.cfg").items()
        if value
    }
    assert dict(zip(calls["call"], calls["count"], strict=True)) == view_sums
