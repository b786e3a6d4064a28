"""A study: several runs of one program with their efficiencies, as plain data that JSON holds; the
figures of POP's efficiencies (rows.yaml), which reports and studies show alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import polars as pl
from msgspec import Meta, Struct, ValidationError, convert, field, to_builtins

from nsys2prv._util.errors import Nsys2prvError
from nsys2prv._util.files import load_shipped_file

#: Says what a JSON file is; another number when its figures mean something else.
FORMAT = "nsys2prv study 1"
#: Parts of figures of hosts that columns of tables begin with, and what these end with.
PARTS, EFFICIENCY = ("mpi", "openmp", "host"), "_efficiency"
#: Figures by part (`device`, `host`, `mpi`, `openmp`), and some without a part. What is not known
#: is not there. Efficiencies and scalabilities are fractions of 1.
Metrics = dict[str, Any]
#: From these fractions on an efficiency is good, and fair. POP takes less than 80 % for worth a
#: look, BSC's BasicAnalysis less than 60 % for critical.
GOOD, FAIR = 0.8, 0.6
#: Ends of paths of load balance within nodes, and between them.
BETWEEN_NODES = ("_in", "_out")
#: How an efficiency is rated -> the sign behind it, where no colours are.
SIGNS = {"good": "", "fair": "-", "poor": "!"}


class Row(Struct, frozen=True):
    """A figure of a run."""

    #: What JSON calls it: `speedup`, or `device.parallel` for a figure of a part of the run.
    path: str
    #: 0 for the outermost of a tree of efficiencies.
    depth: int
    #: As BSC and TALP name it.
    name: str
    #: How it is defined.
    about: str
    #: Its name below what it is a factor of, if that is enough there.
    short: str = ""

    @property
    def is_efficiency(self) -> bool:
        """True for a fraction that is 1 at best."""
        return self.path not in ("elapsed_ns", "speedup")

    @property
    def label(self) -> str:
        """Its name below what it is a factor of."""
        return self.short or self.name

    @property
    def bare_name(self) -> str:
        """Its name where it is clear whose efficiency it is."""
        return self.name.removeprefix("Device ").removeprefix("MPI ").removesuffix(" efficiency")

    def find_value(self, metrics: Mapping[str, Any]) -> float | None:
        """Return the figure among those of a run or region, None where it is not known."""
        part, _, key = self.path.rpartition(".")
        return (metrics.get(part) or {} if part else metrics).get(key)


#: All figures, in the order in which they are shown.
ROWS = tuple(Row(path, *rest) for path, rest in load_shipped_file(__package__, "rows.yaml").items())
ROW_OF = {row.path: row for row in ROWS}


def rate_efficiency(value: float) -> str:
    """Return whether an efficiency, as it is printed (79.96 % is 80.0 %), is good, fair or poor."""
    printed = round(value, 3)
    return "good" if printed >= GOOD else "fair" if printed >= FAIR else "poor"


def format_efficiency(value: float | None) -> str:
    """Return an efficiency with the sign of its rating, or a blank, behind it."""
    return f"{100 * value:.1f} %{SIGNS[rate_efficiency(value)]:1}" if value is not None else "- "


def list_known_rows(figures: Sequence[Mapping[str, Any]]) -> list[tuple[Row, list[float | None]]]:
    """Return the rows of which any of these runs or regions has a figure, with their figures; those
    within and between nodes where there are several nodes.
    """
    found = [(row, [row.find_value(one) for one in figures]) for row in ROWS]
    between = [values for row, values in found if row.path.endswith(BETWEEN_NODES[1])]
    if not any(value not in (None, 1.0) for values in between for value in values):
        found = [(row, values) for row, values in found if not row.path.endswith(BETWEEN_NODES)]
    return [(row, values) for row, values in found if any(one is not None for one in values)]


class Interval(Struct, frozen=True):
    """The focus of analysis of a run."""

    #: Begin and end (ns of the trace).
    begin_ns: int
    end_ns: int
    #: Number of iterations, 0 where it is not made of iterations.
    iterations: int
    #: What it is, for people.
    what: str


class Run(Struct, kw_only=True):
    """A run of the program."""

    #: As it was given: a folder, a report, a pattern.
    name: str
    #: What people call it.
    label: str = ""
    ranks: int
    #: GPUs with work, and nodes.
    devices: int
    nodes: int
    #: How many GPUs of each model there are.
    gpu_models: dict[str, int] = field(default_factory=dict)
    #: The focus of analysis.
    interval: Interval
    #: Which host threads count, and what is useful on devices.
    threads: str = ""
    useful: str = ""
    #: Figures of an iteration, or of the interval where there are none; `elapsed_ns`, `speedup`,
    #: `efficiency` and those by part.
    metrics: Metrics = field(default_factory=dict)
    #: Time of each iteration (ns).
    iteration_ns: list[int] = field(default_factory=list)
    #: Figures by region, in the same form; `elapsed_ns` is that of devices in all iterations, `share`
    #: of the run's, `lost_ns` what an iteration loses in it, beyond the reference's.
    regions: dict[str, Metrics] = field(default_factory=dict)
    #: Which figures are not known, and why.
    missing: list[str] = field(default_factory=list)
    #: Times (ns) and counts of an iteration that scalabilities are made of, and by region.
    sums: dict[str, Any] = field(default_factory=dict)
    #: Findings of the run, as Finding.as_dict returns them; of the largest run alone.
    findings: list[dict[str, Any]] = field(default_factory=list)

    @property
    def units(self) -> int:
        """Number of GPUs, or of ranks where there are none, that speed-up is relative to."""
        return self.devices or self.ranks


class _Figures(Struct):
    """Figures of a run that others are computed from, in nanoseconds and fractions."""

    elapsed_ns: Annotated[float, Meta(gt=0)]
    useful_ns: float | None = None
    host_useful_ns: float | None = None
    device: dict[str, float] = field(default_factory=dict)
    host: dict[str, float] = field(default_factory=dict)


#: What each run of a study has at least: its figures, the sums of them, and its number of GPUs.
_COMPUTED = Annotated[
    list[tuple[_Figures, _Figures, Annotated[int, Meta(ge=0)]]], Meta(min_length=1)
]


class Scaling(Struct, frozen=True):
    """Growth of the work with the devices."""

    #: `strong`, `weak`, or None where it cannot be told.
    detected: str | None
    #: What the figures mean.
    used: str
    #: By what it was found, for people.
    why: str = ""


class Study(Struct):
    """Several runs of one program. :func:`nsys2prv.study` returns it; `runs` are in the order of their
    devices, nodes and ranks.
    """

    scaling: Scaling
    #: Name of the run that speed-up and scalability are relative to.
    reference: str
    #: Lines that begin with `warning: ` or `note: `.
    warnings: list[str]
    runs: list[Run]
    #: Regions that have figures, in the order in which they are shown.
    regions: list[str] = field(default_factory=list)
    format: str = FORMAT

    def to_dict(self) -> dict[str, Any]:
        """Return the study as plain data, for JSON."""
        return {"format": self.format, **to_builtins(self)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], source: str = "study") -> Study:
        """Return the study that :meth:`to_dict` wrote. source: what errors call it. Raises Nsys2prvError
        where it is none.
        """
        if content.get("format") != FORMAT:
            raise Nsys2prvError(f"{source}: is not the JSON of a study ({FORMAT})")
        try:
            study = convert(dict(content), cls)
            convert([(run.metrics, run.sums, run.devices) for run in study.runs], _COMPUTED)
        except ValidationError as error:
            raise Nsys2prvError(f"{source}: is damaged: {error}") from error
        return study

    def __repr__(self) -> str:
        runs = ", ".join(run.label or run.name for run in self.runs)
        return f"<Study of {runs}: {self.scaling.used} scaling; .table, .region_table, .markdown()>"

    def markdown(self) -> str:
        """Return the paragraph and tables of an assessment, in Markdown."""
        from nsys2prv.analysis.study.text import format_markdown

        return format_markdown(self.to_dict())

    def to_talp(self, folder: str | Path) -> list[Path]:
        """Write a file in the form of TALP for each run, for TALP-Pages; return their paths."""
        from nsys2prv.analysis.study.talp import write_talp_files

        return write_talp_files(self.to_dict(), Path(folder))

    def _repr_html_(self) -> str:
        from nsys2prv.analysis.page import Frame
        from nsys2prv.analysis.study.page import make_study_page

        return Frame(make_study_page(self.to_dict()))._repr_html_()

    @property
    def table(self) -> pl.DataFrame:
        """A row for each run: run, devices, nodes, ranks, and its figures, named as in
        `device_parallel`.
        """
        names = ("devices", "nodes", "ranks")
        rows = [
            {
                "run": run.label,
                **{name: getattr(run, name) for name in names},
                "iterations": run.interval.iterations,
                **_flatten(run.metrics),
            }
            for run in self.runs
        ]
        return pl.DataFrame(rows, infer_schema_length=None)

    @property
    def region_table(self) -> pl.DataFrame:
        """A row for each run and region, with its figures."""
        rows = [
            {"run": run.label, "devices": run.devices, "region": name, **_flatten(figures)}
            for run in self.runs
            for name in self.regions
            if (figures := run.regions.get(name)) is not None
        ]
        return pl.DataFrame(rows, infer_schema_length=None)

    @property
    def iterations(self) -> pl.DataFrame:
        """The time of each iteration of each run: run, iteration, time_ns."""
        frames = [
            pl.DataFrame({"run": run.label, "time_ns": run.iteration_ns}).with_row_index(
                "iteration", 1
            )
            for run in self.runs
            if run.iteration_ns
        ]
        return pl.concat(frames) if frames else pl.DataFrame()


def _flatten(metrics: Metrics, prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in metrics.items():
        is_part = isinstance(value, dict)
        flat |= _flatten(value, f"{name}_") if is_part else {f"{prefix}{name}": value}
    return flat


def name_metrics(device: Mapping[str, Any], host: Mapping[str, Any]) -> Metrics:
    """Return the efficiencies by part, of rows of the tables of devices and of hosts."""
    metrics: Metrics = {"device": {}, "host": {}}
    for part, row in (("device", device), ("host", host)):
        for column, value in row.items():
            if not column.endswith(EFFICIENCY) or value is None:
                continue
            first, _, rest = column.removesuffix(EFFICIENCY).partition("_")
            if first in PARTS:
                metrics.setdefault(first, {})[rest] = value
            else:
                metrics[part][column.removesuffix(EFFICIENCY)] = value
    return {name: figures for name, figures in metrics.items() if figures or name == "host"}
