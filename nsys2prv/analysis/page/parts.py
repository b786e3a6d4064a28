"""What a page consists of: plain data between the sections, which say what is shown, and those who
draw and write it; figures of very many rows are shown by their mean and the rows that differ most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
from msgspec import Struct, field
from msgspec.structs import replace

from nsys2prv.analysis.result import Finding, Result, Table

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
    """A table; its rows may lie within each other, each after what it lies in."""

    #: Its heading.
    title: str
    #: The figures.
    frame: pl.DataFrame
    #: `analysis.table`, where JSON has it.
    source: str
    #: A sentence above it.
    note: str = ""
    #: Rows to show at most.
    most: int = MOST_ROWS
    #: Closed until it is asked for.
    folded: bool = False
    #: Depth of each row of a tree, 0 for the outermost; empty for other tables.
    depths: Sequence[int] = ()


class Figure(Struct, frozen=True, kw_only=True):
    """A picture of the page, as data to draw."""

    #: A sentence above it.
    note: str = ""
    #: Closed until it is asked for.
    folded: bool = False


class Stacked(Figure, frozen=True):
    """Parts of a whole by row."""

    #: Its heading.
    title: str
    #: Label of each row.
    labels: list[str]
    #: Name and colour -> fractions (rows).
    parts: Mapping[str, tuple[str, np.ndarray]]
    #: What the axis counts.
    axis: str


class HeatMap(Figure, frozen=True):
    """A quantity over rows and columns, as colours."""

    #: Its heading.
    title: str
    #: Label of each row.
    labels: list[str]
    #: (rows, columns), NaN for unknown.
    values: np.ndarray
    #: Where the first column begins and the last one ends, in `across`.
    extent: tuple[float, float]
    #: What the columns count.
    across: str
    #: What the colours mean.
    quantity: str
    #: Whether columns count things.
    whole: bool = False
    #: What the darkest colour means, None for the minimum.
    low: float | None = 0.0
    #: What the brightest colour means, None for the maximum.
    high: float | None = None


class Lines(Figure, frozen=True):
    """Values over x."""

    #: Its heading.
    title: str
    #: Ascending.
    x: np.ndarray
    #: What the axis of `x` counts.
    across: str
    #: Name -> values.
    panels: Mapping[str, Mapping[str, np.ndarray]]
    #: Indices of points to be pointed out in the first panel.
    marked: list[int] = field(default_factory=list)


class Spread(Figure, frozen=True):
    """Durations (ns) of several things, a row each."""

    #: Its heading.
    title: str
    #: Label of each row.
    labels: list[str]
    #: Bounds of the bins: (rows, bins + 1).
    edges: np.ndarray
    #: Executions in each bin: (rows, bins).
    counts: np.ndarray
    #: Median of each row (ns).
    median: np.ndarray
    #: The two modes of each row (ns), None where it has one.
    modes: list[tuple[float, float] | None]


class Factor(Struct, frozen=True):
    """A node of the tree of efficiencies."""

    #: What the efficiency is called.
    name: str
    #: Fraction of 1, None where it is not known.
    value: float | None
    #: One sentence.
    meaning: str
    #: Efficiencies whose product it is.
    factors: tuple[Factor, ...] = ()


class Findings(Struct, frozen=True):
    """The findings, which say what holds the job back."""

    #: Its heading.
    title: str
    #: The most costly first.
    found: list[Finding]
    #: A sentence above them.
    note: str


class Factors(Struct, frozen=True):
    """Trees of efficiencies."""

    #: Its heading.
    title: str
    #: One for each tree.
    roots: list[Factor]
    #: A sentence above them.
    note: str


class Items(Struct, frozen=True):
    """Sentences."""

    #: One for each.
    items: list[str]
    #: `note`, or `missing` for what is not available.
    kind: str = "note"


Block = Grid | Findings | Factors | Items | Figure


class Section(Struct, frozen=True):
    """A part of the page with a heading."""

    #: Its anchor on the page.
    name: str
    #: Its heading.
    title: str
    #: In the order of the page.
    blocks: list[Block]


class Material(Struct, frozen=True):
    """Material that sections are made of."""

    #: The job, as `describe_job` of cli/report.py describes it.
    job: Mapping[str, object]
    #: Results by the name of their analysis.
    results: Mapping[str, Result]

    def find_table(self, source: str) -> Table | None:
        """Return a table (`analysis.table`), None where there are no figures."""
        analysis, _, name = source.partition(".")
        table = self.results[analysis].tables.get(name) if analysis in self.results else None
        return table if table and table.frame.height else None

    def find_frame(self, source: str) -> pl.DataFrame | None:
        """Return the figures of a table, None where there are none."""
        table = self.find_table(source)
        return table and table.frame

    def make_grid(
        self, source: str, most: int = MOST_ROWS, folded: bool = False, note: str = ""
    ) -> list[Block]:
        """Return a table as it is; nothing where there is none."""
        table = self.find_table(source)
        return [Grid(table.title, table.frame, source, note, most, folded)] if table else []

    def list_notes(self, analysis: str) -> list[Items]:
        """Return how to read the figures of an analysis, and what the reports lack."""
        result = self.results.get(analysis)
        if result is None:
            return []
        notes = (Items(result.notes), Items(result.missing, "missing"))
        return [one for one in notes if one.items]

    @property
    def duration(self) -> int:
        """Duration of the job (ns)."""
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
    is_known = ~np.isnan(block.values)
    counts = is_known.sum(axis=0)
    sums = np.where(is_known, block.values, 0).sum(axis=0)
    first = [
        np.where(counts, np.where(is_known, block.values, -np.inf).max(axis=0), np.nan),
        np.where(counts, sums / np.maximum(counts, 1), np.nan),
        np.where(counts, np.where(is_known, block.values, np.inf).min(axis=0), np.nan),
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
    is_known = ~np.isnan(values)
    filled = np.where(is_known, values, 0)
    middle = filled.sum(axis=0) / np.maximum(is_known.sum(axis=0), 1)
    distance = np.where(is_known, np.abs(filled - middle), 0).sum(axis=1)
    return np.argsort(-distance, kind="stable")[:MOST_WORST].tolist()
