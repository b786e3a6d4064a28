"""GPU metrics: what kernels and copies do to a GPU, sampled.

A metric belongs to the GPU, not to the report that holds its samples. All reports of a host that sample a GPU have the
same samples of it, as far as their captures overlap; the first few come before a capture's start. Values are integers:
mostly percent, of which some are slightly below 0; clocks are in Hz, as in real exports (or MHz, if so asked). The name of
the event type is made up.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cluster import Cluster, Ints
from ..options import Options
from ..program import Kind, Op, Program
from ..rows import Report
from ..target import listed_gpus
from ..timeline import Block
from . import generic
from .gpus import CHANNELS, Metric, metrics, model_of
from .series import Intervals, Series

SOURCE, SOURCE_NAME = 1, "GPU Metrics"
_BEFORE_SAMPLES = 2.5
"""So many periods before a capture's start its samples begin."""

_NEGATIVE = 0.004
_Works = (Kind.KERNEL, Kind.COLLECTIVE, Kind.COPY, Kind.SET)
_Gpu = tuple[int, int]  # host, GPU of it


def _profile(op: Op, cluster: Cluster, rank: int) -> dict[str, float]:
    """What an operation does to the GPU while it lasts."""
    if op.kind is Kind.COPY:
        assert op.copy is not None
        kinds = {1: ("pcie_rx", "copy_in", "dram_write"), 2: ("pcie_tx", "copy_out", "dram_read")}
        names = kinds.get(op.copy.copy_kind, ("dram_read", "dram_write"))
        return dict.fromkeys(names, 0.8) | ({"nvlink_tx": 0.7} if op.copy.copy_kind == 10 else {})
    if op.kind is Kind.SET:
        return {"dram_write": 0.9, "gr": 1.0}
    busy = {"gr": 1.0, "compute": 1.0}
    if op.kind is Kind.COLLECTIVE:
        assert op.payload is not None
        comm = cluster.communicator(op.payload.group, rank)
        hosts = [cluster.ranks[member].host_index for member in comm.ranks]
        links = ("nvlink_rx", "nvlink_tx") if len(set(hosts)) == 1 else ("pcie_rx", "pcie_tx")
        rest = {"sm": 0.18, "issue": 0.05, "warps": 0.05, "dram_read": 0.12, "dram_write": 0.12}
        return busy | rest | dict.fromkeys(links, 0.55)
    if op.kernel == "gemm_fp32":
        return busy | {"sm": 0.97, "issue": 0.82, "warps": 0.22, "dram_read": 0.22, "dram_write": 0.08}
    if op.kernel.startswith("gemm"):
        return busy | {"sm": 0.98, "issue": 0.34, "warps": 0.19, "tensor": 0.66, "dram_read": 0.31, "dram_write": 0.14}
    if op.kernel in ("flash_fwd", "flash_bwd"):
        return busy | {"sm": 0.97, "issue": 0.51, "warps": 0.24, "tensor": 0.43, "dram_read": 0.18, "dram_write": 0.09}
    return busy | {"sm": 0.93, "issue": 0.29, "warps": 0.71, "dram_read": 0.62, "dram_write": 0.38}


class GpuMetrics:
    """Samples the GPUs that the given reports sample, and writes them."""

    def __init__(self, options: Options, cluster: Cluster, reports: list[Report]) -> None:
        self.options, self.cluster, self.reports = options, cluster, reports
        self.period = 1e9 / options.gpu_metrics
        self.wanted = {id(report): self._sampled_by(report.rank.rank) for report in reports}
        needed = sorted({gpu for gpus in self.wanted.values() for gpu in gpus})
        self.series = {}
        self.random = {}
        for host, gpu in needed:
            phase = np.random.default_rng([options.seed, 17, host, gpu]).uniform(0, self.period)
            first = int(phase - np.ceil(_BEFORE_SAMPLES + 1) * self.period)
            self.series[host, gpu] = Series(first, self.period, len(CHANNELS))
            self.random[host, gpu] = np.random.default_rng([options.seed, 19, host, gpu])
        self.since = {gpu: self._since(gpu) for gpu in needed}
        self.totals: dict[_Gpu, list[Any]] = {}
        self.seen: dict[tuple[int, _Gpu], dict[str, Any]] = {}

    def _sampled_by(self, rank: int) -> list[_Gpu]:
        """The GPUs whose samples are in the report of ``rank``."""
        own = self.cluster.ranks[rank]
        if self.options.visible == "cgroup" or self.options.gpu_metric_devices == "own":
            return [(own.host_index, own.gpu)]
        if self.options.gpu_metric_devices == "first" and own.gpu:
            return []
        return [(own.host_index, gpu) for gpu in range(self.options.gpus_per_host)]

    def _since(self, gpu: _Gpu) -> float:
        """When the first report that samples a GPU begins to."""
        ranks = [rank for rank in self.cluster.ranks if gpu in self._sampled_by(rank.rank)]
        return min(rank.capture_start_ns for rank in ranks) - _BEFORE_SAMPLES * self.period

    def watch(self, program: Program, block: Block, epochs: Ints, until: int) -> None:
        works = [index for index, op in enumerate(program.ops) if op.kind in _Works]
        for gpu, series in self.series.items():
            rank = gpu[0] * self.options.gpus_per_host + gpu[1]
            rates = np.zeros((len(works), len(CHANNELS)))
            for place, index in enumerate(works):
                for name, share in _profile(program.ops[index], self.cluster, rank).items():
                    rates[place, CHANNELS.index(name)] = share
            edges = [
                (epochs[:, None] + np.rint(times[:, rank, works]).astype(np.int64)).ravel() for times in (block.gpu_begin, block.gpu_end)
            ]
            series.add(Intervals(edges[0], edges[1], np.tile(rates, (len(epochs), 1))))
            self._sample(gpu, series, until)

    def finish(self, stop: int) -> None:
        for gpu, series in self.series.items():
            self._sample(gpu, series, stop)
        for report in self.reports:
            types = []
            for host, gpu in self.wanted[id(report)]:
                chip = model_of(self.options, host).chip
                fields = [generic.Field(metric.name, generic.SIGNED) for metric in metrics(chip)]
                types.append((self._number(report, gpu), SOURCE_NAME, fields))
            if types:
                generic.define(report, SOURCE, SOURCE_NAME, types)
                self._write_names(report, types)
                report.facts["gpu_metrics"] = [self.seen[id(report), gpu] for gpu in self.wanted[id(report)]]

    def _number(self, report: Report, gpu: int) -> int:
        """The number of a host's GPU in the report."""
        return next(number for number, index, _ in listed_gpus(report) if index == gpu)

    def _write_names(self, report: Report, types: list[tuple[int, str, list[generic.Field]]]) -> None:
        rows = [
            (generic.source_id(SOURCE) | number, name, place, field.name)
            for number, name, fields in types
            for place, field in enumerate(fields)
        ]
        columns: dict[str, Any] = {
            "typeId": [row[0] for row in rows],
            "sourceId": generic.source_id(SOURCE),
            "typeName": [row[1] for row in rows],
            "metricId": [row[2] for row in rows],
            "metricName": [row[3] for row in rows],
        }
        report.export.insert("TARGET_INFO_GPU_METRICS", columns)

    def _sample(self, gpu: _Gpu, series: Series, until: int) -> None:
        begin, times, sums = series.advance(until)
        if not len(times):
            return
        model = model_of(self.options, gpu[0])
        chosen = metrics(model.chip)
        share = np.clip(sums / np.maximum(times - begin, 1)[:, None], 0.0, 1.0)
        values = self._values(gpu, chosen, share, model.numbers["smCount"])
        counted = times >= self.since[gpu]
        if gpu not in self.totals:
            self.totals[gpu] = [0, np.zeros(len(chosen), np.int64)]
        self.totals[gpu][0] += int(counted.sum())
        self.totals[gpu][1] += values[counted].sum(axis=0)
        for report in self.reports:
            if gpu in self.wanted[id(report)]:
                since = report.rank.capture_start_ns - _BEFORE_SAMPLES * self.period
                self._write(report, gpu, chosen, times[times >= since], values[times >= since])

    def _values(self, gpu: _Gpu, chosen: tuple[Metric, ...], share: NDArray[Any], processors: int) -> Ints:
        random = self.random[gpu]
        noise = random.standard_normal((len(share), len(chosen)))
        odd = random.random((len(share), len(chosen)))
        known = {name: share[:, place] for place, name in enumerate(CHANNELS)}
        known |= {"sync": np.zeros(len(share)), "one": np.ones(len(share))}
        values = np.zeros((len(share), len(chosen)))
        for place, metric in enumerate(chosen):
            first, _, less = metric.channel.partition("-")
            if metric.kind == "clock":
                busy = known["gr"] - 0.08 * known["tensor"]
                mhz = metric.factor * (0.86 + 0.14 * busy) * (1.0 + 0.004 * noise[:, place])
                values[:, place] = np.rint(mhz * (1e6 if self.options.gpu_clock_unit == "hz" else 1.0))
                continue
            amount = np.clip((known[first] - (known[less] if less else 0.0)) * metric.factor, 0.0, 1e9)
            if metric.kind == "percent":
                value = np.clip(np.rint(100.0 * amount + 0.8 * noise[:, place] * (amount > 0.02)), 0.0, 100.0)
                low = (value == 0.0) & (odd[:, place] < _NEGATIVE) & (metric.channel in CHANNELS)
                values[:, place] = np.where(low, np.where(odd[:, place] < _NEGATIVE / 4, -2.0, -1.0), value)
            elif metric.kind == "count":
                values[:, place] = np.rint(amount * self.period / 1e6 + (odd[:, place] < 0.05))
            else:
                values[:, place] = np.rint(64.0 * amount * (processors if metric.kind == "all" else 1))
        return values.astype(np.int64)

    def _write(self, report: Report, gpu: _Gpu, chosen: tuple[Metric, ...], times: Ints, values: Ints) -> None:
        rank = report.rank
        number = generic.source_id(SOURCE) | self._number(report, gpu[1])
        entry = self.seen.setdefault(
            (id(report), gpu),
            {
                "uuid": rank.host.gpus[gpu[1]].uuid,
                "type_id": number,
                "samples": 0,
                "sums": {metric.name: 0 for metric in chosen},
            },
        )
        entry["samples"] += len(times)
        for metric, total in zip(chosen, values.sum(axis=0).tolist(), strict=True):
            entry["sums"][metric.name] += total
        if not len(times):
            return
        local = rank.local(times)
        columns: dict[str, Any] = {
            "rawTimestamp": np.repeat(local + rank.start_clock, len(chosen)),
            "timestamp": np.repeat(local, len(chosen)),
            "typeId": number,
            "metricId": np.tile(np.array([metric.number for metric in chosen]), len(times)),
            "value": values.ravel(),
        }
        report.export.insert("GPU_METRICS", columns, report.order(columns["timestamp"]))
        report.tally.add("GPU_METRICS", [metric.name for metric in chosen], np.zeros(values.shape, np.int64))

    def truth(self) -> dict[str, Any]:
        found = {}
        for (host, gpu), (samples, sums) in self.totals.items():
            model = model_of(self.options, host)
            total = dict(zip((metric.name for metric in metrics(model.chip)), sums.tolist(), strict=True))
            found[self.cluster.hosts[host].gpus[gpu].uuid] = {
                "host": self.cluster.hosts[host].name,
                "gpu_index_on_host": gpu,
                "model": model.name,
                "samples": samples,
                "period_ns": self.period,
                "sums": total,
                "means": {name: round(value / max(1, samples), 6) for name, value in total.items()},
            }
        return {"gpus": found}
