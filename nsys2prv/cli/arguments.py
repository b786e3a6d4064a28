"""The arguments of a conversion, and the options that they mean."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from nsys2prv._util import signals
from nsys2prv._util.errors import UsageError
from nsys2prv._util.text import parse_duration
from nsys2prv.cli.cut_arguments import add_cut, cut_of
from nsys2prv.cli.legacy import add_habits
from nsys2prv.cli.parsing import Parser

if TYPE_CHECKING:
    from nsys2prv.conversion.options import Options


DESCRIPTION = """Write one Paraver trace of a whole parallel GPU job from its NVIDIA Nsight Systems reports, one per rank.

examples:
  nsys2prv rank*.sqlite job.prv                   convert all reports of a job: job.prv, with job.pcf and job.row beside it
  nsys2prv -t kernels,nvtx --time 10s:20s reports/ small.prv
                                                  kernels and NVTX ranges of ten seconds, of all reports in a folder
  nsys2prv report rank*.sqlite --html job.html    no trace, but efficiencies, late ranks, kernels and idle time, as tables and a page

commands (`nsys2prv help COMMAND` lists its options):
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
        help="accepted for compatibility: several reports are always merged",
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
        help="then repair the remaining causality violations by moving ranks and stretching their times: changes durations",
    )
    what.add_argument(
        "--states",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="write state records (Running, Memory transfer, ...) of every thread and stream, in Extrae's "
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


def _min_duration(text: str) -> tuple[str, int, str]:
    """Parse [KIND=]NS into a kind, nanoseconds, and the text as given."""
    kind, equals, duration = text.strip().rpartition("=")
    try:
        return kind if equals else "all", parse_duration(duration), text
    except ValueError:
        raise UsageError(
            f"--min-duration {text}: give a kind and a duration, as in osrt=500, osrt=10us or kernels=1ms"
        ) from None


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
        name: getattr(arguments, name)
        for name in Options.__struct_fields__
        if hasattr(arguments, name)
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
