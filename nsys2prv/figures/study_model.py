"""Represent several runs of one program and compare them; define the POP efficiencies (rows.yaml)
that reports and studies share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, TypeVar

import polars as pl
from msgspec import Meta, Struct, ValidationError, convert, field, to_builtins
from msgspec.structs import replace

from nsys2prv._util.errors import Nsys2prvError
from nsys2prv._util.files import load_shipped_file
from nsys2prv._util.text import escape_to_one_line, format_count, list_some
from nsys2prv.figures.result import OUTSIDE, Finding
from nsys2prv.figures.thresholds import FAIR, FALLEN, GOOD

#: Format of a JSON file; the number changes when its figures change their meaning.
FORMAT = "nsys2prv study 1"
#: Prefixes of columns for parts of host figures, and their suffix.
PARTS, EFFICIENCY = ("mpi", "openmp", "host"), "_efficiency"
#: Figures by part (`device`, `host`, `mpi`, `openmp`), and some without a part. Unknown figures are missing.
#: Efficiencies and scalabilities are fractions of 1.
Metrics = dict[str, Any]
#: Ends of paths of load balance within nodes, and between them.
BETWEEN_NODES = ("_in", "_out")
#: The efficiency of hosts that leave work to GPUs.
OFFLOAD = "host.offload"
#: Names of the first row for regions, for regions of runs without GPUs, and for runs without iterations.
GPU_TIME, HOST_TIME = "GPU time of an iteration", "Time of an iteration"
ELAPSED_TIME = "Elapsed time"
#: Efficiencies without factors that are explained -> kinds of findings that explain where they are low.
EXPLAINED_BY = {
    "load_balance": ("straggler", "slow_host", "imbalance", "cpu_waits", "hiccup"),
    "serialisation": ("serialisation", "pipeline_bubble", "hiccup", "straggler", "imbalance"),
    "transfer": ("exposed_communication", "slow_link", "in_mpi", "contention", "cpu_waits"),
    "communication": (
        "exposed_communication",
        "slow_link",
        "in_mpi",
        "pipeline_bubble",
        "straggler",
    ),
    "orchestration": (
        "host_bound",
        "host_work",
        "blocked_by_call",
        "exposed_copies",
        "hiccup",
        "idle",
    ),
    "computation_scalability": (
        "small_grids",
        "no_tensor_cores",
        "slow_products",
        "contention",
        "cpu_waits",
    ),
}
#: Groups of findings in the order of recommendations.
ORDER = ("causes", "limits", "once")
#: Rating of an efficiency -> the sign after it, if there are no colors.
SIGNS = {"good": "", "fair": "-", "poor": "!"}


class Row(Struct, frozen=True):
    """A row of a study: a value that every run has, such as an efficiency."""

    #: Its name in JSON: `speedup`, or `device.parallel` for a figure of a part of the run.
    path: str
    #: 0 for the outermost of a tree of efficiencies.
    depth: int
    #: As BSC and TALP name it.
    name: str
    #: Its definition.
    about: str
    #: Its name below the figure that it is a factor of, if that is sufficient there.
    short: str = ""

    @property
    def is_efficiency(self) -> bool:
        """True for a fraction with the best value 1."""
        return self.path not in ("elapsed_ns", "speedup")

    @property
    def label(self) -> str:
        """The name of the value, as shown below the value that it is a factor of."""
        return self.short or self.name

    @property
    def bare_name(self) -> str:
        """The name of the value without the owner of the efficiency (device, host), if that is
        clear from the context.
        """
        return self.name.removeprefix("Device ").removeprefix("MPI ").removesuffix(" efficiency")

    def find_value(self, metrics: Mapping[str, Any]) -> float | None:
        """Return this value from the metrics of a run or region, or None if unknown."""
        part, _, key = self.path.rpartition(".")
        return (metrics.get(part) or {} if part else metrics).get(key)


#: All figures, in the order in which they are shown.
ROWS = tuple(Row(path, *rest) for path, rest in load_shipped_file(__package__, "rows.yaml").items())
ROW_OF = {row.path: row for row in ROWS}
#: Figures side by side: of each row one for each run, or region.
Figures = list[tuple[Row, list[float | None]]]


def list_factors(path: str) -> list[str]:
    """Return the paths of the efficiencies whose product this efficiency is. path: of the
    efficiency.
    """
    at = ROWS.index(ROW_OF[path])
    below = takewhile(lambda row: row.depth > ROWS[at].depth, ROWS[at + 1 :])
    return [row.path for row in below if row.depth == ROWS[at].depth + 1]


def rate_efficiency(value: float) -> str:
    """Return the rating of an efficiency, rounded as it is printed (79.96% is 80.0%): good, fair or
    poor.
    """
    printed = round(value, 3)
    return "good" if printed >= GOOD else "fair" if printed >= FAIR else "poor"


def list_known_rows(figures: Sequence[Mapping[str, Any]]) -> Figures:
    """Return the rows of a study that have a value in any of these runs or regions, each with its
    values. Rows within and between nodes are included only if there are several nodes.
    """
    found = [(row, [row.find_value(one) for one in figures]) for row in ROWS]
    if any(row.path == OFFLOAD and any(values) for row, values in found):
        # OpenMP threads are not a factor of the main threads' offloading.
        own = [row.path.startswith("openmp.") for row, _ in found]
        apart = [
            (replace(row, depth=row.depth - 2), values)
            for (row, values), is_own in zip(found, own, strict=True)
            if is_own
        ]
        found = [one for one, is_own in zip(found, own, strict=True) if not is_own] + apart
    between = [values for row, values in found if row.path.endswith(BETWEEN_NODES[1])]
    if not any(value not in (None, 1.0) for values in between for value in values):
        found = [(row, values) for row, values in found if not row.path.endswith(BETWEEN_NODES)]
    return [(row, values) for row, values in found if any(one is not None for one in values)]


def nest_rows(figures: Figures) -> Figures:
    """Set the depth of rows to their place below the known values of which they are factors.
    figures: rows with values.
    """
    rows, above = [], []
    for row, values in figures:
        above = [depth for depth in above if depth < row.depth]
        rows.append((replace(row, depth=len(above)), values))
        above += [row.depth] if "." in row.path else []
    return rows


class Interval(Struct, frozen=True):
    """The part of a run that a study analyzes: its iterations, or the whole run."""

    #: Begin and end (ns of the trace).
    begin_ns: int
    end_ns: int
    #: Number of iterations; 0 if it does not consist of iterations.
    iterations: int
    #: Its name, as text.
    what: str


class Work(Struct, frozen=True):
    """Work of one kind per iteration on all ranks: kernels of a class, or communication of one
    operation.
    """

    #: Kernels, operations or calls of an iteration.
    count: float
    #: Their time (ns).
    time_ns: float
    #: Bytes sent, or None if unknown.
    bytes: float | None = None
    #: Time in which ranks wait for each other (ns), or None if unknown.
    waiting_ns: float | None = None


def compute_loss(metrics: Mapping[str, Any], elapsed_ns: float) -> float | None:
    """Return the time that devices lose (ns) because an efficiency is below 1, or None if unknown.
    metrics: of the run. elapsed_ns: time that they cover.
    """
    device = metrics.get("device", {})
    efficiency = device.get("global", device.get("parallel"))
    return None if efficiency is None else elapsed_ns * max(1 - efficiency, 0.0)


class Past(Struct, frozen=True):
    """An earlier study of the same program."""

    #: Its name, and the start of its first run (UTC), or "" if not recorded.
    name: str
    begins_utc: str
    #: Its figures by number of GPUs, nodes and ranks, as `4/1/4`: of an iteration, in the form of a run's.
    metrics: dict[str, Metrics]


class Run(Struct, kw_only=True):
    """A run of the program, with the values that a study compares."""

    #: As it was given: a folder, a report, a pattern.
    name: str
    #: Name for users.
    label: str = ""
    ranks: int
    #: GPUs with work, and nodes.
    devices: int
    nodes: int
    #: Number of GPUs of each model.
    gpu_models: dict[str, int] = field(default_factory=dict)
    #: Names of the programs that its ranks run.
    programs: list[str] = field(default_factory=list)
    #: Its environment and recording: figure -> text.
    environment: dict[str, str] = field(default_factory=dict)
    #: The focus of analysis.
    interval: Interval
    #: The host threads that count, and the useful work on devices.
    threads: str = ""
    useful: str = ""
    #: Figures of an iteration, or of the interval without iterations; `elapsed_ns`, `speedup`, `efficiency`
    #: and figures by part.
    metrics: Metrics = field(default_factory=dict)
    #: Time of each iteration (ns).
    iteration_ns: list[int] = field(default_factory=list)
    #: Standard errors of figures, as far as iterations differ, in the form of `metrics`.
    errors: Metrics = field(default_factory=dict)
    #: Phases of the whole run: name, begin and length (ns).
    phases: list[tuple[str, int, int]] = field(default_factory=list)
    #: The useful share of each GPU, or rank without any, in the focus.
    balance: dict[str, float] = field(default_factory=dict)
    #: GPU metric -> its mean over the whole run, as recorded.
    gpu_metrics: dict[str, float] = field(default_factory=dict)
    #: Figures by region, in the same form; `elapsed_ns` is the device time in all iterations, `share` its
    #: share of the run's, `lost_ns` the loss of an iteration in it beyond the reference's.
    regions: dict[str, Metrics] = field(default_factory=dict)
    #: Unknown figures, and the reasons.
    missing: list[str] = field(default_factory=list)
    #: `kernels` by class and `communication` by operation: amounts per iteration on all ranks.
    work: dict[str, dict[str, Work]] = field(default_factory=dict)
    #: Times (ns) and counts of an iteration that scalabilities are made of, and by region.
    sums: dict[str, Any] = field(default_factory=dict)
    #: Findings of the run, as Finding.as_dict returns them.
    findings: list[dict[str, Any]] = field(default_factory=list)

    @property
    def units(self) -> int:
        """Number of GPUs, or of ranks without GPUs, to which speedup refers."""
        return self.devices or self.ranks

    @property
    def shape(self) -> str:
        """Numbers of GPUs, nodes and ranks, which identify equal runs in several studies: `4/1/4`."""
        return f"{self.devices}/{self.nodes}/{self.ranks}"

    @property
    def size(self) -> str:
        """The number of GPUs (or ranks) as text."""
        return format_count(self.units, "GPU" if self.devices else "rank")

    @property
    def title(self) -> str:
        """The label of the run, or its path, on one line."""
        return escape_to_one_line(self.label or self.name)

    @property
    def focus(self) -> str:
        """Return the name of the time that the findings of the run would shorten."""
        return "steady state" if self.interval.iterations else "time"

    @property
    def focus_ns(self) -> float:
        """The length of the time that the values of the run cover (ns)."""
        return self.metrics["elapsed_ns"] * max(1, self.interval.iterations)

    @property
    def lost_ns(self) -> float | None:
        """The time that devices lose per iteration (ns), or None if unknown."""
        return compute_loss(self.metrics, self.metrics["elapsed_ns"])

    def find_value(self, path: str) -> float | None:
        """Return a value of the run by its path, or None if unknown."""
        return ROW_OF[path].find_value(self.metrics)

    def is_labelled_by_path(self) -> bool:
        """Return True if its label is the name of its folder or file."""
        path = Path(self.name).absolute()
        paths = (path, path.with_suffix(""), path.parent)
        return any(one.as_posix().endswith(f"/{self.title}") for one in paths)


class _Figures(Struct):
    """Values of a run from which others are computed, in ns and fractions."""

    elapsed_ns: Annotated[float, Meta(gt=0)]
    useful_ns: float | None = None
    host_useful_ns: float | None = None
    device: dict[str, float] = field(default_factory=dict)
    host: dict[str, float] = field(default_factory=dict)


#: Required fields of each run of a study: its figures, their sums, and its number of GPUs.
_COMPUTED = Annotated[
    list[tuple[_Figures, _Figures, Annotated[int, Meta(ge=0)]]], Meta(min_length=1)
]


class Scaling(Struct, frozen=True):
    """Growth of the work of a study's runs with the number of devices."""

    #: `strong`, `weak`, or None if undecided.
    detected: str | None
    #: Scaling used for the figures.
    used: str
    #: Evidence for it, as text.
    why: str = ""
    #: True if the work grows with the devices in only some runs.
    is_mixed: bool = False


T = TypeVar("T", bound="ComparedRuns")


class ComparedRuns(Struct):
    """Runs of one program and their values. `runs` are sorted by devices, nodes and ranks."""

    scaling: Scaling
    #: Name of the run that speedup and scalability are relative to.
    reference: str
    #: Lines that begin with `warning: ` or `note: `.
    warnings: list[str]
    runs: list[Run]
    #: Regions that have figures, in the order in which they are shown.
    regions: list[str] = field(default_factory=list)
    #: Earlier studies of the program, the first one first.
    history: list[Past] = field(default_factory=list)
    format: str = FORMAT

    def to_dict(self) -> dict[str, Any]:
        """Return the study as plain data, for JSON."""
        return {"format": self.format, **to_builtins(self)}

    @classmethod
    def from_dict(cls: type[T], content: Mapping[str, Any], source: str = "study") -> T:
        """Return a study from the data of :meth:`to_dict`. source: name for error messages. Raise
        Nsys2prvError if it is not a study.
        """
        if content.get("format") != FORMAT:
            raise Nsys2prvError(f"{source}: is not the JSON of a study ({FORMAT})")
        try:
            study = convert(dict(content), cls)
            convert([(run.metrics, run.sums, run.devices) for run in study.runs], _COMPUTED)
        except ValidationError as error:
            raise Nsys2prvError(f"{source}: is damaged: {error}") from error
        return study

    @property
    def table(self) -> pl.DataFrame:
        """A row for each run: run, devices, nodes, ranks, and its values, with names such as
        `device_parallel`.
        """
        rows = [
            {
                "run": run.label,
                **{name: getattr(run, name) for name in ("devices", "nodes", "ranks")},
                "iterations": run.interval.iterations,
                **run.metrics,
            }
            for run in self.runs
        ]
        return pl.json_normalize(rows, separator="_", infer_schema_length=None)

    @property
    def region_table(self) -> pl.DataFrame:
        """A row for each run and region, with its values."""
        rows = [
            {"run": run.label, "devices": run.devices, "region": name, **figures}
            for run in self.runs
            for name in self.regions
            if (figures := run.regions.get(name)) is not None
        ]
        return pl.json_normalize(rows, separator="_", infer_schema_length=None)

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

    @property
    def reference_run(self) -> Run:
        """The run with which the others are compared."""
        return next(run for run in self.runs if run.name == self.reference)

    @property
    def has_devices(self) -> bool:
        """Return True if any run has GPU work."""
        return any(run.devices for run in self.runs)

    @property
    def findings(self) -> list[Finding]:
        """The findings of the largest run about the time that the study analyzes."""
        run = self.runs[-1]
        found = map(Finding.from_dict, run.findings)
        return [one for one in found if not (run.interval.iterations and one.kind in OUTSIDE)]

    @property
    def missing(self) -> list[str]:
        """Return lines about values that are unknown in some runs, and why."""
        return self.list_lines(lambda run: [f"no {one}" for one in run.missing])

    @property
    def comparison(self) -> str:
        """Return a sentence that names the reference run, and describes how the work of the others
        grows.
        """
        reference = f"reference: {self.reference_run.title}"
        if len(self.runs) == 1:
            return "one run: its efficiencies, without scalability"
        if len({run.units for run in self.runs}) == 1:
            return reference
        why = f" ({self.scaling.why})" if self.scaling.why else ""
        return f"{self.scaling.used} scaling{why}; {reference}"

    def list_environment(self) -> list[tuple[str, list[str]]]:
        """Return (name, text for each run) about where and how the runs were executed and recorded;
        "" if unknown.
        """
        names = dict.fromkeys(name for run in self.runs for name in run.environment)
        return [(name, [run.environment.get(name, "") for run in self.runs]) for name in names]

    def list_work(self, sort: str) -> list[tuple[str, list[Work | None]]]:
        """Return (name, work in each run or None) for `kernels` by class or `communication` by
        operation (as `sort` says), per iteration, sorted by the largest time in any run.
        """
        each = [run.work.get(sort, {}) for run in self.runs]
        most: dict[str, float] = {}
        for own in each:
            for name, work in own.items():
                most[name] = max(most.get(name, 0.0), work.time_ns)
        names = sorted(most, key=lambda name: -most[name])
        return [(name, [own.get(name) for own in each]) for name in names]

    def estimate_chance(self, first: Run, last: Run, path: str) -> float:
        """Return by how much a value of two runs may differ by chance: two standard errors from the
        spread over iterations, or half the difference between repeats of one of them; for times, as
        a share. path: of the value.
        """
        row, errors, spreads = ROW_OF[path], [], []
        for run in (first, last):
            of_time = run.metrics["elapsed_ns"] if path == "elapsed_ns" else 1.0
            errors.append((row.find_value(run.errors) or 0.0) / of_time)
            alike = [one for one in self.runs if one.shape == run.shape]
            values = [value for one in alike if (value := one.find_value(path)) is not None]
            spreads.append((max(values) - min(values)) / of_time / 2 if values else 0.0)
        return max(2 * sum(one**2 for one in errors) ** 0.5, *spreads)

    def list_recommendations(self) -> list[tuple[Finding, list[float | None]]]:
        """Return (finding, its share in each run or None), sorted by savings, causes before limits.
        Each finding of the runs about the analyzed time is listed once, from the largest run that
        has it.
        """
        found: dict[tuple[str, str], Finding] = {}
        for run in reversed(self.runs):
            for one in map(Finding.from_dict, run.findings):
                if one.share and not (run.interval.iterations and one.kind in OUTSIDE):
                    found.setdefault((one.kind, one.what_if or one.title), one)
        order = sorted(found.values(), key=lambda one: (ORDER.index(one.group), -one.share))
        return [(one, self.list_shares(one)) for one in order]

    def explain_low(self) -> list[tuple[Row, float | None, float, list[Finding]]]:
        """Return (row, value in the reference, value in the largest run, findings that explain it)
        for each factor of the largest run that is low or has decreased.
        """
        first, last = self.reference_run, self.runs[-1]
        found, explained = list(map(Finding.from_dict, last.findings)), []
        for row, (old, value) in list_known_rows([first.metrics, last.metrics]):
            part, _, factor = row.path.partition(".")
            is_whole = any(last.find_value(one) is not None for one in list_factors(row.path))
            if value is None or factor not in EXPLAINED_BY or part not in ("device", "mpi", "host"):
                continue
            if (self.has_devices and part != "device") or (is_whole and factor == "communication"):
                continue
            if value < GOOD or (old is not None and old - value >= FALLEN):
                causes = [one for one in found if one.share and one.kind in EXPLAINED_BY[factor]]
                explained.append((row, old, value, sorted(causes, key=lambda one: -one.share)))
        return explained

    def list_metrics(self) -> list[tuple[str, list[float | None]]]:
        """Return (name, mean in each run or None) for each sampled GPU metric."""
        names = dict.fromkeys(name for run in self.runs for name in run.gpu_metrics)
        return [(name, [run.gpu_metrics.get(name) for run in self.runs]) for name in names]

    def list_history(self, path: str) -> list[tuple[str, list[float | None]]]:
        """Return how a value changed over earlier studies and this one: (heading, values in order)
        for each run that also appears in an earlier study. path: of the value.
        """
        row = ROW_OF[path]
        each = [
            [row.find_value(past.metrics.get(run.shape, {})) for past in self.history]
            + [run.find_value(path)]
            for run in self.runs
        ]
        named = zip(self.name_runs(), each, strict=True)
        return [(head, own) for head, own in named if any(one is not None for one in own[:-1])]

    def list_shares(self, finding: Finding) -> list[float | None]:
        """Find a finding of the largest run in all runs. Return its share in each run, or None
        where it does not occur.
        """
        shares = []
        for run in self.runs:
            alike = [
                one["share"]
                for one in run.findings
                if (one["kind"], one["what_if"]) == (finding.kind, finding.what_if)
            ]
            shares.append(alike[0] if len(alike) == 1 else None)
        return shares

    @property
    def region_heads(self) -> list[str]:
        """Return the column heading of each region."""
        return list(map(escape_to_one_line, self.regions))

    def list_lines(self, list_of_run: Callable[[Run], Sequence[str]]) -> list[str]:
        """Return the lines of all runs without repetitions. A line that not all runs have begins
        with the names of its runs. list_of_run: returns the lines of a run.
        """
        runs_by_line: dict[str, list[str]] = {}
        for run in self.runs:
            for line in list_of_run(run):
                runs_by_line.setdefault(line, []).append(run.title)
        return [
            line if len(runs) == len(self.runs) else f"{list_some(runs)}: {line}"
            for line, runs in runs_by_line.items()
        ]

    def name_runs(self, with_nodes: bool = True) -> list[str]:
        """Return the column heading of each run: its number of GPUs (`8 GPUs, 2 nodes` if needed to
        tell runs apart or, with `with_nodes`, if any run has several nodes); its label if one was
        given, or if headings would be equal.
        """
        sizes = [run.size for run in self.runs]
        if len({*sizes}) < len(sizes) or (with_nodes and any(run.nodes > 1 for run in self.runs)):
            sizes = [f"{run.size}, {format_count(run.nodes, 'node')}" for run in self.runs]
        if all(run.is_labelled_by_path() for run in self.runs) and len({*sizes}) == len(sizes):
            return sizes
        return [run.title for run in self.runs]

    def find_label(self, row: Row) -> str:
        """Return the name of a row, as a factor of the row above it."""
        if row.path == "elapsed_ns" and not any(run.interval.iterations for run in self.runs):
            return ELAPSED_TIME
        return self.name_row(row, row.label)

    def name_row(self, row: Row, name: str = "") -> str:
        """Return the name of a row. Without GPUs, all rows are about hosts."""
        name = name or row.name
        if self.has_devices or not row.path.startswith("host."):
            return name
        bare = name.removeprefix("Host ")
        return bare[0].upper() + bare[1:] if bare != name else name

    def list_figures(self) -> Figures:
        """Return the rows of the study, each with its value in each run. A run without iterations
        has no time if other runs have iterations.
        """
        counts = [run.interval.iterations for run in self.runs]
        metrics = [
            run.metrics if count or not any(counts) else {**run.metrics, "elapsed_ns": None}
            for run, count in zip(self.runs, counts, strict=True)
        ]
        return nest_rows(list_known_rows(metrics))

    def list_region_figures(self) -> list[tuple[str, Figures]]:
        """Return (name of the run, rows with the values of its regions side by side). Times are per
        iteration.
        """
        if not self.regions:
            return []
        each = [[_find_region(run, name) for name in self.regions] for run in self.runs]
        return [*zip(self.name_runs(False), map(list_known_rows, each), strict=True)]

    def group_regions(self) -> list[tuple[Row, str, str, list[float | None]]]:
        """Return the values of regions, sorted by row and run: (row, its name in the first of its
        runs, run, value in each region).
        """
        regions = [
            (head, {row.path: values for row, values in figures})
            for head, figures in self.list_region_figures()
        ]
        lines = []
        for row in ROWS:
            name = self.name_row(row)
            if row.path == "elapsed_ns":
                name = GPU_TIME if self.has_devices else HOST_TIME
            for head, values_of in regions:
                if row.path in values_of:
                    lines.append((row, name, head, values_of[row.path]))
                    name = ""
        return lines


def _find_region(run: Run, name: str) -> Metrics:
    """Return the values of a region. Its time is per iteration."""
    region = run.regions.get(name) or {}
    elapsed = (region if run.devices else region.get("host") or {}).get("elapsed_ns")
    if elapsed is None:
        return region
    return {**region, "elapsed_ns": elapsed / max(1, run.interval.iterations)}


def name_metrics(device: Mapping[str, Any], host: Mapping[str, Any]) -> Metrics:
    """Return the efficiencies by part of the job. device, host: rows of the tables of devices and
    hosts.
    """
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
