"""Options of a conversion, and its plan: the options, checked before any file of the job is
touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import polars as pl
from msgspec import Struct, field
from msgspec.structs import replace

from nsys2prv._util import workers
from nsys2prv._util.errors import UsageError
from nsys2prv.clock.clock_file import ClockRecord
from nsys2prv.conversion import timeline
from nsys2prv.conversion.cut_plan import CutOptions, CutPlan, add_regions
from nsys2prv.events.cpu import check_callstack
from nsys2prv.events.extraction import ReadingSettings
from nsys2prv.events.names.classes import load_rules
from nsys2prv.events.names.nvtx import load_rules as load_nvtx_rules
from nsys2prv.events.selection import Selection, parse_least_durations, select_kinds
from nsys2prv.paraver.pcf import read_base_names


class Options(Struct, frozen=True):
    """Options of a conversion; the defaults are those of the command line.

    kinds: kinds of events by the names that -t takes; all if empty.
    compress: write a .prv.gz instead of a .prv.
    full_kernel_names: label kernels by their full demangled names.
    jobs: number of workers, 0 for one per CPU. A script that asks for more than one needs the usual
    `if __name__ == "__main__":`.
    tmp: folder for temporary files; None for the folder of the output.
    quiet: show no progress.
    min_duration: kind of event -> nanoseconds; shorter ranges of it are left out.
    kernel_rules: file of rules for kernel classes, tried before the built-in ones.
    align: how to align the clocks of hosts: "auto", "nccl", "mpi", "utc", "none", or a clock file.
    causal: move ranks where their events still contradict causality.
    demanded: kinds that are not converted by default, in addition to the others.
    callstack: number of functions of each CPU sample, 1 to 32.
    nvtx_rules: file of rules for NVTX names, tried before the built-in ones; "none" for no rules.
    base_pcf: .pcf files of earlier traces; names keep the values that they have there.
    states: write states of threads and streams.
    cut: the part of the job to convert, and what to leave out of it.
    metadata: write OUTPUT.nsys2prv.json, which says what the trace was made of.
    engine: what runs the workers: "local", "processes", "threads", "dask" or "mpi".
    scheduler: address of Dask's scheduler, for the engine "dask".
    report: also analyse the job: tables in the summary's `report`, and OUTPUT.report.json and .html.
    keep_going: convert what can be read; the summary's `unread` lists the other reports.
    without_paths: write file names without folders, of the reports and of files the program accessed.
    """

    kinds: tuple[str, ...] = ()
    compress: bool = False
    full_kernel_names: bool = False
    jobs: int = 1
    tmp: Path | None = None
    quiet: bool = True
    min_duration: Mapping[str, int] = field(default_factory=dict)
    kernel_rules: Path | None = None
    align: str = timeline.AUTO
    causal: bool = False
    demanded: tuple[str, ...] = ()
    callstack: int = 1
    nvtx_rules: str | Path | None = None
    base_pcf: tuple[Path, ...] = ()
    states: bool = False
    cut: CutOptions = field(default_factory=CutOptions)
    metadata: bool = True
    engine: str = workers.DEFAULT
    scheduler: str | None = None
    report: bool = False
    keep_going: bool = False
    without_paths: bool = False


#: What is done unless something else is asked for.
DEFAULTS = Options()


def choose_options(options: Options | None, fields: Mapping[str, object]) -> Options:
    """Return the options (None: the defaults) with single fields, by name, as asked. Raises
    UsageError for a name that is none.
    """
    if unknown := set(fields).difference(Options.__struct_fields__):
        raise UsageError(
            f"{', '.join(sorted(unknown))}: no such option; there are {', '.join(Options.__struct_fields__)}"
        )
    return replace(options or DEFAULTS, **fields)


class Plan(Struct, frozen=True):
    """Checked options: what to read and how to place it. Made by :meth:`from_options`, which raises before
    any file is touched.
    """

    #: Kinds of events to read.
    selection: Selection
    #: Settings of reading.
    settings: ReadingSettings
    #: How clocks are aligned.
    method: str | ClockRecord
    #: Name set -> values of names in earlier traces; None where none was given.
    base: Mapping[str, pl.DataFrame] | None
    #: What to leave out.
    cut: CutPlan
    #: The options as given.
    options: Options

    @classmethod
    def from_options(cls, options: Options) -> Plan:
        """Check the options and make a plan of them. Raises UsageError, or Nsys2prvError for a file
        of rules or clocks that cannot be read.
        """
        settings = ReadingSettings(
            least=parse_least_durations(options.min_duration),
            rules=load_rules(options.kernel_rules),
            nvtx_rules=load_nvtx_rules(options.nvtx_rules),
            callstack=check_callstack(options.callstack),
        )
        method = timeline.parse_method(options.align)
        kinds = options.kinds.split(",") if isinstance(options.kinds, str) else options.kinds
        if options.causal and method == timeline.NONE:
            raise UsageError(
                "--causal moves ranks against each other, --align none leaves them as they are: give one of them"
            )
        base = read_base_names(options.base_pcf) if options.base_pcf else None
        selection, cut = add_regions(
            select_kinds(kinds, options.demanded), CutPlan.from_options(options.cut)
        )
        return cls(selection, settings, method, base, cut, options)
