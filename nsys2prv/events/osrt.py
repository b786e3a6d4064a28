"""OS runtime and pthread calls on their host threads, and the files they access."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from nsys2prv._util.columns import factorize, factorize_together
from nsys2prv.events.attributes import positive
from nsys2prv.events.extraction import Extraction
from nsys2prv.events.kind import EventKind, Reading, Rows
from nsys2prv.nsight.info import ReportInfo, pid_of
from nsys2prv.nsight.source import NULL, Part

OSRT_TABLE = "OSRT_API"
COLUMNS = ("start", "end", "globalTid", "nameId", "nestingLevel")
#: Rows of other classes (31, 32) are no calls: they mark, on thread 0, where the tracing of a
#: process began and ended.
CALLS = "coalesce({eventClass}, 27) = 27"
OF_PTHREAD = "coalesce({nameId} IN (SELECT id FROM StringIds WHERE value GLOB 'pthread*'), 0)"


def pthread_condition(info: ReportInfo) -> str:
    """Return the condition for pthread calls."""
    return f"{CALLS} AND {OF_PTHREAD}" if "StringIds" in info.parts else "0"


def others_condition(info: ReportInfo) -> str:
    """Return the condition for OS runtime calls; those without a name are such."""
    return f"{CALLS} AND NOT {OF_PTHREAD}" if "StringIds" in info.parts else CALLS


def extract_calls(layout: str, extraction: Extraction, part: Part) -> Iterator[Rows]:
    columns = extraction.read(part, COLUMNS)
    if not columns.rows:
        return
    begin, end, thread, name = (columns[column] for column in COLUMNS[:4])
    if (np.diff(begin) <= 0).any():
        # A call within a call may begin and end with it: what is stored later counts as the inner
        # one.
        order = np.argsort(columns["nestingLevel"], kind="stable")
        begin, end, thread, name = begin[order], end[order], thread[order], name[order]
    ids, codes = factorize(name)
    yield Rows(
        layout,
        begin,
        end,
        extraction.threads(thread),
        {"call": extraction.name(layout, codes, text=extraction.strings(ids))},
    )


FILE_TABLE, FILES = "OSRT_FILE_ACCESS_EVENTS", "OSRT_FILE_ACCESS_DESCRIPTORS"
ACTIONS, UNKNOWN = range(1, 7), 99
NO_FILE = "unknown file"
_HOST_BITS = ~0xFFFF_FFFF_FFFF


def extract_file_accesses(extraction: Extraction, part: Part) -> Iterator[Rows]:
    columns = extraction.read(
        part,
        (
            "fileAccessId",
            "threadId",
            "startedAt",
            "endedAt",
            "eventType",
            "apiCallId",
            "bytesProcessed",
        ),
    )
    if extraction.least:
        columns = columns.where(extraction.long_enough(columns["startedAt"], columns["endedAt"]))
    if not columns.rows:
        return
    ids, places = factorize(columns["fileAccessId"])
    described = _files(extraction, int(ids[ids != NULL].min(initial=0)), int(ids.max()))
    found = [described.get(int(number), (0, NO_FILE)) for number in ids]
    calls, codes = factorize(columns["apiCallId"])
    action, size = columns["eventType"], columns["bytesProcessed"]
    yield Rows(
        "file_access",
        columns["startedAt"],
        columns["endedAt"],
        _threads(
            extraction, np.array([pid for pid, _ in found], np.int64)[places], columns["threadId"]
        ),
        {
            "call": extraction.name("file_calls", codes, text=extraction.strings(calls)),
            "action": np.where(np.isin(action, ACTIONS), action, UNKNOWN),
            "bytes": positive(size),
            "file": extraction.name("files", places, text=[path for _, path in found]),
        },
    )


def _files(extraction: Extraction, first: int, last: int) -> dict[int, tuple[int, str]]:
    """Return file access id -> process id and path, of ids from `first` to `last`."""
    rows = extraction.database.small(
        FILES,
        "fileAccessId",
        "processId",
        "filePath",
        where=f"{{fileAccessId}} BETWEEN {first} AND {last}",
    )
    return {
        number: (pid if isinstance(pid, int) else 0, str(path or NO_FILE))
        for number, pid, path in rows
    }


def _threads(extraction: Extraction, pids: np.ndarray, tids: np.ndarray) -> np.ndarray:
    """Return objects of threads by the ids that the operating system gave processes and threads."""
    values, codes = factorize_together(pids, np.where(tids == NULL, 0, tids))
    known = global_pids(extraction.report)
    host = next(iter(extraction.report.processes), 0) & _HOST_BITS
    pairs = zip(*map(np.ndarray.tolist, values), strict=True)
    ids = [known.get(pid, host | (pid & 0xFFFFFF) << 24) | (tid & 0xFFFFFF) for pid, tid in pairs]
    return extraction.threads(np.array(ids, np.int64)[codes])


def global_pids(report: ReportInfo) -> dict[int, int]:
    """Return process id -> globalPid, of the processes that the report names."""
    return {pid_of(pid): pid for pid in report.processes}


KINDS = (
    *(
        EventKind(
            layout,
            label,
            "host thread",
            (OSRT_TABLE,),
            (layout,),
            partial(extract_calls, layout),
            where=condition,
            reads=Reading(COLUMNS),
        )
        for layout, label, condition in (
            ("osrt", "OS runtime calls", others_condition),
            ("pthread", "Pthread calls", pthread_condition),
        )
    ),
    EventKind(
        "file_accesses",
        "File accesses",
        "host thread",
        (FILE_TABLE,),
        ("file_access",),
        extract_file_accesses,
    ),
)
