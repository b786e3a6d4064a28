"""When exactly ranks leave a collective: the noise at its ends.

Measured on two H100 in one report (64 kernels of NCCL messages): the difference of the two ends has two modes about 20 us
apart, by which of the two had waited for the other, and their middle is about 6 us from zero, which is also the difference
of the two GPUs' launch latencies. So who waited ends later, and each GPU has a lag of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .options import Options

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

WAITED_FROM_NS = 20_000.0
"""A rank has waited if it has begun so much before the last that matters to it."""


@dataclass(frozen=True)
class EndNoise:
    """Ends are late by up to ``spread_ns``, evenly; of those who waited, by one of ``waited_ns`` more."""

    spread_ns: float
    waited_ns: tuple[float, ...]

    def spread(self, shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
        drawn: Floats = rng.random(shape)
        return drawn * self.spread_ns

    def lateness(self, waited: Bools, rng: np.random.Generator) -> Floats:
        """How much later those end who have waited, ns; 0 for the others."""
        if len(self.waited_ns) == 1:
            late: Floats = waited * self.waited_ns[0]
            return late
        return np.array(self.waited_ns)[rng.integers(0, len(self.waited_ns), waited.shape)] * waited


@dataclass(frozen=True)
class Noise:
    """``message_ns``: a message's receiver and sender are told of its end later by up to so much, evenly."""

    nccl: EndNoise
    mpi: EndNoise
    message_ns: float
    gpu_lag_ns: tuple[int, ...]
    """By how much the work of each rank's GPU begins, and its collectives end, later."""


def build_noise(options: Options) -> Noise:
    waited = None if options.waited_us is None else tuple(us * 1e3 for us in options.waited_us)
    jitter = None if options.end_jitter_us is None else options.end_jitter_us * 1e3
    lags = np.random.default_rng([options.seed, 19]).uniform(0.0, options.gpu_lag_us * 1e3, options.ranks)
    return Noise(
        EndNoise(2_500.0 if jitter is None else jitter, waited or (4_000.0,)),
        EndNoise(900.0 if jitter is None else jitter, waited or (0.0,)),
        jitter or 0.0,
        tuple(np.rint(lags).astype(np.int64).tolist()),
    )
