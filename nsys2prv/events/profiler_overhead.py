"""Time that profiling cost, on the threads that paid it: what Nsight Systems and CUPTI say of themselves.

Ranges of it may lie within each other, and within the calls that they lengthen.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsys2prv.columns import ABSENT, factorize
from nsys2prv.events.extraction import Extraction
from nsys2prv.events.kind import EventKind, Rows
from nsys2prv.report.source import Part

TABLES = ("PROFILER_OVERHEAD", "CUPTI_ACTIVITY_KIND_OVERHEAD")
KNOWN, OTHER = range(1, 9), 99


def extract(extraction: Extraction, part: Part) -> Iterator[Rows]:
    """overheadType, in exports since schema 3.24, is 0 where the name says all."""
    columns = extraction.read(part, ("start", "end", "globalTid", "nameId", "overheadType"))
    if not columns.rows:
        return
    ids, codes = factorize(columns["nameId"])
    types = columns["overheadType"]
    yield Rows("profiler_overhead", columns["start"], columns["end"], extraction.threads(columns["globalTid"]), {
        "what": extraction.name("profiler_overhead", codes, text=extraction.strings(ids)),
        "type": np.where(types <= 0, ABSENT, np.where(np.isin(types, KNOWN), types, OTHER)),
    })


KINDS = (
    EventKind("profiler_overhead", "Profiler overhead", "host thread", TABLES, ("profiler_overhead",), extract,
              groups=("profiler",), extends=False),
)
