"""CUDA synchronizations on the host threads that wait in them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsys2prv.columns import ABSENT, factorize
from nsys2prv.events.extraction import Extraction, present
from nsys2prv.events.kind import EventKind, Rows
from nsys2prv.report.source import NULL, Part

TABLE = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
EVENT, STREAM_WAIT_EVENT, STREAM, CONTEXT, EVENT_QUERY, STREAM_QUERY, UNKNOWN = 1, 2, 3, 4, 5, 6, 9
#: Part of the calling function's name -> synchronization of the catalogue.
BY_CALL = (("StreamWaitEvent", STREAM_WAIT_EVENT), ("EventSynchronize", EVENT), ("EventQuery", EVENT_QUERY),
           ("StreamSynchronize", STREAM), ("StreamQuery", STREAM_QUERY), ("DeviceSynchronize", CONTEXT),
           ("CtxSynchronize", CONTEXT), ("ThreadSynchronize", CONTEXT))
#: What streamId and eventId hold where there is none.
NO_ID = 0xFFFFFFFF


def type_by_call(function: str) -> int:
    """The type of the synchronization that a CUDA function makes."""
    return next((value for part, value in BY_CALL if part in function), UNKNOWN)


def extract(extraction: Extraction, part: Part) -> Iterator[Rows]:
    """The type comes from the calling function, not from syncType: exports of 3.13 to 3.24 number the types in three different
    ways while ENUM_CUPTI_SYNC_TYPE stays the same (cudaDeviceSynchronize is 1, then 0, then 4). Without a call it is unknown.
    """
    columns = extraction.read(part, ("start", "end", "streamId", "correlationId", "globalPid", "eventId"))
    found = extraction.launches.find(columns["globalPid"], columns["correlationId"])
    threads = np.where(found.hit, found.thread, extraction.main_threads(columns["globalPid"]))
    ids, codes = factorize(np.where(found.hit, found.name, NULL))
    types = np.array([type_by_call(name) for name in extraction.strings(ids)], np.int64)[codes]
    of_stream = np.isin(types, (STREAM, STREAM_WAIT_EVENT, STREAM_QUERY))
    of_event = np.isin(types, (EVENT, STREAM_WAIT_EVENT, EVENT_QUERY))
    yield Rows("cuda_synchronization", columns["start"], columns["end"], extraction.threads(threads), {
        "type": types,
        "stream": _id(columns["streamId"], of_stream),
        "event": _id(columns["eventId"], of_event),
    })


def _id(column: np.ndarray, has: np.ndarray) -> np.ndarray:
    return np.where(has & (column != NO_ID), present(column), ABSENT)


KINDS = (
    EventKind("cuda_sync", "CUDA synchronizations", "host thread", (TABLE,), ("cuda_synchronization",), extract, groups=("cuda",),
              lanes="sync", needs_launches=True),
)
