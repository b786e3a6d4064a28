"""Runs the job block of steps by block of steps, has the reports written, and writes
``truth.json``.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from . import faults, nvtx, sampling, system, truth
from .additions import ADDITIONS
from .background import ROWS_PER_STEP, STEP_GAP_NS, Background, OsCalls
from .cluster import EPOCH_NS, FIRST_EPOCH_NS, Ints, build_cluster
from .cuda import CudaRows, write_graph_creation
from .data import DATA
from .mpi import MpiRows
from .network import Network
from .options import Options
from .program import Job, Program
from .report import Export, Report, Scene, Truth
from .timeline import Block, Timeline

AFTER_INIT_NS, CLOSING_NS, INIT_SPREAD_NS = 5_000_000, 60_000_000, 30_000_000
HELPERS_START_NS = 145_000_000  # since a capture's start: when the process has its helper threads
OPERATIONS_PER_BLOCK = 40_000


def generate(
    folder: str | os.PathLike[str], options: Options | None = None, **changes: Any
) -> Truth:
    """Write a set of reports and their truth into ``folder`` (made if absent); return the truth.

    Options can be given as an object or as keyword arguments, such as ``generate("out", ranks=2,
    hosts=1)``.
    """
    options = _plan_steps(options or Options(**changes))
    if unknown := set(options.additions) - ADDITIONS.keys():
        raise ValueError(f"no such additions: {', '.join(unknown)}; there are {[*ADDITIONS]}")
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    told = _Simulation(options, target).run()
    (target / "truth.json").write_text(_as_text(told) + "\n", encoding="utf-8")
    return told


def _plan_steps(options: Options) -> Options:
    """Turn ``events_per_rank`` into steps (and fewer layers, if even one step is too much)."""
    while options.events_per_rank is not None:
        job, whole = Job(options, build_cluster(options)), options.graph_level(0) == "graph"
        fixed = sum(program.count_rows(whole) for program in (job.initial(), job.final()))
        per_step = job.step().count_rows(whole) + ROWS_PER_STEP + options.osrt
        steps = round((options.events_per_rank - fixed) / per_step)
        if steps >= 1 or options.layers == 1:
            return replace(options, steps=max(1, steps))
        options = replace(options, layers=max(1, options.layers // 2))
    return options


class _Simulation:
    """The job, its reports, and events recorded outside its programs."""

    def __init__(self, options: Options, folder: Path) -> None:
        self.options, self.cluster = options, build_cluster(options)
        self.reports = []
        for rank in self.cluster.ranks:
            export = Export(folder / f"rank{rank.rank}.sqlite", options.page_size)
            self.reports.append(Report(rank, self.cluster, options, export))
        self.background = [Background(report) for report in self.reports]
        self.os_calls = [OsCalls(report) for report in self.reports] if options.osrt else []
        network = options.nic_metrics or options.switch_metrics or options.switch_congestion
        sampled = (
            (sampling.GpuMetrics, options.gpu_metrics),
            (Network, network),
            (sampling.Plugins, options.storage_metrics or options.efa_metrics),
        )
        self.samplers = [
            kind(options, self.cluster, self.reports) for kind, wanted in sampled if wanted
        ]
        self.collectives = truth.CollectiveTruth(options, self.cluster)
        self.messages = truth.MpiTruth(options, self.cluster)
        self.causes = faults.Causes(options, self.cluster)

    def run(self) -> Truth:
        """Simulate and write everything; return the truth."""
        options, job = self.options, Job(self.options, self.cluster)
        rng = np.random.default_rng([options.seed, 2])
        now = self._start(Phase(job.initial(), self), rng)
        now = self._run_steps(Phase(job.step(), self), rng, now)
        final = Phase(job.final(), self)
        block = final.timeline.run(rng, rng.uniform(0, 1e6, (1, options.ranks)))
        length = int(block.find_ends().max())
        final.write(block, np.array([now]), now + length)
        stop = now + length + round(CLOSING_NS * options.startup)
        return self._finish(stop)

    def _start(self, initial: Phase, rng: np.random.Generator) -> int:
        """Start the processes; return when the steps begin (true ns)."""
        startup, begins = self.options.startup, [self._local_start(one) for one in self.reports]
        for begin, report in zip(begins, self.reports, strict=True):
            nvtx.write_definitions(report, begin - 200_000)
        for begin, calls in zip(begins, self.os_calls, strict=False):
            calls.begin(begin)
        spread = rng.uniform(0, INIT_SPREAD_NS * startup, (1, self.options.ranks))
        block, epoch = initial.timeline.run(rng, spread), np.array([FIRST_EPOCH_NS])
        pause = round(AFTER_INIT_NS * startup)
        now = int(FIRST_EPOCH_NS + block.find_ends().max()) + pause
        initial.write(block, epoch, now)
        for report, background in zip(self.reports, self.background, strict=True):
            write_graph_creation(initial.program, block, epoch, report)
            background.begin(report.rank.local_time(now - pause // 2))
        return now

    def _run_steps(self, step: Phase, rng: np.random.Generator, now: int) -> int:
        """Run the steps in blocks from true time ``now`` on; return the last one's end."""
        options = self.options
        size = max(1, OPERATIONS_PER_BLOCK // len(step.program.ops))
        for first in range(0, options.steps, size):
            runs = min(size, options.steps - first)
            late = rng.exponential(options.skew_us * 1e3, (runs, options.ranks))
            begin = np.minimum(late, options.skew_us * 8e3)
            block = step.timeline.run(rng, begin, self.causes.draw_delays(first, runs))
            ends = block.find_ends()
            idle = STEP_GAP_NS + round(options.pace_ms * 1e6)
            edges = now + np.cumsum([0, *(np.ceil(ends.max(axis=1)).astype(np.int64) + idle)])
            epochs, now = edges[:-1], int(edges[-1])
            step.write(block, epochs, now, first)
            for rank, report in enumerate(self.reports):
                local = [report.local(epochs, edge[:, rank]) for edge in (begin, ends)]
                self.background[rank].write(*local, report.rank.local(epochs), first)
                if self.os_calls:
                    self.os_calls[rank].write_on_loaders(*local)
        return now

    def _local_start(self, report: Report) -> int:
        return report.rank.local_time(FIRST_EPOCH_NS)

    def _finish(self, stop: int) -> Truth:
        """End the captures at true time ``stop`` (ns); return the truth."""
        options, collectives, messages = self.options, self.collectives, self.messages
        for sampler in self.samplers:
            sampler.finish(stop)
        for rank, report in enumerate(self.reports):
            duration, background = report.rank.local_time(stop), self.background[rank]
            if self.os_calls:
                helpers = round(HELPERS_START_NS * options.startup)
                self.os_calls[rank].finish(helpers, duration)
            background.finish(self._local_start(report) + 1_000_000)
            report.facts = {"capture_end_true_ns": stop, **report.facts}
            for name in options.additions:
                random = np.random.default_rng([options.seed, rank, *name.encode()])
                scene = Scene(report, np.concatenate(background.steps), duration, random)
                report.facts.setdefault("additions", {})[name] = ADDITIONS[name](scene)
            system.write_system(report, duration)
            report.export.close()
        told = self._tell_job() | collectives.tell()
        told |= {"about_metrics": DATA["about"]["metrics"]} if self.samplers else {}
        told |= messages.tell()
        for sampler in self.samplers:
            for section, content in sampler.tell().items():
                told[section] = dict(sorted(content.items()))
        return told | self.causes.tell()

    def _tell_job(self) -> Truth:
        """Describe the whole job, its hosts, communicators and ranks."""
        told: Truth = {"about": DATA["about"]["job"], "options": self.options.describe()}
        told |= {"epoch_utc_ns": EPOCH_NS, "hosts": [], "communicators": []}
        for host in self.cluster.hosts:
            clock = {"name": host.name, "offset_ns": host.offset_ns, "drift_ppm": host.drift_ppm}
            clock["utc_minus_system_clock_ns"] = host.utc_minus_system
            told["hosts"].append({**clock, "gpus": [vars(gpu) for gpu in host.gpus]})
        for comm in self.cluster.communicators:
            known = {"id": comm.hash, "kind": comm.group.name.lower(), "ranks": list(comm.ranks)}
            told["communicators"].append(known)
        return told | {"ranks": [self._tell_rank(report) for report in self.reports]}

    def _tell_rank(self, report: Report) -> Truth:
        rank, facts = report.rank, dict(report.facts)
        tables, gpu = truth.sum_tables(report.export.path), rank.host.gpus[rank.gpu]
        told: Truth = {"rank": rank.rank, "report": f"rank{rank.rank}.sqlite"}
        told |= {"host": rank.host.name, "pid": rank.pid, "global_pid": rank.global_pid}
        told |= {"device": rank.device, "gpu_index_on_host": rank.gpu}
        told |= {"gpu_uuid": gpu.uuid, "gpu_bus": gpu.bus}
        told["capture_start_true_ns"] = rank.capture_start_ns
        told["capture_end_true_ns"] = facts.pop("capture_end_true_ns")
        told |= {"utcEpochNs": rank.start_utc, "systemClockNs": rank.start_clock}
        told["cuda_graphs"] = self.options.graph_level(rank.rank)
        told["event_rows"] = sum(table["rows"] for table in tables.values())
        if self.options.mpi:
            told["mpi_calls"] = truth.sum_mpi_calls(report.export.path)
        return told | facts | {"tables": tables}


class Phase:
    """One program on the cluster, with the writers of its rows in each report."""

    def __init__(self, program: Program, job: _Simulation) -> None:
        self.program, self.job, options, reports = program, job, job.options, job.reports
        self.timeline = Timeline(program, job.cluster, options)
        self.cuda = [CudaRows(program, report) for report in reports]
        self.ranges = [nvtx.RangeRows(program, report) for report in reports]
        self.mpi = [
            MpiRows(program, report, options.mpi_teams) for report in reports if options.mpi
        ]
        self.traces = [nvtx.TraceRows(program, report) for report in reports if options.advanced]

    def write(self, block: Block, epochs: Ints, until: int, first_step: int | None = None) -> None:
        """Write runs that begin at ``epochs``; nothing later begins before ``until`` (true times,
        ns). The first is step ``first_step``, or no step at all.
        """
        for rank in range(len(self.cuda)):
            self.write_report(rank, block, epochs, first_step or 0)
        for calls in self.job.os_calls:
            calls.write_in_calls(self.program, block, epochs, first_step is not None)
        for sampler in self.job.samplers:
            sampler.watch(self.program, block, epochs, until)
        for record in (self.job.collectives, self.job.messages, self.job.causes):
            record.record(self.program, block, epochs, first_step)

    def write_report(self, rank: int, block: Block, epochs: Ints, first_step: int) -> None:
        """Write runs into the report of one rank."""
        self.cuda[rank].write(block, epochs)
        self.ranges[rank].write(block, epochs, first_step)
        if self.mpi:
            self.mpi[rank].write(block, epochs)
        if self.traces:
            self.traces[rank].write(block, epochs, first_step)


def _as_text(value: Any, indent: str = "") -> str:
    """Write JSON with every object and list that fits on one line on one line."""
    flat = json.dumps(value)
    if len(flat) <= 500 or not isinstance(value, dict | list) or not value:
        return flat
    inner = indent + " "
    if isinstance(value, dict):
        parts = [f"{json.dumps(name)}: {_as_text(part, inner)}" for name, part in value.items()]
        (begin, end) = "{}"
    else:
        parts, (begin, end) = [_as_text(part, inner) for part in value], "[]"
    return f"{begin}\n{inner}" + f",\n{inner}".join(parts) + f"\n{indent}{end}"
