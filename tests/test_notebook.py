"""Test that the notebook of the documents runs and shows its stored outputs."""

import json
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parent.parent / "docs" / "notebook.ipynb"


def test_the_notebook_is_committed_with_outputs() -> None:
    text = NOTEBOOK.read_text(encoding="utf-8")
    code = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert sum(bool(cell["outputs"]) for cell in code) >= 8, "run python tools/make_notebook.py"
    assert "<iframe srcdoc=" in text
    assert len(text) < 250_000
    assert str(NOTEBOOK.parents[1]) not in text


@pytest.mark.slow
def test_the_notebook_runs() -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=120, resources={"metadata": {"path": str(NOTEBOOK.parent)}}
    ).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert {output.output_type for output in outputs} <= {"execute_result", "display_data"}
    pages = [page for output in outputs if (page := output.data.get("text/html"))]
    for part in (
        "job of 4 reports: 4 ranks on 2 nodes",
        "parallel_efficiency",
        "% of the time)",
        "median_us",
    ):
        assert any(part in page for page in pages), part
    assert any("image/png" in output.data for output in outputs)
    (ranks,) = (
        text
        for output in outputs
        if "int64" in (text := output.data["text/plain"])
        and "rank" in text
        and "dtype: int64" in text
    )
    assert [int(line.split()[0]) for line in ranks.splitlines()[1:5]] == [0, 1, 2, 3]
