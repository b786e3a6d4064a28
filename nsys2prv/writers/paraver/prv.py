"""Write the lines of a .prv, one time window at a time: a window's records are read from sorted runs
and formatted, and their text is put into the file, or a file of its own. Each window is a pure
function over files.

Lines are sequences of pieces, and come in batches whose numbers stand in columns. These are merged
by time, and formatted by the compiled `native/lines.c`, where the installation has it.
"""

from __future__ import annotations

import pickle
import re
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from io import FileIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
from msgspec import Struct, field

from nsys2prv._util.native import core
from nsys2prv.events.catalogue import DomainCode, load_catalogue
from nsys2prv.store.runs import (
    BEGIN,
    COUNTER,
    END,
    LINE,
    STATE,
    RecordFormat,
    Run,
    list_present_fields,
)
from nsys2prv.store.samples import SampleTable, count_samples, join_samples, split_at_holes
from nsys2prv.store.windows import GlobalIds, WindowReader, WindowRecords

#: Stands behind texts, of which the compiled writer copies as many bytes at once.
_BEHIND = bytes(16)
#: A line of several batches is a number: that of its batch, and in so many bits its row.
ROW_BITS = 40
#: Bytes of text that the compiled writer makes at a time; many times what a line may need.
TEXT_BYTES = 1 << 24
#: Lines that polars formats at a time.
LINES_AT_ONCE = 131_072
#: Larger writes cost more per byte on common kernels.
WRITE_BYTES = 1 << 20
GZIP_LEVEL = 1
#: How often a part looks whether those before it are written, in seconds.
LOOK_SECONDS = 0.0005
_FAILED = -1


def derive_trace_paths(output: str | Path, compress: bool) -> tuple[Path, Path, Path]:
    """Return the .prv (or .prv.gz), .pcf and .row of an output given as `out`, `out.prv` or
    `out.prv.gz`.
    """
    folder = Path(output).parent
    name, packed = re.fullmatch(r"(?s)(.*?)(?:\.prv(\.gz)?)?", Path(output).name).groups()
    prv = f"{name}.prv.gz" if compress or packed else f"{name}.prv"
    return folder / prv, folder / f"{name}.pcf", folder / f"{name}.row"


class Manifest(Struct):
    """Everything that writing the windows needs."""

    #: Runs of records of the whole job.
    runs: list[Run]
    #: Maps local indices of the runs to numbers of the trace.
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
        """Write it to a file, for the tasks."""
        with path.open("wb") as file:
            pickle.dump(self, file, protocol=pickle.HIGHEST_PROTOCOL)


def write_window(manifest_path: Path, output: Output, number: int) -> tuple[int, Counter[int]]:
    """Format one window and write it as a part of the output. Returns its number of lines and, by
    event type, how many sampled numbers were left out for a greater one of the same time.
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
        self._states, self._events, self._senders, self._receivers = (
            Choice(tuple(f"{before}:{address}:".encode() for address in manifest.addresses))
            for before in ("1", "2", "3", "")
        )
        self._domain_codes: dict[tuple[DomainCode, bytes], Choice] = {}

    def make_batches(self, number: int) -> list[Batch]:
        """Return the lines of a window by shape: states first, then ends, so that they come before
        begins of the same time.
        """
        bounds = self.manifest.bounds
        last = bounds[number + 1] if number + 1 < len(bounds) else None
        records = self.reader.read(bounds[number], last)
        sampled = {shape: records.pop(shape) for shape in list(records) if shape.stream == COUNTER}
        makers = {
            STATE: self._make_state_batch,
            END: self._make_end_batch,
            BEGIN: self._make_begin_batch,
            LINE: self._make_line_batch,
        }
        order = [*makers]
        batches = [
            makers[shape.stream](shape, records[shape])
            for shape in sorted(
                records,
                key=lambda shape: (
                    order.index(shape.stream),
                    shape.name,
                    shape.field_mask,
                    shape.wide,
                ),
            )
        ]
        batches += self._make_sample_batches(sampled)
        return batches + self._make_closing_batches() if last is None else batches

    def _make_state_batch(self, _: RecordFormat, records: WindowRecords) -> Batch:
        objects, end = _read_column(records, "object"), records.column("end")
        state = records.column("state")
        parts = [(self._states, objects), records.times, b":", end, b":", state]
        return _make_batch(records.times, parts)

    def _make_end_batch(self, shape: RecordFormat, records: WindowRecords) -> Batch:
        layout = load_catalogue().layouts[shape.name]
        times, objects = records.times, _read_column(records, "object")
        if layout.is_state:
            # Every part of a table closes what it saw; once is enough.
            objects, first = np.unique(records.column("object"), return_index=True)
            times = times[first]
        fields = list_present_fields(layout, shape.field_mask)
        codes = [self._make_code(one.code, b":0", records) for one in fields]
        return _make_batch(times, [(self._events, objects), times, *codes])

    def _make_begin_batch(self, shape: RecordFormat, records: WindowRecords) -> Batch:
        layout = load_catalogue().layouts[shape.name]
        parts = [(self._events, _read_column(records, "object")), records.times]
        for one in list_present_fields(layout, shape.field_mask):
            column = _read_column(records, one.name)
            if one.offset:
                column = np.add(records.column(one.name), one.offset, dtype=np.int64)
            parts += [self._make_code(one.code, b":", records), column]
        # Of ranges that begin together the longer is the outer one, whichever attributes they
        # carry.
        return _make_batch(records.times, parts, -records.column("end") if layout.nests else None)

    def _make_code(self, code: int | DomainCode, behind: bytes, records: WindowRecords) -> Part:
        """Return `:code` and what follows it."""
        if not isinstance(code, DomainCode):
            return b":%d%s" % (code, behind)
        if (code, behind) not in self._domain_codes:
            codes = (code.code_of(*domain) for domain in self.manifest.domain_codes)
            texts = tuple(b":%d%s" % (number, behind) for number in codes)
            self._domain_codes[code, behind] = Choice(texts)
        return self._domain_codes[code, behind], _read_column(records, "domain")

    def _make_line_batch(self, shape: RecordFormat, records: WindowRecords) -> Batch:
        sender, receiver, size = (
            _read_column(records, name) for name in ("sender", "receiver", "size")
        )
        send, receive = records.times, records.column("receive")
        fixed = load_catalogue().lines[shape.name].tag
        tag = _read_column(records, "tag") if fixed is None else b"%d" % fixed
        sent = [(self._senders, sender), send, b":", send]
        received = [(self._receivers, receiver), receive, b":", receive]
        return _make_batch(send, [*sent, *received, b":", size, b":", tag])

    def _make_sample_batches(self, records: dict[RecordFormat, WindowRecords]) -> list[Batch]:
        """Return lines of samples: one for each instant of an object, with all its numbers."""
        tables = [self._read_samples(*item) for item in records.items()]
        joined = join_samples(tables) if tables else []
        if [*map(id, joined)] != [*map(id, tables)]:
            self.repeated += count_samples(tables) - count_samples(joined)
        return [self._make_sample_batch(part) for table in joined for part in split_at_holes(table)]

    def _read_samples(self, shape: RecordFormat, records: WindowRecords) -> SampleTable:
        codes = np.array(
            [self.manifest.counter_codes[shape.name, metric.name] for metric in shape.metrics]
        )
        order = np.argsort(codes)
        stored = records.column("values")
        if (order[1:] < order[:-1]).any():
            stored = stored[:, order]
        return SampleTable(codes[order], records.times, records.column("object"), stored)

    def _make_sample_batch(self, table: SampleTable) -> Batch:
        values = zip(table.codes.tolist(), (table.stored - 1).T, strict=True)
        parts = [part for code, column in values for part in (b":%d:" % code, column)]
        return _make_batch(table.time, [(self._events, table.object), table.time, *parts])

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


def _read_column(records: WindowRecords, name: str) -> Column:
    """Return a column that holds no times, to be written."""
    values, table = records.read_stored_column(name)
    return values if table is None else Indices(values, table)


def _make_batch(times: np.ndarray, parts: Iterable[Part], ties: np.ndarray | None = None) -> Batch:
    """Return a batch of lines that consist of these parts."""
    pieces: list[Piece] = []
    columns: list[Column] = []
    for part in parts:
        if isinstance(part, bytes):
            pieces.append(part)
            continue
        piece, column = part if isinstance(part[0], Choice) else (NUMBER, part)
        pieces.append(piece)
        columns.append(column)
    return Batch([*pieces, b"\n"], times, columns, ties)


class Choice(Struct, frozen=True, dict=True):
    """One of several texts by index."""

    #: The text of each index.
    texts: tuple[bytes, ...]

    @cached_property
    def joined(self) -> tuple[bytes, np.ndarray]:
        """All texts, one after the other, and where each begins, and the last ends (int32)."""
        return b"".join(self.texts) + _BEHIND, np.cumsum([0, *map(len, self.texts)], dtype=np.int32)


#: Stands for a number from 0 up.
NUMBER = None
#: Part of a line: a text that is the same in all, one of several by index, or a number.
Piece = bytes | Choice | None


class Indices(NamedTuple):
    """A column of indices into a table of what they stand for."""

    #: Place of each row in `table`.
    indices: np.ndarray
    #: Numbers to be written (int64, from 0 up).
    table: np.ndarray


Column = np.ndarray | Indices
#: A text, a choice by the indices of a column, or the numbers of a column.
Part = bytes | tuple[Choice, Column] | Column


class Batch(Struct):
    """Lines that consist of the same pieces."""

    #: What each line consists of.
    pieces: Sequence[Piece]
    #: Time of each line, ns.
    times: np.ndarray
    #: A column for each choice and number among the pieces: integers of any size, from 0 up.
    columns: Sequence[Column]
    #: Order among lines of equal time.
    ties: np.ndarray | None = None


def merge_lines(batches: Sequence[Batch]) -> Iterator[np.ndarray]:
    """Yield the text of all lines by time, in pieces (uint8).

    Lines of equal time keep the order of the batches, then of their rows; those of batches with
    ties go by these among themselves.
    """
    batches = [batch for batch in batches if len(batch.times)]
    if not batches:
        return
    if core is None:
        yield from _format_by_polars(batches, _order_by_numpy(batches))
        return
    order = np.empty(sum(len(batch.times) for batch in batches), np.uint64)
    core.order([(_to_integers(batch.times), _to_integers(batch.ties)) for batch in batches], order)
    yield from _format_by_core(batches, order)


def _to_integers(values: np.ndarray | None) -> np.ndarray | None:
    return None if values is None else np.ascontiguousarray(values, np.int64)


def _order_by_numpy(batches: Sequence[Batch]) -> np.ndarray:
    """Return what the compiled `order` does, for installations without a compiler."""
    counts = [len(batch.times) for batch in batches]
    times = np.concatenate([batch.times for batch in batches])
    owner = np.repeat(np.arange(len(batches), dtype=np.uint64), counts)
    row = np.concatenate([np.arange(count, dtype=np.uint64) for count in counts])
    order = np.argsort(times, kind="stable")
    _break_ties(order, times, owner, batches)
    return (owner << np.uint64(ROW_BITS) | row)[order]


def _break_ties(
    order: np.ndarray, times: np.ndarray, owner: np.ndarray, batches: Sequence[Batch]
) -> None:
    """Reorder, among the lines that have ties, those of equal time; all other lines keep their
    places.
    """
    tied = np.array([batch.ties is not None for batch in batches])
    ties = np.concatenate(
        [
            np.zeros(len(batch.times), np.int64) if batch.ties is None else batch.ties
            for batch in batches
        ]
    )
    places = np.flatnonzero(tied[owner[order]])
    lines = order[places]
    order[places] = lines[np.lexsort((ties[lines], times[lines]))]


def _format_by_core(batches: Sequence[Batch], order: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the text of the lines of all batches in this order, in pieces (uint8), by the compiled
    writer. order: of each line, its batch and row, see :data:`ROW_BITS`.
    """
    programs = [
        (make_program(batch.pieces), tuple(batch.columns), len(batch.times)) for batch in batches
    ]
    done = 0
    while done < len(order):
        text = np.empty(TEXT_BYTES, np.uint8)
        lines, size = core.write(programs, order[done:], text)
        if not lines:
            raise ValueError(f"a line of more than {TEXT_BYTES:,} bytes")
        done += lines
        yield text[:size]


def make_program(pieces: Iterable[Piece]) -> tuple[tuple, ...]:
    """Return a line's pieces for the compiled writer: texts, each with what follows it, see
    `native/lines.c`.
    """
    steps, text = [], b""
    for piece in pieces:
        if isinstance(piece, bytes):
            text += piece
        else:
            followed_by = (None,) if piece is NUMBER else piece.joined
            steps.append((text + _BEHIND, *followed_by))
            text = b""
    return (*steps, (text + _BEHIND,))


def _format_by_polars(batches: Sequence[Batch], order: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the same bytes by polars, much slower, for installations without a compiler."""
    for first in range(0, len(order), LINES_AT_ONCE):
        lines = order[first : first + LINES_AT_ONCE].view(np.int64)
        owners, rows = lines >> ROW_BITS, lines & ((1 << ROW_BITS) - 1)
        places = [np.flatnonzero(owners == number) for number in range(len(batches))]
        formatted = [
            _format_batch(batch, rows[batch_places])
            for batch, batch_places in zip(batches, places, strict=True)
            if len(batch_places)
        ]
        text = pl.concat(formatted).gather(np.argsort(np.concatenate(places)))
        yield np.frombuffer("".join(text).encode("latin-1"), np.uint8)


def _format_batch(batch: Batch, rows: np.ndarray) -> pl.Series:
    """Return the lines of these rows of a batch. Bytes are taken as Latin-1, so that any come back
    as they were.
    """
    columns = iter(batch.columns)
    pieces: list[pl.Expr | pl.Series] = [pl.repeat("", len(rows))]
    for piece in batch.pieces:
        if isinstance(piece, bytes):
            pieces.append(pl.lit(piece.decode("latin-1")))
            continue
        column = next(columns)
        values = (
            column.table[column.indices[rows]] if isinstance(column, Indices) else column[rows]
        ).astype(np.uint64)
        if piece is NUMBER:
            pieces.append(pl.Series(values).cast(pl.String))
        else:
            texts = pl.Series([text.decode("latin-1") for text in piece.texts])
            pieces.append(texts.gather(values))
    return pl.select(pl.concat_str(pieces)).to_series()


class Output(Struct, frozen=True):
    """A file that several processes write, part by part."""

    #: The file that is written.
    path: Path
    #: Folder for temporary files, seen by all processes.
    folder: Path
    #: Each part is a gzip member of its own; Paraver reads files of many.
    compress: bool

    def begin(self, head: bytes, parts: int) -> None:
        """Make the file with its first bytes, in front of so many parts."""
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
    views = [memoryview(piece).cast("B") for piece in pieces]
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
