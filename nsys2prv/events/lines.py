"""Lines from the API calls to the operations that they started on a GPU."""

from __future__ import annotations

import numpy as np

from nsys2prv.events.extraction import Extraction
from nsys2prv.events.kind import Lines
from nsys2prv.report.source import Columns


def launch_lines(extraction: Extraction, kind: str, columns: Columns, objects: np.ndarray, size: np.ndarray) -> Lines | None:
    """Lines to operations with the columns start, end, globalPid and correlationId, on these objects, with these sizes (bytes)."""
    if not extraction.settings.lines:
        return None
    found = extraction.launches.find(columns["globalPid"], columns["correlationId"])
    hit = found.hit
    return Lines(kind, found.calls["begin"][hit], extraction.threads(found.calls["thread"][hit]), columns["start"][hit], objects[hit],
                 columns["end"][hit], size[hit])
