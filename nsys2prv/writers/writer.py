"""The interface of writers of traces; how any worker makes a window of a trace, compressed if wanted.

A writer gets the contents of the trace (`begin`), then turns the records of each time window into
bytes (`window`), in any process, and last writes the files beside the trace (`end`). The bytes of
windows follow those that `begin` returns, in the order of time.
"""

from __future__ import annotations

import pickle
import shutil
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, ClassVar, NamedTuple, Protocol

import numpy as np
from msgspec import Struct

from nsys2prv.events.catalogue import Metric
from nsys2prv.store.runs import RecordFormat, Run
from nsys2prv.store.windows import GlobalIds, WindowReader, WindowRecords
from nsys2prv.writers.names import NameValues
from nsys2prv.writers.rows import ObjectModel

#: Larger writes cost more per byte on common kernels.
WRITE_BYTES = 1 << 20
GZIP_LEVEL = 1


class TraceContent(Struct, frozen=True):
    """What a trace holds, besides its records."""

    #: Processes, threads, streams and devices: `model.tree` has the rows that records name.
    model: ObjectModel
    #: Name set -> the labels of the values that records hold.
    values: Mapping[str, NameValues]
    #: (name, number) of every NVTX domain, which records name by its place in this list.
    domain_codes: list[tuple[str, int]]
    #: Runs of records of the whole job, and what their times and indices mean.
    runs: Sequence[Run]
    global_ids: GlobalIds
    #: Layouts that records are of, in the order of the kinds of events -> bits of the fields to
    #: write, of those that records have.
    layouts: Mapping[str, int]
    #: Layout -> its sampled numbers.
    metrics: Mapping[str, set[Metric]]
    #: Row -> the sampled numbers that it has, by layout and label.
    sampled: Mapping[int, set[tuple[str, str]]]
    #: Kinds of lines between rows.
    lines: frozenset[str]
    #: True if there are states of rows.
    has_states: bool
    #: Length of the trace, ns.
    duration: int
    #: UTC at trace time 0, None where the reports do not tell.
    begin_utc: datetime | None
    #: Lines for people on the clocks, each begun by #.
    comments: str


class WindowBytes(NamedTuple):
    """A window as it stands in the file."""

    #: Its bytes, in pieces.
    pieces: Iterable[np.ndarray | bytes]
    #: Number of its lines, packets or other units.
    count: int
    #: Layout -> sampled numbers that were left out for a greater one of the same time.
    repeated: Counter[str]


class Writer(Protocol):
    """Writes traces in one format. It is pickled after `begin`: its fields are what windows need."""

    #: Name of the units that the file consists of: lines, packets.
    unit: ClassVar[str]
    #: Endings of the files beside the trace.
    beside: ClassVar[tuple[str, ...]]
    #: How people open the trace, with {trace} for its name; "" for Paraver, whose views are listed.
    opening: ClassVar[str]

    def begin(self, content: TraceContent) -> bytes:
        """Take from the content all that `window` needs; return the first bytes of the file."""

    def window(
        self, records: dict[RecordFormat, WindowRecords], number: int, is_last: bool
    ) -> WindowBytes:
        """Return the bytes of the records of a window, whose times are later than those of the
        windows before it. number: of the window, from 0. is_last: it ends with the trace.
        """

    def end(self, content: TraceContent, trace: Path) -> None:
        """Write the files beside the trace."""


class WindowPlan(Struct):
    """What workers need to write any window."""

    #: Writer, after its `begin`.
    writer: Writer
    #: Runs of records of the whole job.
    runs: list[Run]
    #: Maps local indices of the runs to numbers of the trace.
    global_ids: GlobalIds
    #: Times, ns: window k is bounds[k] <= time < bounds[k + 1], the last one open.
    bounds: list[int]
    #: Each window is a gzip member of its own; Paraver and Perfetto read files of many.
    compress: bool
    #: Folder for a file of each window, from workers that are other processes; None where windows
    #: stay in memory until they are written.
    parts: Path | None

    def save(self, path: Path) -> None:
        """Write it to a file, for the workers."""
        with path.open("wb") as file:
            pickle.dump(self, file, protocol=pickle.HIGHEST_PROTOCOL)


def make_window(plan_path: Path, number: int) -> tuple[list[memoryview] | Path, int, Counter[str]]:
    """Make the bytes of a window, or a file of them; returns these, its number of lines, and by
    layout how many sampled numbers were left out.
    """
    plan, reader = _open_plan(plan_path)
    last = plan.bounds[number + 1] if number + 1 < len(plan.bounds) else None
    records = reader.read(plan.bounds[number], last)
    pieces, count, repeated = plan.writer.window(records, number, last is None)
    made: list[memoryview] | Path = prepare_pieces(pieces, plan.compress)
    if plan.parts is not None:
        path = plan.parts / f"part-{number}"
        with path.open("wb") as out:
            append_window(out, made)
        made = path
    return made, count, repeated


def prepare_pieces(pieces: Iterable[np.ndarray | bytes], compress: bool) -> list[memoryview]:
    """Return the bytes to write, compressed if wanted."""
    views = [memoryview(piece).cast("B") for piece in pieces if len(piece)]
    if not compress:
        return views
    from isal import isal_zlib

    gzip = isal_zlib.compressobj(GZIP_LEVEL, isal_zlib.DEFLATED, 31)
    return [memoryview(data) for data in (*map(gzip.compress, views), gzip.flush()) if data]


def append_window(out: BinaryIO, made: list[memoryview] | Path) -> None:
    """Append the bytes of a window, or those of its file, which goes."""
    if isinstance(made, Path):
        with made.open("rb") as source:
            shutil.copyfileobj(source, out, WRITE_BYTES)
        made.unlink()
        return
    for piece in made:
        for start in range(0, len(piece), WRITE_BYTES):
            out.write(piece[start : start + WRITE_BYTES])


#: The plan that each thread used last, with the reader of its runs.
_OPEN_PLANS: dict[tuple[Path, int], tuple[WindowPlan, WindowReader]] = {}


def _open_plan(path: Path) -> tuple[WindowPlan, WindowReader]:
    key = path, threading.get_ident()
    if key not in _OPEN_PLANS:
        for other in [other for other in list(_OPEN_PLANS) if other[1] == key[1]]:
            _OPEN_PLANS.pop(other)[1].close()
        with path.open("rb") as file:
            plan = pickle.load(file)
        _OPEN_PLANS[key] = plan, WindowReader(plan.runs, plan.global_ids)
    return _OPEN_PLANS[key]


def close_plan(path: Path) -> None:
    """Let go of the files that windows written in this process keep open."""
    for key in [key for key in list(_OPEN_PLANS) if key[0] == path]:
        _OPEN_PLANS.pop(key)[1].close()
