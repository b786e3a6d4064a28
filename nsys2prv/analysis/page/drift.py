"""Find iterations that differ from the others or drift, and order nested operations as a tree."""

from __future__ import annotations

import numpy as np
import polars as pl

#: An outlier's distance from the median in scaled median absolute deviations, and as a fraction of
#: the median.
FAR, LEAST_FAR = 3.5, 0.05
#: A trend is told from so many iterations on, from this z of Mann and Kendall's test on, and from
#: this change over all iterations on.
LEAST_COUNT, LEAST_Z, LEAST_DRIFT = 8, 3.0, 0.05
#: Iterations of which slopes are taken between all pairs; of more, every so many.
MOST = 500
RULE = f"Circled: more than {FAR:g} scaled median absolute deviations and {LEAST_FAR:.0%} of the median away from the median."


def outliers(values: np.ndarray) -> list[int]:
    """Indices of the values that are far from the others; of fewer than 4 none is."""
    if len(values) < 4:
        return []
    middle = np.median(values)
    distance = np.abs(values - middle)
    spread = 1.4826 * np.median(distance)
    return np.flatnonzero((distance > FAR * spread) & (distance > LEAST_FAR * abs(middle))).tolist()


def drift(values: np.ndarray) -> float | None:
    """Change over all values as a fraction of their median (Theil and Sen's slope), None where it
    is none that counts.
    """
    if len(values) < LEAST_COUNT or not np.median(values):
        return None
    step = -(-len(values) // MOST)
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


def nested(tree: pl.DataFrame, most: int) -> tuple[pl.DataFrame, list[int]]:
    """The rows of `operations.tree` (path, depth, ...) in the order of a tree, `path` by its last
    name as `operation`, and their depths.

    Siblings are by GPU time, then host time, greatest first; of more than `most` rows those of
    greatest time and what they lie in. A name may itself hold the separator, so what a path lies in
    is the longest path before one that is a level less deep.
    """
    paths, depths = tree["path"].to_list(), tree["depth"].to_list()
    level = dict(zip(paths, depths, strict=True))
    above = {path: _above(path, level) for path in paths}
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


def _above(path: str, level: dict[str, int]) -> str | None:
    """The path that this one lies in."""
    end = path.rfind(BETWEEN) if level[path] else -1
    while end > 0:
        if level.get(path[:end], -1) == level[path] - 1:
            return path[:end]
        end = path.rfind(BETWEEN, 0, end)
    return None
