"""Threads that the scheduler and the sampler saw, of whatever process: those of profiled ones get rows, others are counted by name."""

from __future__ import annotations

import numpy as np

from nsys2prv.columns import factorize
from nsys2prv.events.extraction import Extraction
from nsys2prv.report.info import PROCESS_MASK, pid_of
from nsys2prv.report.processes import profiled
from nsys2prv.report.source import NULL, Columns

#: So many other processes are counted by name; a whole machine has hundreds.
MOST_NAMED = 8
UNNAMED = "of further processes that are not profiled"


def of_profiled(extraction: Extraction, columns: Columns) -> Columns:
    """The rows on threads of the processes that the report profiles; all where it does not tell which these are."""
    own = extraction.kept.get("profiled")
    if own is None:
        own = extraction.kept["profiled"] = profiled(extraction.database)
    tids = columns["globalTid"]
    pids, codes = factorize(np.where(tids == NULL, 0, tids & PROCESS_MASK))
    wanted = np.array([not own or int(pid) in own for pid in pids], bool)
    if wanted.all():
        return columns
    for pid, count in zip(pids[~wanted].tolist(), np.bincount(codes, minlength=len(pids))[~wanted].tolist(), strict=True):
        extraction.account.dropped[_reason(extraction, pid)] += count
    return columns.where(wanted[codes])


def _reason(extraction: Extraction, pid: int) -> str:
    report = extraction.report
    main = pid | pid_of(pid)
    name = report.processes.get(pid) or report.threads.get(main) or next(
        (name for tid, name in sorted(report.threads.items()) if tid & PROCESS_MASK == pid), "a process without a name")
    named = extraction.kept.setdefault("other processes", set())
    if name not in named and len(named) >= MOST_NAMED:
        return UNNAMED
    named.add(name)
    return f"of {name}, which is not profiled"
