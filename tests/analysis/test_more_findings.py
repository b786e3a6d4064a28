"""Test that any analysis can add findings to the job's single list."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace
from tools.exports import KERNEL, make_export, make_kernel, make_strings
from tools.view_answers import SAMPLES

import nsys2prv
from nsys2prv import analyses
from nsys2prv import open_job as job_module
from nsys2prv.cli import main
from nsys2prv.figures import device_time
from nsys2prv.figures.result import DECLARED, Analysis, Finding, Gain, Result, join_findings
from nsys2prv.verdict import cause_context

TITLE = "Kernels are counted."


def add_toy_finding(frames: object, context: object, result: Result) -> None:
    result.findings.append(Finding("straggler", TITLE, 0.9, evidence=("one",), advice="none"))


TOY = Analysis(
    "toy",
    "Toy",
    conclude="figures.device_time.add_toy_finding",
    needs=("kernels",),
    has_findings=True,
)


def test_a_finding_of_another_analysis_is_in_every_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in (job_module, analyses):
        monkeypatch.setattr(module, "ANALYSES", (*analyses.ANALYSES, TOY))
    monkeypatch.setitem(DECLARED, "toy", TOY)
    monkeypatch.setattr(device_time, "add_toy_finding", add_toy_finding, raising=False)
    kernels = [make_kernel(1_000 * at, 1_000 * at + 500) for at in range(20)]
    tables = {KERNEL: kernels, "StringIds": make_strings("gemm")}
    report = make_export(tmp_path / "r.sqlite", tables)
    data, page = tmp_path / "r.json", tmp_path / "r.html"
    with nsys2prv.open(report, jobs=1) as job:
        titles = [finding.title for finding in job.findings()]
        assert titles.count(TITLE) == 1
        assert job.analyse("toy")["toy"].findings
    options = ["-q", "-j", "1", "--json", str(data), "--html", str(page)]
    assert main(["report", str(report), *options]) == 0
    assert capsys.readouterr().out.count(TITLE) == 1
    written = json.loads(data.read_text())["findings"]
    assert [one["title"] for one in written] == titles
    assert TITLE in page.read_text()


def test_what_no_replay_gives_is_no_gain() -> None:
    lasts = Finding("straggler", "", 0.75)
    gains = Gain("straggler", "", 0.1)
    assert join_findings([[gains], [lasts]]) == [gains, lasts]
    assert (lasts.is_limit, gains.is_limit) == (True, False)
    assert Finding.from_dict(lasts.as_dict()) == lasts


def test_what_does_not_amount_to_the_gain_is_not_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that all kinds of causes are checked in one place, and none is shown if its values are
    too small.
    """
    with nsys2prv.open(SAMPLES["training"], quiet=True, jobs=1) as job:
        assert {one.kind for one in job.findings() if isinstance(one, Gain)}
        monkeypatch.setattr(cause_context, "LEAST_STATED", 1e9)
        findings = job.analyse("findings", whole=True)["findings"].findings
    assert not any(isinstance(one, Gain) for one in findings)
    assert all(one.happens_once or one.is_limit for one in findings)


def test_findings_are_joined_by_what_they_cost() -> None:
    one = Finding("straggler", "", 0.5)
    first, other = [one, replace(one, share=0.2)], [replace(one, share=0.3)]
    assert [each.share for each in join_findings([first, other])] == [0.5, 0.3, 0.2]
