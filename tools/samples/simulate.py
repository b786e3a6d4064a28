"""Runs the job and writes the reports of some of its ranks, block of steps by block of steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from . import additions, background, graphs, metadata, nccl_trace, nvtx, target
from .background import Background
from .cluster import Cluster, Ints, Rank, build_cluster
from .ends import build_noise
from .extras import Extras
from .extras import programs as extra_programs
from .job import Job, graph_level
from .losses import ABOUT as ABOUT_FAULTS
from .losses import Losses
from .metrics.gpu import GpuMetrics
from .metrics.network import Network
from .metrics.plugins import Plugins
from .metrics.watcher import Watcher
from .missing import Cut
from .mpi.rows import MpiRows
from .mpi.truth import MpiTruth
from .nccl_trace import TraceRows
from .nvtx import RangeRows
from .options import Options
from .osrt import OsCalls
from .program import Program
from .recorder import Recorder
from .rows import ProgramRows, Report
from .timeline import Block, Timeline
from .write import Export, Tally

FIRST_EPOCH_NS = 600_000_000
"""True time at which processes begin; every capture runs by then."""

AFTER_INIT_NS = 5_000_000
CLOSING_NS = 60_000_000
_OPERATIONS_PER_BLOCK = 40_000
_INIT_SPREAD_NS = 30_000_000
_HELPERS_START_NS = 145_000_000
"""Since a capture's start: when the process has its helper threads."""


def planned(options: Options) -> Options:
    """Options with ``events_per_rank`` turned into steps (and fewer layers, if even one step is too much)."""
    wanted = options.events_per_rank
    if wanted is None:
        return options
    layers = options.layers
    while True:
        trial = replace(options, layers=layers)
        job = Job(trial, build_cluster(trial))
        fixed, each = (
            sum(program.rows(graph_level(trial, 0)) for program in (job.initial(), job.final())),
            job.step().rows(graph_level(trial, 0)) + background.ROWS_PER_STEP + options.osrt,
        )
        steps = round((wanted - fixed) / each)
        if steps >= 1 or layers == 1:
            return replace(trial, steps=max(1, steps))
        layers = max(1, layers // 2)


def report_name(rank: int) -> str:
    return f"rank{rank}.sqlite"


class _Stage:
    """All that is beside the programs: the reports, what watches, and the truth that is gathered."""

    def __init__(self, options: Options, cluster: Cluster, reports: list[Report]) -> None:
        self.options, self.reports, self.noise = options, reports, build_noise(options)
        self.cut = Cut(options, reports)
        self.watchers: list[Watcher] = []
        if options.gpu_metrics:
            self.watchers.append(GpuMetrics(options, cluster, reports))
        if options.nic_metrics or options.switch_metrics or options.switch_congestion:
            self.watchers.append(Network(options, cluster, reports))
        if options.storage_metrics or options.efa_metrics:
            self.watchers.append(Plugins(options, cluster, reports))
        self.calls = [OsCalls(report) for report in reports] if options.osrt else []
        self.mpi = MpiTruth(options, cluster) if options.mpi else None

    def truth(self) -> dict[str, Any]:
        """What the truth says beside ranks and NCCL collectives."""
        found: dict[str, Any] = {"mpi": self.mpi.summary()} if self.mpi else {}
        for watcher in self.watchers:
            found |= watcher.truth()
        return found


class _Phase:
    """One program on the cluster, with what writes its rows into each report."""

    def __init__(self, program: Program, cluster: Cluster, stage: _Stage, seed: int) -> None:
        self.program, self.stage = program, stage
        self.timeline = Timeline(program, cluster, seed, stage.noise)
        options = stage.options
        self.writers = [(ProgramRows(program, report), RangeRows(program, report)) for report in stage.reports]
        self.mpi = [MpiRows(program, report) for report in stage.reports] if options.mpi else []
        self.traces = [TraceRows(program, report) for report in stage.reports] if options.nccl_trace == "advanced" else []

    def write(self, block: Block, epochs: Ints, until: int, first_run: int | None = None) -> None:
        """Write runs that begin at ``epochs``; nothing later begins before ``until`` (true times, ns). The first is step
        ``first_run``, or no step at all.
        """
        for report in range(len(self.writers)):
            self.write_report(report, block, epochs, first_run or 0)
        for inner in self.stage.calls:
            inner.inside(self.program, block, epochs, first_run is not None)
        for watcher in self.stage.watchers:
            watcher.watch(self.program, block, epochs, until)
        if self.stage.mpi:
            self.stage.mpi.record(self.program, block, epochs, first_run)

    def write_report(self, number: int, block: Block, epochs: Ints, first_run: int) -> None:
        """Write runs into one of the reports only."""
        rows, ranges = self.writers[number]
        rows.write(block, epochs)
        ranges.write(block, epochs, first_run)
        if self.mpi:
            self.mpi[number].write(block, epochs)
        if self.traces:
            self.traces[number].write(block, epochs, first_run)


class _Faults:
    """What is made wrong in the reports."""

    def __init__(self, options: Options, cluster: Cluster, stage: _Stage, step: Program, before: Program) -> None:
        self.options = options
        self.losses = Losses(step, before, cluster, options)
        wanted = extra_programs(step, options.nccl_trace == "advanced") if options.extra_collectives else []
        self.phases = [_Phase(program, cluster, stage, options.seed) for program in wanted]
        self.extras = Extras(options, cluster, [phase.timeline for phase in self.phases])

    def write(self, program: int, report: int, block: Block, epochs: Ints, step: int) -> None:
        self.phases[program].write_report(report, block, epochs, step)

    def truth(self) -> dict[str, Any]:
        if not self.options.lost_collectives and not self.options.extra_collectives:
            return {}
        return {"faults": {"about": ABOUT_FAULTS, "lost": self.losses.found, "extra": self.extras.found}}


@dataclass
class Written:
    """What the writer of some ranks knows: per rank its truth, the collectives (the same from every writer), and what
    else the truth says (by section; devices by name, from whoever knows them).
    """

    ranks: list[dict[str, Any]]
    collectives: list[dict[str, Any]]
    collectives_total: int
    collectives_every: int
    more: dict[str, Any]


def write_ranks(options: Options, folder: Path, wanted: Sequence[int]) -> Written:
    """Simulate the whole job and write the reports of the ranks ``wanted`` into ``folder``."""
    cluster = build_cluster(options)
    job = Job(options, cluster)
    reports = [
        Report(cluster.ranks[rank], cluster, options, Export(folder / report_name(rank), options.page_size), Tally()) for rank in wanted
    ]
    beside = [Background(report) for report in reports]
    stage = _Stage(options, cluster, reports)
    count = options.ranks

    initial = _Phase(job.initial(), cluster, stage, options.seed)
    rng = np.random.default_rng([options.seed, 2])
    epoch = np.array([FIRST_EPOCH_NS])
    for report in reports:
        advanced = options.nccl_trace == "advanced"
        more = nccl_trace.definitions(report) if advanced else ()
        nvtx.write_definitions(report, int(report.rank.local(epoch)[0]) - 200_000, more)
    for calls in stage.calls:
        calls.begin(int(calls.report.rank.local(epoch)[0]))
    block = initial.timeline.run(rng, rng.uniform(0, _INIT_SPREAD_NS, (1, count)))
    now = int(epoch[0] + block.ends().max()) + AFTER_INIT_NS
    initial.write(block, epoch, now)
    for report in reports:
        graphs.write_creation(initial.program, block, epoch, report)
    for rows in beside:
        rows.begin(int(rows.report.rank.local(np.array([now - AFTER_INIT_NS // 2]))[0]))

    step = _Phase(job.step(), cluster, stage, options.seed)
    faults = _Faults(options, cluster, stage, step.program, initial.program)
    recorder = Recorder(step.program, cluster, options)
    size = max(1, _OPERATIONS_PER_BLOCK // len(step.program.ops))
    for first in range(0, options.steps, size):
        runs = min(size, options.steps - first)
        begin = np.minimum(rng.exponential(options.skew_us * 1e3, (runs, count)), options.skew_us * 8e3)
        block = step.timeline.run(rng, begin)
        ends = block.ends()
        lengths = np.ceil(ends.max(axis=1)).astype(np.int64) + background.STEP_GAP_NS + round(options.pace_ms * 1e6)
        lengths += faults.extras.run(first, runs)
        epochs = now + np.concatenate([[0], np.cumsum(lengths)[:-1]])
        now += int(lengths.sum())
        stage.cut.see(epochs, lengths, first)
        faults.losses.begin(reports, block, epochs, first)
        step.write(block, epochs, now, first)
        faults.losses.end(reports)
        faults.extras.write(wanted, faults.write, epochs, ends, first)
        for rows in beside:
            rank = rows.report.rank
            edges = [rank.local(epochs + np.rint(edge[:, rank.rank]).astype(np.int64)) for edge in (begin, ends)]
            rows.write(edges[0], edges[1], rank.local(epochs), first)
        for calls in stage.calls:
            rank = calls.report.rank
            calls.beside(*(rank.local(epochs + np.rint(edge[:, rank.rank]).astype(np.int64)) for edge in (begin, ends)))
        recorder.record(block, epochs, first)

    final = _Phase(job.final(), cluster, stage, options.seed)
    block = final.timeline.run(rng, rng.uniform(0, 1e6, (1, count)))
    final.write(block, np.array([now]), int(now + block.ends().max()))
    now += int(block.ends().max()) + CLOSING_NS
    for watcher in stage.watchers:
        watcher.finish(now)
    for calls in stage.calls:
        calls.finish(_HELPERS_START_NS, _duration(calls.report, now))
    for report, rows in zip(reports, beside, strict=True):
        duration = _duration(report, now)
        rows.finish(int(report.rank.local(epoch)[0]) + 1_000_000)
        additions.add(options.additions, report, np.concatenate(rows.steps), duration)
        target.write_target(report, duration)
        metadata.write_metadata(report, duration)
        report.export.close()
    ranks = [_rank_truth(report, now, stage.noise.gpu_lag_ns[report.rank.rank]) for report in reports]
    return Written(ranks, recorder.found, recorder.total, recorder.every, stage.truth() | faults.truth())


def _duration(report: Report, stop: int) -> int:
    """Local time (ns) at which the capture ends: at true time ``stop``, or where it is cut."""
    return min(int(report.rank.local(np.array([stop]))[0]), report.missing.last)


def _rank_truth(report: Report, stop: int, gpu_lag: int) -> dict[str, Any]:
    rank: Rank = report.rank
    cut = report.facts.get("cut", {"lacks": "none"})
    tables = report.tally.summary()
    return {
        "rank": rank.rank,
        "report": report_name(rank.rank),
        "host": rank.host.name,
        "pid": rank.pid,
        "global_pid": rank.global_pid,
        "device": rank.device,
        "gpu_index_on_host": rank.gpu,
        "gpu_uuid": rank.host.gpus[rank.gpu].uuid,
        "gpu_bus": rank.host.gpus[rank.gpu].bus,
        "capture_start_true_ns": rank.capture_start_ns,
        "capture_end_true_ns": cut["true_ns"] if cut["lacks"] == "end" else stop,
        "utcEpochNs": rank.start_utc,
        "systemClockNs": rank.start_clock,
        "cuda_graphs": "graph" if graph_level(report.options, rank.rank) else ("none" if report.options.graphs == "none" else "node"),
        "event_rows": sum(table["rows"] for table in tables.values()),
        **({"gpu_lag_ns": gpu_lag} if report.options.gpu_lag_us else {}),
        **({"host_index": rank.host_index} if report.options.same_host_name else {}),
        **report.facts,
        "tables": tables,
    }
