"""Read sampled numbers.

Hardware metrics of GPUs, network interfaces, switches and CPUs are on a row for each device.
Numbers in generic events, sampled by Nsight's plugins (storage, EFA, NVLink, power and others), are
on a row for each source.

Since 2025, fields of generic events are in GENERIC_EVENT_DATA; before, they were only in JSON. OS
events (ftrace, ETW) and hypervisor events are not samples and are skipped.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.columns import (
    factorize,
    factorize_together,
    take_rows,
)
from nsys2prv.events.attributes import (
    group_sources,
    list_columns,
    make_counters,
    make_rows,
    query_json,
)
from nsys2prv.events.catalogue import Metric, find_known_label, make_metrics, split_unit
from nsys2prv.events.extraction import GPU, NIC, SOURCE, SWITCH, DeviceKey, Extraction
from nsys2prv.events.kind import Counters, Reason, Rows
from nsys2prv.export.database import Database
from nsys2prv.export.source import NULL, Part, decode_texts, zero_nulls

GPU_LAYOUT, SOC_LAYOUT = "gpu_metric", "soc_metric"
#: Tables of samples -> the table of their names, and their layout.
SAMPLED = {
    "GPU_METRICS": ("TARGET_INFO_GPU_METRICS", GPU_LAYOUT),
    "SOC_METRICS": ("TARGET_INFO_SOC_METRICS", SOC_LAYOUT),
}
#: Units of numbers that may be any of 32 bits without sign; percentages never are.
UNSIGNED_UNITS = frozenset({"Hz", "B/s", "Requests", "Cycles Active", "Workloads", "Commands"})
#: A lower clock rate is in MHz: no GPU is that slow in Hz, or that fast in MHz.
LEAST_HZ = 100_000
FLOAT_DECIMALS = 3
#: ENUM_NSYS_GENERIC_EVENT_FIELD_TYPE.
FLOATING = (2, 3)
NIC_METRICS, CONGESTION = "NET_NIC_METRIC", "NET_IB_SWITCH_CONGESTION_EVENT"
NIC_LAYOUT = "network_metric"
CPU_METRICS = ("PERF_EVENT_SOC_OR_CPU_METRIC_EVENT", "PERF_EVENT_CPU_METRIC_EVENT")
COMPONENTS, CPU_METRIC_NAMES = "TARGET_INFO_COMPONENT", "TARGET_INFO_PERF_METRIC"
#: Nesting of components: more than any machine has, so that cycles in damaged tables end.
DEEPEST = 8
#: Generic events; the values of their fields; the names and types of these.
EVENTS, EVENT_FIELDS = "GENERIC_EVENTS", "GENERIC_EVENT_DATA"
TYPE_FIELDS = "GENERIC_EVENT_TYPE_FIELDS"
GENERIC_LAYOUT = "generic_counter"
#: ENUM_NSYS_GENERIC_EVENT_GROUP: 1 FTrace, 2 NvMedia, 3 Hypervisor, 4 ETW. Samples of plugins have
#: none.
NO_SAMPLES = frozenset({1, 2, 3, 4})


def scale_fraction(number: np.ndarray) -> np.ndarray:
    """Return fractions as integers with FLOAT_DECIMALS decimals; NaN becomes 0."""
    greatest, factor = 2.0**53 / 10**FLOAT_DECIMALS, 10**FLOAT_DECIMALS
    exact = np.nan_to_num(number.astype(np.float64))
    return np.rint(np.clip(exact, -greatest, greatest) * factor).astype(np.int64)


# ---- GPUs and systems on a chip ------------------------------------------------------------------


def extract_gpu_metrics(extraction: Extraction, part: Part) -> Iterator[Counters]:
    """Yield the metrics sampled on each GPU, or on systems on a chip."""
    clock = "timestamp" if extraction.database.has(part.table, "timestamp") else "rawTimestamp"
    columns = extraction.read(part, (clock, "typeId", "metricId", "value"))
    lacking = columns["value"] == NULL
    columns = extraction.drop_rows(columns, lacking, Reason.SAMPLE_WITHOUT_VALUE)
    table, layout = SAMPLED[part.table]
    named = find_metric_names(extraction.database, table)
    for [source], rows in group_sources(extraction, columns["typeId"]):
        time, ids, value = (columns[name][rows] for name in (clock, "metricId", "value"))
        of_source, (met, codes) = named.get(source, {}), factorize(ids)
        numbers = sorted({*of_source, *met.tolist()})
        names = [of_source.get(number, (f"GPU metric {number}", 0)) for number in numbers]
        own = {"time": time, "metric": np.searchsorted(numbers, met)[codes], "value": value}
        yield from make_gpu_counters(extraction, source, own, names, layout=layout)


def make_gpu_counters(
    extraction: Extraction,
    source: int,
    samples: Mapping[str, np.ndarray],
    names: Sequence[tuple[str, int]],
    unsigned: frozenset[str] = UNSIGNED_UNITS,
    layout: str = GPU_LAYOUT,
) -> Iterator[Counters]:
    """Return the samples of a GPU or system on a chip as counter records. source: a number whose
    lowest byte is the number of the GPU. samples: columns as for :func:`make_counters`.

    names: metric names, with the size in bytes of floating-point numbers, otherwise 0. unsigned:
    units of numbers that nsys exports with a wrong sign.
    """
    metrics = make_metrics(layout, ((name, FLOAT_DECIMALS if size else 0) for name, size in names))
    value, codes = samples["value"].copy(), samples["metric"]
    sizes = np.array([size for _, size in names])
    for size in {*sizes.tolist()} - {0}:
        own = (sizes == size)[codes]
        value[own] = scale_fraction(value[own].astype(f"u{size}").view(f"f{size}"))
    for unit in unsigned:
        of_unit = [split_unit(metric.name)[1] == unit for metric in metrics]
        if any(of_unit):
            own = (np.array(of_unit) & (sizes == 0))[codes]
            value[own] = to_unsigned(value[own], unit)
    # The lowest byte of NULL is 0.
    number = source & 0xFF
    key = DeviceKey(GPU, number=number)
    if layout == SOC_LAYOUT:
        key = DeviceKey(SOURCE, "system on a chip" + (f" {number}" if number else ""))
    samples = {**samples, "value": value}
    return make_counters(extraction, layout, extraction.number_device(key), samples, metrics)


def to_unsigned(value: np.ndarray, unit: str) -> np.ndarray:
    """Repair numbers that nsys exports with a wrong sign: return counts as unsigned 32-bit numbers,
    and clock rates in Hz. unit: of the numbers.
    """
    value = np.where((value < 0) & (value >= -(1 << 31)), value + (1 << 32), value)
    if unit != "Hz":
        return value
    return np.where((value > 0) & (value < LEAST_HZ), value * 1_000_000, value)


def find_metric_names(database: Database, table: str) -> dict[int, dict[int, tuple[str, int]]]:
    """Read the names of metrics in a table: typeId -> metricId -> (name, size in bytes if it is
    floating point, otherwise 0).
    """
    floating = {
        (source, number): size
        for source, number, size, kind in database.read_small_table(
            TYPE_FIELDS, "typeId", "fieldIdx", "size", "type"
        )
        if kind in FLOATING and size in (4, 8)
    }
    names: dict[int, dict[int, tuple[str, int]]] = defaultdict(dict)
    columns = ("typeId", "metricId", "metricName")
    for source, number, name in database.read_small_table(table, *columns, types=(int, int, str)):
        names[source][number] = (name, floating.get((source, number), 0))
    return names


# ---- network interfaces, switches and CPUs -------------------------------------------------------


def extract_nic_metrics(extraction: Extraction, part: Part) -> Iterator[Counters | Rows]:
    """Yield the samples of each port of network interfaces and switches, and congestion events of
    switches.
    """
    kind = NIC if part.table == NIC_METRICS else SWITCH
    device_names = _find_device_names(extraction.database, kind)

    def make_key(device: int, port: int = NULL) -> DeviceKey:
        # A device without a name goes by its id.
        name = device_names.get(device) or f"{device & (2**64 - 1):#x}"
        label = f"{'NIC' if kind == NIC else 'Switch'} {name}"
        return DeviceKey(kind, label if port == NULL else f"{label} port {port}", max(port, 0))

    if part.table == CONGESTION:
        columns = extraction.read(part, ("start", "globalId", *list_columns("switch_congestion")))
        objects = extraction.number_objects(make_key, columns["globalId"])
        yield make_rows(extraction, "switch_congestion", columns, objects=objects)
        return
    wanted = ("start", "end", "globalId", "portId", "metricsListId", "metricsIdx", "value")
    columns = extraction.read(part, wanted, times=())
    incomplete = (columns["value"] == NULL) | (columns["start"] == NULL)
    columns = extraction.drop_rows(columns, incomplete, Reason.SAMPLE_INCOMPLETE)
    # The first sample of each metric begins long before the capture.
    begin = extraction.report.begin_ns
    begin = NULL if begin is None else begin
    last = np.where(columns["end"] == NULL, columns["start"], columns["end"])
    early = (columns["start"] < begin) & (last <= begin)
    columns = extraction.drop_rows(columns, early, Reason.SAMPLE_BEFORE_CAPTURE)
    (lists, indices), metric = factorize_together(columns["metricsListId"], columns["metricsIdx"])
    known = {
        (number, index): f"{name} [{unit}]" if unit else name
        for number, index, name, unit in extraction.database.read_small_table(
            "TARGET_INFO_NETWORK_METRICS", "metricsListId", "metricsIdx", "name", "unit"
        )
        if isinstance(name, str)
    }
    named = (
        known.get((number, index), f"Network metric {index} of list {number}")
        for number, index in zip(lists.tolist(), indices.tolist(), strict=True)
    )
    metrics = make_metrics(NIC_LAYOUT, ((name, 0) for name in named))
    start = np.maximum(columns["start"], begin)
    times = {"time": start, "end": np.maximum(last[~early], start)}
    samples = {**times, "metric": metric, "value": columns["value"]}
    by = columns["globalId"], columns["portId"]
    yield from _count_each(extraction, NIC_LAYOUT, samples, by, make_key, metrics)


def _count_each(
    extraction: Extraction,
    layout: str,
    samples: Mapping[str, np.ndarray],
    by: Sequence[np.ndarray],
    make_key: Callable[..., DeviceKey],
    metrics: Sequence[Metric],
) -> Iterator[Counters]:
    """Yield the records of each device. by: columns that identify the device. metrics: of all
    devices.
    """
    for place, rows in group_sources(extraction, *by):
        object_ = extraction.number_device(make_key(*place))
        own = take_rows(samples, rows)
        yield from make_counters(extraction, layout, object_, own, metrics)


def _find_device_names(database: Database, kind: str) -> dict[int, str]:
    """Return globalId -> name of the interface or switch, if recorded."""
    if kind == SWITCH:
        rows = database.read_small_table("NET_IB_DEVICE_INFO", "guid", "name")
        return {guid: name for guid, name in rows if isinstance(name, str) and name}
    infos = database.read_small_table(
        "TARGET_INFO_NIC_INFO", "name", "nicId", "globalId", types=(str,)
    )
    names = {nic: name for name, nic, _ in infos if name}
    devices = database.read_small_table("NIC_ID_MAP", "nicId", "globalId")
    of_nics = {device: name for name, _, device in infos if name and isinstance(device, int)}
    return of_nics | {device: names[nic] for nic, device in devices if nic in names}


def extract_cpu_counters(extraction: Extraction, part: Part) -> Iterator[Counters]:
    """Yield the samples of each CPU component: event counts or metrics."""
    computed, database = part.table in CPU_METRICS, extraction.database
    layout, unknown = ("cpu_metric", "metric") if computed else ("cpu_counter", "event")
    # A count is an integer, a metric any number.
    number, integers, reals = (
        ("metricId", (), ("value",)) if computed else ("eventId", ("count",), ())
    )
    wanted = ("start", "end", "componentId", number, *integers)
    columns = database.read(part, wanted, reals=reals)
    extraction.account.rows += columns.rows
    [counted] = reals or integers
    lacking = np.isnan(columns[counted]) if computed else columns[counted] == NULL
    lacking |= columns["start"] == NULL
    columns = extraction.drop_rows(columns, lacking, Reason.SAMPLE_INCOMPLETE)
    distinct, metric = factorize(columns[number])
    start, end, value = (columns[name] for name in ("start", "end", counted))
    samples = {
        "time": start,
        "end": np.where(end == NULL, start, end),
        "metric": metric,
        "value": scale_fraction(value) if computed else value,
    }
    known = _find_names(database)
    names = [known.get(number, f"CPU {unknown} {number}") for number in distinct.tolist()]
    metrics = make_metrics(layout, ((name, FLOAT_DECIMALS if computed else 0) for name in names))
    components = {NULL: "CPU"} | _name_components(database)

    def make_key(component: int) -> DeviceKey:
        return DeviceKey(SOURCE, components.get(component, f"CPU component {component}"))

    by = [columns["componentId"]]
    yield from _count_each(extraction, layout, samples, by, make_key, metrics)


def _find_names(database: Database) -> dict[int, str]:
    """Return id -> name of events and metrics, with units."""
    rows = database.read_small_table(CPU_METRIC_NAMES, "id", "displayName", "name", "unit")
    return {
        number: f"{shown or name} [{unit}]" if unit else shown or name
        for number, shown, name, unit in rows
        if shown or name
    }


def _name_components(database: Database) -> dict[int, str]:
    """Return the name of each component, preceded by the names of its parents: `CPU socket 0 core
    3`.
    """
    parent = "parentId" if database.has(COMPONENTS, "parentId") else "parentComponentId"
    rows = database.read_small_table(COMPONENTS, "componentId", "name", "instance", parent)
    components = {
        number: (f"{name or 'component'}{'' if instance is None else f' {instance}'}", above)
        for number, name, instance, above in rows
    }
    names = {}
    for number in components:
        words: list[str] = []
        # The root may be its own parent.
        left, at = dict(components), number
        while at in left and len(words) < DEEPEST:
            name, at = left.pop(at)
            words.insert(0, name)
        path = " ".join(words)
        names[number] = path if path.casefold().startswith(("cpu", "soc ")) else f"CPU {path}"
    return names


# ---- generic events ------------------------------------------------------------------------------


class EventSource(Struct, frozen=True):
    """Describes one type of generic events: its source, the row of its samples, and its fields."""

    #: Name of the source.
    source: str
    #: Title of the row that its events are on.
    row: str
    #: True if its events are samples of numbers.
    samples: bool
    #: Index of each field -> its name, and the decimals that its numbers need.
    fields: dict[int, tuple[str, int]]


def extract_generic_events(extraction: Extraction, part: Part) -> Iterator[Counters]:
    """Yield the numbers in generic events (typed events of plugins) whose type consists of samples."""
    frame = _read_numbers(extraction, part)
    if not frame.height:
        return
    sources = _find_sources(extraction.database)
    for [number], rows in group_sources(extraction, frame["type"].to_numpy()):
        own = frame[rows]
        unknown = f"source {number & (2**64 - 1):#x}"
        source = sources.get(number) or EventSource(unknown, unknown, True, {})
        if not source.samples:
            extraction.account.dropped[Reason.NO_SAMPLE] += own.height
            continue
        # The index of a field, or its name in JSON.
        fields = own["field"].unique().sort()
        names = [
            source.fields.get(key)
            or (key if isinstance(key, str) else f"field {key}", FLOAT_DECIMALS)
            for key in fields
        ]
        whole, fraction, real = (own[name].to_numpy() for name in ("whole", "fraction", "real"))
        codes = own["field"].rank("dense").to_numpy().astype(np.int64) - 1
        value = np.where(real, scale_fraction(fraction) // 10**FLOAT_DECIMALS, whole)
        samples = {"time": own["time"].to_numpy(), "metric": codes, "value": value}
        known_of_gpus = sum(find_known_label(GPU_LAYOUT, name) is not None for name, _ in names)
        if part.table != EVENT_FIELDS and known_of_gpus * 2 > len(names):
            # Exports before 2023 contain events of one type per GPU.
            sizes, unsigned = [(name, 0) for name, _ in names], frozenset({"Hz"})
            yield from make_gpu_counters(extraction, number, samples, sizes, unsigned)
            continue
        floating = np.array([decimals > 0 for _, decimals in names])[codes]
        in_fractions = scale_fraction(np.where(real, fraction, whole))
        samples["value"] = np.where(floating, in_fractions, value)
        full_names = ((f"{source.source}: {name}", decimals) for name, decimals in names)
        metrics = make_metrics(GENERIC_LAYOUT, full_names)
        object_ = extraction.number_device(DeviceKey(SOURCE, source.row))
        yield from make_counters(extraction, GENERIC_LAYOUT, object_, samples, metrics)


def _read_numbers(extraction: Extraction, part: Part) -> pl.DataFrame:
    """Return the numbers of a part, from fields or JSON, with the time and type of their events;
    count the rows. If the export has fields, the same numbers in JSON are skipped.
    """
    account, row_count = extraction.account, extraction.database.count_rows(part)
    account.rows += row_count
    if part.table == EVENT_FIELDS:
        frame = _read_data(extraction.database, part)
        account.dropped[Reason.NO_EVENT] += max(row_count - frame.height, 0)
        account.synthesized[Reason.SHARED_ID] += max(frame.height - row_count, 0)
        return frame
    if EVENT_FIELDS in extraction.report.parts:
        account.skipped[Reason.HAS_FIELD_ROWS.with_detail(EVENT_FIELDS)] += row_count
        return pl.DataFrame()
    frame = _read_json(extraction.database, part)
    account.skipped[Reason.EVENT_WITH_NUMBERS] += row_count
    account.synthesized[Reason.NUMBER_IN_EVENT] += frame.height
    return frame


def _read_data(database: Database, part: Part) -> pl.DataFrame:
    """Return the fields of a part of GENERIC_EVENT_DATA, with the time and type of their events.
    Texts in numeric fields read as 0.
    """
    if not (
        database.has(EVENTS, "genericEventId", "timestamp", "typeId")
        and database.has(EVENT_FIELDS, "genericEventId", "fieldIdx")
    ):
        return pl.DataFrame()
    columns = database.read(
        part,
        ("genericEventId", "fieldIdx", "intVal", "uintVal"),
        reals=("doubleVal", "floatVal"),
    )
    numbers = pl.DataFrame(columns.integers, nan_to_null=True).with_columns(
        pl.col(pl.Int64).replace(NULL, None)
    )
    ids = numbers["genericEventId"].drop_nulls().unique()
    wanted = ("genericEventId", "timestamp", "typeId")
    events = pl.concat(
        [
            pl.DataFrame(schema=dict.fromkeys(wanted, pl.Int64)),
            *(
                pl.DataFrame(piece.integers).filter(pl.col("genericEventId").is_in(ids.implode()))
                for piece in database.read_pieces(EVENTS, wanted)
            ),
        ]
    )
    fraction = pl.coalesce("doubleVal", "floatVal")
    return numbers.join(events, on="genericEventId", maintain_order="left_right").select(
        time="timestamp",
        type=pl.col("typeId").replace(NULL, 0),
        field=pl.col("fieldIdx").fill_null(0),
        whole=pl.coalesce("intVal", "uintVal", 0),
        fraction=fraction.fill_null(0.0),
        real=fraction.is_not_null(),
    )


def _read_json(database: Database, part: Part) -> pl.DataFrame:
    """Return the numbers in the JSON of a part of GENERIC_EVENTS, including numbers written as
    text.
    """
    if not database.has(EVENTS, "timestamp", "typeId", "data"):
        return pl.DataFrame()
    columns = database.read(part, ("timestamp", "typeId"), ("data",))
    codes, texts = columns.texts["data"]
    numbers = query_json("generic_json", enumerate(texts.as_list()))
    numbers = numbers.with_columns(pl.col("real").cast(pl.Boolean), decode_texts(numbers["field"]))
    times = {"time": columns["timestamp"], "type": zero_nulls(columns["typeId"])}
    events = pl.DataFrame({"number": codes, **times})
    return events.join(numbers, on="number", maintain_order="left_right")


def _find_sources(database: Database) -> dict[int, EventSource]:
    """Return typeId -> source of its events."""
    read = database.read_small_table
    origins = {
        number: (_find_name(database, name, data), group)
        for number, name, group, data in read(
            "GENERIC_EVENT_SOURCES", "sourceId", "nameId", "sourceGroupId", "data"
        )
    }
    rows = read(TYPE_FIELDS, "typeId", "fieldIdx", "fieldNameId", "type", types=(int, int))
    texts = database.read_strings(sorted({name for _, _, name, _ in rows if isinstance(name, int)}))
    fields: dict[int, dict[int, tuple[str, int]]] = defaultdict(dict)
    for number, index, name, kind in rows:
        decimals = FLOAT_DECIMALS if kind in FLOATING else 0
        fields[number][index] = texts.get(name) or f"field {index}", decimals
    sources = {}
    columns = ("typeId", "sourceId", "nameId", "data")
    for number, origin, name_id, data in read("GENERIC_EVENT_TYPES", *columns, types=(int,)):
        name = _find_name(database, name_id, data)
        source, group = origins.get(origin, ("", 0))
        source = source or name or f"source {number & (2**64 - 1):#x}"
        row = source if name in ("", source) else name if source in name else f"{source} {name}"
        sources[number] = EventSource(source, row, group not in NO_SAMPLES, fields[number])
    return sources


def _find_name(database: Database, name: object, data: object) -> str:
    """Return the name of a source or type: a registered string, otherwise the name in its JSON."""
    if isinstance(name, int):
        return database.read_strings([name]).get(name, "")
    try:
        content = json.loads(data) if isinstance(data, str) else {}
    except (ValueError, RecursionError):
        return ""
    if not isinstance(content, dict):
        return ""
    lowered = {str(key).casefold(): value for key, value in content.items()}
    names = map(lowered.get, ("name", "sourcename", "typename", "source", "type"))
    return next((name for name in names if isinstance(name, str)), "")
