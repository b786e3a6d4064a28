"""Plot the figures of a study as lines in SVG: data classes that the page's template draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise

from msgspec import Struct

from nsys2prv._util.text import UNITS
from nsys2prv.analysis.study.rows import GOOD, ROW_OF
from nsys2prv.analysis.study.tables import (
    GPU_TIME,
    HOST_TIME,
    Study,
    count_units,
    find_reference,
    has_devices,
    list_region_figures,
    name_runs,
)
from nsys2prv.analysis.text import format_nanoseconds

#: Size of a plot, and its margins: left, right (for the names of lines), top, bottom.
WIDTH, HEIGHT = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 62, 178, 34, 44
#: Height of a line of text, lines that have a look of their own, and numbers at an axis.
LINE, MOST_LINES, MOST_TICKS = 14, 7, 8
#: Factors that are plotted: those of devices, and of MPI.
DEVICE_FACTORS = ("parallel", "load_balance", "communication", "orchestration", "computation_scalability")  # fmt: skip
MPI_FACTORS = ("parallel", "load_balance", "communication", "serialisation", "transfer")


class Line(Struct, frozen=True):
    """A line of a plot."""

    #: What it shows.
    name: str
    #: Which colour and dashes it has; -1: it is not measured.
    look: int
    #: Where its points are, and what each says.
    points: list[tuple[float, float, str]]
    #: Where its name is.
    name_y: float

    @property
    def path(self) -> str:
        """The points as SVG has them."""
        return " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in self.points)


class Plot(Struct, frozen=True):
    """Lines over runs, or over the iterations of runs."""

    title: str
    #: What the horizontal axis counts.
    axis: str
    lines: list[Line]
    #: Numbers at the axes: place, text.
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]


def make_plots(study: Study) -> Iterator[Plot]:
    """Plot speed-up, factors, regions and the times of iterations."""
    runs, names = study["runs"], name_runs(study, False)
    metrics = [run["metrics"] for run in runs]
    counts = list(map(count_units, runs))
    if len(set(counts)) == len(counts) > 1:
        at: list[float] = [math.log2(count) for count in counts]
        names, axis = [f"{count:,}" for count in counts], "GPUs" if runs[-1]["devices"] else "ranks"
    else:
        at, axis = list(map(float, range(len(counts)))), "runs"
    x = (at, names, axis)

    def find(paths: Mapping[str, str], figures: Sequence[Study]) -> dict[str, list[float | None]]:
        return {
            name: [ROW_OF[path].find_value(one) for one in figures] for path, name in paths.items()
        }

    speed = find({"speedup": "measured"}, metrics)
    if axis != "runs" and any(speed["measured"]):
        reference = count_units(find_reference(study))
        ideal = [count / reference for count in counts]
        yield _plot("Speed-up", x, speed, _format_ratio, True, (ideal, "ideal"))
    for part, factors in (("device", DEVICE_FACTORS), ("mpi", MPI_FACTORS)):
        paths = {f"{part}.{one}": ROW_OF[f"{part}.{one}"].bare_name for one in factors}
        title = "Factors of devices" if part == "device" else "Factors of MPI"
        yield _plot(title, x, find(paths, metrics), _format_percent, guide=GUIDE)
    if regions := list_region_figures(study):
        best, time = (
            ("device.global", GPU_TIME) if has_devices(study) else ("mpi.parallel", HOST_TIME)
        )
        for path, title, write in (
            (best, f"Regions: {ROW_OF[best].name}", _format_percent),
            ("elapsed_ns", f"Regions: {time}", format_nanoseconds),
        ):
            of_runs = [{row.path: values for row, values in one.rows} for _, one in regions]
            lines = {
                name: [one[path][number] if path in one else None for one in of_runs]
                for number, name in enumerate(regions[0][1].heads)
            }
            yield _plot(title, x, lines, write, guide=GUIDE if path != "elapsed_ns" else None)
    times = [run.get("iteration_ns") or [] for run in runs]
    most = max(map(len, times), default=0)
    if most > 1:
        numbers = [str(number) for number in range(1, most + 1)]
        lines = {
            name: [*one, *[None] * (most - len(one))]
            for name, one in zip(name_runs(study, False), times, strict=True)
        }
        x = (list(map(float, range(most))), numbers, "iteration of the focus")
        yield _plot("Time of each iteration", x, lines, format_nanoseconds)


def _format_percent(value: float) -> str:
    return f"{100 * value:.1f} %".replace(".0 %", " %")


def _format_ratio(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _format_time(value: float, unit: float) -> str:
    """Return a time (ns) in the unit of the largest at the axis."""
    size, name = next((size, name) for name, size in UNITS.items() if unit >= size or size == 1)
    return f"{value / size:g} {name}"


#: The line at what POP calls acceptable.
GUIDE = ([GOOD], f"{100 * GOOD:.0f} % (POP)")


def _plot(
    title: str,
    x: tuple[Sequence[float], Sequence[str], str],
    values: Mapping[str, Sequence[float | None]],
    write: Callable[[float], str],
    is_log: bool = False,
    guide: tuple[Sequence[float], str] | None = None,
) -> Plot:
    """Return a plot of lines by name. x: places, their texts, what they count. guide: a line that is
    not measured, level where it has one value.
    """
    at, texts, axis = x
    level = list(guide[0]) if guide else []
    level *= len(at) if len(level) == 1 else 1
    shown = {name: line for name, line in values.items() if any(one is not None for one in line)}
    numbers = [one for line in (*shown.values(), level) for one in line if one is not None]
    ticks = _choose_ticks(numbers, is_log)
    low, high = (math.log2(one) if is_log else one for one in (ticks[0], ticks[-1]))
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def place_x(one: float) -> float:
        return LEFT + width * ((one - min(at)) / (max(at) - min(at)) if len(at) > 1 else 0.5)

    def place_y(one: float) -> float:
        return HEIGHT - BOTTOM - height * ((math.log2(one) if is_log else one) - low) / (high - low)

    lines = []
    for number, (name, line) in enumerate(shown.items()):
        known = [(place, one) for place, one in zip(at, line, strict=True) if one is not None]
        points = [(place_x(place), place_y(one), f"{name}: {write(one)}") for place, one in known]
        lines.append(Line(name, number % MOST_LINES, points, points[-1][1]))
    if guide and lines:
        points = [(place_x(a), place_y(b), guide[1]) for a, b in zip(at, level, strict=True)]
        lines.append(Line(guide[1], -1, points, points[-1][1]))
    step = math.ceil(len(texts) / MOST_TICKS)
    write_tick = partial(_format_time, unit=ticks[-1]) if write is format_nanoseconds else write
    return Plot(
        title,
        axis,
        _spread_names(lines),
        [(place_x(one), text) for one, text in list(zip(at, texts, strict=True))[::step]],
        [(place_y(one), write_tick(one)) for one in ticks],
    )


def _choose_ticks(values: Sequence[float], is_log: bool) -> list[float]:
    """Return the numbers at the vertical axis: powers of two, or about five from 0 on."""
    top = max(values, default=1.0) or 1.0
    if is_log:
        first = math.floor(math.log2(min(values)))
        last = max(math.ceil(math.log2(top)), first + 1)
        step = math.ceil((last - first) / MOST_TICKS)
        return [2.0**one for one in range(first, last + step, step)]
    step = 10 ** math.floor(math.log10(top / 5))
    step *= next(one for one in (1, 2, 2.5, 5, 10) if step * one * 5.01 >= top)
    return [step * number for number in range(math.ceil(round(top / step, 6)) + 1)]


def _spread_names(lines: Sequence[Line]) -> list[Line]:
    """Return the lines with their names below each other."""
    ordered = sorted(lines, key=lambda line: line.name_y)
    places = [line.name_y for line in ordered]
    for upper, lower in pairwise(range(len(places))):
        places[lower] = max(places[lower], places[upper] + LINE)
    beyond = max(0.0, places[-1] - (HEIGHT - BOTTOM)) if places else 0.0
    return [
        Line(line.name, line.look, line.points, place - beyond)
        for line, place in zip(ordered, places, strict=True)
    ]
