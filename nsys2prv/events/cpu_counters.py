"""Counters of CPU cores, sockets and what else a chip has, and metrics computed of them (``--cpu-core-events``, ``--cpu-core-metrics``,
``--cpu-socket-events``, ``--cpu-socket-metrics``), on a row for each component.

A sample is a count, or a mean, over the interval from its start to its end, and stands from there to there: show it with Paraver's
semantic function *Last Evt Val*. Where no sample follows at its end it is followed by 0.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from nsys2prv.catalogue.counters import Metric, labels_of
from nsys2prv.columns import factorize
from nsys2prv.events.extraction import SOURCE, DeviceKey, Extraction
from nsys2prv.events.gpu_metrics import FLOAT_DECIMALS, scaled
from nsys2prv.events.kind import Counters, EventKind
from nsys2prv.events.sampling import groups, intervals, not_negative, pivot
from nsys2prv.report.source import NULL, Part, Source

#: Of 2023 and since; the former knew no SoC.
COUNTS = ("PERF_EVENT_SOC_OR_CPU_RAW_EVENT", "PERF_EVENT_CPU_RAW_EVENT")
METRICS = ("PERF_EVENT_SOC_OR_CPU_METRIC_EVENT", "PERF_EVENT_CPU_METRIC_EVENT")
COMPONENTS, NAMES = "TARGET_INFO_COMPONENT", "TARGET_INFO_PERF_METRIC"
#: Component within component: more than any machine has, so that a circle in damaged tables ends.
DEEPEST = 8


def extract(extraction: Extraction, part: Part) -> Iterator[Counters]:
    computed = part.table in METRICS
    frame = _rows(extraction.database, part, computed)
    extraction.account.rows += frame.height
    if not frame.height:
        return
    usable = frame.filter((pl.col("start") != NULL) & pl.col("value").is_not_null())
    if usable.height < frame.height:
        extraction.account.dropped["samples without a value or a time"] += frame.height - usable.height
    start, end, component, number, value = (usable[name].to_numpy() for name in ("start", "end", "component", "number", "value"))
    if not len(start):
        return
    end = np.where(end == NULL, start, end)
    value = not_negative(extraction, scaled(value) if computed else value)
    distinct, codes = factorize(number)
    layout = "cpu_metric" if computed else "cpu_counter"
    names = _names(extraction.database)
    labels = labels_of(layout, (names.get(found, f"CPU {'metric' if computed else 'event'} {found}") for found in distinct.tolist()))
    metrics = tuple(Metric(label, FLOAT_DECIMALS if computed else 0) for label in labels)
    components = _components(extraction.database)
    for found, rows in groups(component):
        key = DeviceKey(SOURCE, components.get(found, "CPU" if found == NULL else f"CPU component {found}"))
        time, series, values = intervals(extraction, start[rows], end[rows], codes[rows], value[rows])
        yield pivot(extraction, layout, extraction.device(key), time, series, metrics, values)


def _rows(database: Source, part: Part, computed: bool) -> pl.DataFrame:
    """start, end, component, number and value of a part's rows; NULL where a row lacks one, in values null."""
    have = database.tables[part.table].columns
    columns = {"start": "start", "end": "end", "component": "componentId", "number": "metricId" if computed else "eventId"}
    value = "value" if computed else "count"
    integers = (f'CAST(coalesce("{column}", {NULL + 1} - 1) AS INTEGER) AS "{name}"' if column in have else f'{NULL + 1} - 1 AS "{name}"'
                for name, column in columns.items())
    asked = f'CAST("{value}" AS {"REAL" if computed else "INTEGER"})' if value in have else "NULL"
    frame = database.select(f"SELECT {', '.join(integers)}, {asked} AS value FROM {database.rows_of(part)}")
    return frame.with_columns(pl.col("value").cast(pl.Float64 if computed else pl.Int64))


def _names(database: Source) -> dict[int, str]:
    """The names of events and metrics, with their units."""
    rows = database.small(NAMES, "id", "displayName", "name", "unit")
    return {number: f"{shown or name} [{unit}]" if unit else shown or name for number, shown, name, unit in rows if shown or name}


def _components(database: Source) -> dict[int, str]:
    """The name of each component, with those that it is part of before it: `CPU socket 0 core 3`."""
    rows = [*database.small(COMPONENTS, "componentId", "name", "instance", "parentId")]
    if not database.has(COMPONENTS, "parentId"):
        rows = database.small(COMPONENTS, "componentId", "name", "instance", "parentComponentId")
    known = {number: (str(name or "component"), instance, parent) for number, name, instance, parent in rows}
    return {number: _path(number, known) for number in known}


def _path(number: int, known: dict[int, tuple[str, object, object]]) -> str:
    words: list[str] = []
    met: set[object] = set()
    at: object = number
    while at in known and at not in met and len(met) < DEEPEST:
        met.add(at)
        name, instance, parent = known[at]
        words.insert(0, name if instance is None else f"{name} {instance}")
        at = parent
    path = " ".join(words)
    return path if path.casefold().startswith(("cpu", "soc ")) else f"CPU {path}"


KINDS = (
    EventKind("cpu_counters", "CPU counters", "component of a CPU or chip", (*COUNTS, *METRICS), ("cpu_counter", "cpu_metric"), extract,
              groups=("cpu", "metrics", "cpu_raw_counters"), lasting=False),
)
