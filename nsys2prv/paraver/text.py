"""Text that is safe in Paraver's line-based files."""

from __future__ import annotations

import re

#: What breaks lines or is no text: control characters and the line ends of Unicode (a regex that
#: Python and Rust both read).
CONTROL = "[\\x00-\\x1f\\x7f-\\x9f\u2028\u2029]+"
_CONTROL = re.compile(CONTROL)
#: Longer labels are cut: Paraver draws the first few dozen characters.
LONGEST = 1000
NO_NAME = "(no name)"
_IN_BRACKETS = re.compile(r"\[[^\[\]]*\]")
#: What is written as an escape, and the escapes (regexes that Python and Rust both read).
NOT_ASCII = r"[^\x00-\x7f]|\\u[0-9a-f]{4}|\\U[0-9a-f]{8}"
_NOT_ASCII = re.compile(r"[^\x00-\x7f]|\\(?=u[0-9a-f]{4}|U[0-9a-f]{8})")
_ESCAPE = re.compile(r"\\(?:u([0-9a-f]{4})|U([0-9a-f]{8}))")


def clean(text: str) -> str:
    """Return one line of valid text without control characters, never empty, never all in a pair of
    brackets.
    """
    line = _CONTROL.sub(" ", text.encode("utf-8", "replace").decode("utf-8")).strip()
    if len(line) > LONGEST:
        line = line[: LONGEST - 3].rstrip() + "..."
    if _IN_BRACKETS.fullmatch(line):
        line = f"({line[1:-1]})"
    return NO_NAME if line in ("", "()") else line


def to_ascii(text: str) -> str:
    """Return the text with `\u00e9` or `\U0001f600` for characters that are not ASCII, which some
    readers of .pcf files refuse.

    :func:`from_ascii` gives the text back: a backslash that would read as such an escape is written
    as one.
    """
    return _NOT_ASCII.sub(
        lambda found: (
            f"\\u{ord(found[0]):04x}" if ord(found[0]) < 0x10000 else f"\\U{ord(found[0]):08x}"
        ),
        text,
    )


def from_ascii(text: str) -> str:
    """Return the text that :func:`to_ascii` was given."""
    return _ESCAPE.sub(_character, text) if "\\" in text else text


def _character(escape: re.Match[str]) -> str:
    number = int(escape[1] or escape[2], 16)
    return chr(number) if number < 0xD800 or 0xDFFF < number < 0x110000 else escape[0]
