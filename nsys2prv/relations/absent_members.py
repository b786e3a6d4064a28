"""Ranks of NCCL communicators of which there is no report."""

from __future__ import annotations

import polars as pl

from nsys2prv.events.nccl import COMMUNICATORS
from nsys2prv.store.facts import FactBook, read_fact

#: Ranks that are named.
FEW = 8


def absent_members(book: FactBook) -> list[str]:
    """Return a warning where the largest communicator that lacks ranks says that there are more
    ranks than reports of them.
    """
    files = book.files([COMMUNICATORS])[COMMUNICATORS]
    return _told(read_fact(files, book.tasks)) if files else []


def _told(communicators: pl.DataFrame) -> list[str]:
    """Return the same. communicators: a row for each time that a process told of one: communicator,
    task, ranks (their number), rank.
    """
    known = communicators.filter(
        (pl.col("communicator") != 0) & (pl.col("ranks") > 1) & (pl.col("task") >= 0)
    )
    # A process may have several GPUs, each with a rank of its own; all members may not have told
    # theirs.
    groups = known.group_by("communicator").agg(
        size=pl.col("ranks").max(),
        sizes=pl.col("ranks").n_unique(),
        told=pl.struct("task", "rank").n_unique(),
        present=pl.col("rank").filter(pl.col("rank") >= 0).unique(),
    )
    lacking = groups.filter((pl.col("told") < pl.col("size")) & (pl.col("sizes") == 1)).sort(
        "size", "communicator", descending=True
    )
    if not lacking.height:
        return []
    row = lacking.row(0, named=True)
    missing = (
        sorted(set(range(row["size"])) - set(row["present"]))
        if len(row["present"]) == row["told"]
        else []
    )
    named = ", ".join(map(str, missing[:FEW])) + (
        f" and {len(missing) - FEW} more" if len(missing) > FEW else ""
    )
    which = (
        f"; there is none of its rank{'s' if len(missing) > 1 else ''} {named}" if missing else ""
    )
    return [
        f"an NCCL communicator has {row['size']} ranks, and there are reports of {row['told']} of them{which}"
    ]
