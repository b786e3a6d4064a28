"""Sampled numbers as functions of time that are constant between samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nsys2prv.analysis.book import Samples

#: Layouts whose samples tell of the time since the sample before; those of the others, of the time until the next.
TELL_BEFORE = ("gpu_metric",)


@dataclass(frozen=True)
class Steps:
    """values[k] holds from edges[k] to edges[k + 1] (ns); nothing is known outside."""

    edges: np.ndarray
    values: np.ndarray

    def integral(self, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Value times ns over what is known of each [begin, end)."""
        return self._sums(end, self.values) - self._sums(begin, self.values)

    def known(self, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        """How many ns of each [begin, end) are known."""
        low, high = (self.edges[0], self.edges[-1]) if len(self.edges) else (0, 0)
        return np.clip(end, low, high) - np.clip(begin, low, high)

    def _sums(self, times: np.ndarray, values: np.ndarray) -> np.ndarray:
        if len(self.edges) < 2:
            return np.zeros(np.shape(times))
        before = np.concatenate([[0.0], np.cumsum(values * np.diff(self.edges))])
        times = np.clip(times, self.edges[0], self.edges[-1])
        index = np.minimum(np.searchsorted(self.edges, times, "right") - 1, len(values) - 1)
        return before[index] + values[index] * (times - self.edges[index])


def steps(samples: Samples, metric: int) -> Steps:
    """One metric of a device, of the instants that have it."""
    column = samples.values[:, metric]
    known = ~np.isnan(column)
    time, column = samples.time[known], column[known]
    return Steps(time, column[1:] if samples.layout in TELL_BEFORE else column[:-1]) if len(time) else Steps(time, column)
