"""What can be asked of a conversion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nsys2prv._util import engines
from nsys2prv.conversion import timeline
from nsys2prv.conversion.cut.asked import CutOptions


@dataclass(frozen=True)
class Options:
    """How to convert.

    kinds: names as -t takes them, empty for all. jobs: workers, 0 for one per CPU (a script that
    asks for more than one needs the usual `if __name__ == "__main__":`). tmp: folder for temporary
    files, by default the output's. min_duration: such names -> ns; shorter ranges of these kinds
    are dropped. kernel_rules: a file of rules of kernel classes that come before nsys2prv's own.
    align: how to align the clocks of hosts, one of methods.METHODS or a clock file. causal: move
    ranks where their events still contradict each other. demanded: kinds of events that are
    translated on demand only, beside the others. callstack: frames of each CPU sample. nvtx_rules:
    a file of rules of NVTX names that come before nsys2prv's own, or "none" for no rules at all.
    base_pcf: .pcf files of earlier traces, whose names keep their values here. states: say of every
    row what state it is in at every time. engine: who does the work, one of engines.ENGINES;
    scheduler: address of Dask's. report: analyse the job too; the tables are in the summary's
    `report`, everything in <trace>.report.json and .html. cut: what is left out. metadata: write
    beside the trace of what it was made. keep_going: convert what can be read; the summary's
    `unread` has the rest. without_paths: write files by their names alone, without their folders:
    the inputs, and the files that the program accessed.
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
    engine: str = engines.DEFAULT
    scheduler: str | None = None
    report: bool = False
    keep_going: bool = False
    without_paths: bool = False


#: What is done unless something else is asked for.
DEFAULTS = Options()
