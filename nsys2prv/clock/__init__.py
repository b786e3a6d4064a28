"""Make one timeline of the reports' own clocks.

In: calls that end together on several hosts, and messages between them (frames of CALLS and
MESSAGES). Out: for each host an offset, a drift and an error bound. Start in :mod:`solve`, which
finds them; :mod:`maps` converts times. Pure functions on frames and arrays, without Nsight or
Paraver.

This module declares the observations, their noise, and the kinds of findings about them.
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
#: Clocks drift by up to 50 ppm against each other, with a wide margin: steeper lines are no clocks.
PLAUSIBLE_DRIFT = 5e-4
#: Standard deviation of the drift of one clock against another before anything is observed:
#: crystals are right to some tens of ppm.
DRIFT_PRIOR = 5e-5
#: Errors (ns) that are assumed of recorded UTC, and at most of aligned clocks.
UTC_ERROR, ALIGNED_ERROR = 100_000_000, 1_000_000


class NoiseKind(IntEnum):
    """Kind of noise in observations, by their source."""

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
    """Who waits for whom in a collective: every member for all, the others for the root, or the
    root for the others.
    """

    ALL = 0
    FROM_ROOT = 1
    TO_ROOT = 2


class Noise(Struct, frozen=True):
    """Model of how simultaneous the ends of one collective are, in ns; fixed, so that more
    observations never widen a bound.
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
NOISE = {NoiseKind[name]: Noise(**noise) for name, noise in _DECLARED["noise"].items()}
#: Calls of collectives, a row for each member and call: the columns.
CALLS = {name: getattr(pl, kind) for name, kind in _DECLARED["calls"].items()}
#: Messages, a row for each: its receive cannot end before its send begins. Kind of noise, clock of the
#: sender and placed time of the send's begin (ns), clock of the receiver and time of the receive's end.
MESSAGES = dict.fromkeys(("noise_kind", "before", "begin", "after", "end"), pl.Int64)


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
