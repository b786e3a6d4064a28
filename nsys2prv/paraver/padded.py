"""Text of lines by numpy, for installations without the compiled writer.

A line of a shape has a fixed width in words of four bytes; every number stands right-aligned in words of its own, with NUL bytes
before its first digit. Lines of all shapes are scattered into one buffer at their sorted places, and at the end all NULs are dropped
at once. A word of four digits comes from a table, so a number costs a few table look-ups and no loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
import polars as pl

from nsys2prv.paraver.lines import Batch, Choice, LineShape, Number, Text

WORD = 4
#: Lines formatted at a time: their words stay in the processor's cache.
BLOCK = 8192
#: Lines merged at a time, likewise.
WINDOW = 131_072


def _table(text: Sequence[str]) -> np.ndarray:
    return np.frombuffer("".join(text).encode("ascii"), np.uint32)


#: Four digits with leading zeros, with leading NULs, and the latter with nothing at all for 0.
_PADDED = _table([f"{number:04d}" for number in range(10_000)])
_BARE = _table([f"{number:d}".rjust(WORD, "\0") for number in range(10_000)])
_NOTHING = np.concatenate([np.zeros(1, np.uint32), _BARE[1:]])
_TEN_TO_4 = 10_000


def texts(batches: Sequence[Batch], owner: np.ndarray, order: np.ndarray) -> Iterator[np.ndarray]:
    """The text of the lines of all batches in this order, in pieces (uint8). owner: the batch of each line, in the batches' order."""
    layouts = [_layout(batch) for batch in batches]
    starts = np.cumsum([0] + [len(batch.times) for batch in batches])
    widths = np.array([layout.width for layout in layouts], np.int64)
    for first in range(0, len(order), WINDOW):
        lines = order[first:first + WINDOW]
        owners = owner[lines]
        ends = np.cumsum(widths[owners])
        at = ends - widths[owners]
        out = np.zeros(int(ends[-1]), np.uint32)
        for number in np.unique(owners):
            mine = np.flatnonzero(owners == number)
            layouts[number].format(batches[number].columns, lines[mine] - starts[number], out, at[mine])
        text = pl.Series(out.view(np.uint8))
        yield text.filter(text != 0).to_numpy()  # many times as fast as numpy's own indexing


def words_of(largest: int) -> int:
    """Words for the digits of numbers up to `largest`."""
    return -(-len(str(max(int(largest), 0))) // WORD)


def _layout(batch: Batch) -> _Layout:
    """The batch's shape with room for its numbers."""
    varying = [piece for piece in batch.shape.pieces if not isinstance(piece, Text)]
    words = tuple(words_of(column.max()) for piece, column in zip(varying, batch.columns, strict=True) if isinstance(piece, Number))
    if words not in batch.shape.layouts:
        batch.shape.layouts[words] = _Layout(batch.shape, words)
    return batch.shape.layouts[words]


class _Layout:
    """Where the pieces of a line stand. words: of its numbers. width: of all of it, in words."""

    def __init__(self, shape: LineShape, words: Sequence[int]) -> None:
        self._places: list[tuple[int, int, np.ndarray | None]] = []
        self._constants: list[tuple[int, np.ndarray]] = []
        width = 0
        pending = b""
        sizes = iter(words)
        for piece in (*shape.pieces, None):
            if isinstance(piece, Text):
                pending += piece.text
                continue
            if pending:
                self._constants.append((width, _words_of_text(pending)))
                width += len(self._constants[-1][1])
                pending = b""
            if isinstance(piece, Choice):
                table = _choice_table(piece.texts)
                self._places.append((width, len(table), table))
                width += len(table)
            elif isinstance(piece, Number):
                self._places.append((width, next(sizes), None))
                width += self._places[-1][1]
        self.width = width
        self._block = np.zeros((0, width), np.uint32)
        self._item = np.dtype((np.void, WORD * width))

    def format(self, columns: Sequence[np.ndarray], rows: np.ndarray, out: np.ndarray, at: np.ndarray) -> None:
        """Write the lines of these rows of the columns into the words `out`, row k at word at[k]."""
        places = np.ndarray(len(out) - self.width + 1, self._item, out, 0, (WORD,))
        self._make_room(min(len(rows), BLOCK))
        for start in range(0, len(rows), BLOCK):
            chosen = rows[start:start + BLOCK]
            block = self._block[:len(chosen)]
            for (column, words, table), values in zip(self._places, columns, strict=True):
                picked = values[chosen]
                if table is None:
                    _put_number(block, column, words, picked)
                else:
                    for word in range(words):
                        block[:, column + word] = table[word][picked]
            places[at[start:start + BLOCK]] = block.view(self._item).ravel()

    def _make_room(self, lines: int) -> None:
        """Of a trace's many shapes few fill a whole block: each has as many lines as it needed so far."""
        if lines <= len(self._block):
            return
        self._block = np.empty((min(BLOCK, 2 * lines), self.width), np.uint32)
        for start, text in self._constants:
            self._block[:, start:start + len(text)] = text


def _words_of_text(text: bytes) -> np.ndarray:
    words = -(-len(text) // WORD)
    return np.frombuffer(text.rjust(words * WORD, b"\0"), np.uint32)


@cache
def _choice_table(texts: tuple[bytes, ...]) -> np.ndarray:
    """Words of the texts, one row per word of the longest."""
    words = max(1, -(-max(map(len, texts)) // WORD))
    return np.frombuffer(b"".join(text.rjust(words * WORD, b"\0") for text in texts), np.uint32).reshape(-1, words).T.copy()


def _put_number(block: np.ndarray, column: int, words: int, values: np.ndarray) -> None:
    """Digits of `values` into `words` words of every row from `column` on."""
    if words == 1:
        block[:, column] = _BARE[values]
        return
    upper = values // _TEN_TO_4
    last = values - upper * _TEN_TO_4
    least = int(upper.min()) if len(upper) else 0
    if least > 0:
        block[:, column + words - 1] = _PADDED[last]
        _put_number(block, column, words - 1, upper)
        return
    small = upper == 0
    block[:, column + words - 1] = np.where(small, _BARE[last], _PADDED[last])
    if words == 2:
        block[:, column] = _NOTHING[upper]
    else:
        _put_number(block, column, words - 1, upper)
        block[small, column + words - 2] = 0
