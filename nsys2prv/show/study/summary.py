"""Summarize a study in sentences, with the values in its table."""

from __future__ import annotations

import math
from collections.abc import Iterator

from nsys2prv._util.text import format_count, format_nanoseconds, format_share
from nsys2prv.figures.study_model import (
    BETWEEN_NODES,
    ROW_OF,
    ComparedRuns,
    Metrics,
    Run,
    list_factors,
    rate_efficiency,
)
from nsys2prv.show.text import format_figure
from nsys2prv.show.thresholds import ALIKE, MENTIONED

#: The reference, and the run that is compared with it; figures of a region of both.
Pair = tuple[Run, Run]


def write_title(study: ComparedRuns) -> str:
    """Return the title of a study."""
    first, last = study.runs[0], study.runs[-1]
    if len(study.runs) == 1:
        return f"POP assessment of one run on {first.size}"
    compared = [run for run in study.runs if run.find_value("speedup") is not None]
    if len({run.units for run in compared}) < 2 or study.scaling.is_mixed:
        return f"POP study of {format_count(len(study.runs), 'run')} on {first.size if first.units == last.units else f'{first.units:,} to {last.size}'}"
    return f"POP study: {study.scaling.used} scaling from {first.units:,} to {last.size}"


def summarise_study(study: ComparedRuns) -> str:
    """Return a paragraph that summarizes a study: speedup, losses by factor, and the region with
    the largest loss. It compares the reference with the largest other run.
    """
    first = study.runs.index(study.reference_run)
    last = max((at for at in range(len(study.runs)) if at != first), default=first)
    pair, heads = (study.runs[first], study.runs[last]), study.name_runs(False)
    names = heads[first], heads[last]
    if len(study.runs) == 1:
        return " ".join(_describe_one_run(study))
    if pair[1].find_value("speedup") is None:
        return f"{names[1]} is not compared with {names[0]}; see the warnings."
    sentences = [
        _describe_time(study, pair, names),
        *(
            line
            for whole in _list_wholes(study, pair)
            for line in _describe_factors(study, pair, whole)
        ),
        _describe_computation(study, pair),
        *_describe_regions(study, pair, names),
    ]
    return " ".join(filter(None, sentences))


def _describe_time(study: ComparedRuns, pair: Pair, names: tuple[str, str]) -> str:
    """Return a sentence about how much faster or slower the run is than the reference."""
    first, last = (run.metrics["elapsed_ns"] for run in pair)
    speed = pair[1].find_value("speedup") or 0.0
    unit = "an iteration" if pair[0].interval.iterations else "the run"
    grown = pair[1].units / pair[0].units
    times = f"{format_nanoseconds(first)} → {format_nanoseconds(last)}"
    chance = study.estimate_chance(*pair, "elapsed_ns")
    longer = f"takes {last / first:.2f} × as long"
    if grown == 1 and ALIKE <= abs(last / first - 1) < chance:
        longer += f", possibly by chance (up to {format_share(chance)}),"
    if abs(last / first - 1) < ALIKE:
        longer = "takes as long"
    if grown == 1:
        return f"From {names[0]} to {names[1]} {unit} {longer} ({times})."
    scale = f"From {pair[0].units:,} to {pair[1].size}"
    efficiency = f"efficiency of {_format(pair[1], 'efficiency')}"
    if study.scaling.used == "weak":
        growth = f", {study.scaling.why}, and" if study.scaling.why else ","
        whole = f"a speed-up of {speed:.2f} (ideal: {grown:g}) and an {efficiency}"
        return f"{scale}{growth} {unit} {longer} ({times}). As weak scaling, this is {whole}."
    how = f"becomes {speed:.2f} × faster" if speed >= 1 else longer
    return f"{scale} {unit} {how} ({times}; speed-up {speed:.2f}, ideally {grown:g}; {efficiency})."


def _describe_one_run(study: ComparedRuns) -> Iterator[str]:
    """Yield sentences about the time of an iteration and the largest loss in it."""
    run = study.runs[0]
    unit = "An iteration" if run.interval.iterations else "The run"
    yield f"{unit} takes {format_nanoseconds(run.metrics['elapsed_ns'])} on {run.size}."
    for whole in _list_wholes(study, (run, run)):
        yield from _describe_factors(study, (run, run), whole)


def describe_history(study: ComparedRuns) -> str:
    """Return a sentence about the largest change in the time of an iteration between two
    consecutive studies; "" without a relevant change.
    """
    names, jumps = [*(past.name for past in study.history), "this study"], []
    for head, values in study.list_history("elapsed_ns"):
        pairs = zip(names, names[1:], values, values[1:], strict=False)
        for before, after, old, new in pairs:
            if old and new and abs(new / old - 1) >= MENTIONED:
                jumps.append((abs(math.log(new / old)), head, before, after, old, new))
    if not jumps:
        return ""
    _, head, before, after, old, new = max(jumps)
    times = f"{format_nanoseconds(old)} → {format_nanoseconds(new)}"
    change = f"{format_share(abs(new / old - 1))} {'longer' if new > old else 'less time'}"
    return f"Over the studies, an iteration changes most from {before} to {after}. On {head}, it takes {change} ({times})."


def _list_wholes(study: ComparedRuns, pair: Pair) -> Iterator[str]:
    """Yield the efficiencies to explain: global efficiencies, or parallel efficiencies if global
    ones are unknown.
    """
    wholes = ("device.global", "device.parallel"), ("mpi.parallel",)
    if not study.has_devices:
        wholes = (("host.global", "host.parallel", "mpi.parallel"),)
    for known in wholes:
        yield from [one for one in known if pair[1].find_value(one) is not None][:1]


def _list_known_factors(path: str, pair: Pair) -> list[str]:
    """Return the factors of an efficiency that are known for both runs. A factor that is unknown,
    or that is a parallel efficiency of devices or of MPI, is replaced by its own factors.
    """
    found = []
    for one in list_factors(path):
        inner = _list_known_factors(one, pair)
        is_known = None not in (run.find_value(one) for run in pair)
        if not is_known or (inner and one in ("device.parallel", "host.parallel", "mpi.parallel")):
            found += inner
        else:
            found.append(one)
    return found


def _describe_factors(study: ComparedRuns, pair: Pair, whole: str) -> Iterator[str]:
    """Yield sentences about the change of an efficiency, the factors that change beyond chance, and
    the factor with the largest loss.
    """
    last = pair[1]
    known = _list_known_factors(whole, pair)
    known.sort(key=lambda one: -abs(_change(pair, one)))
    changed = [
        one
        for one in known
        if abs(_change(pair, one)) >= max(MENTIONED, study.estimate_chance(*pair, one))
    ]
    name = _name(whole)
    text = f"{name[0].upper()}{name[1:]} {_describe_change(whole, pair)}"
    if changed:
        text += f": {_join([_describe_factor(one, pair) for one in changed])}"
        if len(changed) < len(known):
            text += f". The other factors of {_name(whole)} change by less than {100 * MENTIONED:.0f} percentage points, or by no more than chance"
    yield f"{text}."
    low = min(known, key=lambda one: last.find_value(one) or 0.0, default=None)
    if low and low not in changed[:1] and rate_efficiency(last.find_value(low) or 0) != "good":
        yield f"The lowest factor is {_name(low)} ({_format(last, low)})."


def _describe_computation(study: ComparedRuns, pair: Pair) -> str:
    """Return a sentence about the class of kernels with most of the additional computation time per
    iteration; "" if computation scales, or if the class is unknown.
    """
    scalability = pair[1].find_value("device.computation_scalability")
    if scalability is None or rate_efficiency(scalability) == "good":
        return ""
    grown = pair[1].units / pair[0].units if study.scaling.used == "weak" else 1
    first, last = (run.work.get("kernels", {}) for run in pair)
    longer = {
        name: work.time_ns - grown * first[name].time_ns
        for name, work in last.items()
        if name in first
    }
    worst = max(longer, key=lambda name: longer[name], default=None)
    if worst is None or longer[worst] <= 0:
        return ""
    both = " → ".join(
        f"{format_nanoseconds(work[worst].time_ns)} in {work[worst].count:,.4g} kernels"
        for work in (first, last)
    )
    return f"Kernels of class {worst} cause most of the additional computation time per iteration: {both} (sums over all GPUs)."


def _describe_factor(path: str, pair: Pair) -> str:
    """Return a text about a factor and its change, with its own factors."""
    inner = [one for one in list_factors(path) if abs(_change(pair, one)) >= MENTIONED]
    if all(run.nodes == 1 for run in pair):
        inner = [one for one in inner if not one.endswith(BETWEEN_NODES)]
    rows = [ROW_OF[one] for one in inner]
    why = _join([f"{row.short or row.bare_name} {_describe_both(row.path, pair)}" for row in rows])
    return f"{_name(path)} {_describe_both(path, pair)}{f' ({why})' if why else ''}"


def _change(pair: Pair, path: str) -> float:
    """Return the change of an efficiency, or 0."""
    first, last = (run.find_value(path) for run in pair)
    return 0.0 if first is None or last is None else last - first


def _describe_change(path: str, pair: Pair) -> str:
    first, last = (_format(run, path) for run in pair)
    if first == "-" or pair[0] is pair[1]:
        return f"is {last}"
    if first == last:
        return f"stays at {last}"
    return f"{'falls' if _change(pair, path) < 0 else 'rises'} from {first} to {last}"


def _describe_both(path: str, pair: Pair) -> str:
    return " → ".join(_format(run, path) for run in pair)


def _format(run: Run, path: str) -> str:
    return format_figure(ROW_OF[path], run.find_value(path))


def _name(path: str) -> str:
    """Return the name of an efficiency within a sentence. Host efficiencies occur only in runs
    without GPUs.
    """
    name = ROW_OF[path].name.removeprefix("Host ")
    return name if name.startswith(("MPI", "OpenMP", "CPU")) else name[0].lower() + name[1:]


def _join(parts: list[str]) -> str:
    return " and ".join([*filter(None, [", ".join(parts[:-1])]), *parts[-1:]])


def _describe_regions(study: ComparedRuns, pair: Pair, names: tuple[str, str]) -> Iterator[str]:
    """Yield sentences about the region that loses most GPU time per iteration, and the region that
    does not get shorter.
    """
    regions: dict[str, list[Metrics]] = {
        name: [run.regions.get(name) or {} for run in pair] for name in study.regions
    }
    lost = {name: last.get("lost_ns") for name, (_, last) in regions.items()}
    if not any(lost.values()):
        return
    worst = max(lost, key=lambda name: lost[name] or 0.0)
    first, last = regions[worst]
    text = f"Region {worst} loses the most time: {format_nanoseconds(lost[worst])} per iteration on {names[1]}"
    if first.get("lost_ns") is not None:
        text += f" ({format_nanoseconds(first['lost_ns'])} on {names[0]})"
    row = ROW_OF["device.global"]
    both = [format_figure(row, row.find_value(one)) for one in (first, last)]
    if "-" not in both:
        text += f"; device global efficiency {' → '.join(both)}"
    yield f"{text}."
    whole, shown = pair[1].lost_ns, sum(one or 0.0 for one in lost.values())
    if whole and shown < whole:
        yield f"The regions account for {format_nanoseconds(shown)} of the {format_nanoseconds(whole)} lost per iteration."
    row = ROW_OF["device.computation_scalability"]
    values = {name: row.find_value(last) for name, (_, last) in regions.items() if name != worst}
    poor = [
        f"{name} ({format_figure(row, value)})"
        for name, value in values.items()
        if value is not None and rate_efficiency(value) != "good"
    ]
    if poor:
        yield f"The computation of {_join(poor)} does not scale (device computation scalability)."
