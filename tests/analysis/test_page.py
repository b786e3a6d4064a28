"""The page on the Python interface: its code runs, and it is the code of the page's maker."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.slow
def test_code_of_the_page_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location(
        "make_analysis", ROOT / "tools" / "make_analysis.py"
    )
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    monkeypatch.chdir(ROOT)
    page, written = maker.page(), (ROOT / "docs" / "analysis.md").read_text(encoding="utf-8")
    # How polars prints frames is its own affair.
    printed = re.compile(r"```text\n.*?```", re.DOTALL)
    assert printed.sub("", page) == printed.sub("", written), "run python tools/make_analysis.py"
