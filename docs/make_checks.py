"""Write ``checks.md`` beside this file from the rules of `nsys2prv check`: ``python docs/make_checks.py``."""

from __future__ import annotations

from pathlib import Path

from nsys2prv.check.text import rules_page

if __name__ == "__main__":
    Path(__file__).with_name("checks.md").write_text(rules_page(), encoding="utf-8")
