"""Test the output, files and refusals of `nsys2prv report`, `nsys2prv diff` and --report."""

import json
import re
from pathlib import Path

import pytest
from tools.exports import make_export
from tools.view_answers import SAMPLES

from nsys2prv import open_job as job
from nsys2prv.cli import main
from nsys2prv.open_job import OpenJob

TRAINING, GRAPHS = (list(map(str, SAMPLES[name])) for name in ("training", "graphs"))
#: Those that are not on demand.
ANALYSES = [analysis.name for analysis in job.ANALYSES if analysis.name != job.ON_DEMAND]


def test_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--align", "utc", "--iterations", "iteration*", "-q", "--full", "--json"]
    assert main(["report", *TRAINING, *options, str(tmp_path / "r.json")]) == 0
    out = capsys.readouterr().out
    assert re.search(
        r"^4 ranks on 2 nodes, 4 GPUs \(NVIDIA H100 80GB HBM3\); [\d.]+ ms; [\d,]+ events\n", out
    )
    written = json.loads((tmp_path / "r.json").read_text())
    assert list(written["analyses"]) == ANALYSES
    assert written["job"]["devices"] == 4
    device = written["analyses"]["efficiencies"]["tables"]["device"]["columns"]
    balance = " +".join(f"{100 * one:.1f}%" for one in device["load_balance_efficiency"])
    assert re.search(rf"^ +Device load balance efficiency +{balance}$", out, re.MULTILINE)
    assert device["parallel_efficiency"][0] == pytest.approx(
        device["useful_ns"][0] / 4 / device["elapsed_ns"][0]
    )
    # Without the first.
    iterations = written["analyses"]["efficiencies"]["tables"]["iterations"]["columns"]
    assert iterations["iteration"] == list(range(1, 20))


def test_the_first_screen_needs_two_analyses(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    analyses: list[str] = []
    analyse = OpenJob.analyse
    monkeypatch.setattr(
        OpenJob,
        "analyse",
        lambda job, *names, **given: analyses.extend(names) or analyse(job, *names, **given),
    )
    assert main(["report", GRAPHS[0], "-q", "-j", "1"]) == 0
    assert analyses == ANALYSES[:2]
    assert capsys.readouterr().out.endswith("fficiencies, tables, Paraver commands: --full\n")


def test_parts_of_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", *GRAPHS, "--only", "kernels", "--rows", "3", "-q", "--full"]) == 0
    out = capsys.readouterr().out
    assert "Efficiencies" not in out
    assert re.search(r"^  \.\.\. \d+ more$", out, re.MULTILINE)


@pytest.mark.slow
def test_a_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, reports in (("a", TRAINING), ("b", TRAINING), ("c", GRAPHS)):
        assert main(["report", *reports, "--json", str(tmp_path / f"{name}.json"), "-q"]) == 0
    capsys.readouterr()
    a, b, c = (str(tmp_path / f"{name}.json") for name in "abc")
    assert main(["diff", a, b, "--json", str(tmp_path / "same.json")]) == 0
    same = json.loads((tmp_path / "same.json").read_text())["analyses"]["difference"]["tables"]
    assert set(same["kernels_kernels"]["columns"]["change_ns"]) == {0}
    assert main(["diff", a, c, "--json", str(tmp_path / "other.json")]) == 0
    analyses = [json.loads((tmp_path / f"{name}.json").read_text())["analyses"] for name in "ac"]
    first, second = (item["kernels"]["tables"]["kernels"]["columns"] for item in analyses)
    columns = json.loads((tmp_path / "other.json").read_text())["analyses"]["difference"]["tables"][
        "kernels_kernels"
    ]["columns"]
    times = [dict(zip(item["kernel"], item["time_ns"], strict=True)) for item in (first, second)]
    changes = dict(zip(columns["kernel"], columns["change_ns"], strict=True))
    assert changes == {
        name: times[1].get(name, 0) - times[0].get(name, 0)
        for name in times[0].keys() | times[1].keys()
    }
    # They have 20 iterations and 2: what changed most is what an iteration has more of.
    of_iteration = columns["change_of_iteration_ns"]
    assert of_iteration == pytest.approx(
        [b / 2 - a / 20 for a, b in zip(columns["a_ns"], columns["b_ns"], strict=True)]
    )
    assert [abs(change) for change in of_iteration] == sorted(map(abs, of_iteration), reverse=True)


@pytest.mark.slow
def test_a_report_beside_a_conversion(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*GRAPHS, str(tmp_path / "with.prv"), "--report"]) == 0
    out = capsys.readouterr().out
    assert main([*GRAPHS, str(tmp_path / "without.prv")]) == 0
    assert (tmp_path / "with.prv").read_bytes() == (tmp_path / "without.prv").read_bytes()
    assert "Bottlenecks" in out
    beside = json.loads((tmp_path / "with.report.json").read_text())["analyses"]
    assert main(["report", *GRAPHS, "--json", str(tmp_path / "r.json"), "-q"]) == 0
    assert json.loads((tmp_path / "r.json").read_text())["analyses"] == beside
    assert (tmp_path / "with.report.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["report"], 2, "REPORT is missing; write `nsys2prv report REPORT...`"),
        (["report", "no-such.sqlite"], 1, "no-such.sqlite: "),
        (["report", *GRAPHS, "--only", "speed"], 2, "speed: no such analysis"),
        (["report", *GRAPHS, "--iterations", "nowhere*"], 2, "no NVTX range has this name"),
        (["report", *GRAPHS, "--bins", "x"], 2, "--bins x: give an integer"),
        (["report", *GRAPHS, "--bins", "0"], 2, "--bins 0: give an integer, 1 or greater"),
        (["report", *GRAPHS, "--useful", "all"], 2, "give compute or bsc or all-kernels"),
        (
            ["report", *GRAPHS, "--json", "no/such/folder/r.json"],
            1,
            "no/such/folder: no such folder",
        ),
        (["report", *GRAPHS, "--tmp", "no/such/folder"], 1, "no/such/folder"),
        (["report", "--json", *GRAPHS], 2, "rank0.sqlite: this is a report"),
        (["report", *GRAPHS, "--html", GRAPHS[1]], 2, "rank1.sqlite: this is a report"),
        (["diff", *GRAPHS, "--json", GRAPHS[1]], 2, "rank1.sqlite: this is a report"),
        (["diff", GRAPHS[0]], 2, "this is one run; write `nsys2prv diff A B`"),
        (["diff", "a.json", "b.json"], 1, "a.json: No such file"),
        (["diff", "pyproject.toml", "b.json"], 1, "pyproject.toml: "),
    ],
    ids=lambda value: " ".join(map(str, value))[-40:] if isinstance(value, list) else None,
)
def test_one_line_for_what_cannot_be(
    arguments: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "-q"]) == status
    error = capsys.readouterr().err.strip()
    assert message in error
    assert error.splitlines()[-1].startswith("nsys2prv: error: ")
    assert (
        len([line for line in error.splitlines() if not line.startswith("nsys2prv: warning: ")])
        == 1
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format": "nsys2prv report 0"}',
        '{"format": "nsys2prv report 1"}',
        "\x00",
        "[" * 100_000 + "]" * 100_000,
    ],
    ids=["empty", "list", "nothing", "older", "no job", "zero", "nested"],
)
def test_files_that_no_report_wrote(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "r.json").write_text(text)
    assert main(["diff", str(tmp_path / "r.json"), str(tmp_path / "r.json")]) == 1
    assert "r.json: not written by nsys2prv report --json" in capsys.readouterr().err


def test_an_empty_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", str(tmp_path), str(tmp_path)]) == 1
    assert "no reports in this folder" in capsys.readouterr().err


def test_runs_that_lack_analyses(tmp_path: Path) -> None:
    part = str(tmp_path / "part.json")
    assert main(["report", *GRAPHS, "-q", "--only", "kernels", "--json", part]) == 0
    assert main(["diff", part, part]) == 0


@pytest.mark.slow
def test_every_analysis_shows_a_table_or_says_why_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check this also for a report that contains only start/end ranges."""
    ranges = [
        {
            "start": 10,
            "end": 90,
            "eventType": 60,
            "text": "step",
            "globalTid": 1 << 24,
            "domainId": 0,
        }
    ]
    report = str(make_export(tmp_path / "r.sqlite", {"NVTX_EVENTS": ranges}))
    for analysis in job.ANALYSES:
        for reports in ([report], GRAPHS):
            assert main(["report", *reports, "-q", "--only", analysis.name]) == 0
            text = capsys.readouterr().out.partition("=\n")[2]
            assert re.search(r"not available: |^ +\S+.*  |^ *\S+ %  |^ +measured: ", text, re.M), (
                text
            )
            assert "more tables" not in text


def test_a_report_warns_of_what_a_conversion_warns_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check this for a requested kind that is missing."""
    arguments = ["-t", "kernels,mpi"]
    assert main([GRAPHS[0], str(tmp_path / "out.prv"), *arguments]) == 0
    converted = capsys.readouterr().err
    assert "mpi: the reports contain no events of this kind" in converted
    assert main(["report", GRAPHS[0], *arguments]) == 0
    assert capsys.readouterr().err == converted
