"""``nsys2prv extract`` and ``nsys2prv merge``: the two halves of a conversion, for jobs whose
reports do not leave their nodes.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from nsys2prv._util.errors import UsageError
from nsys2prv._util.memory import importing
from nsys2prv.cli.mistakes import check_reports
from nsys2prv.conversion.startup import start_workers
from nsys2prv.nsight.report_files import reports_meant

#: Options of the conversion that say what to read, those that both halves take, and those of
#: neither; all others say what to write.
READING = {"trace", "min_duration", "kernel_rules", "nvtx_rules", "callstack", "demanded"}
BOTH = {
    "paths",
    "multi_report",
    "jobs",
    "engine",
    "scheduler",
    "tmp",
    "quiet",
    "ranks",
    "hosts",
    "help",
    "version",
}
OTHER_WORK = {"list", "kinds", "keep_going"}


def _options(
    command: str, description: str, usage: str, arguments: Sequence[str]
) -> argparse.Namespace:
    """Return the options of a conversion that are this half's; any other that is given is refused."""
    from nsys2prv.cli.arguments import parser
    from nsys2prv.cli.cut_arguments import joined_kinds

    options = parser()
    every = {action.dest for action in options._actions}
    left_out = every - BOTH - READING if command == "extract" else READING | OTHER_WORK
    options.prog, options.description, options.usage, options.epilog = (
        f"nsys2prv {command}",
        description,
        usage,
        None,
    )
    if command == "extract":
        options.add_argument(
            "-o", "--output", type=Path, required=True, metavar="STORE", help="the store to write"
        )
    for action in options._actions:
        if action.dest == "paths":
            action.metavar, action.help = (
                ("REPORT", "the reports to read (files, folders, quoted patterns)")
                if command == "extract"
                else (
                    "STORE... OUTPUT",
                    "the stores, then the trace to write: out, out.prv or out.prv.gz",
                )
            )
        if action.dest in left_out:
            action.help = argparse.SUPPRESS
    given = options.parse_intermixed_args(joined_kinds(list(arguments)))
    refused = [
        action
        for action in options._actions
        if action.dest in left_out and getattr(given, action.dest, action.default) != action.default
    ]
    if refused:
        name = max(
            refused[0].option_strings,
            key=lambda option: (option.startswith("--"), not option.startswith("--no-")),
        )
        other = (
            "itself"
            if refused[0].dest in OTHER_WORK
            else "merge"
            if command == "extract"
            else "extract"
        )
        raise UsageError(
            f"{name} is not an option of nsys2prv {command}: give it to nsys2prv {other}"
        )
    return given


def extract(arguments: Sequence[str]) -> int:
    given = _options(
        "extract",
        "Read reports into a store, one file, from which `nsys2prv merge` writes the trace (docs/scaling.md).",
        "nsys2prv extract [options] REPORT... -o STORE",
        arguments,
    )
    if not given.paths:
        raise UsageError(
            "give at least one report: nsys2prv extract REPORT... -o STORE (more with --help)"
        )
    check_reports("extract", given.paths)
    reports = reports_meant(given.paths)
    start_workers(reports, given.engine, given.jobs)
    with importing():
        from nsys2prv.cli.arguments import as_options
        from nsys2prv.cli.convert import warn
        from nsys2prv.conversion.extract import extract_to

    warn(extract_to(reports, given.output, as_options(given)))
    if not given.quiet:
        print(f"{given.output}  {given.output.stat().st_size / 1e6:.1f} MB")
    return 0


def merge(arguments: Sequence[str]) -> int:
    given = _options(
        "merge",
        "Write one trace from stores that `nsys2prv extract` made, with the reading options given there.",
        "nsys2prv merge [options] STORE... OUTPUT",
        arguments,
    )
    from nsys2prv._util.archive import is_archive
    from nsys2prv.cli.convert import run

    for path in reports_meant(given.paths[:-1]):
        if path.exists() and not is_archive(path):
            raise UsageError(
                f"{path}: is not a store; merge takes stores of nsys2prv extract; nsys2prv itself takes reports and stores together"
            )
    return run(given)
