"""Check whether two runs are comparable, and list the objections."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from nsys2prv._util.text import format_count, format_share, list_differing
from nsys2prv.figures.device_group import OS
from nsys2prv.figures.stacks import SAMPLES, STATES_OF_THREADS
from nsys2prv.show.difference.facts import APART, NOT_COMPARABLE
from nsys2prv.show.difference.runs import ENDS, Run, count_work
from nsys2prv.show.text import say_clock

#: Iterations are compared if so much of their kernels (calls) is the same, by number, or half of it, if they are
#: NVTX ranges of the same name; programs are others if kernels that both have take less of the time of one.
LEAST_ALIKE, LEAST_COMMON = 0.8, 0.5
#: Layouts that show what hosts do outside CUDA and MPI calls.
SHOW_HOSTS = {*SAMPLES, *STATES_OF_THREADS, *OS}


def compare_work(runs: Sequence[Run], unit: str) -> tuple[float | None, float | None]:
    """Return the likeness of the work of a unit, by counts, and the smaller of the shares of each run's
    kernel time that the other run has, too; None if nothing is known of one.
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
    """Return the verdict on two runs, and why they compare with reserve, or not."""
    jobs = [run.job.description for run in runs]
    what = "kernels" if (runs[0].work["part"] == "kernel").any() else "calls of MPI"
    reserves, others = [], []
    programs = [", ".join(run.job.programs) for run in runs]
    if bool(jobs[0]["devices"]) != bool(jobs[1]["devices"]):
        others.append(f"{'AB'[not jobs[1]['devices']]} has no GPU work")
    elif common is not None and common < LEAST_COMMON:
        others.append(
            f"other programs, kernels that both have take {format_share(common, 0)} of the time of one's"
        )
    elif common is None and all(programs) and programs[0] != programs[1]:
        others.append("other programs")
    elif likeness is not None and likeness < LEAST_ALIKE:
        reserves.append(f"other work, {format_share(likeness, 0)} of its {what} are the same")
    models = [", ".join(sorted(job.get("gpu_models") or {})) for job in jobs]
    clocks = [say_clock(run.job.clock) for run in runs if compare_clocks(runs) != 1]
    counts = (
        [format_count(int(job[name]), noun) for job in jobs]
        for name, noun in (("ranks", "rank"), ("devices", "GPU"))
    )
    for form, texts in (
        ("{who} runs {what}", programs),
        ("{who} ran on {what}", models),
        ("GPUs of {who} have a clock of {what}", clocks),
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
    """Return the factor by which kernels take longer in B because of GPU clocks, 1 if these are equal or
    unknown."""
    clocks = [run.job.clock for run in runs]
    if None in clocks or clocks[0][1] != clocks[1][1]:
        return 1.0
    times = clocks[0][0] / clocks[1][0]
    return times if abs(times - 1) >= APART else 1.0


def find_unseen_host(runs: Sequence[Run]) -> str:
    """Name the run that alone records host activity before and after the GPU work, so that the jobs start and
    end at different moments; "" if both do, or neither.
    """
    shown = [
        "AB"[at]
        for at, run in enumerate(runs)
        if not SHOW_HOSTS.isdisjoint(run.job.description.get("records") or ())
    ]
    if len(shown) != 1 or not all(run.path["part"].is_in(ENDS).any() for run in runs):
        return ""
    return f"hosts before and after GPU work are recorded in {shown[0]} alone"


def repeat_alike(runs: Sequence[Run]) -> bool:
    """Return whether iterations of both runs are NVTX ranges of the same name: a region that both have."""
    rows = [run.job.find_row("efficiencies", "focus") for run in runs]
    return all(one.get("of_ranges") for one in rows) and len({one["found_by"] for one in rows}) == 1
