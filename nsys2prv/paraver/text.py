"""Text that is safe in Paraver's line-based files."""

from __future__ import annotations

import re

#: What breaks lines or is no text: control characters and the line ends of Unicode (a regex that Python and Rust both read).
CONTROL = "[\\x00-\\x1f\\x7f-\\x9f\u2028\u2029]+"
_CONTROL = re.compile(CONTROL)
#: Longer labels are cut: Paraver draws the first few dozen characters.
LONGEST = 1000
NO_NAME = "(no name)"
_IN_BRACKETS = re.compile(r"\[[^\[\]]*\]")


def clean(text: str) -> str:
    """One line of valid text without control characters, never empty, never all in a pair of brackets."""
    line = _CONTROL.sub(" ", text.encode("utf-8", "replace").decode("utf-8")).strip()
    if len(line) > LONGEST:
        line = line[:LONGEST - 1].rstrip() + "…"
    if _IN_BRACKETS.fullmatch(line):
        line = f"({line[1:-1]})"
    return NO_NAME if line in ("", "()") else line
