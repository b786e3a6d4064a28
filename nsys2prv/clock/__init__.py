"""One timeline from the reports' own clocks: :mod:`~nsys2prv.clock.solve` finds the corrections of
the hosts, :mod:`~nsys2prv.clock.maps` converts times.

Pure functions on plain values; no Nsight and no Paraver in this room.
"""

from __future__ import annotations

from enum import IntEnum

#: Sources of observations.
NCCL, MPI = 0, 1
#: By how much UTC hardly ever errs (ns): what lies closer together it does not tell apart. And the
#: same of times on clocks that are aligned.
UTC_ERROR, ALIGNED_ERROR = 100_000_000, 1_000_000

#: Why a member's calls are not numbered, or not all: kinds of findings.
FEW_CALLS, AMBIGUOUS, UNRELATED, PARTIAL = "few", "ambiguous", "unrelated", "partial"
#: Those that say that ends tell nothing, rather than that they speak against a match.
UNCLEAR = (FEW_CALLS, AMBIGUOUS)


class Role(IntEnum):
    """Who waits for whom in a collective: every member for all, the others for the root, or the
    root for the others.
    """

    ALL = 0
    FROM_ROOT = 1
    TO_ROOT = 2
