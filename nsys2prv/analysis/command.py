"""The commands `nsys2prv report` and `nsys2prv diff`."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Sequence
from pathlib import Path

from nsys2prv.analysis.comparison import Run, difference, scaling
from nsys2prv.analysis.opened import Opened, open_job
from nsys2prv.analysis.result import Result
from nsys2prv.analysis.text import MOST_ROWS, as_json, duration, from_json, printed
from nsys2prv.errors import Nsys2prvError, UsageError
from nsys2prv.preparation import Job

SUFFIXES = (".sqlite", ".nsys-rep", ".qdrep")


def add_analysis_options(parser: argparse.ArgumentParser) -> None:
    """What both commands take."""
    parser.add_argument("--useful", choices=("compute", "all-kernels"), default="compute",
                        help="which kernels are useful: compute (NCCL is communication, as BSC; default) or all-kernels (as TALP)")
    parser.add_argument("--region", default="", metavar="PATTERN", help='NVTX ranges that are iterations, as in "step*"')
    parser.add_argument("--bins", type=int, default=200, metavar="N", help="bins of maps over time (200)")
    parser.add_argument("--rows", type=int, default=MOST_ROWS, metavar="N", help=f"rows of a table that are printed ({MOST_ROWS})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything to this file too")
    parser.add_argument("--align", default="auto", metavar="METHOD", help="as for conversions")
    parser.add_argument("--kernel-rules", type=Path, metavar="FILE", help="as for conversions")
    parser.add_argument("-j", "--jobs", type=int, default=0, metavar="N", help="worker processes; one per CPU by default")
    parser.add_argument("--tmp", type=Path, metavar="DIR", help="folder for temporary files; the system's by default")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")


def report(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Runs `report`; returns the text and the warnings."""
    parser.add_argument("reports", nargs="+", metavar="REPORT", help="the reports of one job")
    parser.add_argument("--only", action="append", default=[], metavar="NAMES", help="comma-separated analyses; all by default")
    parser.add_argument("--compare", nargs="+", default=[], metavar="RUN",
                        help="further jobs for scalability: folders of reports, or files that --json wrote")
    parser.add_argument("--scaling", choices=("strong", "weak"), default="strong", help="how the problem grew over the runs (strong: not)")
    add_analysis_options(parser)
    options = _checked(parser.parse_args(arguments))
    with _opened(options.reports, options) as job:
        results = _analysed(job, [name for names in options.only for name in names.split(",") if name], options)
        described = describe(job, options.reports)
        head, warnings = heading(job), job.warnings
    shown = list(results.values())
    if options.compare:
        others = [load_run(one, options) for one in options.compare]
        results["scaling"] = scaling([Run(described, results), *others], options.scaling == "strong")
        shown.append(results["scaling"])
    if options.json:
        write(options.json, as_json(results, described))
    return printed(shown, head, options.rows), warnings


def diff(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Runs `diff`; returns the text and the warnings."""
    parser.add_argument("runs", nargs=2, metavar="RUN", help="two jobs: a report, a folder of reports, or a file that report --json wrote")
    add_analysis_options(parser)
    options = _checked(parser.parse_args(arguments))
    first, second = (load_run(one, options) for one in options.runs)
    results = difference(first, second)
    if options.json:
        write(options.json, as_json({result.name: result for result in results}, {"name": f"{options.runs[0]}, {options.runs[1]}"}))
    return printed(results, (), options.rows), []


def beside(job: Job, reports: Sequence[str | Path], path: Path, rows: int = MOST_ROWS) -> str:
    """All analyses of a job that is being converted, as text; everything is written to `path`."""
    with Opened(job) as opened:
        results = opened.analyse()
        write(path, as_json(results, describe(opened, reports)))
    return printed(results.values(), (), rows)


def _checked(options: argparse.Namespace) -> argparse.Namespace:
    for name, least in (("bins", 1), ("rows", 1), ("jobs", 0)):
        if getattr(options, name) < least:
            raise UsageError(f"--{name} takes a number from {least} on")
    # polars installs a handler of its own, under which a waiting program does not notice an interruption.
    signal.siginterrupt(signal.SIGINT, True)
    return options


def _opened(reports: Sequence[str | Path], options: argparse.Namespace) -> Opened:
    return open_job(reports, kernel_rules=options.kernel_rules, align=options.align, jobs=options.jobs, tmp=options.tmp,
                    quiet=options.quiet)


def _analysed(job: Opened, names: Sequence[str], options: argparse.Namespace) -> dict[str, Result]:
    if options.compare and names and "efficiencies" not in names:
        names = ["efficiencies", *names]
    return job.analyse(*names, useful=options.useful, region=options.region, bins=options.bins)


def load_run(given: str, options: argparse.Namespace) -> Run:
    """A job by what the command line calls it."""
    path = Path(given)
    if path.suffix == ".json":
        described, results = from_json(path)
        return Run(described, results)
    reports = sorted(found for found in path.iterdir() if found.suffix in SUFFIXES) if path.is_dir() else [path]
    if not reports:
        raise Nsys2prvError(f"{given}: no reports in this folder")
    with _opened(reports, options) as job:
        return Run(describe(job, reports, given), job.analyse(useful=options.useful, region=options.region, bins=options.bins))


def describe(job: Opened, reports: Sequence[str | Path], name: str = "") -> dict[str, object]:
    """What a job is, for JSON."""
    tasks = job.rows["task"].n_unique()
    return {"name": name or (str(reports[0]) if len(reports) == 1 else f"{reports[0]} and {len(reports) - 1} more"),
            "reports": [str(one) for one in reports], "duration_ns": job.duration, "ranks": tasks, "devices": job.devices.height,
            "nodes": job.rows["node"].unique(maintain_order=True).to_list(), "records": job.layouts, "notes": job.notes,
            "warnings": job.warnings}


def heading(job: Opened) -> list[str]:
    """What a job is, for people."""
    rows = job.rows
    return [f"{rows['task'].n_unique():,} tasks on {rows['node'].n_unique():,} hosts, {job.devices.height:,} GPUs; "
            f"{duration(job.duration)}; {sum(job.layouts.values()):,} events", *(f"  {note}" for note in job.notes)]


def write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Nsys2prvError(f"{path}: {error.strerror or error}") from None
