"""Accesses to files by calls into the OS runtime (since schema 3.23), on the threads that make them.

The table has the operating system's thread id; whose thread that is, and which file, stands with the description of the file.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsys2prv.columns import ABSENT, factorize, factorize_together
from nsys2prv.events.extraction import Extraction
from nsys2prv.events.kind import EventKind, Rows
from nsys2prv.report.info import ReportInfo, pid_of
from nsys2prv.report.source import NULL, Part

TABLE, FILES = "OSRT_FILE_ACCESS_EVENTS", "OSRT_FILE_ACCESS_DESCRIPTORS"
ACTIONS, UNKNOWN = range(1, 7), 99
NO_FILE = "unknown file"
_HOST_BITS = ~0xFFFF_FFFF_FFFF


def extract(extraction: Extraction, part: Part) -> Iterator[Rows]:
    columns = extraction.read(part, ("fileAccessId", "threadId", "startedAt", "endedAt", "eventType", "apiCallId", "bytesProcessed"))
    if extraction.least:
        columns = columns.where(extraction.long_enough(columns["startedAt"], columns["endedAt"]))
    if not columns.rows:
        return
    ids, places = factorize(columns["fileAccessId"])
    described = _files(extraction, int(ids[ids != NULL].min(initial=0)), int(ids.max()))
    found = [described.get(int(number), (0, NO_FILE)) for number in ids]
    calls, codes = factorize(columns["apiCallId"])
    action, size = columns["eventType"], columns["bytesProcessed"]
    yield Rows("file_access", columns["startedAt"], columns["endedAt"],
               _threads(extraction, np.array([pid for pid, _ in found], np.int64)[places], columns["threadId"]), {
                   "call": extraction.name("file_calls", codes, text=extraction.strings(calls)),
                   "action": np.where(np.isin(action, ACTIONS), action, UNKNOWN),
                   "bytes": np.where(size > 0, size, ABSENT),
                   "file": extraction.name("files", places, text=[path for _, path in found]),
               })


def _files(extraction: Extraction, first: int, last: int) -> dict[int, tuple[int, str]]:
    """File access id -> process id and path, of ids from `first` to `last`."""
    rows = extraction.database.small(FILES, "fileAccessId", "processId", "filePath", where=f"{{fileAccessId}} BETWEEN {first} AND {last}")
    return {number: (pid if isinstance(pid, int) else 0, str(path or NO_FILE)) for number, pid, path in rows}


def _threads(extraction: Extraction, pids: np.ndarray, tids: np.ndarray) -> np.ndarray:
    """Objects of threads by the ids that the operating system gave processes and threads."""
    values, codes = factorize_together(pids, np.where(tids == NULL, 0, tids))
    known = global_pids(extraction.report)
    host = next(iter(extraction.report.processes), 0) & _HOST_BITS
    pairs = zip(*map(np.ndarray.tolist, values), strict=True)
    ids = [known.get(pid, host | (pid & 0xFFFFFF) << 24) | (tid & 0xFFFFFF) for pid, tid in pairs]
    return extraction.threads(np.array(ids, np.int64)[codes])


def global_pids(report: ReportInfo) -> dict[int, int]:
    """Process id -> globalPid, of the processes that the report names."""
    return {pid_of(pid): pid for pid in report.processes}


KINDS = (
    EventKind("file_accesses", "File accesses", "host thread", (TABLE,), ("file_access",), extract),
)
