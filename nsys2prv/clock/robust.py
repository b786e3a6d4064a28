"""Lines and spreads that a minority of wild values does not move."""

from __future__ import annotations

import numpy as np

#: Median absolute deviation to standard deviation, of normal noise.
TO_SIGMA = 1.4826
#: Clocks drift by up to 50 ppm against each other, with a wide margin: steeper lines are no clocks.
PLAUSIBLE_DRIFT = 5e-4
#: Standard deviation of the drift of one clock against another before anything is observed: crystals are right to some tens of ppm.
DRIFT_PRIOR = 5e-5
#: Noise of the points of a line (ns) beside which a few of them tell a slope.
NOISE_OF_FEW = 2e4


def spread_of(values: np.ndarray) -> float:
    """Standard deviation of the values about their median, judged by the median absolute deviation; inf of none."""
    if not len(values):
        return float("inf")
    return float(TO_SIGMA * np.median(np.abs(values - np.median(values))))


def line_through(times: np.ndarray, values: np.ndarray) -> tuple[float, float, float]:
    """(value at time 0, slope, spread about the line) by medians; of fewer than four points that is drawn to 0. Times ascending, in ns.

    Pairs of points that lie far apart tell more of the slope: after a burst, the few that come much later decide.
    """
    half = len(times) // 2
    slope = 0.0
    if half == 1:
        since = times - times.mean()
        slope = float(since @ (values - values.mean()) / (since @ since + (NOISE_OF_FEW / DRIFT_PRIOR) ** 2))
        slope = min(max(slope, -2 * PLAUSIBLE_DRIFT), 2 * PLAUSIBLE_DRIFT)
    if half >= 2:
        steps = times[-half:] - times[:half]
        good = steps > 0
        if good.any():
            slope = _weighted_median((values[-half:] - values[:half])[good] / steps[good], steps[good])
            slope = min(max(slope, -2 * PLAUSIBLE_DRIFT), 2 * PLAUSIBLE_DRIFT)
    rest = values - slope * times
    offset = float(np.median(rest)) if len(rest) else 0.0
    return offset, slope, spread_of(rest)


def _weighted_median(values: np.ndarray, weights: np.ndarray) -> float:
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weights[order])
    low, high = np.searchsorted(below, below[-1] / 2, "left"), np.searchsorted(below, below[-1] / 2, "right")
    return float((values[order[low]] + values[order[min(high, len(order) - 1)]]) / 2)


def evenly(count: int, most: int) -> np.ndarray:
    """Indices of at most `most` of `count` items, spread evenly."""
    if count <= most:
        return np.arange(count)
    return np.linspace(0, count - 1, most).round().astype(np.int64)
