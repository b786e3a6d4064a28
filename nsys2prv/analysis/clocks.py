"""How the clocks of the hosts were corrected, and how well.

Times of two hosts can be compared to within the sum of their error bounds: a wait or a delay between
them that is shorter means nothing. The least certain host comes first. A host is not comparable where
nothing in the reports tells how its clock differs from the others'.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from nsys2prv.analysis.result import Analysis, Context, Result, Table
from nsys2prv.analysis.unit import Unit


def collect(_: Unit) -> dict[str, pl.DataFrame]:
    return {}


def conclude(_: Mapping[str, pl.DataFrame], context: Context) -> Result:
    if not context.clocks.height:
        return Result(
            "clocks",
            ANALYSIS.title,
            missing=["clocks of hosts: all reports have the same clock, or none was corrected"],
        )
    table = Table(
        "Corrections of the hosts' clocks, least certain first", context.clocks, __doc__ or ""
    )
    return Result("clocks", ANALYSIS.title, {"hosts": table})


def beyond_clocks(key: str, figure: str, matched: pl.DataFrame, context: Context) -> list[pl.Expr]:
    """Return a column that says whether a figure of each row (ns) is more than the clocks of the
    hosts that its collectives connect may be wrong against each other; null where that is not known,
    no column where there is one clock. key: what the rows are of, `task` or `communicator`.
    """
    bounds = context.clocks
    if bounds.height < 2:
        return []
    hosts = context.tasks.select(pl.col("task").cast(pl.Int64), host="node")
    known = hosts.join(bounds.select("host", "error_bound_ns"), on="host", how="left")
    members = matched.select("communicator", pl.col("task").cast(pl.Int64)).unique()
    met = members.join(known, on="task", how="left")
    if key == "task":
        # All whom a rank meets in any communicator.
        met = members.rename({"task": "of"}).join(met, on="communicator").drop("communicator")
        met = met.rename({"of": "task", "task": "other"})
    rows = met.select(key, "host", "error_bound_ns").unique()
    unsure = pl.col("error_bound_ns").is_null().any() & (pl.len() > 1)
    sums = rows.group_by(key).agg(
        bound=pl.when(~unsure).then(
            pl.when(pl.len() > 1).then(pl.col("error_bound_ns").top_k(2).sum()).otherwise(0)
        )
    )
    of_each = dict(sums.rows())
    bound = pl.col(key).replace_strict(of_each, default=None, return_dtype=pl.Int64)
    return [(pl.col(figure) > bound).alias("exceeds_clock_error")]


ANALYSIS = Analysis("clocks", "Clocks of hosts", (), collect, conclude)
