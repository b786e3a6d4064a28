"""Natural order of names: rank2 before rank10."""

from __future__ import annotations

import re


def natural_key(text: str) -> tuple:
    """A sort key in which runs of digits compare as numbers, however long."""
    return tuple((1, len(part.lstrip("0")), part.lstrip("0"), part) if part[0] in "0123456789" else (0, 0, "", part)
                 for part in re.split("([0-9]+)", text) if part)
