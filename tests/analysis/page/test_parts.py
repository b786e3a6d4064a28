"""Parts of the page whose answers are known beforehand."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from tools.view_answers import SAMPLES

from nsys2prv.analysis.page import _load_environment
from nsys2prv.analysis.page.figures import make_operation_tree
from nsys2prv.analysis.page.parts import Material
from nsys2prv.analysis.result import Result, Table
from nsys2prv.cli import main


def test_names_that_hold_the_separator() -> None:
    tree = pl.DataFrame(
        {
            "path": ["a", "a / b", "a / b / c", "a / b / c / d", "a !x", "y / z"],
            "depth": [0, 1, 1, 2, 0, 0],
            "gpu_ns": [5, 2, 3, 3, 1, 9],
        }
    )
    results = {"operations": Result("operations", "", {"tree": Table("", tree)})}
    (block,) = make_operation_tree(Material({}, results))
    assert block.frame["operation"].to_list() == ["a", "b", "b / c", "d", "a !x", "y / z"]
    assert block.depths == [0, 1, 1, 2, 0, 0]


def test_cells_have_their_figures() -> None:
    html = render_table(
        pl.DataFrame(
            {
                "name": ["<a>"],
                "time_ns": [1500],
                "share": [0.25],
                "load_efficiency": [0.7],
                "none_ns": [None],
            },
            schema_overrides={"none_ns": pl.Int64},
        ),
        'x"y',
    )
    assert '<td>&lt;a&gt;<td data-v=1500 class="n">1.50 us' in html
    assert '<td data-v=0.25 class="n b" style="--p:25.0%">25.00 %' in html
    assert '<td data-v=0.7 class="n fair">70.00 %' in html
    assert "<td data-v class=n>-" in html
    assert 'data-source="x&#34;y"' in html


def test_what_cannot_be_printed() -> None:
    html = render_table(pl.DataFrame({"a\0b\u202ec<": ["a\0b\u202ec<"]}), "x")
    assert 'title="a\ufffdb\ufffdc&lt;"' in html
    assert "<td>a\ufffdb\ufffdc&lt;" in html
    template = _load_environment().from_string("{{ text }}")
    assert template.render(text="\ud800<") == "\ufffd&lt;"


def render_table(frame: pl.DataFrame, source: str) -> str:
    return _load_environment().get_template("blocks.html").module.table(frame, source)


def test_what_is_no_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reports = [str(path) for path in SAMPLES["graphs"]]
    data, both = str(tmp_path / "a.json"), str(tmp_path / "both.json")
    assert main(["report", *reports, "-q", "--only", "kernels", "--json", data]) == 0
    assert main(["diff", data, data, "--json", both]) == 0
    capsys.readouterr()
    for arguments, status, message in (
        ([both], 1, "holds the difference of two jobs"),
        ([data, data], 2, "give it alone"),
        ([data, "--iterations", "x"], 2, "give it alone"),
        ([data, "--ranks", "0"], 2, "give it alone"),
        ([data, "--only", "idle"], 2, "there are kernels"),
        ([data, "--html", str(tmp_path / "no" / "x.html")], 1, "no such folder"),
    ):
        assert main(["report", *arguments]) == status
        error = capsys.readouterr().err
        assert message in error
        assert len(error.splitlines()) == 1
    # A page of a single analysis.
    assert main(["report", data, "--html", str(tmp_path / "x.html")]) == 0


@pytest.mark.slow
def test_beside_a_conversion(tmp_path: Path) -> None:
    assert main([*map(str, SAMPLES["graphs"]), str(tmp_path / "out.prv"), "--report", "-q"]) == 0
    assert (tmp_path / "out.report.html").read_text().startswith("<!doctype html>")
