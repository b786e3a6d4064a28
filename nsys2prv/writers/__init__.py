"""Write traces, with one folder per format behind one interface: `Writer`.

Input: `TraceContent` and the records of each window. Output: the bytes of the trace, and files
beside it. A writer gets the contents of the trace (`begin`), then converts the records of each time
window to bytes (`window`), in any process, and finally writes the files beside the trace (`end`).
The bytes of windows follow those from `begin`, in time order. :mod:`rows` and :mod:`names` define
the rows and names of a trace in any format. The ending of the output file selects the writer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime
    from pathlib import Path

    import numpy as np

    from nsys2prv.events.catalogue import Metric
    from nsys2prv.table.runs import Run
    from nsys2prv.table.slices import GlobalIds
    from nsys2prv.table.windows import Window
    from nsys2prv.writers.names import NameValues
    from nsys2prv.writers.rows import ObjectModel

#: Paraver counts objects of each sort in 16 bits.
MOST_OBJECTS = 65_535


class TraceContent(Struct, frozen=True):
    """All facts about a trace except its records: rows, names, layouts and clocks."""

    #: Processes, threads, streams and devices: `model.tree` has the rows that records name.
    model: ObjectModel
    #: Name set -> the labels of the values in records.
    values: Mapping[str, NameValues]
    #: (name, number) of every NVTX domain, which records name by its place in this list.
    domain_codes: list[tuple[str, int]]
    #: Runs of records of the whole job, and the meaning of their times and indices.
    runs: Sequence[Run]
    global_ids: GlobalIds
    #: Layouts of records, in the order of the event kinds -> bits of the record fields to write.
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
    #: UTC at trace time 0; None if the reports do not state it.
    begin_utc: datetime | None
    #: Lines on the clocks, each begun by #.
    comments: str
    #: True if kernels are to have their whole names.
    full_kernel_names: bool = False


class WindowBytes(NamedTuple):
    """The bytes of a time window of the trace, with the number of its lines and of dropped samples."""

    #: Its bytes, in pieces.
    pieces: Iterable[np.ndarray | bytes]
    #: Number of its lines, packets or other units.
    count: int
    #: Layout -> sampled numbers that were left out for a greater one of the same time.
    repeated: Counter[str]


class Writer(Protocol):
    """Writes traces in one format. It is pickled after `begin`, so its fields are limited to what
    windows need.
    """

    #: True if lines of launches are written by default.
    draws_launches: ClassVar[bool]
    #: Name of the units that the file consists of: lines, packets.
    unit: ClassVar[str]
    #: Suffixes of the files beside the trace.
    beside: ClassVar[tuple[str, ...]]
    #: Instruction to open the trace, with {trace} for its name; "" for Paraver, for which views are
    #: listed.
    opening: ClassVar[str]

    def begin(self, content: TraceContent) -> bytes:
        """Prepare for writing windows; return the first bytes of the file."""

    def window(self, window: Window, number: int, is_last: bool) -> WindowBytes:
        """Return the bytes of a window. Windows are written in time order. number: of the window,
        from 0. is_last: True if it ends with the trace.
        """

    def end(self, content: TraceContent, trace: Path) -> None:
        """Write the files beside the trace, such as those with names. trace: path of the trace."""
