"""Run docs/notebook.ipynb and keep its outputs: ``python tools/make_notebook.py`` (needs nbclient, ipykernel
and matplotlib). Of outputs that are large as HTML, such as the page of a job, the text alone is kept.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parent.parent / "docs" / "notebook.ipynb"
#: Bytes of the largest output that is kept.
LARGEST = 150_000


def run_notebook() -> nbformat.NotebookNode:
    """Return the notebook with the outputs of all cells."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    places = {"metadata": {"path": str(NOTEBOOK.parent)}}
    NotebookClient(notebook, timeout=120, resources=places).execute()
    return notebook


def main() -> None:
    notebook = run_notebook()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            for kind in [kind for kind, value in data.items() if len(str(value)) > LARGEST]:
                del data[kind]
    nbformat.write(notebook, NOTEBOOK)


if __name__ == "__main__":
    main()
