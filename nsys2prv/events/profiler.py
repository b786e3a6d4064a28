"""Events of profiling itself: messages of Nsight Systems, and its overhead on the profiled threads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsys2prv._util.columns import ABSENT, factorize
from nsys2prv.events.extraction import Extraction
from nsys2prv.events.kind import EventKind, RowRules, Rows
from nsys2prv.events.reasons import Reason
from nsys2prv.nsight.capture import NO_PROCESSES, TABLE, capture_span, main_process, shorten_message
from nsys2prv.nsight.source import NULL, Part, decode_texts

SEVERITIES, SOURCES, UNKNOWN = range(1, 5), range(1, 4), 99


def extract_messages(extraction: Extraction, part: Part) -> Iterator[Rows]:
    columns = extraction.read(
        part, ("timestamp", "source", "severity", "globalPid"), ("text",), times=()
    )
    if not columns.rows:
        return
    if TABLE not in extraction.state_between_parts:
        extraction.state_between_parts[TABLE] = (
            main_process(extraction.database),
            capture_span(extraction.database, extraction.report.capture),
        )
    main, (first, last) = extraction.state_between_parts[TABLE]
    pids = columns["globalPid"]
    of_none = (pids == NULL) | np.isin(pids >> 24 & 0xFFFFFF, NO_PROCESSES)
    threads = extraction.main_threads(np.where(of_none, 0 if main is None else main, pids))
    codes, texts = columns.texts["text"]
    known = columns["timestamp"] != NULL
    begin = np.where(known, np.clip(columns["timestamp"], first, last), NULL)
    outside = int((begin != columns["timestamp"]).sum())
    if outside:
        extraction.account.repaired[Reason.MOVED_TO_CAPTURE] += outside
    yield Rows(
        "diagnostic",
        begin,
        np.where(known, begin + 1, NULL),
        extraction.threads(threads),
        {
            "severity": _known_or_other(columns["severity"], SEVERITIES),
            "source": _known_or_other(columns["source"], SOURCES),
            "text": extraction.name(
                "diagnostics",
                codes,
                text=[shorten_message(text) for text in decode_texts(texts.series)],
            ),
        },
    )


def _known_or_other(column: np.ndarray, values: range) -> np.ndarray:
    return np.where(np.isin(column, values), column, UNKNOWN)


TABLES = ("PROFILER_OVERHEAD", "CUPTI_ACTIVITY_KIND_OVERHEAD")
KNOWN, OTHER = range(1, 9), 99


def extract_overhead(extraction: Extraction, part: Part) -> Iterator[Rows]:
    """Yield overhead; overheadType, in exports since schema 3.24, is 0 where the name says all."""
    columns = extraction.read(part, ("start", "end", "globalTid", "nameId", "overheadType"))
    if not columns.rows:
        return
    ids, codes = factorize(columns["nameId"])
    types = columns["overheadType"]
    yield Rows(
        "profiler_overhead",
        columns["start"],
        columns["end"],
        extraction.threads(columns["globalTid"]),
        {
            "what": extraction.name("profiler_overhead", codes, text=extraction.strings(ids)),
            "type": np.where(types <= 0, ABSENT, np.where(np.isin(types, KNOWN), types, OTHER)),
        },
    )


KINDS = (
    EventKind(
        "diagnostics",
        "Messages of Nsight Systems",
        "main thread of the process",
        (TABLE,),
        ("diagnostic",),
        extract_messages,
        groups=("profiler",),
        rows=RowRules(has_duration=False, extends_trace=False),
    ),
    EventKind(
        "profiler_overhead",
        "Profiler overhead",
        "host thread",
        TABLES,
        ("profiler_overhead",),
        extract_overhead,
        groups=("profiler",),
        rows=RowRules(extends_trace=False),
    ),
)
