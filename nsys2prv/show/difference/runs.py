"""Prepare a run for comparison: the work in a unit, and common names for the kernels of two runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.text import format_count, format_share, list_differing, shorten
from nsys2prv.figures.device_group import OS
from nsys2prv.figures.stacks import SAMPLES, STATES_OF_THREADS
from nsys2prv.show.finished_job import FinishedJob
from nsys2prv.show.text import say_clock
from nsys2prv.show.thresholds import APART, LEAST_ALIKE, LEAST_COMMON, SAME_COUNT

NOT_COMPARABLE = "not comparable"
#: Layouts with host activity outside CUDA and MPI calls.
SHOW_HOSTS = {*SAMPLES, *STATES_OF_THREADS, *OS}
#: Parts of the path before and after the work of GPUs or the time in MPI.
ENDS = ("start", "exit")
#: Parts of a kernel's name that are specific to a build or GPU.
ARGUMENTS = re.compile(r"<.*(?:>|…$)|\(.*(?:\)|…$)")
_GPU = re.compile(r"(?i)sm_?\d+|maxwell|pascal|volta|turing|ampere|ada|hopper|blackwell")
PATH = dict.fromkeys(("rank", "part", "name", "range"), pl.String) | {"time_ns": pl.Int64}
WORK = dict.fromkeys(("rank", "part", "name", "follows"), pl.String)
WORK |= {"time_ns": pl.Int64, "count": pl.Int64}


class Run(Struct, frozen=True):
    """One of the two compared runs, with its critical path and its work."""

    job: FinishedJob
    #: Iterations of the steady state, 0 for none.
    iterations: int
    #: As `path` and `work` of findings, with the names of both runs in the place of kernels' own.
    path: pl.DataFrame
    work: pl.DataFrame
    ranks: int

    def count(self, unit: str) -> int:
        """Return the number of units (iterations or jobs, as `unit` says) in the run."""
        return self.iterations if unit == "iteration" else 1

    def measure(self, unit: str) -> float:
        """Return the mean time of a unit (iteration or job) in ns."""
        begin, end = self.job.span
        if unit == "iteration":
            return (end - begin) / self.iterations
        ends = (
            self.path.filter(pl.col("part").is_in(ENDS))["time_ns"].sum() if unit == "work" else 0
        )
        return self.job.length - ends

    @property
    def lasts(self) -> np.ndarray:
        """Return the duration of each iteration (ns); empty if unknown."""
        return np.diff(self.job.iterations or [0])


def choose_unit(runs: Iterable[Run]) -> str:
    """Return the unit in which runs are compared: an iteration if all have iterations, otherwise
    the job.
    """
    return "iteration" if all(run.iterations for run in runs) else "job"


def open_run(job: FinishedJob) -> Run:
    """Prepare a finished job for comparison."""
    frames = [
        pl.DataFrame(schema=schema) if frame is None else frame.cast(schema)
        for name, schema in (("path", PATH), ("work", WORK))
        for frame in (job.find_frame("findings", name),)
    ]
    steady = job.steady
    ranks = max(int(job.description.get("ranks") or 0), 1)
    return Run(job, int(steady["iterations"]) if steady else 0, *frames, ranks)


def _simplify(name: str) -> str:
    """Return the part of a kernel name that is the same in every build and on every GPU."""
    return re.sub(r"\d+", "#", _GPU.sub("", ARGUMENTS.sub("", name)))


def pair_names(runs: Sequence[Run], unit: str) -> list[dict[str, str]]:
    """Find the kernels of several runs that do the same work under different names. Return for each
    run a map from its kernel names to common names.

    Kernels with different names are paired if the names differ only in numbers, arguments and GPUs;
    then, if they follow the same kernel about equally often.
    """
    tables = [
        {name: (follows or "", count) for name, count, _, follows in count_work(run, unit).rows()}
        for run in runs
    ]
    both = tables[0].keys() & tables[1].keys()
    names = [{name: name for name in both} for _ in runs]
    left = [[name for name in table if name not in both] for table in tables]
    simple: dict[str, list[list[str]]] = {}
    for side, own in enumerate(left):
        for name in own:
            simple.setdefault(_simplify(name), [[], []])[side].append(name)
    for first, second in simple.values():
        if first and second:
            for side, own in enumerate((first, second)):
                names[side] |= dict.fromkeys(own, second[0])

    def place(side: int, name: str) -> tuple[str, float]:
        follows, count = tables[side][name]
        return names[side].get(follows, ""), count

    for first in [one for one in left[0] if one not in names[0]]:
        follows, count = place(0, first)
        others = {second: place(1, second) for second in left[1] if second not in names[1]}
        alike = [
            second
            for second, (before, number) in others.items()
            if follows and before == follows and abs(number - count) <= SAME_COUNT * count
        ]
        if len(alike) == 1:
            label = f"{shorten(first, 40)} → {shorten(alike[0], 40)}"
            names[0][first] = names[1][alike[0]] = label
    return names


def rename(run: Run, names: dict[str, str]) -> Run:
    """Return the run with kernels renamed by this map (see :func:`pair_names`)."""
    is_kernel = pl.col("part") == "kernel"
    named = pl.when(is_kernel).then(pl.col("name").replace(names)).otherwise("name").alias("name")
    return replace(run, path=run.path.with_columns(named), work=run.work.with_columns(named))


def count_work(run: Run, unit: str) -> pl.DataFrame:
    """Count the executions of each kernel (without kernels: MPI call) per rank and unit (iteration
    or job).

    Columns: `name`, `count`, the total `time` (ns), and the kernel that it `follows`.
    """
    part = "kernel" if (run.work["part"] == "kernel").any() else "mpi"
    rows = run.work.filter(pl.col("part") == part, pl.col("name") != "")
    return rows.group_by("name", maintain_order=True).agg(
        count=pl.col("count").sum() / (run.count(unit) * run.ranks),
        time=pl.col("time_ns").sum(),
        follows=pl.col("follows").drop_nulls().first(),
    )


def choose_column(
    frames: Sequence[pl.DataFrame], names: Sequence[str] = ("gpu_ns", "host_ns")
) -> str:
    """Return the first of these columns that all frames have."""
    return next(one for one in names if all(one in frame.columns for frame in frames))


# ---- whether two runs can be compared -------------------------------------------------------------


def compare_work(runs: Sequence[Run], unit: str) -> tuple[float | None, float | None]:
    """Compare the work of two runs in a unit. Return (likeness, common), each from 0 to 1, or None
    if unknown.

    likeness: the number of kernels or calls that both runs have, as a share of the larger numbers.
    common: the share of kernel time in kernels that both runs have, in the run where it is smaller.
    """
    first, second = (count_work(run, unit).drop("follows") for run in runs)
    if not (first.height and second.height):
        return None, None
    both = first.join(second, on="name", how="full", coalesce=True).fill_null(0)
    least, most = (
        both.select(one("count", "count_right").sum()).item()
        for one in (pl.min_horizontal, pl.max_horizontal)
    )
    common = both.filter((pl.col("count") > 0) & (pl.col("count_right") > 0))
    shares = [common[name].sum() / max(both[name].sum(), 1) for name in ("time", "time_right")]
    has_kernels = all((run.work["part"] == "kernel").any() for run in runs)
    return float(least / most), float(min(shares)) if has_kernels else None


def list_reserves(
    runs: Sequence[Run], likeness: float | None, common: float | None
) -> tuple[str, list[str]]:
    """Decide whether two runs can be compared. Return the verdict (comparable, with reserve, or
    NOT_COMPARABLE) and the reasons for reserve or refusal. likeness, common: from
    :func:`compare_work`.
    """
    jobs = [run.job.description for run in runs]
    what = "kernels" if (runs[0].work["part"] == "kernel").any() else "MPI calls"
    reserves, others = [], []
    programs = [", ".join(run.job.programs) for run in runs]
    if bool(jobs[0]["devices"]) != bool(jobs[1]["devices"]):
        others.append(f"{'AB'[not jobs[1]['devices']]} has no GPU work")
    elif common is not None and common < LEAST_COMMON:
        others.append(
            f"the programs differ (common kernels take only {format_share(common, 0)} of the kernel time of one run)"
        )
    elif common is None and all(programs) and programs[0] != programs[1]:
        others.append("the programs differ")
    elif likeness is not None and likeness < LEAST_ALIKE:
        share = f"only {format_share(likeness, 0)}" if likeness >= 0.005 else "almost none"
        reserves.append(f"the work differs ({share} of the {what} are the same)")
    models = [", ".join(sorted(job.get("gpu_models") or {})) for job in jobs]
    clocks = [say_clock(run.job.clock) for run in runs if compare_clocks(runs) != 1]
    counts = (
        [format_count(int(job[name]), noun) for job in jobs]
        for name, noun in (("ranks", "rank"), ("devices", "GPU"))
    )
    for form, texts in (
        ("{who} runs {what}", programs),
        ("{who} ran on {what}", models),
        ("the GPU clock of {who} is {what}", clocks),
        *(("{who} has {what}", texts) for texts in counts),
    ):
        said = (
            list_differing(zip("AB", texts, strict=True), form, ", ")
            if len(texts) == len(runs) and all(texts)
            else ""
        )
        reserves += [said] * bool(said)
    if others:
        return NOT_COMPARABLE, others + reserves
    return "with reserve" if reserves else "comparable", reserves


def compare_clocks(runs: Sequence[Run]) -> float:
    """Return the factor by which kernels take longer in B because of GPU clocks; 1 if clocks are
    equal or unknown.
    """
    clocks = [run.job.clock for run in runs]
    if None in clocks or clocks[0][1] != clocks[1][1]:
        return 1.0
    times = clocks[0][0] / clocks[1][0]
    return times if abs(times - 1) >= APART else 1.0


def find_unseen_host(runs: Sequence[Run]) -> str:
    """Return the name (A or B) of the only run with recorded host activity before and after GPU
    work, so that the jobs start and end at different moments; "" if both or neither have it.
    """
    shown = [
        "AB"[at]
        for at, run in enumerate(runs)
        if not SHOW_HOSTS.isdisjoint(run.job.description.get("records") or ())
    ]
    if len(shown) != 1 or not all(run.path["part"].is_in(ENDS).any() for run in runs):
        return ""
    return f"host activity before and after GPU work is recorded only in {shown[0]}"


def repeat_alike(runs: Sequence[Run]) -> bool:
    """Return True if the iterations of both runs are NVTX ranges with the same name."""
    rows = [run.job.find_row("efficiencies", "focus") for run in runs]
    return all(one.get("of_ranges") for one in rows) and len({one["found_by"] for one in rows}) == 1
