"""Hardware metrics of GPUs, sampled by Nsight Systems (``--gpu-metrics-devices``), on a row for each physical GPU.

A sample tells of the time since the sample before it: show it with Paraver's semantic function *Next Evt Val*. A zero one period before the
first sample, and before those behind holes, keeps it from telling of a time in which nothing was sampled (:mod:`nsys2prv.store.unsampled`).

The export's integers are the driver's raw numbers: clocks are in Hz though their names say MHz, and numbers of 32 bits without sign
beyond 2^31 stand as negative ones (nsys 2025.3 export of a Blackwell GPU, whose display configuration has the factor 1e-6; nsys's own
table of metrics says "in hertz" too).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsys2prv.catalogue.counters import Metric, labels_of, split_unit
from nsys2prv.columns import factorize
from nsys2prv.events.extraction import GPU, DeviceKey, Extraction
from nsys2prv.events.kind import Counters, EventKind
from nsys2prv.events.sampling import groups, not_negative, pivot
from nsys2prv.report.source import NULL, Part, Source

TABLE, NAMES, FIELDS = "GPU_METRICS", "TARGET_INFO_GPU_METRICS", "GENERIC_EVENT_TYPE_FIELDS"
LAYOUT = "gpu_metric"
#: Units of numbers that may be any of 32 bits without sign; percentages never are.
COUNTED = frozenset({"Hz", "B/s", "Requests", "Cycles Active", "Workloads", "Commands"})
#: A clock below this is in MHz: no GPU's is that slow in Hz, nor that fast in MHz.
LEAST_HZ = 100_000
FLOAT_DECIMALS = 3
#: ENUM_NSYS_GENERIC_EVENT_FIELD_TYPE.
FLOATING = (2, 3)


def extract(extraction: Extraction, part: Part) -> Iterator[Counters]:
    clock = "timestamp" if extraction.has(TABLE, "timestamp") else "rawTimestamp"
    columns = extraction.read(part, (clock, "typeId", "metricId", "value"))
    if not columns.rows:
        return
    named = metric_names(extraction.database)
    for source, rows in groups(columns["typeId"]):
        time, ids, value = columns[clock][rows], columns["metricId"][rows], columns["value"][rows]
        lacking = value == NULL
        if lacking.any():
            extraction.account.dropped["samples without a value"] += int(lacking.sum())
            time, ids, value = time[~lacking], ids[~lacking], value[~lacking]
        if len(time):
            yield _records(extraction, source, named.get(source, {}), time, ids, value)


def _records(extraction: Extraction, source: int, named: dict[int, tuple[str, int]], time: np.ndarray, ids: np.ndarray,
             value: np.ndarray) -> Counters:
    distinct, codes = factorize(ids)
    known = sorted({*named, *map(int, distinct)})
    labels = labels_of(LAYOUT, (named.get(number, (f"GPU metric {number}", 0))[0] for number in known))
    sizes = [named.get(number, ("", 0))[1] for number in known]
    metrics = tuple(Metric(label, FLOAT_DECIMALS if size else 0) for label, size in zip(labels, sizes, strict=True))
    column = np.searchsorted(known, distinct)
    value = value.copy()
    for code, place in enumerate(column):
        unit = split_unit(labels[place])[1]
        if sizes[place] or unit in COUNTED:
            rows = np.flatnonzero(codes == code)
            value[rows] = decoded_float(value[rows], sizes[place]) if sizes[place] else unsigned(value[rows], unit)
    object_ = extraction.device(DeviceKey(GPU, number=0 if source == NULL else source & 0xFF))
    return pivot(extraction, LAYOUT, object_, time, column[codes], metrics, not_negative(extraction, value))


def unsigned(value: np.ndarray, unit: str) -> np.ndarray:
    """Counts with the 32 bits they had; clocks in Hz."""
    value = np.where((value < 0) & (value >= -(1 << 31)), value + (1 << 32), value)
    return np.where((value > 0) & (value < LEAST_HZ), value * 1_000_000, value) if unit == "Hz" else value


def decoded_float(value: np.ndarray, size: int) -> np.ndarray:
    """Numbers whose bits are those of floating point of so many bytes, as integers with FLOAT_DECIMALS decimals."""
    number = (value & 0xFFFFFFFF).astype(np.uint32).view(np.float32).astype(np.float64) if size == 4 else value.view(np.float64)
    return scaled(number)


def scaled(number: np.ndarray) -> np.ndarray:
    """Fractions as integers with FLOAT_DECIMALS decimals; what is no number is 0."""
    greatest = 2.0 ** 53 / 10 ** FLOAT_DECIMALS
    return np.rint(np.clip(np.nan_to_num(number), -greatest, greatest) * 10 ** FLOAT_DECIMALS).astype(np.int64)


def metric_names(database: Source) -> dict[int, dict[int, tuple[str, int]]]:
    """typeId -> metricId -> name, and how many bytes it has if it is in floating point, else 0."""
    floating = {(source, number): size for source, number, size, kind in database.small(FIELDS, "typeId", "fieldIdx", "size", "type")
                if kind in FLOATING and size in (4, 8)}
    found: dict[int, dict[int, tuple[str, int]]] = {}
    for source, number, name in database.small(NAMES, "typeId", "metricId", "metricName"):
        if isinstance(source, int) and isinstance(number, int) and isinstance(name, str):
            found.setdefault(source, {})[number] = (name, floating.get((source, number), 0))
    return found


KINDS = (
    EventKind("gpu_metrics", "GPU metrics", "physical GPU", (TABLE,), (LAYOUT,), extract, groups=("metrics",),
              lasting=False),
)
