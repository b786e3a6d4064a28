"""Attributes and samples of events from columns of exports.

Fields of the catalogue that name a column are read by :func:`read_fields`: each by what NULL and 0
mean in exports.

===================  ==================  ========  =====================================
function             NULL or negative    0         for
===================  ==================  ========  =====================================
blank_negative       ABSENT              0         numbers of which 0 is one as any other
blank_nonpositive    ABSENT              ABSENT    numbers that begin at 1, such as ids
fill_with_zero       0                   0         plain numbers, of which 0 says nothing
===================  ==================  ========  =====================================

ABSENT is for optional fields alone: in any other it is stored as 0, of a name set as its first
name. All take and return int64, shape (n,). The catalogue's sets of values begin at 1, as a 0 in a
trace ends an event. Samples (time, metric, value) become one record per instant.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from nsys2prv._util.columns import ABSENT, factorize, is_sorted
from nsys2prv.events.catalogue import Field, ValueSet, load_catalogue
from nsys2prv.events.catalogue.counters import Metric
from nsys2prv.events.kind import Counters, Rows
from nsys2prv.events.reasons import Reason
from nsys2prv.nsight.columns import Columns

if TYPE_CHECKING:
    from nsys2prv.events.extraction import Extraction


def blank_negative(column: np.ndarray) -> np.ndarray:
    """Return the column with ABSENT for NULL and negative values."""
    return column if column.min(initial=0) >= 0 else np.where(column < 0, ABSENT, column)


def blank_nonpositive(column: np.ndarray) -> np.ndarray:
    """Return the column with ABSENT for NULL, negative values and 0."""
    return column if column.min(initial=1) > 0 else np.where(column <= 0, ABSENT, column)


def fill_with_zero(column: np.ndarray) -> np.ndarray:
    """Return the column with 0 for NULL and negative values. Most records are written without such
    a number where it is 0.
    """
    return column if column.min(initial=0) >= 0 else np.maximum(column, 0)


@cache
def list_columns(*layouts: str) -> tuple[str, ...]:
    """Return the columns that :func:`read_fields` takes for these layouts."""
    fields = (field for layout in layouts for field in load_catalogue().layouts[layout].fields)
    return tuple(dict.fromkeys(field.column for field in fields if field.column))


def read_fields(
    extraction: Extraction, layout: str, columns: Columns | Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return the fields of a layout that name a column, by name."""
    return {
        field.name: _read_field(extraction, field, columns[field.column])
        for field in load_catalogue().layouts[layout].fields
        if field.column
    }


def make_rows(
    extraction: Extraction,
    layout: str,
    columns: Columns,
    fields: Mapping[str, np.ndarray] = MappingProxyType({}),
    objects: np.ndarray | None = None,
) -> Rows:
    """Return rows from the columns `start` and `end` on these objects, or the host threads of the
    column `globalTid`, with these fields and those of the layout that name a column.
    """
    if objects is None:
        objects = extraction.number_threads(columns["globalTid"])
    all_fields = {**fields, **read_fields(extraction, layout, columns)}
    return Rows(layout, columns["start"], columns["end"], objects, all_fields)


def _read_field(extraction: Extraction, field: Field, column: np.ndarray) -> np.ndarray:
    if isinstance(field.values, ValueSet):
        table = _make_value_table(field.values, field.plus, field.unknown)
        values = table[np.clip(column, -1, len(table) - 2) + 1]
        return np.where(column < field.least, ABSENT, values) if field.least else values
    if field.values is not None:
        return name_registered_strings(extraction, field.values.name, column, field.optional)
    if not field.optional:
        return fill_with_zero(column)
    return blank_nonpositive(column) if field.least else blank_negative(column)


@cache
def _make_value_table(values: ValueSet, plus: int, unknown: int | None) -> np.ndarray:
    """Return the values of numbers in a column: at 0 those of negative ones, at number + 1 the
    others, the last for all that are greater.
    """
    numbers = np.array([value - plus for value, _ in values.labels if value >= plus])
    table = np.full(numbers.max() + 3, ABSENT if unknown is None else unknown)
    table[numbers + 1] = numbers + plus
    return table


def name_registered_strings(
    extraction: Extraction, name_set: str, ids: np.ndarray, skip_empty: bool = True
) -> np.ndarray:
    """Return name indices of the registered strings with these ids; ABSENT where a row has none, or
    an empty one, if such are skipped.
    """
    distinct, codes = factorize(ids)
    texts = extraction.read_strings(distinct)
    if not skip_empty:
        return extraction.number_names(name_set, codes, text=texts)
    named = np.array([bool(text) for text in texts], bool)
    rows = np.flatnonzero(named[codes])
    result = np.full(len(ids), ABSENT)
    if len(rows):
        place = np.cumsum(named) - 1
        result[rows] = extraction.number_names(
            name_set, place[codes[rows]], text=[text for text in texts if text]
        )
    return result


#: The store keeps a number as one more than it is.
GREATEST = np.iinfo(np.int64).max - 1


def make_counters(
    extraction: Extraction,
    layout: str,
    object_: int,
    time: np.ndarray,
    column: np.ndarray,
    metrics: tuple[Metric, ...],
    value: np.ndarray,
    end: np.ndarray | None = None,
) -> Counters:
    """Return records of one object from samples in any order. column: each row's index into the
    metrics. end: when samples end, None where each lasts until the next.
    """
    value = _clip_values(extraction, value)
    if end is not None:
        time, column, value = _add_ends(extraction, time, end, column, value)
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


def _add_ends(
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


def _clip_values(extraction: Extraction, values: np.ndarray) -> np.ndarray:
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
