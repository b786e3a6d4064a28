"""Lines of text as sequences of pieces, and batches of them whose numbers stand in columns: merge
batches by time, and format them by the compiled `native/lines.c`, where the installation has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.native import core

#: Stands behind texts, of which the compiled writer copies as many bytes at once.
_BEHIND = bytes(16)
#: A line of several batches is a number: that of its batch, and in so many bits its row.
ROW_BITS = 40


class Text(Struct, frozen=True):
    """The same text in every line."""

    #: Bytes of every line.
    text: bytes


class Choice(Struct, frozen=True, dict=True):
    """One of several texts by index."""

    #: One for each index.
    texts: tuple[bytes, ...]

    @cached_property
    def joined(self) -> tuple[bytes, np.ndarray]:
        """All texts, one after the other, and where each begins, and the last ends (int32)."""
        return b"".join(self.texts) + _BEHIND, np.cumsum([0, *map(len, self.texts)], dtype=np.int32)


class Number(Struct, frozen=True):
    """A number from 0 up."""


Piece = Text | Choice | Number


class LineShape:
    """A line as a sequence of pieces; the columns to format are those of its choices and numbers,
    in order.
    """

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.pieces = tuple(pieces)

    @cached_property
    def program(self) -> tuple[tuple, ...]:
        """The pieces for the compiled writer: texts, each with what follows it, see
        `native/lines.c`.
        """
        return tuple(self._list_steps())

    def _list_steps(self) -> Iterator[tuple]:
        text = b""
        for piece in self.pieces:
            if isinstance(piece, Text):
                text += piece.text
            else:
                yield (
                    (text + _BEHIND, *piece.joined)
                    if isinstance(piece, Choice)
                    else (text + _BEHIND, None)
                )
                text = b""
        yield (text + _BEHIND,)


class Indices(NamedTuple):
    """A column of indices into a table of what they stand for."""

    #: Into `table`.
    indices: np.ndarray
    #: int64, from 0 up.
    table: np.ndarray


class Batch(Struct):
    """Lines of one shape."""

    #: Of the lines.
    shape: LineShape
    #: Time of each line, ns.
    times: np.ndarray
    #: Columns of the shape, integers of any size, from 0 up.
    columns: Sequence[np.ndarray | Indices]
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


#: Bytes of text that the compiled writer makes at a time; many times what a line may need.
TEXT_BYTES = 1 << 24
#: Lines that polars formats at a time.
LINES_AT_ONCE = 131_072


def _format_by_core(batches: Sequence[Batch], order: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the text of the lines of all batches in this order, in pieces (uint8), by the compiled
    writer. order: of each line, its batch and row, see :data:`ROW_BITS`.
    """
    programs = [(batch.shape.program, tuple(batch.columns), len(batch.times)) for batch in batches]
    done = 0
    while done < len(order):
        text = np.empty(TEXT_BYTES, np.uint8)
        lines, size = core.write(programs, order[done:], text)
        if not lines:
            raise ValueError(f"a line of more than {TEXT_BYTES:,} bytes")
        done += lines
        yield text[:size]


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
    for piece in batch.shape.pieces:
        if isinstance(piece, Text):
            pieces.append(pl.lit(piece.text.decode("latin-1")))
            continue
        column = next(columns)
        values = (
            column.table[column.indices[rows]] if isinstance(column, Indices) else column[rows]
        ).astype(np.uint64)
        if isinstance(piece, Choice):
            pieces.append(
                pl.Series([text.decode("latin-1") for text in piece.texts]).gather(values)
            )
        else:
            pieces.append(pl.Series(values).cast(pl.String))
    return pl.select(pl.concat_str(pieces)).to_series()
