"""How the clock of each host was corrected, and the error that may remain.

Times of two hosts can be compared to within the sum of their error bounds: a wait or a delay
between them that is shorter means nothing. The least certain host comes first. A host is not
comparable where nothing in the reports tells how its clock differs from the others'.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import polars as pl

from nsys2prv.analysis.device_group import DeviceGroup
from nsys2prv.analysis.result import Analysis, Context, Result
from nsys2prv.conversion.clocks import is_aligned
from nsys2prv.conversion.job import Job


def make_clock_table(job: Job) -> pl.DataFrame:
    """Return how the clock of each host was corrected: host, method, offset_ns, drift_ppm,
    error_bound_ns (null where it is not known). Empty where there is one clock, or none was to be
    corrected.
    """
    hosts = job.clock_record.hosts if job.clock_record else {}
    return pl.DataFrame(
        [
            (
                name,
                clock.method,
                clock.offset_ns,
                clock.drift_ppm,
                clock.bound_ns,
                is_aligned(clock),
            )
            for name, clock in hosts.items()
        ],
        schema={
            "host": pl.String,
            "method": pl.String,
            "offset_ns": pl.Int64,
            "drift_ppm": pl.Float64,
            "error_bound_ns": pl.Int64,
            "comparable": pl.Boolean,
        },
        orient="row",
    ).sort(pl.col("error_bound_ns"), descending=True, nulls_last=False, maintain_order=True)


def collect(_: DeviceGroup) -> Iterator[tuple[str, pl.DataFrame]]:
    """Collect nothing: the table is made from facts of the job."""
    return iter(())


def conclude(_: Mapping[str, pl.DataFrame], context: Context, result: Result) -> None:
    """Add how the clock of each host was corrected."""
    if context.clocks.height:
        title = "Corrections of the hosts' clocks, least certain first"
        result.add("hosts", title, context.clocks, __doc__)
    else:
        result.missing.append(
            "clocks of hosts: all reports have the same clock, or none was corrected"
        )


def compare_with_clock_error(
    key: str, figure: str, matched: pl.DataFrame, context: Context
) -> list[pl.Expr]:
    """Return a column that says whether a figure of each row (ns) is more than the clocks of the
    hosts that its collectives connect may be wrong against each other; null where that is not
    known, no column where there is one clock. key: column that identifies the rows, `task` or `communicator`.
    """
    bounds = context.clocks
    if bounds.height < 2:
        return []
    hosts = context.tasks.select(pl.col("task").cast(pl.Int64), host="node")
    bounded_hosts = hosts.join(bounds.select("host", "error_bound_ns"), on="host", how="left")
    members = matched.select("communicator", pl.col("task").cast(pl.Int64)).unique()
    joined = members.join(bounded_hosts, on="task", how="left")
    if key == "task":
        # All whom a rank meets in any communicator.
        joined = members.rename({"task": "of"}).join(joined, on="communicator").drop("communicator")
        joined = joined.rename({"of": "task", "task": "other"})
    rows = joined.select(key, "host", "error_bound_ns").unique()
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
