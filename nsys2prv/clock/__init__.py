"""Align the clocks of reports on one timeline.

Input: calls that end together on several hosts, and messages between them (frames with the columns
CALLS and MESSAGES). Output: for each host an offset, a drift and an error bound. Start in
:mod:`solve`, which computes them; :mod:`maps` converts times. All functions depend only on frames
and arrays, not on Nsight Systems or Paraver.

This module declares the observations, their noise, and the findings about them.
"""

from __future__ import annotations

from enum import Enum, IntEnum

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import force_setattr

from nsys2prv._util.files import load_shipped_file

#: Median absolute deviation to standard deviation, of normal noise.
TO_SIGMA = 1.4826
#: Clocks drift by up to 50 ppm against each other. This has a wide margin: steeper lines do not
#: come from clocks.
PLAUSIBLE_DRIFT = 5e-4
#: Standard deviation of the drift of one clock against another before anything is observed:
#: crystals are right to some tens of ppm.
DRIFT_PRIOR = 5e-5
#: Errors (ns) that are assumed of recorded UTC, and at most of aligned clocks.
UTC_ERROR, ALIGNED_ERROR = 100_000_000, 1_000_000


#: Noise of the points of a line (ns) beside which a few of them tell a slope.
NOISE_OF_FEW = 2e4
#: With fewer calls than this the median misfit may be small by chance: all have to fit.
ENOUGH_CALLS = 16
#: Every 10th collective and message is held back from the estimate, to judge it by.
HOLD_BACK = 10


class NoiseKind(IntEnum):
    """Source of observations of clocks, which determines how exact they are."""

    NCCL = 0
    MPI = 1


_DECLARED = load_shipped_file(__package__, "findings.yaml")
#: Kind of finding about observations. Its value is the text of such findings, with placeholders.
FindingKind = Enum("FindingKind", _DECLARED["findings"], module=__name__)
#: Kinds that say that ends cannot decide, and kinds that are notes; all others are warnings.
UNCLEAR_KINDS, NOTE_KINDS = (
    tuple(FindingKind[name] for name in _DECLARED[section]) for section in ("unclear", "notes")
)


class Role(IntEnum):
    """Order of waiting in a collective: every member for all, the others for the root, or the root
    for the others.
    """

    ALL = 0
    FROM_ROOT = 1
    TO_ROOT = 2


class Noise(Struct, frozen=True):
    """Model of how simultaneously the members of a collective end (ns). It is fixed, so that more
    observations never increase a bound.
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
    #: Error that remains with any number of observations: hardware and algorithms may let some
    #: members always end later.
    floor: float

    @property
    def reach(self) -> float:
        """Return the largest plausible difference between two ends of one collective (ns)."""
        return 3 * self.end + self.late + self.late_sigma


#: Noise of each kind of observations.
NOISE = {NoiseKind[name]: Noise(**noise) for name, noise in _DECLARED["noise"].items()}
#: Calls of collectives, a row for each member and call: the columns.
CALLS = {name: getattr(pl, kind) for name, kind in _DECLARED["calls"].items()}
#: Messages, a row for each: its receive cannot end before its send begins. Kind of noise, clock of the
#: sender and placed time of the send's begin (ns), clock of the receiver and time of the receive's end.
MESSAGES = dict.fromkeys(("noise_kind", "before", "begin", "after", "end"), pl.Int64)


class Corrections(Struct, frozen=True):
    """Corrections of host clocks: corrected = time + offset + drift * time, with times in float ns
    relative to the pivot (a time in the middle). Arrays have one element per host.
    """

    #: ns at the pivot.
    offset: np.ndarray
    #: ns per ns.
    drift: np.ndarray

    def apply(self, time: np.ndarray, host: np.ndarray) -> np.ndarray:
        """Return corrected times. time: float ns relative to the pivot. host: index of the host for
        each time.
        """
        return time * (1 + self.drift[host]) + self.offset[host]


class ClockFinding(Struct, frozen=True):
    """A finding about observations of clocks that users should know."""

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


class Observations(Struct, frozen=True):
    """Events that several hosts have in common (collectives and messages), from which their clocks
    are compared.
    """

    #: A row for each collective and host, as :func:`nsys2prv.match.gathering.gather_per_host` makes them.
    collectives: pl.DataFrame
    #: MESSAGES.
    messages: pl.DataFrame
    #: Findings about these.
    findings: list[ClockFinding]
    #: Hosts that share calls or messages with others.
    hosts: frozenset[int]
    #: Per host: possible error in addition to its bound, ns; 0 where its calls surely belong together
    #: with the others', inf where nothing is known.
    doubt: np.ndarray
    #: Hosts that share calls with others but cannot be placed by them.
    left: list[int]


def find_median(values: np.ndarray) -> float:
    """Return the median of values, which must not contain NaN. This is several times as fast as
    NumPy.
    """
    low, high = (len(values) - 1) // 2, len(values) // 2
    ordered = np.partition(values, (low, high))
    return float((ordered[low] + ordered[high]) / 2)


def estimate_spread(values: np.ndarray) -> float:
    """Estimate the standard deviation about the median from the median absolute deviation. Without
    values, return inf.
    """
    if not len(values):
        return float("inf")
    return TO_SIGMA * find_median(np.abs(values - find_median(values)))


def fit_line(times: np.ndarray, values: np.ndarray) -> tuple[float, float, float]:
    """Fit a line to points by medians. Return (value at time 0, slope, spread about the line). With
    fewer than four points, the slope is reduced. times: sorted, ns.

    Points that are far apart determine the slope better. After a burst, the few points that follow
    much later decide.
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
    """Return the median along an axis, ignoring NaNs; NaN if there are only NaNs."""
    ordered = np.sort(values, axis=axis)
    count = np.isfinite(ordered).sum(axis=axis, keepdims=True)
    last = values.shape[axis] - 1
    low, high = (
        np.take_along_axis(ordered, np.clip(place, 0, last), axis)
        for place in ((count - 1) // 2, count // 2)
    )
    return np.squeeze((low + high) / 2, axis)


def choose_evenly(count: int, most: int) -> np.ndarray:
    """Return at most `most` of the indices 0 to `count` - 1, evenly spaced."""
    if count <= most:
        return np.arange(count)
    return np.linspace(0, count - 1, most).round().astype(np.int64)
