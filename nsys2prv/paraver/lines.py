"""Lines of text as sequences of pieces, and batches of them whose numbers stand in columns: merge
batches by time, and format them by the compiled `native/lines.c`, where the installation has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import polars as pl
from msgspec import Struct

from nsys2prv._util.native import core

#: Stands behind texts, of which the compiled writer copies as many bytes at once.
_BEHIND = bytes(16)


class Text(Struct, frozen=True):
    """The same text in every line."""

    text: bytes


class Choice(Struct, frozen=True, dict=True):
    """One of several texts by index."""

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
        return tuple(self._steps())

    def _steps(self) -> Iterator[tuple]:
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


class Batch(Struct):
    """Lines of one shape."""

    shape: LineShape
    #: Time of each line, ns.
    times: np.ndarray
    #: Columns of the shape, integers of any size, from 0 up.
    columns: Sequence[np.ndarray]
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
    times = np.concatenate([batch.times for batch in batches])
    order = _order(times)
    owner = np.repeat(
        np.arange(len(batches), dtype=np.uint16), [len(batch.times) for batch in batches]
    )
    _break_ties(order, times, owner, batches)
    yield from (_polars_texts if core is None else _compiled_texts)(batches, owner, order)


def _order(times: np.ndarray) -> np.ndarray:
    """Return the stable order of the times: a plain sort of time and row packed into one number,
    where that fits.
    """
    bits = len(times).bit_length()
    low = int(times.min())
    if (int(times.max()) - low).bit_length() + bits > 62:
        return np.argsort(times, kind="stable")
    packed = (times - low) << bits
    packed |= np.arange(len(times))
    packed.sort()
    packed &= (1 << bits) - 1
    return packed


def _break_ties(
    order: np.ndarray, times: np.ndarray, owner: np.ndarray, batches: Sequence[Batch]
) -> None:
    """Reorder, among the lines that have ties, those of equal time; all other lines keep their
    places.
    """
    tied = np.array([batch.ties is not None for batch in batches])
    if not tied.any():
        return
    places = np.flatnonzero(tied[owner[order]])
    time = times[order[places]]
    equal = time[1:] == time[:-1]
    if not equal.any():
        return
    together = np.flatnonzero(np.append(equal, False) | np.append(False, equal))
    places, time = places[together], time[together]
    ties = np.concatenate(
        [
            batch.ties if batch.ties is not None else np.zeros(len(batch.times), np.int64)
            for batch in batches
        ]
    )
    lines = order[places]
    order[places] = lines[np.lexsort((ties[lines], time))]


#: Bytes of text that the compiled writer makes at a time; many times what a line may need.
TEXT_BYTES = 1 << 24
#: Lines that polars formats at a time.
LINES_AT_ONCE = 131_072


def _compiled_texts(
    batches: Sequence[Batch], owner: np.ndarray, order: np.ndarray
) -> Iterator[np.ndarray]:
    """Yield the text of the lines of all batches in this order, in pieces (uint8), by the compiled
    writer. owner: the batch of each line, in the batches' order.
    """
    given = [(batch.shape.program, tuple(batch.columns), len(batch.times)) for batch in batches]
    done = 0
    while done < len(order):
        text = np.empty(TEXT_BYTES, np.uint8)
        lines, size = core.write(given, owner, order[done:], text)
        if not lines:
            raise ValueError(f"a line of more than {TEXT_BYTES:,} bytes")
        done += lines
        yield text[:size]


def _polars_texts(
    batches: Sequence[Batch], owner: np.ndarray, order: np.ndarray
) -> Iterator[np.ndarray]:
    """Yield the same bytes by polars, much slower, for installations without a compiler."""
    starts = np.cumsum([0] + [len(batch.times) for batch in batches])
    for first in range(0, len(order), LINES_AT_ONCE):
        lines = order[first : first + LINES_AT_ONCE]
        owners = owner[lines]
        places = [np.flatnonzero(owners == number) for number in range(len(batches))]
        made = [
            _format(batch, lines[mine] - start)
            for batch, mine, start in zip(batches, places, starts, strict=False)
            if len(mine)
        ]
        text = pl.concat(made).gather(np.argsort(np.concatenate(places)))
        yield np.frombuffer("".join(text).encode("latin-1"), np.uint8)


def _format(batch: Batch, rows: np.ndarray) -> pl.Series:
    """Return the lines of these rows of a batch. Bytes are taken as Latin-1, so that any come back as they
    were.
    """
    columns = iter(batch.columns)
    pieces: list[pl.Expr | pl.Series] = [pl.repeat("", len(rows))]
    for piece in batch.shape.pieces:
        if isinstance(piece, Text):
            pieces.append(pl.lit(piece.text.decode("latin-1")))
            continue
        values = next(columns)[rows].astype(np.uint64)
        if isinstance(piece, Choice):
            pieces.append(
                pl.Series([text.decode("latin-1") for text in piece.texts]).gather(values)
            )
        else:
            pieces.append(pl.Series(values).cast(pl.String))
    return pl.select(pl.concat_str(pieces)).to_series()
