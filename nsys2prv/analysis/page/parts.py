"""Hold what a page consists of: plain data between the sections, which say what is shown, and the
templates, which write it (``templates/blocks.html`` has a macro for each sort of block).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv.analysis.result import Finding, Result, Table

#: Rows of a table on a page, and of one with a row for each rank or device; JSON has all.
MOST_ROWS, MOST_RANKS = 300, 1024


class Block(Struct, frozen=True, kw_only=True):
    """A part of a section."""

    #: Its heading.
    title: str = ""
    #: A sentence above it.
    note: str = ""
    #: Closed until it is asked for.
    folded: bool = False

    @property
    def macro(self) -> str:
        """The macro that writes it."""
        return type(self).__name__.lower()


class Grid(Block, frozen=True, kw_only=True):
    """A table; its rows may lie within each other, each after what it lies in."""

    #: The figures.
    frame: pl.DataFrame
    #: `analysis.table`, where JSON has it.
    source: str
    #: Rows to show at most.
    most: int = MOST_ROWS
    #: Depth of each row of a tree, 0 for the outermost; empty for other tables.
    depths: Sequence[int] = ()


class Figure(Block, frozen=True, kw_only=True):
    """A picture with a row for each thing."""

    #: Label of each row.
    labels: Sequence[object]
    #: (rows, columns), NaN for unknown.
    values: np.ndarray
    #: What the horizontal axis counts.
    axis: str


class Bars(Figure, frozen=True, kw_only=True):
    """Parts of a whole by row: fractions of 1, a column for each part."""

    #: Name and colour of each part.
    parts: Sequence[tuple[str, str]]


class HeatMap(Figure, frozen=True, kw_only=True):
    """A quantity over rows and columns, as colours."""

    #: Where the last column ends, from 0 on, as a text.
    end: str
    #: What the colours mean.
    quantity: str
    #: What the brightest colour means; the darkest means 0.
    high: float


class Factor(Struct, frozen=True):
    """A node of the tree of efficiencies."""

    #: What the efficiency is called.
    name: str
    #: Fraction of 1, None where it is not known.
    value: float | None
    #: One sentence.
    meaning: str
    #: Efficiencies whose product it is.
    factors: Sequence[Factor] = ()


class Factors(Block, frozen=True, kw_only=True):
    """Trees of efficiencies."""

    #: One for each tree.
    roots: Sequence[Factor]


class Findings(Block, frozen=True, kw_only=True):
    """The findings, which say what holds the job back, the most costly first."""

    #: All of them.
    found: Sequence[Finding]


class Items(Block, frozen=True, kw_only=True):
    """Sentences: notes, or what is not available."""

    #: One for each.
    items: Sequence[str]
    #: What the reports lack.
    is_missing: bool = False


class Section(Struct, frozen=True):
    """A part of the page with a heading."""

    #: Its anchor on the page.
    name: str
    #: Its heading.
    title: str
    #: In the order of the page.
    blocks: Sequence[Block]


class Material(Struct, frozen=True):
    """Material that sections are made of."""

    #: The job, as `describe_job` of cli/report.py describes it.
    job: Mapping[str, Any]
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

    def list_notes(self, analysis: str) -> list[Block]:
        """Return how to read the figures of an analysis, and what the reports lack."""
        result = self.results.get(analysis) or Result(analysis, "")
        return [Items(items=result.notes), Items(items=result.missing, is_missing=True)]
