"""Results for a terminal: findings first, no wider than it is, no longer than one reads."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable

import polars as pl
from msgspec import Struct

from nsys2prv.analysis.findings.told import WIDEST, finding_lines
from nsys2prv.analysis.result import Result
from nsys2prv.analysis.text import COLUMNS_IN_DETAIL, IN_DETAIL, MOST_ROWS, table_lines
from nsys2prv.analysis.worst import worst_first

#: Lines that are printed unless all are asked for, and rows of each table then.
MOST_LINES, FEW_ROWS = 60, 5
BOLD, PLAIN = "\x1b[1m", "\x1b[0m"


class Style(Struct, frozen=True):
    """Style of printing. In a pipe nothing depends on a terminal: tables have all columns, and
    there are no escape sequences.
    """

    # columns of the terminal, None for tables of any width
    width: int | None = None
    # everything, or what fits in MOST_LINES
    full: bool = False
    # rows of a table, None: MOST_ROWS, or FEW_ROWS where not everything is printed
    rows: int | None = None
    colours: bool = False

    @classmethod
    def of_output(cls, full: bool = False, rows: int | None = None) -> Style:
        """That of standard output."""
        if not sys.stdout.isatty():
            return cls(None, full, rows)
        return cls(
            shutil.get_terminal_size().columns,
            full,
            rows,
            not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb",
        )

    def title(self, text: str) -> list[str]:
        return [f"{BOLD}{text}{PLAIN}"] if self.colours else [text, "=" * len(text)]


def printed(results: Iterable[Result], head: Iterable[str] = (), style: Style | None = None) -> str:
    """The results for people."""
    style = style or Style()
    results = list(results)
    width = min(style.width or WIDEST, WIDEST)
    parts = [_folded(list(head), width)] if head else []
    told = [result for result in results if result.name == "findings"]
    told = told or [result for result in results if result.findings]
    parts += [_findings(result, style, width) for result in told]
    blocks = [block for result in results for block in _blocks(result, style, width)]
    if style.full:
        return "\n\n".join("\n".join(part) for part in (*parts, *blocks))
    room = MOST_LINES - 2 - sum(len(part) + 1 for part in parts)
    kept: list[list[str]] = []
    for block in blocks:
        if len(block) + 1 <= room:
            kept.append(block)
            room -= len(block) + 1
    left = len(blocks) - len(kept)
    more = (
        [[f"{left} more tables and notes: --full shows all, --only NAME those of one analysis"]]
        if left
        else []
    )
    return "\n\n".join("\n".join(part) for part in (*parts, *kept, *more))


def _findings(result: Result, style: Style, width: int) -> list[str]:
    what = "steady state" if "phases" in result.tables else "job"
    said = f"  %: how much shorter the {what} would be at most without this cause"
    return [
        *style.title("What holds the job back"),
        *(_folded([said], width) if result.findings else []),
        *finding_lines(result.findings, width, style.full, *result.missing[:1]),
    ]


def _blocks(result: Result, style: Style, width: int) -> list[list[str]]:
    """The parts of a result that are printed or left out as a whole."""
    rows = style.rows or (MOST_ROWS if style.full else FEW_ROWS)
    told = [
        line
        for note in result.notes
        for line in textwrap.wrap(note, width, initial_indent="note: ", subsequent_indent="      ")
    ]
    told += [
        line
        for lack in result.missing
        for line in textwrap.wrap(
            f"not available: {lack}", width, subsequent_indent="      ", break_on_hyphens=False
        )
    ]
    tables = [
        [
            table.title,
            *_table(
                table.frame.drop(() if style.full else COLUMNS_IN_DETAIL, strict=False), rows, style
            ),
        ]
        for name, table in result.tables.items()
        if name not in IN_DETAIL and table.frame.height
    ]
    if result.name != "findings":
        heading = style.title(result.title)
        if tables:
            # A heading stands with what is below it.
            tables[0] = [*heading, *([""] if told and style.full else []), *tables[0]]
        elif told and style.full:
            return [[*heading, *told]]
    return [*([told] if told and style.full else []), *tables]


def _table(frame: pl.DataFrame, rows: int, style: Style) -> list[str]:
    """A table's lines; of many ranks or devices the worst."""
    shown, left = worst_first(frame, rows)
    if not left:
        return table_lines(frame, rows, style.width)
    return [*table_lines(shown, shown.height, style.width), f"  ... {left:,} more"]


def _folded(lines: list[str], width: int) -> list[str]:
    return [
        part
        for line in lines
        for part in (textwrap.wrap(line, width, subsequent_indent="    ") or [""])
    ]
