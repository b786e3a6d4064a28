"""The interface of writers of traces; how each window is written by any worker, into files that several
processes write part by part, one part a window, compressed if wanted.

A writer gets the contents of the trace (`begin`), then turns the records of each time window into
bytes (`window`), in any process, and last writes the files beside the trace (`end`). The bytes of
windows follow those that `begin` returns, in the order of time.
"""

from __future__ import annotations

import pickle
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from io import FileIO
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol

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
#: How often a part looks whether those before it are written, in seconds.
LOOK_SECONDS = 0.0005
_FAILED = -1


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


class Output(Struct, frozen=True):
    """A file that several processes write, part by part."""

    #: The file that is written.
    path: Path
    #: Folder for temporary files, seen by all processes.
    folder: Path
    #: Each part is a gzip member of its own; Paraver and Perfetto read files of many.
    compress: bool

    def begin(self, head: bytes, parts: int) -> None:
        """Make the file with its first bytes, to be followed by `parts` parts."""
        self.path.write_bytes(b"".join(_compress([head], self.compress)))

    def write_part(self, number: int, pieces: Iterable[np.ndarray | bytes]) -> None:
        """Write part `number`, from 0 on."""
        raise NotImplementedError

    def collect(self, number: int) -> None:
        """Collect a written part. Called once for every part, in order, by the process that began
        the file.
        """

    def abandon(self) -> None:
        """Give the file up: let no part wait for another."""


class SharedFileOutput(Output):
    """Processes of one machine write each part where it belongs, one after the other: a file system
    lets but one write to a file at a time, and who waits for that would keep a processor busy.
    """

    @property
    def _places(self) -> Path:
        """A file with the place of each part (int64; 0 until all before it are written)."""
        return self.folder / "places"

    def _map_places(self) -> np.ndarray:
        return np.memmap(self._places, np.int64, "r+")

    def begin(self, head: bytes, parts: int) -> None:
        super().begin(head, parts)
        self._places.write_bytes(
            np.append(self.path.stat().st_size, np.zeros(parts, np.int64)).tobytes()
        )

    def write_part(self, number: int, pieces: Iterable[np.ndarray | bytes]) -> None:
        """Write a part. Waits until all parts before it are written, so those must be under way."""
        places = self._map_places()
        try:
            data = _compress(pieces, self.compress)
            while not places[number]:
                time.sleep(LOOK_SECONDS)
            place = int(places[number])
            if place == _FAILED:
                raise OSError(f"{self.path}: a part before this one was not written")
            with self.path.open("r+b", buffering=0) as out:
                out.seek(place)
                _write_all(out, data)
            places[number + 1] = place + sum(map(len, data))
        except BaseException:
            places[number + 1] = _FAILED
            raise

    def abandon(self) -> None:
        places = self._map_places()
        np.copyto(places, _FAILED, where=places == 0)


class PartFilesOutput(Output):
    """Each part is a file of its own until it is appended: for processes of several machines that
    share a file system.
    """

    def _make_part_path(self, number: int) -> Path:
        return self.folder / f"part-{number}"

    def write_part(self, number: int, pieces: Iterable[np.ndarray | bytes]) -> None:
        with self._make_part_path(number).open("wb", buffering=0) as out:
            _write_all(out, _compress(pieces, self.compress))

    def collect(self, number: int) -> None:
        part = self._make_part_path(number)
        with self.path.open("ab", buffering=0) as out, part.open("rb", buffering=0) as source:
            shutil.copyfileobj(source, out, WRITE_BYTES)
        part.unlink()


def _compress(pieces: Iterable[np.ndarray | bytes], compress: bool) -> list[memoryview]:
    """Return the bytes to write."""
    views = [memoryview(piece).cast("B") for piece in pieces if len(piece)]
    if not compress:
        return views
    from isal import isal_zlib

    gzip = isal_zlib.compressobj(GZIP_LEVEL, isal_zlib.DEFLATED, 31)
    return [memoryview(data) for data in (*map(gzip.compress, views), gzip.flush()) if data]


def _write_all(out: FileIO, data: Iterable[memoryview]) -> None:
    for piece in data:
        for start in range(0, len(piece), WRITE_BYTES):
            left = piece[start : start + WRITE_BYTES]
            while len(left):
                left = left[out.write(left) :]


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
