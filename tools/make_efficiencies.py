"""Make the page of efficiencies from their declarations (``rows.yaml`` of ``analysis/study``)."""

from __future__ import annotations

from nsys2prv.figures.study_model import ROWS

HEAD = """# Efficiencies

The rows of `nsys2prv study` and `nsys2prv report`, named as BSC's and TALP's tools name them. Each is the product of those one step deeper.
T is the elapsed time of the focus of analysis. *Useful*, *communication* and *active* time: see the [glossary](analysis.md#efficiencies).

| row | definition | in JSON |
|---|---|---|
"""


def page() -> str:
    """The page in Markdown."""
    lines = (
        f"| {'&nbsp;' * 4 * row.depth}{row.name} | {row.about} | `{row.path}` |\n" for row in ROWS
    )
    return HEAD + "".join(lines)
