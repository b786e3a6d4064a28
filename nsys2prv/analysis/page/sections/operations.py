"""NVTX ranges, within each other, and how ranks differ in them."""

from __future__ import annotations

import numpy as np
import polars as pl

from nsys2prv.analysis.page.drift import nested
from nsys2prv.analysis.page.parts import MOST_ROWS, Block, HeatMap, Material, Section, Tree

#: Operations in the picture of ranks.
MOST = 40


def section(material: Material) -> Section:
    return Section(
        "operations",
        "Operations (NVTX ranges)",
        [
            *_tree(material),
            *material.grid("operations", "operations", folded=True),
            *_by_rank(material),
            *material.notes("operations"),
        ],
    )


def _tree(material: Material) -> list[Block]:
    tree = material.frame("operations", "tree")
    if tree is None:
        return []
    frame, depths = nested(tree, MOST_ROWS)
    left = tree.height - frame.height
    note = f"{left:,} paths of least time are left out." if left else ""
    return [Tree("Operations within each other", frame, depths, "operations.tree", note)]


def _by_rank(material: Material) -> list[Block]:
    """Show where ranks differ: an operation's time on each rank relative to the mean over ranks."""
    by_rank, whole = (
        material.frame("operations", "by_rank"),
        material.frame("operations", "operations"),
    )
    if by_rank is None or whole is None or by_rank["rank"].n_unique() < 2:
        return []
    column = "gpu_ns" if whole["gpu_ns"].sum() else "host_ns"
    names = (
        whole.sort(column, descending=True, maintain_order=True)
        .filter(pl.col(column) > 0)
        .head(MOST)["operation"]
        .to_list()
    )
    if not names:
        return []
    ranks = by_rank["rank"].unique(maintain_order=True).to_list()
    ranks.sort(key=lambda name: (name.split(" ")[0], int(name.split(" ")[-1])))
    chosen = by_rank.filter(pl.col("operation").is_in(names))
    at = [
        chosen[name]
        .replace_strict(known, list(range(len(known))), return_dtype=pl.Int64)
        .to_numpy()
        for name, known in (("operation", names), ("rank", ranks))
    ]
    values = np.zeros((len(names), len(ranks)))
    values[at[0], at[1]] = chosen[column].to_numpy()
    what = "GPU" if column == "gpu_ns" else "host"
    return [
        HeatMap(
            "How ranks differ in operations",
            names,
            100 * values / values.mean(axis=1, keepdims=True),
            (0, len(ranks)),
            f"rank, from {ranks[0]} to {ranks[-1]}",
            f"{what} time, % of the mean",
            True,
            low=None,
            folded=True,
        )
    ]
