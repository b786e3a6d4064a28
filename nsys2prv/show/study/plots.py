"""Draw a study as SVG: the runs with their focus of analysis, balance of ranks, speedup, factors,
regions and iterations.

Pages style these pictures by their classes. Pictures in files contain their own styles.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from statistics import fmean

from markupsafe import escape
from msgspec import Struct
from msgspec.structs import replace

from nsys2prv._util.text import format_nanoseconds, format_share, shorten
from nsys2prv.figures.study_model import GOOD, GPU_TIME, HOST_TIME, ROW_OF, ComparedRuns, Run

#: Size of plots, margins (on the right are the names of lines), and the height of a line of text.
WIDTH, HEIGHT = 560, 300
LEFT, RIGHT, TOP, BOTTOM, LINE = 62, 178, 34, 44, 14
#: Looks of lines, names of ticks at most, characters of a name, and points from which on these are small.
LOOKS, MOST_TICKS, WIDEST, MANY = 7, 8, 26, 40
#: Plotted factors: of devices, and of MPI.
FACTORS = {
    "device": (
        "parallel",
        "load_balance",
        "communication",
        "orchestration",
        "computation_scalability",
    ),
    "mpi": ("parallel", "load_balance", "communication", "serialisation", "transfer"),
}
#: Height of the picture of a run among all of them, of the axis below, and bars of a balance at most.
STRIP, AXIS, MOST_BARS = 34, 30, 64
#: Colors in files, in place of the style of a page.
_COLOURS = ("#0b63ce", "#b3261e", "#1b7a3a", "#8a5300", "#6a3fb5", "#00707a", "#a03a74")
_DASHES = ("", "7 3", "2 3", "9 3 2 3", "", "4 4", "12 4")
STYLE = "".join(
    [
        "text{font:12px sans-serif;fill:#4d5560}.title{font-size:14px;font-weight:600;fill:#16202b}",
        ".x{text-anchor:middle}.y{text-anchor:end}.grid{stroke:#d5dbe1}polyline{fill:none;stroke-width:2}",
        ".guide polyline{stroke:#4d5560;stroke-width:1.3;stroke-dasharray:2 3}",
        ".bar,.focus{fill:#0b63ce}.rest{fill:#b9c4cf}.mean{stroke:#b3261e;stroke-width:1.5}",
        *(
            f".line-{at} polyline{{stroke:{colour};stroke-dasharray:{dash or 'none'}}}"
            f".line-{at} circle,.line-{at} .name{{fill:{colour}}}"
            for at, (colour, dash) in enumerate(zip(_COLOURS, _DASHES, strict=True))
        ),
    ]
)


class Plot(Struct, frozen=True):
    """A plot: lines over an axis."""

    title: str
    #: Section of the document that shows it.
    section: str
    #: Unit of values: `ratio` (logarithmic), `share` (of 1) or `time` (ns).
    unit: str
    #: Quantity on the axis, the place of each point on it, and its name.
    axis: str
    places: Sequence[float]
    names: Sequence[str]
    #: Name -> a value for each point, None for unknown.
    lines: Mapping[str, Sequence[float | None]]
    #: The same for values that are not measured.
    guide: Mapping[str, Sequence[float | None]] = {}


def draw_study(study: ComparedRuns) -> dict[str, str]:
    """Draw the plots of a study. Return name -> picture (SVG) in display order: the runs with their
    focus, lines over runs, regions and iterations, and the balance of ranks in each run.
    """
    pictures = {"runs": _draw_runs(study)} if any(run.phases for run in study.runs) else {}
    pictures |= {_name(plot.title): draw_lines(plot) for plot in list_plots(study)}
    heads = study.name_runs()
    for number, (head, run) in enumerate(zip(heads, study.runs, strict=True), 1):
        if len(run.balance) > 1:
            pictures[f"balance_{number}"] = _draw_balance(
                run, f"Useful share of each {'GPU' if run.devices else 'rank'}: {head}"
            )
    return pictures


def find_sections(study: ComparedRuns) -> dict[str, str]:
    """Return name of a picture -> section of the document in which it belongs. Pictures of balance
    are not included.
    """
    return {"runs": "structure"} | {_name(one.title): one.section for one in list_plots(study)}


def make_file(picture: str) -> str:
    """Return a picture as an SVG file, with its styles."""
    return picture.replace(">", f' xmlns="http://www.w3.org/2000/svg"><style>{STYLE}</style>', 1)


def _name(title: str) -> str:
    return re.sub(r"\W+", "_", title.lower()).strip("_")


# ---- plotted data --------------------------------------------------------------------------------


def list_plots(study: ComparedRuns) -> list[Plot]:
    """Return the plots of values over runs, of regions, and of the time of iterations."""
    runs, names = study.runs, study.name_runs(False)
    counts = [run.units for run in runs]
    figures = {row.path: (row.bare_name, values) for row, values in study.list_figures()}
    over = ("runs", [float(at) for at in range(len(runs))], names)
    has_scale = len({*counts}) == len(counts) > 1
    if has_scale:
        unit = "GPUs" if runs[-1].devices else "ranks"
        over = (unit, [math.log2(count) for count in counts], [f"{count:,}" for count in counts])
    acceptable = {f"{format_share(GOOD, 0)} (POP)": [GOOD] * len(runs)}
    ideal = {"ideal": [count / study.reference_run.units for count in counts]}
    measured = {"measured": figures.get("speedup", ("", []))[1]}
    plots = [Plot("Speed-up", "scalability", "ratio", *over, measured, ideal)] if has_scale else []
    for part, title in (("device", "devices"), ("mpi", "MPI")):
        found = [figures[path] for name in FACTORS[part] if (path := f"{part}.{name}") in figures]
        plots.append(
            Plot(f"Factors of {title}", "scalability", "share", *over, dict(found), acceptable)
        )
    regions = [
        {row.path: values for row, values in of_run} for _, of_run in study.list_region_figures()
    ]
    best, time = ("device.global", GPU_TIME) if study.has_devices else ("mpi.parallel", HOST_TIME)
    for path, title, unit, guide in (
        (best, ROW_OF[best].name, "share", acceptable),
        ("elapsed_ns", time, "time", {}),
    ):
        lines = {
            head: [of_run[path][at] if path in of_run else None for of_run in regions]
            for at, head in enumerate(study.region_heads)
        }
        plots.append(Plot(f"Regions: {title}", "regions", unit, *over, lines, guide))
    most = max(len(run.iteration_ns) for run in runs)
    if most > 1:
        numbers = [float(at) for at in range(most)]
        lines = {
            name: [*run.iteration_ns, *[None] * (most - len(run.iteration_ns))]
            for name, run in zip(names, runs, strict=True)
        }
        labels = [str(at + 1) for at in range(most)]
        plots.append(
            Plot(
                "Time of each iteration",
                "scalability",
                "time",
                "iteration of the focus",
                numbers,
                labels,
                lines,
            )
        )
    past = [*(one.name for one in study.history), "now"]
    places = [float(at) for at in range(len(past))]
    for path, unit in (("elapsed_ns", "time"), (best, "share")):
        title = f"Over the studies: {ROW_OF[path].name}"
        lines = dict(study.list_history(path))
        plots.append(Plot(title, "history", unit, "studies", places, past, lines))
    return [plot for plot in map(_leave_unknown_out, plots) if plot.lines]


def _leave_unknown_out(plot: Plot) -> Plot:
    known = {name: own for name, own in plot.lines.items() if any(one is not None for one in own)}
    return replace(plot, lines=known)


# ---- how it is drawn ------------------------------------------------------------------------------


def _shape(tag: str, content: str = "", **attributes: object) -> str:
    written = " ".join(
        f'{name.strip("_").replace("_", "-")}="{escape(f"{value:.6g}" if isinstance(value, float) else value)}"'
        for name, value in attributes.items()
    )
    return f"<{tag} {written}>{content}</{tag}>"


def _write(x: float, y: float, text: str, kind: str) -> str:
    return _shape("text", str(escape(text)), x=float(x), y=float(y), class_=kind)


def _frame(height: int, title: str, content: Sequence[str]) -> str:
    shapes = [_write(LEFT, 18, title, "title"), *content]
    box = f"0 0 {WIDTH} {height}"
    return _shape("svg", "".join(shapes), viewBox=box, role="img", aria_label=title)


def choose_ticks(values: Sequence[float], is_log: bool) -> list[float]:
    """Return the numbers to write at the vertical axis: powers of two (`is_log`), or about five
    numbers from 0. values: those to plot.
    """
    top = max([*values, 0.0]) or 1.0
    if is_log:
        first = math.floor(math.log2(min(values)))
        last = max(math.ceil(math.log2(top)), first + 1)
        step = math.ceil((last - first) / MOST_TICKS)
        return [2.0 ** (first + at * step) for at in range(math.ceil((last - first) / step) + 1)]
    power = 10.0 ** math.floor(math.log10(top / 5.01))
    step = next(one * power for one in (1, 2, 5, 10) if one * power >= top / 5.01)
    return [at * step for at in range(math.ceil(top / step - 1e-6) + 1)]


def spread_names(wanted: Sequence[float], lowest: float) -> list[float]:
    """Return vertical places of names, so that they do not overlap: as near to the wanted places as
    possible, and none below the lowest.
    """
    order, places = sorted(range(len(wanted)), key=lambda at: wanted[at]), list(wanted)
    for before, at in itertools.pairwise(order):
        places[at] = max(places[at], places[before] + LINE)
    for number, at in enumerate(reversed(order)):
        places[at] = min(places[at], lowest - number * LINE)
    return places


def _write_value(unit: str, value: float) -> str:
    if unit == "ratio":
        return f"{round(value, 2):g}"
    return format_nanoseconds(value) if unit == "time" else f"{round(100 * value, 1):g}%"


def draw_lines(plot: Plot) -> str:
    """Return a plot as SVG. Points have their values as tooltips."""
    is_log, every = plot.unit == "ratio", {**plot.lines, **plot.guide}
    known = [value for own in every.values() for value in own if value is not None]
    ticks = choose_ticks(known, is_log)
    scale = math.log2 if is_log else float
    low, high = scale(ticks[0]), scale(ticks[-1])
    first, last, bottom = min(plot.places), max(plot.places), HEIGHT - BOTTOM

    def find_x(at: int) -> float:
        share = (plot.places[at] - first) / (last - first) if last > first else 0.5
        return LEFT + (WIDTH - LEFT - RIGHT) * share

    def find_y(value: float) -> float:
        return bottom - (bottom - TOP) * (scale(value) - low) / (high - low)

    shapes = []
    for tick in ticks:
        y, text = find_y(tick), _write_value(plot.unit, tick)
        ends = {"x1": LEFT, "x2": WIDTH - RIGHT, "y1": y, "y2": y}
        shapes += [_shape("line", **ends, class_="grid"), _write(LEFT - 8, y + 4, text, "y")]
    step = math.ceil(len(plot.names) / MOST_TICKS)
    shapes += [
        _write(find_x(at), bottom + 18, plot.names[at], "x")
        for at in range(0, len(plot.names), step)
    ]
    shapes.append(_write((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, plot.axis, "x"))
    points = [
        [
            (find_x(at), find_y(value), value, at)
            for at, value in enumerate(own)
            if value is not None
        ]
        for own in every.values()
    ]
    places = spread_names([own[-1][1] for own in points], bottom)
    for number, (name, own) in enumerate(zip(every, points, strict=True)):
        is_guide = name in plot.guide and name not in plot.lines
        line = [_shape("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y, *_ in own))]
        for x, y, value, at in [] if is_guide else own:
            tip = [name, [f"{plot.axis}: {plot.names[at]}", _write_value(plot.unit, value)]]
            radius = 1.5 if len(plot.places) > MANY else 3.5
            line.append(_shape("circle", cx=x, cy=y, r=radius, data_tip=json.dumps(tip)))
        line.append(_write(WIDTH - RIGHT + 10, places[number] + 4, shorten(name, WIDEST), "name"))
        kind = "guide" if is_guide else f"line-{number % LOOKS}"
        shapes.append(_shape("g", "".join(line), class_=kind))
    return _frame(HEIGHT, plot.title, shapes)


def _draw_balance(run: Run, title: str) -> str:
    """Return the useful share of each GPU (without GPUs, each rank) as bars, with their mean. If
    there are many, return means of neighbors.
    """
    values, names = [*run.balance.values()], [*run.balance]
    size = math.ceil(len(values) / MOST_BARS)
    parts = [range(at, min(at + size, len(values))) for at in range(0, len(values), size)]
    ticks, bottom = choose_ticks(values, False), HEIGHT - BOTTOM
    width = (WIDTH - LEFT - 20) / len(parts)

    def find_y(value: float) -> float:
        return bottom - (bottom - TOP) * value / ticks[-1]

    shapes = []
    for tick in ticks:
        y = find_y(tick)
        ends = {"x1": LEFT, "x2": WIDTH - 20, "y1": y, "y2": y}
        shapes.append(_shape("line", **ends, class_="grid"))
        shapes.append(_write(LEFT - 8, y + 4, _write_value("share", tick), "y"))
    step = math.ceil(len(parts) / MOST_TICKS)
    for number, part in enumerate(parts):
        value = fmean(values[at] for at in part)
        name = names[part[0]] + (f" to {names[part[-1]]}" if len(part) > 1 else "")
        x, y = LEFT + number * width, find_y(value)
        place = {"x": x + 0.1 * width, "y": y, "width": 0.8 * width, "height": bottom - y}
        tip = json.dumps([name, ["useful", _write_value("share", value)]])
        shapes.append(_shape("rect", **place, class_="bar", data_tip=tip))
        if number % step == 0:
            shapes.append(_write(x + width / 2, bottom + 18, f"{part[0]}", "x"))
    y = find_y(fmean(values))
    shapes.append(_shape("line", x1=LEFT, x2=WIDTH - 20, y1=y, y2=y, class_="mean"))
    balance = fmean(values) / max(values) if max(values) else 1.0
    units = "GPUs" if run.devices else "ranks"
    about = (
        f"{units} in their order, from 0; line: mean, {_write_value('share', balance)} of the most"
    )
    return _frame(HEIGHT, title, [*shapes, _write((LEFT + WIDTH) / 2, HEIGHT - 8, about, "x")])


def _draw_runs(study: ComparedRuns) -> str:
    """Return a picture of all runs on one scale, with the focus of analysis marked and its share."""
    ends = [max((begin + time for _, begin, time in run.phases), default=0) for run in study.runs]
    whole, shapes = max(*ends, 1), []
    bottom = TOP + STRIP * len(study.runs)
    width = WIDTH - LEFT - 20
    for number, (head, run) in enumerate(zip(study.name_runs(), study.runs, strict=True)):
        y = TOP + STRIP * number
        shapes.append(_write(LEFT, y + 10, _describe_phases(head, run, ends[number]), "of"))
        focus = run.interval.begin_ns, run.interval.end_ns
        spans = [("rest", name, begin, begin + time) for name, begin, time in run.phases]
        for kind, name, begin, end in [*spans, ("focus", "focus of analysis", *focus)]:
            place = {
                "x": LEFT + width * begin / whole,
                "width": max(width * (end - begin) / whole - 0.6, 0.4),
            }
            tip = json.dumps([name, [head, format_nanoseconds(end - begin)]])
            shapes.append(_shape("rect", **place, y=y + 14, height=14, class_=kind, data_tip=tip))
    for tick in choose_ticks([float(whole)], False):
        if tick <= whole:
            x = LEFT + width * tick / whole
            shapes.append(_write(x, bottom + 18, format_nanoseconds(tick), "x"))
    return _frame(bottom + AXIS, "Whole runs; coloured: the focus of analysis", shapes)


def _describe_phases(head: str, run: Run, end: int) -> str:
    share = (run.interval.end_ns - run.interval.begin_ns) / max(end, 1)
    return (
        f"{head}: {format_nanoseconds(end)}, of which {_write_value('share', share)} are the focus"
    )
