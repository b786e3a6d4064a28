"""Compare the runs of a study: their order, the reference for speedup and scalability, whether the
work grows with the number of devices, and obstacles to a comparison.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from nsys2prv._util.errors import UsageError
from nsys2prv._util.files import load_shipped_file
from nsys2prv._util.text import format_nanoseconds, format_share, list_differing, list_some
from nsys2prv.figures.study_model import (
    Metrics,
    Run,
    Scaling,
    compute_loss,
)
from nsys2prv.show.study.formats import Study
from nsys2prv.show.thresholds import MIDDLE, OTHER_WORK, UNCLEAR

#: Warnings about runs that are not comparable.
WARNINGS: dict[str, str] = load_shipped_file("nsys2prv.show.study", "warnings.yaml")


def compare_runs(
    runs: Sequence[Run],
    scaling: str | None = None,
    reference: str | None = None,
) -> Study:
    """Compare runs of one program. Return the study with their scalability. scaling: `strong` or
    `weak`, None to detect it. reference: name or label of a run, None for the smallest run with
    iterations.
    """
    runs = sorted(runs, key=lambda run: (run.devices, run.nodes, run.ranks))
    first = _choose_reference(runs, reference)
    powers, why = _measure_growth(runs, first)
    power = sum(powers) / len(powers) if powers else None
    detected = None if power is None else "strong" if power < MIDDLE else "weak"
    is_mixed = bool(powers) and min(powers) < UNCLEAR and max(powers) > 1 - UNCLEAR
    is_clear = power is None or min(abs(power), abs(power - 1)) < UNCLEAR
    used = scaling or detected or "strong"
    for run in runs:
        _add_scalability(run, first, used, is_alone=len(runs) == 1)
    warnings = [
        *_compare_machines(runs),
        *_compare_intervals(runs),
        *_compare_work(runs),
        *_list_repeats(runs),
        *_compare_recordings(runs),
    ]
    if not (why or scaling) and len({run.units for run in runs}) > 1:
        warnings.append(WARNINGS["unknown_scaling"])
    if is_mixed:
        warnings.append(WARNINGS["mixed_scaling"])
    elif not (is_clear or scaling):
        warnings.append(WARNINGS["unclear_scaling"].format(why=why, used=used))
    if scaling and detected and scaling != detected:
        said = WARNINGS["other_scaling"]
        warnings.append(said.format(given=scaling, detected=detected, why=why))
    found = Scaling(detected, used, why, is_mixed)
    return Study(found, first.name, warnings, runs)


def _choose_reference(runs: Sequence[Run], name: str | None) -> Run:
    if name is None:
        return next((run for run in runs if run.interval.iterations), runs[0])
    chosen = [run for run in runs if name.rstrip("/") in (run.name.rstrip("/"), run.label)]
    if not chosen:
        raise UsageError(
            f"--reference {name}: not one of the runs; give one of {', '.join(run.label for run in runs)}"
        )
    return chosen[0]


def _measure_growth(runs: Sequence[Run], first: Run) -> tuple[list[float], str]:
    """Return the exponent with which the work of an iteration grows with the number of devices, for
    every run of another size with known work; and their mean as text.
    """
    key = "useful_ns" if first.devices else "host_useful_ns"
    if not first.devices and all(run.sums.get("host_cpu_ns") for run in runs):
        # Threads that wait for CPUs are no more work.
        key = "host_cpu_ns"
    powers = [
        math.log(run.sums[key] / first.sums[key]) / math.log(run.units / first.units)
        for run in runs
        if run.units != first.units
        and run.interval.iterations
        and _are_alike(run, first)
        and run.sums.get(key)
        and first.sums.get(key)
    ]
    units = "GPUs" if first.devices else "ranks"
    mean = sum(powers) / max(len(powers), 1)
    why = f"the work of an iteration grows as {units}^{round(mean, 2) + 0.0:.2f}"
    return powers, why if powers else ""


def _are_alike(run: Run, first: Run) -> bool:
    """Return True if both runs have the same iterations or none, and if both have GPUs or both have
    only ranks.
    """
    by, counts = (
        {one.sums.get(key) for one in (run, first)} for key in ("found_by", "iterations_of_job")
    )
    return (
        bool(run.interval.iterations) == bool(first.interval.iterations)
        and bool(run.devices) == bool(first.devices)
        # The same loop is found by other events, but executed as often.
        and (len(by) == 1 or len(counts) == 1)
    )


#: Ends of names of figures that are relative to a reference.
_RELATIVE = ("speedup", "efficiency", "global", "scalability")


def _add_scalability(run: Run, first: Run, used: str, is_alone: bool) -> None:
    """Add the values of a run, and of its regions, relative to the reference. is_alone: there is no
    other run, and therefore no scalability.
    """
    grown = run.units / max(first.units, 1)
    of_regions, of_first = (one.sums.get("regions", {}) for one in (run, first))
    parts = [(run.metrics, run.sums, first.sums)]
    parts += [
        (run.regions[name], sums, of_first.get(name, {}))
        for name, sums in of_regions.items()
        if name in run.regions
    ]
    for metrics, sums, reference in parts:
        _forget_scalability(metrics)
        if _are_alike(run, first) and not is_alone:
            _relate(metrics, sums, reference, grown, used == "weak")
    for name, sums in of_regions.items():
        lost = compute_loss(run.regions.get(name, {}), sums.get("elapsed_ns", 0.0))
        if lost is not None:
            run.regions[name]["lost_ns"] = lost


def _forget_scalability(metrics: Metrics) -> None:
    """Remove the values that an earlier study computed relative to its own reference."""
    for figures in (metrics, metrics.get("device", {}), metrics.get("host", {})):
        for name in [one for one in figures if one.endswith(_RELATIVE)]:
            del figures[name]


def _relate(
    metrics: Metrics, sums: dict[str, Any], reference: dict[str, Any], grown: float, is_weak: bool
) -> None:
    def divide(key: str, by: float) -> float | None:
        """Return the reference's value of a sum divided by the run's value; for weak scaling, times
        `by`.
        """
        own, other = sums.get(key), reference.get(key)
        return other / own * (by if is_weak else 1) if own and other else None

    if (speedup := divide("elapsed_ns", grown)) is not None:
        metrics |= {"speedup": speedup, "efficiency": speedup / grown}
    hosts = sums.get("hosts", 0) / max(reference.get("hosts", 0), 1)
    # Without GPUs the only parallelism may be MPI.
    has_devices = bool(metrics.get("device"))
    of_mpi = None if has_devices else metrics.get("mpi", {}).get("parallel")
    for part, key, by in (("device", "useful_ns", grown), ("host", "host_useful_ns", hosts)):
        figures, scalability = metrics.get(part, {}), divide(key, by)
        parallel = figures.get("parallel", of_mpi)
        if scalability is not None and parallel is not None:
            figures["computation_scalability"] = scalability
            figures["global"] = scalability * parallel
    on_cpu, host = divide("host_cpu_ns", hosts), metrics.get("host", {})
    if on_cpu and not has_devices and "computation_scalability" in host:
        host["cpu_time_scalability"] = on_cpu
        host["cpu_scalability"] = host["computation_scalability"] / on_cpu
    instructions, useful = divide("instructions", grown), divide("useful_ns", grown)
    if instructions and useful:
        clock = sums["clock_hertz"] / reference["clock_hertz"]
        metrics["device"] |= {
            "instruction_scalability": instructions,
            "ipc_scalability": useful / instructions / clock,
            "frequency_scalability": clock,
        }


def _list_differing(runs: Sequence[Run], describe: Callable[[Run], str]) -> str:
    return list_differing((run.label, describe(run)) for run in runs)


def _compare_machines(runs: Sequence[Run]) -> list[str]:
    models = [sorted(run.gpu_models) for run in runs]
    if not any(len(one) > 1 for one in models) and len({tuple(one) for one in models if one}) < 2:
        return []
    named = "; ".join(
        f"{run.label}: {', '.join(one)}" for run, one in zip(runs, models, strict=True)
    )
    return [WARNINGS["machines"].format(named=named)]


def _compare_intervals(runs: Sequence[Run]) -> list[str]:
    bare = [run.label for run in runs if not run.interval.iterations]
    if len(bare) == len(runs):
        wholes = {run.interval.what for run in runs}
        return [WARNINGS["no_iterations"].format(wholes=", ".join(sorted(wholes)))]
    warnings = []
    if bare:
        warnings.append(WARNINGS["some_without_iterations"].format(runs=list_some(bare)))
    whole = [run for run in runs if run.interval.iterations]
    if differing := _list_differing(whole, lambda run: str(run.sums.get("found_by", ""))):
        warnings.append(WARNINGS["other_iterations"].format(differing=differing))
    if differing := _list_differing(whole, lambda run: f"{run.interval.iterations}"):
        warnings.append(WARNINGS["iteration_counts"].format(differing=differing))
    return warnings


def _group_alike(runs: Sequence[Run]) -> Iterator[tuple[str, list[Run], float]]:
    """Yield the runs with iterations on the same number of devices: that number; the runs sorted by
    work, the least first; and the ratio of the last run's work to the first run's.

    Work is measured by instructions if all runs have them, otherwise by useful time. The ratio is 1
    if unknown, as on GPUs of several models.
    """
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        if run.interval.iterations:
            measured = run.useful if run.devices else run.threads
            groups.setdefault((run.size, measured), []).append(run)
    for (size, _), alike in groups.items():
        key = _find_measure(alike)
        known = sorted((run for run in alike if run.sums.get(key)), key=lambda run: run.sums[key])
        times = known[-1].sums[key] / known[0].sums[key] if known else 1.0
        yield size, known or alike, times


def _find_measure(runs: Sequence[Run]) -> str:
    """Return the name of the value by which the work of runs is measured, or ""."""
    if all(run.sums.get("instructions") for run in runs):
        return "instructions"
    is_one_model = len({tuple(sorted(run.gpu_models)) for run in runs}) == 1
    return ("useful_ns" if runs[0].devices else "host_useful_ns") if is_one_model else ""


def _compare_work(runs: Sequence[Run]) -> Iterator[str]:
    """Yield a sentence about runs on the same number of devices with different work per iteration."""
    for size, alike, times in _group_alike(runs):
        if times >= OTHER_WORK:
            said = WARNINGS["execute" if _find_measure(alike) == "instructions" else "compute"]
            most, least = alike[-1].label, alike[0].label
            yield said.format(units=size, times=times, most=most, least=least)


def _list_repeats(runs: Sequence[Run]) -> Iterator[str]:
    """Yield a sentence about runs that are repeats (the same work on as many devices of one model),
    and their spread.
    """
    for size, alike, times in _group_alike(runs):
        if times < OTHER_WORK and len(alike) > 1 and _find_measure(alike):
            lasts = sorted(run.metrics["elapsed_ns"] for run in alike)
            ends = " to ".join(map(format_nanoseconds, (lasts[0], lasts[-1])))
            said, apart = WARNINGS["repeats"], format_share(lasts[-1] / lasts[0] - 1)
            yield said.format(count=len(alike), units=size, ends=ends, apart=apart)


def _compare_recordings(runs: Sequence[Run]) -> list[str]:
    """Return further obstacles to a comparison."""
    warnings = []
    named = [run for run in runs if run.programs]
    if differing := _list_differing(named, lambda run: ", ".join(run.programs)):
        warnings.append(WARNINGS["programs"].format(differing=differing))
    for what, describe in (
        ("the useful work of GPUs differs", lambda run: run.useful),
        ("the host threads differ", lambda run: run.threads),
        ("the ranks per GPU differ", lambda run: f"{run.ranks / max(run.units, 1):g}"),
        ("the recorded data differ", lambda run: ", ".join(run.sums.get("recorded", ()))),
    ):
        if differing := _list_differing(runs, describe):
            warnings.append(f"warning: {what} ({differing})")
    return warnings
