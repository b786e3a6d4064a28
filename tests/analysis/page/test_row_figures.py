"""Figures that the page draws itself: what is in them, and how very many rows are shown."""

from __future__ import annotations

import base64
import io
import re

import numpy as np
import pytest

from nsys2prv.analysis.page.drawing import COLOURS, choose_ticks, draw_heat_map, draw_stacked
from nsys2prv.analysis.page.parts import MOST_WORST, HeatMap, Stacked, condense_rows


def _map_columns(values: np.ndarray, labels: list[str] | None = None) -> HeatMap:
    labels = labels or [f"GPU{row}" for row in range(len(values))]
    return HeatMap("map", labels, values, (0.0, 10.0), "time (s)", "%", high=100)


def test_a_heat_map_has_a_pixel_for_each_value() -> None:
    Image = pytest.importorskip("PIL.Image")
    values = np.array([[0.0, 100.0, 50.0], [np.nan, 200.0, -5.0]])
    svg = draw_heat_map(_map_columns(values, ["a & b", "<c>"]), 3)
    image = Image.open(io.BytesIO(base64.b64decode(re.search('base64,([^"]*)', svg)[1]))).convert(
        "RGBA"
    )
    assert image.size == (3, 2)
    low, high = (tuple(bytes.fromhex(COLOURS[at])) for at in (0, -1))
    assert image.getpixel((0, 0))[:3] == image.getpixel((2, 1))[:3] == low
    assert image.getpixel((1, 0))[:3] == image.getpixel((1, 1))[:3] == high
    assert [image.getpixel((0, row))[3] for row in (0, 1)] == [255, 0]
    assert "a &amp; b" in svg
    assert "&lt;c&gt;" in svg
    assert 'id="scale3"' in svg
    assert "url(#scale3)" in svg


def test_bars_are_as_long_as_their_parts() -> None:
    parts = {
        "computing": ("#111111", np.array([0.5, 0.25])),
        "idle": ("#222222", np.array([0.5, 0.25])),
    }
    svg = draw_stacked(Stacked("bars", ["a", "b"], parts, "%"))
    drawn = {
        colour: [
            (float(x), float(width))
            for x, width in re.findall(
                rf'x="([\d.]+)" y="[\d.]+" width="([\d.]+)" height="11.6" fill="{colour}"', svg
            )
        ]
        for colour in ("#111111", "#222222")
    }
    (first, long), (again, short) = drawn["#111111"]
    assert first == again
    assert long == pytest.approx(2 * short, abs=0.02)
    assert drawn["#222222"][1] == pytest.approx((first + short, short), abs=0.02)


def test_ticks_are_round_numbers_within() -> None:
    assert choose_ticks(0, 1, False) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])
    assert choose_ticks(0.5, 3.5, True) == [1, 2, 3]
    assert choose_ticks(0, 5128e6, False)[-1] == 5e9
    assert choose_ticks(1, 1, False) == []


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

    use = np.full(100, 0.5)
    use[33] = 0.1
    bars = condense_rows(
        Stacked("bars", [f"GPU{row}" for row in range(100)], {"computing": ("#111111", use)}, "%")
    )
    assert bars.labels[:2] == ["mean of 100", "GPU33"]
    assert bars.parts["computing"][1][:2] == pytest.approx([use.mean(), 0.1])
    assert "100 rows" in bars.note
