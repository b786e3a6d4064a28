"""Find ranks that are in MPI although MPI was not traced, by the call stacks of CPU samples."""

from __future__ import annotations

import polars as pl

from nsys2prv.figures.device_group import DeviceGroup
from nsys2prv.figures.host_time import TEXTS
from nsys2prv.figures.intervals import Spans
from nsys2prv.figures.result import Context, Finding, JobRanks
from nsys2prv.figures.stacks import read_mpi_samples

#: A smaller share of the main threads' time is no finding.
LEAST_SHARE = 0.05
#: Ranks that are in a call for less than this share of the usual time come late to it.
LATE = 0.8
#: Fewer ranks do not show which is unusual.
FEWEST_RANKS = 3


def count_mpi_samples(unit: DeviceGroup, thread: int, time: Spans) -> pl.DataFrame:
    """Return how many CPU samples of a thread are in each MPI call within some time, where MPI was not
    traced: `call`, null outside MPI, and `count`.
    """
    samples = read_mpi_samples(unit, thread)
    inside = pl.Series(time.contains(samples["begin"].to_numpy()), dtype=pl.Boolean)
    return samples.filter(inside).group_by("call").agg(count=pl.len().cast(pl.Int64))


def describe_untraced_mpi(samples: pl.DataFrame, context: Context, job: JobRanks) -> Finding | None:
    """Return the finding that main threads are in MPI, which was not traced; None where they hardly
    are. samples: task, call, count.
    """
    in_mpi = samples.drop_nulls("call") if samples.height else samples
    if not in_mpi.height:
        return None
    of_task = _list_shares(samples, pl.col("call").is_not_null())
    share = float(of_task["share"].mean() or 0)
    if share < LEAST_SHARE:
        return None
    sums = in_mpi.group_by("call").agg(pl.col("count").sum())
    most = sums.sort("count", "call")["call"][-1]
    of_call = _list_shares(samples, pl.col("call") == most)
    when = " in the steady state" if context.options.steady else ""
    evidence = [f"mostly MPI_{most}: {_format_range(of_call['share'])} of the samples"]
    few = of_call.filter(pl.col("share") < LATE * pl.col("share").median())
    if of_call.height >= FEWEST_RANKS and 0 < few.height <= of_call.height // 2:
        who = job.describe_ranks(few["task"].to_list())
        evidence.append(f"least on {who}: the others may wait there for them")
    return Finding(
        "untraced_mpi",
        f"MPI was not traced; {_format_range(of_task['share'])} of the CPU samples of main threads{when} are in MPI.",
        share,
        evidence=tuple(evidence),
        advice=TEXTS["advice"]["untraced_mpi"],
        views=("analysis/cpu_samples_2dh.cfg",),
        at_most=True,
    )


def _list_shares(samples: pl.DataFrame, which: pl.Expr) -> pl.DataFrame:
    """Return the share of the samples of each task that a condition selects: task, share."""
    selected = pl.col("count").filter(which).sum() / pl.col("count").sum()
    return samples.group_by("task").agg(share=selected).sort("share", "task")


def _format_range(shares: pl.Series) -> str:
    least, most = float(shares.min() or 0), float(shares.max() or 0)
    return f"{most:.0%}" if round(least, 2) == round(most, 2) else f"{least:.0%} to {most:.0%}"
