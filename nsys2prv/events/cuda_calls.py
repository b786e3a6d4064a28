"""CUDA API calls, event records and synchronizations on their host threads."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from nsys2prv._util.columns import ABSENT, factorize, factorize_together
from nsys2prv.events.attributes import columns_of, optional, positive, read_fields
from nsys2prv.events.extraction import Extraction
from nsys2prv.events.kind import Rows, declare_kind
from nsys2prv.events.launches import CALL_KIND, Launches
from nsys2prv.events.reasons import Reason
from nsys2prv.nsight.source import NULL, Part

#: Rows of this event class repeat a call that has a row of its own; they come with the collection
#: of backtraces.
BACKTRACE_CLASS = 67
_VERSION_SUFFIX = re.compile(r"_v\d{4,}$")


def api_name(symbol: str) -> str:
    """Return the function's name without the version of its interface: `cudaLaunchKernel_v7000` is
    `cudaLaunchKernel`.
    """
    return _VERSION_SUFFIX.sub("", symbol)


def call_names(extraction: Extraction, ids: np.ndarray, unnamed: str = "") -> np.ndarray:
    """Return local name indices of calls by the registered strings (nameId) that name their
    functions.
    """
    distinct, codes = factorize(ids)
    return extraction.name(
        "cuda_api",
        codes,
        text=[api_name(symbol) or unnamed for symbol in extraction.strings(distinct)],
    )


def extract_api_calls(extraction: Extraction, part: Part) -> Iterator[Rows]:
    columns = extraction.read(
        part,
        ("start", "end", "eventClass", "globalTid", "correlationId", "nameId", "returnValue"),
        short=True,
    )
    repeated = columns["eventClass"] == BACKTRACE_CLASS
    keep = slice(None)
    if repeated.any():
        extraction.account.dropped[Reason.REPEATED_BACKTRACE] += int(repeated.sum())
        keep = ~repeated
    begin, end, thread, correlation, name, result = (
        columns[column][keep]
        for column in ("start", "end", "globalTid", "correlationId", "nameId", "returnValue")
    )
    (threads, names, results), codes = factorize_together(thread, name, result)
    kinds = np.empty(len(threads), CALL_KIND)
    kinds["thread"], kinds["name"], kinds["result"] = threads, names, results
    extraction.launched.append(Launches(correlation, begin, end, codes, kinds))

    if extraction.least:
        long = extraction.long_enough(begin, end)
        begin, end, correlation, codes = (
            column[long] for column in (begin, end, correlation, codes)
        )
        used, codes = factorize(codes)
        kinds = kinds[used]
    yield Rows(
        "cuda_api",
        begin,
        end,
        extraction.threads(kinds["thread"])[codes],
        {
            "call": call_names(extraction, kinds["name"])[codes],
            "correlation": positive(correlation),
            "error": positive(kinds["result"])[codes],
        },
    )


COMPLETED = 1
#: Columns that tell a stream.
STREAM_COLUMNS = ("globalPid", "deviceId", "streamId")


def extract_event_records(extraction: Extraction, part: Part) -> Iterator[Rows]:
    """Read event records. The table has no begin and end: they are those of the recording call.
    `timestamp`, in exports since 3.23, is when the event completed on the GPU (local ns; 0 where
    that was not collected).
    """
    columns = extraction.read(
        part, ("timestamp", "correlationId", "globalPid", *columns_of("cuda_event"))
    )
    done = columns["timestamp"] > 0
    if done.any():
        complete = columns.where(done)
        extraction.account.synthesized[Reason.COMPLETION_ON_GPU] += complete.rows
        yield Rows(
            "cuda_event_completion",
            complete["timestamp"],
            complete["timestamp"] + 1,
            extraction.streams(*(complete[name] for name in STREAM_COLUMNS)),
            {
                "completion": np.full(complete.rows, COMPLETED),
                **read_fields(extraction, "cuda_event_completion", complete),
            },
        )

    found = extraction.launches.find(columns["globalPid"], columns["correlationId"])
    if extraction.least:
        long = extraction.long_enough(np.where(found.hit, found.begin, NULL), found.end)
        columns, found = columns.where(long), found.of(long)
    threads = np.where(found.hit, found.thread, extraction.main_threads(columns["globalPid"]))
    yield Rows(
        "cuda_event",
        np.where(found.hit, found.begin, NULL),
        np.where(found.hit, found.end, NULL),
        extraction.threads(threads),
        {
            "call": call_names(extraction, np.where(found.hit, found.name, NULL), "unknown call"),
            "result": positive(found.result),
            **read_fields(extraction, "cuda_event", columns),
        },
    )


EVENT, STREAM_WAIT_EVENT, STREAM, CONTEXT, EVENT_QUERY, STREAM_QUERY, UNKNOWN = 1, 2, 3, 4, 5, 6, 9
#: Part of the calling function's name -> synchronization of the catalogue.
BY_CALL = (
    ("StreamWaitEvent", STREAM_WAIT_EVENT),
    ("EventSynchronize", EVENT),
    ("EventQuery", EVENT_QUERY),
    ("StreamSynchronize", STREAM),
    ("StreamQuery", STREAM_QUERY),
    ("DeviceSynchronize", CONTEXT),
    ("CtxSynchronize", CONTEXT),
    ("ThreadSynchronize", CONTEXT),
)
#: What streamId and eventId hold where there is none.
NO_ID = 0xFFFFFFFF


def type_by_call(function: str) -> int:
    """Return the type of the synchronization that a CUDA function makes."""
    return next((value for part, value in BY_CALL if part in function), UNKNOWN)


def extract_synchronizations(extraction: Extraction, part: Part) -> Iterator[Rows]:
    """Read synchronizations. The type comes from the calling function, not from syncType: exports
    of 3.13 to 3.24 number the types in three different ways while ENUM_CUPTI_SYNC_TYPE stays the
    same (cudaDeviceSynchronize is 1, then 0, then 4). Without a call it is unknown.
    """
    columns = extraction.read(
        part, ("start", "end", "streamId", "correlationId", "globalPid", "eventId")
    )
    found = extraction.launches.find(columns["globalPid"], columns["correlationId"])
    threads = np.where(found.hit, found.thread, extraction.main_threads(columns["globalPid"]))
    ids, codes = factorize(np.where(found.hit, found.name, NULL))
    types = np.array([type_by_call(name) for name in extraction.strings(ids)], np.int64)[codes]
    of_stream = np.isin(types, (STREAM, STREAM_WAIT_EVENT, STREAM_QUERY))
    of_event = np.isin(types, (EVENT, STREAM_WAIT_EVENT, EVENT_QUERY))
    yield Rows(
        "cuda_synchronization",
        columns["start"],
        columns["end"],
        extraction.threads(threads),
        {
            "type": types,
            "stream": _id(columns["streamId"], of_stream),
            "event": _id(columns["eventId"], of_event),
        },
    )


def _id(column: np.ndarray, has: np.ndarray) -> np.ndarray:
    return np.where(has & (column != NO_ID), optional(column), ABSENT)


KINDS = (
    declare_kind("cuda_api_trace", extract_api_calls),
    declare_kind("cuda_events", extract_event_records),
    declare_kind("cuda_sync", extract_synchronizations),
)
