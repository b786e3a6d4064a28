"""Documents that are made from declarations are those of the declarations."""

from __future__ import annotations

import re
import runpy
from itertools import pairwise
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"


@pytest.fixture(scope="module")
def events() -> str:
    """The page of events, as its script makes it."""
    return runpy.run_path(str(DOCS.parent / "tools" / "make_events.py"))["page"]()


def test_the_command_line_is_up_to_date() -> None:
    script = runpy.run_path(str(DOCS / "make_command_line.py"))
    again = "python docs/make_command_line.py writes them"
    assert script["page"]() == (DOCS / "command-line.md").read_text(encoding="utf-8"), again
    assert script["man_page"]() == (DOCS / "nsys2prv.1").read_text(encoding="utf-8"), again


def test_the_page_of_events_is_up_to_date(events: str) -> None:
    assert events == (DOCS / "events.md").read_text(encoding="utf-8")


def test_layouts_of_counters_have_headings(events: str) -> None:
    for title in ("samples of CPU counters", "samples of CPU metrics", "GPU metric samples"):
        assert f"### {title}\n" in events
    lines = [line for line in events.splitlines() if line]
    assert not any(line == after and not line.startswith("|") for line, after in pairwise(lines))


def test_numbers_of_0_are_left_out_as_the_page_says() -> None:
    kernels = [line for line in (DOCS.parent / "tests" / "golden" / "graphs.prv").read_text().splitlines()
               if ":63000006:" in line and ":63000006:0" not in line]
    assert kernels
    assert not any(":9107:0" in line or ":9108:0" in line for line in kernels)
    assert any(":9108:" not in line for line in kernels)


def test_every_part_of_the_code_is_named() -> None:
    text = (DOCS / "development.md").read_text()
    for part in (DOCS.parent / "nsys2prv").glob("*/__init__.py"):
        assert f"`nsys2prv/{part.parent.name}/" in text
    rooms = text.split("| room | what it knows |")[1].split("\n\n")[0].splitlines()
    assert len(rooms) - 2 == 8
    assert "eight rooms" in text


def test_the_readme_is_short_and_has_two_commands() -> None:
    lines = (DOCS.parent / "README.md").read_text().splitlines()
    assert len(lines) < 120
    assert sum(line.startswith("pip install ") for line in lines) == 2


def test_nobody_is_told_to_install_from_the_index() -> None:
    """There the name belongs to another program."""
    for path in (DOCS.parent / "README.md", *DOCS.glob("*.md"), *(DOCS.parent / "nsys2prv").rglob("*.py")):
        assert not re.search(r"pip3? install [^\n&]*nsys2prv", path.read_text(encoding="utf-8")), path


def test_every_page_is_in_the_index() -> None:
    index = (DOCS / "index.md").read_text()
    assert [page.name for page in DOCS.glob("*.md") if page.name != "index.md" and f"]({page.name}" not in index] == []


def test_links_of_documents_lead_to_files() -> None:
    for page in (DOCS.parent / "README.md", *DOCS.glob("*.md")):
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), (page.name, link)
