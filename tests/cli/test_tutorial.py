"""Test the tutorial for Paraver: its links, and the times at which views of findings open."""

import json
import re
from html import unescape
from pathlib import Path

import pytest
from tools.commands import SAMPLES

from nsys2prv.cli import main

LINK = re.compile(r'<a href="([^"]*)">')


def read_links(page: Path) -> list[Path]:
    """Return the files that links of a page lead to, as Paraver opens them: by their text, not decoded."""
    return [page.parent / link for link in LINK.findall(page.read_text(encoding="utf-8"))]


def test_links_open_the_trace_and_views_at_the_moments_of_findings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    reports, facts, folder = SAMPLES / "training", tmp_path / "job.json", tmp_path / "tutorial"
    options = ["--json", str(facts), "--paraver-tutorial", str(folder), "-q"]
    assert main(["report", str(reports), *options]) == 0
    assert (
        capsys.readouterr()
        .out.splitlines()[-1]
        .endswith(
            f" {folder} {tmp_path}/paraver-tutorials/), then wxparaver -t {folder}/index.html, and click its title"
        )
    )
    trace, *views = read_links(folder / "index.html")
    assert trace == folder / "job.prv"
    assert trace.read_bytes().startswith(b"#Paraver (")
    assert [view for view in views if not view.is_file()] == []
    page = unescape((folder / "index.html").read_text(encoding="utf-8"))
    findings = json.loads(facts.read_text())["findings"]
    opened = 0
    for number, finding in enumerate(findings, 1):
        assert finding["title"] in page
        for view in (view for view in views if view.name.startswith(f"finding{number}_")):
            text, [moment] = view.read_text(), finding["moments"]
            begin, end = moment["begin_ns"], moment["end_ns"]
            shown = [
                {int(time) for time in re.findall(rf"window_{edge}_time (\d+)", text)}
                for edge in ("begin", "stop")
            ]
            assert shown == [{max(begin - (end - begin) // 4, 0)}, {end + (end - begin) // 4}]
            opened += 1
    assert opened >= len(findings) > 3


def test_a_finished_report_opens_the_trace_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    trace = tmp_path / "job.prv"
    assert main([str(SAMPLES / "graphs"), str(trace), "--report", "-q"]) == 0
    assert main(["report", str(tmp_path / "job.report.json"), "--paraver-tutorial"]) == 0
    page = tmp_path / "home" / "paraver-tutorials" / "job" / "index.html"
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.endswith(f": wxparaver -t {page}, and click its title")
    assert all(path.is_file() for path in read_links(page))
    assert read_links(page)[0].samefile(trace)
    # Paraver's own preferences say where its tutorials are.
    preferences = tmp_path / "home" / ".paraver" / "paraver.xml"
    preferences.parent.mkdir()
    preferences.write_text(f"<a><tutorials_path>{tmp_path}/mine</tutorials_path></a>")
    assert main(["report", str(tmp_path / "job.report.json"), "--paraver-tutorial"]) == 0
    assert (tmp_path / "mine" / "job" / "index.html").is_file()
    trace.unlink()
    assert main(["report", str(tmp_path / "job.report.json"), "--paraver-tutorial"]) == 2
    assert "its folder has no trace job.prv" in capsys.readouterr().err
