"""Open a run for comparison: the work in a unit of it, and common names for the kernels of two runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.text import shorten
from nsys2prv.show.finished_job import FinishedJob

#: Numbers of kernels that are the same, by place in the program, differ by at most this.
SAME_COUNT = 0.2
#: Parts of the path before and after what GPUs do, or is MPI.
ENDS = ("start", "exit")
#: What of a kernel's name is of one build or GPU alone.
ARGUMENTS = re.compile(r"<.*(?:>|…$)|\(.*(?:\)|…$)")
_GPU = re.compile(r"(?i)sm_?\d+|maxwell|pascal|volta|turing|ampere|ada|hopper|blackwell")
PATH = dict.fromkeys(("rank", "part", "name", "range"), pl.String) | {"time_ns": pl.Int64}
WORK = dict.fromkeys(("rank", "part", "name", "follows"), pl.String)
WORK |= {"time_ns": pl.Int64, "count": pl.Int64}


class Run(Struct, frozen=True):
    """A side of the comparison."""

    job: FinishedJob
    #: Iterations of the steady state, 0 for none.
    iterations: int
    #: As `path` and `work` of findings, with the names of both runs in the place of kernels' own.
    path: pl.DataFrame
    work: pl.DataFrame
    ranks: int

    def count(self, unit: str) -> int:
        """Return the number of units in the run."""
        return self.iterations if unit == "iteration" else 1

    def measure(self, unit: str) -> float:
        """Return the mean time of a unit (ns)."""
        begin, end = self.job.span
        if unit == "iteration":
            return (end - begin) / self.iterations
        ends = (
            self.path.filter(pl.col("part").is_in(ENDS))["time_ns"].sum() if unit == "work" else 0
        )
        return self.job.length - ends

    @property
    def lasts(self) -> np.ndarray:
        """Return the duration of each iteration (ns), empty if unknown."""
        return np.diff(self.job.iterations or [0])


def choose_unit(runs: Iterable[Run]) -> str:
    """Return the unit of comparison of runs: an iteration, if all have iterations."""
    return "iteration" if all(run.iterations for run in runs) else "job"


def open_run(job: FinishedJob) -> Run:
    frames = [
        pl.DataFrame(schema=schema) if frame is None else frame.cast(schema)
        for name, schema in (("path", PATH), ("work", WORK))
        for frame in (job.find_frame("findings", name),)
    ]
    steady = job.steady
    ranks = max(int(job.description.get("ranks") or 0), 1)
    return Run(job, int(steady["iterations"]) if steady else 0, *frames, ranks)


def _simplify(name: str) -> str:
    """Return the part of a kernel name that is the same in each build and on each GPU."""
    return re.sub(r"\d+", "#", _GPU.sub("", ARGUMENTS.sub("", name)))


def pair_names(runs: Sequence[Run], unit: str) -> list[dict[str, str]]:
    """Map the kernel names of each run to common names. Kernels with different names are paired if the names
    differ only by numbers, arguments and GPUs, then if they follow the same kernel about equally often.
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
    is_kernel = pl.col("part") == "kernel"
    named = pl.when(is_kernel).then(pl.col("name").replace(names)).otherwise("name").alias("name")
    return replace(run, path=run.path.with_columns(named), work=run.work.with_columns(named))


def count_work(run: Run, unit: str) -> pl.DataFrame:
    """Count the executions of each kernel per rank and unit (`name`, `count`), or of each MPI call without
    kernels; add the total `time` (ns), and the kernel it `follows`.
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
    """Return the first of some columns that all frames have."""
    return next(one for one in names if all(one in frame.columns for frame in frames))
