"""Scalability of several jobs."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from nsys2prv.analysis.comparison import Run, table_of
from nsys2prv.analysis.efficiencies import scalability
from nsys2prv.analysis.result import Result, Table


def scaling(runs: Sequence[Run], strong: bool) -> Result:
    """Return how efficiencies change over runs, relative to the first. Global efficiency = parallel
    efficiency x computation scalability.
    """
    tables = [table_of(run, "efficiencies", "device") for run in runs]
    rows = [table and table.frame.row(0, named=True) for table in tables]
    if None in rows:
        lacking = ", ".join(
            str(run.job["name"]) for run, row in zip(runs, rows, strict=True) if row is None
        )
        return Result(
            "scaling", "Scalability", missing=[f"scalability: no work on devices in {lacking}"]
        )
    computation = scalability(
        [row["useful_ns"] for row in rows], [row["devices"] for row in rows], strong
    )
    frame = pl.DataFrame(
        {
            "run": [str(run.job["name"]) for run in runs],
            "devices": [row["devices"] for row in rows],
            "elapsed_ns": [row["elapsed_ns"] for row in rows],
            "speedup": [rows[0]["elapsed_ns"] / row["elapsed_ns"] for row in rows],
            "computation_scalability": computation,
            **{
                name: [row[name] for row in rows]
                for name in (
                    "parallel_efficiency",
                    "load_balance_efficiency",
                    "communication_efficiency",
                    "orchestration_efficiency",
                )
            },
        },
        strict=False,
    )
    frame = frame.with_columns(
        global_efficiency=pl.col("parallel_efficiency") * pl.col("computation_scalability")
    )
    kind = (
        "strong scaling: the same problem on more devices"
        if strong
        else "weak scaling: a problem that grows with the devices"
    )
    return Result(
        "scaling", "Scalability", {"scaling": Table(f"Runs relative to the first ({kind})", frame)}
    )
