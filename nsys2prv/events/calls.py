"""Calls and GPU work whose tables are one line each in the catalogue
(:mod:`nsys2prv.events.catalogue.sections`), and cuBLAS and cuDNN.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from nsys2prv._util.columns import factorize
from nsys2prv.events.attributes import positive
from nsys2prv.events.catalogue import catalogue
from nsys2prv.events.catalogue.sections import CallTable
from nsys2prv.events.extraction import Extraction
from nsys2prv.events.kind import EventKind, GpuWork, RowRules, Rows
from nsys2prv.nsight.source import NULL, Columns, Part


def extract(call: CallTable, extraction: Extraction, part: Part) -> Iterator[Rows]:
    wanted = (
        *call.time,
        call.thread,
        *call.names,
        *(column for column, _ in call.numbers),
        *([call.gpu] if call.queue else []),
        *([call.result] if call.result else []),
    )
    columns = extraction.read(part, tuple(dict.fromkeys(wanted)))
    if not columns.rows:
        return
    begin, end = columns[call.time[0]], columns[call.time[-1]]
    if not call.has_duration or call.marks:
        end = np.where((end == NULL) | (not call.has_duration), begin + 1, end)
    objects = (
        extraction.queues(columns[call.thread], call.queue, columns[call.gpu])
        if call.queue
        else extraction.threads(columns[call.thread])
    )
    attributes = {column: positive(columns[column]) for column, _ in call.numbers}
    if call.result:
        attributes["result"] = positive(columns[call.result])
    yield Rows(
        call.name, begin, end, objects, {"call": _names(call, extraction, columns), **attributes}
    )


def _names(call: CallTable, extraction: Extraction, columns: Columns) -> np.ndarray:
    if not call.names:
        return extraction.name(call.name, np.zeros(columns.rows, np.int64), text=[call.label])
    ids = columns[call.names[0]]
    for other in call.names[1:]:
        ids = np.where(ids == NULL, columns[other], ids)
    distinct, codes = factorize(ids)
    if not call.enum:
        return extraction.name(call.name, codes, text=extraction.strings(distinct))
    labels = dict(extraction.database.small(call.enum, "id", "label"))
    return extraction.name(
        call.name,
        codes,
        text=[
            str(labels.get(number) or f"{call.label} {'' if number == NULL else number}".strip())
            for number in map(int, distinct)
        ],
    )


def kind_of(call: CallTable) -> EventKind:
    """Return the kind of event of a line."""
    row = "GPU, a row for each process" if call.queue else "host thread"
    return EventKind(
        call.name,
        call.label,
        row,
        (call.table,),
        (call.name,),
        partial(extract, call),
        groups=call.groups,
        rows=RowRules(
            has_duration=call.has_duration, overlap_group=call.name if call.queue else ""
        ),
        gpu_work=GpuWork() if call.queue else None,
    )


def calls_of(event_class: int) -> str:
    """Return the condition for calls: rows of other classes mark where tracing began and ended
    (ENUM_NSYS_EVENT_CLASS).
    """
    return f"coalesce({{eventClass}}, {event_class}) = {event_class}"


def extract_library_calls(layout: str, extraction: Extraction, part: Part) -> Iterator[Rows]:
    """Yield the calls of a library whose table has a begin, an end, a thread and a name."""
    columns = extraction.read(part, ("start", "end", "globalTid", "nameId"))
    if not columns.rows:
        return
    ids, codes = factorize(columns["nameId"])
    yield Rows(
        layout,
        columns["start"],
        columns["end"],
        extraction.threads(columns["globalTid"]),
        {"call": extraction.name(layout, codes, text=extraction.strings(ids))},
    )


#: Kind and layout, name of the library, class of its calls.
LIBRARIES = (("cublas", "cuBLAS", 29), ("cudnn", "cuDNN", 28))

KINDS = (
    *(kind_of(call) for call in catalogue().calls.values()),
    *(
        EventKind(
            layout,
            f"{library} calls",
            "host thread",
            (f"{layout.upper()}_EVENTS",),
            (layout,),
            partial(extract_library_calls, layout),
            where=calls_of(event_class),
        )
        for layout, library, event_class in LIBRARIES
    ),
)
