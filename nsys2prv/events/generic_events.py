"""Numbers in generic events: what Nsight's plugins (storage, EFA, NVLink, power and others) sample,
on a row for each source.

Since 2025 the fields are in GENERIC_EVENT_DATA, before that in JSON only. Events of operating
systems (ftrace, ETW) and of hypervisors are no samples and are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.columns import factorize
from nsys2prv.events.attributes import group_rows, make_counters
from nsys2prv.events.catalogue.counters import Metric, find_known_label, label_metrics
from nsys2prv.events.extraction import SOURCE, DeviceKey, Extraction
from nsys2prv.events.kind import Counters, declare_kind
from nsys2prv.events.metrics import (
    FLOAT_DECIMALS,
    FLOATING,
    GPU_LAYOUT,
    make_gpu_counters,
    scale_fraction,
)
from nsys2prv.events.reasons import Reason
from nsys2prv.nsight.columns import NULL, decode_texts
from nsys2prv.nsight.source import Part, Source

EVENTS, DATA, FIELDS = "GENERIC_EVENTS", "GENERIC_EVENT_DATA", "GENERIC_EVENT_TYPE_FIELDS"
LAYOUT = "generic_counter"
#: ENUM_NSYS_GENERIC_EVENT_GROUP: 1 FTrace, 2 NvMedia, 3 Hypervisor, 4 ETW. What plugins sample has
#: none.
NO_SAMPLES = frozenset({1, 2, 3, 4})


class EventSource(Struct, frozen=True):
    """Source of the events of a type."""

    #: Name of the source.
    source: str
    #: Title of the row that its events are on.
    row: str
    #: True if its events are samples of numbers.
    samples: bool
    #: (index, name, True if floating point) of each field.
    fields: tuple[tuple[int, str, bool], ...]


def extract_generic_events(extraction: Extraction, part: Part) -> Iterator[Counters]:
    sources = _find_sources(extraction.database)
    rows = extraction.database.count_rows(part)
    extraction.account.rows += rows
    if part.table == DATA:
        frame = _read_data(extraction.database, part)
        if frame.height < rows:
            extraction.account.dropped[Reason.NO_EVENT] += rows - frame.height
        elif frame.height > rows:
            extraction.account.synthesized[Reason.SHARED_ID] += frame.height - rows
    elif (
        extraction.database.tables.get(DATA) is not None
        and extraction.database.tables[DATA].extent.rows
    ):
        extraction.account.skipped[Reason.HAS_FIELD_ROWS.with_detail(DATA)] += rows
        return
    else:
        frame = _read_json(extraction.database, part)
        extraction.account.skipped[Reason.EVENT_WITH_NUMBERS] += rows
        extraction.account.synthesized[Reason.NUMBER_IN_EVENT] += frame.height
    if not frame.height:
        return
    time, field_of, whole, fraction, real = (
        frame[name].to_numpy() for name in ("time", "field", "whole", "fraction", "real")
    )
    for number, rows in group_rows(frame["type"].to_numpy()):
        unknown = f"source {number & (2**64 - 1):#x}"
        source = sources.get(number) or EventSource(unknown, unknown, True, ())
        if not source.samples:
            extraction.account.dropped[Reason.NO_SAMPLE] += len(time[rows])
            continue
        keys, codes = (
            factorize(field_of[rows]) if field_of.dtype != object else _number_texts(field_of[rows])
        )
        fields_by_index = {index: (name, floating) for index, name, floating in source.fields}
        names = [
            fields_by_index.get(key, (f"field {key}", True))
            if part.table == DATA
            else (str(key), True)
            for key in keys.tolist()
        ]
        as_gpu = part.table != DATA and sum(
            find_known_label(GPU_LAYOUT, name) is not None for name, _ in names
        ) * 2 > len(names)
        value = np.where(real[rows], scale_fraction(fraction[rows]), whole[rows])
        if as_gpu:
            # As exports before 2023 hold them: events of a type for each GPU.
            value = np.where(real[rows], value // 10**FLOAT_DECIMALS, value)
            of_gpu = [(name, 0) for name, _ in names]
            yield make_gpu_counters(
                extraction, number, of_gpu, time[rows], codes, value, unsigned={"Hz"}
            )
            continue
        floating = np.array([in_fractions for _, in_fractions in names])[codes]
        value = np.where(
            floating & ~real[rows], scale_fraction(whole[rows].astype(np.float64)), value
        )
        value = np.where(~floating & real[rows], value // 10**FLOAT_DECIMALS, value)
        labels = label_metrics(LAYOUT, (f"{source.source}: {name}" for name, _ in names))
        metrics = tuple(
            Metric(label, FLOAT_DECIMALS if exact else 0)
            for label, (_, exact) in zip(labels, names, strict=True)
        )
        object_ = extraction.number_device(DeviceKey(SOURCE, source.row))
        yield make_counters(extraction, LAYOUT, object_, time[rows], codes, metrics, value)


def _number_texts(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    distinct, codes = np.unique(keys.astype(str), return_inverse=True)
    return distinct, codes.reshape(-1)


def _read_data(database: Source, part: Part) -> pl.DataFrame:
    """Return fields of a part of GENERIC_EVENT_DATA with the time and type of their events. Text
    where numbers belong reads as 0.
    """
    have = database.tables[DATA].columns
    if not (
        database.has(EVENTS, "genericEventId", "timestamp", "typeId")
        and database.has(DATA, "genericEventId", "fieldIdx")
    ):
        return pl.DataFrame()

    def first_of(*columns: str) -> str:
        return (
            f"coalesce({', '.join([f'd.{name}' for name in columns if name in have])}, 0)"
            if set(columns) & set(have)
            else "0"
        )

    reals = [f"d.{name} IS NOT NULL" for name in ("doubleVal", "floatVal") if name in have]
    return database.select(
        f"SELECT CAST(coalesce(e.timestamp, {NULL + 1} - 1) AS INTEGER) AS time, "
        f"CAST(coalesce(e.typeId, 0) AS INTEGER) AS type, CAST(coalesce(d.fieldIdx, 0) AS INTEGER) AS field, "
        f"CAST({first_of('intVal', 'uintVal')} AS INTEGER) AS whole, CAST({first_of('doubleVal', 'floatVal')} AS REAL) AS fraction, "
        f"{' OR '.join(reals) or '0'} AS real FROM {database.select_rows(part)} d "
        f"JOIN {EVENTS} e ON e.genericEventId = d.genericEventId"
    ).with_columns(pl.col("real").cast(pl.Boolean))


def _read_json(database: Source, part: Part) -> pl.DataFrame:
    """Return numbers in the JSON of a part of GENERIC_EVENTS, numbers written as text among them."""
    if not database.has(EVENTS, "timestamp", "typeId", "data"):
        return pl.DataFrame()
    number = "(j.type IN ('integer', 'real') OR (j.type = 'text' AND j.atom GLOB '[0-9-]*' AND j.atom NOT GLOB '*[^0-9.eE+-]*'))"
    frame = database.select(
        f"SELECT CAST(coalesce(e.timestamp, {NULL + 1} - 1) AS INTEGER) AS time, "
        f"CAST(coalesce(e.typeId, 0) AS INTEGER) AS type, CAST(j.key AS BLOB) AS field, "
        "CAST(j.atom AS INTEGER) AS whole, CAST(j.atom AS REAL) AS fraction, j.type = 'real' OR instr(j.atom, '.') > 0 AS real "
        f"FROM {database.select_rows(part)} e, json_tree(CASE WHEN json_valid(e.data) THEN e.data END) j "
        f"WHERE j.key IS NOT NULL AND {number}"
    )
    return frame.with_columns(pl.col("real").cast(pl.Boolean), field=decode_texts(frame["field"]))


def _find_sources(database: Source) -> dict[int, EventSource]:
    """Return typeId -> what its events are."""
    origins = {
        number: (_find_name(database, name, data), group)
        for number, name, group, data in database.read_small_table(
            "GENERIC_EVENT_SOURCES", "sourceId", "nameId", "sourceGroupId", "data"
        )
    }
    types = [
        (number, origin, _find_name(database, name, data))
        for number, origin, name, data in database.read_small_table(
            "GENERIC_EVENT_TYPES", "typeId", "sourceId", "nameId", "data"
        )
        if isinstance(number, int)
    ]
    rows = database.read_small_table(FIELDS, "typeId", "fieldIdx", "fieldNameId", "type")
    texts = database.strings(sorted({name for _, _, name, _ in rows if isinstance(name, int)}))
    fields: dict[int, list[tuple[int, str, bool]]] = {}
    for number, index, name, kind in rows:
        if isinstance(index, int):
            fields.setdefault(number, []).append(
                (index, texts.get(name) or f"field {index}", kind in FLOATING)
            )
    sources = {}
    for number, origin, name in types:
        source, group = origins.get(origin, ("", 0))
        source = source or name or f"source {number & (2**64 - 1):#x}"
        row = source if name in ("", source) else name if source in name else f"{source} {name}"
        sources[number] = EventSource(
            source, row, group not in NO_SAMPLES, tuple(sorted(fields.get(number, [])))
        )
    return sources


def _find_name(database: Source, name: object, data: object) -> str:
    """Return the name of a source or a type: a registered string, else that in its JSON."""
    if isinstance(name, int):
        return database.strings([name]).get(name, "")
    try:
        content = json.loads(data) if isinstance(data, str) else {}
    except (ValueError, RecursionError):
        return ""
    lowered = (
        {str(key).casefold(): value for key, value in content.items()}
        if isinstance(content, dict)
        else {}
    )
    return next(
        (
            value
            for key in ("name", "sourcename", "typename", "source", "type")
            if isinstance(value := lowered.get(key), str)
        ),
        "",
    )


KINDS = (declare_kind("generic_events", extract_generic_events),)
