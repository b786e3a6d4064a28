"""The critical path of a job: a kind that follows from the events of all ranks, see
:mod:`nsys2prv.relations.critical_path`.
"""

from __future__ import annotations

from collections.abc import Iterator

from nsys2prv.events.extraction import Extraction
from nsys2prv.events.kind import EventKind, Rows
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
        lasting=False,
        on_demand="-t all,critical_path",
    ),
)
