"""Run the command line: :func:`main` reads arguments, runs a command, and prints messages.

Input: arguments. Output: printed text, and an exit status. Start in :func:`main`, then read
``options.yaml``, which declares all commands and options, and :mod:`arguments`, which parses them.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from shlex import quote

from nsys2prv._util import errors
from nsys2prv._util.budget import (
    check_address_space,
    keep_freed_memory,
    limit_threads,
    pause_garbage_collection,
)
from nsys2prv._util.errors import Nsys2prvError
from nsys2prv._util.files import FULL, has_report_name, name_beside
from nsys2prv._util.text import escape_to_one_line, find_width, fold_command, print_text
from nsys2prv.cli.arguments import (
    CONVERSION,
    MESSAGES,
    Parser,
    check_command,
    check_conversion,
    check_folder_of_views,
    check_kinds,
    check_output,
    is_trace_name,
    join_kind_options,
    make_options,
    name_files_plainly,
    parse_analysis,
    refuse,
    refuse_non_traces,
    refuse_traces,
    suggest_command,
)
from nsys2prv.export import report_files

#: Errors of writing to standard output.
OUTPUT_ERRORS = (*FULL, errno.EIO, errno.EBADF, errno.EFBIG)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status. arguments: without the program's name; None
    for those of the process.
    """
    try:
        return _run(arguments)
    except errors.EndedBySignal as ended:
        print_message("error", str(ended))
        return ended.exit_code
    finally:
        errors.ignore_signals()


def _run(arguments: Sequence[str] | None) -> int:
    """Run a command and return the exit status. May raise
    :class:`nsys2prv._util.errors.EndedBySignal`.
    """
    _open_closed_streams()
    keep_freed_memory()
    # Before numpy is imported: its matrices here are of a few rows, and it starts a thread for
    # every CPU.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    words = name_files_plainly(list(sys.argv[1:] if arguments is None else arguments))
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        if not {"-h", "--help", "--version"} & {*words} and words[:1] != ["help"]:
            check_address_space()
        command = COMMANDS.get(words[0]) if words else None
        if words and not command:
            check_command(words[0], COMMANDS)
        status = command(words[1:]) if command else run_conversion(words)
        sys.stdout.flush()
        return status
    except Nsys2prvError as error:
        print_message("error", str(error))
        return error.exit_code
    except KeyboardInterrupt:
        print_message("error", f"interrupted; {errors.describe_written()}")
        return 130
    except MemoryError:
        print_message("error", "out of memory; try fewer workers (-j 1)")
        return 1
    except BrokenPipeError:
        # The reader stopped, as in `| head`: the work is done.
        _discard_output()
        return 0
    except OSError as error:
        # Errors from writing to standard output name no file.
        where = error.filename or ("standard output" if error.errno in OUTPUT_ERRORS else "")
        _discard_output()
        print_message("error", f"{where}: {error.strerror}" if where else str(error))
        return 1


def _open_closed_streams() -> None:
    """Open standard streams that the caller closed (`>&-`), so that no other file takes their
    place.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def _discard_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def run_help(arguments: list[str]) -> int:
    """Run `nsys2prv help [COMMAND]` and return the exit status."""
    if not arguments or arguments[0] == "help":
        Parser(CONVERSION).print_help()
        return 0
    if arguments[0] == "convert":
        print(Parser(CONVERSION).format_help().rstrip())
        return 0
    if arguments[0] not in COMMANDS:
        hint = suggest_command(arguments[0], COMMANDS, "nsys2prv help")
        hint = hint or f"the commands are {', '.join(COMMANDS)}"
        refuse("no_command", word=arguments[0], hint=hint)
    return COMMANDS[arguments[0]](["--help"])


def run_conversion(arguments: list[str]) -> int:
    """Convert reports to a trace, as the arguments say, and return the exit status."""
    options = Parser(CONVERSION).parse_intermixed_args(join_kind_options(arguments))
    check_kinds([word for words in options.trace for word in words.split(",")], options.paths)
    if options.kinds:
        return _list_kinds()
    if options.list:
        return _list_reports(options.paths, options.anonymous)
    if len(options.paths) < 2:
        example = ""
        if options.paths and not is_trace_name(options.paths[0]):
            example = f", as in `nsys2prv {options.paths[0]} out.prv`"
        refuse("report_or_output_missing", example=example)
    check_conversion(options.paths, options.trace, COMMANDS)
    *paths, output = options.paths
    if has_report_name(Path(output)):
        refuse("report_for_output", path=output)
    check_output(output)
    limit_threads(options.jobs, report_files.find_reports(paths))
    write_report: Callable[..., str] | None = None
    with pause_garbage_collection():
        from nsys2prv.conversion.convert import REPORT, convert
        from nsys2prv.conversion.quality import format_quality

        if options.report:
            from nsys2prv.cli.report import write_report_files as write_report

    summary = convert(paths, output, make_options(options), write_report)
    print_warnings([*summary.warnings, *(format_quality(summary.quality) if options.quiet else ())])
    if not options.quiet:
        print_text(summary.text(options.verbose))
        if summary.report:
            print(f"\n{summary.report}")
            if not summary.opening:
                finished = quote(str(name_beside(Path(summary.trace), REPORT)))
                print_text("\nTo step through the findings in Paraver:")
                command = f"  nsys2prv report {finished} --paraver-tutorial"
                print("\n".join(fold_command(command, find_width() or len(command) + 2)))
    for line in summary.unread:
        print_message("error", f"skipped: {line}")
    return int(bool(summary.unread))


def print_warnings(warnings: Sequence[str]) -> None:
    """Print warnings to standard error, one line each."""
    for warning in warnings:
        print_message("warning", warning)


def print_message(severity: str, text: str) -> None:
    """Print one line to standard error. severity: such as `warning`."""
    print(f"nsys2prv: {severity}: {escape_to_one_line(text)}", file=sys.stderr)


def _list_reports(paths: list[str], anonymous: bool) -> int:
    if not paths:
        refuse("no_report_to_list")
    from nsys2prv.cli.listing import describe_reports

    errors.raise_on_signal()
    refuse_traces("--list", paths)
    left_out: list[str] = []
    found = report_files.find_reports(paths, left_out)
    text, warnings = describe_reports(found, {*found} - set(map(Path, paths)), anonymous)
    print_text(text)
    print_warnings([*left_out, *warnings])
    return 0


def _list_kinds() -> int:
    from nsys2prv.events import all_kinds

    for kind in all_kinds():
        line = f"{kind.name:<22} {kind.title}"
        if including := (*kind.groups, *kind.implied_by):
            line += f" (included in {', '.join(dict.fromkeys(including))})"
        if kind.opt_in:
            line += f" (not by default; name it, or use {kind.opt_in})"
        print_text(line)
    return 0


def run_cfgs(arguments: list[str]) -> int:
    """Run `nsys2prv cfgs` and return the exit status."""
    options = Parser("cfgs").parse_args(arguments)
    folder, trace = options.folder, options.trace
    if trace:
        refuse_non_traces("cfgs --for", [str(trace)])
    if options.time and not options.view:
        refuse("time_without_view", time=options.time)
    if folder and not options.view:
        check_folder_of_views(folder)
        if options.install:
            refuse("install_to_folder", path=folder)
    if not (options.view or options.install or folder or trace):
        from nsys2prv.writers.paraver.cfg import list_views

        print("\n".join(list_views(options.all)))
        return 0
    from nsys2prv.writers.paraver import views

    errors.raise_on_signal()
    if options.view:
        span = _parse_times(options.time) if options.time else None
        text = str(views.write_view(options.view, span, folder, trace))
    elif options.install:
        target, count, menus = views.install_views(trace, options.all)
        text = (
            f"views written to {target}. After its next start, Paraver offers {count} of them in {menus} nsys2prv menus under Hints: "
            f"the views for {trace or 'nearly every trace (--for TRACE selects the views for one trace)'}"
        )
    elif folder:
        count = len(views.copy_views(folder, trace, options.all))
        text = f"{count} views written to {folder}"
    else:
        fits = views.find_views_for_trace(trace)
        text = views.format_views(trace, fits, options.all)
    print_text(text)
    return 0


def _parse_times(text: str) -> tuple[int, int]:
    """Return start and end (ns) of a time span of the trace."""
    from nsys2prv.conversion.options import parse_span

    ends = [moment for moment in parse_span(text) if moment and not moment.ratio]
    if len(ends) < 2:
        refuse("half_a_time", time=text)
    return ends[0].resolve(0), ends[1].resolve(0)


def run_check(arguments: list[str]) -> int:
    """Run `nsys2prv check` and return the exit status."""
    options = Parser("check").parse_args(arguments)
    refuse_non_traces("check", options.traces)
    from nsys2prv.writers.paraver.check import NO_TRACE, Severity, check_trace, format_result

    results = []
    for trace in options.traces:
        results.append(check_trace(trace))
        if options.json:
            continue
        if any(finding.rule == NO_TRACE for finding in results[-1].findings):
            print_message("error", MESSAGES["not_a_trace"].format(path=trace))
        else:
            print_text(format_result(results[-1]))
    if options.json:
        print(json.dumps([result.data() for result in results], indent=1))
    failing = {Severity.ERROR, Severity.WARNING} if options.strict else {Severity.ERROR}
    return int(any(one.severity in failing for result in results for one in result.findings))


def run_analysis(command: str, arguments: list[str]) -> int:
    """Run `nsys2prv report`, `diff` or `study`, as `command` says, and return the exit status."""
    options = parse_analysis(command, arguments)
    limit_threads(options.jobs, options.reports or options.runs)
    with pause_garbage_collection():
        from nsys2prv.cli import report

    text, warnings, status = getattr(report, f"run_{command}")(options)
    print_warnings(warnings)
    print(text)
    return status


def run_quality(arguments: list[str]) -> int:
    """Run `nsys2prv quality` and return the exit status."""
    options = Parser("quality").parse_args(arguments)
    limit_threads(options.jobs, options.reports)
    from nsys2prv.cli import quality

    text, warnings, status = quality.run_quality(options)
    print_warnings(warnings)
    print_text(text)
    return status


#: Commands, the first word of a command line.
COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "report": partial(run_analysis, "report"),
    "study": partial(run_analysis, "study"),
    "cfgs": run_cfgs,
    "diff": partial(run_analysis, "diff"),
    "check": run_check,
    "quality": run_quality,
    "help": run_help,
}
