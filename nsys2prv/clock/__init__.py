"""Make one timeline of the reports' own clocks.

In: times of calls that end together on several hosts (:mod:`observations`). Out: for each host an
offset, a drift and an error bound. Start in :mod:`solve`, which finds them; :mod:`maps` converts
times. Pure functions on frames and arrays, without Nsight or Paraver.

This module has the words that the others share: kinds of noise, roles of members, and kinds of
findings with their texts.
"""

from __future__ import annotations

from enum import Enum, IntEnum

#: Errors (ns) that are assumed of recorded UTC, and at most of aligned clocks.
UTC_ERROR, ALIGNED_ERROR = 100_000_000, 1_000_000


class NoiseKind(IntEnum):
    """Kind of noise in observations, by their source."""

    NCCL = 0
    MPI = 1


class FindingKind(Enum):
    """Kind of finding about observations. Its value is the text of such findings, with
    placeholders.
    """

    BACKWARDS = "calls that end before they begin are left out"
    REPEATED = "calls whose number occurs more often than there are members are left out"
    UNLIKE = (
        "calls of another operation or size than the other members' of that number are left out"
    )
    FEW_CALLS = (
        "too few collective calls to tell which of them belong together: not used for the alignment"
    )
    AMBIGUOUS = "collective calls at such regular intervals that several ways of pairing them fit: not used for the alignment"
    UNRELATED = "collective calls that end at other times than those of all other ranks: not used for the alignment"
    PARTIAL = "collective calls that the reports of the other ranks lack"
    UNFIT = "collectives whose ends scatter too much against the other hosts'"
    UNSTEADY = "ends of collectives scatter or lie off any line more than is usual: bounds are wider by so many ns"
    EARLY = "begins that lie after ends they must precede, by more than the clocks' error: not used"
    CONTRADICTED = "collectives and messages that contradict all others: left out"
    ONE_WAY = (
        "messages in one direction only: moved as far as causality demands; its error is not known"
    )
    IN_ORDER = "nothing shows which calls belong together: the n-th of this host is taken for the n-th of the others, so it may be off by whole calls"
    STEEP = "a drift of {:.0f} ppm is more than a clock can have: the host is left out"
    NOISY = "ends of collectives scatter {:.1f} times as much as is usual: bounds are widened"
    APART = "{}: placed by UTC alone"
    WORSE = "corrections violate causality by {:.0f} ns in all, UTC by {:.0f} ns: UTC is kept"


#: Kinds that say that ends cannot decide, rather than that they speak against a match.
UNCLEAR_KINDS = (FindingKind.FEW_CALLS, FindingKind.AMBIGUOUS)
#: Kinds that are notes; all others are warnings, about data left out though it should fit and about
#: hosts that were not aligned.
NOTE_KINDS = (
    FindingKind.BACKWARDS,
    FindingKind.REPEATED,
    FindingKind.FEW_CALLS,
    FindingKind.PARTIAL,
    FindingKind.UNSTEADY,
)


class Role(IntEnum):
    """Who waits for whom in a collective: every member for all, the others for the root, or the
    root for the others.
    """

    ALL = 0
    FROM_ROOT = 1
    TO_ROOT = 2
