"""What each physical GPU does when, whichever processes and streams its operations are of.

It is not in a table: :mod:`nsys2prv.device_states` makes it of the operations that are translated.
"""

from __future__ import annotations

from collections.abc import Iterator

from nsys2prv.events.extraction import Extraction
from nsys2prv.events.kind import EventKind, Rows
from nsys2prv.report.source import Part

NAME = LAYOUT = "device_state"
NCCL, MEMORY, COMPUTE = 1, 2, 4
#: Layout of operations -> its bit in the values of the value set.
BITS = {"nccl_kernel": NCCL, "memory_operation": MEMORY, "cuda_kernel": COMPUTE, "cuda_graph": COMPUTE}


def extract(extraction: Extraction, part: Part) -> Iterator[Rows]:
    """Nothing: the kind has no tables."""
    yield from ()


KINDS = (
    EventKind(NAME, "States of GPUs that tasks share, or of which a task has several; by this name, of all", "physical GPU", (), (LAYOUT,),
              extract, groups=("cuda",), along=("kernels",), lasting=False),
)
