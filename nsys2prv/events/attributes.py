"""Attributes and samples of events from columns of exports.

For attributes there is one function for each meaning that NULL and 0 have in exports:

================  ==================  ========  =====================================
function          NULL or negative    0         for
================  ==================  ========  =====================================
optional          ABSENT              0         numbers of which 0 is one as any other
positive          ABSENT              ABSENT    numbers that begin at 1, such as ids
number_or_zero    0                   0         plain numbers, of which 0 says nothing
enum_value        ``unknown``         1         Nsight's enumerations, from 1 here
================  ==================  ========  =====================================

All take and return int64, shape (n,). The catalogue's sets of values begin at 1, as a 0 in a trace
ends an event. Samples (time, metric, value) become one record per instant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nsys2prv._util.columns import ABSENT, factorize, is_sorted
from nsys2prv.events.catalogue.counters import Metric
from nsys2prv.events.kind import Counters
from nsys2prv.events.reasons import Reason

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


#: The store keeps a number as one more than it is.
GREATEST = np.iinfo(np.int64).max - 1


def counters_of_samples(
    extraction: Extraction,
    layout: str,
    object_: int,
    time: np.ndarray,
    column: np.ndarray,
    metrics: tuple[Metric, ...],
    value: np.ndarray,
) -> Counters:
    """Return records of one object from samples in any order. column: each row's index into the
    metrics; values are not negative.
    """
    if not is_sorted(time):
        order = np.argsort(time, kind="stable")
        time, column, value = time[order], column[order], value[order]
    begins = np.append(True, time[1:] != time[:-1])
    instant = np.cumsum(begins) - 1
    values = np.full((int(instant[-1]) + 1, len(metrics)), ABSENT)
    values.reshape(-1)[instant * len(metrics) + column] = value
    carried = np.count_nonzero(values != ABSENT, axis=0)
    repeated = len(time) - int(carried.sum())
    if repeated:
        extraction.account.dropped[Reason.SAMPLE_REPEATED] += repeated
    if not carried.all():
        values, metrics = (
            values[:, carried > 0],
            tuple(metric for metric, count in zip(metrics, carried, strict=True) if count),
        )
    return Counters(layout, time[begins], object_, metrics, values)


def samples_with_ends(
    extraction: Extraction,
    start: np.ndarray,
    end: np.ndarray,
    metric: np.ndarray,
    value: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return samples at their starts, and zeros at ends that no sample of the same metric directly
    follows: time, metric, value.
    """
    order = np.lexsort((start, metric))
    start, end, metric, value = start[order], end[order], metric[order], value[order]
    follows = np.append((metric[1:] == metric[:-1]) & (start[1:] <= end[:-1]), False)
    close = np.flatnonzero(~follows & (end > start))
    extraction.account.synthesized[Reason.ZERO_AT_END] += len(close)
    return (
        np.concatenate([start, end[close]]),
        np.concatenate([metric, metric[close]]),
        np.concatenate([value, np.zeros(len(close), np.int64)]),
    )


def not_negative(extraction: Extraction, values: np.ndarray) -> np.ndarray:
    """Return the values, those that a trace cannot hold made ones that it can, and counted."""
    negative, great = (int(np.count_nonzero(wrong)) for wrong in (values < 0, values > GREATEST))
    for reason, count in ((Reason.NEGATIVE_SAMPLE, negative), (Reason.SAMPLE_TOO_GREAT, great)):
        if count:
            extraction.account.repaired[reason] += count
    return np.clip(values, 0, GREATEST) if negative or great else values


def group_rows(keys: np.ndarray) -> list[tuple[int, np.ndarray | slice]]:
    """Return the distinct keys, each with its rows."""
    distinct, codes = factorize(keys)
    if len(distinct) == 1:
        return [(int(distinct[0]), slice(None))]
    order = np.argsort(codes, kind="stable")
    cuts = np.searchsorted(codes[order], np.arange(len(distinct) + 1))
    return [
        (int(key), order[cuts[number] : cuts[number + 1]]) for number, key in enumerate(distinct)
    ]
