"""Results for a terminal: findings first, no wider than it is, no longer than one reads. Of tables with
a row for each of many ranks, devices or hosts: the minimum, the mean and the maximum of all, then the
worst.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence

import polars as pl
from msgspec import Struct

from nsys2prv.analysis.findings.finding import WIDEST, finding_lines
from nsys2prv.analysis.result import Result
from nsys2prv.analysis.text import COLUMNS_IN_DETAIL, IN_DETAIL, MOST_ROWS, table_lines

#: Lines that are printed unless all are asked for, and rows of each table then.
MOST_LINES, FEW_ROWS = 60, 5
#: Lines that say at the end what there is more.
LAST_LINES = 3
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


def format_results(
    results: Iterable[Result],
    head: Iterable[str] = (),
    style: Style | None = None,
    left_out: Sequence[str] = (),
) -> str:
    """The results for people. left_out: names of the analyses that were not made, as there is no
    room for their tables (:func:`lines_left`).
    """
    style, results = style or Style(), list(results)
    parts, blocks = _laid_out(results, head, style)
    if style.full:
        return "\n\n".join("\n".join(part) for part in (*parts, *(block for _, block in blocks)))
    room, kept = _room(parts), []
    not_whole: list[str] = []
    for name, block in blocks:
        if len(block) + 1 <= room:
            kept.append(block)
            room -= len(block) + 1
        else:
            not_whole.append(name)
    names = dict.fromkeys([*not_whole, *left_out])
    more = f"more tables: --full shows all, --only one of {', '.join(names)}"
    width = min(style.width or WIDEST, WIDEST)
    last = [_folded([more], width)] if names else []
    return "\n\n".join("\n".join(part) for part in (*parts, *kept, *last))


def lines_left(results: Iterable[Result], head: Iterable[str], style: Style) -> int:
    """Return how many lines these results leave to those of further analyses."""
    parts, blocks = _laid_out(list(results), head, style)
    room = _room(parts)
    for _, block in blocks:
        room -= len(block) + 1 if len(block) + 1 <= room else 0
    return room


def _laid_out(
    results: Sequence[Result], head: Iterable[str], style: Style
) -> tuple[list[list[str]], list[tuple[str, list[str]]]]:
    """The parts that are always printed, and the tables and notes by the names of their analyses."""
    width = min(style.width or WIDEST, WIDEST)
    head = list(head)
    parts = [_folded(head, width)] if head else []
    told = [result for result in results if result.name == "findings"]
    told = told or [result for result in results if result.findings]
    parts += [_findings(result, style, width) for result in told]
    return parts, [
        (result.name, block) for result in results for block in _blocks(result, style, width)
    ]


def _room(parts: Sequence[Sequence[str]]) -> int:
    """Return how many lines are left for tables."""
    return MOST_LINES - LAST_LINES - sum(len(part) + 1 for part in parts)


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


#: What tells which rank or device is the worst, and whether the highest value is. Of a table's
#: columns the first of these counts.
WORST = {
    "parallel_efficiency": False,
    "idle_share": True,
    "exposed_share_of_elapsed": True,
    "others_waited_ns": True,
    "total_late_ns": True,
    "median_ns": True,
    "outside_mpi_share": False,
    "mean_in_flight": False,
    "tensor_core_share": False,
}
PLACES = ("rank", "device", "node")
#: A row for all devices together, which is none of them.
ALL = "all"
#: More ranks or devices than these are many, and so many of the worst are shown at least.
MANY, LEAST_SHOWN = 8, 3


def worst_first(frame: pl.DataFrame, rows: int) -> tuple[pl.DataFrame, int]:
    """The rows to print of a table, and how many ranks or devices are left out: three rows of all,
    then the worst, together `rows` or a few more. Where ranks or devices are not many, or do not have
    a row each, the table is given back as it is, and nothing is left out.
    """
    place = next((name for name in PLACES if name in frame.columns), None)
    by = next((name for name in WORST if name in frame.columns), None)
    if (
        place is None
        or by is None
        or frame.height <= max(rows, MANY)
        or frame[place].is_duplicated().any()
    ):
        return frame, 0
    of_each = frame.with_columns(pl.col(place).cast(pl.String)).filter(pl.col(place) != ALL)
    numbers = [name for name, kind in frame.schema.items() if kind.is_numeric()]
    parts = []
    for label, of in (("min", "min"), ("mean", "mean"), ("max", "max")):
        values = of_each.select(
            getattr(pl.col(name), of)().round().cast(kind)
            if kind.is_integer()
            else getattr(pl.col(name), of)()
            for name, kind in ((name, frame.schema[name]) for name in numbers)
        )
        parts.append(values.with_columns(pl.lit(f"{label} of {of_each.height:,}").alias(place)))
    worst = of_each.sort(by, descending=WORST[by], nulls_last=True, maintain_order=True)
    shown = worst.head(max(rows - len(parts), LEAST_SHOWN))
    return (
        pl.concat([*parts, shown], how="diagonal").select(frame.columns),
        of_each.height - shown.height,
    )
