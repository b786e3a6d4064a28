"""Where the time of the devices went."""

from __future__ import annotations

import numpy as np
import polars as pl

from nsys2prv.analysis.page.parts import MOST_RANKS, Block, HeatMap, Material, Section, Stacked

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


def section(material: Material) -> Section:
    blocks: list[Block] = []
    blocks += _parts(material)
    blocks += _use(material)
    blocks += material.grid("efficiencies", "devices", MOST_RANKS, folded=True)
    blocks += material.grid("efficiencies", "hosts", MOST_RANKS, folded=True)
    return Section("devices", "Where the GPUs' time went", blocks)


def _parts(material: Material) -> list[Block]:
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


def _use(material: Material) -> list[Block]:
    use = material.frame("metrics", "use")
    if use is None:
        return []
    maps: list[Block] = []
    for column, what in (
        ("compute_share", "computing"),
        ("nccl_share", "in NCCL"),
        ("active_share", "doing anything"),
    ):
        if use[column].max():
            labels, values = grid_of(use, column)
            maps.append(
                HeatMap(
                    f"Devices {what} over time",
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


def grid_of(
    frame: pl.DataFrame, column: str, row: str = "device", across: str = "bin"
) -> tuple[list[str], np.ndarray]:
    """Labels of rows, and (rows, bins) of a column, NaN where there is none."""
    labels = frame[row].unique(maintain_order=True).to_list()
    number = (
        frame[row]
        .replace_strict(labels, list(range(len(labels))), return_dtype=pl.Int64)
        .to_numpy()
    )
    values = np.full((len(labels), int(frame[across].max()) + 1), np.nan)
    values[number, frame[across].to_numpy()] = frame[column].cast(pl.Float64).to_numpy()
    return labels, values
