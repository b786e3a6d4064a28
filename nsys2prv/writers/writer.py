"""The interface of writers of traces, and how each window is written by any worker.

A writer gets the contents of the trace (`begin`), then turns the records of each time window into
bytes (`window`), in any process, and last writes the files beside the trace (`end`). The bytes of
windows follow those that `begin` returns, in the order of time.
"""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
from msgspec import Struct

from nsys2prv.events.catalogue import Metric
from nsys2prv.store.runs import RecordFormat, Run
from nsys2prv.store.windows import GlobalIds, WindowReader, WindowRecords
from nsys2prv.writers.names import NameValues
from nsys2prv.writers.output import Output
from nsys2prv.writers.rows import ObjectModel


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
        """Take from the content what windows need; return the first bytes of the file."""

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

    def save(self, path: Path) -> None:
        """Write it to a file, for the workers."""
        with path.open("wb") as file:
            pickle.dump(self, file, protocol=pickle.HIGHEST_PROTOCOL)


def write_window(plan_path: Path, output: Output, number: int) -> tuple[int, Counter[str]]:
    """Write one window as a part of the output; returns its number of lines, and by layout how many
    sampled numbers were left out.
    """
    plan, reader = _open_plan(plan_path)
    last = plan.bounds[number + 1] if number + 1 < len(plan.bounds) else None
    windows: list[WindowBytes] = []

    def pieces() -> Iterator[np.ndarray | bytes]:
        records = reader.read(plan.bounds[number], last)
        windows.append(plan.writer.window(records, number, last is None))
        yield from windows[0].pieces

    output.write_part(number, pieces())
    return windows[0].count, windows[0].repeated


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
