"""Generic events: sources, types and fields, which GPU metrics and nsys plugins have, and events themselves.

A typeId is HW id 8 bits, VM id 8, source 16, type 32; the lowest 8 bits of the type number the device.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..cluster import VM_ID, Ints
from ..rows import Report

SIGNED, UNSIGNED, FLOAT, DOUBLE = range(4)
"""ENUM_NSYS_GENERIC_EVENT_FIELD_TYPE."""

_VALUES = {SIGNED: "intVal", UNSIGNED: "uintVal", FLOAT: "floatVal", DOUBLE: "doubleVal"}
_MONOTONIC = 1


@dataclass(frozen=True)
class Field:
    name: str
    kind: int = UNSIGNED

    @property
    def size(self) -> int:
        return 4 if self.kind == FLOAT else 8

    def text(self, value: float) -> str:
        """A value as JSON data hold it."""
        return str(value if self.kind in (FLOAT, DOUBLE) else round(value))


def source_id(number: int) -> int:
    return VM_ID | number << 32


def define(report: Report, number: int, source: str, types: Sequence[tuple[int, str, Sequence[Field]]]) -> None:
    """Rows for a source and its types: device number, name, fields."""
    string, asked = report.export.string, report.includes_json
    known = source_id(number)
    columns: dict[str, Any] = {"sourceId": [known], "nameId": [string(source)], "timeSourceId": _MONOTONIC, "sourceGroupId": 0}
    if asked:
        columns["data"] = [_json({"Name": source, "TimeSource": "ClockMonotonicRaw", "SourceGroup": "Unknown"})]
    report.export.insert("GENERIC_EVENT_SOURCES", columns)
    columns = {
        "typeId": [known | device for device, _, _ in types],
        "sourceId": known,
        "nameId": [string(name) for _, name, _ in types],
    }
    if asked:
        columns["data"] = [
            _json({"Name": name, "Fields": [{"Name": field.name, "Prefix": "", "Suffix": ""} for field in fields]})
            for _, name, fields in types
        ]
    report.export.insert("GENERIC_EVENT_TYPES", columns)
    each = [(device, place, field) for device, _, fields in types for place, field in enumerate(fields)]
    report.export.insert(
        "GENERIC_EVENT_TYPE_FIELDS",
        {
            "typeId": [known | device for device, _, _ in each],
            "fieldIdx": [place for _, place, _ in each],
            "fieldNameId": [string(field.name) for _, _, field in each],
            "offset": [8 * place for _, place, _ in each],
            "size": [field.size for _, _, field in each],
            "type": [field.kind for _, _, field in each],
        },
    )


def write_events(report: Report, number: int, device: int, fields: Sequence[Field], times: Ints, values: Any) -> None:
    """Events of one type at ``times`` (local ns) with ``values`` (event, field), as rows and, if asked for, as JSON."""
    if not len(times):
        return
    first = report.facts.setdefault("next_generic_event", 1)
    report.facts["next_generic_event"] = first + len(times)
    ids = first + np.arange(len(times))
    columns: dict[str, Any] = {
        "genericEventId": ids,
        "rawTimestamp": times + report.rank.start_clock,
        "timestamp": times,
        "typeId": source_id(number) | device,
    }
    if report.includes_json:
        columns["data"] = [
            _json({field.name: field.text(value) for field, value in zip(fields, row, strict=True)}) for row in values.tolist()
        ]
    report.export.insert("GENERIC_EVENTS", columns, report.order(times))
    report.tally.add("GENERIC_EVENTS", [f"source {number} device {device}"], np.zeros((len(times), 1), np.int64))
    for kind, column in _VALUES.items():
        places = [place for place, field in enumerate(fields) if field.kind == kind]
        if not places:
            continue
        found = values[:, places]
        found = found.astype(np.int64) if kind in (SIGNED, UNSIGNED) else found
        report.export.insert(
            "GENERIC_EVENT_DATA",
            {
                "genericEventId": np.repeat(ids, len(places)),
                "fieldIdx": np.tile(np.array(places), len(ids)),
                column: found.ravel(),
            },
        )


def _json(said: dict[str, Any]) -> str:
    return json.dumps(said, separators=(",", ":"))
