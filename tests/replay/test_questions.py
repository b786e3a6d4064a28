"""Test what-ifs in words: those of causes give the causes' savings, and unknown wording is
refused."""

import json
from pathlib import Path

import pytest

import nsys2prv
from nsys2prv._util.errors import UsageError
from nsys2prv._util.native import core
from nsys2prv.cli import main
from nsys2prv.replay.causes import JOB_CHANGES
from nsys2prv.replay.questions import EXAMPLES, parse_what_ifs
from nsys2prv.verdict.words import TEXTS

pytestmark = pytest.mark.skipif(core is None, reason="the replay needs the compiled core")
SAMPLES = Path(__file__).parents[2] / "sample_reports"


def test_what_ifs_of_findings_give_their_shares() -> None:
    """Each finding is of the job without the culprits before it."""
    with nsys2prv.open(SAMPLES / "training", quiet=True, jobs=1) as job:
        findings = [finding for finding in job.findings() if finding.what_if]
        culprits = [finding.what_if for finding in findings if finding.ranks]
        assert len(culprits) >= 2
        for finding in findings:
            before = [one for one in culprits if one != finding.what_if]
            before = before[: culprits.index(finding.what_if)] if finding.ranks else before
            share = job.what_if(*before, finding.what_if)["gain_share"][-1]
            assert share == pytest.approx(finding.share, abs=1e-3), finding


def test_a_what_if_is_answered_in_text_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--what-if", "kernel * x1; rank 0-1:  gpu  x0.5", "--what-if", "no transfers"]
    data, page = tmp_path / "r.json", tmp_path / "r.html"
    command = ["report", "-q", str(SAMPLES / "training"), *asked, "--json", str(data)]
    assert main([*command, "--only", "overlap", "--html", str(page)]) == 0
    assert "<small>12.3 ms</small>" in page.read_text(), "5.1% of the steady state"
    out = capsys.readouterr().out
    table = json.loads(data.read_text())["analyses"]["findings"]["tables"]["what_if"]["columns"]
    said = ["as recorded", "kernel * x1", "rank 0-1: gpu x0.5", "no transfers"]
    assert table["what_if"] == said
    assert all(one in out for one in [*said, "durations of the steady state"])
    recorded, same, half, ideal = table["duration_ns"]
    assert recorded == same > half > ideal
    assert 1 - sum(table["gain_share"]) == pytest.approx(ideal / recorded)


def test_all_examples_can_be_said() -> None:
    assert len(parse_what_ifs(["; ".join(EXAMPLES), " ;"])) == len(EXAMPLES)


def test_changes_of_whole_jobs_have_texts_and_are_documented() -> None:
    documented = (SAMPLES.parent / "docs" / "analysis.md").read_text()
    for kind, (words, _) in JOB_CHANGES.items():
        # Findings call pauses places between calls.
        assert kind == "pauses" or kind in TEXTS["kinds"].keys() & TEXTS["says"].keys(), kind
        assert not words or f"`{words}`" in documented, f"{words}: see tools/analysis.md"


@pytest.mark.parametrize(
    ("said", "because"),
    [
        ("rank 3 gpu as others", "did you mean rank 3,5-7: gpu as others"),
        ("faster", "no such change; there are rank 3,5-7: gpu as others; "),
        ("gpu x1.2.3", "x1.2.3: give a factor"),
        ("rank 9: gpu as others", "rank 9: no such rank; there are 0, 1, 2, 3"),
        ("rank a: gpu as others", "give ranks as in 3,5-7"),
        ("host node9: gpu as others", "host node9: no such host"),
        ("no cudaFre", "no call of CUDA or MPI of this name in the job; there are "),
        (
            "no clock_nanosleep",
            '; for other host time, write "rank 0: host as others"',
        ),
        ("kernel gem_m x0.5", "no kernel of this name in the job; there are "),
    ],
)
def test_what_cannot_be_said_is_refused(said: str, because: str) -> None:
    with nsys2prv.open(SAMPLES / "training", quiet=True, jobs=1) as job:
        with pytest.raises(UsageError) as error:
            job.what_if(said)
        assert because in str(error.value)
        assert "\n" not in str(error.value)
