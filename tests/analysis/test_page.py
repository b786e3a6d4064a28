"""Test the documents about Python: their code runs, and the notebook contains the code of its
maker.
"""

import re

import pytest
from make_analysis import ROOT, page


def test_code_of_the_page_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    # How polars prints frames is its own affair.
    made, written = (
        re.sub(r"```text\n.*?```", "", text, flags=re.DOTALL)
        for text in (page(), (ROOT / "docs" / "analysis.md").read_text(encoding="utf-8"))
    )
    assert made == written, "run python tools/make_analysis.py"
