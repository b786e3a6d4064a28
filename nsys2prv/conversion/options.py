"""Options of a conversion, and its plan: the options, checked before any file of the job is touched."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import polars as pl
from msgspec import Struct, field

from nsys2prv._util import engines
from nsys2prv._util.errors import UsageError
from nsys2prv.clock.record import ClockRecord
from nsys2prv.conversion import timeline
from nsys2prv.conversion.cut.asked import CutOptions
from nsys2prv.conversion.cut.plan import CutPlan, add_regions
from nsys2prv.events.cpu import check_callstack
from nsys2prv.events.extraction import Settings
from nsys2prv.events.names.classes import load_rules
from nsys2prv.events.names.nvtx import load_rules as load_nvtx_rules
from nsys2prv.events.selection import Selection, least_durations, select_kinds
from nsys2prv.paraver.values import read_base_names


class Options(Struct, frozen=True):
    """Options of a conversion, by default as on the command line."""

    #: Kinds of events by the names that -t takes; all if empty.
    kinds: tuple[str, ...] = ()
    #: Write a .prv.gz instead of a .prv.
    compress: bool = False
    #: Name kernels by their full demangled names.
    full_kernel_names: bool = False
    #: Number of workers, 0 for one per CPU. A script that asks for more than one needs the usual
    #: `if __name__ == "__main__":`.
    jobs: int = 1
    #: Folder for temporary files; by default the output's.
    tmp: Path | None = None
    #: Show no progress.
    quiet: bool = True
    #: Kind of event -> ns; shorter ranges of it are dropped.
    min_duration: Mapping[str, int] = field(default_factory=dict)
    #: File of rules for kernel classes, tried before nsys2prv's own.
    kernel_rules: Path | None = None
    #: How to align the clocks of hosts: one of methods.METHODS, or a clock file.
    align: str = timeline.AUTO
    #: Move ranks where their events still contradict causality.
    causal: bool = False
    #: Kinds translated on demand only, in addition to the others.
    demanded: tuple[str, ...] = ()
    #: Number of stack frames of each CPU sample.
    callstack: int = 1
    #: File of rules for NVTX names, tried before nsys2prv's own; "none" for no rules at all.
    nvtx_rules: str | Path | None = None
    #: .pcf files of earlier traces, whose names keep their values.
    base_pcf: tuple[Path, ...] = ()
    #: Write state records of every row.
    states: bool = False
    #: Parts of the trace to leave out.
    cut: CutOptions = field(default_factory=CutOptions)
    #: Write a file beside the trace that says what it was made from.
    metadata: bool = True
    #: Executor of the work, one of engines.ENGINES.
    engine: str = engines.DEFAULT
    #: Address of Dask's scheduler.
    scheduler: str | None = None
    #: Analyse the job too: tables in the summary's `report`, everything in <trace>.report.json and
    #: .html.
    report: bool = False
    #: Convert what can be read; the summary's `unread` lists the rest.
    keep_going: bool = False
    #: Write names of files without their folders: of the inputs and of the files that the program
    #: accessed.
    without_paths: bool = False


#: What is done unless something else is asked for.
DEFAULTS = Options()


class Plan(Struct, frozen=True):
    """Checked options: what to read and how to place it. Made by :meth:`of`, which raises before
    any file is touched.
    """

    selection: Selection
    settings: Settings
    method: str | ClockRecord = timeline.AUTO
    causal: bool = False
    full_kernel_names: bool = False
    base: Mapping[str, pl.DataFrame] | None = None
    states: bool = False
    cut: CutPlan = field(default_factory=CutPlan)
    keep_going: bool = False
    without_paths: bool = False

    @classmethod
    def of(cls, options: Options) -> Plan:
        """Check the options and make a plan of them. Raises UsageError, or Nsys2prvError for a file
        of rules or clocks that cannot be read.
        """
        settings = Settings(
            least=least_durations(options.min_duration),
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
        selection, cut = add_regions(select_kinds(kinds, options.demanded), CutPlan.of(options.cut))
        return cls(
            selection,
            settings,
            method,
            options.causal,
            options.full_kernel_names,
            base,
            options.states,
            cut,
            options.keep_going,
            options.without_paths,
        )
