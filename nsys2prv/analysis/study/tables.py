"""Lay out the figures of a study as tables, for terminals, Markdown and CSV. A study is given as the
data that its JSON file holds (`Study.to_dict`).
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.text import escape_to_one_line, format_count, list_some
from nsys2prv.analysis.result import OUTSIDE, Finding
from nsys2prv.analysis.study.model import ROWS, Row, format_efficiency, list_known_rows
from nsys2prv.analysis.text import format_nanoseconds

Study = Mapping[str, Any]
#: What Markdown indents a factor by.
INDENT = "&nbsp;" * 4
#: What the first row is called of regions, of those of runs without GPUs, and of runs without
#: iterations.
GPU_TIME, HOST_TIME, ELAPSED_TIME = (
    "GPU time of an iteration",
    "Time of an iteration",
    "Elapsed time",
)


class Figures(Struct, frozen=True):
    """Figures side by side."""

    #: What the columns are: runs, or regions.
    heads: list[str]
    #: A figure for each column.
    rows: list[tuple[Row, list[float | None]]]


def count_units(run: Mapping[str, Any]) -> int:
    """Return what scaling is relative to: GPUs, or ranks where there are none."""
    return run["devices"] or run["ranks"]


def format_units(run: Mapping[str, Any]) -> str:
    """Return their number for people."""
    return format_count(count_units(run), "GPU" if run["devices"] else "rank")


def name_runs(study: Study, with_nodes: bool = True) -> list[str]:
    """Return what heads the column of each run: `8 GPUs, 2 nodes`, or its label where that was
    given, or where several runs have as many.
    """
    runs = study["runs"]
    sizes = [format_units(run) for run in runs]
    if len(set(sizes)) < len(sizes) or (with_nodes and any(run["nodes"] > 1 for run in runs)):
        nodes = [format_count(run["nodes"], "node") for run in runs]
        sizes = [f"{size}, {count}" for size, count in zip(sizes, nodes, strict=True)]
    if all(map(_is_labelled_by_path, runs)) and len(set(sizes)) == len(sizes):
        return sizes
    return list(map(find_name, runs))


def find_name(run: Mapping[str, Any]) -> str:
    """Return the label of a run, or its path."""
    return escape_to_one_line(str(run.get("label") or run["name"]))


def name_file(number: int, run: Mapping[str, Any]) -> str:
    """Return the name of a file of a run, without its ending. number: place of the run, from 1."""
    label = re.sub(r"[^\w.-]+", "_", find_name(run)).strip("._")
    return f"{number}_{label}"


def find_reference(study: Study) -> Mapping[str, Any]:
    """Return the run that others are compared with."""
    return next(run for run in study["runs"] if run["name"] == study["reference"])


def name_focus(run: Mapping[str, Any]) -> str:
    """Return what findings of a run shorten."""
    return "steady state" if run["interval"]["iterations"] else "time"


def measure_focus(run: Mapping[str, Any]) -> float:
    """Return the time that the figures of a run are of (ns)."""
    return run["metrics"]["elapsed_ns"] * max(1, run["interval"]["iterations"])


def describe_comparison(study: Study) -> str:
    """Return what the runs are compared with, and how their work grows."""
    scaling, runs = study["scaling"], study["runs"]
    reference = find_name(find_reference(study))
    if len(set(map(count_units, runs))) == 1:
        return f"reference: {reference}"
    why = f" ({scaling['why']})" if scaling["why"] else ""
    return f"{scaling['used']} scaling{why}; reference: {reference}"


def list_findings(study: Study) -> list[Finding]:
    """Return the findings of the largest run that are about the focus of analysis."""
    run = study["runs"][-1]
    found = [Finding.from_dict(one) for one in run.get("findings", ())]
    return [one for one in found if not (run["interval"]["iterations"] and one.kind in OUTSIDE)]


def list_missing(study: Study) -> list[str]:
    """Return which figures are not known and why."""
    return name_runs_of_lines(study, lambda run: run.get("missing", ()))


def name_runs_of_lines(
    study: Study, list_lines: Callable[[Mapping[str, Any]], Sequence[str]]
) -> list[str]:
    """Return the lines of all runs, each once; one that not all runs have begins with its runs."""
    runs_by_line: dict[str, list[str]] = {}
    for run in study["runs"]:
        for line in list_lines(run):
            runs_by_line.setdefault(line, []).append(find_name(run))
    every = len(study["runs"])
    return [
        line if len(runs) == every else f"{list_some(runs)}: {line}"
        for line, runs in runs_by_line.items()
    ]


def _is_labelled_by_path(run: Mapping[str, Any]) -> bool:
    path = Path(run["name"]).absolute()
    paths = (path, path.with_suffix(""), path.parent)
    return any(one.as_posix().endswith(f"/{find_name(run)}") for one in paths)


def list_run_figures(study: Study) -> Figures:
    """Return the figures of the runs. One without iterations has no time beside those that have."""
    counts = [run["interval"]["iterations"] for run in study["runs"]]
    metrics = [
        run["metrics"] if count or not any(counts) else {**run["metrics"], "elapsed_ns": None}
        for run, count in zip(study["runs"], counts, strict=True)
    ]
    rows, above = [], []
    for row, values in list_known_rows(metrics):
        # What it is a factor of may not be known.
        above = [depth for depth in above if depth < row.depth]
        rows.append((replace(row, depth=len(above)), values))
        above += [row.depth] if "." in row.path else []
    return Figures(name_runs(study), rows)


def list_region_figures(study: Study) -> list[tuple[str, Figures]]:
    """Return the figures of the regions side by side, for each run, with what it is called. Times
    are those of an iteration.
    """
    names = study.get("regions") or ()
    heads = list(map(escape_to_one_line, names))
    return [
        (head, Figures(heads, list_known_rows([_make_figures(run, name) for name in names])))
        for head, run in zip(name_runs(study, False), study["runs"], strict=True)
        if names
    ]


def _make_figures(run: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    region = run["regions"].get(name) or {}
    elapsed = (region if run["devices"] else region.get("host") or {}).get("elapsed_ns")
    if elapsed is None:
        return region
    return {**region, "elapsed_ns": elapsed / max(1, run["interval"]["iterations"])}


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
    """Return a figure with the sign of its rating, or a blank, behind it."""
    return format_efficiency(value) if row.is_efficiency else f"{format_figure(row, value)} "


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
        for row, name, head, values in group_regions(study, regions):
            shown = (format_figure(row, one) for one in values)
            lines.append(_write_markdown_row(name, head, *shown))
    return lines


def has_devices(study: Study) -> bool:
    """Return whether any run has GPUs with work."""
    return any(run["devices"] for run in study["runs"])


def group_regions(
    study: Study, regions: Sequence[tuple[str, Figures]]
) -> list[tuple[Row, str, str, list[float | None]]]:
    """Return the figures of regions by row, then by run that has any: row, its name (of the first of
    its runs), run, a figure for each region.
    """
    lines = []
    for row in ROWS:
        name = row.name
        if row.path == "elapsed_ns":
            name = GPU_TIME if has_devices(study) else HOST_TIME
        for head, figures in regions:
            values = dict(figures.rows).get(row)
            if values is not None:
                lines.append((row, name, head, values))
                name = ""
    return lines


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
    lines.writerow(["figure", *map(find_name, runs)])
    for key in ("devices", "nodes", "ranks"):
        lines.writerow([key, *(run[key] for run in runs)])
    for row, values in list_run_figures(study).rows:
        lines.writerow([row.path, *map(_write_number, values)])
    by_run = [figures for _, figures in list_region_figures(study)]
    for number, name in enumerate(study.get("regions") or ()):
        for row in ROWS:
            of_runs = [dict(figures.rows).get(row) for figures in by_run]
            shown = [_write_number(one and one[number]) for one in of_runs]
            if any(shown):
                lines.writerow([f"region {name}: {row.path}", *shown])
    return text.getvalue()


def _write_number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
