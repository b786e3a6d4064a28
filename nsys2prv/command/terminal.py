"""Text from reports as a terminal may see it."""

from __future__ import annotations

import re

#: What moves the cursor, hides or reorders text: control characters but tab and line feed, and Unicode's marks of direction.
_UNSAFE = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """The text with such characters as escapes."""
    return _UNSAFE.sub(lambda match: ascii(match[0])[1:-1], text)


def one_line(text: str) -> str:
    """The same, for text that must not break lines either."""
    return printable(text).replace("\n", "\\n").replace("\t", " ")
