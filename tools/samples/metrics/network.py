"""Network interfaces and the InfiniBand switch, sampled.

Every report of a host records all of the host's interfaces, each at its own moments, so that the same bytes are counted
in several reports. Values are rates over the sample's interval (bytes, packets or ticks per ms). The first row of every
counter is one that real exports have too: value 0, from long before the capture to its first sample.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..cluster import Cluster, Ints
from ..options import Options
from ..program import Program
from ..rows import Report
from ..target import DEVICE
from ..timeline import Block
from .congestion import LINE_RATE, Congestion, lid
from .devices import INFINIBAND, Nic, nics_of, switch_of
from .series import Floats, Intervals, Series
from .traffic import Place, flows

_NIC_LIST, _SWITCH_LIST = 0, 1
_PACKET_BYTES = 4_096
_FREE_SHARE = 0.25
"""Of the line rate; above it senders have to wait."""

_CHANNELS = 2  # bytes received, bytes sent
_VENDOR = 5555
_LONG_BEFORE_NS = 5_000_000_000_000
_NETWORK = 1

# number in the list, name, description, unit
_COUNTERS = [
    (0, "Eth: Bytes received", "Amount of Ethernet bytes received by the NIC port", "bytes/ms"),
    (1, "Eth: Bytes sent", "Amount of Ethernet bytes sent through the NIC port", "bytes/ms"),
    (2, "Eth: Packets received", "Number of Ethernet packets received by the NIC port", "packets/ms"),
    (3, "Eth: Packets sent", "Number of Ethernet packets sent through the NIC port", "packets/ms"),
    (5, "IB: Bytes received", "Amount of InfiniBand bytes received by the NIC port", "bytes/ms"),
    (6, "IB: Bytes sent", "Amount of InfiniBand bytes sent through the NIC port", "bytes/ms"),
    (7, "IB: Packets received", "Number of InfiniBand packets received by the NIC port", "packets/ms"),
    (8, "IB: Packets sent", "Number of InfiniBand packets sent through the NIC port", "packets/ms"),
    (
        10,
        "IB: Send waits",
        "The number of ticks during which the NIC port had data to transmit but no data was sent",
        "ticks/ms",
    ),
]


class Network:
    """Samples the interfaces of the given reports' hosts, and the switch, and writes them."""

    def __init__(self, options: Options, cluster: Cluster, reports: list[Report]) -> None:
        self.options, self.cluster, self.reports = options, cluster, reports
        self.nics = {host: nics_of(options, host) for host in range(options.hosts)}
        self.ports = [(nic.host, nic.number) for nics in self.nics.values() for nic in nics if nic.link == INFINIBAND]
        self.moved = dict.fromkeys(self.ports, (0.0, 0.0))
        self.congestion = Congestion(options, cluster, reports) if options.switch_congestion else None
        self.watched: dict[int, list[tuple[Place, Series, bool]]] = {}
        self.seen: dict[int, dict[str, Any]] = {id(report): {} for report in reports}
        for report in reports:
            rank = report.rank
            random = np.random.default_rng([options.seed, 31, rank.rank])
            found: list[tuple[Place, Series, bool]] = []
            for kind, rate in ((False, options.nic_metrics), (True, options.switch_metrics)):
                first = rank.capture_start_ns + int(random.uniform(0, 1e9 / rate)) if rate else 0
                nics = [(nic.host, nic.number) for nic in self.nics[rank.host_index]]
                places = (self.ports if kind else nics) if rate else []
                found += [(place, Series(first, 1e9 / rate, _CHANNELS), kind) for place in places]
            self.watched[id(report)] = found

    def watch(self, program: Program, block: Block, epochs: Ints, until: int) -> None:
        arrived: dict[Place, list[Intervals]] = {}
        found = flows(program, block, epochs, self.cluster, self.options)
        if self.congestion:
            self.congestion.watch(found)
        for flow in found:
            for place, channel in ((flow.target, 0), (flow.source, 1)):
                rates = np.zeros((len(epochs), _CHANNELS))
                rates[:, channel] = flow.size / (flow.end - flow.begin)
                arrived.setdefault(place, []).append(Intervals(flow.begin, flow.end, rates))
                moved = list(self.moved[place])
                moved[channel] += flow.size * len(epochs)
                self.moved[place] = (moved[0], moved[1])
        for report in self.reports:
            for place, series, _ in self.watched[id(report)]:
                series.add(Intervals.joined([Intervals.none(_CHANNELS), *arrived.get(place, [])]))
            self._sample(report, until)

    def finish(self, stop: int) -> None:
        for report in self.reports:
            self._sample(report, stop)
            if self.options.nic_metrics:
                self._write_nics(report)
            if self.options.switch_metrics or self.options.switch_congestion:
                self._write_switch(report)
            if self.options.nic_metrics or self.options.switch_metrics:
                self._write_counters(report)
            report.facts["network"] = self.seen[id(report)]

    def _sample(self, report: Report, until: int) -> None:
        for place, series, at_switch in self.watched[id(report)]:
            known = series.next == 0
            begin, end, sums = series.advance(until)
            if not len(end):
                continue
            nic = self.nics[place[0]][place[1]]
            length = (end - begin) / 1e6  # ms
            values = _values(nic, sums[:, ::-1] if at_switch else sums, length)  # what the port sends, the NIC receives
            local = [report.rank.local(edge) for edge in (begin, end)]
            if known:
                local[0][0] = -_LONG_BEFORE_NS
                values = {number: np.concatenate([[0], column[1:]]) for number, column in values.items()}
            self._write(report, nic, at_switch, local, values)
            entry = self.seen[id(report)].setdefault(_name(nic, at_switch), {})
            for number, column in values.items():
                name = next(counter[1] for counter in _COUNTERS if counter[0] == number)
                entry[name] = entry.get(name, 0) + int(column.sum())
            entry["samples"] = entry.get("samples", 0) + len(end)

    def _write(self, report: Report, nic: Nic, at_switch: bool, local: list[Ints], values: dict[int, Ints]) -> None:
        """A row per sample and counter."""
        table = "NET_IB_SWITCH_METRIC" if at_switch else "NET_NIC_METRIC"
        numbers = sorted(values)
        shape = (len(local[0]), len(numbers))
        begin, end = (np.broadcast_to(edge[:, None], shape) for edge in local)
        columns: dict[str, Any] = {
            "start": begin.ravel(),
            "end": end.ravel(),
            "globalId": switch_of(self.options).guid if at_switch else nic.global_id,
            "portId": nic.port if at_switch else 0,
            "metricsListId": _SWITCH_LIST if at_switch else _NIC_LIST,
            "metricsIdx": np.tile(np.array(numbers), shape[0]),
            "value": np.stack([values[number] for number in numbers], axis=1).ravel(),
        }
        report.export.insert(table, columns, report.order(columns["start"]))
        report.tally.add(table, [f"{_name(nic, at_switch)} {number}" for number in numbers], end - begin)

    def _write_counters(self, report: Report) -> None:
        rows = [(_NIC_LIST, *counter) for counter in _COUNTERS] if self.options.nic_metrics else []
        if self.options.switch_metrics:
            rows += [
                (_SWITCH_LIST, number, name, text.replace("NIC port", "switch port"), unit)
                for number, name, text, unit in _COUNTERS
                if name.startswith("IB")
            ]
        names = ("metricsListId", "metricsIdx", "name", "description", "unit")
        report.export.insert("TARGET_INFO_NETWORK_METRICS", _columns(names, rows))

    def _write_nics(self, report: Report) -> None:
        nics = self.nics[report.rank.host_index]
        rows = [(nic.guid, DEVICE, nic.number, nic.name, nic.device, _VENDOR, nic.link) for nic in nics]
        names = ("GUID", "stateName", "nicId", "name", "deviceId", "vendorId", "linkLayer")
        report.export.insert("TARGET_INFO_NIC_INFO", _columns(names, rows))
        report.export.insert("NIC_ID_MAP", _columns(("nicId", "globalId"), [(nic.number, nic.global_id) for nic in nics]))

    def _write_switch(self, report: Report) -> None:
        """The InfiniBand network as ibdiagnet tells it: the switch, its ports, the NICs on them."""
        switch = switch_of(self.options)
        nics = [self.nics[host][number] for host, number in self.ports]
        devices = [(_NETWORK, switch.guid, switch.name, "Quantum-2 Mellanox Technologies", switch.lid)]
        ports = [(switch.guid, nic.port, f"{1 + nic.port // 2}/{1 + nic.port % 2}", switch.lid) for nic in nics]
        types = [(switch.guid, 2)]
        for nic in nics:
            name = f"{self.cluster.hosts[nic.host].name} {nic.name}"
            devices.append((_NETWORK, nic.guid, name, "MT4129 ConnectX7 Mellanox Technologies", lid(switch, nic)))
            ports.append((nic.guid, 1, "1", lid(switch, nic)))
            types.append((nic.guid, 1))
        insert = report.export.insert
        insert("NET_IB_DEVICE_INFO", _columns(("networkId", "guid", "name", "des", "lid"), devices))
        insert("NET_IB_DEVICE_PORT_INFO", _columns(("guid", "portNumber", "portLabel", "portLid"), ports))
        insert("NET_IB_DEVICE_TYPE_MAP", _columns(("guid", "deviceType"), types))

    def truth(self) -> dict[str, Any]:
        """Bytes between hosts over the whole job; reports see those of their captures."""
        found = {}
        for host, number in self.ports:
            nic = self.nics[host][number]
            received, sent = self.moved[host, number]
            found[f"{self.cluster.hosts[host].name} {nic.name}"] = {
                "guid": nic.guid,
                "bytes_received": round(received),
                "bytes_sent": round(sent),
            }
        return {"nics": found} | ({"switches": self.congestion.truth()} if self.congestion else {})


def _name(nic: Nic, at_switch: bool) -> str:
    return f"switch port {nic.port}" if at_switch else nic.name


def _columns(names: tuple[str, ...], rows: list[Any]) -> dict[str, Any]:
    return {name: list(values) for name, values in zip(names, zip(*rows, strict=True), strict=True)}


def _values(nic: Nic, sums: Floats, length: Floats) -> dict[int, Ints]:
    """Counters from bytes received and sent per sample, as rates per ms."""
    received, sent = np.rint(sums[:, 0] / length), np.rint(sums[:, 1] / length)
    numbers = (5, 6, 7, 8) if nic.link == INFINIBAND else (0, 1, 2, 3)
    columns = (received, sent, np.ceil(received / _PACKET_BYTES), np.ceil(sent / _PACKET_BYTES))
    values = dict(zip(numbers, columns, strict=True))
    if nic.link == INFINIBAND:
        crowded = np.maximum(sent / 1e6 / LINE_RATE - _FREE_SHARE, 0.0)
        values[10] = np.rint(crowded * 400_000.0)
    return {number: column.astype(np.int64) for number, column in values.items()}
