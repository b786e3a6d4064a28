"""Compute the efficiencies of POP and TALP (defined in analyses.yaml) from the times measured in
efficiency_times.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from nsys2prv._util.columns import COUNT
from nsys2prv._util.intervals import merge_spans
from nsys2prv._util.text import list_some
from nsys2prv.events.mpi import MPI_LAYOUTS
from nsys2prv.figures.device_group import ALL, WORK, Collected, DeviceGroup, Frames
from nsys2prv.figures.efficiency_times import (
    ITERATION,
    MPI_TIME,
    OPENMP_SYNC,
    OPENMP_WAITS,
    PART,
    REGION,
    STEADY,
    WHOLE_JOB,
    count_instructions,
    list_regions,
    measure_device,
    measure_hosts,
)
from nsys2prv.figures.result import DECLARED, KERNEL_NAMES, Context, Result, divide_columns
from nsys2prv.figures.stacks import STATES_OF_THREADS
from nsys2prv.figures.thresholds import (
    LEAST_REGION,
)
from nsys2prv.replay.graph import TRANSFERS, Kind
from nsys2prv.replay.path import IdealNetwork, replay_without_transfers
from nsys2prv.table.event_reader import HOST, STREAM

TERMS = DECLARED["efficiencies"].terms
#: Useful work of devices, and which host threads count -> the display name of them.
USEFUL: dict[str, str] = TERMS["useful"]
HOST_THREADS: dict[str, str] = TERMS["host_threads"]
NO_STEADY = ", which has no steady state"
#: Recorded activities that make rows of figures -> their layouts.
RECORDED = {
    "GPU work": WORK,
    "CUDA API calls": ("cuda_api",),
    "MPI": MPI_LAYOUTS,
    "OpenMP": ("openmp_parallel",),
}
#: MPI calls that are not counted, as they are in no report.
UNRECORDED_MPI = "Nsight Systems does not record {calls}. Their time counts as outside MPI"
#: Why OpenMP's waiting is taken from longer events than the waiting itself.
WHOLE_SYNCS = (
    "OpenMP: SYNC_REGION_WAIT was not recorded, so all time in SYNC_REGION (barriers and other "
    "synchronization) counts as waiting, but only until the parallel region ends"
)
#: Reason for missing OpenMP efficiencies if waiting threads cannot be identified.
NO_SYNCS = (
    "OpenMP efficiencies: waiting in barriers was not recorded (no report has the table "
    "OPENMP_EVENT_KIND_SYNC_REGION_WAIT or OPENMP_EVENT_KIND_SYNC_REGION)"
)


def collect(unit: DeviceGroup) -> Collected:
    """Yield the times of each device, and of each host thread that counts, in all parts of the job."""
    regions = list(list_regions(unit))
    for device in unit.known_devices:
        yield from (("devices", one) for one in measure_device(unit, device, regions))
        if unit.options.divided:
            yield from (("instructions", row) for row in count_instructions(unit, device))
    for task in unit.tasks:
        yield from (("hosts", rows) for rows in measure_hosts(unit, task, regions))


def conclude(frames: Frames, context: Context, result: Result) -> None:
    """Add tables of the efficiencies of devices and hosts to the result."""
    devices, hosts = frames["devices"], frames["hosts"]
    span = context.options.covered_steady.find_longest()
    if hosts.height:
        of_focus = hosts.filter(pl.col("part") == (STEADY if context.options.steady else WHOLE_JOB))
        span = of_focus["begin_ns"].min(), of_focus["end_ns"].max()
    needed = (KERNEL_NAMES,) if devices.height else tuple(WORK)
    rated: dict[str, pl.DataFrame] = {}
    if devices.height and KERNEL_NAMES in context.available:
        devices = context.label_devices(devices)
        rated["regions"] = _add_device_tables(devices, context, result, span)
        if frames["instructions"].height:
            sampled = frames["instructions"].select(
                devices=COUNT,
                instructions=pl.col("instructions").sum(),
                clock_hertz=pl.col("cycles").sum() / pl.col("sampled_ns").sum() * 1e9,
                useful_ns=pl.col("useful_ns").sum(),
            )
            result.add("instructions", sampled)
        result.notes.append(f"useful device time is {USEFUL[context.options.useful]}")
    elif devices.height or not context.reader.layouts & set(MPI_LAYOUTS):
        result.missing.append(f"device efficiencies: {context.explain_absence(needed)}")
    if hosts.height:
        hosts = hosts.filter(pl.col("takes_part") | ~pl.col("takes_part").any())
        rated["host_regions"] = _add_host_tables(hosts, context, result, span)
        result.notes.append(f"host threads: {HOST_THREADS[context.options.host_threads]}")
        if "openmp_whole_syncs" in hosts.columns and hosts["openmp_whole_syncs"].sum():
            result.notes.append(WHOLE_SYNCS)
    layouts = context.reader.layouts
    if "openmp_implicit_task" in layouts and layouts.isdisjoint((*OPENMP_WAITS, *OPENMP_SYNC)):
        result.missing.append(NO_SYNCS)
    if rated:
        _add_focus(_select_parts(next(iter(rated.values()))), span, context, result)
        _add_regions(rated, context, result)


def _add_focus(
    of_job: pl.DataFrame, span: tuple[int, int], context: Context, result: Result
) -> None:
    """Add a table that describes the focus of analysis."""
    options, steady, tasks = context.options, context.options.steady, context.tasks
    focus = {
        "what": steady.describe() if steady else "the whole job" + NO_STEADY * (not options.whole),
        "begin_ns": span[0],
        "end_ns": span[1],
        "elapsed_ns": of_job["elapsed_ns"][0],
        "iterations": steady.count if steady else 0,
        "iterations_of_job": steady.found if steady else 0,
        "found_by": steady.found_by if steady else "",
        "of_ranges": bool(steady and steady.of_ranges),
        "ranks": tasks["rank"].drop_nulls().n_unique() or _count_processes(context),
        "devices": context.devices.height,
        "nodes": tasks["node"].n_unique(),
        "useful": options.useful,
        "host_threads": options.host_threads,
        "recorded": ", ".join(
            name for name, layouts in RECORDED.items() if context.reader.layouts & {*layouts}
        ),
    }
    result.add("focus", pl.DataFrame([focus]))


def _count_processes(context: Context) -> int:
    """Return the number of processes that are not helpers."""
    rows = context.reader.rows.threads.filter(pl.col("kind").is_in([HOST, STREAM]))
    return rows["process"].n_unique()


def _replay_ideal_network(
    name: str, kinds: Sequence[Kind], span: tuple[int, int], context: Context, result: Result
) -> IdealNetwork | None:
    """Return the replay of a span of the job in which transfers of some kinds take no time. Return
    None if there are no such transfers, or if there is no replay; `result.missing` then explains
    this.
    """
    layouts = {"nccl_kernel"} if Kind.NCCL in kinds else {*MPI_LAYOUTS}
    is_alone = Kind.MPI in kinds and Kind.NCCL not in kinds and _count_processes(context) < 2
    if not context.reader.layouts & layouts or is_alone:
        return None
    found = replay_without_transfers(context.get_graph(), *span, kinds)
    if isinstance(found, IdealNetwork):
        return found
    result.missing.append(f"{name}: {found}")
    return None


def _find_serialisation(ideal: IdealNetwork, begin: int, context: Context) -> float:
    """Return the serialization efficiency of devices in a replay. begin: its start."""
    rows = ideal.rows
    device = context.reader.rows.get_column("device").astype(np.int32)[rows]
    device[rows < 0] = -1
    most = [0, 0]
    for one in np.unique(device[device >= 0]):
        begins, ends, computes = ideal.take(np.flatnonzero(device == one))
        begins = np.maximum(begins, begin)
        for number, kept in enumerate((computes, slice(None))):
            most[number] = max(most[number], merge_spans(begins[kept], ends[kept]).length)
    return most[0] / max(most[1], 1)


def _split_communication(rated: pl.DataFrame, prefix: str, serialisation: float) -> pl.DataFrame:
    """Return efficiencies with the factors of communication efficiency in the first row.
    Instantaneous transfers make no rank wait longer, so serialization is never worse than the
    measured communication efficiency.
    """
    communication = f"{prefix}communication_efficiency"
    first = pl.int_range(pl.len()) == 0
    waits = pl.when(first).then(pl.max_horizontal(pl.lit(serialisation), communication))
    added = {
        f"{prefix}serialisation_efficiency": waits,
        f"{prefix}transfer_efficiency": divide_columns(communication, waits),
    }
    place = rated.columns.index(communication) + 1
    ordered = [*rated.columns[:place], *added, *rated.columns[place:]]
    return rated.with_columns(**added).select(ordered)


def _add_device_tables(
    devices: pl.DataFrame, context: Context, result: Result, span: tuple[int, int]
) -> pl.DataFrame:
    rated = _rate_groups(devices, PART, "devices", "devices")
    of_job = _select_parts(rated)
    name = "device serialization and transfer efficiency"
    if ideal := _replay_ideal_network(name, TRANSFERS, span, context, result):
        of_job = _split_communication(of_job, "", _find_serialisation(ideal, span[0], context))
    result.add("device", of_job.drop("key"))
    focus = devices.filter(pl.col("part") == of_job["part"][0])
    if focus["node"].n_unique() > 1:
        by_node = _rate_groups(focus, ["node"], "devices", "devices")
        result.add("nodes", by_node.select(pl.exclude("^load_balance_.*_efficiency$")))
    # Active time without computing is exposed communication (kernels, memory operations).
    devices = devices.with_columns(exposed_ns=pl.col("active_ns") - pl.col("compute_ns"))
    names = ("useful", "compute", "nccl", "memory", "exposed", "active")
    shares, times = _list_shares(names)
    idle = (1 - shares[-1]).alias("idle_share")
    each = devices.select(*PART, "device", *shares, idle, *times)
    part = of_job["part"][0]
    result.add("devices", each.filter(pl.col("part") == part).drop(PART), span=f"the {part}")
    if context.options.divided:
        iterations = _select_iterations(rated)
        result.add("iterations", iterations)
        result.add("over_iterations", _summarize_iterations(iterations))
        result.add("iterations_of_devices", _select_iterations(each))
    return rated


def _add_host_tables(
    hosts: pl.DataFrame, context: Context, result: Result, span: tuple[int, int]
) -> pl.DataFrame:
    layouts, options = context.reader.layouts, context.options
    has_mpi, has_api = bool(layouts & set(MPI_LAYOUTS)), "cuda_api" in layouts
    kinds = ["mpi"] * has_mpi + ["api"] * has_api
    if "openmp_all" in hosts.columns:
        kinds += ["openmp"] if has_api or layouts & set(WORK) else ["hybrid", "openmp"]
    if "known_ns" not in hosts.columns:
        hosts = hosts.with_columns(running_ns=None, known_ns=None)
        result.missing.append(f"CPU efficiency: {context.explain_absence(STATES_OF_THREADS)}")
    kinds.append("cpu")
    rated = _rate_groups(context.label_tasks(hosts, "node"), PART, "hosts", *kinds)
    of_job = _select_parts(rated)
    name = "MPI serialization and transfer efficiency"
    if ideal := _replay_ideal_network(name, (Kind.MPI,), span, context, result):
        counted = hosts.filter(pl.col("part") == WHOLE_JOB)["thread"].unique()
        most = min(ideal.mpi.get(row, 0.0) for row in counted.to_list())
        of_job = _split_communication(of_job, "mpi_", 1 - most)
    is_of_mpi = has_mpi and not layouts & set(WORK)
    named = pl.col("part").replace(WHOLE_JOB, MPI_TIME) if is_of_mpi else pl.col("part")
    result.add("host", of_job.with_columns(named).drop("key"))
    result.add("host_iterations", _select_iterations(rated))
    shares, times = _list_shares(["outside_mpi"] * has_mpi + ["useful"] * has_api)
    focus = hosts.filter(pl.col("part") == of_job["part"][0]).with_columns(shares)
    focus = focus.sort("task", "thread").select("task", pl.col("^.*_share$"), *times)
    whose = "Main threads" if options.host_threads != ALL else "Threads"
    is_whole = is_of_mpi and not options.steady
    of_time = f"the time from {MPI_TIME}" if is_whole else f"the {of_job['part'][0]}"
    if times:
        result.add("hosts", context.label_tasks(focus), threads=whose, span=of_time)
    if unrecorded := options.unrecorded_mpi if has_mpi else ():
        result.notes.append(UNRECORDED_MPI.format(calls=list_some(unrecorded)))
    if not has_mpi:
        result.missing.append(f"MPI efficiencies: {context.explain_absence(MPI_LAYOUTS)}")
    if not has_api and layouts & set(WORK):
        result.missing.append(f"offload efficiency: {context.explain_absence(('cuda_api',))}")
    return rated


def _add_regions(rated: Frames, context: Context, result: Result) -> None:
    """Add tables of the efficiencies of devices and hosts in each region, side by side."""
    whole = context.options.covered_steady.length
    asked = context.options.regions
    names = context.folded.select(key="group", region="operation").unique("key")
    if asked != ALL:
        names = pl.DataFrame({"key": range(len(asked)), "region": [name for name, _ in asked]})
    kept = None
    for name, of_parts in rated.items():
        table = of_parts.filter(pl.col("part") == REGION)
        table = table.join(names.cast({"key": pl.Int64}), on="key", how="left")
        share = pl.col("elapsed_ns") / max(whole, 1)
        if asked == ALL:
            is_large = share >= LEAST_REGION if kept is None else pl.col("key").is_in(kept)
            table = table.filter(is_large).sort("elapsed_ns", descending=True)
            kept = table["key"].to_list()
        table = table.select("region", pl.exclude("region", *PART), share_of_elapsed=share)
        result.add(name, table)


def _select_parts(rated: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of the steady state first, then those of the whole job."""
    return rated.filter(pl.col("part").is_in([STEADY, WHOLE_JOB])).sort(pl.col("part") == WHOLE_JOB)


def _select_iterations(rated: pl.DataFrame) -> pl.DataFrame:
    of_iterations = rated.filter(pl.col("part") == ITERATION).sort("key", maintain_order=True)
    return of_iterations.select(pl.col("key").alias("iteration"), pl.exclude(PART))


def _list_shares(names: Sequence[str]) -> tuple[list[pl.Expr], list[str]]:
    """Return expressions for times as shares of the elapsed time (`NAME_share`), and the names of
    the time columns (`NAME_ns`).
    """
    shares = [divide_columns(f"{name}_ns", "elapsed_ns").alias(f"{name}_share") for name in names]
    return shares, [f"{name}_ns" for name in names]


def _summarize_iterations(iterations: pl.DataFrame) -> pl.DataFrame:
    """Return mean, standard deviation (of a sample) and extremes of each value, and the iterations
    with the extremes.
    """
    # Durations in ms, for a column of shares and durations has no unit of its own.
    figures = iterations.select(
        "iteration",
        (pl.col("elapsed_ns") / 1e6).alias("elapsed (ms)"),
        pl.col("^.*_efficiency$").name.map(lambda name: name.replace("_", " ")),
    ).unpivot(index="iteration", variable_name="figure")
    value, iteration = pl.col("value"), pl.col("iteration")
    return (
        figures.drop_nulls("value")
        .group_by("figure", maintain_order=True)
        .agg(
            mean=value.mean(),
            std_dev=value.std(),
            min=value.min(),
            min_in_iteration=iteration.get(value.arg_min()),
            max=value.max(),
            max_in_iteration=iteration.get(value.arg_max()),
        )
    )


def _rate_groups(rows: pl.DataFrame, by: Sequence[str], members: str, *kinds: str) -> pl.DataFrame:
    """Return the efficiencies of each group of rows: `devices` or `hosts` (members), each with its
    times in a part of the job. kinds: of the ratios.

    Terms of the ratios: the number of members, their `elapsed_ns`, their available time (`whole`),
    and their busy time (devices: useful; hosts: outside MPI) as `total`, `mean`, `greatest`, and
    the mean of the best node.
    """
    busy = "useful_ns" if members == "devices" else "outside_mpi_ns"
    nodes = rows.group_by({*by, "node"}).agg(mean=pl.col(busy).mean())
    best = nodes.group_by(by).agg(best_node=pl.col("mean").max())
    sums = rows.group_by(by, maintain_order=True).agg(
        COUNT.alias(members),
        pl.col("elapsed_ns").max(),
        pl.col("useful_ns", "^openmp_.*$", "^(running|known)_ns$").sum(),
        pl.col("^active_ns$").max(),
        total=pl.col(busy).sum(),
        greatest=pl.col(busy).max(),
    )
    sums = sums.join(best, on=by, how="left", maintain_order="left").with_columns(
        mean=pl.col("total") / pl.col(members), whole=pl.col(members) * pl.col("elapsed_ns")
    )
    if "openmp" in kinds:
        sums = sums.with_columns(
            openmp_whole=pl.col("openmp_all") * (pl.col("whole") / pl.col("total")),
            openmp_with_serial=pl.col("openmp_useful") + pl.col("openmp_serial"),
            openmp_without_syncs=pl.col("openmp_all") - pl.col("openmp_syncs"),
            openmp_without_waits=pl.col("openmp_all")
            - pl.col("openmp_syncs")
            - pl.col("openmp_locks"),
        )
    if "hybrid" in kinds:
        sums = sums.with_columns(useful_ns=pl.col("openmp_useful"))
    pairs = {name: pair for kind in kinds for name, pair in TERMS[kind].items()}
    ratios = (divide_columns(*pair).alias(name) for name, pair in pairs.items())
    return sums.select(*by, members, "elapsed_ns", "useful_ns", *ratios)
