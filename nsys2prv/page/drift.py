"""Whether iterations are alike: those far from the others, and a trend over all of them."""

from __future__ import annotations

import numpy as np

#: An outlier's distance from the median in scaled median absolute deviations, and as a fraction of the median.
FAR, LEAST_FAR = 3.5, 0.05
#: A trend is told from so many iterations on, from this z of Mann and Kendall's test on, and from this change over all iterations on.
LEAST_COUNT, LEAST_Z, LEAST_DRIFT = 8, 3.0, 0.05
#: Iterations of which slopes are taken between all pairs; of more, every so many.
MOST = 500
RULE = f"Circled: more than {FAR:g} scaled median absolute deviations and {LEAST_FAR:.0%} of the median away from the median."


def outliers(values: np.ndarray) -> list[int]:
    """Indices of the values that are far from the others; of fewer than 4 none is."""
    if len(values) < 4:
        return []
    middle = np.median(values)
    distance = np.abs(values - middle)
    spread = 1.4826 * np.median(distance)
    return np.flatnonzero((distance > FAR * spread) & (distance > LEAST_FAR * abs(middle))).tolist()


def drift(values: np.ndarray) -> float | None:
    """Change over all values as a fraction of their median (Theil and Sen's slope), None where it is none that counts."""
    if len(values) < LEAST_COUNT or not np.median(values):
        return None
    step = -(-len(values) // MOST)
    chosen = values[::step].astype(float)
    count = len(chosen)
    first, second = np.triu_indices(count, 1)
    rise = chosen[second] - chosen[first]
    score = np.sign(rise).sum()
    z = (abs(score) - 1) / np.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    change = float(np.median(rise / (second - first))) * (len(values) - 1) / step / float(np.median(values))
    return change if z >= LEAST_Z and abs(change) >= LEAST_DRIFT else None
