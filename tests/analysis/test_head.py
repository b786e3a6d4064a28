"""The head of a report, and how the clocks of its hosts were corrected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tools.view_answers import SAMPLES

from nsys2prv._util.errors import Detail
from nsys2prv.analysis.head import machine_line
from nsys2prv.analysis.job import OpenJob, open_job
from nsys2prv.cli.main import main
from nsys2prv.cli.report import describe
from nsys2prv.nsight.info import driver_version


def test_a_report_says_when_and_where_it_was_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = tmp_path / "r.json"
    command = ["report", *map(str, SAMPLES["training"]), "--only", "clocks", "-q"]
    assert main([*command, "--title", "Batch of 8", "--json", str(told)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Batch of 8"
    assert lines[2].startswith(
        "2026-05-28 20:26:40 UTC; 4 x NVIDIA H100 80GB HBM3; driver 580.95.05"
    )
    written = json.loads(told.read_text())
    assert written["job"]["title"] == "Batch of 8"
    assert written["job"]["gpu_models"] == {"NVIDIA H100 80GB HBM3": 4}
    # The job from its JSON has the same head.
    assert main(["report", str(told)]) == 0
    assert capsys.readouterr().out.splitlines()[:3] == lines[:3]
    clocks = written["analyses"]["clocks"]["tables"]["hosts"]["columns"]
    assert sorted(clocks["host"]) == ["node01", "node02"]
    assert clocks["bound_ns"][0] > clocks["bound_ns"][1] == 0, "least certain first"


def test_nothing_known_is_nothing_told() -> None:
    assert machine_line({"name": "a job"}) == ""
    assert machine_line({"nsys": ["1", "2", "3", "4"]}) == "recorded by nsys 1, 2, 3 and 1 more"


@pytest.mark.parametrize(
    ("recorded", "told"),
    [
        ("580.95.05", "580.95.05"),
        ("5156501", "515.65.01"),
        ("515.65.01 s3cret", ""),
        ("token", ""),
        ("47014103", "470.141.03"),
        ("0", ""),
    ],
)
def test_versions_of_drivers(recorded: str, told: str) -> None:
    assert driver_version(recorded) == told


def test_notes_that_need_no_action_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    reports = SAMPLES["training"]
    with open_job(reports, jobs=1, quiet=True) as job:
        monkeypatch.setattr(OpenJob, "notes", property(lambda _: [Detail("5 states"), "look here"]))
        assert describe(job, reports)["notes"] == ["look here"]
