"""Whose rows are whose: each thread of the trace with its task, rank, node, device and stream."""

from __future__ import annotations

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv.conversion.device_states import find_device
from nsys2prv.conversion.job import Job
from nsys2prv.events.extraction import GPU, DeviceKey, StreamKey, ThreadKey
from nsys2prv.paraver.tree import OF_GPU, identify_gpu

HOST, STREAM, SAMPLED = "host", "stream", "samples"


class RowTable(Struct, frozen=True):
    """Rows of a job, its devices, and the units that analyses look at one at a time."""

    #: A row for each thread of the trace, in their order: `thread` (from 0), `row` (its name),
    #: `kind` (host, stream, samples), `task` (from 1, as Paraver numbers them), `rank` (null where
    #: unknown), `node`, `device` (index into devices, null for none), `stream`.
    threads: pl.DataFrame
    #: A row for each physical GPU: `device` (from 0), `node`, `gpu` (its number in row names),
    #: `label`, `task` (the first with work).
    devices: pl.DataFrame
    #: Threads are of one unit where they share a report or a GPU; of each thread, from 0.
    units: np.ndarray

    def column(self, name: str) -> np.ndarray:
        """Return a column of `threads`, -1 for null."""
        return self.threads[name].fill_null(-1).to_numpy()


def make_row_table(job: Job) -> RowTable:
    """Return the rows of a job."""
    tree, model = job.model.tree, job.model
    count = tree.threads
    kinds, streams, reports = [SAMPLED] * count, [None] * count, [[] for _ in range(count)]
    for (report, key), thread in model.rows.items():
        reports[thread].append(report)
        if isinstance(key, ThreadKey):
            kinds[thread] = HOST
        elif isinstance(key, StreamKey):
            kinds[thread], streams[thread] = STREAM, key.stream
    tasks = [number for number, task in enumerate(tree.tasks, 1) for _ in task.threads]
    nodes = [tree.nodes[task.node] for task in tree.tasks for _ in task.threads]
    ranks = [
        process.rank
        for process, task in zip(model.processes, tree.tasks, strict=True)
        for _ in task.threads
    ]
    names = [name for task in tree.tasks for name in task.threads]
    gpus = _identify_gpus(job)
    identities: dict[tuple, int] = {}
    # Those with work first.
    for thread in sorted(gpus, key=lambda thread: (kinds[thread] != STREAM, thread)):
        identities.setdefault(gpus[thread], len(identities))
    devices = [identities[gpus[thread]] if thread in gpus else None for thread in range(count)]
    threads = pl.DataFrame(
        [range(count), names, kinds, tasks, ranks, nodes, devices, streams],
        schema={
            "thread": pl.Int64,
            "row": pl.String,
            "kind": pl.String,
            "task": pl.Int64,
            "rank": pl.Int64,
            "node": pl.String,
            "device": pl.Int64,
            "stream": pl.Int64,
        },
    )
    return RowTable(
        threads, _number_devices(threads), _number_units(reports, tasks, devices, kinds)
    )


def _identify_gpus(job: Job) -> dict[int, tuple]:
    """Return thread -> what tells its GPU from all others of the trace, of streams and of rows of
    GPUs themselves.
    """
    infos, machines = job.infos, [placement.machine for placement in job.timeline.placements]
    identities = {}
    for (report, key), thread in job.model.rows.items():
        if isinstance(key, StreamKey):
            identities[thread] = identify_gpu(
                infos, machines, report, find_device(infos[report], key)
            )
        elif isinstance(key, DeviceKey) and key.kind in OF_GPU:
            identities[thread] = identify_gpu(infos, machines, report, key._replace(kind=GPU))
    return identities


def _number_devices(threads: pl.DataFrame) -> pl.DataFrame:
    rows = threads.filter(pl.col("device").is_not_null()).sort(pl.col("kind") != STREAM, "thread")
    rows = rows.unique("device", keep="first").sort("device")
    # Rows are named by the GPU's number on its machine.
    rows = rows.with_columns(
        gpu=pl.col("row").str.extract(r"(?:^CUDA-D| GPU)(-?\d+)").cast(pl.Int64)
    )
    alone = pl.len().over("node", "gpu") == 1
    label = pl.format("{} GPU{}", "node", "gpu")
    label = pl.when(alone).then(label).otherwise(pl.format("{} of task {}", label, "task"))
    return rows.select("device", "node", "gpu", label.alias("label"), "task")


def _number_units(
    reports: list[list[int]], tasks: list[int], devices: list[int | None], kinds: list[str]
) -> np.ndarray:
    """Return connected components of threads by report, task and GPU."""
    leader: dict[tuple, tuple] = {}

    def find(key: tuple) -> tuple:
        leader.setdefault(key, key)
        while leader[key] != key:
            leader[key] = leader[leader[key]]
            key = leader[key]
        return key

    keys = []
    for thread, thread_reports in enumerate(reports):
        own = [("device", devices[thread])] if devices[thread] is not None else []
        if kinds[thread] != SAMPLED:
            own += [("task", tasks[thread]), *(("report", report) for report in thread_reports)]
        # One report may hold samples of all GPUs of its host, which are to be with the GPUs' work.
        own = own or [("report", thread_reports[0])]
        for other in own[1:]:
            leader[find(other)] = find(own[0])
        keys.append(own[0])
    numbers: dict[tuple, int] = {}
    return np.array([numbers.setdefault(find(key), len(numbers)) for key in keys], np.int64)
