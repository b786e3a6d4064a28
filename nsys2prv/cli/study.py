"""Run the command `nsys2prv study`.

In: parsed options. Out: text, and the page, Markdown, CSV, JSON, TALP files and traces that were
asked for.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from nsys2prv._util.errors import UsageError
from nsys2prv._util.files import check_folder, write_complete_file
from nsys2prv.analysis.finished_job import FinishedJob
from nsys2prv.analysis.study.page import make_study_page
from nsys2prv.analysis.study.runs import make_study
from nsys2prv.analysis.study.tables import format_csv, name_file
from nsys2prv.analysis.study.talp import write_talp_files
from nsys2prv.analysis.study.text import format_markdown, format_study
from nsys2prv.analysis.text import JSON, Style
from nsys2prv.conversion.convert import convert
from nsys2prv.conversion.options import CutOptions, Options


def print_study(options: argparse.Namespace) -> str:
    """Run `study` and return its text."""
    _check_runs(options)
    regions = [name for name in (options.regions or "").split(",") if name]
    drawn: dict[str, FinishedJob] | None = {} if options.html else None
    study = make_study(
        options.runs,
        scaling=options.scaling,
        reference=options.reference,
        iterations=options.iterations,
        regions=regions,
        whole=options.whole,
        labels=_parse_labels(options),
        host_threads=options.host_threads,
        useful=options.useful,
        drawn=drawn,
        kernel_rules=options.kernel_rules,
        align=options.align,
        jobs=options.jobs,
        tmp=options.tmp,
        quiet=options.quiet,
    ).to_dict()
    if len(study["runs"]) < 2:
        _refuse_one_run(options.runs[0])
    if options.json:
        write_complete_file(options.json, json.dumps(study, indent=1, allow_nan=False) + "\n")
    if options.html:
        write_complete_file(options.html, make_study_page(study, options.html, drawn))
    if options.md:
        write_complete_file(options.md, format_markdown(study))
    if options.csv:
        write_complete_file(options.csv, format_csv(study))
    if options.talp:
        write_talp_files(study, options.talp)
    text = format_study(study, Style.for_output())
    if options.cut:
        _cut_runs(study, options)
        text += f"\n\ntraces of the focus of analysis: {options.cut}; modelfactors.py -s {study['scaling']['used']} {options.cut}/*.prv"
    return text


def _check_runs(options: argparse.Namespace) -> None:
    """Raise UsageError where runs or folders to write cannot be used as given."""
    paths = [Path(run) for run in options.runs]
    if len(paths) == 1 and paths[0].suffix != JSON:
        _refuse_one_run(options.runs[0])
    if options.whole and options.iterations:
        raise UsageError("--whole takes all of a run: give it without --iterations")
    for name in ("talp", "cut"):
        if folder := getattr(options, name):
            if folder.exists() and not folder.is_dir():
                raise UsageError(f"--{name} {folder}: is a file; give the folder to write to")
            check_folder(folder.parent)
    if options.cut and (made := [path for path in paths if path.suffix == JSON]):
        raise UsageError(f"--cut: {made[0]} is a finished study: give the reports of its runs")


def _refuse_one_run(name: str) -> NoReturn:
    raise UsageError(
        f"{name}: is one run, and a study compares several; `nsys2prv report {name}` shows one"
    )


def _parse_labels(options: argparse.Namespace) -> dict[str, str]:
    """Return run -> label."""
    labels: dict[str, str] = {}
    for text in options.label:
        run = next((run for run in options.runs if text.endswith(f"={run}")), None)
        label = text[: -len(run) - 1].strip() if run else ""
        if not (run and label):
            raise UsageError(
                f"--label {text}: give a text and one of the runs, as in --label old={options.runs[0]}"
            )
        if label in labels.values():
            raise UsageError(f"--label {text}: another run is called {label}, too")
        labels[run] = label
    return labels


def _cut_runs(study: Mapping[str, Any], options: argparse.Namespace) -> None:
    """Write the trace of the focus of analysis of each run."""
    options.cut.mkdir(exist_ok=True)
    for number, run in enumerate(study["runs"], 1):
        interval = run["interval"]
        cut = CutOptions(time=f"{interval['begin_ns']}ns:{interval['end_ns']}ns")
        convert(
            run["name"],
            options.cut / f"{name_file(number, run)}.prv",
            Options(
                cut=cut,
                kernel_rules=options.kernel_rules,
                align=options.align,
                jobs=options.jobs,
                tmp=options.tmp,
                quiet=options.quiet,
            ),
        )
