"""Runs the job and writes the reports of some of its ranks, block of steps by block of steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from . import background, graphs, metadata, nvtx, target
from .background import Background
from .cluster import Cluster, Ints, Rank, build_cluster
from .job import Job, collectives, graph_level
from .nvtx import RangeRows
from .options import Options
from .program import Program
from .rows import ProgramRows, Report
from .timeline import Block, Timeline
from .write import Export, Tally

FIRST_EPOCH_NS = 600_000_000
"""True time at which processes begin; every capture runs by then."""

AFTER_INIT_NS = 5_000_000
CLOSING_NS = 60_000_000
_OPERATIONS_PER_BLOCK = 40_000
_INIT_SPREAD_NS = 30_000_000


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
            job.step().rows(graph_level(trial, 0)) + background.ROWS_PER_STEP,
        )
        steps = round((wanted - fixed) / each)
        if steps >= 1 or layers == 1:
            return replace(trial, steps=max(1, steps))
        layers = max(1, layers // 2)


def report_name(rank: int) -> str:
    return f"rank{rank}.sqlite"


class _Phase:
    """One program on the cluster, with what writes its rows into each report."""

    def __init__(self, program: Program, cluster: Cluster, reports: Sequence[Report], seed: int) -> None:
        self.program = program
        self.timeline = Timeline(program, cluster, seed)
        self.writers = [(ProgramRows(program, report), RangeRows(program, report)) for report in reports]

    def write(self, block: Block, epochs: Ints, first_run: int = 0) -> None:
        for rows, ranges in self.writers:
            rows.write(block, epochs)
            ranges.write(block, epochs, first_run)


@dataclass
class Written:
    """What the writer of some ranks knows: per rank its truth, and the collectives (the same from every writer)."""

    ranks: list[dict[str, Any]]
    collectives: list[dict[str, Any]]
    collectives_total: int
    collectives_every: int


def write_ranks(options: Options, folder: Path, wanted: Sequence[int]) -> Written:
    """Simulate the whole job and write the reports of the ranks ``wanted`` into ``folder``."""
    cluster = build_cluster(options)
    job = Job(options, cluster)
    reports = [
        Report(cluster.ranks[rank], cluster, options, Export(folder / report_name(rank)), Tally()) for rank in wanted
    ]
    beside = [Background(report) for report in reports]
    count = options.ranks

    initial = _Phase(job.initial(), cluster, reports, options.seed)
    rng = np.random.default_rng([options.seed, 2])
    epoch = np.array([FIRST_EPOCH_NS])
    for report in reports:
        nvtx.write_definitions(report, int(report.rank.local(epoch)[0]) - 200_000)
    block = initial.timeline.run(rng, rng.uniform(0, _INIT_SPREAD_NS, (1, count)))
    initial.write(block, epoch)
    for report in reports:
        graphs.write_creation(initial.program, block, epoch, report)
    now = int(epoch[0] + block.ends().max()) + AFTER_INIT_NS
    for rows in beside:
        rows.begin(int(rows.report.rank.local(np.array([now - AFTER_INIT_NS // 2]))[0]))

    step = _Phase(job.step(), cluster, reports, options.seed)
    recorder = _Recorder(step.program, cluster, options)
    size = max(1, _OPERATIONS_PER_BLOCK // len(step.program.ops))
    for first in range(0, options.steps, size):
        runs = min(size, options.steps - first)
        begin = np.minimum(rng.exponential(options.skew_us * 1e3, (runs, count)), options.skew_us * 8e3)
        block = step.timeline.run(rng, begin)
        ends = block.ends()
        lengths = np.ceil(ends.max(axis=1)).astype(np.int64) + background.STEP_GAP_NS
        epochs = now + np.concatenate([[0], np.cumsum(lengths)[:-1]])
        now += int(lengths.sum())
        step.write(block, epochs, first)
        for rows in beside:
            rank = rows.report.rank
            edges = [rank.local(epochs + np.rint(edge[:, rank.rank]).astype(np.int64)) for edge in (begin, ends)]
            rows.write(edges[0], edges[1], rank.local(epochs), first)
        recorder.record(block, epochs, first)

    final = _Phase(job.final(), cluster, reports, options.seed)
    block = final.timeline.run(rng, rng.uniform(0, 1e6, (1, count)))
    final.write(block, np.array([now]))
    now += int(block.ends().max()) + CLOSING_NS
    for report, rows in zip(reports, beside, strict=True):
        duration = int(report.rank.local(np.array([now]))[0])
        rows.finish(int(report.rank.local(epoch)[0]) + 1_000_000)
        target.write_target(report, duration)
        metadata.write_metadata(report, duration)
        report.export.close()
    return Written([_rank_truth(report, now) for report in reports], recorder.found, recorder.total, recorder.every)


class _Recorder:
    """Keeps true begin and end of the collectives of every n-th step, so that they stay below a limit."""

    def __init__(self, program: Program, cluster: Cluster, options: Options) -> None:
        self.calls: list[tuple[int, dict[str, Any]]] = []  # operation, what is the same in every step
        self.per_step: dict[int, int] = {}  # calls on each communicator
        for index in collectives(program):
            op = program.ops[index]
            assert op.payload is not None
            for comm in cluster.communicators:
                if comm.group is not op.payload.group:
                    continue
                ordinal = self.per_step.get(comm.hash, 0)
                self.per_step[comm.hash] = ordinal + 1
                streams = [cluster.ranks[rank].stream(op.stream) for rank in comm.ranks]
                call = {"function": op.payload.function, "communicator": comm.hash, "ordinal": ordinal}
                self.calls.append((index, {**call, "bytes": op.bytes, "ranks": list(comm.ranks), "streams": streams}))
        self.total = len(self.calls) * options.steps
        self.every = max(1, -(-self.total // max(1, options.truth_collectives)))
        self.found: list[dict[str, Any]] = []

    def record(self, block: Block, epochs: Ints, first: int) -> None:
        for run in range(len(epochs)):
            step = first + run
            if step % self.every:
                continue
            for index, call in self.calls:
                begin, end = (
                    (epochs[run] + np.rint(times[run, call["ranks"], index]).astype(np.int64)).tolist()
                    for times in (block.gpu_begin, block.gpu_end)
                )
                ordinal = step * self.per_step[call["communicator"]] + call["ordinal"]
                self.found.append({"step": step, **call, "ordinal": ordinal, "begin": begin, "end": end})


def _rank_truth(report: Report, stop: int) -> dict[str, Any]:
    rank: Rank = report.rank
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
        "capture_end_true_ns": stop,
        "utcEpochNs": rank.start_utc,
        "systemClockNs": rank.start_clock,
        "cuda_graphs": "graph"
        if graph_level(report.options, rank.rank)
        else ("none" if report.options.graphs == "none" else "node"),
        "event_rows": sum(table["rows"] for table in tables.values()),
        "tables": tables,
    }
