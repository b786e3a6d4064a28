"""Results as text for a terminal, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from nsys2prv._util.errors import Nsys2prvError
from nsys2prv.analysis.findings.finding import Finding
from nsys2prv.analysis.result import Result, Table

#: Rows of a table that are printed; JSON has all.
MOST_ROWS = 20
#: Says what a JSON file is; another number when its tables mean something else.
FORMAT = "nsys2prv report 1"
#: A single row of more columns is printed upright.
UPRIGHT = 3
#: Characters of the longest text column.
WIDEST = 60
#: Columns that are printed with --full alone.
COLUMNS_IN_DETAIL = ("communicator_hash",)
#: Tables that are maps or repeat others in detail: in JSON and DataFrames, not in the terminal.
IN_DETAIL = frozenset(
    {
        "map",
        "use",
        "by_rank",
        "tree",
        "each",
        "iterations_of_devices",
        "gaps_of_devices",
        "durations",
        "classes_by_iteration",
    }
)


def table_lines(frame: pl.DataFrame, rows: int = MOST_ROWS, width: int | None = None) -> list[str]:
    """A frame as aligned lines: durations in readable units, fractions in percent. width: leave out
    the last columns that are too much.
    """
    if frame.height == 1 and frame.width > UPRIGHT:
        return _upright(frame)
    shown = frame.head(rows)
    columns = []
    for name in frame.columns:
        cells = [cell(name, value) for value in shown[name].to_list()]
        head = heading(name)
        wide = max(map(len, (head, *cells)))
        left = frame.schema[name] in (pl.String, pl.Categorical) or isinstance(
            frame.schema[name], pl.Enum
        )
        columns.append(
            [f"{text:<{wide}}" if left else f"{text:>{wide}}" for text in (head, *cells)]
        )
    kept = _fitting([len(column[0]) for column in columns], width)
    lines = ["  " + "  ".join(line).rstrip() for line in zip(*columns[:kept], strict=True)]
    if kept < len(columns):
        lines.append(
            f"  ... and {', '.join(heading(name) for name in frame.columns[kept:])}"[:width]
        )
    if frame.height > rows:
        lines.append(f"  ... {frame.height - rows:,} more")
    return lines


def _fitting(widths: list[int], width: int | None) -> int:
    """Return how many columns fit; the first always does."""
    used, kept = 0, 0
    for one in widths:
        used += one + 2
        if width is not None and used > width and kept:
            break
        kept += 1
    return kept


def _upright(frame: pl.DataFrame) -> list[str]:
    """A frame of one row, a line for each column."""
    cells = {heading(name): cell(name, frame[name][0]) for name in frame.columns}
    name_width, cell_width = max(map(len, cells)), max(map(len, cells.values()))
    return [f"  {name:<{name_width}}  {text:>{cell_width}}" for name, text in cells.items()]


def heading(name: str) -> str:
    """A column's name for people: the unit is in the cells."""
    for ending in ("_ns", "_gb_s"):
        name = name.removesuffix(ending)
    return name.replace("_", " ")


def cell(name: str, value: object) -> str:
    """A value of a column for people."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value if len(value) <= WIDEST else f"{value[: WIDEST - 1]}…"
    if name.endswith("_ns"):
        return duration(float(value))
    if name.endswith("bytes"):
        return scaled(float(value), 1000, ("B", "kB", "MB", "GB", "TB"))
    if name.endswith("_gb_s"):
        return f"{value:.1f} GB/s"
    if (
        is_share(name)
        or name.endswith(("efficiency", "scalability", "_active"))
        or name == "imbalance"
    ):
        return f"{100 * float(value):.2f} %"
    if isinstance(value, int):
        return f"{value:,}"
    number = float(str(value))
    return f"{number:,.2f}" if abs(number) >= 100 else f"{number:.4g}"


def is_share(name: str) -> bool:
    """Return whether a column holds shares: fractions of 1, shown in percent."""
    return name.endswith("share") or "share_of_" in name


def duration(value: float) -> str:
    """Nanoseconds for people."""
    return scaled(value, 1000, ("ns", "us", "ms", "s"))


def scaled(value: float, step: int, units: tuple[str, ...]) -> str:
    place = 0
    while abs(value) >= step and place < len(units) - 1:
        value, place = value / step, place + 1
    unit = units[place]
    return f"{value:.0f} {unit}" if unit == units[0] else f"{value:.2f} {unit}"


def as_json(results: Mapping[str, Result], job: Mapping[str, object]) -> str:
    """Everything, for scripts: tables as columns. job: what the results are of."""
    analyses = {
        name: {
            "title": result.title,
            "notes": result.notes,
            "missing": result.missing,
            "tables": {
                key: {
                    "title": table.title,
                    "about": table.about,
                    "columns": table.frame.to_dict(as_series=False),
                }
                for key, table in result.tables.items()
            },
        }
        for name, result in results.items()
    }
    found = [finding.as_dict() for result in results.values() for finding in result.findings]
    return json.dumps(
        {"format": FORMAT, "job": dict(job), "findings": found, "analyses": analyses},
        allow_nan=False,
    )


def from_json(path: Path) -> tuple[dict[str, object], dict[str, Result]]:
    """Read what :func:`as_json` wrote: the job and its results. Raises Nsys2prvError for any other
    file.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["format"] != FORMAT:
            raise ValueError
        results = {name: _result(name, one) for name, one in found["analyses"].items()}
        if "findings" in results:
            results["findings"].findings.extend(Finding.of(one) for one in found["findings"])
        return found["job"], results
    except OSError as error:
        raise Nsys2prvError(f"{path}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError):
        raise Nsys2prvError(f"{path}: not written by nsys2prv report --json") from None


def _result(name: str, found: Mapping[str, Any]) -> Result:
    tables = {
        key: Table(table["title"], pl.DataFrame(table["columns"], strict=False), table["about"])
        for key, table in found["tables"].items()
    }
    return Result(name, found["title"], tables, found["notes"], found["missing"])
