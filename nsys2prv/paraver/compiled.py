"""Text of lines by the compiled `native/lines.c`, where the installation has it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from nsys2prv._util.native import core
from nsys2prv.paraver.lines import Batch

AVAILABLE = core is not None
#: Bytes of text made at a time; many times what a line may need.
ROOM = 1 << 24


def texts(batches: Sequence[Batch], owner: np.ndarray, order: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the text of the lines of all batches in this order, in pieces (uint8). owner: the batch
    of each line, in the batches' order.
    """
    given = [(batch.shape.program, tuple(batch.columns), len(batch.times)) for batch in batches]
    done = 0
    while done < len(order):
        text = np.empty(ROOM, np.uint8)
        lines, size = core.write(given, owner, order[done:], text)
        if not lines:
            raise ValueError(f"a line of more than {ROOM:,} bytes")
        done += lines
        yield text[:size]
