"""Figures as SVG that takes the page's colours: lines and distributions by matplotlib, those with
a row for each thing, of which there may be dozens, by :mod:`row_figures`.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from nsys2prv._util.errors import MissingPackage
from nsys2prv.analysis.page.parts import Figure, HeatMap, Lines, Spread, Stacked, shorten_label
from nsys2prv.analysis.page.row_figures import heat_map_svg, stacked_svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

#: What is drawn in this colour gets that of the page's text.
INK = "#010203"
#: Colour-blind safe lines, of enough contrast on light and dark.
LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
WIDTH = 9.6
SETTINGS = {
    "svg.fonttype": "none",
    "svg.hashsalt": "nsys2prv",
    "text.parse_math": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.constrained_layout.use": True,
    "legend.frameon": False,
    "axes.grid": False,
}


def need_matplotlib() -> None:
    """Raises MissingPackage where there is none."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingPackage("the page needs matplotlib: pip install matplotlib") from None


def draw_all(figures: list[Figure]) -> list[str]:
    """SVG of each figure, to stand in one HTML page."""
    need_matplotlib()
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(SETTINGS)
        # Names in scripts that the font lacks are drawn by the browser's.
        warnings.simplefilter("ignore")
        return [_svg(figure, number) for number, figure in enumerate(figures, 1)]


def _svg(figure: Figure, number: int) -> str:
    """number: of the figure on its page."""
    if isinstance(figure, HeatMap):
        return heat_map_svg(figure, number)
    if isinstance(figure, Stacked):
        return stacked_svg(figure)
    return _inline(_drawn(figure), f"f{number}-")


def _drawn(figure: Figure) -> str:
    canvas = DRAWERS[type(figure)](figure)
    written = io.StringIO()
    canvas.savefig(
        written,
        format="svg",
        transparent=True,
        metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
    )
    return written.getvalue()


def _inline(svg: str, prefix: str) -> str:
    """Without what only files have, its names made its own, and the text's colour left to the page."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.DOTALL)
    head, _, body = svg.partition(">")
    box = re.search(r'viewBox="([^"]*)"', head)
    # Groups have names that nothing refers to.
    body = re.sub(r'<g id="[^"]*"', "<g", body)
    body = re.sub(r' id="', f' id="{prefix}', body)
    body = (
        body.replace("url(#", f"url(#{prefix}")
        .replace('xlink:href="#', f'xlink:href="#{prefix}')
        .replace(INK, "currentColor")
    )
    body = re.sub(r"font-family: [^;\"]*;? ?", "", body)
    body = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", body)
    return f'<svg viewBox="{box[1] if box else "0 0 1 1"}" role="img">{body}'


def _canvas(height: float, rows: int = 1) -> tuple[Canvas, np.ndarray]:
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(WIDTH, height), layout="constrained")
    return canvas, canvas.subplots(rows, 1, sharex=True, squeeze=False)[:, 0]


def _lines(figure: Lines) -> Canvas:
    canvas, panels = _canvas(0.6 + 1.9 * len(figure.panels), len(figure.panels))
    for axes, (name, curves) in zip(panels, figure.panels.items(), strict=True):
        for colour, (label, values) in zip(LINES, curves.items(), strict=False):
            axes.plot(figure.x, values, ".-", color=colour, label=label, markersize=4, linewidth=1)
        axes.set_ylabel(name)
        axes.grid(color=INK, alpha=0.15)
        if len(curves) > 1:
            axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    if figure.marked:
        first = next(iter(next(iter(figure.panels.values())).values()))
        panels[0].plot(
            figure.x[figure.marked],
            first[figure.marked],
            "o",
            color=LINES[1],
            fillstyle="none",
            markersize=10,
        )
    panels[-1].set_xlabel(figure.across)
    panels[-1].xaxis.get_major_locator().set_params(integer=True)
    return canvas


def _spread(figure: Spread) -> Canvas:
    from matplotlib.ticker import FuncFormatter

    from nsys2prv.analysis.text import duration

    rows = len(figure.labels)
    canvas, (axes,) = _canvas(0.8 + 0.34 * rows)
    for row in range(rows):
        counts, edges, base = figure.counts[row], figure.edges[row], rows - row
        heights = base + 0.85 * counts / max(counts.max(), 1)
        colour = LINES[1] if figure.modes[row] else LINES[0]
        axes.fill_between(
            np.repeat(edges, 2)[1:-1], base, np.repeat(heights, 2), color=colour, linewidth=0
        )
        axes.plot(figure.median[row], base - 0.07, "|", color=INK, markersize=5)
        if figure.modes[row]:
            axes.plot(figure.modes[row], [base - 0.07] * 2, "^", color=colour, markersize=4)
    axes.set(
        xscale="log",
        ylim=(0.8, rows + 1),
        xlabel="duration (log scale); tick: median; orange: two modes, at the triangles",
    )
    axes.set_yticks(np.arange(rows, 0, -1) + 0.3, [shorten_label(label) for label in figure.labels])
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _: duration(value).replace(".00", ""))
    )
    axes.grid(axis="x", color=INK, alpha=0.15)
    return canvas


DRAWERS: dict[type, Callable[..., Canvas]] = {
    Lines: _lines,
    Spread: _spread,
}
