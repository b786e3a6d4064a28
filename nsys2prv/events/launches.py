"""Index the calls that launch work: API calls of a report by process and correlation id."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict, astuple

from nsys2prv._util.columns import (
    Table,
    factorize,
    find_places,
    group_rows,
    is_sorted,
    mask_changes,
)
from nsys2prv._util.stored_columns import FrameWriter, StoredFrame, read_columns
from nsys2prv.export.info import PROCESS_MASK
from nsys2prv.export.source import NULL


class Launches(Table, frozen=True):
    """CUDA API calls that may launch work, as columns, with times in local ns. In the result of a
    lookup, missing calls have NULL in all fields except `id`.
    """

    #: Correlation id.
    id: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    #: globalTid.
    thread: np.ndarray
    #: Id of the function's name.
    name: np.ndarray
    #: Return value.
    result: np.ndarray

    @property
    def hit(self) -> np.ndarray:
        """Mask of the rows for which the launching call was found."""
        return self.begin != NULL


class Segment(Struct, frozen=True):
    """A stored part of the index of launching calls: calls of one process, sorted by correlation id
    from `low` to `high`.
    """

    #: globalPid.
    process: int
    #: Least correlation id.
    low: int
    #: Greatest correlation id.
    high: int
    #: Rows of the process in the piece: the first one, and the one after its last.
    first: int
    last: int
    #: Ids of the names in the piece, each once.
    names: tuple[int, ...]
    #: The piece: columns of `Launches`.
    calls: StoredFrame

    def read(self) -> Launches:
        """Read the stored calls."""
        return _read_launches(self.calls)[self.first : self.last]


@lru_cache(maxsize=2)
def _read_launches(stored: StoredFrame) -> Launches:
    """Return the calls of a stored piece. Processes are requested one after another, so the last
    piece is cached.
    """
    return Launches(**read_columns(stored))


def find_launches(
    segments: Sequence[Segment], processes: np.ndarray, correlations: np.ndarray
) -> Launches:
    """Find the call of each pair of process (globalPid) and correlation id; of several calls, the
    earliest. Id 0 and NULL have no call. Only the segments that may contain the ids are read.
    """
    found = Launches(correlations, *np.full((5, len(correlations)), NULL))
    of_process: defaultdict[int, list[Segment]] = defaultdict(list)
    for segment in segments:
        of_process[segment.process].append(segment)
    for process, own in group_rows(processes):
        places = np.arange(len(correlations))[own]
        places = places[np.argsort(correlations[own], kind="stable")]
        ascending = correlations[places]
        for segment in of_process[process]:
            below = np.searchsorted(ascending, segment.low, "left")
            above = np.searchsorted(ascending, segment.high, "right")
            if below == above:
                continue
            asked = slice(below, above)
            calls, rows = segment.read(), places[asked]
            place = find_places(calls.id, ascending[asked])
            known = found.begin[rows]
            nearer = (place >= 0) & ((known == NULL) | (calls.begin[place] < known))
            rows, place = rows[nearer], place[nearer]
            for column, of_calls in zip(astuple(found)[1:], astuple(calls)[1:], strict=True):
                column[rows] = of_calls[place]
    return found


def save_launches(launches: Launches, frames: FrameWriter) -> list[Segment]:
    """Store launching calls for :func:`find_launches`, without calls that have no id or no times.
    Return the stored segments. Of several calls with one id, the earliest is kept.
    """
    usable = (launches.begin != NULL) & (launches.end != NULL)
    usable &= (launches.id != 0) & (launches.id != NULL)
    launches = launches if usable.all() else launches[usable]
    if not len(launches):
        return []
    # NULL stays NULL.
    processes, process = factorize(launches.thread & PROCESS_MASK)
    if len(processes) > 1 or not is_sorted(launches.id, strictly=True):
        order = np.lexsort((launches.begin, launches.id, process))
        order = order[mask_changes(process[order], launches.id[order])]
        launches, process = launches[order], process[order]
    names = tuple(factorize(launches.name)[0].tolist())
    stored = frames.append_frame(asdict(launches))
    cuts = np.searchsorted(process, np.arange(len(processes) + 1)).tolist()
    return [
        Segment(
            pid, int(launches.id[first]), int(launches.id[last - 1]), first, last, names, stored
        )
        for pid, (first, last) in zip(processes.tolist(), pairwise(cuts), strict=True)
    ]
