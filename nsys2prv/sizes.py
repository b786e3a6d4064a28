"""Sizes of files, and counts, as people write and read them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes from a number, alone or with a unit (KB, MB, GB of 1000; KiB, MiB, GiB of 1024). Raises ValueError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or (match[3] and not match[2]):
        raise ValueError(text)
    return int(Decimal(match[1]) * (1024 if match[3] else 1000) ** " kmgt".index(match[2].lower() or " "))


def plural(count: int, what: str) -> str:
    """So many of something that takes an s."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def some(names: Sequence[str], most: int = 3) -> str:
    """The first names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def size_text(size: float) -> str:
    """Bytes for people, in units of 1000."""
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
