"""OpenACC constructs on the host threads that execute them, with where they stand in the source.

Types, labels and values are those of BSC's nsys2prv 0.6: a construct's value is Nsight's event kind
plus one, and its source is `name@file:line`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsys2prv._util.columns import ABSENT, factorize_together
from nsys2prv.events.attributes import blank_negative, list_columns, read_fields
from nsys2prv.events.extraction import Extraction
from nsys2prv.events.kind import Rows, declare_kind
from nsys2prv.nsight.columns import NULL, Columns
from nsys2prv.nsight.source import Part

LAYOUTS = {
    f"CUPTI_ACTIVITY_KIND_OPENACC_{kind.upper()}": f"openacc_{kind}"
    for kind in ("other", "data", "launch")
}
#: ENUM_OPENACC_DEVICE of devices that have a CUDA ordinal.
NVIDIA = 4


def extract_openacc(extraction: Extraction, part: Part) -> Iterator[Rows]:
    layout = LAYOUTS[part.table]
    columns = extraction.read(
        part,
        ("start", "end", "globalTid", "nameId", "srcFile", "cuDeviceId", *list_columns(layout)),
    )
    if not columns.rows:
        return
    device = columns["DeviceType"]
    has_ordinal = (device == NVIDIA) | (device == NULL)
    fields = read_fields(extraction, layout, columns) | {
        "source": _name_sources(extraction, columns),
        "device": np.where(has_ordinal, blank_negative(columns["cuDeviceId"]), ABSENT),
    }
    yield Rows(
        layout,
        columns["start"],
        columns["end"],
        extraction.number_threads(columns["globalTid"]),
        fields,
    )


def _name_sources(extraction: Extraction, columns: Columns) -> np.ndarray:
    """Return name indices of `name@file:line`, or of the name alone where no file is known."""
    (names, files, lines), codes = factorize_together(
        columns["nameId"], columns["srcFile"], columns["lineNo"]
    )
    texts = [
        f"{name}@{file}" + (f":{line}" if line != NULL else "") if file else name
        for name, file, line in zip(
            extraction.read_strings(names),
            extraction.read_strings(files),
            lines.tolist(),
            strict=True,
        )
    ]
    return extraction.number_names("openacc_source", codes, text=texts)


KINDS = (declare_kind("openacc", extract_openacc),)
