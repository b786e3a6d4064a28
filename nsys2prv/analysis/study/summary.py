"""Say in sentences what a study shows: the paragraph of an assessment, with the table's figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nsys2prv._util.text import format_count
from nsys2prv.analysis.study.model import BETWEEN_NODES, ROW_OF, Row, rate_efficiency
from nsys2prv.analysis.study.tables import (
    Study,
    count_units,
    format_figure,
    format_units,
    name_runs,
)
from nsys2prv.analysis.text import format_nanoseconds

#: Changes of a factor that are told, and of a time that are none.
TOLD, ALIKE = 0.02, 0.005
#: Factors whose changes are told, of devices and of MPI.
OF_DEVICES = (
    "device.load_balance",
    "device.communication",
    "device.orchestration",
    "device.computation_scalability",
)
OF_MPI = ("mpi.load_balance", "mpi.communication")
#: Factors of those, where they are known.
REASONS = {
    "device.load_balance": ("device.load_balance_in", "device.load_balance_out"),
    "mpi.load_balance": ("mpi.load_balance_in", "mpi.load_balance_out"),
    "mpi.communication": ("mpi.serialisation", "mpi.transfer"),
    "device.communication": ("device.serialisation", "device.transfer"),
    "device.computation_scalability": (
        "device.instruction_scalability",
        "device.ipc_scalability",
        "device.frequency_scalability",
    ),
}
Run = Mapping[str, Any]


def write_title(study: Study) -> str:
    """Return the title of a study."""
    runs = study["runs"]
    if len(set(map(count_units, runs))) == 1:
        return f"POP study of {format_count(len(runs), 'run')} on {format_units(runs[0])}"
    scale = f"from {count_units(runs[0]):,} to {format_units(runs[-1])}"
    return f"POP study: {study['scaling']['used']} scaling {scale}"


def find_compared_runs(study: Study) -> tuple[int, int]:
    """Return the places of the reference and of the run that sentences compare with it: the largest
    other one.
    """
    names = [run["name"] for run in study["runs"]]
    first = names.index(study["reference"])
    others = [at for at in range(len(names)) if at != first]
    return first, others[-1] if others else first


def summarise_study(study: Study) -> str:
    """Return the paragraph: speed-up, what is lost in which factor, and which region loses most."""
    first, last = find_compared_runs(study)
    runs, names = study["runs"], name_runs(study, False)
    pair = runs[first], runs[last]
    if _get(pair[1], "speedup") is None:
        return f"{names[last]} is not compared with {names[first]}: see the warnings."
    sentences = [
        _tell_time(study, pair, (names[first], names[last])),
        *_tell_factors(pair, "device.global", "device.parallel", OF_DEVICES),
        *_tell_factors(pair, "mpi.parallel", "mpi.parallel", OF_MPI),
        *_tell_regions(study, pair, (names[first], names[last])),
    ]
    return " ".join(filter(None, sentences))


def _get(run: Run, path: str) -> float | None:
    return ROW_OF[path].find_value(run["metrics"])


def _format(path: str, value: float | None) -> str:
    return format_figure(ROW_OF[path], value)


def _tell_time(study: Study, pair: tuple[Run, Run], names: tuple[str, str]) -> str:
    """Say how much faster or slower the run is than the reference."""
    first, last = (run["metrics"]["elapsed_ns"] for run in pair)
    speed = _get(pair[1], "speedup") or 0.0
    unit = "an iteration" if pair[0]["interval"]["iterations"] else "the run"
    grown = count_units(pair[1]) / count_units(pair[0])
    times = f"{format_nanoseconds(first)} → {format_nanoseconds(last)}"
    longer = f"takes {last / first:.2f} × as long"
    if abs(last / first - 1) < ALIKE:
        longer = "takes as long"
    if grown == 1:
        return f"From {names[0]} to {names[1]} {unit} {longer} ({times})."
    scale = f"From {count_units(pair[0]):,} to {format_units(pair[1])}"
    efficiency = f"efficiency {_format('efficiency', _get(pair[1], 'efficiency'))}"
    if study["scaling"]["used"] == "weak":
        whole = f"speed-up {speed:.2f} of {grown:g}, {efficiency}"
        return f"{scale}, with work that grows with them, {unit} {longer} ({times}; {whole})."
    how = f"becomes {speed:.2f} × faster" if speed >= 1 else longer
    return f"{scale} {unit} {how} ({times}; ideal {grown:g} ×, {efficiency})."


def _tell_factors(
    pair: tuple[Run, Run], whole: str, instead: str, factors: tuple[str, ...]
) -> Iterator[str]:
    """Say how an efficiency changes and by which of its factors. instead: the one to tell where
    the first is not known.
    """
    whole = whole if _get(pair[1], whole) is not None else instead
    if _get(pair[1], whole) is None:
        return
    known = [one for one in factors if None not in (_get(pair[0], one), _get(pair[1], one))]
    known.sort(key=lambda one: -abs(_change(pair, one)))
    told = [one for one in known if abs(_change(pair, one)) >= TOLD]
    text = f"{ROW_OF[whole].name} {_tell_change(whole, pair)}"
    if told:
        text += f": {_join([_tell_factor(one, pair) for one in told])}"
        if len(told) < len(known):
            text += f"; its other factors change by less than {100 * TOLD:.0f} points"
    yield f"{text}."
    worst = min(known, key=lambda one: _get(pair[1], one) or 0.0, default=None)
    if worst and worst not in told[:1] and rate_efficiency(_get(pair[1], worst) or 0) != "good":
        yield f"Most is lost in {_name(worst)} ({_format(worst, _get(pair[1], worst))})."


def _tell_factor(path: str, pair: tuple[Run, Run]) -> str:
    """Name a factor and its change, with those of what it is the product of."""
    inner = [one for one in REASONS.get(path, ()) if abs(_change(pair, one)) >= TOLD]
    if all(run["nodes"] == 1 for run in pair):
        inner = [one for one in inner if not one.endswith(BETWEEN_NODES)]
    why = _join(
        [f"{ROW_OF[one].short or ROW_OF[one].bare_name} {_tell_both(one, pair)}" for one in inner]
    )
    return f"{_name(path)} {_tell_both(path, pair)}{f' ({why})' if why else ''}"


def _change(pair: tuple[Run, Run], path: str) -> float:
    """Return by how much an efficiency changes, 0 where it is not known."""
    first, last = (_get(run, path) for run in pair)
    return 0.0 if first is None or last is None else last - first


def _tell_change(path: str, pair: tuple[Run, Run]) -> str:
    first, last = (_format(path, _get(run, path)) for run in pair)
    if first == "-":
        return f"is {last}"
    if first == last:
        return f"stays at {last}"
    return f"{'falls' if _change(pair, path) < 0 else 'rises'} from {first} to {last}"


def _tell_both(path: str, pair: tuple[Run, Run]) -> str:
    return " → ".join(_format(path, _get(run, path)) for run in pair)


def _name(path: str) -> str:
    name = ROW_OF[path].name
    return name if name.startswith("MPI") else name[0].lower() + name[1:]


def _join(parts: list[str]) -> str:
    return " and ".join([*filter(None, [", ".join(parts[:-1])]), *parts[-1:]])


def _tell_regions(study: Study, pair: tuple[Run, Run], names: tuple[str, str]) -> Iterator[str]:
    """Say which region loses most GPU time of an iteration, and which does not get shorter."""
    regions = {
        name: tuple(run["regions"].get(name) or {} for run in pair)
        for name in study.get("regions") or ()
    }
    lost = {
        name: last["lost_ns"]
        for name, (_, last) in regions.items()
        if last.get("lost_ns") is not None
    }
    if not any(lost.values()):
        return
    worst = max(lost, key=lambda name: lost[name])
    first, last = regions[worst]
    text = f"Region {worst} loses most: {format_nanoseconds(lost[worst])} of an iteration on {names[1]}"
    if first.get("lost_ns") is not None:
        text += f" ({format_nanoseconds(first['lost_ns'])} on {names[0]})"
    row = ROW_OF["device.global"]
    both = [format_figure(row, row.find_value(one)) for one in (first, last)]
    if "-" not in both:
        text += f"; device global efficiency {' → '.join(both)}"
    yield f"{text}."
    yield from _tell_unscaled(regions, worst)


def _tell_unscaled(regions: Mapping[str, tuple[Run, ...]], told: str) -> Iterator[str]:
    """Say of which regions the work does not scale."""
    row: Row = ROW_OF["device.computation_scalability"]
    poor = [
        f"{name} ({format_figure(row, value)})"
        for name, (_, last) in regions.items()
        if (value := row.find_value(last)) is not None
        and rate_efficiency(value) != "good"
        and name != told
    ]
    if poor:
        yield f"The computation of {_join(poor)} does not scale (device computation scalability)."
