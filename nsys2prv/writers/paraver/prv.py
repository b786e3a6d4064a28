"""Write the .prv, and beside it the .pcf and the .row.

Lines of the .prv are sequences of pieces, and come in batches whose numbers stand in columns. These
are merged by time, and formatted by the compiled `native/lines.c`, where the installation has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import polars as pl
from msgspec import Struct, field

from nsys2prv._util.columns import ABSENT
from nsys2prv._util.files import name_beside
from nsys2prv._util.native import core
from nsys2prv.events.catalogue import CALLERS, DomainCode, Field, load_catalogue
from nsys2prv.table.runs import list_present_fields
from nsys2prv.table.samples import SampleTable, read_samples
from nsys2prv.table.slices import AlikeRanges, RangeSlice, Slice
from nsys2prv.table.windows import Window
from nsys2prv.writers import TraceContent, WindowBytes
from nsys2prv.writers.paraver.pcf import (
    format_row_file,
    make_counter_types,
    make_event_types,
    number_metrics,
    write_pcf,
)
from nsys2prv.writers.rows import ObjectTree

#: Padding behind texts: the compiled writer copies 16 bytes at once.
_BEHIND = bytes(16)
#: Bytes of text that the compiled writer makes at a time; many times the length of a line.
TEXT_BYTES = 1 << 24


class ParaverWriter(Struct, dict=True):
    """Writes the .prv, and beside it the .pcf (labels) and the .row (names of rows)."""

    unit: ClassVar[str] = "lines"
    beside: ClassVar[tuple[str, ...]] = (".pcf", ".row")
    opening: ClassVar[str] = ""

    #: Address of every thread, as records name it.
    addresses: list[str] = field(default_factory=list)
    #: (name, number) of every NVTX domain.
    domain_codes: list[tuple[str, int]] = field(default_factory=list)
    #: Event type by layout and label.
    counter_codes: dict[tuple[str, str], int] = field(default_factory=dict)
    #: Thread and event types of the samples to set to 0 at the end.
    closings: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    #: Length of the trace, ns.
    duration: int = 0
    #: Layout -> bits of the fields to write.
    field_masks: Mapping[str, int] = field(default_factory=dict)
    #: Distinct callers, by level: event values, ABSENT behind the last one.
    callers: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.int64))

    def begin(self, content: TraceContent) -> bytes:
        """Return the header, and what is known of the clocks as comments."""
        self.addresses, self.duration = content.model.tree.addresses, content.duration
        self.field_masks, self.callers = content.layouts, content.global_ids.callers
        self.domain_codes = content.domain_codes
        self.counter_codes = number_metrics(content.metrics)
        self.closings = [
            (row, tuple(sorted({self.counter_codes[metric] for metric in metrics})))
            for row, metrics in sorted(content.sampled.items())
        ]
        # From the reports, so that the same reports always give the same bytes.
        date = content.begin_utc or datetime.fromtimestamp(0, timezone.utc)
        header = _format_header(content.model.tree, date, content.duration)
        return (header + content.comments).encode()

    def window(self, window: Window, number: int, is_last: bool) -> WindowBytes:
        """Return the lines of a window by time."""
        tables, repeated = read_samples(window.samples, self.counter_codes)
        batches = self._make_batches(window)
        batches += map(self._make_sample_batch, tables)
        if is_last:
            batches += self._make_closing_batches()
        count = sum(len(batch.times) for batch in batches)
        return WindowBytes(merge_lines(batches), count, repeated)

    def end(self, content: TraceContent, trace: Path) -> None:
        """Write the .pcf and the .row."""
        pcf, row = (name_beside(trace, ending) for ending in self.beside)
        counters = make_counter_types(content.metrics, self.counter_codes)
        domains = dict(content.domain_codes)
        held = dict.fromkeys(content.layouts, 0)
        for run in content.runs:
            if run.index is not None:
                name = run.shape.name
                held[name] |= (run.index.always | run.index.some) & content.layouts[name]
        types = make_event_types(held, content.values, domains, counters)
        states = load_catalogue().states if content.has_states else ()
        with pcf.open("wb") as file:
            write_pcf(types, file, states)
        row.write_bytes(format_row_file(content.model.tree).encode())

    @cached_property
    def _choices(self) -> tuple[Choice, ...]:
        """Begins of lines by thread: of states, of events, of senders, and how receivers go on."""
        return tuple(
            Choice(tuple(f"{before}:{address}:".encode() for address in self.addresses))
            for before in ("1", "2", "3", "")
        )

    @cached_property
    def _further_choices(self) -> dict[tuple, Choice]:
        """Codes by NVTX domain, and callers by row, as windows have needed them."""
        return {}

    def _make_batches(self, window: Window) -> list[Batch]:
        """Return the lines of a window: states of rows first, then ends of ranges, so that they come
        before begins of the same time; of each by layout and fields.
        """
        made: list[tuple[bool, str, int, Batch]] = []
        for ranges in window.ranges:
            for is_begin, rows in ((False, ranges.at_end), (True, ranges.at_begin)):
                for alike in ranges.split(rows):
                    batch = self._make_range_batch(alike, is_begin)
                    made.append((is_begin, ranges.layout.name, alike.mask, batch))
        made += self._make_closings(window.ranges)
        made.sort(key=itemgetter(0, 1, 2))
        lines = sorted(window.lines, key=lambda one: one.run.shape.name)
        states = map(self._make_state_batch, window.states)
        batches = (batch for *_, batch in made)
        return [*states, *batches, *map(self._make_line_batch, lines)]

    def _make_state_batch(self, states: Slice) -> Batch:
        row, end = _find_column(states, "row"), states.column("end")
        state = states.column("state")
        parts = [(self._choices[0], row), states.times, b":", end, b":", state]
        return _make_batch(states.times, parts)

    def _make_range_batch(self, alike: AlikeRanges, is_begin: bool) -> Batch:
        """Return the lines at the begins of ranges, or at their ends."""
        times = alike.begin if is_begin else alike.until
        parts = [(self._choices[1], _find_column(alike, "row")), times]
        # Where ranges begin together the longer one is the outer one.
        ties = -alike.find_order() if is_begin and alike.layout.nests else None
        return _make_batch(times, [*parts, *self._make_fields(alike, is_begin)], ties)

    def _make_closings(self, slices: Sequence[RangeSlice]) -> Iterator[tuple]:
        """Yield the lines where rows cease to have states, by layout. Each part of a table closes its
        objects; once is enough.
        """
        by_layout: dict[str, list[RangeSlice]] = {}
        for ranges in slices:
            if ranges.closings.size:
                by_layout.setdefault(ranges.layout.name, []).append(ranges)
        for name, own in by_layout.items():
            times, rows = np.concatenate([one.closings for one in own], axis=1)
            rows, first = np.unique(rows, return_index=True)
            times, none = times[first], AlikeRanges(own[0], own[0].index.always, slice(0))
            parts = [(self._choices[1], rows), times, *self._make_fields(none, False)]
            yield False, name, none.mask, _make_batch(times, parts)

    def _make_fields(self, alike: AlikeRanges, is_begin: bool) -> Iterator[Part]:
        """Yield the codes of fields, each with its value, or 0 at ends."""
        for one in self._list_written_fields(alike):
            if one.level:
                yield from self._make_callers(alike, one, is_begin)
                continue
            yield self._make_code(one.code, b":" if is_begin else b":0", alike)
            if is_begin and one.offset:
                yield np.add(alike.column(one.name), one.offset, dtype=np.int64)
            elif is_begin:
                yield _find_column(alike, one.name)

    def _list_written_fields(self, alike: AlikeRanges) -> list[Field]:
        return list_present_fields(alike.layout, alike.mask & self.field_masks[alike.layout.name])

    def _make_code(self, code: int | DomainCode, behind: bytes, alike: AlikeRanges) -> Part:
        """Return `:code` and what follows it."""
        if not isinstance(code, DomainCode):
            return b":%d%s" % (code, behind)
        if (code, behind) not in self._further_choices:
            codes = (code.code_of(*domain) for domain in self.domain_codes)
            texts = tuple(b":%d%s" % (number, behind) for number in codes)
            self._further_choices[code, behind] = Choice(texts)
        return self._further_choices[code, behind], _find_column(alike, "domain")

    def _make_callers(self, alike: AlikeRanges, first: Field, is_begin: bool) -> list[Part]:
        """Return the callers of rows as one part, in the place of the first one that is written;
        nothing in the places of others.
        """
        callers = [one for one in self._list_written_fields(alike) if one.level]
        if first != callers[0]:
            return []
        key = is_begin, *(one.code for one in callers)
        if key not in self._further_choices:
            values = self.callers[:, [one.level - 1 for one in callers]].tolist()
            texts = (
                "".join(
                    f":{one.code}:{value if is_begin else 0}"
                    for one, value in zip(callers, row, strict=True)
                    if value != ABSENT
                )
                for row in values
            )
            self._further_choices[key] = Choice(tuple(map(str.encode, texts)))
        return [(self._further_choices[key], _find_column(alike, CALLERS))]

    def _make_line_batch(self, lines: Slice) -> Batch:
        sender, receiver, size = (
            _find_column(lines, name) for name in ("sender", "receiver", "size")
        )
        send, receive = lines.times, lines.column("receive")
        fixed = load_catalogue().lines[lines.run.shape.name].tag
        tag = _find_column(lines, "tag") if fixed is None else b"%d" % fixed
        sent = [(self._choices[2], sender), send, b":", send]
        received = [(self._choices[3], receiver), receive, b":", receive]
        return _make_batch(send, [*sent, *received, b":", size, b":", tag])

    def _make_sample_batch(self, table: SampleTable) -> Batch:
        values = zip(table.codes.tolist(), (table.stored - 1).T, strict=True)
        parts = [part for code, column in values for part in (b":%d:" % code, column)]
        return _make_batch(table.time, [(self._choices[1], table.object), table.time, *parts])

    def _make_closing_batches(self) -> Iterator[Batch]:
        """Yield zeros for every sampled number at the end of the trace."""
        by_codes: dict[tuple[int, ...], list[int]] = {}
        for thread, codes in self.closings:
            by_codes.setdefault(codes, []).append(thread)
        for codes, threads in sorted(by_codes.items()):
            end = np.full(len(threads), self.duration)
            zeros = np.ones((len(threads), len(codes)), np.int64)
            table = SampleTable(np.array(codes), end, np.array(threads), zeros)
            yield self._make_sample_batch(table)


def _format_header(tree: ObjectTree, date: datetime, duration: int) -> str:
    """Return the first line of the .prv; `duration` in ns."""
    cpus = ",".join(map(str, tree.cpus_per_node))
    tasks = ",".join(f"{len(task.threads)}:{task.node + 1}" for task in tree.tasks)
    objects = f"{len(tree.nodes)}({cpus}):1:{len(tree.tasks)}({tasks})"
    return f"#Paraver ({date:%d/%m/%Y at %H:%M}):{duration}_ns:{objects}\n"


def _find_column(found: Slice | AlikeRanges, name: str) -> Column:
    """Return a column that holds no times, to be written."""
    values, table = found.find(name)
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
    """A column of indices into a table of values."""

    #: Place of each row in `table`.
    indices: np.ndarray
    #: Numbers to be written (int64, from 0 up).
    table: np.ndarray


Column = np.ndarray | Indices
#: A text, a choice by the indices of a column, or the numbers of a column.
Part = bytes | tuple[Choice, Column] | Column


class Batch(Struct):
    """Lines that consist of the same pieces."""

    #: Pieces of each line.
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
        yield _format_by_polars(batches)
        return
    order = np.empty(sum(len(batch.times) for batch in batches), np.uint64)
    core.order([(_to_integers(batch.times), _to_integers(batch.ties)) for batch in batches], order)
    yield from _format_by_core(batches, order)


def _to_integers(values: np.ndarray | None) -> np.ndarray | None:
    return None if values is None else np.ascontiguousarray(values, np.int64)


def _format_by_core(batches: Sequence[Batch], order: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the text of the lines of all batches in this order, in pieces (uint8), by the compiled
    writer. order: of each line its row, in the lowest 40 bits, and its batch above them.
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


def _order_by_numpy(batches: Sequence[Batch]) -> np.ndarray:
    """Return the order of all lines by time, as the compiled `order` does: numbers of lines through
    all batches.
    """
    times = np.concatenate([batch.times for batch in batches])
    ties = [np.zeros_like(one.times) if one.ties is None else one.ties for one in batches]
    tied = np.repeat([one.ties is not None for one in batches], [len(one.times) for one in batches])
    order = np.argsort(times, kind="stable")
    # Lines with ties change places with others of the same time; all other lines keep theirs.
    places = np.flatnonzero(tied[order])
    lines = order[places]
    order[places] = lines[np.lexsort((np.concatenate(ties)[lines], times[lines]))]
    return order


def _format_by_polars(batches: Sequence[Batch]) -> np.ndarray:
    """Return the same bytes by polars, much slower, for installations without a compiler."""
    text = pl.concat([_format_batch(batch) for batch in batches]).gather(_order_by_numpy(batches))
    return np.frombuffer("".join(text).encode("latin-1"), np.uint8)


def _format_batch(batch: Batch) -> pl.Series:
    """Return the lines of a batch. Bytes are taken as Latin-1, so that any come back
    as they were.
    """
    columns = iter(batch.columns)
    pieces: list[pl.Expr | pl.Series] = [pl.repeat("", len(batch.times))]
    for piece in batch.pieces:
        if isinstance(piece, bytes):
            pieces.append(pl.lit(piece.decode("latin-1")))
            continue
        column = next(columns)
        values = column.table[column.indices] if isinstance(column, Indices) else column
        values = values.astype(np.uint64)
        if piece is NUMBER:
            pieces.append(pl.Series(values).cast(pl.String))
        else:
            texts = pl.Series([text.decode("latin-1") for text in piece.texts])
            pieces.append(texts.gather(values))
    return pl.select(pl.concat_str(pieces)).to_series()
