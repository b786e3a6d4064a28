"""Find two modes of durations."""

from __future__ import annotations

import numpy as np

#: Two modes are reported where a division in two (Otsu's, of the logarithms) leaves each side so
#: much of all executions at least, ...
LEAST_SHARE = 0.05
#: ... so many executions, ...
LEAST_COUNT = 10
#: ... the means of the durations differ by this factor at least, ...
LEAST_FACTOR = 1.2
#: ... and Ashman's D, sqrt(2) |m1 - m2| / sqrt(s1^2 + s2^2) of the logarithms, is at least this
#: (one uniform mode has 3.5, a normal 2.7).
LEAST_D = 4.0
RULE = (
    f"bimodal: the logarithms of the durations divided in two (Otsu) with at least {LEAST_SHARE:.0%} and {LEAST_COUNT} executions on "
    f"either side, means that differ by a factor of {LEAST_FACTOR} or more, and Ashman's D of {LEAST_D:g} or more"
)

#: What is said of durations without two modes.
NO_MODES = False, None, None, None


def find_modes(durations: np.ndarray) -> tuple[bool, float | None, float | None, float | None]:
    """Return whether there are two modes by RULE, and what they are."""
    count = len(durations)
    least = max(LEAST_COUNT, int(np.ceil(LEAST_SHARE * count)))
    if count < 2 * least or durations.min() == durations.max():
        return NO_MODES
    ordered = np.sort(durations)
    logs = np.log(ordered)
    sums = np.cumsum(logs)
    lower = np.arange(1, count)
    means = sums[:-1] / lower, (sums[-1] - sums[:-1]) / (count - lower)
    between = lower * (count - lower) * (means[1] - means[0]) ** 2
    # Equal durations stay on one side.
    between[ordered[1:] == ordered[:-1]] = -1
    cut = int(np.argmax(between)) + 1
    low, high = logs[:cut], logs[cut:]
    spread = np.sqrt(low.var() + high.var())
    apart = spread == 0 or np.sqrt(2) * (high.mean() - low.mean()) / spread >= LEAST_D
    means_ns = float(ordered[:cut].mean()), float(ordered[cut:].mean())
    if min(cut, count - cut) < least or not apart or means_ns[1] < LEAST_FACTOR * means_ns[0]:
        return NO_MODES
    return True, *means_ns, (count - cut) / count
