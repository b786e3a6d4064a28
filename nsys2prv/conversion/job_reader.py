"""The reader of a prepared job's events: its rows, devices and units, and its runs by unit."""

from __future__ import annotations

import numpy as np
import polars as pl

from nsys2prv.conversion.job import Job
from nsys2prv.events.extraction import (
    GPU,
    DeviceKey,
    StreamKey,
    ThreadKey,
    find_stream_device,
    identify_gpu,
)
from nsys2prv.events.stacks import STACK_TEXTS, STACKS
from nsys2prv.store.event_reader import HOST, SAMPLED, STREAM, EventReader, RowTable, StackFile
from nsys2prv.store.runs import BEGIN, END, TRACE, Run, SpillReader, SpillWriter
from nsys2prv.writers.rows import GPU_ROW_NAMES


def make_event_reader(job: Job) -> EventReader:
    """Return the reader of a prepared job."""
    rows = make_row_table(job)
    return EventReader(
        _split_by_unit(job, rows),
        job.clocks,
        job.threads,
        job.domains,
        job.names,
        rows,
        job.duration,
        tuple(
            StackFile(result.facts[STACKS], result.facts[STACK_TEXTS], result.report, work)
            for work, result in enumerate(job.ordered_results)
            if STACKS in result.facts
        ),
    )


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
    tasks_of_model = zip(model.processes, model.labels, tree.tasks, strict=True)
    rows = [
        (number, process.rank, label, tree.nodes[task.node], name)
        for number, (process, label, task) in enumerate(tasks_of_model, 1)
        for name in task.threads
    ]
    tasks, ranks, labels, nodes, names = (list(column) for column in zip(*rows, strict=True))
    gpus = _identify_gpus(job)
    identities: dict[tuple, int] = {}
    # Those with work first.
    for thread in sorted(gpus, key=lambda thread: (kinds[thread] != STREAM, thread)):
        identities.setdefault(gpus[thread], len(identities))
    devices = [identities[gpus[thread]] if thread in gpus else None for thread in range(count)]
    columns = ("thread", "row", "kind", "task", "rank", "who", "node", "device", "stream")
    threads = pl.DataFrame(
        [range(count), names, kinds, tasks, ranks, labels, nodes, devices, streams],
        schema=dict.fromkeys(columns, pl.Int64)
        | dict.fromkeys(("row", "kind", "who", "node"), pl.String),
    )
    main_rows = np.arange(count)
    for (report, key), thread in model.rows.items():
        if isinstance(key, ThreadKey) and key.lane:
            main_rows[thread] = model.rows.get((report, key._replace(lane=0)), thread)
    return RowTable(
        threads, _number_devices(threads), _number_units(reports, tasks, devices, kinds), main_rows
    )


def _identify_gpus(job: Job) -> dict[int, tuple]:
    """Return thread -> identity of its GPU in the trace, for streams and rows of GPUs."""
    infos, machines = job.infos, [placement.machine for placement in job.timeline.placements]
    identities = {}
    for (report, key), thread in job.model.rows.items():
        if isinstance(key, StreamKey):
            identities[thread] = identify_gpu(
                infos, machines, report, find_stream_device(infos[report], key)
            )
        elif isinstance(key, DeviceKey) and key.kind in GPU_ROW_NAMES:
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
    label = pl.when(alone).then(label).otherwise(pl.format("{} of {}", label, "who"))
    return rows.select("device", "node", "gpu", label.alias("label"), "who", "task")


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


def _split_by_unit(job: Job, rows: RowTable) -> list[Run]:
    """Return the job's runs; those that hold events of the whole job as runs of one unit each, and
    without ends, which no analysis asks for.
    """
    reader, result = SpillReader(), []
    for number, run in enumerate(job.runs):
        if run.report != TRACE or run.shape.stream != BEGIN:
            result += [] if run.shape.stream == END else [run]
            continue
        records = reader.read_between(run, run.first_time, None)
        units = rows.units[job.threads[run.task][records["object"]]]
        writer = SpillWriter(job.folder / f"units-{number}.bin", run.report, run.task)
        order = np.argsort(units, kind="stable")
        for part in np.split(order, np.flatnonzero(np.diff(units[order])) + 1):
            result.append(
                writer.append(
                    run.shape, records[part], run.greatest_time, int(records["object"][part[0]])
                )
            )
        writer.close()
    reader.close()
    return result
