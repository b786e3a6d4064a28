"""Kernels, their classes, tensor cores, and how durations are distributed."""

from __future__ import annotations

import numpy as np
import polars as pl

from nsys2prv.analysis.page.parts import MOST_RANKS, Block, Material, Section, Spread


def section(material: Material) -> Section:
    return Section(
        "kernels",
        "Kernels",
        [
            *material.grid("kernels", "classes"),
            *material.grid("kernels", "tensor_cores"),
            *material.grid("kernels", "two_modes"),
            *_spread(material),
            *material.grid("kernels", "kernels"),
            *material.grid("kernels", "tensor_cores_by_rank", MOST_RANKS, folded=True),
            *material.notes("kernels"),
        ],
    )


def _spread(material: Material) -> list[Block]:
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
        mine = durations.filter(pl.col("row") == row)
        # A single duration is a bin of some width, to be seen.
        low, high = max(mine["low_ns"][0], 1), max(mine["high_ns"][-1], 1)
        alone = mine.height == 1
        edges[at] = (
            np.linspace(low / 1.01, high * 1.01, bins + 1)
            if alone
            else np.append(mine["low_ns"], high)
        )
        counts[at] = 1 if alone else mine["count"]
    two = material.frame("kernels", "two_modes")
    known = (
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
            "How the durations of the kernels of greatest time are distributed",
            labels,
            edges,
            counts,
            shown["median_ns"].cast(pl.Float64).to_numpy(),
            [known.get(label) for label in labels],
        )
    ]
