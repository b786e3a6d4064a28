"""Conversion of local event times to global ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class ClockMap:
    """global = local + offset + drift * (local - pivot), all in ns (drift as a plain ratio, 1e-6 = 1 ppm).

    Monotone for |drift| < 1, so that what is sorted by local time is sorted by global time.
    """

    offset: int = 0
    drift: float = 0.0
    pivot: int = 0

    def to_global(self, local: np.ndarray) -> np.ndarray:
        """Global times (int64 ns) of local ones, which must lie well inside the range of int64."""
        moved = local + np.int64(self.offset)
        if self.drift:
            moved += np.floor((local - self.pivot) * self.drift).astype(np.int64)
        return moved

    def to_local(self, time: int) -> int:
        """The local time whose global time is `time`, to within 2 ns."""
        if not self.drift:
            return time - self.offset
        return round((time - self.offset + self.drift * self.pivot) / (1 + self.drift))

    def shifted(self, by: int) -> ClockMap:
        """The same map with every global time `by` ns later."""
        return ClockMap(self.offset + by, self.drift, self.pivot)
