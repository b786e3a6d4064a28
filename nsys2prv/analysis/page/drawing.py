"""Figures as SVG that takes the page's colours: lines and distributions by matplotlib. Those with a
row for each thing (heat maps, an image of one pixel a value, and stacked bars), of which a page may
have dozens, are written directly, in a millisecond each.
"""

from __future__ import annotations

import base64
import io
import re
import struct
import unicodedata
import warnings
import zlib
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from nsys2prv._util.errors import MissingPackage
from nsys2prv._util.text import hide_font_notes
from nsys2prv.analysis.page.parts import Figure, HeatMap, Lines, Spread, Stacked, shorten_label

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


def require_matplotlib() -> None:
    """Raise MissingPackage where matplotlib is missing."""
    hide_font_notes()
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingPackage("the page needs matplotlib: pip install matplotlib") from None


def draw_all(figures: list[Figure]) -> list[str]:
    """Return SVG of each figure, to stand in one HTML page."""
    require_matplotlib()
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(SETTINGS)
        # Names in scripts that the font lacks are drawn by the browser's.
        warnings.simplefilter("ignore")
        return [_make_svg(figure, number) for number, figure in enumerate(figures, 1)]


def _make_svg(figure: Figure, number: int) -> str:
    """Return a figure as SVG. number: of the figure on its page."""
    if isinstance(figure, HeatMap):
        return draw_heat_map(figure, number)
    if isinstance(figure, Stacked):
        return draw_stacked(figure)
    canvas = _draw_lines(figure) if isinstance(figure, Lines) else _draw_spread(figure)
    written = io.StringIO()
    metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    canvas.savefig(written, format="svg", transparent=True, metadata=metadata)
    return _make_inline(written.getvalue(), f"f{number}-")


def _make_inline(svg: str, prefix: str) -> str:
    """Return an SVG file as a part of a page: without a head, its names made unique, and the text's
    colour left to the page.
    """
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


def _make_canvas(height: float, rows: int = 1) -> tuple[Canvas, np.ndarray]:
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(WIDTH, height), layout="constrained")
    return canvas, canvas.subplots(rows, 1, sharex=True, squeeze=False)[:, 0]


def _draw_lines(figure: Lines) -> Canvas:
    canvas, panels = _make_canvas(0.6 + 1.9 * len(figure.panels), len(figure.panels))
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


def _draw_spread(figure: Spread) -> Canvas:
    from matplotlib.ticker import FuncFormatter

    from nsys2prv.analysis.text import format_nanoseconds

    rows = len(figure.labels)
    canvas, (axes,) = _make_canvas(0.8 + 0.34 * rows)
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
        FuncFormatter(lambda value, _: format_nanoseconds(value).replace(".00", ""))
    )
    axes.grid(axis="x", color=INK, alpha=0.15)
    return canvas


#: Colours of the scale from low to high, evenly spaced: viridis, which is colour-blind safe.
COLOURS = re.findall(
    "......",
    "44015448186a472d7b4240863b528b33638d2c728e26828e21918c"
    "1fa08828ae803fbc735ec96284d44baddc30d8e219fde725",
)
#: Width of a figure, height of a row, and size of the text (SVG units).
FIGURE_WIDTH, ROW, TEXT = 690.0, 14.5, 9.0
#: Space above the map, below it, and right of it for the scale.
TOP, BELOW, SCALE = 6.0, 34.0, 66.0
#: Width of a character beside its size, of wide fonts on average.
CHARACTER = 0.64
#: Ticks of an axis at most.
MOST_TICKS = 9


def draw_heat_map(figure: HeatMap, number: int) -> str:
    """Return a heat map as SVG. number: of the figure on its page, for names that have to be unique
    there.
    """
    labels = [*map(shorten_label, figure.labels)]
    across, quantity = shorten_label(figure.across), shorten_label(figure.quantity)
    finite = figure.values[~np.isnan(figure.values)]
    low = float(finite.min(initial=np.inf)) if figure.low is None else figure.low
    high = float(finite.max(initial=-np.inf)) if figure.high is None else figure.high
    if not low < high:
        low, high = (low, low + 1) if np.isfinite(low) else (0.0, 1.0)
    left = 8 + max(map(_estimate_width, labels), default=0)
    width, height = FIGURE_WIDTH - left - SCALE, ROW * max(len(labels), 3)
    parts = [
        f'<image x="{left:.1f}" y="{TOP}" width="{width:.1f}" height="{height:.1f}" '
        'preserveAspectRatio="none" style="image-rendering: pixelated" '
        f'href="data:image/png;base64,{_encode_png(figure.values, low, high)}"/>'
    ]
    parts += _draw_names(labels, left, TOP, height / max(len(labels), 1))
    parts += _draw_axis(left, TOP + height, width, figure.extent, across, figure.whole)
    bar = left + width + 10
    stops = "".join(
        f'<stop offset="{at / (len(COLOURS) - 1):.4f}" stop-color="#{colour}"/>'
        for at, colour in enumerate(COLOURS)
    )
    parts.append(
        f'<linearGradient id="scale{number}" x1="0" y1="1" x2="0" y2="0">{stops}</linearGradient>'
        f'<rect x="{bar:.1f}" y="{TOP}" width="10" height="{height:.1f}" fill="url(#scale{number})"/>'
    )
    for value in choose_ticks(low, high, False, max(2, int(height / 25))):
        y = TOP + height - (value - low) / (high - low) * height
        parts.append(_make_line(bar + 10, y, bar + 13, y))
        parts.append(_make_text(bar + 16, y + TEXT / 3, _format_number(value)))
    # Along the scale where it is long enough, else below it.
    if _estimate_width(quantity) <= height:
        middle = TOP + height / 2
        turned = f'transform="rotate(-90 {FIGURE_WIDTH - 4:.1f} {middle:.1f})"'
        parts.append(_make_text(FIGURE_WIDTH - 4, middle, quantity, "middle", turned))
    else:
        parts.append(_make_text(FIGURE_WIDTH - 1, TOP + height + 28, quantity, "end"))
    return _wrap_drawing(TOP + height + BELOW, parts)


def draw_stacked(figure: Stacked) -> str:
    """Return parts of a whole as SVG: a bar for each row, and a legend above."""
    labels = [*map(shorten_label, figure.labels)]
    left = 8 + max(map(_estimate_width, labels), default=0)
    width, height = FIGURE_WIDTH - left - 12, ROW * len(labels)
    parts, top, x = [], TOP + ROW, 4.0
    for name, (colour, _) in figure.parts.items():
        if x + 14 + _estimate_width(name) > FIGURE_WIDTH and x > 4:
            top, x = top + ROW, 4.0
        parts.append(f'<rect x="{x:.1f}" y="{top - 15:.1f}" width="9" height="9" fill="{colour}"/>')
        parts.append(_make_text(x + 12, top - 7, name))
        x += 24 + _estimate_width(name)
    start = np.zeros(len(labels))
    most = max(float(sum(values for _, values in figure.parts.values()).max()), 1e-11)
    for colour, values in figure.parts.values():
        parts += [
            f'<rect x="{left + width * begin / most:.2f}" y="{top + (at + 0.1) * ROW:.1f}" '
            f'width="{width * value / most:.2f}" height="{0.8 * ROW:.1f}" fill="{colour}"/>'
            for at, (begin, value) in enumerate(zip(start.tolist(), values.tolist(), strict=True))
            if value > 0
        ]
        start = start + values
    parts += _draw_names(labels, left, top, ROW)
    parts += _draw_axis(left, top + height, width, (0, 100 * most), figure.axis, False)
    return _wrap_drawing(top + height + BELOW, parts)


def _draw_names(labels: list[str], left: float, top: float, row: float) -> list[str]:
    """Return the labels of rows, left of `left`."""
    return [
        _make_text(left - 5, top + (at + 0.5) * row + TEXT / 3, label, "end")
        for at, label in enumerate(labels)
    ]


def _draw_axis(
    left: float, top: float, width: float, extent: tuple[float, float], name: str, whole: bool
) -> list[str]:
    """Return an axis below a figure: ticks, their numbers, and what they count."""
    first, last = extent
    parts = [_make_line(left, top, left + width, top)]
    for value in choose_ticks(first, last, whole):
        x = left + (value - first) / (last - first) * width
        parts += [
            _make_line(x, top, x, top + 4),
            _make_text(x, top + 14, _format_number(value), "middle"),
        ]
    return [*parts, _make_text(left + width / 2, top + 28, name, "middle")]


def _wrap_drawing(height: float, parts: list[str]) -> str:
    return (
        f'<svg viewBox="0 0 {FIGURE_WIDTH:.0f} {height:.1f}" role="img" fill="currentColor" '
        f'font-size="{TEXT:g}px">{"".join(parts)}</svg>'
    )


def choose_ticks(first: float, last: float, whole: bool, most: int = MOST_TICKS) -> list[float]:
    """Return round numbers from `first` to `last`, at most so many; whole ones if `whole`."""
    least = (last - first) / most
    if not least > 0 or not np.isfinite(least):
        return []
    power = 10.0 ** np.floor(np.log10(least))
    step = next(factor * power for factor in (1, 2, 5, 10, 20) if factor * power >= least)
    step = max(step, 1.0) if whole else step
    from_, to = np.ceil(first / step - 1e-9), np.floor(last / step + 1e-9)
    return [float(number * step) + 0.0 for number in np.arange(from_, to + 1)]


def _encode_png(values: np.ndarray, low: float, high: float) -> str:
    """Return the values as an image of colours of the scale (PNG with a palette) in base64;
    unknown ones are transparent.
    """
    stops = np.array([list(bytes.fromhex(colour)) for colour in COLOURS], float)
    place = np.linspace(0, len(COLOURS) - 1, 255)
    palette = [np.interp(place, np.arange(len(COLOURS)), stops[:, part]) for part in range(3)]
    colours = np.round(np.stack([*palette], axis=1)).astype(np.uint8)
    is_known = ~np.isnan(values)
    scaled = np.clip((np.where(is_known, values, low) - low) / (high - low), 0, 1)
    # Entry 0 of the palette stands for what is not known.
    pixels = np.where(is_known, 1 + np.round(254 * scaled), 0).astype(np.uint8)
    lines = np.concatenate([np.zeros((len(pixels), 1), np.uint8), pixels], axis=1)
    size = struct.pack(">IIBBBBB", values.shape[1], values.shape[0], 8, 3, 0, 0, 0)
    chunks = (
        (b"IHDR", size),
        (b"PLTE", b"\0\0\0" + colours.tobytes()),
        (b"tRNS", b"\0"),
        (b"IDAT", zlib.compress(lines.tobytes(), 9)),
        (b"IEND", b""),
    )
    image = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )
    return base64.b64encode(image).decode()


def _estimate_width(text: str) -> float:
    """Return about how wide a text is; characters of East Asia are twice as wide."""
    wide = sum(unicodedata.east_asian_width(one) in "WF" for one in text)
    return TEXT * CHARACTER * (len(text) + wide)


def _make_text(x: float, y: float, text: str, anchor: str = "start", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{escape(text)}</text>'


def _make_line(x1: float, y1: float, x2: float, y2: float) -> str:
    return (
        f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="currentColor" stroke-width=".8"/>'
    )


def _format_number(value: float) -> str:
    """Return a tick's number, short."""
    return f"{value:,.10g}" if abs(value) < 1e6 else f"{value:.4g}"
