"""Messages of Nsight Systems about its own work, on the main thread of the process that they are about.

Those of the daemon and of the analysis that are about no process are on the report's main process. Some are of before the capture
or after it, when the report is made; they stand at its begin or end, for they must not make the trace longer than what it shows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsys2prv.events.extraction import Extraction
from nsys2prv.events.kind import EventKind, Rows
from nsys2prv.report.diagnostics import NO_PROCESSES, TABLE, capture_span, main_process, shortened
from nsys2prv.report.source import NULL, Part, decoded

SEVERITIES, SOURCES, UNKNOWN = range(1, 5), range(1, 4), 99
OUTSIDE = "messages from before or after the capture, moved to its begin or end"


def extract(extraction: Extraction, part: Part) -> Iterator[Rows]:
    columns = extraction.read(part, ("timestamp", "source", "severity", "globalPid"), ("text",), times=())
    if not columns.rows:
        return
    if TABLE not in extraction.kept:
        extraction.kept[TABLE] = main_process(extraction.database), capture_span(extraction.database, extraction.report.capture)
    main, (first, last) = extraction.kept[TABLE]
    pids = columns["globalPid"]
    of_none = (pids == NULL) | np.isin(pids >> 24 & 0xFFFFFF, NO_PROCESSES)
    threads = extraction.main_threads(np.where(of_none, 0 if main is None else main, pids))
    codes, texts = columns.texts["text"]
    known = columns["timestamp"] != NULL
    begin = np.where(known, np.clip(columns["timestamp"], first, last), NULL)
    outside = int((begin != columns["timestamp"]).sum())
    if outside:
        extraction.account.repaired[OUTSIDE] += outside
    yield Rows("diagnostic", begin, np.where(known, begin + 1, NULL), extraction.threads(threads), {
        "severity": _known(columns["severity"], SEVERITIES),
        "source": _known(columns["source"], SOURCES),
        "text": extraction.name("diagnostics", codes, text=[shortened(text) for text in decoded(texts)]),
    })


def _known(column: np.ndarray, values: range) -> np.ndarray:
    return np.where(np.isin(column, values), column, UNKNOWN)


KINDS = (
    EventKind("diagnostics", "Messages of Nsight Systems", "main thread of the process", (TABLE,), ("diagnostic",), extract,
              groups=("profiler",), lasting=False, extends=False),
)
