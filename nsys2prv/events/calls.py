"""Tables of calls, or of work on GPUs, with a begin, an end, a thread and a name: those of which
the catalogue says all (kinds without a module, and the lines of ``calls``), and OS runtime calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from nsys2prv._util.columns import factorize
from nsys2prv.events.attributes import list_columns, make_rows, read_fields
from nsys2prv.events.catalogue import CallTable, load_catalogue
from nsys2prv.events.extraction import Extraction
from nsys2prv.events.kind import EventKind, GpuWork, Reading, RowRules, Rows, declare_kind
from nsys2prv.nsight.columns import NULL, Columns
from nsys2prv.nsight.info import ReportInfo
from nsys2prv.nsight.source import Part

THREAD_COLUMNS = ("start", "end", "globalTid")


def extract_declared(layout: str, extraction: Extraction, part: Part) -> Iterator[Rows]:
    """Yield rows on host threads whose fields all name their column in the catalogue."""
    columns = extraction.read(part, (*THREAD_COLUMNS, *list_columns(layout)))
    if columns.rows:
        yield make_rows(extraction, layout, columns)


def extract_line(call: CallTable, extraction: Extraction, part: Part) -> Iterator[Rows]:
    """Yield the rows of a line of ``calls``."""
    gpu = [call.gpu] if call.queue else []
    wanted = (*call.time, call.thread, *call.names, *gpu, *list_columns(call.name))
    columns = extraction.read(part, wanted)
    if not columns.rows:
        return
    begin, end = columns[call.time[0]], columns[call.time[-1]]
    if not call.has_duration or call.marks:
        end = np.where((end == NULL) | (not call.has_duration), begin + 1, end)
    objects = (
        extraction.number_queues(columns[call.thread], call.queue, columns[call.gpu])
        if call.queue
        else extraction.number_threads(columns[call.thread])
    )
    fields = {"call": _name_calls(call, extraction, columns)}
    yield Rows(call.name, begin, end, objects, fields | read_fields(extraction, call.name, columns))


def _name_calls(call: CallTable, extraction: Extraction, columns: Columns) -> np.ndarray:
    if not call.names:
        return extraction.number_names(
            call.name, np.zeros(columns.rows, np.int64), text=[call.label]
        )
    ids = columns[call.names[0]]
    for other in call.names[1:]:
        ids = np.where(ids == NULL, columns[other], ids)
    distinct, codes = factorize(ids)
    if not call.enum:
        return extraction.number_names(call.name, codes, text=extraction.read_strings(distinct))
    labels = dict(extraction.database.read_small_table(call.enum, "id", "label"))
    return extraction.number_names(
        call.name,
        codes,
        text=[
            str(labels.get(number) or f"{call.label} {'' if number == NULL else number}".strip())
            for number in map(int, distinct)
        ],
    )


def make_kind(call: CallTable) -> EventKind:
    """Return the kind of event of a line."""
    overlap_group = call.name if call.queue else ""
    return EventKind(
        call.name,
        call.label,
        "GPU, a row for each process" if call.queue else "host thread",
        (call.table,),
        (call.name,),
        partial(extract_line, call),
        groups=call.groups,
        rows=RowRules(has_duration=call.has_duration, overlap_group=overlap_group),
        gpu_work=GpuWork() if call.queue else None,
    )


OS_COLUMNS = (*THREAD_COLUMNS, "nameId", "nestingLevel")
#: Rows of other classes (31, 32) are no calls: they mark, on thread 0, where the tracing of a
#: process began and ended.
OS_CALLS = "coalesce({eventClass}, 27) = 27"
OF_PTHREAD = "coalesce({nameId} IN (SELECT id FROM StringIds WHERE value GLOB 'pthread*'), 0)"


def select_pthread_calls(info: ReportInfo) -> str:
    """Return the condition for pthread calls."""
    return f"{OS_CALLS} AND {OF_PTHREAD}" if "StringIds" in info.parts else "0"


def select_other_calls(info: ReportInfo) -> str:
    """Return the condition for OS runtime calls; those without a name are such."""
    return f"{OS_CALLS} AND NOT {OF_PTHREAD}" if "StringIds" in info.parts else OS_CALLS


def extract_os_calls(layout: str, extraction: Extraction, part: Part) -> Iterator[Rows]:
    columns = extraction.read(part, OS_COLUMNS)
    if not columns.rows:
        return
    if (np.diff(columns["start"]) <= 0).any():
        # A call within a call may begin and end with it: what is stored later counts as the inner
        # one.
        order = np.argsort(columns["nestingLevel"], kind="stable")
        in_order = {name: column[order] for name, column in columns.integers.items()}
        columns = Columns(columns.rows, in_order, {})
    yield make_rows(extraction, layout, columns)


KINDS = (
    *map(make_kind, load_catalogue().calls.values()),
    *(
        declare_kind(
            name, partial(extract_os_calls, name), where=condition, reads=Reading(OS_COLUMNS)
        )
        for name, condition in (("osrt", select_other_calls), ("pthread", select_pthread_calls))
    ),
)
