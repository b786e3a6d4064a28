"""The network between hosts: what crosses it, network interfaces and the InfiniBand switch,
sampled, and congestion at the switch.

Every host has an InfiniBand interface per GPU and one for Ethernet. Every report of a host records
all of the host's interfaces, each at its own moments, so that the same bytes are counted in several
reports. Values are rates over the sample's interval (bytes, packets or ticks per ms). The first row
of every counter is one that real exports have too: value 0, from long before the capture to its
first sample.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from .cluster import DEVICE, VM_ID, Cluster, Ints
from .data import DATA, as_json
from .options import Options
from .program import Kind, Program
from .report import Report, Truth
from .sampling import Activity, Intervals, Sampler, Series
from .timeline import BANDWIDTH, Block, Floats

ETHERNET, INFINIBAND = 1, 2  # ENUM_NET_LINK_TYPE
CONNECTX_7, CONNECTX_6_DX, VENDOR = 4129, 4125, 5555
MOST_NICS = 8  # InfiniBand interfaces of a host
PACKET_BYTES = 4_096
LINE_RATE = 48.0  # bytes per ns of a port
FREE_SHARE = 0.25  # of the line rate; above it senders have to wait
LONG_BEFORE_NS = 5_000_000_000_000
QUEUE_BYTES = 1_048_576.0  # in the queue of an egress port when the switch reports congestion
SWITCH_NAME, SWITCH_LID = "MF0;ib-leaf01:MQM9700/U1", 1
COUNTERS = DATA["network_counters"]  # number in the list, name, description, unit
COUNTER_NAMES = {number: name for number, name, _, _ in COUNTERS}


@dataclass(frozen=True)
class Nic:
    """A network interface."""

    host: int
    number: int  # its nicId
    name: str
    guid: int  # as exports write it (signed)
    device: int
    link: int
    port: int  # the switch's port it is plugged into

    @property
    def global_id(self) -> int:
        return VM_ID | self.number


def list_nics(options: Options, host: int) -> list[Nic]:
    """List the network interfaces of a host, InfiniBand first."""
    base = int(np.random.default_rng([options.seed, 23, host]).integers(1 << 40)) << 20
    count = min(options.gpus_per_host, MOST_NICS)
    found = []
    for number in range(count + 1):
        guid, *of_model = 0xA088 << 48 | base >> 12 | number * 8, CONNECTX_7, INFINIBAND
        of_model.append(1 + host * count + number)
        if number == count:
            guid, *of_model = 0x5C25 << 48 | base >> 12 | 0x800, CONNECTX_6_DX, ETHERNET, 0
        found.append(Nic(host, number, f"mlx5_{number}", _as_signed(guid), *of_model))
    return found


def draw_switch_guid(options: Options) -> int:
    """Return the switch's GUID as exports write it."""
    drawn = int(np.random.default_rng([options.seed, 29]).integers(1 << 46))
    return _as_signed(0xFC6A << 48 | drawn)


def describe_nics(report: Report) -> str:
    """Return the report's text about the interfaces among the facts about its system."""
    nics = [
        {"Id": nic.number, "Name": nic.name, "DeviceId": nic.device, "VendorId": VENDOR}
        | {"LinkLayer": nic.link, "GUID": str(nic.guid)}
        for nic in list_nics(report.options, report.rank.host_index)
    ]
    return as_json({"Nics": nics} if report.options.nic_metrics else {})


def _as_signed(number: int) -> int:
    """Return a 64-bit number as SQLite keeps it."""
    return number - (1 << 64) if number >> 63 else number


@dataclass(frozen=True)
class Flow:
    """Data that go from one interface to another, evenly (true ns; an entry for every run)."""

    source: Nic
    target: Nic
    begin: Ints
    end: Ints
    size: float  # bytes


class Network(Sampler):
    """Samples the interfaces of the given reports' hosts, and the switch, and writes them."""

    def __init__(self, options: Options, cluster: Cluster, reports: list[Report]) -> None:
        super().__init__(options, cluster, reports)
        self.nics = [list_nics(options, host) for host in range(options.hosts)]
        self.ports = [nic for nics in self.nics for nic in nics if nic.link == INFINIBAND]
        self.moved = {nic: [0.0, 0.0] for nic in self.ports}  # bytes received and sent
        self.congestion: Counter[str] = Counter()
        self.guid = draw_switch_guid(options)
        self.begun: set[tuple[int, Nic, bool]] = set()  # what has been sampled in a rank's report
        for report in reports:
            rank = report.rank
            random = np.random.default_rng([options.seed, 31, rank.rank])
            for at_switch, rate in ((False, options.nic_metrics), (True, options.switch_metrics)):
                if rate:
                    first = rank.capture_start_ns + int(random.uniform(0, 1e9 / rate))
                    self.watched += [
                        (report, (nic, at_switch), Series(first, 1e9 / rate, 2))
                        for nic in (self.ports if at_switch else self.nics[rank.host_index])
                    ]

    def _name(self, nic: Nic) -> str:
        return f"{self.cluster.hosts[nic.host].name} {nic.name}"

    def _nic_of(self, rank: int) -> Nic:
        """Return the interface through which a rank's GPU talks."""
        one = self.cluster.ranks[rank]
        return self.nics[one.host_index][one.gpu % min(self.options.gpus_per_host, MOST_NICS)]

    def _list_flows(self, program: Program, block: Block, epochs: Ints) -> list[Flow]:
        """List the network traffic of runs of a program: every rank of a collective that passes data on sends
        its bus bytes to the next, once all have begun; and MPI messages.
        """
        found: list[Flow] = []

        def add(sender: int, receiver: int, begin: Ints, end: Ints, size: float) -> None:
            source, target = self._nic_of(sender), self._nic_of(receiver)
            if source.host != target.host:
                found.append(Flow(source, target, begin, end, size))

        for index in program.all_of(Kind.COLLECTIVE):
            op = program.ops[index]
            calls = op.calls[:1] if op.payload.function == "SendRecv" else op.calls
            for comm in self.cluster.all_of(op.payload.group):
                ranks, size = list(comm.ranks), len(comm.ranks)
                volume = sum(program.nccl_calls[number].count_bus_bytes(size) for number in calls)
                begin = epochs + _round(block.gpu_begin[:, ranks, index].max(axis=1))
                for own, rank in enumerate(ranks):
                    if op.payload.passes_on(own, size):
                        end = epochs + _round(block.gpu_end[:, rank, index])
                        following = ranks[(own + 1) % size]
                        add(rank, following, begin, np.maximum(end, begin + 1), volume)
        for number, message in enumerate(program.messages):
            for sender, receiver in enumerate(message.to):
                if receiver >= 0 and message.receive >= 0:
                    end = epochs + _round(block.arrival[:, receiver, number])
                    begin = end - max(1, round(message.size / BANDWIDTH[1]))
                    add(sender, receiver, begin, end, float(message.size))
        return found

    def find_activity(self, program: Program, block: Block, epochs: Ints) -> Activity:
        """Find the bytes that runs of a program move through interfaces, and the switch's ports."""
        arrived: Activity = {}
        for flow in self._list_flows(program, block, epochs):
            if self.options.switch_congestion:
                self._report_congestion(flow)
            rate = flow.size / (flow.end - flow.begin)
            for nic, channel in ((flow.target, 0), (flow.source, 1)):
                self.moved[nic][channel] += flow.size * len(epochs)
                # What the port sends, the NIC receives.
                for at_switch, own in ((False, channel), (True, 1 - channel)):
                    part = Intervals.of(flow.begin, flow.end, own, 2, rate)
                    arrived.setdefault((nic, at_switch), []).append(part)
        return arrived

    def describe(self, report: Report) -> None:
        """Describe interfaces, switch and counters."""
        of_nics, of_switch = self.options.nic_metrics, self.options.switch_metrics
        if of_nics:
            nics = self.nics[report.rank.host_index]
            names = "GUID stateName nicId name deviceId vendorId linkLayer"
            rows = [
                (nic.guid, DEVICE, nic.number, nic.name, nic.device, VENDOR, nic.link)
                for nic in nics
            ]
            report.add("TARGET_INFO_NIC_INFO", names, rows)
            ids = [(nic.number, nic.global_id) for nic in nics]
            report.add("NIC_ID_MAP", "nicId globalId", ids)
        if of_switch or self.options.switch_congestion:
            self._write_switch(report)
        if of_nics or of_switch:
            counters = [(0, *counter) for counter in COUNTERS] if of_nics else []
            counters += [
                (1, number, name, text.replace("NIC port", "switch port"), unit)
                for number, name, text, unit in COUNTERS
                if of_switch and name.startswith("IB")
            ]
            names = "metricsListId metricsIdx name description unit"
            report.add("TARGET_INFO_NETWORK_METRICS", names, counters)
        report.facts["network"] = self.seen[report.rank.rank]

    def write(self, report: Report, device: Any, begin: Ints, end: Ints, sums: Floats) -> None:
        """Write a row per sample and counter."""
        nic, at_switch = device
        values = _count_values(nic, sums, (end - begin) / 1e6)
        begin, end = report.rank.local(begin), report.rank.local(end)
        if (place := (report.rank.rank, nic, at_switch)) not in self.begun:
            self.begun.add(place)
            begin[0] = -LONG_BEFORE_NS
            for column in values.values():
                column[0] = 0
        shape = (len(begin), len(values))
        begin, end = (np.broadcast_to(edge[:, None], shape) for edge in (begin, end))
        table, name, globally, port = "NET_NIC_METRIC", nic.name, nic.global_id, 0
        if at_switch:
            table, name = "NET_IB_SWITCH_METRIC", f"switch port {nic.port}"
            globally, port = self.guid, nic.port
        numbers = sorted(values)
        columns = {"globalId": globally, "portId": port, "metricsListId": int(at_switch)}
        columns["value"] = np.stack([values[number] for number in numbers], axis=1)
        report.insert(table, begin, end, **columns, metricsIdx=np.array(numbers))
        entry = self.seen[report.rank.rank].setdefault(name, Counter())
        for number, column in values.items():
            entry[COUNTER_NAMES[number]] += int(column.sum())
        entry["samples"] += len(end)

    def _write_switch(self, report: Report) -> None:
        """Write the InfiniBand network as ibdiagnet reports it: the switch, its ports, their NICs."""
        lid, types = SWITCH_LID, [(self.guid, 2), *((nic.guid, 1) for nic in self.ports)]
        devices = [(1, self.guid, SWITCH_NAME, "Quantum-2 Mellanox Technologies", lid)]
        ports = [
            (self.guid, nic.port, f"{1 + nic.port // 2}/{1 + nic.port % 2}", lid)
            for nic in self.ports
        ]
        for nic in self.ports:
            described = self._name(nic), "MT4129 ConnectX7 Mellanox Technologies"
            devices.append((1, nic.guid, *described, lid + nic.port))
            ports.append((nic.guid, 1, "1", lid + nic.port))
        report.add("NET_IB_DEVICE_INFO", "networkId guid name des lid", devices)
        report.add("NET_IB_DEVICE_PORT_INFO", "guid portNumber portLabel portLid", ports)
        report.add("NET_IB_DEVICE_TYPE_MAP", "guid deviceType", types)

    def _report_congestion(self, flow: Flow) -> None:
        """Fill the egress port's queue by a flow faster than the port's rate. When it exceeds the threshold,
        the switch reports a packet of it. Every report has all events of its capture. Operation code and
        queue pairs are only plausible.
        """
        excess = flow.size / (flow.end - flow.begin) - LINE_RATE
        full = flow.begin + _round(QUEUE_BYTES / np.maximum(excess, 1e-9))
        times = full[(excess > 0) & (full < flow.end)]
        if not len(times):
            return
        name = f"{self._name(flow.source)} -> {self._name(flow.target)}"
        self.congestion[name] += len(times)
        source, target = flow.source.port, flow.target.port
        columns = {"globalId": self.guid, "congestionType": 1, "packetSL": 0, "packetOpCode": 7}
        columns |= {"packetSLID": SWITCH_LID + source, "packetDLID": SWITCH_LID + target}
        columns |= {"packetSourceQP": 256 + target, "packetDestinationQP": 256 + source}
        columns |= {"switchIngressPort": source, "switchEgressPort": target}
        for report in self.reports:
            seen = times[times >= report.rank.capture_start_ns]
            if len(seen):
                local = report.rank.local(seen)
                report.insert("NET_IB_SWITCH_CONGESTION_EVENT", local, **columns)
            report.facts.setdefault("congestion", Counter())[name] += len(seen)

    def tell(self) -> Truth:
        """Return the bytes between hosts over the whole job; reports contain those of their captures."""
        nics = {}
        for nic, (received, sent) in self.moved.items():
            told = {"guid": nic.guid, "bytes_received": round(received), "bytes_sent": round(sent)}
            nics[self._name(nic)] = told
        if not self.options.switch_congestion:
            return {"nics": nics}
        switch = {"guid": self.guid, "congestion": dict(sorted(self.congestion.items()))}
        return {"nics": nics, "switches": {SWITCH_NAME: switch}}


def _round(times: Any) -> Ints:
    return np.rint(times).astype(np.int64)


def _count_values(nic: Nic, sums: Floats, length: Floats) -> dict[int, Ints]:
    """Convert bytes received and sent per sample to counter values, as rates per ms."""
    received, sent = np.rint(sums[:, 0] / length), np.rint(sums[:, 1] / length)
    columns = (received, sent, np.ceil(received / PACKET_BYTES), np.ceil(sent / PACKET_BYTES))
    values = dict(enumerate(columns, 5 if nic.link == INFINIBAND else 0))
    if nic.link == INFINIBAND:
        values[10] = np.rint(np.maximum(sent / 1e6 / LINE_RATE - FREE_SHARE, 0.0) * 400_000.0)
    return {number: column.astype(np.int64) for number, column in values.items()}
