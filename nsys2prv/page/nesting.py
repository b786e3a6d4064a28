"""Paths of operations as a tree: each after what it lies in, siblings by time."""

from __future__ import annotations

import polars as pl

BETWEEN = " / "


def nested(tree: pl.DataFrame, most: int) -> tuple[pl.DataFrame, list[int]]:
    """The rows of `operations.tree` (path, depth, ...) in the order of a tree, `path` by its last name as `operation`, and their depths.

    Siblings are by GPU time, then host time, greatest first; of more than `most` rows those of greatest time and what they lie in. A
    name may itself hold the separator, so what a path lies in is the longest path before one that is a level less deep.
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
    names = [path[len(up) + len(BETWEEN):] if (up := above[path]) else path for path, _ in order]
    frame = tree[[row[path] for path, _ in order]].select(pl.Series("operation", names, dtype=pl.String), pl.exclude("path", "depth"))
    return frame, [depth for _, depth in order]


def _above(path: str, level: dict[str, int]) -> str | None:
    """The path that this one lies in."""
    end = path.rfind(BETWEEN) if level[path] else -1
    while end > 0:
        if level.get(path[:end], -1) == level[path] - 1:
            return path[:end]
        end = path.rfind(BETWEEN, 0, end)
    return None
