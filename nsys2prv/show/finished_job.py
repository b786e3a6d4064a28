"""Represent a job with finished analyses, from which pages, comparisons, studies and JSON files are
made.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
import polars as pl
from msgspec import Struct, ValidationError, convert, to_builtins

from nsys2prv._util.errors import Nsys2prvError
from nsys2prv.export.report_files import explain_foreign_file
from nsys2prv.figures.efficiency_times import MPI_TIME
from nsys2prv.figures.result import Finding, Result, group_findings
from nsys2prv.figures.study_model import Metrics, name_metrics

if TYPE_CHECKING:
    from nsys2prv.show.page.excerpts import Excerpts

#: Format of a JSON file; the number changes when its tables change their meaning.
FORMAT = "nsys2prv report 1"
#: Ending of files with a report or a study.
JSON = ".json"


class JobFacts(TypedDict, total=False):
    """Facts about a job, such as its ranks, nodes and GPUs: `job` in JSON."""

    #: Its name: its first report, and the number of others.
    name: str
    #: Title given by the user (`--title`).
    title: str
    #: Paths of the reports.
    reports: list[str]
    #: Length of the trace (ns).
    duration_ns: int
    #: Length of the job without times in which only helpers run (ns).
    job_ns: int
    #: The time that the reports of all processes cover (ns).
    covered_ns: int
    #: Number of processes without helpers.
    processes: int
    #: Number of ranks.
    ranks: int
    #: Sources of the rank numbers.
    ranks_by: list[str]
    #: Number of GPUs with work.
    devices: int
    #: Names of the programs that ranks run.
    programs: list[str]
    #: Names of the hosts.
    nodes: list[str]
    #: Layout of records -> their number.
    records: dict[str, int]
    #: Beginning of the trace (UTC), or "" if not recorded.
    begins_utc: str
    #: GPU model -> number of these GPUs in the hosts.
    gpu_models: dict[str, int]
    #: Maximum clocks of these GPUs (Hz); empty if not recorded.
    gpu_clocks_hertz: list[int]
    #: Part of the machine -> its descriptions in reports.
    machine: dict[str, list[str]]
    #: Versions of NVIDIA's driver.
    drivers: list[str]
    #: Versions of the Nsight Systems that recorded the reports.
    recorded_by: list[str]
    #: Versions of the Nsight Systems that exported them.
    exported_by: list[str]
    #: Missing or lost data of reports: `kind`, `text`, `advice`.
    quality: list[dict[str, Any]]
    #: Results of comparing ranks, a line each.
    notes: list[str]
    #: Warnings about the reports and their clocks, a line each.
    warnings: list[str]


class FinishedJob(Struct, frozen=True):
    """A job with its results, from reports or from a file written by `report --json`."""

    #: Its description: JobFacts from `OpenJob.describe`, or the comparison of two jobs.
    description: dict[str, Any]
    #: Results by the name of their analysis.
    results: Mapping[str, Result]
    #: Events for a page, or None if not available.
    excerpts: Excerpts | None = None

    def to_json(self) -> str:
        """Return everything as JSON, with tables as columns."""
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
        """Read a file written by `report --json`. Raise Nsys2prvError for any other file."""
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
        """Length of the job (ns), without times in which only helpers run."""
        return int(self.description.get("job_ns", self.duration))

    def find_frame(self, analysis: str, name: str) -> pl.DataFrame | None:
        """Return a table of an analysis as a frame, or None if it does not exist, for example in a
        file written with --only. name: of the table.
        """
        tables = self.results[analysis].tables if analysis in self.results else {}
        return tables[name].frame if name in tables else None

    def find_row(self, analysis: str, name: str) -> dict[str, Any]:
        """Return the first row of a table of an analysis as column -> value; empty without a row.
        name: of the table.
        """
        frame = self.find_frame(analysis, name)
        return {} if frame is None or frame.is_empty() else frame.row(0, named=True)

    @property
    def findings(self) -> Sequence[Finding]:
        """The findings by group, the most expensive first in each."""
        return self.results["findings"].findings if "findings" in self.results else []

    @property
    def first_findings(self) -> Sequence[Finding]:
        """The findings of the first group (usually the causes of lost time), or none."""
        return next((own for _, own in group_findings(self.findings)), [])

    @property
    def metrics(self) -> Metrics:
        """The efficiencies by part of the job; empty if they were not computed."""
        return name_metrics(*(self.find_row("efficiencies", one) for one in ("device", "host")))

    @property
    def programs(self) -> list[str]:
        """The programs of the ranks, without folders; empty if unknown."""
        return sorted({PurePath(one).name for one in self.description.get("programs") or ()})

    @property
    def clock(self) -> tuple[float, bool] | None:
        """The clock of the GPUs as (Hz, True) if it was sampled during computation, or (Hz, False)
        if it is their maximum clock. None if unknown, or if GPUs differ.
        """
        if sampled := self.find_row("efficiencies", "instructions").get("clock_hertz"):
            return sampled, True
        greatest = self.description.get("gpu_clocks_hertz") or ()
        return (greatest[0], False) if len(greatest) == 1 else None

    @property
    def time_in_mpi(self) -> tuple[str, float] | None:
        """Return the share of time that ranks spend in MPI, as in the efficiencies, as (name of the
        time that it is a share of, share from 0 to 1); None if unknown.
        """
        host = self.find_row("efficiencies", "host")
        efficiency = host.get("mpi_parallel_efficiency")
        if efficiency is None:
            return None
        part = host["part"]
        return (f"time from {part}" if part == MPI_TIME else part), 1 - efficiency

    @property
    def lanes(self) -> pl.DataFrame:
        """The division of time for each GPU or rank (lane), from `time.lanes` in time_division.py;
        may be empty.
        """
        frame = self.find_frame("time", "lanes")
        return pl.DataFrame() if frame is None else frame

    @property
    def steady(self) -> Mapping[str, Any] | None:
        """The steady state, or None: `begin_ns`, `end_ns`, `iterations`, and the `activity` by
        which they were identified.
        """
        phases = self.find_frame("findings", "phases")
        if phases is not None:
            rows = phases.filter(phase="steady state").rows(named=True)
            return {**rows[0], "end_ns": rows[0]["begin_ns"] + rows[0]["time_ns"]} if rows else None
        focus = self.find_row("efficiencies", "focus")
        return {**focus, "activity": focus["found_by"]} if focus.get("iterations") else None

    @property
    def span(self) -> tuple[int, int]:
        """Start and end of the steady state, or of the whole job (ns)."""
        steady = self.steady
        return (steady["begin_ns"], steady["end_ns"]) if steady else (0, self.duration)

    @property
    def part(self) -> tuple[str, int]:
        """The name of the part of the job to which shares of time refer, and its length (ns)."""
        begin, end = self.span
        if begin > 0 or end < self.duration:
            return "the steady state", end - begin
        return self.whole

    @property
    def whole(self) -> tuple[str, int]:
        """The name of the part of the job to which shares of one-time costs refer, and its length
        (ns).
        """
        covered = int(self.description.get("covered_ns", self.duration))
        return "the captured part of the job" if covered < self.duration else "the job", covered

    @property
    def iterations(self) -> list[int]:
        """Starts of the iterations in the steady state, and the end of the last one (ns)."""
        each = self.find_frame("time", "by_iteration")
        if each is None or not self.steady:
            return []
        return [*each.filter(pl.col("lane") == pl.col("lane").min())["begin_ns"], self.span[1]]

    @property
    def typical_length(self) -> int:
        """Duration of the median iteration, or of the job (ns)."""
        return int(np.median(np.diff(self.iterations or self.span)))
