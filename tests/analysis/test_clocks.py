"""Test the heading of a report, and the corrections of its hosts' clocks."""

import json
from pathlib import Path

import polars as pl
import pytest
from tools.exports import KERNEL, make_export, make_global_pid, make_kernel, make_strings
from tools.view_answers import SAMPLES

import nsys2prv
from nsys2prv.cli import main
from nsys2prv.show.text import format_machine_line


def test_a_report_says_when_and_where_it_was_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    json_file = tmp_path / "r.json"
    command = ["report", *map(str, SAMPLES["training"]), "--only", "clocks", "-q"]
    assert main([*command, "--title", "Batch of 8", "--json", str(json_file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Batch of 8"
    assert "4 GPUs (NVIDIA H100 80GB HBM3)" in lines[1]
    assert lines[2].startswith("Recorded 2026-05-28 20:26:40 UTC by nsys")
    assert lines[2].endswith("driver 580.95.05")
    written = json.loads(json_file.read_text())
    assert written["job"]["title"] == "Batch of 8"
    assert written["job"]["gpu_models"] == {"NVIDIA H100 80GB HBM3": 4}
    # The job from its JSON has the same head.
    assert main(["report", str(json_file)]) == 0
    assert capsys.readouterr().out.splitlines()[:3] == lines[:3]
    clocks = written["analyses"]["clocks"]["tables"]["hosts"]["columns"]
    assert sorted(clocks["host"]) == ["node01", "node02"]
    assert clocks["error_bound_ns"][0] > clocks["error_bound_ns"][1] == 0, "least certain first"


def test_nothing_known_is_nothing_told() -> None:
    assert format_machine_line({"name": "a job"}) == ""
    many = {"exported_by": ["1", "2", "3", "4"]}
    assert format_machine_line(many) == "exported by nsys 1, 2, 3 and 1 more"


@pytest.mark.parametrize(
    ("folders", "said"),
    [
        (["/opt/nvidia/nsight-systems/2023.1.2/target-linux-x64"], "recorded by nsys 2023.1.2"),
        (["/cuda/NsightSystems-cli-2025.5.1/target-linux-x64"], "recorded by nsys 2025.5.1"),
        (["C:/Nsight Systems 2025.3.2/target-windows-x64"], "recorded by nsys 2025.3.2"),
        (["/opt/nvidia/hpc_sdk/Linux_x86_64/22.11/profilers/Nsight_Systems/target-linux-x64"], ""),
        (["/opt/nvidia/nsight-compute/2023.2.0/host/target-linux-x64"], ""),
        ([None], ""),
        (["/nsight-systems/2023.1.2/t", "/nsight-systems/2022.1.3/t"], "recorded by nsys 2022.1.3, 2023.1.2"),
        (["/nsight-systems/2023.1.2/target-linux-x64", None], ""),
    ],
)  # fmt: skip
def test_who_recorded_is_told_by_the_folder_of_the_profiler(
    folders: list[str | None], said: str, tmp_path: Path
) -> None:
    """Check that the version of the recorder comes from its folder; META_DATA_EXPORT contains the
    exporter's version.
    """
    reports = [
        make_export(
            tmp_path / f"rank{number}.sqlite",
            {
                "StringIds": make_strings("gemm"),
                KERNEL: [make_kernel(0, 10, globalPid=make_global_pid(7 + number))],
                "META_DATA_EXPORT": [{"name": "EXPORT_PRODUCT_VERSION", "value": "2026.2.1.210"}],
                "TARGET_INFO_SYSTEM_ENV": [{"name": "TargetInstallDir", "value": folder}],
            },
        )
        for number, folder in enumerate(folders)
    ]
    with nsys2prv.open(reports) as job:
        line = format_machine_line(job.describe())
        differ = {note.kind for note in job.quality} & {"versions_differ"}
    assert line == f"{said}, exported by nsys 2026.2.1.210".removeprefix(", ")
    assert bool(differ) == ("," in said)


def test_an_exporter_that_recorded_is_named_once() -> None:
    facts = {"recorded_by": ["2024.2.3"], "exported_by": ["2024.2.3.38"]}
    assert format_machine_line(facts) == "recorded by nsys 2024.2.3"


@pytest.mark.slow
def test_waits_below_the_clocks_bounds_are_marked() -> None:
    """Check that every wait counts within a host, and between hosts those above both bounds."""
    with nsys2prv.open(SAMPLES["training"], quiet=True) as job:
        tables = job.analyse("collectives", "clocks")
    (bound,) = tables["clocks"].tables["hosts"].frame["error_bound_ns"].top_k(1)
    rows = tables["collectives"].tables["across_ranks"].frame
    within = pl.col("communicator").str.starts_with("node")
    assert rows.filter(within).height
    for row in rows.with_columns(within=within).rows(named=True):
        certain = row["within"] or row["mean_wait_ns"] > bound
        assert row["exceeds_clock_error"] == certain, row["communicator"]
    assert set(rows["exceeds_clock_error"]) == {True, False}
    ranks = tables["collectives"].tables["stragglers"].frame
    assert ranks["exceeds_clock_error"].to_list() == [late > bound for late in ranks["max_late_ns"]]
    assert dict(ranks.select("rank", "device").rows())["rank 3"] == "node02 GPU1"
    assert dict(ranks.select("rank", "node").rows())["rank 0"] == "node01"
    with nsys2prv.open(SAMPLES["graphs"], quiet=True) as job:
        alone = job.analyse("collectives")["collectives"].tables
    assert "exceeds_clock_error" not in alone["across_ranks"].frame.columns
