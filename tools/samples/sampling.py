"""Sampling: how much of something happened between two samples; and what nsys's plugins sample, as
generic events: storage, EFA devices.

What samples the job has the methods ``watch`` (runs of a program that begin at ``epochs``; nothing
later begins before ``until``, true ns), ``finish`` (the captures end) and ``tell`` (what is true of
devices, by kind and name).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .cluster import VM_ID, Cluster, Ints
from .data import H2D_PINNED, as_json
from .options import Options
from .program import Kind, Program
from .report import Report, Truth
from .timeline import Block, Floats


@dataclass
class Intervals:
    """Activity at constant rates."""

    begin: Ints  # true ns
    end: Ints
    rates: Floats  # per ns (interval, channel)

    @staticmethod
    def joined(parts: list[Intervals], channels: int) -> Intervals:
        """Join them."""
        none = Intervals(np.empty(0, np.int64), np.empty(0, np.int64), np.empty((0, channels)))
        columns = zip(*((part.begin, part.end, part.rates) for part in (none, *parts)), strict=True)
        return Intervals(*map(np.concatenate, columns))

    @staticmethod
    def of(begin: Ints, end: Ints, channel: int, channels: int, rate: Any) -> Intervals:
        """Make intervals with a rate in one channel only."""
        rates = np.zeros((len(begin), channels))
        rates[:, channel] = rate
        return Intervals(begin, end, rates)

    def until(self, times: Ints, base: int) -> Floats:
        """Integrate from the beginning to each of ``times``, which are near ``base``."""
        at = (times - base).astype(np.float64)
        total = np.zeros((len(at), self.rates.shape[1]))
        for edges, sign in ((self.begin, 1.0), (self.end, -1.0)):
            order = np.argsort(edges, kind="stable")
            offset = (edges[order] - base).astype(np.float64)
            rates, weighted = (
                np.concatenate([np.zeros((1, self.rates.shape[1])), np.cumsum(values, axis=0)])
                for values in (self.rates[order], self.rates[order] * offset[:, None])
            )
            passed = np.searchsorted(offset, at, side="right")
            total += sign * (at[:, None] * rates[passed] - weighted[passed])
        return total


class Series:
    """Samples at ``first + n * period`` (true ns): each covers the time since the one before."""

    def __init__(self, first: int, period: float, channels: int) -> None:
        self.first, self.period, self.channels = first, period, channels
        self.next = 0  # sample
        self.pending = Intervals.joined([], channels)

    def advance(self, new: list[Intervals], until: int) -> tuple[Ints, Ints, Floats]:
        """Return the samples up to true time ``until``, by when all activity is known: begin and
        end of what they cover, and the integral over it (sample, channel).
        """
        self.pending = Intervals.joined([self.pending, *new], self.channels)
        last = max(int(np.floor((until - self.first) / self.period)), self.next - 1)
        periods = np.rint(np.arange(self.next - 1, last + 1) * self.period)
        edges = self.first + periods.astype(np.int64)
        sums = np.diff(self.pending.until(edges, int(edges[0])), axis=0)
        self.next = last + 1
        kept, left = self.pending, self.pending.end > edges[-1]
        self.pending = Intervals(kept.begin[left], kept.end[left], kept.rates[left])
        return edges[:-1], edges[1:], np.maximum(sums, 0.0)


SIGNED, UNSIGNED, FLOAT, DOUBLE = range(4)  # ENUM_NSYS_GENERIC_EVENT_FIELD_TYPE
VALUE_COLUMNS = ("intVal", "uintVal", "floatVal", "doubleVal")
Fields = Sequence[tuple[str, int]]  # name and kind


def number_source(number: int) -> int:
    """Return a typeId (HW id 8 bits, VM id 8, source 16, type 32) of device 0."""
    return VM_ID | number << 32


def define_events(
    report: Report, number: int, source: str, types: Sequence[tuple[int, str, Fields]]
) -> None:
    """Add rows for a source and its types: device number, name, fields."""
    known = number_source(number)

    def data(value: Any) -> str | None:
        return as_json(value) if report.includes_json else None

    told = {"Name": source, "TimeSource": "ClockMonotonicRaw", "SourceGroup": "Unknown"}
    names = "sourceId nameId timeSourceId sourceGroupId data"
    report.add("GENERIC_EVENT_SOURCES", names, [(known, source, 1, 0, data(told))])
    rows = []
    for device, name, fields in types:
        listed = [{"Name": field, "Prefix": "", "Suffix": ""} for field, _ in fields]
        rows.append((known | device, known, name, data({"Name": name, "Fields": listed})))
    report.add("GENERIC_EVENT_TYPES", "typeId sourceId nameId data", rows)
    rows = [
        (known | device, place, field, 8 * place, 4 if kind == FLOAT else 8, kind)
        for device, _, fields in types
        for place, (field, kind) in enumerate(fields)
    ]
    names = "typeId fieldIdx fieldNameId offset size type"
    report.add("GENERIC_EVENT_TYPE_FIELDS", names, rows)


def write_events(
    report: Report, number: int, device: int, fields: Fields, times: Ints, values: Any
) -> None:
    """Write events at ``times`` (local ns) with ``values`` (event, field)."""
    ids = report.generic_event + np.arange(len(times))
    report.generic_event += len(times)
    columns: dict[str, Any] = {"genericEventId": ids, "typeId": number_source(number) | device}
    columns |= {"rawTimestamp": times + report.rank.start_clock, "timestamp": times}
    if report.includes_json:
        columns["data"] = []
        for row in values.tolist():
            known = zip(fields, row, strict=True)
            texts = {
                name: str(one if kind in (FLOAT, DOUBLE) else round(one))
                for (name, kind), one in known
            }
            columns["data"].append(as_json(texts))
    report.export.insert("GENERIC_EVENTS", columns, report.order(times))
    for kind, column in enumerate(VALUE_COLUMNS):
        places = [place for place, (_, one) in enumerate(fields) if one == kind]
        if places:
            found = values[:, places].astype(np.int64 if kind in (SIGNED, UNSIGNED) else np.float64)
            where = {"genericEventId": np.repeat(ids, len(places))}
            where["fieldIdx"] = np.tile(np.array(places), len(ids))
            report.export.insert("GENERIC_EVENT_DATA", {**where, column: found.ravel()})


STORAGE, EFA = 2, 3  # numbers of the sources
BATCH_BYTES, LOAD_NS, WRITE_BYTES = 786_432.0, 900_000, 65_536.0
CHANNELS = 3  # bytes the application reads, bytes it writes, bytes the driver reads
VOLUME_FIELDS = (
    ("Application Read Bytes", UNSIGNED),
    ("Application Write Bytes", UNSIGNED),
    ("Driver Read Throughput", DOUBLE),
    ("Driver Write Throughput", DOUBLE),
    ("Read Latency", FLOAT),
    ("Queue Depth Change", SIGNED),
)
MOVES = ("read", "read_resp", "write", "write_recv")
EFA_FIELDS = tuple((f"rdma_{what}_bytes per second", UNSIGNED) for what in MOVES)


class Device(NamedTuple):
    """A volume or an EFA device."""

    source: int
    number: int
    name: str
    fields: Fields
    share: float  # of the host's reading


VOLUMES = (
    Device(STORAGE, 0, "nfs: /home", VOLUME_FIELDS, 0.2),
    Device(STORAGE, 1, "lustre: /scratch", VOLUME_FIELDS, 0.8),
)
ADAPTERS = tuple(Device(EFA, number, f"rdmap{number}s0", EFA_FIELDS, 0.5) for number in range(2))


class Plugins:
    """Samples storage volumes and EFA devices of the reports' hosts, and writes them into every
    report of the host.

    Volumes: an NFS one and a Lustre one. Applications read a batch in every step, all at once in
    one sample; the drivers move it over a while. Names of types and of storage fields are not
    documented; those of EFA are in NVIDIA's recipes.
    """

    def __init__(self, options: Options, cluster: Cluster, reports: list[Report]) -> None:
        self.cluster, self.reports = cluster, reports
        self.moved = np.zeros((options.hosts, CHANNELS))
        self.series: list[list[tuple[Device, Series]]] = []  # by rank
        self.seen: list[Truth] = [{} for _ in reports]
        asked = (VOLUMES, options.storage_metrics), (ADAPTERS, options.efa_metrics)
        for report in reports:
            random, found = np.random.default_rng([options.seed, 37, report.rank.rank]), []
            for devices, rate in asked:
                if rate:
                    first = report.rank.capture_start_ns + int(random.uniform(0, 1e9 / rate))
                    found += [(device, Series(first, 1e9 / rate, CHANNELS)) for device in devices]
            self.series.append(found)

    def watch(self, program: Program, block: Block, epochs: Ints, until: int) -> None:
        """Read a batch where a step copies one to the GPU; write files where MPI's file calls are."""
        ops, copies = program.ops, program.all_of(Kind.COPY)
        moves = [(one, 0, BATCH_BYTES) for one in copies if ops[one].copy == H2D_PINNED][:1]
        for index, call in program.list_mpi():
            moves += [(index, 1, WRITE_BYTES)] if "write" in call.function else []
        by_host: dict[int, list[Intervals]] = {}
        for rank in self.cluster.ranks:
            parts = by_host.setdefault(rank.host_index, [])
            for index, channel, size in moves:
                begin = epochs + np.rint(block.host_begin[:, rank.rank, index]).astype(np.int64)
                parts.append(Intervals.of(begin, begin + 1, channel, CHANNELS, size))
                self.moved[rank.host_index, channel] += size * len(epochs)
                if channel == 0:
                    parts.append(Intervals.of(begin, begin + LOAD_NS, 2, CHANNELS, size / LOAD_NS))
        for report in self.reports:
            self._sample(report, by_host[report.rank.host_index], until)

    def finish(self, stop: int) -> None:
        """Sample up to the captures' end, and tell of sources and fields."""
        for report in self.reports:
            self._sample(report, [], stop)
            devices = [device for device, _ in self.series[report.rank.rank]]
            for source, name in ((STORAGE, "storage_metrics"), (EFA, "efa_metrics")):
                own = [
                    (one.number, one.name, one.fields) for one in devices if one.source == source
                ]
                if own:
                    define_events(report, source, name, own)
            report.facts["generic_events"] = self.seen[report.rank.rank]

    def _sample(self, report: Report, new: list[Intervals], until: int) -> None:
        for device, series in self.series[report.rank.rank]:
            own = [Intervals(part.begin, part.end, part.rates * device.share) for part in new]
            begin, end, sums = series.advance(own, until)
            if not len(end):
                continue
            values = _find_values(device.source, sums, end - begin)
            whole = [kind in (SIGNED, UNSIGNED) for _, kind in device.fields]
            values[:, whole] = np.rint(values[:, whole])
            of_device = report, device.source, device.number, device.fields
            write_events(*of_device, report.rank.local(end), values)
            entry = self.seen[report.rank.rank].setdefault(device.name, {"events": 0, "sums": {}})
            entry["events"] += len(end)
            for (name, _), total in zip(device.fields, values.sum(axis=0).tolist(), strict=True):
                entry["sums"][name] = round(entry["sums"].get(name, 0.0) + total, 3)

    def tell(self) -> Truth:
        """Tell of the bytes read and written on each host."""
        found = {}
        for host, (read, written, _) in zip(self.cluster.hosts, self.moved.tolist(), strict=True):
            found[host.name] = {"bytes_read": round(read), "bytes_written": round(written)}
        return {"storage": found}


def _find_values(source: int, sums: Floats, length: Ints) -> Floats:
    """Find values (sample, field): of a volume bytes by applications, bytes per second by the
    driver, latency in ms, a change; of an adapter bytes per second.
    """
    rate = sums[:, 2] / length * 1e9
    if source == EFA:
        return np.stack([rate, np.zeros(len(rate)), 0.1 * rate, np.zeros(len(rate))], axis=1)
    depth = np.rint(sums[:, 2] / 131_072.0)
    by_driver = np.round(rate, 1), sums[:, 1] / length * 1e9
    latency, change = 0.25 + 0.5 * (depth > 0), np.diff(depth, prepend=0.0)
    return np.stack([sums[:, 0], sums[:, 1], *by_driver, latency, change], axis=1)
