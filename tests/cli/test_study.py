"""Test the command `study`: its output, and its answers to impossible arguments."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tools.commands import GRAPHS, SAMPLES
from tools.studies import make_study_data

from nsys2prv.cli import main
from nsys2prv.figures.result import Finding
from nsys2prv.show.study.formats import Study
from nsys2prv.show.study.plots import choose_ticks, spread_names
from nsys2prv.show.study.summary import summarise_study

FINDING = Finding("idle", "", 0.0).as_dict()


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
    assert "regions: backward not measured in its JSON" in " ".join(printed.split())
    Path("other.json").write_text(other.replace('"elapsed_ns": ', '"elapsed_ns": -'))
    assert main(["study", "other.json"]) == 1
    assert "other.json: is damaged: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["study.json", "study.json"], "study.json: runs/job_4 given twice"),
        (["study.json", "page.html"], "to write it, use --html page.html"),
        (["study.json", "--label", "old=a"], "give a label and a run"),
        (["a", "b", "--label", "x=a", "--label", "x=b"], "another run already has the label x"),
        (["study.json", "--whole", "--iterations", "it"], "omit --iterations"),
        (["study.json", "--talp", "study.json"], "this is a file; give an output folder"),
        (["study.json", "--cut", "cut"], "study.json is a finished study"),
        (["study.json", "--json", "study.json"], "would overwrite study.json"),
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
    """A trace lasts as long as the focus of its run."""
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


def test_plots_as_files_and_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that the Markdown shows the plots beside it, and names an earlier study with shorter
    iterations.
    """
    content = make_study_data()
    content["runs"][1]["balance"] = {"node01 GPU0": 0.8, "node01 GPU1": 0.4}
    content["runs"][1]["phases"] = [["startup", 0, 10], ["steady state", 10, 90]]
    now, past = tmp_path / "now.json", tmp_path / "v1.json"
    now.write_text(json.dumps(content))
    for run in content["runs"]:
        run["metrics"]["elapsed_ns"] = run["sums"]["elapsed_ns"] = run["sums"]["elapsed_ns"] / 2
    past.write_text(json.dumps(content))
    files = [
        "--svg",
        str(tmp_path / "plots"),
        "--md",
        str(tmp_path / "study.md"),
        "--json",
        str(tmp_path / "both.json"),
    ]
    assert main(["study", str(now), "--history", str(past), *files]) == 0
    assert "from v1 to this study. On " in " ".join(capsys.readouterr().out.split())
    written = json.loads((tmp_path / "both.json").read_text())
    assert [one["name"] for one in written["history"]] == ["v1"]
    text = (tmp_path / "study.md").read_text()
    drawn = {path.stem: path for path in (tmp_path / "plots").iterdir()}
    assert {
        "runs",
        "speed_up",
        "balance_2",
        "over_the_studies_elapsed_time_of_an_iteration",
    } <= drawn.keys()
    for name, path in drawn.items():
        assert f"](plots/{name}.svg)" in text
        assert ElementTree.parse(path).getroot().tag.endswith("svg")
    bars = ElementTree.parse(drawn["balance_2"]).getroot().findall("{*}rect")
    heights = [float(bar.get("height", 0)) for bar in bars]
    assert heights[0] == pytest.approx(2 * heights[1], rel=1e-4)
    assert "mean, 75% of the most" in drawn["balance_2"].read_text()


def test_axes_of_plots() -> None:
    assert choose_ticks([1, 3.7], True) == [1, 2, 4]
    assert choose_ticks([0.93, 0.4], False) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])
    assert len(choose_ticks([], False)) > 1
    assert spread_names([50, 48, 20, 300], 256) == [62, 48, 20, 256]
    assert spread_names([250, 251, 252], 256) == [228, 242, 256]


def test_what_is_chance_is_no_reason() -> None:
    """Check that a factor is not named if it changes by less than its spread over iterations or
    between repeats.
    """
    content = make_study_data()
    content["runs"] = content["runs"][:2]
    study = Study.from_dict(content)
    changed = [
        row
        for row, (a, b) in study.list_figures()
        if row.path == "device.parallel" and abs(a - b) > 0.02
    ]
    assert changed
    before = summarise_study(study)
    for run in study.runs:
        run.errors = {"device": dict.fromkeys(run.metrics["device"], 0.2)}
    assert study.estimate_chance(*study.runs, "device.parallel") == pytest.approx(2 * 0.2 * 2**0.5)
    assert len(summarise_study(study)) < len(before)


def test_low_factors_are_explained_by_findings() -> None:
    """Check this for the largest run; factors without a finding that explains them are named as
    such.
    """
    content = make_study_data()
    straggler = {**FINDING, "kind": "straggler", "title": "Rank 1 is late.", "share": 0.2}
    content["runs"][-1]["findings"] = [straggler]
    content["runs"][-1]["metrics"]["device"] |= {"load_balance": 0.7, "orchestration": 0.6}
    study = Study.from_dict(content)
    causes = {row.path: [one.title for one in found] for row, *_, found in study.explain_low()}
    assert causes["device.load_balance"] == ["Rank 1 is late."]
    assert causes["device.orchestration"] == []
    text = study.markdown()
    assert "load balance efficiency 70.0%-: Rank 1 is late (20.0%)" in text
    assert "orchestration efficiency 60.0%-: no finding explains it" in text
    assert study.list_recommendations()[0][1] == [None, None, 0.2]


def test_a_page_of_whole_captures(tmp_path: Path) -> None:
    """Check that a page without a steady state draws the whole run, and has no table of iterations."""
    page = tmp_path / "study.html"
    assert main(["study", str(GRAPHS.parent), "--whole", "--html", str(page), "-q"]) == 0
    assert "<svg" in page.read_text()
