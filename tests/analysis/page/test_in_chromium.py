"""The page in a real browser: it says nothing on the console, and its tables sort, filter and fold."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

import pytest
from tools.pages import CHROMIUM, Page, render_in_chromium
from tools.view_answers import SAMPLES

from nsys2prv.cli import main

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not on the PATH")

#: Does what a reader does, and leaves what it sees in the page.
READER = """
const found = {}, table = name => document.querySelector(`table[data-source="${name}"]`);
const column = (name, at) => [...table(name).tBodies[0].rows].map(row => row.cells[at].dataset.v ?? row.cells[at].textContent);
const head = (name, title) => [...table(name).tHead.rows[0].cells].findIndex(cell => cell.title === title);
const click = (name, title) => { table(name).tHead.rows[0].cells[head(name, title)].click(); return column(name, head(name, title)); };
found.down = click("kernels.kernels", "count");
found.up = click("kernels.kernels", "count");
found.names = click("kernels.kernels", "kernel");
found.backwards = click("kernels.kernels", "kernel");
found.nulls = click("operations.operations", "tensor_core_share");
click("operations.tree", "calls");
found.tree = [...table("operations.tree").tBodies[0].rows].map(row => [Number(row.dataset.d), Number(row.cells[1].dataset.v)]);
const input = table("kernels.kernels").parentElement.previousElementSibling.querySelector("input");
input.value = "nccl";
input.dispatchEvent(new Event("input"));
const visible = [...table("kernels.kernels").tBodies[0].rows].filter(row => !row.classList.contains("out"));
found.filtered = visible.map(row => row.cells[0].textContent);
const rows = [...table("operations.tree").tBodies[0].rows], first = rows.findIndex(row => row.cells[0].querySelector("button"));
rows[first].cells[0].querySelector("button").click();
found.folded = [first, rows.filter(row => row.hidden).map(row => rows.indexOf(row))];
found.depths = rows.map(row => Number(row.dataset.d));
const before = getComputedStyle(document.body).backgroundColor;
document.getElementById("theme").click();
found.themes = [before, getComputedStyle(document.body).backgroundColor];
found.overflow = document.documentElement.scrollWidth - document.documentElement.clientWidth;
found.images = [...document.querySelectorAll(".picture img")].filter(image => image.clientHeight > 9).length;
found.bars = [...document.querySelectorAll(".bars i")].filter(bar => bar.clientHeight > 9).length;
document.body.dataset.found = JSON.stringify(found);
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    written = tmp_path_factory.mktemp("page") / "page.html"
    assert (
        main(
            [
                "report",
                *map(str, SAMPLES["training"]),
                "-q",
                "--iterations",
                "iteration*",
                "--html",
                str(written),
            ]
        )
        == 0
    )
    return written


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 400])
def test_a_reader(page: Path, tmp_path: Path, width: int) -> None:
    text = page.read_text(encoding="utf-8")
    allowed = base64.b64encode(hashlib.sha256(READER.encode()).digest()).decode()
    read = tmp_path / "read.html"
    # The page lets no other script run.
    read.write_text(
        text.replace("script-src ", f"script-src 'sha256-{allowed}' ").replace(
            "</body>", f"<script>{READER}</script></body>"
        )
    )
    shown, complaints = render_in_chromium(tmp_path, read, f"--window-size={width},900")
    assert complaints == []
    result = json.loads(
        next(str(attributes["data-found"]) for tag, attributes in Page(shown).tags if tag == "body")
    )
    kernels = Page(text).tables["kernels.kernels"]
    counts = [row[kernels.columns.index("count")] for row in kernels.rows]
    assert list(map(float, result["down"])) == sorted(counts, reverse=True)
    assert list(map(float, result["up"])) == sorted(counts)
    assert result["names"] == result["backwards"][::-1]
    assert sorted(result["names"]) == sorted(str(row[0]) for row in kernels.rows)
    shares = [float(value) for value in result["nulls"] if value]
    assert shares == sorted(shares, reverse=True)
    assert result["nulls"][len(shares) :] == [""] * (len(result["nulls"]) - len(shares))
    assert result["filtered"] == [name for name in result["backwards"] if "nccl" in name]
    _check_tree(result)
    assert len(set(result["themes"])) == 2
    assert result["overflow"] <= 0
    assert result["images"] >= 3
    assert result["bars"] >= 3


def _check_tree(found: dict) -> None:
    """Check that siblings are ordered by calls, and that what lies within a closed row is hidden."""
    last: dict[int, float] = {}
    for depth, calls in found["tree"]:
        assert calls <= last.get(depth, calls)
        last = {known: value for known, value in last.items() if known <= depth} | {depth: calls}
    first, hidden = found["folded"]
    depths = found["depths"]
    within = []
    for number in range(first + 1, len(depths)):
        if depths[number] <= depths[first]:
            break
        within.append(number)
    assert hidden == within
    assert within


@pytest.mark.slow
@pytest.mark.parametrize("theme", [0, 1])
def test_the_page_as_it_is(page: Path, tmp_path: Path, theme: int) -> None:
    shown, complaints = render_in_chromium(
        tmp_path, page, f"--blink-settings=preferredColorScheme={theme}"
    )
    assert complaints == []
    assert re.search(r'<button type="button" id="theme">', shown), "the script did not run"


@pytest.mark.slow
def test_another_script_is_not_run(page: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.html"
    other.write_text(
        page.read_text(encoding="utf-8").replace(
            "</body>", "<script>document.title = 'ran'</script></body>"
        )
    )
    shown, complaints = render_in_chromium(tmp_path, other)
    assert "<title>ran" not in shown
    assert complaints
