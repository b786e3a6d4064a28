"""The job's time along its critical path, by cause, rank and kernel; only with `--only
critical_path`.

The critical path is the one chain of work and waiting, from the begin of the job to its end over
all ranks, that explains how long it took. Its pieces add up to the duration. Only what is on it
makes the job shorter when it gets faster; what is beside it has slack. Where two chains take
equally long, one of them is it: among balanced ranks it says little which of them has more of it.
`steady_ns` and `steady_share` are of the steady state alone, where there is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import polars as pl

from nsys2prv._util.columns import ABSENT
from nsys2prv.analysis.device_group import DeviceGroup, label_values
from nsys2prv.analysis.result import Analysis, Context, Result
from nsys2prv.replay.path import Cause

LAYOUT = "critical_path"
#: On these the path is on a device that works.
WORKING = (Cause.COMPUTATION, Cause.NCCL, Cause.MEMORY, Cause.GRAPH)
#: Columns of the table of ranks -> the causes that they add up.
PARTS = {
    "kernels_ns": (Cause.COMPUTATION, Cause.GRAPH),
    "nccl_ns": (Cause.NCCL,),
    "memory_ns": (Cause.MEMORY,),
}
TITLES = {
    "causes": "The critical path by cause",
    "ranks": "The critical path by rank",
    "classes": "Kernels on the critical path by class",
    "by_kernel": "Kernels on the critical path",
}


def collect(unit: DeviceGroup) -> Iterator[tuple[str, pl.DataFrame]]:
    """Collect the time on the path by task, cause, class and kernel."""
    pieces = unit.read_begins(LAYOUT, ("cause", "class"))
    work = unit.work.select(pl.col("thread").cast(pl.Int64), "end", pl.col("name").cast(pl.Int64))
    # An operation is on the path to its end; of a collective not from its begin on.
    pieces = pieces.join(
        work.unique(["thread", "end"], keep="first"),
        on=["thread", "end"],
        how="left",
        maintain_order="left",
    ).with_columns(
        unit.list_tasks(pieces),
        name=pl.when(pl.col("cause").is_in([Cause.COMPUTATION, Cause.NCCL])).then("name"),
    )
    begin, end = unit.options.get_steady_span(unit.duration)
    steady = (pl.col("end").clip(begin, end) - pl.col("begin").clip(begin, end)).sum()
    keys = ("task", "cause", "class", "name")
    sums = pieces.group_by(keys, maintain_order=True).agg(
        pieces=pl.len().cast(pl.Int64),
        time_ns=(pl.col("end") - pl.col("begin")).sum(),
        steady_ns=steady,
    )
    yield "pieces", sums


def conclude(unit_frames: Mapping[str, pl.DataFrame], context: Context, result: Result) -> None:
    """Add the path by cause, rank, class and kernel."""
    pieces, steady = unit_frames["pieces"], context.options.steady is not None
    # Shares of the time of the whole job, also for ranks, classes and kernels.
    whole = {name: max(int(pieces[name].sum()), 1) for name in ("time_ns", "steady_ns")}
    parts = {
        name: pl.col("time_ns").filter(pl.col("cause").is_in(list(causes))).sum()
        for name, causes in PARTS.items()
    }
    sets = [name for name in ("kernels", "nccl_kernels") if name in context.labels]
    of_classes = pieces.filter(pl.col("class") != ABSENT)
    by_rank = _sum_shares(pieces, whole, "task", **parts).drop("pieces")
    by_kernel = _sum_shares(pieces.filter(pl.col("name").is_not_null()), whole, "name")
    frames = {
        "causes": _sum_shares(pieces, whole, "cause").with_columns(
            label_values("cause", "critical_path", "unknown")
        ),
        "ranks": context.label_tasks(
            by_rank.with_columns(other_ns=pl.col("time_ns") - pl.sum_horizontal(*PARTS))
        ),
        "classes": _sum_shares(of_classes, whole, "class").with_columns(
            label_values("class", "kernel_class", "unknown")
        ),
        "by_kernel": context.label_names(by_kernel, "name", *sets).rename({"name": "kernel"}),
    }
    waiting = pieces.filter(~pl.col("cause").is_in(list(WORKING)))
    shares = {name: waiting[name].sum() / whole[name] for name in whole}
    idle = f"no device works for {shares['time_ns']:.1%} of it"
    if steady:
        idle += f", in the steady state for {shares['steady_ns']:.1%}"
    titles = TITLES | {"causes": f"{TITLES['causes']}: {idle}"}
    for name, frame in frames.items():
        shown = frame if steady else frame.drop("steady_ns", "steady_share")
        result.add(name, titles[name], shown, __doc__ if name == "causes" else "")


def _sum_shares(
    pieces: pl.DataFrame, whole: Mapping[str, int], key: str, **more: pl.Expr
) -> pl.DataFrame:
    """Return the number of pieces by a column, their time (ns) and its share of the whole path,
    the same for the steady state, and more sums.
    """
    sums = pieces.group_by(key, maintain_order=True).agg(
        pl.col("pieces", "time_ns").sum(),
        (pl.col("time_ns").sum() / whole["time_ns"]).alias("share"),
        pl.col("steady_ns").sum(),
        (pl.col("steady_ns").sum() / whole["steady_ns"]).alias("steady_share"),
        **more,
    )
    return sums.sort("time_ns", key, descending=[True, False])


ANALYSIS = Analysis("critical_path", "Critical path", ((LAYOUT,),), collect, conclude)
