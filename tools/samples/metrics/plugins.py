"""Storage volumes and EFA devices as nsys's plugins record them: generic events, in every report of a host.

Volumes: an NFS one and a Lustre one. Applications read a batch in every step, all at once in one sample; the drivers move
it over a while. Names of types and of storage fields are not documented; those of EFA are in NVIDIA's recipes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..cluster import Cluster, Ints
from ..options import Options
from ..program import Kind, Program
from ..rows import Report
from ..timeline import Block
from . import generic
from .generic import DOUBLE, FLOAT, SIGNED, UNSIGNED, Field
from .series import Floats, Intervals, Series

_STORAGE, _EFA = 2, 3
"""Numbers of the sources."""

_BATCH_BYTES = 786_432.0
_LOAD_NS = 900_000
_WRITE_BYTES = 65_536.0
_CHANNELS = 3  # bytes the application reads, bytes it writes, bytes the driver reads

_VOLUME_FIELDS = (
    Field("Application Read Bytes", UNSIGNED),
    Field("Application Write Bytes", UNSIGNED),
    Field("Driver Read Throughput", DOUBLE),
    Field("Driver Write Throughput", DOUBLE),
    Field("Read Latency", FLOAT),
    Field("Queue Depth Change", SIGNED),
)
_EFA_FIELDS = (
    Field("rdma_read_bytes per second", UNSIGNED),
    Field("rdma_read_resp_bytes per second", UNSIGNED),
    Field("rdma_write_bytes per second", UNSIGNED),
    Field("rdma_write_recv_bytes per second", UNSIGNED),
)


@dataclass(frozen=True)
class _Device:
    source: int
    number: int
    name: str
    fields: Sequence[Field]
    share: float
    """Of the host's reading."""


_VOLUMES = (_Device(_STORAGE, 0, "nfs: /home", _VOLUME_FIELDS, 0.2), _Device(_STORAGE, 1, "lustre: /scratch", _VOLUME_FIELDS, 0.8))
_ADAPTERS = tuple(_Device(_EFA, number, f"rdmap{number}s0", _EFA_FIELDS, 0.5) for number in range(2))


class Plugins:
    """Samples volumes and EFA devices of the given reports' hosts, and writes them."""

    def __init__(self, options: Options, cluster: Cluster, reports: list[Report]) -> None:
        self.options, self.cluster, self.reports = options, cluster, reports
        self.moved = np.zeros((options.hosts, _CHANNELS))
        self.series: dict[int, list[tuple[_Device, Series]]] = {}
        self.seen: dict[int, dict[str, Any]] = {id(report): {} for report in reports}
        for report in reports:
            random = np.random.default_rng([options.seed, 37, report.rank.rank])
            found: list[tuple[_Device, Series]] = []
            for devices, rate in ((_VOLUMES, options.storage_metrics), (_ADAPTERS, options.efa_metrics)):
                first = report.rank.capture_start_ns + int(random.uniform(0, 1e9 / rate)) if rate else 0
                found += [(device, Series(first, 1e9 / rate, _CHANNELS)) for device in devices] if rate else []
            self.series[id(report)] = found

    def watch(self, program: Program, block: Block, epochs: Ints, until: int) -> None:
        """A batch is read where a step copies one to the GPU; files are written where MPI's file calls are."""
        reads = [index for index, op in enumerate(program.ops) if op.kind is Kind.COPY and op.copy and op.copy.src_kind == 1][:1]
        writes = [index for index, op in enumerate(program.ops) if op.mpi is not None and "write" in op.mpi.function]
        by_host: dict[int, list[Intervals]] = {}
        for rank in self.cluster.ranks:
            for index, channel, size in [(op, 0, _BATCH_BYTES) for op in reads] + [(op, 1, _WRITE_BYTES) for op in writes]:
                begin = epochs + np.rint(block.host_begin[:, rank.rank, index]).astype(np.int64)
                rates = np.zeros((len(epochs), _CHANNELS))
                rates[:, channel] = size
                by_host.setdefault(rank.host_index, []).append(Intervals(begin, begin + 1, rates))
                self.moved[rank.host_index, channel] += size * len(epochs)
                if channel == 0:
                    slow = np.zeros((len(epochs), _CHANNELS))
                    slow[:, 2] = size / _LOAD_NS
                    by_host[rank.host_index].append(Intervals(begin, begin + _LOAD_NS, slow))
        for report in self.reports:
            new = by_host.get(report.rank.host_index, [])
            for device, series in self.series[id(report)]:
                parts = [Intervals(part.begin, part.end, part.rates * device.share) for part in new]
                series.add(Intervals.joined([Intervals.none(_CHANNELS), *parts]))
            self._sample(report, until)

    def finish(self, stop: int) -> None:
        for report in self.reports:
            self._sample(report, stop)
            for source, name in ((_STORAGE, "storage_metrics"), (_EFA, "efa_metrics")):
                devices = [device for device, _ in self.series[id(report)] if device.source == source]
                if devices:
                    generic.define(report, source, name, [(device.number, device.name, device.fields) for device in devices])
            report.facts.pop("next_generic_event", None)
            report.facts["generic_events"] = self.seen[id(report)]

    def _sample(self, report: Report, until: int) -> None:
        for device, series in self.series[id(report)]:
            begin, end, sums = series.advance(until)
            if not len(end):
                continue
            values = _volume(sums, end - begin) if device.source == _STORAGE else _adapter(sums, end - begin)
            values[:, [field.kind in (SIGNED, UNSIGNED) for field in device.fields]] = np.rint(
                values[:, [field.kind in (SIGNED, UNSIGNED) for field in device.fields]]
            )
            generic.write_events(report, device.source, device.number, device.fields, report.rank.local(end), values)
            entry = self.seen[id(report)].setdefault(device.name, {"events": 0, "sums": {}})
            entry["events"] += len(end)
            for field, total in zip(device.fields, values.sum(axis=0).tolist(), strict=True):
                entry["sums"][field.name] = round(entry["sums"].get(field.name, 0.0) + total, 3)

    def truth(self) -> dict[str, Any]:
        found = {
            host.name: {"bytes_read": round(read), "bytes_written": round(written)}
            for host, (read, written, _) in zip(self.cluster.hosts, self.moved.tolist(), strict=True)
        }
        return {"storage": found}


def _volume(sums: Floats, length: Ints) -> Floats:
    """Values of a volume's fields: bytes by applications, bytes per second by the driver, latency in ms, a change."""
    driver = sums[:, 2] / length * 1e9
    depth = np.rint(sums[:, 2] / 131_072.0)
    change = np.diff(depth, prepend=0.0)
    return np.stack([sums[:, 0], sums[:, 1], np.round(driver, 1), sums[:, 1] / length * 1e9, 0.25 + 0.5 * (depth > 0), change], axis=1)


def _adapter(sums: Floats, length: Ints) -> Floats:
    rate = sums[:, 2] / length * 1e9
    return np.stack([rate, np.zeros(len(rate)), 0.1 * rate, np.zeros(len(rate))], axis=1)
