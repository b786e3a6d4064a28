"""What a page consists of: plain data between the sections, which say what is shown, and those who
draw and write it; figures of very many rows are shown by their mean and the rows that differ most.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl
from msgspec import Struct, field
from msgspec.structs import replace

from nsys2prv.analysis.result import Finding, Result

#: Rows of a table on a page, and of one with a row for each rank or device; JSON has all.
MOST_ROWS, MOST_RANKS = 300, 1024
#: From these fractions on an efficiency is good, and fair: POP takes less than 80 % for worth a
#: look.
GOOD, FAIR = 0.8, 0.6
#: Characters of the longest label in a figure.
LONGEST = 48


def shorten_label(label: str) -> str:
    """Return a label that fits beside a figure, printable."""
    label = "".join(character if character.isprintable() else " " for character in label)
    return label if len(label) <= LONGEST else f"{label[: LONGEST - 1]}…"


class Grid(Struct, frozen=True):
    """A table. source: `analysis.table`, where JSON has it. note: a sentence above it. folded:
    closed until it is asked for.
    """

    title: str
    frame: pl.DataFrame
    source: str
    note: str = ""
    most: int = MOST_ROWS
    folded: bool = False


class Tree(Struct, frozen=True):
    """A table whose rows lie within each other: depths of the rows, 0 for outermost; each after
    what it lies in.
    """

    title: str
    frame: pl.DataFrame
    depths: list[int]
    source: str
    note: str = ""


class Stacked(Struct, frozen=True):
    """Parts of a whole by row. parts: name and colour -> fractions (rows)."""

    title: str
    labels: list[str]
    parts: Mapping[str, tuple[str, np.ndarray]]
    axis: str
    note: str = ""
    folded: bool = False


class HeatMap(Struct, frozen=True):
    """values: (rows, columns), NaN for unknown. extent: of the columns, in `across`, which counts
    things where it is `whole`. high: what the brightest colour means, None for the maximum.
    """

    title: str
    labels: list[str]
    values: np.ndarray
    extent: tuple[float, float]
    across: str
    quantity: str
    whole: bool = False
    low: float | None = 0.0
    high: float | None = None
    note: str = ""
    folded: bool = False


class Lines(Struct, frozen=True):
    """Values over x. panels: name -> values. marked: indices of points to be pointed out in the
    first panel.
    """

    title: str
    x: np.ndarray
    across: str
    panels: Mapping[str, Mapping[str, np.ndarray]]
    marked: list[int] = field(default_factory=list)
    note: str = ""
    folded: bool = False


class Spread(Struct, frozen=True):
    """Durations (ns) of several things, a row each. edges: (rows, bins + 1), counts: (rows, bins),
    median: (rows). modes: per row the two modes, or None.
    """

    title: str
    labels: list[str]
    edges: np.ndarray
    counts: np.ndarray
    median: np.ndarray
    modes: list[tuple[float, float] | None]
    note: str = ""
    folded: bool = False


class Factor(Struct, frozen=True):
    """A node of the tree of efficiencies."""

    name: str
    value: float | None
    meaning: str
    factors: tuple[Factor, ...] = ()


class Findings(Struct, frozen=True):
    title: str
    found: list[Finding]
    note: str


class Factors(Struct, frozen=True):
    title: str
    roots: list[Factor]
    note: str


class Items(Struct, frozen=True):
    """Sentences. kind: `note`, or `missing` for what is not available."""

    items: list[str]
    kind: str = "note"


FIGURES = (Stacked, HeatMap, Lines, Spread)
Figure = Stacked | HeatMap | Lines | Spread
Block = Grid | Tree | Findings | Factors | Items | Figure


class Section(Struct, frozen=True):
    name: str
    title: str
    blocks: list[Block]


class Material(Struct, frozen=True):
    """Material that sections are made of. job: as in JSON (analysis.command.describe)."""

    job: Mapping[str, object]
    results: Mapping[str, Result]

    def frame(self, analysis: str, table: str) -> pl.DataFrame | None:
        """Return the figures of a table, None where there are none."""
        table_found = self.results[analysis].tables.get(table) if analysis in self.results else None
        return table_found.frame if table_found and table_found.frame.height else None

    def grid(
        self,
        analysis: str,
        table: str,
        most: int = MOST_ROWS,
        folded: bool = False,
        drop: tuple[str, ...] = (),
        note: str = "",
    ) -> list[Grid]:
        """Return a table as it is; nothing where there is none."""
        frame = self.frame(analysis, table)
        if frame is None:
            return []
        return [
            Grid(
                self.results[analysis].tables[table].title,
                frame.drop(drop, strict=False),
                f"{analysis}.{table}",
                note,
                most,
                folded,
            )
        ]

    def notes(self, *analyses: str) -> list[Items]:
        """Return how to read the figures, and what the reports lack."""
        known = [self.results[name] for name in analyses if name in self.results]
        texts_by_kind = [
            (kind, [text for result in known for text in getattr(result, kind)])
            for kind in ("notes", "missing")
        ]
        return [
            Items(texts, "missing" if kind == "missing" else "note")
            for kind, texts in texts_by_kind
            if texts
        ]

    @property
    def duration(self) -> int:
        return int(str(self.job["duration_ns"]))


#: Rows that are shown one by one; of more, so many that differ most.
MOST_SHOWN, MOST_WORST = 40, 24


def condense_rows(block: Block) -> Block:
    """Return a figure of few rows: the figure itself, or the mean of its rows (of a heat map the
    maximum and the minimum too) and the rows that are farthest from it, farthest first.
    """
    if not isinstance(block, HeatMap | Stacked) or len(block.labels) <= MOST_SHOWN:
        return block
    count = len(block.labels)
    explanation = (
        f"The mean of {count:,} rows, then the {MOST_WORST} rows that differ most from it; "
        "the table has all."
    )
    note = f"{block.note} {explanation}".strip()
    if isinstance(block, Stacked):
        values = np.stack([part for _, part in block.parts.values()])
        order = _find_farthest(values.T)
        parts = {
            name: (colour, np.append(part.mean(), part[order]))
            for name, (colour, part) in block.parts.items()
        }
        labels = [f"mean of {count:,}", *(block.labels[at] for at in order)]
        return replace(block, labels=labels, parts=parts, note=note)
    order = _find_farthest(block.values)
    known = ~np.isnan(block.values)
    counts = known.sum(axis=0)
    sums = np.where(known, block.values, 0).sum(axis=0)
    first = [
        np.where(counts, np.where(known, block.values, -np.inf).max(axis=0), np.nan),
        np.where(counts, sums / np.maximum(counts, 1), np.nan),
        np.where(counts, np.where(known, block.values, np.inf).min(axis=0), np.nan),
    ]
    labels = [f"{statistic} of {count:,}" for statistic in ("max", "mean", "min")]
    return replace(
        block,
        labels=[*labels, *(block.labels[at] for at in order)],
        values=np.concatenate([first, block.values[order]]),
        note=note.replace("The mean", "The maximum, the mean and the minimum"),
    )


def _find_farthest(values: np.ndarray) -> list[int]:
    """Return the rows that are farthest from the mean row, the farthest first. values: (rows,
    columns), NaN for unknown.
    """
    known = ~np.isnan(values)
    filled = np.where(known, values, 0)
    middle = filled.sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    distance = np.where(known, np.abs(filled - middle), 0).sum(axis=1)
    return np.argsort(-distance, kind="stable")[:MOST_WORST].tolist()
