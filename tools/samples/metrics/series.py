"""Sampling: how much of something happened between two samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..cluster import Ints

Floats = NDArray[np.float64]


@dataclass
class Intervals:
    """Activity at constant rates: from ``begin`` to ``end`` (true ns) with ``rates`` (interval, channel) per ns."""

    begin: Ints
    end: Ints
    rates: Floats

    @staticmethod
    def none(channels: int) -> Intervals:
        return Intervals(np.empty(0, np.int64), np.empty(0, np.int64), np.empty((0, channels)))

    @staticmethod
    def joined(parts: list[Intervals]) -> Intervals:
        return Intervals(
            np.concatenate([part.begin for part in parts]),
            np.concatenate([part.end for part in parts]),
            np.concatenate([part.rates for part in parts]),
        )

    def until(self, times: Ints, base: int) -> Floats:
        """The integral from the beginning to each of ``times``; axes (time, channel). ``base`` is near them."""
        at = (times - base).astype(np.float64)
        total = np.zeros((len(at), self.rates.shape[1]))
        for edges, sign in ((self.begin, 1.0), (self.end, -1.0)):
            order = np.argsort(edges, kind="stable")
            offset = (edges[order] - base).astype(np.float64)
            rates = np.concatenate([np.zeros((1, self.rates.shape[1])), np.cumsum(self.rates[order], axis=0)])
            weighted = np.cumsum(self.rates[order] * offset[:, None], axis=0)
            weighted = np.concatenate([np.zeros((1, self.rates.shape[1])), weighted])
            passed = np.searchsorted(offset, at, side="right")
            total += sign * (at[:, None] * rates[passed] - weighted[passed])
        return total


class Series:
    """Samples at ``first + n * period`` (true ns): each covers the time since the one before."""

    def __init__(self, first: int, period: float, channels: int) -> None:
        self.first, self.period, self.channels = first, period, channels
        self.next = 0
        self.pending = Intervals.none(channels)

    def add(self, intervals: Intervals) -> None:
        self.pending = Intervals.joined([self.pending, intervals])

    def time(self, number: int | Ints) -> Ints:
        return self.first + np.rint(np.asarray(number) * self.period).astype(np.int64)

    def advance(self, until: int) -> tuple[Ints, Ints, Floats]:
        """The samples up to true time ``until``, by when all activity is known: begin and end of what they cover, and
        the integral over it (sample, channel).
        """
        last = int(np.floor((until - self.first) / self.period))
        if last < self.next:
            return np.empty(0, np.int64), np.empty(0, np.int64), np.empty((0, self.channels))
        edges = self.time(np.arange(self.next - 1, last + 1))
        sums = np.diff(self.pending.until(edges, int(edges[0])), axis=0)
        self.next = last + 1
        left = self.pending.end > edges[-1]
        self.pending = Intervals(self.pending.begin[left], self.pending.end[left], self.pending.rates[left])
        return edges[:-1], edges[1:], np.maximum(sums, 0.0)
