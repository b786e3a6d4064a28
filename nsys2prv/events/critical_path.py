"""The critical path of a job: a kind that follows from the events of all ranks, see
:mod:`nsys2prv.relations.critical_path`.
"""

from __future__ import annotations

from collections.abc import Iterator

from nsys2prv.events.extraction import Extraction
from nsys2prv.events.kind import POINTS, EventKind, Rows, SelectionRules
from nsys2prv.nsight.source import Part

NAME = LAYOUT = "critical_path"


def extract(extraction: Extraction, part: Part) -> Iterator[Rows]:
    """Yield nothing: the kind has no tables."""
    yield from ()


KINDS = (
    EventKind(
        NAME,
        "Critical path of the job over all ranks",
        "host thread or GPU stream that it leads over",
        (),
        (LAYOUT,),
        extract,
        rows=POINTS,
        selection=SelectionRules(opt_in="-t all,critical_path"),
    ),
)
