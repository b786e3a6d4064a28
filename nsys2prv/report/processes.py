"""Which processes a report is about, where it also holds what others did on the machine."""

from __future__ import annotations

from nsys2prv.report.diagnostics import NO_PROCESSES
from nsys2prv.report.info import PROCESS_MASK, pid_of
from nsys2prv.report.source import Source

#: Small tables with rows of the processes that Nsight Systems was loaded into, and their columns of global ids.
TELLING = (("PROFILER_OVERHEAD", "globalTid"), ("ProcessStreams", "globalPid"), ("DIAGNOSTIC_EVENT", "globalPid"),
           ("MPI_RANKS", "globalTid"))


def profiled(database: Source) -> frozenset[int]:
    """globalPid of every process that the report profiles; none where it does not tell.

    In exports as Nsight Systems 2021.2 to 2026.2 wrote them every process with rows in tables of traced calls is among these.
    """
    return frozenset(number & PROCESS_MASK for table, column in TELLING for (number,) in database.small(table, column)
                     if isinstance(number, int) and pid_of(number) not in NO_PROCESSES)
