"""Turn sampled rows (time, metric, value) into one record per instant."""

from __future__ import annotations

import numpy as np

from nsys2prv._util.columns import ABSENT, factorize, is_sorted
from nsys2prv.events.catalogue.counters import Metric
from nsys2prv.events.extraction import Extraction
from nsys2prv.events.kind import Counters
from nsys2prv.events.reasons import Reason

#: The store keeps a number as one more than it is.
GREATEST = np.iinfo(np.int64).max - 1


def pivot(
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


def intervals(
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


def groups(keys: np.ndarray) -> list[tuple[int, np.ndarray | slice]]:
    """Return the distinct keys, each with its rows."""
    distinct, codes = factorize(keys)
    if len(distinct) == 1:
        return [(int(distinct[0]), slice(None))]
    order = np.argsort(codes, kind="stable")
    cuts = np.searchsorted(codes[order], np.arange(len(distinct) + 1))
    return [
        (int(key), order[cuts[number] : cuts[number + 1]]) for number, key in enumerate(distinct)
    ]
