"""Test regions that hard bounds leave against every line of a grid, and hosts placed only by bounds
against known clocks.
"""

import numpy as np
import pytest
from msgspec.structs import astuple

from nsys2prv.clock.orders import UNBOUNDED, Bounds, find_centre, find_feasible_region, is_bounded


def draw_bounds(seed: int, count: int = 30, slope: float = 2e-4) -> Bounds:
    """Return bounds about the line 100 + slope * t."""
    rng = np.random.default_rng(seed)
    up, down = rng.uniform(0, 1e6, count), rng.uniform(0, 1e6, count)
    return join_sides(
        up,
        100 + slope * up + rng.exponential(40, count) + 5,
        down,
        100 + slope * down - rng.exponential(40, count) - 5,
    )


def join_sides(
    upper_times: np.ndarray, upper: np.ndarray, lower_times: np.ndarray, lower: np.ndarray
) -> Bounds:
    """Return bounds from times and values of upper and lower ones, alternating as long as there are
    both.
    """
    times, values = np.append(upper_times, lower_times), np.append(upper, lower)
    is_upper = np.arange(len(times)) < len(upper)
    order = np.argsort(np.append(np.arange(len(upper)), np.arange(len(lower))), kind="stable")
    return Bounds(times[order], values[order], is_upper[order])


def is_allowed(some: Bounds, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    slope = (last - first) / 1e6
    met = [
        first + slope * t <= v if is_upper else first + slope * t >= v
        for t, v, is_upper in zip(some.times, some.values, some.is_upper, strict=True)
    ]
    return np.all(met, axis=0) & (np.abs(slope) <= 5e-4)


@pytest.mark.parametrize("seed", range(20))
def test_the_region_holds_all_lines_that_no_bound_forbids(seed: int) -> None:
    some = draw_bounds(seed)
    first, last = (
        axis.ravel() for axis in np.meshgrid(np.arange(-200, 400, 1.5), np.arange(0, 600, 1.5))
    )
    good = is_allowed(some, first, last)
    corners = find_feasible_region(some, 0.0, 1e6)
    assert np.abs(corners).max() < UNBOUNDED / 2
    low, high = corners.min(axis=0), corners.max(axis=0)
    for values, a, b in ((first[good], low[0], high[0]), (last[good], low[1], high[1])):
        assert a - 1e-6 <= values.min()
        assert values.max() <= b + 1e-6
    # The corners themselves are allowed, but for rounding.
    centre = corners.mean(axis=0)
    inner = centre + (corners - centre) * (1 - 1e-4)
    assert is_allowed(some, inner[:, 0], inner[:, 1]).all()
    middle = find_centre(corners, 1e6)
    assert (np.abs(middle - [100, 300]) <= np.abs(corners - middle).max()).all()


@pytest.mark.parametrize("span", [0.01e9, 0.5e9, 5e9])
def test_what_a_short_span_leaves_of_the_slope_is_drawn_to_that_of_clocks(span: float) -> None:
    """Two observations of 40 us to either side forbid hardly any slope that a clock may have, so
    none is told.
    """
    at = np.array([0.0, span])
    corners = find_feasible_region(
        join_sides(at, np.array([40e3, 40e3]), at, np.array([-40e3, -36e3])), 0.0, span, 2e-4
    )
    middle = find_centre(corners, span)
    slope = (middle[1] - middle[0]) / span
    assert abs(slope) < 10e-6
    slopes = (corners[:, 1] - corners[:, 0]) / span
    assert np.abs(slopes - slope).max() >= min(76e3 / span, 100e-6)


def test_one_side_alone_bounds_nothing() -> None:
    some = draw_bounds(1)
    upper = Bounds(*(column[some.is_upper] for column in astuple(some)))
    assert not is_bounded(find_feasible_region(upper, 0.0, 1e6))


def test_contradictions_leave_nothing() -> None:
    at = np.array([5e5])
    assert not len(find_feasible_region(join_sides(at, at * 0 - 1, at, at * 0 + 1), 0.0, 1e6))
