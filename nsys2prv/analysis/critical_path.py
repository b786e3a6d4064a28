"""The critical path: the one chain of work and waiting, from the begin of the job to its end over all
ranks, that explains how long it took. Its pieces add up to
the duration. Only what is on it makes the job shorter when it gets faster; what is beside it has
slack. Where two chains take equally long, one of them is it: among balanced ranks it says little
which of them has more of it.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from nsys2prv._util.columns import ABSENT
from nsys2prv.analysis.findings.finding import Finding
from nsys2prv.analysis.result import Analysis, Context, Result, Table
from nsys2prv.analysis.unit import Unit, labels_of
from nsys2prv.relations.critical_path import COMPUTATION, GRAPH, MEMORY, NCCL

LAYOUT = "critical_path"
#: On these the path is on a device that works.
WORKING = (COMPUTATION, NCCL, MEMORY, GRAPH)
#: Columns of the table of ranks -> the causes that they add up.
PARTS = {
    "kernels_ns": (COMPUTATION, GRAPH),
    "nccl_ns": (NCCL,),
    "memory_ns": (MEMORY,),
}
#: So many ranks, classes and causes stand in the evidence.
MOST = 3


def collect(unit: Unit) -> dict[str, pl.DataFrame]:
    pieces = unit.begins(LAYOUT, ("cause", "class"))
    work = unit.work.select(pl.col("thread").cast(pl.Int64), "end", pl.col("name").cast(pl.Int64))
    # An operation is on the path to its end; of a collective not from its begin on.
    pieces = pieces.join(
        work.unique(["thread", "end"], keep="first"),
        on=["thread", "end"],
        how="left",
        maintain_order="left",
    ).with_columns(
        task=pl.Series(unit.task_of[pieces["thread"].to_numpy()], dtype=pl.Int64),
        name=pl.when(pl.col("cause").is_in([COMPUTATION, NCCL])).then("name"),
    )
    keys = ("task", "cause", "class", "name")
    return {
        "pieces": pieces.group_by(keys, maintain_order=True).agg(
            pieces=pl.len().cast(pl.Int64), time_ns=(pl.col("end") - pl.col("begin")).sum()
        )
    }


def conclude(found: Mapping[str, pl.DataFrame], context: Context) -> Result:
    pieces = found["pieces"]
    # Shares of the job's time, whatever part of it a rank, a class or a kernel has.
    whole = max(int(pieces["time_ns"].sum()), 1)
    causes = _labelled(pieces, whole, "cause", "critical_path")
    classes = _labelled(pieces.filter(pl.col("class") != ABSENT), whole, "class", "kernel_class")
    kernels = _shares(pieces.filter(pl.col("name").is_not_null()), whole, "name")
    sets = [name for name in ("kernels", "nccl_kernels") if name in context.labels]
    by_kernel = context.named(kernels, "name", *sets).rename({"name": "kernel"})
    total = pl.col("time_ns").sum()
    by_rank = (
        pieces.group_by("task", maintain_order=True)
        .agg(
            total.alias("time_ns"),
            (total / whole).alias("share"),
            *(
                pl.col("time_ns").filter(pl.col("cause").is_in(list(those))).sum().alias(name)
                for name, those in PARTS.items()
            ),
        )
        .with_columns(other_ns=pl.col("time_ns") - pl.sum_horizontal(*PARTS))
        .sort("time_ns", "task", descending=[True, False])
    )
    by_rank = context.with_task(by_rank)
    tables = {
        "causes": Table("The critical path by cause", causes, __doc__ or ""),
        "ranks": Table("The critical path by rank", by_rank),
        "classes": Table("Kernels on the critical path by class", classes),
        "by_kernel": Table("Kernels on the critical path", by_kernel),
    }
    waiting = pieces.filter(~pl.col("cause").is_in(list(WORKING)))["time_ns"].sum() / whole
    return Result(
        "critical_path",
        ANALYSIS.title,
        {name: table for name, table in tables.items() if table.frame.height},
        findings=[_finding(waiting, causes, by_rank, classes)] if pieces.height else [],
    )


def _shares(pieces: pl.DataFrame, whole: int, key: str) -> pl.DataFrame:
    """Pieces and their time by a column, and as a share of the whole path (ns)."""
    return (
        pieces.group_by(key, maintain_order=True)
        .agg(pl.col("pieces", "time_ns").sum())
        .with_columns(share=pl.col("time_ns") / whole)
        .sort("time_ns", key, descending=[True, False])
    )


def _labelled(pieces: pl.DataFrame, whole: int, key: str, values: str) -> pl.DataFrame:
    """The same, with labels in the place of the values of a closed set."""
    text = pl.col(key).replace_strict(labels_of(values), default="unknown", return_dtype=pl.String)
    return _shares(pieces, whole, key).with_columns(text)


def _finding(
    waiting: float, causes: pl.DataFrame, by_rank: pl.DataFrame, classes: pl.DataFrame
) -> Finding:
    evidence = [
        f"{what}: "
        + ", ".join(
            f"{name} {share:.1%}" for name, share in frame.select(column, "share").head(MOST).rows()
        )
        for what, frame, column in (
            ("most of the path", causes, "cause"),
            ("it is on", by_rank, "rank"),
            ("kernels on it", classes, "class"),
        )
        if frame.height
    ]
    return Finding(
        "critical_path",
        f"On the critical path no device works for {waiting:.1%} of the time.",
        waiting,
        (),
        (),
        tuple(evidence),
        "shorten what takes most of the path; what is not on it has slack",
        ("critical_path", "critical_path_time_2dh"),
    )


ANALYSIS = Analysis("critical_path", "Critical path", ((LAYOUT,),), collect, conclude)
