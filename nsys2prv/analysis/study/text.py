"""Write a study as text: its sentences, its runs, their efficiencies side by side, and regions."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from nsys2prv._util.text import Column, fold_lines, lay_out_table, measure_table, shorten
from nsys2prv.analysis.study.model import BETWEEN_NODES, FAIR, GOOD
from nsys2prv.analysis.study.summary import summarise_study, write_title
from nsys2prv.analysis.study.tables import (
    Study,
    describe_comparison,
    find_label,
    find_name,
    format_markdown_tables,
    format_signed,
    group_regions,
    has_devices,
    list_findings,
    list_missing,
    list_region_figures,
    list_run_figures,
    measure_focus,
    name_focus,
    name_runs,
    name_runs_of_lines,
)
from nsys2prv.analysis.text import PLAIN, Style, format_findings, format_nanoseconds, write_micro

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


def format_study(study: Study, style: Style) -> str:
    """Return a study for people."""
    parts = [
        [*style.format_title(write_title(study)), *_wrap([summarise_study(study)], style, 0)],
        _wrap(study["warnings"], style),
        [*_list_runs(study, style)],
        _colour(_list_efficiencies(study, style), style),
        _colour(_list_regions(study, style), style),
        _list_findings(study, style),
        _wrap(list_missing(study), style),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def format_markdown(study: Study) -> str:
    """Return a study in Markdown, as an assessment has it."""
    runs = [
        f"{name}: {find_name(run)}, {run['interval']['what']}"
        for name, run in zip(name_runs(study), study["runs"], strict=True)
    ]
    parts = [
        [f"## {write_title(study)}"],
        [summarise_study(study)],
        [f"- {line}" for line in (*study["warnings"], describe_comparison(study), *runs)],
        format_markdown_tables(study),
        [*_list_findings_in_markdown(study)],
    ]
    text = "\n\n".join("\n".join(part) for part in parts if part)
    return write_micro(f"{text}\n")


def _list_findings_in_markdown(study: Study) -> Iterator[str]:
    """Yield what to do about the largest run: a heading, and a line for each finding."""
    found = list_findings(study)
    if found:
        part = name_focus(study["runs"][-1])
        yield f"Findings of {name_runs(study)[-1]}, with how much shorter its {part} would be without:\n"
    for one in found:
        most = "at most " if one.at_most else ""
        advice = f" To do: {one.advice.rstrip('.')}." if one.advice else ""
        yield f"- {most}{100 * one.share:.1f} %: {one.title}{advice}"


def _wrap(lines: Iterable[str], style: Style, hang: int = 4) -> list[str]:
    """Return lines of sentences; a number and its unit stay together."""
    joined = [re.sub(r"(?<=\d) (?=[%×a-z])", NO_BREAK, line) for line in dict.fromkeys(lines)]
    folded = fold_lines(joined, style.text_width, hang)
    return [line.replace(NO_BREAK, " ") for line in folded]


def _list_runs(study: Study, style: Style) -> list[str]:
    """Return the runs, and the part of each that its figures are of."""
    runs = study["runs"]
    columns = [
        Column("run", list(map(find_name, runs))),
        *(
            Column(head, [f"{run[key]:,}" for run in runs], False)
            for head, key in (("GPUs", "devices"), ("nodes", "nodes"), ("ranks", "ranks"))
        ),
        Column("focus", [format_nanoseconds(measure_focus(run)) for run in runs], False),
    ]
    lines = [describe_comparison(study)]
    for title, list_lines in (
        ("GPUs", lambda run: list(filter(None, [", ".join(run.get("gpu_models") or ())]))),
        ("focus of analysis", lambda run: [run["interval"]["what"]]),
        ("host threads", lambda run: list(filter(None, [run.get("threads")]))),
    ):
        if shared := name_runs_of_lines(study, list_lines):
            lines.append(f"{title}: {'; '.join(shared)}")
    return [*lay_out_table(columns, style.width), *_wrap(lines, style)]


def _list_efficiencies(study: Study, style: Style) -> list[str]:
    figures = list_run_figures(study)
    first = Column("", [])
    columns = [Column(head, [], False) for head in figures.heads]
    for row, values in figures.rows:
        if row.depth == 0 and row.is_efficiency and "." in row.path:
            for column in (first, *columns):
                column.cells.append("")
        first.cells.append("  " * row.depth + find_label(study, row))
        for column, value in zip(columns, values, strict=True):
            column.cells.append(format_signed(row, value))
    legend = f"  -: below {100 * GOOD:.0f} %, worth a look (POP); !: below {100 * FAIR:.0f} %"
    if any(row.path.startswith("host") for row, _ in figures.rows):
        legend += "; hosts: no fault where they wait for GPUs"
    return [*_lay_out_blocks([first], columns, style), "", *_wrap([legend], style, 0)]


def _list_regions(study: Study, style: Style) -> list[str]:
    regions = list_region_figures(study)
    if not regions:
        return []
    names, runs = Column("", []), Column("", [])
    columns = [Column(shorten(head, WIDEST), [], False) for head in regions[0][1].heads]
    shown, title = ("device", DEVICE_REGIONS) if has_devices(study) else ("mpi", HOST_REGIONS)
    for row, name, head, values in group_regions(study, regions):
        if row.path.endswith(BETWEEN_NODES) or not row.path.startswith(("elapsed_ns", shown)):
            continue
        names.cells.append(name and (name if row.path == "elapsed_ns" else row.bare_name))
        runs.cells.append(head)
        for column, value in zip(columns, values, strict=True):
            column.cells.append(format_signed(row, value))
    # Those that launch no work are in the files alone.
    columns = [one for one in columns if {cell.strip() for cell in one.cells} - {"-"}]
    return (
        [*style.format_title(title), *_lay_out_blocks([names, runs], columns, style)]
        if columns
        else []
    )


def _lay_out_blocks(names: Sequence[Column], columns: Sequence[Column], style: Style) -> list[str]:
    """Return the lines of a table, so many columns beside each other as fit."""
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


def _list_findings(study: Study, style: Style) -> list[str]:
    """Return what to do about the largest run, of which there are findings."""
    run, head = study["runs"][-1], name_runs(study)[-1]
    found = list_findings(study)
    if not found:
        return []
    # A run of the JSON of an earlier study may be named after it too.
    path = shlex.quote(run["name"].rpartition(".json: ")[2])
    short = [replace(one, evidence=(), moments=(), views=(), where="") for one in found]
    return [
        *style.format_title(f"What to do: findings of {shorten(head, 2 * WIDEST)}"),
        *_wrap([f"  %: how much shorter its {name_focus(run)} would be without this cause"], style),
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
