"""Call communicators by their members: `world (0-15)`, `node01 (0-3)`, `every 4th (0,4,8,12)`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import polars as pl

from nsys2prv.analysis.findings.people import number_list

#: Members of a regular communicator that are named one by one.
MOST_NAMED = 8


def communicator_names(kernels: pl.DataFrame, tasks: pl.DataFrame) -> pl.DataFrame:
    """The name of every communicator: value, name. kernels: a row at least for each communicator
    (its value, negative where unknown) and task. tasks: task, rank (null where unknown), node.

    Several communicators of the same members are numbered: `world (0-15)`, `world (0-15) #2`.
    """
    places = {
        task: (task - 1 if rank is None else rank, node)
        for task, rank, node in tasks.select("task", "rank", "node").rows()
    }
    members = (
        kernels.filter(pl.col("communicator") >= 0)
        .group_by("communicator", maintain_order=True)
        .agg(pl.col("task").unique().sort())
        .sort("communicator")
    )
    met: Counter[str] = Counter()
    names = []
    for value, of_tasks in members.select("communicator", "task").rows():
        ranks = sorted(places[task][0] for task in of_tasks)
        hosts = {places[task][1] for task in of_tasks}
        name = _name(ranks, sorted(hosts), len(places))
        met[name] += 1
        names.append((value, f"{name} #{met[name]}" if met[name] > 1 else name))
    return pl.DataFrame(names, schema={"value": pl.Int64, "name": pl.String}, orient="row")


def _name(ranks: Sequence[int], hosts: Sequence[str], all_ranks: int) -> str:
    """Return the name of a set of ascending ranks."""
    shown = number_list(list(ranks))
    steps = {second - first for first, second in pairwise(ranks)}
    if len(ranks) == 1:
        return f"rank {ranks[0]} alone"
    if len(ranks) == all_ranks:
        return f"world ({shown})"
    if len(hosts) == 1:
        return f"{hosts[0]} ({shown})"
    if len(ranks) > 2 and len(steps) == 1 and steps != {1}:
        if len(ranks) <= MOST_NAMED:
            shown = ",".join(map(str, ranks))
        return f"every {_ordinal(*steps)} ({shown})"
    return f"ranks {shown}, across hosts"


def _ordinal(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{dict(enumerate(('st', 'nd', 'rd'), 1)).get(number % 10, 'th')}"
