"""Check limits on a difference for scripts, compare several runs of each side, and find jumps in a
series of runs.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from itertools import chain

import numpy as np
import polars as pl
from msgspec.structs import replace

from nsys2prv._util.errors import UsageError
from nsys2prv.figures.result import Result
from nsys2prv.figures.study_model import list_known_rows
from nsys2prv.show.difference.comparison import compare_jobs
from nsys2prv.show.difference.facts import UNITS, Checked, Comparison, Limit, compute_change
from nsys2prv.show.difference.runs import choose_column, choose_unit, open_run
from nsys2prv.show.finished_job import FinishedJob
from nsys2prv.show.thresholds import ALIKE


def measure_run(job: FinishedJob, what: str, name: str) -> float | None:
    """Return the value of a run to which a :class:`Limit` applies, or None: ns per iteration
    (`job`: of the job; `region`: per execution), or an efficiency. what, name: as in Limit.
    """
    run = open_run(job)
    unit = choose_unit([run])
    if what in UNITS:
        return run.measure(what) if what != "iteration" or run.iterations else None
    if what == "efficiency":
        for row, (value,) in list_known_rows([job.metrics]):
            if row.is_efficiency and name.lower() in (
                "",
                row.path,
                row.name.lower(),
                row.bare_name.lower(),
            ):
                return value
        return None
    if what == "region":
        regions = job.find_frame("operations", "operations")
        if regions is None:
            return None
        rows = regions.filter([fnmatch.fnmatchcase(one, name) for one in regions["operation"]])
        time = choose_column([rows])
        return float(rows[time].sum() / rows["calls"].sum()) if rows.height else None
    rows = run.path.filter(pl.col("part").is_in(["nccl", "mpi"]))
    if what == "kernel":
        is_named = pl.col("name").str.contains(name, literal=True)
        rows = run.work.filter(pl.col("part") == "kernel", is_named)
        if not rows.height:
            return None
    return float(rows["time_ns"].sum() / run.count(unit))


def check_limits(
    sides: Sequence[Sequence[FinishedJob]], comparison: Comparison, limits: Sequence[Limit]
) -> list[Checked]:
    """Check each limit against the means of the runs of both sides. A change within the random
    spread of runs or iterations exceeds no limit. sides: the runs before and after. Raise
    UsageError if a run lacks the value.
    """
    checked = []
    for limit in limits:
        what = limit.what or comparison.unit
        found = [[measure_run(job, what, limit.name) for job in side] for side in sides]
        if any(one is None for side in found for one in side):
            lacking = "A" if None in found[0] else "B"
            raise UsageError(f"--fail-above {what}:{limit.name}: {lacking} has no such figure")
        (before, after), noise = _average(found)
        change = before - after if what == "efficiency" else compute_change(before, after)
        if what == comparison.unit:
            noise = max(noise, comparison.noise or 0.0)
        noise = max(noise, ALIKE)
        checked.append(
            Checked(
                replace(limit, what=what),
                before,
                after,
                change,
                noise,
                change > max(limit.share, noise),
            )
        )
    return checked


def _average(sides: Sequence[Sequence[float]]) -> tuple[tuple[float, ...], float]:
    """Return the means of both sides, and their random difference as a share of the first: two
    standard errors from the spread of the runs of each side; 0 if each side has one run.
    """
    means = tuple(float(np.mean(side)) for side in sides)
    free = sum(len(side) - 1 for side in sides)
    squares = sum(float(np.var(side) * len(side)) for side in sides)
    error = (squares / free * sum(1 / len(side) for side in sides)) ** 0.5 if free > 0 else 0.0
    return means, 2 * error / means[0] if means[0] else 0.0


def compare_sides(
    sides: Sequence[Sequence[FinishedJob]], names: tuple[str, str] = ("A", "B")
) -> tuple[Comparison, Result, tuple[FinishedJob, FinishedJob]]:
    """Compare two sides of several runs each. Return (facts, tables, the two compared runs): of
    each side, the run with the median time is compared, with the random spread of all. names: of
    both sides.
    """
    runs = [[open_run(job) for job in side] for side in sides]
    unit = choose_unit(chain(*runs))
    first, second = (
        sorted(side, key=lambda run: run.measure(unit))[(len(side) - 1) // 2].job for side in runs
    )
    comparison, result = compare_jobs(first, second, names)
    counts = len(sides[0]), len(sides[1])
    if max(counts) > 1:
        times = [[run.measure(comparison.unit) for run in side] for side in runs]
        noise = max(comparison.noise or 0.0, _average(times)[1])
        comparison = replace(comparison, noise=noise, runs=counts)
    return comparison, result, (first, second)


def find_jump(jobs: Sequence[FinishedJob]) -> tuple[int, pl.DataFrame]:
    """Find the run in a series whose time differs most from the run before it.

    Return its index, and the series: `run`, `time_ns` (per iteration, otherwise of the job),
    `change_share` from the run before, and `since_first_share`.
    """
    runs = [open_run(job) for job in jobs]
    unit = choose_unit(runs)
    times = np.array([run.measure(unit) for run in runs])
    changes = times[1:] / times[:-1] - 1
    series = pl.DataFrame(
        {
            "run": [job.description["name"] for job in jobs],
            "time_ns": times,
            "change_share": [None, *changes],
            "since_first_share": times / times[0] - 1,
        }
    )
    return int(np.argmax(np.abs(np.log(times[1:] / times[:-1])))) + 1, series
