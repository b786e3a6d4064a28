"""The command `study`: what it writes, and what it says of arguments that cannot mean what they say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tools.commands import GRAPHS, SAMPLES
from tools.studies import make_study_data

from nsys2prv.cli import main


@pytest.fixture
def earlier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the JSON file of an earlier study."""
    monkeypatch.chdir(tmp_path)
    Path("study.json").write_text(json.dumps(make_study_data()))
    return "study.json"


def test_everything_of_an_earlier_study(earlier: str, capsys: pytest.CaptureFixture[str]) -> None:
    files = [f"--{name}={name}/s.{name}" for name in ("json", "html", "md", "csv")]
    for name in ("json", "html", "md", "csv"):
        Path(name).mkdir()
    assert main(["study", earlier, "--talp", "talp", *files]) == 0
    printed = capsys.readouterr().out
    assert "From 4 to 16 GPUs an iteration becomes" in printed
    again = json.loads(Path("json/s.json").read_text())
    assert again["runs"][2]["metrics"]["device"]["parallel"] == 0.55
    assert "From 4 to 16 GPUs an iteration becomes" in Path("md/s.md").read_text()
    assert Path("html/s.html").read_text().startswith("<!doctype html>")
    assert Path("csv/s.csv").read_text().startswith("figure,job_4,job_8,job_16")
    assert len([*Path("talp").rglob("*.json")]) == 3
    other = Path(earlier).read_text().replace('"begin_ns": 0', '"begin_ns": 1')
    Path("other.json").write_text(other.replace('"backward": {', '"solve": {'))
    assert main(["study", earlier, "other.json", "--regions", "backward"]) == 0
    printed = capsys.readouterr().out
    assert "\n  other.json: runs/job_4 " in printed
    assert "regions: not measured of backward in its JSON" in " ".join(printed.split())
    Path("other.json").write_text(other.replace('"elapsed_ns": ', '"elapsed_ns": -'))
    assert main(["study", "other.json"]) == 1
    assert "other.json: is damaged: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["study.json", "study.json"], "study.json: runs/job_4 is given twice"),
        (["study.json", "page.html"], "to write it, use --html page.html"),
        (["study.json", "--label", "old=a"], "give a label and a run"),
        (["a", "b", "--label", "x=a", "--label", "x=b"], "another run already has the label x"),
        (["study.json", "--whole", "--iterations", "it"], "omit --iterations"),
        (["study.json", "--talp", "study.json"], "this is a file; give an output folder"),
        (["study.json", "--cut", "cut"], "study.json is a finished study"),
        (["study.json", "--json", "study.json"], "would be written over study.json"),
        (["study.json", "--regions", "nothing"], "--regions nothing"),
        (["study.json", "--reference", "nothing"], "--reference nothing"),
        (["study.json", "missing"], "missing: no such file"),
        (["job.prv", "study.json"], "job.prv: this is a trace"),
    ],
    ids=lambda value: " ".join(value)[-40:] if isinstance(value, list) else None,
)
def test_a_mistake_is_told_in_a_line(
    earlier: str, capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    assert main(["study", *arguments, "-q"]) in (1, 2)
    (line,) = capsys.readouterr().err.splitlines()
    assert complaint in line
    assert [path.name for path in Path().iterdir()] == [earlier]


def test_comparing_in_a_report_leads_to_the_study(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(GRAPHS), "--compare", str(SAMPLES)]) == 2
    assert "`nsys2prv study RUN RUN...` compares runs" in capsys.readouterr().err


@pytest.mark.slow
def test_traces_of_the_focus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace lasts as long as the part of the run that the study is of."""
    monkeypatch.chdir(tmp_path)
    runs = [str(SAMPLES / name) for name in ("training", "cluster")]
    assert main(["study", *runs, "--cut", "cut", "--json", "s.json", "-q"]) == 0
    study = json.loads(Path("s.json").read_text())
    traces = sorted(Path("cut").glob("*.prv"))
    assert len(traces) == 2
    for run, trace in zip(study["runs"], traces, strict=True):
        lasts = run["interval"]["end_ns"] - run["interval"]["begin_ns"]
        with open(trace) as file:
            assert f":{lasts}_ns:" in file.readline()
