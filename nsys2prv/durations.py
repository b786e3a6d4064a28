"""Durations as people write them."""

from __future__ import annotations

import re
from decimal import Decimal

#: Unit -> ns, the largest first.
UNITS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_DURATION = re.compile(rf"(\d+(?:\.\d+)?)({'|'.join(UNITS)}|)")


def parse_duration(text: str) -> int:
    """Nanoseconds from a number, alone or with a unit. Raises ValueError for anything else."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return round(Decimal(match[1]) * UNITS[match[2] or "ns"])


def seconds_text(ns: int) -> str:
    """A time of a trace, in seconds."""
    return f"{ns / 1e9:.9f}".rstrip("0").rstrip(".") + " s"


def duration_text(ns: int) -> str:
    """A duration in the largest unit that gives a whole number."""
    unit, size = next((unit, size) for unit, size in UNITS.items() if ns % size == 0)
    return f"{ns // size} {unit}"
