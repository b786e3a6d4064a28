"""The notebook of the documents runs, and shows what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parent.parent / "docs" / "notebook.ipynb"


def test_the_notebook_is_committed_without_output() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert len(code) > 5
    assert not any(cell["outputs"] or cell["execution_count"] for cell in code)


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
        "job of 4 reports: 4 ranks on 2 hosts",
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
