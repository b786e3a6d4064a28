"""Read and write sizes, counts and durations as people do; sort names naturally; make text safe for
terminals.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from difflib import get_close_matches

#: Names that are compared with one that is none of them.
MOST_COMPARED = 10_000
#: Unit -> ns, the largest first.
UNITS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_DURATION = re.compile(rf"(\d+(?:\.\d+)?)({'|'.join(UNITS)}|)")
#: Characters that move the cursor, hide or reorder text: control characters but tab and line feed, and
#: Unicode's marks of direction.
_UNSAFE = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def format_count(count: int, noun: str) -> str:
    """Return "1 task", "3 tasks": a count and its noun with the regular plural."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def capitalize(text: str) -> str:
    """Return the text with its first letter as a capital, and all others as they are."""
    return text[:1].upper() + text[1:]


def list_some(names: Sequence[str], most: int = 3, separator: str = ", ") -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return separator.join(names[:most]) + more


def suggest_range(wanted: str, names: Sequence[str]) -> str:
    """Return what to do where no NVTX range has this name: the nearest one, or how to list them."""
    if near := get_close_matches(wanted.strip("*"), names[:MOST_COMPARED], 1):
        return f"did you mean {near[0]}?"
    return "`nsys2prv report REPORT... --only operations` lists the names there are"


def format_size(size: float) -> str:
    """Return bytes for people, in units of 1000."""
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def parse_duration(text: str) -> int:
    """Return nanoseconds from a number, alone or with a unit. Raises ValueError for anything else."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return round(Decimal(match[1]) * UNITS[match[2] or "ns"])


def format_seconds(ns: int) -> str:
    """Return a time of a trace, in seconds."""
    return f"{ns / 1e9:.9f}".rstrip("0").rstrip(".") + " s"


def choose_decimals(length: int) -> int:
    """Return the number of decimals of seconds that tell the ends of a span well apart. length: ns."""
    return min(max(11 - len(str(max(length, 1))), 3), 9)


def format_duration(ns: int) -> str:
    """Return a duration in the largest unit that gives a whole number."""
    unit, size = next((unit, size) for unit, size in UNITS.items() if ns % size == 0)
    return f"{ns // size} {unit}"


def make_natural_key(text: str) -> tuple:
    """Return a sort key in which runs of digits compare as numbers, however long."""
    return tuple(
        (1, len(part.lstrip("0")), part.lstrip("0"), part)
        if part[0] in "0123456789"
        else (0, 0, "", part)
        for part in re.split("([0-9]+)", text)
        if part
    )


def escape_unprintable(text: str) -> str:
    """Return the text with escapes for characters that move the cursor, hide or reorder text."""
    return _UNSAFE.sub(lambda match: ascii(match[0])[1:-1], text)


def escape_to_one_line(text: str) -> str:
    """Return the text as :func:`escape_unprintable` does, with its line ends and tabs replaced, too."""
    return escape_unprintable(text).replace("\n", "\\n").replace("\t", " ")
