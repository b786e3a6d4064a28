"""Natural order of names: rank2 before rank10."""

from __future__ import annotations

import re


def natural_key(text: str) -> tuple:
    """A sort key in which runs of digits compare as numbers."""
    return tuple((1, int(part), part) if part.isdigit() else (0, 0, part) for part in re.split(r"(\d+)", text) if part)
