"""Iterations: which are unlike the others, and whether they drift."""

from __future__ import annotations

import numpy as np
import polars as pl

from nsys2prv.analysis.page.drift import RULE, drift, outliers
from nsys2prv.analysis.page.parts import Block, HeatMap, Items, Lines, Material, Section
from nsys2prv.analysis.page.sections.devices import grid_of

CURVES = {
    "parallel": "parallel_efficiency",
    "load balance": "load_balance_efficiency",
    "communication": "communication_efficiency",
    "orchestration": "orchestration_efficiency",
}


def section(material: Material) -> Section:
    rows = material.frame("efficiencies", "iterations")
    if rows is None:
        told = [
            Items(
                [
                    'iterations: no NVTX range was named; give --iterations PATTERN, as in --iterations "step*"'
                ],
                "missing",
            )
        ]
        return Section(
            "iterations", "Iterations", told if "efficiencies" in material.results else []
        )
    elapsed = rows["elapsed_ns"].to_numpy()
    panels = {
        "elapsed (ms)": {"elapsed": elapsed / 1e6},
        "efficiency (%)": {
            name: 100 * rows[column].cast(float).fill_null(float("nan")).to_numpy()
            for name, column in CURVES.items()
        },
    }
    blocks: list[Block] = [
        Lines(
            "Elapsed time and efficiencies by iteration",
            rows["iteration"].to_numpy(),
            "iteration",
            panels,
            outliers(elapsed),
            RULE,
        )
    ]
    trend = drift(elapsed)
    if trend is not None:
        way = "longer" if trend > 0 else "shorter"
        blocks.append(
            Items(
                [
                    f"Iterations get {way}: by {abs(trend):.1%} of their median from the first to the last."
                ]
            )
        )
    devices = material.frame("efficiencies", "iterations_of_devices")
    if devices is not None and rows.height > 1:
        labels, values = grid_of(
            devices.with_columns(at=devices["iteration"] - 1), "useful_share", across="at"
        )
        blocks.append(
            HeatMap(
                "Useful share of each device in each iteration",
                labels,
                100 * values,
                (0.5, np.shape(values)[1] + 0.5),
                "iteration",
                "% of the iteration",
                True,
                high=100,
            )
        )
    return Section(
        "iterations",
        "Iterations",
        [
            *blocks,
            *_classes(material, rows.height),
            *material.grid("efficiencies", "over_iterations"),
            *material.grid("efficiencies", "iterations", folded=True),
            *material.grid("efficiencies", "host_iterations", folded=True),
        ],
    )


def _classes(material: Material, iterations: int) -> list[Block]:
    """Show which classes of kernels make iterations longer or shorter."""
    times = material.frame("kernels", "classes_by_iteration")
    if times is None or iterations < 2:
        return []
    order = (
        times.group_by("class", maintain_order=True)
        .agg(pl.col("time_ns").sum())
        .sort("time_ns", descending=True)["class"]
        .to_list()
    )
    at = (
        times["class"]
        .replace_strict(order, list(range(len(order))), return_dtype=pl.Int64)
        .to_numpy()
    )
    values = np.zeros((len(order), iterations))
    values[at, times["iteration"].to_numpy() - 1] = times["time_ns"].to_numpy()
    return [
        HeatMap(
            "Classes of kernels by iteration, most time first",
            order,
            100 * values / values.mean(axis=1, keepdims=True),
            (0.5, iterations + 0.5),
            "iteration",
            "time, % of the mean",
            True,
            low=None,
        )
    ]
