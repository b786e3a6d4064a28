"""The difference of two jobs by rank and device, and as a page."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from tools.pages import Page
from tools.view_answers import SAMPLES

from nsys2prv.cli import main
from nsys2prv.figures.result import Result, Table
from nsys2prv.show.finished_job import FinishedJob, compare_jobs


def run_job(devices: dict[str, int]) -> FinishedJob:
    """Convert a job whose devices are useful for so long (ns)."""
    frame = pl.DataFrame({"device": list(devices), "useful_ns": list(devices.values())})
    return FinishedJob(
        {"name": "job", "duration_ns": 100, "ranks": 1, "devices": len(devices)},
        {"efficiencies": Result("efficiencies", "", {"devices": Table("", frame)})},
    )


def test_devices_of_the_same_names_are_compared() -> None:
    result = compare_jobs(
        run_job({"n1 GPU0": 10, "n1 GPU1": 20}), run_job({"n1 GPU1": 50, "n1 GPU0": 11})
    )
    assert result.tables["by_device"].frame.rows(named=True) == [
        {"device": "n1 GPU1", "a_useful_ns": 20, "b_useful_ns": 50, "change_of_useful_ns": 30},
        {"device": "n1 GPU0", "a_useful_ns": 10, "b_useful_ns": 11, "change_of_useful_ns": 1},
    ]


def test_as_many_devices_are_needed() -> None:
    result = compare_jobs(run_job({"n1 GPU0": 10}), run_job({"n1 GPU0": 10, "n1 GPU1": 20}))
    assert "by_device" not in result.tables
    assert "efficiencies, devices: 1 in A, 2 in B, not compared one by one" in result.notes
    assert "A has 1 GPU, B has 2 GPUs: times over all of them do not compare" in result.notes


def test_ranges_of_jobs_without_work_on_gpus_are_compared() -> None:
    """By the time of hosts: there is none of GPUs."""
    frame = pl.DataFrame({"operation": ["step"], "calls": [2], "host_ns": [30]})
    job = run_job({"n1 GPU0": 10})
    job.results["operations"] = Result("operations", "", {"operations": Table("", frame)})
    compared = compare_jobs(job, job).tables["operations_operations"].frame
    assert compared.row(0)[:5] == ("step", 2, 30, 2, 30)


def test_a_difference_as_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It has the headline and every table."""
    json_file, page = tmp_path / "graphs.json", tmp_path / "diff.html"
    assert main(["report", *map(str, SAMPLES["graphs"]), "-q", "--json", str(json_file)]) == 0
    capsys.readouterr()
    both = tmp_path / "diff.json"
    assert (
        main(["diff", str(json_file), str(json_file), "--html", str(page), "--json", str(both)])
        == 0
    )
    headline = capsys.readouterr().out.splitlines()[0]
    result = Page(page.read_text(encoding="utf-8"))
    assert headline in result.text
    assert headline.startswith("B takes as long as A")
    tables = json.loads(both.read_text())["analyses"]["difference"]["tables"]
    assert {"by_device", "job", "kernels_kernels"} <= set(tables)
    for name, table in tables.items():
        if table["columns"] and any(table["columns"].values()):
            assert f"difference.{name}" in result.jobs[0].tables
