"""Calls of cuBLAS and cuDNN on the host threads that make them.

Communication libraries (UCX, NVSHMEM, OpenSHMEM) and Python's global interpreter lock have no tables: they are NVTX domains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from nsys2prv.columns import factorize
from nsys2prv.events.extraction import Extraction
from nsys2prv.events.kind import EventKind, Rows
from nsys2prv.report.source import Part


def calls_of(event_class: int) -> str:
    """The condition for calls: rows of other classes mark where tracing began and ended (ENUM_NSYS_EVENT_CLASS)."""
    return f"coalesce({{eventClass}}, {event_class}) = {event_class}"


def reader(layout: str) -> Callable[[Extraction, Part], Iterator[Rows]]:
    """The extraction of calls into a layout."""

    def extract(extraction: Extraction, part: Part) -> Iterator[Rows]:
        columns = extraction.read(part, ("start", "end", "globalTid", "nameId"))
        if not columns.rows:
            return
        ids, codes = factorize(columns["nameId"])
        yield Rows(layout, columns["start"], columns["end"], extraction.threads(columns["globalTid"]),
                   {"call": extraction.name(layout, codes, text=extraction.strings(ids))})

    return extract


KINDS = (
    EventKind("cublas", "cuBLAS calls", "host thread", ("CUBLAS_EVENTS",), ("cublas",), reader("cublas"), where=calls_of(29)),
    EventKind("cudnn", "cuDNN calls", "host thread", ("CUDNN_EVENTS",), ("cudnn",), reader("cudnn"), where=calls_of(28)),
)
