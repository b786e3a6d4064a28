"""Run a conversion, or list what reports hold."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from nsys2prv._util import signals
from nsys2prv._util.archive import is_archive
from nsys2prv._util.errors import UsageError
from nsys2prv._util.files import named_as_report
from nsys2prv._util.memory import importing
from nsys2prv._util.text import one_line, printable
from nsys2prv.cli.arguments import as_options
from nsys2prv.cli.parsing import (
    check_conversion,
    check_kinds,
    check_reports,
    is_trace,
)
from nsys2prv.conversion.startup import start_workers
from nsys2prv.nsight.report_files import find_reports


def run_conversion(options: argparse.Namespace) -> int:
    check_kinds([word for words in options.trace for word in words.split(",")], options.paths)
    if options.kinds:
        return _kinds()
    if options.list:
        return _list(options.paths)
    if len(options.paths) < 2:
        version = "; --version tells the version" if options.verbose and not options.paths else ""
        example = (
            f", as in `nsys2prv {options.paths[0]} out.prv`"
            if options.paths and not is_trace(options.paths[0])
            else ""
        )
        raise UsageError(
            f"give at least one report and the trace to write: nsys2prv REPORT... OUTPUT{example}; `nsys2prv help` lists the options{version}"
        )
    check_conversion(options.paths, options.trace)
    *given, output = options.paths
    if named_as_report(Path(output)) or is_archive(Path(output)):
        raise UsageError(
            f"{output}: the last argument is the trace to write, but this is a report or a store of some; "
            "add a name, as in out.prv"
        )
    reports = find_reports(given)
    start_workers(reports, options.engine, options.jobs)
    write_report: Callable[..., str] | None = None
    with importing():
        from nsys2prv.conversion.convert import convert

        if options.report:
            from nsys2prv.cli.report import write_report_files as write_report

    summary = convert(reports, output, as_options(options), write_report)
    print_warnings(summary.warnings)
    if not options.quiet:
        print(printable(summary.text(options.verbose)))
        if summary.report:
            print(printable(f"\n{summary.report}"))
    for line in summary.unread:
        print_message("error", f"left out: {line}")
    return int(bool(summary.unread))


def print_warnings(warnings: Sequence[str]) -> None:
    for warning in warnings:
        print_message("warning", warning)


def print_message(severity: str, text: str) -> None:
    print(f"nsys2prv: {severity}: {one_line(text)}", file=sys.stderr)


def _list(paths: list[str]) -> int:
    if not paths:
        raise UsageError("--list takes reports")
    from nsys2prv.cli.listing import describe_reports

    signals.raise_ended()
    check_reports("--list", paths)
    text, warnings = describe_reports(find_reports(paths))
    print(printable(text))
    print_warnings(warnings)
    return 0


def _kinds() -> int:
    from nsys2prv.events import all_kinds

    for kind in all_kinds():
        including = (*kind.groups, *kind.selection.implied_by)
        print(
            f"{kind.name:<22} {kind.title}"
            + (f" (included in {', '.join(dict.fromkeys(including))})" if including else "")
            + (
                f" (not by default: name it, or use {kind.selection.opt_in})"
                if kind.selection.opt_in
                else ""
            )
        )
    return 0
