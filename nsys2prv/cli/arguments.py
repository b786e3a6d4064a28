"""The options of a conversion: their declarations, and the `Options` made of them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from msgspec import Struct
from msgspec.structs import asdict

from nsys2prv._util import errors
from nsys2prv._util.errors import UsageError
from nsys2prv._util.text import parse_duration
from nsys2prv.cli.parsing import Parser, split_entries

if TYPE_CHECKING:
    from nsys2prv.conversion.options import CutOptions, Options

DESCRIPTION = """Write one Paraver trace of a whole parallel GPU job from its NVIDIA Nsight Systems reports, one per rank.

examples:
  nsys2prv rank*.sqlite job.prv
      convert the reports of a job to job.prv, job.pcf and job.row; to job.pftrace, for Perfetto
  nsys2prv -t kernels,nvtx --time 10s:20s reports/ small.prv
      convert only kernels and NVTX ranges, and ten seconds, of the reports in a folder
  nsys2prv report rank*.sqlite --html job.html
      write no trace, but show what holds the job back, as tables and a web page

commands (`nsys2prv help COMMAND` lists its options):
  nsys2prv REPORT... OUTPUT     convert reports to a trace
  nsys2prv --list REPORT...     show what the reports hold, in one table
  nsys2prv report REPORT...     show what holds the job back, and tables; --html FILE and --json FILE write all of it
  nsys2prv study RUN RUN...     compare runs on several numbers of GPUs: speed-up, POP's efficiencies, regions
  nsys2prv cfgs [DIR]           list the Paraver views, or write them to DIR; --for TRACE lists those to begin with
  nsys2prv diff A B             compare two jobs; --fail-above 5% for scripts
  nsys2prv check TRACE...       find what would crash or mislead Paraver in a trace
"""
EPILOG = """A report is a .sqlite file or a folder of Parquet files written by `nsys export`, or a .nsys-rep file if nsys is installed.
A folder means all reports in it; a quoted pattern ('run/rank*.sqlite') means all that match.

Exit status: 0 done, 1 error (of some reports, with --keep-going), 2 usage, 3 nothing to write in the reports, \
4 the second job is slower (diff --fail-above), 130 interrupted, 128 + n ended by signal n."""
#: The options, as Parser.add_arguments reads them.
OPTIONS = """
what to print
  --list
      print what each report holds, and convert nothing
  --kinds
      print the kinds of events that -t accepts
  --report
      also analyse the job: print what `nsys2prv report` prints, and write OUTPUT.report.json and
      OUTPUT.report.html
  -q --quiet
      print only warnings and errors
  -v --verbose
      also print notes that need no action, and the number of events of each kind
  --version
      print the version and the commit it was made from
which events to convert
  -t --trace KINDS ...
      only these kinds of events, separated by commas, as in kernels,nccl,nvtx; -KIND leaves one out;
      default: all that --kinds lists, except those that have to be asked for
  --min-duration [KIND=]NS ...
      leave out ranges shorter than this, of one kind or of all, in nanoseconds or with a unit, as in osrt=10us;
      default: keep all; repeatable
  --callstack N
      write N functions of each CPU sample, innermost first (1 to 32; default: 1)
  --project-nvtx
      also write NVTX push/pop ranges on the GPU streams, around the work launched in them (docs/nvtx.md)
  --states
      write states of threads and streams (Running, Memory transfer, ...) as Extrae does; default: no states;
      POP's BasicAnalysis reads a trace with states as one of Extrae
a part of the job (docs/cutting.md)
  --time FROM:TO
      only this time of the job, in seconds, with a unit (ns, us, ms, s) or in %%; one end may be left
      out, as in 10:
  --region NVTX[:N]
      only from the first begin to the last end of the NVTX ranges with this name (a glob pattern);
      NAME:N takes the N-th on each thread, NAME:N-M the N-th to M-th, counted from 1
  --keep-time
      keep the times of the whole trace; default: the part begins at 0
  --ranks LIST ...
      only these ranks, as in 0-7,64
  --hosts LIST ...
      only reports of these hosts, as in node01,'gpu*'
  --devices LIST ...
      only these GPUs: their numbers, or the first 6 or more characters of their UUIDs
  --no-args
      write events without their attributes
  --args KIND=NAMES ...
      write these attributes of this kind, as in kernels=class,registers, or kernels=all; default: all, but of
      kernels their launch configuration in one value; `--args all` writes all of every kind; repeatable
  --no-lines
      write no communication lines
  --sample KIND=N ...
      keep at most N samples per second of each metric of this kind; default: all; repeatable
clocks of several hosts (docs/clocks.md)
  --align METHOD
      align the hosts' clocks by auto (default: NCCL and MPI), nccl, mpi, utc (recorded UTC), none (leave local
      times), or by the clock file of an earlier trace
names of kernels and ranges
  --kernel-names {short,full}
      label kernels by their short names (default) or their full demangled names
  --kernel-rules FILE
      classify kernels by the rules in this file first, then by the built-in ones (docs/kernel-classes.md)
  --nvtx-rules FILE
      rename or drop NVTX ranges by the rules in this file first, then by the built-in ones; `none` leaves all
      names as they are (docs/nvtx.md)
  --base-pcf FILE ...
      give names the values that they have in the .pcf of an earlier trace; repeatable, earlier ones first
what to write
  -z --compress
      write .prv.gz instead of .prv (.pftrace.gz instead of .pftrace)
  --no-paths
      write file names without folders: of the reports, and of files that the program accessed
  --no-metadata
      do not write OUTPUT.nsys2prv.json (inputs, options, account of all rows)
how to run
  -j --jobs N
      number of workers; default: one per CPU
  --tmp DIR
      folder for temporary files; default: the folder of the trace, or the system's
  --keep-going
      leave out reports that cannot be read, name them, and exit with status 1
  --engine NAME
      run the workers as local (default: threads for up to 4 workers and 16 reports, else processes), threads,
      processes, dask (a cluster) or mpi (the ranks of this MPI job)
  --scheduler ADDRESS
      with --engine dask, use the cluster of this scheduler; default: start one
  -m --multi-report
      no effect, accepted for compatibility: several reports always make one trace
"""


def pick_options(*names: str, title: str = "") -> str:
    """Return the declarations of some options of a conversion, for another command that has them."""
    picked = [
        entry
        for entry in split_entries(OPTIONS)
        if set(names) & set(entry.split("\n", 1)[0].split())
    ]
    assert len(picked) == len(names), names
    return "\n".join((*filter(None, [title]), *picked, ""))


#: Options of BSC's nsys2prv that do not exist here, separated by blanks -> what to do instead.
LEGACY_OPTIONS = {
    "-f --filter-nvtx": "use --region NVTX[:N]: of ranges of this name in all domains the N-th on each thread, from 1",
    "--time-limit-start --time-limit-end": "use --time STARTns:ENDns, in the time of the trace, not each report's own",
    "-s --sort": "nothing is needed, traces are always sorted by time",
    "--force-sqlite": "nothing is needed, reports that are exported already are read as they are",
    "-N --thread-name": "nothing is needed, threads have their names in the .row wherever a report tells them",
    "-c --clean": "nothing is needed, no exports or temporary files are left behind",
    "--exclude-kernels": "use -t -kernels",
    "--filter-cuda-calls-duration": "use --min-duration cuda_api_trace=NS",
    "--timing": "use a profiler such as py-spy",
    "--dry-run": "use --list REPORT..., which converts nothing",
    "--config": "use options of the command line, and --nvtx-rules FILE for names of NVTX ranges",
    "-L --label --description-text --description-file": "labels and descriptions are not taken",
}


class _RefuseLegacyOption(argparse.Action):
    """Refuses an option of BSC's nsys2prv; its constant says what to do instead."""

    def __call__(self, parser: object, namespace: object, values: object, name: str) -> NoReturn:
        raise UsageError(
            f"{name} is an option of BSC's nsys2prv; here {self.const} (docs/from-bsc.md)"
        )


class _Version(argparse.Action):
    """Prints the version."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from nsys2prv._util.version import format_version

        print(format_version(Path(__file__).parents[1]))
        parser.exit()


def _parse_min_duration(text: str) -> tuple[str, int]:
    """Parse [KIND=]NS into a kind and nanoseconds."""
    kind, equals, duration = text.strip().rpartition("=")
    try:
        return kind if equals else "all", parse_duration(duration)
    except ValueError:
        raise UsageError(
            f"--min-duration {text}: give a kind and a duration, as in osrt=500, osrt=10us or kernels=1ms"
        ) from None


def _parse_fields(text: str) -> tuple[str, tuple[str, ...]]:
    kind, _, names = text.partition("=") if text != "all" else (text, "", text)
    if not kind or not names:
        raise UsageError(
            f"--args {text}: give a kind and names of its attributes, as in kernels=class,registers or kernels=all"
        )
    return kind, tuple(name.strip() for name in names.split(",") if name.strip())


def _parse_rate(text: str) -> tuple[str, int]:
    kind, _, rate = text.partition("=")
    if not kind or not rate.isdecimal() or len(rate) > 10:
        raise UsageError(
            f"--sample {text}: give a kind and how many samples a second may stay, as in gpu_metrics=100"
        )
    return kind, int(rate)


def _parse_jobs(text: str) -> int:
    if not text.isdecimal() or int(text[:9]) < 1:
        raise UsageError(
            f"-j {text}: give the number of workers, 1 or more; without -j there is one for each CPU"
        )
    return int(text[:9])


def _list_setting(option: str) -> dict[str, Any]:
    """Return argparse's settings for an option that takes lists separated by commas."""

    def split(text: str) -> list[str]:
        entries = [word.strip() for word in text.split(",")]
        if not all(entries):
            raise UsageError(f"{option} {text}: an entry of the list is empty")
        return entries

    return {"type": split, "action": "extend"}


#: Option -> further settings for argparse. The name of its value is the field of Options or
#: CutOptions that it sets.
CONVERSION_SETTINGS: dict[str, dict[str, Any]] = {
    "--version": {"action": _Version, "nargs": 0},
    "--min-duration": {"type": _parse_min_duration},
    "--callstack": {"type": int, "default": 1},
    "--project-nvtx": {
        "action": "append_const",
        "dest": "demanded",
        "const": "nvtx_on_gpu",
        "default": [],
    },
    "--states": {"action": argparse.BooleanOptionalAction, "default": False},
    "--time": {"default": ""},
    "--region": {"default": ""},
    "--ranks": _list_setting("--ranks"),
    "--hosts": _list_setting("--hosts"),
    "--devices": _list_setting("--devices"),
    "--no-args": {"dest": "arguments", "action": "store_false"},
    "--args": {"dest": "fields", "type": _parse_fields},
    "--no-lines": {"dest": "lines", "action": "store_false"},
    "--sample": {"dest": "rates", "type": _parse_rate},
    "--align": {"default": "auto"},
    "--kernel-names": {"default": "short"},
    "--kernel-rules": {"type": Path},
    "--base-pcf": {"type": Path},
    "--no-paths": {"dest": "without_paths"},
    "--no-metadata": {"dest": "metadata", "action": "store_false"},
    "--jobs": {"type": _parse_jobs, "default": 0},
    "--tmp": {"type": Path},
    "--engine": {"default": "local"},
}


def make_conversion_parser() -> Parser:
    """Return the parser of a conversion."""
    main = Parser(
        "nsys2prv",
        description=DESCRIPTION,
        usage="nsys2prv [options] REPORT... OUTPUT",
        epilog=EPILOG,
    )
    main.add_argument(
        "paths",
        nargs="*",
        metavar="REPORT... OUTPUT",
        help="the reports (files, folders, quoted patterns), then the trace to write: out.prv for Paraver, out.pftrace for Perfetto (with .gz: compressed)",
    )
    main.add_arguments(OPTIONS, CONVERSION_SETTINGS)
    unseen: dict[str, Any] = {"help": argparse.SUPPRESS, "default": argparse.SUPPRESS, "nargs": "?"}
    for names, instead in LEGACY_OPTIONS.items():
        main.add_argument(*names.split(), action=_RefuseLegacyOption, const=instead, **unseen)
    return main


def make_options(arguments: argparse.Namespace) -> Options:
    """Return the options given on the command line."""
    from nsys2prv.conversion.options import Options

    errors.raise_on_signal()
    chosen = _choose_fields(Options, arguments)
    chosen["kinds"] = parse_kinds(arguments.trace)
    chosen["full_kernel_names"] = arguments.kernel_names == "full"
    return Options(**chosen, cut=make_cut_options(arguments))


def make_cut_options(arguments: argparse.Namespace) -> CutOptions:
    """Return the cut options that the arguments ask for; a report has only those that select."""
    from nsys2prv.conversion.options import CutOptions

    return CutOptions(**_choose_fields(CutOptions, arguments))


def _choose_fields(struct: type[Struct], arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments that are called as fields."""
    defaults = asdict(struct())
    chosen = {name: vars(arguments)[name] for name in defaults if name in arguments}
    # What may be given several times: pairs, or values.
    repeated = [name for name, value in chosen.items() if isinstance(value, list)]
    return chosen | {name: type(defaults[name])(chosen[name]) for name in repeated}


def join_kind_options(arguments: list[str]) -> list[str]:
    """Join `-t -nvtx` to one word: argparse would take `-nvtx` for an option."""
    joined: list[str] = []
    waiting = iter(arguments)
    for argument in waiting:
        if argument in ("-t", "--trace"):
            value = next(waiting, None)
            joined.append(argument if value is None else f"--trace={value}")
        else:
            joined.append(argument)
    return joined


def parse_kinds(lists: Sequence[str]) -> tuple[str, ...]:
    """Return the values of -t, one by one. Raises UsageError where -t is given and names none, as
    with a variable that is not set.
    """
    kinds = tuple(word.strip() for text in lists for word in text.split(",") if word.strip())
    if lists and not kinds:
        raise UsageError(
            "-t names no kind of events; write them, as in -t kernels,nvtx, or leave -t out to have all"
        )
    return kinds
