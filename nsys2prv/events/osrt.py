"""OS runtime calls and pthread calls on their host threads. Nsight Systems keeps both in one table; the name tells them apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from nsys2prv.columns import factorize
from nsys2prv.events.extraction import Extraction
from nsys2prv.events.kind import EventKind, Rows
from nsys2prv.report.info import ReportInfo
from nsys2prv.report.source import Part

TABLE = "OSRT_API"
COLUMNS = ("start", "end", "globalTid", "nameId", "nestingLevel")
#: Rows of other classes (31, 32) are no calls: they mark, on thread 0, where the tracing of a process began and ended.
CALLS = "coalesce({eventClass}, 27) = 27"
OF_PTHREAD = "coalesce({nameId} IN (SELECT id FROM StringIds WHERE value GLOB 'pthread*'), 0)"


def of_pthread(info: ReportInfo) -> str:
    """The condition for pthread calls."""
    return f"{CALLS} AND {OF_PTHREAD}" if "StringIds" in info.parts else "0"


def of_others(info: ReportInfo) -> str:
    """The condition for OS runtime calls; those without a name are such."""
    return f"{CALLS} AND NOT {OF_PTHREAD}" if "StringIds" in info.parts else CALLS


def reader(layout: str) -> Callable[[Extraction, Part], Iterator[Rows]]:
    """The extraction of calls into a layout."""

    def extract(extraction: Extraction, part: Part) -> Iterator[Rows]:
        columns = extraction.read(part, COLUMNS)
        if not columns.rows:
            return
        begin, end, thread, name = (columns[column] for column in COLUMNS[:4])
        if _any_together(begin):
            # A call within a call may begin and end with it: what is stored later counts as the inner one.
            order = np.argsort(columns["nestingLevel"], kind="stable")
            begin, end, thread, name = begin[order], end[order], thread[order], name[order]
        ids, codes = factorize(name)
        yield Rows(layout, begin, end, extraction.threads(thread),
                   {"call": extraction.name(layout, codes, text=extraction.strings(ids))})

    return extract


def _any_together(begin: np.ndarray) -> bool:
    """Whether rows may begin at the same time."""
    return not (np.diff(begin) > 0).all()


KINDS = (
    EventKind("osrt", "OS runtime calls", "host thread", (TABLE,), ("osrt",), reader("osrt"), COLUMNS, where=of_others),
    EventKind("pthread", "Pthread calls", "host thread", (TABLE,), ("pthread",), reader("pthread"), COLUMNS, where=of_pthread),
)
