"""Write figures with a row for each thing as SVG: heat maps, an image of one pixel a value, and
stacked bars.

A page may have dozens of them. Written directly, one takes a millisecond.
"""

from __future__ import annotations

import base64
import re
import struct
import unicodedata
import zlib
from html import escape

import numpy as np

from nsys2prv.analysis.page.parts import HeatMap, Stacked, shorten_label

#: Colours of the scale from low to high, evenly spaced: viridis, which is colour-blind safe.
COLOURS = re.findall(
    "......",
    "44015448186a472d7b4240863b528b33638d2c728e26828e21918c"
    "1fa08828ae803fbc735ec96284d44baddc30d8e219fde725",
)
#: Width of a figure, height of a row, and size of the text (SVG units).
WIDTH, ROW, TEXT = 690.0, 14.5, 9.0
#: Space above the map, below it, and right of it for the scale.
TOP, BELOW, SCALE = 6.0, 34.0, 66.0
#: Width of a character beside its size, of wide fonts on average.
CHARACTER = 0.64
#: Ticks of an axis at most.
MOST_TICKS = 9


def heat_map_svg(figure: HeatMap, number: int) -> str:
    """Return a heat map as SVG. number: of the figure on its page, for names that have to be unique
    there.
    """
    labels = [*map(shorten_label, figure.labels)]
    across, quantity = shorten_label(figure.across), shorten_label(figure.quantity)
    known = figure.values[~np.isnan(figure.values)]
    low = float(known.min(initial=np.inf)) if figure.low is None else figure.low
    high = float(known.max(initial=-np.inf)) if figure.high is None else figure.high
    if not low < high:
        low, high = (low, low + 1) if np.isfinite(low) else (0.0, 1.0)
    left = 8 + max(map(_width, labels), default=0)
    width, height = WIDTH - left - SCALE, ROW * max(len(labels), 3)
    parts = [
        f'<image x="{left:.1f}" y="{TOP}" width="{width:.1f}" height="{height:.1f}" '
        'preserveAspectRatio="none" style="image-rendering: pixelated" '
        f'href="data:image/png;base64,{_png(figure.values, low, high)}"/>'
    ]
    parts += _names(labels, left, TOP, height / max(len(labels), 1))
    parts += _axis(left, TOP + height, width, figure.extent, across, figure.whole)
    bar = left + width + 10
    stops = "".join(
        f'<stop offset="{at / (len(COLOURS) - 1):.4f}" stop-color="#{colour}"/>'
        for at, colour in enumerate(COLOURS)
    )
    parts.append(
        f'<linearGradient id="scale{number}" x1="0" y1="1" x2="0" y2="0">{stops}</linearGradient>'
        f'<rect x="{bar:.1f}" y="{TOP}" width="10" height="{height:.1f}" fill="url(#scale{number})"/>'
    )
    for value in ticks(low, high, False, max(2, int(height / 25))):
        y = TOP + height - (value - low) / (high - low) * height
        parts.append(_line(bar + 10, y, bar + 13, y))
        parts.append(_text(bar + 16, y + TEXT / 3, _number(value)))
    # Along the scale where it is long enough, else below it.
    if _width(quantity) <= height:
        middle = TOP + height / 2
        turned = f'transform="rotate(-90 {WIDTH - 4:.1f} {middle:.1f})"'
        parts.append(_text(WIDTH - 4, middle, quantity, "middle", turned))
    else:
        parts.append(_text(WIDTH - 1, TOP + height + 28, quantity, "end"))
    return _drawing(TOP + height + BELOW, parts)


def stacked_svg(figure: Stacked) -> str:
    """Return parts of a whole as SVG: a bar for each row, and a legend above."""
    labels = [*map(shorten_label, figure.labels)]
    left = 8 + max(map(_width, labels), default=0)
    width, height = WIDTH - left - 12, ROW * len(labels)
    parts, top, x = [], TOP + ROW, 4.0
    for name, (colour, _) in figure.parts.items():
        if x + 14 + _width(name) > WIDTH and x > 4:
            top, x = top + ROW, 4.0
        parts.append(f'<rect x="{x:.1f}" y="{top - 15:.1f}" width="9" height="9" fill="{colour}"/>')
        parts.append(_text(x + 12, top - 7, name))
        x += 24 + _width(name)
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
    parts += _names(labels, left, top, ROW)
    parts += _axis(left, top + height, width, (0, 100 * most), figure.axis, False)
    return _drawing(top + height + BELOW, parts)


def _names(labels: list[str], left: float, top: float, row: float) -> list[str]:
    """Return the labels of rows, left of `left`."""
    return [
        _text(left - 5, top + (at + 0.5) * row + TEXT / 3, label, "end")
        for at, label in enumerate(labels)
    ]


def _axis(
    left: float, top: float, width: float, extent: tuple[float, float], name: str, whole: bool
) -> list[str]:
    """Return an axis below a figure: ticks, their numbers, and what they count."""
    first, last = extent
    parts = [_line(left, top, left + width, top)]
    for value in ticks(first, last, whole):
        x = left + (value - first) / (last - first) * width
        parts += [_line(x, top, x, top + 4), _text(x, top + 14, _number(value), "middle")]
    return [*parts, _text(left + width / 2, top + 28, name, "middle")]


def _drawing(height: float, parts: list[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH:.0f} {height:.1f}" role="img" fill="currentColor" '
        f'font-size="{TEXT:g}px">{"".join(parts)}</svg>'
    )


def ticks(first: float, last: float, whole: bool, most: int = MOST_TICKS) -> list[float]:
    """Return round numbers from `first` to `last`, at most so many; whole ones if `whole`."""
    least = (last - first) / most
    if not least > 0 or not np.isfinite(least):
        return []
    power = 10.0 ** np.floor(np.log10(least))
    step = next(factor * power for factor in (1, 2, 5, 10, 20) if factor * power >= least)
    step = max(step, 1.0) if whole else step
    from_, to = np.ceil(first / step - 1e-9), np.floor(last / step + 1e-9)
    return [float(number * step) + 0.0 for number in np.arange(from_, to + 1)]


def _png(values: np.ndarray, low: float, high: float) -> str:
    """Return the values as an image of colours of the scale (PNG with a palette) in base64;
    unknown ones are transparent.
    """
    stops = np.array([list(bytes.fromhex(colour)) for colour in COLOURS], float)
    place = np.linspace(0, len(COLOURS) - 1, 255)
    palette = [np.interp(place, np.arange(len(COLOURS)), stops[:, part]) for part in range(3)]
    colours = np.round(np.stack([*palette], axis=1)).astype(np.uint8)
    known = ~np.isnan(values)
    scaled = np.clip((np.where(known, values, low) - low) / (high - low), 0, 1)
    # Entry 0 of the palette stands for what is not known.
    pixels = np.where(known, 1 + np.round(254 * scaled), 0).astype(np.uint8)
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


def _width(text: str) -> float:
    """Return about how wide a text is; characters of East Asia are twice as wide."""
    wide = sum(unicodedata.east_asian_width(one) in "WF" for one in text)
    return TEXT * CHARACTER * (len(text) + wide)


def _text(x: float, y: float, text: str, anchor: str = "start", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return (
        f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="currentColor" stroke-width=".8"/>'
    )


def _number(value: float) -> str:
    """Return a tick's number, short."""
    return f"{value:,.10g}" if abs(value) < 1e6 else f"{value:.4g}"
