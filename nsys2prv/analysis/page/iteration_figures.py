"""Figures of iterations and NVTX ranges: which differ from the others, and whether they drift."""

from __future__ import annotations

import numpy as np
import polars as pl

from nsys2prv.analysis.page.device_figures import number_labels, pivot_grid
from nsys2prv.analysis.page.parts import (
    MOST_ROWS,
    Block,
    HeatMap,
    Items,
    Lines,
    Material,
    Tree,
)

#: An outlier's distance from the median in scaled median absolute deviations, and as a fraction of
#: the median.
FAR, LEAST_FAR = 3.5, 0.05
#: A trend is told from so many iterations on, from this z of Mann and Kendall's test on, and from
#: this change over all iterations on.
LEAST_COUNT, LEAST_Z, LEAST_DRIFT = 8, 3.0, 0.05
#: Iterations of which slopes are taken between all pairs; of more, every so many.
MOST_SLOPES = 500
RULE = f"Circled: more than {FAR:g} scaled median absolute deviations and {LEAST_FAR:.0%} of the median away from the median."


def find_outliers(values: np.ndarray) -> list[int]:
    """Return the indices of the values that are far from the others; of fewer than 4 none is."""
    if len(values) < 4:
        return []
    middle = np.median(values)
    distance = np.abs(values - middle)
    spread = 1.4826 * np.median(distance)
    return np.flatnonzero((distance > FAR * spread) & (distance > LEAST_FAR * abs(middle))).tolist()


def estimate_drift(values: np.ndarray) -> float | None:
    """Return the change over all values as a fraction of their median (Theil and Sen's slope), None
    where it is none that counts.
    """
    if len(values) < LEAST_COUNT or not np.median(values):
        return None
    step = -(-len(values) // MOST_SLOPES)
    chosen = values[::step].astype(float)
    count = len(chosen)
    first, second = np.triu_indices(count, 1)
    rise = chosen[second] - chosen[first]
    score = np.sign(rise).sum()
    z = (abs(score) - 1) / np.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    change = (
        float(np.median(rise / (second - first)))
        * (len(values) - 1)
        / step
        / float(np.median(values))
    )
    return change if z >= LEAST_Z and abs(change) >= LEAST_DRIFT else None


BETWEEN = " / "


def order_as_tree(tree: pl.DataFrame, most: int) -> tuple[pl.DataFrame, list[int]]:
    """Return the rows of `operations.tree` (path, depth, ...) in the order of a tree, `path` by its
    last name as `operation`, and their depths.

    Siblings are by GPU time, then host time, greatest first; of more than `most` rows those of
    greatest time and what they lie in. A name may itself hold the separator, so what a path lies in
    is the longest path before one that is a level less deep.
    """
    paths, depths = tree["path"].to_list(), tree["depth"].to_list()
    level = dict(zip(paths, depths, strict=True))
    above = {path: _find_parent_path(path, level) for path in paths}
    weight = dict(zip(paths, tree.select("gpu_ns", "host_ns").rows(), strict=True))
    kept: set[str | None] = set()
    for path in sorted(paths, key=lambda path: weight[path], reverse=True):
        if len(kept) >= most:
            break
        up: str | None = path
        while up is not None and up not in kept:
            kept.add(up)
            up = above[up]
    within: dict[str | None, list[str]] = {}
    for path in sorted(paths, key=lambda path: weight[path], reverse=True):
        if path in kept:
            within.setdefault(above[path], []).append(path)
    order: list[tuple[str, int]] = []
    waiting = [(path, 0) for path in reversed(within.get(None, []))]
    while waiting:
        path, depth = waiting.pop()
        order.append((path, depth))
        waiting += [(inner, depth + 1) for inner in reversed(within.get(path, []))]
    row = {path: number for number, path in enumerate(paths)}
    names = [path[len(up) + len(BETWEEN) :] if (up := above[path]) else path for path, _ in order]
    frame = tree[[row[path] for path, _ in order]].select(
        pl.Series("operation", names, dtype=pl.String), pl.exclude("path", "depth")
    )
    return frame, [depth for _, depth in order]


def _find_parent_path(path: str, level: dict[str, int]) -> str | None:
    """Return the path that this one lies in."""
    end = path.rfind(BETWEEN) if level[path] else -1
    while end > 0:
        if level.get(path[:end], -1) == level[path] - 1:
            return path[:end]
        end = path.rfind(BETWEEN, 0, end)
    return None


CURVES = {
    "parallel": "parallel_efficiency",
    "load balance": "load_balance_efficiency",
    "communication": "communication_efficiency",
    "orchestration": "orchestration_efficiency",
}


def show_iterations(material: Material) -> list[Block]:
    """Show the iterations that were asked for, or say how to ask for them."""
    rows = material.frame("efficiencies.iterations")
    if rows is None:
        hint = (
            'efficiencies of iterations: give the name of an NVTX range, as in --iterations "step*"'
        )
        return [Items([hint], "missing")] if "efficiencies" in material.results else []
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
            find_outliers(elapsed),
            RULE,
        )
    ]
    if trend := estimate_drift(elapsed):
        way = "longer" if trend > 0 else "shorter"
        drift = (
            f"Iterations get {way}: by {abs(trend):.1%} of their median from the first to the last."
        )
        blocks.append(Items([drift]))
    if rows.height > 1:
        blocks += _map_devices(material) + _map_classes(material, rows.height)
    return [
        *blocks,
        *material.make_grid("efficiencies.over_iterations"),
        *material.make_grid("efficiencies.iterations", folded=True),
        *material.make_grid("efficiencies.host_iterations", folded=True),
    ]


def _map_devices(material: Material) -> list[Block]:
    """Show how useful each device is in each iteration."""
    devices = material.frame("efficiencies.iterations_of_devices")
    if devices is None:
        return []
    by_number = devices.with_columns(at=devices["iteration"] - 1)
    labels, values = pivot_grid(by_number, "useful_share", across="at")
    return [
        HeatMap(
            "Useful share of each device in each iteration",
            labels,
            100 * values,
            (0.5, values.shape[1] + 0.5),
            "iteration",
            "% of the iteration",
            True,
            high=100,
        )
    ]


def _map_classes(material: Material, iterations: int) -> list[Block]:
    """Show which classes of kernels make iterations longer or shorter."""
    times = material.frame("kernels.classes_by_iteration")
    if times is None:
        return []
    sums = times.group_by("class", maintain_order=True).agg(pl.col("time_ns").sum())
    order = sums.sort("time_ns", descending=True)["class"].to_list()
    values = np.zeros((len(order), iterations))
    at = number_labels(times["class"], order), times["iteration"].to_numpy() - 1
    values[at] = times["time_ns"].to_numpy()
    return [
        HeatMap(
            "Kernel classes by iteration, most time first",
            order,
            100 * values / values.mean(axis=1, keepdims=True),
            (0.5, iterations + 0.5),
            "iteration",
            "time, % of the mean",
            True,
            low=None,
        )
    ]


def make_operation_tree(material: Material) -> list[Block]:
    """Return the operations as a tree."""
    tree = material.frame("operations.tree")
    if tree is None:
        return []
    frame, depths = order_as_tree(tree, MOST_ROWS)
    left = tree.height - frame.height
    note = f"{left:,} paths that take the least time are left out." if left else ""
    return [Tree("Operations as a tree", frame, depths, "operations.tree", note)]


#: Operations in the picture of ranks.
MOST_OPERATIONS = 40


def compare_operations_of_ranks(material: Material) -> list[Block]:
    """Show where ranks differ: an operation's time on each rank relative to the mean over ranks."""
    by_rank, whole = material.frame("operations.by_rank"), material.frame("operations.operations")
    if by_rank is None or whole is None or by_rank["rank"].n_unique() < 2:
        return []
    column = "gpu_ns" if whole["gpu_ns"].sum() else "host_ns"
    ordered = whole.sort(column, descending=True, maintain_order=True).filter(pl.col(column) > 0)
    names = ordered["operation"].head(MOST_OPERATIONS).to_list()
    if not names:
        return []
    ranks = by_rank["rank"].unique(maintain_order=True).to_list()
    ranks.sort(key=lambda name: (name.split(" ")[0], int(name.split(" ")[-1])))
    chosen = by_rank.filter(pl.col("operation").is_in(names))
    values = np.zeros((len(names), len(ranks)))
    at = number_labels(chosen["operation"], names), number_labels(chosen["rank"], ranks)
    values[at] = chosen[column].to_numpy()
    processor = "GPU" if column == "gpu_ns" else "host"
    return [
        HeatMap(
            "How ranks differ in operations",
            names,
            100 * values / values.mean(axis=1, keepdims=True),
            (0, len(ranks)),
            f"rank, from {ranks[0]} to {ranks[-1]}",
            f"{processor} time, % of the mean",
            True,
            low=None,
            folded=True,
        )
    ]
