"""Write a study as text, Markdown and CSV, and as the files that DLB's TALP writes, one for each run,
which TALP-Pages reads.
"""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from nsys2prv._util.files import load_shipped_file, load_templates, write_complete_files
from nsys2prv._util.text import (
    Column,
    escape_to_one_line,
    fold_lines,
    format_nanoseconds,
    lay_out_table,
    measure_table,
    shorten,
)
from nsys2prv.figures.study_model import (
    BETWEEN_NODES,
    FAIR,
    GOOD,
    ROW_OF,
    ComparedRuns,
    Metrics,
    Row,
    Run,
    format_efficiency,
)
from nsys2prv.show.study.summary import format_figure, summarise_study, write_title
from nsys2prv.show.text import PLAIN, Style, format_findings, use_micro_sign

#: Runs or regions beside each other.
MOST_BESIDE = 4
#: Characters of the name of a region.
WIDEST = 16
#: A blank at which no line is broken.
NO_BREAK = "\u00a0"
#: Sign behind an efficiency -> colour.
COLOURS = {"-": "\x1b[33m", "!": "\x1b[31m"}
#: Titles of regions: a few rows are printed, files have all.
DEVICE_REGIONS = "Regions: devices, in the work launched in them"
HOST_REGIONS = "Regions: MPI, while hosts are in them"
#: What Markdown indents a factor by, and the characters that mean something to it.
INDENT = "&nbsp;" * 4
#: An underscore within a word means nothing.
_SPECIAL = re.compile(r"[\\`*\[\]<>|~&]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_ENTITIES = {"<": "&lt;", ">": "&gt;", "&": "&amp;"}
#: Cells that spreadsheets would take for formulas begin so; numbers are none.
FORMULA = ("=", "+", "-", "@", "\t", "\r")
#: What files of TALP have.
TALP: dict[str, Any] = load_shipped_file(__package__, "talp.yaml")


def format_study(study: ComparedRuns, style: Style) -> str:
    """Return a study for people."""
    parts = [
        [*style.format_title(write_title(study)), *_wrap([summarise_study(study)], style, 0)],
        _wrap(study.warnings, style),
        _list_runs(study, style),
        _colour(_list_efficiencies(study, style), style),
        _colour(_list_regions(study, style), style),
        _list_findings(study, style),
        _wrap(study.missing, style),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _wrap(lines: Iterable[str], style: Style, hang: int = 4) -> list[str]:
    """Return lines of sentences; a number and its unit stay together."""
    joined = [re.sub(r"(?<=\d) (?=[%×a-z])", NO_BREAK, line) for line in dict.fromkeys(lines)]
    folded = fold_lines(joined, style.text_width, hang)
    return [line.replace(NO_BREAK, " ") for line in folded]


def _list_runs(study: ComparedRuns, style: Style) -> list[str]:
    """Return the runs, and the part of each that its figures are of."""
    runs = study.runs
    columns = [
        Column("run", [run.title for run in runs]),
        Column("GPUs", [f"{run.devices:,}" for run in runs], False),
        Column("nodes", [f"{run.nodes:,}" for run in runs], False),
        Column("ranks", [f"{run.ranks:,}" for run in runs], False),
        Column("focus", [format_nanoseconds(run.focus_ns) for run in runs], False),
    ]
    facts = {
        "GPUs": study.list_lines(lambda run: [", ".join(run.gpu_models)] * bool(run.gpu_models)),
        "focus of analysis": study.list_lines(lambda run: [run.interval.what]),
        "host threads": study.list_lines(lambda run: [run.threads] * bool(run.threads)),
    }
    lines = [f"{name}: {'; '.join(shared)}" for name, shared in facts.items() if shared]
    return [*lay_out_table(columns, style.width), *_wrap([study.comparison, *lines], style)]


def _list_efficiencies(study: ComparedRuns, style: Style) -> list[str]:
    figures = study.list_figures()
    first = Column("", [])
    columns = [Column(head, [], False) for head in study.name_runs()]
    for row, values in figures:
        if row.depth == 0 and row.is_efficiency and "." in row.path:
            for column in (first, *columns):
                column.cells.append("")
        first.cells.append("  " * row.depth + study.find_label(row))
        for column, value in zip(columns, values, strict=True):
            column.cells.append(format_signed(row, value))
    legend = f"  -: below {100 * GOOD:.0f} %, worth a look (POP); !: below {100 * FAIR:.0f} %"
    if any(row.path.startswith("host") for row, _ in figures):
        legend += "; hosts: no fault where they wait for GPUs"
    return [*_lay_out_blocks([first], columns, style), "", *_wrap([legend], style, 0)]


def _list_regions(study: ComparedRuns, style: Style) -> list[str]:
    names, runs = Column("", []), Column("", [])
    columns = [Column(shorten(head, WIDEST), [], False) for head in study.region_heads]
    shown, title = ("device", DEVICE_REGIONS) if study.has_devices else ("mpi", HOST_REGIONS)
    for row, name, head, values in study.group_regions():
        if row.path.endswith(BETWEEN_NODES) or not row.path.startswith(("elapsed_ns", shown)):
            continue
        names.cells.append(name and (name if row.path == "elapsed_ns" else row.bare_name))
        runs.cells.append(head)
        for column, value in zip(columns, values, strict=True):
            column.cells.append(format_signed(row, value))
    # Those that launch no work are in the files alone.
    columns = [one for one in columns if {cell.strip() for cell in one.cells} - {"-"}]
    lines = _lay_out_blocks([names, runs], columns, style)
    return [*style.format_title(title), *lines] if lines else []


def _lay_out_blocks(names: Sequence[Column], columns: Sequence[Column], style: Style) -> list[str]:
    """Return the lines of a table, with as many columns beside each other as fit."""
    lines: list[str] = []
    # A number stays beside its noun.
    rest = [
        Column(one.head.replace(" ", NO_BREAK).replace(f",{NO_BREAK}", ", "), one.cells, False)
        for one in columns
    ]
    while rest:
        count = min(len(rest), MOST_BESIDE if style.width else len(rest))
        while count > 1 and measure_table([*names, *rest[:count]]) > (style.width or count * 1000):
            count -= 1
        lines += [*([""] if lines else []), *lay_out_table([*names, *rest[:count]], style.width)]
        rest = rest[count:]
    return [line.replace(NO_BREAK, " ") for line in lines]


def _list_findings(study: ComparedRuns, style: Style) -> list[str]:
    """Return the lines on the findings of the largest run."""
    run, head = study.runs[-1], study.name_runs()[-1]
    if not study.findings:
        return []
    # A run of the JSON of an earlier study may be named after it too.
    path = shlex.quote(run.name.rpartition(".json: ")[2])
    short = [replace(one, evidence=(), moments=(), views=(), where="") for one in study.findings]
    return [
        *style.format_title(f"What to do: findings of {shorten(head, 2 * WIDEST)}"),
        *_wrap([f"  %: how much shorter its {run.focus} would be without this cause"], style),
        *format_findings(short, style.text_width),
        *_wrap([f"  `nsys2prv report {path}` has what was measured"], style),
    ]


def _colour(lines: Sequence[str], style: Style) -> list[str]:
    if not style.colours:
        return list(lines)
    return [
        re.sub(r"[\d.]+ %([-!])", lambda one: f"{COLOURS[one[1]]}{one[0]}{PLAIN}", line)
        for line in lines
    ]


def format_signed(row: Row, value: float | None) -> str:
    """Return a figure with the sign of its rating, or a blank, behind it."""
    return format_efficiency(value) if row.is_efficiency else f"{format_figure(row, value)} "


def format_markdown(study: ComparedRuns) -> str:
    """Return a study in Markdown, as an assessment has it."""
    environment = load_templates(__package__, keep_trailing_newline=True)
    environment.filters |= {
        "row": lambda cells: f"| {' | '.join(cells)} |",
        "md": escape_markdown,
        "figure": lambda value, row: format_figure(row, value),
    }
    template, title = environment.get_template("study.md"), write_title(study)
    summary = summarise_study(study)
    return use_micro_sign(template.render(study=study, title=title, summary=summary, indent=INDENT))


def escape_markdown(text: str) -> str:
    """Return a text as Markdown that shows the same, in a cell of a table too."""
    one_line = escape_to_one_line(text)
    return _SPECIAL.sub(lambda found: _ENTITIES.get(found[0], f"\\{found[0]}"), one_line)


def format_csv(study: ComparedRuns) -> str:
    """Return all figures of a study as CSV: a line for each, a column for each run."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["figure", *(_write_text(run.title) for run in study.runs)])
    for key in ("devices", "nodes", "ranks"):
        lines.writerow([key, *(getattr(run, key) for run in study.runs)])
    for row, values in study.list_figures():
        lines.writerow([row.path, *map(_write_number, values)])
    by_run = [dict(figures) for _, figures in study.list_region_figures()]
    for number, name in enumerate(study.regions):
        for row in ROW_OF.values():
            of_runs = [rows[row][number] if row in rows else None for rows in by_run]
            if any(shown := [_write_number(one) for one in of_runs]):
                lines.writerow([_write_text(f"region {name}: {row.path}"), *shown])
    return text.getvalue()


def _write_text(text: str) -> str:
    """Return the text of a cell that no spreadsheet takes for a formula."""
    return f"'{text}" if text.startswith(FORMULA) else text


def _write_number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def name_file(number: int, run: Run) -> str:
    """Return the name of a file of a run, without its ending. number: place of the run, from 1."""
    label = re.sub(r"[^\w.-]+", "_", run.title).strip("._")
    return f"{number}_{label}"


def write_talp_files(study: ComparedRuns, folder: Path) -> list[Path]:
    """Write the files of :func:`make_talp_files`; return their paths."""
    files = make_talp_files(study, folder)
    write_complete_files(files)
    return list(files)


def make_talp_files(study: ComparedRuns, folder: Path) -> dict[Path, str]:
    """Return path and text of a file for each run below a folder, which TALP-Pages is given. They
    have the regions that all runs have, as it stops where one lacks some.
    """
    names = [name for name in study.regions if all(run.regions.get(name) for run in study.runs)]
    files: dict[Path, str] = {}
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    for number, run in enumerate(study.runs, 1):
        regions = {"Global": (run.metrics, run.focus_ns)}
        regions |= {name: (run.regions[name], run.regions[name]["elapsed_ns"]) for name in names}
        content = {
            "dlbVersion": TALP["version"],
            "timestamp": now,
            "resources": {**_count(run), "numAvailableCpus": run.ranks},
            "Application": {name: _describe(run, *figures) for name, figures in regions.items()},
        }
        path = folder / study.scaling.used / f"{name_file(number, run)}.json"
        files[path] = json.dumps(content, indent=1)
    return files


def _count(run: Run) -> dict[str, int]:
    return {name: getattr(run, key) for name, key in TALP["counts"].items()}


def _describe(run: Run, metrics: Metrics, elapsed: float) -> dict[str, Any]:
    """Return what TALP says of a region. elapsed: its time (ns)."""
    known = {name: ROW_OF[path].find_value(metrics) for name, path in TALP["efficiencies"].items()}
    shares = {name: 1.0 if value is None else value for name, value in known.items()}
    outside = shares["mpiParallelEfficiency"] * run.ranks * elapsed
    useful = shares["parallelEfficiency"] * run.ranks * elapsed
    least_mpi = elapsed * (1 - shares["mpiCommunicationEfficiency"])
    most_active = shares["gpuOrchestrationEfficiency"] * elapsed
    return {
        **_count(run),
        "avgCpus": float(run.ranks),
        **dict.fromkeys(TALP["not_counted"], 0),
        "numMeasurements": max(1, run.interval.iterations),
        "elapsedTime": round(elapsed),
        "usefulTime": round(useful),
        "mpiTime": round(run.ranks * elapsed - outside),
        "gpuRuntimeTime": round(outside - useful),
        "minMpiNormdProc": least_mpi,
        "minMpiNormdNode": least_mpi,
        "gpuUsefulTime": round(shares["gpuParallelEfficiency"] * run.devices * elapsed),
        "maxGpuUsefulTime": round(shares["gpuCommunicationEfficiency"] * most_active),
        "maxGpuActiveTime": round(most_active),
        **shares,
    }
