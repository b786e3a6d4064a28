"""Metrics of network interfaces and InfiniBand switches, on a row for each port, and congestion that switches reported.

A sample is a rate or a mean over the interval from its start to its end, and stands from there to there: show it with Paraver's
semantic function *Last Evt Val*. Where no sample follows at its end it is followed by 0. What was before the capture is left out.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsys2prv.catalogue.counters import Metric, labels_of
from nsys2prv.columns import factorize, factorize_together
from nsys2prv.events.extraction import NIC, SWITCH, DeviceKey, Extraction, present
from nsys2prv.events.kind import Counters, EventKind, Rows
from nsys2prv.events.sampling import groups, intervals, not_negative, pivot
from nsys2prv.report.source import NULL, Part

NICS, SWITCHES, CONGESTION = "NET_NIC_METRIC", "NET_IB_SWITCH_METRIC", "NET_IB_SWITCH_CONGESTION_EVENT"
LAYOUT = "network_metric"
#: Values of the catalogue's set `congestion`.
KNOWN_CONGESTION, OTHER_CONGESTION = (1,), 99
#: Field of the layout -> column of the table.
PACKET = {"source_lid": "packetSLID", "destination_lid": "packetDLID", "service_level": "packetSL", "opcode": "packetOpCode",
          "source_pair": "packetSourceQP", "destination_pair": "packetDestinationQP", "ingress_port": "switchIngressPort",
          "egress_port": "switchEgressPort"}


def extract(extraction: Extraction, part: Part) -> Iterator[Counters | Rows]:
    if part.table == CONGESTION:
        yield from _congestion(extraction, part)
        return
    columns = extraction.read(part, ("start", "end", "globalId", "portId", "metricsListId", "metricsIdx", "value"), times=())
    usable = (columns["value"] != NULL) & (columns["start"] != NULL)
    if not usable.all():
        extraction.account.dropped["samples without a value or a time"] += int((~usable).sum())
    kept = np.flatnonzero(usable)
    if not len(kept):
        return
    columns = {name: column[kept] for name, column in columns.integers.items()}
    begin = _capture_begin(extraction)
    end = np.where(columns["end"] == NULL, columns["start"], columns["end"])
    early = np.flatnonzero((columns["start"] < begin) & (end <= begin))
    if len(early):
        extraction.account.dropped["samples from before the capture"] += len(early)
        columns = {name: np.delete(column, early) for name, column in columns.items()}
        end = np.delete(end, early)
    if not len(end):
        return
    start = np.maximum(columns["start"], begin)
    end = np.maximum(end, start)
    value = not_negative(extraction, columns["value"])
    (lists, indices), metric = factorize_together(columns["metricsListId"], columns["metricsIdx"])
    metrics = _metrics(extraction, lists, indices)
    (devices, ports), port_of = factorize_together(columns["globalId"], columns["portId"])
    kind = NIC if part.table == NICS else SWITCH
    names = _device_names(extraction, kind)
    for number, rows in groups(port_of):
        port = int(ports[number])
        key = _key(kind, names.get(int(devices[number]), ""), int(devices[number]), port)
        time, series, values = intervals(extraction, start[rows], end[rows], metric[rows], value[rows])
        yield pivot(extraction, LAYOUT, extraction.device(key), time, series, metrics, values)


def _capture_begin(extraction: Extraction) -> int:
    """When the capture began, in the report's time: the first sample of each metric begins long before."""
    report = extraction.report
    return (report.utc_ns if report.utc_ns is not None else NULL) if report.absolute else 0


def _metrics(extraction: Extraction, lists: np.ndarray, indices: np.ndarray) -> tuple[Metric, ...]:
    """The metrics of (metricsListId, metricsIdx) pairs."""
    rows = extraction.database.small("TARGET_INFO_NETWORK_METRICS", "metricsListId", "metricsIdx", "name", "unit")
    named = {(number, index): f"{name} [{unit}]" if unit else name for number, index, name, unit in rows if isinstance(name, str)}
    names = (named.get((int(number), int(index)), f"Network metric {index} of list {number}")
             for number, index in zip(lists, indices, strict=True))
    return tuple(Metric(label) for label in labels_of(LAYOUT, names))


def _device_names(extraction: Extraction, kind: str) -> dict[int, str]:
    """globalId -> name of the interface or the switch, where the report has one."""
    database = extraction.database
    if kind == SWITCH:
        return {guid: name for guid, name in database.small("NET_IB_DEVICE_INFO", "guid", "name") if isinstance(name, str) and name}
    infos = database.small("TARGET_INFO_NIC_INFO", "nicId", "name", "globalId")
    names = {nic: name for nic, name, _ in infos if isinstance(name, str) and name}
    found = {device: name for _, name, device in infos if isinstance(name, str) and name and isinstance(device, int)}
    found.update({device: names[nic] for nic, device in database.small("NIC_ID_MAP", "nicId", "globalId") if nic in names})
    return found


def _key(kind: str, name: str, device: int, port: int) -> DeviceKey:
    """The row of a port. A device without a name goes by its id."""
    what = ("NIC" if kind == NIC else "Switch") + f" {name or f'{device & (2**64 - 1):#x}'}"
    return DeviceKey(kind, what if port == NULL else f"{what} port {port}", max(port, 0))


def _congestion(extraction: Extraction, part: Part) -> Iterator[Rows]:
    columns = extraction.read(part, ("start", "globalId", "congestionType", *PACKET.values()))
    names = _device_names(extraction, SWITCH)
    devices, device_of = factorize(columns["globalId"])
    for number, rows in groups(device_of):
        start, kind = columns["start"][rows], columns["congestionType"][rows]
        fields = {field: present(columns[column][rows]) for field, column in PACKET.items()}
        fields["type"] = np.where(np.isin(kind, KNOWN_CONGESTION), kind, OTHER_CONGESTION)
        device = int(devices[number])
        object_ = extraction.device(_key(SWITCH, names.get(device, ""), device, NULL))
        yield Rows("switch_congestion", start, start + 1, np.full(len(start), object_), fields)


KINDS = (
    EventKind("nic_metrics", "Network metrics", "port of a network interface or switch", (NICS, SWITCHES, CONGESTION),
              (LAYOUT, "switch_congestion"), extract, groups=("metrics",),
              lasting=False),
)
