"""Test findings of jobs with known faults, and their display."""

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from tools.view_answers import SAMPLES

import nsys2prv
from nsys2prv.cli import main
from nsys2prv.figures.result import FINDING_KINDS, NOTHING, Finding, Gain
from nsys2prv.show.text import TRACE, format_findings
from nsys2prv.verdict.findings import _order_groups
from nsys2prv.verdict.words import TEXTS
from nsys2prv.writers.paraver.cfg import list_core_views

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import culprits


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["slow GPU", "slow code", "slow link", "hiccup", "balanced"])
def test_jobs_with_a_known_fault(fault: str, tmp_path: Path) -> None:
    case = culprits.CASES[fault](np.random.default_rng([1, 4]), 4)
    case.options = dataclasses.replace(case.options, steps=10, skew_us=20.0)
    case.fault = dataclasses.replace(case.fault, steps=(5,) if case.fault.steps else ())
    result = culprits.judged(case, tmp_path).found
    assert case.hit, result
    for finding in result:
        assert len(finding.devices) == len(finding.ranks)
        assert 0 < finding.share <= 1
        assert finding.evidence
        assert finding.advice


def test_every_kind_is_explained() -> None:
    text = (Path(__file__).parents[2] / "docs" / "analysis.md").read_text()
    for kind, meaning in FINDING_KINDS.items():
        assert f"* `{kind}`: {meaning}" in text.replace("\n  ", " ")


def test_views_of_findings_are_there() -> None:
    core = set(list_core_views())
    named = {view for _, views in TEXTS["kinds"].values() for view in views}
    named |= {*TEXTS["host_views"].values()}
    assert named <= core, f"cfgs/ lacks {sorted(named - core)}"


@pytest.mark.slow
def test_findings_everywhere_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reports, data = list(map(str, SAMPLES["training"])), tmp_path / "r.json"
    assert (
        main(["report", *reports, "-q", "--json", str(data), "--html", str(tmp_path / "r.html")])
        == 0
    )
    out = capsys.readouterr().out
    assert len(out.splitlines()) <= 60
    assert "\x1b" not in out
    written = json.loads(data.read_text())["findings"]
    with nsys2prv.open(reports, jobs=1) as job:
        findings = [finding.as_dict() for finding in job.findings()]
    assert written == json.loads(json.dumps(findings))
    head = "\n".join(out.splitlines()[:30])
    page = (tmp_path / "r.html").read_text()
    for finding in written[:3]:
        assert finding["title"][:50] in head
        assert finding["title"] in page.replace(" µs", " us")
    assert main(["report", str(data)]) == 0
    assert capsys.readouterr().out == out


def test_findings_as_text() -> None:
    finding = Gain(
        "straggler",
        "Rank 1 (n GPU0) is late.",
        0.123,
        (1,),
        ("n GPU0",),
        ("first", "second"),
        "look",
        ("views/nccl_wait.cfg", "analysis/idle_gaps_2dh.cfg"),
        ((12_304_000_000, 12_318_000_000, (1,)),),
    )
    look = "         See       12.304-12.318 s, rank 1, view nccl_wait"
    command = "         wxparaver job.prv $(nsys2prv cfgs --view nccl_wait --time 12.300:12.322)"
    assert format_findings([finding])[1:] == [
        " 12.3%  Rank 1 (n GPU0) is late.",
        "         Evidence  first",
        "                   second",
        "         Try       look",
        look,
        command,
        TRACE,
    ]
    more = "         Views     analysis/idle_gaps_2dh.cfg"
    assert format_findings([finding], full=True)[-4:] == [look, more, command, TRACE]
    limit = Finding.from_dict({**finding.as_dict(), "share": 0.2, "at_most": True})
    large = replace(limit, share=0.5)
    assert _order_groups([limit, large], 0.9) == [large, limit]
    lines = format_findings([finding, limit, limit], span="the steady state")
    assert lines[0].startswith("  Causes (savings: how much shorter the steady state would be")
    assert lines[7].startswith("  Limits (upper bounds of the savings, in % of the steady state")
    start = replace(finding, share=0.5, kind="startup")
    once = [
        "  Startup and shutdown (one-time costs, in % of the job)",
        " 50.0%  Rank 1 (n GPU0) is late.",
    ]
    assert format_findings([finding, start])[7:] == [*once, TRACE]
    assert "         Try       look" in format_findings([start, finding])[2:7]
    assert format_findings([start], nothing="none", repeats=0.3)[:3] == ["  None", *once]
    lines = format_findings([start], nothing="none", repeats=0.2)
    assert lines[:2] + lines[-2:] == [*once, "  None", TRACE]
    assert len(format_findings([start], full=True)) == len(lines) + 1
    copies = Gain("exposed_copies", "Copies.", 0.1)
    for one, repeats, expected in (
        (copies, None, [start, copies]),
        (copies, 0.4, [copies, start]),
        (copies, 0.2, [start, copies]),
        (finding, None, [finding, start]),
        (finding, 0.2, [finding, start]),
        (replace(copies, share=0.3), None, [replace(copies, share=0.3), start]),
    ):
        assert _order_groups([one, start], repeats) == expected
    alone = replace(finding, share=0.0, kind="no_gpu_work")
    assert format_findings([alone])[0] == "  Rank 1 (n GPU0) is late."
    assert format_findings([limit, finding])[7].startswith(
        "  Causes (savings: how much shorter the job"
    )
    assert format_findings([finding] * 7)[-2] == "  and 4 more: --full"
    assert all(
        len(line) <= 40
        for line in format_findings([replace(finding, title="word " * 40, advice="word " * 40)], 40)
    )
    assert " ".join(line.strip() for line in format_findings([], 50)) == NOTHING
    assert Finding.from_dict(json.loads(json.dumps(finding.as_dict()))) == finding
