"""Observations of the hosts' clocks (collective calls and messages), their noise, odd ones among
them, and robust fits of lines and spreads.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import force_setattr

from nsys2prv.clock import FindingKind, NoiseKind


class Noise(Struct, frozen=True):
    """Model of how simultaneous the ends of one collective are, in ns; fixed, so that more
    observations never widen a bound.

    Measured for NCCL kernels of two H100: ends within about 20 us, the last member ends 10 us after
    the other, the middle of both off by up to 14 us. Other machines are unknown, so the expected
    lateness lies between this and none.
    """

    #: Standard deviation of one host's end.
    end: float
    #: Expected time by which the last to arrive ends after those that waited, before any
    #: observation.
    late: float
    #: Standard deviation of `late`.
    late_sigma: float
    #: Largest contradiction between clocks of devices within a host.
    slack: float
    #: Ends of a sequence that scatter by more than this (standard deviation, by the median absolute
    #: deviation) do not belong together.
    misfit: float
    #: Error that no number of observations removes: hardware and algorithms let some members always
    #: end later.
    floor: float

    @property
    def reach(self) -> float:
        """Return the greatest difference of two ends of one collective, ns."""
        return 3 * self.end + self.late + self.late_sigma


#: Noise of each kind of observations.
NOISE = {
    NoiseKind.NCCL: Noise(
        end=8_000.0,
        late=5_000.0,
        late_sigma=10_000.0,
        slack=5_000.0,
        misfit=200_000.0,
        floor=15_000.0,
    ),
    NoiseKind.MPI: Noise(
        end=20_000.0,
        late=0.0,
        late_sigma=20_000.0,
        slack=1_000.0,
        misfit=500_000.0,
        floor=30_000.0,
    ),
}


#: Calls of collectives, a row for each member and call.
CALLS = {
    # NoiseKind.
    "noise_kind": pl.Int64,
    # Communicator.
    "group": pl.Int64,
    # Participant, unique in its group.
    "member": pl.Int64,
    # Host, 0..hosts-1.
    "clock": pl.Int32,
    # Sequence number that the report knows exactly, or -1.
    "number": pl.Int64,
    # Hash of operation and size, equal on all members; 0 if unknown.
    "signature": pl.Int64,
    # Role.
    "role": pl.Int8,
    # True for the root of a rooted collective.
    "is_root": pl.Boolean,
    # Placed times, ns.
    "begin": pl.Int64,
    "end": pl.Int64,
    # True if the member's report has the beginning of the communicator, so that its first call is the
    # first.
    "began": pl.Boolean,
}
#: Messages, a row for each: its receive cannot end before its send begins. Kind of noise, clock of the
#: sender and placed time of the send's begin (ns), clock of the receiver and time of the receive's end.
MESSAGES = dict.fromkeys(("noise_kind", "before", "begin", "after", "end"), pl.Int64)


def make_calls(**columns: np.ndarray) -> pl.DataFrame:
    """Return calls as a frame of CALLS."""
    return pl.DataFrame(
        {name: pl.Series(columns[name]).cast(dtype) for name, dtype in CALLS.items()}
    )


class Corrections(Struct, frozen=True):
    """Corrections of the hosts' clocks: corrected = time + offset + drift * time, times in float ns
    relative to the pivot. Arrays have one element per host.
    """

    #: ns at the pivot.
    offset: np.ndarray
    #: ns per ns.
    drift: np.ndarray

    def apply(self, time: np.ndarray, host: np.ndarray) -> np.ndarray:
        """Return the times, each of the clock of a host, as corrected."""
        return time * (1 + self.drift[host]) + self.offset[host]


class ClockFinding(Struct, frozen=True):
    """Finding about observations that the user should know."""

    #: Kind of finding.
    kind: FindingKind
    #: Number of calls, members or ns, as `reason` says.
    count: int = 0
    #: Communicator; -1 if not of one group.
    group: int = -1
    #: Participant; -1 if not of one member.
    member: int = -1
    #: Host; -1 if not of one host.
    clock: int = -1
    #: Its text; default: that of its kind.
    reason: str = ""

    def __post_init__(self) -> None:
        if not self.reason:
            force_setattr(self, "reason", self.kind.value)


def find_shared_calls(calls: pl.DataFrame, pivot: int) -> tuple[pl.DataFrame, list[ClockFinding]]:
    """Return the calls of groups on several clocks, with times relative to `pivot`, `key` numbering (noise_kind,
    group), and `numbered`: whether the report numbers all calls of the group.
    """
    table = calls.with_columns(pl.col("begin", "end") - pivot)
    findings = []
    backwards = table.filter(pl.col("end") < pl.col("begin")).height
    if backwards:
        findings.append(ClockFinding(FindingKind.BACKWARDS, backwards))
        table = table.filter(pl.col("end") >= pl.col("begin"))
    groups = table.group_by("noise_kind", "group").agg(
        clocks=pl.col("clock").min() != pl.col("clock").max(),
        numbered=(pl.col("number") >= 0).all(),
    )
    groups = (
        groups.filter("clocks").sort("noise_kind", "group").drop("clocks").with_row_index("key")
    )
    return table.join(groups.cast({"key": pl.Int32}), on=["noise_kind", "group"]), findings


#: Median absolute deviation to standard deviation, of normal noise.
TO_SIGMA = 1.4826
#: Clocks drift by up to 50 ppm against each other, with a wide margin: steeper lines are no clocks.
PLAUSIBLE_DRIFT = 5e-4
#: Standard deviation of the drift of one clock against another before anything is observed:
#: crystals are right to some tens of ppm.
DRIFT_PRIOR = 5e-5
#: Noise of the points of a line (ns) beside which a few of them tell a slope.
NOISE_OF_FEW = 2e4


def find_median(values: np.ndarray) -> float:
    """Return the median of some values, none of them NaN; several times as fast as NumPy's."""
    low, high = (len(values) - 1) // 2, len(values) // 2
    ordered = np.partition(values, (low, high))
    return float((ordered[low] + ordered[high]) / 2)


def estimate_spread(values: np.ndarray) -> float:
    """Return standard deviation of the values about their median, judged by the median absolute
    deviation; inf of none.
    """
    if not len(values):
        return float("inf")
    return TO_SIGMA * find_median(np.abs(values - find_median(values)))


def fit_line(times: np.ndarray, values: np.ndarray) -> tuple[float, float, float]:
    """Return (value at time 0, slope, spread about the line) by medians; the line of fewer than
    four points is drawn to 0. Times ascending, in ns.

    Pairs of points that lie far apart tell more of the slope: after a burst, the few that come much
    later decide.
    """
    half = len(times) // 2
    slope = 0.0
    if half == 1:
        since = times - times.mean()
        slope = float(
            since @ (values - values.mean()) / (since @ since + (NOISE_OF_FEW / DRIFT_PRIOR) ** 2)
        )
    elif half >= 2:
        steps, rises = times[-half:] - times[:half], values[-half:] - values[:half]
        good = steps > 0
        if good.any():
            slope = _take_weighted_median(rises[good] / steps[good], steps[good])
    slope = min(max(slope, -2 * PLAUSIBLE_DRIFT), 2 * PLAUSIBLE_DRIFT)
    rest = values - slope * times
    if not len(rest):
        return 0.0, slope, float("inf")
    offset = find_median(rest)
    return offset, slope, TO_SIGMA * find_median(np.abs(rest - offset))


def _take_weighted_median(values: np.ndarray, weights: np.ndarray) -> float:
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weights[order])
    low, high = (np.searchsorted(below, below[-1] / 2, side) for side in ("left", "right"))
    return float((values[order[low]] + values[order[min(high, len(order) - 1)]]) / 2)


def take_median(values: np.ndarray, axis: int) -> np.ndarray:
    """Return the median along the axis without NaNs; NaN if there are only NaNs."""
    ordered = np.sort(values, axis=axis)
    count = np.isfinite(ordered).sum(axis=axis, keepdims=True)
    last = values.shape[axis] - 1
    low, high = (
        np.take_along_axis(ordered, np.clip(place, 0, last), axis)
        for place in ((count - 1) // 2, count // 2)
    )
    return np.squeeze((low + high) / 2, axis)


def choose_evenly(count: int, most: int) -> np.ndarray:
    """Return indices of at most `most` of `count` items, spread evenly."""
    if count <= most:
        return np.arange(count)
    return np.linspace(0, count - 1, most).round().astype(np.int64)
