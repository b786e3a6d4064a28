"""GPU models, and GPU metrics: what kernels and copies do to a GPU, sampled.

A metric belongs to the GPU, not to the report that holds its samples. All reports of a host that
sample a GPU have the same samples of it, as far as their captures overlap; the first few come
before a capture's start. Values are integers: mostly percent, of which some are slightly below 0;
clocks are in Hz, as in real exports, although the names say "[MHz]". The name of the event type is
made up.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from .cluster import Cluster, Ints
from .data import DATA, read_rows
from .options import Options
from .program import Kind, Op, Program
from .report import Report, Truth
from .sampling import SIGNED, Intervals, Series, define_events, number_source
from .timeline import Block, Floats

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
    """Return the model of a host's GPUs. The kernels stay those of the H100."""
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
    """List the metrics of a model ("full": all), numbered from 0 in what is sampled."""
    found = [
        Metric(int(row[column]), *row[:3], float(row[3]))
        for row in read_rows("gpu_metrics.tsv")
        if row[column] != "-" and (chosen == "full" or row[0] in MAIN)
    ]
    found.sort(key=lambda metric: metric.number)
    return tuple(replace(metric, number=number) for number, metric in enumerate(found))


def _find_load(op: Op, cluster: Cluster, rank: int) -> dict[str, float]:
    """Find what an operation does to the GPU while it lasts, by channel."""
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


class GpuMetrics:
    """Samples all GPUs and writes into each report those that it samples."""

    def __init__(self, options: Options, cluster: Cluster, reports: list[Report]) -> None:
        self.options, self.cluster, self.reports = options, cluster, reports
        self.period = 1e9 / options.gpu_metrics
        self.series: list[Series] = []  # by rank, whose GPU is meant
        self.random: list[np.random.Generator] = []
        for rank in cluster.ranks:
            phases, values = (
                np.random.default_rng([options.seed, number, rank.host_index, rank.gpu])
                for number in (17, 19)
            )
            first = phases.uniform(0, self.period) - np.ceil(BEFORE_SAMPLES + 1) * self.period
            self.series.append(Series(int(first), self.period, len(CHANNELS)))
            self.random.append(values)
        self.totals: dict[int, list[Ints]] = {}  # samples and sums of a GPU in any report, by rank
        # By rank of the report and of the GPU.
        self.seen: dict[tuple[int, int], Truth] = {}

    def _list_sampled(self, rank: int) -> list[int]:
        """List the ranks whose GPUs are sampled in the report of ``rank``."""
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

    def watch(self, program: Program, block: Block, epochs: Ints, until: int) -> None:
        """Sample runs of a program."""
        works = program.all_of(Kind.KERNEL, Kind.COLLECTIVE, Kind.COPY, Kind.SET)
        for rank in range(len(self.series)):
            rates = np.zeros((len(works), len(CHANNELS)))
            for place, index in enumerate(works):
                for name, share in _find_load(program.ops[index], self.cluster, rank).items():
                    rates[place, CHANNELS.index(name)] = share
            begin, end = (
                (epochs[:, None] + np.rint(times[:, rank, works]).astype(np.int64)).ravel()
                for times in (block.gpu_begin, block.gpu_end)
            )
            self._sample(rank, [Intervals(begin, end, np.tile(rates, (len(epochs), 1)))], until)

    def finish(self, stop: int) -> None:
        """Sample up to the captures' end, and tell of sources and metrics."""
        for rank in range(len(self.series)):
            self._sample(rank, [], stop)
        for report in self.reports:
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
            report.facts["gpu_metrics"] = [self.seen[report.rank.rank, rank] for rank in sampled]

    def _sample(self, rank: int, new: list[Intervals], until: int) -> None:
        begin, times, sums = self.series[rank].advance(new, until)
        if not len(times):
            return
        model, metrics = self._model(rank)
        shares = np.clip(sums / np.maximum(times - begin, 1)[:, None], 0.0, 1.0)
        values = self._draw_values(self.random[rank], metrics, shares, model.numbers["smCount"])
        sampling = [other for other in range(len(self.series)) if rank in self._list_sampled(other)]
        counted = times >= min(map(self._since, sampling))
        total = self.totals.setdefault(rank, [np.int64(0), np.zeros(len(metrics), np.int64)])
        total[0] += counted.sum()
        total[1] += values[counted].sum(axis=0)
        for report in self.reports:
            if report.rank.rank in sampling:
                seen = times >= self._since(report.rank.rank)
                self._write(report, rank, metrics, times[seen], values[seen])

    def _draw_values(
        self,
        random: np.random.Generator,
        metrics: tuple[Metric, ...],
        shares: Floats,
        processors: int,
    ) -> Ints:
        """Draw values (sample, metric) that follow from shares (sample, channel)."""
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
                count = processors if metric.kind == "all" else 1
                values[:, place] = np.rint(64.0 * amount * count)
        return values.astype(np.int64)

    def _write(
        self, report: Report, rank: int, metrics: tuple[Metric, ...], times: Ints, values: Ints
    ) -> None:
        gpu, names = self.cluster.ranks[rank].gpu, [metric.name for metric in metrics]
        number = number_source(SOURCE) | gpu
        new = {"uuid": report.rank.host.gpus[gpu].uuid, "type_id": number, "samples": 0}
        entry = self.seen.setdefault(
            (report.rank.rank, rank), new | {"sums": dict.fromkeys(names, 0)}
        )
        entry["samples"] += len(times)
        for name, total in zip(names, values.sum(axis=0).tolist(), strict=True):
            entry["sums"][name] += total
        if len(times):
            local = np.repeat(report.rank.local(times), len(metrics))
            ids = np.array([metric.number for metric in metrics])
            columns = {"rawTimestamp": local + report.rank.start_clock, "timestamp": local}
            columns |= {"typeId": number, "metricId": np.tile(ids, len(times))}
            columns["value"] = values.ravel()
            report.export.insert("GPU_METRICS", columns, report.order(local))

    def tell(self) -> Truth:
        """Tell of all GPUs."""
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
