"""Compare runs of one program: their order, what speed-up and scalability are relative to, whether
the work grows with the devices, and what keeps runs from being compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from nsys2prv._util.errors import UsageError
from nsys2prv._util.text import format_count, list_some
from nsys2prv.analysis.study.model import Metrics, Run, Scaling, Study

#: The work of an iteration grows with this power of the number of devices: less is strong scaling;
#: between these two it is not clear.
MIDDLE, UNCLEAR = 0.5, (0.25, 0.75)
#: Iterations on as many devices of one model that compute so many times as long do other work: clocks
#: and instructions per cycle differ by less.
OTHER_WORK = 1.5


def compare_runs(
    runs: Sequence[Run],
    scaling: str | None = None,
    reference: str | None = None,
    regions: Sequence[str] = (),
) -> Study:
    """Return the study of these runs, whose figures of scalability are added. scaling: `strong` or `weak`,
    None to find it. reference: name or label of a run, None for the smallest that has iterations.
    """
    runs = sorted(runs, key=lambda run: (run.devices, run.nodes, run.ranks))
    first = _choose_reference(runs, reference)
    detected, why, is_clear = _detect_scaling(runs, first)
    used = scaling or detected or "strong"
    for run in runs:
        _add_scalability(run, first, used)
    warnings = [
        *_compare_machines(runs),
        *_compare_intervals(runs),
        *_compare_work(runs),
        *_compare_recordings(runs),
    ]
    if not (why or scaling) and len({run.units for run in runs}) > 1:
        warnings.append("note: how work grows is not known, taken as strong: give --scaling")
    if not (is_clear or scaling):
        warnings.append(f"note: scaling is unclear ({why}): give --scaling")
    if scaling and detected and scaling != detected:
        warnings.append(f"note: --scaling {scaling}, but it looks like {detected} scaling: {why}")
    return Study(Scaling(detected, used, why), first.name, warnings, runs, list(regions))


def _choose_reference(runs: Sequence[Run], name: str | None) -> Run:
    if name is None:
        return next((run for run in runs if run.interval.iterations), runs[0])
    chosen = [run for run in runs if name.rstrip("/") in (run.name.rstrip("/"), run.label)]
    if not chosen:
        raise UsageError(
            f"--reference {name}: is none of the runs; give one of {', '.join(run.label for run in runs)}"
        )
    return chosen[0]


def _detect_scaling(runs: Sequence[Run], first: Run) -> tuple[str | None, str, bool]:
    """Return how the work of an iteration grows with every run of another size, None where that is not
    known, by what it was found, and whether it is clear.
    """
    key = "useful_ns" if first.devices else "host_useful_ns"
    powers = [
        math.log(run.sums[key] / first.sums[key]) / math.log(run.units / first.units)
        for run in runs
        if run.units != first.units
        and run.interval.iterations
        and _are_alike(run, first)
        and run.sums.get(key)
        and first.sums.get(key)
    ]
    if not powers:
        return None, "", True
    power = sum(powers) / len(powers)
    units = "GPUs" if first.devices else "ranks"
    why = f"the work of an iteration grows as {units}^{power:.2f}"
    is_clear = not UNCLEAR[0] < power < UNCLEAR[1]
    return "strong" if power < MIDDLE else "weak", why, is_clear


def _are_alike(run: Run, first: Run) -> bool:
    """Return whether both are of iterations or neither is, and of GPUs or of ranks without."""
    return bool(run.interval.iterations) == bool(first.interval.iterations) and bool(
        run.devices
    ) == bool(first.devices)


#: Ends of names of figures that are relative to a reference.
_RELATIVE = ("speedup", "efficiency", "global", "scalability")


def _add_scalability(run: Run, first: Run, used: str) -> None:
    """Add the figures of a run, and of its regions, that are relative to the reference."""
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
        if _are_alike(run, first):
            _relate(metrics, sums, reference, grown, used == "weak")
    for name, sums in of_regions.items():
        device = run.regions.get(name, {}).get("device", {})
        efficiency = device.get("global", device.get("parallel"))
        if efficiency is not None:
            run.regions[name]["lost_ns"] = sums["elapsed_ns"] * max(1 - efficiency, 0.0)


def _forget_scalability(metrics: Metrics) -> None:
    """Remove what an earlier study found relative to its reference."""
    for figures in (metrics, metrics.get("device", {}), metrics.get("host", {})):
        for name in [one for one in figures if one.endswith(_RELATIVE)]:
            del figures[name]


def _relate(
    metrics: Metrics, sums: dict[str, Any], reference: dict[str, Any], grown: float, is_weak: bool
) -> None:
    def divide(key: str, by: float) -> float | None:
        """Return what the reference has of a sum, by what the run has; of weak scaling times `by`."""
        own, other = sums.get(key), reference.get(key)
        return other / own * (by if is_weak else 1) if own and other else None

    if (speedup := divide("elapsed_ns", grown)) is not None:
        metrics |= {"speedup": speedup, "efficiency": speedup / grown}
    hosts = sums.get("hosts", 0) / max(reference.get("hosts", 0), 1)
    for part, key, by in (("device", "useful_ns", grown), ("host", "host_useful_ns", hosts)):
        figures, scalability = metrics.get(part, {}), divide(key, by)
        if scalability is not None and figures.get("parallel") is not None:
            figures["computation_scalability"] = scalability
            figures["global"] = scalability * figures["parallel"]
    instructions, useful = divide("instructions", grown), divide("useful_ns", grown)
    if instructions and useful:
        clock = sums["clock_hertz"] / reference["clock_hertz"]
        metrics["device"] |= {
            "instruction_scalability": instructions,
            "ipc_scalability": useful / instructions / clock,
            "frequency_scalability": clock,
        }


def _list_differing(runs: Sequence[Run], describe: Callable[[Run], str]) -> str:
    """Return what runs differ in, `4 GPUs: A100; 8 GPUs: H100`; empty where they do not."""
    found: dict[str, list[str]] = {}
    for run in runs:
        found.setdefault(describe(run), []).append(run.label)
    if len(found) == 1:
        return ""
    return "; ".join(f"{list_some(labels)}: {text}" for text, labels in found.items())


def _compare_machines(runs: Sequence[Run]) -> list[str]:
    models = [sorted(run.gpu_models) for run in runs]
    if not any(len(one) > 1 for one in models) and len({tuple(one) for one in models if one}) < 2:
        return []
    told = "; ".join(
        f"{run.label}: {', '.join(one)}" for run, one in zip(runs, models, strict=True)
    )
    return [
        f"warning: different GPU models ({told}): times, speed-up and scalability compare "
        "machines, not scaling"
    ]


def _compare_intervals(runs: Sequence[Run]) -> list[str]:
    bare = [run.label for run in runs if not run.interval.iterations]
    if len(bare) == len(runs):
        wholes = {run.interval.what for run in runs}
        return [f"note: no iterations are counted: times are of {', '.join(sorted(wholes))}"]
    warnings = []
    if bare:
        warnings.append(
            f"warning: no steady state in {list_some(bare)}: there are no iterations to count, so nothing "
            "of it is compared with the others; --iterations names the NVTX ranges that are iterations"
        )
    whole = [run for run in runs if run.interval.iterations]
    if differing := _list_differing(whole, lambda run: str(run.sums.get("found_by", ""))):
        warnings.append(
            f"warning: iterations are not the same ({differing}): they may hold different work; "
            "--iterations names the NVTX ranges that are iterations"
        )
    if differing := _list_differing(whole, lambda run: f"{run.interval.iterations}"):
        warnings.append(f"note: different numbers of iterations ({differing}): figures are of one")
    return warnings


def _compare_work(runs: Sequence[Run]) -> Iterator[str]:
    """Say which runs on the same number of devices do different work in an iteration: by instructions
    where both have them, else by useful time on GPUs of one model.
    """
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        if run.interval.iterations:
            measured = run.useful if run.devices else run.threads
            groups.setdefault((run.units, bool(run.devices), measured), []).append(run)
    for (units, has_devices, _), alike in groups.items():
        key = "useful_ns" if has_devices else "host_useful_ns"
        if all(run.sums.get("instructions") for run in alike):
            key = "instructions"
        elif len({tuple(sorted(run.gpu_models)) for run in alike}) > 1:
            continue
        known = sorted((run for run in alike if run.sums.get(key)), key=lambda run: run.sums[key])
        if not known or (times := known[-1].sums[key] / known[0].sums[key]) < OTHER_WORK:
            continue
        work = "execute" if key == "instructions" else "compute"
        yield (
            f"warning: {format_count(units, 'GPU' if has_devices else 'rank')} {work} {times:.1f} × as "
            f"{'much' if key == 'instructions' else 'long'} in an iteration of {known[-1].label} as in one of "
            f"{known[0].label}: runs on as many that do different work are not of one study of scaling"
        )


def _compare_recordings(runs: Sequence[Run]) -> list[str]:
    """Return what else keeps figures from being compared."""
    warnings = []
    for what, describe in (
        ("useful work of devices is not the same", lambda run: run.useful),
        ("host threads are not the same", lambda run: run.threads),
        ("ranks for each GPU are not the same", lambda run: f"{run.ranks / max(run.units, 1):g}"),
        ("recorded is not the same", lambda run: ", ".join(run.sums.get("recorded", ()))),
    ):
        if differing := _list_differing(runs, describe):
            warnings.append(f"warning: {what} ({differing})")
    return warnings
