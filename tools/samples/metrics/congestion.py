"""Congestion that the InfiniBand switch reports: which packet met a queue over the threshold, and at which egress port.

A flow that comes faster than its egress port can send fills that port's queue; once it holds so much as to be over the
threshold, the switch reports a packet of it (nsys has a share of the packets reported; here it is one of each flow). Every
report has all events of its capture. Operation code and queue pairs are plausible, not more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..cluster import Cluster
from ..options import Options
from ..rows import Report
from .devices import INFINIBAND, Nic, Switch, nics_of, switch_of
from .traffic import Flow, Place

TABLE = "NET_IB_SWITCH_CONGESTION_EVENT"
LINE_RATE = 48.0
"""Bytes per ns of a port."""

_QUEUE_BYTES = 1_048_576.0
"""In the queue of an egress port when it is over the threshold."""

_EGRESS_QUEUE = 1
"""ENUM_NET_IB_CONGESTION_EVENT_TYPE."""

_RDMA_WRITE_MIDDLE = 7
"""Operation code of the packets: RC RDMA WRITE, neither first nor last of a message."""

_QUEUE_PAIRS = 256


class Congestion:
    """Finds the events in flows and writes them into the given reports."""

    def __init__(self, options: Options, cluster: Cluster, reports: list[Report]) -> None:
        self.cluster, self.reports = cluster, reports
        self.switch: Switch = switch_of(options)
        self.nics = {(nic.host, nic.number): nic for host in range(options.hosts) for nic in nics_of(options, host)
                     if nic.link == INFINIBAND}  # fmt: skip
        self.counts: dict[str, int] = {}

    def watch(self, flows: Sequence[Flow]) -> None:
        for flow in flows:
            excess = flow.size / (flow.end - flow.begin) - LINE_RATE
            full = flow.begin + np.rint(_QUEUE_BYTES / np.maximum(excess, 1e-9)).astype(np.int64)
            times = full[(excess > 0) & (full < flow.end)]
            if not len(times):
                continue
            source, target = self.nics[flow.source], self.nics[flow.target]
            name = f"{self._name(flow.source)} -> {self._name(flow.target)}"
            self.counts[name] = self.counts.get(name, 0) + len(times)
            for report in self.reports:
                seen = times[times >= report.rank.capture_start_ns][:, None]
                if len(seen):
                    begin = report.rank.local(seen)
                    report.insert(TABLE, [f"switch port {target.port}"], self._columns(source, target), begin, None)
                told = report.facts.setdefault("congestion", {})
                told[name] = told.get(name, 0) + len(seen)

    def _columns(self, source: Nic, target: Nic) -> dict[str, Any]:
        return {
            "globalId": self.switch.guid,
            "congestionType": _EGRESS_QUEUE,
            "packetSLID": lid(self.switch, source),
            "packetDLID": lid(self.switch, target),
            "packetSL": 0,
            "packetOpCode": _RDMA_WRITE_MIDDLE,
            "packetSourceQP": _QUEUE_PAIRS + target.port,
            "packetDestinationQP": _QUEUE_PAIRS + source.port,
            "switchIngressPort": source.port,
            "switchEgressPort": target.port,
        }

    def _name(self, place: Place) -> str:
        return f"{self.cluster.hosts[place[0]].name} {self.nics[place].name}"

    def truth(self) -> dict[str, Any]:
        return {self.switch.name: {"guid": self.switch.guid, "congestion": dict(sorted(self.counts.items()))}}


def lid(switch: Switch, nic: Nic) -> int:
    """The local identifier of an interface in the network."""
    return switch.lid + nic.port
