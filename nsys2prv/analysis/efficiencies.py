"""Efficiencies as POP and TALP define them: parallel efficiency of the devices = load balance x
communication x orchestration efficiency, of the job, the steady state, each node, each iteration;
shares of the time of each device; MPI and offload efficiencies of the hosts.

Elapsed time is that which the reports of all processes cover. Per device, of elapsed time T: useful
U (kernels; the options say which), active A (all kernels, graphs and memory operations); exposed is
communication (kernels of NCCL and others of the class Communication, all of them called nccl here;
memory operations) while nothing computes. For D devices: parallel efficiency = sum U / (D T) = load
balance (mean U / max U) x communication efficiency (max U / max A, which may be of different
devices) x orchestration efficiency (max A / T). Hosts, by the main thread of each of H tasks:
outside MPI O, useful (outside MPI and the CUDA API) V: MPI parallel efficiency = sum O / (H T) =
load balance (mean O / max O) x communication efficiency (max O / T), without work on GPUs of the
time between MPI_Init and MPI_Finalize (T: of the rank where that is longest); offload efficiency =
sum V / sum O; parallel efficiency = sum V / (H T). Source: DLB's TALP and POP's BasicAnalysis.

A replay of the job on an ideal network, in which transfers of NCCL and MPI take no time, tells
waiting for each other from moving data: of devices, communication x orchestration efficiency = max
U / T = serialisation efficiency (max U / T_ideal) x transfer efficiency (T_ideal / T). Of hosts,
where transfers of MPI alone take no time, MPI communication efficiency = serialisation efficiency
(max O_ideal / T_ideal) x transfer efficiency (the rest, as BasicAnalysis has it; without work on
GPUs it is T_ideal / T).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv.analysis.device_group import BUSY, WORK, DeviceGroup, find_mpi_span, to_arrays
from nsys2prv.analysis.intervals import unite
from nsys2prv.analysis.result import KERNEL_NAMES, Analysis, Context, Result, divide_columns
from nsys2prv.events.mpi import MPI_LAYOUTS
from nsys2prv.replay.graph import TRANSFERS, Kind
from nsys2prv.replay.ideal_network import IdealNetwork, replay_without_transfers

USEFUL = {
    "compute": "kernels that do not communicate, and graphs; communication is NCCL and kernels of the class Communication",
    "bsc": "kernels other than NCCL's, and graphs (BSC)",
    "all-kernels": "all kernels, those that communicate among them, and graphs (TALP)",
}
#: Tell a window of time from the others: the whole job, its steady state, or an iteration.
WINDOW = ["range", "iteration"]
#: The name of the steady state in `range`; NVTX ranges may have any name but one with a line feed
#: before it.
STEADY = "\nsteady state"


def collect(unit: DeviceGroup) -> Iterator[tuple[str, pl.DataFrame]]:
    """Collect the times of each device and of the main thread of each task: of the whole
    job, its iterations and its steady state.
    """
    windows = _add_steady_state(unit)
    elapsed = unit.covered.within(*to_arrays(windows, "begin", "end"))
    windows = windows.with_columns(elapsed_ns=pl.Series(elapsed)).filter(pl.col("elapsed_ns") > 0)
    begin, end, elapsed = to_arrays(windows, "begin", "end", "elapsed_ns")
    for device in unit.known_devices:
        sets = {f"{name}_ns": unit.find_device_spans(device, *what) for name, what in BUSY.items()}
        sets["useful_ns"] = unit.find_useful_spans(device)
        times = {name: pl.Series(spans.within(begin, end)) for name, spans in sets.items()}
        yield "devices", windows.with_columns(device=pl.lit(device, pl.Int32), **times)
    for task in unit.tasks:
        main = [unit.find_main_thread(task)]
        span = None if unit.has(*WORK) else find_mpi_span(unit, main[0])
        begin, end = np.clip(to_arrays(windows, "begin", "end"), *(span or (0, unit.duration)))
        elapsed = unit.covered.within(begin, end)
        in_mpi = unit.find_mpi_spans(main)
        busy = unite(in_mpi, unit.find_thread_spans("cuda_api", main))
        rows = windows.with_columns(
            begin=pl.Series(begin),
            end=pl.Series(end),
            task=pl.lit(task, pl.Int64),
            main=pl.lit(main[0], pl.Int64),
            elapsed_ns=pl.Series(elapsed),
            outside_mpi_ns=pl.Series(elapsed - in_mpi.within(begin, end)),
            useful_ns=pl.Series(elapsed - busy.within(begin, end)),
        )
        yield "hosts", rows


def _add_steady_state(unit: DeviceGroup) -> pl.DataFrame:
    """Return the whole job, the iterations that are asked for, and the steady state."""
    windows, steady = unit.options.iterations, unit.options.steady
    if steady is None:
        return windows
    row = (STEADY, 0, steady.begin, steady.end)
    return pl.concat([windows, pl.DataFrame([row], schema=windows.schema, orient="row")])


WHOLE_JOB, IN_STEADY = pl.col("range") == "", pl.col("range") == STEADY
ASKED_FOR = ~WHOLE_JOB & ~IN_STEADY
#: Efficiencies as ratios of the columns of `_sum_groups`: of devices, and of hosts.
DEVICE_RATIOS = {
    "parallel_efficiency": ("total", "whole"),
    "load_balance_efficiency": ("mean", "greatest"),
    "communication_efficiency": ("greatest", "active"),
    "orchestration_efficiency": ("active", "elapsed_ns"),
}
MPI_RATIOS = {
    "mpi_parallel_efficiency": ("total", "whole"),
    "mpi_load_balance_efficiency": ("mean", "greatest"),
    "mpi_communication_efficiency": ("greatest", "elapsed_ns"),
}
API_RATIOS = {
    "offload_efficiency": ("useful", "total"),
    "host_parallel_efficiency": ("useful", "whole"),
}


def conclude(frames: Mapping[str, pl.DataFrame], context: Context, result: Result) -> None:
    """Add efficiencies of devices and of hosts."""
    ideal = _IdealNetworks(context, result)
    needed = (KERNEL_NAMES,) if frames["devices"].height else tuple(WORK)
    if frames["devices"].height and KERNEL_NAMES in context.available:
        _add_device_tables(frames["devices"], context, result, ideal)
        result.notes.append(f"useful on devices: {USEFUL[context.options.useful]}")
    elif frames["devices"].height or not context.reader.layouts & set(MPI_LAYOUTS):
        result.missing.append(f"device efficiencies: {context.explain_absence(needed)}")
    if frames["hosts"].height:
        _add_host_tables(frames["hosts"], context, result, ideal)


class _IdealNetworks(Struct, frozen=True):
    """The replays of the job on an ideal network."""

    #: What is known of the job.
    context: Context
    #: Takes the reasons why there are no figures.
    result: Result

    def _replay(self, name: str, begin: int, end: int, *kinds: Kind) -> IdealNetwork | None:
        layouts = {"nccl_kernel", *MPI_LAYOUTS} if Kind.NCCL in kinds else {*MPI_LAYOUTS}
        if not self.context.reader.layouts & layouts:
            return None
        found: IdealNetwork | str = "the compiled core is missing"
        if (graph := self.context.get_graph()) is not None:
            found = replay_without_transfers(graph, begin, end, kinds)
        if isinstance(found, IdealNetwork):
            return found
        # Of the steady state it is the same.
        if (line := f"{name}: {found}") not in self.result.missing:
            self.result.missing.append(line)
        return None

    def add_to_devices(self, figures: pl.DataFrame, devices: pl.DataFrame) -> pl.DataFrame:
        """Return the efficiencies with those of an ideal network. devices: rows of these windows."""
        spans = devices.unique(WINDOW, keep="first", maintain_order=True).select("begin", "end")
        name = "serialisation and transfer efficiency of devices"
        ideal = [self._replay(name, *span, *TRANSFERS) for span in spans.rows()]
        if not all(ideal):
            return figures
        transfer = pl.Series([one.share for one in ideal])
        both = pl.col("communication_efficiency") * pl.col("orchestration_efficiency")
        return figures.with_columns(
            serialisation_efficiency=both / transfer, transfer_efficiency=transfer
        )

    def add_to_hosts(self, figures: pl.DataFrame, hosts: pl.DataFrame) -> pl.DataFrame:
        """Return the efficiencies of the whole job with those of an ideal network."""
        span = hosts["begin"].min(), hosts["end"].max()
        ideal = self._replay("MPI serialisation and transfer efficiency", *span, Kind.MPI)
        if ideal is None:
            return figures
        serialisation = 1 - min(ideal.mpi.get(row, 0.0) for row in hosts["main"].to_list())
        communication = pl.col("mpi_communication_efficiency")
        # Transfers that take no time make no rank wait longer: what the replay is off by is no gain.
        serialisation = pl.max_horizontal(pl.lit(serialisation), communication)
        added = {
            "mpi_serialisation_efficiency": serialisation,
            "mpi_transfer_efficiency": communication / serialisation,
        }
        names = figures.columns
        place = names.index("mpi_communication_efficiency") + 1
        ordered = [*names[:place], *added, *names[place:]]
        return figures.with_columns(**added).select(ordered)


def _add_device_tables(
    devices: pl.DataFrame, context: Context, result: Result, ideal: _IdealNetworks
) -> None:
    both = devices.filter(WHOLE_JOB | IN_STEADY)
    both = ideal.add_to_devices(_compute_device_efficiencies(both, WINDOW), both)
    if both.height > 1:
        part = pl.when(WHOLE_JOB).then(pl.lit("whole job")).otherwise(pl.lit("steady state"))
        result.add(
            "steady",
            "Efficiency of devices: the whole job and its steady state",
            both.select(part.alias("part"), pl.exclude(*WINDOW, "devices")),
            "The steady state is that of the phases of `findings`.",
        )
    whole = both.filter(WHOLE_JOB).drop(WINDOW)
    result.add("device", "Efficiency of devices: the job", whole, __doc__)
    nodes = context.label_devices(devices.filter(WHOLE_JOB))
    if nodes["node"].n_unique() > 1:
        by_node = _compute_device_efficiencies(nodes, ["node"])
        result.add("nodes", "Efficiency of devices by node", by_node)
    each = _make_device_rows(devices, context)
    shares = each.filter(WHOLE_JOB).drop(WINDOW)
    result.add("devices", "Devices: shares of the elapsed time", shares)
    asked = devices.filter(ASKED_FOR)
    iterations = _compute_device_efficiencies(asked, WINDOW).sort("iteration")
    result.add("iterations", "Efficiency of devices by iteration", iterations)
    spread = _summarize_iterations(iterations)
    result.add("over_iterations", "Efficiency of devices: spread over iterations", spread)
    result.add("iterations_of_devices", "Devices by iteration", each.filter(ASKED_FOR))


def _add_host_tables(
    hosts: pl.DataFrame, context: Context, result: Result, ideal: _IdealNetworks
) -> None:
    layouts = context.reader.layouts
    has_mpi, has_api = bool(layouts & set(MPI_LAYOUTS)), "cuda_api" in layouts
    ratios = (MPI_RATIOS if has_mpi else {}) | (API_RATIOS if has_api else {})
    whole_job = hosts.filter(WHOLE_JOB)
    whole = ideal.add_to_hosts(_compute_host_efficiencies(whole_job, ratios), whole_job)
    result.add("host", "Efficiency of hosts: the job", whole.drop(WINDOW))
    iterations = _compute_host_efficiencies(hosts.filter(ASKED_FOR), ratios).sort("iteration")
    result.add("host_iterations", "Efficiency of hosts by iteration", iterations)
    names = ("outside_mpi", "useful") if has_api else ("outside_mpi",)
    ranks = _add_shares(whole_job, names).sort("task")
    columns = (f"{name}_{unit}" for unit in ("share", "ns") for name in names)
    ranks = context.label_tasks(ranks.select("task", *columns))
    result.add("hosts", "Main threads: shares of the elapsed time", ranks)
    if not has_mpi:
        absent = context.explain_absence(MPI_LAYOUTS)
        result.missing.append(f"MPI efficiencies: {absent}; all time counts as outside MPI")
    if not has_api and context.reader.layouts & set(WORK):
        result.missing.append(f"offload efficiency: {context.explain_absence(('cuda_api',))}")


def _make_device_rows(devices: pl.DataFrame, context: Context) -> pl.DataFrame:
    """Return how each device spends the job and each iteration."""
    # What is active and does not compute communicates (kernels, memory operations) and is exposed.
    devices = devices.with_columns(exposed_ns=pl.col("active_ns") - pl.col("compute_ns"))
    names = ("useful", "compute", "nccl", "memory", "exposed", "active")
    rows = _add_shares(devices, names).with_columns(idle_share=1 - pl.col("active_share"))
    rows = context.label_devices(rows.sort("iteration", "device"))
    shares, times = ([f"{name}_{unit}" for name in names] for unit in ("share", "ns"))
    return rows.select(*WINDOW, "device", *shares, "idle_share", *times)


def _add_shares(rows: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """Return times (`NAME_ns`) also as shares of the elapsed time (`NAME_share`)."""
    elapsed = "elapsed_ns"
    return rows.with_columns(
        divide_columns(f"{name}_ns", elapsed).alias(f"{name}_share") for name in names
    )


def _summarize_iterations(iterations: pl.DataFrame) -> pl.DataFrame:
    """Return mean, deviation (of a sample) and extremes of each figure, and the iterations that
    have the extremes.
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


def _compute_device_efficiencies(devices: pl.DataFrame, by: list[str]) -> pl.DataFrame:
    """Return the efficiencies of each group of rows, one row of a device and window each."""
    sums = _sum_groups(devices, by, "devices", "useful_ns", active=pl.col("active_ns").max())
    shown = [*by, "devices", "elapsed_ns", pl.col("total").alias("useful_ns")]
    return sums.select(*shown, *_make_ratios(DEVICE_RATIOS))


def _compute_host_efficiencies(
    hosts: pl.DataFrame, ratios: Mapping[str, tuple[str, str]]
) -> pl.DataFrame:
    """Return the efficiencies of each window, of rows of a task and window each."""
    sums = _sum_groups(hosts, WINDOW, "tasks", "outside_mpi_ns", useful=pl.col("useful_ns").sum())
    return sums.select(*WINDOW, "tasks", "elapsed_ns", *_make_ratios(ratios))


def _sum_groups(
    rows: pl.DataFrame, by: list[str], members: str, busy: str, **more: pl.Expr
) -> pl.DataFrame:
    """Return of each group of rows what ratios are of: how many rows there are (`members`),
    elapsed_ns, what they have of `busy` (total, mean, greatest), and could have (whole).
    """
    sums = rows.group_by(by, maintain_order=True).agg(
        pl.len().alias(members),
        pl.col("elapsed_ns").max(),
        total=pl.col(busy).sum(),
        greatest=pl.col(busy).max(),
        **more,
    )
    return sums.with_columns(
        mean=pl.col("total") / pl.col(members), whole=pl.col(members) * pl.col("elapsed_ns")
    )


def _make_ratios(ratios: Mapping[str, tuple[str, str]]) -> Iterator[pl.Expr]:
    return (divide_columns(*pair).alias(name) for name, pair in ratios.items())


ANALYSIS = Analysis(
    "efficiencies", "Efficiencies (POP, TALP)", (), collect, conclude, is_of_covered=True
)
