"""Writing: from sorted runs to trace lines, one time window at a time. Each window is a pure
function over files.
"""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct, field

from nsys2prv.events.catalogue import DomainCode, Field, load_catalogue
from nsys2prv.paraver.lines import (
    Batch,
    Choice,
    Indices,
    LineShape,
    Number,
    Piece,
    Text,
    merge_lines,
)
from nsys2prv.paraver.output import Output
from nsys2prv.store.counter_samples import SampleTable, count_samples, join_samples, split_at_holes
from nsys2prv.store.runs import BEGIN, COUNTER, END, LINE, STATE, Run, Shape, list_present_fields
from nsys2prv.store.windows import GlobalIds, WindowReader, WindowRecords


class Manifest(Struct):
    """Everything that writing the windows needs."""

    #: Of the whole job.
    runs: list[Run]
    #: Maps their local indices to numbers of the trace.
    global_ids: GlobalIds
    #: Address of every thread, as records name it.
    addresses: list[str]
    #: (name, number) of every NVTX domain.
    domain_codes: list[tuple[str, int]]
    #: Event type by layout and label.
    counter_codes: dict[tuple[str, str], int] = field(default_factory=dict)
    #: Thread and event types of the samples to set to 0 at the end.
    closings: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    #: Times, ns: window k is bounds[k] <= time < bounds[k + 1], the last one open.
    bounds: list[int] = field(default_factory=list)

    def save(self, path: Path) -> None:
        with path.open("wb") as file:
            pickle.dump(self, file, protocol=pickle.HIGHEST_PROTOCOL)


def write_window(manifest_path: Path, output: Output, number: int) -> tuple[int, Counter[int]]:
    """Format one window and put it into its place; returns its number of lines, and by event type
    how many sampled numbers were one of several of the same time.
    """
    formatter = _get_formatter(manifest_path)
    formatter.repeated.clear()
    batches: list[Batch] = []

    def pieces() -> Iterator[np.ndarray]:
        batches.extend(formatter.make_batches(number))
        yield from merge_lines(batches)

    output.write_part(number, pieces())
    return sum(len(batch.times) for batch in batches), formatter.repeated.copy()


#: The formatter that each thread used last, by its manifest.
_FORMATTERS: dict[tuple[Path, int], Formatter] = {}


def _get_formatter(path: Path) -> Formatter:
    key = path, threading.get_ident()
    if key not in _FORMATTERS:
        for other in [other for other in list(_FORMATTERS) if other[1] == key[1]]:
            _FORMATTERS.pop(other).reader.close()
        with path.open("rb") as file:
            _FORMATTERS[key] = Formatter(pickle.load(file))
    return _FORMATTERS[key]


def close_formatter(path: Path) -> None:
    """Let go of the files that windows written in this process keep open."""
    for key in [key for key in list(_FORMATTERS) if key[0] == path]:
        _FORMATTERS.pop(key).reader.close()


class Formatter:
    """Makes the lines of windows; keeps what all windows of a trace have in common."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.reader = WindowReader(manifest.runs, manifest.global_ids)
        self.repeated: Counter[int] = Counter()
        addresses = [address.encode() for address in manifest.addresses]
        self._events = Choice(tuple(b"2:" + address + b":" for address in addresses))
        self._states = Choice(tuple(b"1:" + address + b":" for address in addresses))
        self._senders = Choice(tuple(b"3:" + address + b":" for address in addresses))
        self._receivers = Choice(tuple(b":" + address + b":" for address in addresses))
        self._shapes: dict[Hashable, LineShape] = {}

    def make_batches(self, number: int) -> list[Batch]:
        """Return the lines of a window by shape: states first, then ends, so that they come before
        begins of the same time.
        """
        bounds = self.manifest.bounds
        last = bounds[number + 1] if number + 1 < len(bounds) else None
        records = self.reader.read(bounds[number], last)
        ranks = {STATE: 0, END: 1, BEGIN: 2, LINE: 3}
        sampled = {shape: records.pop(shape) for shape in list(records) if shape.stream == COUNTER}
        batches = [
            self._make_batch(shape, records[shape])
            for shape in sorted(
                records,
                key=lambda shape: (ranks[shape.stream], shape.name, shape.present, shape.wide),
            )
        ]
        batches += self._make_sample_batches(sampled)
        return batches + self._make_closing_batches() if last is None else batches

    def _make_batch(self, shape: Shape, pieces: WindowRecords) -> Batch:
        times = pieces.times
        if shape.stream == LINE:
            return self._make_line_batch(shape, times, pieces)
        objects = _make_column(pieces, "object")
        if shape.stream == STATE:
            columns = [objects, times, pieces.column("end"), pieces.column("state")]
            return Batch(self._make_shape(shape, self._make_state_shape), times, columns)
        layout = load_catalogue().layouts[shape.name]
        fields = list_present_fields(layout, shape.present)
        domain = [_make_column(pieces, "domain")] if layout.has_domain else []
        if shape.stream == END:
            if layout.is_state:
                # Every part of a table closes what it saw; once is enough.
                objects, first = np.unique(pieces.column("object"), return_index=True)
                times = times[first]
            coded = [column for f in fields if isinstance(f.code, DomainCode) for column in domain]
            line = self._make_shape(shape, lambda: self._make_end_shape(fields))
            return Batch(line, times, [objects, times, *coded])
        columns = [objects, times]
        for f in fields:
            column = _make_column(pieces, f.name)
            if f.offset:
                column = np.add(pieces.column(f.name), f.offset, dtype=np.int64)
            columns += [*(domain if isinstance(f.code, DomainCode) else ()), column]
        # Of ranges that begin together the longer is the outer one, whichever attributes they
        # carry.
        line = self._make_shape(shape, lambda: self._make_begin_shape(f.code for f in fields))
        return Batch(line, times, columns, -pieces.column("end") if layout.nests else None)

    def _make_begin_shape(self, codes: Iterable[int | DomainCode]) -> Iterator[Piece]:
        yield from (self._events, Number())
        for code in codes:
            yield from (self._make_code(code, b":"), Number())

    def _make_end_shape(self, fields: Sequence[Field]) -> Iterator[Piece]:
        yield from (self._events, Number())
        for f in fields:
            yield self._make_code(f.code, b":0")

    def _make_state_shape(self) -> Iterator[Piece]:
        yield from (self._states, Number(), Text(b":"), Number(), Text(b":"), Number())

    def _make_line_batch(self, shape: Shape, send: np.ndarray, pieces: WindowRecords) -> Batch:
        own = ["tag"] if "tag" in shape.dtype.names else []
        sender, receiver, size, *tags = (
            _make_column(pieces, name) for name in ("sender", "receiver", "size", *own)
        )
        receive = pieces.column("receive")
        tag = load_catalogue().lines[shape.name].tag

        def line() -> Iterator[Piece]:
            further = Text(b":"), Number()
            yield from (self._senders, Number(), *further, self._receivers, Number())
            yield from (*further, *further)
            yield from further if tags else (Text(b":%d" % tag),)

        columns = [sender, send, send, receiver, receive, receive, size, *tags]
        return Batch(self._make_shape(shape, line), send, columns)

    def _make_sample_batches(self, records: dict[Shape, WindowRecords]) -> list[Batch]:
        """Return lines of samples: one for each instant of an object, with all its numbers."""
        tables = [self._read_samples(shape, pieces) for shape, pieces in records.items()]
        joined = join_samples(tables) if tables else []
        if len(joined) != len(tables) or any(
            table is not before for table, before in zip(joined, tables, strict=True)
        ):
            self.repeated += count_samples(tables) - count_samples(joined)
        return [self._make_sample_batch(part) for table in joined for part in split_at_holes(table)]

    def _read_samples(self, shape: Shape, pieces: WindowRecords) -> SampleTable:
        codes = np.array(
            [self.manifest.counter_codes[shape.name, metric.name] for metric in shape.metrics]
        )
        order = np.argsort(codes)
        stored = pieces.column("values")
        return SampleTable(
            codes[order],
            pieces.times,
            pieces.column("object"),
            stored if (order[1:] > order[:-1]).all() else stored[:, order],
        )

    def _make_sample_batch(self, table: SampleTable) -> Batch:
        codes = tuple(map(int, table.codes))
        line = self._make_shape(codes, lambda: self._make_begin_shape(codes))
        columns = [table.object, table.time, *(table.stored - 1).T]
        return Batch(line, table.time, columns)

    def _make_closing_batches(self) -> list[Batch]:
        """Return zeros for every sampled number at the end of the trace."""
        by_codes: dict[tuple[int, ...], list[int]] = {}
        for thread, codes in self.manifest.closings:
            by_codes.setdefault(codes, []).append(thread)
        duration = self.manifest.global_ids.duration
        return [
            self._make_sample_batch(
                SampleTable(
                    np.array(codes),
                    np.full(len(threads), duration),
                    np.array(threads),
                    np.ones((len(threads), len(codes)), np.int64),
                )
            )
            for codes, threads in sorted(by_codes.items())
        ]

    def _make_code(self, code: int | DomainCode, behind: bytes) -> Piece:
        """Return `:code` and what follows it."""
        if isinstance(code, DomainCode):
            codes = (code.code_of(*domain) for domain in self.manifest.domain_codes)
            return Choice(tuple(b":%d%s" % (number, behind) for number in codes))
        return Text(b":%d%s" % (code, behind))

    def _make_shape(self, key: Hashable, pieces: Callable[[], Iterator[Piece]]) -> LineShape:
        if key not in self._shapes:
            self._shapes[key] = LineShape([*pieces(), Text(b"\n")])
        return self._shapes[key]


def _make_column(pieces: WindowRecords, name: str) -> np.ndarray | Indices:
    """Return a column that holds no times, to be written."""
    values, table = pieces.read_stored_column(name)
    return values if table is None else Indices(values, table)
