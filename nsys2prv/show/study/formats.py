"""Write a study as text and CSV, and as the files of DLB's TALP, one per run, which TALP-Pages
reads. The Python study includes all of these.
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

from nsys2prv._util.files import load_shipped_file, write_complete_files
from nsys2prv._util.text import (
    Column,
    fold_lines,
    format_nanoseconds,
    format_share,
    lay_out_table,
    measure_table,
    shorten,
)
from nsys2prv.figures.result import Finding
from nsys2prv.figures.study_model import (
    BETWEEN_NODES,
    FAIR,
    GOOD,
    OFFLOAD,
    ROW_OF,
    ComparedRuns,
    Metrics,
    Row,
    Run,
)
from nsys2prv.show.page import Frame, make_study_page
from nsys2prv.show.study.markdown import format_markdown
from nsys2prv.show.study.plots import draw_study, make_file
from nsys2prv.show.study.summary import describe_history, summarise_study, write_title
from nsys2prv.show.text import (
    NO_BREAK,
    Style,
    format_findings,
    join_units,
    make_figure_column,
)

#: Maximum number of runs or regions side by side.
MOST_BESIDE = 4
#: Characters of the name of a region.
WIDEST = 16
#: Titles of regions: a few rows are printed, files have all.
DEVICE_REGIONS = "Regions: devices, in the work launched in them"
HOST_REGIONS = "Regions: MPI, while hosts are in them"
#: Cells that spreadsheets would take for formulas begin so; numbers are none.
FORMULA = ("=", "+", "-", "@", "\t", "\r")
#: Contents of TALP files.
TALP: dict[str, Any] = load_shipped_file(__package__, "talp.yaml")


def format_study(study: ComparedRuns, style: Style) -> str:
    """Return a study as text for a terminal."""
    parts = [
        [*style.format_title(write_title(study)), *_wrap([summarise_study(study)], style, 0)],
        _wrap(study.warnings, style),
        _list_runs(study, style),
        _list_efficiencies(study, style),
        _list_regions(study, style),
        _list_history(study, style),
        _list_findings(study, style),
        _wrap(study.missing, style),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _wrap(lines: Iterable[str], style: Style, hang: int = 4) -> list[str]:
    """Return lines of sentences, without repetitions, wrapped to the width."""
    folded = fold_lines([*map(join_units, dict.fromkeys(lines))], style.text_width, hang)
    return [line.replace(NO_BREAK, " ") for line in folded]


def _list_runs(study: ComparedRuns, style: Style) -> list[str]:
    """Return the runs, and the part of each that the values cover."""
    runs = study.runs
    columns = [
        Column("run", [run.title for run in runs]),
        *([Column("GPUs", [f"{run.devices:,}" for run in runs], False)] * study.has_devices),
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
    heads, names, shown = study.name_runs(), Column("", []), list[tuple[Row | None, Sequence]]()
    for row, values in study.list_figures():
        if row.depth == 0 and row.is_efficiency and "." in row.path:
            names.cells.append("")
            shown.append((None, [None] * len(heads)))
        names.cells.append("  " * row.depth + study.find_label(row))
        shown.append((row, values))
    legend = (
        f"  -: low (below {format_share(GOOD, 0)}); !: very low (below {format_share(FAIR, 0)})"
    )
    if any(row and row.path == OFFLOAD for row, _ in shown):
        legend += ". Low host efficiency is expected while hosts wait for GPUs"
    table = _lay_out_figures([names], heads, shown, style)
    return [*table, "", *_wrap([legend], style, 0)]


def _list_regions(study: ComparedRuns, style: Style) -> list[str]:
    names, runs, shown = Column("", []), Column("", []), list[tuple[Row | None, Sequence]]()
    sort, title = ("device", DEVICE_REGIONS) if study.has_devices else ("mpi", HOST_REGIONS)
    for row, name, head, values in study.group_regions():
        if row.path.endswith(BETWEEN_NODES) or not row.path.startswith(("elapsed_ns", sort)):
            continue
        names.cells.append(name and (name if row.path == "elapsed_ns" else row.bare_name))
        runs.cells.append(head)
        shown.append((row, values))
    heads = [shorten(head, WIDEST) for head in study.region_heads]
    lines = _lay_out_figures([names, runs], heads, shown, style)
    return [*style.format_title(title), *lines] if lines else []


def _lay_out_figures(
    names: Sequence[Column],
    heads: Sequence[str],
    shown: Sequence[tuple[Row | None, Sequence]],
    style: Style,
) -> list[str]:
    """Return the lines of a table, with as many columns side by side as fit. shown: (row, value per
    column). Columns without any values are only in the files.
    """
    columns = [
        (head, [(row, values[at]) for row, values in shown]) for at, head in enumerate(heads)
    ]
    # A number stays next to its noun.
    rest = [
        make_figure_column(
            head.replace(" ", NO_BREAK).replace(f",{NO_BREAK}", ", "), figures, style
        )
        for head, figures in columns
        if any(value is not None for _, value in figures)
    ]
    lines: list[str] = []
    while rest:
        count = min(len(rest), MOST_BESIDE if style.width else len(rest))
        while count > 1 and measure_table([*names, *rest[:count]]) > (style.width or count * 1000):
            count -= 1
        lines += [*([""] if lines else []), *lay_out_table([*names, *rest[:count]], style.width)]
        rest = rest[count:]
    return [line.replace(NO_BREAK, " ") for line in lines]


def _list_history(study: ComparedRuns, style: Style) -> list[str]:
    """Return the lines about the time of an iteration over earlier studies."""
    rows = study.list_history("elapsed_ns")
    if not rows:
        return []
    columns = [
        Column("study", [*(past.name for past in study.history), "this one"]),
        Column("begin (UTC)", [*(past.begins_utc or "-" for past in study.history), ""]),
        *(
            Column(head, ["-" if one is None else format_nanoseconds(one) for one in values], False)
            for head, values in rows
        ),
    ]
    title = style.format_title("Time of an iteration over the studies")
    return [
        *title,
        *_wrap(filter(None, [describe_history(study)]), style, 0),
        *lay_out_table(columns, style.width),
    ]


def _list_findings(study: ComparedRuns, style: Style) -> list[str]:
    """Return the lines about the findings of the largest run."""
    run, head = study.runs[-1], study.name_runs()[-1]
    if not study.findings:
        return []
    # A run of the JSON of an earlier study may be named after it too.
    path = shlex.quote(run.name.rpartition(".json: ")[2])
    short = [
        replace(one, evidence=_compare_shares(study, one), moments=(), views=(), where="")
        for one in study.findings
    ]
    return [
        *style.format_title(f"Recommendations for {shorten(head, 2 * WIDEST)}"),
        *format_findings(short, style.text_width, span=f"the run's {run.focus}"),
        *_wrap([f"  `nsys2prv report {path}` shows the evidence"], style),
    ]


def _compare_shares(study: ComparedRuns, finding: Finding) -> tuple[str, ...]:
    """Return a sentence about the savings from a finding in each run; empty for a single run."""
    shares = study.list_shares(finding)
    if sum(one is not None for one in shares) < 2:
        return ()
    each = zip(study.name_runs(False), shares, strict=True)
    said = [f"{head} {'-' if share is None else format_share(share)}" for head, share in each]
    return (f"Savings by run: {', '.join(said)}",)


def format_csv(study: ComparedRuns) -> str:
    """Return all values of a study as CSV, with a line per value and a column per run."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["figure", *(_write_text(run.title) for run in study.runs)])
    for key in ("devices", "nodes", "ranks"):
        lines.writerow([key, *(getattr(run, key) for run in study.runs)])
    for row, values in study.list_figures():
        lines.writerow([row.path, *map(_write_number, values)])
    by_run = [
        {row.path: values for row, values in figures} for _, figures in study.list_region_figures()
    ]
    for number, name in enumerate(study.regions):
        for path in ROW_OF:
            of_runs = [values[path][number] if path in values else None for values in by_run]
            if any(shown := [_write_number(one) for one in of_runs]):
                lines.writerow([_write_text(f"region {name}: {path}"), *shown])
    return text.getvalue()


def _write_text(text: str) -> str:
    """Escape the text of a cell, so that no spreadsheet takes it for a formula."""
    return f"'{text}" if text.startswith(FORMULA) else text


def _write_number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def name_file(number: int, run: Run) -> str:
    """Return a name for the file of a run, without ending. number: place of the run, from 1."""
    label = re.sub(r"[^\w.-]+", "_", run.title).strip("._")
    return f"{number}_{label}"


def write_talp_files(study: ComparedRuns, folder: Path) -> list[Path]:
    """Write a file for each run in the format of TALP-Pages to a folder; return the paths of the
    files.
    """
    files = make_talp_files(study, folder)
    write_complete_files(files)
    return list(files)


def make_talp_files(study: ComparedRuns, folder: Path) -> dict[Path, str]:
    """Make a file for each run in the format of TALP-Pages (a tool that shows efficiencies). Return
    path -> text. The files contain only regions that all runs have, because TALP-Pages stops if one
    is missing.
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
    """Return the TALP values of a region. elapsed: its time (ns)."""
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


class Study(ComparedRuns):
    """Several runs of one program, from :func:`nsys2prv.study`. `runs` are sorted by devices, nodes
    and ranks.
    """

    def __repr__(self) -> str:
        runs = ", ".join(run.label or run.name for run in self.runs)
        return f"<Study of {runs}: {self.scaling.used} scaling; .table, .region_table, .markdown()>"

    def markdown(self) -> str:
        """Return the text and tables of an assessment in Markdown."""
        return format_markdown(self)

    def pictures(self) -> dict[str, str]:
        """Return name -> plot as SVG text."""
        return {name: make_file(drawn) for name, drawn in draw_study(self).items()}

    def to_talp(self, folder: str | Path) -> list[Path]:
        """Write a file for each run in the format of TALP-Pages to this folder; return their paths."""
        return write_talp_files(self, Path(folder))

    def _repr_html_(self) -> str:
        return Frame(make_study_page(self))._repr_html_()
