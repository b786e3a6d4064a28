"""NCCL's payloads as ``nsys export --dynamic-tables=all`` (2026.4, schema 3.28.1) writes them: a table for each schema.

NVTX_EVENTS then has a primary key, ``eventId``; NVTX_EVENTS_PAYLOAD_SCHEMAS says which schema an event's payload is of, and
``DYNAMIC_NVTXPAYLOAD_DATATYPE_<globalPid>_<domainId>_<schemaId>`` has a row for each payload, with a column for each entry of
the schema. Unsigned numbers are stored as signed ones of 64 bits. Names of columns are sanitized and NVTX_EXPORT_TRANSLATION
tells from what; how is not documented: here everything but letters and digits becomes an underscore. The value of an
enumeration is its number (inferred). Of schema 3.28.1 an export has only this; the rest is as in 3.25.0.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from . import nccl, schema
from .cluster import Ints
from .program import Domain, Range
from .rows import Report

EVENTS = "NVTX_EVENTS"
_LAST_COLUMN = "binaryData                  TEXT"
_EVENT_ID = "    eventId                     INTEGER   NOT NULL   PRIMARY KEY       -- Unique NVTX event row identifier.\n)"


def prepare(report: Report) -> None:
    """Create NVTX_EVENTS with its key. Rows that are given no ``eventId`` get the next."""
    columns = schema.tables()[EVENTS].replace(f"{_LAST_COLUMN} ", f"{_LAST_COLUMN},").removesuffix(")")
    report.export.create(EVENTS, columns + _EVENT_ID)


def next_ids(report: Report, begin: Ints) -> Ints:
    """The ``eventId`` of rows about to be added, with the axes of their ``begin``: in the order in which they will lie."""
    ids = report.export.rows[EVENTS] + 1 + np.arange(begin.size)
    order = report.order(begin.ravel())
    if order is not None:
        ids[order] = ids.copy()
    return ids.reshape(begin.shape)


def write_payloads(report: Report, ranges: Sequence[Range], ids: Ints) -> None:
    """The payloads of ranges whose rows are ``ids`` (run, range)."""
    said = [index for index, found in enumerate(ranges) if found.payload]
    for function in sorted({found.payload.function for found in ranges if found.payload}):
        shape = nccl.SCHEMAS[function]
        which = [index for index in said if ranges[index].payload.function == function]  # type: ignore[union-attr]
        values = [nccl.values(ranges[index].payload, report.rank, report.cluster) for index in which]  # type: ignore[arg-type]
        table = table_name(report, shape)
        names = {name: sanitized(name) for name, _, _ in shape.entries}
        columns = "".join(f",\n    {name:<27} INTEGER" for name in names.values())
        report.export.create(table, f"CREATE TABLE {table} (\n    eventId                     INTEGER   NOT NULL{columns}\n)")
        events = ids[:, which].ravel()
        filled = {column: np.tile([_signed(value[name]) for value in values], len(ids)) for name, column in names.items()}
        report.export.insert(table, {"eventId": events, **filled})
        link = {"globalPid": report.rank.global_pid, "domainId": int(Domain.NCCL), "payloadSchemaID": shape.id}
        report.export.insert("NVTX_EVENTS_PAYLOAD_SCHEMAS", {"eventId": events, **link})


def table_name(report: Report, shape: nccl.Schema) -> str:
    return f"DYNAMIC_NVTXPAYLOAD_DATATYPE_{report.rank.global_pid}_{int(Domain.NCCL)}_{shape.id}"


def sanitized(name: str) -> str:
    return re.sub(r"\W", "_", name)


def write_translation(report: Report, shapes: Sequence[nccl.Schema]) -> None:
    """What the sanitized names of columns stand for."""
    names = sorted({name for shape in shapes for name, _, _ in shape.entries if sanitized(name) != name})
    report.export.insert("NVTX_EXPORT_TRANSLATION", {"originalName": names, "sanitizedName": [sanitized(name) for name in names]})


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number
