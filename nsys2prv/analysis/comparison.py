"""Compare what got faster or slower between two jobs, and how the efficiencies of several scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl
from msgspec import Struct

from nsys2prv._util.text import format_count, list_some
from nsys2prv.analysis.efficiencies import compute_scalability
from nsys2prv.analysis.iterations import PARTS
from nsys2prv.analysis.result import Result, Table, divide_columns
from nsys2prv.analysis.text import format_nanoseconds

#: Times that differ by a smaller share are alike; iterations that take so many times the median are
#: outliers.
ALIKE, OUTLIER = 0.005, 1.5
#: Tables of two jobs that are compared: analysis, table, key columns, what counts executions, what
#: is compared.
COMPARED = (
    ("kernels", "classes", ("class",), "count", "time_ns"),
    ("kernels", "kernels", ("kernel",), "count", "time_ns"),
    ("overlap", "operations", ("operation",), "count", "exposed_ns"),
    ("operations", "operations", ("operation",), "calls", "gpu_ns"),
    ("efficiencies", "iterations", ("range",), "", "elapsed_ns"),
    ("idle", "calls", ("call",), "count", "time_ns"),
    ("idle", "memory", ("operation", "source", "destination"), "count", "time_ns"),
    ("idle", "gaps", ("length",), "count", "time_ns"),
)


#: Tables with a row for each device or rank: analysis, table, key column, what is compared, the
#: title.
PLACES = (
    (
        "efficiencies",
        "devices",
        "device",
        ("active_ns", "useful_ns", "nccl_ns", "exposed_ns"),
        "Time of each device",
    ),
    (
        "collectives",
        "stragglers",
        "rank",
        ("waited_ns", "others_waited_ns"),
        "How long each rank waited in NCCL collectives, and the others for it",
    ),
)


class ComparedJob(Struct, frozen=True):
    """A job, of reports or of a file that `report --json` wrote."""

    #: What it is: `name`, `duration_ns`, `devices`, `ranks`, ...
    description: Mapping[str, object]
    #: Results by the name of the analysis.
    results: Mapping[str, Result]

    @property
    def duration(self) -> float:
        """Duration of the job (ns)."""
        return float(str(self.description["duration_ns"]))


def find_elapsed(job: ComparedJob) -> tuple[float, str]:
    """Return the time (ns) by which two jobs are compared, and of what: the median iteration of the
    steady state, else the job.
    """
    each = get_table(job, "iterations", "each")
    if each and each.frame.height:
        return float(str(each.frame["time_ns"].median())), "the median iteration"
    return job.duration, "the job"


def compare_elapsed(first: ComparedJob, second: ComparedJob) -> tuple[float, str]:
    """Return by how much longer the second job takes (0.22: by 22 %; negative: shorter), and a
    sentence that says so, which iterations are far from the median, and what changed most.
    """
    times = find_elapsed(first), find_elapsed(second)
    if times[0][1] != times[1][1]:
        times = tuple((job.duration, "the job") for job in (first, second))
    (before, unit), (after, _) = times
    change = after / before - 1 if before else 0.0
    how = f"{100 * abs(change):.1f} % {'longer' if change > 0 else 'less time'} than"
    if abs(change) < ALIKE:
        how = "as long as"
    head = f"B takes {how} A: {unit} takes {format_nanoseconds(after)} (A: {format_nanoseconds(before)})"
    steps = _count_iterations(first), _count_iterations(second)
    parts, where = [], "per GPU"
    if unit != "the job":
        if steps[0] != steps[1]:
            head += f"; B has {steps[1]:,} iterations, A has {steps[0]:,}"
        outliers = [*_list_outliers(first, "A"), *_list_outliers(second, "B")]
        if outliers:
            head += f"; more than {OUTLIER:g} times the median: {', '.join(outliers)}"
        parts = _list_iteration_changes(first, second)
    if not parts:
        parts, where = _list_changes(first, second), "over all GPUs"
    changes = [
        f"{name} {'+' if change > 0 else '-'}{format_nanoseconds(abs(change))}"
        for name, change in sorted(parts, key=lambda item: -abs(item[1]))[:3]
        if change
    ]
    return change, head + (f"; {where}: {', '.join(changes)}" if changes else "")


def warn_of_differences(first: ComparedJob, second: ComparedJob) -> list[str]:
    """Return what keeps figures of two jobs from being compared: other numbers of ranks or GPUs, or
    other GPUs, a line each.
    """
    jobs = (first.description, second.description)
    warnings = []
    for name, noun in (("ranks", "rank"), ("devices", "GPU")):
        counts = [int(str(job[name])) for job in jobs]
        if counts[0] != counts[1]:
            warnings.append(
                f"A has {format_count(counts[0], noun)}, B has {format_count(counts[1], noun)}: "
                f"times over all of them do not compare"
            )
    models = [sorted(dict(job.get("gpu_models") or {})) for job in jobs]
    if all(models) and models[0] != models[1]:
        warnings.append(
            f"A ran on {', '.join(models[0])}, B on {', '.join(models[1])}: not the same GPUs"
        )
    return warnings


def _list_outliers(job: ComparedJob, name: str) -> list[str]:
    """Return the iterations that take far longer than the median, the longest first."""
    each = get_table(job, "iterations", "each")
    if each is None:
        return []
    far = each.frame.filter(pl.col("time_ns") > OUTLIER * pl.col("time_ns").median())
    far = far.sort("time_ns", descending=True, maintain_order=True).select("iteration", "time_ns")
    named = [f"{number} ({format_nanoseconds(time)})" for number, time in far.rows()]
    return [f"{name}'s iteration {list_some(named)}"] if named else []


def _list_iteration_changes(first: ComparedJob, second: ComparedJob) -> list[tuple[str, float]]:
    """Return how the parts of the median iteration of a GPU changed (ns), empty where the jobs have
    none.
    """
    pair = get_tables((first, second), "iterations", "each")
    if None in pair:
        return []
    before, after = (table.frame.select(pl.col(*PARTS).median().fill_null(0)) for table in pair)
    return [(name, after[column][0] - before[column][0]) for column, name in PARTS.items()]


def _list_changes(first: ComparedJob, second: ComparedJob) -> list[tuple[str, float]]:
    """Return what changed in the time of all devices (ns): exposed communication, and classes of
    kernels.
    """
    changes = []
    exposed = get_tables((first, second), "overlap", "operations")
    if None not in exposed:
        before, after = (table.frame["exposed_ns"].sum() for table in exposed)
        changes.append(("exposed communication", float(after - before)))
    classes = get_tables((first, second), "kernels", "classes")
    if None not in classes:
        joined = _join_by_key(classes[0].frame, classes[1].frame, ("class",), "count", "time_ns")
        rows = joined.filter(pl.col("class") != "Communication").select("class", "change_ns").rows()
        changes += [(f"{name} kernels", float(change)) for name, change in rows]
    return changes


def compare_jobs(first: ComparedJob, second: ComparedJob) -> list[Result]:
    """Compare two jobs in tables: the counts first, then times by kernel, class, operation and
    NVTX range. Changes are of the second from the first.
    """
    names = str(first.description["name"]), str(second.description["name"])
    tables = {"job": Table(f"A: {names[0]}; B: {names[1]}", _describe_jobs(first, second))}
    notes = warn_of_differences(first, second)
    counts, differing = [], {}
    steps = _count_iterations(first), _count_iterations(second)
    tables |= _compare_iterations(first, second)
    for analysis, table, keys, count, value in COMPARED:
        pair = get_tables((first, second), analysis, table)
        if None in pair:
            if pair.count(None) == 1:
                lacking = "AB"[pair.index(None)]
                notes.append(f"{analysis}, {table}: {lacking} has none, not compared")
            continue
        joined = _join_by_key(pair[0].frame, pair[1].frame, keys, count, value, steps)
        differ = pl.col("count_a") != pl.col("count_b")
        count_sums = joined.select(
            pl.lit(f"{analysis}: {table}").alias("table"),
            pl.col("count_a", "count_b").sum(),
            differ.sum().cast(pl.Int64).alias("rows_that_differ"),
        )
        counts.append(count_sums)
        differing[f"{analysis}_{table}"] = Table(pair[0].title, joined)
    columns = {"table": pl.String} | dict.fromkeys(
        ("count_a", "count_b", "rows_that_differ"), pl.Int64
    )
    tables["counts"] = Table("Executions", pl.concat([pl.DataFrame(schema=columns), *counts]))
    tables |= differing
    for analysis, table, key, values, title in PLACES:
        pair = get_tables((first, second), analysis, table)
        if None in pair:
            continue
        frames = [one_table.frame for one_table in pair]
        if frames[0].height != frames[1].height:
            notes.append(
                f"{analysis}, {table}: {frames[0].height:,} in A, {frames[1].height:,} in B, not compared one by one"
            )
            continue
        tables[f"by_{key}"] = Table(title, _join_by_place(*frames, key, values))
    return [Result("difference", "Difference of two jobs", tables, notes)]


def _count_iterations(job: ComparedJob) -> int:
    """Return how many iterations the steady state of a job has, 0 where that is not known."""
    table = get_table(job, "iterations", "each")
    return table.frame.height if table else 0


def _compare_iterations(first: ComparedJob, second: ComparedJob) -> dict[str, Table]:
    """Return the median iteration of both jobs, part by part, and their iterations one by one, in
    their order from the first: as many as both have.
    """
    pair = get_tables((first, second), "iterations", "each")
    if None in pair:
        return {}
    columns = {"time_ns": "whole iteration", **PARTS}
    medians = pl.DataFrame(
        {
            "part": columns.values(),
            "a_ns": [pair[0].frame[column].median() for column in columns],
            "b_ns": [pair[1].frame[column].median() for column in columns],
        }
    ).with_columns(
        change_ns=pl.col("b_ns") - pl.col("a_ns"), change_share=divide_columns("b_ns", "a_ns") - 1
    )
    shown = ("time_ns", "exposed_nccl_ns")
    frames = [
        table.frame.select("iteration", pl.col(shown).name.prefix(f"{job}_"))
        for job, table in zip("ab", pair, strict=True)
    ]
    each = frames[0].join(frames[1], on="iteration", how="inner", maintain_order="left")
    each = _add_changes(each, ["iteration"], shown)
    return {
        "iteration": Table(
            "Median iteration of the steady state: how a GPU spends its time", medians
        ),
        "by_iteration": Table(
            "Iterations of the steady state by number, largest change first", each
        ),
    }


def get_table(job: ComparedJob, analysis: str, table: str) -> Table | None:
    """Return a table, None where the job, of a file perhaps that --only wrote, has none."""
    return job.results[analysis].tables.get(table) if analysis in job.results else None


def get_tables(jobs: Sequence[ComparedJob], analysis: str, table: str) -> list[Table | None]:
    """Return a table of several jobs, as :func:`get_table` does."""
    return [get_table(job, analysis, table) for job in jobs]


def _describe_jobs(first: ComparedJob, second: ComparedJob) -> pl.DataFrame:
    elapsed = [job.duration / 1e9 for job in (first, second)]
    rows: list[tuple[str, float | None, float | None]] = [("elapsed (s)", *elapsed)]
    rows += [
        (name, first.description[name], second.description[name]) for name in ("ranks", "devices")
    ]
    for table in ("device", "host"):
        pair = get_tables((first, second), "efficiencies", table)
        if None not in pair:
            before, after = (one_table.frame.row(0, named=True) for one_table in pair)
            rows += [
                (
                    f"{table}s: {name.removeprefix('host_').replace('_', ' ')} (%)",
                    *(None if one is None else 100 * one for one in (value, after.get(name))),
                )
                for name, value in before.items()
                if name.endswith("efficiency")
            ]
    schema = {"figure": pl.String, "a": pl.Float64, "b": pl.Float64}
    frame = pl.DataFrame(rows, schema=schema, orient="row", strict=False)
    return frame.with_columns(change_share=divide_columns("b", "a") - 1)


def _join_by_place(
    first: pl.DataFrame, second: pl.DataFrame, key: str, values: Sequence[str]
) -> pl.DataFrame:
    """Return both jobs' devices or ranks, as many in each, largest change of the first value first:
    those of the same name beside each other or, where a name is in one job alone, in their order.
    """
    shared_values = [name for name in values if name in first.columns and name in second.columns]
    first, second = (
        frame.select(
            pl.col(key).alias(f"{key}_{job}"), pl.col(shared_values).name.prefix(f"{job}_")
        )
        for job, frame in (("a", first), ("b", second))
    )
    if set(first[f"{key}_a"]) == set(second[f"{key}_b"]):
        joined = first.join(
            second, left_on=f"{key}_a", right_on=f"{key}_b", maintain_order="left"
        ).rename({f"{key}_a": key})
    else:
        joined = pl.concat([first, second], how="horizontal")
    places = [name for name in joined.columns if name.startswith(key)]
    return _add_changes(joined, places, shared_values)


def _add_changes(joined: pl.DataFrame, keys: Sequence[str], values: Sequence[str]) -> pl.DataFrame:
    """Return keys, and each value of job A and of job B with its change; largest change of the
    first value first.
    """
    changes = {f"change_of_{name}": pl.col(f"b_{name}") - pl.col(f"a_{name}") for name in values}
    columns = [f"{job}{name}" for name in values for job in ("a_", "b_", "change_of_")]
    ordered = joined.with_columns(**changes).select(*keys, *columns)
    largest = pl.col(f"change_of_{values[0]}").abs()
    return ordered.sort(largest, descending=True, maintain_order=True)


def _join_by_key(
    first: pl.DataFrame,
    second: pl.DataFrame,
    keys: Sequence[str],
    count: str,
    value: str,
    steps: tuple[int, int] = (0, 0),
) -> pl.DataFrame:
    """Return both jobs' rows by key, largest change first; what one job lacks counts as 0. steps:
    how many iterations they have, 0 for unknown; where these differ, the change is that of an
    iteration.
    """

    def summed(frame: pl.DataFrame, suffix: str) -> pl.DataFrame:
        counted = pl.col(count).sum() if count else pl.len()
        grouped = frame.group_by(keys, maintain_order=True)
        return grouped.agg(
            counted.cast(pl.Int64).alias(f"count_{suffix}"),
            pl.col(value).sum().alias(f"{suffix}_ns"),
        )

    joined = summed(first, "a").join(
        summed(second, "b"),
        on=keys,
        how="full",
        coalesce=True,
        nulls_equal=True,
        maintain_order="left_right",
    )
    joined = joined.with_columns(pl.col("count_a", "count_b", "a_ns", "b_ns").fill_null(0))
    joined = joined.with_columns(
        change_ns=pl.col("b_ns") - pl.col("a_ns"), change_share=divide_columns("b_ns", "a_ns") - 1
    )
    change = "change_ns"
    if 0 < steps[0] != steps[1] > 0:
        change = "change_of_iteration_ns"
        joined = joined.with_columns(
            a_of_iteration_ns=pl.col("a_ns") / steps[0], b_of_iteration_ns=pl.col("b_ns") / steps[1]
        ).with_columns(
            change_of_iteration_ns=pl.col("b_of_iteration_ns") - pl.col("a_of_iteration_ns")
        )
    return joined.sort(pl.col(change).abs(), descending=True, maintain_order=True)


def compare_scaling(jobs: Sequence[ComparedJob], strong: bool) -> Result:
    """Return how efficiencies change over jobs, relative to the first. Global efficiency = parallel
    efficiency x computation scalability.
    """
    tables = get_tables(jobs, "efficiencies", "device")
    rows = [table and table.frame.row(0, named=True) for table in tables]
    if None in rows:
        lacking = ", ".join(
            str(job.description["name"]) for job, row in zip(jobs, rows, strict=True) if row is None
        )
        return Result(
            "scaling", "Scalability", missing=[f"scalability: no work on devices in {lacking}"]
        )
    computation = compute_scalability(
        [row["useful_ns"] for row in rows], [row["devices"] for row in rows], strong
    )
    efficiencies = [name for name in rows[0] if name.endswith("efficiency")]
    frame = pl.DataFrame(
        {
            "run": [str(job.description["name"]) for job in jobs],
            "devices": [row["devices"] for row in rows],
            "elapsed_ns": [row["elapsed_ns"] for row in rows],
            "speedup": [rows[0]["elapsed_ns"] / row["elapsed_ns"] for row in rows],
            "computation_scalability": computation,
            **{name: [row[name] for row in rows] for name in efficiencies},
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
