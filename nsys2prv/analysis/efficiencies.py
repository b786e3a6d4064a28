"""Efficiencies of devices and hosts, as POP and TALP define them.

Per device, of elapsed time T: useful U (kernels; the options say which), active A (all kernels,
graphs and memory operations); exposed is communication (NCCL kernels, memory operations) while
nothing computes. For D devices: parallel efficiency = sum U / (D T) = load balance (mean U / max U)
x communication efficiency (max U / max A, which may be of different devices) x orchestration
efficiency (max A / T). Hosts, by the main thread of each of H tasks: outside MPI O, useful (outside
MPI and the CUDA API) V: MPI parallel efficiency = sum O / (H T) = load balance (mean O / max O) x
communication efficiency (max O / T); offload efficiency = sum V / sum O; parallel efficiency = sum
V / (H T). Source: DLB's TALP and POP's BasicAnalysis.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from nsys2prv.analysis.intervals import unite_span_sets
from nsys2prv.analysis.result import Analysis, Context, Result, Table, divide_columns
from nsys2prv.analysis.unit import COMPUTE, GRAPH, MEMORY, MPI, NCCL, WORK, Unit

USEFUL = {
    "compute": "kernels other than NCCL's, and graphs; NCCL counts as communication (BSC)",
    "all-kernels": "all kernels, NCCL's among them, and graphs (TALP)",
}
WINDOW = ["region", "iteration"]
#: The region that is the steady state; NVTX ranges may have any name but one with a line feed
#: before it.
STEADY = "\nsteady state"


def collect(unit: Unit) -> dict[str, pl.DataFrame]:
    windows = _add_steady_state(unit)
    begin, end = windows["begin"].to_numpy(), windows["end"].to_numpy()
    devices, hosts = [], []
    for device in unit.devices:
        sets = {
            "useful": unit.useful(device),
            "compute": unit.find_device_spans(device, COMPUTE, GRAPH),
            "nccl": unit.find_device_spans(device, NCCL),
            "memory": unit.find_device_spans(device, MEMORY),
            "active": unit.active(device),
        }
        devices.append(
            windows.with_columns(
                device=pl.lit(device, pl.Int32),
                **{
                    f"{name}_ns": pl.Series(spans.within(begin, end), dtype=pl.Int64)
                    for name, spans in sets.items()
                },
            )
        )
    for task in unit.tasks:
        main = [unit.main_thread(task)]
        in_mpi = unit.find_mpi_spans(main)
        busy = unite_span_sets([in_mpi, unit.find_thread_spans("cuda_api", main)])
        length = end - begin
        hosts.append(
            windows.with_columns(
                task=pl.lit(task, pl.Int64),
                outside_mpi_ns=pl.Series(length - in_mpi.within(begin, end)),
                useful_ns=pl.Series(length - busy.within(begin, end)),
            )
        )
    return {
        "devices": pl.concat(devices) if devices else pl.DataFrame(),
        "hosts": pl.concat(hosts) if hosts else pl.DataFrame(),
    }


def _add_steady_state(unit: Unit) -> pl.DataFrame:
    """Return the windows that are asked for, and the steady state."""
    windows, steady = unit.options.windows, unit.options.steady
    return (
        windows
        if steady is None
        else pl.concat(
            [
                windows,
                pl.DataFrame(
                    [(STEADY, 0, steady.begin, steady.end)], schema=windows.schema, orient="row"
                ),
            ]
        )
    )


def conclude(frames: Mapping[str, pl.DataFrame], context: Context) -> Result:
    tables, missing = {}, []
    devices, hosts = frames["devices"], frames["hosts"]
    whole, steady = pl.col("region") == "", pl.col("region") == STEADY
    if devices.height:
        both = _compute_device_efficiencies(devices.filter(whole | steady), WINDOW, context)
        if both.height > 1:
            part = (
                pl.when(whole)
                .then(pl.lit("whole job"))
                .otherwise(pl.lit("steady state"))
                .alias("part")
            )
            tables["steady"] = Table(
                "Efficiency of devices: the whole job and its steady state",
                both.select(part, pl.exclude(*WINDOW, "devices")),
                "The steady state is that of the phases of `findings`.",
            )
        devices = devices.filter(~steady)
        per_device = _make_device_rows(devices, context)
        jobs = _compute_device_efficiencies(devices, WINDOW, context)
        nodes = context.name_devices(devices.filter(whole))
        tables["device"] = Table(
            "Efficiency of devices: the job", jobs.filter(whole).drop(WINDOW), __doc__ or ""
        )
        if nodes["node"].n_unique() > 1:
            tables["nodes"] = Table(
                "Efficiency of devices by node",
                _compute_device_efficiencies(nodes, ["node"], context),
            )
        tables["devices"] = Table(
            "Devices: shares of the elapsed time", per_device.filter(whole).drop(WINDOW)
        )
        if jobs.height > 1:
            iterations = jobs.filter(~whole).sort("iteration")
            tables["iterations"] = Table("Efficiency of devices by iteration", iterations)
            tables["over_iterations"] = Table(
                "Efficiency of devices: spread over iterations",
                _summarize_iterations(iterations),
            )
            tables["iterations_of_devices"] = Table(
                "Devices by iteration", per_device.filter(~whole)
            )
    else:
        missing.append(f"device efficiencies: {context.absent(tuple(WORK))}")
    if hosts.height:
        hosts = hosts.filter(~steady)
        has_mpi, has_api = (
            bool(context.reader.layouts & set(layouts)) for layouts in (MPI, ("cuda_api",))
        )
        figures = _compute_host_efficiencies(hosts, has_mpi, has_api)
        tables["host"] = Table("Efficiency of hosts: the job", figures.filter(whole).drop(WINDOW))
        if figures.height > 1:
            tables["host_iterations"] = Table(
                "Efficiency of hosts by iteration", figures.filter(~whole).sort("iteration")
            )
        length = pl.col("end") - pl.col("begin")
        ranks = hosts.filter(whole).with_columns(
            outside_mpi_share=divide_columns(pl.col("outside_mpi_ns"), length),
            useful_share=divide_columns(pl.col("useful_ns"), length),
        )
        tables["hosts"] = Table(
            "Main threads: shares of the elapsed time",
            context.name_tasks(
                ranks.select(
                    "task", "outside_mpi_share", "useful_share", "outside_mpi_ns", "useful_ns"
                ).sort("task")
            ),
        )
        if not has_mpi:
            missing.append(
                f"MPI efficiencies: {context.absent(MPI)}; all time counts as outside MPI"
            )
        if not has_api:
            missing.append(f"offload efficiency: {context.absent(('cuda_api',))}")
    notes = [f"useful on devices: {USEFUL[context.options.useful]}"]
    return Result("efficiencies", ANALYSIS.title, tables, notes, missing)


def _make_device_rows(devices: pl.DataFrame, context: Context) -> pl.DataFrame:
    length = pl.col("end") - pl.col("begin")
    # What is active and does not compute communicates (NCCL, memory operations) and is exposed.
    devices = devices.with_columns(exposed_ns=pl.col("active_ns") - pl.col("compute_ns"))
    shares = {
        f"{name}_share": divide_columns(pl.col(f"{name}_ns"), length)
        for name in ("useful", "compute", "nccl", "memory", "exposed", "active")
    }
    rows = devices.with_columns(**shares).with_columns(idle_share=1 - pl.col("active_share"))
    rows = context.name_devices(rows.sort("iteration", "device"))
    return rows.select(
        *WINDOW, "device", *shares, "idle_share", *(name.replace("share", "ns") for name in shares)
    )


def _summarize_iterations(iterations: pl.DataFrame) -> pl.DataFrame:
    """Return mean, deviation (of a sample) and extremes of each figure, and the iterations that
    have the extremes.
    """
    rows = []
    for name in (
        "elapsed_ns",
        *(column for column in iterations.columns if column.endswith("efficiency")),
    ):
        # Durations in ms, for a column of shares and durations has no unit of its own.
        figure = (iterations[name] / 1e6 if name == "elapsed_ns" else iterations[name]).drop_nulls()
        number = iterations.filter(pl.col(name).is_not_null())["iteration"]
        if len(figure):
            low, high = figure.arg_min(), figure.arg_max()
            title = "elapsed (ms)" if name == "elapsed_ns" else name.replace("_", " ")
            rows.append(
                (
                    title,
                    figure.mean(),
                    figure.std(),
                    figure[low],
                    number[low],
                    figure[high],
                    number[high],
                )
            )
    return pl.DataFrame(
        rows,
        schema={
            "figure": pl.String,
            "mean": pl.Float64,
            "std_dev": pl.Float64,
            "min": pl.Float64,
            "min_in_iteration": pl.Int64,
            "max": pl.Float64,
            "max_in_iteration": pl.Int64,
        },
        orient="row",
    )


def _compute_device_efficiencies(
    devices: pl.DataFrame, by: list[str], context: Context
) -> pl.DataFrame:
    """Return the efficiencies of each group of rows, one row of a device and window each."""
    figures = devices.group_by(by, maintain_order=True).agg(
        devices=pl.len(),
        elapsed_ns=(pl.col("end") - pl.col("begin")).first(),
        useful=pl.col("useful_ns").sum(),
        greatest=pl.col("useful_ns").max(),
        active=pl.col("active_ns").max(),
    )
    whole = pl.col("devices") * pl.col("elapsed_ns")
    return figures.select(
        *by,
        "devices",
        "elapsed_ns",
        pl.col("useful").alias("useful_ns"),
        divide_columns(pl.col("useful"), whole).alias("parallel_efficiency"),
        divide_columns(pl.col("useful") / pl.col("devices"), pl.col("greatest")).alias(
            "load_balance_efficiency"
        ),
        divide_columns("greatest", "active").alias("communication_efficiency"),
        divide_columns("active", "elapsed_ns").alias("orchestration_efficiency"),
    )


def _compute_host_efficiencies(hosts: pl.DataFrame, has_mpi: bool, has_api: bool) -> pl.DataFrame:
    figures = hosts.group_by(WINDOW, maintain_order=True).agg(
        tasks=pl.len(),
        elapsed_ns=(pl.col("end") - pl.col("begin")).first(),
        outside=pl.col("outside_mpi_ns").sum(),
        greatest=pl.col("outside_mpi_ns").max(),
        useful=pl.col("useful_ns").sum(),
    )
    whole = pl.col("tasks") * pl.col("elapsed_ns")
    mpi = (
        [
            divide_columns(pl.col("outside"), whole).alias("mpi_parallel_efficiency"),
            divide_columns(pl.col("outside") / pl.col("tasks"), pl.col("greatest")).alias(
                "mpi_load_balance_efficiency"
            ),
            divide_columns("greatest", "elapsed_ns").alias("mpi_communication_efficiency"),
        ]
        if has_mpi
        else []
    )
    api = [
        divide_columns("useful", "outside").alias("offload_efficiency"),
        divide_columns(pl.col("useful"), whole).alias("host_parallel_efficiency"),
    ]
    return figures.select(*WINDOW, "tasks", "elapsed_ns", *mpi, *(api if has_api else []))


def compute_scalability(useful: list[float], devices: list[int], strong: bool) -> np.ndarray:
    """Return computation scalability of runs relative to the first: useful time there / here; of
    weak scaling times the ratio of devices.
    """
    time = np.array(useful, float)
    grown = 1.0 if strong else np.array(devices, float) / devices[0]
    return time[0] * grown / time


ANALYSIS = Analysis(
    "efficiencies",
    "Efficiencies (POP, TALP)",
    (
        "parallel efficiency of the devices = load balance x communication x orchestration "
        "efficiency: of the job, the steady state, each node, each iteration; shares of the time "
        "of each device; MPI and offload efficiencies of the hosts"
    ),
    (),
    collect,
    conclude,
)
