"""OpenACC constructs on the host threads that execute them, with where they stand in the source.

Types, labels and values are those of BSC's nsys2prv 0.6: a construct's value is Nsight's event kind
plus one, and its source is `name@file:line`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsys2prv._util.columns import ABSENT, factorize_together
from nsys2prv.events.attributes import enum_value, optional, positive, registered_string_names
from nsys2prv.events.extraction import Extraction
from nsys2prv.events.kind import EventKind, Rows
from nsys2prv.nsight.source import NULL, Columns, Part

OTHER, DATA, LAUNCH = (
    f"CUPTI_ACTIVITY_KIND_OPENACC_{kind}" for kind in ("OTHER", "DATA", "LAUNCH")
)
LAYOUTS = {OTHER: "openacc_other", DATA: "openacc_data", LAUNCH: "openacc_launch"}
#: Layout -> field -> column, of plain numbers and of names.
NUMBERS = {
    "openacc_other": {},
    "openacc_data": {"bytes": "bytes"},
    "openacc_launch": {"gangs": "numGangs", "workers": "numWorkers", "vector": "vectorLength"},
}
NAMES = {
    "openacc_other": {},
    "openacc_data": {"variable": "varName"},
    "openacc_launch": {"kernel": "kernelName"},
}
#: Values of the catalogue's sets are Nsight's plus one, up to these.
LAST_CONSTRUCT, LAST_DEVICE, UNKNOWN_CONSTRUCT = 17, 10, 99
#: ENUM_OPENACC_DEVICE of devices that have a CUDA ordinal.
NVIDIA = 4


def extract(extraction: Extraction, part: Part) -> Iterator[Rows]:
    layout = LAYOUTS[part.table]
    numbers, names = NUMBERS[layout], NAMES[layout]
    columns = extraction.read(
        part,
        (
            "start",
            "end",
            "nameId",
            "globalTid",
            "eventKind",
            "DeviceType",
            "lineNo",
            "cuDeviceId",
            "srcFile",
            "funcName",
            *numbers.values(),
            *names.values(),
        ),
    )
    if not columns.rows:
        return
    kind, device = columns["eventKind"], columns["DeviceType"]
    fields = {
        "construct": enum_value(kind, LAST_CONSTRUCT, UNKNOWN_CONSTRUCT),
        "source": _sources(extraction, columns),
        "function": registered_string_names(extraction, "openacc_function", columns["funcName"]),
        "line": positive(columns["lineNo"]),
        "device": np.where(
            (device == NVIDIA) | (device == NULL), optional(columns["cuDeviceId"]), ABSENT
        ),
        "device_type": enum_value(device, LAST_DEVICE),
    }
    fields |= {field: positive(columns[column]) for field, column in numbers.items()}
    fields |= {
        field: registered_string_names(extraction, f"openacc_{field}", columns[column])
        for field, column in names.items()
    }
    yield Rows(
        layout, columns["start"], columns["end"], extraction.threads(columns["globalTid"]), fields
    )


def _sources(extraction: Extraction, columns: Columns) -> np.ndarray:
    """Return name indices of `name@file:line`, or of the name alone where no file is known."""
    (names, files, lines), codes = factorize_together(
        columns["nameId"], columns["srcFile"], columns["lineNo"]
    )
    texts = [
        f"{name}@{file}" + (f":{line}" if line != NULL else "") if file else name
        for name, file, line in zip(
            extraction.strings(names), extraction.strings(files), lines.tolist(), strict=True
        )
    ]
    return extraction.name("openacc_source", codes, text=texts)


KINDS = (
    EventKind(
        "openacc",
        "OpenACC constructs",
        "host thread",
        (OTHER, DATA, LAUNCH),
        tuple(LAYOUTS.values()),
        extract,
    ),
)
