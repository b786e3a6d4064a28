"""Sampling: how much of something happened between two samples; what nsys's plugins sample, as generic
events: storage, EFA devices; GPU models, and GPU metrics: what kernels and copies do to a GPU.

A GPU metric belongs to the GPU, not to the report that holds its samples. All reports of a host that
sample a GPU have the same samples of it, as far as their captures overlap; the first few come
before a capture's start. Values are integers: mostly percent, of which some are slightly below 0;
clocks are in Hz, as in real exports, although the names say "[MHz]". The name of the event type is
made up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from .cluster import VM_ID, Cluster, Ints
from .data import DATA, H2D_PINNED, as_json, read_rows
from .options import Options
from .program import Kind, Op, Program
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


Watched = tuple[Report, Any, Series]
Activity = dict[Any, list[Intervals]]  # by device


class Sampler:
    """Samples devices, and writes the samples into reports. Subclasses fill ``watched`` with report,
    device and series, and have these methods: ``find_activity`` of runs of a program by device,
    ``write`` samples that cover true times from begin to end, with the integrals (sample, channel),
    ``describe`` to a report what it samples, ``tell`` what is true of devices, by kind and name.
    """

    find_activity: Callable[[Program, Block, Ints], Activity]
    write: Callable[[Report, Any, Ints, Ints, Floats], None]
    describe: Callable[[Report], None]
    tell: Callable[[], Truth]

    def __init__(self, options: Options, cluster: Cluster, reports: list[Report]) -> None:
        self.options, self.cluster, self.reports = options, cluster, reports
        self.watched: list[Watched] = []
        self.seen: list[Truth] = [{} for _ in reports]  # what each report has

    def watch(self, program: Program, block: Block, epochs: Ints, until: int) -> None:
        """Sample runs of a program that begin at ``epochs``; nothing later begins before ``until``
        (true ns).
        """
        self._sample(self.find_activity(program, block, epochs), until)

    def finish(self, stop: int) -> None:
        """Sample up to the captures' end, and describe the samples."""
        self._sample({}, stop)
        for report in self.reports:
            self.describe(report)

    def _sample(self, activity: Activity, until: int) -> None:
        for report, device, series in self.watched:
            begin, end, sums = series.advance(activity.get(device, []), until)
            if len(end):
                self.write(report, device, begin, end, sums)


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
MOVED = 3  # bytes the application reads, bytes it writes, bytes the driver reads
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


class Plugins(Sampler):
    """Samples storage volumes and EFA devices of the reports' hosts, and writes them into every
    report of the host.

    Volumes: an NFS one and a Lustre one. Applications read a batch in every step, all at once in
    one sample; the drivers move it over a while. Names of types and of storage fields are not
    documented; those of EFA are in NVIDIA's recipes.
    """

    def __init__(self, options: Options, cluster: Cluster, reports: list[Report]) -> None:
        super().__init__(options, cluster, reports)
        self.moved = np.zeros((options.hosts, MOVED))
        self.asked = (VOLUMES, options.storage_metrics), (ADAPTERS, options.efa_metrics)
        for report in reports:
            random, rank = np.random.default_rng([options.seed, 37, report.rank.rank]), report.rank
            for devices, rate in self.asked:
                if rate:
                    first = rank.capture_start_ns + int(random.uniform(0, 1e9 / rate))
                    self.watched += [
                        (report, (rank.host_index, device), Series(first, 1e9 / rate, MOVED))
                        for device in devices
                    ]

    def find_activity(self, program: Program, block: Block, epochs: Ints) -> Activity:
        """Read a batch where a step copies one to the GPU; write files where MPI's file calls are."""
        ops, copies = program.ops, program.all_of(Kind.COPY)
        moves = [(one, 0, BATCH_BYTES) for one in copies if ops[one].copy == H2D_PINNED][:1]
        for index, call in program.list_mpi():
            moves += [(index, 1, WRITE_BYTES)] if "write" in call.function else []
        found: Activity = {}
        for rank in self.cluster.ranks:
            for index, channel, size in moves:
                begin = epochs + np.rint(block.host_begin[:, rank.rank, index]).astype(np.int64)
                self.moved[rank.host_index, channel] += size * len(epochs)
                for device in (*VOLUMES, *ADAPTERS):
                    parts = found.setdefault((rank.host_index, device), [])
                    own = size * device.share
                    parts.append(Intervals.of(begin, begin + 1, channel, MOVED, own))
                    if channel == 0:
                        rate = size / LOAD_NS * device.share
                        parts.append(Intervals.of(begin, begin + LOAD_NS, 2, MOVED, rate))
        return found

    def write(self, report: Report, device: Any, begin: Ints, end: Ints, sums: Floats) -> None:
        """Write generic events."""
        _, one = device
        values = _find_values(one.source, sums, end - begin)
        whole = [kind in (SIGNED, UNSIGNED) for _, kind in one.fields]
        values[:, whole] = np.rint(values[:, whole])
        of_device = report, one.source, one.number, one.fields
        write_events(*of_device, report.rank.local(end), values)
        entry = self.seen[report.rank.rank].setdefault(one.name, {"events": 0, "sums": {}})
        entry["events"] += len(end)
        for (name, _), total in zip(one.fields, values.sum(axis=0).tolist(), strict=True):
            entry["sums"][name] = round(entry["sums"].get(name, 0.0) + total, 3)

    def describe(self, report: Report) -> None:
        """Describe sources and fields."""
        for (devices, rate), name in zip(
            self.asked, ("storage_metrics", "efa_metrics"), strict=True
        ):
            if rate:
                types = [(one.number, one.name, one.fields) for one in devices]
                define_events(report, devices[0].source, name, types)
        report.facts["generic_events"] = self.seen[report.rank.rank]

    def tell(self) -> Truth:
        """Return the bytes read and written on each host."""
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


CHANNELS, MAIN = DATA["gpu_channels"], DATA["main_gpu_metrics"]
SOURCE, SOURCE_NAME = 1, "GPU Metrics"
BEFORE_SAMPLES = 2.5  # so many periods before a capture's start its samples begin
NEGATIVE = 0.004  # share of the samples of an idle GPU below 0


@dataclass(frozen=True)
class Model:
    """A GPU model."""

    name: str
    chip: str
    numbers: dict[str, int]  # by their column in TARGET_INFO_GPU
    column: int  # of gpu_metrics.tsv


MODELS = [Model(**model) for model in DATA["gpus"]]


def find_model(options: Options, host: int) -> Model:
    """Return the GPU model of a host. The kernels are always those of the H100."""
    return MODELS[host % 2 if options.gpu_models == "mixed" else 0]


@dataclass(frozen=True)
class Metric:
    """A metric of a model: its number there, its name, and how its value follows from channels."""

    number: int
    name: str
    kind: str
    channel: str
    factor: float


@cache
def list_metrics(column: int, chosen: str) -> tuple[Metric, ...]:
    """List the metrics of a model ("full": all), numbered from 0 among the sampled ones."""
    found = [
        Metric(int(row[column]), *row[:3], float(row[3]))
        for row in read_rows("gpu_metrics.tsv")
        if row[column] != "-" and (chosen == "full" or row[0] in MAIN)
    ]
    found.sort(key=lambda metric: metric.number)
    return tuple(replace(metric, number=number) for number, metric in enumerate(found))


def _find_load(op: Op, cluster: Cluster, rank: int) -> dict[str, float]:
    """Return the GPU load of an operation while it lasts, by channel."""
    loads = DATA["gpu_load"]
    if op.kind in (Kind.COPY, Kind.SET):
        return loads[f"copy {op.copy[0]}" if op.copy else "memset"]
    load = loads.get(op.kernel) or loads.get(op.kernel[:4], loads["other"])
    if op.kind is Kind.COLLECTIVE:
        members = cluster.communicator(op.payload.group, rank).ranks
        one_host = len({cluster.ranks[member].host_index for member in members}) == 1
        links = ("nvlink_rx", "nvlink_tx") if one_host else ("pcie_rx", "pcie_tx")
        load = load | dict.fromkeys(links, 0.55)
    return load


class GpuMetrics(Sampler):
    """Samples all GPUs, and writes the sampled ones into each report."""

    def __init__(self, options: Options, cluster: Cluster, reports: list[Report]) -> None:
        super().__init__(options, cluster, reports)
        self.period = 1e9 / options.gpu_metrics
        self.random: list[np.random.Generator] = []
        for rank, report in zip(cluster.ranks, reports, strict=True):
            phases, values = (
                np.random.default_rng([options.seed, number, rank.host_index, rank.gpu])
                for number in (17, 19)
            )
            first = phases.uniform(0, self.period) - np.ceil(BEFORE_SAMPLES + 1) * self.period
            self.watched.append((report, rank.rank, Series(int(first), self.period, len(CHANNELS))))
            self.random.append(values)
        self.totals: dict[int, list[Ints]] = {}  # samples and sums of a GPU in any report, by rank

    def _list_sampled(self, rank: int) -> list[int]:
        """List the ranks with GPUs sampled in the report of ``rank``."""
        if self.options.gpu_metric_devices == "own":
            return [rank]
        first = self.cluster.ranks[rank].host_index * self.options.gpus_per_host
        return list(range(first, first + self.options.gpus_per_host))

    def _model(self, rank: int) -> tuple[Model, tuple[Metric, ...]]:
        model = find_model(self.options, self.cluster.ranks[rank].host_index)
        return model, list_metrics(model.column, self.options.gpu_metric_set)

    def _since(self, rank: int) -> float:
        """Return the true time from which the report of a rank has samples."""
        return self.cluster.ranks[rank].capture_start_ns - BEFORE_SAMPLES * self.period

    def find_activity(self, program: Program, block: Block, epochs: Ints) -> Activity:
        """Find the GPU activity of runs of a program, by rank."""
        works = program.all_of(Kind.KERNEL, Kind.COLLECTIVE, Kind.COPY, Kind.SET)
        found: Activity = {}
        for rank in range(len(self.reports)):
            rates = np.zeros((len(works), len(CHANNELS)))
            for place, index in enumerate(works):
                for name, share in _find_load(program.ops[index], self.cluster, rank).items():
                    rates[place, CHANNELS.index(name)] = share
            begin, end = (
                (epochs[:, None] + np.rint(times[:, rank, works]).astype(np.int64)).ravel()
                for times in (block.gpu_begin, block.gpu_end)
            )
            found[rank] = [Intervals(begin, end, np.tile(rates, (len(epochs), 1)))]
        return found

    def describe(self, report: Report) -> None:
        """Describe source and metrics."""
        sampled = self._list_sampled(report.rank.rank)
        names = [metric.name for metric in self._model(report.rank.rank)[1]]
        fields = [(name, SIGNED) for name in names]
        devices = [self.cluster.ranks[rank].gpu for rank in sampled]
        types = [(gpu, SOURCE_NAME, fields) for gpu in devices]
        define_events(report, SOURCE, SOURCE_NAME, types)
        source = number_source(SOURCE)
        rows = [
            (source | gpu, source, SOURCE_NAME, place, name)
            for gpu in devices
            for place, name in enumerate(names)
        ]
        columns = "typeId sourceId typeName metricId metricName"
        report.add("TARGET_INFO_GPU_METRICS", columns, rows)
        report.facts["gpu_metrics"] = [*self.seen[report.rank.rank].values()]

    def write(self, report: Report, device: Any, begin: Ints, end: Ints, sums: Floats) -> None:
        """Write samples of the GPU of rank ``device`` into all reports that sample it."""
        rank, times, (_, metrics) = device, end, self._model(device)
        shares = np.clip(sums / np.maximum(times - begin, 1)[:, None], 0.0, 1.0)
        values = self._draw_values(rank, shares)
        sampling = [
            other for other in range(len(self.reports)) if rank in self._list_sampled(other)
        ]
        counted = times >= min(map(self._since, sampling))
        total = self.totals.setdefault(rank, [np.int64(0), np.zeros(len(metrics), np.int64)])
        total[0] += counted.sum()
        total[1] += values[counted].sum(axis=0)
        for number in sampling:
            seen = times >= self._since(number)
            self._write(self.reports[number], rank, metrics, times[seen], values[seen])

    def _draw_values(self, rank: int, shares: Floats) -> Ints:
        """Draw values (sample, metric) of a GPU that follow from shares (sample, channel)."""
        random, (model, metrics) = self.random[rank], self._model(rank)
        noise = random.standard_normal((len(shares), len(metrics)))
        odd = random.random((len(shares), len(metrics)))
        known = dict(zip(CHANNELS, shares.T, strict=True))
        known |= {"sync": np.zeros(len(shares)), "one": np.ones(len(shares))}
        values = np.zeros(noise.shape)
        for place, metric in enumerate(metrics):
            first, _, less = metric.channel.partition("-")
            if metric.kind == "clock":
                busy = known["gr"] - 0.08 * known["tensor"]
                megahertz = metric.factor * (0.86 + 0.14 * busy) * (1.0 + 0.004 * noise[:, place])
                values[:, place] = np.rint(megahertz * 1e6)
                continue
            share = known[first] - (known[less] if less else 0.0)
            amount = np.clip(share * metric.factor, 0.0, 1e9)
            if metric.kind == "percent":
                percent = 100.0 * amount + 0.8 * noise[:, place] * (amount > 0.02)
                value = np.clip(np.rint(percent), 0.0, 100.0)
                low = (value == 0.0) & (odd[:, place] < NEGATIVE) & (metric.channel in CHANNELS)
                below = np.where(odd[:, place] < NEGATIVE / 4, -2.0, -1.0)
                values[:, place] = np.where(low, below, value)
            elif metric.kind == "count":
                values[:, place] = np.rint(amount * self.period / 1e6 + (odd[:, place] < 0.05))
            else:
                count = model.numbers["smCount"] if metric.kind == "all" else 1
                values[:, place] = np.rint(64.0 * amount * count)
        return values.astype(np.int64)

    def _write(
        self, report: Report, rank: int, metrics: tuple[Metric, ...], times: Ints, values: Ints
    ) -> None:
        gpu, names = self.cluster.ranks[rank].gpu, [metric.name for metric in metrics]
        number = number_source(SOURCE) | gpu
        new = {"uuid": report.rank.host.gpus[gpu].uuid, "type_id": number, "samples": 0}
        new["sums"] = dict.fromkeys(names, 0)
        entry = self.seen[report.rank.rank].setdefault(rank, new)
        entry["samples"] += len(times)
        for name, total in zip(names, values.sum(axis=0).tolist(), strict=True):
            entry["sums"][name] += total
        local = np.repeat(report.rank.local(times), len(metrics)).reshape(values.shape)
        columns = {"timestamp": local, "rawTimestamp": local + report.rank.start_clock}
        columns |= {"metricId": [metric.number for metric in metrics], "value": values}
        report.insert("GPU_METRICS", local, typeId=number, **columns)

    def tell(self) -> Truth:
        """Return the truth about all GPUs."""
        found = {}
        for rank, (samples, sums) in self.totals.items():
            one, (model, metrics) = self.cluster.ranks[rank], self._model(rank)
            names, samples = [metric.name for metric in metrics], int(samples)
            total = dict(zip(names, sums.tolist(), strict=True))
            means = {name: round(value / max(1, samples), 6) for name, value in total.items()}
            told = {"host": one.host.name, "gpu_index_on_host": one.gpu, "model": model.name}
            told |= {"samples": samples, "period_ns": self.period, "sums": total, "means": means}
            found[one.host.gpus[one.gpu].uuid] = told
        return {"gpus": found}
