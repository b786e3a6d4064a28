"""Figures with a row for each device, rank or kernel: where the time of devices went, why they
idle, durations of kernels, sampled metrics, stragglers, the critical path.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from nsys2prv.analysis.page.parts import Block, HeatMap, Items, Material, Spread, Stacked

#: Colour-blind safe.
COMPUTE, OVERLAPPED, NCCL, MEMORY = "#0072B2", "#56B4E9", "#D55E00", "#E69F00"
#: What hosts do while devices are idle: colours, names.
IDLE = {
    "mpi_ns": ("#CC79A7", "idle: host in MPI"),
    "nccl_ns": ("#8C564B", "idle: host in NCCL"),
    "io_ns": ("#009E73", "idle: host in I/O"),
    "synchronisation_ns": ("#F0E442", "idle: host waits for it"),
    "launch_ns": ("#7F7FBF", "idle: host in CUDA calls"),
    "unknown_ns": ("#999999", "idle: cause unknown"),
}


def divide_elapsed_time(material: Material) -> list[Block]:
    """Divide the time of each device."""
    devices, overlap = material.frame("efficiencies.devices"), material.frame("overlap.devices")
    if devices is None:
        return []
    elapsed = material.duration or 1
    overlapped = nccl = np.zeros(devices.height, np.int64)
    if overlap is not None:
        own = devices.select("device").join(overlap, on="device", how="left", maintain_order="left")
        overlapped, nccl = (
            own[name].fill_null(0).to_numpy() for name in ("overlapped_ns", "nccl_exposed_ns")
        )
    parts = {
        "computing": (COMPUTE, devices["compute_ns"].to_numpy() - overlapped),
        "computing and communicating": (OVERLAPPED, overlapped),
        "NCCL alone": (NCCL, nccl),
        "copies alone": (MEMORY, devices["exposed_ns"].to_numpy() - nccl),
    }
    gaps = material.frame("idle.gaps_of_devices")
    if gaps is not None:
        sums = gaps.group_by("device").agg(pl.col(*IDLE).sum())
        causes = devices.select("device").join(sums, on="device", how="left", maintain_order="left")
        parts |= {
            name: (colour, causes[column].fill_null(0).to_numpy())
            for column, (colour, name) in IDLE.items()
        }
    else:
        parts["idle"] = (IDLE["unknown_ns"][0], elapsed - devices["active_ns"].to_numpy())
    return [
        Stacked(
            "Each device's elapsed time",
            devices["device"].to_list(),
            {
                name: (colour, values / elapsed)
                for name, (colour, values) in parts.items()
                if np.any(values)
            },
            "% of the elapsed time",
            "Copies are all memory operations; alone means while the device computes nothing.",
        )
    ]


def map_use(material: Material) -> list[Block]:
    """Show how devices are used over time."""
    use = material.frame("metrics.use")
    maps: list[Block] = []
    for column, activity in (
        ("compute_share", "computing"),
        ("nccl_share", "in NCCL"),
        ("active_share", "doing any work"),
    ):
        if use is not None and use[column].max():
            labels, values = pivot_grid(use, column)
            maps.append(
                HeatMap(
                    f"Devices {activity} over time",
                    labels,
                    100 * values,
                    (0, material.duration / 1e9),
                    "time (s)",
                    "% of a bin",
                    high=100,
                    folded=column == "active_share",
                )
            )
    return maps


def number_labels(labels: pl.Series, order: list[str]) -> np.ndarray:
    """Return the place of each label in an order that has all of them."""
    return labels.replace_strict(order, range(len(order)), return_dtype=pl.Int64).to_numpy()


def pivot_grid(
    frame: pl.DataFrame, column: str, row: str = "device", across: str = "bin"
) -> tuple[list[str], np.ndarray]:
    """Return labels of rows, and (rows, bins) of a column, NaN where there is none."""
    labels = frame[row].unique(maintain_order=True).to_list()
    values = np.full((len(labels), int(frame[across].max()) + 1), np.nan)
    at = number_labels(frame[row], labels), frame[across].to_numpy()
    values[at] = frame[column].cast(pl.Float64).to_numpy()
    return labels, values


def divide_gaps(material: Material) -> list[Block]:
    """Divide idle time by the length of gaps."""
    gaps = material.frame("idle.gaps")
    if gaps is None or not gaps["time_ns"].sum():
        return []
    # Of what all devices could have done.
    whole = gaps["elapsed_share"].to_numpy() / np.maximum(gaps["time_ns"].to_numpy(), 1)
    parts = {
        name.removeprefix("idle: "): (colour, gaps[column].to_numpy() * whole)
        for column, (colour, name) in IDLE.items()
        if gaps[column].sum()
    }
    return [
        Stacked(
            "Idle time by gap length, and what the host did",
            gaps["length"].to_list(),
            parts,
            "% of the elapsed time of all devices",
        )
    ]


def spread_kernel_durations(material: Material) -> list[Block]:
    """Show how long the executions of kernels take."""
    durations, kernels = material.frame("kernels.durations"), material.frame("kernels.kernels")
    if durations is None or kernels is None:
        return []
    rows = durations["row"].unique().sort().to_list()
    bins = durations.group_by("row").len()["len"].max()
    edges, counts = np.zeros((len(rows), bins + 1)), np.zeros((len(rows), bins))
    for at, row in enumerate(rows):
        own_rows = durations.filter(pl.col("row") == row)
        # A single duration is a bin of some width, to be seen.
        low, high = max(own_rows["low_ns"][0], 1), max(own_rows["high_ns"][-1], 1)
        alone = own_rows.height == 1
        edges[at] = (
            np.linspace(low / 1.01, high * 1.01, bins + 1)
            if alone
            else np.append(own_rows["low_ns"], high)
        )
        counts[at] = 1 if alone else own_rows["count"]
    two = material.frame("kernels.two_modes")
    modes_of_kernel = (
        {}
        if two is None
        else {row["kernel"]: (row["low_ns"], row["high_ns"]) for row in two.rows(named=True)}
    )
    shown = kernels[rows]
    labels = shown["kernel"].to_list()
    return [
        Spread(
            "Durations of the kernels that take the most time",
            labels,
            edges,
            counts,
            shown["median_ns"].cast(pl.Float64).to_numpy(),
            [modes_of_kernel.get(label) for label in labels],
        )
    ]


#: Shown open, in this order; others are folded away.
FIRST = (
    "SMs Active [Throughput %]",
    "Tensor Active [Throughput %]",
    "DRAM Read Bandwidth [Throughput %]",
    "DRAM Write Bandwidth [Throughput %]",
    "IB: Bytes sent [bytes/ms]",
    "IB: Bytes received [bytes/ms]",
)
#: Maps on a page.
MOST_MAPS = 48


def map_metrics(material: Material) -> list[Block]:
    """Show sampled metrics over time, and name those that are not shown."""
    maps = material.frame("metrics.map")
    if maps is None:
        return []
    greatest = dict(maps.group_by("metric", maintain_order=True).agg(pl.col("mean").max()).rows())
    silent = [name for name, most in greatest.items() if not most]
    telling = sorted(set(greatest) - set(silent))
    order = [name for name in FIRST if name in telling]
    order += [name for name in telling if name not in FIRST]
    maps = maps.with_columns(label=pl.format("{} {}", "node", "device"))
    parts = maps.partition_by("metric", as_dict=True)
    drawn: list[Block] = []
    for name in order[:MOST_MAPS]:
        labels, values = pivot_grid(parts[(name,)], "mean", "label")
        percent = "%" in name
        drawn.append(
            HeatMap(
                name,
                labels,
                values,
                (0, material.duration / 1e9),
                "time (s)",
                "%" if percent else _find_unit(name),
                high=100 if percent else None,
                folded=name not in FIRST,
            )
        )
    notes = [f"0 all the time: {', '.join(silent)}"] if silent else []
    if left := order[MOST_MAPS:]:
        notes.append(f"not drawn, as there are more than {MOST_MAPS}: {', '.join(left)}")
    return [*drawn, *([Items(notes)] if notes else [])]


def _find_unit(name: str) -> str:
    return name[name.rfind("[") + 1 : -1] if name.endswith("]") else "mean"


#: Ranks in figures of ranks.
MOST_SHOWN = 30
#: What the host threads of late ranks did, each on its own (they may be at the same time): colours
#: and names.
HOSTS = {
    "host_mpi_ns": ("#CC79A7", "host in MPI"),
    "host_nccl_ns": ("#8C564B", "host in NCCL"),
    "host_io_ns": ("#009E73", "host in I/O"),
    "host_synchronisation_ns": ("#F0E442", "host waits for the device"),
    "host_launch_ns": ("#7F7FBF", "host in CUDA calls"),
}
#: What the critical path does on a rank: colours and names.
ON_PATH = {
    "kernels_ns": ("#0072B2", "kernels"),
    "nccl_ns": ("#D55E00", "NCCL, after the last rank came"),
    "memory_ns": ("#009E73", "memory operations"),
    "other_ns": ("#999999", "no device works: launches, calls, hosts"),
}


def compare_stragglers(material: Material) -> list[Block]:
    """Show for which ranks the others wait."""
    ranking = material.frame("collectives.stragglers")
    if ranking is None or not ranking["others_waited_ns"].sum():
        return []
    first = ranking.head(MOST_SHOWN)
    share = first["others_waited_ns"].to_numpy() / ranking["others_waited_ns"].sum()
    return [
        Stacked(
            "Which rank the others wait for",
            first["rank"].to_list(),
            {"time that others waited for this rank": ("#D55E00", share)},
            "% of all waits in matched collectives",
            _say_how_many(ranking),
        )
    ]


def _say_how_many(ranks: pl.DataFrame) -> str:
    """Return a note for a figure that does not show all ranks."""
    if ranks.height <= MOST_SHOWN:
        return ""
    return f"The first {MOST_SHOWN} of {ranks.height:,} ranks."


def compare_late_hosts(material: Material) -> list[Block]:
    """Show what late ranks did while the others waited."""
    doing = material.frame("collectives.meanwhile")
    if doing is None:
        return []
    doing = doing.filter(doing["total_late_ns"] > 0).head(MOST_SHOWN)
    if not doing.height:
        return []
    late = doing["total_late_ns"].to_numpy()
    parts = {
        name: (colour, doing[column].to_numpy() / late)
        for column, (colour, name) in HOSTS.items()
        if doing[column].sum()
    }
    rest = np.clip(1 - sum((values for _, values in parts.values()), np.zeros(len(late))), 0, 1)
    parts["host elsewhere"] = ("#999999", rest)
    return [
        Stacked(
            "What the host threads of late ranks did while the others waited",
            doing["rank"].to_list(),
            parts,
            "% of the time that the rank was late",
            "The table below says what their GPUs did, which may do several things at a time.",
            folded=doing.height < 2,
        )
    ]


def compare_path_of_ranks(material: Material) -> list[Block]:
    """Show on which ranks the critical path is."""
    ranks = material.frame("critical_path.ranks")
    if ranks is None:
        return []
    whole, first = ranks["time_ns"].sum(), ranks.head(MOST_SHOWN)
    return [
        Stacked(
            "On which ranks the critical path is",
            first["rank"].to_list(),
            {
                name: (colour, first[column].to_numpy() / whole)
                for column, (colour, name) in ON_PATH.items()
            },
            "% of the path",
            _say_how_many(ranks),
            folded=ranks.height < 2,
        )
    ]
