"""The page has the figures of the JSON, all that is missing, and nothing that is outside it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tools.pages import Page, list_references
from tools.view_answers import SAMPLES

from nsys2prv.cli import main


@pytest.fixture(scope="module", params=["training", "cluster", "graphs", "machine"])
def page_and_json(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, dict]:
    """Write a page, and the JSON of the same run."""
    folder = tmp_path_factory.mktemp(request.param)
    reports = sorted(
        map(str, SAMPLES["training"][0].parent.parent.joinpath(request.param).glob("*.sqlite"))
    )
    assert (
        main(
            [
                "report",
                *reports,
                "-q",
                "--html",
                str(folder / "r.html"),
                "--json",
                str(folder / "r.json"),
            ]
        )
        == 0
    )
    return (folder / "r.html").read_text(encoding="utf-8"), json.loads(
        (folder / "r.json").read_text(encoding="utf-8")
    )


@pytest.mark.slow
def test_figures_are_those_of_the_json(page_and_json: tuple[str, dict]) -> None:
    text, data = page_and_json
    page = Page(text)
    for source, table in page.tables.items():
        if source == "operations.tree":
            continue
        analysis, name = source.split(".")
        columns = data["analyses"][analysis]["tables"][name]["columns"]
        assert set(table.columns) <= set(columns)
        assert table.rows
        for number, column in enumerate(table.columns):
            shown = [row[number] for row in table.rows]
            for item, known in zip(shown, columns[column], strict=False):
                if isinstance(known, bool):
                    assert item == ("yes" if known else "no")
                elif isinstance(known, str):
                    assert item == known
                elif known is None:
                    assert item in (None, "-")
                else:
                    assert item == known, (source, column)
        assert len(table.rows) == min(len(columns[table.columns[0]]), 300)


@pytest.mark.slow
def test_the_tree_has_the_figures_of_its_paths(page_and_json: tuple[str, dict]) -> None:
    text, data = page_and_json
    if "tree" not in data["analyses"]["operations"]["tables"]:
        assert "operations.tree" not in Page(text).tables
        return
    columns = data["analyses"]["operations"]["tables"]["tree"]["columns"]
    shown = Page(text).tables["operations.tree"]
    paths, path = [], []
    for row, depth in zip(shown.rows, shown.depths, strict=True):
        path[depth:] = [str(row[0])]
        paths.append(" / ".join(path))
    assert len(paths) == min(len(columns["path"]), 300)
    for number, column in enumerate(shown.columns[1:], 1):
        known = dict(zip(columns["path"], columns[column], strict=True))
        assert [row[number] for row in shown.rows] == [known[item] for item in paths]


@pytest.mark.slow
def test_every_table_is_on_the_page_or_drawn(page_and_json: tuple[str, dict]) -> None:
    text, data = page_and_json
    tables = {
        f"{analysis}.{name}"
        for analysis, item in data["analyses"].items()
        for name, table in item["tables"].items()
        if next(iter(table["columns"].values()), [])
    }
    drawn = {
        "metrics.map",
        "metrics.use",
        "idle.gaps_of_devices",
        "efficiencies.device",
        "efficiencies.host",
    }
    assert tables - drawn == set(Page(text).tables)


def test_the_tree_of_efficiencies(page_and_json: tuple[str, dict]) -> None:
    """Those of the steady state, where one was found."""
    text, data = page_and_json
    shown = [
        (float(attributes["data-v"]), str(attributes["class"]))
        for tag, attributes in Page(text).tags
        if tag == "span" and "factor" in str(attributes.get("class"))
    ]
    tables = data["analyses"]["efficiencies"]["tables"]
    nodes = len(data["job"]["nodes"])
    known = [
        column[0]
        for name in ("device", "host")
        for key, column in tables[name]["columns"].items()
        if key.endswith("efficiency") and (nodes > 1 or ("_in_" not in key and "_out_" not in key))
    ]
    assert sorted(value for value, _ in shown) == pytest.approx(
        sorted(value for value in known if value is not None)
    )
    for value, kind in shown:
        assert kind == f"factor {'good' if value >= 0.8 else 'fair' if value >= 0.6 else 'poor'}"


def test_what_is_missing_is_told(page_and_json: tuple[str, dict]) -> None:
    text, data = page_and_json
    page = Page(text)
    for item in data["analyses"].values():
        for lack in item["missing"]:
            assert lack in page.text
    for note in [*data["job"]["notes"], *data["job"]["warnings"]]:
        assert note in page.text


@pytest.mark.slow
def test_nothing_outside_is_referred_to(page_and_json: tuple[str, dict]) -> None:
    text, _ = page_and_json
    assert list(list_references(text)) == []
    assert not re.search(r"https?:|file:|xmlns", text, re.IGNORECASE)
    identifiers = [attributes["id"] for _, attributes in Page(text).tags if "id" in attributes]
    assert len(identifiers) == len(set(identifiers))
    targets = [
        attributes.get(name) or ""
        for _, attributes in Page(text).tags
        for name in ("href", "xlink:href")
    ]
    assert {target[1:] for target in targets if target.startswith("#")} <= set(identifiers)


@pytest.mark.slow
def test_a_page_of_a_json_is_the_same(tmp_path: Path) -> None:
    reports = [str(path) for path in SAMPLES["graphs"]]
    page, again, data = (str(tmp_path / name) for name in ("a.html", "b.html", "r.json"))
    assert main(["report", *reports, "-q", "--html", page, "--json", data]) == 0
    assert main(["report", data, "-q", "--html", again]) == 0
    assert Path(page).read_text() == Path(again).read_text()
