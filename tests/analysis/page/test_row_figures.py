"""Figures that the page draws itself: what is in them, and how very many rows are shown."""

from __future__ import annotations

import base64
import io
import re

import numpy as np
import pytest

from nsys2prv.analysis.page import _load_environment
from nsys2prv.analysis.page.figures import COLOURS, MOST_WORST, condense_rows
from nsys2prv.analysis.page.parts import Bars, Block, HeatMap


def write_block(block: Block) -> str:
    return getattr(_load_environment().get_template("blocks.html").module, block.macro)(block)


def _map_columns(values: np.ndarray, labels: list[str] | None = None) -> HeatMap:
    return HeatMap(
        title="map",
        labels=labels or [f"GPU{row}" for row in range(len(values))],
        values=values,
        axis="time",
        end="10 s",
        quantity="%",
        high=100,
    )


def test_a_heat_map_has_a_pixel_for_each_value() -> None:
    Image = pytest.importorskip("PIL.Image")
    values = np.array([[0.0, 100.0, 50.0], [np.nan, 200.0, -5.0]])
    html = write_block(_map_columns(values, ["a & b", "<c>"]))
    image = Image.open(io.BytesIO(base64.b64decode(re.search('base64,([^"]*)', html)[1])))
    image = image.convert("RGBA")
    assert image.size == (3, 2)
    low, high = (tuple(bytes.fromhex(colour)) for colour in (COLOURS[:6], COLOURS[-6:]))
    assert image.getpixel((0, 0))[:3] == image.getpixel((2, 1))[:3] == low
    assert image.getpixel((1, 0))[:3] == image.getpixel((1, 1))[:3] == high
    assert [image.getpixel((0, row))[3] for row in (0, 1)] == [255, 0]
    assert "<b>a &amp; b</b>" in html
    assert "<b>&lt;c&gt;</b>" in html


def test_bars_are_as_long_as_their_parts() -> None:
    html = write_block(
        Bars(
            title="bars",
            labels=["a", "b"],
            values=np.array([[0.5, 0.3], [0.25, 0.0]]),
            parts=[("computing", "#111111"), ("idle", "#222222")],
            axis="of the time",
        )
    )
    drawn = re.findall(r'width: ([\d.]+)%; background: (#\d+)" title="([^"]*)"', html)
    assert drawn == [
        ("62.50", "#111111", "computing: 50.0 %"),
        ("37.50", "#222222", "idle: 30.0 %"),
        ("31.25", "#111111", "computing: 25.0 %"),
    ]


def test_of_very_many_rows_the_odd_ones_are_shown() -> None:
    rng = np.random.default_rng(7)
    values = 50 + rng.normal(0, 1, (256, 20))
    values[131], values[17] = 90, 20
    values[40, :3] = np.nan
    shown = condense_rows(_map_columns(values))
    assert shown.labels[:5] == ["max of 256", "mean of 256", "min of 256", "GPU131", "GPU17"]
    assert len(shown.labels) == 3 + MOST_WORST
    assert np.array_equal(shown.values[3], values[131])
    assert shown.values[1] == pytest.approx(np.nanmean(values, axis=0))
    assert shown.values[2] == pytest.approx(np.nanmin(values, axis=0))
    few = _map_columns(values[:40])
    assert condense_rows(few) is few

    use = np.full((100, 1), 0.5)
    use[33] = 0.1
    bars = condense_rows(
        Bars(
            title="bars",
            labels=[f"GPU{row}" for row in range(100)],
            values=use,
            parts=[("computing", "#111111")],
            axis="of the time",
        )
    )
    assert bars.labels[:2] == ["mean of 100", "GPU33"]
    assert bars.values[:2, 0] == pytest.approx([use.mean(), 0.1])
    assert "100 rows" in bars.note
