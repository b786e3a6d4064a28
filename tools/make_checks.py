"""Write ``docs/checks.md`` from the rules of `nsys2prv check`: ``python tools/make_checks.py``."""

from __future__ import annotations

from pathlib import Path

from nsys2prv.paraver.check.result import rules_page

if __name__ == "__main__":
    (Path(__file__).parent.parent / "docs" / "checks.md").write_text(rules_page(), encoding="utf-8")
