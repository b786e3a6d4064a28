"""Attributes of events from columns of exports: one function for each meaning that NULL and 0 have
there.

================  ==================  ========  =====================================
function          NULL or negative    0         for
================  ==================  ========  =====================================
optional          ABSENT              0         numbers of which 0 is one as any other
positive          ABSENT              ABSENT    numbers that begin at 1, such as ids
number_or_zero    0                   0         plain numbers, of which 0 says nothing
one_based         ABSENT              1         numbers from 0 on that count from 1 here
enum_value        ``unknown``         1         Nsight's enumerations, from 1 here
================  ==================  ========  =====================================

All take and return int64, shape (n,). Values count from 1 here where the catalogue has them so: a
0 in a trace ends an event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nsys2prv._util.columns import ABSENT, factorize

if TYPE_CHECKING:
    from nsys2prv.events.extraction import Extraction


def optional(column: np.ndarray) -> np.ndarray:
    """Return the column with ABSENT for NULL and negative values."""
    return column if column.min(initial=0) >= 0 else np.where(column < 0, ABSENT, column)


def positive(column: np.ndarray) -> np.ndarray:
    """Return the column with ABSENT for NULL, negative values and 0."""
    return column if column.min(initial=1) > 0 else np.where(column <= 0, ABSENT, column)


def number_or_zero(column: np.ndarray) -> np.ndarray:
    """Return the column with 0 for NULL and negative values. Most records are written without such
    a number where it is 0.
    """
    return column if column.min(initial=0) >= 0 else np.maximum(column, 0)


def one_based(column: np.ndarray) -> np.ndarray:
    """Return the column plus 1, with ABSENT for NULL and negative values."""
    return np.where(column < 0, ABSENT, column + 1)


def enum_value(column: np.ndarray, size: int, unknown: int = ABSENT) -> np.ndarray:
    """Return the column plus 1 where it is from 0 to size - 1, else `unknown`."""
    return np.where((column >= 0) & (column < size), column + 1, unknown)


def registered_string_names(extraction: Extraction, name_set: str, ids: np.ndarray) -> np.ndarray:
    """Return name indices of the registered strings with these ids; ABSENT where a row has none, or
    an empty one.
    """
    distinct, codes = factorize(ids)
    texts = extraction.strings(distinct)
    named = np.array([bool(text) for text in texts], bool)
    found = np.flatnonzero(named[codes])
    result = np.full(len(ids), ABSENT)
    if len(found):
        place = np.cumsum(named) - 1
        result[found] = extraction.name(
            name_set, place[codes[found]], text=[text for text in texts if text]
        )
    return result
