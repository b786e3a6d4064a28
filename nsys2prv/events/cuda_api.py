"""CUDA runtime and driver calls on their host threads."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from nsys2prv.columns import ABSENT, factorize, factorize_together
from nsys2prv.events.extraction import Extraction, correlation_ids
from nsys2prv.events.kind import EventKind, Rows
from nsys2prv.events.launches import CALL_KIND, Launches
from nsys2prv.report.source import Part

TABLE = "CUPTI_ACTIVITY_KIND_RUNTIME"
#: Rows of this event class repeat a call that has a row of its own; they come with the collection of backtraces.
BACKTRACE_CLASS = 67
_VERSION_SUFFIX = re.compile(r"_v\d{4,}$")


def api_name(symbol: str) -> str:
    """The function's name without the version of its interface: `cudaLaunchKernel_v7000` is `cudaLaunchKernel`."""
    return _VERSION_SUFFIX.sub("", symbol)


def call_names(extraction: Extraction, ids: np.ndarray, unnamed: str = "") -> np.ndarray:
    """Local name indices of calls by the registered strings (nameId) that name their functions."""
    distinct, codes = factorize(ids)
    return extraction.name("cuda_api", codes, text=[api_name(symbol) or unnamed for symbol in extraction.strings(distinct)])


def extract(extraction: Extraction, part: Part) -> Iterator[Rows]:
    columns = extraction.read(part, ("start", "end", "eventClass", "globalTid", "correlationId", "nameId", "returnValue"),
                              short=True)
    repeated = columns["eventClass"] == BACKTRACE_CLASS
    keep = slice(None)
    if repeated.any():
        extraction.account.dropped["duplicate rows of backtrace collection"] += int(repeated.sum())
        keep = ~repeated
    begin, end, thread, correlation, name, result = (
        columns[column][keep] for column in ("start", "end", "globalTid", "correlationId", "nameId", "returnValue"))
    (threads, names, results), codes = factorize_together(thread, name, result)
    kinds = np.empty(len(threads), CALL_KIND)
    kinds["thread"], kinds["name"], kinds["result"] = threads, names, results
    extraction.launched.append(Launches(correlation, begin, end, codes, kinds))

    if extraction.least:
        long = extraction.long_enough(begin, end)
        begin, end, correlation, codes = (column[long] for column in (begin, end, correlation, codes))
        used, codes = factorize(codes)
        kinds = kinds[used]
    yield Rows("cuda_api", begin, end, extraction.threads(kinds["thread"])[codes], {
        "call": call_names(extraction, kinds["name"])[codes],
        "correlation": correlation_ids(correlation),
        "error": np.where(kinds["result"] > 0, kinds["result"], ABSENT)[codes],
    })


KINDS = (
    EventKind("cuda_api_trace", "CUDA runtime and driver calls", "host thread", (TABLE,), ("cuda_api",), extract,
              groups=("cuda",), provides_launches=True),
)
