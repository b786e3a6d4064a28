"""Sampled numbers as functions of time that are constant between samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nsys2prv.analysis.book import UNKNOWN, Samples

#: Layouts whose samples tell of the time since the sample before; those of the others, of the time until the next.
TELL_BEFORE = ("gpu_metric",)


@dataclass(frozen=True)
class Steps:
    """values[k] holds from edges[k] to edges[k + 1] (ns), where told[k]; nothing is known elsewhere, and the value is 0 there."""

    edges: np.ndarray
    values: np.ndarray
    told: np.ndarray

    def integral(self, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Value times ns over what is known of each [begin, end)."""
        return self._sums(end, self.values) - self._sums(begin, self.values)

    def known(self, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        """How many ns of each [begin, end) are known."""
        return np.rint(self._sums(end, self.told) - self._sums(begin, self.told)).astype(np.int64)

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
    column = column[1:] if samples.layout in TELL_BEFORE else column[:-1]
    return Steps(time, np.maximum(column, 0), column != UNKNOWN)
