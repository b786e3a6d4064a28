"""Read the events of an aligned job: make its :class:`EventReader`, and compute the critical path
and MPI waits as records.

Input: a job. Output: a reader of its events by device group, with its rows and GPUs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.columns import ABSENT, OPEN, group_rows, number_linked, take_rows
from nsys2prv._util.native import NEEDS_CORE, core
from nsys2prv._util.stored_columns import read_frame
from nsys2prv.conversion.clocks import group_comparable_reports
from nsys2prv.conversion.job import Job
from nsys2prv.events.captures import CAPTURES
from nsys2prv.events.catalogue import load_catalogue
from nsys2prv.events.extraction import (
    GPU,
    DeviceKey,
    StreamKey,
    ThreadKey,
    find_stream_device,
    identify_gpu,
)
from nsys2prv.events.kind import Rows
from nsys2prv.events.nccl import COMMUNICATORS, KERNELS
from nsys2prv.events.stacks import STACK_TEXTS, STACKS
from nsys2prv.match import write_result
from nsys2prv.match.groups import PLACES, find_named_mesh, list_by_dimension
from nsys2prv.match.meetings import list_mpi_waits
from nsys2prv.replay.job_graph import build_job_graph
from nsys2prv.replay.path import Cause, PathPieces, find_pieces, join_work
from nsys2prv.replay.whatif import Replay
from nsys2prv.table.event_reader import (
    HELPER,
    HOST,
    NO_DAMAGE,
    NO_UNIT,
    RANGES,
    SAMPLED,
    STREAM,
    CaptureFile,
    EventReader,
    RowTable,
    StackFile,
)
from nsys2prv.table.runs import TRACE, Run, SpillReader, SpillWriter
from nsys2prv.table.slices import to_begin_times, to_trace_times
from nsys2prv.table.task_result import TaskResult
from nsys2prv.writers.names import NameValues
from nsys2prv.writers.rows import BY_FILE_NAME, GPU_ROW_NAMES

#: A thread drives only one GPU if this share of its launches is on it; it initializes other GPUs, or copies
#: to them.
DRIVES = 0.9
#: Columns of NCCL facts about ranks.
_OF_RANKS = ("communicator", "ranks", "rank")


def make_event_reader(job: Job, whole: bool = False) -> EventReader:
    """Return a reader for the events of a prepared job, without operations whose times are damaged.
    whole: include these, as in the trace.
    """
    rows, ids = _split_by_gpu(job, make_row_table(job)), job.ids
    damaged = NO_DAMAGE
    if job.damaged and not whole:
        main = _find_main_rows(job)
        damaged = _list_damaged(job, main)
        ids = replace(ids, objects=replace(ids.objects, table=main[ids.objects.table]))
    captures = _list_captures(job)
    return EventReader(
        _split_by_unit(job, rows),
        ids,
        rows,
        tuple(
            StackFile(result.facts[STACKS], result.facts[STACK_TEXTS], result.report, place)
            for place, result in enumerate(job.ordered_results)
            if STACKS in result.facts
        ),
        job.edges,
        damaged,
        captures,
        _read_whole_ranges(job, rows) if captures and job.uncut else None,
    )


def _list_captures(job: Job) -> tuple[CaptureFile, ...]:
    """Return the captures of graph nodes."""
    results = [result for result in job.ordered_results if CAPTURES in result.facts]
    threads: dict[int, dict[int, int]] = {result.report: {} for result in results}
    for (report, key), thread in job.model.rows.items() if results else ():
        if isinstance(key, ThreadKey) and not key.lane and report in threads:
            threads[report][key.tid] = thread
    return tuple(
        CaptureFile(one.facts[CAPTURES], one.report, threads[one.report]) for one in results
    )


def _read_whole_ranges(job: Job, rows: RowTable) -> EventReader:
    """Return a reader of the NVTX ranges that the job had before it was cut, in the time of the cut
    job.
    """
    origin = job.epoch - job.uncut.epoch
    ids = replace(job.ids, clocks=[clock.delay(-origin) for clock in job.uncut.clocks])
    return EventReader([run for run in job.uncut.runs if run.shape.name in RANGES], ids, rows)


def _find_main_rows(job: Job) -> np.ndarray:
    """Return for each row of the trace the row to which its work belongs without damaged work: on
    streams with damaged work, nothing else overlaps.
    """
    main, streams = (
        np.arange(job.model.tree.threads),
        {(one.report, one.stream) for one in job.damaged},
    )
    for (report, key), thread in job.model.rows.items():
        if isinstance(key, StreamKey) and (report, key._replace(lane=0)) in streams:
            main[thread] = job.model.rows[report, key._replace(lane=0)]
    return main


def _list_damaged(job: Job, main: np.ndarray) -> pl.DataFrame:
    """Return place and time of damaged work in the trace. main: from :func:`_find_main_rows`."""
    rows = []
    for one in job.damaged:
        clock, sides = job.clocks[one.report], (np.array([one.begin]), np.array([one.end]))
        begin = int(to_begin_times(*sides, clock)[0])
        end = min(int(to_trace_times(sides[1], clock, OPEN)[0]), job.duration)
        if (one.report, one.stream) in job.model.rows:
            rows.append((int(main[job.model.rows[one.report, one.stream]]), begin, end))
    return pl.DataFrame(rows, schema=NO_DAMAGE.schema, orient="row")


def make_row_table(job: Job) -> RowTable:
    """Return a table of the trace's rows (threads, streams), each with its process, rank, node and
    GPU.
    """
    tree, model = job.model.tree, job.model
    count = tree.threads
    kinds, streams, reports = [SAMPLED] * count, [None] * count, [[] for _ in range(count)]
    for (report, key), thread in model.rows.items():
        reports[thread].append(report)
        if isinstance(key, ThreadKey):
            kinds[thread] = HELPER if thread in model.helper_rows else HOST
        elif isinstance(key, StreamKey):
            kinds[thread], streams[thread] = STREAM, key.stream
    tasks_of_model = zip(model.processes, model.labels, tree.tasks, strict=True)
    clocks = group_comparable_reports(job, surely=False)
    rows = [
        (
            *(number, process.rank, process.is_by_name, label, tree.nodes[task.node]),
            *(clocks[process.report], row.name, row.gpu),
        )
        for number, (process, label, task) in enumerate(tasks_of_model, 1)
        for row in task.threads
    ]
    tasks, ranks, by_name, labels, nodes, groups, names, numbers = (
        list(column) for column in zip(*rows, strict=True)
    )
    gpus = _identify_gpus(job)
    identities: dict[tuple, int] = {}
    # Threads with work first.
    for thread in sorted(gpus, key=lambda thread: (kinds[thread] != STREAM, thread)):
        identities.setdefault(gpus[thread], len(identities))
    devices = [identities[gpus[thread]] if thread in gpus else None for thread in range(count)]
    columns = (
        "thread",
        "row",
        "name",
        "gpu",
        "kind",
        "process",
        "rank",
        "by_name",
        "who",
        "node",
        "clocks",
        "device",
        "stream",
    )
    threads = pl.DataFrame(
        [
            *(range(count), tree.labels, names, numbers, kinds, tasks, ranks, by_name, labels),
            *(nodes, groups, devices, streams),
        ],
        schema=dict.fromkeys(columns, pl.Int64)
        | dict.fromkeys(("row", "name", "kind", "who", "node"), pl.String)
        | {"by_name": pl.Boolean},
    ).with_columns(
        task="process", is_gpu=pl.lit(False), process_rank="rank", nccl_rank=pl.lit(None, pl.Int64)
    )
    main_rows = np.arange(count)
    for (report, key), thread in model.rows.items():
        if isinstance(key, ThreadKey) and key.lane:
            main_rows[thread] = model.rows.get((report, key._replace(lane=0)), thread)
    return RowTable(
        threads, _number_devices(threads), _number_units(reports, tasks, devices, kinds), main_rows
    )


def _split_by_gpu(job: Job, rows: RowTable) -> RowTable:
    """Return the rows of a job with separate tasks for GPUs that are NCCL ranks.

    If a process runs NCCL kernels on several GPUs, each of these GPUs becomes a task, with the
    threads that launch work only on this GPU. The rest of the process is a task before these. If
    these threads launch nearly all work, the threads of the rest are helpers.
    """
    threads = rows.threads
    pairs = threads.filter(kind=STREAM).select("process", "device").unique()
    if (pairs["process"].value_counts()["count"].max() or 0) < 2:
        return rows
    reader = EventReader(job.runs, job.ids, rows)
    work = ("launch", "memory")
    launches = (
        reader.read_lines(work, names=("sender", "thread")).group_by("sender", "thread").len()
    )
    sender = pl.Series(rows.main_rows[launches["sender"].to_numpy()])
    streams = threads.select("process", "device", thread=pl.col("thread").cast(pl.Int64))
    launches = launches.with_columns(sender=sender).join(streams, on="thread")
    communicates = (
        reader.read_begins("nccl_kernel").select("thread").unique().join(streams, "thread")
    )
    members = communicates.select("process", "device").unique()
    members = members.filter(pl.len().over("process") > 1).with_columns(is_member=True)
    if not members.height:
        return rows
    count = pl.col("len").sum()
    by_device = launches.group_by("process", "sender", "device").agg(count=count)
    by_device = by_device.join(members, ["process", "device"])
    of_thread = pl.col("count").sum().over("process", "sender")
    alone = by_device.filter(pl.col("count") >= DRIVES * of_thread)
    shared = (
        by_device.join(alone, "sender", how="anti").group_by("process").agg(pl.col("count").sum())
    )
    whole = by_device.group_by("process").agg(whole=pl.col("count").sum())
    shared = whole.join(shared, "process").filter(pl.col("count") >= (1 - DRIVES) * pl.col("whole"))
    # Threads of MPI count, whatever they drive.
    of_mpi = [
        number
        for number, one in enumerate(job.model.processes, 1)
        if one.pid in job.infos[one.report].ranks
    ]
    driven = dict(alone.select("sender", "device").rows())
    return _make_tasks(job, rows, members, driven, {*shared["process"], *of_mpi})


def _make_tasks(
    job: Job,
    rows: RowTable,
    members: pl.DataFrame,
    driven: Mapping[int, int],
    with_hosts: Collection[int],
) -> RowTable:
    """Return the rows with the GPUs of members (`process`, `device`) as tasks. driven: thread ->
    the only device on which it launches work. with_hosts: processes whose other threads are not
    helpers.
    """
    threads = rows.threads
    main = pl.Series(rows.main_rows)
    of_threads = pl.Series([driven.get(row) for row in rows.main_rows.tolist()], dtype=pl.Int64)
    is_host = pl.col("kind") == HOST
    own = pl.when(is_host).then(of_threads).otherwise("device")
    threads = threads.with_columns(main=main, own=own).join(
        members.rename({"device": "own"}), ["process", "own"], how="left", maintain_order="left"
    )
    own = pl.when("is_member").then("own").otherwise(-1)
    key = pl.struct("process", own.alias("own"))
    ranks = pl.DataFrame(
        _find_nccl_ranks(job, rows, members),
        schema=dict.fromkeys(("process", "own", "nccl_rank"), pl.Int64),
        orient="row",
    )
    ranks = ranks if ranks.height == members.height else ranks.clear()
    threads = threads.with_columns(own=own, task=key.rank("dense").cast(pl.Int64))
    threads = threads.drop("nccl_rank").join(
        ranks, ["process", "own"], how="left", maintain_order="left"
    )
    is_gpu, split = pl.col("own") >= 0, members["process"].unique().to_list()
    numbers = dict(rows.devices.select("device", "gpu").rows())
    gpu = pl.format("GPU{}", pl.col("own").replace_strict(numbers, default=None))
    is_only = threads.filter(is_host)["process"].n_unique() == 1
    process = pl.col("who").str.strip_suffix(BY_FILE_NAME)
    who = gpu if is_only else pl.format("{} {}", process, gpu)
    # The main thread controls the others.
    is_main = pl.col("main") == pl.col("main").filter(is_host).min().over("process")
    is_left = is_host & ~is_gpu & ~is_main & pl.col("process").is_in([*{*split} - {*with_hosts}])
    threads = threads.with_columns(
        who=pl.when(is_gpu).then(who).otherwise("who"),
        rank=pl.when(is_gpu).then(None).otherwise("rank"),
        is_gpu=is_gpu,
        kind=pl.when(is_left).then(pl.lit(HELPER)).otherwise("kind"),
    )
    peopled = threads.filter(is_host).select("process", "task", is_gpu=is_gpu).unique()
    hosts = dict(peopled.filter(~pl.col("is_gpu")).select("process", "task").rows())
    lacking = threads.filter(is_gpu & ~pl.col("task").is_in(peopled["task"].implode()))
    tasks = lacking.select("task", "process").unique("task").rows()
    units = np.where((threads["kind"] == HELPER).to_numpy(), NO_UNIT, rows.units)
    threads = threads.drop("main", "own", "is_member")
    return RowTable(
        threads,
        _number_devices(threads),
        units,
        rows.main_rows,
        {task: hosts[process] for task, process in tasks if process in hosts},
    )


def _find_nccl_ranks(job: Job, rows: RowTable, members: pl.DataFrame) -> list[tuple[int, int, int]]:
    """Return (process, device, rank) of NCCL members in the largest communicator that gives each of
    them a different rank, from calls and kernels; empty if there is none.
    """
    frames = []
    for result in job.ordered_results:
        for name in (COMMUNICATORS, KERNELS):
            told = read_frame(result.facts[name]) if name in result.facts else pl.DataFrame()
            # Facts of captured calls do not concern devices.
            if "device" in told.columns:
                told = told.select("process", "device", *_OF_RANKS)
                told = told.filter(pl.col("rank") >= 0, pl.col("device") >= 0).unique()
                frames.append(told.with_columns(report=pl.lit(result.report, pl.Int64)))
    if not frames:
        return []
    device_of = rows.get_column("device")
    places = [
        (report, key.pid, key.device, int(device_of[thread]))
        for (report, key), thread in job.model.rows.items()
        if isinstance(key, StreamKey)
    ]
    number = ("report", "process", "device")
    devices = pl.DataFrame(places, (*number, "own"), orient="row").unique(number)
    told = pl.concat(frame.cast(pl.Int64) for frame in frames).join(devices, number)
    tasks = pl.DataFrame(
        [(*key, task + 1) for key, task in job.model.tasks.items()],
        ("report", "process", "task"),
        orient="row",
    )
    told = told.join(tasks, ["report", "process"]).select("own", *_OF_RANKS, process="task")
    told = told.unique().join(members.rename({"device": "own"}), ["process", "own"])
    for _, found in told.sort("ranks", "communicator", descending=True).group_by(
        "communicator", "ranks", maintain_order=True
    ):
        if found.height == members.height == found["rank"].n_unique():
            return found.select("process", "own", "rank").rows()
    return []


def _identify_gpus(job: Job) -> dict[int, tuple]:
    """Return thread -> key of its GPU in the trace, for streams and rows of GPUs."""
    infos, machines = job.infos, job.machines
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
    alone = pl.len().over("node", "gpu") == 1
    label = pl.format("{} GPU{}", "node", "gpu")
    label = pl.when(alone).then(label).otherwise(pl.format("{} of {}", label, "who"))
    return rows.select("device", "node", "gpu", label.alias("label"), "who", "task")


def _number_units(
    reports: list[list[int]], tasks: list[int], devices: list[int | None], kinds: list[str]
) -> np.ndarray:
    """Number the device groups: threads that are connected by a report, a task or a GPU. Threads of
    helpers are in none.
    """
    keys = []
    for thread, thread_reports in enumerate(reports):
        if kinds[thread] == HELPER:
            continue
        own = [("device", devices[thread])] if devices[thread] is not None else []
        if kinds[thread] != SAMPLED:
            own += [("task", tasks[thread]), *(("report", report) for report in thread_reports)]
        # One report may hold samples of all GPUs of its host, which are to be with the GPUs' work.
        own = own or [("report", thread_reports[0])]
        keys.append(own)
    units = np.full(len(reports), NO_UNIT)
    units[[kind != HELPER for kind in kinds]] = number_linked(keys)
    return units


def _split_by_unit(job: Job, rows: RowTable) -> list[Run]:
    """Return the job's runs for analyses. Ranges that span the whole job are split by device group."""
    result: list[Run] = []
    # A part of a job has the folder of the whole one.
    folder = Path(mkdtemp(prefix="units-", dir=job.folder))
    with SpillReader() as reader:
        for number, run in enumerate(job.runs):
            if run.report != TRACE or run.index is None:
                result.append(run)
                continue
            ranges, layout = reader.read_local(run), load_catalogue().layouts[run.shape.name]
            with SpillWriter(folder / f"{number}.bin", run.report, run.task) as writer:
                for _, of_unit in group_rows(
                    rows.units[job.ids.objects.get_table(run.task)[ranges["row"]]]
                ):
                    part = writer.append_ranges(layout, take_rows(ranges, of_unit))
                    # All are in one unit, so any of them identifies it.
                    result.append(replace(part, object=int(ranges["row"][of_unit][0])))
    return result


class Found(Struct):
    """Results that on-demand kinds compute from all events of a job: records, places of tasks in
    parallel groups, and names of values.
    """

    #: Runs in trace time.
    results: list[TaskResult]
    warnings: list[str]
    #: Task of the trace -> its place in the job's parallel groups.
    places: dict[int, str]
    #: Names, by their name set: `tasks` are the ranks of the trace.
    values: dict[str, NameValues]


def find_asked_for(job: Job, names: Collection[str]) -> Found:
    """Compute the records of on-demand kinds from all events of a job. names: of kinds in FINDERS."""
    reader = make_event_reader(job)
    found = Found([], [], {}, {})
    for number, name in enumerate(sorted(names), job.next_task):
        rows = FINDERS[name](job, reader, found)
        kept = [one for one in rows if len(one.begin)]
        found.results.append(write_result(name, number, job.folder, kept))
    labels = pl.DataFrame({"label": job.model.labels}).with_row_index("value", 1)
    every = np.arange(labels.height + 1)
    by_task = {one.task: every for one in found.results}
    found.values["tasks"] = NameValues(labels.cast({"value": pl.Int64}), by_task)
    return found


def _find_critical_path(job: Job, reader: EventReader, found: Found) -> list[Rows]:
    """Return the critical path of a job as records. found: gets a warning if there is none."""
    if core is None:
        found.warnings.append(f"the critical path {NEEDS_CORE}")
        return []
    labels = {name: values.labels for name, values in job.values.items()}
    pieces = find_pieces(Replay(build_job_graph(reader, labels), 0, job.duration))
    cause, kernel_class = _describe_work(reader, pieces)
    columns = {"cause": cause, "class": kernel_class}
    return [Rows("critical_path", pieces.begin, pieces.end, pieces.row, columns)]


def _find_mpi_waiting(_: Job, reader: EventReader, __: Found) -> list[Rows]:
    """Return the spans in which threads wait in MPI as records."""
    waits = list_mpi_waits(reader)
    thread, begin, end, kind, other = (waits[name].to_numpy() for name in waits.columns)
    columns = {"kind": kind, "time": end - begin, "task": reader.rows.get_column("process")[other]}
    return [Rows("mpi_waiting", begin, end, thread, columns)]


def _find_parallel_groups(job: Job, reader: EventReader, found: Found) -> list[Rows]:
    """Return the dimensions of NCCL kernels, in total and while they wait, and each rank's place in
    the dimensions, as records. found: gets the places of tasks, or a warning if no dimension is
    known.
    """
    mesh = find_named_mesh(reader, job.plan.options.mesh)
    if mesh is None or not mesh.dimensions:
        found.warnings.append(
            "parallel groups: no communicator of NCCL is known that divides the ranks"
        )
        return []
    rows = []
    for layout, kernels in zip(
        ("parallel_group", "parallel_wait"), list_by_dimension(reader, mesh), strict=True
    ):
        columns = [kernels[name].to_numpy() for name in ("begin", "end", "thread")]
        rows.append(Rows(layout, *columns, {"dimension": kernels["dimension"].to_numpy()}))
    hosts = reader.rows.threads.filter(kind=HOST).unique("task", keep="first", maintain_order=True)
    first = dict(hosts.select("task", "thread").rows())
    first |= {task: first[host] for task, host in reader.rows.hosts.items() if host in first}
    process_of = dict(reader.rows.threads.select("task", "process").unique().rows())
    count = Counter(process_of.values())
    found.places |= {
        process_of[task]: text
        for task, text in mesh.name_places().items()
        if count[process_of[task]] == 1
    }
    places = mesh.list_places()
    tasks = [task for task in places if task in first]
    if tasks:
        none = np.full(len(tasks), ABSENT)
        columns = {name: none.copy() for name in PLACES}
        for at, task in enumerate(tasks):
            for name, place in places[task].items():
                columns[name][at] = place + 1
        threads = np.array([first[task] for task in tasks])
        whole = np.zeros(len(tasks), np.int64)
        rows.append(Rows("parallel_place", whole, whole + job.duration, threads, columns))
    return rows


def _describe_work(reader: EventReader, pieces: PathPieces) -> tuple[np.ndarray, np.ndarray]:
    """Return the causes of pieces of the path, distinguishing CUDA graphs from kernels, and their
    kernel classes (ABSENT for other work).
    """
    on_path = pl.DataFrame({"thread": pieces.row, "end": pieces.end})
    on_path = on_path.with_row_index("piece").filter(
        pl.Series(np.isin(pieces.cause, (Cause.COMPUTATION, Cause.NCCL)))
    )
    cause, kernel_class = pieces.cause.copy(), np.full(len(pieces.begin), ABSENT)
    for layout in ("cuda_kernel", "nccl_kernel", "cuda_graph"):
        if layout not in reader.layouts:
            continue
        is_graph = layout == "cuda_graph"
        for unit in reader.rows.unit_numbers:
            work = reader.read_begins(layout, () if is_graph else ("class",), unit)
            if is_graph:
                work = work.with_columns(pl.lit(ABSENT).alias("class"))
            found = join_work(on_path, work).drop_nulls("class")
            piece = found["piece"].to_numpy()
            if is_graph:
                cause[piece] = Cause.GRAPH
            else:
                kernel_class[piece] = found["class"].to_numpy()
    return cause, kernel_class


#: Kind of events -> function that derives them from all others of a job on request.
FINDERS = {
    "critical_path": _find_critical_path,
    "mpi_waiting": _find_mpi_waiting,
    "parallel_groups": _find_parallel_groups,
}
