"""CUDA events: the calls that record them, on their host threads, and their completion on the streams of the GPU."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsys2prv.columns import ABSENT
from nsys2prv.events.cuda_api import call_names
from nsys2prv.events.extraction import Extraction, number
from nsys2prv.events.kind import EventKind, Rows
from nsys2prv.report.source import NULL, Part

TABLE = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
COMPLETED = 1


def extract(extraction: Extraction, part: Part) -> Iterator[Rows]:
    """The table has no begin and end: they are those of the recording call. `timestamp`, in exports since 3.23, is when the event
    completed on the GPU (local ns; 0 where that was not collected)."""
    columns = extraction.read(part, ("timestamp", "deviceId", "contextId", "streamId", "correlationId", "globalPid", "eventId"))
    done = columns["timestamp"] > 0
    if done.any():
        streams = extraction.streams(*(columns[column][done] for column in ("globalPid", "deviceId", "streamId")))
        extraction.account.beyond["completions on the GPU"] += int(done.sum())
        yield Rows("cuda_event_completion", columns["timestamp"][done], columns["timestamp"][done] + 1, streams,
                   {"completion": np.full(int(done.sum()), COMPLETED), "event": number(columns["eventId"][done])})

    found = extraction.launches.find(columns["globalPid"], columns["correlationId"])
    if extraction.least:
        long = extraction.long_enough(np.where(found.hit, found.begin, NULL), found.end)
        columns, found = columns.where(long), found.of(long)
    threads = np.where(found.hit, found.thread, extraction.main_threads(columns["globalPid"]))
    result = found.result
    yield Rows("cuda_event", np.where(found.hit, found.begin, NULL), np.where(found.hit, found.end, NULL),
               extraction.threads(threads), {
                   "call": call_names(extraction, np.where(found.hit, found.name, NULL), "unknown call"),
                   "event": number(columns["eventId"]),
                   "device": number(columns["deviceId"]),
                   "stream": number(columns["streamId"]),
                   "context": number(columns["contextId"]),
                   "result": np.where(result > 0, result, ABSENT),
               })


KINDS = (
    EventKind("cuda_events", "CUDA events", "host thread and GPU stream", (TABLE,), ("cuda_event", "cuda_event_completion"), extract,
              groups=("cuda",), needs_launches=True),
)
