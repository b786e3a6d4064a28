"""Lay out the figures of a study as tables, for terminals, Markdown and CSV. A study is given as the
data that its JSON file holds (`Study.to_dict`).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from nsys2prv._util.text import escape_to_one_line, format_count
from nsys2prv.analysis.study.rows import SIGNS, Row, list_known_rows, rate_efficiency
from nsys2prv.analysis.text import format_nanoseconds

Study = Mapping[str, Any]
#: What Markdown indents a factor by.
INDENT = "&nbsp;" * 4
#: What the first row is called of regions, and of runs without iterations.
GPU_TIME, ELAPSED_TIME = "GPU time of an iteration", "Elapsed time"


class Figures(Struct, frozen=True):
    """Figures side by side."""

    #: What the columns are: runs, or regions.
    heads: list[str]
    #: A figure for each column.
    rows: list[tuple[Row, list[float | None]]]


def name_runs(study: Study, with_nodes: bool = True) -> list[str]:
    """Return what heads the column of each run: `8 GPUs, 2 nodes`, or its label where that was
    given, or where several runs have as many.
    """
    runs = study["runs"]
    sizes = [format_count(run["devices"], "GPU") for run in runs]
    if len(set(sizes)) < len(sizes) or (with_nodes and any(run["nodes"] > 1 for run in runs)):
        nodes = [format_count(run["nodes"], "node") for run in runs]
        sizes = [f"{size}, {count}" for size, count in zip(sizes, nodes, strict=True)]
    labels = [str(run.get("label") or run["name"]) for run in runs]
    folders = [Path(run["name"]).name for run in runs]
    if labels == folders and len(set(sizes)) == len(sizes):
        return sizes
    names = labels if len(set(labels)) == len(labels) else [str(run["name"]) for run in runs]
    return [escape_to_one_line(name) for name in names]


def list_run_figures(study: Study) -> Figures:
    """Return the figures of the runs. One without iterations has no time beside those that have."""
    counts = [run["interval"]["iterations"] for run in study["runs"]]
    metrics = [
        run["metrics"] if count or not any(counts) else {**run["metrics"], "elapsed_ns": None}
        for run, count in zip(study["runs"], counts, strict=True)
    ]
    return Figures(name_runs(study), list_known_rows(metrics))


def list_region_figures(study: Study) -> list[tuple[str, Figures]]:
    """Return the figures of the regions side by side, for each run, with what it is called. Times
    are those of an iteration.
    """
    names = study.get("regions") or ()
    return [
        (head, Figures(list(names), list_known_rows([_make_figures(run, name) for name in names])))
        for head, run in zip(name_runs(study, False), study["runs"], strict=True)
        if names
    ]


def _make_figures(run: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    region = run["regions"].get(name) or {}
    if region.get("elapsed_ns") is None:
        return region
    return {**region, "elapsed_ns": region["elapsed_ns"] / max(1, run["interval"]["iterations"])}


def find_label(study: Study, row: Row) -> str:
    """Return the name of a row below what it is a factor of."""
    if row.path == "elapsed_ns" and not any(run["interval"]["iterations"] for run in study["runs"]):
        return ELAPSED_TIME
    return row.label


def format_figure(row: Row, value: float | None) -> str:
    """Return a figure for people."""
    if value is None:
        return "-"
    if row.is_efficiency:
        return f"{100 * value:.1f} %"
    return f"{value:.2f}" if row.path == "speedup" else format_nanoseconds(value)


def format_signed(row: Row, value: float | None) -> str:
    """Return a figure with the sign of its rating, or as many blanks, behind it."""
    sign = SIGNS[rate_efficiency(value)] if row.is_efficiency and value is not None else ""
    return f"{format_figure(row, value)}{sign or ' '}"


def format_markdown_tables(study: Study) -> list[str]:
    """Return the tables of a study as lines of Markdown."""
    figures = list_run_figures(study)
    lines = _write_markdown_head(["", *figures.heads], 1)
    for row, values in figures.rows:
        name = find_label(study, row)
        name = f"{INDENT * row.depth}{name}" if row.depth else f"**{name}**"
        lines.append(_write_markdown_row(name, *(format_figure(row, one) for one in values)))
    if regions := list_region_figures(study):
        lines += ["", *_write_markdown_head(["Regions", "", *regions[0][1].heads], 2)]
        for row, name, head, values in group_regions(regions):
            shown = (format_figure(row, one) for one in values)
            lines.append(_write_markdown_row(name, head, *shown))
    return lines


def group_regions(
    regions: Sequence[tuple[str, Figures]],
) -> list[tuple[Row, str, str, list[float | None]]]:
    """Return the figures of regions by row, then by run: row, its name (of the first of its runs),
    run, a figure for each region.
    """
    known = dict.fromkeys(row for _, figures in regions for row, _ in figures.rows)
    return [
        (row, "" if number else GPU_TIME if row.path == "elapsed_ns" else row.name, head, values)
        for row in known
        for number, (head, figures) in enumerate(regions)
        for values in [dict(figures.rows).get(row, [None] * len(figures.heads))]
    ]


def _write_markdown_head(heads: Sequence[str], texts: int) -> list[str]:
    return [
        _write_markdown_row(*heads),
        "|" + "---|" * texts + "--:|" * (len(heads) - texts),
    ]


def _write_markdown_row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def format_csv(study: Study) -> str:
    """Return all figures of a study as CSV: a line for each, a column for each run."""
    runs = study["runs"]
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["figure", *(run.get("label") or run["name"] for run in runs)])
    for key in ("devices", "nodes", "ranks"):
        lines.writerow([key, *(run[key] for run in runs)])
    for row, values in list_run_figures(study).rows:
        lines.writerow([row.path, *map(_write_number, values)])
    by_run = [figures for _, figures in list_region_figures(study)]
    for number, name in enumerate(study.get("regions") or ()):
        for row in dict.fromkeys(row for figures in by_run for row, _ in figures.rows):
            values = (dict(figures.rows).get(row) for figures in by_run)
            shown = [_write_number(one and one[number]) for one in values]
            lines.writerow([f"region {name}: {row.path}", *shown])
    return text.getvalue()


def _write_number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
