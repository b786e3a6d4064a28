"""Optional names: registered strings that a row may lack."""

from __future__ import annotations

import numpy as np

from nsys2prv.columns import ABSENT, factorize
from nsys2prv.events.extraction import Extraction


def names_of(extraction: Extraction, name_set: str, ids: np.ndarray) -> np.ndarray:
    """Name indices of the registered strings with these ids; ABSENT where a row has none, or an empty one."""
    distinct, codes = factorize(ids)
    texts = extraction.strings(distinct)
    named = np.array([bool(text) for text in texts], bool)
    found = np.flatnonzero(named[codes])
    result = np.full(len(ids), ABSENT)
    if len(found):
        place = np.cumsum(named) - 1
        result[found] = extraction.name(name_set, place[codes[found]], text=[text for text in texts if text])
    return result
