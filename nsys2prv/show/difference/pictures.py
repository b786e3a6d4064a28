"""Draw the times of two runs as bars whose parts add up, for terminals. Pages draw the same bars."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
from msgspec import Struct

from nsys2prv._util.text import format_nanoseconds
from nsys2prv.figures.result import Result
from nsys2prv.show.difference.facts import Comparison

#: Family -> the character that bars are drawn with, and its colour on pages.
LOOKS = {
    "kernels": ("#", "kernel"),
    "communication": ("~", "nccl"),
    "copies": ("=", "copy"),
    "hosts": (".", "computing"),
    "startup": ("<", "sync"),
    "shutdown": (">", "exiting"),
    "unexplained": ("?", "idle"),
    "rest": ("-", "away"),
}
#: Characters of a bar at least.
NARROWEST = 20


class Bar(Struct, frozen=True):
    """A bar of a picture: a time, divided into parts (name -> ns)."""

    label: str
    #: Family -> its time (ns).
    parts: dict[str, float]

    @property
    def length(self) -> float:
        """The time (ns)."""
        return sum(self.parts.values())


def list_bars(comparison: Comparison, difference: Result) -> list[Bar]:
    """Return two pairs of bars about the difference of two runs: the time of the unit (iteration or
    job) in each run, divided by families of the critical path; and the parts that take longer and
    those that take less in the second run.
    """
    table = difference.tables.get("parts")
    if table is None:
        return []
    rows = {row["family"]: row for row in table.frame.iter_rows(named=True)}
    order = [family for family in LOOKS if family in rows]

    def make(label: str, values: dict[str, float]) -> Bar:
        return Bar(label, {family: values[family] for family in order if values[family] > 0})

    first, second = comparison.names
    changes = {family: rows[family]["change_ns"] for family in order}
    return [
        make(first, {family: rows[family]["a_ns"] for family in order}),
        make(second, {family: rows[family]["b_ns"] for family in order}),
        make("added", changes),
        make("saved", {family: -change for family, change in changes.items()}),
    ]


def draw_bars(bars: Sequence[Bar], width: int) -> list[str]:
    """Draw bars as lines of text for a terminal, on one scale; no lines if there is no room. width:
    characters per line.
    """
    longest = max((bar.length for bar in bars), default=0.0)
    head = max((len(bar.label) for bar in bars), default=0) + 2
    times = [format_nanoseconds(bar.length) for bar in bars]
    room = width - head - max(map(len, times), default=0) - 4
    if room < NARROWEST or not longest:
        return []
    lines = []
    for bar, time in zip(bars, times, strict=True):
        # Edges are rounded, so that parts fill the bar.
        ends = pl.Series([0.0, *bar.parts.values()]).cum_sum() * room / longest
        edges = ends.round().cast(pl.Int64).to_list()
        parts = zip(bar.parts, edges, edges[1:], strict=False)
        drawn = "".join(LOOKS[family][0] * (end - begin) for family, begin, end in parts)
        lines.append(f"  {bar.label:<{head - 2}} |{drawn:<{room}}| {time}")
    shown = [family for family in LOOKS if any(family in bar.parts for bar in bars)]
    return [*lines, f"  {', '.join(f'{LOOKS[family][0]} {family}' for family in shown)}"]
