"""The command line: arguments in, options out, messages and exit status."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from nsys2prv._util import signals
from nsys2prv._util.archive import is_archive
from nsys2prv._util.errors import Nsys2prvError, UsageError
from nsys2prv._util.files import named_as_report
from nsys2prv._util.memory import check_address_space, importing, keep_freed_memory
from nsys2prv._util.text import one_line, parse_duration, printable
from nsys2prv.cli import stores
from nsys2prv.cli.cut_arguments import add_cut, cut_of, joined_kinds
from nsys2prv.cli.legacy import add_habits
from nsys2prv.cli.mistakes import (
    check_command,
    check_conversion,
    check_folder_of_views,
    check_kinds,
    check_reports,
    check_traces,
    is_trace,
)
from nsys2prv.cli.parsing import Parser
from nsys2prv.conversion.startup import start_workers
from nsys2prv.nsight.given import reports_meant

if TYPE_CHECKING:
    from nsys2prv.conversion.options import Options

DESCRIPTION = """Write one Paraver trace of a whole parallel GPU job from its NVIDIA Nsight Systems reports, one per rank.

examples:
  nsys2prv rank*.sqlite job.prv                   convert all reports of a job: job.prv, with job.pcf and job.row beside it
  nsys2prv -t kernels,nvtx --time 10s:20s reports/ small.prv
                                                  kernels and NVTX ranges of ten seconds, of all reports in a folder
  nsys2prv report rank*.sqlite --html job.html    no trace, but efficiencies, late ranks, kernels and idle time, as tables and a page

commands (`nsys2prv help COMMAND` tells more):
  nsys2prv REPORT... OUTPUT     convert
  nsys2prv --list REPORT...     what the reports hold, in one table
  nsys2prv report REPORT...     what holds the job back, and by whom; then tables; --full, --json FILE, --html FILE
  nsys2prv diff A B             two jobs side by side; --fail-above 5% for scripts
  nsys2prv cfgs [DIR]           list the Paraver views that come with nsys2prv, or write them; --for TRACE: those that show something of it
  nsys2prv check TRACE...       whether anything in a trace, whoever wrote it, would crash or mislead Paraver
  nsys2prv clock FILE           how the clocks of the hosts were aligned
  nsys2prv extract, merge       the two halves of a conversion, where reports should not leave their nodes
"""
EPILOG = """A report is a .sqlite file or a folder of Parquet files, as `nsys export` writes them, or a .nsys-rep file, where nsys is
installed. A folder stands for all reports in it, and a quoted pattern ('run/rank*.sqlite') for all that match.

Exit status: 0 done, 1 error (of some reports, with --keep-going), 2 usage, 3 the reports hold nothing to write,
4 the second job is slower (diff --fail-above), 130 interrupted, 128 + n ended by signal n."""


class _Version(argparse.Action):
    """Prints the version."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from nsys2prv.cli.parsing import version_text

        print(version_text())
        parser.exit()


def parser() -> argparse.ArgumentParser:
    main = Parser(
        "nsys2prv",
        description=DESCRIPTION,
        epilog=EPILOG,
        allow_abbrev=False,
        usage="nsys2prv [options] REPORT... OUTPUT",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    main.add_argument(
        "paths",
        nargs="*",
        metavar="REPORT... OUTPUT",
        help="the reports (files, folders of reports, quoted patterns) or stores, then the trace to write: out, out.prv or "
        "out.prv.gz",
    )
    what = main.add_argument_group("what to translate")
    what.add_argument(
        "-t",
        "--trace",
        action="append",
        default=[],
        metavar="KINDS",
        help="comma-separated kinds of events, `all`, or -KIND to leave one out; everything by default. Kinds: see --kinds",
    )
    what.add_argument(
        "--min-duration",
        action="append",
        default=[],
        metavar="[KIND=]NS",
        type=_min_duration,
        help="drop ranges of this kind, or of all, that are shorter: nanoseconds, or with a unit (us, ms, s) as in "
        "osrt=10us; repeatable",
    )
    what.add_argument(
        "-m",
        "--multi-report",
        action="store_true",
        help="merge the reports; several are merged with or without it",
    )
    what.add_argument(
        "--kernel-names",
        choices=("short", "full"),
        default="short",
        help="kernel labels: the short name made readable (default), or the full demangled name",
    )
    what.add_argument(
        "--kernel-rules",
        type=Path,
        metavar="FILE",
        help="rules that tell the class of kernels, put before nsys2prv's own (docs/kernel-classes.md)",
    )
    what.add_argument(
        "--callstack",
        type=int,
        default=1,
        metavar="N",
        help="functions of each CPU sample: the innermost, and its callers (1 to 32; 1 by default)",
    )
    what.add_argument(
        "--nvtx-rules",
        metavar="FILE",
        help="rules that rename or drop NVTX ranges and marks, put before nsys2prv's own, or `none` to leave all names as "
        "they are (docs/nvtx.md)",
    )
    what.add_argument(
        "--base-pcf",
        action="append",
        type=Path,
        default=[],
        metavar="FILE",
        help="the .pcf of an earlier trace: names that it has keep their values, others get new ones; repeatable, earlier "
        "ones first",
    )
    what.add_argument(
        "--project-nvtx",
        action="append_const",
        dest="demanded",
        const="nvtx_on_gpu",
        default=[],
        help="write NVTX push/pop ranges also on the GPU streams that they launched work on, around that work (docs/nvtx.md)",
    )
    what.add_argument(
        "--align",
        default="auto",
        metavar="METHOD",
        help="how to align the clocks of hosts: auto (default: by all that their processes did together), mpi or nccl (by "
        "that alone), utc (by UTC alone), none (local times as they are), or a clock file as written beside a trace",
    )
    what.add_argument(
        "--causal",
        action="store_true",
        help="then move ranks, and stretch their times, where something still ends before it can: changes durations",
    )
    what.add_argument(
        "--states",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="say of every thread and stream in which state it is at every time (Running, Memory transfer, ...), in Extrae's "
        "terms; without them POP's BasicAnalysis takes the trace for one of nsys2prv, with them for one of Extrae",
    )
    add_cut(main)
    how = main.add_argument_group("how to write")
    how.add_argument("-z", "--compress", action="store_true", help="write .prv.gz")
    how.add_argument(
        "--no-metadata",
        action="store_true",
        help="do not write .nsys2prv.json: inputs, options, and what became of all rows",
    )
    how.add_argument(
        "--no-paths",
        action="store_true",
        dest="without_paths",
        help="write names of files without their folders: of inputs, and of the files that the program accessed",
    )
    how.add_argument(
        "-j", "--jobs", type=int, default=0, metavar="N", help="workers; one per CPU by default"
    )
    how.add_argument(
        "--engine",
        default="local",
        metavar="NAME",
        help="who works: local (default: threads for up to 4 workers, processes for more), processes, threads, dask (a "
        "cluster), mpi (the ranks of this MPI job)",
    )
    how.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="of a Dask cluster that is running; without it --engine dask starts its own",
    )
    how.add_argument(
        "--tmp",
        type=Path,
        metavar="DIR",
        help="folder for temporary files; the output's by default",
    )
    how.add_argument(
        "--keep-going",
        action="store_true",
        help="leave out reports that cannot be read, and name them; exit status 1 if there was one",
    )
    tell = main.add_argument_group("information")
    tell.add_argument(
        "--list", action="store_true", help="print what each report holds and convert nothing"
    )
    tell.add_argument(
        "--kinds", action="store_true", help="print the kinds of events that -t takes"
    )
    tell.add_argument(
        "--report",
        action="store_true",
        help="analyse the job too: print tables as `nsys2prv report` does, and write OUTPUT.report.json and .html",
    )
    tell.add_argument(
        "-q",
        "--quiet",
        action="store_true",
        help="no progress and no summary; warnings and errors only",
    )
    tell.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="tell everything that was noticed, and all events by kind",
    )
    tell.add_argument(
        "--version", action=_Version, nargs=0, help="the version and, in a checkout, its commit"
    )
    add_habits(main)
    return main


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    try:
        return _status(arguments)
    except signals.Ended as ended:
        complain("error", str(ended))
        return ended.exit_code
    finally:
        signals.ignore()


def _status(arguments: Sequence[str] | None) -> int:
    """The same. May raise :class:`nsys2prv._util.signals.Ended`."""
    keep_freed_memory()
    # Before numpy is imported: its matrices here are of a few rows, and it starts a thread for
    # every CPU.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    given = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        if not {"-h", "--help", "--version"} & {*given} and given[:1] != ["help"]:
            check_address_space()
        command = COMMANDS.get(given[0]) if given else None
        if given and not command:
            check_command(given[0], COMMANDS)
        status = command(given[1:]) if command else _convert(given)
        sys.stdout.flush()
        return status
    except Nsys2prvError as error:
        complain("error", str(error))
        return error.exit_code
    except KeyboardInterrupt:
        complain("error", "interrupted; nothing was written")
        return 130
    except MemoryError:
        complain("error", "out of memory; try fewer workers, -j 1")
        return 1
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except OSError as error:
        # What cannot be printed: a conversion names its own files.
        print(f"nsys2prv: error: standard output: {error.strerror or error}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1


def _min_duration(text: str) -> tuple[str, int, str]:
    """[KIND=]NS as a kind, nanoseconds, and as it was given."""
    kind, equals, duration = text.strip().rpartition("=")
    try:
        return kind if equals else "all", parse_duration(duration), text
    except ValueError:
        raise UsageError(
            f"--min-duration {text}: give a kind and a duration, as in osrt=500, osrt=10us or kernels=1ms"
        ) from None


def _convert(given: list[str]) -> int:
    options = parser()
    return run(options.parse_intermixed_args(joined_kinds(given)))


def run(options: argparse.Namespace) -> int:
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
            f"give at least one report and the trace to write: nsys2prv REPORT... OUTPUT{example} (more with --help){version}"
        )
    check_conversion(options.paths, options.trace)
    *given, output = options.paths
    if named_as_report(Path(output)) or is_archive(Path(output)):
        raise UsageError(
            f"{output}: the last argument is the trace to write, but this is a report or a store of some; "
            "add a name, as in out.prv"
        )
    reports = reports_meant(given)
    start_workers(reports, options.engine, options.jobs)
    with importing():
        from nsys2prv.conversion.convert import convert

    summary = convert(reports, output, as_options(options), _write_report)
    warn(summary.warnings)
    if not options.quiet:
        print(printable(summary.text(options.verbose)))
        if summary.report:
            print(printable(f"\n{summary.report}"))
    for line in summary.unread:
        complain("error", f"left out: {line}")
    return int(bool(summary.unread))


def _write_report(*given: object, **more: object) -> str:
    from nsys2prv.cli.report import write_report_files

    return write_report_files(*given, **more)


def as_options(arguments: argparse.Namespace) -> Options:
    """Return the options given on the command line, by the names of the fields of Options, except
    those that need translation.
    """
    if arguments.jobs < 0:
        raise UsageError("-j takes a number of processes, or 0 for one per CPU")
    from nsys2prv.conversion.options import Options
    from nsys2prv.events.selection import least_durations

    signals.raise_ended()
    given = {
        field.name: getattr(arguments, field.name)
        for field in fields(Options)
        if hasattr(arguments, field.name)
    }
    durations = arguments.min_duration
    least_durations(
        {kind: least for kind, least, _ in durations}, {kind: typed for kind, _, typed in durations}
    )
    given |= {
        "kinds": tuple(filter(None, ",".join(arguments.trace).split(","))),
        "full_kernel_names": arguments.kernel_names == "full",
        "min_duration": {kind: least for kind, least, _ in durations},
        "demanded": tuple(arguments.demanded),
        "base_pcf": tuple(arguments.base_pcf),
        "cut": cut_of(arguments),
        "metadata": not arguments.no_metadata,
    }
    return Options(**given)


def warn(warnings: Sequence[str]) -> None:
    for warning in warnings:
        complain("warning", warning)


def complain(severity: str, text: str) -> None:
    print(f"nsys2prv: {severity}: {one_line(text)}", file=sys.stderr)


def _list(paths: list[str]) -> int:
    if not paths:
        raise UsageError("--list takes reports")
    from nsys2prv.cli.listing import described

    signals.raise_ended()
    check_reports("--list", paths)
    text, warnings = described(reports_meant(paths))
    print(printable(text))
    warn(warnings)
    return 0


def _kinds() -> int:
    from nsys2prv.events import all_kinds

    for kind in all_kinds():
        print(
            f"{kind.name:<22} {kind.title}"
            + (f"; also: {', '.join(kind.groups)}" if kind.groups else "")
            + (f"; comes along with: {', '.join(kind.along)}" if kind.along else "")
            + (f"; only by its name or {kind.on_demand}" if kind.on_demand else "")
        )
    return 0


def _cfgs(arguments: list[str]) -> int:
    from nsys2prv.paraver import views

    cfgs = Parser(
        "nsys2prv cfgs",
        allow_abbrev=False,
        description="List the Paraver views that come with nsys2prv, or write them to DIR.",
    )
    cfgs.add_argument(
        "folder",
        nargs="?",
        type=Path,
        metavar="DIR",
        help="where to write them, with workspaces by which Paraver offers them",
    )
    cfgs.add_argument(
        "--for",
        dest="trace",
        type=Path,
        metavar="TRACE",
        help="list those that show something of a .prv or .prv.gz; with DIR: write them for this trace, so that views of "
        "all NVTX domains open faster",
    )
    cfgs.add_argument(
        "--all", action="store_true", help="list every view, not the most important ones alone"
    )
    options = cfgs.parse_args(arguments)
    if options.all and options.folder:
        raise UsageError("--all is for lists; DIR gets all views anyway")
    if options.folder:
        check_folder_of_views(options.folder)
    if options.trace:
        check_traces("cfgs --for", [str(options.trace)])
    if options.trace and not options.folder:
        print(
            "\n".join(
                views.format_views(options.trace, views.views_for_trace(options.trace), options.all)
            )
        )
    elif options.folder:
        copied, workspaces = views.copy_to(options.folder, options.trace)
        print(f"{len(copied)} views written to {options.folder}")
        print(
            "to have Paraver offer them under Hints: File > Preferences > Workspaces, button `Import workspaces`, and choose "
            f"the {len(workspaces)} files in {(options.folder / views.WORKSPACES).resolve()}"
        )
    else:
        print("\n".join([*views.views(), *(views.extra_views() if options.all else [])]))
    return 0


def _clock(arguments: list[str]) -> int:
    from nsys2prv._util.files import check_not_read
    from nsys2prv.conversion.clock_text import causal_lines, load, plot, table

    clock = Parser(
        "nsys2prv clock",
        allow_abbrev=False,
        description="How the clocks of hosts were aligned, from a trace's clock file.",
    )
    clock.add_argument("file", type=Path, metavar="FILE.clock.yaml")
    clock.add_argument(
        "--plot",
        type=Path,
        metavar="FILE.png",
        help="draw what was observed, before and after (needs matplotlib)",
    )
    options = clock.parse_args(arguments)
    if is_trace(str(options.file)):
        raise UsageError(
            f"{options.file}: is a trace; its clock file, if it has several hosts, ends in .clock.yaml"
        )
    if options.plot:
        check_not_read([options.plot], [options.file])
    record = load(options.file)
    print(printable("\n".join([*table(record), *causal_lines(record.causal), *record.warnings])))
    if options.plot:
        plot(record, options.plot)
        print(options.plot)
    return 0


def _check(arguments: list[str]) -> int:
    from nsys2prv.paraver.check import check
    from nsys2prv.paraver.check.result import lines

    asked = Parser(
        "nsys2prv check",
        allow_abbrev=False,
        description="Tell what in Paraver traces, whoever wrote them, would crash, hang or mislead Paraver (docs/checks.md).",
    )
    asked.add_argument(
        "traces",
        nargs="+",
        metavar="TRACE",
        help="a .prv or .prv.gz; its .pcf and .row are taken from beside it",
    )
    asked.add_argument("--strict", action="store_true", help="exit status 1 for warnings too")
    asked.add_argument(
        "--json", action="store_true", help="print a JSON list with an object for each trace"
    )
    options = asked.parse_args(arguments)
    check_traces("check", options.traces)
    results = []
    for trace in options.traces:
        results.append(check(trace))
        if not options.json:
            print(printable("\n".join(lines(results[-1]))))
    if options.json:
        print(json.dumps([result.data() for result in results], indent=1))
    return int(any(result.errors or (options.strict and result.warnings) for result in results))


def _report(arguments: list[str]) -> int:
    from nsys2prv.cli.report import report

    options = Parser(
        "nsys2prv report",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="What holds a job back, and by whom; then efficiencies, overlap, late ranks, kernels, operations, idle time and "
        "metrics, in tables.\n\n"
        "examples:\n  nsys2prv report rank*.sqlite\n  nsys2prv report run/ --html run.html\n"
        "  nsys2prv report run/ --only efficiencies,overlap --json run.json",
    )
    _check_reports(options, arguments)
    text, warnings = report(options, arguments)
    warn(warnings)
    print(printable(text))
    return 0


def _diff(arguments: list[str]) -> int:
    from nsys2prv.cli.report import diff

    options = Parser(
        "nsys2prv diff",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Two jobs side by side: what got faster and slower.\n\nexamples:\n  nsys2prv diff before/ after/\n"
        "  nsys2prv diff before.json after.json     (as `nsys2prv report --json` writes them)",
    )
    _check_reports(options, arguments)
    text, status = diff(options, arguments)
    print(printable(text))
    return status


def _check_reports(options: Parser, arguments: list[str]) -> None:
    check_reports(
        options.prog.partition(" ")[2], [one for one in arguments if not one.startswith("-")]
    )


def _help(arguments: list[str]) -> int:
    """`nsys2prv help [COMMAND]`."""
    if not arguments or arguments[0] == "help":
        parser().print_help()
        return 0
    if arguments[0] not in COMMANDS:
        near = get_close_matches(arguments[0].lower(), COMMANDS, 1)
        raise UsageError(
            f"{arguments[0]}: there is no such command; "
            + (
                f"did you mean `nsys2prv help {near[0]}`?"
                if near
                else f"there are {', '.join(COMMANDS)}"
            )
        )
    return COMMANDS[arguments[0]](["--help"])


#: What stands before everything else on the command line.
COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "cfgs": _cfgs,
    "check": _check,
    "clock": _clock,
    "report": _report,
    "diff": _diff,
    "extract": stores.extract,
    "merge": stores.merge,
    "help": _help,
}
