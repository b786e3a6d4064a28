"""Read attributes and samples from columns of exports, and extract kinds that the catalogue
declares completely: tables of calls, or of GPU work.

:func:`read_fields` reads the fields of the catalogue that name a column. NULL and 0 have different
meanings in different columns:

    function           NULL or negative  0       for
    blank_negative     ABSENT            0       numbers that may be 0
    blank_nonpositive  ABSENT            ABSENT  numbers that begin at 1, such as ids

An unknown number may be ABSENT even in a field that is not optional. The trace then contains no
such number, or 0; analyses get ABSENT. A name may not be ABSENT there, because it would become the
first name. All functions take and return int64 arrays of shape (n,). Value sets of the catalogue
begin at 1, because 0 ends an event in a trace. Samples (time, metric, value) become one record per
time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import cache
from types import MappingProxyType

import numpy as np
import polars as pl

from nsys2prv._util.budget import METRIC_CELLS, METRICS_TOGETHER
from nsys2prv._util.columns import (
    ABSENT,
    OPEN,
    blank_negative,
    blank_nonpositive,
    factorize,
    factorize_together,
    fill_with_zero,
    find_bounds,
    group_rows,
    is_sorted,
    mask_changes,
)
from nsys2prv._util.files import load_shipped_file
from nsys2prv.events.catalogue import CallTable, Field, Metric, ValueSet, load_catalogue
from nsys2prv.events.extraction import STREAM_COLUMNS, Extraction
from nsys2prv.events.kind import CommunicationLines, Counters, EventKind, Reason, Rows
from nsys2prv.events.launches import Launches
from nsys2prv.events.stacks import CHAIN, add_callers
from nsys2prv.export.source import NULL, Columns, Part, Texts, gather_texts, mask_empty, zero_nulls
from nsys2prv.export.sqlite import read_cursor

#: Largest number of a sample, so that no number is taken for an open end.
GREATEST = OPEN - 1
#: Largest number of metrics per object, and of devices and sources, per read, because a program may
#: make up names. The most frequent ones are kept.
MOST_METRICS = MOST_SOURCES = 1024
#: SQL queries of kinds that need their own, by their names in ``queries.yaml``.
QUERIES: dict[str, str] = load_shipped_file(__package__, "queries.yaml")
#: Place of the rows of a kind -> the columns that identify it.
OBJECT_COLUMNS = {
    "thread": ("globalTid",),
    "main thread": ("globalPid",),
    "caller": ("globalPid", "correlationId"),
    "stream": (*STREAM_COLUMNS, "correlationId"),
    "gpu": ("globalPid", "deviceId"),
}
#: Fact about GPU work that begins before its launch: globalPid, deviceId, count, most (ns).
EARLY_WORK = "early_work"


@cache
def list_columns(*layouts: str, mask: int = -1) -> tuple[str, ...]:
    """Return the columns that :func:`read_fields` needs for these layouts. mask: bits of the wanted
    fields, by their place in the layout.
    """
    fields = (
        field
        for layout in layouts
        for bit, field in enumerate(load_catalogue().layouts[layout].fields)
        if mask >> bit & 1
    )
    return tuple(dict.fromkeys(field.column for field in fields if field.column))


def list_row_columns(kind: EventKind, *layouts: str) -> tuple[str, ...]:
    """Return the columns of a table that :func:`make_rows` needs for rows of a kind in these
    layouts.
    """
    times = ("start", "end") if kind.has_duration else ("start",)
    return (*times, *OBJECT_COLUMNS[kind.place], *list_columns(*layouts))


def read_fields(
    extraction: Extraction, layout: str, columns: Columns | Mapping[str, np.ndarray], mask: int = -1
) -> dict[str, np.ndarray]:
    """Read the fields of a layout that name a column. Return name of the field -> values. mask:
    bits of the wanted fields.
    """
    return {
        field.name: _read_field(extraction, field, columns[field.column])
        for bit, field in enumerate(load_catalogue().layouts[layout].fields)
        if field.column and mask >> bit & 1
    }


def make_rows(
    extraction: Extraction,
    layout: str,
    columns: Columns,
    fields: Mapping[str, np.ndarray] = MappingProxyType({}),
    objects: np.ndarray | None = None,
) -> Rows:
    """Make rows of a layout from the columns of a table, with lines from the calls that launched
    them.

    Times are in `start` and `end`; without `end`, rows are points in time. Fields of the layout
    that name a column are read from it. Fields with `unknown` but without a column have that value
    in all rows. fields: further fields, which take precedence. objects: object of each row; None
    for the object that the kind declares.
    """
    kind = extraction.kind
    if objects is None:
        objects = _find_objects(extraction, columns)
    start = columns["start"]
    end = columns.integers.get("end") if kind.has_duration else None
    end = np.where(start == NULL, NULL, start + 1) if end is None else end
    if not extraction.stores:
        return Rows(layout, start, end, objects, {})
    constants = {
        field.name: np.full(len(start), field.unknown)
        for field in load_catalogue().layouts[layout].fields
        if field.unknown is not None and not field.column
    }
    fields = {**constants, **read_fields(extraction, layout, columns), **fields}
    rows = Rows(layout, start, end, objects, fields)
    if kind.lines:
        sizes = columns[kind.line_sizes] if kind.line_sizes else None
        rows.lines = make_launch_lines(extraction, kind.lines, columns, objects, sizes)
    return rows


def _find_objects(extraction: Extraction, columns: Columns) -> np.ndarray:
    """Return the object (thread, stream or device) of each row, as the kind declares."""
    place = extraction.kind.place
    if place == "stream":
        return extraction.intern_streams(columns)
    if place == "gpu":
        return extraction.number_gpus(columns)
    if place == "caller":
        launches = extraction.find_launches(columns)
        return extraction.intern_threads(extraction.find_callers(launches, columns["globalPid"]))
    if place == "main thread":
        return extraction.intern_threads(extraction.find_main_threads(columns["globalPid"]))
    return extraction.intern_threads(columns["globalTid"])


def _read_field(extraction: Extraction, field: Field, column: np.ndarray) -> np.ndarray:
    if isinstance(field.values, ValueSet):
        table = _make_value_table(field.values, field.plus, field.unknown)
        values = table[np.clip(column, -1, len(table) - 2) + 1]
        return np.where(column < field.least, ABSENT, values) if field.least else values
    if field.values is not None:
        return _name_rows(extraction, field, column)
    return blank_nonpositive(column) if field.least else blank_negative(column)


@cache
def _make_value_table(values: ValueSet, plus: int, unknown: int | None) -> np.ndarray:
    """Return a table that maps numbers in a column to values.

    Index number + 1 has the value of a number. Index 0 has the value of all negative numbers, and
    the last index that of all larger numbers.
    """
    numbers = np.array([value - plus for value, _ in values.labels if value >= plus])
    table = np.full(numbers.max() + 3, ABSENT if unknown is None else unknown)
    table[numbers + 1] = numbers + plus
    return table


def _name_rows(extraction: Extraction, field: Field, ids: np.ndarray) -> np.ndarray:
    """Return the local name index of each row, from the ids in a field's column. If the field is
    optional, rows without a name, or with an empty one, get ABSENT.
    """

    def make_texts(met: np.ndarray) -> list[str]:
        if field.text:
            return [
                field.unnamed if id_ == NULL else field.text.format(id_) for id_ in met.tolist()
            ]
        return [text or field.unnamed for text in extraction.read_strings(met)]

    named = None
    if field.optional:
        distinct, codes = factorize(ids)
        named = np.array(list(map(bool, extraction.read_strings(distinct))), bool)[codes]
    return extraction.name_rows(field.values.name, [ids], make_texts, named)


def name_texts(
    extraction: Extraction, name_set: str, codes: np.ndarray, texts: Texts
) -> np.ndarray:
    """Give each row a name of this name set. Return the local index of the name, ABSENT for empty
    names. codes: index of each row's name in `texts`.
    """

    def make_texts(used: np.ndarray) -> Texts:
        return gather_texts(texts, used, "")

    return extraction.name_rows(name_set, [codes], make_texts, ~mask_empty(texts)[codes])


def _save_early_work(extraction: Extraction, columns: Columns, launches: Launches) -> None:
    """Store a fact for each GPU with work that begins before its launching call, because the GPU's
    clock is off: the number of rows, and the largest difference (ns).
    """
    start = columns["start"]
    early = np.flatnonzero(launches.hit & (start < launches.begin) & (start != NULL))
    if len(early):
        names = ("globalPid", "deviceId")
        frame = pl.DataFrame({name: zero_nulls(columns[name][early]) for name in names})
        frame = frame.with_columns(early=launches.begin[early] - start[early])
        sums = frame.group_by(names).agg(count=pl.len(), most=pl.col("early").max())
        extraction.add_fact(EARLY_WORK, sums.to_dict())


def make_launch_lines(
    extraction: Extraction,
    kind: str,
    columns: Columns,
    objects: np.ndarray,
    size: np.ndarray | None = None,
    launches: Launches | None = None,
) -> CommunicationLines | None:
    """Make communication lines from calls to the operations that they launched; None if lines are
    not wanted. kind: of lines.

    columns: start, end, globalPid and correlationId of the operations. objects: object (row) of
    each operation. size: bytes of each operation; None for 0. launches: the calls, if already
    looked up.
    """
    if not extraction.settings.lines:
        return None
    launches = launches or extraction.find_launches(columns)
    size = np.zeros(columns.rows, np.int64) if size is None else fill_with_zero(size)
    hit = slice(None) if launches.hit.all() else launches.hit
    _save_early_work(extraction, columns, launches)
    senders = extraction.intern_threads(launches.thread[hit])
    start, end = columns["start"][hit], columns["end"][hit]
    sent = launches.begin[hit], senders
    return CommunicationLines(kind, *sent, start, objects[hit], end, size[hit])


def group_sources(
    extraction: Extraction, *keys: np.ndarray
) -> Iterator[tuple[list[int], np.ndarray | slice]]:
    """Group rows of samples by device or other source. Yield (values of the source in the key
    columns, its rows). Samples of the rarest sources beyond MOST_SOURCES are dropped and counted.
    """
    values, codes = factorize_together(*keys)
    kept = mask_most_frequent(extraction, codes, MOST_SOURCES, Reason.RARE_METRIC)
    for number, rows in group_rows(codes):
        if kept[number]:
            yield [int(column[number]) for column in values], rows


def mask_most_frequent(
    extraction: Extraction, codes: np.ndarray, most: int, reason: Reason
) -> np.ndarray:
    """Return a mask of the rows with the `most` most frequent codes; other rows are counted as
    dropped for this reason. codes: from 0, all of them used.
    """
    counts = np.bincount(codes)
    kept = np.ones(len(counts), bool)
    if len(counts) > most:
        kept[np.argsort(-counts, kind="stable")[most:]] = False
        extraction.account.dropped[reason] += int(counts[~kept].sum())
    return kept


def make_counters(
    extraction: Extraction,
    layout: str,
    object_: int,
    samples: Mapping[str, np.ndarray],
    metrics: Sequence[Metric],
) -> Iterator[Counters]:
    """Yield the samples of one object (row) as counter records.

    samples: columns in any order: `time`, `metric` (index into the metrics), `value`, and `end` if
    values do not last until the next sample. Values that do not fit a trace are adjusted and
    counted.
    """
    account, value = extraction.account, samples["value"]
    least, greatest = find_bounds(value)
    if least < 0 or greatest > GREATEST:
        account.repaired[Reason.NEGATIVE_SAMPLE] += int(np.count_nonzero(value < 0))
        account.repaired[Reason.SAMPLE_TOO_GREAT] += int(np.count_nonzero(value > GREATEST))
        value = np.clip(value, 0, GREATEST)
    time, metric = samples["time"], samples["metric"]
    if "end" in samples:
        time, metric, value = _add_ends(time, samples["end"], metric, value)
        account.synthesized[Reason.ZERO_AT_END] += len(time) - len(samples["time"])
    used, column = factorize(metric)
    kept = mask_most_frequent(extraction, column, MOST_METRICS, Reason.RARE_METRIC)
    if not kept.all():
        rows = kept[column]
        time, value, column = time[rows], value[rows], (np.cumsum(kept) - 1)[column[rows]]
        used = used[kept]
    if not is_sorted(time):
        order = np.argsort(time, kind="stable")
        time, value, column = time[order], value[order], column[order]
    # If few times have all metrics, a single table would be mostly empty.
    is_small = np.count_nonzero(mask_changes(time)) * len(used) < METRIC_CELLS
    width = len(used) if is_small else METRICS_TOGETHER
    for first in range(0, len(used), width):
        numbers = used[first : first + width].tolist()
        own: np.ndarray | slice = slice(None)
        if len(numbers) < len(used):
            own = np.flatnonzero((column >= first) & (column < first + width))
        times = time[own]
        begins = mask_changes(times)
        values = np.full((np.count_nonzero(begins), len(numbers)), ABSENT)
        values[np.cumsum(begins) - 1, column[own] - first] = value[own]
        repeated = len(times) - int(np.count_nonzero(values != ABSENT))
        account.dropped[Reason.SAMPLE_REPEATED] += repeated
        of_table = tuple(metrics[number] for number in numbers)
        yield Counters(layout, times[begins], object_, of_table, values)


def _add_ends(
    start: np.ndarray, end: np.ndarray, metric: np.ndarray, value: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return time, metric and value of samples, with a zero at each end that is not directly
    followed by a sample of the same metric.
    """
    order = np.lexsort((start, metric))
    start, end, metric, value = start[order], end[order], metric[order], value[order]
    follows = np.append((metric[1:] == metric[:-1]) & (start[1:] <= end[:-1]), False)
    close = np.flatnonzero(~follows[: len(end)] & (end > start))
    zeros = np.zeros(len(close), np.int64)
    return np.append(start, end[close]), np.append(metric, metric[close]), np.append(value, zeros)


def query_json(name: str, payloads: Iterable[tuple[int, bytes]]) -> pl.DataFrame:
    """Run one of the QUERIES on JSON texts, and return its result as a frame. name: of the query.
    payloads: (number, text).
    """
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.text_factory = bytes
        connection.execute("CREATE TABLE payloads (number INTEGER PRIMARY KEY, payload)")
        connection.executemany("INSERT INTO payloads VALUES (?, ?)", payloads)
        return read_cursor(connection.execute(QUERIES[name]))


def extract_declared(extraction: Extraction, part: Part) -> Iterator[Rows]:
    """Yield records of kinds that need no code, because the catalogue names a column for each
    field.
    """
    layout = extraction.kind.layouts[0]
    columns = extraction.read(part, list_row_columns(extraction.kind, layout))
    yield make_rows(extraction, layout, columns)


def extract_line(extraction: Extraction, part: Part) -> Iterator[Rows]:
    """Yield the records of a table that is declared by a line in the section ``calls`` of the
    catalogue.
    """
    call = load_catalogue().calls[extraction.kind.name]
    gpu = [call.gpu] if call.queue else []
    stacks = [CHAIN] if call.stacks else []
    wanted = (*call.time, call.thread, *call.names, *gpu, *stacks, *list_columns(call.name))
    columns = extraction.read(part, wanted)
    begin, end = columns[call.time[0]], columns[call.time[-1]]
    columns.integers["start"] = begin
    columns.integers["end"] = np.where(end == NULL, begin + 1, end) if call.marks else end
    columns.integers["globalTid"] = columns[call.thread]
    objects = None
    if call.queue:
        objects = extraction.number_queues(columns[call.thread], call.queue, columns[call.gpu])
    fields = {"call": _name_calls(call, extraction, columns)}
    rows = make_rows(extraction, call.name, columns, fields, objects)
    yield add_callers(extraction, call.stacks, columns[CHAIN], rows) if call.stacks else rows


def _name_calls(call: CallTable, extraction: Extraction, columns: Columns) -> np.ndarray:
    ids = np.full(columns.rows, NULL)
    for name in call.names:
        ids = np.where(ids == NULL, columns[name], ids)
    if call.names and not call.enum:
        return extraction.name_rows(call.name, [ids], extraction.read_strings)
    labels = {NULL: call.label}
    if call.enum:
        labels |= extraction.database.read_small_table(call.enum, "id", "label")

    def make_texts(met: np.ndarray) -> list[str]:
        return [str(labels.get(id_) or f"{call.label} {id_}") for id_ in met.tolist()]

    return extraction.name_rows(call.name, [ids], make_texts)


def select_by_state(layout: str, labels: pl.DataFrame, state: str | None) -> tuple[int, ...]:
    """Return the values in `labels` whose label puts a row into a state, by the layout's rule.
    labels: value and label. state: name of the state; None for rows that are in no state.
    """
    numbers = {one.name: one.value for one in load_catalogue().states}
    rule = load_catalogue().layouts[layout].state
    names = labels.select("value", "label").rows()
    return tuple(value for value, name in names if rule.find_state(name) == numbers.get(state))


def select_labels(labels: pl.DataFrame, pattern: str) -> tuple[int, ...]:
    """Return the values in `labels` whose label matches a pattern. labels: value and label."""
    return tuple(labels.filter(pl.col("label").str.contains(pattern))["value"].to_list())
