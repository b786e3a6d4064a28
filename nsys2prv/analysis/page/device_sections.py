"""Sections on devices: where their time went, why they idle, their kernels, sampled metrics."""

from __future__ import annotations

import numpy as np
import polars as pl

from nsys2prv.analysis.page.parts import (
    MOST_RANKS,
    Block,
    HeatMap,
    Items,
    Material,
    Section,
    Spread,
    Stacked,
)

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


def make_devices_section(material: Material) -> Section:
    blocks: list[Block] = []
    blocks += _make_elapsed_by_device(material)
    blocks += _make_use_over_time(material)
    blocks += material.make_grid("efficiencies", "devices", MOST_RANKS, folded=True)
    blocks += material.make_grid("efficiencies", "hosts", MOST_RANKS, folded=True)
    return Section("devices", "Where the GPUs' time went", blocks)


def _make_elapsed_by_device(material: Material) -> list[Block]:
    devices = material.frame("efficiencies", "devices")
    if devices is None:
        return []
    elapsed = material.duration or 1
    overlap = material.frame("overlap", "devices")
    columns = ("device", "overlapped_ns", "nccl_exposed_ns")
    beside = (
        overlap.select(columns)
        if overlap is not None
        else pl.DataFrame(schema=dict.fromkeys(columns, pl.Int64)).cast({"device": pl.String})
    )
    rows = devices.join(beside, on="device", how="left", maintain_order="left").with_columns(
        pl.col(columns[1:]).fill_null(0)
    )
    nccl = rows["nccl_exposed_ns"].to_numpy()
    parts = {
        "computing": (COMPUTE, rows["compute_ns"].to_numpy() - rows["overlapped_ns"].to_numpy()),
        "computing and communicating": (OVERLAPPED, rows["overlapped_ns"].to_numpy()),
        "NCCL alone": (NCCL, nccl),
        "copies alone": (MEMORY, rows["exposed_ns"].to_numpy() - nccl),
    }
    idle = elapsed - rows["active_ns"].to_numpy()
    gaps = material.frame("idle", "gaps_of_devices")
    if gaps is not None:
        causes = devices.select("device").join(
            gaps.group_by("device").agg(pl.col(*IDLE).sum()),
            on="device",
            how="left",
            maintain_order="left",
        )
        parts |= {
            name: (colour, causes[column].fill_null(0).to_numpy())
            for column, (colour, name) in IDLE.items()
        }
    else:
        parts["idle"] = (IDLE["unknown_ns"][0], idle)
    shown = {
        name: (colour, values / elapsed)
        for name, (colour, values) in parts.items()
        if np.any(values)
    }
    return [
        Stacked(
            "Each device's elapsed time",
            rows["device"].to_list(),
            shown,
            "% of the elapsed time",
            "Copies are all memory operations; alone means while the device computes nothing.",
        )
    ]


def _make_use_over_time(material: Material) -> list[Block]:
    use = material.frame("metrics", "use")
    if use is None:
        return []
    maps: list[Block] = []
    for column, activity in (
        ("compute_share", "computing"),
        ("nccl_share", "in NCCL"),
        ("active_share", "doing any work"),
    ):
        if use[column].max():
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


def pivot_grid(
    frame: pl.DataFrame, column: str, row: str = "device", across: str = "bin"
) -> tuple[list[str], np.ndarray]:
    """Return labels of rows, and (rows, bins) of a column, NaN where there is none."""
    labels = frame[row].unique(maintain_order=True).to_list()
    number = (
        frame[row]
        .replace_strict(labels, list(range(len(labels))), return_dtype=pl.Int64)
        .to_numpy()
    )
    values = np.full((len(labels), int(frame[across].max()) + 1), np.nan)
    values[number, frame[across].to_numpy()] = frame[column].cast(pl.Float64).to_numpy()
    return labels, values


def make_idle_section(material: Material) -> Section:
    return Section(
        "idle",
        "Idle devices, launches, copies",
        [
            *_make_gaps(material),
            *material.make_grid("idle", "gaps"),
            *material.make_grid("idle", "long_gaps", folded=True),
            *material.make_grid("idle", "memory"),
            *material.make_grid("idle", "calls"),
            *material.make_grid("idle", "latencies", MOST_RANKS, folded=True),
            *material.make_grid("idle", "queued", MOST_RANKS, folded=True),
            *material.make_grid("idle", "rules"),
            *material.notes("idle"),
        ],
    )


def _make_gaps(material: Material) -> list[Block]:
    gaps = material.frame("idle", "gaps")
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


def make_kernels_section(material: Material) -> Section:
    return Section(
        "kernels",
        "Kernels",
        [
            *material.make_grid("kernels", "classes"),
            *material.make_grid("kernels", "tensor_cores"),
            *material.make_grid("kernels", "two_modes"),
            *_make_duration_spread(material),
            *material.make_grid("kernels", "kernels"),
            *material.make_grid("kernels", "tensor_cores_by_rank", MOST_RANKS, folded=True),
            *material.notes("kernels"),
        ],
    )


def _make_duration_spread(material: Material) -> list[Block]:
    durations, kernels = (
        material.frame("kernels", "durations"),
        material.frame("kernels", "kernels"),
    )
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
    two = material.frame("kernels", "two_modes")
    modes_of_kernel = (
        {}
        if two is None
        else {
            name: (low, high)
            for name, low, high in two.select("kernel", "low_ns", "high_ns").iter_rows()
        }
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


def make_maps_section(material: Material) -> Section:
    blocks: list[Block] = [*material.make_grid("metrics", "metrics")]
    maps = material.frame("metrics", "map")
    if maps is not None:
        blocks += _make_metric_maps(material, maps)
    blocks += material.make_grid("metrics", "means", folded=True)
    return Section(
        "metrics",
        "Utilisation over time: GPU metrics and network",
        [*blocks, *(one for one in material.notes("metrics") if blocks or one.kind == "missing")],
    )


def _make_metric_maps(material: Material, maps: pl.DataFrame) -> list[Block]:
    greatest = dict(maps.group_by("metric", maintain_order=True).agg(pl.col("mean").max()).rows())
    telling = [name for name, most in greatest.items() if most]
    order = [name for name in FIRST if name in telling] + sorted(
        name for name in telling if name not in FIRST
    )
    drawn: list[Block] = []
    parts = maps.with_columns(label=pl.format("{} {}", "node", "device")).partition_by(
        "metric", as_dict=True
    )
    end = material.duration / 1e9
    for name in order[:MOST_MAPS]:
        labels, values = pivot_grid(parts[(name,)], "mean", "label")
        percent = "%" in name
        drawn.append(
            HeatMap(
                name,
                labels,
                values,
                (0, end),
                "time (s)",
                "%" if percent else _find_unit(name),
                high=100 if percent else None,
                folded=name not in FIRST,
            )
        )
    silent = [name for name, most in greatest.items() if not most]
    notes = [f"0 all the time: {', '.join(silent)}"] if silent else []
    notes += (
        [f"not drawn, as there are more than {MOST_MAPS}: {', '.join(order[MOST_MAPS:])}"]
        if order[MOST_MAPS:]
        else []
    )
    return [*drawn, *([Items(notes)] if notes else [])]


def _find_unit(name: str) -> str:
    return name[name.rfind("[") + 1 : -1] if name.endswith("]") else "mean"
