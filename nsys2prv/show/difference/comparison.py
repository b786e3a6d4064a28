"""Compare two runs: facts and tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
import polars.selectors as cs
from msgspec.structs import replace

from nsys2prv._util.text import list_some
from nsys2prv.figures.result import DECLARED, Result, Table, divide_columns
from nsys2prv.figures.study_model import list_known_rows
from nsys2prv.show.difference.facts import UNITS, Comparison
from nsys2prv.show.difference.reasons import (
    BY,
    choose_causes,
    compare_ranks,
    explain_job,
    list_reasons,
)
from nsys2prv.show.difference.runs import (
    NOT_COMPARABLE,
    Run,
    choose_column,
    choose_unit,
    compare_clocks,
    compare_work,
    find_unseen_host,
    list_reserves,
    open_run,
    pair_names,
    rename,
    repeat_alike,
)
from nsys2prv.show.finished_job import FinishedJob
from nsys2prv.show.thresholds import ALIKE, LEAST_ALIKE, LEAST_COMMON, OUTLIER

#: Maximum number of regions that are named.
MOST_REGIONS = 3
#: Tables of two jobs that are compared.
COMPARED = DECLARED["difference"].terms["compared"]
#: The change from `a_ns` to `b_ns`.
CHANGE = (
    (pl.col("b_ns") - pl.col("a_ns")).alias("change_ns"),
    (divide_columns("b_ns", "a_ns") - 1).alias("change_share"),
)


def compare_jobs(
    first: FinishedJob, second: FinishedJob, names: tuple[str, str] = ("A", "B")
) -> tuple[Comparison, Result]:
    """Compare two runs. Return the facts about their difference, and tables of it. Changes are from
    the first run to the second. names: of both.
    """
    runs = [open_run(job) for job in (first, second)]
    unit = choose_unit(runs)
    named = pair_names(runs, unit)
    runs = [rename(run, own) for run, own in zip(runs, named, strict=True)]
    likeness, common = compare_work(runs, unit)
    if likeness is not None and likeness < (LEAST_COMMON if repeat_alike(runs) else LEAST_ALIKE):
        unit = "job"
        likeness, common = compare_work(runs, unit)
    verdict, reserves = list_reserves(runs, likeness, common)
    if unit == "job" and verdict != NOT_COMPARABLE and (said := find_unseen_host(runs)):
        unit, verdict, reserves = "work", "with reserve", [*reserves, said]
    times = tuple(run.measure(unit) for run in runs)
    lengths = tuple(run.measure("job") for run in runs)
    of_ranks, clock = compare_ranks(runs, unit), compare_clocks(runs)
    reasons = list_reasons(runs, of_ranks, unit, times)
    is_of_iterations = unit == "iteration"
    comparison = Comparison(
        names,
        verdict,
        reserves,
        unit,
        likeness,
        times,
        lengths,
        (runs[0].iterations, runs[1].iterations),
        _estimate_noise(runs, times) if is_of_iterations else None,
        _list_outliers(runs, names) if is_of_iterations else [],
        *choose_causes(reasons, of_ranks, runs, times, clock),
        explain_job(runs, times) if is_of_iterations else [],
        [] if is_of_iterations else _compare_regions(first, second),
    )
    return comparison, _make_tables(first, second, comparison, reasons)


def _estimate_noise(runs: Sequence[Run], times: Sequence[float]) -> float | None:
    """Return the random difference between both means as a share of A's iteration: two standard
    errors; None if unknown.
    """
    lasts = [run.lasts for run in runs]
    if min(map(len, lasts)) < 2:
        return None
    return float(2 * sum(one.var(ddof=1) / len(one) for one in lasts) ** 0.5 / times[0])


def _list_outliers(runs: Sequence[Run], names: Sequence[str]) -> list[tuple[str, int, float]]:
    """Return the iterations that take far longer than the median of their run, the longest first."""
    far = [
        (name, int(number) + 1, float(run.lasts[number]))
        for name, run in zip(names, runs, strict=True)
        for number in np.flatnonzero(run.lasts > OUTLIER * np.median(run.lasts))
    ]
    return sorted(far, key=lambda one: -one[2])


def _compare_regions(first: FinishedJob, second: FinishedJob) -> list[tuple[str, float, float]]:
    """Return the NVTX ranges that both jobs have and that change most, with the time of each in
    both jobs (ns).
    """
    frames = [job.find_frame("operations", "operations") for job in (first, second)]
    if any(frame is None for frame in frames):
        return []
    time = choose_column(frames)
    a, b = (
        frame.filter(pl.col(time) > 0).select(
            "operation", "calls", each=pl.col(time) / pl.col("calls")
        )
        for frame in frames
    )
    both = a.join(b, on="operation")
    change = (pl.col("each_right") - pl.col("each")) * pl.min_horizontal("calls", "calls_right")
    most = both.sort(-change.abs(), "operation").head(MOST_REGIONS)
    return most.select("operation", "each", "each_right").rows()


def _make_tables(
    first: FinishedJob, second: FinishedJob, comparison: Comparison, reasons: pl.DataFrame
) -> Result:
    """Return the tables of a comparison."""
    jobs = first, second
    result = Result("difference", "Difference of two jobs", notes=list(comparison.reserves))
    lacking = [one for one in jobs if one.find_frame("findings", "path") is None]
    if lacking:
        names = list_some([one.description["name"] for one in lacking])
        result.notes.append(
            f"the causes of the difference are unknown, because {names} has no findings or comes from an older version"
        )
    kernels = reasons.filter(pl.col("part") == "kernel", pl.col("name") != "")
    for name, lacking, there in (("A", "b_count", "a_count"), ("B", "a_count", "b_count")):
        if (own := kernels.filter(pl.col(lacking) == 0, pl.col(there) > 0)).height:
            result.notes.append(f"kernels of {name} only: {list_some(own['name'].to_list())}")
    a, b = (job.description["name"] for job in jobs)
    whole = comparison.unit_ns[1] - comparison.unit_ns[0]
    families = reasons.group_by("family").agg(pl.col("a_ns", "b_ns", "change_ns").sum())
    is_small = abs(comparison.change) < ALIKE
    share = pl.lit(None) if is_small else pl.col("change_ns") / whole
    share = share.cast(pl.Float64).alias("difference_share")
    said = {"unit": UNITS[comparison.unit]}
    result.add(
        "parts", families.with_columns(share).sort(-pl.col("change_ns").abs(), "family"), **said
    )
    # Equal runs leave nothing.
    changed = pl.any_horizontal(pl.col("change_ns", *BY).abs() >= 1)
    result.add("reasons", reasons.with_columns(share).filter(changed), **said)
    result.add("job", _describe_jobs(jobs), a=a, b=b)
    # Tables are of the whole job, with warm-up.
    steps = [
        int(job.find_row("efficiencies", "focus").get("iterations_of_job") or count)
        for job, count in zip(jobs, comparison.iterations, strict=True)
    ]
    for analysis, name, keys, count, values in COMPARED:
        frames = [job.find_frame(analysis, name) for job in jobs]
        if all(frame is not None for frame in frames):
            value = choose_column(frames, values)
            title = first.results[analysis].tables[name].title
            if (joined := _join_by_key(frames, keys, count, value, steps)).height:
                result.tables[f"{analysis}_{name}"] = Table(title, joined)
        elif any(frame is not None for frame in frames):
            has_none = "AB"[[frame is None for frame in frames].index(True)]
            result.notes.append(
                f"{analysis}, {name}: not compared, because {has_none} has no such table"
            )
    if comparison.verdict == NOT_COMPARABLE:
        # Amounts are facts of each run; a relative change of other work means nothing.
        for name, table in result.tables.items():
            frame = table.frame.select(~cs.ends_with("_share"))
            result.tables[name] = replace(table, frame=frame)
    return result


def _describe_jobs(jobs: Sequence[FinishedJob]) -> pl.DataFrame:
    rows = [("elapsed (s)", *(job.length / 1e9 for job in jobs))]
    rows += [(name, *(job.description[name] for job in jobs)) for name in ("ranks", "devices")]
    rows += [
        (f"{row.name} (%)", *(None if one is None else 100 * one for one in values))
        for row, values in list_known_rows([job.metrics for job in jobs])
    ]
    schema = {"figure": pl.String, "a": pl.Float64, "b": pl.Float64}
    frame = pl.DataFrame(rows, schema=schema, orient="row", strict=False)
    return frame.with_columns(change_share=divide_columns("b", "a") - 1)


def _join_by_key(
    frames: Sequence[pl.DataFrame],
    keys: Sequence[str],
    count: str,
    value: str,
    steps: Sequence[int],
) -> pl.DataFrame:
    """Join the rows of both jobs by key, the largest change first. Rows missing from one job count
    as 0. steps: number of iterations of each job, 0 if unknown; if these differ, changes are per
    iteration.
    """
    first, second = (
        frame.group_by(keys, maintain_order=True).agg(
            pl.col(count).sum().cast(pl.Int64).alias(f"count_{job}"),
            pl.col(value).sum().alias(f"{job}_ns"),
        )
        for job, frame in zip("ab", frames, strict=True)
    )
    joined = first.join(
        second, on=keys, how="full", coalesce=True, nulls_equal=True, maintain_order="left_right"
    )
    sums = pl.col("count_a", "count_b", "a_ns", "b_ns").fill_null(0)
    joined = joined.with_columns(sums).with_columns(CHANGE)
    change = "change_ns"
    if 0 < steps[0] != steps[1] > 0:
        change = "change_of_iteration_ns"
        joined = joined.with_columns(
            a_of_iteration_ns=pl.col("a_ns") / steps[0], b_of_iteration_ns=pl.col("b_ns") / steps[1]
        ).with_columns(
            change_of_iteration_ns=pl.col("b_of_iteration_ns") - pl.col("a_of_iteration_ns")
        )
    return joined.sort(pl.col(change).abs(), descending=True, maintain_order=True)
