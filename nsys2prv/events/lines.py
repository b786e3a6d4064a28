"""Lines from the API calls to the operations that they started on a GPU."""

from __future__ import annotations

import numpy as np

from nsys2prv.columns import factorize
from nsys2prv.events.extraction import Extraction
from nsys2prv.events.kind import Lines
from nsys2prv.events.launches import Found
from nsys2prv.report.source import Columns


def launch_lines(extraction: Extraction, kind: str, columns: Columns, objects: np.ndarray, size: np.ndarray,
                 found: Found | None = None) -> Lines | None:
    """Lines to operations with the columns start, end, globalPid and correlationId, on these objects, with these sizes (bytes).

    found: their calls, where these have been looked up already.
    """
    if not extraction.settings.lines:
        return None
    if found is None:
        found = extraction.launches.find(columns["globalPid"], columns["correlationId"])
    hit = slice(None) if found.hit.all() else found.hit
    kinds, codes = factorize(found.code[hit])
    senders = extraction.threads(found.kinds["thread"][kinds])[codes]
    return Lines(kind, found.begin[hit], senders, columns["start"][hit], objects[hit], columns["end"][hit], size[hit])
