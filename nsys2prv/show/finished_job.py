"""A job whose analyses are done: what pages show, what comparisons and studies compare, and what a JSON
file holds; and the comparison of two such jobs of the same size: what got faster or slower.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from msgspec import Struct, ValidationError, convert, to_builtins

from nsys2prv._util.errors import Nsys2prvError
from nsys2prv._util.text import format_count, format_nanoseconds, list_some
from nsys2prv.export.report_files import explain_foreign_file
from nsys2prv.figures.efficiency_times import MPI_TIME
from nsys2prv.figures.iteration_times import PARTS
from nsys2prv.figures.result import (
    DECLARED,
    Finding,
    Result,
    Table,
    divide_columns,
    group_findings,
)
from nsys2prv.figures.study_model import Metrics, list_known_rows, name_metrics

if TYPE_CHECKING:
    from nsys2prv.show.page.excerpts import Excerpts

#: Says what a JSON file is; another number when its tables mean something else.
FORMAT = "nsys2prv report 1"
#: Ending of files that hold a report or a study.
JSON = ".json"
#: Times that differ by a smaller share are alike; iterations that take longer than this multiple of the
#: median are outliers.
ALIKE, OUTLIER = 0.005, 1.5
#: What the whole iteration is called beside its parts.
WHOLE = "whole iteration"
#: Columns of the iterations that are compared one by one.
ITERATION_VALUES = ("time_ns", "exposed_nccl_ns")
#: The change from `a_ns` to `b_ns`.
CHANGE = (
    (pl.col("b_ns") - pl.col("a_ns")).alias("change_ns"),
    (divide_columns("b_ns", "a_ns") - 1).alias("change_share"),
)
#: Tables of two jobs that are compared, and those of them with a row for each device or rank.
COMPARED, PLACES = (DECLARED["difference"].terms[name] for name in ("compared", "places"))


class FinishedJob(Struct, frozen=True):
    """A job, of reports or of a file that `report --json` wrote, with its results."""

    #: What it is: `name`, `duration_ns`, `devices`, `ranks`, ... as `OpenJob.describe` has it.
    description: dict[str, Any]
    #: Results by the name of their analysis.
    results: Mapping[str, Result]
    #: What a page shows of its events, None where these are not at hand.
    excerpts: Excerpts | None = None

    def to_json(self) -> str:
        """Return everything, for scripts: tables as columns."""
        analyses = {}
        for name, result in self.results.items():
            content = to_builtins(result, enc_hook=lambda frame: frame.to_dict(as_series=False))
            analyses[name] = {key: content[key] for key in ("title", "notes", "missing", "tables")}
        whole = self.results.values()
        every = [one for result in whole for one in result.findings]
        found = self.findings if "findings" in self.results else every
        content = {"format": FORMAT, "job": self.description}
        content |= {"findings": [one.as_dict() for one in found], "analyses": analyses}
        return json.dumps(content, allow_nan=False)

    @classmethod
    def read(cls, path: Path) -> FinishedJob:
        """Read the file that `report --json` wrote. Raises Nsys2prvError for any other file."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if foreign := "traceEvents" in content and explain_foreign_file(path):
                raise foreign
            if content["format"] != FORMAT:
                raise ValueError
            results = {
                name: convert(
                    {"name": name, **one},
                    Result,
                    dec_hook=lambda kind, columns: kind(columns, strict=False),
                )
                for name, one in content["analyses"].items()
            }
            if "findings" in results:
                results["findings"].findings.extend(map(Finding.from_dict, content["findings"]))
            return cls(content["job"], results)
        except OSError as error:
            raise Nsys2prvError(f"{path}: {error.strerror or error}") from None
        except (ValueError, KeyError, TypeError, RecursionError, ValidationError):
            raise Nsys2prvError(f"{path}: not written by nsys2prv report --json") from None

    @property
    def duration(self) -> int:
        """Duration of the job (ns)."""
        return int(self.description.get("duration_ns", 0))

    @property
    def length(self) -> int:
        """Length of the job without what only helpers have (ns)."""
        return int(self.description.get("job_ns", self.duration))

    def find_frame(self, analysis: str, name: str) -> pl.DataFrame | None:
        """Return the figures of a table, None where the job, of a file perhaps that --only wrote, has
        none.
        """
        tables = self.results[analysis].tables if analysis in self.results else {}
        return tables[name].frame if name in tables else None

    def find_row(self, analysis: str, name: str) -> dict[str, Any]:
        """Return the first row of a table by its columns, empty where the job has none."""
        frame = self.find_frame(analysis, name)
        return {} if frame is None or frame.is_empty() else frame.row(0, named=True)

    @property
    def findings(self) -> Sequence[Finding]:
        """The findings, by groups, the most costly first in each."""
        return self.results["findings"].findings if "findings" in self.results else []

    @property
    def bottlenecks(self) -> Sequence[Finding]:
        """The findings, but for what happens once."""
        return [one for one in self.findings if not one.happens_once]

    @property
    def first_findings(self) -> Sequence[Finding]:
        """The findings of the group that comes first; empty for none."""
        return next((own for _, own in group_findings(self.findings)), [])

    @property
    def metrics(self) -> Metrics:
        """The efficiencies by part; none where they were not computed."""
        return name_metrics(*(self.find_row("efficiencies", one) for one in ("device", "host")))

    @property
    def time_in_mpi(self) -> tuple[str, float] | None:
        """Return the time in which ranks are in MPI, as efficiencies have it: of which time, and its
        share; None where that is not known.
        """
        host = self.find_row("efficiencies", "host")
        efficiency = host.get("mpi_parallel_efficiency")
        if efficiency is None:
            return None
        part = host["part"]
        return (f"time from {part}" if part == MPI_TIME else part), 1 - efficiency

    @property
    def lanes(self) -> pl.DataFrame:
        """The lanes, as `time.lanes` of time_division.py has them; empty for none."""
        frame = self.find_frame("time", "lanes")
        return pl.DataFrame() if frame is None else frame

    @property
    def steady(self) -> Mapping[str, Any] | None:
        """The steady state, None for none: `begin_ns`, `end_ns`, `iterations`, and `activity`, by what
        these were found.
        """
        phases = self.find_frame("findings", "phases")
        if phases is not None:
            rows = phases.filter(phase="steady state").rows(named=True)
            return {**rows[0], "end_ns": rows[0]["begin_ns"] + rows[0]["time_ns"]} if rows else None
        focus = self.find_row("efficiencies", "focus")
        return {**focus, "activity": focus["found_by"]} if focus.get("iterations") else None

    @property
    def span(self) -> tuple[int, int]:
        """Begin and end of the steady state, or of the whole job (ns)."""
        steady = self.steady
        return (steady["begin_ns"], steady["end_ns"]) if steady else (0, self.duration)

    @property
    def part(self) -> tuple[str, int]:
        """Part of the job that shares of time relate to, and its length (ns)."""
        begin, end = self.span
        if begin > 0 or end < self.duration:
            return "the steady state", end - begin
        covered = int(self.description.get("covered_ns", self.duration))
        whole = "the captured time" if covered < self.duration else "the job"
        return whole, covered

    @property
    def iterations(self) -> list[int]:
        """Begins of the iterations of the steady state, and the end of the last one (ns)."""
        each = self.find_frame("time", "by_iteration")
        if each is None or not self.steady:
            return []
        return [*each.filter(pl.col("lane") == pl.col("lane").min())["begin_ns"], self.span[1]]

    @property
    def typical_length(self) -> int:
        """Time of the median iteration, or of the job (ns)."""
        return int(np.median(np.diff(self.iterations or self.span)))


# ---- comparing two jobs ---------------------------------------------------------------------------


def describe_change(
    difference: Result, first: FinishedJob, second: FinishedJob
) -> tuple[float, str]:
    """Return by how much longer the second job takes (0.22: by 22 %; negative: shorter), and a
    sentence that says so, which iterations are far from the median, and what changed most. Jobs that
    both have a steady state are compared by its median iteration. difference: as :func:`compare_jobs`
    returns it.
    """
    jobs = first, second
    tables = {name: table.frame for name, table in difference.tables.items()}
    each = _find_frames(jobs, "iterations", "each")
    unit, where = ("the median iteration", "per GPU") if each else ("the job", "over all GPUs")
    before, after = (job.length for job in jobs)
    if each:
        before, after = (frame["time_ns"].median() for frame in each)
    change = after / before - 1 if before else 0.0
    how = f"{100 * abs(change):.1f} % {'longer' if change > 0 else 'less time'} than"
    if abs(change) < ALIKE:
        how = "as long as"
    head = f"B takes {how} A: {unit} takes {format_nanoseconds(after)} (A: {format_nanoseconds(before)})"
    parts = []
    if each:
        if each[0].height != each[1].height:
            head += f"; B has {each[1].height:,} iterations, A has {each[0].height:,}"
        outliers = [*_list_outliers(each[0], "A"), *_list_outliers(each[1], "B")]
        if outliers:
            head += f"; more than {OUTLIER:g} times the median: {', '.join(outliers)}"
        medians = tables["iteration"].filter(pl.col("part") != WHOLE)
        parts = medians.select("part", "change_ns").fill_null(0).rows()
    elif "overlap_operations" in tables:
        parts.append(("exposed communication", tables["overlap_operations"]["change_ns"].sum()))
    if not each and "kernels_classes" in tables:
        classes = tables["kernels_classes"].filter(pl.col("class") != "Communication")
        parts += classes.select(pl.format("{} kernels", "class"), "change_ns").rows()
    changes = [
        f"{name} {'+' if change > 0 else '-'}{format_nanoseconds(abs(change))}"
        for name, change in sorted(parts, key=lambda item: -abs(item[1]))[:3]
        if change
    ]
    return change, head + (f"; {where}: {', '.join(changes)}" if changes else "")


def warn_of_differences(first: FinishedJob, second: FinishedJob) -> list[str]:
    """Return what keeps figures of two jobs from being compared: other numbers of ranks or GPUs, or
    other GPUs, a line each.
    """
    jobs = (first.description, second.description)
    warnings = []
    for name, noun in (("ranks", "rank"), ("devices", "GPU")):
        a, b = (format_count(int(job[name]), noun) for job in jobs)
        if a != b:
            warnings.append(f"A has {a}, B has {b}: times over all of them do not compare")
    a, b = (", ".join(sorted(job.get("gpu_models") or {})) for job in jobs)
    if a and b and a != b:
        warnings.append(f"A ran on {a}, B on {b}: not the same GPUs")
    return warnings


def _find_frames(
    jobs: Sequence[FinishedJob], analysis: str, table: str
) -> list[pl.DataFrame] | None:
    """Return a table of several jobs, None where one of them has none."""
    frames = [job.find_frame(analysis, table) for job in jobs]
    return None if any(one is None for one in frames) else frames


def _list_outliers(each: pl.DataFrame, name: str) -> list[str]:
    """Return the iterations that take far longer than the median, the longest first."""
    far = each.filter(pl.col("time_ns") > OUTLIER * pl.col("time_ns").median())
    far = far.sort("time_ns", descending=True, maintain_order=True).select("iteration", "time_ns")
    named = [f"{number} ({format_nanoseconds(time)})" for number, time in far.rows()]
    return [f"{name}'s iteration {list_some(named)}"] if named else []


def compare_jobs(first: FinishedJob, second: FinishedJob) -> Result:
    """Compare two jobs in tables: times and counts by kernel, class, operation and NVTX range.
    Changes are of the second from the first.
    """
    jobs = first, second
    result = Result("difference", "Difference of two jobs", notes=warn_of_differences(*jobs))
    a, b = (job.description["name"] for job in jobs)
    result.add("job", _describe_jobs(jobs), a=a, b=b)
    each, steps = _find_frames(jobs, "iterations", "each"), [0, 0]
    if each:
        # Tables are of the whole job, with warm-up.
        focus = _find_frames(jobs, "efficiencies", "focus")
        steps = [one["iterations_of_job"][0] for one in focus or ()] or [one.height for one in each]
        result.add("iteration", _compare_medians(each))
        result.add("by_iteration", _join_places(each, "iteration", ITERATION_VALUES))
    for analysis, name, keys, count, values in COMPARED:
        if frames := _find_frames(jobs, analysis, name):
            value = next(one for one in values if all(one in frame.columns for frame in frames))
            title = first.results[analysis].tables[name].title
            if (joined := _join_by_key(frames, keys, count, value, steps)).height:
                result.tables[f"{analysis}_{name}"] = Table(title, joined)
            continue
        lacking = [job.find_frame(analysis, name) is None for job in jobs]
        if not all(lacking):
            has_none = "AB"[lacking.index(True)]
            result.notes.append(f"{analysis}, {name}: {has_none} has none, not compared")
    for analysis, name, key, values in PLACES:
        if frames := _find_frames(jobs, analysis, name):
            a, b = (frame.height for frame in frames)
            if a == b:
                result.add(f"by_{key}", _join_places(frames, key, values))
            else:
                note = f"{analysis}, {name}: {a:,} in A, {b:,} in B, not compared one by one"
                result.notes.append(note)
    return result


def _compare_medians(each: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return the median iteration of both jobs, part by part. each: their iterations."""
    shared = {*each[0].columns} & {*each[1].columns}
    columns = {one: name for one, name in {"time_ns": WHOLE, **PARTS}.items() if one in shared}
    medians = {
        f"{job}_ns": [frame[column].median() for column in columns]
        for job, frame in zip("ab", each, strict=True)
    }
    return pl.DataFrame({"part": columns.values(), **medians}).with_columns(CHANGE)


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


def _join_places(frames: Sequence[pl.DataFrame], key: str, values: Sequence[str]) -> pl.DataFrame:
    """Return each value of both jobs' devices, ranks or iterations, with its change, largest change
    of the first value first: those of the same name beside each other or, where as many have other
    names, in their order.
    """
    values = [name for name in values if all(name in frame.columns for frame in frames)]
    first, second = (
        frame.select(key, pl.col(values).name.prefix(f"{job}_"))
        for job, frame in zip("ab", frames, strict=True)
    )
    keys = [key]
    if first.height != second.height or set(first[key]) == set(second[key]):
        joined = first.join(second, on=key, maintain_order="left")
    else:
        keys = [f"{key}_a", f"{key}_b"]
        named = (
            frame.rename({key: name}) for frame, name in zip((first, second), keys, strict=True)
        )
        joined = pl.concat(named, how="horizontal")
    changes = {f"change_of_{name}": pl.col(f"b_{name}") - pl.col(f"a_{name}") for name in values}
    columns = [f"{job}{name}" for name in values for job in ("a_", "b_", "change_of_")]
    largest = pl.col(f"change_of_{values[0]}").abs()
    joined = joined.with_columns(**changes).select(*keys, *columns)
    return joined.sort(largest, descending=True, maintain_order=True)


def _join_by_key(
    frames: Sequence[pl.DataFrame],
    keys: Sequence[str],
    count: str,
    value: str,
    steps: Sequence[int],
) -> pl.DataFrame:
    """Return both jobs' rows by key, largest change first; what one job lacks counts as 0. steps:
    how many iterations they have, 0 for unknown; where these differ, the change is that of an
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
